"""Which of the bases that ship fits a labelled set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headstart.bases import installed, shipped
from headstart.reading.examples import Examples
from headstart.studies.contrasts import PRETRAINED
from headstart.studies.settings import CompareSettings
from headstart.tokenizers.fit import most_tokens_per_byte, tokens_per_byte
from headstart.tokenizers.tokenizer import Tokenizer

# Of the usual limit, for a base that nobody named. `debat-fr`: ten kinds of French text 0.20 to 0.40 tokens a byte,
# Italian sentences 0.47, English 0.55 and more; its limit is 0.43.
UNASKED = 0.9


@dataclass(frozen=True)
class Fit:
    """How many tokens a byte a base that ships needs for some texts, and how many it may need to be of use."""

    name: str
    tokens_per_byte: float
    most: float


def choose_base(texts: Sequence[str]) -> Fit | None:
    """The base that ships and fits the texts best; None where none does, as for a language that none has read.

    >>> choose_base(["Nous avons beaucoup aimé ce livre.", "Une histoire sans intérêt, hélas."]).name
    'debat-fr'
    >>> choose_base(["We liked this book very much.", "A story of no interest, alas."]) is None
    True
    """
    fits = []
    for name in shipped():
        tokenizer = Tokenizer.load(installed(name))
        most = UNASKED * most_tokens_per_byte(tokenizer.size)
        fits.append(Fit(name, tokens_per_byte(tokenizer, texts), most))
    best = min(fits, key=lambda fit: fit.tokens_per_byte / fit.most, default=None)
    return best if best is not None and best.tokens_per_byte <= best.most else None


def with_shipped_base(settings: CompareSettings, train: Examples, log: Callable[[str], None]) -> CompareSettings | None:
    """The settings with a base that ships and fits the texts; None where none does, or none is wanted."""
    wants_base = any(mode in settings.arms for mode in PRETRAINED)
    fit = choose_base([row.text for row in train.rows]) if wants_base and settings.tokenizer is None else None
    if fit is None:
        return None
    log(
        f"no --init: `{fit.name}`, which ships with headstart, fits these texts ({fit.tokens_per_byte:.2f} tokens a "
        f"byte; up to {fit.most:.2f} is its language) and is taken. Another: --init FOLDER; one of your own text: "
        "--pile FILE; none: --arms scratch"
    )
    taken = Path(fit.name).exists()  # something else has its name here
    return replace(settings, init=(f"{fit.name}={installed(fit.name)}" if taken else fit.name,))

"""sweep.json: the trials of a sweep, and which of them is best on valid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from headstart.runs.comparison import ALPHA


@dataclass(frozen=True)
class Trial:
    """One run and what came of it; without scores, an error or an epoch it is not done yet."""

    run: str  # its folder, within the study's
    settings: Mapping[str, Any]
    valid: Mapping[str, float] | None = None
    test: Mapping[str, float] | None = None
    seconds: float | None = None
    memory: int | None = None  # bytes at the peak: of the GPU where there is one, else of the process
    error: str | None = None
    pruned: int | None = None  # after this epoch
    best: bool = False
    chance: float | None = None  # p-value of the difference from the best trial on valid

    @property
    def score(self) -> tuple[float, float]:
        """What is chosen by: accuracy on valid, then the lower loss there. Test has no part in it."""
        return (-math.inf, -math.inf) if self.valid is None else (self.valid["accuracy"], -self.valid["loss"])


@dataclass(frozen=True)
class Sweep:
    """The table: every trial in order, the best marked."""

    kind: Literal["grid", "search"]
    swept: tuple[str, ...]
    trials: tuple[Trial, ...]
    texts: int | None = None  # of valid, where they were compared on

    @property
    def settings(self) -> tuple[str, ...]:
        """The names of the settings that the table shows."""
        return tuple(dict.fromkeys(name for trial in self.trials for name in trial.settings))

    @property
    def best(self) -> Trial | None:
        return next((trial for trial in self.trials if trial.best), None)

    @property
    def significance(self) -> str | None:
        """Whether the other trials differ significantly from the best; None where the predictions are not here."""
        p_values = [trial.chance for trial in self.trials if trial.chance is not None]
        if not p_values or self.texts is None:
            return None
        worse, others = sum(p < ALPHA for p in p_values), len(p_values)
        if others == 1:
            subject = "the other trial is" if worse else "the other trial is not"
        elif worse in (0, others):
            subject = f"{'each' if worse else 'none'} of the {others} other trials is"
        else:
            subject = f"{worse} of the {others} other trials {'is' if worse == 1 else 'are'}"
        return f"On the {self.texts:,} texts of valid {subject} significantly worse than the best."

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers, which `from_json` reads back to an equal object."""
        values = {"format": 1, **asdict(self)}
        return {**values, "swept": list(self.swept), "trials": list(values["trials"])}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Sweep:
        trials = tuple(Trial(**trial) for trial in values["trials"])
        return cls(values["kind"], tuple(values["swept"]), trials, values.get("texts"))


def plain(name: str) -> str:
    """A setting's name as a person says it.

    >>> plain("batch_size")
    'batch size'
    """
    return name.replace("_", " ")


def shown(value: Any) -> str:
    """A setting's value in few characters.

    >>> shown(3.21987e-05), shown(0.5), shown("full"), shown(16)
    ('3.22e-05', '0.5', 'full', '16')
    """
    return f"{value:.3g}" if isinstance(value, float) else str(value)

"""A base of one's own for a comparison: `--pile FILE…` is read, encoded and pretrained on, and compared as `yours`.

Every step is kept in the study folder (`runs/pile.py` says where), and what was chosen is chosen once: a command that
was killed goes on where it was.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from headstart.checkpoints.folder import Checkpoint
from headstart.errors import ConfigError, DataError, OutputError
from headstart.files import new_file
from headstart.model.model import Model
from headstart.model.presets import PRESETS
from headstart.parallel import SINGLE
from headstart.reading.documents import expand_paths, read_documents
from headstart.reading.examples import Examples
from headstart.reading.skipped import SkippedRows, summary_lines
from headstart.runs.events import Event, Step
from headstart.runs.pile import TOKENS, YOURS, Pile, read_pile
from headstart.runs.run import RunFolder
from headstart.store.store import Store
from headstart.studies.arms import Base, choose_arms, open_bases
from headstart.studies.base_size import WINDOW, choose_size
from headstart.studies.corpus import make_store
from headstart.studies.held_out import HeldOutTexts
from headstart.studies.locks import wait_for_lock
from headstart.studies.pretrain import pretrain
from headstart.studies.settings import CompareSettings, PretrainSettings
from headstart.tokenizers.fit import most_tokens_per_byte, tokens_per_byte
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.training.settings import HardwareSettings

Log = Callable[[str], None]

TEXT = "text.jsonl"
SHARE = 0.4  # of the time for all: the rest is for the comparison
SECONDS = 360.0  # where that has no bound
RECIPE: dict[str, Any] = {
    "objective": "masked",
    "model": "small",
    "mask_rate": 0.3,
    "window": WINDOW,
    "window_start": 32,
    "optimizer": "muon",
    "lr": 2e-3,
    "warmup": 0.05,
}

VOCABULARY = ((2_000_000, 4_000), (20_000_000, 8_000), (math.inf, 16_000))  # (bytes of the pile up to, pieces)


def check_pile(settings: CompareSettings, folder: Path) -> None:
    """What can be told to be wrong before anything is written: files that cannot be read, bases, arms."""
    for path in expand_paths(settings.pile):
        next(iter(read_documents([str(path)], skipped=SkippedRows() if settings.skip_bad else None)), None)
    others = tuple(init for init in settings.init if init != _own_init(folder))
    bases = open_bases(replace(settings, init=others))
    if YOURS in bases:
        problem = f"a base is named {YOURS!r}, as the one that --pile makes: name yours with --init NAME=FOLDER"
        raise ConfigError("compare", [problem])
    to_come = Base(YOURS, True, "", YOURS, Checkpoint(Model.empty(PRESETS["small"])))
    choose_arms(settings, {**bases, YOURS: to_come})


def with_pile(settings: CompareSettings, splits: Mapping[str, Examples], folder: Path, log: Log) -> CompareSettings:
    """The settings with the base of the pile among those to start from."""
    seconds = SECONDS if settings.seconds is None else SHARE * settings.seconds
    make_base(settings, splits, folder, seconds, log)
    return replace(settings, init=tuple(dict.fromkeys((*settings.init, _own_init(folder)))))


def _own_init(folder: Path) -> str:
    return f"{YOURS}={folder / YOURS}"


def make_base(
    settings: CompareSettings, splits: Mapping[str, Examples], folder: Path, seconds: float, log: Log
) -> Path:
    """The run folder of a base that is pretrained on the pile in about so many seconds; one that is there stays."""
    base = folder / YOURS
    with wait_for_lock(base):  # of another process on the same study
        pile = _read_text(settings, splits, folder, log)
        if pile.done:
            return base
        began = time.monotonic() - pile.seconds
        store = Store.open(
            make_store(_store_settings(settings, folder, pile), base, parallel=SINGLE, workers=1, log=log)
        )
        if not pile.pretraining:
            pile = _encoded(pile, store, splits, log)
            left = max(seconds - (time.monotonic() - began), seconds / 2)
            pile = _choose(pile, store, settings, left, log)
            pile = replace(pile, seconds=time.monotonic() - began)
            pile.write(folder)
        chosen = PretrainSettings.from_mapping(pile.pretraining, "pile.json")
        result = pretrain(chosen, base, resume=True, on_event=_progress(log), log=log)
        manifest = RunFolder(base).manifest()
        took, parameters = pile.seconds + (manifest.seconds or 0.0), manifest.parameters["total"]
        replace(pile, steps=result["steps"], parameters=parameters, seconds=took).write(folder)
        size = f"{parameters / 1e6:.1f} million parameters"
        log(f"`{YOURS}`, {size}, took {took:,.0f} s; to start from it elsewhere: --init {base}")
    return base


def _read_text(settings: CompareSettings, splits: Mapping[str, Examples], folder: Path, log: Log) -> Pile:
    """The documents of the pile, without those that hold a text of valid or test, as text.jsonl."""
    files = {path.name: path.stat().st_size for path in expand_paths(settings.pile)}
    held_out = HeldOutTexts(text for name in ("valid", "test") for text in _texts(splits[name]))
    before = read_pile(folder)
    if before is not None:
        if (before.files, before.held_out) != (files, held_out.fingerprint):
            raise OutputError(f"{folder} holds the base of another pile: name another folder with --out")
        return before
    began = time.monotonic()
    skipped = SkippedRows() if settings.skip_bad else None
    documents = left_out = size = 0
    with new_file(folder / TOKENS / TEXT) as path, path.open("w", encoding="utf-8") as file:
        for document in read_documents(settings.pile, skipped=skipped):
            if held_out.are_in(document.text):
                left_out += 1
                continue
            file.write(json.dumps({"text": document.text}, ensure_ascii=False) + "\n")
            documents, size = documents + 1, size + len(document.text.encode())
        if not documents:
            raise DataError(
                settings.pile[0],
                f"nothing is left to pretrain on: {left_out:,} documents, and each holds a text of valid or test",
                fix="give text without labels, and more of it than there is with labels",
            )
    for line in summary_lines(skipped.count, skipped.lines) if skipped else ():
        log(line)
    pile = Pile(files, held_out.fingerprint, documents, left_out, size, time.monotonic() - began)
    log(f"pile: {documents:,} documents, {size / 1e6:.1f} MB; {left_out:,} more hold a text of valid or test: left out")
    labelled = sum(len(text.encode()) for part in splits.values() for text in _texts(part))
    if size < labelled:
        log(
            f"the pile ({size / 1e6:.2f} MB) is smaller than the labelled texts ({labelled / 1e6:.2f} MB): "
            "a base of it will be poor. Pretraining pays with many times as much text as there are labels for"
        )
    pile.write(folder)
    return pile


def _texts(examples: Examples) -> list[str]:
    return [text for row in examples.rows for text in (row.text, row.second) if text is not None]


def _store_settings(settings: CompareSettings, folder: Path, pile: Pile) -> PretrainSettings:
    vocabulary = next(pieces for most, pieces in VOCABULARY if pile.bytes <= most)
    return PretrainSettings(
        corpus=(str(folder / TOKENS / TEXT),), column="text", vocabulary=vocabulary, tokenizer=settings.tokenizer
    )


def _encoded(pile: Pile, store: Store, splits: Mapping[str, Examples], log: Log) -> Pile:
    """The pile with its tokens counted, and a warning where the labelled texts are in another language."""
    counts = store.counts.values()
    own = sum(part.tokens for part in counts) / sum(part.bytes for part in counts)
    tokenizer = Tokenizer.load(store.folder)
    labelled, most = tokens_per_byte(tokenizer, _texts(splits["train"])), most_tokens_per_byte(tokenizer.size)
    if labelled > most:
        log(
            "the pile seems to be in another language than the labelled texts: the tokenizer of the pile needs "
            f"{labelled:.2f} tokens a byte for them, and {own:.2f} for the pile (in one language it would be at most "
            f"{most:.2f}). A base of it will hardly help"
        )
    tokens = store.counts["train"].tokens
    return replace(pile, tokens=tokens, tokens_per_byte=own, labelled_tokens_per_byte=labelled)


def _choose(pile: Pile, store: Store, settings: CompareSettings, seconds: float, log: Log) -> Pile:
    """The settings of the pretraining, chosen for the device, the pile and the time."""
    given = {f.name: getattr(settings, f.name) for f in fields(HardwareSettings)}
    chosen = choose_size(
        PretrainSettings(store=str(store.folder), seed=settings.seed, **RECIPE, **given), store, seconds
    )
    assert chosen.steps is not None and pile.tokens
    read = chosen.steps * chosen.batch_size * WINDOW
    log(
        f"pretraining `{YOURS}` ({', '.join(chosen.change)}): {chosen.steps:,} steps, {read / 1e6:.1f} million tokens, "
        f"which is {read / pile.tokens:.1f} times the pile"
    )
    return replace(pile, pretraining=chosen.to_mapping())


def _progress(log: Log) -> Callable[[Event], None]:
    """A line for each tenth of the steps."""
    began = time.monotonic()
    first: list[int] = []

    def tell(event: Event) -> None:
        if not isinstance(event, Step):
            return
        first.append(event.step)
        if event.step % max(event.total // 10, 1) == 0 and event.step < event.total:
            left = (time.monotonic() - began) / (event.step - first[0] + 1) * (event.total - event.step)
            log(f"pretraining: step {event.step:,} of {event.total:,}, loss {event.loss:.2f}, about {left:.0f} s left")

    return tell

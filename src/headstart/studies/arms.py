"""The arms of a comparison: modes of the bases that they start from, each with its own settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from headstart.bases import note_local
from headstart.batches.batch import pick_window
from headstart.checkpoints.folder import Checkpoint
from headstart.config import read_pairs
from headstart.errors import ConfigError, did_you_mean
from headstart.model.model import Model
from headstart.model.presets import PRESETS
from headstart.reading.examples import Examples
from headstart.runs.comparison import Mode
from headstart.runs.study import StudyFolder
from headstart.studies.baselines import kinds
from headstart.studies.classifier import build_classifier, open_base
from headstart.studies.contrasts import DISTILLED, SELF_TRAINED, STUDENTS
from headstart.studies.fingerprints import base_fingerprint, settings_key
from headstart.studies.outcomes import Arm
from headstart.studies.settings import DATA, UNLABELLED, CompareSettings, FinetuneSettings, LabelledSettings
from headstart.studies.splits import train_tokenizer_on

MODES: tuple[Mode, ...] = ("scratch", "frozen", "contrastive", "full", *STUDENTS)
PRESET = "small"  # what is trained from scratch where no base is named
TOKENIZER = "tokenizer"  # in the study folder, where it was trained on the labelled texts
SAME_FOR_ALL = ("init", "mode", "labels", "seed", "epochs", "steps", "batch_size", "tokens")  # the arms train equally
# What a linear probe takes; whatever concerns training by steps is nothing to it, and must not change its key.
PROBE = (
    *DATA,
    "tokenizer",
    "window",
    "pool",
    "pooler",
    "read",
    "frozen_head",
    "balanced",
    "prediction_files",
    "device",
)


@dataclass(frozen=True)
class Base:
    """What arms start from: a model folder, or a preset, which has an architecture and no weights."""

    init: str
    has_weights: bool
    fingerprint: str
    architecture: str  # equal for two bases that are the same when their weights are fresh
    checkpoint: Checkpoint


def without_base(
    settings: CompareSettings, train: Examples, folder: Path, log: Callable[[str], None]
) -> CompareSettings:
    """What can be compared without a pretrained model: a preset from scratch, its tokenizer trained on the texts."""
    log(
        f"no --init: a `{PRESET}` model from scratch is compared with the baselines. To learn what pretraining buys, "
        "name a model folder with --init, or text of the same kind with --pile, to pretrain one on"
    )
    changes: dict[str, Any] = {"init": (PRESET,)}
    if settings.arms == CompareSettings.arms:
        changes["arms"] = "scratch"
    if settings.tokenizer is None:
        changes["tokenizer"] = str(folder / TOKENIZER)
        if StudyFolder(folder).data() is None:  # in a study that was begun it is there
            train_tokenizer_on(train.rows, folder / TOKENIZER)
    return replace(settings, **changes)


def open_bases(settings: CompareSettings, log: Callable[[str], None] = lambda text: None) -> dict[str, Base]:
    """The bases under the names that were given, or the last parts of their paths."""
    bases: dict[str, Base] = {}
    for text in settings.init:
        name, equals, init = text.partition("=")
        if not equals or Path(text).exists():
            name, init = Path(text).name or text, text
        note_local(init, log)
        if name in bases:
            raise ConfigError("compare", [f"two bases are named {name!r}: name them apart with --init NAME=FOLDER"])
        is_preset = init in PRESETS and not Path(init).is_dir()
        base = open_base(init, settings.tokenizer, "scratch")
        assert base.tokenizer is not None
        architecture = {"config": base.model.config.to_mapping(), "tokenizer": base.tokenizer.fingerprint}
        bases[name] = Base(init, not is_preset, base_fingerprint(init), settings_key(architecture), base)
    return bases


def choose_arms(settings: CompareSettings, bases: Mapping[str, Base]) -> list[Arm]:
    """Every mode asked for, of every base that can have it; bases of one architecture share their arm from scratch."""
    chosen: dict[tuple[Mode, str], tuple[Mode, str]] = {}  # (mode, base or architecture): (mode, base)
    problems = []
    for word in _arm_words(settings):
        name, colon, base = word.partition(":")
        mode = next((mode for mode in MODES if mode == name), None)
        if mode is None:
            problems.append(f"arm {word!r}: {did_you_mean(name, MODES)} (the baselines are always there)")
        elif mode == SELF_TRAINED and settings.unlabelled is None:
            problems.append(f"arm {word!r} learns from texts without labels: name a file of them with --unlabelled")
        elif mode == DISTILLED and not settings.teacher:
            problems.append(f"arm {word!r} learns from another classifier: name its run folder with --teacher")
        elif mode == SELF_TRAINED and settings.teacher:
            problems.append(f"arm {word!r} is its own teacher, and another is given: leave the arm or --teacher out")
        elif colon and base not in bases:
            problems.append(f"arm {word!r}: no base is named {base!r}: {did_you_mean(base, bases)}")
        else:
            possible = [each for each in ([base] if colon else bases) if mode == "scratch" or bases[each].has_weights]
            if not possible:
                problems.append(f"arm {word!r} needs a model folder: {base or ', '.join(bases)} is without weights")
            for each in possible:
                chosen.setdefault((mode, bases[each].architecture if mode == "scratch" else each), (mode, each))
    if not problems and not any(mode in STUDENTS for mode, _ in chosen):
        given = (name for name in ("unlabelled", "teacher") if getattr(settings, name))
        not_there = "is for the arm full, and it is not among them: add full, or a base with --init"
        problems += [f"--{name} {not_there}" for name in given]
    if problems:
        raise ConfigError("arms", problems)
    modes = [mode for mode, _ in chosen.values()]
    arms = [Arm(mode if modes.count(mode) == 1 else f"{mode}:{base}", mode, base) for mode, base in chosen.values()]
    names = [*(arm.name for arm in arms), *kinds(unlabelled=settings.unlabelled is not None)]
    if settings.reference is not None and settings.reference not in names:
        hint = did_you_mean(settings.reference, names)
        raise ConfigError("compare", [f"reference {settings.reference!r} is none of the arms: {hint}"])
    return arms


def _arm_words(settings: CompareSettings) -> list[str]:
    """As they were given; with unlabelled texts or teachers, each `full` is there with its student and without."""
    words = [word.strip() for word in settings.arms.split(",")]
    if settings.teacher or settings.unlabelled is not None:
        pairs = [_with_student(word, DISTILLED if settings.teacher else SELF_TRAINED) for word in words]
        words = [word for pair in pairs for word in pair]
    return list(dict.fromkeys(words))


def _with_student(word: str, student: Mode) -> tuple[str, ...]:
    """
    >>> _with_student("full:causal", "full+self"), _with_student("frozen", "full+self")
    (('full:causal', 'full+self:causal'), ('frozen',))
    """
    name, colon, base = word.partition(":")
    return (f"full{colon}{base}", f"{student}{colon}{base}") if name in ("full", student) else (word,)


def arm_settings(settings: CompareSettings, arm: Arm, bases: Mapping[str, Base]) -> FinetuneSettings:
    """The settings of an arm's runs, but for seed and budget: those of the study, and over them those of its mode."""
    assert arm.base is not None
    given = settings.to_mapping()
    known = {f.name for f in fields(LabelledSettings)}
    left_out = () if arm.mode in STUDENTS else UNLABELLED
    common = {name: value for name, value in given.items() if name in known and name not in left_out}
    mode = "full" if arm.mode in STUDENTS else arm.mode
    own = read_pairs(getattr(settings, mode) or (), f"--{mode}")
    if arm.mode != "frozen" or common.get("frozen_head") == "trained":  # which is what a run does unasked
        common.pop("frozen_head", None)
    elif {**common, **own}.get("frozen_head") == "probe":
        common = {name: value for name, value in common.items() if name in PROBE}
        own = {name: value for name, value in own.items() if name in PROBE or name not in known}
    shared = sorted(own.keys() & {*SAME_FOR_ALL, *DATA, *UNLABELLED})
    if shared:
        problems = [f"{name} is the same for every arm, and cannot be set for one" for name in shared]
        raise ConfigError(f"--{mode}", problems)
    return FinetuneSettings.from_mapping({**common, "init": bases[arm.base].init, "mode": mode, **own}, arm.name)


def check_arms(settings: CompareSettings, arms: Sequence[Arm], bases: Mapping[str, Base], classes: int) -> None:
    """Build each arm's classifier once: what cannot be built is an error before the first run, not after the tenth."""
    for arm in arms:
        assert arm.base is not None
        model, finetune_settings = bases[arm.base].checkpoint.model, arm_settings(settings, arm, bases)
        pick_window(finetune_settings.window, model.config)
        build_classifier(Model.empty(model.config, model.head_config), finetune_settings, classes)

"""The settings of each study: what the command line offers and a recipe may hold. Nothing here knows torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from itertools import product
from typing import Any, Final, Literal, get_type_hints

from headstart.config import Pool, read_pairs
from headstart.errors import ConfigError
from headstart.studies.axes import Axis, read_axes
from headstart.training.settings import Schedule, TrainingSettings, other_default, setting

# What decides which texts there are: the same for all runs of a study.
DATA = ("data", "valid", "test", "valid_share", "test_share", "text", "second", "label", "skip_bad")
ENOUGH_STEPS = 300  # of a run: enough for a network to learn what a few labels can teach it
# What is done with unlabelled texts: nothing to an arm that learns from labels alone, whose keys stay what they were.
SELF_TRAINING = ("adapt_steps", "rounds", "confidence")
UNLABELLED = ("unlabelled", "teacher", *SELF_TRAINING, "student_dropout")
TFIDF: Final = "tfidf"  # the linear model as a teacher; a folder of that name is ./tfidf
TEACHER_WITHOUT = {
    "refit": "trains on valid, for which the teacher gives no probabilities",
    "balanced": "weighs labels, and a teacher's probabilities are none",
    "smoothing": "softens labels, as a teacher does by itself",
}
MODES = ("full", "frozen", "scratch", "contrastive")  # of a run; studies of several take settings for each
MINUTES = {"quick": 15.0}  # for a comparison, by how far it is tuned, where none are given

_data = partial(setting, group="data")
_classifier = partial(setting, group="classifier")
_unlabelled = partial(setting, group="unlabelled text")
_comparison = partial(setting, group="comparison")
_text = partial(setting, group="text")
_model = partial(setting, group="model")
_sweep = partial(setting, group="sweep")


@dataclass(frozen=True)
class LabelledSettings(TrainingSettings):
    """What training on labelled texts takes beside what every training takes."""

    data: str = _data("", "Labelled texts to train on: csv, tsv, jsonl, parquet, `label ||| text`, or a folder.")
    valid: str | None = _data(
        None, "Labelled texts to choose on; by default a share of the training data.", everyday=True
    )
    test: str | None = _data(None, "Labelled texts that are scored once, at the end.", everyday=True)
    valid_share: float | None = _data(
        None, "Share of the data to keep aside as valid, where no file is; by default 0.1.", above=0, below=1
    )
    test_share: float = _data(0.0, "Share of the data to keep aside as test, where no file is.", least=0, below=1)
    tokenizer: str | None = _classifier(None, "A tokenizer folder, where the model has none of its own.")
    text: str | None = _data(None, "Name of the column with the text.", everyday=True)
    second: str | None = _data(None, "Name of the column with the second text of a pair.")
    label: str | None = _data(None, "Name of the column with the label.", everyday=True)
    skip_bad: bool = _data(False, "Leave rows out that cannot be read, and list them.")
    window: int | None = _classifier(
        None,
        "Longest text in tokens; by default that of the model. It may be longer, unless positions are learned.",
        least=1,
    )
    pool: Pool | None = _classifier(None, "Which token's vector stands for the text; by default as the family does it.")
    pooler: Literal["none", "backbone", "tanh", "relu"] | None = _classifier(
        None, "What the vector passes through before the last layer; by default as the family does it."
    )
    read: Literal["last", "all"] | None = _classifier(
        None, "Which layers a token's vector is taken from: the last, or the mean of all; by default the last."
    )
    frozen_head: Literal["trained", "probe"] | None = _classifier(
        None,
        "The head on a frozen backbone: trained by steps, or a linear probe, that is logistic regression on the layer "
        "and pooling that do best on held-out texts; by default trained.",
    )
    dropout: float = _classifier(0.1, "Dropout before the last layer.", least=0, below=1)
    backbone_dropout: float | None = _classifier(
        None, "Dropout in the backbone; by default as it was.", least=0, below=1
    )
    token_dropout: float = _classifier(
        0.0, "Share of a training text's tokens to leave out, other ones each epoch.", least=0, below=1
    )
    smoothing: float = _classifier(0.0, "Label smoothing.", least=0, below=1)
    balanced: bool = _classifier(False, "Weigh each class by the inverse of its share.")
    unlabelled: str | None = _unlabelled(
        None,
        "Texts of the task without labels: the base is pretrained on them a little further, and self-training makes "
        "labels of the answers to them that are sure.",
    )
    adapt_steps: int | None = _unlabelled(
        None, "Steps of pretraining on the unlabelled and the training texts; 0: none; by default 100.", least=0
    )
    rounds: int | None = _unlabelled(
        None, "Students, one after the other, at most; fewer where valid improves no more; by default 3.", least=0
    )
    confidence: float | None = _unlabelled(
        None, "Probability from which an answer becomes a label; by default 0.9.", above=0, below=1
    )
    student_dropout: float | None = _unlabelled(
        None, "Share of a text's tokens that a student does not see; by default 0.1.", least=0, below=1
    )
    teacher: tuple[str, ...] | None = _unlabelled(
        None,
        "A run or model folder of a classifier with the same classes, such as a larger one; or tfidf, the linear "
        "model, fitted to the same labels. Its probabilities for the training and the unlabelled texts are what is "
        "learned; of several the mean.",
    )
    tokens: int | None = setting(None, "Tokens a step, instead of --batch-size texts.", group="schedule", least=1)
    prediction_files: bool = setting(False, "Write `label ||| text` files of the predictions too.", group="saving")

    @classmethod
    def rules(cls, value: Mapping[str, Any], well: Callable[..., bool]) -> Iterator[str]:
        yield from super().rules(value, well)
        if not value.get("data"):
            yield "data is missing: name the file to train on, as in `headstart finetune reviews.csv`, or with --data"
        if value.get("valid") is not None and value.get("valid_share") is not None:
            yield "valid and valid_share are both given: name a file, or a share of the training data"
        taught = bool(value.get("teacher"))
        if taught:
            given = [name for name in SELF_TRAINING if value.get(name) is not None]
            yield from (
                f"{name} is for self-training, which a teacher takes the place of: leave it out" for name in given
            )
            for name, why in TEACHER_WITHOUT.items():
                if value.get(name):
                    yield f"{name} {why}: leave {name} or teacher out"
        elif value.get("unlabelled") is None:
            given = [name for name in UNLABELLED if value.get(name) is not None]
            yield from (f"{name} is for unlabelled texts: name a file of them with --unlabelled" for name in given)
        elif value.get("refit"):
            yield "refit trains on valid, and self-training chooses on it what to keep: leave refit or unlabelled out"


@dataclass(frozen=True)
class FinetuneSettings(LabelledSettings):
    """One classifier: where it starts and what of it trains."""

    init: str = _classifier(
        "", "A model folder to start from; or a preset, with --mode scratch and a tokenizer.", everyday=True
    )
    mode: Literal["full", "frozen", "scratch", "contrastive"] = _classifier(
        "full",
        "Train everything, the head alone, from scratch, or contrastively: the backbone by which texts are of one "
        "class, then a linear head.",
        everyday=True,
    )
    labels: int | None = _data(
        None,
        "Train on this many labelled texts only, as many of each class; the seed draws them.",
        least=1,
        everyday=True,
    )
    refit: bool | None = _classifier(
        None, "Once everything is chosen, train on train and valid together; what is said of valid is from before."
    )

    @property
    def is_probe(self) -> bool:
        """Whether it is a linear probe, which is not trained by steps, and which no seed changes."""
        return self.mode == "frozen" and self.frozen_head == "probe"

    @classmethod
    def rules(cls, value: Mapping[str, Any], well: Callable[..., bool]) -> Iterator[str]:
        yield from super().rules(value, well)
        if not value.get("init"):
            yield "init is missing: name a model folder, or a preset for --mode scratch, with --init"
        if value.get("refit") and value.get("labels") is not None:
            yield "refit adds the labels of valid, and labels asks for fewer: leave one of the two out"
        if value.get("mode") in ("frozen", "scratch", "contrastive"):
            for name, what in (("unlabelled", "unlabelled texts are"), ("teacher", "a teacher is")):
                if value.get(name):
                    yield f"mode is {value['mode']!r}, and {what} for mode full, which trains a pretrained base"
        if value.get("mode") == "contrastive":
            if value.get("accumulate") not in (None, 1):
                yield "accumulate divides a batch, and mode contrastive compares all of its texts: leave it at 1"
            if value.get("smoothing"):
                yield "smoothing is of the cross-entropy, which mode contrastive does not train by: leave it out"
            if value.get("pooler") in ("tanh", "relu"):
                yield f"pooler {value['pooler']!r} is trained with the head, which is linear in mode contrastive"


@dataclass(frozen=True)
class CompareSettings(LabelledSettings):
    """Arms, seeds and label budgets on one data set."""

    init: tuple[str, ...] = _comparison(
        (),
        "A model folder to start from, or a preset for scratch; NAME=FOLDER names it; may be given several times.",
        everyday=True,
    )
    arms: str = _comparison(
        "scratch,frozen,full", "What to compare; full:NAME is the arm of one base alone.", everyday=True
    )
    tune: Literal["none", "brief", "quick", "thorough"] = _comparison(
        "quick",
        "How far to search for the best settings of every arm, with equal effort for each; brief: four learning "
        "rates, however long that takes.",
        everyday=True,
    )
    minutes: float | None = _comparison(
        None,
        "Time for all of it: tuning and seeds are cut to fit; by default 15 with --tune quick.",
        above=0,
        everyday=True,
    )
    seeds: int | Literal["auto"] = _comparison(
        "auto",
        "Runs of each arm, each with a seed of its own; auto adds them until the question is settled.",
        least=1,
        everyday=True,
    )
    matters: float = _comparison(
        0.0,
        "The smallest difference that matters to you, in points: one below it counts as none.",
        least=0,
        below=100,
        everyday=True,
    )
    refit: bool = _comparison(False, "Train the runs that are tested on train and valid together, every arm alike.")
    pile: tuple[str, ...] = _comparison(
        (),
        "Text to pretrain a base of your own on, which is compared as the arm `yours`; may be given several times.",
        everyday=True,
    )
    frozen_head: Literal["trained", "probe"] | None = _comparison(
        "probe", "The head on a frozen backbone: a linear probe, or one that is trained by steps."
    )
    labels: str | None = _comparison(
        None, "Label budgets, as 50,100,200,all: every arm on each of them.", everyday=True
    )
    least_steps: int | None = _comparison(
        None,
        "Steps that a small label budget trains at least, in more epochs; by default as many as the largest one has, "
        "up to 300.",
        least=0,
    )
    reference: str | None = _comparison(None, "The arm that the others are held against; by default scratch.")
    full: tuple[str, ...] = _comparison((), "A setting of the arms that train everything, as lr=1e-5.")
    frozen: tuple[str, ...] = _comparison((), "A setting of the arms that train the head alone, as lr=1e-3.")
    scratch: tuple[str, ...] = _comparison((), "A setting of the arms from scratch, as lr=1e-4.")
    contrastive: tuple[str, ...] | None = _comparison(None, "A setting of the contrastive arms, as lr=1e-4.")
    ensemble: bool = _comparison(False, "Ensembles too: each pretrained arm averaged with the linear model.")
    jobs: int | None = _comparison(
        None,
        "Runs side by side, each in a process of its own; by default 2 on a CPU and up to 3 on a GPU.",
        least=1,
        everyday=True,
    )
    keep_models: bool = _comparison(False, "Keep the weights of every run, not of the first seed alone.")
    test_share: float = _data(0.2, "Share of the data to keep aside as test, where no file is.", least=0, below=1)
    batch_size: int = other_default("batch_size", 16)

    @classmethod
    def rules(cls, value: Mapping[str, Any], well: Callable[..., bool]) -> Iterator[str]:
        yield from super().rules(value, well)
        if set(value.get("teacher") or ()) - {TFIDF} and value.get("labels") not in (None, "all"):
            yield "labels asks for label budgets, and a teacher knows more labels than those: take the teacher tfidf"

    @property
    def seconds(self) -> float | None:
        """The time for all of it; None where it is not bounded."""
        minutes = MINUTES.get(self.tune) if self.minutes is None else self.minutes
        return None if minutes is None else 60 * minutes

    @property
    def processes(self) -> int:
        return self.jobs or 1


def given_settings(settings: LabelledSettings) -> set[str]:
    """The settings of training that differ from their defaults: a user chose them."""
    defaults = {f.name: f.default for f in fields(settings)}
    return {f.name for f in fields(LabelledSettings) if getattr(settings, f.name) != defaults[f.name]}


@dataclass(frozen=True)
class PretrainSettings(TrainingSettings):
    """What pretraining takes beside what every training takes."""

    store: str = _text("", "The token store to train on, as `headstart tokens` writes it.")
    corpus: tuple[str, ...] | None = _text(
        None, "Text to train on instead, which is turned into a token store first; may be given several times."
    )
    vocabulary: int | None = _text(
        None, "Corpus: tokens of the tokenizer that is trained on it, where none is given; by default 16,000.", least=1
    )
    column: str | None = _text(None, "Corpus: the column of the text, where the guess is wrong.")
    blank_lines: bool | None = _text(None, "Corpus: in .txt files blank lines, not line ends, part documents.")
    skip_bad: bool | None = _text(None, "Corpus: leave documents out that cannot be read, and list them.")
    objective: Literal["causal", "masked", "causal+masked", "replaced", "masked+next-sentence"] = _model(
        "causal", "What the model learns from text.", everyday=True
    )
    model: str | None = _model(
        None, "A preset to begin with fresh weights, such as lab; by default small.", everyday=True
    )
    init: str | None = _model(None, "A model folder to go on from instead, with its weights.", everyday=True)
    change: tuple[str, ...] = _model((), "A setting of the preset to change, as width=128; may be given several times.")
    tokenizer: str | None = _text(
        None, "The tokenizer folder; by default the one in the store or the model folder.", everyday=True
    )
    window: int | None = _text(
        None,
        "Tokens a sequence; by default those of the model. It may be longer, unless positions are learned.",
        least=2,
        everyday=True,
    )
    window_start: int | None = _text(
        None, "Tokens a sequence in the first half of the steps, fewer than window; by default as many.", least=2
    )
    across: bool = _text(False, "Causal: let a sequence reach over the edge of a document into the next.")
    mask_rate: float = _text(0.15, "Masked: share of the tokens to hide.", above=0, below=1)
    mask_rate_end: float | None = _text(
        None,
        "Masked: share to hide in the last step, reached in a line; evaluations have it too. By default the same.",
        above=0,
        below=1,
    )
    whole_words: bool = _text(False, "Masked: hide words as a whole.")
    causal_share: float | None = _text(
        None, "Causal+masked: share of the steps that are causal; by default 1 in 16.", above=0, below=1
    )
    sampled_softmax: int | None = _model(
        None,
        "Tokens of the vocabulary that the loss of a step is taken over, its targets and others at random, such as "
        "4096; by default all.",
        least=1,
    )
    generator: float | None = _model(
        None, "Replaced: the generator's width as a share of the model's; by default 0.25.", above=0
    )
    detection_weight: float | None = _model(
        None, "Replaced: weight of the detection beside the generator's loss; by default 50.", above=0
    )
    epochs: int = other_default("epochs", 1)
    batch_size: int = other_default("batch_size", 32)
    lr: float = other_default("lr", 1e-3)
    schedule: Schedule = other_default("schedule", "cosine")
    warmup: float = other_default("warmup", 0.02)
    beta2: float = other_default("beta2", 0.98)
    weights: Literal["best", "last"] = other_default("weights", "last")

    @classmethod
    def rules(cls, value: Mapping[str, Any], well: Callable[..., bool]) -> Iterator[str]:
        yield from super().rules(value, well)
        if not value.get("store") and not value.get("corpus"):
            yield "no text to train on: name it, as in `headstart pretrain corpus.txt`, or a token store with --store"
        if value.get("store") and value.get("corpus"):
            yield "store and corpus are both given: name a token store, or text to make one of"
        if value.get("model") is not None and value.get("init") is not None:
            yield "model and init are both given: name a preset for fresh weights, or a folder to go on from"
        if value.get("init") is not None and value.get("change"):
            yield "--change is for a preset; the sizes of a model that has weights are what they are"
        if value.get("objective") != "replaced":
            for name in ("generator", "detection_weight"):
                if value.get(name) is not None:
                    yield f"{name} is for the objective replaced: add --objective replaced, or leave it out"
        if value.get("generator") is not None and well("generator") and value["generator"] > 1:
            yield (
                f"generator is {value['generator']}: it would be larger than the model, which could then hardly tell "
                "its tokens from the text's; choose a share of at most 1, such as 0.25"
            )
        if value.get("mask_rate_end") is not None and value.get("objective") == "causal":
            yield "mask_rate_end is for objectives with masks, and causal has none: choose another, or leave it out"
        if value.get("window_start") is not None and value.get("objective") == "masked+next-sentence":
            yield "window_start cuts sequences, and the pairs of masked+next-sentence are read whole: leave it out"
        if value.get("sampled_softmax") is not None and value.get("objective") == "replaced":
            yield "sampled_softmax is not for replaced, whose generator samples from the whole vocabulary: leave it out"
        if value.get("causal_share") is not None and value.get("objective") != "causal+masked":
            yield "causal_share is for the objective causal+masked: add --objective causal+masked, or leave it out"


@dataclass(frozen=True)
class SweepSettings(FinetuneSettings):
    """Many classifiers that differ in a few settings: every one of a grid, or a search."""

    grid: tuple[str, ...] = _sweep(
        (), "A setting and its values, as lr=1e-5,1e-4; given several times, every combination is run.", everyday=True
    )
    search: tuple[str, ...] = _sweep(
        (), "A setting to search over, as lr=1e-6..1e-3 or batch_size=8,16; may be given several times.", everyday=True
    )
    trials: int = _sweep(20, "Search: trials in all, over all processes.", least=1, everyday=True)
    prune: bool = _sweep(False, "Search: stop a trial that is below the median of those before it, epoch by epoch.")
    storage: str | None = _sweep(
        None, "Search: URL of a database that several machines share; by default an SQLite file in the study folder."
    )
    full: tuple[str, ...] = _sweep((), "A setting of the runs that train everything, as lr=1e-5.")
    frozen: tuple[str, ...] = _sweep((), "A setting of the runs that train the head alone, as lr=1e-3.")
    scratch: tuple[str, ...] = _sweep((), "A setting of the runs from scratch, as lr=1e-4.")
    contrastive: tuple[str, ...] | None = _sweep(None, "A setting of the contrastive runs, as lr=1e-4.")
    keep_models: bool = _sweep(False, "Keep the weights of every run, not of the best alone.")

    @classmethod
    def rules(cls, value: Mapping[str, Any], well: Callable[..., bool]) -> Iterator[str]:
        yield from super().rules(value, well)
        for name in ("unlabelled", "teacher"):
            if value.get(name):
                yield f"a sweep is of labelled texts alone: {name} is for finetune and compare"
        if not well("grid", "search"):
            return
        if bool(value["grid"]) == bool(value["search"]):
            yield "name a grid, as --grid lr=1e-5,1e-4, or a search, as --search lr=1e-6..1e-3: one of the two"
        for option in ("grid", "search"):
            yield from read_axes(value[option], _sweepable(), option)[1]
        if value["grid"] and not value["search"]:
            yield from (f"{name} is for a search, and this is a grid" for name in ("prune", "storage") if value[name])

    @property
    def axes(self) -> tuple[Axis, ...]:
        """What is varied, in the order in which it was named."""
        option = "grid" if self.grid else "search"
        return read_axes(getattr(self, option), _sweepable(), option)[0]

    def combination(self, chosen: Mapping[str, Any]) -> FinetuneSettings:
        """The settings of one run: what was chosen for it, over the table of its mode, over what all runs share."""
        shared = {f.name: getattr(self, f.name) for f in fields(FinetuneSettings)}
        mode = chosen.get("mode", self.mode)
        table = getattr(self, mode) if mode in MODES else None
        return FinetuneSettings.from_mapping({**shared, **read_pairs(table or (), mode), **chosen}, "sweep")

    def combinations(self) -> tuple[FinetuneSettings, ...]:
        """Every run of a grid, each once; of a search, those at the ends of its ranges.

        A ConfigError tells all that is wrong with any of them.
        """
        axes = self.axes
        runs: dict[FinetuneSettings, None] = {}
        problems: dict[str, None] = {}
        for values in product(*(axis.values for axis in axes)):
            try:
                runs[self.combination({axis.name: value for axis, value in zip(axes, values, strict=True)})] = None
            except ConfigError as error:
                problems |= dict.fromkeys(error.problems)
        if problems:
            raise ConfigError("sweep", problems)
        return tuple(runs)


def _sweepable() -> dict[str, Any]:
    """The settings of a run with their types; None for those that a sweep may not vary."""
    return {name: None if name in DATA else kind for name, kind in get_type_hints(FinetuneSettings).items()}

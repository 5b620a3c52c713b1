"""Pretraining: a model from a token store; causal, masked, both, masked and next sentence, or by replaced tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headstart.bases import note_local
from headstart.batches.batch import Batches, pick_window
from headstart.batches.candidates import CandidateBatches, word_frequencies
from headstart.batches.causal_masked import CausalMaskedBatches
from headstart.batches.growing import GrowingBatches
from headstart.batches.language import CausalBatches, MaskedBatches, PairBatches
from headstart.batches.masking import Masking
from headstart.batches.replaced import ReplacedBatches
from headstart.batches.sampler import RunLength
from headstart.checkpoints.exchange import open_model
from headstart.checkpoints.folder import Checkpoint, check_tokenizer
from headstart.config import Direction, HeadConfig, ModelConfig, ReplacedConfig, read_pairs
from headstart.errors import ConfigError
from headstart.metrics import Scores
from headstart.model.model import Model
from headstart.model.presets import GENERATOR, PRESETS, usual_head
from headstart.parallel import SINGLE, Parallel
from headstart.runs.events import OnEvent, Step
from headstart.store.store import Documents, Store
from headstart.studies.corpus import make_store
from headstart.studies.settings import PretrainSettings
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.training.driver import open_run, training_manifest, training_result
from headstart.training.hardware import pick_device, pick_precision
from headstart.training.inference import language_model_scores
from headstart.training.loop import Loop
from headstart.training.objectives import Causal, CausalAndMasked, MaskedAndNextSentence, MaskedTokens, Objective
from headstart.training.replaced import Replaced, drop_generator, with_generator

DEFAULT_PRESET = "small"
MEASURED = {"cpu": (8, 6), "cuda": (256, 64)}  # batch size and steps by which the speed of a device is measured
HEAD_OF = {
    "causal": "next-token",
    "masked": "masked",
    "causal+masked": "causal+masked",
    "masked+next-sentence": "masked+next-sentence",
}
DIRECTION_OF: dict[str, Direction] = {"causal": "causal", "causal+masked": "both"}  # bidirectional for all others
CAUSAL_SHARE = 1 / 16  # of the steps of causal+masked


def pretrain(
    settings: PretrainSettings,
    out: str | Path,
    *,
    resume: bool = False,
    workers: int | None = 1,
    on_event: OnEvent | None = None,
    log: Callable[[str], None] = lambda text: None,
    parallel: Parallel = SINGLE,
) -> dict[str, Any]:
    """Run it, write the run folder, and return what `result.json` holds.

    A corpus is turned into a token store first, beside the run folder, by so many `workers` (None: one a core; more
    than one needs `if __name__ == "__main__":` in a script).
    """
    device = pick_device(settings.device, parallel)
    note_local(settings.init, log)
    store = Store.open(settings.store or make_store(settings, Path(out), parallel=parallel, workers=workers, log=log))
    model, tokenizer = build_language_model(settings, store, log)
    if tokenizer.fingerprint != store.tokenizer_fingerprint:
        Store.open(store.folder, tokenizer.fingerprint)  # says what differs
    window = pick_window(settings.window, model.config)
    if settings.window_start is not None and settings.window_start >= window:
        problem = f"window_start is {settings.window_start}, and sequences have {window} tokens at most: choose fewer"
        raise ConfigError("pretrain", [problem])
    train = training_batches(settings, store, model, tokenizer, window)
    documents = store.split("valid")
    scorer = _Validation(settings, documents, tokenizer, window) if len(documents) else None
    parallel.require_same("data", str(store.manifest["files"]))
    with open_run(out, "pretrain", settings.to_mapping(), resume=resume, parallel=parallel) as run:
        if run.done:
            log(f"{run.path} is done already")
            return run.result_json()
        log(f"run folder: {run.path}")
        precision = pick_precision(settings, device, log)
        validate = None if scorer is None else partial(scorer.scores, precision=precision, parallel=parallel)
        objective = objective_of(settings)
        loop = Loop(model.to(device), objective, train, settings, validate, "loss", precision, parallel)
        run.train(loop, on_event=on_event, log=log)
        trained = loop.parallel_model.unwrapped()
        result = {
            "valid": None if validate is None else validate(trained),
            "objective": settings.objective,
            "weights": "fresh" if settings.init is None else f"from {settings.init}",
            "tokens": loop.tokens,
            **training_result(loop),
        }
        digests = {name: file["blake2b"] for name, file in store.manifest["files"].items()}
        manifest = {"data": digests, "tokenizer": tokenizer.fingerprint, **training_manifest(loop, trained, precision)}
        run.finish(Checkpoint(drop_generator(trained).cpu(), tokenizer=tokenizer), result, manifest)
        return result


def measure_speed(settings: PretrainSettings, store: Store) -> float:
    """Tokens a second of such a pretraining, by the second half of a few steps; nothing of it is kept."""
    device = pick_device(settings.device)
    batch_size, steps = MEASURED[device.type]
    settings = replace(settings, batch_size=batch_size, steps=steps)
    model, tokenizer = build_language_model(settings, store)
    train = training_batches(settings, store, model, tokenizer, pick_window(settings.window, model.config))
    precision = pick_precision(settings, device, lambda text: None)
    loop = Loop(model.to(device), objective_of(settings), train, settings, precision=precision)
    events = [event for event in loop.run() if isinstance(event, Step)]
    first, *later = events[len(events) // 2 - 1 :]
    return (later[-1].tokens - first.tokens) / sum(event.seconds for event in later)


OBJECTIVES: dict[str, Objective] = {
    "causal": Causal(),
    "masked": MaskedTokens(),
    "causal+masked": CausalAndMasked(),
    "replaced": Replaced(),
    "masked+next-sentence": MaskedAndNextSentence(),
}


def objective_of(settings: PretrainSettings) -> Objective:
    if settings.objective == "replaced" and settings.detection_weight is not None:
        return Replaced(settings.detection_weight)
    return OBJECTIVES[settings.objective]


def head_of(settings: PretrainSettings, config: ModelConfig) -> HeadConfig:
    """The head that a model is pretrained under."""
    if settings.objective == "replaced":
        return ReplacedConfig(generator=settings.generator or GENERATOR)
    return usual_head(config, HEAD_OF[settings.objective])


def build_language_model(
    settings: PretrainSettings, store: Store, log: Callable[[str], None] = lambda text: None
) -> tuple[Model, Tokenizer]:
    """A preset with fresh weights, or a model folder, with a head for the objective; and the tokenizer."""
    torch.manual_seed(settings.seed)
    if settings.init is not None:
        checkpoint = open_model(settings.init)
        model, tokenizer = checkpoint.model, _tokenizer(settings, store, checkpoint.tokenizer)
        check_tokenizer(model.config, tokenizer)
        model = model.with_config(model.config.with_window(settings.window))
        head = head_of(settings, model.config)
        if isinstance(head, ReplacedConfig):
            model = with_generator(model, head.generator)
        elif model.head_config != head:
            has = "no head" if model.head_config is None else f"a {model.head_config.kind} head"
            log(f"{settings.init} has {has}: {settings.objective} pretraining begins with a new {head.kind} head")
            model = model.with_head(head)
        return model, tokenizer
    tokenizer = _tokenizer(settings, store, None)
    direction = DIRECTION_OF.get(settings.objective, "bidirectional")
    changes: dict[str, Any] = {"vocabulary": tokenizer.size, **read_pairs(settings.change, "change")}
    if settings.objective == "masked+next-sentence":
        changes = {"pooler": True, "segments": 2, **changes}
    config = _preset(settings.model or DEFAULT_PRESET, changes)
    if config.direction != direction and config.family in ("headstart", "lab"):
        config = replace(config, direction=direction)  # a published architecture keeps its own
    config = config.with_window(settings.window)
    return Model.build(config, head_of(settings, config)), tokenizer


def training_batches(
    settings: PretrainSettings, store: Store, model: Model, tokenizer: Tokenizer, window: int
) -> Batches:
    """What a run learns from; for a sampled softmax with the candidates of each step."""
    documents = store.split("train")
    batches = make_batches(settings, documents, tokenizer, window)
    size, vocabulary = settings.sampled_softmax, model.config.vocabulary
    if size is None:
        return batches
    if size >= vocabulary:
        problem = f"sampled_softmax is {size:,}, and the vocabulary has {vocabulary:,} words: choose fewer"
        raise ConfigError("pretrain", [problem])
    special = [token for token in (tokenizer.start, tokenizer.end) if token is not None]
    return CandidateBatches(batches, size, word_frequencies(documents, vocabulary, special), settings.seed)


def make_batches(
    settings: PretrainSettings,
    documents: Documents,
    tokenizer: Tokenizer,
    window: int,
    *,
    evaluation: bool = False,
    causal_share: float | None = None,
) -> Batches:
    """Batches of the objective's kind; with `evaluation` in file order and with the same masks in every pass.

    `causal_share`: of the steps of causal+masked, where it is not that of the settings.
    """
    batches = _whole_windows(settings, documents, tokenizer, window, evaluation, causal_share)
    if evaluation or settings.window_start is None:
        return batches
    return GrowingBatches(batches, settings.window_start, RunLength(settings.epochs, settings.steps))


def _whole_windows(
    settings: PretrainSettings,
    documents: Documents,
    tokenizer: Tokenizer,
    window: int,
    evaluation: bool,
    causal_share: float | None,
) -> Batches:
    common: dict[str, Any] = {
        "window": window,
        "batch_size": settings.batch_size,
        "seed": settings.seed,
        "evaluation": evaluation,
    }
    if settings.objective == "causal":
        return CausalBatches(documents, tokenizer, across=settings.across, **common)
    common["run_length"] = RunLength(settings.epochs, settings.steps)
    masking = Masking.of(tokenizer, settings.mask_rate, settings.whole_words, settings.mask_rate_end)
    if settings.objective == "masked":
        return MaskedBatches(documents, tokenizer, masking=masking, **common)
    if settings.objective == "causal+masked":
        share = _causal_share(settings) if causal_share is None else causal_share
        return CausalMaskedBatches(documents, tokenizer, masking=masking, causal_share=share, **common)
    if settings.objective == "replaced":
        return ReplacedBatches(documents, tokenizer, masking=masking, **common)
    return PairBatches(documents, tokenizer, masking=masking, **common)


class _Validation:
    """Scores on held-out text. That of causal+masked is read twice, once in each way."""

    def __init__(self, settings: PretrainSettings, documents: Documents, tokenizer: Tokenizer, window: int) -> None:
        make = partial(make_batches, settings, documents, tokenizer, window, evaluation=True)
        self.settings = settings
        self.tokens_per_byte = _tokens_per_byte(documents)
        self.causal = self.masked = None
        if settings.objective == "causal":
            self.causal = make()
        elif settings.objective == "causal+masked":
            self.causal, self.masked = make(causal_share=1.0), make(causal_share=0.0)
        else:
            self.masked = make()

    def scores(self, model: Model, *, precision: torch.dtype, parallel: Parallel) -> Scores:
        """Per byte where every token is predicted from those before; a loss of causal+masked is that of a mean step."""
        score = partial(language_model_scores, model, objective_of(self.settings), parallel=parallel)
        masked = {} if self.masked is None else score(self.masked, precision)
        if self.causal is None:
            return masked
        causal = score(self.causal, precision, tokens_per_byte=self.tokens_per_byte)
        if not masked:
            return causal
        share = _causal_share(self.settings)
        loss = share * causal["loss"] + (1 - share) * masked["loss"]
        return {"loss": loss, "masked_loss": masked["loss"], "causal_loss": causal["loss"]} | {
            name: causal[name] for name in ("perplexity", "bits_per_byte")
        }


def _causal_share(settings: PretrainSettings) -> float:
    return CAUSAL_SHARE if settings.causal_share is None else settings.causal_share


def _preset(name: str, changes: Mapping[str, Any]) -> ModelConfig:
    if name not in PRESETS:
        raise ConfigError("pretrain", [f"model {name!r} is no preset: {', '.join(PRESETS)}"])
    return ModelConfig.from_mapping({**PRESETS[name].to_mapping(), **changes}, f"preset {name}")


def _tokenizer(settings: PretrainSettings, store: Store, own: Tokenizer | None) -> Tokenizer:
    if settings.tokenizer is None and own is not None:
        return own
    return Tokenizer.load(settings.tokenizer or store.folder)


def _tokens_per_byte(documents: Documents) -> float:
    """Tokens to predict for each byte of text: those of each document, and its end."""
    return (len(documents.ids) + len(documents)) / max(int(documents.bytes.sum()), 1)

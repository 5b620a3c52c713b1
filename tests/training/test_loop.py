"""The loop: what it learns, what it yields, how it stops and goes on."""

from __future__ import annotations

import json
import logging
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headstart.batches.batch import Batch
from headstart.batches.causal_masked import CausalMaskedBatches
from headstart.batches.examples import EncodedExamples, ExampleBatches
from headstart.batches.language import CausalBatches, MaskedBatches, PairBatches
from headstart.batches.masking import Masking
from headstart.config import CausalMaskedConfig, ClassifierConfig, MaskedConfig, NextTokenConfig
from headstart.errors import ModelError, TrainingError
from headstart.metrics import Scores, score
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.parallel import SINGLE, Parallel
from headstart.runs.events import Evaluated, Event, Finished, Halved, Saved, Skipped, Step
from headstart.store.store import Documents
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.training import stepper as stepper_module
from headstart.training.inference import classify
from headstart.training.loop import Loop
from headstart.training.objectives import (
    Causal,
    CausalAndMasked,
    Classification,
    Contrastive,
    MaskedTokens,
    Objective,
)
from headstart.training.run_checkpoint import RunState, restore_state
from headstart.training.settings import TrainingSettings
from headstart.training.stepper import CompiledStepper

PINNED = Path(__file__).parent / "pinned.json"
WORDS = ["the", "cat", "saw", "a", "bird", "and", "then", "ran", "over", "to", "see", "it", "fly", "off", "again"]


def examples(rows: int, classes: int = 2, seed: int = 0) -> EncodedExamples:
    """Rows whose class is the number of their most frequent marker token."""
    draw = np.random.default_rng(seed)
    labels = np.arange(rows) % classes
    pieces = []
    for label in labels:
        noise = draw.integers(10, 30, size=draw.integers(3, 9))
        pieces.append(draw.permutation(np.append(noise, [2 + label] * 2)).astype(np.int32))
    starts = np.concatenate([[0], np.cumsum([len(p) for p in pieces])]).astype(np.int64)
    return EncodedExamples(np.concatenate(pieces), starts, None, labels.astype(np.int64), 0)


def classifier(dropout: float = 0.0, **changes: Any) -> Model:
    torch.manual_seed(7)
    sizes = {"vocabulary": 30, "width": 16, "layers": 2, "heads": 2, "feed_forward": 32, "window": 16}
    config = preset("bert-tiny", **{**sizes, "dropout": dropout, "attention_dropout": dropout, **changes})
    return Model.build(config, ClassifierConfig(classes=2, pool="mean", dropout=dropout))


def make_loop(
    data: EncodedExamples | None = None,
    model: Model | None = None,
    parallel: Parallel = SINGLE,
    objective: Objective | None = None,
    **changes: Any,
) -> Loop:
    data = examples(32) if data is None else data
    settings = TrainingSettings(**{"epochs": 2, "lr": 3e-3, "weight_decay": 0.0, **changes})

    def validate(model: Model) -> Scores:
        return score(classify(model, data, torch.float32, parallel=parallel), data.labels)

    batches = ExampleBatches(data, settings.seed, settings.batch_size)
    return Loop(model or classifier(), objective or Classification(), batches, settings, validate, parallel=parallel)


def losses(events: list[Event]) -> list[float]:
    return [event.loss for event in events if isinstance(event, Step)]


def weights(model: Model) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_it_learns_32_rows_by_heart() -> None:
    data = examples(32, seed=3)
    loop = make_loop(data, epochs=30, schedule="constant")
    events = list(loop.run())
    assert score(classify(loop.model, data, torch.float32), data.labels)["accuracy"] == 1.0
    assert losses(events)[-1] < 0.05 < losses(events)[0]


def test_what_it_yields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstart.training.schedule.LEAST_SECONDS", 0.0)
    loop = make_loop(examples(20), epochs=2, batch_size=8)
    events = list(loop.run())
    kinds = [type(event).__name__ for event in events]
    assert kinds == ["Step"] * 3 + ["Evaluated", "Saved"] + ["Step"] * 3 + ["Evaluated", "Saved", "Finished"]
    steps = [event for event in events if isinstance(event, Step)]
    assert [s.step for s in steps] == [1, 2, 3, 4, 5, 6]
    assert [s.epoch for s in steps] == [0, 0, 0, 1, 1, 1]
    assert {s.total for s in steps} == {6}
    assert steps[-1].tokens == 2 * len(loop.batches.data.ids)  # type: ignore[attr-defined]
    evaluated = [event for event in events if isinstance(event, Evaluated)]
    assert [(e.epoch, e.step) for e in evaluated] == [(1.0, 3), (2.0, 6)]
    assert not loop.model.training


@pytest.mark.parametrize(("seconds", "saved"), [(1, []), (4, [24]), (12, [9, 18]), (40, [3, 6, 9, 12, 15, 18, 21, 24])])
def test_an_epoch_ends_in_a_checkpoint_twice_a_minute_at_most(
    monkeypatch: pytest.MonkeyPatch, seconds: float, saved: list[int]
) -> None:
    """Epochs of three steps that take `seconds`: to write 500 MB after each of them would take longer than they do."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    loop, found = make_loop(examples(20), epochs=8, batch_size=8), []
    for event in loop.run():
        now += seconds * isinstance(event, Evaluated)
        found += [event.step] if isinstance(event, Saved) else []
    assert found == saved


def test_a_long_epoch_does_not_go_by_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five minutes a step, eight steps: ten minutes of work are lost at most."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    loop, found = make_loop(examples(64), epochs=1, batch_size=8), []
    for event in loop.run():
        now += 300 * isinstance(event, Step)
        found += [event.step] if isinstance(event, Saved) else []
    assert found == [2, 4, 6, 8]


def test_steps_instead_of_epochs_and_other_rhythms() -> None:
    loop = make_loop(examples(20), steps=7, batch_size=8, evaluate_every=2, save_every=5)
    events = list(loop.run())
    assert [e.step for e in events if isinstance(e, Evaluated)] == [2, 4, 6, 7]
    assert [e.step for e in events if isinstance(e, Saved)] == [5, 7]


@pytest.mark.parametrize("accumulate", [2, 3, 8])
def test_micro_batches_give_the_large_batch(accumulate: int) -> None:
    plain, parted = make_loop(), make_loop(accumulate=accumulate)
    a, b = losses(list(plain.run())), losses(list(parted.run()))
    np.testing.assert_allclose(a, b, rtol=1e-5)
    for name, value in weights(plain.model).items():
        torch.testing.assert_close(value, weights(parted.model)[name], rtol=1e-4, atol=1e-5)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout": {"dropout": 0.3},
    "large seed": {"dropout": 0.3, "seed": 2**32 - 1},
    "accumulated": {"accumulate": 3},
    "muon": {"optimizer": "muon"},
    "average": {"average": 0.9},
    "unfreezing": {"unfreeze": 1, "epochs": 4},
    "patience": {"patience": 2, "epochs": 8, "lr": 1e-7},
    "redrawn": {"reinitialise": 1},
    "rates": {"layer_decay": 0.7, "head_lr": 5.0, "schedule": "one-cycle", "clip": 0.1},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_going_on_from_any_state_is_never_having_stopped(name: str) -> None:
    """In the middle of an epoch too, bit for bit: losses, weights, choice of the best."""
    options = {"epochs": 3, "batch_size": 8, "save_every": 1, **OPTIONS[name]}
    dropout = options.pop("dropout", 0.0)
    data = examples(28)
    straight = make_loop(data, classifier(dropout), **options)
    events = list(straight.run())
    states = [event.state for event in events if isinstance(event, Saved)]
    for state in states[:: max(1, len(states) // 4)]:
        again = make_loop(data, classifier(dropout), **options)
        restore_state(again, through_disk(state))
        rest = list(again.run())
        assert losses(rest) == losses(events)[state.numbers["step"] :]
        assert all(value.equal(weights(again.model)[key]) for key, value in weights(straight.model).items())
        assert again.early_stopping.best == straight.early_stopping.best
        last = [e for e in rest if isinstance(e, Finished)]
        assert last == [e for e in events if isinstance(e, Finished)]


def through_disk(state: RunState) -> RunState:
    """As a state comes back: its numbers through JSON, its tensors as copies."""
    return RunState({k: v.clone() for k, v in state.tensors.items()}, json.loads(json.dumps(state.numbers)))


def test_a_state_of_another_model_is_refused() -> None:
    saved = next(event for event in make_loop(save_every=1).run() if isinstance(event, Saved))
    with pytest.raises(TrainingError, match="other names"):
        restore_state(make_loop(model=classifier(layers=3)), through_disk(saved.state))
    with pytest.raises(TrainingError, match="has shape"):
        restore_state(make_loop(model=classifier(feed_forward=40)), through_disk(saved.state))


def test_a_state_of_a_version_with_other_batches_is_refused() -> None:
    """Masks that are drawn otherwise would go on from it, silently not the same run."""
    saved = next(event for event in make_loop(save_every=1).run() if isinstance(event, Saved))
    older = through_disk(saved.state)
    assert older.numbers.pop("batches") == 1
    restore_state(make_loop(), older)  # one of before there was a number
    loop = make_loop()
    loop.batches.version = 2  # type: ignore[attr-defined]
    with pytest.raises(TrainingError, match="another version of headstart"):
        restore_state(loop, older)
    assert MaskedBatches.version == PairBatches.version == 2


@pytest.mark.parametrize("wrong", [{"step": 99}, {"epoch": 7}, {"in_epoch": 10**6}])
def test_a_place_that_the_run_does_not_come_by_is_refused(wrong: dict[str, int]) -> None:
    saved = next(event for event in make_loop(save_every=1).run() if isinstance(event, Saved))
    state = through_disk(saved.state)
    with pytest.raises(TrainingError, match="the checkpoint is of another run"):
        restore_state(make_loop(), RunState(state.tensors, {**state.numbers, **wrong}))


@pytest.mark.parametrize("part", ["best", "average"])
def test_other_weights_than_those_of_the_model_are_refused(part: str) -> None:
    loop = make_loop(save_every=100, average=0.9)
    saved = [event for event in loop.run() if isinstance(event, Saved)][-1]
    state = through_disk(saved.state)
    name = next(name for name in state.tensors if name.startswith(f"{part}.backbone"))
    for value in (torch.ones(1), None):
        tensors = {k: v for k, v in state.tensors.items() if k != name} | ({} if value is None else {name: value})
        with pytest.raises(TrainingError, match="the checkpoint is of another model"):
            restore_state(make_loop(average=0.9), RunState(tensors, state.numbers))


def test_asked_to_stop_it_saves_and_ends() -> None:
    loop = make_loop(examples(40), batch_size=8)
    events = []
    for event in loop.run():
        events.append(event)
        if isinstance(event, Step) and event.step == 2:
            loop.saving.stop_requested = True
    assert [type(e).__name__ for e in events] == ["Step", "Step", "Saved"]
    again = make_loop(examples(40), batch_size=8)
    restore_state(again, through_disk(events[-1].state))  # type: ignore[union-attr]
    straight = make_loop(examples(40), batch_size=8)
    assert losses(list(straight.run())) == losses(events) + losses(list(again.run()))


def test_the_best_weights_come_back() -> None:
    data = examples(32)
    accuracies = iter([0.5, 0.9, 0.7, 0.6])
    seen: list[dict[str, Tensor]] = []
    loop = make_loop(data, epochs=4)

    def validate(model: Model) -> Scores:
        seen.append(weights(model))
        return {"accuracy": next(accuracies), "loss": 1.0}

    loop.validate = validate
    finished = list(loop.run())[-1]
    assert isinstance(finished, Finished)
    assert finished.best is not None
    assert (finished.best.epoch, finished.best.scores["accuracy"]) == (2.0, 0.9)
    assert all(value.equal(seen[1][name]) for name, value in weights(loop.model).items())
    assert not all(value.equal(seen[3][name]) for name, value in weights(loop.model).items())


def test_the_last_weights_where_asked() -> None:
    loop = make_loop(epochs=3, weights="last")
    accuracies = iter([0.9, 0.5, 0.4])
    loop.validate = lambda model: {"accuracy": next(accuracies), "loss": 1.0}
    final: dict[str, Tensor] = {}
    for event in loop.run():
        if isinstance(event, Step):
            final = weights(loop.model)
    assert all(value.equal(final[name]) for name, value in weights(loop.model).items())


def test_patience_ends_it_early() -> None:
    loop = make_loop(epochs=10, patience=2)
    accuracies = iter([0.5, 0.8, 0.7, 0.8])  # a tie with the same loss is not better
    loop.validate = lambda model: {"accuracy": next(accuracies), "loss": 1.0}
    events = list(loop.run())
    assert len([e for e in events if isinstance(e, Evaluated)]) == 4
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.reason == "patience"


def test_unfreezing_trains_from_the_top() -> None:
    loop = make_loop(epochs=4, unfreeze=1, weights="last")
    before = weights(loop.model)
    moved: list[set[str]] = []
    for event in loop.run():
        if isinstance(event, Evaluated):
            now = weights(loop.model)
            moved.append({name for name in before if not now[name].equal(before[name])})
    assert all(name.startswith("head.") for name in moved[0])
    assert any("layers.1." in name for name in moved[1])
    assert not any("layers.0." in name or "embeddings" in name for name in moved[1])
    assert any("layers.0." in name for name in moved[2])
    assert "backbone.embeddings.tokens.weight" in moved[-1]


class Failing(Classification):
    """Classification whose loss is no number at some steps, or that runs out of memory."""

    def __init__(self, bad: set[int], limit: int | None = None) -> None:
        super().__init__()
        object.__setattr__(self, "bad", bad)
        object.__setattr__(self, "limit", limit)
        object.__setattr__(self, "calls", [0])

    def sums(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        found = super().sums(model, batch)
        self.calls[0] += 1  # type: ignore[attr-defined]
        limit: int | None = self.limit  # type: ignore[attr-defined]
        if limit is not None and batch.ids.shape[0] > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB\nmore")
        if self.calls[0] in self.bad:  # type: ignore[attr-defined]
            return {name: value * math.nan for name, value in found.items()}
        return found


def test_a_loss_that_is_no_number_stops_the_run() -> None:
    loop = make_loop()
    loop.parallel_model.loss.objective = Failing({3})
    with pytest.raises(TrainingError, match=r"became nan at step 3 \(learning rate"):
        list(loop.run())


def test_bad_steps_can_be_left_out() -> None:
    loop = make_loop(skip_bad_steps=2)
    loop.parallel_model.loss.objective = Failing({2, 5})
    before: dict[str, Tensor] = {}
    events = []
    for event in loop.run():
        if isinstance(event, Skipped):
            assert all(value.equal(before[name]) for name, value in weights(loop.model).items())
        before = weights(loop.model)
        events.append(event)
    assert [e.step for e in events if isinstance(e, Skipped)] == [2, 5]
    third = make_loop(skip_bad_steps=1)
    third.parallel_model.loss.objective = Failing({2, 5})
    with pytest.raises(TrainingError, match="at step 5"):
        list(third.run())


def test_out_of_memory_halves_the_micro_batch_with_the_same_result() -> None:
    data = examples(32)
    plain = make_loop(data)
    expected = losses(list(plain.run()))
    largest = max(plain.batches.batch(e, s).ids.shape[0] for e in range(2) for s in range(4))
    tight = make_loop(data)
    tight.parallel_model.loss.objective = Failing(set(), limit=largest - 1)
    events = list(tight.run())
    assert [e.shares for e in events if isinstance(e, Halved)] == [2]
    np.testing.assert_allclose(losses(events), expected, rtol=1e-5)


def test_out_of_memory_twice_is_an_error_with_the_numbers() -> None:
    loop = make_loop()
    loop.parallel_model.loss.objective = Failing(set(), limit=3)
    with pytest.raises(TrainingError, match=r"out of memory at step 1, with \d+ tokens in 2 micro-batches"):
        list(loop.run())


def test_a_batch_that_is_compared_as_a_whole_is_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="cannot be divided: use one process, without --accumulate"):
        make_loop(objective=Contrastive(), accumulate=2)
    loop = make_loop(objective=Contrastive())

    def full(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(loop.stepper, "step", full)
    with pytest.raises(TrainingError, match=r"out of memory at step 1, with \d+ tokens in 1 micro-batches"):
        list(loop.run())


# --- a pinned curve -------------------------------------------------------------------------------------------------


def pinned_runs() -> dict[str, list[float]]:
    """50 steps of a tiny causal and a tiny masked model on generated text."""
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(WORDS, size=draw.integers(5, 20))) for _ in range(60)]
    tokenizer = Tokenizer.train(texts, kind="wordpiece", size=60)
    ids = [np.array(tokenizer.encode(text), dtype=np.uint16) for text in texts]
    starts = np.concatenate([[0], np.cumsum([len(i) for i in ids])]).astype(np.int64)
    documents = Documents(np.concatenate(ids), starts, np.array([len(t.encode()) for t in texts], dtype=np.int64))
    sizes = {"vocabulary": tokenizer.size, "width": 24, "layers": 2, "heads": 2, "feed_forward": 32, "window": 24}
    settings = TrainingSettings(steps=50, lr=3e-3, seed=5, batch_size=4, schedule="cosine")
    common: dict[str, Any] = {"window": 24, "batch_size": 4, "seed": 5}
    torch.manual_seed(5)
    causal = Model.build(preset("lab", **sizes), NextTokenConfig())
    torch.manual_seed(5)
    masked = Model.build(preset("small", **sizes), MaskedConfig())
    loops = {
        "causal": Loop(causal, Causal(), CausalBatches(documents, tokenizer, **common), settings),
        "masked": Loop(
            masked,
            MaskedTokens(),
            MaskedBatches(documents, tokenizer, masking=Masking.of(tokenizer, 0.25), **common),
            settings,
        ),
    }
    return {name: losses(list(loop.run())) for name, loop in loops.items()}


def test_the_loss_curve_is_the_pinned_one() -> None:
    """The numbers come from this code and guard it against change; to remake: `python -m tests.training.test_loop`."""
    expected = json.loads(PINNED.read_text())
    for name, curve in pinned_runs().items():
        assert len(curve) == 50
        np.testing.assert_allclose(curve, expected[name], rtol=2e-3, err_msg=name)
        assert np.mean(curve[-5:]) < 0.8 * curve[0]


def test_the_settings_of_a_loop_are_data() -> None:
    settings = TrainingSettings(lr=0.5)
    assert replace(settings, lr=0.25).lr == 0.25
    assert TrainingSettings.from_mapping(settings.to_mapping(), "x") == settings


if __name__ == "__main__":
    torch.set_num_threads(1)
    PINNED.write_text(json.dumps({name: [round(x, 5) for x in c] for name, c in pinned_runs().items()}) + "\n")


# --- compiled layers ------------------------------------------------------------------------------------------------


def compiled_plainly(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> list[Any]:
    """Layers that are traced and not translated: all of `compile` that a test has time for. The graphs are listed."""
    original, graphs = torch.nn.Module.compile, []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def compile_layer(module: torch.nn.Module, **options: Any) -> None:
        original(module, backend=backend, **{**options, **changes})

    torch._dynamo.reset()
    monkeypatch.setattr(torch.nn.Module, "compile", compile_layer)
    return graphs


def is_compiled(model: Model) -> bool:
    return any(layer._compiled_call_impl is not None for layer in model.backbone.layers)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the tracer looks at it
def test_compiled_layers_learn_the_same_and_end_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = compiled_plainly(monkeypatch)
    expected = losses(list(make_loop(compile="no").run()))
    loop = make_loop(compile="yes")
    during_validation: list[bool] = []
    validate = loop.validate
    assert validate is not None

    def watched(model: Model) -> Scores:
        during_validation.append(is_compiled(model))
        return validate(model)

    loop.validate = watched
    assert isinstance(loop.stepper, CompiledStepper)
    assert losses(list(loop.run())) == pytest.approx(expected, abs=1e-6)
    assert graphs
    assert during_validation == [False, False]
    assert not is_compiled(loop.model)


@pytest.mark.parametrize("required", [False, True])
def test_layers_that_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch, required: bool) -> None:
    """No compiler, say: a run that did not ask for it goes on, one that did ends with the reason."""
    compiled_plainly(monkeypatch)
    failure = type("InductorError", (RuntimeError,), {"__module__": "torch._inductor.exc"})
    loop = make_loop(compile="yes")
    compiled = loop.stepper
    assert isinstance(compiled, CompiledStepper)
    compiled.required = required
    step = compiled.stepper.step

    def failing(*arguments: Any) -> Tensor:
        if compiled.compiled:
            raise failure("no C++ compiler was found\nand much more")
        return step(*arguments)

    monkeypatch.setattr(compiled.stepper, "step", failing)
    if required:
        with pytest.raises(TrainingError, match=r"cannot be compiled here \(no C\+\+ compiler was found\): train with"):
            list(loop.run())
    else:
        assert losses(list(loop.run())) == losses(list(make_loop(compile="no").run()))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_texts_of_many_lengths_are_compiled_for_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Tokens and the longest text differ from step to step; torch compiles for eight sizes, then warns and stops."""
    graphs = compiled_plainly(monkeypatch)
    loop = make_loop(examples(60), classifier(layers=3), compile="yes", batch_size=4, epochs=2)
    batches = [loop.batches.batch(epoch, step) for epoch in range(2) for step in range(15)]
    assert len({(len(batch.ids), batch.longest) for batch in batches}) > 8
    list(loop.run())
    assert isinstance(loop.stepper, CompiledStepper) and loop.stepper.failure is None
    assert len(graphs) == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_layers_are_compiled_for_causal_and_for_masked_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that was compiled for one mask is not taken for the other."""
    graphs = compiled_plainly(monkeypatch)
    expected = losses(list(causal_masked_loop("no").run()))
    loop = causal_masked_loop("yes")
    kinds = [loop.batches.batch(0, step).causal for step in range(6)]
    assert True in kinds and False in kinds
    assert losses(list(loop.run())) == pytest.approx(expected, abs=1e-6)
    assert isinstance(loop.stepper, CompiledStepper) and loop.stepper.failure is None
    assert len(graphs) == 2


def causal_masked_loop(compile: Any) -> Loop:
    tokenizer = Tokenizer.train([" ".join(WORDS)], kind="wordpiece", size=60)
    ids = np.tile(np.array(tokenizer.encode(" ".join(WORDS)), dtype=np.uint16), 20)
    lengths = np.arange(1, 1 + len(ids)) % 9 + 1
    lengths = lengths[np.cumsum(lengths) <= len(ids)]
    documents = Documents(ids, np.append(0, np.cumsum(lengths)), lengths)
    torch.manual_seed(0)
    sizes = {"width": 16, "layers": 1, "heads": 2, "feed_forward": 24, "window": 16, "direction": "both"}
    model = Model.build(preset("small", vocabulary=tokenizer.size, dropout=0.0, **sizes), CausalMaskedConfig())
    masking = Masking.of(tokenizer, 0.4)
    batches = CausalMaskedBatches(
        documents, tokenizer, window=12, batch_size=8, seed=0, masking=masking, causal_share=0.5
    )
    return Loop(model, CausalAndMasked(), batches, TrainingSettings(steps=6, compile=compile))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_too_many_sizes_to_compile_for_are_reported_without_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiled_plainly(monkeypatch, dynamic=False)
    loop = make_loop(examples(60), classifier(layers=3), compile="yes", batch_size=4)
    compiled = loop.stepper
    assert isinstance(compiled, CompiledStepper)
    compiled.required = False
    monkeypatch.setattr(stepper_module, "MAX_VERSIONS", 2)
    expected = losses(list(make_loop(examples(60), classifier(layers=3), compile="no", batch_size=4).run()))
    assert losses(list(loop.run())) == pytest.approx(expected, abs=1e-6)
    assert compiled.failure is not None and "recompile" in compiled.failure
    assert not is_compiled(loop.model)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_other_errors_are_not_taken_for_a_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_plainly(monkeypatch)
    loop = make_loop(compile="yes")
    assert isinstance(loop.stepper, CompiledStepper)
    monkeypatch.setattr(loop.stepper.stepper, "step", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(loop.run())

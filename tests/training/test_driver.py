from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headstart.runs.events import Saved, Step
from headstart.training.driver import Run, open_run
from headstart.training.loop import Loop
from headstart.training.run_checkpoint import RunState, write_checkpoint
from tests.training.test_loop import examples, losses, make_loop

SETTINGS: dict[str, Any] = {"lr": 0.001, "mode": "full", "names": ["a", "b"]}
Begin = Callable[[str], Run]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Begins a run in a folder of this name; it is ours until the test ends."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(open_run(tmp_path / name, "finetune", SETTINGS, resume=False))


def test_events_are_lines_of_json(begin: Begin) -> None:
    run = begin("run")
    heard: list[Any] = []
    run.train(make_loop(save_every=4), on_event=heard.append)
    events = run.events()
    assert events == [replace(e, state=None) if isinstance(e, Saved) else e for e in heard]
    assert losses(events) == losses(heard)
    with (run.path / "events.jsonl").open("a") as file:
        file.write('{"event": "step", "lo')  # a kill in the middle of a line
    assert run.events() == events


def test_what_came_after_the_checkpoint_is_taken_back(begin: Begin) -> None:
    """Events beyond the checkpoint are recorded once, though they happened twice."""
    run = begin("run")
    run.train(make_loop(save_every=4))
    straight = run.events()
    other = begin("other")
    half = make_loop(examples(32), save_every=4)
    with pytest.raises(RuntimeError, match="pulled the plug"):
        other.train(half, on_event=pull_the_plug(at=6))
    said: list[str] = []
    other.train(make_loop(examples(32), save_every=4), log=said.append)
    assert said == ["going on from step 4 of 8"]
    again = other.events()
    assert losses(again) == losses(straight)
    assert list(map(type, again)) == list(map(type, straight))


def pull_the_plug(at: int) -> Any:
    def on_event(event: Any) -> None:
        if isinstance(event, Step) and event.step == at:
            raise RuntimeError("pulled the plug")

    return on_event


def test_a_damaged_checkpoint_is_said(begin: Begin) -> None:
    run = begin("run")
    with pytest.raises(RuntimeError):
        run.train(make_loop(save_every=4), on_event=pull_the_plug(at=6))
    broken = write_checkpoint(run.checkpoints, RunState({}, {"step": 5}), keep=5)
    (broken / "state.safetensors").write_bytes(b"")
    said: list[str] = []
    run.train(make_loop(save_every=4), log=said.append)
    assert "step-000000005 is damaged" in said[0]
    assert said[1] == "going on from step 4 of 8"


def test_tensorboard_files_where_asked(begin: Begin) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = begin("run")
    loop: Loop = make_loop(track=True)
    run.train(loop)
    found = EventAccumulator(str(run.path / "tensorboard"))
    found.Reload()
    steps = [e for e in run.events() if isinstance(e, Step)]
    assert [s.step for s in found.Scalars("train/loss")] == [s.step for s in steps]
    assert [s.value for s in found.Scalars("train/loss")] == pytest.approx([s.loss for s in steps])
    assert {"train/lr", "valid/accuracy"} <= set(found.Tags()["scalars"])


def test_the_first_control_c_asks_and_the_second_stops_at_once(begin: Begin) -> None:
    loop = make_loop(examples(40), batch_size=8)
    run = begin("run")
    steps: list[int] = []

    def impatient(event: Any) -> None:
        if isinstance(event, Step):
            steps.append(event.step)
            signal.raise_signal(signal.SIGINT)
            assert loop.saving.stop_requested
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run.train(loop, on_event=impatient)
    assert steps == [1]
    assert not list(run.checkpoints.glob("step-*"))  # no time was taken to save
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_under_torchrun_every_signal_comes_twice(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    run = begin("run")

    def twice(event: Any) -> None:
        if isinstance(event, Step) and event.step == 2:
            signal.raise_signal(number)
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        run.train(make_loop(examples(40), batch_size=8), on_event=twice)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000000002"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_control_c_saves_first(begin: Begin, number: signal.Signals) -> None:
    run = begin("run")
    before = signal.getsignal(number)

    def once(event: Any) -> None:
        if isinstance(event, Step) and event.step == 2:
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        run.train(make_loop(examples(40), batch_size=8), on_event=once)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000000002"]
    assert signal.getsignal(number) is before

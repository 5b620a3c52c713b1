from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headstart.errors import OutputError, TrainingError
from headstart.runs.events import Saved, Step
from headstart.training.driver import Run, open_run
from headstart.training.loop import Loop
from headstart.training.run_checkpoint import CheckpointWriter, RunState, write_checkpoint
from tests.full_disk import full_disk
from tests.training.test_loop import examples, losses, make_loop
from tests.training.test_run_checkpoint import make_state

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
    broken = write_checkpoint(run.checkpoints, make_state(5), keep=5)
    (broken / "state.safetensors").write_bytes(b"")
    said: list[str] = []
    run.train(make_loop(save_every=4), log=said.append)
    assert "step-000000005 is damaged" in said[0]
    assert said[1] == "going on from step 4 of 8"


def test_events_that_a_checkpoint_counts_and_that_are_gone(begin: Begin) -> None:
    """An older checkpoint is gone on from, and the events after it are recorded again; nothing is made up."""
    straight = begin("straight")
    straight.train(make_loop(examples(32), save_every=3, keep=2))
    run = begin("run")
    with pytest.raises(RuntimeError):
        run.train(make_loop(examples(32), save_every=3, keep=2), on_event=pull_the_plug(at=7))
    events = run.path / "events.jsonl"
    whole = events.read_bytes()
    events.write_bytes(whole[: whole.index(b'"saved", "step": 6')])
    said: list[str] = []
    run.train(make_loop(examples(32), save_every=3, keep=2), log=said.append)
    assert "step-000000006 is damaged and was passed over" in said[0] and "events.jsonl" in said[0]
    assert said[1] == "going on from step 3 of 8"
    assert losses(run.events()) == losses(straight.events())
    assert list(map(type, run.events())) == list(map(type, straight.events()))


@pytest.mark.parametrize("damage", ["gone", "short", "other bytes", "far too long"])
def test_no_checkpoint_whose_events_are_there(begin: Begin, damage: str) -> None:
    run = begin("run")
    with pytest.raises(RuntimeError):
        run.train(make_loop(save_every=4), on_event=pull_the_plug(at=6))
    events = run.path / "events.jsonl"
    whole = events.read_bytes()
    if damage == "gone":
        events.unlink()
    elif damage == "short":
        events.write_bytes(whole[:20])
    elif damage == "other bytes":
        events.write_bytes(b"\0" * len(whole))
    else:  # as a checkpoint of an earlier version may say, which has no digest
        numbers = run.checkpoints / "step-000000004" / "state.json"
        values = json.loads(numbers.read_text(encoding="utf-8"))
        del values["digest"]
        numbers.write_text(json.dumps({**values, "events": 10**12}), encoding="utf-8")
    before = events.read_bytes() if events.exists() else None
    with pytest.raises(TrainingError, match=r"events\.jsonl does not hold the events up to it"):
        run.train(make_loop(save_every=4))
    assert (events.read_bytes() if events.exists() else None) == before


def test_events_are_on_the_disk_before_the_checkpoint_that_counts_them(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin("run")
    order: list[str] = []
    sync, write = os.fsync, CheckpointWriter.save

    def watched_sync(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink().name == "events.jsonl":
            order.append("events")
        sync(handle)

    def watched_save(self: CheckpointWriter, state: RunState) -> None:
        order.append("checkpoint")
        write(self, state)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(CheckpointWriter, "save", watched_save)
    run.train(make_loop(save_every=4))
    assert order == ["events", "checkpoint"] * 2


@pytest.mark.parametrize("room", ["for the events", "for nothing more"])
def test_a_full_disk_is_one_line_and_the_run_goes_on_from_its_last_checkpoint(begin: Begin, room: str) -> None:
    straight = begin("straight")
    straight.train(make_loop(examples(32), save_every=3))
    run = begin("run")
    with ExitStack() as stack:

        def fill(event: Any) -> None:
            if isinstance(event, Step) and event.step == 4:
                while not (run.checkpoints / "step-000000003").exists():  # which a thread is writing
                    time.sleep(0.01)
                size = (run.path / "events.jsonl").stat().st_size
                stack.enter_context(full_disk(size + 1000 if room == "for the events" else size))

        with pytest.raises(OutputError, match=r"File too large.*goes on from its newest checkpoint") as caught:
            run.train(make_loop(examples(32), save_every=3), on_event=fill)
    assert "\n" not in str(caught.value)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000000003"]
    said: list[str] = []
    run.train(make_loop(examples(32), save_every=3), log=said.append)
    assert said == ["going on from step 3 of 8"]
    assert losses(run.events()) == losses(straight.events())


def test_a_run_folder_that_is_removed_during_the_run(tmp_path: Path) -> None:
    """It is made anew by nobody, and nothing says that the run is done."""
    with (
        pytest.raises(TrainingError, match="was removed or moved during the run"),
        open_run(tmp_path / "run", "finetune", SETTINGS, resume=False) as run,
    ):

        def remove(event: Any) -> None:
            if isinstance(event, Step) and event.step == 2:
                shutil.rmtree(run.path)

        run.train(make_loop(save_every=4), on_event=remove)
    assert not (tmp_path / "run").exists()


def test_a_run_folder_that_is_removed_when_training_is_over(tmp_path: Path) -> None:
    for ending in ("finish", "nothing more"):
        with (
            pytest.raises(TrainingError, match="was removed or moved during the run"),
            open_run(tmp_path / ending, "finetune", SETTINGS, resume=False) as run,
        ):
            run.path.rename(tmp_path / f"moved {ending}")
            if ending == "finish":
                run.finish(None, {}, {})
        assert not (tmp_path / ending).exists()


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

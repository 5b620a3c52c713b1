from __future__ import annotations

import json
import signal
import tomllib
from pathlib import Path
from typing import Any

import pytest

from headstart.errors import OutputError
from headstart.training.loop import Loop, State, Step
from headstart.training.record import open_run, read_events
from headstart.training.state import write_state
from tests.training.test_loop import examples, losses, make_loop

SETTINGS: dict[str, Any] = {"lr": 0.001, "mode": "full", "names": ["a", "b"]}


def test_a_new_run_is_written_down(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", "finetune", SETTINGS, resume=False)
    assert tomllib.loads((run.path / "run.toml").read_text()) == {"study": "finetune", **SETTINGS}
    assert not run.done


def test_a_run_that_was_begun_goes_on_only_if_asked(tmp_path: Path) -> None:
    open_run(tmp_path / "run", "finetune", SETTINGS, resume=False)
    with pytest.raises(OutputError, match="was begun: add --resume"):
        open_run(tmp_path / "run", "finetune", SETTINGS, resume=False)
    assert open_run(tmp_path / "run", "finetune", SETTINGS, resume=True).path == tmp_path / "run"
    assert open_run(tmp_path / "fresh", "finetune", SETTINGS, resume=True).path == tmp_path / "fresh"


@pytest.mark.parametrize(("study", "change"), [("pretrain", {}), ("finetune", {"lr": 0.01}), ("finetune", {"new": 1})])
def test_another_run_is_refused(tmp_path: Path, study: str, change: dict[str, Any]) -> None:
    open_run(tmp_path / "run", "finetune", SETTINGS, resume=False)
    with pytest.raises(OutputError, match=f"differs in {next(iter(change), 'study')}"):
        open_run(tmp_path / "run", study, {**SETTINGS, **change}, resume=True)


def test_events_are_lines_of_json(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", "finetune", SETTINGS, resume=False)
    heard: list[Any] = []
    run.train(make_loop(), listen=heard.append)
    events = read_events(run.path)
    assert [e["event"] for e in events] == [type(e).__name__.lower() for e in heard]
    assert [e["loss"] for e in events if e["event"] == "step"] == losses(heard)
    assert "state" not in next(e for e in events if e["event"] == "saved")
    with (run.path / "events.jsonl").open("a") as file:
        file.write('{"event": "step", "lo')  # a kill in the middle of a line
    assert read_events(run.path) == events


def test_what_came_after_the_checkpoint_is_taken_back(tmp_path: Path) -> None:
    """Events beyond the checkpoint are recorded once, though they happened twice."""
    run = open_run(tmp_path / "run", "finetune", SETTINGS, resume=False)
    run.train(make_loop())
    straight = read_events(run.path)
    other = open_run(tmp_path / "other", "finetune", SETTINGS, resume=False)
    half = make_loop(examples(32))
    with pytest.raises(RuntimeError, match="pulled the plug"):
        other.train(half, listen=pull_the_plug(at=6))
    said: list[str] = []
    other.train(make_loop(examples(32)), remark=said.append)
    assert said == ["going on from step 4 of 8"]
    again = read_events(other.path)
    assert [e.get("loss") for e in again] == [e.get("loss") for e in straight]
    assert [e["event"] for e in again] == [e["event"] for e in straight]


def pull_the_plug(at: int) -> Any:
    def listen(event: Any) -> None:
        if isinstance(event, Step) and event.step == at:
            raise RuntimeError("pulled the plug")

    return listen


def test_a_damaged_checkpoint_is_said(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", "finetune", SETTINGS, resume=False)
    with pytest.raises(RuntimeError):
        run.train(make_loop(), listen=pull_the_plug(at=6))
    broken = write_state(run.checkpoints, State({}, {"step": 5}), keep=5)
    (broken / "state.safetensors").write_bytes(b"")
    said: list[str] = []
    run.train(make_loop(), remark=said.append)
    assert "step-000000005 is damaged" in said[0]
    assert said[1] == "going on from step 4 of 8"


def test_tensorboard_files_where_asked(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = open_run(tmp_path / "run", "finetune", SETTINGS, resume=False)
    loop: Loop = make_loop(track=True)
    run.train(loop)
    found = EventAccumulator(str(run.path / "tensorboard"))
    found.Reload()
    steps = [json.loads(json.dumps(e)) for e in read_events(run.path) if e["event"] == "step"]
    assert [s.step for s in found.Scalars("train/loss")] == [s["step"] for s in steps]
    assert [s.value for s in found.Scalars("train/loss")] == pytest.approx([s["loss"] for s in steps])
    assert {"train/lr", "valid/accuracy"} <= set(found.Tags()["scalars"])


def test_the_first_control_c_asks_and_the_second_stops_at_once(tmp_path: Path) -> None:
    loop = make_loop(examples(40), batch_size=8)
    run = open_run(tmp_path / "run", "finetune", SETTINGS, resume=False)
    steps: list[int] = []

    def impatient(event: Any) -> None:
        if isinstance(event, Step):
            steps.append(event.step)
            signal.raise_signal(signal.SIGINT)
            assert loop.stopping
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run.train(loop, listen=impatient)
    assert steps == [1]
    assert not list(run.checkpoints.glob("step-*"))  # no time was taken to save
    assert signal.getsignal(signal.SIGINT) is before


def test_one_control_c_saves_first(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", "finetune", SETTINGS, resume=False)

    def once(event: Any) -> None:
        if isinstance(event, Step) and event.step == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run.train(make_loop(examples(40), batch_size=8), listen=once)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000000002"]

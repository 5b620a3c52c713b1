from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import torch
from safetensors.torch import save_file

from headstart.errors import OutputError, TrainingError
from headstart.parallel import Parallel
from headstart.training.checkpoint_files import write_numbers
from headstart.training.run_checkpoint import CheckpointWriter, RunState, read_newest, write_checkpoint
from tests.full_disk import full_disk

T = TypeVar("T")


def make_numbers(step: int) -> dict[str, Any]:
    counts = {"epoch": 0, "in_epoch": step, "step": step, "tokens": 8 * step, "shares": 1, "bad_steps": 0}
    best = {"step": 1, "epoch": 0.5, "scores": {"accuracy": 0.5, "loss": 0.75}}
    return {**counts, "since_best": 0, "best": best, "optimizer": {"optimizers": ["AdamW"]}}


def make_state(step: int) -> RunState:
    tensors = {"model.w": torch.full((3, 2), float(step)), "optimizer.0.step": torch.tensor(1.0)}
    return RunState(tensors, make_numbers(step))


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, make_state(7), keep=2)
    state, damaged = read_newest(tmp_path)
    assert state is not None
    assert damaged == []
    assert state.numbers == make_numbers(7)
    assert state.tensors["model.w"].equal(torch.full((3, 2), 7.0))
    assert state.tensors["optimizer.0.step"].shape == ()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU works while others wait")
def test_what_a_gpu_is_still_making_is_written_when_it_is_made(tmp_path: Path) -> None:
    ones = torch.ones(4096, 4096, device="cuda")
    made = ones
    for _ in range(50):  # a tenth of a second, in which the writer may not read
        made = (made @ ones).clamp(max=1.0)
    write_checkpoint(tmp_path, RunState({"w": made.clone()}, make_numbers(1)), keep=2)
    state, _ = read_newest(tmp_path)
    assert state is not None and state.tensors["w"].equal(torch.ones(4096, 4096))


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    assert read_newest(tmp_path / "none") == (None, [])


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 999, 1000):
        write_checkpoint(tmp_path, make_state(step), keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000000999", "step-000001000"]


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "numbers"])
def test_a_damaged_newest_is_reported_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    write_checkpoint(tmp_path, make_state(1), keep=3)
    newest = write_checkpoint(tmp_path, make_state(2), keep=3)
    tensors = newest / "state.safetensors"
    whole = tensors.read_bytes()
    if damage == "cut":
        tensors.write_bytes(whole[:-4])
    elif damage == "flip":
        tensors.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif damage == "gone":
        tensors.unlink()
    else:
        (newest / "state.json").write_text('{"step": 2')
    state, damaged = read_newest(tmp_path)
    assert state is not None
    assert state.numbers["step"] == 1
    assert len(damaged) == 1
    assert "step-000000002 is damaged" in damaged[0]
    write_checkpoint(tmp_path, make_state(2), keep=3)  # and it can be written anew
    again, damaged = read_newest(tmp_path)
    assert again is not None
    assert (again.numbers["step"], damaged) == (2, [])


def test_nothing_whole_left_is_an_error(tmp_path: Path) -> None:
    for step in (1, 2):
        (write_checkpoint(tmp_path, make_state(step), keep=3) / "state.safetensors").write_bytes(b"")
    with pytest.raises(TrainingError, match="no checkpoint is whole"):
        read_newest(tmp_path)


def test_a_full_disk_leaves_the_earlier_ones(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, keep=2)
    writer.save(make_state(1))
    writer.wait()
    with full_disk(room=100), pytest.raises(OutputError, match="step-000000002: File too large"):
        writer.save(make_state(2))
        writer.wait()
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000001"]
    state, damaged = read_newest(tmp_path)
    assert state is not None
    assert (state.numbers["step"], damaged) == (1, [])


class OneOfTwo(Parallel):
    """A process beside another that found the disk full."""

    def gather(self, value: T) -> list[T]:
        return [value, cast(T, ({}, "No space left on device"))] if self.is_main else []

    def broadcast(self, value: T) -> T:
        return value if self.is_main else cast(T, "No space left on device")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_disk_that_is_full_for_one_process_is_an_error_of_all(tmp_path: Path, rank: int) -> None:
    with pytest.raises(OutputError, match=r"cannot write .*step-000000002: No space left on device"):
        write_checkpoint(tmp_path, make_state(2), keep=2, parallel=OneOfTwo(rank, 2))
    assert not list(tmp_path.iterdir())


class Bomb:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


def write_pickled(folder: Path, name: str, numbers: dict[str, Any]) -> None:
    """A checkpoint as torch.distributed.checkpoint has it, with a digest that is right."""
    folder.mkdir()
    (folder / name).write_bytes(pickle.dumps(Bomb(folder.parent / "ran")))
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "state.json").write_text(json.dumps({**numbers, "sha256": {name: digest}}))


@pytest.mark.parametrize(("name", "said"), [(".metadata", "could run code"), ("a.pt", "names the files a.pt")])
def test_nothing_in_a_checkpoint_is_unpickled(tmp_path: Path, name: str, said: str) -> None:
    write_pickled(tmp_path / "step-000000004", name, make_numbers(4))
    if name != ".metadata":  # which torch's reader looks for, whatever state.json says
        (tmp_path / "step-000000004" / ".metadata").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(TrainingError, match=said):
        read_newest(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_files_outside_the_checkpoint_are_not_opened(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, make_state(4), keep=1)
    numbers = tmp_path / "step-000000004" / "state.json"
    values = json.loads(numbers.read_text())
    values["sha256"] = {"../step-000000004/state.safetensors": values["sha256"]["state.safetensors"]}
    del values["digest"]
    numbers.write_text(json.dumps(values))
    with pytest.raises(TrainingError, match="names the files"):
        read_newest(tmp_path)


def test_any_byte_of_the_numbers_that_changes_is_noticed(tmp_path: Path) -> None:
    numbers = write_checkpoint(tmp_path, make_state(39), keep=1) / "state.json"
    whole = numbers.read_bytes()
    for i in range(len(whole)):
        numbers.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        try:
            state, _ = read_newest(tmp_path)
        except TrainingError:
            continue
        assert state is not None  # a digest that is called otherwise is none, as in earlier versions
        assert {name: state.numbers[name] for name in make_numbers(39)} == make_numbers(39)
        assert i >= whole.index(b'"digest"') or whole[i : i + 1].isspace()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("step", 5, "written after step 5"),
        ("step", -1, "'step' is -1, expected a whole number"),
        ("step", 39.0, "'step' is 39.0"),
        ("tokens", True, "'tokens' is True"),
        pytest.param("epoch", 10**400, "'epoch' is 1000", id="epoch-huge"),
        ("bad_steps", None, "'bad_steps' is None"),
        ("shares", 0, "expected 1 to 1,048,576 micro-batches"),
        ("shares", 10**12, "expected 1 to 1,048,576 micro-batches"),
        ("optimizer", ["AdamW"], "'optimizer' is"),
        ("best", {"step": 1}, "'best' is"),
        ("best", {"step": 1, "epoch": 1.0, "scores": {"accuracy": "high"}}, "'best' is"),
    ],
)
def test_numbers_that_no_run_has_are_refused(tmp_path: Path, name: str, value: Any, said: str) -> None:
    """Where an earlier version wrote no digest, too."""
    numbers = write_checkpoint(tmp_path, make_state(39), keep=1) / "state.json"
    values = json.loads(numbers.read_text())
    del values["digest"]
    numbers.write_text(json.dumps(values))
    assert read_newest(tmp_path)[0] is not None
    numbers.write_text(json.dumps({**values, name: value}))
    with pytest.raises(TrainingError, match=said) as caught:
        read_newest(tmp_path)
    assert len(str(caught.value)) < 500


def test_parts_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "step-000000002"
    names = [f"state-0000{rank}-of-00002.safetensors" for rank in (0, 1)]

    def write(*parts: dict[str, torch.Tensor]) -> None:
        folder.mkdir(exist_ok=True)
        for name, tensors in zip(names, parts, strict=True):
            save_file(tensors, folder / name)
        digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
        write_numbers(folder, make_numbers(2), digests)

    write({"model.w": torch.ones(2, 3), "n": torch.tensor(1.0)}, {"model.w": torch.zeros(1, 3)})
    state, _ = read_newest(tmp_path)
    assert state is not None
    assert state.tensors["model.w"].tolist() == [[1.0] * 3, [1.0] * 3, [0.0] * 3]
    assert state.tensors["n"] == 1
    write({"model.w": torch.ones(2, 3)}, {"model.v": torch.zeros(1, 3)})
    with pytest.raises(TrainingError, match="do not hold the same tensors"):
        read_newest(tmp_path)
    write({"model.w": torch.ones(2, 3)}, {"model.w": torch.zeros(1, 4)})
    with pytest.raises(TrainingError, match="do not fit together"):
        read_newest(tmp_path)

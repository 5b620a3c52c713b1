from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headstart.errors import OutputError, TrainingError
from headstart.training.run_checkpoint import CheckpointWriter, RunState, read_newest, write_checkpoint


def make_state(step: int) -> RunState:
    return RunState({"model.w": torch.full((3, 2), float(step)), "optimizer.0.step": torch.tensor(1.0)}, {"step": step})


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, make_state(7), keep=2)
    state, damaged = read_newest(tmp_path)
    assert state is not None
    assert damaged == []
    assert state.numbers == {"step": 7}
    assert state.tensors["model.w"].equal(torch.full((3, 2), 7.0))
    assert state.tensors["optimizer.0.step"].shape == ()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU works while others wait")
def test_what_a_gpu_is_still_making_is_written_when_it_is_made(tmp_path: Path) -> None:
    ones = torch.ones(4096, 4096, device="cuda")
    made = ones
    for _ in range(50):  # a tenth of a second, in which the writer may not read
        made = (made @ ones).clamp(max=1.0)
    write_checkpoint(tmp_path, RunState({"w": made.clone()}, {"step": 1}), keep=2)
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


def test_a_full_disk_leaves_the_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = CheckpointWriter(tmp_path, keep=2)
    writer.save(make_state(1))
    writer.wait()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headstart.training.run_checkpoint.save_file", full)
    writer.save(make_state(2))
    with pytest.raises(OutputError, match="No space left on device"):
        writer.wait()
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000001"]
    state, damaged = read_newest(tmp_path)
    assert state is not None
    assert (state.numbers["step"], damaged) == (1, [])

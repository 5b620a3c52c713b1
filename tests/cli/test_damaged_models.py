"""A model whose weights are no numbers, at every verb: one line, exit code 2, and nothing written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from headstart.model.model import Model
from tests.studies.example_data import write_reviews

from .command_line import run


@pytest.fixture
def here(trained: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: the run `damaged` with a nan in a weight, texts, and a whole base."""
    shutil.copytree(trained, tmp_path / "damaged")
    weights = tmp_path / "damaged" / "model" / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(weights).items()}
    tensors["head.out.weight"][0, 0] = torch.nan
    save_file(tensors, weights)
    write_reviews(tmp_path / "reviews.txt", 160, 1)
    (tmp_path / "base").symlink_to(base)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "predict damaged reviews.txt --out out.csv",
        "evaluate damaged reviews.txt",
        "explain damaged text",
        "serve damaged --port 0",
        "generate damaged text",
        "fill damaged [MASK]",
        "export damaged out --to hf",
        "export damaged out --to onnx",
        "export damaged out --to base",
        "import damaged out",
        "finetune reviews.txt --init damaged --out out",
        "compare reviews.txt --init damaged --out out",
        "params damaged",
    ],
)
def test_no_verb_takes_it(here: Path, command: str) -> None:
    before = sorted(here.iterdir())
    result = run(*command.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert "model.safetensors: 1 of the 64 weights in 'head.out.weight' are inf or nan" in result.stderr
    assert sorted(here.iterdir()) == before


def test_a_learning_rate_without_end(here: Path) -> None:
    result = run("finetune", "reviews.txt", "--init", "base", "--steps", "1", "--lr", "inf", "--out", "out")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "headstart: finetune: lr is inf, and must be a finite number\n"
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        ImportError("/lib/x.so: failed to map segment from shared object"),
    ],
    ids=["Python", "torch", "a library that is loaded late"],
)
def test_memory_that_runs_out_is_one_line(here: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(Model, "with_head", full)
    result = run("finetune", "reviews.txt", "--init", "base", "--steps", "1", "--out", "out")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("headstart: out of memory (")
    assert "Traceback" not in result.stderr

"""The base that ships: it opens in one line, it is what its card says, and it is small enough."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headstart import demo
from headstart.checkpoints.exchange import open_model
from headstart.checkpoints.folder import read_safetensors
from headstart.model.presets import preset

ROOT = Path(__file__).parents[2]


def test_it_opens_in_one_line() -> None:
    base = open_model(demo.BASE)
    assert base.model.config == replace(preset("lab"), window=base.model.config.window)
    assert base.model.head_config is None
    assert base.tokenizer is not None
    assert base.tokenizer.size == base.model.config.vocabulary == 50_001
    assert sum(p.numel() for p in base.model.parameters()) == 10_968_200
    text = "Un roman qui se lit d'une traite, à l'ombre d'un été."
    assert base.tokenizer.decode(base.tokenizer.encode(text)) == text


def test_it_is_small_enough_to_ship_and_in_bf16() -> None:
    assert sum(path.stat().st_size for path in demo.BASE.rglob("*") if path.is_file()) <= 25_000_000
    assert {tensor.dtype for tensor in read_safetensors(demo.BASE / "model.safetensors").values()} == {torch.bfloat16}


def test_it_has_a_card() -> None:
    card = (demo.BASE / "README.md").read_text(encoding="utf-8")
    for part in ("Data", "Tokens seen", "Bits per byte", "Good for", "Not good for", "Licence"):
        assert part in card, part


@pytest.mark.slow
def test_what_is_installed_has_it(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w"]
    subprocess.run([*command, str(tmp_path), str(tmp_path)], check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    packed = {name.removeprefix("headstart/") for name in zipfile.ZipFile(wheel).namelist()}
    files = [demo.RECIPE, *demo.BASE.iterdir(), *demo.DEBAT.iterdir()]
    assert {str(path.relative_to(demo.HERE.parent)) for path in files} <= packed

"""The bases that ship: each opens by its name, is what its card says, and is small enough."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from headstart import bases
from headstart.checkpoints.exchange import open_model
from headstart.checkpoints.folder import read_safetensors
from headstart.use.language_model import LanguageModel
from tests.cli.command_line import run

ROOT = Path(__file__).parents[2]
MASKED = {"masked", "masked+next-sentence", "causal+masked"}
CAUSAL = {"next-token", "causal+masked"}
SECTIONS = (
    "Language",
    "Data",
    "Training",
    "Tokens seen",
    "Good for",
    "Not good for",
    "Known weaknesses",
    "Licence",
)
each = pytest.mark.parametrize("name", bases.shipped())


def test_one_ships_at_least_and_every_folder_has_its_digests() -> None:
    folders = {path.parent.name for path in bases.HERE.glob("*/config.json")}
    assert folders == set(bases.shipped()) != set()
    listed = {line.split()[1] for line in (bases.HERE / bases.SUMS).read_text().splitlines()}
    files = {str(path.relative_to(bases.HERE)) for name in folders for path in (bases.HERE / name).iterdir()}
    assert files == listed | {f"{name}/{bases.CARD}" for name in folders}


@each
def test_it_opens_by_its_name_anywhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = open_model(name)
    assert base.tokenizer is not None
    assert base.tokenizer.size == base.model.config.vocabulary
    text = "Un roman qui se lit d'une traite, à l'ombre d'un été."
    assert base.tokenizer.decode(base.tokenizer.encode(text)) == text


@each
def test_it_is_small_enough_to_ship_and_in_bf16(name: str) -> None:
    folder = bases.installed(name)
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 35_000_000
    assert {tensor.dtype for tensor in read_safetensors(folder / "model.safetensors").values()} == {torch.bfloat16}


@each
def test_its_card_is_whole_and_has_the_numbers_of_the_model(name: str) -> None:
    card = (bases.installed(name) / bases.CARD).read_text(encoding="utf-8")
    assert card.startswith(f"# {name}: ")
    titles = re.findall(r"^\*\*(.+?)\.?\*\*", card, re.MULTILINE)
    assert [title for title in titles if title in SECTIONS] == [*SECTIONS]
    model = open_model(name).model
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in card
    pretraining = json.loads((bases.installed(name) / "pretraining.json").read_text())  # as export writes it
    assert f"{pretraining['steps']:,} steps" in card
    assert f"**Tokens seen.** {pretraining['tokens'] / 1e6:.0f} million" in card
    valid, (minutes, seconds) = pretraining["valid"], divmod(round(pretraining["seconds"]), 60)
    next_token = valid.get("causal_loss", valid["loss"])
    assert f"{next_token:.3f} (perplexity {valid['perplexity']:.2f}" in card
    assert "masked_loss" not in valid or f"of masked tokens {valid['masked_loss']:.3f}" in card
    assert f"{minutes} min {seconds} s" in card
    for size in ("vocabulary", "width", "layers"):
        number = getattr(model.config, size)
        assert f"{size} {number:,}" in card or f"{number} {size}" in card, size


@each
def test_it_writes_or_fills_gaps_if_it_has_its_head(name: str) -> None:
    base = LanguageModel.load(name)
    kind = None if base.model.head_config is None else base.model.head_config.kind
    if kind in MASKED:
        (filled,) = base.fill("Il faut baisser les [MASK] et les taxes.")
        assert "impôts" in {candidate.text.split()[4] for candidate in filled.candidates}
        assert "\nimpôts  " in run("fill", name, "Il faut baisser les [MASK] et les taxes.").stdout  # and no ▁impôts
    if kind in CAUSAL:
        assert base.generate("Il faut baisser les impôts", max_tokens=3)
        assert (
            run("generate", name, "Il faut baisser les", "--max-tokens", "1").stdout == "Il faut baisser les impôts\n"
        )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as pip builds it from this folder."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "recipes", source / "recipes")
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w"]
    subprocess.run([*command, str(source), str(source)], check=True, capture_output=True)
    [wheel] = source.glob("*.whl")
    return wheel


@pytest.mark.slow
def test_what_is_installed_has_it(wheel: Path) -> None:
    assert wheel.stat().st_size < 50_000_000
    packed = zipfile.ZipFile(wheel).namelist()
    files = [bases.HERE / bases.SUMS, *(path for name in bases.shipped() for path in (bases.HERE / name).iterdir())]
    assert {f"headstart/{path.relative_to(bases.HERE.parent)}" for path in files} <= set(packed)
    recipes = {path.name for path in (ROOT / "recipes").glob("base*")}
    assert recipes == {Path(name).name for name in packed if "/share/headstart/recipes/" in name}


@pytest.mark.slow
def test_what_is_installed_works_elsewhere_without_network(wheel: Path, tmp_path: Path) -> None:
    site, place = tmp_path / "site", tmp_path / "an empty place"
    place.mkdir()
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True)
    nowhere = "http://127.0.0.1:9"  # where nobody answers
    surroundings = {"PYTHONPATH": str(site), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    surroundings |= {"http_proxy": nowhere, "https_proxy": nowhere}

    def headstart(*arguments: str) -> str:
        whole = [sys.executable, "-m", "headstart", *arguments]
        done = subprocess.run(whole, cwd=place, env=surroundings, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (base,) = json.loads(headstart("bases", "--json"))["ships"]
    assert base["folder"] == str(site / "headstart" / "bases" / base["name"])
    assert "\nimpôts  " in headstart("fill", base["name"], "Il faut baisser les [MASK] et les taxes.")
    rows = (site / "headstart" / "demo" / "debat" / "train.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (place / "some.csv").write_text("".join(rows[:300]), encoding="utf-8")
    brief = ("--tune", "none", "--seeds", "1", "--epochs", "1", "--window", "16", "--jobs", "2")
    assert "report: study" in headstart("compare", "some.csv", "--init", base["name"], *brief, "--out", "study")

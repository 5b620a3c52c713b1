"""The recipes that make the bases: from raw text to the folder that is given away."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from headstart.bases.recipes import base_recipes
from headstart.checkpoints.folder import load, read_safetensors
from headstart.config import CausalMaskedConfig, MaskedConfig, read_toml
from headstart.studies.recipes import read_settings
from headstart.studies.settings import PretrainSettings
from tests.studies.example_data import corpus

RECIPES = Path(__file__).parents[1] / "recipes"
TEXTS = {recipe.name: recipe.texts for recipe in base_recipes()}
OTHERS = sorted(TEXTS.keys() - {"debat-fr"})
TINY = ["--steps", "2", "--batch-size", "4", "--window", "32", "--quiet"]
TINY += [part for change in ("width=32", "layers=1", "heads=2") for part in ("--change", change)]


def recipe(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a recipe as a user does, with the headstart of this Python."""
    surroundings = {**os.environ, "PIECES": "300", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [str(RECIPES / f"base-{name}.sh"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=280)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "des textes à lire"
    folder.mkdir()
    for seed, name in enumerate(sorted({name for names in TEXTS.values() for name in names})):
        with lzma.open(folder / name, "wt", encoding="utf-8") as file:
            file.write("\n".join(corpus(150, seed)) + "\n")
    return folder


@pytest.mark.parametrize("name", ["debat-fr", *(pytest.param(n, marks=pytest.mark.slow) for n in OTHERS)])
def test_from_raw_text_to_a_base(name: str, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "what comes out"
    done = recipe(name, texts, out, "--", *TINY)
    assert done.returncode == 0, done.stderr
    base = load(out / name)
    heads = {"masked": MaskedConfig(), "causal+masked": CausalMaskedConfig()}  # an untied head is left out
    assert base.model.head_config == heads.get(read_toml(RECIPES / f"base-{name}.toml")["objective"])
    assert base.tokenizer is not None
    assert base.model.config.width == 32
    pretraining = json.loads((out / name / "pretraining.json").read_text())
    assert pretraining.items() >= json.loads((out / f"{name}-run" / "result.json").read_text()).items()
    assert (pretraining["steps"], pretraining["seconds"] > 0) == (2, True)
    assert all(tensor.element_size() == 2 for tensor in read_safetensors(out / name / "model.safetensors").values())
    again = recipe(name, texts, out, "--", *TINY)
    assert (again.returncode, again.stderr) == (
        2,
        f"base-{name}: {out / name} exists: name another folder, or remove it\n",
    )


def test_short_answers_are_joined_into_documents(texts: Path, tmp_path: Path) -> None:
    """As the first step does it; the second fails, for want of room for the tokenizer."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "debat-tokenizer").touch()
    assert recipe("debat-fr", texts, out).returncode == 2
    with lzma.open(texts / "fr-granddebat.txt.xz", "rt", encoding="utf-8") as file:
        answers = file.read().splitlines()
    *documents, last = (out / "debat-text" / "fr-granddebat.txt").read_text(encoding="utf-8").splitlines()
    assert " ".join([*documents, last]) == " ".join(answers)
    longest = max(len(answer.encode()) for answer in answers)
    assert len(documents) > 2
    assert all(1000 <= len(document.encode()) <= 1001 + longest for document in documents)


@pytest.mark.slow
def test_some_texts_are_read_more_often(texts: Path, tmp_path: Path) -> None:
    """Of `small-fr` all but the speeches, twice."""
    out = tmp_path / "out"
    assert recipe("small-fr", texts, out, *TINY).returncode == 0
    sources = json.loads((out / "open-store" / "store.json").read_text())["sources"]
    times = Counter(source["name"] + ".xz" for source in sources)
    assert times == {name: 1 if name == "fr-europarl.txt.xz" else 2 for name in TEXTS["small-fr"]}


def test_a_damaged_text_is_not_half_read(texts: Path, tmp_path: Path) -> None:
    damaged = texts / "fr-granddebat.txt.xz"
    damaged.write_bytes(damaged.read_bytes()[:-40])
    done = recipe("debat-fr", texts, tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.endswith("base-debat-fr: a file of text is damaged: take another copy\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_what_is_there_is_not_made_again(texts: Path, tmp_path: Path) -> None:
    assert recipe("lab-fr", texts, tmp_path / "out", *TINY).returncode == 0
    before = (tmp_path / "out" / "fr-tokenizer" / "tokenizer.json").stat()
    (tmp_path / "out" / "lab-fr").rename(tmp_path / "elsewhere")
    second = recipe("lab-fr", texts, tmp_path / "out", *TINY)
    assert second.returncode == 0, second.stderr
    assert (tmp_path / "out" / "fr-tokenizer" / "tokenizer.json").stat() == before
    assert "already holds this store" in second.stderr


def test_what_is_missing_is_one_line(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (texts / "fr-novels.txt.xz").unlink()
    for arguments, words in [
        ((), "name the folder of the texts and the folder to write: TEXTS OUT"),
        ((texts,), "name the folder of the texts and the folder to write: TEXTS OUT"),
        ((texts, out), f"there is no file {texts / 'fr-novels.txt.xz'}"),
        ((tmp_path / "nowhere", out), f"there is no file {tmp_path / 'nowhere' / 'fr-europarl.txt.xz'}"),
    ]:
        done = recipe("lab-fr", *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"base-lab-fr: {words}\n")
    assert not out.exists()


@pytest.mark.parametrize("name", TEXTS)
def test_its_settings_are_settings_of_pretrain(name: str) -> None:
    settings = read_settings(PretrainSettings, RECIPES / f"base-{name}.toml", {"store": "store"})
    assert settings.model == ("lab" if name == "lab-fr" else "small")

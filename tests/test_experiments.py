"""The recipes of the experiments: settings that their studies know, scripts that run from the data to the studies."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headstart import bases
from headstart.checkpoints.folder import load
from headstart.studies.recipes import read_settings
from headstart.studies.settings import CompareSettings, FinetuneSettings, PretrainSettings
from headstart.tokenizers.tokenizer import Tokenizer
from tests.studies.example_data import corpus, reviews, write_reviews

RECIPES = Path(__file__).parents[1] / "recipes"
SCRIPTS = {
    "cls-books-lab": 2,
    "cls-books-small": 2,
    "cls-books-continued": 3,
    "cls-books-open": 3,
    "cls-books-teacher": 2,
    "objectives": 2,
    "sst": 3,
    "sst-teacher": 4,
    "sst-self": 3,
    "cfimdb": 3,
    "cfimdb-self": 3,
    "task-text": 3,
}


def run(name: str, *arguments: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A script as a user runs it, with the headstart of this Python."""
    surroundings = {**os.environ, **more, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [str(RECIPES / f"{name}.sh"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=280)


@pytest.mark.parametrize(
    "name",
    [
        "cls-books-lab",
        "cls-books-small",
        "cls-books-continued",
        "cls-books-reviews",
        "cls-books-teacher",
        "objectives",
        "task-text",
    ],
)
def test_settings_of_pretraining(name: str) -> None:
    given = {"store": "store", **({"init": "base"} if name in ("task-text", "cls-books-reviews") else {})}
    settings = read_settings(PretrainSettings, RECIPES / f"{name}.toml", given)
    assert settings.steps is not None


@pytest.mark.parametrize("mode", ["full", "frozen", "scratch"])
@pytest.mark.parametrize("name", ["cls-books-tuning", "sst", "cfimdb"])
def test_settings_of_fine_tuning(name: str, mode: str) -> None:
    one = read_settings(FinetuneSettings, RECIPES / f"{name}.toml", {"data": "train.txt", "init": "base", "mode": mode})
    several = read_settings(CompareSettings, RECIPES / f"{name}.toml", {"data": "train.txt", "init": ["base"]})
    assert one.pool == several.pool == "mean"
    assert (one.lr == several.lr) == (not any(each.startswith("lr=") for each in getattr(several, mode)))


@pytest.mark.parametrize(("name", "count"), SCRIPTS.items())
def test_what_is_missing_is_one_line(name: str, count: int, tmp_path: Path) -> None:
    done = run(name)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{name}: name the folder of the data")
    done = run(name, *[tmp_path / "nowhere"] * count)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"{name}: there is no {tmp_path / 'nowhere'}" in done.stderr


@pytest.mark.parametrize("name", ["cls-books-lab", "cls-books-small"])
def test_language_models_for_cls_books_read_the_texts_of_the_results(name: str, tmp_path: Path) -> None:
    """Another French text beside them may hold reviews of valid or test; one that is missing is named."""
    recipes, data, out = tmp_path / "recipes", tmp_path / "data", tmp_path / "out"
    shutil.copytree(RECIPES, recipes)  # so that the `headstart` of .venv does not come first
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "headstart").write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/calls"\n[ "$1" != pretrain ]\n')
    (tmp_path / "bin" / "headstart").chmod(0o755)
    texts = [data / "corpora" / f"fr-{text}.txt.xz" for text in ("critique", "europarl", "novels", "reviews")]
    for file in (*texts, data / "corpora" / "fr-other.txt.xz", data / "cls-books" / "train.review.spm"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    command = [str(recipes / f"{name}.sh"), str(data), str(out)]
    surroundings = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    subprocess.run(command, capture_output=True, env=surroundings, check=False)
    read = [line for line in (tmp_path / "calls").read_text().splitlines() if f"--out {out}/store" in line]
    assert read[0].startswith(f"tokens {' '.join(map(str, texts))} {out}/cls-books-train.txt --tokenizer ")
    texts[1].unlink()
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings, check=False)
    assert (done.returncode, done.stderr) == (2, f"{name}: there is no {texts[1]}\n")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    for name in ("sst", "cfimdb"):
        (folder / name).mkdir(parents=True)
        for seed, split in enumerate(("train", "dev", "test")):
            write_reviews(folder / name / f"{split}.txt", 60, seed)
    (folder / "corpora").mkdir()
    with lzma.open(folder / "corpora" / "en-imdb.txt.xz", "wt", encoding="utf-8") as file:
        file.write("\n".join(corpus(100, 5)) + "\n")
    return folder


@pytest.mark.slow
def test_from_the_data_to_the_studies(data: Path, base: Path, tmp_path: Path) -> None:
    """Text like the task's own, SST with both bases, CFIMDB with its predictions; everything again changes nothing."""
    out, tiny = tmp_path / "out", {"STUDY": "--seeds 2 --quiet --window 16", "SWEEP": "--quiet --window 16"}
    for _ in range(2):
        done = run("task-text", data, base, out, PRETRAIN="--steps 2 --batch-size 4 --window 16 --quiet")
        assert done.returncode == 0, done.stderr
    assert load(out / "reviews" / "model").model.config == load(base).model.config
    grid = {"RATES": "1e-3,1e-2", "BATCHES": "16", "DROPOUTS": "0.1", "EPOCHS": "1", "SWEEPERS": "2"}
    done = run("sst", data, base, out / "sst", MORE=f"reviews={out / 'reviews'}", **tiny, **grid)
    assert done.returncode == 0, done.stderr
    best = next(trial for trial in json.loads((out / "sst/table/sweep.json").read_text())["trials"] if trial["best"])
    full = json.loads((out / "sst" / "full" / "comparison.json").read_text())
    assert [arm["name"] for arm in full["arms"][2:]] == [f"full:{base.name}", "full:reviews"]
    assert f'"lr={best["settings"]["lr"]}"' in (out / "sst" / "full" / "study.toml").read_text()
    done = run("cfimdb", data, base, out / "cfimdb", TUNE="--window 16 --epochs 1 --quiet", **tiny)
    assert done.returncode == 0, done.stderr
    handed_in = (out / "cfimdb" / "handed-in" / "test-predictions.txt").read_text().splitlines()
    texts = [line.partition(" ||| ")[2] for line in (data / "cfimdb" / "test.txt").read_text().splitlines()]
    assert [line.partition(" ||| ")[2] for line in handed_in] == texts


@pytest.mark.slow
def test_a_small_model_learns_from_a_large_one(data: Path, base: Path, tmp_path: Path) -> None:
    with lzma.open(data / "corpora" / "en-imdb.txt.xz", "wt", encoding="utf-8") as file:
        file.write(
            "Too short.<br /><br />A tender and witty tale of a reader!  The page of this novel is bright? Yes.\n"
        )
        file.write("Every line of the dull essay was hollow.\n" * 3)
    tiny = {"EVERY": "2", "TEACHER": "--epochs 1 --window 16 --quiet", "STUDY": "--seeds 2 --quiet --window 16"}
    done = run("sst-teacher", data, base, base, tmp_path / "out", **tiny)
    assert done.returncode == 0, done.stderr
    sentences = (tmp_path / "out" / "sentences.txt").read_text().splitlines()
    assert sentences == ["The page of this novel is bright?", "Every line of the dull essay was hollow."]
    found = json.loads((tmp_path / "out" / "student" / "comparison.json").read_text())
    assert [arm["name"] for arm in found["arms"][2:]] == ["tfidf+self", "full", "full+teacher"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "texts", "study"), [("sst", "sentences", "rates"), ("cfimdb", "reviews", "teachers")])
def test_runs_of_a_base_teach_students_of_the_same_base(
    name: str, texts: str, study: str, data: Path, base: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    tiny = {"EVERY": "1", "RATES": "1e-3", "EPOCHS": "1", "SWEEP": "--quiet --window 16", "SWEEPERS": "2"}
    done = run(f"{name}-self", data, base, out, **tiny, STUDY="--seeds 2 --epochs 1 --quiet --window 16")
    assert done.returncode == 0, done.stderr
    assert (out / f"{texts}.txt").read_text()
    found = json.loads((out / "tuned" / "comparison.json").read_text())
    assert [arm["name"] for arm in found["arms"][2:]] == ["tfidf+self", "full", "full+teacher"]
    assert len(taught_by(out / "tuned")) == len(json.loads((out / study / "sweep.json").read_text())["trials"]) > 2


def taught_by(study: Path) -> list[str]:
    """The teachers of a study's students."""
    result = json.loads(next((study / "runs").glob("full+teacher-*/result.json")).read_text())
    return [teacher["folder"] for teacher in result["distillation"]["teachers"]]


@pytest.fixture
def books(tokenizer: Tokenizer, tmp_path: Path) -> tuple[Path, list[str]]:
    """The lab's files and French texts, and those of the texts that are neither too short nor too long."""
    data = tmp_path / "data"
    tokenizer.save(data / "cls-books")
    for seed, split in enumerate(("train", "valid", "test")):
        rows = reviews(60, seed)
        pieces = [" ".join(f"▁{word}" for word in text.split()) for _, text in rows]
        (data / "cls-books" / f"{split}.review.spm").write_text("\n".join(pieces) + "\n", encoding="utf-8")
        (data / "cls-books" / f"{split}.label").write_text("".join(f"{int(label == 'pos')}\n" for label, _ in rows))
    (data / "corpora").mkdir()
    texts = [text for text in corpus(100, 5) if 60 <= len(text) <= 1500]
    for name in ("critique", "granddebat", "novels", "reviews"):
        with lzma.open(data / "corpora" / f"fr-{name}.txt.xz", "wt", encoding="utf-8") as file:
            file.write("\n".join([*texts, "too short", "too long " * 200]) + "\n")
    return data, texts


@pytest.mark.slow
def test_the_linear_model_and_five_networks_teach_the_lab_s(books: tuple[Path, list[str]], tmp_path: Path) -> None:
    (data, texts), out = books, tmp_path / "out"
    tiny = "--epochs 1 --window 24 --quiet"
    steps = "--steps 2 --batch-size 4 --window 24 --window-start 8 --sampled-softmax 64 --quiet"
    done = run(
        "cls-books-teacher", data, out, PRETRAIN=steps, TEACHER=tiny, STUDY=f"{tiny} --epochs 1 --seeds 2 --window 24"
    )
    assert done.returncode == 0, done.stderr
    assert (out / "reviews.txt").read_text(encoding="utf-8").splitlines() == texts
    assert load(out / "lab" / "model").model.config.family == "lab"
    assert load(out / "teacher-0" / "model").model.config.width == 256  # as debat-fr
    found = json.loads((out / "student" / "comparison.json").read_text())
    assert [arm["name"] for arm in found["arms"][2:]] == ["tfidf+self", "scratch", "full", "full+teacher"]
    networks = [*(f"teacher-{seed}" for seed in range(3)), "lab-teacher-10", "lab-teacher-11"]
    assert taught_by(out / "student") == ["tfidf", *(str(out / name) for name in networks)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "unlabelled"), [("continued", "reviews"), ("open", "answers")])
def test_runs_of_a_base_and_the_linear_model_teach_it(
    name: str, unlabelled: str, books: tuple[Path, list[str]], tmp_path: Path
) -> None:
    (data, texts), out = books, tmp_path / "out"
    tiny = {"PRETRAIN": "--steps 2 --batch-size 4 --window 24 --quiet", "SWEEP": "--epochs 1 --window 24 --quiet"}
    study = "--epochs 1 --seeds 2 --window 24 --quiet"
    base = bases.installed("debat-fr")
    done = run(f"cls-books-{name}", data, base, out, **tiny, STUDY=study, RATES="1e-3,2e-3")
    assert done.returncode == 0, done.stderr
    drawn = (out / f"{unlabelled}.txt").read_text(encoding="utf-8").splitlines()
    assert drawn == (texts if name == "continued" else texts[19::20])
    found = json.loads((out / "tuned" / "comparison.json").read_text())
    assert [arm["name"] for arm in found["arms"][2:]] == ["tfidf+self", "scratch", "full", "full+teacher"]
    folders = sorted(str(path) for path in (out / "rates" / "runs").glob("full-*"))
    assert sorted(taught_by(out / "tuned")) == sorted([*folders, "tfidf"])
    assert len(folders) == 4

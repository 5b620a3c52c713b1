"""The data come first and without a flag; the folder to write has a default; --help is short."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.studies.example_data import corpus, write_reviews

from .command_line import run

TINY = ["--change", "width=32", "--change", "layers=1", "--change", "heads=2", "--change", "feed_forward=32"]
PRETRAIN = ["--vocabulary", "320", *TINY, "--steps", "2"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with reviews.txt, corpus.txt and base/."""
    write_reviews(tmp_path / "reviews.txt", 120, 1)
    (tmp_path / "corpus.txt").write_text("\n".join(corpus(60, 2)) + "\n", encoding="utf-8")
    (tmp_path / "base").symlink_to(base)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_finetune_takes_the_data_and_names_the_folder() -> None:
    command = ["finetune", "reviews.txt", "--init", "base", "--steps", "1"]
    first = run(*command)
    assert first.exit_code == 0, first.stderr
    assert "\nrun folder: runs/finetune-reviews\n" in first.stderr
    assert Path("runs/finetune-reviews/result.json").is_file()
    again = run(*command)
    assert "runs/finetune-reviews is done already" in again.stderr
    assert again.stdout == first.stdout
    other = run(*command, "--seed", "1", "--json")
    assert "\nrun folder: runs/finetune-reviews-2\n" in other.stderr
    assert json.loads(other.stdout) == json.loads(Path("runs/finetune-reviews-2/result.json").read_text())


@pytest.mark.parametrize("command", ["compare", "finetune --init base", "pretrain", "sweep --init base --grid lr=1,2"])
def test_no_folder_is_named_before_the_data_are_read(command: str) -> None:
    result = run(*command.split(), "nothere.csv")
    assert (result.exit_code, "nothere.csv" in result.stderr) == (2, True)
    assert "folder: runs" not in result.stderr
    assert not Path("runs").exists()


def test_a_folder_of_something_else_is_left_alone() -> None:
    Path("runs/finetune-reviews").mkdir(parents=True)
    Path("runs/finetune-reviews/notes.txt").write_text("mine")
    assert run("finetune", "reviews.txt", "--init", "base", "--steps", "1").exit_code == 0
    assert [path.name for path in Path("runs/finetune-reviews").iterdir()] == ["notes.txt"]
    assert Path("runs/finetune-reviews-2/result.json").is_file()


def test_a_recipe_and_data_in_any_order() -> None:
    Path("short.toml").write_text('study = "finetune"\ndata = "elsewhere.txt"\ninit = "base"\nsteps = 1\n')
    for inputs in (["short.toml", "reviews.txt"], ["reviews.txt", "short.toml"]):
        done = run("finetune", *inputs, "--quiet", "--json")
        assert done.exit_code == 0, done.stderr
        assert json.loads(done.stdout)["steps"] == 1
    assert [path.name for path in Path("runs").iterdir()] == ["finetune-reviews"]


def test_a_folder_of_labels_is_data() -> None:
    for label, words in (("neg", "dull and vague"), ("pos", "bright and wise")):
        Path("texts", label).mkdir(parents=True)
        for number in range(12):
            Path("texts", label, f"{number}.txt").write_text(f"a {words} story {number}")
    done = run("finetune", "texts/", "--init", "base", "--steps", "1", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["labels"] == ["neg", "pos"]
    assert Path("runs/finetune-texts").is_dir()


def test_compare_takes_the_data_and_nothing_else() -> None:
    command = ["compare", "reviews.txt", "--tune", "none", "--seeds", "1", "--steps", "1", "--window", "16"]
    first = run(*command)
    assert first.exit_code == 0, first.stderr
    opening = first.stderr.splitlines()
    assert "study folder: runs/compare-reviews" in opening
    assert sum(line.startswith("no --init: a `small` model from scratch") for line in opening) == 1
    assert "\nscratch " in first.stdout and "\ntfidf " in first.stdout and "\nfull " not in first.stdout
    again = run(*command, "--jobs", "2")
    assert (again.exit_code, again.stdout) == (0, first.stdout)
    more = run(*command, "--seed", "1", "--jobs", "2", "--json")  # in the same folder: the data are the same
    assert more.exit_code == 0, more.stderr
    assert [path.name for path in Path("runs").iterdir()] == ["compare-reviews"]
    asked = run(*command, "--arms", "full", "--out", "other")
    assert (asked.exit_code, "needs a model folder" in asked.stderr) == (2, True)


def test_compare_after_a_kill_before_the_study_was_written() -> None:
    Path("study/tokenizer").mkdir(parents=True)
    Path("study/tokenizer/tokenizer.json").write_text("half of one")
    command = [
        "compare",
        "reviews.txt",
        "--tune",
        "none",
        "--seeds",
        "1",
        "--steps",
        "1",
        "--window",
        "16",
        "--out",
        "study",
    ]
    assert run(*command).exit_code == 0


def test_sweep_takes_the_data_and_goes_on() -> None:
    command = ["sweep", "reviews.txt", "--init", "base", "--grid", "lr=1e-3,1e-2", "--steps", "1"]
    assert "\nstudy folder: runs/sweep-reviews\n" in run(*command).stderr
    assert run(*command).exit_code == 0
    assert [path.name for path in Path("runs").iterdir()] == ["sweep-reviews"]


def test_pretrain_takes_text() -> None:
    done = run("pretrain", "corpus.txt", *PRETRAIN)
    assert done.exit_code == 0, done.stderr
    assert done.stderr.splitlines()[:3] == [
        "training a tokenizer of at most 320 tokens on corpus.txt",
        "encoding corpus.txt into the token store runs/pretrain-corpus-tokens/store",
        "run folder: runs/pretrain-corpus",
    ]
    model = json.loads(Path("runs/pretrain-corpus/model/config.json").read_text())
    assert (model["model"]["vocabulary"], model["model"]["family"]) == (320, "headstart")
    assert "is done already" in run("pretrain", "corpus.txt", *PRETRAIN).stderr
    assert run("finetune", "reviews.txt", "--init", "runs/pretrain-corpus", "--steps", "1").exit_code == 0


def test_pretrain_goes_on_where_the_text_was_encoded() -> None:
    """Killed after the tokenizer was trained: it is not trained again, and the result is the same."""
    assert run("pretrain", "corpus.txt", *PRETRAIN).exit_code == 0
    weights = Path("runs/pretrain-corpus/model/model.safetensors").read_bytes()
    shutil.rmtree("runs/pretrain-corpus")
    shutil.rmtree("runs/pretrain-corpus-tokens/store")
    done = run("pretrain", "corpus.txt", *PRETRAIN)
    assert "training a tokenizer" not in done.stderr
    assert Path("runs/pretrain-corpus/model/model.safetensors").read_bytes() == weights


def test_pretrain_takes_a_store_and_a_tokenizer() -> None:
    assert run("pretrain", "corpus.txt", *PRETRAIN, "--out", "a").exit_code == 0
    done = run("pretrain", "a-tokens/store", *TINY, "--steps", "2", "--out", "b")
    assert done.exit_code == 0, done.stderr
    a, b = (Path(name, "model", "model.safetensors").read_bytes() for name in "ab")
    assert a == b
    given = run("pretrain", "corpus.txt", "--tokenizer", "a-tokens/tokenizer", *TINY, "--steps", "2", "--out", "c")
    assert "training a tokenizer" not in given.stderr
    assert Path("c/model/model.safetensors").read_bytes() == a
    onward = run("pretrain", "corpus.txt", "--init", "a", "--steps", "2", "--out", "d")
    assert (onward.exit_code, "training a tokenizer" in onward.stderr) == (0, False)


def test_tokens_of_another_text_are_not_taken() -> None:
    assert run("pretrain", "corpus.txt", *PRETRAIN, "--out", "a").exit_code == 0
    Path("other.txt").write_text("something else\n" * 20)
    shutil.rmtree("a")
    done = run("pretrain", "other.txt", *PRETRAIN, "--out", "a")
    assert (done.exit_code, done.stderr) == (
        2,
        "headstart: a-tokens holds the tokens of another text or tokenizer: name another folder with --out\n",
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["finetune", "nowhere.csv", "--init", "base"], "nowhere.csv: no such file"),
        (["pretrain", "nowhere.txt"], "nowhere.txt: no such file or folder"),
        (["finetune", "nowhere.toml"], "nowhere.toml: there is no such file"),
        (["finetune", "bad.toml", "reviews.txt"], "bad.toml: 2 mistakes"),
        (["finetune", "reviews.txt", "--data", "b.csv"], "the data are named twice, reviews.txt and --data b.csv"),
        (["finetune", "reviews.txt", "b.csv"], "2 data files are named (reviews.txt, b.csv)"),
        (["finetune", "a.toml", "b.toml"], "two recipes are named, a.toml and b.toml"),
        (["finetune", "noise.csv", "--init", "base"], "noise.csv"),
        (["pretrain"], "no text to train on"),
        (["pretrain", "corpus.txt", "--store", "s"], "store and corpus are both given"),
        (["pretrain", "corpus.txt", "--model", "lab", "--init", "base"], "model and init are both given"),
        (["finetune", "reviews.txt", "--valid", "v.txt", "--valid-share", "0.2", "--init", "base"], "valid_share are"),
    ],
)
def test_bad_input_is_said_before_anything_is_written(arguments: list[str], words: str) -> None:
    Path("bad.toml").write_text('[project]\nname = "no recipe"\n')
    Path("noise.csv").write_bytes(bytes(range(256)) * 4)
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not Path("runs").exists()


@pytest.mark.parametrize("verb", ["pretrain", "finetune", "compare", "sweep"])
def test_help_is_short_and_help_all_has_every_option(verb: str) -> None:
    short, everything = run(verb, "--help").stdout, run(verb, "--help-all").stdout
    assert short.count("\n  --") <= 24
    assert "--help-all" in short and "more options" in short and "--epsilon" not in short
    assert "--epsilon" in everything and "\nOptimizer:\n" in everything and "\nHardware:\n" in everything
    assert set(short.split()) & {"--epochs", "--lr", "--out"} == {"--epochs", "--lr", "--out"}


def test_a_share_of_the_data_is_kept_aside_as_valid() -> None:
    command = ["finetune", "reviews.txt", "--init", "base", "--steps", "1", "--valid-share", "0.4", "--json"]
    rows = json.loads(run(*command).stdout)["rows"]
    assert rows["train"] + rows["valid"] == 120
    assert 30 < rows["valid"] < 66

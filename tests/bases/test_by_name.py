"""A base that ships is found by its name wherever a model folder is taken, and from any directory."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

import headstart as hs
from headstart.bases import find
from headstart.checkpoints.exchange import open_model
from headstart.cli.serve import named
from headstart.config import read_toml
from headstart.studies.fingerprints import base_fingerprint
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.use.language_model import LanguageModel
from tests.cli.command_line import run

ONE_STEP = ["--steps", "1", "--window", "16"]
COMPARE = ["compare", "reviews.txt", "--tune", "none", "--seeds", "1", "--jobs", "1", *ONE_STEP]


@pytest.mark.parametrize(
    "command",
    [
        "finetune reviews.txt --init masked-xx --steps 1",
        "pretrain corpus.txt --init masked-xx --objective masked --steps 1",
        "sweep reviews.txt --init masked-xx --grid lr=1e-3 --steps 1",
        "params masked-xx",
        "export masked-xx out --to base",
        "import masked-xx out",
        "fill masked-xx 'a [MASK] story'",
        "generate causal-xx 'a story' --max-tokens 3",
        "tokenizer show masked-xx story",
        "tokens corpus.txt --tokenizer masked-xx --out store --workers 1",
        "doctor reviews.txt --tokenizer masked-xx",
    ],
)
def test_every_verb_takes_the_name(package: Path, command: str) -> None:
    done = run(*shlex.split(command))
    assert done.exit_code == 0, done.stderr
    assert str(package) not in done.stderr


def test_a_run_remembers_the_name_and_not_where_it_was_installed(package: Path) -> None:
    assert run("finetune", "reviews.txt", "--init", "masked-xx", *ONE_STEP, "--out", "run").exit_code == 0
    assert read_toml(Path("run/run.toml"))["init"] == "masked-xx"
    assert json.loads(Path("run/result.json").read_text())["weights"] == "from masked-xx"


def test_a_comparison_by_name_is_one_from_the_folder(package: Path) -> None:
    scores = []
    for init, out in (("masked-xx", "by-name"), (str(package / "masked-xx"), "by-path")):
        done = run(*COMPARE, "--init", init, "--arms", "full", "--out", out, "--json")
        assert done.exit_code == 0, done.stderr
        scores.append([(arm["name"], arm["scores"]) for arm in json.loads(done.stdout)["arms"]])
    assert scores[0] == scores[1]
    assert base_fingerprint("masked-xx") == base_fingerprint(str(package / "masked-xx"))


def test_from_python(package: Path) -> None:
    by_name, by_path = (open_model(source).model.state_dict() for source in ("masked-xx", package / "masked-xx"))
    assert all(tensor.equal(by_path[name]) for name, tensor in by_name.items())
    assert Tokenizer.load("masked-xx").fingerprint == Tokenizer.load(package / "masked-xx").fingerprint
    loaded = hs.load("causal-xx")
    assert isinstance(loaded, LanguageModel)
    assert loaded.generate("a story", max_tokens=2)
    assert LanguageModel.load("masked-xx").fill("a [MASK] story")[0].candidates
    classifier = hs.finetune("reviews.txt", init="masked-xx", steps=1, window=16, progress=False)
    assert classifier.result is not None


def test_a_service_takes_it_by_name(package: Path) -> None:
    assert named("causal-xx") == ("causal-xx", package / "causal-xx")
    assert named("writer=causal-xx") == ("writer", package / "causal-xx")


@pytest.mark.parametrize(
    "command",
    [
        ["finetune", "reviews.txt", "--init", "masked-xx", *ONE_STEP],
        ["pretrain", "corpus.txt", "--init", "masked-xx", "--objective", "masked", "--steps", "1"],
        ["sweep", "reviews.txt", "--init", "masked-xx", "--grid", "lr=1e-3", *ONE_STEP],
        [*COMPARE, "--init", "mine=masked-xx", "--arms", "full"],
        ["fill", "masked-xx", "a [MASK] story"],
        ["params", "masked-xx"],
        ["export", "masked-xx", "out", "--to", "base"],
        ["import", "masked-xx", "out"],
        ["doctor", "reviews.txt", "--tokenizer", "masked-xx"],
        ["tokenizer", "show", "masked-xx", "story"],
    ],
)
def test_a_folder_of_that_name_here_is_taken_and_that_is_said(package: Path, command: list[str]) -> None:
    shutil.copytree(package / "masked-xx", "masked-xx")
    (package / "masked-xx" / "model.safetensors").unlink()  # it must not be read
    done = run(*command)
    assert done.exit_code == 0, done.stderr
    assert done.stderr.count("masked-xx: the folder here is taken, not the base of that name that ships") == 1
    assert find("masked-xx") == Path("masked-xx")


def test_quiet_says_nothing_of_it(package: Path) -> None:
    shutil.copytree(package / "masked-xx", "masked-xx")
    done = run("finetune", "reviews.txt", "--init", "masked-xx", *ONE_STEP, "--quiet")
    assert (done.exit_code, done.stderr) == (0, "")


def test_a_base_that_is_no_classifier_says_what_to_do(package: Path) -> None:
    done = run("predict", "masked-xx", "reviews.txt")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("headstart: masked-xx is a masked model, and no classifier: `headstart finetune`")


def test_with_no_base_named_the_one_in_the_package_is_taken_whatever_is_here(package: Path) -> None:
    from headstart.studies.bases import choose_base

    Path("masked-xx").mkdir()
    fit = choose_base([line.partition(" ||| ")[2] for line in Path("reviews.txt").read_text().splitlines()])
    assert fit is not None
    done = run(*COMPARE, "--arms", "full")
    assert done.exit_code == 0, done.stderr

"""`headstart sweep` as a user types it. What it does is tested with the studies; here, how it is asked and answers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console

from headstart.checkpoints.folder import Checkpoint, save
from headstart.cli.sweep import tables
from headstart.config import MaskedConfig
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.runs.sweep import Sweep, Trial
from headstart.studies.recipes import read_settings
from headstart.studies.settings import SweepSettings
from tests.studies.example_data import make_tokenizer, write_reviews

from .command_line import run


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options that every sweep here has."""
    folder = tmp_path_factory.mktemp("place")
    tokenizer = make_tokenizer()
    torch.manual_seed(7)
    config = preset("small", vocabulary=tokenizer.size, width=16, layers=1, heads=2, feed_forward=16, window=32)
    save(Checkpoint(Model.build(config, MaskedConfig()), tokenizer=tokenizer), folder / "base")
    write_reviews(folder / "train.txt", 40, 1)
    write_reviews(folder / "valid.txt", 20, 2)
    return [
        *(
            "--data",
            str(folder / "train.txt"),
            "--valid",
            str(folder / "valid.txt"),
            "--test",
            str(folder / "valid.txt"),
        ),
        *("--init", str(folder / "base"), "--epochs", "1"),
    ]


def test_a_grid_is_a_table_with_the_best_marked(common: list[str], tmp_path: Path) -> None:
    options = ["--grid", "lr=1e-3,1e20", "--grid", "batch_size=8,10", "--out", str(tmp_path / "s")]
    result = run("sweep", *common, *options)
    assert result.exit_code == 0, result.stderr
    found = Sweep.from_json(json.loads((tmp_path / "s" / "sweep.json").read_text()))
    assert found.best is not None
    head, *rows = result.stdout.split("\n\n")[0].splitlines()
    best = 1 + found.trials.index(found.best)
    assert re.split(r"\s{2,}", head) == ["trial", *(f"{n} best" if n == best else str(n) for n in range(1, 5))]
    cells = {re.split(r"\s{2,}", row)[0]: re.split(r"\s{2,}", row.strip())[1:] for row in rows}
    assert list(cells) == [
        *("epochs", "mode", "batch size", "dropout", "learning rate"),
        *("valid accuracy", "test accuracy", "time", "peak memory", "ended"),
    ]
    assert cells["mode"] == ["full"] * 4
    assert cells["batch size"] == ["8", "10", "8", "10"]
    assert cells["learning rate"] == ["0.001", "0.001", "1e+20", "1e+20"]
    assert cells["valid accuracy"] == [f"{t.valid['accuracy']:.4f}" for t in found.trials if t.valid]
    assert cells["ended"] == ["failed", "failed"]
    assert "trial 3 failed: the loss became" in result.stdout
    assert f"best on valid: trial {best}, {tmp_path / 's' / found.best.run}" in result.stdout
    assert found.significance is not None and f"\n{found.significance}\n" in result.stdout
    page = (tmp_path / "s" / "report.html").read_text()
    assert f"{found.significance} Another seed would move each of them too." in page
    assert "trial 1 of 4: lr 0.001, batch size 8" in result.stderr
    assert re.search(r"epoch 1 .* valid: accuracy", result.stderr)
    again = run("sweep", *common, *options)
    assert again.exit_code == 2
    assert "was begun: add --resume" in again.stderr
    as_json = run("sweep", *common, *options, "--resume", "--json")
    assert json.loads(as_json.stdout) == json.loads((tmp_path / "s" / "sweep.json").read_text())


def test_what_was_set_instead_of_epochs_and_batches_is_shown(common: list[str], tmp_path: Path) -> None:
    options = ["--steps", "2", "--tokens", "200", "--grid", "lr=1e-3,1e-2", "--out", str(tmp_path / "s")]
    result = run("sweep", *common, *options)
    assert result.exit_code == 0, result.stderr
    cells = dict(re.split(r"\s{2,}", row)[:2] for row in result.stdout.splitlines()[1:8])
    assert (cells["steps"], cells["tokens"]) == ("2", "200")
    assert "epochs" not in cells and "batch size" not in cells
    page = (tmp_path / "s" / "report.html").read_text()
    head = next(each for each in re.findall(r"<thead>.*?</thead>", page, re.DOTALL) if ">trial</th>" in each)
    assert ">steps</th>" in head and ">epochs</th>" not in head


def test_a_search_from_its_own_study_toml(common: list[str], tmp_path: Path) -> None:
    first = run("sweep", *common, "--search", "lr=1e-4..1e-2", "--trials", "2", "--quiet", "--out", str(tmp_path / "a"))
    assert (first.exit_code, first.stdout, first.stderr) == (0, "", "")
    second = run("sweep", str(tmp_path / "a" / "study.toml"), "--out", str(tmp_path / "b"))
    assert second.exit_code == 0, second.stderr
    rates = [
        [t["settings"]["lr"] for t in json.loads((tmp_path / name / "sweep.json").read_text())["trials"]]
        for name in "ab"
    ]
    assert rates[0] == rates[1]
    assert "trial 2 of 2: lr" in second.stderr


def test_a_recipe_with_a_table_for_each_mode(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('data = "d"\ninit = "i"\ngrid = ["mode=full,frozen"]\nlr = 0.5\n[frozen]\nlr = 0.125\n')
    found = read_settings(SweepSettings, recipe, {})
    assert [(one.mode, one.lr) for one in found.combinations()] == [("full", 0.5), ("frozen", 0.125)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "name a grid, as --grid lr=1e-5,1e-4, or a search"),
        (["--grid", "lrr=1", "--grid", "epoch=2"], "did you mean 'epochs'?"),
        (["--grid", "lr=1", "--search", "lr=1..2"], "one of the two"),
        (["--grid", "lr=0,1"], "lr is 0.0, and must be above 0"),
        (["--grid", "labels=4,400"], "400 labels are asked for, and train has 40"),
    ],
)
def test_mistakes_leave_nothing_behind(common: list[str], tmp_path: Path, options: list[str], words: str) -> None:
    result = run("sweep", *common, *options, "--out", str(tmp_path / "s"))
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "s").exists()


def made_up(count: int) -> Sweep:
    """Trials with a learning rate each, in two kinds of ends; the last is the best."""
    trials = []
    for n in range(1, count + 1):
        settings = {"epochs": 3, "mode": "full", "batch_size": 8, "dropout": 0.1, "lr": n / 1000, "init": "[b] base"}
        scores = {"accuracy": n / 100, "loss": 1.0}
        ends = {"pruned": 3} if n % 5 == 0 else {"valid": scores, "test": scores, "seconds": 61.0, "memory": 2**20}
        trials.append(Trial(f"runs/full-{n}", settings, best=n == count, **ends))
    return Sweep("grid", ("lr", "init"), tuple(trials))


@pytest.mark.parametrize("width", [60, 100, 329, 330])
def test_many_trials_are_broken_into_blocks_that_fit(width: int) -> None:
    screen = Console(width=width, color_system=None, markup=False)
    with screen.capture() as caught:
        for block in tables(made_up(24), width):
            screen.print(block)
            screen.print()
    text = caught.get()
    assert all(len(line) <= width for line in text.splitlines())
    blocks = text.strip().split("\n\n")
    seen = [
        cell
        for block in blocks
        for row in block.splitlines()
        if row.startswith("learning rate")
        for cell in row.split()[2:]
    ]
    assert seen == [f"{n / 1000:.3g}" for n in range(1, 25)]
    assert all(block.startswith("trial ") for block in blocks)
    assert text.count("24 best") == text.count(" best ") + text.count(" best\n") == 1
    assert text.count("pruned at epoch 3") == 4
    assert text.count("[b] base") == 24
    assert text.count("1 min 01 s") == 20
    assert (len(blocks) > 1) == (
        width < 14 + 20 * (10 + 2) + 4 * (17 + 2)
    )  # the names, `1 min 01 s`, `pruned at epoch 3`


def test_a_sweep_without_a_score_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    from headstart.cli.sweep import show

    settings = {"epochs": 3, "mode": "full", "batch_size": 8, "dropout": 0.1, "lr": 0.1}
    found = Sweep("grid", ("lr",), (Trial("runs/a", settings, error="the loss became nan"), Trial("runs/b", settings)))
    show(found, Path("out"))
    text = capsys.readouterr().out
    assert re.search(r"ended +failed +not done yet", text)
    assert "trial 1 failed: the loss became nan" in text
    assert "no trial has a score on valid" in text
    assert "valid accuracy" not in text

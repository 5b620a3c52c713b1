"""`headstart bases`: what ships, as its files have it, and what the recipes make."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from headstart.bases import recipes
from headstart.checkpoints.exchange import open_model
from headstart.config import read_toml
from tests.cli.command_line import run

RECIPES = Path(__file__).parents[2] / "recipes"


def test_what_ships_is_read_from_its_files(package: Path) -> None:
    done = run("bases", "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    masked, causal = json.loads(done.stdout)["ships"]
    folder = package / "masked-xx"
    model = open_model(folder).model
    assert masked == {
        "name": "masked-xx",
        "folder": str(folder),
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": sum(file.stat().st_size for file in folder.iterdir()),
        "language": "French",
        "objective": "masked",
        "text": "Letters to an aunt, and nothing else",
        "licence": "MIT, as the package",
        "verbs": ["finetune", "compare", "fill"],
    }
    assert (causal["objective"], causal["verbs"]) == ("causal", ["finetune", "compare", "generate"])


def test_every_recipe_is_listed_with_its_texts_and_a_command_that_runs(package: Path) -> None:
    listed = {recipe["name"]: recipe for recipe in json.loads(run("bases", "--json").stdout)["recipes"]}
    assert listed.keys() == {path.stem.removeprefix("base-") for path in RECIPES.glob("base-*.toml")}
    assert listed["lab-fr"]["texts"] == ["fr-europarl.txt.xz", "fr-novels.txt.xz"]
    assert listed["small-fr"]["settings"] == read_toml(RECIPES / "base-small-fr.toml")
    for name, recipe in listed.items():
        assert recipe["about"] and recipe["texts"], name
        command = recipe["command"].removesuffix(" TEXTS OUT")
        done = subprocess.run([*command.split(), "nowhere", "out"], capture_output=True, text=True)
        assert done.stderr == f"base-{name}: there is no file nowhere/{recipe['texts'][0]}\n"


def test_as_a_table(package: Path) -> None:
    done = run("bases")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    (masked,) = (line for line in lines if line.startswith("masked-xx "))
    assert "finetune, compare, fill" in masked
    assert any(line.startswith("small-en ") for line in lines)
    assert any(line.endswith("base-small-en.sh TEXTS OUT") for line in lines)
    assert max(len(line) for line in lines if "TEXTS OUT" not in line) <= 110


def test_a_recipe_whose_base_ships_is_not_listed_twice(package: Path) -> None:
    (package / "masked-xx").rename(package / "small-fr")
    sums = package / "SHA256SUMS"
    sums.write_text(sums.read_text().replace("masked-xx", "small-fr"))
    lines = run("bases").stdout.splitlines()
    assert sum(line.startswith("small-fr ") for line in lines) == 1
    assert not any("base-small-fr.sh" in line for line in lines)


def test_an_installed_headstart_finds_its_recipes(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, kept = tmp_path / "lib" / "site-packages", tmp_path / "share" / "headstart" / "recipes"
    (site / "headstart-9.dist-info").mkdir(parents=True)
    kept.mkdir(parents=True)
    for end in ("toml", "sh"):
        (kept / f"base-small-en.{end}").write_text((RECIPES / f"base-small-en.{end}").read_text())
    record = "../../share/headstart/recipes/base-small-en.toml,,\n../../share/headstart/recipes/base-small-en.sh,,\n"
    (site / "headstart-9.dist-info" / "RECORD").write_text(record)
    (site / "headstart-9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: headstart\nVersion: 9\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(recipes, "SOURCE", tmp_path / "nowhere")
    (recipe,) = json.loads(run("bases", "--json").stdout)["recipes"]
    assert recipe["command"] == f"sh {kept / 'base-small-en.sh'} TEXTS OUT"

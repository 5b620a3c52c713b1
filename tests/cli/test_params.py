from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headstart.checkpoints.folder import Checkpoint, save
from headstart.config import ClassifierConfig
from headstart.model.model import Model
from headstart.model.presets import preset

from .command_line import run


@pytest.mark.parametrize(
    ("arguments", "total"),
    [
        (["lab", "--head", "next-token"], 21_018_401),
        (["lab", "--head", "classifier", "--classes", "2"], 10_968_602),
        (["bert-base"], 109_482_240),
        (["gpt2", "--head", "next-token"], 124_439_808),
        (["gpt2"], 124_439_808),
    ],
)
def test_known_totals(arguments: list[str], total: int) -> None:
    result = run("params", *arguments, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["total"] == found["trainable"] == found["tensors"]["total"] == total
    assert sum(b["number"] for b in found["blocks"] if not b["shared"]) == total
    assert found["memory"]["weights"] == 4 * total


def test_the_table_shows_formula_and_number() -> None:
    text = run("params", "lab", "--head", "next-token").stdout
    assert re.search(r"token embedding +50001 × 200 +10,000,200 +1 +10,000,200", text)
    assert re.search(r"attention +4 × \(200 × 200 \+ 200\) +160,800 +4 +643,200", text)
    assert re.search(r"total +21,018,401", text)
    assert "the real tensors agree" in text


def test_a_generator_is_counted_apart() -> None:
    """small has 50,001 words and width 384; its generator is 96 wide, and its decoder is the embedding."""
    text = run("params", "small", "--head", "replaced").stdout
    assert "head: replaced" in text
    assert "generator:" not in text
    layer = 4 * 96 * 96 + 3 * 96 * 256 + 2 * 96
    generator = 384 * 96 + 96 + 6 * layer + 96 + 96 * 384 + 384 + 50_001
    assert f"pretraining adds a generator of {generator:,} parameters by default, which is dropped at the end" in text


def test_shared_and_frozen_are_said() -> None:
    assert re.search(r"head: vocabulary .*shared", run("params", "gpt2", "--head", "next-token").stdout)
    frozen = json.loads(run("params", "lab", "--head", "classifier", "--frozen", "--json").stdout)
    assert (frozen["trainable"], frozen["frozen"]) == (402, 10_968_200)
    assert frozen["tensors"]["trainable"] == 402
    assert frozen["memory"]["gradients"] == 402 * 4


def test_a_folder_is_counted_with_its_own_head(tmp_path: Path) -> None:
    config = preset("bert-tiny", vocabulary=100)
    save(Checkpoint(Model.build(config, ClassifierConfig(classes=5))), tmp_path / "m")
    found = json.loads(run("params", str(tmp_path / "m"), "--json").stdout)
    (tmp_path / "run").mkdir()
    (tmp_path / "m").rename(tmp_path / "run" / "model")  # a run folder stands for the model in it
    again = json.loads(run("params", str(tmp_path / "run"), "--json").stdout)
    assert again["total"] == found["total"]
    assert found["head"]["classes"] == 5
    assert [b["name"] for b in found["blocks"]][-1] == "head: classifier"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["labb"], "did you mean 'lab'?"),
        (["lab", "--head", "nxt-token"], "did you mean 'next-token'?"),
        (["lab", "--head", "masked"], "a causal backbone sees one"),
        (["bert-base", "--head", "next-token"], "would read its own answer"),
        (["lab", "--head", "classifier", "--classes", "1"], "classes is 1, and must be at least 2"),
    ],
)
def test_bad_input_is_one_line_and_code_2(arguments: list[str], words: str) -> None:
    result = run("params", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert result.stdout == ""

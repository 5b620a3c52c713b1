"""A name that is wrong, a base that is missing or damaged: one line that says what to do, and no network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from headstart import bases
from headstart.checkpoints.exchange import open_model
from headstart.checkpoints.folder import read_safetensors, write_safetensors
from headstart.errors import CheckpointError
from tests.cli.command_line import run


def refused(*arguments: str) -> str:
    done = run(*arguments)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    return done.stderr


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any, **__: Any) -> None:
        raise AssertionError("the hub was asked")

    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.snapshot_download", asked)


@pytest.mark.parametrize("name", ["masked-x", "Masked-XX", "maskedxx"])
@pytest.mark.parametrize(
    "command", ["finetune reviews.txt --init {}", "compare reviews.txt --quiet --init {}", "predict {} reviews.txt",
                "fill {} a[MASK]b", "serve {}", "import {} out", "pretrain corpus.txt --init {}"],
)  # fmt: skip
def test_a_wrong_name_gets_the_nearest_and_what_ships(package: Path, command: str, name: str) -> None:
    line = refused(*command.format(name).split())
    assert f"there is no folder {name} here, and no base of that name ships with headstart" in line
    assert "(did you mean 'masked-xx'?). What ships: masked-xx, causal-xx; `headstart bases` says more" in line


def test_a_name_like_none_gets_what_ships(package: Path) -> None:
    line = refused("finetune", "reviews.txt", "--init", "bert-base-uncased")
    assert "did you mean" not in line
    assert "What ships: masked-xx, causal-xx" in line
    assert "A model of the hub is OWNER/NAME" in line


def test_a_base_that_a_recipe_makes_is_told_with_its_command(package: Path) -> None:
    line = refused("fill", "small-en", "a [MASK] story")
    assert "no base of that name ships with headstart: make it with sh " in line
    assert "base-small-en.sh TEXTS OUT" in line


def test_a_path_in_a_folder_that_is_here_is_no_name_on_the_hub(package: Path) -> None:
    Path("runs").mkdir()
    assert "there is no file or folder runs/mine: give a run folder" in refused(
        "finetune", "reviews.txt", "--init", "runs/mine"
    )


def test_a_preset_is_near_too(package: Path) -> None:
    assert "did you mean 'bert-base'?" in refused("params", "bert-bas")
    assert "did you mean 'masked-xx'?" in refused("params", "masked-x")


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_wheel_without_a_file_of_the_base(package: Path, file: str) -> None:
    (package / "masked-xx" / file).unlink()
    line = refused("finetune", "reviews.txt", "--init", "masked-xx")
    assert f"the base masked-xx, which ships with headstart, lacks {package / 'masked-xx' / file}" in line
    assert line.endswith("install headstart again, with pip's --force-reinstall\n")
    assert refused("bases").endswith("--force-reinstall\n")


def test_a_wheel_without_its_list_or_its_card(package: Path) -> None:
    (package / "masked-xx" / bases.CARD).unlink()
    assert "README.md, the card of a base that ships with headstart: install headstart again" in refused("bases")
    (package / bases.SUMS).unlink()
    assert "SHA256SUMS, which comes with headstart: install headstart again" in refused("bases")
    assert "install headstart again" in refused("fill", "masked-xx", "a [MASK] story")


@pytest.mark.parametrize("damaged", [b"\xff", b"0123  masked-xx/config.json\n", b"a line\n"])
def test_a_damaged_list(package: Path, damaged: bytes) -> None:
    (package / bases.SUMS).write_bytes((package / bases.SUMS).read_bytes() + damaged)
    for command in (("bases",), ("fill", "masked-xx", "a [MASK] story")):
        assert "SHA256SUMS, which comes with headstart, is damaged: install headstart again" in refused(*command)


def test_a_damaged_base(package: Path) -> None:
    weights = package / "masked-xx" / "model.safetensors"
    whole = weights.read_bytes()
    for damaged in (whole[:-9], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        weights.write_bytes(damaged)
        line = refused("fill", "masked-xx", "a [MASK] story")
        assert f"is damaged: {weights} is not the file that was released; install headstart again" in line
    weights.write_bytes(whole)
    assert run("fill", "masked-xx", "a [MASK] story").exit_code == 0
    tensors = read_safetensors(weights)
    tensors["backbone.embeddings.tokens.weight"] = torch.zeros(3, 3)
    write_safetensors(weights, tensors)
    assert "is not the file that was released" in refused("params", "masked-xx")


def test_a_damaged_copy_of_a_base_is_told_by_its_shapes(package: Path, tmp_path: Path) -> None:
    """One that does not ship has no digest."""
    folder = package / "masked-xx"
    about = json.loads((folder / "config.json").read_text())
    about["model"]["width"] = 64
    (folder / "config.json").write_text(json.dumps(about))
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor .* has shape \(.*\), expected \("):
        open_model(folder)

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from headstart.checkpoints.folder import Checkpoint, load, save
from headstart.config import Classifier, NextToken
from headstart.model.model import Model
from headstart.model.presets import preset

from .running import run


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    save(Checkpoint(Model.build(preset("bert-tiny", vocabulary=50))), tmp_path / "bert")
    return tmp_path / "bert"


def test_out_and_in_again(bert: Path, tmp_path: Path) -> None:
    out = run("export", str(bert), str(tmp_path / "hf"))
    assert (out.exit_code, out.stderr) == (0, "")
    assert "BertModel, for transformers" in out.stdout
    back = run("import", str(tmp_path / "hf"), str(tmp_path / "again"))
    assert back.exit_code == 0
    assert "a bert model with no head" in back.stdout
    before, after = load(bert).model.state_dict(), load(tmp_path / "again").model.state_dict()
    assert all(before[name].equal(after[name]) for name in before)


def test_a_run_folder_is_exported_by_its_model(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    save(Checkpoint(Model.build(preset("bert-tiny", vocabulary=50))), tmp_path / "run" / "model")
    assert run("export", str(tmp_path / "run"), str(tmp_path / "hf"), "--to", "hf").exit_code == 0


def test_the_labs_file_both_ways(tmp_path: Path) -> None:
    save(Checkpoint(Model.build(preset("lab", vocabulary=50, width=8), NextToken())), tmp_path / "lab")
    assert run("export", str(tmp_path / "lab"), str(tmp_path / "lab.pt"), "--to", "lab").exit_code == 0
    again = run("import", str(tmp_path / "lab.pt"), str(tmp_path / "again"))
    assert "a lab model with a next-token head" in again.stdout
    taken = run("export", str(tmp_path / "lab"), str(tmp_path / "lab.pt"), "--to", "lab")
    assert taken.exit_code == 2
    assert "exists" in taken.stderr


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch exploded",)


def test_bad_input_is_one_line_and_code_2_and_writes_nothing(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"encoder.weight": Bomb()}, tmp_path / "bomb.pt")
    (tmp_path / "junk.pt").write_bytes(pickle.dumps("no tensors", protocol=2))
    (tmp_path / "empty").mkdir()
    save(Checkpoint(Model.build(preset("bert-tiny", vocabulary=50), Classifier(classes=2, pool="mean"))), Path("mean"))
    whole = (bert / "model.safetensors").read_bytes()
    (bert / "model.safetensors").write_bytes(whole[:-10])
    before = sorted(p.name for p in tmp_path.iterdir())
    for arguments, words in [
        (["import", "bomb.pt", "out"], "could run code"),
        (["import", "junk.pt", "out"], "junk.pt cannot be read as a torch file"),
        (["import", "empty", "out"], "there is no file empty/config.json"),
        (["import", "bert", "out"], "cannot be read as safetensors"),
        (["import", "no/such/place/at/all", "out"], "no file or folder"),
        (["import", "mean", "empty/../bert"], "not empty"),
        (["export", "mean", "out"], "pool = 'mean'"),
        (["export", "mean", "out", "--to", "lab"], "only a model of the lab's kind"),
    ]:
        result = run(*arguments)
        assert result.exit_code == 2, arguments
        assert words in result.stderr, result.stderr
        assert result.stderr.count("\n") == 1, result.stderr
        assert sorted(p.name for p in tmp_path.iterdir()) == before

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from headstart.checkpoints.folder import Checkpoint, load, save
from headstart.config import ClassifierConfig, NextTokenConfig
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.use.onnx import OnnxClassifier

from .command_line import run


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
    save(Checkpoint(Model.build(preset("lab", vocabulary=50, width=8), NextTokenConfig())), tmp_path / "lab")
    assert run("export", str(tmp_path / "lab"), str(tmp_path / "lab.pt"), "--to", "lab").exit_code == 0
    again = run("import", str(tmp_path / "lab.pt"), str(tmp_path / "again"))
    assert "a lab model with a next-token head" in again.stdout
    taken = run("export", str(tmp_path / "lab"), str(tmp_path / "lab.pt"), "--to", "lab")
    assert taken.exit_code == 2
    assert "exists" in taken.stderr


def test_a_base_for_others_to_start_from(base: Path, tmp_path: Path) -> None:
    out = run("export", str(base), str(tmp_path / "given"), "--to", "base")
    assert (out.exit_code, out.stderr) == (0, "")
    assert out.stdout.startswith(f"{tmp_path / 'given'}: a headstart base of ")
    assert out.stdout.endswith("parameters, with its masked head; every tensor read back the same, rounded to bf16\n")
    before, after = load(base).model.state_dict(), load(tmp_path / "given").model.state_dict()
    assert before.keys() == after.keys()
    assert all(tensor.bfloat16().float().equal(after[name]) for name, tensor in before.items())
    filled = run("fill", str(tmp_path / "given"), "a [MASK] story")
    assert filled.exit_code == 0, filled.stderr


def test_a_base_goes_without_a_head_of_its_own_weights_or_of_labels(
    tokenizer: Tokenizer, trained: Path, tmp_path: Path
) -> None:
    lab = Model.build(preset("lab", vocabulary=tokenizer.size, width=8), NextTokenConfig())
    save(Checkpoint(lab, tokenizer=tokenizer), tmp_path / "lab")
    for source, head, why in [
        (tmp_path / "lab", "next-token", "it is not tied"),
        (trained, "classifier", "a new one is trained on labels"),
    ]:
        given = tmp_path / f"given-{head}"
        out = run("export", str(source), str(given), "--to", "base")
        assert f"without a head (the {head} head was left out: {why})" in out.stdout
        assert load(given).model.head is None
        for verb in ("fill", "generate"):
            refused = run(verb, str(given), "a [MASK] story")
            assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
            assert "with no head: it was exported without one" in refused.stderr
            assert "headstart pretrain TEXT --init FOLDER --objective" in refused.stderr


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
    save(
        Checkpoint(Model.build(preset("bert-tiny", vocabulary=50), ClassifierConfig(classes=2, pool="mean"))),
        Path("mean"),
    )
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


def test_onnx_with_its_table_and_json(trained: Path, tmp_path: Path) -> None:
    shown = run("export", str(trained), str(tmp_path / "small"), "--to", "onnx-int8", "--tolerance", "0.05")
    assert (shown.exit_code, shown.stderr) == (0, "")
    head, original, made, last = shown.stdout.splitlines()
    for column in ("size", "accuracy", "agreement", "largest difference", "one text", "in bulk"):
        assert column in head
    assert original.split()[0] == "original"
    assert made.split()[0] == "onnx-int8"
    assert f"{tmp_path / 'small'}: int8 ONNX with its tokenizer, for onnxruntime; compared on 60 valid texts" == last
    assert sorted(p.name for p in tmp_path.iterdir()) == ["small"]

    told = run("export", str(trained), str(tmp_path / "whole"), "--to", "onnx", "--json")
    assert (told.exit_code, told.stderr) == (0, "")
    found = json.loads(told.stdout)
    assert (found["out"], found["to"]) == (str(tmp_path / "whole"), "onnx")
    comparison = found["comparison"]
    assert (comparison["texts"], comparison["agreement"]) == (60, 1.0)
    assert comparison["difference"] <= 1e-4
    assert set(comparison["original"]) == {"size", "accuracy", "milliseconds", "texts_per_second"}
    assert comparison["original"]["accuracy"] == comparison["export"]["accuracy"]


def test_columns_of_the_texts_to_compare_on(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.csv").write_text("id,body,note,stars\n1,a wise tale,x,pos\n2,no verdict,y,\n3,a dull poem,z,neg\n")
    command = ["export", str(trained), str(tmp_path / "out"), "--to", "onnx", "--json"]
    named = ["--valid", str(tmp_path / "odd.csv"), "--text", "body", "--label", "stars"]
    for options in ([], named):
        refused = run(*command, *options, *([] if options else ["--skip-bad"]))
        assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
        assert ("--skip-bad" if options else "give it too") in refused.stderr
    told = run(*command, *named, "--skip-bad")
    assert told.exit_code == 0, told.stderr
    assert json.loads(told.stdout)["comparison"]["texts"] == 2
    assert "odd.csv, line 3" in told.stderr


def test_hf_as_json_without_texts(bert: Path, tmp_path: Path) -> None:
    told = run("export", str(bert), str(tmp_path / "hf"), "--json")
    assert json.loads(told.stdout) == {"out": str(tmp_path / "hf"), "to": "hf", "comparison": None}


def test_a_refused_export_says_how_far_off_it_was(
    trained: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = OnnxClassifier.logits

    def off(self: OnnxClassifier, texts: Any) -> Any:
        return honest(self, texts) + 0.25

    monkeypatch.setattr(OnnxClassifier, "logits", off)
    refused = run("export", str(trained), str(tmp_path / "out"), "--to", "onnx")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "2.5e-01, and 1e-04 is allowed" in refused.stderr
    bare = run("export", str(trained / "model"), str(tmp_path / "out"), "--to", "onnx")
    assert bare.exit_code == 2
    assert "--valid FILE" in bare.stderr
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    missing = run("export", str(trained), str(tmp_path / "out"), "--to", "onnx")
    assert missing.exit_code == 2
    assert missing.stderr.strip().endswith("ONNX needs onnxruntime: pip install 'headstart[onnx]'")
    assert missing.stderr.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bert"]

from __future__ import annotations

import json
import logging
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import onnxruntime
import pyarrow
import pyarrow.parquet
import pytest
import torch

import headstart
from headstart.checkpoints.folder import Checkpoint, load, read_safetensors, save
from headstart.config import Activation, Direction, MaskedConfig, NextTokenConfig, Norm, Pool, Positions, ReplacedConfig
from headstart.config import ClassifierConfig as Head
from headstart.errors import CheckpointError, ConfigError, DataError, MissingExtra, ModelError, OutputError
from headstart.model.model import Model
from headstart.model.presets import PRESETS, preset, usual_head
from headstart.reading.examples import Text
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.use import export as exporting
from headstart.use import onnx as onnx_files
from headstart.use.classifier import TextClassifier
from headstart.use.export import EXACT, Exported, Form, export
from headstart.use.onnx import OnnxClassifier, write_onnx
from tests.model.strategies import randomized
from tests.studies.example_data import FILLER
from tests.tokenizers.example_tokenizers import bert_folder, write_gpt2

WINDOW = 24
SMALL = {"width": 24, "layers": 2, "heads": 2, "feed_forward": 40, "window": WINDOW}
TEXTS: list[Text] = [
    "a tender and witty story",
    "",
    "dull",
    "this page",
    "every line of this novel is dull and tired and vague and noisy with a hollow voice " * 3,  # far over the window
    "?!? unknowable ... Ünïcödé 🙂",
]
PAIRS: list[Text] = [
    ("a tender story", "a witty page"),
    ("every line of this novel is dull and tired and vague", "no"),
    ("", "wise"),
    ("wise " * 30, "hollow voice " * 30),
    "and one text that is no pair",
]


def make(tokenizer: Tokenizer, name: str = "small", head: Head | None = None, **changes: Any) -> TextClassifier:
    """A classifier with weights large enough that any mistake shows."""
    config = preset(name, **(SMALL | {"vocabulary": tokenizer.size} | changes))
    model = randomized(Model.build(config, head or usual_head(config, "classifier", 3)), 5)
    labels = tuple("abcdefg"[: head.classes if head else 3])
    return TextClassifier(Checkpoint(model, labels, tokenizer, 1.7), "cpu")


@pytest.fixture(scope="module")
def tokenizers(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("gpt2")
    write_gpt2(folder, "<|endoftext|>")
    found = {"ours": tokenizer, "bert": Tokenizer.load(bert_folder()), "gpt2": Tokenizer.load(folder)}
    assert found["gpt2"].wrap([])[0] == []  # so an empty text has no token, and is given one
    return found


def written(classifier: TextClassifier, folder: Path, *, int8: bool = False) -> OnnxClassifier:
    folder.mkdir()
    write_onnx(classifier, folder, int8=int8)
    return OnnxClassifier.load(folder)


def assert_same(classifier: TextClassifier, exported: OnnxClassifier, texts: list[Text]) -> None:
    expected = classifier.logits(texts)
    assert np.ptp(expected, axis=0).max() > 0.1  # the texts do get different answers
    assert np.abs(exported.logits(texts) - expected).max() <= EXACT
    for text, row in zip(texts, expected, strict=True):  # and one at a time, in a batch of its own length
        assert np.abs(exported.logits([text])[0] - row).max() <= EXACT


# --- the graph ------------------------------------------------------------------------------------------------------


FAMILIES: dict[str, tuple[str, list[Text]]] = {
    "lab": ("ours", TEXTS),
    "bert-tiny": ("bert", [*TEXTS, *PAIRS, "the [MASK] of [SEP] tokens"]),  # with segments
    "distilbert": ("ours", TEXTS),
    "roberta-base": ("ours", TEXTS),
    "mpnet-base": ("ours", TEXTS),
    "gpt2": ("gpt2", [*TEXTS, *PAIRS]),  # a tokenizer that puts nothing around a text
    "small": ("ours", [*TEXTS, *PAIRS]),  # pairs without segments
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_answers_as_before(name: str, tokenizers: dict[str, Tokenizer], tmp_path: Path) -> None:
    kind, texts = FAMILIES[name]
    classifier = make(tokenizers[kind], name, layers=2 if name == "gpt2" else 1)
    exported = written(classifier, tmp_path / "out")
    assert_same(classifier, exported, texts)
    assert np.abs(exported.probabilities(texts) - classifier.probabilities(texts)).max() <= EXACT
    names = [i.name for i in onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx").get_inputs()]
    assert names == ["input_ids", "attention_mask"] + ["token_type_ids"] * (name == "bert-tiny")


def test_no_preset_is_left_out() -> None:
    same = {"bert-mini", "bert-small", "bert-medium", "bert-base", "minilm-l6"}  # as bert-tiny, in other sizes
    same |= {"camembert-base", "base"}  # as roberta-base and small
    assert set(PRESETS) - same == set(FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_any_config_answers_as_before(seed: int, tokenizer: Tokenizer, tmp_path: Path) -> None:
    draw = random.Random(seed)
    direction: Direction = draw.choice(get_args(Direction))
    positions = [p for p in get_args(Positions) if not (p == "relative" and direction == "causal")]
    changes: dict[str, Any] = {
        "direction": direction,
        "positions": draw.choice(positions),
        "position_offset": draw.randint(0, 3),
        "heads": draw.choice([1, 2, 3]),
        "layers": draw.choice([1, 2]),
        "segments": draw.choice([0, 1, 2]),
        "norm": draw.choice(get_args(Norm)),
        "activation": draw.choice(get_args(Activation)),
    }
    for switch in ("gated", "bias", "embedding_scale", "embedding_norm"):
        changes[switch] = draw.random() < 0.5
    head = Head(
        classes=draw.randint(2, 5),
        pool=draw.choice([pool for pool in get_args(Pool) if not (pool == "first" and direction == "causal")]),
        pooler=draw.choice(["none", "tanh", "relu", "backbone"]),
        bias=draw.random() < 0.5,
    )
    classifier = make(tokenizer, "small", head, pooler=True, **changes)
    texts = TEXTS if changes["segments"] == 1 else [*TEXTS, *PAIRS]
    assert_same(classifier, written(classifier, tmp_path / "out"), texts)


def test_in_the_last_layer_one_token_a_row_has_a_query(tokenizer: Tokenizer, tmp_path: Path) -> None:
    written(make(tokenizer, "bert-tiny", Head(classes=3, pool="first"), layers=2), tmp_path / "out")
    graph = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "out" / "model.onnx")).graph
    shapes = {value.name: value.type.tensor_type.shape.dim for value in graph.value_info}
    queries = [shapes[node.input[0]][1] for node in graph.node if node.op_type == "Attention"]
    assert [dim.dim_value for dim in queries] == [0, 1]  # 0: any length


def test_batch_and_length_are_free_and_padding_counts_for_nothing(
    tokenizer: Tokenizer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    level = logging.root.manager.disable
    written(make(tokenizer, "mpnet-base", Head(classes=3, pool="mean"), layers=1), tmp_path / "out")
    assert capfd.readouterr() == ("", "")
    assert logging.root.manager.disable == level
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    assert [(i.name, i.shape, i.type) for i in session.get_inputs()] == [
        ("input_ids", ["batch", "length"], "tensor(int64)"),
        ("attention_mask", ["batch", "length"], "tensor(int64)"),
    ]
    assert [(o.name, o.shape, o.type) for o in session.get_outputs()] == [("logits", ["batch", 3], "tensor(float)")]
    draw = np.random.default_rng(3)
    for count, length in [(1, 1), (1, WINDOW), (2, 3), (7, 5), (3, WINDOW)]:
        ids = draw.integers(0, tokenizer.size, (count, length))
        ones = np.ones_like(ids)
        [plain] = session.run(None, {"input_ids": ids, "attention_mask": ones})
        assert plain.shape == (count, 3)
        if length < WINDOW:
            wider = [(0, 0), (0, WINDOW - length)]
            junk = np.pad(ids, wider, constant_values=int(draw.integers(tokenizer.size)))
            [padded] = session.run(None, {"input_ids": junk, "attention_mask": np.pad(ones, wider)})
            assert np.abs(padded - plain).max() <= EXACT


def test_the_graph_is_plain_onnx_and_names_no_file_of_this_machine(forms: dict[str, Path]) -> None:
    raw = (forms["onnx"] / "model.onnx").read_bytes()
    proto = onnx.load_from_string(raw)
    onnx.checker.check_model(proto, full_check=True)
    assert {node.domain for node in proto.graph.node} == {""}
    assert str(Path(headstart.__file__).parent).encode() not in raw
    assert b"stack_trace" not in raw


def test_weights_beyond_one_file_are_refused(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_files, "MAX_BYTES", 1000)
    with pytest.raises(ModelError, match="an ONNX file holds 1,000"):
        written(make(tokenizer), tmp_path / "out")


# --- int8 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["bert-tiny", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gpt2", "mpnet-base", "small", "lab"))]
)
def test_int8_is_small_and_close(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    classifier = make(tokenizer, name, width=96, feed_forward=256, layers=1)
    small = written(classifier, tmp_path / "int8", int8=True)
    ours = {tuple(sorted(p.shape)) for p in classifier.model.parameters() if p.dim() > 1}  # sorted: some are turned
    weights = onnx.load(tmp_path / "int8" / "model.onnx").graph.initializer
    float_shapes = {tuple(sorted(w.dims)) for w in weights if w.data_type == onnx.TensorProto.FLOAT}
    assert not ours & float_shapes  # no matrix and no embedding was left as it was
    draw = np.random.default_rng(1)
    texts: list[Text] = [" ".join(draw.choice(FILLER, size=n)) for n in draw.integers(1, 20, 60)]
    before, after = classifier.logits(texts), small.logits(texts)
    assert (before.argmax(1) == after.argmax(1)).mean() >= 0.85
    assert 0 < np.abs(before - after).mean() < 0.1 * np.ptp(before)


# --- the gate -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Form, tuple[Path, Exported]]:
    """The trained model, exported once in float32 and once in int8."""
    folder = tmp_path_factory.mktemp("forms")
    both: tuple[Form, ...] = ("onnx", "onnx-int8")
    return {form: (folder / form, export(trained, folder / form, form)) for form in both}


@pytest.fixture
def forms(made: dict[Form, tuple[Path, Exported]]) -> dict[str, Path]:
    return {form: path for form, (path, _) in made.items()}


@pytest.fixture
def quick(forms: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing takes a second: what the trained model gives is copied."""

    def copy(classifier: TextClassifier, folder: Path, *, int8: bool) -> None:
        shutil.copytree(forms["onnx-int8" if int8 else "onnx"], folder, dirs_exist_ok=True)

    monkeypatch.setattr(exporting, "write_onnx", copy)


def spoil(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """Let an exported model answer something else."""
    honest = OnnxClassifier.logits
    monkeypatch.setattr(OnnxClassifier, "logits", lambda self, texts: change(honest(self, texts)))


def test_from_a_run_folder_with_its_own_valid_texts(trained: Path, made: dict[Form, tuple[Path, Exported]]) -> None:
    folder, exported = made["onnx"]
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.onnx", "tokenizer.json"]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["onnx", "onnx-int8"]  # and nothing unfinished
    found = exported.comparison
    assert found is not None
    result = json.loads((trained / "result.json").read_text())
    assert found.texts == result["rows"]["valid"]
    assert found.original.accuracy == found.export.accuracy == result["valid"]["accuracy"]
    assert (found.agreement, found.lost) == (1.0, 0.0)
    assert 0 < found.difference <= EXACT
    checkpoint = load(trained / "model")
    assert found.original.size == 4 * sum(p.numel() for p in checkpoint.model.parameters())
    assert found.export.size == (folder / "model.onnx").stat().st_size
    for measured in (found.original, found.export):
        assert measured.milliseconds > 0
        assert measured.texts_per_second > 0
    config = json.loads((folder / "config.json").read_text())
    assert config["labels"] == list(checkpoint.class_names)
    assert config["temperature"] == checkpoint.temperature
    assert config["window"] == checkpoint.model.config.window


def test_int8_within_its_tolerance(made: dict[Form, tuple[Path, Exported]]) -> None:
    folder, exported = made["onnx-int8"]
    found = exported.comparison
    assert found is not None
    assert found.lost <= 0.01
    assert found.agreement >= 0.95
    assert found.difference > EXACT  # eight bits are not float32
    assert (folder / "model.onnx").stat().st_size < (made["onnx"][0] / "model.onnx").stat().st_size


@pytest.mark.usefixtures("quick")
def test_a_float_export_that_is_off_is_refused(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, lambda answers: answers + 2e-4)
    with pytest.raises(ModelError, match=r"differ from the original's by up to 2\.0e-04, and 1e-04 is allowed"):
        export(trained, tmp_path / "out", "onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quick")
def test_an_int8_export_that_lost_too_much_is_refused(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, lambda answers: answers[:, ::-1])  # right becomes wrong
    with pytest.raises(ModelError) as refused:
        export(trained, tmp_path / "out", "onnx-int8", tolerance=0.02)
    right = json.loads((trained / "result.json").read_text())["valid"]["accuracy"]
    for part in (
        f"its accuracy is {1 - right:.4f} and the original's {right:.4f}",
        f"{2 * right - 1:.4f} lower, and 0.0200 is allowed",
        "--tolerance",
    ):
        assert part in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("form", ["onnx", "onnx-int8"])
def test_answers_that_are_no_numbers_are_refused(
    form: Any, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, lambda answers: np.where(np.arange(len(answers))[:, None] == 1, np.nan, answers))
    with pytest.raises(ModelError, match="refused"):
        export(trained, tmp_path / "out", form, tolerance=0.99)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quick")
def test_accuracy_may_fall_by_just_the_tolerance(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictions = pyarrow.parquet.read_table(trained / "predictions.parquet").to_pylist()
    valid = [row for row in predictions if row["split"] == "valid"]
    right = next(i for i, row in enumerate(valid) if row["predicted"] == row["label"])

    def one_wrong(answers: Any) -> Any:
        if len(answers) == len(valid):
            answers[right] = answers[right, ::-1]
        return answers

    spoil(monkeypatch, one_wrong)
    share = 1 / len(valid)
    with pytest.raises(ModelError, match="refused"):
        export(trained, tmp_path / "out", "onnx-int8", tolerance=share * 0.99)
    found = export(trained, tmp_path / "out", "onnx-int8", tolerance=share).comparison
    assert found is not None
    assert found.lost == pytest.approx(share)


@pytest.mark.usefixtures("quick")
def test_a_bare_model_folder_needs_valid_texts(trained: Path, world: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no valid texts .* --valid FILE"):
        export(trained / "model", tmp_path / "out", "onnx")
    found = export(trained / "model", tmp_path / "out", "onnx", valid=world / "test.txt").comparison
    assert found is not None
    assert found.texts == 60


@pytest.mark.usefixtures("quick")
def test_a_file_goes_before_the_runs_own_texts(trained: Path, tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "few.csv").write_text("review,stars\na tender story,pos\na dull page,neg\nwise,pos\n")
    found = export(trained, tmp_path / "out", "onnx", valid=tmp_path / "few.csv", log=said.append).comparison
    assert found is not None
    assert found.texts == 3
    assert any("review" in line for line in said)


def test_a_label_that_the_model_has_not(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.txt").write_text("superb ||| a tender story\n")
    with pytest.raises(DataError, match=r"odd\.txt, line 1: label 'superb' is not one of neg, pos"):
        export(trained, tmp_path / "out", "onnx", valid=tmp_path / "odd.txt")
    assert not (tmp_path / "out").exists()


def test_predictions_that_cannot_be_read(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    save(load(trained / "model"), run / "model")
    (run / "predictions.parquet").write_bytes(b"not a table")
    with pytest.raises(DataError, match="--valid FILE"):
        export(run, tmp_path / "out", "onnx")
    pyarrow.parquet.write_table(pyarrow.table({"split": ["valid"], "text": ["a"]}), run / "predictions.parquet")
    with pytest.raises(DataError, match="--valid FILE"):
        export(run, tmp_path / "out", "onnx")


def test_what_cannot_be_exported(trained: Path, base: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no classifier"):
        export(base, tmp_path / "out", "onnx")
    with pytest.raises(ConfigError, match=r"tolerance is 1\.5"):
        export(trained, tmp_path / "out", "onnx-int8", tolerance=1.5)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(OutputError, match="not empty"):
        export(trained, tmp_path / "full", "onnx")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_extra_is_one_line(
    package: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra) as missing:
        export(trained, tmp_path / "out", "onnx")
    assert str(missing.value) == f"ONNX needs {package}: pip install 'headstart[onnx]'"
    assert list(tmp_path.iterdir()) == []


# --- hf and lab -----------------------------------------------------------------------------------------------------


def as_run(classifier: TextClassifier, folder: Path) -> Path:
    """A run folder of this model, with three valid texts."""
    checkpoint = Checkpoint(classifier.model, classifier.class_names, classifier.tokenizer, classifier.temperature)
    save(checkpoint, folder / "model")
    rows = {"split": ["valid"] * 3 + ["test"], "line": [1, 2, 3, 4], "text": ["a tale", "wise", "dull", "poem"]}
    rows |= {"second": pyarrow.nulls(4, pyarrow.string()), "label": ["a", "b", "c", "a"], "path": ["valid.txt"] * 4}
    pyarrow.parquet.write_table(pyarrow.table(rows), folder / "predictions.parquet")
    return folder


def test_a_transformers_folder_has_the_same_bits(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = as_run(make(tokenizer, "bert-tiny"), tmp_path / "run")
    made = export(run, tmp_path / "hf", "hf")
    assert made.what == "BertForSequenceClassification, for transformers"
    assert made.comparison is not None
    assert (made.comparison.texts, made.comparison.agreement, made.comparison.difference) == (3, 1.0, 0.0)
    assert export(run / "model", tmp_path / "bare", "hf").comparison is None


def test_the_labs_file_has_the_same_bits(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = as_run(make(tokenizer, "lab", window=PRESETS["lab"].window), tmp_path / "run")
    made = export(run, tmp_path / "lab.pt", "lab")
    assert made.comparison is not None
    assert (made.comparison.texts, made.comparison.agreement, made.comparison.difference) == (3, 1.0, 0.0)


@pytest.mark.parametrize("form", ["hf", "lab"])
def test_a_tensor_that_came_back_changed_is_refused(
    form: Any, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model.build(preset("lab", vocabulary=50, width=8), NextTokenConfig())
    if form == "hf":
        model = Model.build(preset("bert-tiny", vocabulary=50))
    save(Checkpoint(model), tmp_path / "model")

    def changed(reader: Any) -> Any:
        def read(path: Any, **options: Any) -> Checkpoint:
            found: Checkpoint = reader(path, **options)
            if Path(path) != tmp_path / "model":
                with torch.no_grad():
                    found.model.backbone.embeddings.tokens.weight[3, 4] += 1e-6
            return found

        return read

    reader = "open_model" if form == "hf" else "read_lab"
    monkeypatch.setattr(exporting, reader, changed(getattr(exporting, reader)))
    with pytest.raises(ModelError, match=r"'backbone\.embeddings\.tokens\.weight' is not what was written"):
        export(tmp_path / "model", tmp_path / "out", form)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


# --- a base ---------------------------------------------------------------------------------------------------------


def test_a_base_is_the_model_with_its_tied_head_rounded_to_bf16(base: Path, tmp_path: Path) -> None:
    made = export(base, tmp_path / "out", "base")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    before, after = load(base), load(tmp_path / "out")
    assert after.model.head_config == before.model.head_config == MaskedConfig()
    assert after.model.config == before.model.config
    assert before.tokenizer is not None and after.tokenizer is not None
    assert after.tokenizer.fingerprint == before.tokenizer.fingerprint
    stored = read_safetensors(tmp_path / "out" / "model.safetensors")
    assert stored.keys() == before.model.state_dict().keys()
    for name, tensor in stored.items():
        assert tensor.dtype == torch.bfloat16
        assert tensor.equal(before.model.state_dict()[name].bfloat16())
    parameters = sum(p.numel() for p in before.model.parameters())
    assert made.what == f"a headstart base of {parameters:,} parameters, with its masked head"


def test_a_classifier_s_run_gives_a_base_without_its_labels(trained: Path, tmp_path: Path) -> None:
    assert export(trained, tmp_path / "out", "base").comparison is None
    after = load(tmp_path / "out")
    assert (after.model.head_config, after.class_names, after.temperature) == (None, (), 1.0)


def test_a_base_by_replaced_tokens_is_given_away_without_its_head(base: Path, tmp_path: Path) -> None:
    given = load(base)
    save(Checkpoint(given.model.with_head(ReplacedConfig()), tokenizer=given.tokenizer), tmp_path / "model")
    made = export(tmp_path / "model", tmp_path / "out", "base")
    assert made.what.endswith("(the replaced head was left out: it is of use in pretraining alone)")
    assert load(tmp_path / "out").model.head_config is None


def test_a_base_that_came_back_changed_is_refused(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def off(folder: Path) -> Checkpoint:
        found = load(folder)
        with torch.no_grad():
            found.model.backbone.embeddings.tokens.weight[3, 4] *= 1 + 2**-8  # one bit of bf16
        return found

    monkeypatch.setattr(exporting, "load", off)
    with pytest.raises(ModelError, match="is not what was written"):
        export(base, tmp_path / "out", "base")
    assert list(tmp_path.iterdir()) == []


def test_weights_without_a_tokenizer_are_no_base(tmp_path: Path) -> None:
    save(Checkpoint(Model.build(preset("lab", vocabulary=50, width=8), NextTokenConfig())), tmp_path / "model")
    with pytest.raises(ModelError, match="has no tokenizer"):
        export(tmp_path / "model", tmp_path / "out", "base")
    assert not (tmp_path / "out").exists()


# --- the runner and the docs ----------------------------------------------------------------------------------------


def test_a_damaged_folder_is_refused_in_words(forms: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(forms["onnx"], folder)
    assert OnnxClassifier.load(folder).logits([]).shape == (0, 2)
    whole = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="cannot be read as an ONNX export"):
        OnnxClassifier.load(folder)
    (folder / "config.json").write_text('{"format": "headstart", "version": 1}')
    with pytest.raises(CheckpointError, match="is not of an ONNX export"):
        OnnxClassifier.load(folder)
    with pytest.raises(CheckpointError, match="there is no file"):
        OnnxClassifier.load(tmp_path / "nowhere")


def test_the_script_of_the_docs_needs_neither_headstart_nor_torch(
    trained: Path, forms: dict[str, Path], tokenizers: dict[str, Tokenizer], tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "use.md").read_text(encoding="utf-8")
    [script] = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len([line for line in script.splitlines() if line.strip()]) <= 15
    (tmp_path / "classify.py").write_text(script, encoding="utf-8")
    refusal = "import sys\nsys.modules['torch'] = sys.modules['headstart'] = None\n"
    (tmp_path / "run.py").write_text(refusal + "import runpy; runpy.run_path('classify.py')\n", encoding="utf-8")
    texts = ["Élan vital", "", "dull " * 50, "a tender, witty book"]
    causal = make(tokenizers["gpt2"], "gpt2", layers=1)
    written(causal, tmp_path / "causal")
    for model, folder in [(TextClassifier.load(trained), forms["onnx"]), (causal, tmp_path / "causal")]:
        (tmp_path / "topics-onnx").symlink_to(folder)
        arguments = [sys.executable, "run.py", *texts]
        done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=120)
        (tmp_path / "topics-onnx").unlink()
        assert (done.returncode, done.stderr) == (0, "")
        for line, text, answer in zip(done.stdout.splitlines(), texts, model.predict(texts), strict=True):
            label, probability, said = line.split("\t")
            assert (label, said) == (answer.best, text)
            assert float(probability) == pytest.approx(answer.probabilities[answer.best], abs=2e-4)

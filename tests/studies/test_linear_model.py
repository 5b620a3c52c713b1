"""The linear model on disk: the same answers as scikit-learn's pipeline, and words that add up to the score."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headstart.checkpoints.folder import read_safetensors, write_safetensors
from headstart.errors import CheckpointError, NotFinite
from headstart.metrics import softmax
from headstart.reading.examples import Example, Examples
from headstart.runs.run import LINEAR
from headstart.studies.baselines import baseline
from headstart.studies.linear_model import OCCURRENCES, LinearModel
from headstart.use.linear_classifier import LinearClassifier
from headstart.use.linear_words import against_others, content, linear_words
from tests.cli.command_line import run as headstart
from tests.studies.example_data import reviews
from tests.studies.test_ngrams import count_vectorizer


def examples(count: int, seed: int, third: str | None = None) -> Examples:
    rows = reviews(count, seed)
    rows += [(third, f"a {third} of the sea, {k} times  over") for k in range(count // 3)] if third else []
    return Examples(tuple(Example(text, label, None, "f", k) for k, (label, text) in enumerate(rows)))


@pytest.fixture(scope="module", params=[None, "tide"], ids=["two classes", "three classes"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tfidf") / "run"
    splits = {name: examples(60, seed, request.param) for seed, name in enumerate(("train", "valid", "test"))}
    baseline("tfidf", splits, {}, folder, keep_model=True)
    return folder


def test_it_answers_as_the_run_did(run: Path) -> None:
    model = LinearModel.load(run / LINEAR)
    rows = [row for row in pq.read_table(run / "predictions.parquet").to_pylist() if row["split"] == "test"]
    assert len(rows) >= 60
    recorded = [[row[f"probability:{name}"] for name in model.class_names] for row in rows]
    np.testing.assert_allclose(np.exp(model.log_probabilities([row["text"] for row in rows])), recorded, atol=2e-5)


def test_many_texts_have_the_scores_of_each_by_itself(run: Path) -> None:
    model = LinearModel.load(run / LINEAR)
    texts = ["", "漢字", "a witty tale,  of  the dull TIDE!", "dull dull\tdull", *(text for _, text in reviews(20, 7))]
    scores = np.array([model.scores(model.features(text)) for text in texts])
    np.testing.assert_allclose(model.log_probabilities(texts), np.log(softmax(scores)), atol=1e-12)
    assert model.log_probabilities([]).shape == (0, len(model.class_names))


@given(st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Z", "Cc"]), max_size=40))
@pytest.mark.parametrize("kind", ["words", "characters"])
def test_ngrams_are_those_of_scikit_learn(kind: str, text: str) -> None:
    counted = count_vectorizer(kind).build_analyzer()(text)
    found = OCCURRENCES[kind](text)
    assert [occurrence.ngram for occurrence in found] == counted
    for occurrence in found:
        for part in occurrence.parts:
            assert all(0 <= place < len(text) for place in part)


@pytest.mark.parametrize(("kind", "between"), [("words", " "), ("characters", "")])
def test_each_ngram_says_where_it_stands(kind: str, between: str) -> None:
    text = "A  Witty, witty   TALE"
    for occurrence in OCCURRENCES[kind](text):
        spelled = ["".join(text[place] for place in part) for part in occurrence.parts]
        assert between.join(spelled).lower() == occurrence.ngram


@pytest.mark.parametrize("text", ["a witty tale,  of  the dull TIDE!", ("a witty tale", "of the dull sea")])
def test_the_words_add_up_to_the_score(run: Path, text: str | tuple[str, str]) -> None:
    model = LinearModel.load(run / LINEAR)
    scores = model.scores(model.features(content(text)))
    for number, label in enumerate(model.class_names):
        words = linear_words(model, text, label)
        _, bias = against_others(model, number)
        others = np.delete(scores, number).mean()
        assert sum(word.weight for word in words) + bias == pytest.approx(scores[number] - others, abs=1e-9)
        parts = (text,) if isinstance(text, str) else text
        assert all(parts[word.second][word.start : word.end] == word.text for word in words)
        spelled = "".join(word.text for word in words)
        assert spelled == "".join("".join(parts).split())


def test_words_of_opinion_count_and_unknown_ones_do_not(run: Path) -> None:
    weights = {
        word.text: word.weight for word in linear_words(LinearModel.load(run / LINEAR), "witty 漢字 dull", "pos")
    }
    assert weights["witty"] > 0 > weights["dull"]
    assert weights["漢"] == weights["字"] == 0


def test_it_is_kept_only_where_it_is_asked_for(tmp_path: Path) -> None:
    splits = {name: examples(20, seed) for seed, name in enumerate(("train", "valid"))}
    baseline("tfidf", splits, {}, tmp_path / "run")
    assert not (tmp_path / "run" / LINEAR).exists()


def test_a_damaged_file_is_refused(run: Path, tmp_path: Path) -> None:
    whole = (run / LINEAR).read_bytes()
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="cut short"):
        LinearModel.load(cut)
    other = tmp_path / "other.safetensors"
    tensors = read_safetensors(run / LINEAR)
    write_safetensors(other, {**tensors, "idf": tensors["idf"][:-1]})
    with pytest.raises(CheckpointError, match="do not fit together"):
        LinearModel.load(other)
    with pytest.raises(CheckpointError, match="there is no file"):
        LinearModel.load(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labels": ["neg", ["pos"]]}, "the label \\['pos'\\] is no text"),
        ({"labels": ["pos", "pos"]}, "'pos' stands for two classes"),
        ({"labels": ["pos"]}, "do not fit together"),
        ({"temperature": 1e-320}, "'temperature' is 1e-320"),
        ({"temperature": None}, "'temperature' is None"),
        ({"ngrams": {"syllables": []}}, "'syllables' are no n-grams"),
        ({"ngrams": {"words": [["a"]]}}, "'words' are no n-grams"),
        ({"ngrams": {"words": ["a b c"]}}, "'words' are no n-grams"),
        ({"ngrams": {"characters": ["a"]}}, "'characters' are no n-grams"),
        ({"ngrams": ["words"]}, "no linear model of this headstart"),
    ],
)
def test_what_a_linear_model_says_of_itself_is_checked(
    run: Path, tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    tensors = read_safetensors(run / LINEAR)
    about = json.loads(tensors["about"].numpy().tobytes())
    if len(about["labels"]) == 3 and "labels" in changed:
        changed = {"labels": [*changed["labels"], "tide"]}
    text = json.dumps({**about, **changed}).encode()
    write_safetensors(tmp_path / LINEAR, {**tensors, "about": torch.frombuffer(bytearray(text), dtype=torch.uint8)})
    with pytest.raises(CheckpointError, match=message):
        LinearModel.load(tmp_path / LINEAR)


def test_weights_that_are_no_numbers_and_json_without_end_are_refused(run: Path, tmp_path: Path) -> None:
    tensors = read_safetensors(run / LINEAR)
    for name in ("idf", "weight", "bias"):
        write_safetensors(tmp_path / LINEAR, {**tensors, name: tensors[name] * float("nan")})
        with pytest.raises(NotFinite, match=f"weights in '{name}' are inf or nan"):
            LinearModel.load(tmp_path / LINEAR)
    write_safetensors(tmp_path / LINEAR, {**tensors, "bias": tensors["bias"].long()})
    with pytest.raises(CheckpointError, match="other numbers than float32"):
        LinearModel.load(tmp_path / LINEAR)
    write_safetensors(tmp_path / LINEAR, {**tensors, "about": torch.full((100_000,), ord("["), dtype=torch.uint8)})
    with pytest.raises(CheckpointError, match="no linear model of this headstart"):
        LinearModel.load(tmp_path / LINEAR)


def test_predict_labels_a_file_with_it(run: Path, tmp_path: Path) -> None:
    rows = [row for row in pq.read_table(run / "predictions.parquet").to_pylist() if row["split"] == "test"]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": row["text"]}) + "\n" for row in rows))
    done = headstart("predict", str(run), str(tmp_path / "texts.jsonl"), "--out", str(tmp_path / "labels.txt"))
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "labels.txt").read_text().splitlines() == [row["predicted"] for row in rows]
    [unsure] = LinearClassifier.load(run).predict(["漢字"], abstain_below=0.99)
    assert unsure.label is None and sum(unsure.probabilities.values()) == pytest.approx(1)


def test_a_verb_that_wants_a_network_says_what_can_be_done_with_it(run: Path, tmp_path: Path) -> None:
    for command in (["export", str(run), str(tmp_path / "out"), "--to", "onnx"], ["explain", str(run), "a dull book"]):
        done = headstart(*command)
        assert (done.exit_code, done.stdout) == (2, "")
        problem = f"{run} holds a linear model, and a network was meant: `headstart predict` labels texts with it"
        assert done.stderr == f"headstart: {problem}\n"


def test_a_folder_of_runs_is_no_model(run: Path, tmp_path: Path) -> None:
    study = tmp_path / "study"
    (study / "runs" / "full-60-seed0" / "model").mkdir(parents=True)
    (study / "study.toml").write_text('study = "compare"\n')
    said = headstart("predict", str(study), "texts.csv").stderr
    assert said == (
        f"headstart: {study} is a study of many runs, and one model was meant: name one of its runs, such as "
        f"{study / 'runs' / 'full-60-seed0'}\n"
    )
    without = Path(shutil.copytree(run, tmp_path / "run"))
    (without / LINEAR).unlink()
    assert "is a run whose weights were not kept" in headstart("export", str(without), "out", "--to", "base").stderr

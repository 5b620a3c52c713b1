from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from headstart.batches.examples import EncodedExamples
from headstart.checkpoints.folder import load
from headstart.config import ModelConfig
from headstart.errors import ConfigError, ModelError
from headstart.metrics import fit_temperature, score
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.parallel import SINGLE
from headstart.reading.examples import Example, Examples, read_examples
from headstart.runs.run import RunFolder
from headstart.runs.tuning import ArmTuning
from headstart.studies import linear
from headstart.studies.compare import compare
from headstart.studies.finetune import finetune
from headstart.studies.probe import FrozenTexts, Scaling, Source, fit_probe, linear_classifier, sources
from headstart.studies.settings import CompareSettings, FinetuneSettings
from headstart.training.inference import classify, pooled_layers
from headstart.use.classifier import TextClassifier

VOCABULARY = 50
KINDS: dict[str, dict[str, Any]] = {
    "post-norm": {"norm": "post", "pooler": True},
    "pre-norm": {"norm": "pre", "positions": "rotary"},
    "causal": {"norm": "pre", "direction": "causal", "embedding_norm": False},
    "relative": {"norm": "post", "positions": "relative"},
}


def make_model(kind: str = "post-norm", layers: int = 3) -> Model:
    torch.manual_seed(5)
    sizes: dict[str, Any] = {"width": 16, "heads": 2, "feed_forward": 24, "window": 12}
    config = ModelConfig(vocabulary=VOCABULARY, layers=layers, **sizes, **KINDS[kind])
    model = Model.build(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # far from their usual beginning, where every layer is much like the last
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def make_rows(count: int, seed: int = 0) -> EncodedExamples:
    draw = np.random.default_rng(seed)
    return EncodedExamples.from_rows([draw.integers(0, VOCABULARY, draw.integers(2, 12)) for _ in range(count)])


def labelled(rows: EncodedExamples, labels: Any) -> tuple[Examples, EncodedExamples]:
    """The same rows with these labels, as texts and as ids."""
    labels = np.asarray(labels, dtype=np.int64)
    texts = [" ".join(map(str, rows.ids[a:b])) for a, b in zip(rows.starts, rows.starts[1:], strict=False)]
    examples = tuple(
        Example(text, str(label), None, "made up", i) for i, (text, label) in enumerate(zip(texts, labels, strict=True))
    )
    return Examples(examples), EncodedExamples(rows.ids, rows.starts, None, labels, 0)


def fit(model: Model, rows: EncodedExamples, labels: Any, train: int, **changes: Any) -> Any:
    """A probe on the first rows, with the others as valid."""
    given = FinetuneSettings(data="x", init="x", mode="frozen", frozen_head="probe", **changes)
    parts = np.split(np.arange(len(rows)), [train])
    splits = [labelled(rows.take(part), np.asarray(labels)[part]) for part in parts]
    examples, encoded = (
        {name: split[k] for name, split in zip(("train", "valid"), splits, strict=True)} for k in (0, 1)
    )
    return fit_probe(model, examples, encoded, int(np.max(labels)) + 1, given)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_is_the_end_of_a_model_with_so_many(kind: str) -> None:
    model = make_model(kind)
    ids, layout = torch.randint(0, VOCABULARY, (9,)), Flat.from_lengths([4, 5])
    with torch.no_grad():
        states = model.backbone.every_layer(ids, layout)
        assert len(states) == 4
        for layers in (1, 2, 3):
            torch.testing.assert_close(states[layers - 1], model.truncated(layers)(ids, layout))
        torch.testing.assert_close(states[3], model.backbone(ids, layout, mean=True))
    assert not states[0].allclose(states[1], atol=0.1)


def test_a_truncated_model_shares_the_weights() -> None:
    model = make_model()
    cut = model.truncated(2)
    assert cut.config.layers == 2
    assert model.config.layers == 3
    mine, theirs = cut.state_dict(), model.state_dict()
    assert len(mine) < len(theirs)
    assert all(mine[name].data_ptr() == theirs[name].data_ptr() for name in mine)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("source", [Source(2, "last"), Source(3, "mean"), Source("all", "mean")])
@pytest.mark.parametrize("kind", KINDS)
def test_the_classifier_has_the_probabilities_of_the_logistic_regression(
    kind: str, source: Source, classes: int
) -> None:
    model, rows = make_model(kind), make_rows(80)
    texts = FrozenTexts(model, labelled(rows, np.arange(80) % classes)[1], classes, False, SINGLE)
    vectors = texts.vectors([source])[source]
    scaling, regression = texts.fit(vectors, np.arange(60), 0.1)
    classifier = linear_classifier(model, source, scaling, regression)
    expected = regression.predict_proba(scaling.apply(vectors))
    np.testing.assert_allclose(np.exp(classify(classifier, rows, torch.float32)), expected, atol=2e-5)
    assert np.ptp(expected[:, 0]) > 0.2  # there is something to agree on
    assert classifier.config.layers == (3 if source.layer == "all" else source.layer)


def test_a_constant_feature_is_left_out() -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    vectors[:, 1] = 7.0 + 1e-6 * vectors[:, 1]
    scaled = Scaling.of(vectors).apply(vectors)
    assert (scaled[:, 1] == 0).all()
    np.testing.assert_allclose(scaled[:, [0, 2]].std(0), 1.0, rtol=1e-5)


@pytest.mark.parametrize("planted", [Source(1, "mean"), Source(2, "last"), Source(3, "first")])
def test_it_finds_the_layer_and_the_pooling_that_know_the_labels(planted: Source) -> None:
    model, rows = make_model(), make_rows(600)
    vectors = pooled_layers(model, rows, [planted])[0].numpy()
    direction = np.random.default_rng(1).normal(size=16)
    projected = Scaling.of(vectors).apply(vectors) @ direction
    probe = fit(model, rows, (projected > np.median(projected)).astype(int), train=500)
    assert (probe.tuning.chosen["layer"], probe.tuning.chosen["pool"]) == planted
    assert probe.tuning.best.accuracy > 0.95
    assert probe.tuning.best.rows == 600
    settings = [each.settings for each in probe.tuning.tried]
    assert all(settings.count(each) == 1 for each in settings)
    assert len({(each.settings["layer"], each.settings["pool"]) for each in probe.tuning.tried}) == 4 * 3


def test_what_may_be_chosen() -> None:
    bidirectional, causal = make_model().config, make_model("causal").config

    def choices(config: ModelConfig, **changes: Any) -> list[Source]:
        return sources(config, FinetuneSettings(data="x", init="x", **changes))

    assert len(choices(bidirectional)) == 4 * 3
    assert {source.pool for source in choices(causal)} == {"mean", "last"}
    assert choices(bidirectional, pool="first", read="last") == [Source(3, "first")]
    assert {source.layer for source in choices(bidirectional, read="all")} == {"all"}


def test_the_strength_grows_both_ways() -> None:
    """Labels that are noise ask for the strongest regularisation, labels without noise for the weakest."""
    draw = np.random.default_rng(0)
    features = draw.normal(size=(300, 100)).astype(np.float32)
    clear = (features[:, 0] > 0).astype(np.int64)
    noise = (draw.random(300) < 0.3).astype(np.int64)

    def strengths(labels: Any) -> list[float]:
        fold = linear.FoldFeatures(features[:200], labels[:200], features[200:], labels[200:])
        return [attempt.settings["strength"] for attempt in linear.try_strengths([fold], 1e-3, {}, 2)]

    assert max(strengths(clear)) > 1
    assert min(strengths(noise)) < 1e-3


def test_a_fold_may_lack_a_class() -> None:
    features = np.eye(4, dtype=np.float32)
    one_class = linear.FoldFeatures(features, np.zeros(4, np.int64), features, np.array([0, 1, 2, 0]))
    two_classes = linear.FoldFeatures(features, np.array([0, 2, 0, 2]), features, np.array([0, 1, 2, 0]))
    models = [linear.logistic_regression(balanced=False) for _ in range(2)]
    attempt = linear.try_strength([one_class, two_classes], models, 1.0, {}, 3)
    assert attempt.log_probabilities.shape == (8, 3)
    np.testing.assert_allclose(np.exp(attempt.log_probabilities).sum(1), 1.0, atol=1e-6)
    assert attempt.correct[:4].tolist() == [True, False, False, True]
    assert not attempt.correct[5]  # the class that this fold has never seen


@pytest.mark.parametrize(
    ("labels", "train"),
    [
        ([0, 1, 0, 1], 2),  # a text for each class
        ([0] * 9 + [1] + [0] * 3, 10),  # a class with a single text
        ([0, 1, 2, 3, 4, 0, 1], 5),  # as many classes as texts
        ([0, 0, 1, 0, 1, 1, 2, 2], 7),
    ],
)
def test_few_texts_are_no_error(labels: list[int], train: int) -> None:
    probe = fit(make_model(), make_rows(len(labels)), labels, train)
    assert probe.valid.shape == (len(labels) - train, max(labels) + 1)
    assert np.isfinite(probe.valid).all()
    assert 0 < probe.temperature < 100


def test_balanced_weighs_the_rare_class() -> None:
    rows = make_rows(200)
    labels = (np.random.default_rng(3).random(200) < 0.1).astype(int)
    plain, balanced = (
        fit(make_model(), rows, labels, 150, balanced=each, pool="mean", read="last") for each in (False, True)
    )
    assert np.exp(balanced.valid)[:, 1].mean() > np.exp(plain.valid)[:, 1].mean() + 0.1


SPLITS = {"data": "train", "valid": "valid", "test": "test"}


def settings(world: Path, base: Path, **changes: Any) -> FinetuneSettings:
    files = {name: str(world / f"{split}.txt") for name, split in SPLITS.items()}
    return FinetuneSettings(**{**files, "init": str(base), "mode": "frozen", "frozen_head": "probe", **changes})


@pytest.fixture(scope="module")
def run(world: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe") / "run"
    finetune(settings(world, base), folder)
    return folder


def test_a_run_leaves_what_a_run_without_training_has(run: Path, world: Path, base: Path) -> None:
    assert {p.name for p in run.iterdir()} == {
        "run.toml",
        "model",
        "predictions.parquet",
        "result.json",
        "manifest.json",
    }
    result = json.loads((run / "result.json").read_text())
    assert result["mode"] == "frozen"
    assert result["weights"] == f"from {base}"
    assert result["rows"] == {"train": 120, "valid": 60, "test": 60}
    assert result["cost"]["predict_seconds"] > 0
    parameters = RunFolder(run).manifest().parameters
    assert result["cost"]["bytes"] == 4 * parameters["total"]
    assert parameters["trainable"] == 2 * 32 + 2
    tuning = ArmTuning.from_json(result["tuning"])
    assert tuning.best is not None
    assert tuning.best.rows == 180  # every text of train and valid was held out once


def test_its_model_is_used_like_any_other(run: Path, world: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    classifier = TextClassifier.load(run)
    assert classifier.evaluate(read_examples(str(world / "test.txt"))) == pytest.approx(result["test"], abs=1e-5)
    assert classifier.evaluate(read_examples(str(world / "valid.txt"))) == pytest.approx(result["valid"], abs=1e-5)
    table = [row for row in pq.read_table(run / "predictions.parquet").to_pylist() if row["split"] == "test"]
    predicted = classifier.predict([row["text"] for row in table])
    assert [each.label for each in predicted] == [row["predicted"] for row in table]
    assert load(run / "model").model.head_config.dropout == 0.0  # type: ignore[union-attr]


def test_no_seed_and_no_learning_rate_change_it(run: Path, world: Path, base: Path, tmp_path: Path) -> None:
    finetune(settings(world, base, seed=7, lr=0.5, epochs=9), tmp_path / "other")
    assert (tmp_path / "other/model/model.safetensors").read_bytes() == (run / "model/model.safetensors").read_bytes()


def test_a_budget_chooses_on_valid_alone(world: Path, base: Path, tmp_path: Path) -> None:
    result = finetune(settings(world, base, labels=20, seed=1), tmp_path / "run")
    assert result["rows"]["train"] == 20
    assert {each["rows"] for each in result["tuning"]["tried"]} == {60}


def test_refit_fits_on_valid_too_and_scores_it_held_out(run: Path, world: Path, base: Path, tmp_path: Path) -> None:
    """Valid is scored by the model of train alone; the model that is kept has seen it, and is another one."""
    before, after = (
        json.loads((run / "result.json").read_text()),
        finetune(settings(world, base, refit=True), tmp_path / "run"),
    )
    assert after["tuning"]["chosen"] == before["tuning"]["chosen"]
    assert after["valid"] == pytest.approx(before["valid"])
    valid = read_examples(str(world / "valid.txt"))
    assert TextClassifier.load(tmp_path / "run").evaluate(valid)["loss"] < after["valid"]["loss"] - 1e-4
    assert after["temperature"] != before["temperature"]


def test_refit_is_refused_where_it_means_nothing(world: Path, base: Path) -> None:
    with pytest.raises(ConfigError, match="leave one of the two out"):
        settings(world, base, labels=20, refit=True)


def test_a_pooling_that_makes_no_sense_is_refused(world: Path, base: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="pooler"):
        finetune(settings(world, base, pooler="backbone"), tmp_path / "run")


def test_the_temperature_is_that_of_valid(run: Path) -> None:
    result, predictions = RunFolder(run).result_json(), RunFolder(run).predictions().split("valid")
    logs = np.log(predictions.probabilities)
    assert score(logs, predictions.labels) == pytest.approx(result["valid"], abs=1e-6)
    assert fit_temperature(logs, predictions.labels) == pytest.approx(result["temperature"], rel=1e-3)


def test_in_a_comparison_it_runs_once_on_all_labels(world: Path, base: Path, tmp_path: Path) -> None:
    from headstart.report.page import render
    from headstart.report.records import read

    given: dict[str, Any] = {
        **{name: str(world / f"{split}.txt") for name, split in SPLITS.items()},
        "init": (str(base),),
        "frozen_head": "probe",
        "labels": "20,all",
        "seeds": 2,
        "epochs": 1,
    }
    comparison = compare(CompareSettings(**given, arms="frozen,full", ensemble=True), tmp_path / "study")
    runs = {(arm.name, arm.budget): len(arm.runs) for arm in comparison.curves}
    assert runs["frozen", 120] == runs["frozen+tfidf", 120] == 1
    assert runs["frozen", 20] == runs["frozen+tfidf", 20] == runs["full", 120] == 2
    assert "frozen" in render(read([tmp_path / "study"]))
    assert len(list(tmp_path.glob("study/runs/frozen-120-*/model"))) == 1
    # Settings of training by steps are nothing to it: the run that is there is the run that is planned.
    again = compare(CompareSettings(**given, arms="frozen", lr=0.01, frozen=("lr=0.5",)), tmp_path / "study")
    assert again.arm("frozen").runs[0].path == comparison.arm("frozen").runs[0].path

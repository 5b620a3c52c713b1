"""Contrastive training: a backbone that brings texts of one class together, and a linear head that is fitted to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headstart.checkpoints.folder import load
from headstart.config import ClassifierConfig
from headstart.errors import ConfigError
from headstart.parallel import Parallel
from headstart.reading.examples import read_examples
from headstart.report.page import write_report
from headstart.runs.run import RunFolder
from headstart.runs.titles import folder_title
from headstart.serve.study_arms import read_arms
from headstart.studies.classifier import build_classifier, load_data
from headstart.studies.compare import compare, open_study
from headstart.studies.finetune import finetune
from headstart.studies.probe import fit_head
from headstart.studies.settings import CompareSettings, FinetuneSettings
from headstart.studies.verify import verify_resume
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.training.inference import classify, frozen_features
from headstart.use.classifier import TextClassifier


def files(world: Path) -> dict[str, Any]:
    return {
        name: str(world / f"{file}.txt") for name, file in (("data", "train"), ("valid", "valid"), ("test", "test"))
    }


def settings(world: Path, base: Path, **changes: Any) -> FinetuneSettings:
    given = {"init": str(base), "mode": "contrastive", "epochs": 4, "batch_size": 16, "lr": 5e-3, "device": "cpu"}
    return FinetuneSettings(**{**files(world), **given, **changes})


def test_texts_of_one_class_come_together(world: Path, base: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    asked = settings(world, base)
    result = finetune(asked, tmp_path / "run")
    assert result["test"]["accuracy"] >= 0.9
    test = load_data(asked, tokenizer, 32).encoded["test"]

    def margin(model: Any) -> float:
        """How much closer two texts of one class are than two of different ones, by their cosine."""
        vectors = torch.nn.functional.normalize(frozen_features(model, test, torch.float32), dim=-1)
        same = torch.from_numpy(test.labels[:, None] == test.labels)
        cosines = vectors @ vectors.T
        return float(cosines[same].mean() - cosines[~same].mean())

    before = build_classifier(load(base).model, asked, 2)
    assert margin(load(tmp_path / "run" / "model").model) > margin(before) + 0.3


def test_a_run_leaves_an_ordinary_classifier(world: Path, base: Path, tmp_path: Path) -> None:
    result = finetune(settings(world, base), tmp_path / "run")
    assert result["strength"] > 0
    kinds = [type(event).__name__ for event in RunFolder(tmp_path / "run").events()]
    assert kinds.count("Evaluated") == 4
    head = load(tmp_path / "run" / "model").model.head_config
    assert head == ClassifierConfig(classes=2, pool="mean", pooler="none")
    classifier = TextClassifier.load(tmp_path / "run")
    for split in ("valid", "test"):
        rows = read_examples(str(world / f"{split}.txt"))
        assert classifier.evaluate(rows) == pytest.approx(result[split], abs=1e-5)
    assert folder_title(tmp_path / "run") == f"Contrastive from {base.parent.name}, 120 labels, seed 0"


def test_the_head_is_fitted_to_the_weights_that_are_kept(world: Path, base: Path, tmp_path: Path) -> None:
    """The best of several epochs, and not the last that was evaluated."""
    asked = settings(world, base, epochs=6, lr=3e-2, schedule="constant")
    result = finetune(asked, tmp_path / "run")
    assert result["best"]["epoch"] < 6
    model = load(tmp_path / "run" / "model").model
    assert isinstance(model.head_config, ClassifierConfig)
    data = load_data(asked, Tokenizer.load(world / "tokenizer"), 32)
    kept = classify(model, data.encoded["test"], torch.float32)
    assert fit_head(model, data.encoded, torch.float32, balanced=False) == result["strength"]
    assert classify(model, data.encoded["test"], torch.float32) == pytest.approx(kept, abs=1e-4)


def test_refit_takes_the_strength_that_valid_chose(world: Path, base: Path, tmp_path: Path) -> None:
    asked = settings(world, base, epochs=2)
    plain = finetune(asked, tmp_path / "plain")
    refit = finetune(replace(asked, refit=True), tmp_path / "refit")
    assert refit["strength"] == plain["strength"]
    assert refit["valid"] == pytest.approx(plain["valid"])
    files = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("plain", "refit")]
    assert files[0] != files[1]


def test_one_text_of_a_class_is_enough(world: Path, base: Path, tmp_path: Path) -> None:
    """It is compared with itself, which dropout makes another text of."""
    (tmp_path / "few.txt").write_text("pos ||| a wise tale\nneg ||| a dull tale\nneg ||| a tired page\n")
    given = settings(world, base, data=str(tmp_path / "few.txt"), backbone_dropout=0.1, epochs=2)
    result = finetune(given, tmp_path / "run")
    assert result["valid"]["accuracy"] > 0


def test_killed_at_random_steps_it_ends_the_same(
    world: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    names = [word for name, path in files(world).items() for word in (f"--{name}", path)]
    arguments = ["finetune", *names, "--init", str(base), "--mode", "contrastive", "--epochs", "6", "--save-every", "5"]
    arguments += ["--backbone-dropout", "0.1", "--device", "cpu", "--batch-size", "8"]
    verdict = verify_resume(arguments, tmp_path, kills=2, seed=3)
    assert verdict.identical, verdict.difference
    assert len(verdict.kills) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accumulate": 2}, "accumulate divides a batch"),
        ({"smoothing": 0.1}, "smoothing is of the cross-entropy"),
        ({"pooler": "tanh"}, "pooler 'tanh' is trained with the head"),
        ({"unlabelled": "texts.txt"}, "unlabelled texts are for mode full"),
    ],
)
def test_settings_that_make_no_sense_with_it(world: Path, base: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settings(world, base, **changes)


def test_what_it_cannot_start_from_or_run_on(world: Path, base: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'small' is a preset without weights"):
        finetune(settings(world, base, init="small"), tmp_path / "run")
    with pytest.raises(ConfigError, match="takes one process, and not 2"):
        finetune(settings(world, base), tmp_path / "run", parallel=Parallel(rank=0, world_size=2))
    assert not (tmp_path / "run").exists()


def test_an_arm_of_a_comparison(world: Path, base: Path, tmp_path: Path) -> None:
    given = CompareSettings(
        **files(world), init=(str(base),), arms="scratch,full,contrastive", contrastive=("lr=3e-3",), seeds=2, epochs=2,
        lr=2e-3, tune="none", labels="20,all", least_steps=9, ensemble=True,
    )  # fmt: skip
    found = compare(given, tmp_path / "study")
    names = ["scratch", "full", "contrastive", "full+tfidf", "contrastive+tfidf"]
    assert [arm.name for arm in found.arms] == ["majority", "tfidf", *names]
    assert {arm.budget for arm in found.curves if arm.name == "contrastive"} == {20, 120}
    assert found.difference("contrastive", "full") is not None
    for run in found.arm("contrastive").runs:
        assert RunFolder(tmp_path / "study" / run.path).settings()["lr"] == 3e-3
    assert f"Contrastive from {base.parent.name}" in {arm.title for arm in read_arms(tmp_path / "study").arms}
    write_report([tmp_path / "study"], tmp_path / "page.html")
    assert "contrastive" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_it_is_tuned_as_every_other_arm(world: Path, base: Path, tmp_path: Path) -> None:
    given = CompareSettings(
        **files(world), init=(str(base),), arms="full,contrastive", seeds=1, batch_size=32, tune="brief"
    )
    study = open_study(given, tmp_path / "study")
    assert [search.arm.name for search in study.searches] == ["full", "contrastive"]
    found = compare(given, tmp_path / "study")
    tried = {arm.name: arm.tuning for arm in found.arms}
    full, contrastive = tried["full"], tried["contrastive"]
    assert full is not None
    assert contrastive is not None
    assert len(full.tried) == len(contrastive.tried)
    assert json.dumps(contrastive.chosen["lr"])

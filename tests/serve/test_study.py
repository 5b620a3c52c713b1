"""A comparison that is served: what each arm says of a text, and folders that are not as they should be."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from headstart.cli.serve import _open
from headstart.errors import CheckpointError, DataError
from headstart.runs.predictions import read_predicted
from headstart.runs.run import LINEAR
from headstart.runs.study import StudyFolder
from headstart.serve.app import create_app
from headstart.serve.limits import Limits
from headstart.serve.models import ServedClassifier
from headstart.serve.study import ArmModel, OpenModels, ServedStudy, open_study
from headstart.serve.study_arms import StudyArm, disagreements, read_arms
from headstart.studies.linear_model import LinearModel
from headstart.use.classifier import TextClassifier, calibrated
from headstart.use.explain import explain
from headstart.use.linear_words import linear_words
from tests.serve.test_app import close, error

ARMS = {"scratch", "frozen", "full", "tfidf"}
TEXT = "a witty and tender tale of the dull page"


@pytest.fixture(scope="module")
def served_study(study: Path) -> ServedStudy:
    return open_study("books", study, "cpu", 1 << 30)


@pytest.fixture
def client(served_study: ServedStudy, served: ServedClassifier) -> Iterator[TestClient]:
    with TestClient(create_app([served_study, served])) as client:
        yield client


@pytest.fixture
def copied(study: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(study, tmp_path / "books"))


def arms_of(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/compare", json={"text": TEXT, **body})
    assert answer.status_code == 200, answer.text
    return {arm["name"]: arm for arm in answer.json()["arms"]}


class TestAnswers:
    @pytest.mark.parametrize("budget", [40, 120])
    def test_each_arm_as_offline(self, client: TestClient, served_study: ServedStudy, budget: int) -> None:
        said = arms_of(client, budget=budget)
        runs = {arm.name: arm.run for arm in served_study.study.of_budget(budget)}
        assert said.keys() == runs.keys() == ARMS
        for name in ARMS - {"tfidf"}:
            offline = explain(TextClassifier.load(runs[name], "cpu"), TEXT, orders=0)
            assert said[name]["label"] == offline.label
            assert close(said[name]["probabilities"], offline.probabilities)
            assert [word["text"] for word in said[name]["words"]] == [word.text for word in offline.words]
            weights = [word["weight"] for word in said[name]["words"]]
            assert weights == pytest.approx([word.weight for word in offline.words], abs=1e-4)
        model = LinearModel.load(runs["tfidf"] / LINEAR)
        [shares] = calibrated(model.log_probabilities([TEXT]), model.temperature)
        assert close(said["tfidf"]["probabilities"], dict(zip(model.class_names, map(float, shares), strict=True)))
        weights = [word["weight"] for word in said["tfidf"]["words"]]
        exact = [word.weight for word in linear_words(model, TEXT, said["tfidf"]["label"])]
        assert weights == pytest.approx(exact, abs=1e-5)

    def test_the_order_and_the_accuracy_of_the_report(self, client: TestClient, study: Path) -> None:
        comparison = StudyFolder(study).comparison()
        ranked = [row[0] for row in comparison.table()[1:] if row[0] != "majority"]
        for budget in (40, 120):
            said = arms_of(client, budget=budget, words=False)
            assert list(said) == ranked
            for arm in comparison.curves:
                if arm.budget == budget and arm.name != "majority":
                    estimate = arm.scores["accuracy"]
                    expected = {
                        "value": estimate.value,
                        "runs": len(arm.runs),
                        "low": estimate.low,
                        "high": estimate.high,
                    }
                    assert said[arm.name]["accuracy"] == expected

    def test_one_arm_and_no_words(self, client: TestClient) -> None:
        assert arms_of(client, arm="full").keys() == {"full"}
        said = arms_of(client, words=False)
        assert all("words" not in arm and arm["probabilities"] for arm in said.values())

    def test_titles_name_the_run(self, client: TestClient, base: Path) -> None:
        titles = {name: (arm["title"], arm["run"]) for name, arm in arms_of(client, words=False).items()}
        name = base.parent.name
        assert titles == {
            "full": (f"Fine-tuned from {name}", f"Fine-tuned from {name}, 120 labels, seed 0"),
            "frozen": (f"Linear probe on {name}", f"Linear probe on {name}, 120 labels"),
            "scratch": ("Trained from scratch", "Trained from scratch, 120 labels, seed 0"),
            "tfidf": ("Linear model (TF-IDF)", "Linear model (TF-IDF), 120 labels"),
        }

    @pytest.mark.parametrize("text", ["", "   ", "🙂", ["a witty tale", "a dull page"], "dull " * 4000])
    def test_odd_texts(self, client: TestClient, text: Any) -> None:
        for arm in arms_of(client, text=text).values():
            assert sum(arm["probabilities"].values()) == pytest.approx(1, abs=1e-6)
            if isinstance(text, list):
                assert {word["second"] for word in arm["words"]} == {False, True}

    def test_refusals(self, client: TestClient) -> None:
        def refused(**body: Any) -> tuple[int, str, str | None]:
            return error(client.post("/compare", json={"text": TEXT, **body}))

        assert refused(text="a" * 20_001) == (422, "text_too_long", "text")
        assert refused(text=3) == (422, "unfit", "text")
        assert refused(budget=41) == (404, "no_budget", "budget")
        assert refused(budget="all") == (422, "unfit", "budget")
        assert refused(arm="fulll") == (404, "no_arm", "arm")
        assert refused(arm=1) == (422, "unfit", "arm")
        assert refused(words=1) == (422, "unfit", "words")
        assert refused(labels=40) == (422, "unknown_field", "labels")
        assert refused(model="reviews") == (404, "no_model", "model")
        assert error(client.post("/compare", json={})) == (422, "missing", "text")
        assert error(client.post("/predict", json={"text": TEXT, "model": "books"})) == (404, "no_model", "model")

    def test_a_token_and_the_host_protect_it(self, served_study: ServedStudy) -> None:
        with TestClient(create_app([served_study], token="secret")) as client:
            assert error(client.post("/compare", json={"text": TEXT}))[0] == 401
            given = {"Authorization": "Bearer secret"}
            assert client.post("/compare", json={"text": TEXT, "words": False}, headers=given).status_code == 200
            assert "books" not in client.get("/openapi.json").text

    def test_info(self, client: TestClient, study: Path) -> None:
        said = client.get("/info").json()["models"][0]
        assert (said["name"], said["kind"], said["labels"]) == ("books", "study", ["neg", "pos"])
        assert said["title"] == StudyFolder(study).comparison().title
        assert said["budgets"] == [40, 120] and said["missing"] == []
        assert len(said["arms"]) == 8 and "path" not in str(said) and str(study) not in str(said)


def test_examples_are_of_valid_and_the_arms_disagree(study: Path, world: Path) -> None:
    arms = read_arms(study).of_budget(40)
    examples = disagreements(arms)
    lines = (world / "valid.txt").read_text().splitlines()
    valid = {text: label for label, _, text in (line.partition(" ||| ") for line in lines)}
    test = (world / "test.txt").read_text()
    assert 0 < len(examples) <= 5
    predicted = [
        {row.text: label for row, label in read_predicted(arm.run / "predictions.parquet", "valid")} for arm in arms
    ]
    for example in examples:
        assert isinstance(example.text, str)
        assert valid[example.text] == example.label
        assert example.text not in test
        assert len({labels[example.text] for labels in predicted}) > 1


def test_only_this_machine_sees_texts_of_the_data(study: Path) -> None:
    assert any(open_study("books", study, "cpu", 1).examples.values())
    assert not any(open_study("books", study, "cpu", 1, local=False).examples.values())
    given = open_study("books", study, "cpu", 1, ("a tale",), local=False)
    assert [example.text for example in given.examples[40]] == ["a tale"]


class TestMemory:
    def test_a_model_is_opened_once_when_it_is_asked(self, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        opened: list[str] = []
        load = OpenModels._load

        def counted(self: OpenModels, arm: StudyArm) -> ArmModel:
            opened.append(arm.run.name)
            return load(self, arm)

        monkeypatch.setattr(OpenModels, "_load", counted)
        served = open_study("books", study, "cpu", 1 << 30)
        assert opened == []
        for _ in range(2):
            list(served.compare(served.select(40, None), TEXT, words=False))
        assert len(opened) == len(set(opened)) == 4

    def test_beyond_the_limit_the_oldest_goes(self, study: Path) -> None:
        arms = read_arms(study).of_budget(120)
        sizes = [arm.bytes for arm in arms]
        models = OpenModels("cpu", sum(sizes) - 1)
        first = models.get(arms[0])
        for arm in arms:
            models.get(arm)
            assert models.size <= models.memory
        assert models.get(arms[-1]) is models.get(arms[-1])
        assert models.get(arms[0]) is not first
        assert OpenModels("cpu", 1).get(arms[0]) is not None  # one has a place whatever its size


class TestOddFolders:
    def test_a_study_that_is_not_finished(self, copied: Path) -> None:
        (copied / "comparison.json").unlink()
        for run in copied.glob("runs/*"):
            if run.name.startswith("scratch") or run.name.startswith("full-40"):
                shutil.rmtree(run)
        served = open_study("books", copied, "cpu", 1 << 30)
        assert {(arm.name, arm.budget) for arm in served.study.arms} == {
            ("tfidf", 40), ("tfidf", 120), ("frozen", 40), ("frozen", 120), ("full", 120),
        }  # fmt: skip
        assert {(each.name, each.budget, each.reason) for each in served.study.missing} == {
            ("scratch", 40, "not trained yet"), ("scratch", 120, "not trained yet"), ("full", 40, "not trained yet"),
        }  # fmt: skip
        assert served.info()["title"] == "books: a comparison that is not finished"
        accuracies = {(arm.name, arm.budget): arm.accuracy for arm in served.study.arms}
        scores = [
            json.loads(path.read_text())["test"]["accuracy"] for path in copied.glob("runs/tfidf-40-*/result.json")
        ]
        found = accuracies["tfidf", 40]
        assert found is not None and found.runs == len(scores) == 2 and found.low is None
        assert found.value == pytest.approx(sum(scores) / 2)
        with TestClient(create_app([served])) as client:
            assert arms_of(client).keys() == {"tfidf", "frozen", "full"}

    def test_runs_that_were_moved_and_models_that_were_not_kept(self, copied: Path) -> None:
        for run in copied.glob("runs/full-120-*"):
            run.rename(copied.parent / run.name)
        for model in copied.glob("runs/scratch-40-*/model"):
            shutil.rmtree(model)
        reasons = {(each.name, each.budget): each.reason for each in read_arms(copied).missing}
        assert reasons == {
            ("full", 120): "its run folder was moved or deleted",
            ("scratch", 40): "its model was not kept",
        }

    def test_the_next_seed_answers_where_the_first_is_gone(self, study: Path, copied: Path) -> None:
        [kept] = [path.parent for path in copied.glob("runs/scratch-120-seed0-*/model")]
        [other] = copied.glob("runs/scratch-120-seed1-*")
        (kept / "model").rename(other / "model")
        [arm] = [arm for arm in read_arms(copied).of_budget(120) if arm.name == "scratch"]
        assert arm.run_title == "Trained from scratch, 120 labels, seed 1"

    def test_a_model_that_is_damaged_holds_nobody_up(self, copied: Path, caplog: pytest.LogCaptureFixture) -> None:
        for weights in copied.glob("runs/full-120-seed0-*/model/model.safetensors"):
            weights.write_bytes(weights.read_bytes()[:1000])
        with TestClient(create_app([open_study("books", copied, "cpu", 1 << 30)])) as client:
            said = arms_of(client)
        assert "label" not in said["full"] and str(copied) not in said["full"]["error"]
        assert all(said[name]["label"] for name in ARMS - {"full"})
        assert "cut short" in caplog.text and "Traceback" not in caplog.text

    def test_a_model_that_was_moved_away_is_one_line_in_the_log(
        self, copied: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        served = open_study("books", copied, "cpu", 1 << 30)
        for linear in copied.glob(f"runs/*/{LINEAR}"):
            linear.unlink()
        with TestClient(create_app([served])) as client:
            assert "could not answer" in arms_of(client)["tfidf"]["error"]
        assert "No such file" in caplog.text and "Traceback" not in caplog.text

    def test_nothing_to_try(self, copied: Path) -> None:
        shutil.rmtree(copied / "runs")
        with pytest.raises(DataError, match=r"no model of this comparison can be tried .*moved or deleted"):
            read_arms(copied)
        (copied / "comparison.json").unlink()
        with pytest.raises(DataError, match=r"not trained yet.*headstart compare"):
            read_arms(copied)

    def test_an_ensemble_is_named(self, copied: Path) -> None:
        path = copied / "comparison.json"
        comparison = json.loads(path.read_text())
        comparison["arms"].append({**comparison["arms"][0], "name": "full+tfidf", "mode": "ensemble"})
        comparison["curves"] = []
        path.write_text(json.dumps(comparison))
        assert [each.name for each in read_arms(copied).missing if "ensemble" in each.reason] == ["full+tfidf"]

    def test_many_runs(self, copied: Path) -> None:
        """Thirty runs of an arm are one card."""
        (copied / "comparison.json").unlink()
        [run] = copied.glob("runs/tfidf-40-seed0-*")
        for seed in range(2, 30):
            shutil.copytree(run, copied / "runs" / f"tfidf-40-seed{seed:02}-copy")
        arms = [arm for arm in read_arms(copied).arms if (arm.name, arm.budget) == ("tfidf", 40)]
        assert len(arms) == 1
        assert arms[0].accuracy is not None and arms[0].accuracy.runs == 30


class TestCommand:
    def open(self, folder: str) -> Any:
        return _open(folder, "cpu", Limits(), None, local=True)

    def test_a_study_says_what_is_missing(self, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for model in copied.glob("runs/scratch-40-*/model"):
            shutil.rmtree(model)
        assert isinstance(self.open(str(copied)), ServedStudy)
        assert "scratch, 40 labels is missing: its model was not kept" in capsys.readouterr().err

    def test_a_run_is_called_by_what_it_is(self, study: Path, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
        [run] = study.glob("runs/full-120-seed0-*")
        title = f"Fine-tuned from {base.parent.name}, 120 labels, seed 0"
        assert self.open(f"{run}/").info()["title"] == title
        assert f"{run.name} is: {title}" in capsys.readouterr().err
        assert self.open(str(run)).info()["name"] == run.name
        named = self.open(f"mine={run}").info()
        assert (named["name"], named["title"]) == ("mine", "mine")

    def test_folders_that_cannot_be_served(self, study: Path, tmp_path: Path) -> None:
        [run] = study.glob("runs/full-120-seed1-*")
        with pytest.raises(CheckpointError, match=re.escape(f"the run in {run} has no model") + ".*--keep-models"):
            self.open(str(run))
        with pytest.raises(CheckpointError, match="holds no run, no study and no model"):
            self.open(str(tmp_path))
        (tmp_path / "study.toml").write_text('study = "sweep"\n')
        trials = [{"run": "runs/3", "settings": {}, "valid": {"accuracy": 0.5, "loss": 1.0}, "best": True}]
        table = {"format": 1, "kind": "grid", "swept": ["lr"], "trials": trials, "texts": None}
        (tmp_path / "sweep.json").write_text(json.dumps(table))
        with pytest.raises(CheckpointError, match=r"a study of the kind 'sweep'.*serve its best run, .*runs/3"):
            self.open(str(tmp_path))


def test_the_models_of_the_first_seed_are_kept_for_every_budget(study: Path) -> None:
    kept = {
        path.parent.name.rsplit("-", 1)[0] for path in (*study.glob("runs/*/model"), *study.glob(f"runs/*/{LINEAR}"))
    }
    assert kept == {
        "scratch-40-seed0", "scratch-120-seed0", "full-40-seed0", "full-120-seed0",
        "frozen-40-seed0", "frozen-120", "tfidf-40-seed0", "tfidf-120",
    }  # fmt: skip


def test_an_arm_knows_its_size(study: Path) -> None:
    arms: tuple[StudyArm, ...] = read_arms(study).arms
    assert all(arm.bytes > 1000 for arm in arms)

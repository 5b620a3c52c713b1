from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from scipy.special import softmax
from sklearn.metrics import confusion_matrix

from headstart.errors import DataError
from headstart.metrics import fit_temperature
from headstart.report.answers import MISTAKES
from headstart.report.records import read
from headstart.runs.run import RunFolder
from tests.report.example_folders import Plan, make_pretraining, make_study, make_sweep


def test_a_study_is_read_with_its_runs(books: Path) -> None:
    (study,) = read([books]).studies
    assert (study.name, study.split, study.intervals) == ("books", "test", True)
    assert [arm.result.name for arm in study.arms] == ["scratch", "frozen", "full", "tfidf", "majority"]
    assert [len(arm.runs) for arm in study.arms] == [3, 3, 3, 1, 1]
    full = study.arms[2]
    assert [epoch for epoch, _ in full.runs[0].curve] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert full.runs[0].speed == pytest.approx(3600)  # 900 tokens a step of a quarter of a second
    assert full.runs[0].parameters is not None and full.runs[1].parameters is None  # the model of the first is kept
    assert study.arms[3].runs[0].curve == () and study.arms[3].runs[0].speed is None


def test_reliability_is_after_temperature_scaling(books: Path) -> None:
    """Of valid, which is every other row of test here; so what was too sure is right as often as it says."""
    (study,) = read([books]).studies
    full = next(arm for arm in study.arms if arm.result.name == "full")
    confidences = []
    for run in full.result.runs:
        predictions = RunFolder(books / run.path).predictions(study.comparison.class_names)
        valid, test = (np.log(predictions.split(name).probabilities) for name in ("valid", "test"))
        temperature = fit_temperature(valid, predictions.split("valid").labels)
        assert abs(temperature - 1) > 0.01
        confidences.append(softmax(test / temperature, axis=1).max(1))
    in_bins = sum(confidence * count for confidence, _, count in full.bins)
    assert in_bins == pytest.approx(float(np.sum(confidences)))


def test_answers_are_counted_over_all_seeds(books: Path) -> None:
    (study,) = read([books]).studies
    truth, said = [], []
    for run in study.arms[0].result.runs:
        table = pq.read_table(books / run.path / "predictions.parquet")
        table = table.filter(pc.equal(table["split"], "test"))
        truth += table["label"].to_pylist()
        said += table["predicted"].to_pylist()
    expected = confusion_matrix(truth, said, labels=list(study.comparison.class_names))
    assert study.arms[0].confusion == tuple(map(tuple, expected.tolist()))
    assert sum(count for _, _, count in study.arms[0].bins) == len(truth)


def test_the_mistakes_are_the_surest_of_the_arm_that_is_best_on_valid(books: Path) -> None:
    (study,) = read([books]).studies
    means = {arm.name: np.mean([run.valid["accuracy"] for run in arm.runs]) for arm in study.comparison.arms}
    assert study.best == max(means, key=lambda name: means[name])
    run = next(arm for arm in study.comparison.arms if arm.name == study.best).runs[0]
    rows = pq.read_table(books / run.path / "predictions.parquet").to_pylist()
    wrong = [row for row in rows if row["split"] == "test" and row["predicted"] != row["label"]]
    sure = sorted((row[f"probability:{row['predicted']}"] for row in wrong), reverse=True)[:MISTAKES]
    assert [mistake.confidence for mistake in study.mistakes] == pytest.approx(sure)
    assert all(mistake.predicted != mistake.label for mistake in study.mistakes)
    places = {(Path(row["path"]).name, row["line"]) for row in wrong}
    assert {(mistake.file, mistake.line) for mistake in study.mistakes} <= places


def test_the_pretraining_of_a_base_is_found_by_itself_and_told_once(books: Path) -> None:
    base = books.parent / "base"
    for paths in ([books], [base, books], [books, base]):
        (found,) = read(paths).pretraining
        assert found.name == "base" and found.result.objective == "causal"
        assert len(found.loss) <= 120 and found.loss[-1][0] == 400
        assert [step for step, _ in found.valid] == list(range(50, 401, 50))


def test_the_loss_shown_is_the_mean_of_the_steps_it_stands_for(tmp_path: Path) -> None:
    folder = make_pretraining(tmp_path / "base", steps=300)
    (found,) = read([folder]).pretraining
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert [step for step, _ in found.loss[:2]] == [3, 6]  # 300 steps in at most 120 parts: three in each
    assert found.loss[1][1] == pytest.approx(np.mean(losses[3:6]))


def test_a_loss_that_was_no_number_is_left_out(tmp_path: Path) -> None:
    folder = make_pretraining(tmp_path / "base", steps=60)
    lines = (folder / "events.jsonl").read_text().splitlines()
    first = json.loads(lines[0]) | {"loss": "nan"}  # as the record writes it
    (folder / "events.jsonl").write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")
    assert [step for step, _ in read([folder]).pretraining[0].loss[:2]] == [2, 3]


def test_runs_by_themselves_are_compared(books: Path) -> None:
    runs = [books / "runs" / f"{arm}-400-{seed}" for arm in ("full", "scratch") for seed in range(3)]
    (study,) = read(runs).studies
    (whole,) = read([books]).studies
    assert study.intervals and [arm.result.name for arm in study.arms] == ["full", "scratch"]
    assert study.arms[0].confusion == whole.arms[2].confusion
    assert study.arms[0].result.scores["accuracy"].value == pytest.approx(whole.arms[2].result.scores["accuracy"].value)


def test_runs_without_a_test_have_means_and_ranges_on_valid(books: Path, tmp_path: Path) -> None:
    runs = []
    for seed in range(3):
        runs.append(shutil.copytree(books / "runs" / f"full-400-{seed}", tmp_path / f"full-{seed}"))
        result = json.loads((runs[-1] / "result.json").read_text())
        (runs[-1] / "result.json").write_text(json.dumps(result | {"test": None}))
    (study,) = read(runs).studies
    values = [json.loads((run / "result.json").read_text())["valid"]["accuracy"] for run in runs]
    found = study.arms[0].result.scores["accuracy"]
    assert (study.split, study.intervals) == ("valid", False)
    assert (found.value, found.low, found.high) == pytest.approx((np.mean(values), min(values), max(values)))
    assert study.comparison.verdict == () and study.comparison.differences == ()


def test_two_readings_are_equal(books: Path) -> None:
    assert read([books]) == read([books])


def test_long_texts_are_kept_in_part(tmp_path: Path) -> None:
    plan = Plan(text="long " * 2000, seeds=1, rows=60, budgets=(400,), samples=20)
    (study,) = read([make_study(tmp_path / "long", plan)]).studies
    assert {(len(mistake.text), mistake.length) for mistake in study.mistakes} == {(4000, 10_000)}


def test_a_folder_that_is_no_study_and_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no study.toml and no run.toml.*name a folder that headstart wrote"):
        read([tmp_path])
    (tmp_path / "run.toml").write_text('study = "gardening"\n')
    with pytest.raises(DataError, match="'gardening'"):
        read([tmp_path])


def test_a_comparison_that_is_not_done_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text('study = "compare"\n')
    with pytest.raises(DataError, match=r"not done.*headstart compare"):
        read([tmp_path])
    (tmp_path / "comparison.json").write_text("{}")
    with pytest.raises(DataError, match=r"comparison.json: it is no comparison of this headstart"):
        read([tmp_path])
    (tmp_path / "comparison.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read as JSON"):
        read([tmp_path])


def test_a_run_that_is_not_done_is_refused(books: Path, tmp_path: Path) -> None:
    run = shutil.copytree(books / "runs" / "full-400-0", tmp_path / "run")
    (run / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"not done: it has no manifest.json.*--resume"):
        read([run])
    (run / "result.json").unlink()
    with pytest.raises(DataError, match=r"no result.json"):
        read([run])


def test_predictions_of_other_classes_are_refused(books: Path, five: Path, tmp_path: Path) -> None:
    study = shutil.copytree(books, tmp_path / "study")
    shutil.copy(five / "runs" / "scratch-400-0" / "predictions.parquet", study / "runs" / "full-400-0")
    with pytest.raises(DataError, match="does not hold the predictions for the classes negative, positive"):
        read([study])


def test_a_run_without_predictions_has_no_confusion(books: Path, tmp_path: Path) -> None:
    study = shutil.copytree(books, tmp_path / "study")
    for path in study.glob("runs/*-400-*/predictions.parquet"):
        path.unlink()
    (found,) = read([study]).studies
    assert all(arm.confusion is None and arm.bins == () for arm in found.arms) and found.mistakes == ()


def test_a_sweep_is_read_with_its_trials(tuned: Path) -> None:
    (found,) = read([tuned]).sweeps
    assert (found.name, found.sweep.swept, len(found.sweep.trials)) == ("tuned", ("lr", "batch_size", "mode"), 12)
    assert (len(found.runs), len(found.manifests)) == (12, 9)
    assert read([tuned]) == read([tuned])


def test_the_pretraining_of_a_sweeps_base_is_found(tmp_path: Path) -> None:
    study = make_sweep(tmp_path / "sweep", {"lr": [1e-4]})
    base = make_pretraining(tmp_path / "base")
    recipe = study / "runs" / "full-0" / "run.toml"
    recipe.write_text(recipe.read_text().replace('init = "base"', f'init = "{base}"'))
    assert [found.name for found in read([study]).pretraining] == ["base"]


def test_a_sweep_that_has_no_table_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text('study = "sweep"\n')
    with pytest.raises(DataError, match=r"no trial of the sweep is done.*--resume"):
        read([tmp_path])
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(DataError, match=r"sweep.json: it is no sweep of this headstart"):
        read([tmp_path])


def test_a_run_that_says_too_little_for_a_comparison_is_named(books: Path, tmp_path: Path) -> None:
    runs = [shutil.copytree(books / "runs" / f"{arm}-400-0", tmp_path / arm) for arm in ("full", "scratch")]
    result = json.loads((runs[1] / "result.json").read_text())
    (runs[1] / "result.json").write_text(json.dumps({name: each for name, each in result.items() if name != "rows"}))
    with pytest.raises(DataError, match=r"scratch: it does not say how many texts it learned from.*run it again"):
        read(runs)
    (runs[0] / "predictions.parquet").unlink()
    with pytest.raises(DataError, match=r"full: it does not say what it answered"):
        read(runs)

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from headstart.report.page import render
from headstart.report.records import Records, read
from headstart.runs.sweep import Sweep
from headstart.studies.labels_saved import label_worth
from tests.report.example_folders import Plan, make_pretraining, make_study, make_sweep


class Outline(HTMLParser):
    """The headings, the cells of all tables, the texts of all figures, and every tag and address."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, list[str]] = {"h1": [], "h2": [], "td": [], "th": [], "text": [], "caption": []}
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self._open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action", "xlink:href")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag in self.found:
            self._open.append(tag)
            self.found[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self.found[self._open[-1]][-1] += data


def test_the_sections_in_their_order(books: Path) -> None:
    outline = Outline(render(read([books])))
    assert outline.found["h1"][0].startswith("Use the fine-tuned model")
    assert outline.found["h2"] == [
        "Label budgets",
        "Final accuracy",
        "Differences",
        "Class by class",
        "What was tuned",
        "Accuracy by epoch",
        "Confusion",
        "The most confident mistakes",
        "Reliability",
        "Pretraining: base",
        "Parameters by block",
        "Time and memory",
        "What the doctor found in the data",
        "Settings",
        "To run it again",
    ]


def test_the_label_curve_comes_first_and_once(books: Path, five: Path) -> None:
    page = render(read([books]))
    curve = 'aria-label="Accuracy by number of labels"'
    assert page.count(f'<svg viewBox="0 0 360 220" role="img" {curve}') == 1
    assert page.index("<h1>") < page.index(curve) < page.index('class="verdict"') < page.index("<h2>")
    without = render(read([five]))
    assert without.index("<h1>") < without.index('aria-label="Accuracy on test of each arm"') < without.index("<h2>")


def test_the_page_says_how_long_networks_train_on_few_labels(books: Path) -> None:
    records = read([books])
    for settings, words in {
        (): "enough steps: as many as with the most labels, up to 300.",
        (("least_steps", 110),): "enough steps: at least 110.",
        (("least_steps", 0),): None,
        (("steps", 50),): None,
    }.items():
        study = replace(records.studies[0], settings={**records.studies[0].settings, **dict(settings)})
        page = render(replace(records, studies=(study,)))
        assert (words or "as even as possible.</p>") in page
        assert words or "enough steps" not in page


def test_every_title_is_within_90_characters(books: Path, tuned: Path, tmp_path: Path) -> None:
    older = Path(shutil.copytree(books, tmp_path / ("a-study-with-a-name-" * 6)))
    comparison = json.loads((older / "comparison.json").read_text())
    del comparison["title"]
    (older / "comparison.json").write_text(json.dumps(comparison))
    many = {name: [0.1, 0.2] for name in ("lr", "weight_decay", "token_dropout", "backbone_dropout")}
    searched = make_sweep(tmp_path / "searched", many)
    bases = [make_pretraining(tmp_path / f"a-base-with-a-long-name-{k}") for k in range(5)]
    for paths in ([books], [older], [tuned], [searched], bases):
        page = render(read(paths))
        title = re.findall("<title>(.*?)</title>", page)[0]
        [headline] = Outline(page).found["h1"]
        assert 0 < len(title) <= 90 and 0 < len(headline) <= 90
    assert "a-study-with-a-name" in Outline(render(read([older]))).found["h1"][0]
    assert "<p><strong>Use the fine-tuned model.</strong>" in render(read([older]))  # the verdict is whole


def test_the_most_frequent_label_has_no_matrix(books: Path) -> None:
    page = render(read([books]))
    assert 'aria-label="Confusion of tfidf"' in page and 'aria-label="Reliability of tfidf"' in page
    assert "Confusion of majority" not in page and "Reliability of majority" not in page


def test_a_section_without_data_is_left_out(books: Path, five: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(five, tmp_path / "bare")
    (bare / "data.json").unlink()
    for path in bare.glob("runs/*"):
        (path / "predictions.parquet").unlink()
        (path / "events.jsonl").unlink(missing_ok=True)
        shutil.rmtree(path / "model", ignore_errors=True)
        manifest = json.loads((path / "manifest.json").read_text())
        kept = {name: value for name, value in manifest.items() if name not in ("parameters", "seconds", "peak_memory")}
        (path / "manifest.json").write_text(json.dumps(kept))
    comparison = json.loads((bare / "comparison.json").read_text())
    (bare / "comparison.json").write_text(json.dumps(comparison | {"differences": []}))
    assert Outline(render(read([bare]))).found["h2"] == ["Final accuracy", "Settings", "To run it again"]


def test_the_weights_that_were_scored_are_named(five: Path, tmp_path: Path) -> None:
    last = shutil.copytree(five, tmp_path / "last")
    for path in last.glob("runs/*/run.toml"):
        settings = path.read_text(encoding="utf-8")
        path.write_text(settings + 'weights = "last"\n', encoding="utf-8")
    words = "with the weights that were best on valid", "with the weights of its last step"
    assert [[each in render(read([study])) for each in words] for study in (five, last)] == [
        [True, False],
        [False, True],
    ]
    assert "chosen here" in render(read([five])) and "chosen here" not in render(read([last]))


def test_what_the_doctor_left_out_is_named_without_options(books: Path) -> None:
    page = render(read([books]))
    assert "Not examined: tokens." in page and "no tokenizer was given" not in page


def test_the_same_records_are_the_same_bytes(books: Path, five: Path) -> None:
    assert render(read([books, five])) == render(read([books, five]))


def test_texts_and_labels_are_no_markup(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>"
    plan = Plan(classes=(evil, '"><img src=x onerror=alert(1)>'), text=f"{evil} \x00\x1b[31m & <b>", seeds=1, rows=60)
    study = make_study(tmp_path / "<i>study", plan, pretraining=make_pretraining(tmp_path / "<u>base"))
    page = render(read([study]))
    outline = Outline(page)
    assert not outline.tags & {"script", "img", "i", "u"}
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in page
    assert "\x00" not in page and "\x1b" not in page


def test_the_page_asks_for_nothing(books: Path) -> None:
    page = render(read([books]))
    outline = Outline(page)
    assert not outline.tags & {"script", "link", "img", "iframe", "object", "base"}
    assert all(address.startswith("#") for address in outline.addresses)
    assert not re.search(r"url\(|@import|https?://", page)
    names = re.findall(r'id="([^"]*)"', page)
    assert len(set(names)) == len(names) and {address[1:] for address in outline.addresses} <= set(names)


@pytest.mark.parametrize("name", ["books", "five"])
def test_every_number_in_a_figure_is_in_a_table(name: str, request: pytest.FixtureRequest) -> None:
    """But for the axes, and for shares of which the table has the counts."""
    page = render(read([request.getfixturevalue(name)]))
    cells = " ".join([*(found := Outline(page).found)["td"], *found["th"]])
    numbers = re.findall(r'class="label number">([^<%]*)</text>', page)
    shown = [number for number in numbers if number.strip()]
    assert len(shown) > 20
    assert [number for number in shown if number not in cells] == []


def test_arms_are_ranked_with_their_baselines(books: Path) -> None:
    page = render(read([books]))
    comparison = read([books]).studies[0].comparison
    ranked = sorted(comparison.arms, key=lambda arm: -arm.scores["accuracy"].value)
    table = re.search(r'id="final-accuracy-1".*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    assert table is not None
    assert re.findall(r'<th scope="row">(.*?)</th>', table[1]) == [arm.name for arm in ranked]
    best = ranked[0].scores["accuracy"]
    assert f'{best.value:.3f} <span class="aside">{best.low:.3f}–{best.high:.3f}</span>' in table[1]
    assert "1: one class only" in table[1]


def section(page: str, name: str) -> str:
    found = re.search(rf'<section id="{name}-1">.*?</section>', page, re.DOTALL)
    assert found is not None
    return found[0]


def test_costs_stand_beside_accuracy(books: Path) -> None:
    final = section(render(read([books])), "final-accuracy")
    row = re.search(r'<tr><th scope="row">frozen</th>(.*?)</tr>', final)
    assert row is not None
    assert '<td class="r">8.2</td><td class="r">5</td><td class="r">2.4</td>' in row[1]
    assert 'aria-label="Accuracy by time to train"' in final
    assert "after temperature scaling on valid" in final


def test_every_seed_has_its_own_score(books: Path) -> None:
    page = section(render(read([books])), "final-accuracy")
    (comparison,) = (study.comparison for study in read([books]).studies)
    for arm in comparison.arms:
        cells = "".join(f'<td class="r">{run.test["accuracy"]:.4f}</td>' for run in arm.runs)
        assert (f'<tr><th scope="row">{arm.name}</th>{cells}</tr>' in page) == (len(arm.runs) > 1)


def test_what_was_tuned_begins_with_what_was_chosen(books: Path) -> None:
    tuned = section(render(read([books])), "what-was-tuned")
    tables = re.findall(
        r"<summary>(\w+): (\d) combinations tried</summary>.*?<tbody>\s*<tr>(.*?)</tr>", tuned, re.DOTALL
    )
    assert [(name, count) for name, count, _ in tables] == [
        ("scratch", "8"),
        ("frozen", "8"),
        ("full", "8"),
        ("tfidf", "3"),
    ]
    assert all('<th scope="row">chosen</th>' in first for *_, first in tables)
    assert "learning rate 0.0003, epochs 6" in tuned and "1 of 8 trials diverged" in tuned
    assert "&lt;lower&gt; it" in tuned and "<lower>" not in tuned
    figures = re.findall(r'aria-label="Held-out accuracy of (\w+) by learning rate"', tuned)
    assert figures == ["scratch", "frozen", "full"]  # the linear model has none
    assert "cannot be compared" in tuned  # the last trial of each was scored on more texts


def test_differences_class_by_class(five: Path, tmp_path: Path) -> None:
    page = section(render(read([five])), "class-by-class")
    (study,) = read([five]).studies
    assert [(pair.arm, pair.reference) for pair in study.by_class] == [
        (difference.arm, difference.reference) for difference in study.comparison.differences if difference.primary
    ]
    first = study.by_class[0].classes[0]
    assert (
        f'<th scope="row">very negative</th><td class="r">{first.rows}</td><td class="r">{first.one:.3f}</td>' in page
    )
    many = Plan(classes=tuple(f"class {k}" for k in range(20)), seeds=2, budgets=(400,))
    page = section(render(read([make_study(tmp_path / "many", many)])), "class-by-class")
    assert "full minus scratch: 20 classes</summary>" in page and "<svg" not in page


def test_what_was_left_out_is_said(books: Path) -> None:
    records = read([books])
    comparison = replace(records.studies[0].comparison, notes=("Time was up with 2 runs to do.",))
    page = render(Records((replace(records.studies[0], comparison=comparison),), (), ()))
    assert "<p>Time was up with 2 runs to do.</p>" in page


def test_what_labels_are_worth_is_said_in_sentences(books: Path) -> None:
    page = render(read([books]))
    worth = read([books]).studies[0].comparison.worth
    assert any(each.low is not None for each in worth)
    for each in worth:
        if each.beyond and each.low == each.budget:  # the difference at that budget says it
            assert label_worth(each, "full", "scratch").replace("95 %", "95\xa0%") not in page
            continue
        assert label_worth(each, "full", "scratch").replace("95 %", "95\xa0%") in page


def test_runs_that_were_scored_at_their_end_alone_have_no_curve(books: Path) -> None:
    records = read([books])
    study = records.studies[0]
    arms = tuple(replace(arm, runs=tuple(replace(run, curve=run.curve[-1:]) for run in arm.runs)) for arm in study.arms)
    assert "Accuracy by epoch" in render(records)
    assert "Accuracy by epoch" not in render(replace(records, studies=(replace(study, arms=arms),)))


def test_a_number_that_was_found_is_shown_in_six_figures(books: Path) -> None:
    records = read([books])
    study = records.studies[0]
    full, *rest = (arm for arm in study.arms if arm.result.name == "full")
    changed = replace(full, runs=tuple(replace(run, settings={**run.settings, "lr": 0.1 + 0.2}) for run in full.runs))
    others = tuple(arm for arm in study.arms if arm.result.name != "full")
    page = render(replace(records, studies=(replace(study, arms=(changed, *rest, *others)),)))
    assert "<td>0.3</td>" in page and "0.30000000000000004" not in page


def test_settings_that_differ_are_marked(books: Path) -> None:
    page = render(read([books]))
    assert re.search(r"● lr</th><td>0.0001</td><td>0.001</td><td>0.0001</td>", page)
    assert re.search(r'<th scope="row">batch_size</th><td>16</td>', page)
    assert "● batch_size" not in page


def test_the_command_to_run_it_again_can_be_typed(tmp_path: Path) -> None:
    study = make_study(tmp_path / "my study", Plan(seeds=1, rows=60, budgets=(400,), samples=20))
    page = render(read([study]))
    assert f"headstart compare &#39;{study}/study.toml&#39; --out &#39;{study}-again&#39;" in page
    assert "study = &#34;compare&#34;" in page  # the recipe itself


def test_many_classes_have_a_list_in_place_of_a_matrix(tmp_path: Path) -> None:
    labels = tuple(f"class {k}" for k in range(20))
    page = render(read([make_study(tmp_path / "many", Plan(classes=labels, seeds=1, budgets=(400,), samples=20))]))
    assert "With 20 classes: the commonest confusions." in page and 'aria-label="Confusion of' not in page


def test_a_pretraining_by_itself_has_a_page(books: Path, tmp_path: Path) -> None:
    page = render(read([make_pretraining(tmp_path / "masked", objective="masked")]))
    found = Outline(page).found
    assert found["h1"] == ["Pretraining: masked"]
    assert found["h2"] == ["Pretraining: masked", "Parameters by block"]
    assert "Loss by step" in page and "Bits per byte by step" not in page
    assert "Bits per byte by step" in render(read([books.parent / "base"]))


def test_the_least_there_can_be_has_a_page(tmp_path: Path) -> None:
    """One epoch, one seed: no line has two points, and no interval is wide."""
    plan = Plan(seeds=1, rows=60, budgets=(400,), epochs=1, samples=20, leaked=())
    outline = Outline(render(read([make_study(tmp_path / "small", plan)])))
    assert outline.found["h2"][:3] == ["Final accuracy", "Differences", "Class by class"]


def test_a_large_study_stays_under_two_megabytes(tmp_path: Path) -> None:
    skills = (("scratch", 1.3), ("frozen", 1.2), ("full:causal", 1.6), ("full:masked", 1.7))
    budgets = (50, 100, 200, 400, 800, 1600)
    plan = Plan(skills=skills, seeds=5, rows=2000, budgets=budgets, samples=20, text="a text of many words " * 200)
    page = render(read([make_study(tmp_path / "large", plan, pretraining=make_pretraining(tmp_path / "base"))]))
    assert len(page.encode()) < 2_000_000


# --- a sweep ---


def test_a_sweep_begins_with_its_best_trial(tuned: Path) -> None:
    page = render(read([tuned]))
    found = Sweep.from_json(json.loads((tuned / "sweep.json").read_text()))
    best = found.best
    assert best is not None and best.valid is not None and best.test is not None
    number = 1 + found.trials.index(best)
    outline = Outline(page)
    assert outline.found["h1"] == [
        f"Best on valid is trial {number} of 12: accuracy {best.valid['accuracy']:.3f}, "
        f"and {best.test['accuracy']:.3f} on test"
    ]
    chosen = f"learning rate 0.0001, batch size {best.settings['batch_size']} and mode {best.settings['mode']}"
    assert f"<strong>The best trial has {chosen}.</strong>" in page
    assert "<p>12 trials: 9 done, 1 failed, 2 pruned.</p>" in page and "the highest of 9 on valid" in page
    assert outline.found["h2"] == ["Trials", "Setting by setting", "Settings", "To run it again"]
    assert f"headstart sweep {tuned}/study.toml --out {tuned}-again" in page


def test_every_trial_is_a_row_with_how_it_ended(tuned: Path) -> None:
    page = render(read([tuned]))
    found = Sweep.from_json(json.loads((tuned / "sweep.json").read_text()))
    body = page.split("<tbody>")[1].split("</tbody>")[0]
    rows = [
        re.sub(r"<(?!/t[hd]>)[^>]*>", "", row).replace("</th>", "|").replace("</td>", "|")
        for row in body.split("<tr>")[1:]
    ]
    assert len(rows) == 12
    for number, (trial, row) in enumerate(zip(found.trials, rows, strict=True), start=1):
        cells = row.split("|")
        assert cells[0] == (f"{number} best" if trial.best else str(number))
        assert cells[2:4] == [str(trial.settings["batch_size"]), trial.settings["mode"]]
        if trial.valid is not None and trial.test is not None:
            assert cells[4:6] == [f"{scores['accuracy']:.4f}" for scores in (trial.valid, trial.test)]
    assert rows[9].split("|")[-2] == "pruned at epoch 2" and rows[8].split("|")[-2] == "done"
    assert rows[11].split("|")[-2] == "failed the loss became nan at step 11: &lt;lower&gt; the learning rate"


def test_the_figure_of_a_sweep_is_against_its_one_number(tuned: Path, tmp_path: Path) -> None:
    def figures(page: str) -> list[str]:
        return re.findall(r'<svg[^>]*aria-label="(Accuracy[^"]*)"', page)

    one = make_sweep(tmp_path / "one", {"lr": [1e-5, 1e-4]})
    assert figures(render(read([one]))) == ["Accuracy on valid by learning rate"]
    word = make_sweep(tmp_path / "word", {"mode": ["full", "frozen"]})
    assert figures(render(read([word]))) == ["Accuracy on valid, trial by trial"]
    assert figures(render(read([tuned]))) == [
        "Accuracy on valid, trial by trial",
        "Accuracy on valid by learning rate",
        "Accuracy on valid by batch size",
    ]


def test_the_settings_that_all_trials_share_are_told(tuned: Path) -> None:
    page = render(read([tuned]))
    assert '<th scope="row">window</th><td>256</td>' in page and '<th scope="row">epochs</th><td>3</td>' in page
    assert '<th scope="row">lr</th>' not in page and '<th scope="row">mode</th>' not in page


def test_a_sweep_without_a_score_has_a_page(tmp_path: Path) -> None:
    page = render(read([make_sweep(tmp_path / "none", {"lr": [1.0, 2.0]}, failed=2)]))
    assert Outline(page).found["h1"] == ["No trial has a score on valid"]
    assert "<svg" not in page and "2 trials: 2 failed." in page


def test_a_sweep_stands_after_the_studies(books: Path, tuned: Path) -> None:
    outline = Outline(render(read([tuned, books])))
    assert [head[:12] for head in outline.found["h1"]] == ["Use the fine", "Best on vali"]


# --- words ---


def test_a_minus_is_no_hyphen(books: Path) -> None:
    records = read([books])
    comparison = replace(
        records.studies[0].comparison,
        title="Worse (-6.6 points, 95 % interval -8.4 to -4.7).",
        verdict=("-1 is **worse by -2 <b>** and",),
    )
    page = render(Records((replace(records.studies[0], comparison=comparison),), (), ()))
    assert (
        "<h1>Worse (\u22126.6 points, 95\xa0% interval \u22128.4 to \u22124.7).</h1>" in page
        and "<p>\u22121 is <strong>worse by \u22122 &lt;b&gt;</strong> and</p>" in page
    )


def test_advice_that_asks_has_no_further_stop(books: Path, tmp_path: Path) -> None:
    study = shutil.copytree(books, tmp_path / "study")
    data = json.loads((study / "data.json").read_text())
    data["doctor"]["findings"][0]["advice"] = "is that meant?"
    data["doctor"]["findings"][1]["advice"] = "look at them"
    (study / "data.json").write_text(json.dumps(data))
    page = render(read([study]))
    assert ">Is that meant?</span>" in page and ">Look at them.</span>" in page

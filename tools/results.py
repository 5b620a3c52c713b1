"""What was measured, as files, and docs/results.md made from them.

    python tools/results.py add STUDY --name cls-books-lab --title "…" --command "recipes/cls-books-lab.sh DATA OUT"

writes docs/results/cls-books-lab.json from the folder of a comparison, of a sweep or of one run. Then
`python tools/generate.py` puts its tables where docs/results.md has

    <!-- result cls-books-lab -->
    <!-- end -->

and a line at its top for each arm that --overview names. Where the study has curves by epoch, it draws
docs/images/cls-books-lab.svg; with --picture, `add` puts a picture of the top of its report beside it (the mistakes
further down are texts of the data). Every file has its place on the page, and every place its file. Nothing is typed in
by hand but the title, the command, the words of the overview, and what others report.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headstart.checkpoints.folder import read_json
from headstart.config import read_toml
from headstart.report import blocks, charts
from headstart.report.charts import Look, Series
from headstart.runs.comparison import ArmResult, Comparison, Estimate, valid_accuracy
from headstart.runs.events import Evaluated
from headstart.runs.run import RunFolder
from headstart.studies import statistics
from headstart.studies.outcomes import read_run
from headstart.studies.statistics import ArmPredictions
from headstart.studies.trials import Sweep, plain, shown

DOCS = Path(__file__).parents[1] / "docs"
RESULTS, IMAGES, PAGE, README = DOCS / "results", DOCS / "images", DOCS / "results.md", DOCS.parent / "README.md"
PLACE = re.compile(r"<!-- result (?P<name>[\w-]+) -->\n(?P<text>.*?)<!-- end -->\n", re.DOTALL)
OVERVIEW = re.compile(r"<!-- overview(?P<names>[\w -]*) -->\n.*?<!-- end -->\n", re.DOTALL)
NAMES = {"tfidf": "TF-IDF and logistic regression", "majority": "commonest class"}
STYLE = Path(charts.__file__).parent / "templates" / "style.css"


# --- from a study folder to a file -----------------------------------------------------------------------------------


def gather(study: Path, **about: Any) -> dict[str, Any]:
    """All that the page says of a study: `about` is what no folder knows (title, command, what others report)."""
    if (study / "comparison.json").is_file():
        found = _comparison(study)
    elif (study / "sweep.json").is_file():
        found = _sweep(study)
    else:
        found = _run(study)
    return {**{name: value for name, value in about.items() if value}, **found}


def _comparison(study: Path) -> dict[str, Any]:
    found = Comparison.from_json(read_json(study / "comparison.json"))
    runs = [study / run.path for arm in (found.curves or found.arms) for run in arm.runs]
    budgets = sorted({arm.labels for arm in found.curves})
    return {
        "rows": [_arm_row(arm) for arm in sorted(found.arms, key=lambda arm: -arm.scores["accuracy"].value)],
        "differences": [
            *(_difference(each.arm, each.reference, each.scores, each.holm) for each in found.differences),
            *_further(study, found),
        ],
        "budgets": budgets,
        "curves": {
            name: {str(a.labels): _rounded(a.scores["accuracy"]) for a in found.curves if a.name == name}
            for name in dict.fromkeys(arm.name for arm in found.curves)
        },
        "verdict": list(found.verdict),
        "test_rows": found.rows,
        "leaked_rows": found.leaked,
        "epochs": _epochs(study, found.arms),
        **_surroundings(runs),
    }


def _further(study: Path, found: Comparison) -> list[dict[str, Any]]:
    """Differences that the study did not work out: of models trained in full, and of each from the linear model.

    A study holds its best base against the others, and its best arm against the linear model. Holm's correction here
    counts the study's differences too, whose own stay as its verdict has them.
    """
    full = [arm for arm in found.arms if arm.mode == "full"]
    linear = [arm for arm in found.arms if arm.name == "tfidf"]
    pairs = [
        (one, other)
        for k, one in enumerate(full)
        for other in (*full[k + 1 :], *linear)
        if found.difference(one.name, other.name) is None
    ]
    outcomes = {arm.name: _outcome(study, arm) for pair in pairs for arm in pair}
    made = [statistics.difference(outcomes[one.name], outcomes[other.name]) for one, other in pairs]
    corrected = statistics.holm([*(each.p for each in found.differences), *(each.p for each in made)])
    return [
        _difference(one.name, other.name, each.scores, p)
        for (one, other), each, p in zip(pairs, made, corrected[len(found.differences) :], strict=True)
    ]


def _difference(arm: str, reference: str, scores: Mapping[str, Estimate], holm: float) -> dict[str, Any]:
    return {"arm": arm, "reference": reference, **_rounded(scores["accuracy"]), "holm": round(holm, 4)}


def _outcome(study: Path, arm: ArmResult) -> ArmPredictions:
    answers = [read_run(study / run.path).test for run in arm.runs]
    return ArmPredictions(np.stack([each.probabilities for each in answers]), answers[0].labels)


def _arm_row(arm: ArmResult) -> dict[str, Any]:
    row = {"arm": arm.name, "valid": round(valid_accuracy(arm), 4), "test": _rounded(arm.scores["accuracy"])}
    if arm.leak_free is not None:
        row["leak_free"] = _rounded(arm.leak_free["accuracy"])
    return {**row, "seeds": [run.seed for run in arm.runs] if arm.trained or arm.mode == "ensemble" else []}


def _epochs(study: Path, arms: Sequence[ArmResult]) -> dict[str, list[list[float]]]:
    """For each arm that trains: epoch, mean, lowest and highest accuracy on valid."""
    curves: dict[str, list[list[float]]] = {}
    for arm in (each for each in arms if each.trained):
        found: dict[float, list[float]] = {}
        for run in arm.runs:
            for event in RunFolder(study / run.path).events():
                if isinstance(event, Evaluated):
                    found.setdefault(event.epoch, []).append(event.scores["accuracy"])
        curves[arm.name] = [
            [epoch, *(round(value, 4) for value in (sum(values) / len(values), min(values), max(values)))]
            for epoch, values in sorted(found.items())
        ]
    return curves


def _sweep(study: Path) -> dict[str, Any]:
    found = Sweep.from_json(read_json(study / "sweep.json"))
    rows = [
        {
            "settings": {plain(name): shown(trial.settings[name]) for name in found.swept},
            "best": trial.best,
            "valid": None if trial.valid is None else round(trial.valid["accuracy"], 4),
            "test": None if trial.test is None else round(trial.test["accuracy"], 4),
            "ended": trial.error or (trial.pruned and f"pruned at epoch {trial.pruned}"),
        }
        for trial in found.trials
    ]
    done = [study / trial.run for trial in found.trials if (study / trial.run / "manifest.json").is_file()]
    return {"rows": rows, "verdict": [found.doubt] if found.doubt else [], **_surroundings(done)}


def _run(study: Path) -> dict[str, Any]:
    result = read_json(study / "result.json")
    row = {"arm": str(result.get("mode", "")), "seeds": [read_toml(study / "run.toml").get("seed", 0)]}
    scores = {name: round(result[name]["accuracy"], 4) for name in ("valid", "test") if result.get(name)}
    return {"rows": [{**row, **scores}], **_surroundings([study])}


def _surroundings(runs: Sequence[Path]) -> dict[str, Any]:
    """Where and when; and a digest of the runs' manifests, which say the rest."""
    manifests = [(run / "manifest.json").read_bytes() for run in runs]
    read = [json.loads(each) for each in manifests]
    gpus = list(dict.fromkeys(each["gpu"] for each in read if "gpu" in each))
    cores = list(dict.fromkeys(f"{each['cores']} cores of {each['processor']}" for each in read))
    precisions = list(dict.fromkeys(each["precision"] for each in read if "precision" in each))
    return {
        "hardware": ", ".join([*(f"one {name}" for name in gpus), *([] if gpus else cores), *precisions]),
        "date": max(each["finished"] for each in read)[:10],
        "seconds": round(sum(each["seconds"] for each in read), 1),
        "runs": len(read),
        "headstart": read[0]["headstart"],
        "manifests": hashlib.sha256(b"".join(sorted(manifests))).hexdigest()[:16],
    }


def _rounded(found: Estimate) -> dict[str, float]:
    return {"value": round(found.value, 6), "low": round(found.low, 6), "high": round(found.high, 6)}  # shown in three


# --- from files to the page ------------------------------------------------------------------------------------------


def page() -> str:
    """docs/results.md with every table made anew."""
    files = _files()
    text = PAGE.read_text(encoding="utf-8")
    places = [match["name"] for match in PLACE.finditer(text)]
    problems = [f"{name}.json has no place on the page" for name in files if name not in places]
    problems += [f"the page has a place for {name}, and there is no such file" for name in places if name not in files]
    if problems:
        raise SystemExit(f"{PAGE}: {'; '.join(problems)}")
    text = PLACE.sub(lambda match: _place(match["name"], files[match["name"]]), text)
    lines = markdown(_overview([files[name] for name in places], reported=True))
    return OVERVIEW.sub(lambda match: f"<!-- overview -->\n{lines}\n<!-- end -->\n", text)


def readme() -> str:
    """README.md with its part of the overview made anew: the files that it names."""
    files = _files()

    def part(match: re.Match[str]) -> str:
        lines = markdown(_overview([files[name] for name in match["names"].split()], reported=False))
        return f"<!-- overview{match['names']} -->\n{lines}\n<!-- end -->\n"

    return OVERVIEW.sub(part, README.read_text(encoding="utf-8"))


def _files() -> dict[str, dict[str, Any]]:
    return {path.stem: read_json(path) for path in sorted(RESULTS.glob("*.json"))}


def figures() -> dict[str, str]:
    """The figures of accuracy by epoch, by their file's name."""
    return {f"{name}.svg": _figure(each) for name, each in _files().items() if each.get("epochs")}


def _overview(files: Iterable[Mapping[str, Any]], *, reported: bool) -> dict[str, list[str]]:
    """A line for each arm that a file names: its score beside the model from scratch and the linear one."""
    columns: dict[str, list[str]] = {}
    for found in files:
        test = {row["arm"]: row.get("test") for row in found["rows"] if "arm" in row}
        for arm, label in found.get("overview", {}).items():
            line = {
                "": label,
                "from scratch": score(test.get("scratch")),
                "TF-IDF": score(test.get("tfidf")),
                "pretrained": score(test[arm]),
                "− scratch, points": _held_against(found, arm, "scratch"),
                "− TF-IDF, points": _held_against(found, arm, "tfidf"),
                "reported elsewhere": found.get("reported", {}).get(arm, ""),
            }
            for name, value in line.items():
                if reported or name != "reported elsewhere":
                    columns.setdefault(name, []).append(value)
    return columns


def _held_against(found: Mapping[str, Any], arm: str, other: str) -> str:
    """Their difference in points, whichever way round the study has it."""
    for each in found.get("differences", []):
        if (each["arm"], each["reference"]) == (arm, other):
            return points(each)
        if (each["arm"], each["reference"]) == (other, arm):
            return points({"value": -each["value"], "low": -each["high"], "high": -each["low"]})
    return ""


def _place(name: str, found: Mapping[str, Any]) -> str:
    parts = [f"**{found['title']}**" if "title" in found else "", _table(found["rows"], found.get("reported"))]
    parts += [_differences(found), _budgets(found), " ".join(found.get("verdict", [])), found.get("note", "")]
    if found.get("epochs"):
        parts.append(
            f"![Accuracy on valid by epoch: the mean over seeds, from the lowest to the highest](images/{name}.svg)"
        )
    if _report(name).is_file():
        parts.append(f"![The top of its report: the verdict, and accuracy by arm](images/{_report(name).name})")
    parts.append(_where(found))
    body = "\n\n".join(part for part in parts if part)
    return f"<!-- result {name} -->\n{body}\n<!-- end -->\n"


def _report(name: str) -> Path:
    return IMAGES / f"report-{name}.png"


def _table(rows: Sequence[Mapping[str, Any]], reported: Mapping[str, str] | None) -> str:
    if not rows:
        return ""
    settings = list(dict.fromkeys(name for row in rows for name in row.get("settings", {})))
    columns: dict[str, list[str]] = {}
    if any("arm" in row for row in rows):
        columns["what"] = [NAMES.get(row.get("arm", ""), row.get("arm", "")) for row in rows]
    for name in settings:
        columns[name] = [row["settings"].get(name, "") for row in rows]
    if reported:
        columns["reported elsewhere"] = [reported.get(row.get("arm", ""), "") for row in rows]
    for key, title in (("valid", "valid"), ("test", "test"), ("leak_free", "test without leaked rows")):
        if any(row.get(key) is not None for row in rows):
            columns[title] = [score(row.get(key)) for row in rows]
    if any(row.get("seeds") for row in rows):
        columns["seeds"] = [_seeds(row.get("seeds", [])) for row in rows]
    if any("best" in row for row in rows):
        columns[""] = ["best on valid" if row.get("best") else str(row.get("ended") or "") for row in rows]
    return markdown(columns)


def _differences(found: Mapping[str, Any]) -> str:
    said = [f"{each['arm']} − {each['reference']} {points(each)}" for each in found.get("differences", [])]
    return f"Differences in points: {'; '.join(said)}." if said else ""


def _budgets(found: Mapping[str, Any]) -> str:
    budgets = found.get("budgets", [])
    if not budgets:
        return ""
    columns = {"labels": [NAMES.get(name, name) for name in found["curves"]]}
    for budget in budgets:
        columns[f"{budget:,}"] = [score(curve.get(str(budget))) for curve in found["curves"].values()]
    return markdown(columns)


def _where(found: Mapping[str, Any]) -> str:
    said = [f"`{found['command']}`"] if "command" in found else []
    said += [found["hardware"], found["date"]]
    if "seconds" in found:
        said.append(f"{found['seconds']:,.0f} s of runs")
    if "manifests" in found:
        said.append(f"manifests {found['manifests']}")
    return " · ".join(said)


def score(value: Any) -> str:
    """
    >>> score(0.5), score({"value": 0.5, "low": 0.45, "high": 0.552})
    ('0.500', '0.500 (0.450 to 0.552)')
    """
    if value is None:
        return ""
    if isinstance(value, Mapping):
        interval = f" ({value['low']:.3f} to {value['high']:.3f})" if value.get("low") is not None else ""
        return f"{value['value']:.3f}{interval}"
    return f"{value:.3f}"


def points(found: Mapping[str, float]) -> str:
    """A difference in accuracy, in points.

    >>> points({"value": 0.027, "low": -0.004, "high": 0.048})
    '+2.7 (−0.4 to +4.8)'
    """
    return f"{signed(found['value'])} ({signed(found['low'])} to {signed(found['high'])})"


def signed(difference: float) -> str:
    """
    >>> signed(0.027), signed(-0.004)
    ('+2.7', '−0.4')
    """
    return blocks.signed(100 * difference)


def _seeds(seeds: Sequence[int]) -> str:
    """
    >>> _seeds([0, 1, 2, 3, 4]), _seeds([0, 2])
    ('0 to 4', '0, 2')
    """
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def markdown(columns: Mapping[str, Sequence[str]]) -> str:
    rows = [list(columns), ["---"] * len(columns), *map(list, zip(*columns.values(), strict=True))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _figure(found: Mapping[str, Any]) -> str:
    """A picture that stands by itself: the chart, with the style of the report inside."""
    curves = {name: curve for name, curve in found["epochs"].items() if curve}
    series = [
        Series(name, Look(number), tuple((e, m) for e, m, _, _ in curve), tuple((e, a, b) for e, _, a, b in curve))
        for number, (name, curve) in enumerate(curves.items())
    ]
    epochs = [epoch for curve in curves.values() for epoch, *_ in curve]
    values = [value for curve in curves.values() for _, *rest in curve for value in rest]
    x, y = charts.axis("epoch", [min(epochs), max(epochs)], whole=True), charts.axis("accuracy on valid", values)
    drawn = str(charts.lines("Accuracy on valid by epoch", series, x, y))
    style = f"<style>{STYLE.read_text(encoding='utf-8')}</style>"
    opening, rest = drawn.split(">", 1)
    named = opening.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f"{named}>{style}{rest}\n"


# --- the command -----------------------------------------------------------------------------------------------------


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    add = parser.add_subparsers(required=True).add_parser("add", help="a file from the folder of a study")
    add.add_argument("study", type=Path, help="the folder of a comparison, a sweep or a run")
    add.add_argument("--name", required=True, help="of the file in docs/results")
    add.add_argument("--title", required=True)
    add.add_argument("--command", required=True, help="what made it, as a reader would type it")
    add.add_argument("--note", default="", help="a sentence or two beneath the table")
    add.add_argument("--reported", action="append", default=[], metavar="ARM=FIGURE", help="what others report")
    add.add_argument("--overview", action="append", default=[], metavar="ARM=WORDS", help="its line in the overview")
    add.add_argument("--picture", action="store_true", help="of the top of its report too, which needs Chromium")
    given = parser.parse_args(None if arguments is None else list(arguments))
    about = {name: dict(each.split("=", 1) for each in getattr(given, name)) for name in ("reported", "overview")}
    found = gather(given.study, title=given.title, command=given.command, note=given.note, **about)
    write(RESULTS / f"{given.name}.json", found)
    if given.picture:
        from transcripts import take_picture

        take_picture(given.study / "report.html", _report(given.name))


def write(path: Path, found: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

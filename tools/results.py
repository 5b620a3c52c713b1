"""Measured results as files, and docs/results.md made from them.

    python tools/results.py add STUDY --name cls-books-lab --title "…" --command "recipes/cls-books-lab.sh DATA OUT"

writes docs/results/cls-books-lab.json from the folder of a comparison, a sweep or a single run. Then
`python tools/generate.py` fills docs/results.md between

    <!-- result cls-books-lab -->
    <!-- end -->

and adds a line to its overview for each arm that --overview names. A study with scores by epoch also gets a chart,
docs/images/cls-books-lab.svg. Every file has a section on the page, and every section a file. Nothing is typed by hand
but the title, the command, the words of the overview, what others report, and how often the test set had been scored.
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

import pictures
from headstart.files import read_json
from headstart.report import blocks
from headstart.runs.comparison import ArmResult, Comparison, Estimate, valid_accuracy
from headstart.runs.events import Evaluated
from headstart.runs.run import MANIFEST, RunFolder
from headstart.runs.study import StudyFolder
from headstart.runs.sweep import plain, shown
from headstart.studies import statistics
from headstart.studies.corrections import holm
from headstart.studies.outcomes import read_run
from headstart.studies.statistics import ArmPredictions

Json = Mapping[str, Any]

DOCS = Path(__file__).parents[1] / "docs"
RESULTS, IMAGES, PAGE, README = DOCS / "results", DOCS / "images", DOCS / "results.md", DOCS.parent / "README.md"
SECTION = re.compile(r"<!-- result (?P<name>[\w-]+) -->\n.*?<!-- end -->\n", re.DOTALL)
OVERVIEW = re.compile(r"<!-- overview(?P<names>[\w -]*) -->\n.*?<!-- end -->\n", re.DOTALL)
ALPHA = 0.05  # as in a verdict
LEAKED = 0.01  # of the test rows: where fewer leaked, scores without them are the same to a thousandth
NAMES = {
    "tfidf": "TF-IDF and logistic regression",
    "tfidf+self": "the same, self-trained",
    "majority": "commonest class",
}


# --- from a study folder to a file -----------------------------------------------------------------------------------


def from_folder(study: Path, **about: Any) -> dict[str, Any]:
    """What the page says of a study: `about` is what no folder knows (title, command, what others report)."""
    folder = StudyFolder(study)
    if folder.compared:
        content = _comparison(study)
    elif folder.swept:
        content = _sweep(study)
    else:
        content = _run(study)
    return {**{name: value for name, value in about.items() if value}, **content}


def _comparison(study: Path) -> dict[str, Any]:
    comparison = StudyFolder(study).comparison()
    arms, curves = comparison.arms, comparison.curves
    return {
        "rows": [_arm_row(arm) for arm in sorted(arms, key=lambda arm: -arm.scores["accuracy"].value)],
        "differences": [
            *(_difference(d.arm, d.reference, d.scores, d.holm) for d in comparison.differences),
            *_further_differences(study, comparison),
        ],
        "budgets": sorted({arm.budget for arm in curves}),
        "curves": {
            name: {str(arm.budget): _rounded(arm.scores["accuracy"]) for arm in curves if arm.name == name}
            for name in dict.fromkeys(arm.name for arm in curves)
        },
        "verdict": list(comparison.verdict),
        "test_rows": comparison.rows,
        "leaked_rows": comparison.leaked,
        "epochs": {arm.name: rows for arm in arms if arm.trained and (rows := _scores_by_epoch(study, arm))},
        **_provenance([study / run.path for arm in (curves or arms) for run in arm.runs]),
    }


def _further_differences(study: Path, comparison: Comparison) -> list[dict[str, Any]]:
    """Differences that the study did not compute: between models trained in full, and of each from the linear model.

    A study compares its best base with the others, and its best arm with the linear model. Holm's correction here
    counts the study's differences too; those keep the p-values that its verdict was made from.
    """
    full = [arm for arm in comparison.arms if arm.mode == "full"]
    linear = [arm for arm in comparison.arms if arm.name == "tfidf"]
    pairs = [
        (one, other)
        for k, one in enumerate(full)
        for other in (*full[k + 1 :], *linear)
        if comparison.difference(one.name, other.name) is None
    ]
    predictions = {arm.name: _predictions(study, arm) for pair in pairs for arm in pair}
    added = [statistics.difference(predictions[one.name], predictions[other.name]) for one, other in pairs]
    corrected = holm([*(d.p for d in comparison.differences), *(d.p for d in added)])
    return [
        _difference(one.name, other.name, d.scores, p)
        for (one, other), d, p in zip(pairs, added, corrected[len(comparison.differences) :], strict=True)
    ]


def _difference(arm: str, reference: str, scores: Mapping[str, Estimate], holm: float) -> dict[str, Any]:
    return {"arm": arm, "reference": reference, **_rounded(scores["accuracy"]), "holm": round(holm, 4)}


def _predictions(study: Path, arm: ArmResult) -> ArmPredictions:
    answers = [read_run(study / run.path).test for run in arm.runs]
    return ArmPredictions(np.stack([a.probabilities for a in answers]), answers[0].labels)


def _arm_row(arm: ArmResult) -> dict[str, Any]:
    row = {"arm": arm.name, "valid": round(valid_accuracy(arm), 4), "test": _rounded(arm.scores["accuracy"])}
    if arm.leak_free is not None:
        row["leak_free"] = _rounded(arm.leak_free["accuracy"])
    cost = {name: float(f"{value:.3g}") for name, value in vars(arm.cost).items() if value is not None}
    return {
        **row,
        **({"cost": cost} if cost else {}),
        "seeds": [run.seed for run in arm.runs] if arm.trained or arm.mode == "ensemble" else [],
        "runs": [round(run.test["accuracy"], 4) for run in arm.runs],  # on test, in the order of the seeds
    }


def _scores_by_epoch(study: Path, arm: ArmResult) -> list[list[float]]:
    """(epoch, mean, lowest, highest accuracy on valid) over the seeds."""
    by_epoch: dict[float, list[float]] = {}
    for run in arm.runs:
        for event in RunFolder(study / run.path).events():
            if isinstance(event, Evaluated):
                by_epoch.setdefault(event.epoch, []).append(event.scores["accuracy"])
    return [
        [epoch, *(round(value, 4) for value in (sum(values) / len(values), min(values), max(values)))]
        for epoch, values in sorted(by_epoch.items())
    ]


def _sweep(study: Path) -> dict[str, Any]:
    sweep = StudyFolder(study).sweep()
    rows = [
        {
            "settings": {plain(name): shown(trial.settings[name]) for name in sweep.swept},
            "best": trial.best,
            "valid": trial.valid and round(trial.valid["accuracy"], 4),
            "test": trial.test and round(trial.test["accuracy"], 4),
            "ended": trial.error or (trial.pruned and f"pruned at epoch {trial.pruned}"),
        }
        for trial in sweep.trials
    ]
    finished = [study / trial.run for trial in sweep.trials if RunFolder(study / trial.run).done]
    return {"rows": rows, "verdict": [sweep.significance] if sweep.significance else [], **_provenance(finished)}


def _run(study: Path) -> dict[str, Any]:
    run = RunFolder(study)
    result = run.result()
    row = {"arm": result.mode or "", "seeds": [run.settings().get("seed", 0)]}
    both = {"valid": result.valid, "test": result.test}
    scores = {name: round(scores["accuracy"], 4) for name, scores in both.items() if scores}
    return {"rows": [{**row, **scores}], **_provenance([study])}


def _provenance(runs: Sequence[Path]) -> dict[str, Any]:
    """Where and when it ran, and a digest of the runs' manifests, which say the rest."""
    files = [(run / MANIFEST).read_bytes() for run in runs]
    manifests = [RunFolder(run).manifest() for run in runs]
    gpus = list(dict.fromkeys(m.gpu for m in manifests if m.gpu))
    cores = list(dict.fromkeys(f"{m.cores} cores of {m.processor}" for m in manifests))
    precisions = list(dict.fromkeys(m.precision for m in manifests if m.precision))
    return {
        "hardware": ", ".join([*(f"one {name}" for name in gpus), *([] if gpus else cores), *precisions]),
        "date": max(m.finished or "" for m in manifests)[:10],
        "seconds": round(sum(m.seconds or 0.0 for m in manifests), 1),
        "runs": len(manifests),
        "headstart": manifests[0].headstart,
        "manifests": hashlib.sha256(b"".join(sorted(files))).hexdigest()[:16],
    }


def _rounded(estimate: Estimate) -> dict[str, float]:
    return {name: round(getattr(estimate, name), 6) for name in ("value", "low", "high")}


# --- from files to the page ------------------------------------------------------------------------------------------


def files() -> dict[str, str]:
    """The page, README.md and the charts of accuracy by epoch, by their paths from docs/."""
    epochs = {name: study["epochs"] for name, study in _read().items() if study.get("epochs")}
    charts = {f"images/{name}.svg": pictures.by_epoch(curves) for name, curves in epochs.items()}
    return {"results.md": page(), "../README.md": readme(), **charts}


def _read() -> dict[str, dict[str, Any]]:
    return {path.stem: read_json(path) for path in sorted(RESULTS.glob("*.json"))}


def page() -> str:
    """docs/results.md with every table made anew."""
    studies = _read()
    text = PAGE.read_text(encoding="utf-8")
    sections = [match["name"] for match in SECTION.finditer(text)]
    problems = [f"{name}.json has no section on the page" for name in studies if name not in sections]
    problems += [
        f"the page has a section for {name}, and there is no such file" for name in sections if name not in studies
    ]
    if problems:
        raise SystemExit(f"{PAGE}: {'; '.join(problems)}")
    text = SECTION.sub(lambda match: _section(match["name"], studies[match["name"]]), text)
    lines = _overview([studies[name] for name in sections], looks=True)
    return OVERVIEW.sub(lambda match: f"<!-- overview -->\n{lines}\n<!-- end -->\n", text)


def readme() -> str:
    """README.md with its part of the overview made anew: the files that it names."""
    studies = _read()

    def part(match: re.Match[str]) -> str:
        lines = _overview([studies[name] for name in match["names"].split()], looks=False)
        return f"<!-- overview{match['names']} -->\n{lines}\n<!-- end -->\n"

    return OVERVIEW.sub(part, README.read_text(encoding="utf-8"))


def _overview(studies: Iterable[Json], *, looks: bool) -> str:
    """A line for each arm that a file names: its score, and its differences from scratch and from the linear model."""
    lines = []
    for study in studies:
        test = {row["arm"]: row.get("test") for row in study["rows"] if "arm" in row}
        for arm, label in study.get("overview", {}).items():
            line = {
                "": label,
                "from scratch": score(test.get("scratch")),
                "TF-IDF": score(test.get("tfidf")),
                "pretrained": score(test[arm]),
                "− scratch, points": points(difference(study, arm, "scratch")),
                "− TF-IDF, points": points(difference(study, arm, "tfidf")),
            }
            lines.append(line | ({"looks at test": _looks(study)} if looks else {}))
    return markdown({name: [line[name] for line in lines] for name in lines[0]} if lines else {})


def difference(study: Json, arm: str, reference: str) -> dict[str, Any] | None:
    """An arm minus another, whichever way round the study has the two; None where it has neither."""
    for d in study.get("differences", []):
        if (d["arm"], d["reference"]) == (arm, reference):
            return dict(d)
        if (d["arm"], d["reference"]) == (reference, arm):
            return {**d, "value": -d["value"], "low": -d["high"], "high": -d["low"]}
    return None


def _looks(study: Json) -> str:
    """How many studies had been scored on this test set when this one was; only those that were written down count."""
    return f"at least {study['looks']}" if "looks" in study else ""


def _section(name: str, study: Json) -> str:
    swept = any("settings" in row for row in study["rows"])
    parts: list[str] = [
        f"**{study['title']}**" if "title" in study else "",
        _trials(study["rows"]) if swept else _table(study),
        _differences(study),
        markdown(budget_columns(study, {arm: NAMES.get(arm, arm) for arm in study.get("curves", {})})),
        " ".join(study.get("verdict", [])) if swept else "",
        study.get("note", ""),
        _origin(name, study),
    ]
    body = "\n\n".join(part for part in parts if part)
    return f"<!-- result {name} -->\n{body}\n<!-- end -->\n"


def _trials(rows: Sequence[Json]) -> str:
    """The range over the trials of a sweep, and the one that was chosen."""
    finished = [row for row in rows if row["valid"] is not None]
    ranges = []
    for split in ("valid", "test"):
        scores = [row[split] for row in finished if row[split] is not None]
        ranges += [f"{split} {min(scores):.3f} to {max(scores):.3f}"] if scores else []
    [best] = [row for row in rows if row["best"]]
    settings = ", ".join(f"{name} {value}" for name, value in best["settings"].items())
    chosen = ", ".join(f"{split} {score(best[split])}" for split in ("valid", "test") if best[split] is not None)
    return f"{len(rows)} trials: {', '.join(ranges)}. Best on valid: {settings}: {chosen}."


def _table(study: Json) -> str:
    """The columns that have anything in them. The commonest class stands in the table of the data sets."""
    rows, reported = [row for row in study["rows"] if row.get("arm") != "majority"], study.get("reported", {})
    leaked = study.get("leaked_rows", 0) >= LEAKED * study.get("test_rows", 0)
    arms = [str(row.get("arm", "")) for row in rows]
    columns = {
        "what": [NAMES.get(arm, arm) for arm in arms],
        "valid": [score(row.get("valid")) for row in rows],
        "test": [score(row.get("test")) for row in rows],
        "test without leaked rows": [score(row.get("leak_free")) if leaked else "" for row in rows],
        "reported elsewhere": [reported.get(arm, "") for arm in arms],
    }
    return markdown({title: column for title, column in columns.items() if any(column)})


def _differences(study: Json) -> str:
    """Those that are significant without Holm's correction alone are marked."""
    phrases = [
        f"{d['arm']} − {d['reference']} {points(d)}{'' if d['low'] <= 0 <= d['high'] or d['holm'] < ALPHA else ' *'}"
        for d in study.get("differences", [])
    ]
    mark = " (*: not significant after Holm's correction.)" if any(phrase.endswith("*") for phrase in phrases) else ""
    return f"Differences in points: {'; '.join(phrases)}.{mark}" if phrases else ""


def budget_columns(study: Json, names: Mapping[str, str]) -> dict[str, list[str]]:
    """The scores of the arms by the number of labels."""
    if not study.get("budgets"):
        return {}
    names = {arm: name for arm, name in names.items() if arm != "majority"}
    columns = {"labels": list(names.values())}
    for budget in study["budgets"]:
        columns[f"{budget:,}"] = [score(study["curves"][arm].get(str(budget))) for arm in names]
    return columns


def _origin(name: str, study: Json) -> str:
    """The command, seeds, hardware, date, time it took, digest of the manifests, looks at test, chart."""
    seeds = sorted({seed for row in study["rows"] for seed in row.get("seeds", [])})
    parts = [f"`{study['command']}`"] if "command" in study else []
    parts += [f"seeds {_seeds(seeds)}"] if seeds else []
    parts += [study["hardware"], study["date"]]
    parts += [f"{study['seconds']:,.0f} s of runs"] if "seconds" in study else []
    parts += [f"manifests {study['manifests']}"] if "manifests" in study else []
    parts += [f"looks at test: {_looks(study)}"] if "looks" in study else []
    parts += [f"[by epoch](images/{name}.svg)"] if study.get("epochs") else []
    return " · ".join(parts)


def value(score: float | Mapping[str, float]) -> float:
    return score["value"] if isinstance(score, Mapping) else score


def score(number: float | Mapping[str, float] | None) -> str:
    """A score to three digits, with its interval where it has one.

    >>> score(0.5), score({"value": 0.5, "low": 0.45, "high": 0.552}), score(None)
    ('0.500', '0.500 (0.450 to 0.552)', '')
    """
    if number is None:
        return ""
    interval = f" ({number['low']:.3f} to {number['high']:.3f})" if isinstance(number, Mapping) else ""
    return f"{value(number):.3f}{interval}"


def points(difference: Mapping[str, float] | None) -> str:
    """A difference in accuracy, in points.

    >>> points({"value": 0.027, "low": -0.004, "high": 0.048})
    '+2.7 (−0.4 to +4.8)'
    """
    if difference is None:
        return ""
    return f"{signed(difference['value'])} ({signed(difference['low'])} to {signed(difference['high'])})"


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
    return "\n".join(f"| {' | '.join(row)} |" for row in rows if row)


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
    add.add_argument("--looks", type=int, help="studies scored on this test set so far, this one included")
    given = parser.parse_args(None if arguments is None else list(arguments))
    about = {name: dict(pair.split("=", 1) for pair in getattr(given, name)) for name in ("reported", "overview")}
    words = {name: getattr(given, name) for name in ("title", "command", "note", "looks")}
    write(RESULTS / f"{given.name}.json", from_folder(given.study, **words, **about))


def write(path: Path, content: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

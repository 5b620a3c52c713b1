"""What the page says about how a study was made: its settings, versions, fingerprints, and the way to run it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headstart.config import to_toml
from headstart.report.blocks import METRICS, Block, Code, Findings, Section, Table, Words, command, distinct_values
from headstart.report.records import Arm, Study
from headstart.runs.manifest import Manifest
from headstart.runs.study import StudyData
from headstart.wording import plural

VERSIONS = ("headstart", "python", "torch", "numpy", "platform", "processor", "cores", "gpu", "precision")


def doctor(study: Study) -> Section | None:
    report = study.data.doctor
    if not report:
        return None
    rows = tuple(
        (
            split["name"],
            f"{split['rows']:,}",
            _balance(split["balance"]),
            *(f"{split['words'][key]:.0f}" for key in ("median", "most", "longest")),
        )
        for split in report["splits"]
    )
    head = ("split", ">rows", "~labels", ">words: median", ">95th percentile", ">longest")
    unexamined = (each.partition(":")[0] for each in report["unexamined"])  # without the option to add
    findings = Findings(tuple(report["findings"]), tuple(unexamined))
    return Section("What the doctor found in the data", (Table(head, rows), findings))


def _balance(shares: Mapping[str, float]) -> str:
    """The share of each label, of at most eight.

    >>> _balance({"neg": 0.6, "pos": 0.4})
    'neg 60.0 %, pos 40.0 %'
    """
    shown = [f"{label} {100 * share:.1f} %" for label, share in list(shares.items())[:8]]
    return ", ".join([*shown, *([f"and {len(shares) - 8} more"] if len(shares) > 8 else [])])


def settings(study: Study) -> Section:
    neural = [arm for arm in study.arms if arm.result.trained]
    rest = [arm for arm in study.arms if not arm.result.trained]
    tables = [*_settings_tables(neural, "arm"), *_settings_tables(rest, "baseline")]
    return Section(
        "Settings",
        (Words("What differs between the arms is marked ●; what is the same in all of them is folded away."), *tables),
    )


def _settings_tables(arms: Sequence[Arm], noun: str) -> list[Table]:
    if not arms:
        return []
    keys = dict.fromkeys(key for arm in arms for run in arm.runs for key in run.settings)
    by_arm = {key: [distinct_values(run.settings.get(key) for run in arm.runs) for arm in arms] for key in keys}
    differ = {key: values for key, values in by_arm.items() if len(set(values)) > 1}
    same = {key: values[0] for key, values in by_arm.items() if key not in differ}
    tables = []
    if differ:
        rows = tuple((f"● {key}", *values) for key, values in differ.items())
        tables.append(Table(("setting", *(arm.result.name for arm in arms)), rows))
    return [*tables, shared_settings(same, noun)] if same else tables


def shared_settings(settings: Mapping[str, str], noun: str) -> Table:
    """The settings that are the same in every run, folded away."""
    title = f"The same in every {noun}: {plural(len(settings), 'setting')}"
    return Table(("setting", "value"), tuple(settings.items()), folded=title)


def rerun(study: Study) -> Section:
    blocks: list[Block] = []
    if study.settings.get("study") == "compare":
        blocks += rerun_study("compare", study.path, study.settings)
    else:
        lines = [
            command("finetune", f"{run.path}/run.toml", f"{run.path}-again") for arm in study.arms for run in arm.runs
        ]
        blocks += [Words("To run them again, from the folder they were first run in:"), Code("\n".join(lines))]
    blocks += provenance([run.manifest for arm in study.arms for run in arm.runs], study.data)
    return Section("To run it again", (*blocks, _runs_table(study)))


def rerun_study(verb: str, path: str, settings: Mapping[str, Any]) -> list[Block]:
    """The command that makes the same study anew, and the recipe that it reads."""
    return [
        Words("To run it again, from the folder it was first run in:"),
        Code(command(verb, f"{path}/study.toml", f"{path}-again")),
        Code(to_toml(settings), folded="study.toml"),
    ]


def provenance(manifests: Sequence[Manifest], data: StudyData) -> list[Table]:
    """Versions, hardware and fingerprints, of all the runs together."""
    rows = [
        (key, distinct_values(getattr(m, key) for m in manifests if getattr(m, key) is not None)) for key in VERSIONS
    ]
    finished = sorted(m.finished for m in manifests if m.finished)
    rows += [("finished", " to ".join(dict.fromkeys((finished[0], finished[-1]))))] if finished else []
    prints = [
        (f"data: {name}", digest, f"{data.rows.get(name, 0):,} rows") for name, digest in data.fingerprint.items()
    ]
    prints += [("tokenizer", digest, "") for digest in dict.fromkeys(m.tokenizer for m in manifests if m.tokenizer)]
    tables = [Table(("", ""), tuple(row for row in rows if row[1]), "Versions and hardware")]
    return tables + ([Table(("", "fingerprint", ""), tuple(prints), "Fingerprints")] if prints else [])


def _runs_table(study: Study) -> Table:
    """Every run there is, with its scores."""
    arms = study.comparison.curves or study.comparison.arms
    rows = tuple(
        (
            arm.name,
            f"{arm.budget:,}" if arm.budget else "all",
            str(run.seed),
            f"{run.valid['accuracy']:.3f}",
            *(f"{run.test[metric]:.3f}" if metric in run.test else "" for metric in METRICS),
            run.degenerate or "",
            run.path,
        )
        for arm in arms
        for run in arm.runs
    )
    scored = tuple(f">{study.split} {name}" for name in METRICS.values())
    head = ("arm", ">labels", ">seed", ">valid accuracy", *scored, "degenerate", "folder")
    return Table(head, rows, folded=f"Every run: {len(rows):,}")

"""The folder of a study of many runs.

study.toml        the settings, enough to run it again
data.json         the data: a digest of each split, rows, classes; leaked rows and the doctor's findings
runs/             the run folders
comparison.json   what `headstart compare` found
sweep.json        what `headstart sweep` found
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headstart.config import read_toml, to_toml
from headstart.errors import DataError
from headstart.files import write_json, write_text
from headstart.runs.comparison import Comparison
from headstart.runs.records import read_record
from headstart.runs.run import RUN, RunFolder
from headstart.runs.sweep import Sweep

STUDY, DATA, COMPARISON, SWEEP = "study.toml", "data.json", "comparison.json", "sweep.json"


@dataclass(frozen=True)
class StudyData:
    """data.json."""

    fingerprint: Mapping[str, str] = field(default_factory=dict)  # a digest of each split
    rows: Mapping[str, int] = field(default_factory=dict)  # of each split
    class_names: tuple[str, ...] = ()
    leaked: tuple[int, ...] | None = None  # rows of test that stand in train or valid
    doctor: Mapping[str, Any] | None = None  # the findings in the data

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StudyData:
        leaked = values.get("leaked")
        return cls(
            fingerprint=values["fingerprint"],
            rows=values["rows"],
            class_names=tuple(values["labels"]),
            leaked=None if leaked is None else tuple(leaked),
            doctor=values.get("doctor"),
        )


class StudyFolder:
    """A comparison or a sweep on disk; each file is read when it is asked for."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.runs = self.path / "runs"

    @property
    def begun(self) -> bool:
        return (self.path / STUDY).is_file()

    @property
    def compared(self) -> bool:
        return (self.path / COMPARISON).is_file()

    @property
    def swept(self) -> bool:
        return (self.path / SWEEP).is_file()

    def done(self) -> list[RunFolder]:
        """The runs that are done, by name."""
        return [run for run in map(RunFolder, sorted(self.runs.glob("*"))) if run.done]

    def settings(self) -> dict[str, Any]:
        return read_toml(self.path / STUDY)

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        write_text(self.path / STUDY, to_toml(settings))

    def data(self) -> StudyData | None:
        """None where it was not written."""
        if not (self.path / DATA).is_file():
            return None
        return read_record(self.path / DATA, StudyData.from_json)

    def write_data(self, data: StudyData) -> None:
        values: dict[str, Any] = {"format": 1, "fingerprint": dict(data.fingerprint), "rows": dict(data.rows)}
        values["labels"] = list(data.class_names)
        if data.leaked is not None:
            values |= {"leaked": list(data.leaked), "doctor": data.doctor}
        write_json(self.path / DATA, values)

    def comparison(self) -> Comparison:
        if not self.compared:
            raise DataError(self.path, "the comparison is not done", fix="run the same `headstart compare` again")
        return read_record(self.path / COMPARISON, Comparison.from_json)

    def write_comparison(self, comparison: Comparison) -> None:
        write_json(self.path / COMPARISON, comparison.to_json())

    def sweep(self) -> Sweep:
        if not self.swept:
            fix = "run the same `headstart sweep` with --resume"
            raise DataError(self.path, "no trial of the sweep is done", fix=fix)
        return read_record(self.path / SWEEP, Sweep.from_json)

    def write_sweep(self, sweep: Sweep) -> None:
        write_json(self.path / SWEEP, sweep.to_json())


def study_of(path: Path) -> str:
    """Which command wrote a folder: `compare`, `sweep`, `finetune`, `pretrain`."""
    for name in (STUDY, RUN):
        if (path / name).is_file():
            return str(read_toml(path / name).get("study"))
    raise DataError(
        path,
        f"there is no {STUDY} and no {RUN} in it" if path.exists() else "no such folder",
        fix="name a folder that headstart wrote a study or a run to",
    )

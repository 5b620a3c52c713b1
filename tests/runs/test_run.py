from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headstart.errors import DataError, OutputError
from headstart.runs.manifest import Manifest
from headstart.runs.run import RunFolder, lock_run

SETTINGS: dict[str, Any] = {"study": "finetune", "lr": 0.001, "mode": "full", "names": ["a", "b"]}


def begin(path: Path, *, resume: bool = False, patience: float = 0.0, **changes: Any) -> RunFolder:
    """Lock the folder of a run, and release it."""
    with lock_run(path, {**SETTINGS, **changes}, resume=resume, patience=patience):
        return RunFolder(path)


def test_settings_are_written_and_read_back(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    assert run.settings() == SETTINGS
    assert not run.done and run.events() == []


def test_a_run_is_resumed_only_if_asked(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    with pytest.raises(OutputError, match="was begun: add --resume"):
        begin(tmp_path / "run")
    assert begin(tmp_path / "run", resume=True).settings() == SETTINGS
    assert begin(tmp_path / "new", resume=True).settings() == SETTINGS


def test_a_folder_that_another_process_writes(tmp_path: Path) -> None:
    """The error names the other process; once it is dead, however it died, the run can be resumed."""
    path = tmp_path / "run"
    other = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "locked\n"
        message = rf"process {other.pid} on \S+ is writing the run in \S+: wait for its end, or name another folder"
        for resume in (False, True):
            with pytest.raises(OutputError, match=message):
                begin(path, resume=resume)
    finally:
        other.kill()
        other.communicate()
    begin(path, resume=True)


HOLDER = f"""
import sys, time
from pathlib import Path
from headstart.runs.run import lock_run
with lock_run(Path(sys.argv[1]), {SETTINGS!r}, resume=False, patience=0.0):
    print("locked", flush=True)
    time.sleep(300)
"""


def test_a_restart_by_torchrun_waits_for_the_processes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1234")
    with lock_run(tmp_path / "run", SETTINGS, resume=False, patience=0.0):
        pauses: list[float] = []
        monkeypatch.setattr("time.sleep", pauses.append)
        with pytest.raises(OutputError, match="is writing the run"):
            begin(tmp_path / "run", patience=0.01)
        assert pauses
    begin(tmp_path / "run")  # of the same launch: it is resumed unasked


def test_what_a_killed_process_left_unfinished_is_removed_by_the_next(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    for name in ("model", "checkpoints/step-000000003"):  # without the cleaning up that a kill leaves no time for
        place = (run.path / name).parent
        (place / f".{Path(name).name}.unfinished-x7").mkdir(parents=True)
        (place / f".{Path(name).name}.unfinished-x7" / "weights").touch()
    begin(run.path, resume=True)
    assert {path.name for path in run.path.iterdir()} == {"run.toml", "checkpoints", ".lock"}
    assert not list(run.checkpoints.iterdir())


def test_a_run_that_is_done_needs_no_lock(tmp_path: Path) -> None:
    with lock_run(tmp_path / "run", SETTINGS, resume=False, patience=0.0):
        run = RunFolder(tmp_path / "run")
        run.write_end({"valid": {"accuracy": 0.5}, "labels": ["a", "b"]}, Manifest(seconds=2.0))
        assert begin(run.path, resume=True).done
    assert sorted(path.name for path in run.path.iterdir()) == ["manifest.json", "result.json", "run.toml"]
    result = run.result()
    assert (result.valid, result.test, result.class_names) == ({"accuracy": 0.5}, None, ("a", "b"))


def test_what_a_run_in_progress_lacks_is_named(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    for read, name in ((run.result, "result.json"), (run.manifest, "manifest.json")):
        with pytest.raises(DataError, match=f"not done: it has no {name}.*--resume"):
            read()


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(OutputError, match="holds something that is no run"):
        begin(tmp_path, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("change", [{"study": "pretrain"}, {"lr": 0.01}, {"new": 1}])
def test_other_settings_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    begin(tmp_path / "run")
    with pytest.raises(OutputError, match=f"differs in {next(iter(change))}"):
        begin(tmp_path / "run", resume=True, **change)


def test_a_manifest_is_read_back(tmp_path: Path) -> None:
    manifest = Manifest.now(torch="2.13.0", gpu="H200", gpu_memory=7, seconds=1.5, data={"train": "ab"}, tokens=3)
    run = RunFolder(tmp_path)
    run.write_end({}, manifest)
    assert run.manifest() == manifest
    assert manifest.peak_memory["gpu"] == 7 and manifest.peak_memory["resident"] > 0


def test_what_a_manifest_of_another_version_has_or_lacks() -> None:
    manifest = Manifest.from_json({"seconds": 1.0, "weather": "fine"})
    assert (manifest.seconds, manifest.gpu, manifest.parameters) == (1.0, None, {})

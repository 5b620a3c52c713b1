"""What a command does not import, because that takes longer than the work itself; the seconds are in `make bench`."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from headstart.cli.imports import heavy_imports

SCRIPT = """
import sys
from headstart.cli import main
try:
    main()
finally:
    print(*sys.modules, file=open("modules.txt", "w"))
"""


def imported(folder: Path, *arguments: str) -> set[str]:
    """The modules that a process has imported by the end of `headstart` with these arguments."""
    subprocess.run([sys.executable, "-c", SCRIPT, *arguments], cwd=folder, check=True, capture_output=True)
    return set((folder / "modules.txt").read_text().split())


def test_predict_imports_torch_and_little_else(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a fine book\n")
    modules = imported(tmp_path, "predict", str(trained), "texts.txt")
    assert "torch" in modules
    assert modules & {"torch._dynamo", "sympy", "scipy", "sklearn", "pandas", "jinja2", "matplotlib"} == set()


def test_fine_tuning_needs_no_compiler(world: Path, base: Path, tmp_path: Path) -> None:
    """Muon moves the matrices, and AdamW the rest: both optimizers are there."""
    files = [str(world / "train.txt"), "--valid", str(world / "valid.txt"), "--test", str(world / "test.txt")]
    options = ["--init", str(base), "--steps", "2", "--optimizer", "muon", "--device", "cpu", "--out", "run"]
    modules = imported(tmp_path, "finetune", *files, *options)
    assert "torch" in modules
    assert modules & {"torch._dynamo", "sympy", "scipy.stats", "sklearn", "jinja2", "matplotlib"} == set()


def test_studies_import_scipy_where_they_need_it() -> None:
    """A comparison answers before it is used, and fine-tuning by itself needs little of it, at its end."""
    script = (
        "import sys, headstart.studies.compare, headstart.studies.sweep; print({'scipy', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_fork_server_of_a_comparison_is_started_before_torch_is_imported(world: Path, tmp_path: Path) -> None:
    """So that it imports what workers need while the command itself does."""
    script = """
import sys
from headstart.cli import main
from headstart.studies import workers

def start_fork_server():
    sys.exit(f"torch imported: {'torch' in sys.modules}")

workers.start_fork_server = start_fork_server
main()
"""
    arguments = ["compare", str(world / "train.txt"), "--jobs", "2", "--out", "study"]
    done = subprocess.run([sys.executable, "-c", script, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == "torch imported: False\n"


def test_workers_have_all_imports_from_the_fork_server(world: Path, base: Path, tmp_path: Path) -> None:
    files = {"data": "train.txt", "valid": "valid.txt", "test": "test.txt"}
    settings: dict[str, object] = {name: str(world / file) for name, file in files.items()}
    settings |= {"init": [str(base)], "arms": "frozen,full", "seeds": 1, "tune": "none", "steps": 2}
    script = f"""
import sys
import headstart.studies.preload
from headstart.studies.compare import compare
from headstart.studies.settings import CompareSettings

preloaded = set(sys.modules)
compare(CompareSettings.from_mapping({settings}, "test"), "study")
later = set(sys.modules) - preloaded
print(sorted(name for name in later if name.partition(".")[0] in ("scipy", "sklearn", "pandas", "pyarrow")))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_no_garbage_is_collected_while_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gc.isenabled() and gc.get_freeze_count() == 0
    monkeypatch.delitem(sys.modules, "torch")  # as at the start of a command
    with heavy_imports():
        assert not gc.isenabled()
    assert gc.isenabled() and gc.get_freeze_count() > 0
    gc.unfreeze()
    with pytest.raises(ModuleNotFoundError), heavy_imports():
        raise ModuleNotFoundError("an extra")
    assert gc.isenabled() and gc.get_freeze_count() == 0

"""What a command does not import, because that takes longer than the work itself; the seconds are in `make bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from headstart.cli import main
sys.argv = ["headstart", "report", *sys.argv[1:]]
try:
    main()
except SystemExit as exit:
    assert not exit.code, exit.code
assert "torch" not in sys.modules
"""


def test_a_page_is_made_without_importing_torch(books: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    command = [sys.executable, "-c", SCRIPT, str(books), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Accuracy by epoch" in out.read_text(encoding="utf-8")

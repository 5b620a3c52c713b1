"""What holds for the program as a whole."""

from __future__ import annotations

import subprocess
import sys

from headstart import __version__

from .running import run


def test_version() -> None:
    assert run("--version").stdout == f"headstart {__version__}\n"


def test_help_imports_nothing_heavy() -> None:
    """The answer to --help is quick because of what it does not load; the seconds are in `make bench`."""
    script = (
        "import sys; sys.argv = ['headstart', '--help']\n"
        "from headstart.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'tokenizers', 'sklearn', 'scipy', 'matplotlib', 'transformers'}\n"
        "print(sorted(heavy & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "params" in done.stdout


def test_an_unknown_verb_and_an_unknown_option() -> None:
    assert run("parms").exit_code == 2
    assert run("params", "lab", "--hed", "masked").exit_code == 2


def test_a_reader_that_leaves_early() -> None:
    command = f"{sys.executable} -m headstart params bert-base --json | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "{\n"
    assert done.stderr == ""

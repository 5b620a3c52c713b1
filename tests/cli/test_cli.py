"""What holds for the program as a whole."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headstart import __version__
from headstart.cli.console import console, status_line, table

from .command_line import run


def test_version() -> None:
    assert run("--version").stdout == f"headstart {__version__}\n"


def test_help_imports_nothing_heavy() -> None:
    """The answer to --help is quick because of what it does not load; the seconds are in `make bench`."""
    script = (
        "import sys; sys.argv = ['headstart', '--help']\n"
        "from headstart.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = set('torch numpy pyarrow tokenizers sklearn scipy matplotlib rich transformers'.split())\n"
        "print(sorted(heavy & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "params" in done.stdout


def test_an_unknown_verb_and_an_unknown_option() -> None:
    assert run("parms").exit_code == 2
    assert run("params", "lab", "--hed", "masked").exit_code == 2


def test_what_the_system_refuses_is_one_line(tmp_path: Path) -> None:
    name = "a fine book " * 40
    for arguments in (["predict", name, "texts.csv"], ["report", name, "--out", str(tmp_path / "page.html")]):
        done = run(*arguments)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith(f"headstart: {name}") and "File name too long" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_reader_that_leaves_early() -> None:
    command = f"{sys.executable} -m headstart params bert-base --json | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "{\n"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_that_wait_soon_sleep(given: dict[str, str], spins: str | None) -> None:
    """By what OpenMP itself says it was told; whoever has told it something already is not overruled."""
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-m", "headstart", "params", "lab"],
        env={**surroundings, **given, "OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    if found is None:
        pytest.skip("this torch does not use GNU's OpenMP")
    assert found[1] == spins if spins else found[1] not in ("1000", "300000")


def test_brackets_and_colons_in_a_text_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("[b]x[/b] :smile:", table("[i]", rows=[["[/]"]]))
    assert capsys.readouterr().out.split() == ["[b]x[/b]", ":smile:", "[i]", "[/]"]


def test_a_line_that_nobody_sees_has_no_thread() -> None:
    """A thread for which there is no memory never says that it started, and Python waits for it without end."""
    from rich.console import Console

    before = threading.active_count()
    with status_line(Console(file=io.StringIO()), "reading") as status:
        status.update("still reading")
        assert threading.active_count() == before
    with status_line(Console(file=io.StringIO(), force_terminal=True), "reading"):
        assert threading.active_count() == before + 1

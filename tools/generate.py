"""Write the pages of docs/ that are made from the code; with --check, fail where one is stale.

python tools/generate.py [--check]
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from typer.main import get_command

import questions
import results
import simulate
from headstart.cli import app
from results import DOCS

WIDTH = "100"


def command_line() -> str:
    """docs/cli.md: what every verb answers to --help, or to --help-all where it has one."""
    lines = [
        "# The command line",
        "",
        "What each verb answers to `--help`; where that shows the everyday options alone, to `--help-all`.",
        "Made by `make docs`; `make check` fails where it is stale.",
        "",
        "Exit codes: 0 done, 1 a run that could not go on, 2 something to mend (it says what), 130 interrupted.",
    ]
    for verb, command in _verbs(get_command(app)).items():
        option = "--help-all" if any("--help-all" in parameter.opts for parameter in command.params) else "--help"
        lines += ["", f"## headstart {' '.join(verb)}", "", "```", _run("headstart", *verb, option), "```"]
    return "\n".join(lines) + "\n"


def _verbs(group: Any, prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    verbs: dict[tuple[str, ...], Any] = {}
    for name, command in group.commands.items():
        inner = _verbs(command, (*prefix, name)) if hasattr(command, "commands") else {(*prefix, name): command}
        verbs |= inner
    return verbs


def _run(module: str, *arguments: str) -> str:
    """What a module prints, at a fixed width and without colours or trailing spaces."""
    environment = {**os.environ, "COLUMNS": WIDTH, "TERMINAL_WIDTH": WIDTH, "NO_COLOR": "1"}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=DOCS.parent)
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def performance() -> str:
    """docs/performance.md with its estimates computed anew."""
    return _run("bench.estimates") + "\n"


def pages() -> dict[str, str]:
    """Every generated file, by its path from docs/."""
    made = {"cli.md": command_line(), "performance.md": performance(), "statistics.md": simulate.page()}
    return {**made, **results.files(), **questions.files()}


def main() -> None:
    stale = []
    for name, text in pages().items():
        path = DOCS / name
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    if stale:
        sys.exit(f"stale: {', '.join(stale)}; run `make docs`")


if __name__ == "__main__":
    main()

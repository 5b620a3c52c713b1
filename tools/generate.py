"""Write the pages of docs/ that are made from the code; with --check, fail where one is stale.

python tools/generate.py [--check]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.main import get_command

import questions
import results
from headstart.cli import app

DOCS = Path(__file__).parents[1] / "docs"
WIDTH = 100


def command_line() -> str:
    """docs/cli.md: what every verb answers to --help."""
    lines = [
        "# The command line",
        "",
        "What each verb answers to `--help`. Made by `make docs`; `make check` fails where it is stale.",
        "",
        "Exit codes: 0 done, 1 a run that could not go on, 2 something to mend (it says what), 130 interrupted.",
    ]
    for verb in _verbs(get_command(app)):
        lines += ["", f"## headstart {' '.join(verb)}", "", "```", _help(verb), "```"]
    return "\n".join(lines) + "\n"


def _verbs(group: Any, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():
        inner = hasattr(command, "commands")
        found += _verbs(command, (*before, name)) if inner else [(*before, name)]
    return found


def _help(verb: tuple[str, ...]) -> str:
    command = [sys.executable, "-m", "headstart", *verb, "--help"]
    surroundings = {**os.environ, "COLUMNS": str(WIDTH), "TERMINAL_WIDTH": str(WIDTH), "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=surroundings)
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def scaling() -> str:
    """docs/scaling.md with its tables reckoned anew."""
    command = [sys.executable, "-m", "bench.reckoning"]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=DOCS.parent).stdout


def pages() -> dict[str, str]:
    """Every file that is made, by its path from docs/."""
    made = {"cli.md": command_line(), "scaling.md": scaling()}
    made |= {"results.md": results.page(), "../README.md": results.readme()}
    return made | {f"images/{name}": text for name, text in results.figures().items()} | questions.files()


def main() -> None:
    stale = []
    for name, text in pages().items():
        path = DOCS / name
        if "--check" in sys.argv:
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                stale.append(name)
        else:
            path.write_text(text, encoding="utf-8")
    if stale:
        sys.exit(f"stale: {', '.join(stale)}; run `make docs`")


if __name__ == "__main__":
    main()

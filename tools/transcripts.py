"""Run every command of README.md and docs/quickstart.md, and write beneath each what it printed.

    python tools/transcripts.py           some minutes: the real data, the real base
    python tools/transcripts.py --picture docs/images/report.png anew as well, which needs Chromium

The commands of a page stand in blocks fenced as `sh`, one a line, and run in their order in an empty folder that holds
links to what a clone has; a command that both pages have runs once. Where the next block is fenced as `text`, it has
what they wrote to standard output; where it is fenced as `text 1,4-`, the first paragraph of that, and those from the
fourth on.
tests/demo/test_pages.py runs the same commands at a tiny size.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "quickstart.md")
BLOCK = re.compile(
    r"^```sh\n(?P<commands>.*?)^```\n"
    r"(?:(?P<between>(?:(?!```)[^\n]*\n)*)```text(?P<part>[ ]\S+)?\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
WIDTH = 118


def commands(block: str) -> list[str]:
    r"""The commands of a block, without comments; a line that ends in a backslash goes on in the next.

    >>> commands("make demo   # a comment\nheadstart predict run \\\n    a.csv\n")
    ['make demo', 'headstart predict run a.csv']
    """
    lines = (re.sub(r"\s+#\s.*$", "", line).strip() for line in re.sub(r"\\\n\s*", "", block).splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def commands_of(page: Path) -> list[str]:
    """Every command of a page, in its order."""
    blocks = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [command for block in blocks for command in commands(block["commands"])]


def fill(page: Path, run: Callable[[str], str]) -> None:
    """Run the commands of a page and write what they print into its blocks of output."""

    def filled(block: re.Match[str]) -> str:
        printed = "".join(run(command) for command in commands(block["commands"]))
        if block["output"] is None:
            return block[0]
        part = block["part"] or ""
        shown = wrapped(paragraphs(printed, part.strip()) if part else printed)
        return f"```sh\n{block['commands']}```\n{block['between']}```text{part}\n{shown}```\n"

    page.write_text(BLOCK.sub(filled, page.read_text(encoding="utf-8")), encoding="utf-8")


def paragraphs(text: str, chosen: str) -> str:
    r"""Some paragraphs of a text, by their numbers.

    >>> paragraphs("a\nb\n\nc\n\nd\n\ne\n", "1,3-")
    'a\nb\n\nd\n\ne\n'
    """
    there = re.split(r"\n{2,}", text.strip("\n"))
    kept = []
    for part in chosen.split(","):
        first, dash, last = part.partition("-")
        if not 1 <= int(first) <= len(there):
            sys.exit(f"there is no paragraph {first} among {len(there)}: {text}")
        kept += there[int(first) - 1 : int(last) if last else len(there) if dash else int(first)]
    return "\n\n".join(kept) + "\n"


def wrapped(text: str) -> str:
    r"""Text with long lines broken at a space, as a terminal of this width would show it; not between 95 and %.

    >>> wrapped("a" * 114 + " 95 % of it") == "a" * 114 + "\n95 % of it\n"
    True
    """
    text = text.replace(" %", "\0%")
    wrapper = textwrap.TextWrapper(WIDTH, replace_whitespace=False, break_long_words=False, break_on_hyphens=False)
    lines = (part for line in text.splitlines() for part in wrapper.wrap(line) or [""])
    return "".join(f"{line.rstrip()}\n" for line in lines).replace("\0", " ")


class Shell:
    """A shell in a folder like a fresh clone; a server it starts runs until `close`."""

    def __init__(self, folder: Path) -> None:
        self.servers: list[subprocess.Popen[str]] = []
        locks = ("requirements.lock", "requirements-torch.lock")
        for name in ("Makefile", "pyproject.toml", *locks, "src", "recipes", ".venv"):
            (folder / name).symlink_to(ROOT / name)
        path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "LC_ALL": "C.UTF-8"}
        self.folder = folder

    def run(self, command: str) -> str:
        """What a command writes to standard output; one that fails ends everything."""
        print(f"$ {command}", file=sys.stderr)
        if command == "make test":  # these commands are part of it
            return ""
        if command.startswith("make "):  # it is set up already, or else this would not run
            command = command.replace("make", "make --old-file=.venv/.installed", 1)
        serves = command.startswith("headstart serve")
        arguments = ["bash", "-c", f"exec {command}" if serves else command]
        process = subprocess.Popen(arguments, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        if serves:
            self.servers.append(process)
            return process.stdout.readline()
        output, _ = process.communicate()
        if process.returncode:
            sys.exit(f"failed with {process.returncode}: {command}")
        return output.replace(f"{ROOT}/", "")  # the folder's links lead there, and in a clone they are no links

    def close(self) -> None:
        while self.servers:
            server = self.servers.pop()
            server.terminate()
            server.communicate()


def screenshot(report: Path, picture: Path) -> None:
    """The top of a report as a user sees it, as a PNG."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("HEADSTART_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        sys.exit("no Chromium here: install it, or set HEADSTART_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 1000})
        page.goto(report.resolve().as_uri())
        page.wait_for_load_state("networkidle")
        picture.parent.mkdir(exist_ok=True)
        page.screenshot(path=picture)
        browser.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        shell = Shell(Path(temporary))
        run = functools.cache(shell.run)  # a command of both pages runs once
        for page in PAGES:
            try:
                fill(page, run)
            finally:
                shell.close()
        if "--picture" in sys.argv:
            screenshot(Path(temporary) / "headstart-demo" / "report.html", ROOT / "docs" / "images" / "report.png")


if __name__ == "__main__":
    main()

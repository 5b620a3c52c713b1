"""Every command of README.md and docs/quickstart.md is run: at a tiny size here, and as it stands by the slow tests."""

from __future__ import annotations

import importlib.util
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headstart.checkpoints.folder import Checkpoint, save
from headstart.config import CausalMaskedConfig
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.tokenizers.tokenizer import Tokenizer
from tests.cli.command_line import run
from tests.conftest import SIZES

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/quickstart.md")
TINY = {
    "compare": [
        "--tune",
        "none",
        "--epochs",
        "1",
        "--least-steps",
        "1",
        "--labels",
        "20",
        "--seeds",
        "1",
        "--jobs",
        "1",
        "--window",
        "16",
    ],
    "finetune": ["--epochs", "1", "--window", "16"],
}


def _load(name: str) -> Any:
    specification = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


transcripts = _load("transcripts")


class Reader:
    """Does what a page says, in the current folder. `headstart` runs in this process, and tiny; `serve` in its own."""

    def __init__(self) -> None:
        self.served: list[subprocess.Popen[str]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])

    def follow(self, command: str) -> str:
        command = command.replace("8000", self.port)
        first, _, rest = command.partition(" ")
        if first == "make":
            planned = subprocess.run(["make", "-n", *rest.split()], cwd=ROOT, capture_output=True, text=True)
            assert planned.returncode == 0, f"{command}: {planned.stderr}"
            return self.headstart(["demo"]) if rest == "demo" else planned.stdout
        if first != "headstart":
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=200)
            assert done.returncode == 0, f"{command}: {done.stderr}"
            return done.stdout
        words = subprocess.run(["bash", "-c", f"printf '%s\\0' {rest}"], capture_output=True, text=True, check=True)
        arguments = words.stdout.split("\0")[:-1]
        return self.serve(arguments) if arguments[0] == "serve" else self.headstart(arguments)

    def headstart(self, arguments: list[str]) -> str:
        done = run(*arguments, *TINY.get(arguments[0], []))
        assert done.exit_code == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    def serve(self, arguments: list[str]) -> str:
        arguments += [] if "--port" in arguments else ["--port", self.port]
        server = subprocess.Popen(
            [sys.executable, "-m", "headstart", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.served.append(server)
        assert server.stdout is not None and server.stderr is not None
        return server.stdout.readline() or pytest.fail(f"{arguments}: {server.stderr.read()}")

    def close(self) -> None:
        for server in self.served:
            server.kill()
            server.communicate()


@pytest.fixture
def reader(tiny: Path, tokenizer: Tokenizer) -> Iterator[Reader]:
    """A reader in a folder that looks like a clone, with a tiny demo and a tiny base in the place of the real ones."""
    config = preset("small", vocabulary=tokenizer.size, direction="both", **SIZES)
    save(Checkpoint(Model.build(config, CausalMaskedConfig()), tokenizer=tokenizer), Path("debat-fr"))
    Path(".venv/bin").mkdir(parents=True)
    Path(".venv/bin/activate").touch()
    Path("src/headstart").mkdir(parents=True)
    Path("src/headstart/demo").symlink_to(tiny)
    reader = Reader()
    yield reader
    reader.close()


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_works(page: str, reader: Reader) -> None:
    found = transcripts.commands_of(ROOT / page)
    assert len(found) >= 8
    for command in found:
        reader.follow(command)
    assert Path("answers.csv").read_text(encoding="utf-8").count("\n") == 61  # the header, and a line a text


@pytest.mark.parametrize(
    "wrong",
    [
        "headstart doctor train.csv --vaild valid.csv",
        "headstart doctor nowhere.csv",
        "headstart predikt topics test.csv",
        "headstart serve nowhere",
        "cp src/headstart/demo/debats/*.csv .",
        "make demonstration",
    ],
)
def test_a_command_that_is_wrong_is_noticed(wrong: str, reader: Reader) -> None:
    reader.follow("cp src/headstart/demo/debat/*.csv .")
    with pytest.raises((AssertionError, pytest.fail.Exception), match=re.escape(wrong.split()[-1].removesuffix(" ."))):
        reader.follow(wrong)


def test_output_is_written_beneath_its_commands(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "a\n\n```sh\none  # first\ntwo \\\n  more\n```\n\nsome\nwords:\n\n```text\nold\n```\n\n```sh\nthree\n```\n\nb\n"
    )
    transcripts.fill(page, lambda command: f"<{command}>\n" + "word " * 30 + "\n")
    head, first, second, *rest = page.read_text().split("```text\n")[1].splitlines()
    assert (head, len(first) <= 118, second.startswith("word")) == ("<one>", True, True)
    assert page.read_text().endswith("```\n\n```sh\nthree\n```\n\nb\n")
    assert "<two more>" in rest
    assert "old" not in page.read_text()
    assert transcripts.commands_of(page) == ["one", "two more", "three"]


def test_a_page_shows_the_paragraphs_of_the_output_that_it_names(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\none\n```\n\n```text 2-3,5\nold\n```\n")
    transcripts.fill(page, lambda command: "1\n\n2\n2\n\n3\n\n4\n\n5\n")
    assert page.read_text() == "```sh\none\n```\n\n```text 2-3,5\n2\n2\n\n3\n\n5\n```\n"
    with pytest.raises(SystemExit, match="no paragraph 5 among 4"):
        transcripts.fill(page, lambda command: "1\n\n2\n\n3\n\n4\n")


def test_the_readme_begins_with_the_two_commands() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 90
    for command in ("make demo", "make test"):
        assert any(line.startswith(command) for line in lines[:24])
    assert (ROOT / "docs" / "images" / "report.png").stat().st_size < 300_000


def test_python_of_a_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "python.md", "exec"), {})


def test_what_a_page_serves_ends_with_its_shell(tmp_path: Path) -> None:
    shell = transcripts.Shell(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "headstart").write_text("#!/bin/sh\necho ready\nexec sleep 300\n", encoding="utf-8")
    (tmp_path / "bin" / "headstart").chmod(0o755)
    shell.environment["PATH"] = f"{tmp_path / 'bin'}:{shell.environment['PATH']}"
    assert shell.run("headstart serve reviews") == "ready\n"
    (server,) = shell.servers
    shell.close()
    assert shell.servers == []
    assert server.returncode is not None
    assert server.stdout.closed


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_works_as_it_stands(page: str, tmp_path: Path) -> None:
    if not (ROOT / ".venv" / "bin" / "headstart").exists():
        pytest.skip("a page is read in a clone that is set up: run make setup")
    shutil.copy(ROOT / page, tmp_path / "page.md")
    (tmp_path / "clone").mkdir()
    shell = transcripts.Shell(tmp_path / "clone")
    try:
        transcripts.fill(tmp_path / "page.md", shell.run)
    finally:
        shell.close()
    assert "GAP" not in (tmp_path / "page.md").read_text(encoding="utf-8")

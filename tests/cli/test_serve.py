from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headstart.cli.serve import named
from headstart.errors import CheckpointError, ConfigError
from headstart.serve.limits import Limits
from headstart.serve.models import Served
from tests.serve.example_models import save_classifier
from tests.studies.example_data import make_tokenizer

from .command_line import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("models") / "reviews", make_tokenizer())


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What would be served, instead of serving it."""
    seen: dict[str, Any] = {}

    class NoServer:
        batcher = SimpleNamespace(busy=False)

        def __init__(self, models: list[Served], limits: Limits, token: str | None) -> None:
            seen.update(models=models, limits=limits, token=token)

        def run(self, sockets: list[Any]) -> None:
            seen["address"] = sockets[0].getsockname()

    monkeypatch.setattr("headstart.serve.server.Server", NoServer)
    monkeypatch.delenv("HEADSTART_TOKEN", raising=False)
    yield seen


def test_a_folder_on_loopback(folder: Path, served: dict[str, Any]) -> None:
    done = run("serve", str(folder), "--port", "0")
    assert (done.exit_code, done.stderr) == (0, "")
    address, port = served["address"]
    assert address == "127.0.0.1"
    assert done.stdout == f"http://127.0.0.1:{port}/  reviews  (Ctrl-C ends it)\n"
    assert served["token"] is None and served["limits"] == Limits()


def test_several_by_name(folder: Path, served: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "try.txt").write_text("a witty tale\n\na dull tale\n", encoding="utf-8")
    options = ["--limit", "texts=3", "--limit", "deadline=1.5", "--examples", str(tmp_path / "try.txt"), "--port", "0"]
    assert run("serve", f"first={folder}", str(folder), *options).exit_code == 0
    assert [model.name for model in served["models"]] == ["first", "reviews"]
    assert served["limits"] == Limits(texts=3, deadline=1.5)
    assert served["models"][0].examples == ("a witty tale", "a dull tale")


@pytest.mark.parametrize(
    ("more", "words"), [((), "no token protects it"), (("--token", "sesame"), "a token is asked for")]
)
def test_beyond_loopback_it_says_so(folder: Path, served: dict[str, Any], more: tuple[str, ...], words: str) -> None:
    done = run("serve", str(folder), "--port", "0", "--host", "0.0.0.0", *more)
    assert done.exit_code == 0
    assert done.stderr.startswith("headstart: listening on all addresses of this machine") and words in done.stderr


def test_texts_of_valid_are_shown_on_loopback_alone(
    folder: Path, served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headstart.serve.models.valid_examples", lambda folder: ("a private text",))
    run("serve", str(folder), "--port", "0")
    assert served["models"][0].examples == ("a private text",)
    run("serve", str(folder), "--port", "0", "--host", "0.0.0.0", "--token", "x")
    assert served["models"][0].examples == ()


def test_a_token_from_the_environment(folder: Path, served: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTART_TOKEN", "sesame")
    assert run("serve", str(folder), "--port", "0").exit_code == 0
    assert served["token"] == "sesame"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "there is no folder nowhere here, and no base of that name ships"),
        (["FOLDER", "--limit", "txts=3"], "unknown setting 'txts': did you mean 'texts'?"),
        (["FOLDER", "--limit", "texts=0"], "texts is 0, and must be at least 1"),
        (["FOLDER", "--token", ""], "a token is of printable ASCII"),
        (["FOLDER", "--token", "é"], "a token is of printable ASCII"),
        (["FOLDER", "--examples", "nowhere.txt"], "nowhere.txt: cannot be read"),
        (["FOLDER", "FOLDER", "--port", "0"], "the name 'reviews' is given twice: write NAME=FOLDER"),
        (["FOLDER", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1, port 8000"),
    ],
)
def test_what_it_refuses(folder: Path, arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADSTART_TOKEN", raising=False)
    done = run("serve", *(str(folder) if word == "FOLDER" else word for word in arguments))
    assert done.exit_code == 2 and words in done.stderr and "Traceback" not in done.stderr


def test_without_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, *_: Any) -> None:
            if name.partition(".")[0] == "uvicorn":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name in [
        name for name in sys.modules if name.partition(".")[0] == "uvicorn" or name == "headstart.serve.server"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    done = run("serve", str(folder))
    assert done.exit_code == 2
    assert done.stderr == "headstart: serving a model needs uvicorn: pip install 'headstart[serve]'\n"


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").mkdir()
    (tmp_path / "b").mkdir()
    assert named("a=b") == ("a=b", Path("a=b"))  # a folder of that very name
    assert named("c=b") == ("c", Path("b"))
    assert named("b/") == ("b", Path("b"))
    with pytest.raises(ConfigError, match="is no name for a model"):
        named("=b")
    with pytest.raises(CheckpointError, match="there is no folder x"):
        named("c=x")

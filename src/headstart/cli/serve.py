"""`headstart serve`: models over HTTP, and a page to try them on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headstart.bases import find, no_such_model, note_local
from headstart.cli.console import log
from headstart.cli.imports import heavy_imports
from headstart.config import read_pairs
from headstart.errors import CheckpointError, ConfigError, DataError, MissingExtra

if TYPE_CHECKING:
    from headstart.serve.limits import Limits
    from headstart.serve.models import Served


def serve_command(
    folders: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]FOLDER…",
            help="Run folders or model folders: classifiers, and causal language models; or the folder of a "
            "comparison, whose arms answer side by side. The first is the default.",
        ),
    ],
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(help="Answer only who sends this as `Authorization: Bearer TOKEN`.", envvar="HEADSTART_TOKEN"),
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Texts to click on the page, one a line. Without it a few of the run's valid set, on loopback alone.",
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Change a limit: body (bytes), texts, characters, new_tokens, requests, connections, queue, "
            "deadline (s), idle (s), wait (s), tokens (of a batch), memory (bytes of a study's models).",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …")] = "auto",
) -> None:
    """Answer over HTTP, with a page to try the model on, until Ctrl-C.

    POST /predict, /explain, /continue and /compare; GET /info, /health, /metrics; the whole of it at /docs.
    """
    try:
        with heavy_imports():
            from headstart.serve.server import Server, open_socket
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("fastapi", "starlette", "uvicorn"):
            raise
        raise MissingExtra(error.name or "fastapi", "serve", "serving a model") from None
    from headstart.serve.hosts import is_loopback
    from headstart.serve.limits import Limits

    limits = Limits.from_mapping(read_pairs(limit or (), "--limit"), "--limit")
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token != ""):
        raise ConfigError("--token", ["a token is of printable ASCII characters, one at least, and no space around it"])
    given = None if examples is None else _lines(examples)
    models = [_open(argument, device, limits, given, local=is_loopback(host)) for argument in folders]
    with open_socket(host, port) as listener:
        address, actual = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        if not is_loopback(host):
            open_to_all = "and no token protects it: give --token, or who can reach it may use it"
            guarded = "a token is asked for" if token else open_to_all
            where = "all addresses of this machine" if address in ("0.0.0.0", "::") else f"the address {address}"
            log(f"headstart: listening on {where}, {guarded}")
        typer.echo(f"http://{shown}:{actual}/  {', '.join(model.name for model in models)}  (Ctrl-C ends it)")
        server = Server(models, limits, token)
        server.run(sockets=[listener])
    if server.batcher.busy:  # in a long model call, in a thread that the interpreter could not end without a crash
        sys.stdout.flush()
        os._exit(0)


def _open(argument: str, device: str, limits: Limits, given: tuple[str, ...] | None, *, local: bool) -> Served:
    """A model or a study. Texts of the data are shown on loopback alone: they may not be meant for others."""
    from headstart.runs.study import STUDY, StudyFolder, study_of
    from headstart.runs.titles import folder_title
    from headstart.serve.models import open_served, valid_examples
    from headstart.serve.study import open_study

    name, folder = named(argument)
    if not (folder / STUDY).is_file():
        own = valid_examples(folder) if given is None and local else ()
        title = folder_title(folder) if name == folder.resolve().name else None  # a name that was given is for people
        if title:
            log(f"headstart: {name} is: {title}")
        return open_served(name, folder, device, given or own, title or name)
    kind = study_of(folder)
    if kind != "compare":
        best = StudyFolder(folder).sweep().best if kind == "sweep" else None
        instead = f"serve its best run, {folder / best.run}" if best else "serve one of its runs"
        raise CheckpointError(f"{folder} is a study of the kind {kind!r}, and a comparison was meant: {instead}")
    study = open_study(name, folder, device, limits.memory, given, local=local)
    for each in study.study.missing:
        log(f"headstart: {each.name}, {each.budget:,} labels is missing: {each.reason}")
    return study


def named(argument: str) -> tuple[str, Path]:
    """NAME=FOLDER in its parts; a folder by itself is called by its own name.

    >>> named("reviews=.")
    ('reviews', PosixPath('.'))
    """
    name, equals, rest = argument.partition("=")
    source = rest if equals and not Path(argument).is_dir() else argument
    note_local(source, log)
    folder = find(source)
    if not folder.is_dir():
        raise no_such_model(source)
    own = name if equals and source != argument else folder.resolve().name
    if not own or not own.isprintable() or len(own) > 60:
        raise ConfigError("serve", [f"{own!r} is no name for a model: write NAME=FOLDER, NAME of 1 to 60 characters"])
    return own, folder


def _lines(path: Path) -> tuple[str, ...]:
    try:
        return tuple(line for line in path.read_text(encoding="utf-8").splitlines() if line.strip())[:12]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(path, f"cannot be read as lines of text ({error})") from None

"""The bases that ship with headstart: model folders in this package, each found by its name from anywhere.

    find("debat-fr")      the folder in the package, its files compared with their digests
    find("runs/mine")     a path is taken as it is, and so is a folder here that has the name of a base

`SHA256SUMS` says what ships: the digests of all files, as `sha256sum */*.json */*.safetensors` prints them here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from headstart.bases.recipes import base_recipes
from headstart.errors import CheckpointError, did_you_mean, listed_names
from headstart.files import read_text

HERE = Path(__file__).parent
SUMS = "SHA256SUMS"
CARD = "README.md"
REINSTALL = "install headstart again, with pip's --force-reinstall"


def shipped() -> tuple[str, ...]:
    """The names of the bases that ship."""
    return tuple(dict.fromkeys(Path(file).parts[0] for file in _digests()))


def find(source: str | Path) -> Path:
    """The path of a model that a user names: of a base that ships, unless there is something of that name here."""
    path = Path(source)
    if len(path.parts) != 1 or path.exists() or str(source) not in shipped():
        return path
    return installed(str(source))


def installed(name: str) -> Path:
    """The folder of a base that ships, whatever there is in the current folder; its files are compared with digests."""
    for file, digest in _digests().items():
        if Path(file).parts[0] == name:
            _check(HERE / file, digest)
    return HERE / name


def note_local(source: str | Path | None, log: Callable[[str], None]) -> None:
    """Say where a folder here is taken although a base that ships has its name."""
    if source is not None and Path(source).exists() and str(source) in shipped():
        log(
            f"{source}: the folder here is taken, not the base of that name that ships with headstart; to take that "
            "one, rename the folder"
        )


def no_such_model(source: str | Path) -> CheckpointError:
    """The error for what is no file and no folder here and no base that ships: the nearest name, and what ships."""
    name = str(source)
    if len(Path(name).parts) != 1:
        return CheckpointError(f"there is no file or folder {name}: give a run folder or a model folder")
    problem = f"there is no folder {name} here, and no base of that name ships with headstart"
    recipes = {recipe.name: recipe for recipe in base_recipes()}
    if name in recipes:
        return CheckpointError(f"{problem}: make it with {recipes[name].command}, and give the folder")
    names = listed_names(shipped()) or "none"
    near = did_you_mean(name.lower(), {*shipped(), *recipes})
    nearest = f" ({near})" if near.startswith("did") else ""
    return CheckpointError(
        f"{problem}{nearest}. What ships: {names}; `headstart bases` says more. A model of the hub is OWNER/NAME"
    )


def _digests() -> dict[str, str]:
    """The SHA-256 digest of each file that ships, by its path in this folder."""
    if not (HERE / SUMS).is_file():
        raise CheckpointError(f"there is no file {HERE / SUMS}, which comes with headstart: {REINSTALL}")
    try:
        lines = read_text(HERE / SUMS).splitlines()
    except UnicodeDecodeError:
        lines = [""]
    found = [re.fullmatch(r"([0-9a-f]{64})  ([^/\s]+/[^/\s]+)", line) for line in lines]
    if not all(found):
        raise CheckpointError(f"{HERE / SUMS}, which comes with headstart, is damaged: {REINSTALL}")
    return {match[2]: match[1] for match in found if match}


def _check(path: Path, digest: str) -> None:
    """Raise unless a file of a base is there and what was released."""
    base = f"the base {path.parent.name}, which ships with headstart,"
    try:
        about = path.stat()
        found = _digest(path, about.st_size, about.st_mtime_ns)
    except OSError as error:
        raise CheckpointError(f"{base} lacks {path} ({error.strerror}): {REINSTALL}") from None
    if found != digest:
        raise CheckpointError(f"{base} is damaged: {path} is not the file that was released; {REINSTALL}")


@cache
def _digest(path: Path, size: int, changed: int) -> str:
    """Computed once a process for each state of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""The recipes that make bases, in `recipes/` of the source or where an installed headstart keeps them.

`base-NAME.toml` has the settings of the pretraining and says in its first line what comes out; `base-NAME.sh` names the
files of text, and is what a user runs.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from headstart.config import read_toml
from headstart.files import read_text

SOURCE = Path(__file__).parents[3] / "recipes"


@dataclass(frozen=True)
class Recipe:
    """A base that can be made from text: its name, what it is, the files that are read, and the command."""

    name: str
    about: str
    texts: tuple[str, ...]
    command: str
    settings: dict[str, Any]


def base_recipes() -> tuple[Recipe, ...]:
    """Every recipe of a base, by name."""
    return tuple(_read(path) for path in sorted(_files()))


def _files() -> list[Path]:
    """`base-*.toml` of the source folder, or of the installed package, which keeps them outside of its own folder."""
    if SOURCE.is_dir():
        return list(SOURCE.glob("base-*.toml"))
    try:
        installed = metadata.files("headstart") or []
    except metadata.PackageNotFoundError:
        return []
    files = (Path(str(file.locate())).resolve() for file in installed if file.match("recipes/base-*.toml"))
    return [file for file in files if file.is_file()]


def _read(path: Path) -> Recipe:
    script = path.with_suffix(".sh")
    about = read_text(path).partition("\n")[0].lstrip("# ")
    texts = re.search(r'^files="([^"]+)"', read_text(script), re.MULTILINE)
    shown = os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script)
    command = f"sh {shlex.quote(shown)} TEXTS OUT"
    return Recipe(
        path.stem.removeprefix("base-"), about, tuple(texts[1].split()) if texts else (), command, read_toml(path)
    )

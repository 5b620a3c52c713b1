"""`headstart bases`: the pretrained models that ship, and those that a recipe makes."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer

from headstart.bases import CARD, REINSTALL, installed, shipped
from headstart.bases.recipes import base_recipes
from headstart.cli.console import console, print_json, table
from headstart.cli.options import Json
from headstart.config import HeadConfig, ModelConfig, read_head
from headstart.errors import CheckpointError
from headstart.files import read_json, read_text
from headstart.model.count import count
from headstart.wording import size

WIDTH = 110  # of what is printed: longer lines and cells are folded
USES = {
    "next-token": ("generate",),
    "masked": ("fill",),
    "causal+masked": ("generate", "fill"),
    "masked+next-sentence": ("fill",),
}
OBJECTIVES = {"causal": "causal", "bidirectional": "masked", "both": "causal+masked"}  # by direction


@dataclass(frozen=True)
class Shipped:
    """A base that ships, as its config.json and its card have it."""

    name: str
    folder: str
    parameters: int
    bytes: int
    language: str
    objective: str
    text: str
    licence: str
    verbs: tuple[str, ...]  # what it can be used for

    @classmethod
    def read(cls, name: str) -> Shipped:
        folder = installed(name)
        where = folder / "config.json"
        about = read_json(where)
        config = ModelConfig.from_mapping(about["model"], str(where))
        head: HeadConfig | None = None if about["head"] is None else read_head(about["head"], str(where))
        kind = None if head is None else head.kind
        return cls(
            name,
            str(folder),
            parameters=count(config, head).total,
            bytes=sum(path.stat().st_size for path in folder.iterdir()),
            objective="replaced" if kind == "replaced" else OBJECTIVES[config.direction],
            verbs=("finetune", "compare", *USES.get(str(kind), ())),
            **_card(folder / CARD),
        )


def _card(path: Path) -> dict[str, Any]:
    """What the card of a base says of its language, text and licence: each in the first sentence of its section."""
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}, the card of a base that ships with headstart: {REINSTALL}")
    card = re.sub(r"\s+", " ", read_text(path))
    found = {}
    for key, title in (("language", "Language"), ("text", "Data"), ("licence", "Licence")):
        section = re.search(rf"\*\*{title}\.\*\* (.+?)\.(?: |$)", card)
        found[key] = section[1] if section else ""
    return found


def bases_command(as_json: Json = False) -> None:
    """List the pretrained models that ship with headstart, and those that a recipe makes from text.

    A base that ships is named wherever a model folder is: --init NAME, headstart fill NAME, --tokenizer NAME.
    """
    ships, recipes = [Shipped.read(name) for name in shipped()], base_recipes()
    if as_json:
        print_json({"ships": [asdict(base) for base in ships], "recipes": [asdict(recipe) for recipe in recipes]})
        return
    screen = console()
    rows = table("ships", ">parameters", ">size", "language", "objective", "for")
    for base in ships:
        cells = (base.language, base.objective, ", ".join(base.verbs))
        rows.add_row(base.name, f"{base.parameters:,}", size(base.bytes), *cells)
    width = min(screen.width, WIDTH)
    screen.print(rows, width=width)
    for base in ships:
        screen.print("", f"{base.name}, text: {base.text}. Licence: {base.licence}.", sep="\n", width=width)
    made = [recipe for recipe in recipes if recipe.name not in shipped()]
    if made:
        rows = table("by a recipe", "what it is", "from these files in TEXTS")
        for recipe in made:
            rows.add_row(recipe.name, recipe.about, " ".join(recipe.texts))
        screen.print("", rows, "", sep="\n", width=width)
        for recipe in made:
            typer.echo(recipe.command)

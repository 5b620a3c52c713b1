"""`headstart generate` and `headstart fill`: language models in use."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from headstart.cli.console import console, log, print_json, table
from headstart.cli.options import Json, ModelFolder
from headstart.errors import ConfigError


def generate_text(
    folder: ModelFolder,
    prompt: Annotated[str, typer.Argument(help="The text to continue; it may be empty.")],
    max_tokens: Annotated[int, typer.Option(metavar="N", help="Stop after so many tokens.")] = 50,
    temperature: Annotated[
        float, typer.Option(help="0 takes the likeliest token each time; 1 draws as the model learned; more is wilder.")
    ] = 0.0,
    top_k: Annotated[int | None, typer.Option(metavar="K", help="Draw among the K likeliest tokens.")] = None,
    top_p: Annotated[
        float, typer.Option(metavar="P", help="Draw among the likeliest tokens that together reach probability P.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed draws the same text.")] = 0,
    count: Annotated[int, typer.Option(metavar="N", help="Write so many texts, with seeds from SEED on.")] = 1,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Read the whole text anew at every token: slower, the same text.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Continue a text with a causal model.

    A text that outgrows the model's window goes on: the model then sees its last tokens, between half a window and a
    whole one.
    """
    from headstart.use.generate import Generated, Sampling
    from headstart.use.language_model import LanguageModel

    asked = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    settings = Sampling.from_mapping(asked, "generate")
    if count < 1:
        raise ConfigError("generate", [f"count is {count}, and must be at least 1"])
    model = LanguageModel.load(folder)
    if temperature == 0 and (count > 1 or top_k is not None or top_p < 1):
        log("at temperature 0 the likeliest token is taken, whatever top-k, top-p and seed: try --temperature 0.8")
    texts: list[dict[str, object]] = []
    notes: dict[str, None] = {}  # in order, each once
    for number in range(seed, seed + count):
        parts = model.stream(prompt, cache=not no_cache, **{**asked, "seed": number})
        if not as_json:
            typer.echo("\n" * bool(texts) + prompt, nl=False)
        for part in parts:
            if isinstance(part, Generated):
                answer = {"text": part.text, "ids": part.ids, "stopped": part.stopped, "remarks": part.notes}
                texts.append({"seed": number, **answer})
                notes |= dict.fromkeys(part.notes)
            elif not as_json:
                typer.echo(part, nl=False)  # at once: echo flushes
        if not as_json:
            typer.echo()
    if as_json:
        print_json({"prompt": prompt, **settings.to_mapping(), "texts": texts})
    for line in notes:
        log(line)


def fill_masks(
    folder: ModelFolder,
    text: Annotated[str, typer.Argument(help="A text with [MASK] where a word is missing, once or more.")],
    top: Annotated[int, typer.Option(metavar="N", help="Show so many candidates for each mask.")] = 5,
    as_json: Json = False,
) -> None:
    """Fill the gaps of a text with a masked model: the likeliest tokens, with their probabilities."""
    from headstart.use.language_model import LanguageModel

    filled = LanguageModel.load(folder).fill(text, top)
    completed = filled[0].candidates[0].text
    if as_json:
        print_json({"text": text, "completed": completed, "masks": [asdict(mask) for mask in filled]})
        return
    screen = console()
    for number, mask in enumerate(filled, start=1):
        rows = table(f"mask {number}" if len(filled) > 1 else "mask", ">probability")
        for candidate in mask.candidates:
            rows.add_row(Text(candidate.piece), f"{candidate.probability:.4f}")
        screen.print(rows, highlight=False)
        screen.print()
    screen.print(Text(completed), highlight=False)

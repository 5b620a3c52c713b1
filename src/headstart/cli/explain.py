"""`headstart explain`: which words decided."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headstart.cli.console import console, print_json, table
from headstart.cli.imports import heavy_imports
from headstart.cli.options import Json, ModelFolder
from headstart.errors import ConfigError
from headstart.wording import plural

if TYPE_CHECKING:
    from rich.console import Console

    from headstart.use.explanation import AttentionMaps, Explanation

TOP = 10  # words in the table
BLUES = ((222, 235, 247), (8, 81, 156))  # for, from slight to strong
ORANGES = ((254, 230, 206), (166, 54, 3))  # against
SHADES = ("· ", "░░", "▒▒", "▓▓", "██")  # of weights from 0, 0.04, 0.16, 0.36 and 0.64 on
NAMES = 14  # columns for the name of a token


def explain_command(
    folder: ModelFolder,
    text: Annotated[str, typer.Argument(help="The text to explain the answer to.")],
    second: Annotated[str | None, typer.Option(metavar="TEXT", help="The second text, for a model of pairs.")] = None,
    label: Annotated[str | None, typer.Option(help="Explain this label, not the likeliest.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="OUT", help="Write a page with all attention maps.")] = None,
    attention: Annotated[bool, typer.Option("--attention", help="Show what one head of one layer looks at.")] = False,
    layer: Annotated[int | None, typer.Option(metavar="N", help="Which layer, from 1 [default: the last].")] = None,
    head: Annotated[int | None, typer.Option(metavar="N", help="Which head, from 1 [default: 1].")] = None,
    as_json: Json = False,
) -> None:
    """Show which words of a text speak for a label and which against it, and how far that can be believed."""
    with heavy_imports():
        from headstart.use.classifier import TextClassifier
        from headstart.use.explain import explain

    attention = attention or layer is not None or head is not None
    classifier = TextClassifier.load(folder)
    config = classifier.model.config
    _in_range("layer", layer, config.layers)
    _in_range("head", head, config.heads)
    asked = text if second is None else (text, second)
    explanation = explain(classifier, asked, label=label, attention=attention or html is not None)
    if html is not None:
        from headstart.files import write_text
        from headstart.report.explanation import render

        write_text(html, render(explanation))
    if as_json:
        print_json(explanation.to_json())
        return
    screen = console()
    _show(screen, explanation)
    if attention and explanation.attention is not None:
        _show_map(screen, explanation.attention, layer or config.layers, head or 1)
    if html is not None:
        screen.print(f"\npage: {html}", soft_wrap=True)


def _in_range(name: str, value: int | None, most: int) -> None:
    if value is not None and not 1 <= value <= most:
        raise ConfigError("explain", [f"{name} is {value}, and this model has {most}: choose from 1 to {most}"])


def _show(screen: Console, explanation: Explanation) -> None:
    """The text in colours, and the same in numbers for those who see none."""
    from rich.text import Text

    from headstart.report.explanation import SLIGHT, greatest, notes, text_spans
    from headstart.report.html import printable

    for part in range(1 if isinstance(explanation.text, str) else 2):
        line = Text()
        for stretch in text_spans(explanation, part):
            coloured = stretch.word if stretch.strength >= SLIGHT else None
            line.append(stretch.text, _style(coloured.weight, stretch.strength) if coloured else None)
        screen.print(line, soft_wrap=not screen.is_terminal)
    ranked = sorted(explanation.probabilities.items(), key=lambda item: -item[1])
    rows = [(printable(name), f"{share:.3f}", "█" * round(24 * share)) for name, share in ranked]
    screen.print("", table("label", ">probability", rows=rows), sep="\n")
    if explanation.words:
        weights = table("word", ">weight", f"for {printable(explanation.label)}, or against", ">alone", ">left out")
        for word in sorted(explanation.words, key=lambda word: -abs(word.weight))[:TOP]:
            side, bar = ("for", "+") if word.weight > 0 else ("against", "-")
            length = max(1, round(16 * abs(word.weight) / greatest(explanation)))
            both = (f"{number:+.2f}" for number in (word.alone, word.left_out))
            weights.add_row(printable(word.text), f"{word.weight:+.3f}", f"{side:7} {bar * length}", *both)
        screen.print("", weights, sep="\n")
        if len(explanation.words) > TOP:
            screen.print(f"and {plural(len(explanation.words) - TOP, 'word')} of less weight")
    screen.print("", *notes(explanation), sep="\n", soft_wrap=not screen.is_terminal)  # a pipe gets whole lines


def _style(weight: float, strength: float) -> str:
    """Dark letters on a pale ground or light ones on a deep one, whatever the terminal's own colours are."""
    pale, deep = BLUES if weight > 0 else ORANGES
    ground = [round(a + (b - a) * strength) for a, b in zip(pale, deep, strict=True)]
    return f"{'white' if strength > 0.6 else 'black'} on rgb({ground[0]},{ground[1]},{ground[2]})"


def _show_map(screen: Console, maps: AttentionMaps, layer: int, head: int) -> None:
    """One head's map in shades, as many tokens as the terminal is wide; what lies ahead in a causal model is empty."""
    from rich.cells import set_cell_size

    from headstart.report.explanation import shades, shortened

    fits = min(len(maps.tokens), (screen.width - NAMES - 4) // 2)
    cells = shades(maps.weights[layer - 1, head - 1], len(SHADES))
    screen.print(f"\nLayer {layer}, head {head}: each row a token, its shades what it looks at")
    lines = [" " * (NAMES + 4) + "".join(f"{column % 100:2}" for column in range(1, fits + 1))]
    for row in range(fits):
        seen = row + 1 if maps.causal else fits
        shown = "".join(SHADES[shade] for shade in cells[row, :seen])
        lines.append(f"{set_cell_size(shortened(maps.tokens[row]), NAMES)}{row + 1:3} {shown}")
    screen.print(*lines, sep="\n", no_wrap=True, crop=True)
    if fits < len(maps.tokens):
        screen.print(f"the first {fits} of {len(maps.tokens)} tokens")
    screen.print("· below 0.04  ░ from 0.04  ▒ from 0.16  ▓ from 0.36  █ from 0.64")

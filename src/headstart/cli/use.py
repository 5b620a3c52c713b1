"""`headstart predict`, `evaluate`, `generate` and `fill`: classifiers and language models in use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headstart.cli.console import console, log, print_json, silent, skipped_rows, status_line, table
from headstart.cli.imports import heavy_imports
from headstart.cli.options import Json, LabelColumn, ModelFolder, Quiet, SecondColumn, SkipBad, TextColumn
from headstart.cli.torchrun import process_group, require_files
from headstart.errors import ConfigError, listed_names
from headstart.wording import plural

if TYPE_CHECKING:
    from headstart.use.fill import Candidate
    from headstart.use.language_model import LanguageModel

INTERVAL = 5.0  # seconds between plain lines


def predict(
    folder: ModelFolder,
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="Texts: csv, tsv, jsonl, parquet, txt; - is standard input.")
    ],
    out: Annotated[
        str, typer.Option(help="csv, tsv, jsonl, parquet, or txt for the labels alone; - is standard output, as jsonl.")
    ] = "-",
    text: TextColumn = None,
    second: SecondColumn = None,
    abstain_below: Annotated[
        float | None, typer.Option(min=0, max=1, help="Give no label where the model is less sure than this.")
    ] = None,
    escape_formulas: Annotated[
        bool,
        typer.Option(
            "--escape-formulas",
            help="csv, tsv: put an apostrophe before cells that a spreadsheet would run as formulas (they begin with "
            "=, +, - or @).",
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    skip_bad: SkipBad = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Label the texts of a file; its columns are kept, the label and the probability of each class are added."""
    with heavy_imports():
        from headstart.use.linear_classifier import open_classifier
        from headstart.use.predict import predict_file

    require_files(source, out)
    with process_group() as parallel:
        main_log = log if parallel.is_main else silent
        quiet = quiet or not parallel.is_main
        say = silent if quiet else log
        classifier = open_classifier(folder, device, parallel)
        began = time.monotonic()
        with skipped_rows(skip_bad, main_log) as skipped, _progress(quiet) as progress:
            counts = predict_file(
                classifier, source, out, text=text, second=second, abstain_below=abstain_below,
                escape_formulas=escape_formulas, skipped=skipped, log=say, progress=progress, write=parallel.is_main,
            )  # fmt: skip
        seconds = time.monotonic() - began
    if not parallel.is_main:
        return
    if as_json:
        labelled = {name or "": count for name, count in counts.labels.items()}
        print_json({"rows": counts.rows, "labels": labelled, "seconds": seconds})
        return
    by_name = sorted(counts.labels.items(), key=str)
    labels = listed_names([f"{name or 'no label'} {count:,}" for name, count in by_name])
    rate = counts.rows / max(seconds, 1e-9)
    say(f"{plural(counts.rows, 'text')} in {seconds:.1f} s ({rate:,.0f} a second): {labels}")


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int], None]]:
    """A counter on a terminal, a line every few seconds elsewhere."""
    from rich.console import Console

    screen, last = Console(stderr=True, quiet=quiet), time.monotonic()
    with status_line(screen, "reading") as status:

        def report(rows: int) -> None:
            nonlocal last
            status.update(f"{rows:,} texts")
            if not screen.is_terminal and time.monotonic() - last >= INTERVAL:
                last = time.monotonic()
                screen.print(f"{rows:,} texts")

        yield report


def evaluate_command(
    folder: ModelFolder,
    data: Annotated[str, typer.Argument(help="Labelled texts.")],
    text: TextColumn = None,
    second: SecondColumn = None,
    label: LabelColumn = None,
    skip_bad: SkipBad = False,
    as_json: Json = False,
) -> None:
    """Score a classifier on labelled texts: accuracy, macro-F1 and loss."""
    with heavy_imports():
        from headstart.reading.examples import read_examples
        from headstart.use.classifier import TextClassifier

    with process_group() as parallel:
        classifier = TextClassifier.load(folder, parallel=parallel)
        say = log if parallel.is_main else silent
        with skipped_rows(skip_bad, say) as skipped:
            examples = read_examples(data, text=text, second=second, label=label, skipped=skipped)
        for note in examples.notes:
            say(note)
        scores, rows = classifier.evaluate(examples), len(examples.rows)
    if not parallel.is_main:
        return
    if as_json:
        print_json({"rows": rows, **scores})
        return
    cells = [str(rows), *(f"{value:.4f}" for value in scores.values())]
    console().print(table(">rows", *(f">{name.replace('_', ' ')}" for name in scores), rows=[cells]))


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
    """Continue a text with a causal model, or one of causal+masked.

    A text that outgrows the model's window goes on: the model then sees its last tokens, between half a window and a
    whole one.
    """
    with heavy_imports():
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
    with heavy_imports():
        from headstart.use.language_model import LanguageModel

    model = LanguageModel.load(folder)
    filled = model.fill(text, top)
    completed = filled[0].candidates[0].text
    if as_json:
        print_json({"text": text, "completed": completed, "masks": [asdict(mask) for mask in filled]})
        return
    screen = console()
    for number, mask in enumerate(filled, start=1):
        title = f"mask {number}" if len(filled) > 1 else "mask"
        rows = [(_word(candidate, model), f"{candidate.probability:.4f}") for candidate in mask.candidates]
        screen.print(table(title, ">probability", rows=rows), "", sep="\n")
    screen.print(completed, soft_wrap=not screen.is_terminal)


def _word(candidate: Candidate, model: LanguageModel) -> str:
    """A token as one would write it; as the tokenizer spells it where it is only some bytes of a character."""
    word = model.tokenizer.decode([candidate.id]).strip()
    return word if word and "\ufffd" not in word else candidate.piece

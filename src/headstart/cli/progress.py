"""A run as it goes: a bar on a terminal, plain lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headstart.cli.console import log, size
from headstart.runs.events import Evaluated, Event, Halved, OnEvent, Skipped, Step

EVERY = 10.0  # seconds between plain lines


@contextmanager
def reporter(quiet: bool) -> Iterator[OnEvent | None]:
    """A listener for the events of a loop."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar() as on_event:
            yield on_event
    else:
        yield _Lines()


class _Lines:
    """One line for each evaluation, and one for the steps every few seconds."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self.speed = _Speed()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Step):
            self.speed.update(event)
            if time.monotonic() - self.last >= EVERY:
                self.last = time.monotonic()
                log(f"step {event.step}/{event.total}  {self.speed.line(event)}")
        elif line := _line(event):
            log(line)


@contextmanager
def _bar() -> Iterator[OnEvent]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[line]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None, epoch="", line="")
        speed = _Speed()

        def on_event(event: Event) -> None:
            if isinstance(event, Step):
                speed.update(event)
                line = speed.line(event)
                progress.update(task, total=event.total, completed=event.step, epoch=event.epoch + 1, line=line)
            elif text := _line(event):
                progress.print(text, highlight=False)

        yield on_event


class _Speed:
    """Tokens a second, smoothed over the last steps."""

    def __init__(self) -> None:
        self.tokens: int | None = None
        self.value = 0.0

    def update(self, event: Step) -> None:
        if self.tokens is not None and event.tokens > self.tokens:  # which is less where another run begins
            new = (event.tokens - self.tokens) / max(event.seconds, 1e-9)
            self.value = new if self.value == 0 else 0.9 * self.value + 0.1 * new
        self.tokens = event.tokens

    def line(self, event: Step) -> str:
        return f"loss {event.loss:.4f}  lr {event.lr:.2e}  {self.value:,.0f} tokens/s  {_memory()}"


def _line(event: Event) -> str | None:
    """What is printed of any event but a step."""
    match event:
        case Evaluated():
            scores = "  ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in event.scores.items())
            return f"epoch {event.epoch:g}  step {event.step}  valid: {scores}{'  best so far' if event.best else ''}"
        case Skipped():
            return f"step {event.step} was left out: its loss was {event.loss}"
        case Halved():
            return f"out of memory at step {event.step}: going on with {event.shares} micro-batches a step"
    return None


def _memory() -> str:
    """What the process holds now, and on a GPU the most that it held."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        words = size(pages * 4096)
    except (OSError, IndexError, ValueError):
        words = ""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        words += f"  GPU {size(torch.cuda.max_memory_allocated())}"
    return words

"""A run as it trains: a bar on a terminal and in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headstart.runs.events import Evaluated, Event, Halved, OnEvent, Skipped, Step
from headstart.wording import size

INTERVAL = 10.0  # seconds between plain lines
Log = Callable[[str], None]


@contextmanager
def show_progress(wanted: bool | None) -> Iterator[tuple[OnEvent | None, Log]]:
    """An event callback and a function for lines, for who calls headstart from Python; both do nothing unless wanted.

    None: wanted on a terminal and in a notebook.
    """
    if wanted or (wanted is None and (sys.stderr.isatty() or "ipykernel" in sys.modules)):
        with training_bar(stderr=False) as callbacks:
            yield callbacks
    else:
        yield None, lambda text: None


@contextmanager
def training_bar(*, stderr: bool) -> Iterator[tuple[OnEvent, Log]]:
    """A bar on standard output, or on standard error, where it is removed at the end; lines are printed above it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    texts = [TextColumn("{task.description}"), TextColumn("{task.fields[line]}")]
    columns = (texts[0], BarColumn(), MofNCompleteColumn(), texts[1], TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=stderr), transient=stderr) as progress:
        task = progress.add_task("", total=None, line="", visible=False)
        speed = _Speed()

        def log(text: str) -> None:
            progress.print(text, highlight=False, markup=False)

        def on_event(event: Event) -> None:
            if isinstance(event, Step):
                speed.update(event)
                epoch, line = f"epoch {event.epoch + 1}", speed.line(event)
                progress.update(
                    task, total=event.total, completed=event.step, description=epoch, visible=True, line=line
                )
            elif text := _line(event):
                log(text)

        yield on_event, log


class TrainingLines:
    """An event callback: one line for each evaluation, and one for the steps every few seconds."""

    def __init__(self, log: Log) -> None:
        self.log, self.last, self.speed = log, time.monotonic(), _Speed()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Step):
            self.speed.update(event)
            if time.monotonic() - self.last >= INTERVAL:
                self.last = time.monotonic()
                self.log(f"step {event.step}/{event.total}  {self.speed.line(event)}")
        elif text := _line(event):
            self.log(text)


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
    statm = Path("/proc/self/statm")  # in pages; only Linux has it
    words = size(int(statm.read_text(encoding="ascii").split()[1]) * 4096) if statm.is_file() else ""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        words += f"  GPU {size(torch.cuda.max_memory_allocated())}"
    return words

"""A bar and lines while something trains, for who calls headstart from Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headstart.runs.events import Evaluated, OnEvent, Step


@contextmanager
def show_progress(wanted: bool | None) -> Iterator[tuple[OnEvent | None, Callable[[str], None]]]:
    """A listener for events and a function for lines; both do nothing unless wanted.

    None: wanted on a terminal and in a notebook.
    """
    if not (wanted if wanted is not None else sys.stderr.isatty() or "ipykernel" in sys.modules):
        yield None, lambda text: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[valid]}"), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("", total=None, valid="", visible=False)

        def on_event(event: object) -> None:
            if isinstance(event, Step):
                progress.update(task, total=event.total, completed=event.step, visible=True)
            elif isinstance(event, Evaluated):
                name = next(iter(event.scores))
                progress.update(task, valid=f"valid {name} {event.scores[name]:.3f}")

        yield on_event, lambda text: progress.print(text, highlight=False, markup=False)

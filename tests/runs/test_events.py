from __future__ import annotations

import math
from pathlib import Path

import pytest

from headstart.errors import DataError, OutputError
from headstart.runs.events import Best, Evaluated, Event, Finished, Halved, Saved, Skipped, Step, event_writer
from headstart.runs.events import read_events as read

EVENTS: list[Event] = [
    Step(0, 1, 2, loss=0.5, parts={"masked": 0.3}, lr=0.1, gradient=math.inf, tokens=9, seconds=0.25),
    Halved(1, 4),
    Evaluated(0.5, 1, {"accuracy": 0.75}, best=True),
    Saved(1),
    Finished(2, "patience", Best(1, 0.5, {"accuracy": 0.75})),
    Finished(2, "done", None),
]


def write(path: Path, events: list[Event], offset: int = 0) -> list[int]:
    with event_writer(path, offset) as append:
        return [append(event) for event in events]


def test_events_are_read_back_as_they_were(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", EVENTS)
    assert read(tmp_path / "events.jsonl") == EVENTS


def test_a_loss_that_is_no_number_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", [Skipped(0, 1, math.nan)])
    (event,) = read(tmp_path / "events.jsonl")
    assert isinstance(event, Skipped) and math.isnan(event.loss)


def test_the_state_of_a_checkpoint_is_not_written(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", [Saved(3, state=object())])
    assert read(tmp_path / "events.jsonl") == [Saved(3)]


def test_events_beyond_the_offset_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    sizes = write(path, EVENTS)
    write(path, EVENTS[4:], sizes[1])
    assert read(path) == [*EVENTS[:2], *EVENTS[4:]]


def test_a_line_that_is_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, EVENTS)
    with path.open("a") as file:
        file.write('{"event": "step", "lo')
    assert read(path) == EVENTS


def test_the_last_events_of_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    sizes = write(path, EVENTS)
    assert read(path, last=sizes[-1] - sizes[2] + 5) == EVENTS[3:]  # five bytes more: of a line that is cut short
    assert read(path, last=10**6) == EVENTS


@pytest.mark.parametrize(
    "line",
    ["\0" * 40, "[]", '{"event": "stop"}', '{"event": "step"}', '{"event": "skipped", "loss": "much"}', "[" * 9999],
)
def test_a_line_that_is_no_event_is_an_error_in_words(tmp_path: Path, line: str) -> None:
    path = tmp_path / "events.jsonl"
    write(path, EVENTS)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match="is no event of a run") as caught:
        read(path)
    assert len(str(caught.value)) < 400


def test_a_file_that_is_too_short_is_not_made_longer(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    size = write(path, EVENTS)[-1]
    with pytest.raises(OutputError, match="fewer than"):
        write(path, EVENTS, size + 1)
    assert read(path) == EVENTS

"""Requests that arrive together are answered together.

    submit → (reader thread) texts become ids → (worker thread) rounds of up to so many tokens → futures

The worker makes one model call at a time. A round takes rows from the requests that wait, the oldest first, until it
has enough tokens, or until the oldest has waited for a few milliseconds; `classify` sorts them by length. A request
with more rows than a round holds gives the place back after each, so that a long one never stands before a short one
for more than a round. Explanations and continuations are tasks of one or more steps, and take turns with the rounds.

What goes wrong with one request is told to that one. A request whose future was cancelled is passed over.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from headstart.batches.encoding import EncodedExamples
from headstart.metrics import Floats
from headstart.reading.examples import Text
from headstart.serve.limits import Limits, Refusal
from headstart.serve.metrics import Metrics
from headstart.serve.models import ServedClassifier

T = TypeVar("T")


@dataclass(eq=False)
class Job:
    """The texts of one request, from when they are taken on until the last of them is answered."""

    served: ServedClassifier
    texts: list[Text]
    fields: list[str]
    future: Future[Floats] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)
    encoded: EncodedExamples | None = None
    rows: Floats | None = None  # (n, C), as far as they are known
    taken: int = 0  # rows that went into a round

    @property
    def left(self) -> int:
        """Tokens that are in no round yet."""
        assert self.encoded is not None
        return int(self.encoded.starts[-1] - self.encoded.starts[self.taken])


@dataclass(frozen=True)
class Part:
    """Rows of a job that go into one round."""

    job: Job
    first: int
    end: int


@dataclass(eq=False)
class Task:
    """Work that is done in steps; its outcome is what the last of them yields."""

    steps: Iterator[Any]
    future: Future[Any] = field(default_factory=Future)
    last: Any = None


class Batcher:
    """The queue, its reader and its worker."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._tasks: deque[Task] = deque()
        self._waiting = 0
        self._pace = 0.0  # seconds a text, lately
        self._stopping = False
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="headstart-reader")
        self._worker = threading.Thread(target=self._work, name="headstart-worker", daemon=True)
        self._worker.start()

    @property
    def waiting(self) -> int:
        """Texts that are taken on and not answered."""
        return self._waiting

    def submit(self, served: ServedClassifier, texts: list[Text], fields: list[str]) -> Future[Floats]:
        """(n, C) probabilities, as soon as they are known; `fields` names each text, for what is wrong with it."""
        job = Job(served, texts, fields)
        self._take_on(job.future, len(texts))
        self._reader.submit(self._read, job)
        return job.future

    def run(self, steps: Iterator[T]) -> Future[T]:
        """The last value of an iterator whose steps the worker takes, one at a time."""
        task = Task(steps)
        self._take_on(task.future, 1)
        with self._changed:
            self._tasks.append(task)
            self._changed.notify()
        return task.future

    def stop(self) -> None:
        """Answer what was taken on, and end."""
        self._reader.shutdown(wait=True)
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._worker.join()

    def _take_on(self, future: Future[Any], texts: int) -> None:
        with self._changed:
            if self._waiting and self._waiting + texts > self.limits.queue:
                seconds = min(60, max(1, math.ceil(self._waiting * self._pace)))
                message = f"{self._waiting} texts wait already, and {self.limits.queue} may: try again in {seconds} s"
                raise Refusal(429, "queue_full", message, headers={"Retry-After": str(seconds)})
            self._waiting += texts
        future.add_done_callback(lambda _: self._let_go(texts))

    def _let_go(self, texts: int) -> None:
        with self._changed:
            self._waiting -= texts

    def _read(self, job: Job) -> None:
        """In the reader thread: so that the worker's time goes to the model alone."""
        if job.future.cancelled():
            return
        try:
            job.encoded = job.served.read(job.texts, job.fields)
            job.rows = np.zeros((len(job.encoded), len(job.served.classifier.class_names)))
        except Exception as error:
            _settle(job.future, error=error)
            return
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._tasks or self._stopping)
                if not self._jobs and not self._tasks:
                    return
                parts = self._gather()
                task = self._tasks.popleft() if self._tasks else None
            if parts:
                self._round(parts)
            if task is not None:
                self._step(task)

    def _gather(self) -> list[Part]:
        """The rows of a round, all for one model; waits a little for more, where nothing else is to be done."""
        if not self._jobs:
            return []
        served = self._jobs[0].served
        most = self.limits.tokens or served.tokens
        due = self._jobs[0].arrived + self.limits.wait

        def enough() -> bool:
            return bool(self._tasks) or self._stopping or sum(job.left for job in self._jobs) >= most

        self._changed.wait_for(enough, timeout=max(0.0, due - time.monotonic()))
        parts: list[Part] = []
        others: list[Job] = []
        unfinished: list[Job] = []
        room = most
        while self._jobs and room > 0:
            job = self._jobs.popleft()
            if job.future.done():
                continue
            if job.served is not served:
                others.append(job)
                continue
            assert job.encoded is not None
            part = Part(job, job.taken, _fitting(job.encoded.starts, job.taken, room))
            room -= job.left
            job.taken = part.end
            parts.append(part)
            if job.taken < len(job.encoded):
                unfinished.append(job)
        self._jobs.extendleft(reversed(others))
        self._jobs.extend(unfinished)
        return parts

    def _round(self, parts: list[Part]) -> None:
        """One model call; where it fails, one for each request, so that only the one to blame is refused."""
        began = time.monotonic()
        try:
            rows = parts[0].job.served.probabilities(join(parts))
        except Exception as error:
            if len(parts) > 1:
                for part in parts:
                    self._round([part])
            else:
                _settle(parts[0].job.future, error=error)
            return
        self.metrics.batch(len(rows))
        self._pace += ((time.monotonic() - began) / len(rows) - self._pace) / 4
        at = 0
        for part in parts:
            job, size = part.job, part.end - part.first
            assert job.rows is not None
            job.rows[part.first : part.end] = rows[at : at + size]
            at += size
            if part.end == len(job.rows):
                _settle(job.future, job.rows)

    def _step(self, task: Task) -> None:
        """One step of a task; it comes again, after the others, until its steps end."""
        if task.future.cancelled():
            return
        try:
            task.last = next(task.steps)
        except StopIteration:
            _settle(task.future, task.last)
        except Exception as error:
            _settle(task.future, error=error)
        else:
            with self._changed:
                self._tasks.append(task)


def join(parts: list[Part]) -> EncodedExamples:
    """Rows of several requests as one set, in the order of the parts."""
    sets = [part.job.encoded for part in parts if part.job.encoded is not None]
    spans = [slice(e.starts[p.first], e.starts[p.end]) for e, p in zip(sets, parts, strict=True)]
    lengths = np.concatenate([e.lengths[p.first : p.end] for e, p in zip(sets, parts, strict=True)])
    segments = None
    if any(e.segments is not None for e in sets):
        nothing = [np.zeros(s.stop - s.start, np.int8) for s in spans]
        segments = np.concatenate(
            [n if e.segments is None else e.segments[s] for e, s, n in zip(sets, spans, nothing, strict=True)]
        )
    return EncodedExamples(
        np.concatenate([e.ids[s] for e, s in zip(sets, spans, strict=True)]),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        segments,
        np.full(len(lengths), -1, dtype=np.int64),
        truncated=0,
    )


def _fitting(starts: Any, first: int, room: int) -> int:
    """The end of the rows from `first` on that have `room` tokens between them; one row at least.

    >>> _fitting(np.array([0, 5, 10, 15]), 0, 11), _fitting(np.array([0, 5, 10, 15]), 1, 3)
    (2, 2)
    """
    return max(first + 1, int(np.searchsorted(starts, starts[first] + room, side="right")) - 1)


def _settle(future: Future[Any], value: Any = None, error: Exception | None = None) -> None:
    """Say how it ended, unless nobody waits any more."""
    with suppress(InvalidStateError):
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

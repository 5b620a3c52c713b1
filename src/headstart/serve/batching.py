"""Dynamic batching: texts of requests that arrive at the same time are predicted in one batch.

    submit → (encoder thread) texts become ids → (worker thread) batches of up to so many tokens → futures

The worker makes one model call at a time. A batch takes rows from the waiting requests, the oldest first, until it
has enough tokens, or until the oldest has waited for a few milliseconds. A request with more rows than fit into a
batch goes to the end of the queue after each, so that a long request delays a short one by one batch at most.
Explanations and continuations are tasks of one or more steps, and take turns with the batches.

An error of one request reaches that request alone. A request whose future was cancelled is skipped.
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
from typing import Any, NamedTuple, TypeVar

import numpy as np

from headstart.batches.examples import EncodedExamples
from headstart.metrics import Floats
from headstart.reading.examples import Text
from headstart.serve.limits import ApiError, Limits
from headstart.serve.metrics import Metrics
from headstart.serve.models import ServedClassifier

T = TypeVar("T")
LAST_CALL = 3.0  # seconds for a model call that is under way at the end


@dataclass(eq=False)
class Job:
    """The texts of one request, until the last of them is predicted."""

    served: ServedClassifier
    encoded: EncodedExamples
    future: Future[Floats]
    arrived: float
    batched: int = 0  # rows that have gone into a batch
    probabilities: list[Floats] = field(default_factory=list)  # (rows, C) of each batch so far

    @property
    def tokens_left(self) -> int:
        return int(self.encoded.starts[-1] - self.encoded.starts[self.batched])


class JobRows(NamedTuple):
    """Rows of a job that go into one batch."""

    job: Job
    first: int
    end: int


@dataclass(eq=False)
class Task:
    """Work in steps; its result is what the last step yields."""

    steps: Iterator[Any]
    future: Future[Any] = field(default_factory=Future)
    last: Any = None


class Batcher:
    """The queue, its encoder thread and its worker thread."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._tasks: deque[Task] = deque()
        self.waiting = 0  # texts that are accepted and not answered
        self._seconds_per_text = 0.0  # moving average
        self._stopping = False
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="headstart-encoder")
        self._worker = threading.Thread(target=self._work, name="headstart-worker", daemon=True)
        self._worker.start()

    def submit(self, served: ServedClassifier, texts: list[Text], fields: list[str]) -> Future[Floats]:
        """(n, C) probabilities; `fields` names each text in an error."""
        arrived, future = time.monotonic(), Future[Floats]()
        self._admit(future, len(texts))

        def encode() -> None:  # in a thread of its own, so that the worker's time goes to the model alone
            if future.cancelled():
                return
            try:
                job = Job(served, served.encode(texts, fields), future, arrived)
            except Exception as error:
                _finish(future, error=error)
            else:
                self._enqueue(self._jobs, job)

        self._encoder.submit(encode)
        return future

    def run(self, steps: Iterator[T]) -> Future[T]:
        """The last value of an iterator; the worker takes its steps one at a time."""
        task = Task(steps)
        self._admit(task.future, 1)
        self._enqueue(self._tasks, task)
        return task.future

    @property
    def busy(self) -> bool:
        """Whether the worker has not ended."""
        return self._worker.is_alive()

    def stop(self) -> None:
        """Answer what was accepted, and end; a model call that takes long is not waited for."""
        self._encoder.shutdown(wait=True)
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._worker.join(LAST_CALL)

    def _admit(self, future: Future[Any], texts: int) -> None:
        with self._changed:
            if self.waiting and self.waiting + texts > self.limits.queue:
                seconds = min(60, max(1, math.ceil(self.waiting * self._seconds_per_text)))
                message = f"{self.waiting} texts wait already, and {self.limits.queue} may: try again in {seconds} s"
                raise ApiError(429, "queue_full", message, headers={"Retry-After": str(seconds)})
            self.waiting += texts
        future.add_done_callback(lambda _: self._release(texts))

    def _release(self, texts: int) -> None:
        with self._changed:
            self.waiting -= texts

    def _enqueue(self, queue: deque[T], item: T) -> None:
        with self._changed:
            queue.append(item)
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._tasks or self._stopping)
                if not self._jobs and not self._tasks:
                    return
                batch = self._gather()
                task = self._tasks.popleft() if self._tasks else None
            if batch:
                self._predict(batch)
            if task is not None:
                self._step(task)

    def _gather(self) -> list[JobRows]:
        """The rows of a batch, all for one model; waits a little for more, unless there is other work."""
        if not self._jobs:
            return []
        served = self._jobs[0].served
        space = self.limits.tokens or served.tokens
        due = self._jobs[0].arrived + self.limits.wait

        def enough() -> bool:
            return bool(self._tasks) or self._stopping or sum(job.tokens_left for job in self._jobs) >= space

        self._changed.wait_for(enough, timeout=max(0.0, due - time.monotonic()))
        batch: list[JobRows] = []
        other_models: list[Job] = []
        unfinished: list[Job] = []
        while self._jobs and space > 0:
            job = self._jobs.popleft()
            if job.future.done():
                continue
            if job.served is not served:
                other_models.append(job)
                continue
            rows = JobRows(job, job.batched, _last_fitting(job.encoded.starts, job.batched, space))
            space -= job.tokens_left
            job.batched = rows.end
            batch.append(rows)
            if job.batched < len(job.encoded):
                unfinished.append(job)
        self._jobs.extendleft(reversed(other_models))
        self._jobs.extend(unfinished)
        return batch

    def _predict(self, batch: list[JobRows]) -> None:
        """One model call; if it fails, one for each request, so that only the request at fault gets the error."""
        began = time.monotonic()
        try:
            predicted = batch[0].job.served.probabilities(concatenate(batch))
        except Exception as error:
            if len(batch) > 1:
                for rows in batch:
                    self._predict([rows])
            else:
                _finish(batch[0].job.future, error=error)
            return
        self.metrics.batch(len(predicted))
        self._seconds_per_text += ((time.monotonic() - began) / len(predicted) - self._seconds_per_text) / 4
        for rows in batch:
            job, count = rows.job, rows.end - rows.first
            job.probabilities.append(predicted[:count])
            predicted = predicted[count:]
            if rows.end == len(job.encoded):
                _finish(job.future, np.concatenate(job.probabilities))

    def _step(self, task: Task) -> None:
        """One step of a task, which then goes to the end of the queue, until its steps end."""
        if task.future.cancelled():
            return
        try:
            task.last = next(task.steps)
        except StopIteration:
            _finish(task.future, task.last)
        except Exception as error:
            _finish(task.future, error=error)
        else:
            self._enqueue(self._tasks, task)


def concatenate(batch: list[JobRows]) -> EncodedExamples:
    """The rows of several requests as one set."""
    ids, segments = [], []
    for job, first, end in batch:
        encoded = job.encoded
        for row in range(first, end):
            span = slice(encoded.starts[row], encoded.starts[row + 1])
            ids.append(encoded.ids[span])
            segments.append(np.zeros_like(ids[-1]) if encoded.segments is None else encoded.segments[span])
    paired = any(job.encoded.segments is not None for job, _, _ in batch)
    return EncodedExamples.from_rows(ids, segments if paired else None)


def _last_fitting(starts: Any, first: int, tokens: int) -> int:
    """The end of the rows from `first` on that have at most `tokens` tokens together; at least one row.

    >>> _last_fitting(np.array([0, 5, 10, 15]), 0, 11), _last_fitting(np.array([0, 5, 10, 15]), 1, 3)
    (2, 2)
    """
    return max(first + 1, int(np.searchsorted(starts, starts[first] + tokens, side="right")) - 1)


def _finish(future: Future[Any], value: Any = None, error: Exception | None = None) -> None:
    """Set a future's outcome, unless it was cancelled."""
    with suppress(InvalidStateError):
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

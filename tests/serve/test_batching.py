"""The queue: who is answered with whom, and what one request can do to another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from headstart.batches.examples import EncodedExamples
from headstart.metrics import Floats
from headstart.reading.examples import Text
from headstart.serve.app import create_app
from headstart.serve.batching import Batcher, Job, JobRows, concatenate
from headstart.serve.limits import ApiError, Limits
from headstart.serve.metrics import Metrics
from headstart.serve.models import ServedClassifier, valid_examples
from headstart.use.classifier import TextClassifier


class Held(ServedClassifier):
    """A classifier that keeps a record of its calls, and waits in each until it is let go."""

    def __new__(cls, *_: Any, **__: Any) -> Held:
        made = super().__new__(cls)
        object.__setattr__(made, "calls", [])
        object.__setattr__(made, "began", threading.Semaphore(0))
        object.__setattr__(made, "go", threading.Event())
        return made

    calls: list[list[int]]
    began: threading.Semaphore
    go: threading.Event

    def probabilities(self, encoded: EncodedExamples) -> Floats:
        self.calls.append(encoded.lengths.tolist())
        self.began.release()
        assert self.go.wait(30)
        return super().probabilities(encoded)


@pytest.fixture
def held(offline: TextClassifier) -> Held:
    return Held("held", offline)


@pytest.fixture
def batcher() -> Iterator[Batcher]:
    made = Batcher(Limits(wait=0.0), Metrics())
    yield made
    made.stop()


def submit(batcher: Batcher, served: ServedClassifier, *texts: Text) -> Future[Floats]:
    return batcher.submit(served, list(texts), [f"texts[{n}]" for n in range(len(texts))])


def settled(batcher: Batcher) -> None:
    """Everything that was submitted has been read."""
    batcher._encoder.submit(lambda: None).result()


def words(count: int) -> str:
    """A text of as many tokens, with the two that stand around it."""
    return " ".join(["a"] * (count - 2))


class TestRounds:
    def test_what_waits_together_is_answered_together(
        self, held: Held, offline: TextClassifier, texts: list[str]
    ) -> None:
        batcher = Batcher(Limits(wait=0.0), Metrics())
        first = submit(batcher, held, words(5))
        held.began.acquire()
        others = [submit(batcher, held, *texts[n : n + 2]) for n in range(0, 20, 2)]
        settled(batcher)
        held.go.set()
        rows = np.concatenate([future.result(30) for future in others])
        assert [len(call) for call in held.calls] == [1, 20]
        assert np.abs(rows - offline.probabilities(texts[:20])).max() <= 1e-6
        assert first.result().shape == (1, 2)
        batcher.stop()
        assert batcher.waiting == 0

    def test_company_is_waited_for_until_there_is_enough(self, held: Held) -> None:
        """Two requests of ten tokens fill a round of twenty, however soon the first could have gone alone."""
        batcher = Batcher(Limits(wait=0.9, tokens=20), Metrics())
        held.go.set()
        futures = [submit(batcher, held, words(10)), submit(batcher, held, words(10))]
        assert [future.result(30).shape for future in futures] == [(1, 2), (1, 2)]
        assert held.calls == [[10, 10]]
        batcher.stop()

    def test_a_long_request_lets_others_in_between(self, held: Held) -> None:
        batcher = Batcher(Limits(wait=0.0, tokens=20), Metrics())
        submit(batcher, held, words(3))
        held.began.acquire()
        long, short = submit(batcher, held, *[words(10)] * 5), submit(batcher, held, words(4))
        settled(batcher)
        held.go.set()
        assert long.result(30).shape == (5, 2) and short.result(30).shape == (1, 2)
        # 20 tokens a round: two rows of the long one; the short one and its third row; its last two
        assert held.calls == [[3], [10, 10], [4, 10], [10, 10]]
        batcher.stop()

    def test_a_row_longer_than_a_round_goes_alone(self, held: Held) -> None:
        batcher = Batcher(Limits(wait=0.0, tokens=5), Metrics())
        held.go.set()
        assert submit(batcher, held, words(9), words(4), words(9)).result(30).shape == (3, 2)
        assert held.calls == [[9], [4], [9]]
        batcher.stop()

    def test_models_do_not_share_a_round(self, batcher: Batcher, held: Held, offline: TextClassifier) -> None:
        other = Held("other", offline)
        other.go.set()
        submit(batcher, held, words(3))
        held.began.acquire()
        futures = [submit(batcher, served, words(size)) for served, size in ((held, 4), (other, 5), (held, 6))]
        settled(batcher)
        held.go.set()
        for future in futures:
            future.result(30)
        assert held.calls == [[3], [4, 6]] and other.calls == [[5]]

    def test_joined_sets_are_the_sets(self, offline: TextClassifier, served: ServedClassifier) -> None:
        given: list[list[Text]] = [["a witty tale", "the page"], [("a dull page", "the reader"), "a voice"]]
        jobs = [Job(served, offline.encode(texts), Future(), 0.0) for texts in given]
        found = concatenate([JobRows(jobs[0], 1, 2), JobRows(jobs[1], 0, 2)])
        expected = offline.encode([given[0][1], *given[1]])
        assert found.ids.tolist() == expected.ids.tolist() and found.starts.tolist() == expected.starts.tolist()
        assert found.segments is not None and expected.segments is not None
        assert found.segments.tolist() == expected.segments.tolist()


class TestNeighbours:
    def test_a_text_that_cannot_be_read(self, batcher: Batcher, held: Held) -> None:
        good = submit(batcher, held, "a witty tale")
        held.began.acquire()
        bad, other = submit(batcher, held, "a tale", "\ud800"), submit(batcher, held, "a dull tale")
        held.go.set()
        with pytest.raises(ApiError, match="surrogate") as error:
            bad.result(30)
        assert (error.value.status, error.value.field) == (422, "texts[1]")
        assert good.result(30).argmax() == 1 and other.result(30).argmax() == 0

    def test_a_text_that_breaks_the_model(self, offline: TextClassifier) -> None:
        class Poisoned(Held):
            def probabilities(self, encoded: EncodedExamples) -> Floats:
                if 13 in encoded.lengths:
                    self.calls.append(encoded.lengths.tolist())
                    raise RuntimeError("too much")
                return super().probabilities(encoded)

        served = Poisoned("poisoned", offline)
        batcher = Batcher(Limits(wait=0.0), Metrics())
        submit(batcher, served, words(3))
        served.began.acquire()
        futures = [submit(batcher, served, words(size)) for size in (4, 13, 5)]
        settled(batcher)
        served.go.set()
        assert futures[0].result(30).shape == futures[2].result(30).shape == (1, 2)
        with pytest.raises(RuntimeError, match="too much"):
            futures[1].result(30)
        assert served.calls == [[3], [4, 13, 5], [4], [13], [5]]
        batcher.stop()

    def test_scores_that_are_no_numbers(
        self, batcher: Batcher, served: ServedClassifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(served.classifier.model, "forward", lambda *_: torch.tensor([[torch.nan, 0.0]]))
        with pytest.raises(Exception, match="no finite numbers"):
            submit(batcher, served, "a").result(30)

    def test_who_has_left_is_passed_over(self, batcher: Batcher, held: Held) -> None:
        submit(batcher, held, words(3))
        held.began.acquire()
        gone, here = submit(batcher, held, words(4)), submit(batcher, held, words(5))
        settled(batcher)
        assert gone.cancel()
        held.go.set()
        here.result(30)
        assert held.calls == [[3], [5]]
        with pytest.raises(CancelledError):
            gone.result()
        assert batcher.waiting == 0

    def test_a_long_task_takes_turns(self, batcher: Batcher, held: Held) -> None:
        """Between any two steps of a continuation a prediction is answered."""
        held.go.set()
        seen: list[int] = []

        def steps() -> Iterator[str]:
            for number in range(3):
                seen.append(len(held.calls))
                answers.append(submit(batcher, held, words(4)))
                settled(batcher)
                yield f"step {number}"

        answers: list[Future[Floats]] = []
        assert batcher.run(steps()).result(30) == "step 2"
        assert seen == [0, 1, 2] and [a.result(30).shape for a in answers] == [(1, 2)] * 3

    def test_a_task_that_fails_and_one_that_was_left(self, batcher: Batcher, held: Held) -> None:
        def failing() -> Iterator[int]:
            yield 1
            raise ValueError("no more")

        submit(batcher, held, words(3))
        held.began.acquire()
        failed, left, well = batcher.run(failing()), batcher.run(iter([1, 2])), batcher.run(iter([1, 2]))
        left.cancel()
        held.go.set()
        assert well.result(30) == 2
        with pytest.raises(ValueError, match="no more"):
            failed.result(30)


class TestFull:
    def test_the_queue(self, held: Held) -> None:
        batcher = Batcher(Limits(wait=0.0, queue=4), Metrics())
        first = submit(batcher, held, words(3))
        held.began.acquire()
        second = submit(batcher, held, *[words(3)] * 3)
        assert batcher.waiting == 4
        with pytest.raises(ApiError) as error:
            submit(batcher, held, words(3))
        assert error.value.status == 429 and int(error.value.headers["Retry-After"]) >= 1
        with pytest.raises(ApiError):
            batcher.run(iter([1]))
        held.go.set()
        assert len(first.result(30)) + len(second.result(30)) == 4
        assert submit(batcher, held, *[words(3)] * 9).result(30).shape == (9, 2)  # more than may wait, and nobody does
        batcher.stop()

    def test_over_http(self, held: Held) -> None:
        async def scene() -> None:
            app = create_app([held], Limits(queue=1, wait=0.0))
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
                first = asyncio.create_task(client.post("/predict", json={"text": "a witty tale"}))
                await asyncio.to_thread(held.began.acquire)
                full = await client.post("/predict", json={"text": "a"})
                assert full.status_code == 429 and full.json()["error"]["code"] == "queue_full"
                assert int(full.headers["Retry-After"]) >= 1
                assert "headstart_queue_texts 1\n" in (await client.get("/metrics")).text
                held.go.set()
                assert (await first).json()["predictions"][0]["label"] == "pos"

        asyncio.run(scene())

    def test_requests_at_once(self, held: Held) -> None:
        async def scene() -> None:
            app = create_app([held], Limits(requests=1, wait=0.0))
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
                first = asyncio.create_task(client.post("/predict", json={"text": "a witty tale"}))
                await asyncio.to_thread(held.began.acquire)
                full = await client.get("/info")
                assert full.status_code == 429 and full.json()["error"]["code"] == "too_many_requests"
                assert (await client.get("/health")).status_code == 200  # it is answered however much there is to do
                held.go.set()
                assert (await first).status_code == 200
                assert (await client.get("/info")).status_code == 200

        asyncio.run(scene())

    def test_the_deadline(self, held: Held) -> None:
        async def scene() -> None:
            app = create_app([held], Limits(deadline=0.05, wait=0.0))
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
                late = await client.post("/predict", json={"text": "a"})
                assert late.status_code == 504 and late.json()["error"]["code"] == "deadline"
                assert "0.05 s" in late.json()["error"]["message"]
                assert app.state.batcher.waiting == 0
                held.go.set()

        asyncio.run(scene())


def test_fifty_at_once(served: ServedClassifier, offline: TextClassifier, texts: list[str]) -> None:
    """Each gets its own answer, whoever shared its batch."""
    metrics_text = ""
    asked = [[texts[(n * 7 + k) % len(texts)] for k in range(1 + n % 5)] for n in range(50)]

    async def scene() -> list[httpx.Response]:
        nonlocal metrics_text
        app = create_app([served])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            found = await asyncio.gather(*(client.post("/predict", json={"texts": some}) for some in asked))
            metrics_text = (await client.get("/metrics")).text
            return found

    answers = asyncio.run(scene())
    for some, answer in zip(asked, answers, strict=True):
        said = [one["probabilities"]["pos"] for one in answer.json()["predictions"]]
        assert np.abs(np.array(said) - offline.probabilities(some)[:, 1]).max() <= 1e-6
    batches = int(
        next(line for line in metrics_text.splitlines() if line.startswith("headstart_batch_texts_count")).split()[1]
    )
    assert batches < 50
    assert f"headstart_batch_texts_sum {sum(map(len, asked))}\n" in metrics_text


def test_examples_of_a_run(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    assert valid_examples(tmp_path) == ()
    rows = [
        {"split": "valid", "text": text, "second": second, "label": label, "path": "valid.txt", "line": 1}
        for text, second, label in [
            ("first b", None, "b"), ("second b", None, "b"), ("x" * 300, None, "a"), ("first a", "its mate", "a"),
            ("", None, "a"), ("third b", None, "b"),
        ]
    ]  # fmt: skip
    rows.append({**rows[0], "split": "test", "text": "unseen", "label": "a"})
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "predictions.parquet")
    assert valid_examples(tmp_path, most=3) == (("first a", "its mate"), "first b", "second b")

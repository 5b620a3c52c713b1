"""What the service counts, in the text format that Prometheus reads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Histogram:
    """How many values lay at or below each edge.

    >>> sizes = Histogram((1, 4))
    >>> for size in (1, 3, 9):
    ...     sizes.add(size)
    >>> print("\\n".join(sizes.lines("batch")))
    batch_bucket{le="1"} 1
    batch_bucket{le="4"} 2
    batch_bucket{le="+Inf"} 3
    batch_sum 13
    batch_count 3
    """

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.total: float = 0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        so_far = 0
        for edge, number in zip([*map(str, self.edges), "+Inf"], self.counts, strict=True):
            so_far += number
            yield f"{name}_bucket{{{labels}{',' if labels else ''}le={quoted(edge)}}} {so_far}"
        own = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{own} {self.total:.9g}"
        yield f"{name}_count{own} {so_far}"


class Metrics:
    """Requests by route and status, their seconds, and the batches that answered them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # requests are counted by the event loop, batches by the worker
        self._requests: dict[tuple[str, int], int] = {}
        self._seconds: dict[str, Histogram] = {}
        self._batches = Histogram(TEXTS)

    def request(self, route: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[route, status] = self._requests.get((route, status), 0) + 1
            self._seconds.setdefault(route, Histogram(SECONDS)).add(seconds)

    def batch(self, texts: int) -> None:
        with self._lock:
            self._batches.add(texts)

    def text(self, *, waiting: int, in_flight: int) -> str:
        """All of it, with what is waiting now."""
        with self._lock:
            requests = [
                f"headstart_requests_total{{route={quoted(route)},status={quoted(str(status))}}} {number}"
                for (route, status), number in sorted(self._requests.items())
            ]
            seconds = [
                line
                for route, times in sorted(self._seconds.items())
                for line in times.lines("headstart_request_seconds", f"route={quoted(route)}")
            ]
            batches = list(self._batches.lines("headstart_batch_texts"))
        queue, under_way = f"headstart_queue_texts {waiting}", f"headstart_requests_under_way {in_flight}"
        return "".join(
            f"# HELP {name} {words}\n# TYPE {name} {kind}\n" + "".join(f"{line}\n" for line in lines)
            for name, kind, words, lines in (
                ("headstart_requests_total", "counter", "Requests answered.", requests),
                ("headstart_request_seconds", "histogram", "Seconds from request to answer.", seconds),
                ("headstart_batch_texts", "histogram", "Texts that the model read in one batch.", batches),
                ("headstart_queue_texts", "gauge", "Texts that wait for their answer.", [queue]),
                ("headstart_requests_under_way", "gauge", "Requests that are being answered.", [under_way]),
            )
        )


def quoted(value: str) -> str:
    """A label's value, as the format wants it.

    >>> print(quoted('a "b"'))
    "a \\"b\\""
    """
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'

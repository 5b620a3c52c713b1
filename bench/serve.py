"""The service under load, on loopback: 64 clients at once for a minute, each with a request under way.

    python -m bench.serve                     # one row, and bench/results/serve.json
    python -m bench.serve --seconds 10        # to try it

Every answer is compared with the offline one; one error, or one label that differs, and there is no row. Throughput
counts from the fifth second on. `TextClassifier.predict` reads the same texts, all at once, three times before and
three times after, and its fastest counts; clients and service share the cores that it has alone. Requests have eight
texts of about 26 pieces, for MiniLM-L6 with two labels. Where another process works meanwhile, offline runs lie far
apart and the ratio means nothing: threads that wait for one another lose ten times more than their share.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from bench.predict import made_up, prepare
from bench.report import report
from headstart.use.classifier import TextClassifier

PIECES, TEXTS = 26, 480
WARM = 5.0  # seconds, before memory and throughput are taken
MOST = 500_000  # requests: an end, whatever the machine
CLOSE = 1e-5  # probabilities in another company: float32 sums in another order
GOAL = 0.8


@dataclass
class Load:
    """What the clients saw."""

    ends: float
    counted_from: float
    texts: int = 0
    seconds: list[float] = field(default_factory=list)
    requests: int = 0
    largest_difference: float = 0.0


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "reviews"
        texts = made_up(TEXTS, PIECES, prepare(folder))
        offline = TextClassifier.load(folder)
        expected = [(p.label, p.probabilities) for p in offline.predict(texts)]
        before = [_rate(offline, texts) for _ in range(3)]
        with _service(folder) as (port, process):
            load, memory = asyncio.run(_run(options, port, process.pid, texts, expected))
        after = [_rate(offline, texts) for _ in range(3)]
    offline_rate, served = max(before + after), load.texts / (load.ends - load.counted_from)
    report(
        "serve",
        {
            "clients": options.clients,
            "seconds": options.seconds,
            "texts a request": options.texts,
            "pieces": float(offline.encode(texts).lengths.mean()),
            "requests": load.requests,
            "largest difference": load.largest_difference,
            "offline, texts/s": offline_rate,
            "offline, fastest by slowest": offline_rate / min(before + after),
            "served, texts/s": served,
            f"ratio (goal {GOAL})": served / offline_rate,
            "p50, s": median(load.seconds),
            "p95, s": quantiles(load.seconds, n=20)[-1],
            "MiB at 5 s": memory[0],
            "MiB at the end": memory[-1],
            "MiB at most": max(memory),
        },
    )


async def _run(
    options: argparse.Namespace, port: int, pid: int, texts: list[str], expected: list[Any]
) -> tuple[Load, list[float]]:
    began = time.monotonic()
    load = Load(began + options.seconds, began + WARM)
    every = range(0, TEXTS, options.texts)
    requests = [(_request(texts[at : at + options.texts]), expected[at : at + options.texts]) for at in every]
    clients = [
        asyncio.create_task(_client(port, itertools.islice(itertools.cycle(requests), n, None), load))
        for n in range(options.clients)
    ]
    await asyncio.sleep(WARM)
    memory = []
    while not all(client.done() for client in clients):
        memory.append(_resident(pid))
        await asyncio.sleep(1)
    await asyncio.gather(*clients)  # raises what a client met
    return load, memory


async def _client(port: int, requests: Iterator[tuple[bytes, list[Any]]], load: Load) -> None:
    """One connection, kept open; the next request when the answer is there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (asked := time.monotonic()) < load.ends and load.requests < MOST:
        body, expected = next(requests)
        load.requests += 1
        writer.write(body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
        if not head.startswith("HTTP/1.1 200") or length is None:
            raise SystemExit(f"bench serve: {head.splitlines()[0]}")
        answer = json.loads(await reader.readexactly(int(length[1])))
        now = time.monotonic()
        for prediction, (label, probabilities) in zip(answer["predictions"], expected, strict=True):
            difference = max(abs(prediction["probabilities"][name] - p) for name, p in probabilities.items())
            load.largest_difference = max(load.largest_difference, difference)
            if difference > CLOSE or (prediction["label"] != label and min(probabilities.values()) < 0.5 - CLOSE):
                raise SystemExit(f"bench serve: {prediction}, and offline {label} with {probabilities}")
        if load.counted_from <= now <= load.ends:
            load.texts += len(expected)
            load.seconds.append(now - asked)
    writer.close()
    await writer.wait_closed()


def _request(texts: list[str]) -> bytes:
    body = json.dumps({"texts": texts}).encode()
    lines = (
        "POST /predict HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


@contextmanager
def _service(folder: Path) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "headstart", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            match = re.search(r":(\d+)/", process.stdout.readline())
            if match is None:
                raise SystemExit("bench serve: the service did not begin")
            try:
                yield int(match[1]), process
            except (OSError, EOFError) as error:
                raise SystemExit(f"bench serve: {error!r}; the service: {process.poll() or 'still there'}") from error
            process.terminate()
            if process.wait(60):
                raise SystemExit(f"bench serve: the service ended with {process.returncode}")
        finally:
            process.kill()


def _rate(classifier: TextClassifier, texts: list[str]) -> float:
    began = time.perf_counter()
    classifier.predict(texts)
    return len(texts) / (time.perf_counter() - began)


def _resident(pid: int) -> float:
    """MiB that a process holds."""
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert match is not None
    return int(match[1]) / 1024


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.serve", description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--texts", type=int, default=8, help="of a request")
    return parser


if __name__ == "__main__":
    main()

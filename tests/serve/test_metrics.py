"""The counts, in the form that Prometheus reads."""

from __future__ import annotations

import re

from fastapi.testclient import TestClient

from headstart.serve.metrics import Histogram, Metrics

# The grammar of the text format, version 0.0.4.
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")
COMMENT = re.compile(rf"# (?:HELP {NAME} .+|TYPE {NAME} (?:counter|gauge|histogram))")


def samples(text: str) -> dict[str, float]:
    """Every sample by its name and labels; each line must be one, or a comment of its family."""
    assert text.endswith("\n")
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert COMMENT.fullmatch(line), line
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            found[line.rpartition(" ")[0]] = float(match[3])
    return found


def test_what_a_service_counts(client: TestClient) -> None:
    for _ in range(3):
        client.post("/predict", json={"texts": ["a", "b"]})
    client.post("/predict", json={})
    client.get("/../../etc/passwd")
    answer = client.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    found = samples(answer.text)
    assert found['headstart_requests_total{route="/predict",status="200"}'] == 3
    assert found['headstart_requests_total{route="/predict",status="422"}'] == 1
    assert found['headstart_requests_total{route="other",status="404"}'] == 1
    assert found['headstart_request_seconds_count{route="/predict"}'] == 4
    assert found['headstart_request_seconds_bucket{route="/predict",le="+Inf"}'] == 4
    assert found["headstart_batch_texts_sum"] == 6
    assert found['headstart_batch_texts_bucket{le="1"}'] == 0
    assert found["headstart_queue_texts"] == 0
    assert found["headstart_requests_under_way"] == 1  # this one


def test_a_histogram_never_falls() -> None:
    histogram = Histogram((0.5, 1.0))
    for value in (0.5, 0.6, 2.0, 0.1):
        histogram.add(value)
    assert list(histogram.lines("s", 'a="b"')) == [
        's_bucket{a="b",le="0.5"} 2',
        's_bucket{a="b",le="1.0"} 3',
        's_bucket{a="b",le="+Inf"} 4',
        's_sum{a="b"} 3.2',
        's_count{a="b"} 4',
    ]


def test_labels_are_escaped() -> None:
    metrics = Metrics()
    metrics.request('a"b\\c\nd', 200, 0.1)
    assert (
        samples(metrics.text(waiting=0, in_flight=0))['headstart_requests_total{route="a\\"b\\\\c\\nd",status="200"}']
        == 1
    )

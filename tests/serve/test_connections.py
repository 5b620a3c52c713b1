"""Clients that connect and then send or read nothing: others are answered, and the service can be ended."""

from __future__ import annotations

import json
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from headstart.serve import connections, logs
from headstart.serve import server as server_module
from headstart.serve.connections import Capacity
from headstart.serve.limits import Limits
from headstart.serve.models import ServedClassifier
from tests.serve.example_models import in_a_thread, running

GET = b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HEALTH, PAGE = GET % b"/health", GET % b"/app.js"
POST = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n"
SLOW_BODY = POST + b"{"


@contextmanager
def clients(url: str, number: int, data: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections that send some data, and then nothing."""
    with ExitStack() as stack:
        address = "127.0.0.1", int(url.rpartition(":")[2])
        made = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(number)]
        for wire in made:
            wire.sendall(data)
        yield made


def is_closed(wire: socket.socket) -> bool:
    """Whether the service closes it, before the time limit of the socket."""
    with suppress(ConnectionError):
        try:
            while wire.recv(65536):
                pass
        except TimeoutError:
            return False
    return True


def wait_for_requests(url: str, number: int) -> None:
    """Until so many requests are under way beside the one that asks."""
    while f"headstart_requests_under_way {number + 1}\n" not in httpx.get(f"{url}/metrics").text:
        pass


def is_listening(url: str) -> bool:
    try:
        with clients(url, 1):
            return True
    except (ConnectionRefusedError, ConnectionResetError):  # reset: it closed between our SYN and its accept
        return False


def predict(url: str) -> int:
    return httpx.post(f"{url}/predict", json={"text": "a witty tale"}, timeout=20).status_code


class TestSilentClients:
    @pytest.mark.parametrize("data", [b"", HEALTH[:10], HEALTH[:-4]], ids=["nothing", "half a line", "no end"])
    def test_headers_that_never_end(self, served: ServedClassifier, data: bytes) -> None:
        with in_a_thread([served], Limits(idle=0.1)) as (_, url), clients(url, 1, data) as (wire,):
            assert is_closed(wire)

    def test_headers_that_come_byte_by_byte(self, served: ServedClassifier) -> None:
        with in_a_thread([served], Limits(idle=0.1)) as (_, url), clients(url, 1, b"GET / HTTP/1.1\r\nX: ") as (wire,):
            wire.settimeout(0.05)
            for _ in range(400):
                with suppress(TimeoutError):
                    if wire.recv(1) == b"":
                        return
                try:
                    wire.sendall(b"x")
                except ConnectionError:
                    return
            raise AssertionError("it was still open")

    def test_after_an_answer(self, served: ServedClassifier) -> None:
        """One byte of a second request is no request either."""
        with in_a_thread([served], Limits(idle=0.1)) as (_, url), clients(url, 1, HEALTH) as (wire,):
            assert wire.recv(65536).startswith(b"HTTP/1.1 200")
            wire.sendall(b"G")
            assert is_closed(wire)

    def test_more_than_there_are_places(self, served: ServedClassifier) -> None:
        with in_a_thread([served], Limits(connections=8)) as (_, url), clients(url, 40) as wires:
            assert httpx.get(f"{url}/health", timeout=20).status_code == 200
            assert predict(url) == 200
            assert all(is_closed(wire) for wire in wires[:20])  # the oldest went first
            wires[-1].sendall(HEALTH)
            assert wires[-1].recv(65536).startswith(b"HTTP/1.1 200")

    def test_few_file_descriptors(self, folders: dict[str, Path]) -> None:
        """More connections than the process can hold: no traceback, and it ends when it is told to."""
        with running(str(folders["reviews"]), descriptors=120) as service, clients(service.url, 300):
            for _ in range(5):
                assert httpx.get(f"{service.url}/health", timeout=20).status_code == 200
                assert predict(service.url) == 200
            assert service.end() == 0
            assert service.process.stderr is not None
            said = service.process.stderr.read()
            assert "Traceback" not in said and len(said.splitlines()) <= logs.RECORDS

    def test_places_for_a_process_with_few_descriptors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        in_use = sum(1 for _ in Path("/dev/fd").iterdir())
        monkeypatch.setattr("resource.getrlimit", lambda _: (in_use + 80, in_use + 80))
        few = Capacity.of_process(1024)
        assert 20 <= few.connections < few.connections + 2 * few.accepted_at_once < 80
        assert Capacity.of_process(10).connections == 10


class TestSlowRequests:
    def test_bodies_that_do_not_come(self, served: ServedClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connections, "SLOW", 1000.0)
        with in_a_thread([served], Limits(requests=4)) as (_, url), clients(url, 4, SLOW_BODY) as wires:
            while (refused := predict(url)) != 429:  # until all four are under way
                assert refused == 200
            assert httpx.get(f"{url}/health").status_code == 200
            monkeypatch.setattr(connections, "SLOW", 0.0)
            assert predict(url) == 200
            assert is_closed(wires[0])
            wires[3].sendall(json.dumps({"text": "a" * 38}).encode()[1:])
            assert wires[3].recv(65536).startswith(b"HTTP/1.1 200")

    def test_answers_that_nobody_reads(self, served: ServedClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
        """They fill all buffers on their way, and hold up nobody else."""
        monkeypatch.setattr(connections, "SLOW", 0.0)
        with in_a_thread([served], Limits(requests=1)) as (_, url), clients(url, 1) as (wire,):
            wire.settimeout(1.0)
            with suppress(TimeoutError):
                while True:
                    wire.sendall(PAGE * 1000)
            assert predict(url) == 200

    def test_they_end_at_last(self, served: ServedClassifier) -> None:
        with in_a_thread([served], Limits(idle=0.1, deadline=0.1)) as (_, url), clients(url, 1) as (wire,):
            for _ in range(400):
                try:
                    wire.sendall(PAGE * 1000)
                except ConnectionError:
                    return
            raise AssertionError("all of them were answered")

    def test_who_has_only_connected_is_not_slow(self, served: ServedClassifier) -> None:
        with in_a_thread([served], Limits()) as (server, url), clients(url, 2), clients(url, 1, SLOW_BODY):
            wait_for_requests(url, 1)
            assert [slow.phase for slow in server.server_state._slow(0.0)] == ["body"]


class TestTheEnd:
    @pytest.mark.parametrize("data", [b"", SLOW_BODY], ids=["silent", "slow body"])
    def test_nobody_holds_it_up(self, served: ServedClassifier, data: bytes) -> None:
        with in_a_thread([served], Limits(deadline=3000)) as (server, url), clients(url, 20, data) as wires:
            wait_for_requests(url, 20 if data else 0)
            server.handle_exit(signal.SIGTERM, None)
            assert all(is_closed(wire) for wire in wires)

    def test_a_model_call_that_takes_long(self, folders: dict[str, Path]) -> None:
        """It is not waited for, and the thread that makes it does no harm to the exit code."""
        slow = (
            "import time\nfrom headstart.serve import batching, models, server\n"
            "server.LONGEST = server.GRACE = batching.LAST_CALL = 0.1\n"
            "models.ServedClassifier.probabilities = lambda *_: time.sleep(1000)\n"
        )
        body = json.dumps({"text": "a" * 38}).encode()
        with running(str(folders["reviews"]), before=slow) as service, clients(service.url, 1, POST + body):
            while "headstart_queue_texts 1\n" not in httpx.get(f"{service.url}/metrics").text:
                pass
            assert service.end() == 0

    def test_who_has_connected_before_is_refused_in_words(
        self, served: ServedClassifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server_module, "LINGER", 20.0)
        with in_a_thread([served], Limits()) as (server, url), clients(url, 2) as wires:
            while len(server.server_state.connections) < 2:
                pass
            server.handle_exit(signal.SIGTERM, None)
            while is_listening(url):
                pass
            for wire in wires:
                wire.sendall(HEALTH)
                assert wire.recv(65536).startswith(b"HTTP/1.1 503")

    def test_who_was_not_accepted_yet_is_refused_in_words(
        self, served: ServedClassifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with ExitStack() as stack:
            server, url = stack.enter_context(in_a_thread([served], Limits()))
            made: list[socket.socket] = []

            async def connect_and_end(_: int) -> bool:
                """In the event loop, which so has no time to accept it before the end."""
                made.extend(stack.enter_context(clients(url, 3, HEALTH)))
                server.handle_exit(signal.SIGTERM, None)
                return True

            monkeypatch.setattr(server, "on_tick", connect_and_end)
            while len(made) < 3:
                pass
            for wire in made:
                assert wire.recv(65536).startswith(b"HTTP/1.1 503")

    def test_a_long_body_is_refused_in_words(self, served: ServedClassifier) -> None:
        """Not while it is sent: its sender would see a broken connection, and no answer."""
        head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5000000\r\n\r\n"
        with in_a_thread([served], Limits()) as (server, url), clients(url, 1, SLOW_BODY):
            wait_for_requests(url, 1)
            server.handle_exit(signal.SIGTERM, None)
            with clients(url, 1, head + b" " * 5_000_000) as (wire,):
                assert wire.recv(65536).startswith(b"HTTP/1.1 503")


class TestTheLog:
    def test_it_is_no_flood(self, served: ServedClassifier, capsys: pytest.CaptureFixture[str]) -> None:
        with in_a_thread([served], Limits()) as (_, url), clients(url, 40, b"no http\r\n\r\n") as wires:
            assert all(wire.recv(65536).startswith(b"HTTP/1.1 400") for wire in wires)
        assert 1 <= capsys.readouterr().err.count("Invalid HTTP request") <= logs.RECORDS

    def test_what_was_left_out_is_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 100.0
        monkeypatch.setattr("headstart.serve.logs.time.monotonic", lambda: now)
        limited, shown = logs.Limited(), []
        for _ in range(3):
            for _ in range(9):
                record = logging.LogRecord("a", logging.WARNING, "a.py", 1, "found %d", (3,), None)
                if limited.filter(record):
                    shown.append(record.getMessage())
            now += 60
        first = ["found 3"] * 5
        again = ["found 3 (4 more were not logged)", *first[1:]]
        assert shown == [*first, *again, *again]

    def test_another_place_has_its_own_count(self) -> None:
        limited = logs.Limited()
        records = [logging.LogRecord("a", logging.WARNING, "a.py", line, "found", None, None) for line in range(20)]
        assert all(limited.filter(record) for record in records)

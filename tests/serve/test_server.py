"""A service in a process of its own: sockets, signals, bodies that are sent in pieces."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from headstart.errors import OutputError
from headstart.serve.limits import Limits
from headstart.serve.models import ServedClassifier
from headstart.serve.server import open_socket
from headstart.use.classifier import TextClassifier
from tests.serve.example_models import Service, in_a_thread, running

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def service(folders: dict[str, Path]) -> Iterator[Service]:
    with running(str(folders["reviews"]), str(folders["writer"]), "--limit", "body=20000") as found:
        yield found
        with httpx.Client() as idle:
            idle.get(f"{found.url}/health")  # its connection stays open, and holds nothing up
            assert found.end(signal.SIGINT) == 0
        assert found.process.stderr is not None and found.process.stderr.read() == ""


def post(body: bytes, *headers: str) -> bytes:
    lines = ["POST /predict HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def exchange(port: int, *parts: bytes) -> bytes:
    """Send parts, and read until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as wire:
        for part in parts:
            wire.sendall(part)
        return rest(wire)


def rest(wire: socket.socket) -> bytes:
    """What comes until the other side closes, however it does."""
    answer = b""
    with suppress(ConnectionError):
        while piece := wire.recv(65536):
            answer += piece
    return answer


def test_fifty_clients_at_once(service: Service, offline: TextClassifier, texts: list[str]) -> None:
    async def scene() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
            return await asyncio.gather(
                *(client.post("/predict", json={"texts": [texts[n % 40], texts[(n + 1) % 40]]}) for n in range(50))
            )

    expected = offline.predict(texts)
    for n, answer in enumerate(asyncio.run(scene())):
        assert answer.status_code == 200
        for said, right in zip(answer.json()["predictions"], (expected[n % 40], expected[(n + 1) % 40]), strict=True):
            assert said["label"] == right.label
            assert said["probabilities"]["pos"] == pytest.approx(right.probabilities["pos"], abs=1e-6)


class TestBodies:
    def test_one_that_says_that_it_is_too_long(self, service: Service) -> None:
        answer = exchange(service.port, post(b"x" * 30_000, "Content-Length: 30000"))
        assert answer.startswith(b"HTTP/1.1 413") and b"body_too_long" in answer

    def test_one_that_never_ends(self, service: Service) -> None:
        """In chunks, with no length said: it is refused while it comes."""
        chunk = b"2000\r\n" + b" " * 0x2000 + b"\r\n"
        with socket.create_connection(("127.0.0.1", service.port), timeout=30) as wire:
            wire.sendall(post(b"", "Transfer-Encoding: chunked"))

            def send() -> None:
                with suppress(OSError):
                    while True:
                        wire.sendall(chunk)

            sender = threading.Thread(target=send)
            sender.start()
            answer = rest(wire)
            with suppress(OSError):  # where the service closed it first
                wire.shutdown(socket.SHUT_RDWR)
            sender.join(30)
        assert answer.startswith(b"HTTP/1.1 413") and b"body_too_long" in answer

    def test_one_in_many_pieces(self, service: Service) -> None:
        whole = json.dumps({"text": "a witty tale"}).encode()
        pieces = [b"1\r\n" + bytes([byte]) + b"\r\n" for byte in whole]
        answer = exchange(
            service.port, post(b"", "Transfer-Encoding: chunked", "Connection: close"), *pieces, b"0\r\n\r\n"
        )
        assert answer.startswith(b"HTTP/1.1 200") and b'"label":"pos"' in answer

    def test_one_that_is_expected(self, service: Service) -> None:
        """Who asks first whether a long body is welcome is told before sending it."""
        answer = exchange(service.port, post(b"", "Content-Length: 9999999", "Expect: 100-continue"))
        assert answer.startswith(b"HTTP/1.1 413")

    def test_one_that_does_not_come(self, served: ServedClassifier) -> None:
        with in_a_thread([served], Limits(deadline=0.2)) as (_, url):
            answer = exchange(int(url.rpartition(":")[2]), post(b'{"te', "Content-Length: 20"))
        assert answer.startswith(b"HTTP/1.1 408") and b"body_too_slow" in answer

    def test_who_leaves_early_leaves_no_trace(self, service: Service) -> None:
        for part in (post(b'{"te', "Content-Length: 20"), post(b'{"text": "a"}', "Content-Length: 13")):
            with socket.create_connection(("127.0.0.1", service.port)) as wire:
                wire.sendall(part)
        while "headstart_requests_under_way 1\n" not in httpx.get(f"{service.url}/metrics").text:
            pass
        assert httpx.post(f"{service.url}/predict", json={"text": "a witty tale"}).status_code == 200

    def test_no_banner(self, service: Service) -> None:
        assert "server" not in httpx.get(f"{service.url}/health").headers


class TestTheEnd:
    def test_requests_under_way_are_answered_and_new_ones_refused(self, folders: dict[str, Path]) -> None:
        """A body of which the end is still to come is under way until it is answered."""
        whole = json.dumps({"text": "a witty tale"}).encode()
        with running(str(folders["reviews"])) as service:
            wire = socket.create_connection(("127.0.0.1", service.port), timeout=30)
            wire.sendall(post(whole[:5], f"Content-Length: {len(whole)}"))
            while "headstart_requests_under_way 2\n" not in httpx.get(f"{service.url}/metrics").text:
                pass
            service.process.send_signal(signal.SIGTERM)
            while (late := httpx.get(f"{service.url}/health")).status_code == 200:
                pass
            assert late.status_code == 503 and late.json()["error"]["code"] == "closing"
            assert late.headers["Connection"] == "close"
            refused = httpx.post(f"{service.url}/predict", json={"text": "a"})
            assert refused.status_code == 503
            assert service.process.poll() is None
            wire.sendall(whole[5:])
            answer = rest(wire)  # to its end: the connection is closed after it
            wire.close()
            assert answer.startswith(b"HTTP/1.1 200") and b'"label":"pos"' in answer
            assert service.process.wait(30) == 0

    def test_a_second_signal_ends_it_at_once(self, served: ServedClassifier) -> None:
        with in_a_thread([served], Limits()) as (server, url):
            port = int(url.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), timeout=30) as wire:
                wire.sendall(post(b"{", "Content-Length: 20"))
                while "headstart_requests_under_way 2\n" not in httpx.get(f"{url}/metrics").text:
                    pass
                server.handle_exit(signal.SIGTERM, None)
                assert httpx.get(f"{url}/health").status_code == 503
                assert not server.should_exit
                server.handle_exit(signal.SIGTERM, None)
                assert server.should_exit and server.force_exit


class TestTheSocket:
    def test_a_port_that_is_taken(self) -> None:
        with open_socket("127.0.0.1", 0) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(OutputError, match=f"cannot listen on 127.0.0.1, port {port}: .*try another"):
                open_socket("127.0.0.1", port)

    def test_an_address_that_is_nowhere(self) -> None:
        with pytest.raises(OutputError, match=r"cannot listen on 192\.0\.2\.1"):
            open_socket("192.0.2.1", 0)

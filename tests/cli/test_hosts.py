"""Two hosts, as far as a network can tell: each torchrun has a network namespace of its own, joined by one cable.

Making namespaces takes root and iproute2; where they cannot be made these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headstart.training.run_checkpoint import read_newest
from tests.cli.test_torchrun import headstart, losses, run, settings

pytestmark = pytest.mark.slow
MEETING, PORT = "10.77.0.1", 29517


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@dataclass
class Host:
    """One end of the cable."""

    name: str
    address: str
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def wire(self) -> str:
        return f"{self.name}w"

    def start(
        self, folder: Path, *arguments: object, nodes: str = "2", timeout: int = 30, restarts: int = 3, read: int = 60
    ) -> subprocess.Popen[str]:
        """A torchrun of one process on this host, which meets the others at host a."""
        launcher = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", "--nproc-per-node=1"]
        launcher += [
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={MEETING}:{PORT}",
            "--rdzv-id=tests",
            f"--max-restarts={restarts}",
        ]
        launcher += [
            f"--local-addr={self.address}",
            f"--rdzv-conf=join_timeout=60,last_call_timeout=2,read_timeout={read}",
            "-m",
            "headstart",
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HEADSTART_TIMEOUT": str(timeout)}
        environment |= {"GLOO_SOCKET_IFNAME": self.wire, "TP_SOCKET_IFNAME": self.wire}
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else a host that comes back is told no address
        log = (folder / f"{self.name}.log").open("a", encoding="utf-8")
        with log:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *launcher, *map(str, arguments)],
                cwd=folder, env=environment, stdout=log, stderr=log, text=True, start_new_session=True,
            )  # fmt: skip
        self.running.append(process)
        return process

    def die(self) -> None:
        """All its processes at once, as when the power goes."""
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False)
        for pid in found.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        for process in self.running:
            process.wait(10)
        self.running.clear()

    def lose_patience(self) -> None:
        """Let TCP give a silent connection up after a dozen seconds; Linux as it comes takes a quarter of an hour."""
        ip("netns", "exec", self.name, "sh", "-c", "echo 5 > /proc/sys/net/ipv4/tcp_retries2")

    def unplug(self) -> None:
        ip("-n", self.name, "link", "set", self.wire, "down")

    def plug(self) -> None:
        ip("-n", self.name, "link", "set", self.wire, "up")


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces take root and Debian's iproute2")
    a, b = Host("hsa", MEETING), Host("hsb", "10.77.0.2")
    _forget(a, b)  # what a run that was killed has left
    try:
        for host in (a, b):
            ip("netns", "add", host.name)
            own = f"{host.address} {socket.gethostname()}\n"  # what this machine is called is this host
            _name(host.name, f"127.0.0.1 localhost\n{own}{a.address} {a.name}\n{b.address} {b.name}\n")
        ip("link", "add", a.wire, "netns", a.name, "type", "veth", "peer", "name", b.wire, "netns", b.name)
        for host in (a, b):
            ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.wire)
            ip("-n", host.name, "link", "set", "lo", "up")
            host.plug()
    except subprocess.CalledProcessError as error:
        _forget(a, b)
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
    yield a, b
    _forget(a, b)


def _name(host: str, table: str) -> None:
    """`ip netns exec` shows these in the place of /etc/…: names are known without asking a server that is not there."""
    folder = Path("/etc/netns") / host
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hosts").write_text(table, encoding="ascii")
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n", encoding="ascii")


def _forget(*hosts: Host) -> None:
    for host in hosts:
        host.die()
        subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)
        shutil.rmtree(Path("/etc/netns") / host.name, ignore_errors=True)


def ended(*processes: subprocess.Popen[str], within: float = 150) -> list[int]:
    until = time.monotonic() + within
    return [process.wait(max(1.0, until - time.monotonic())) for process in processes]


def checkpoint(folder: Path, least: int, within: float = 90) -> None:
    """Wait for a checkpoint of at least so many steps."""
    until = time.monotonic() + within
    while not any(int(path.name.partition("-")[2]) >= least for path in folder.glob("checkpoints/step-*")):
        assert time.monotonic() < until, "no checkpoint came"
        time.sleep(0.05)


def said(log: Path, words: str, within: float = 90) -> None:
    """Wait until a host has said this."""
    until = time.monotonic() + within
    while words not in log.read_text(encoding="utf-8"):
        assert time.monotonic() < until, f"{words!r} was never said: {log.read_text(encoding='utf-8')[-4000:]}"
        time.sleep(0.1)


def logs(folder: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8")[-4000:] for path in sorted(folder.glob("hs?.log")))


def test_a_run_to_its_end(hosts: tuple[Host, Host], world: Path, base: Path, tmp_path: Path) -> None:
    asked = settings(world, base)
    assert run(headstart("finetune", *asked, "--accumulate", 2, "--out", "one"), tmp_path).returncode == 0
    processes = [host.start(tmp_path, "finetune", *asked, "--out", "two") for host in hosts]
    assert ended(*processes) == [0, 0], logs(tmp_path)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    assert (tmp_path / "two" / "manifest.json").is_file()


def test_a_cable_that_is_out_for_a_moment(hosts: tuple[Host, Host], world: Path, base: Path, tmp_path: Path) -> None:
    asked = settings(world, base, epochs=40, save_every=10)
    processes = [host.start(tmp_path, "finetune", *asked, "--out", "two", timeout=60) for host in hosts]
    checkpoint(tmp_path / "two", 20)
    hosts[1].unplug()
    time.sleep(2)
    hosts[1].plug()
    assert ended(*processes) == [0, 0], logs(tmp_path)
    assert "going on from step" not in logs(tmp_path)  # it only waited
    assert len(losses(tmp_path / "two")) == 40 * 15


def test_a_host_dies_and_comes_back(hosts: tuple[Host, Host], world: Path, base: Path, tmp_path: Path) -> None:
    """While it is away the other goes on from the newest checkpoint; the losses are those of an untroubled run."""
    asked = settings(world, base, epochs=150, save_every=20)
    assert run(headstart("finetune", *asked, "--accumulate", 2, "--out", "one"), tmp_path).returncode == 0
    a, b = hosts
    first = a.start(tmp_path, "finetune", *asked, "--out", "two", nodes="1:2")
    b.start(tmp_path, "finetune", *asked, "--out", "two", nodes="1:2")
    checkpoint(tmp_path / "two", 50)
    b.die()
    said(tmp_path / "hsa.log", "going on from step")
    again = b.start(tmp_path, "finetune", *asked, "--out", "two", nodes="1:2")
    assert ended(first, again, within=240) == [0, 0], logs(tmp_path)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-3)


def test_a_cable_that_stays_out(hosts: tuple[Host, Host], world: Path, base: Path, tmp_path: Path) -> None:
    """Both sides end with an error; what was saved before is whole, and nothing else is there."""
    asked = ["finetune", *settings(world, base, epochs=100, save_every=10), "--out", "two"]
    for host in hosts:
        host.lose_patience()
    processes = [host.start(tmp_path, *asked, timeout=10, restarts=0, read=10) for host in hosts]
    checkpoint(tmp_path / "two", 20)
    hosts[1].unplug()
    assert all(code > 0 for code in ended(*processes)), logs(tmp_path)
    for host in hosts:
        log = (tmp_path / f"{host.name}.log").read_text(encoding="utf-8")
        assert "a process of this run is gone, or was silent for 10 s" in log
    state, damaged = read_newest(tmp_path / "two" / "checkpoints")
    assert state is not None and not damaged
    begun = {".lock", "checkpoints", "events.jsonl", "run.toml", "torchrun.id"}
    assert {path.name for path in (tmp_path / "two").iterdir()} == begun
    assert run(headstart(*asked, "--resume"), tmp_path).returncode == 0  # one host goes on alone
    assert len(losses(tmp_path / "two")) == 100 * 15

"""One search, several processes: through an SQLite file, and through a PostgreSQL server of the test's own."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headstart.errors import ConfigError
from headstart.runs.events import Evaluated
from headstart.runs.sweep import Sweep, Trial
from headstart.studies import search as searching
from headstart.studies import storage as storing
from headstart.studies import trials as trying
from headstart.studies.settings import CompareSettings, FinetuneSettings, SweepSettings
from headstart.studies.sweep import sweep

PASSWORD = "let/me:in"


@dataclass
class Server:
    """PostgreSQL in a folder of its own, on a free port; its owner is anna."""

    programs: Path
    folder: Path
    port: int
    before: tuple[str, ...]  # the command that its programs are run by

    def call(self, program: str, *options: str) -> None:
        command = [*self.before, str(self.programs / program), "-D", str(self.folder / "data"), *options]
        subprocess.run(command, check=True, cwd=self.folder, stdout=subprocess.DEVNULL, timeout=120)

    def make(self) -> None:
        (self.folder / "password").write_text(PASSWORD)
        name = f"--pwfile={self.folder / 'password'}"
        self.call("initdb", "-U", "anna", name, "--auth=scram-sha-256", "--no-sync", "--encoding=UTF8", "--locale=C")

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        self.call("pg_ctl", "-w", "-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self) -> None:
        self.call("pg_ctl", "-w", "-m", "immediate", "stop")

    def signal(self, number: int) -> None:
        """To every process of it, the first one last."""
        first = int((self.folder / "data" / "postmaster.pid").read_text().split("\n", 1)[0])
        children = map(int, Path(f"/proc/{first}/task/{first}/children").read_text().split())
        for process in (*children, first):
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def url(self, database: str = "postgres", password: str = PASSWORD) -> str:
        return f"postgresql://anna:{password}@127.0.0.1:{self.port}/{database}"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Started before the first test that wants it, and stopped after the last."""
    found = [Path(which).resolve() for which in [shutil.which("initdb")] if which]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    if not found:
        pytest.skip("no PostgreSQL here: apt-get install postgresql to run this test")
    folder = Path(tempfile.mkdtemp(prefix="headstart-postgresql-"))  # its user may not enter pytest's folders
    before: tuple[str, ...] = ()
    if os.getuid() == 0:  # as whom it refuses to run
        user = next(each for each in pwd.getpwall() if each.pw_name in ("postgres", "nobody"))
        before = ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
        os.chown(folder, user.pw_uid, user.pw_gid)
    made = Server(found[0].parent, folder, free_port(), before)
    try:
        made.make()
        made.start()
        yield made
    finally:
        if (folder / "data" / "postmaster.pid").exists():
            made.stop()
        shutil.rmtree(folder)


@pytest.fixture
def database(server: Server) -> str:
    """The URL of a database with nothing in it."""
    import psycopg
    from psycopg import sql

    name = f"sweeps_{time.monotonic_ns()}"
    owner = psycopg.connect(
        host="127.0.0.1", port=server.port, dbname="postgres", user="anna", password=PASSWORD, autocommit=True
    )
    with owner:
        owner.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return server.url(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    return str(request.getfixturevalue("database"))


def settings(world: Path, base: Path, **changes: Any) -> SweepSettings:
    given = {"data": str(world / "train.txt"), "valid": str(world / "valid.txt"), "test": str(world / "test.txt")}
    return SweepSettings(**{**given, "init": str(base), "search": ("lr=1e-4..1e-1",), **changes})


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The learning rates of the runs, which only pretend to train."""
    done: list[float] = []

    def pretend(one: FinetuneSettings, folder: Path, **options: Any) -> None:
        done.append(one.lr)
        result = {"valid": {"accuracy": one.lr, "loss": 1.0}, "test": None}
        (folder / "result.json").write_text(json.dumps(result))
        (folder / "manifest.json").write_text(json.dumps({"seconds": 3.0, "peak_memory": {"resident": 7}}))

    monkeypatch.setattr(trying, "finetune", pretend)
    return done


# --- in one process ---------------------------------------------------------------------------------------------------


def test_two_folders_share_a_search_in_postgresql(
    world: Path, base: Path, tmp_path: Path, database: str, trained: list[float]
) -> None:
    first = sweep(settings(world, base, storage=database, trials=2), tmp_path / "a")
    both = sweep(settings(world, base, storage=database, trials=4), tmp_path / "b")
    assert len(set(trained)) == len(trained) == 4
    assert [trial["settings"]["lr"] for trial in both["trials"]] == trained
    assert [trial["run"] for trial in both["trials"][:2]] == [trial["run"] for trial in first["trials"]]
    assert not (tmp_path / "a" / "study.db").exists()
    assert PASSWORD not in "".join(path.read_text() for path in tmp_path.glob("?/*.*"))


def refused(given: SweepSettings, out: Path) -> str:
    """What is said of a storage that cannot be opened."""
    with pytest.raises(ConfigError) as caught:
        sweep(given, out)
    said = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in said
    assert said.startswith("storage: ")
    return said


def test_a_server_that_nobody_listens_on(world: Path, base: Path, tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    url = f"postgresql://anna:secret@127.0.0.1:{free_port()}/sweeps"
    said = refused(settings(world, base, storage=url), tmp_path / "s")
    assert f"{url.replace(':secret', '')} cannot be opened: " in said
    assert "Connection refused" in said


def test_a_wrong_password_and_a_database_that_is_not_there(
    world: Path, base: Path, tmp_path: Path, server: Server
) -> None:
    wrong = refused(settings(world, base, storage=server.url(password="sec/ret")), tmp_path / "s")
    assert 'password authentication failed for user "anna"' in wrong
    assert "sec/ret" not in wrong + (tmp_path / "s" / "study.toml").read_text()
    absent = refused(settings(world, base, storage=server.url("nothing")), tmp_path / "t")
    assert 'database "nothing" does not exist' in absent


@pytest.mark.parametrize(
    ("url", "package"),
    [
        ("postgresql://anna@127.0.0.1/sweeps", "psycopg"),
        ("postgres://anna@127.0.0.1/sweeps", "psycopg"),
        ("postgresql+pg8000://anna@127.0.0.1/sweeps", "pg8000"),
    ],
)
def test_a_driver_that_is_not_installed(
    world: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    said = refused(settings(world, base, storage=url), tmp_path / "s")
    assert f"{url} needs a driver that is not installed (" in said
    assert package in said.split("(")[1]
    assert said.endswith("pip install 'headstart[sweep]'")


@pytest.mark.parametrize(("ours", "theirs"), [(2, ""), (600, "?connect_timeout=2")])
def test_a_server_that_says_nothing_is_given_up_within_the_time_out(
    world: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: int, theirs: str
) -> None:
    monkeypatch.setitem(storing.CONNECTION_OPTIONS, "connect_timeout", ours)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://anna@127.0.0.1:{silent.getsockname()[1]}/sweeps{theirs}"
        began = time.monotonic()
        assert "timeout expired" in refused(settings(world, base, storage=url), tmp_path / "s")
        assert time.monotonic() - began < 20


def test_a_server_that_was_started_anew_between_two_questions_is_asked_again(
    world: Path,
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: Server,
    database: str,
    trained: list[float],
) -> None:
    pretend = vars(trying)["finetune"]

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        server.stop()
        server.start()
        return pretend(*arguments, **options)

    monkeypatch.setattr(trying, "finetune", meanwhile)
    found = sweep(settings(world, base, storage=database, trials=1), tmp_path / "s")
    assert [trial["valid"]["accuracy"] for trial in found["trials"]] == trained


def test_one_machine_at_a_time_takes_a_trial_and_one_that_falls_silent_loses_its_turn(
    monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    import sqlalchemy

    monkeypatch.setattr(storing, "GRACE_PERIOD", 2)
    url = database.replace("postgresql://", "postgresql+psycopg://")
    machines = [SimpleNamespace(engine=sqlalchemy.create_engine(url)) for _ in range(2)]
    taken: list[float] = []

    def take() -> None:
        with storing.database_lock(machines[1], "one"):
            taken.append(time.monotonic())

    def wait_for(seconds: float) -> None:
        """The other wants a turn while we have it, for so many seconds or until it has its own."""
        taken.clear()
        other = threading.Thread(target=take, daemon=True)
        with storing.database_lock(machines[0], "one"):
            other.start()
            other.join(seconds)
            had_it = bool(taken)
        other.join(20)
        assert taken
        assert had_it == (seconds > storing.GRACE_PERIOD)

    with storing.database_lock(machines[0], "another search"):
        take()
    wait_for(0.5)
    wait_for(20)
    for machine in machines:
        machine.engine.dispose()


def test_a_connection_whose_question_is_never_answered_is_given_up(
    monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    """Else each question that follows, to roll back and to close, would wait as long."""
    import psycopg

    monkeypatch.setattr(storing, "GRACE_PERIOD", 0.5)
    connection = storing._connection_class().connect(
        host="127.0.0.1", port=server.port, dbname="postgres", user="anna", password=PASSWORD
    )
    server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT 1")
    finally:
        server.signal(signal.SIGCONT)
    assert connection.closed


def test_one_queue_for_all_who_share_an_sqlite_file(tmp_path: Path) -> None:
    """SQLite itself would give a trial that waits to two who ask at once."""

    def queue(folder: str, url: str | None) -> Path:
        return storing.queue_path(url, tmp_path / folder)

    url = f"sqlite:///{tmp_path / 'shared.db'}"
    assert queue("a", url) == queue("b", url) == queue("b", f"{url}?timeout=5") == tmp_path / "shared.db"
    for other in (None, "postgresql://anna@host/sweeps", "sqlite:////nowhere/at/all.db"):
        assert queue("a", other) == tmp_path / "a" / "runs" / "next"


@pytest.mark.parametrize("prune", [False, True])
def test_a_process_whose_trial_was_taken_over_says_so_and_goes_on(
    world: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[float], prune: bool
) -> None:
    import optuna

    url = f"sqlite:///{tmp_path / 'shared.db'}"
    pretend = vars(trying)["finetune"]

    def slowly(one: FinetuneSettings, folder: Path, *, on_event: Any, **options: Any) -> Any:
        if not trained:  # another takes it for dead
            known = optuna.load_study(study_name=None, storage=url)
            known.tell(0, state=optuna.trial.TrialState.FAIL)
            searching._requeue_stale(known, known.trials[0])
        result = pretend(one, folder, on_event=on_event, **options)
        on_event(Evaluated(1, 1, {"accuracy": 0.5}, True))
        return result

    monkeypatch.setattr(trying, "finetune", slowly)
    said: list[str] = []
    found = sweep(settings(world, base, storage=url, trials=2, prune=prune), tmp_path / "s", log=said.append)
    assert "this process sent no heartbeat for 60 seconds: another took over its trial" in said
    assert [trial["valid"]["accuracy"] for trial in found["trials"]] == trained
    assert len(trained) == 2  # what it had done is not done again


def test_what_is_told_is_what_the_server_said_last() -> None:
    from sqlalchemy.exc import OperationalError, PendingRollbackError

    with pytest.raises(RuntimeError) as caught:  # as Optuna does, which takes any error for a question too long
        try:
            try:
                raise OperationalError("select", {}, OSError()) from OSError("connection refused\nby the host")
            except OperationalError:
                raise PendingRollbackError("Please rollback() fully before proceeding")  # noqa: B904
        except PendingRollbackError as error:
            raise RuntimeError("an exception") from error
    assert storing._root_cause(caught.value) == "connection refused"


def test_a_trial_whose_process_died_before_its_first_heartbeat_is_run(
    world: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[float]
) -> None:
    import optuna

    monkeypatch.setattr(storing, "HEARTBEAT_INTERVAL", 1)
    monkeypatch.setattr(storing, "GRACE_PERIOD", 1)
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    sweep(settings(world, base, storage=url, trials=1), tmp_path / "s")
    known = optuna.load_study(study_name=None, storage=url)
    known.ask()  # and no more
    found = sweep(settings(world, base, storage=url, trials=3), tmp_path / "s", resume=True)
    assert len(set(trained)) == len(trained) == 3
    assert all(trial["valid"] for trial in found["trials"])
    assert len(found["trials"]) == 3


def test_a_storage_that_is_back_soon_was_never_away_and_one_that_is_not_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sqlalchemy.exc

    monkeypatch.setattr(storing, "HEARTBEAT_INTERVAL", 0.01)
    monkeypatch.setattr(storing, "GRACE_PERIOD", 0.5)
    answers: list[Exception | None] = [None]

    class Storage:
        def record_heartbeat(self, trial: int) -> None:
            assert trial == 7
            if answers[-1] is not None:
                raise answers[-1]

    with storing.Heartbeat(Storage(), 7) as heartbeat:
        for _ in range(2):
            answers.append(sqlalchemy.exc.OperationalError("select", {}, Exception("gone")))
            time.sleep(0.3)
            heartbeat.check()
            answers.append(None)
            time.sleep(0.1)
        answers.append(sqlalchemy.exc.OperationalError("select", {}, Exception("gone")))
        time.sleep(0.7)
        with pytest.raises(sqlalchemy.exc.OperationalError, match="gone"):
            heartbeat.check()


def test_ctrl_c_as_a_trial_has_ended_is_ctrl_c(
    world: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[float]
) -> None:
    import optuna

    tell = optuna.Study.tell

    def interrupted(study: Any, trial: Any, *values: Any, **state: Any) -> None:
        tell(study, trial, *values, **state)
        raise KeyboardInterrupt

    given = settings(world, base, trials=1)
    with monkeypatch.context() as patch:
        patch.setattr(optuna.Study, "tell", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sweep(given, tmp_path / "s")
    assert len(sweep(given, tmp_path / "s", resume=True)["trials"]) == len(trained) == 1


# --- several processes ------------------------------------------------------------------------------------------------

# `headstart sweep`, but that a trial only pretends to train, for so many seconds, and notes down that it was begun;
# the first of them waits until as many workers as shall be together have one.
WORKER = """
import json, os, sys, time
from pathlib import Path
from headstart.cli import main
from headstart.studies import search, storage, trials
from headstart.runs.events import Step

_, seconds, grace, together, notes, *arguments = sys.argv
storage.HEARTBEAT_INTERVAL, storage.GRACE_PERIOD = 1, int(grace)

def pretend(one, folder, on_event, **options):
    with open(notes, "a") as file:
        file.write(f"{os.getpid()} {one.lr}\\n")
    while len({line.split()[0] for line in open(notes)}) < int(together):
        time.sleep(0.05)
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        on_event(Step(1, 1, 2, 1.0, {}, one.lr, 1.0, 1, 0.05))
        time.sleep(0.05)
    result = {"valid": {"accuracy": one.lr, "loss": 1.0}, "test": None, "rows": {}}
    (folder / "result.json").write_text(json.dumps(result))
    manifest = {"seconds": 3.0, "peak_memory": {"resident": 7}, "device": "cpu", "parameters": {}}
    (folder / "manifest.json").write_text(json.dumps(manifest))

requeue_stale = search._requeue_stale

def slowly(known, trial):  # so that others look at the search meanwhile
    time.sleep(1.5)
    requeue_stale(known, trial)

trials.finetune, search._requeue_stale = pretend, slowly
sys.argv = ["headstart", *arguments]
main()
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(world: Path, base: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a worker; none outlives the test."""
    workers: list[subprocess.Popen[str]] = []

    def begin(
        url: str, out: str, trials: int, seconds: float, grace: int = 5, together: int = 1
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WORKER, *map(str, (seconds, grace, together, tmp_path / "notes.txt")), "sweep"]
        command += ["--data", str(world / "train.txt"), "--valid", str(world / "valid.txt"), "--init", str(base)]
        command += ["--search", "lr=1e-4..1e-1", "--trials", str(trials), "--storage", url, "--resume"]
        command += ["--out", str(tmp_path / out)]
        workers.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.kill()
        worker.communicate()


def begun(tmp_path: Path) -> list[tuple[int, float]]:
    """Which process began a run with which learning rate."""
    notes = tmp_path / "notes.txt"
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [(int(process), float(rate)) for process, rate in (line.split() for line in lines)]


def until(condition: Callable[[], bool], workers: list[subprocess.Popen[str]], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        for worker in workers:
            assert worker.poll() is None, worker.communicate()[1]
        time.sleep(0.02)


def ended_well(worker: subprocess.Popen[str]) -> None:
    _, errors = worker.communicate(timeout=200)
    assert worker.returncode == 0, errors
    assert "Traceback" not in errors


def table(folder: Path) -> tuple[Trial, ...]:
    return Sweep.from_json(json.loads((folder / "sweep.json").read_text())).trials


@pytest.mark.slow
def test_four_workers_share_forty_trials_and_none_is_run_twice(start: Start, storage: str, tmp_path: Path) -> None:
    """Two work in one folder and two in another, as on two machines."""
    workers = [start(storage, out, trials=40, seconds=0.2, grace=20, together=4) for out in ("a", "a", "b", "b")]
    for worker in workers:
        ended_well(worker)
    rates = Counter(rate for _, rate in begun(tmp_path))
    assert len(rates) == sum(rates.values()) == 40
    assert {process for process, _ in begun(tmp_path)} == {worker.pid for worker in workers}
    for out in "ab":
        found = table(tmp_path / out)
        assert {trial.settings["lr"] for trial in found} == rates.keys()
        assert len(found) == 40
        assert all(trial.valid for trial in found)


@pytest.mark.slow
def test_the_trial_of_a_worker_that_was_killed_is_run_again(start: Start, storage: str, tmp_path: Path) -> None:
    killed = start(storage, "a", trials=8, seconds=600)
    until(lambda: bool(begun(tmp_path)), [killed])
    ((_, left),) = begun(tmp_path)
    others = [start(storage, out, trials=8, seconds=0.2) for out in ("a", "b", "b")]
    until(lambda: len(begun(tmp_path)) >= 3, others)
    killed.send_signal(signal.SIGKILL)
    for worker in others:
        ended_well(worker)
    rates = Counter(rate for _, rate in begun(tmp_path))
    assert rates.pop(left) == 2
    assert sum(rates.values()) == len(rates) == 7
    for out in "ab":
        assert {trial.settings["lr"] for trial in table(tmp_path / out)} == {left, *rates}
        assert all(trial.valid for trial in table(tmp_path / out))


@pytest.mark.slow
def test_a_server_that_goes_away_ends_the_workers_in_one_line_and_soon(
    start: Start, server: Server, database: str, tmp_path: Path
) -> None:
    """One is in the midst of a long trial, the others take one after the other."""
    workers = [start(database, out, 10_000, seconds) for out, seconds in (("a", 600), ("b", 0.1), ("b", 0.1))]
    until(lambda: len({process for process, _ in begun(tmp_path)}) == 3, workers)
    server.stop()
    try:
        gone = time.monotonic()
        for worker in workers:
            _, errors = worker.communicate(timeout=30)
            assert worker.returncode == 2, errors
            said = errors.splitlines()[-1]
            shown = database.replace(f":{PASSWORD}", "")
            assert said.startswith(f"headstart: the storage {shown} cannot be used any more (")
            assert said.endswith("run the same command with --resume when it is back")
            assert sum("cannot be used" in line for line in errors.splitlines()) == 1
            assert "Traceback" not in errors
            assert "rollback()" not in said
        assert time.monotonic() - gone < 25
    finally:
        server.start()
    done = len(begun(tmp_path))
    ended_well(start(database, "b", trials=done + 1, seconds=0.1))
    assert all(trial.valid for trial in table(tmp_path / "b"))
    assert len(table(tmp_path / "b")) == done + 1


@pytest.mark.slow
def test_a_server_that_is_started_anew_in_the_midst_of_a_trial_is_not_noticed(
    start: Start, server: Server, database: str, tmp_path: Path
) -> None:
    worker = start(database, "a", trials=2, seconds=6, grace=30)
    until(lambda: bool(begun(tmp_path)), [worker])
    server.stop()
    try:
        time.sleep(2)  # two heartbeats are missed
    finally:
        server.start()
    ended_well(worker)
    assert len(begun(tmp_path)) == len(table(tmp_path / "a")) == 2


@pytest.mark.slow
def test_a_server_that_is_started_anew_while_trials_are_taken_is_waited_for(
    start: Start, server: Server, database: str, tmp_path: Path
) -> None:
    """Workers that ask and tell all the time; none of them ends, and no trial is lost or run twice."""
    workers = [start(database, out, trials=60, seconds=0.05, grace=30) for out in ("a", "a", "b")]
    for least in (10, 25):
        until(lambda least=least: len(begun(tmp_path)) >= least, workers)  # type: ignore[misc]
        server.stop()
        try:
            time.sleep(2)
        finally:
            server.start()
    for worker in workers:
        ended_well(worker)
    assert {trial.settings["lr"] for trial in table(tmp_path / "a")} == {rate for _, rate in begun(tmp_path)}
    for out in "ab":
        assert len(table(tmp_path / out)) == 60
        assert all(trial.valid for trial in table(tmp_path / out))


@pytest.mark.slow
def test_a_server_that_is_frozen_ends_the_workers(start: Start, server: Server, database: str, tmp_path: Path) -> None:
    """Its machine still answers, and it never does."""
    workers = [start(f"{database}?connect_timeout=2", out, 10_000, 0.1, grace=2) for out in ("a", "b")]
    until(lambda: len({process for process, _ in begun(tmp_path)}) == 2, workers)
    server.signal(signal.SIGSTOP)
    try:
        for worker in workers:
            _, errors = worker.communicate(timeout=120)
            assert worker.returncode == 2, errors
            assert "cannot be used any more" in errors.splitlines()[-1]
    finally:
        server.signal(signal.SIGCONT)


# --- a comparison -----------------------------------------------------------------------------------------------------

COMPARER = """
import json, os, sys
import torch
from headstart.studies import compare
from headstart.studies.settings import CompareSettings

torch.set_num_threads(1)
_, notes, given, out = sys.argv
finetune = compare.finetune

def noted(settings, folder, **options):
    with open(notes, "a") as file:
        file.write(f"{os.getpid()} {settings.seed}\\n")
    return finetune(settings, folder, **options)

compare.finetune = noted
compare.compare(CompareSettings.from_mapping(json.loads(given), "test"), out)
"""


@pytest.mark.slow
def test_four_processes_share_a_comparison_and_one_of_them_is_killed(world: Path, base: Path, tmp_path: Path) -> None:
    names = {"data": "train", "valid": "valid", "test": "test"}
    files = {name: str(world / f"{split}.txt") for name, split in names.items()}
    given = CompareSettings(**files, init=(str(base),), arms="full", seeds=8, epochs=12, lr=2e-3)  # type: ignore[arg-type]
    text = json.dumps(given.to_mapping())
    command = [sys.executable, "-c", COMPARER, str(tmp_path / "notes.txt"), text, str(tmp_path / "s")]
    workers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    killed = workers[0]
    try:
        until(lambda: any(process == killed.pid for process, _ in begun(tmp_path)), workers)
        killed.send_signal(signal.SIGKILL)
        last = [seed for process, seed in begun(tmp_path) if process == killed.pid][-1]
        for worker in workers[1:]:
            _, errors = worker.communicate(timeout=200)
            assert worker.returncode == 0, errors
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    seeds = Counter(seed for _, seed in begun(tmp_path))
    assert seeds.pop(last) == 2
    assert sorted(seeds) == [seed for seed in range(8) if seed != last]
    assert set(seeds.values()) == {1}
    found = json.loads((tmp_path / "s" / "comparison.json").read_text())
    assert [len(arm["runs"]) for arm in found["arms"] if arm["name"] == "full"] == [8]

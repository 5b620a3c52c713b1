"""The database of a search, shared by several processes: Optuna's tables in an SQLite file or on a PostgreSQL server.

Optuna brings the storage, its heartbeat table and `fail_stale_trials`. What is added here is what it lacks:

- A server that is away is waited for, up to the grace period, and one that never answers ends the search with one line.
  Optuna's own heartbeat thread ends at the first error, without a word, and the trial counts as stale.
- A trial whose process died before its first heartbeat never becomes stale for Optuna.
- One process at a time takes a trial: SQLite would give a waiting trial to two processes that ask at the same moment.
"""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstart.errors import ConfigError, MissingExtra, OutputError
from headstart.redaction import redacted
from headstart.studies.locks import wait_for_lock
from headstart.wording import reason

if TYPE_CHECKING:
    import optuna

OnStale = Callable[["optuna.Study", "optuna.trial.FrozenTrial"], None]

HEARTBEAT_INTERVAL = 15  # seconds
GRACE_PERIOD = 60  # seconds without a heartbeat after which another process takes over a trial
CREATE_ATTEMPTS = 5  # at the tables, which another machine may create at the same moment
RETRY = 0.5  # seconds before asking a server again
# A server that is gone is noticed in half a minute. Options in the URL have precedence.
CONNECTION_OPTIONS = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


@contextmanager
def open_storage(url: str, queue: Path, on_stale: OnStale) -> Iterator[optuna.storages.RDBStorage]:
    """The database that holds the search; one that cannot be used is an error that names it.

    `on_stale` is called for a trial whose process sent no heartbeat for the grace period.
    """
    shown = redacted(url)
    try:
        storage = _create_storage(url, queue, on_stale)
    except ImportError as error:
        problem = (
            f"{shown} needs a driver that is not installed ({_root_cause(error)}): "
            "for PostgreSQL, pip install 'headstart[sweep]'"
        )
        raise ConfigError("storage", [problem]) from None
    except storage_errors() as error:
        raise ConfigError("storage", [f"{shown} cannot be opened: {_root_cause(error)}"]) from None
    try:
        yield storage
    except storage_errors() as error:
        raise OutputError(
            f"the storage {shown} cannot be used any more ({_root_cause(error)}): "
            "the runs that are done are kept; run the same command with --resume when it is back"
        ) from None
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _create_storage(url: str, queue: Path, on_stale: OnStale) -> Any:
    optuna = load_optuna()
    import sqlalchemy.exc

    # PostgreSQL is reached through psycopg unless the URL names another driver.
    url = re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url)
    parsed = sqlalchemy.engine.make_url(url)
    options: dict[str, Any] = {"pool_pre_ping": True}  # after a restart, connections in the pool are dead
    if parsed.drivername == "sqlite":
        options = {"connect_args": {"timeout": GRACE_PERIOD}}
    elif parsed.drivername == "postgresql+psycopg":
        options["connect_args"] = {name: v for name, v in CONNECTION_OPTIONS.items() if name not in parsed.query}

    def create() -> Any:
        with wait_for_lock(queue), no_heartbeat_warnings():
            return optuna.storages.RDBStorage(
                url,
                engine_kwargs=options,
                heartbeat_interval=HEARTBEAT_INTERVAL,
                grace_period=GRACE_PERIOD,
                heartbeat_stale_trial_callback=on_stale,
            )

    for attempts_left in reversed(range(CREATE_ATTEMPTS)):
        try:
            storage = create()
            break
        except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.ProgrammingError):
            if not attempts_left:
                raise
            time.sleep(RETRY)
    if parsed.drivername == "postgresql+psycopg":
        sqlalchemy.event.listen(storage.engine, "do_connect", _RetryingConnect())
        storage.engine.dispose()  # so that every connection from here on is made by it
    return storage


class _RetryingConnect:
    """Connects to a server; one that is away is waited for, up to the grace period in all."""

    def __init__(self) -> None:
        self._away_since: float | None = None

    def __call__(self, dialect: Any, record: Any, arguments: Any, options: Any) -> Any:
        import psycopg

        while True:
            try:
                connection = _connection_class().connect(*arguments, **options)
            except psycopg.Error:
                self._away_since = self._away_since or time.monotonic()
                if time.monotonic() - self._away_since >= GRACE_PERIOD:
                    raise
                time.sleep(RETRY)
            else:
                self._away_since = None
                return connection


@cache
def _connection_class() -> Any:
    """A connection with a time limit on every query: a server may be frozen on a machine that still answers."""
    import psycopg

    class Connection(psycopg.Connection[Any]):
        def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
            """Every query passes here."""
            start, limit = time.monotonic(), 2 * GRACE_PERIOD if timeout is None else timeout
            try:
                return super().wait(gen, interval, limit)
            except psycopg.Error:
                if time.monotonic() - start >= limit:
                    self.pgconn.finish()  # else the rollback that follows would wait as long
                raise

    return Connection


class Heartbeat:
    """A thread that records a trial's heartbeats. Errors are tolerated for less than the grace period."""

    def __init__(self, storage: Any, trial_id: int) -> None:
        self._storage, self._trial_id = storage, trial_id
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._record, daemon=True)

    def __enter__(self) -> Heartbeat:
        self._storage.record_heartbeat(self._trial_id)
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._thread.join()

    def _record(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(HEARTBEAT_INTERVAL):
            try:
                self._storage.record_heartbeat(self._trial_id)
                last = time.monotonic()
            except storage_errors() as error:
                if time.monotonic() - last >= GRACE_PERIOD:
                    self._error = error
                    return

    def check(self) -> None:
        """Raises the storage's error once it is away for good: by then another process has taken over the trial."""
        if self._error is not None:
            raise self._error


def record_first_heartbeats(storage: Any, running: set[int]) -> None:
    """For running trials that have none: a process may die before its first, and the trial must become stale too."""
    import sqlalchemy

    if not running:
        return
    heartbeats = sqlalchemy.table("trial_heartbeats", sqlalchemy.column("trial_id"))
    with storage.engine.connect() as connection:
        recorded = connection.execute(
            sqlalchemy.select(heartbeats.c.trial_id).where(heartbeats.c.trial_id.in_(running))
        )
        missing = running.difference(recorded.scalars())
    for trial_id in missing:
        storage.record_heartbeat(trial_id)


@contextmanager
def database_lock(storage: Any, name: str) -> Iterator[None]:
    """One process at a time, over all machines: PostgreSQL holds the lock, and takes it from a holder that hangs."""
    import sqlalchemy

    if storage.engine.dialect.name != "postgresql":
        yield
        return
    connection = storage.engine.connect()
    try:
        connection.execute(sqlalchemy.text(f"SET LOCAL idle_in_transaction_session_timeout = '{GRACE_PERIOD}s'"))
        connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": name})
        yield
    finally:
        with suppress(*storage_errors()):
            connection.close()


def queue_path(url: str | None, out: Path) -> Path:
    """Who holds the lock on this may take a trial: beside an SQLite file, whichever folders its users work in."""
    match = re.fullmatch(r"sqlite:///([^?]+)(\?.*)?", url or "")
    file = Path(match[1]).resolve() if match else None
    return file if file is not None and file.parent.is_dir() else out / "runs" / "next"


def storage_errors() -> tuple[type[Exception], ...]:
    """What a database that is not there, or refuses us, raises."""
    import sqlalchemy.exc

    return sqlalchemy.exc.SQLAlchemyError, load_optuna().exceptions.StorageInternalError


def load_optuna() -> Any:
    """The package, without its log; or one line that says what to install."""
    try:
        import optuna
    except ImportError:
        raise MissingExtra("optuna", "sweep", "a search") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextmanager
def no_heartbeat_warnings() -> Iterator[None]:
    """Optuna marks heartbeats as experimental, and warns where they are used outside its own loop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", load_optuna().exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", "Heartbeat of storage")
        yield


def _root_cause(error: BaseException) -> str:
    """The first line of it. A session that is used again after an error complains of its own state only."""
    while inner := error.__cause__ or (error.__context__ if "rollback()" in str(error) else None):
        error = inner
    return reason(error)

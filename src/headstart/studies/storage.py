"""The database of a search, which several processes share: to reach it, to take turns, to give signs of life.

It is an SQLite file, for the processes of one machine, or a PostgreSQL server. One that is away is waited for; one that
stays away, or never answers, ends the search with one line.
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
from headstart.studies.claims import claim
from headstart.studies.trials import POLL, Trials

if TYPE_CHECKING:
    import optuna

Bereft = Callable[["optuna.Study", "optuna.trial.FrozenTrial"], None]

HEARTBEAT, GRACE = 15, 60  # seconds: between signs of life, and without one until a trial is given to another
OPENINGS = 5  # how often the tables are made, where others make them at the same moment
# A server that is gone without a word is noticed in half a minute; what the URL says of these goes before.
REACH = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


@contextmanager
def opened(study: Trials, bereft: Bereft) -> Iterator[optuna.storages.RDBStorage]:
    """The database that holds the search; an error that says which one it is where it cannot be used.

    `bereft` is called for a trial whose process gives no sign of life.
    """
    named = without_password(study.settings.storage or _url(study))
    try:
        storage = _connect(study, bereft)
    except ImportError as error:
        driver = _first_line(error)
        problem = (
            f"{named} needs a driver that is not installed ({driver}): for PostgreSQL, pip install 'headstart[sweep]'"
        )
        raise ConfigError("storage", [problem]) from None
    except failures() as error:
        raise ConfigError("storage", [f"{named} cannot be opened: {_first_line(error)}"]) from None
    try:
        yield storage
    except failures() as error:
        raise OutputError(
            f"the storage {named} cannot be used any more ({_first_line(error)}): "
            "the runs that are done are kept; run the same command with --resume when it is back"
        ) from None
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _connect(study: Trials, bereft: Bereft) -> Any:
    optuna = load_optuna()
    import sqlalchemy.exc

    made = sqlalchemy.engine.make_url(_url(study))
    options: dict[str, Any] = {"pool_pre_ping": True}  # a server that was started anew has forgotten us
    if made.drivername == "sqlite":
        options = {"connect_args": {"timeout": GRACE}}
    elif made.drivername == "postgresql+psycopg":
        options["connect_args"] = {name: value for name, value in REACH.items() if name not in made.query}

    def connect() -> Any:
        with turn(queue(study)), stable(optuna):
            return optuna.storages.RDBStorage(
                _url(study),
                engine_kwargs=options,
                heartbeat_interval=HEARTBEAT,
                grace_period=GRACE,
                heartbeat_stale_trial_callback=bereft,
            )

    for left in reversed(range(OPENINGS)):
        try:
            storage = connect()
            break
        except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.ProgrammingError):
            if not left:
                raise
            time.sleep(POLL)  # another machine made the tables at the same moment
    if made.drivername == "postgresql+psycopg":
        sqlalchemy.event.listen(storage.engine, "do_connect", _Reach())
        storage.engine.dispose()  # from here on, connections of that kind
    return storage


class _Reach:
    """Connects to a server; one that is away is waited for, up to `GRACE` seconds in all."""

    def __init__(self) -> None:
        self._since: float | None = None  # when it was found to be away

    def __call__(self, dialect: Any, record: Any, arguments: Any, options: Any) -> Any:
        import psycopg

        while True:
            try:
                found = _connection().connect(*arguments, **options)
            except psycopg.Error:
                self._since = self._since or time.monotonic()
                if time.monotonic() - self._since >= GRACE:
                    raise
                time.sleep(POLL)
            else:
                self._since = None
                return found


@cache
def _connection() -> Any:
    """The kind of connection that does not wait for ever: a server may be frozen on a machine that still answers."""
    import psycopg

    class Connection(psycopg.Connection[Any]):
        def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
            """Every question passes here."""
            began, most = time.monotonic(), 2 * GRACE if timeout is None else timeout
            try:
                return super().wait(gen, interval, most)
            except psycopg.Error:
                if time.monotonic() - began >= most:
                    self.pgconn.finish()  # it cannot be asked anything else
                raise

    return Connection


def _url(study: Trials) -> str:
    """Where the search is kept; PostgreSQL is spoken to through psycopg unless the URL names another driver."""
    url = study.settings.storage or f"sqlite:///{(study.out / 'study.db').resolve()}"
    return re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url)


class Pulse:
    """Signs of life of a trial, from a thread beside it. A storage that is back within `GRACE` was never away."""

    def __init__(self, storage: Any, trial: int) -> None:
        self._storage, self._trial = storage, trial
        self._over = threading.Event()
        self._lost: Exception | None = None
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Pulse:
        self._storage.record_heartbeat(self._trial)
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._over.wait(HEARTBEAT):
            try:
                self._storage.record_heartbeat(self._trial)
                last = time.monotonic()
            except failures() as error:
                if time.monotonic() - last >= GRACE:
                    self._lost = error
                    return

    def check(self) -> None:
        """Raises what the storage answered last, once it is away for good: another has the trial by then."""
        if self._lost is not None:
            raise self._lost


def adopt(storage: Any, running: set[int]) -> None:
    """A first sign of life for trials that have none: who took one may have died before, and its minute counts now."""
    import sqlalchemy

    if not running:
        return
    known = sqlalchemy.table("trial_heartbeats", sqlalchemy.column("trial_id"))
    with storage.engine.connect() as connection:
        found = connection.execute(sqlalchemy.select(known.c.trial_id).where(known.c.trial_id.in_(running)))
        silent = running.difference(found.scalars())
    for trial in silent:
        storage.record_heartbeat(trial)


@contextmanager
def alone(storage: Any, name: str) -> Iterator[None]:
    """One at a time, over all machines: PostgreSQL keeps the lock, and takes it from who falls silent with it."""
    import sqlalchemy

    if storage.engine.dialect.name != "postgresql":
        yield
        return
    connection = storage.engine.connect()
    try:
        connection.execute(sqlalchemy.text(f"SET LOCAL idle_in_transaction_session_timeout = '{GRACE}s'"))
        connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": name})
        yield
    finally:
        with suppress(*failures()):
            connection.close()


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """Wait until what `path` stands for is ours."""
    while True:
        with claim(path) as ours:
            if ours:
                yield
                return
        time.sleep(POLL / 10)


def queue(study: Trials) -> Path:
    """Who holds the lock on this may take a trial: beside an SQLite file, whichever folders its users work in."""
    found = re.fullmatch(r"sqlite:///([^?]+)(\?.*)?", study.settings.storage or "")
    file = Path(found[1]).resolve() if found else None
    return file if file is not None and file.parent.is_dir() else study.out / "runs" / "next"


def failures() -> tuple[type[Exception], ...]:
    """What a database that is not there, or does not let us in, raises."""
    import sqlalchemy.exc

    return sqlalchemy.exc.SQLAlchemyError, load_optuna().exceptions.StorageInternalError


def load_optuna() -> Any:
    """The package, without its chatter; or one line that says what to install."""
    try:
        import optuna
    except ImportError:
        raise MissingExtra("optuna", "sweep", "a search") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextmanager
def stable(optuna: Any) -> Iterator[None]:
    """Signs of life are an experiment to Optuna, and to be given by its own loop; we know."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", "Heartbeat of storage")
        yield


def _first_line(error: BaseException) -> str:
    """What was wrong at the bottom of it. A session that asks again after an error complains of its own state only."""
    while inner := error.__cause__ or (error.__context__ if "rollback()" in str(error) else None):
        error = inner
    return str(error).strip().split("\n", 1)[0]


def without_password(url: str) -> str:
    """
    >>> without_password("postgresql://anna:secret@db.example/sweeps")
    'postgresql://anna@db.example/sweeps'
    >>> without_password("postgresql://anna:sec/ret@/sweeps?host=db.example&password=secret&sslmode=require")
    'postgresql://anna@/sweeps?host=db.example&sslmode=require'
    """
    return re.sub(r"(?<=[?&])password=[^&]*(&|$)", "", re.sub(r"(://[^:/@]*):[^@]*@", r"\1@", url))

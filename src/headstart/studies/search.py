"""A search: Optuna proposes each trial from what those before it reached; processes share its database."""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headstart.errors import ConfigError, MissingExtra, OutputError
from headstart.studies.axes import Axis
from headstart.studies.claims import claim, key_of
from headstart.studies.trials import FREE, POLL, Pruned, Trial, Trials, outcome_of, waiting
from headstart.training.loop import Evaluated, Event
from headstart.training.record import Listener

if TYPE_CHECKING:
    import optuna

HEARTBEAT, GRACE = 15, 60  # seconds: between signs of life, and without one until a trial is given to another
PATIENT = 2  # epochs before a trial may be pruned: in the first, the learning rate still rises
ATTEMPTS = 3  # how often a trial whose process dies is begun
OPENINGS = 5  # how often the tables are made, where others make them at the same moment
# A server that is gone without a word is noticed in half a minute; what the URL says of these goes before.
REACH = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


class _Ended(Exception):
    """Tells Optuna that a trial gave no score."""


def search(study: Trials) -> None:
    """Trials until there are as many as were asked for, over all processes, and none is in progress."""
    optuna = load_optuna()
    settings = study.settings
    with _storage(study) as storage:
        pruner = optuna.pruners.MedianPruner(n_warmup_steps=PATIENT) if settings.prune else optuna.pruners.NopPruner()
        known = optuna.create_study(
            storage=storage,
            study_name=f"headstart-{_key(study)}",
            direction="maximize",
            sampler=_sampler(settings.seed, 0),
            pruner=pruner,
            load_if_exists=True,
        )
        failed = 0  # turns, one after the other
        while True:
            try:
                free, running = _take_turn(study, known, storage)
                if free or not running:
                    study.tabulate(_rows(study, known))
                failed = 0
            except _failures():  # a server that is started anew breaks off what it is asked at that moment
                failed += 1
                if failed == OPENINGS or storage.engine.dialect.name != "postgresql":
                    raise
                time.sleep(POLL)
                continue
            if not free and not running:
                return
            if not free:
                study.remark(waiting(running))
                time.sleep(POLL)


def _take_turn(study: Trials, known: optuna.Study, storage: Any) -> tuple[bool, int]:
    """Take a trial and run it, if one is free; whether there was one, and how many others had in progress."""
    optuna = load_optuna()
    states = optuna.trial.TrialState
    with ExitStack() as turn:
        # One at a time takes a trial: SQLite would give a trial that waits to two who ask at once, and a trial
        # that one is about to put back in the queue is neither running nor waiting to another.
        turn.enter_context(_turn(_queue(study)))
        turn.enter_context(_alone(storage, known.study_name))
        with _stable(optuna):
            optuna.storages.fail_stale_trials(known)
        trials = known.get_trials(deepcopy=False)
        _adopt(storage, {t._trial_id for t in trials if t.state == states.RUNNING})
        free = any(t.state == states.WAITING for t in trials) or len(_firsts(trials)) < study.settings.trials
        if free:
            _next(study, known, storage, turn.close)
    return free, sum(t.state == states.RUNNING for t in trials)


def _next(study: Trials, known: optuna.Study, storage: Any, release: Callable[[], None]) -> None:
    """Take one trial and run it; `release` lets the next process take one."""
    optuna = load_optuna()
    states = optuna.trial.TrialState
    with _stable(optuna):
        trial = known.ask()
    score: float | None = None
    state = None
    try:
        try:
            with _Pulse(storage, trial._trial_id) as pulse:
                release()
                score = _objective(study, known, trial, pulse.check)
        except _Ended:
            state = states.FAIL
        except optuna.TrialPruned:
            state = states.PRUNED
        known.tell(trial, score, state)
    except BaseException as error:  # Ctrl-C, a full disk, a storage that went away: no fault of the trial's
        told = isinstance(error, ValueError) and "Cannot tell" in str(error)
        if told or isinstance(error, optuna.exceptions.UpdateFinishedTrialError):
            study.remark(f"this process gave no sign of life for {GRACE} seconds: its trial went to another")
            return
        with suppress(*_failures()):
            left = known.get_trials()[trial.number]
            if left.state == states.RUNNING:
                _again(known, left)  # first: whoever sees neither would think that all is done
                known.tell(trial, state=states.FAIL)
        raise


class _Pulse:
    """Signs of life of a trial, from a thread beside it. A storage that is back within `GRACE` was never away."""

    def __init__(self, storage: Any, trial: int) -> None:
        self._storage, self._trial = storage, trial
        self._over = threading.Event()
        self._lost: Exception | None = None
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> _Pulse:
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
            except _failures() as error:
                if time.monotonic() - last >= GRACE:
                    self._lost = error
                    return

    def check(self) -> None:
        """Raises what the storage answered last, once it is away for good: another has the trial by then."""
        if self._lost is not None:
            raise self._lost


@contextmanager
def _alone(storage: Any, name: str) -> Iterator[None]:
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
        with suppress(*_failures()):
            connection.close()


def _adopt(storage: Any, running: set[int]) -> None:
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


def _objective(study: Trials, known: optuna.Study, trial: optuna.Trial, check: Callable[[], None]) -> float:
    settings = study.settings
    first = trial.user_attrs.get("first", trial.number)
    place = sum(t.number < first for t in _firsts(known.get_trials(deepcopy=False)))
    if place >= settings.trials and first == trial.number:  # another machine took the last one at the same moment
        trial.set_user_attr("surplus", True)
        raise _Ended
    # Drawn from the seed and the trial's place alone: a search that goes on does not propose its first trials again.
    known.sampler = _sampler(settings.seed, place)
    one = settings.one({axis.name: _suggest(trial, axis) for axis in settings.axes})
    which = study.announce(place + 1, settings.trials, one)
    with _turn(study.folder(one)):  # two trials may have drawn the same values
        outcome = outcome_of(study.folder(one)) or study.train(one, _listener(study, trial, check))
    study.conclude(which, outcome)
    trial.set_user_attr("outcome", outcome)
    if outcome.get("error"):
        raise _Ended
    if outcome.get("pruned"):
        raise load_optuna().TrialPruned
    return float(outcome["valid"]["accuracy"])


def _suggest(trial: optuna.Trial, axis: Axis) -> Any:
    if not axis.span:
        return trial.suggest_categorical(axis.name, axis.values)
    low, high = axis.values
    if isinstance(low, float) or isinstance(high, float):
        return trial.suggest_float(axis.name, low, high, log=axis.logarithmic)
    return trial.suggest_int(axis.name, low, high)


def _listener(study: Trials, trial: optuna.Trial, check: Callable[[], None]) -> Listener:
    """Passes events on; with pruning, reports the accuracy after each epoch and ends a run that is not worth it."""
    reported = 0

    def listen(event: Event) -> None:
        nonlocal reported
        if study.listen:
            study.listen(event)
        check()
        if study.settings.prune and isinstance(event, Evaluated) and int(event.epoch) > reported:
            reported = int(event.epoch)
            trial.report(event.scores["accuracy"], reported)
            if trial.should_prune():
                raise Pruned(reported)

    return listen


def _again(known: optuna.Study, trial: optuna.trial.FrozenTrial, attempts: int = 0) -> None:
    """Put a trial that was broken off back in the queue, with the values that it had."""
    optuna = load_optuna()
    known.add_trial(
        optuna.create_trial(
            state=optuna.trial.TrialState.WAITING,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs={"first": trial.user_attrs.get("first", trial.number), "attempts": attempts},
        )
    )


def _bereft(known: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
    """What becomes of a trial whose process gives no sign of life."""
    attempts = trial.user_attrs.get("attempts", 0) + 1
    if attempts < ATTEMPTS:
        _again(known, trial, attempts)


def _firsts(trials: Iterable[optuna.trial.FrozenTrial]) -> list[optuna.trial.FrozenTrial]:
    """The trials that count: each once, however often it was begun."""
    return [t for t in trials if "first" not in t.user_attrs and "surplus" not in t.user_attrs]


def _rows(study: Trials, known: optuna.Study) -> list[Trial]:
    """The trials in the order in which they were first begun, from what the storage knows of them."""
    trials = [t for t in known.get_trials(deepcopy=False) if "surplus" not in t.user_attrs]
    latest = {t.user_attrs.get("first", t.number): t for t in trials}
    rows: list[Trial] = []
    for _, trial in sorted(latest.items()):
        if len(trial.params) < len(study.swept):  # it was broken off, or is, before its values were drawn
            continue
        outcome = trial.user_attrs.get("outcome", {})
        if not outcome and trial.state.is_finished():
            outcome = {"error": f"the process that ran it ended without a word, {ATTEMPTS} times"}
        rows.append(study.trial(study.settings.one(trial.params), outcome))
    return rows


def _sampler(seed: int, place: int) -> optuna.samplers.TPESampler:
    words = np.random.SeedSequence([seed, place]).generate_state(1)
    made: optuna.samplers.TPESampler = load_optuna().samplers.TPESampler(seed=int(words[0]), multivariate=False)
    return made


def _key(study: Trials) -> str:
    """The same search on the same texts has the same name in a database, from whichever machine."""
    kept = study.settings.to_mapping()
    for name in (*FREE, "storage", "data", "valid", "test"):
        kept.pop(name, None)
    return key_of([kept, study.digests, study.base(study.settings.init)])


@contextmanager
def _storage(study: Trials) -> Iterator[optuna.storages.RDBStorage]:
    """The database that holds the search; an error that says which one it is where it cannot be used."""
    named = without_password(study.settings.storage or _url(study))
    try:
        storage = _connect(study)
    except ImportError as error:
        driver = _first_line(error)
        problem = (
            f"{named} needs a driver that is not installed ({driver}): for PostgreSQL, pip install 'headstart[sweep]'"
        )
        raise ConfigError("storage", [problem]) from None
    except _failures() as error:
        raise ConfigError("storage", [f"{named} cannot be opened: {_first_line(error)}"]) from None
    try:
        yield storage
    except _failures() as error:
        raise OutputError(
            f"the storage {named} cannot be used any more ({_first_line(error)}): "
            "the runs that are done are kept; run the same command with --resume when it is back"
        ) from None
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _connect(study: Trials) -> Any:
    optuna = load_optuna()
    import sqlalchemy.exc

    made = sqlalchemy.engine.make_url(_url(study))
    options: dict[str, Any] = {"pool_pre_ping": True}  # a server that was started anew has forgotten us
    if made.drivername == "sqlite":
        options = {"connect_args": {"timeout": GRACE}}
    elif made.drivername == "postgresql+psycopg":
        options["connect_args"] = {name: value for name, value in REACH.items() if name not in made.query}

    def connect() -> Any:
        with _turn(_queue(study)), _stable(optuna):
            return optuna.storages.RDBStorage(
                _url(study),
                engine_kwargs=options,
                heartbeat_interval=HEARTBEAT,
                grace_period=GRACE,
                heartbeat_stale_trial_callback=_bereft,
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


def _queue(study: Trials) -> Path:
    """Who holds the lock on this may take a trial: beside an SQLite file, whichever folders its users work in."""
    found = re.fullmatch(r"sqlite:///([^?]+)(\?.*)?", study.settings.storage or "")
    file = Path(found[1]).resolve() if found else None
    return file if file is not None and file.parent.is_dir() else study.out / "runs" / "next"


def _failures() -> tuple[type[Exception], ...]:
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
def _stable(optuna: Any) -> Iterator[None]:
    """Signs of life are an experiment to Optuna, and to be given by its own loop; we know."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", "Heartbeat of storage")
        yield


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Wait until what `path` stands for is ours."""
    while True:
        with claim(path) as ours:
            if ours:
                yield
                return
        time.sleep(POLL / 10)


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

"""A search: Optuna proposes each trial from what those before it reached; processes share its database."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
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
        states = optuna.trial.TrialState
        while True:
            with ExitStack() as turn:
                # One at a time takes a trial: SQLite would give a trial that waits to two who ask at once.
                turn.enter_context(_turn(study.out / "runs" / "next"))
                with _stable(optuna):
                    optuna.storages.fail_stale_trials(known)
                trials = known.get_trials(deepcopy=False)
                free = any(t.state == states.WAITING for t in trials) or len(_firsts(trials)) < settings.trials
                if free:
                    _next(study, known, turn.close)
            running = sum(t.state == states.RUNNING for t in trials)
            if free or not running:
                study.tabulate(_rows(study, known))
            if not free and not running:
                return
            if not free:
                study.remark(waiting(running))
                time.sleep(POLL)


def _next(study: Trials, known: optuna.Study, release: Callable[[], None]) -> None:
    """Take one trial and run it; `release` lets the next process take one."""
    numbers: list[int] = []

    def objective(trial: optuna.Trial) -> float:
        numbers.append(trial.number)
        release()
        return _objective(study, known, trial)

    try:
        known.optimize(objective, n_trials=1, catch=(_Ended,))
    except ValueError as error:
        if "Cannot tell" not in str(error):
            raise
        study.remark(f"this process gave no sign of life for {GRACE} seconds: its trial went to another")
    except BaseException:  # Ctrl-C or a full disk: no fault of the trial's
        for number in numbers:
            _again(known, known.get_trials()[number])
        raise


def _objective(study: Trials, known: optuna.Study, trial: optuna.Trial) -> float:
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
        outcome = outcome_of(study.folder(one)) or study.train(one, _listener(study, trial))
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


def _listener(study: Trials, trial: optuna.Trial) -> Listener | None:
    """Passes events on; with pruning, reports the accuracy after each epoch and ends a run that is not worth it."""
    if not study.settings.prune:
        return study.listen
    reported = 0

    def listen(event: Event) -> None:
        nonlocal reported
        if study.listen:
            study.listen(event)
        if isinstance(event, Evaluated) and int(event.epoch) > reported:
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
    optuna = load_optuna()
    import sqlalchemy.exc

    url = study.settings.storage or f"sqlite:///{(study.out / 'study.db').resolve()}"
    named = without_password(url)
    options = {"connect_args": {"timeout": GRACE}} if url.startswith("sqlite") else {}
    raised_by_it = (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError)

    def connect() -> Any:
        with _turn(study.out / "runs" / "next"), _stable(optuna):
            return optuna.storages.RDBStorage(
                url,
                engine_kwargs=options,
                heartbeat_interval=HEARTBEAT,
                grace_period=GRACE,
                heartbeat_stale_trial_callback=_bereft,
            )

    try:
        try:
            storage = connect()
        except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.ProgrammingError):
            time.sleep(POLL)  # another machine made the tables at the same moment
            storage = connect()
    except ImportError as error:
        raise ConfigError("storage", [f"{named} needs a driver that is not installed ({error.__cause__})"]) from None
    except raised_by_it as error:
        raise ConfigError("storage", [f"{named} cannot be opened: {_first_line(error)}"]) from None
    try:
        yield storage
    except raised_by_it as error:
        raise OutputError(
            f"the storage {named} cannot be used any more ({_first_line(error)}): "
            "the runs that are done are kept; run the same command with --resume when it is back"
        ) from None
    finally:
        storage.remove_session()
        storage.engine.dispose()


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
    """Signs of life are an experiment to Optuna; we know."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
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


def _first_line(error: Exception) -> str:
    cause = error.__cause__ or error
    return str(cause).strip().split("\n", 1)[0]


def without_password(url: str) -> str:
    """
    >>> without_password("postgresql://anna:secret@db.example/sweeps")
    'postgresql://anna@db.example/sweeps'
    """
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1@", url)

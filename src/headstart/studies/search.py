"""A search: Optuna proposes each trial from what those before it reached; processes share what it knows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from headstart.runs.events import Evaluated, Event, OnEvent
from headstart.runs.sweep import Trial
from headstart.studies import storage
from headstart.studies.axes import Axis
from headstart.studies.claims import key_of
from headstart.studies.storage import load_optuna
from headstart.studies.trials import FREE, POLL, Pruned, Trials, outcome_of, waiting

if TYPE_CHECKING:
    import optuna

PATIENT = 2  # epochs before a trial may be pruned: in the first, the learning rate still rises
ATTEMPTS = 3  # how often a trial whose process dies is begun


class _Ended(Exception):
    """Tells Optuna that a trial gave no score."""


def search(study: Trials) -> None:
    """Trials until there are as many as were asked for, over all processes, and none is in progress."""
    optuna = load_optuna()
    settings = study.settings
    with storage.opened(study, _bereft) as database:
        pruner = optuna.pruners.MedianPruner(n_warmup_steps=PATIENT) if settings.prune else optuna.pruners.NopPruner()
        known = optuna.create_study(
            storage=database,
            study_name=f"headstart-{_key(study)}",
            direction="maximize",
            sampler=_sampler(settings.seed, 0),
            pruner=pruner,
            load_if_exists=True,
        )
        failed = 0  # turns, one after the other
        while True:
            try:
                free, running = _take_turn(study, known, database)
                if free or not running:
                    study.tabulate(_rows(study, known))
                failed = 0
            except storage.failures():  # a server that is started anew breaks off what it is asked at that moment
                failed += 1
                if failed == storage.OPENINGS or database.engine.dialect.name != "postgresql":
                    raise
                time.sleep(POLL)
                continue
            if not free and not running:
                return
            if not free:
                study.log(waiting(running))
                time.sleep(POLL)


def _take_turn(study: Trials, known: optuna.Study, database: Any) -> tuple[bool, int]:
    """Take a trial and run it, if one is free; whether there was one, and how many others had in progress."""
    optuna = load_optuna()
    states = optuna.trial.TrialState
    with ExitStack() as turn:
        # One at a time takes a trial: SQLite would give a trial that waits to two who ask at once, and a trial
        # that one is about to put back in the queue is neither running nor waiting to another.
        turn.enter_context(storage.turn(storage.queue(study)))
        turn.enter_context(storage.alone(database, known.study_name))
        with storage.stable(optuna):
            optuna.storages.fail_stale_trials(known)
        trials = known.get_trials(deepcopy=False)
        storage.adopt(database, {t._trial_id for t in trials if t.state == states.RUNNING})
        free = any(t.state == states.WAITING for t in trials) or len(_firsts(trials)) < study.settings.trials
        if free:
            _next(study, known, database, turn.close)
    return free, sum(t.state == states.RUNNING for t in trials)


def _next(study: Trials, known: optuna.Study, database: Any, release: Callable[[], None]) -> None:
    """Take one trial and run it; `release` lets the next process take one."""
    optuna = load_optuna()
    states = optuna.trial.TrialState
    with storage.stable(optuna):
        trial = known.ask()
    score: float | None = None
    state = None
    try:
        try:
            with storage.Pulse(database, trial._trial_id) as pulse:
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
            study.log(f"this process gave no sign of life for {storage.GRACE} seconds: its trial went to another")
            return
        with suppress(*storage.failures()):
            left = known.get_trials()[trial.number]
            if left.state == states.RUNNING:
                _again(known, left)  # first: whoever sees neither would think that all is done
                known.tell(trial, state=states.FAIL)
        raise


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
    with storage.turn(study.folder(one)):  # two trials may have drawn the same values
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


def _listener(study: Trials, trial: optuna.Trial, check: Callable[[], None]) -> OnEvent:
    """Passes events on; with pruning, reports the accuracy after each epoch and ends a run that is not worth it."""
    reported = 0

    def on_event(event: Event) -> None:
        nonlocal reported
        if study.on_event:
            study.on_event(event)
        check()
        if study.settings.prune and isinstance(event, Evaluated) and int(event.epoch) > reported:
            reported = int(event.epoch)
            trial.report(event.scores["accuracy"], reported)
            if trial.should_prune():
                raise Pruned(reported)

    return on_event


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

"""A search: Optuna proposes each trial from what those before it reached; processes share what it knows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headstart.runs.events import Evaluated, Event, OnEvent
from headstart.runs.sweep import Trial
from headstart.studies import storage
from headstart.studies.axes import Axis
from headstart.studies.fingerprints import settings_key
from headstart.studies.locks import wait_for_lock
from headstart.studies.storage import load_optuna
from headstart.studies.trials import MAY_CHANGE, POLL, Pruned, TrialRunner

if TYPE_CHECKING:
    import optuna

PRUNE_AFTER = 2  # epochs: in the first, the learning rate still rises
ATTEMPTS = 3  # at a trial whose process dies


class _NoScore(Exception):
    """Tells Optuna that a trial ended without a score."""


def search(runner: TrialRunner) -> None:
    """Trials until there are as many as were asked for, over all processes, and none is running."""
    optuna = load_optuna()
    settings = runner.settings
    queue = storage.queue_path(settings.storage, runner.out)
    url = settings.storage or f"sqlite:///{(runner.out / 'study.db').resolve()}"
    with storage.open_storage(url, queue, _requeue_stale) as database:
        pruners = optuna.pruners
        optuna_study = optuna.create_study(
            storage=database,
            study_name=f"headstart-{_study_key(runner)}",
            direction="maximize",
            sampler=_sampler(settings.seed, 0),
            pruner=pruners.MedianPruner(n_warmup_steps=PRUNE_AFTER) if settings.prune else pruners.NopPruner(),
            load_if_exists=True,
        )
        failures = 0  # one after the other
        while True:
            try:
                taken, running = _run_next_trial(runner, optuna_study, database, queue)
                if taken or not running:
                    runner.write_record(_table(runner, optuna_study))
                failures = 0
            except storage.storage_errors():  # a server that restarts breaks off the queries of that moment
                failures += 1
                if failures == storage.CREATE_ATTEMPTS or database.engine.dialect.name != "postgresql":
                    raise
                time.sleep(POLL)
                continue
            if not taken and not running:
                return
            if not taken:
                runner.wait_for_others(running)


def _run_next_trial(runner: TrialRunner, optuna_study: optuna.Study, database: Any, queue: Path) -> tuple[bool, int]:
    """Run a trial, if one is left to take; whether there was one, and how many were running at that moment."""
    optuna = load_optuna()
    states = optuna.trial.TrialState
    with ExitStack() as locks:
        # One process at a time takes a trial: a trial that is about to be put back in the queue is neither running
        # nor waiting to another.
        locks.enter_context(wait_for_lock(queue))
        locks.enter_context(storage.database_lock(database, optuna_study.study_name))
        with storage.no_heartbeat_warnings():
            optuna.storages.fail_stale_trials(optuna_study)
        trials = optuna_study.get_trials(deepcopy=False)
        storage.record_first_heartbeats(database, {t._trial_id for t in trials if t.state == states.RUNNING})
        left = any(t.state == states.WAITING for t in trials) or len(_counted(trials)) < runner.settings.trials
        if left:
            _run_trial(runner, optuna_study, database, locks.close)
    return left, sum(t.state == states.RUNNING for t in trials)


def _run_trial(runner: TrialRunner, optuna_study: optuna.Study, database: Any, release: Callable[[], None]) -> None:
    """Ask for a trial, run it and tell its score; `release` lets the next process take one."""
    optuna = load_optuna()
    states = optuna.trial.TrialState
    with storage.no_heartbeat_warnings():
        trial = optuna_study.ask()
    score: float | None = None
    state = None
    try:
        try:
            with storage.Heartbeat(database, trial._trial_id) as heartbeat:
                release()
                score = _objective(runner, optuna_study, trial, heartbeat.check)
        except _NoScore:
            state = states.FAIL
        except optuna.TrialPruned:
            state = states.PRUNED
        optuna_study.tell(trial, score, state)
    except BaseException as error:  # Ctrl-C, a full disk, a storage that went away: not the trial's fault
        finished = isinstance(error, ValueError) and "Cannot tell" in str(error)
        if finished or isinstance(error, optuna.exceptions.UpdateFinishedTrialError):
            runner.log(
                f"this process sent no heartbeat for {storage.GRACE_PERIOD} seconds: another took over its trial"
            )
            return
        with suppress(*storage.storage_errors()):
            interrupted = optuna_study.get_trials()[trial.number]
            if interrupted.state == states.RUNNING:
                _requeue(optuna_study, interrupted)  # first: whoever sees neither would think that all is done
                optuna_study.tell(trial, state=states.FAIL)
        raise


def _objective(
    runner: TrialRunner, optuna_study: optuna.Study, trial: optuna.Trial, check: Callable[[], None]
) -> float:
    settings = runner.settings
    first = trial.user_attrs.get("first", trial.number)
    index = sum(t.number < first for t in _counted(optuna_study.get_trials(deepcopy=False)))
    if index >= settings.trials and first == trial.number:  # another machine took the last one at the same moment
        trial.set_user_attr("surplus", True)
        raise _NoScore
    # Drawn from the seed and the trial's index alone: a search that is resumed does not propose its first trials again.
    optuna_study.sampler = _sampler(settings.seed, index)
    combination = settings.combination({axis.name: _suggest(trial, axis) for axis in settings.axes})
    title = f"trial {index + 1} of {settings.trials}"
    runner.log_start(title, combination)
    with wait_for_lock(runner.folder(combination)):  # two trials may have drawn the same values
        outcome = runner.outcome(combination) or runner.train(combination, _event_handler(runner, trial, check))
    runner.log_end(title, outcome)
    trial.set_user_attr("outcome", outcome)
    if outcome.get("error"):
        raise _NoScore
    if outcome.get("pruned"):
        raise load_optuna().TrialPruned
    return float(outcome["valid"]["accuracy"])


def _suggest(trial: optuna.Trial, axis: Axis) -> Any:
    if not axis.is_range:
        return trial.suggest_categorical(axis.name, axis.values)
    low, high = axis.values
    if isinstance(low, float) or isinstance(high, float):
        return trial.suggest_float(axis.name, low, high, log=axis.logarithmic)
    return trial.suggest_int(axis.name, low, high)


def _event_handler(runner: TrialRunner, trial: optuna.Trial, check: Callable[[], None]) -> OnEvent:
    """Passes events on; with pruning, reports the accuracy after each epoch and stops a run that is pruned."""
    reported = 0

    def on_event(event: Event) -> None:
        nonlocal reported
        if runner.on_event:
            runner.on_event(event)
        check()
        if runner.settings.prune and isinstance(event, Evaluated) and int(event.epoch) > reported:
            reported = int(event.epoch)
            trial.report(event.scores["accuracy"], reported)
            if trial.should_prune():
                raise Pruned(reported)

    return on_event


def _requeue(optuna_study: optuna.Study, trial: optuna.trial.FrozenTrial, attempts: int = 0) -> None:
    """Put an interrupted trial back in the queue, with the values that it had.

    Optuna's `RetryHeartbeatStaleTrialCallback` would hand on the attributes of the broken attempt (`surplus`,
    `outcome`), and could not put back a trial that was interrupted with Ctrl-C, which is not an attempt.
    """
    optuna = load_optuna()
    optuna_study.add_trial(
        optuna.create_trial(
            state=optuna.trial.TrialState.WAITING,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs={"first": trial.user_attrs.get("first", trial.number), "attempts": attempts},
        )
    )


def _requeue_stale(optuna_study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
    attempts = trial.user_attrs.get("attempts", 0) + 1
    if attempts < ATTEMPTS:
        _requeue(optuna_study, trial, attempts)


def _counted(trials: Iterable[optuna.trial.FrozenTrial]) -> list[optuna.trial.FrozenTrial]:
    """Each trial once, however often it was put back in the queue."""
    return [t for t in trials if "first" not in t.user_attrs and "surplus" not in t.user_attrs]


def _table(runner: TrialRunner, optuna_study: optuna.Study) -> list[Trial]:
    """The trials in the order in which they were first begun, from what the storage knows of them."""
    trials = [t for t in optuna_study.get_trials(deepcopy=False) if "surplus" not in t.user_attrs]
    latest = {t.user_attrs.get("first", t.number): t for t in trials}
    rows: list[Trial] = []
    for _, trial in sorted(latest.items()):
        if len(trial.params) < len(runner.swept):  # its values are not drawn yet
            continue
        outcome = trial.user_attrs.get("outcome", {})
        if not outcome and trial.state.is_finished():
            outcome = {"error": f"the process that ran it died, {ATTEMPTS} times"}
        rows.append(runner.trial(runner.settings.combination(trial.params), outcome))
    return rows


def _sampler(seed: int, index: int) -> optuna.samplers.TPESampler:
    (state,) = np.random.SeedSequence([seed, index]).generate_state(1)
    sampler: optuna.samplers.TPESampler = load_optuna().samplers.TPESampler(seed=int(state), multivariate=False)
    return sampler


def _study_key(runner: TrialRunner) -> str:
    """The same search on the same texts has the same name in a database, from whichever machine."""
    kept = runner.settings.to_mapping()
    for name in (*MAY_CHANGE, "storage", "data", "valid", "test"):
        kept.pop(name, None)
    return settings_key([kept, runner.fingerprints, runner.base_fingerprint(runner.settings.init)])

"""How far the settings of every arm are searched, and what fits into the time there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

SHORT = 2  # epochs of a short trial
SHARE = 0.85  # of the time that may be planned for: trials differ in length
STUDENTS = 2  # in self-training, about, after its teacher, and what comes before it
LINEAR_SECONDS = 120.0  # that a linear model takes at most, while it is not known
LINEAR_SHARE = 0.25  # of the time that is left, after which the search of a linear model takes the best so far
IMPROVEMENT = 0.01  # of accuracy: where twice the epochs bring as much, more of them are tried
CUT_SHORT = 0.03  # of accuracy: an arm to which the last half of its epochs brought as much would gain by more of them


@dataclass(frozen=True)
class Effort:
    """How far an arm is searched. It is the same for all arms of a study."""

    rates: int  # learning rates in short trials
    finalists: int  # of them in long trials; 0: the best short trial decides
    epochs: int  # of a long trial
    longer: tuple[int, ...] = ()  # the best of these with so many times the epochs
    dropouts: tuple[float, ...] = ()  # and with these rates of dropout
    repeats: int = 1  # folds that a long trial is trained on
    most_times: int = 4  # the epochs: where an arm does best with the most of them, they are doubled up to here

    @property
    def trial_epochs(self) -> int:
        """Epochs of all trials of an arm."""
        variants = sum(self.longer) + len(self.dropouts)
        return self.rates * SHORT + (self.finalists + variants) * self.epochs * self.repeats

    @property
    def most_epochs(self) -> int:
        """Epochs that a run may have whose settings were chosen by it."""
        return self.epochs * max(self.longer, default=1)

    @property
    def extended(self) -> Effort | None:
        """With trials of twice the epochs beside; None where there are enough, or none to choose by."""
        times = 2 * max(self.longer, default=1)
        if not self.longer or times > self.most_times:
            return None
        return replace(self, longer=(*self.longer, times))


@dataclass(frozen=True)
class RunsAhead:
    """The runs of an arm that follow its trials: with each seed, on every label budget."""

    seeds: int
    shares: tuple[float, ...] = (1.0,)  # of the largest budget
    least_epochs: float = 0.0  # of a run, in epochs on the largest budget
    at_most_largest: bool = False  # whether no run is longer than that on the largest budget
    student_arms: float = 0.0  # for each arm that is searched
    own_teacher: bool = True  # whether a run of theirs trains its teacher first, as in self-training
    student_epochs: float = 0.0  # over the unlabelled texts, in epochs on the largest budget

    def epochs(self, effort: Effort) -> float:
        most = effort.most_epochs
        least = min(self.least_epochs, most) if self.at_most_largest else self.least_epochs
        own = [max(share * most, least) for share in self.shares]
        # A student trains for as long as its teacher, or reads all texts a few times.
        student = [max(epochs, self.student_epochs) for epochs in own]
        more = sum(own) + STUDENTS * sum(student) if self.own_teacher else sum(student)
        return self.seeds * (sum(own) + self.student_arms * more)


QUICK = (
    Effort(rates=5, finalists=2, epochs=5, longer=(2,), dropouts=(0.2,)),
    Effort(rates=5, finalists=2, epochs=4, longer=(2,)),
    Effort(rates=5, finalists=2, epochs=4),
    Effort(rates=4, finalists=0, epochs=4),
    Effort(rates=3, finalists=0, epochs=3),
    Effort(rates=1, finalists=0, epochs=2),
)
THOROUGH = Effort(rates=7, finalists=3, epochs=5, longer=(2, 4), dropouts=(0.0, 0.2, 0.3), repeats=3, most_times=8)
BRIEF = Effort(rates=4, finalists=0, epochs=4)
EFFORTS = {
    "brief": (BRIEF,),
    "quick": QUICK,
    "thorough": (THOROUGH, *QUICK),
}  # of each the first that fits into the time is taken


def choose_effort(
    efforts: Sequence[Effort], seconds_per_epoch: Sequence[float], seconds: float, runs: RunsAhead
) -> Effort:
    """The first that fits into so many seconds, with its trials and the runs that follow; else the last.

    `seconds_per_epoch` has an entry for each arm that is searched.

    >>> [choose_effort(EFFORTS["quick"], [10.0, 10.0], seconds, RunsAhead(3)).rates for seconds in (3000, 1500, 100)]
    [5, 5, 1]
    """
    return next((each for each in efforts if fits(each, seconds_per_epoch, seconds, runs)), efforts[-1])


def fits(effort: Effort, seconds_per_epoch: Sequence[float], seconds: float, runs: RunsAhead) -> bool:
    return sum(seconds_per_epoch) * needed_epochs(effort, runs) <= SHARE * seconds


def needed_epochs(effort: Effort, runs: RunsAhead) -> float:
    """Epochs of an arm's trials and of its runs."""
    return effort.trial_epochs + runs.epochs(effort)

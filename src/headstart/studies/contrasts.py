"""Which arms are compared with which. It is decided by the arms and their scores on valid, before test is looked at.

The primary questions are what the comparison is made for: is the best pretrained arm better than the same model from
scratch, and than the linear model? Where unlabelled texts or teachers were given: is the student better than `full`,
and than the linear model that had the same texts?
Every other pair is secondary. Each of the two families is corrected for its own number of questions, so that no
secondary pair makes a primary question harder to decide.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headstart.runs.comparison import ALPHA, ArmResult, DifferenceResult, Estimate, valid_accuracy

PRETRAINED: Final = ("full", "frozen", "contrastive")
SELF_TRAINED: Final = "full+self"
DISTILLED: Final = "full+teacher"
STUDENTS: Final = (SELF_TRAINED, DISTILLED)  # `full` with more than labels: unlabelled texts, teachers
TFIDF_SELF_TRAINED: Final = "tfidf+self"  # the linear model with the unlabelled texts
NOT_USED: Final = "worse on valid with the texts without labels: fitted to the labels alone"  # a note of its tuning
Pair = tuple[str, str]  # (arm, minus arm)


@dataclass(frozen=True)
class BaseArms:
    """The arms of one base."""

    best: ArmResult  # the pretrained arm that is best on valid: it stands for the base
    others: tuple[ArmResult, ...]  # the other pretrained arms: frozen where full is best, and the other way round
    scratch: ArmResult | None


@dataclass(frozen=True)
class Contrasts:
    """The arms by the part that they have in a comparison, and the pairs of them to test."""

    bases: tuple[BaseArms, ...]
    competing: tuple[ArmResult, ...]  # several bases trained the same way, best on valid first; else empty
    neural: ArmResult | None  # the transformer that is best on valid
    scratch: ArmResult | None
    linear: ArmResult | None
    majority: ArmResult | None
    ensembles: tuple[ArmResult, ...]
    reference: ArmResult | None
    primary: tuple[Pair, ...]
    secondary: tuple[Pair, ...]

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return self.primary + self.secondary

    def within(self, names: Container[str]) -> Contrasts:
        """With the pairs alone whose arms are both among these."""
        primary, secondary = (
            tuple(pair for pair in pairs if pair[0] in names and pair[1] in names)
            for pairs in (self.primary, self.secondary)
        )
        return replace(self, primary=primary, secondary=secondary)


def choose_contrasts(arms: Sequence[ArmResult], reference: str) -> Contrasts:
    """The parts of the arms; the pairs follow from them."""
    named = {arm.name: arm for arm in arms}
    bases = tuple(_base_arms(arms, base) for base in dict.fromkeys(arm.base for arm in arms if arm.mode in PRETRAINED))
    competing = _competing(arms)
    neural = _best_on_valid([arm for arm in arms if arm.trained])
    linear, self_trained = named.get("tfidf"), named.get(TFIDF_SELF_TRAINED)
    ensembles = tuple(arm for arm in arms if arm.mode == "ensemble")
    primary = (*_primary(arms, linear), *student_pairs(arms, self_trained))
    wanted = [
        *primary,
        *((arm.name, reference) for arm in arms if arm.name not in (reference, "majority")),
        *((each.best.name, arm.name) for each in bases for arm in (each.scratch, *each.others) if arm is not None),
        *((competing[0].name, arm.name) for arm in competing[1:]),
        *((arm.name, linear.name) for arm in (neural, *ensembles) if arm is not None and linear is not None),
        *((arm.name, self_trained.name) for arm in (neural, linear) if arm is not None and self_trained is not None),
    ]
    return Contrasts(
        bases=bases,
        competing=competing,
        neural=neural,
        scratch=_scratch(arms, None),
        linear=linear,
        majority=named.get("majority"),
        ensembles=ensembles,
        reference=named.get(reference),
        primary=primary,
        secondary=tuple(_unique(wanted))[len(primary) :],
    )


def is_significant(difference: DifferenceResult) -> bool:
    """By Holm's correction; in records older than `level`, an interval that excludes zero is not enough."""
    return difference.holm < ALPHA and excludes_zero(difference.scores["accuracy"])


def excludes_zero(estimate: Estimate) -> bool:
    return estimate.low > 0 or estimate.high < 0


def _primary(arms: Sequence[ArmResult], linear: ArmResult | None) -> Iterator[Pair]:
    """Of the pretrained arm that is best on valid, over all bases; without one, of the best from scratch."""
    best = _best_on_valid([arm for arm in arms if arm.mode in PRETRAINED])
    if best is not None and (scratch := _scratch(arms, best.base)) is not None:
        yield best.name, scratch.name
    best = best or _best_on_valid([arm for arm in arms if arm.mode == "scratch"])
    if best is not None and linear is not None:
        yield best.name, linear.name


def student_pairs(arms: Sequence[ArmResult], linear: ArmResult | None) -> Iterator[Pair]:
    """Each arm with unlabelled texts or teachers, and the same without; and the linear model with the same texts."""
    for arm in (arm for arm in arms if arm.mode in STUDENTS):
        yield from ((arm.name, other.name) for other in arms if other.mode == "full" and other.base == arm.base)
        if linear is not None:
            yield arm.name, linear.name


def _base_arms(arms: Sequence[ArmResult], base: str | None) -> BaseArms:
    pretrained = [arm for mode in PRETRAINED for arm in arms if arm.mode == mode and arm.base == base]
    best = _best_on_valid(pretrained)
    assert best is not None
    return BaseArms(best, tuple(arm for arm in pretrained if arm is not best), _scratch(arms, base))


def _best_on_valid(arms: Sequence[ArmResult]) -> ArmResult | None:
    """The first of equals."""
    return max(arms, key=valid_accuracy, default=None)


def _scratch(arms: Sequence[ArmResult], base: str | None) -> ArmResult | None:
    """The scratch arm of the base; bases of one architecture share the one there is."""
    scratch = [arm for arm in arms if arm.mode == "scratch"]
    return next((arm for arm in scratch if arm.base == base), scratch[0] if scratch else None)


def _competing(arms: Sequence[ArmResult]) -> tuple[ArmResult, ...]:
    for mode in PRETRAINED:
        rivals = [arm for arm in arms if arm.mode == mode]
        if len(rivals) > 1:
            return tuple(sorted(rivals, key=valid_accuracy, reverse=True))
    return ()


def _unique(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Each pair once, whichever way round."""
    seen: set[frozenset[str]] = set()
    for pair in pairs:
        if frozenset(pair) not in seen:
            seen.add(frozenset(pair))
            yield pair

"""Which contrasts are chosen, from the arms and their scores on valid alone."""

from __future__ import annotations

from headstart.studies.contrasts import choose_contrasts, excludes_zero, is_significant
from tests.studies.test_verdict import FROZEN, FULL, GAIN, LINEAR, MAJORITY, SCRATCH, apart, arm


def test_pairs_of_one_base() -> None:
    arms = [SCRATCH, FROZEN, FULL, LINEAR, MAJORITY]
    to_scratch = [(name, "scratch") for name in ("frozen", "full", "tfidf")]
    assert choose_contrasts(arms, "scratch").pairs == (*to_scratch, ("full", "frozen"), ("full", "tfidf"))


def test_pairs_are_not_named_twice() -> None:
    assert choose_contrasts([SCRATCH, FULL, LINEAR], "full").pairs == (("scratch", "full"), ("tfidf", "full"))
    assert choose_contrasts([LINEAR], "tfidf").pairs == ()


def test_pairs_of_two_bases() -> None:
    arms = [arm("scratch:a", 0.8), arm("scratch:b", 0.8), arm("full:a", 0.85), arm("full:b", 0.87)]
    assert choose_contrasts(arms, "scratch:a").pairs == (
        ("scratch:b", "scratch:a"),
        ("full:a", "scratch:a"),
        ("full:b", "scratch:a"),
        ("full:b", "scratch:b"),
        ("full:b", "full:a"),
    )


def test_the_best_arm_of_a_base_is_chosen_on_valid() -> None:
    """Frozen is worse on test, which has no part in it."""
    frozen = arm("frozen", 0.841, valid=0.9)
    (arms,) = choose_contrasts([SCRATCH, FULL, frozen], "scratch").bases
    assert (arms.best, arms.other, arms.scratch) == (frozen, FULL, SCRATCH)


def test_of_two_that_are_level_on_valid_full_is_the_best() -> None:
    (arms,) = choose_contrasts([arm("frozen", 0.8), arm("full", 0.8)], "frozen").bases
    assert arms.best.name == "full"


def test_bases_share_a_scratch_arm_unless_they_have_their_own() -> None:
    arms = [arm("scratch:a", 0.8), arm("full:a", 0.85), arm("full:b", 0.87)]
    assert [each.scratch for each in choose_contrasts(arms, "scratch:a").bases] == [arms[0], arms[0]]


def test_competing_bases_are_trained_the_same_way() -> None:
    arms = [arm("full:a", 0.85), arm("frozen:a", 0.7), arm("frozen:b", 0.87)]
    assert [each.name for each in choose_contrasts(arms, "full:a").competing] == ["frozen:b", "frozen:a"]
    assert choose_contrasts(arms[1:2], "frozen:a").competing == ()


def test_significance_is_by_holm() -> None:
    assert is_significant(GAIN)
    uncorrected = apart("full", "scratch", 0.012, 0.001, 0.023, holm=0.09)
    assert not is_significant(uncorrected)
    assert excludes_zero(uncorrected.scores["accuracy"])

"""Which contrasts are chosen, from the arms and their scores on valid alone."""

from __future__ import annotations

import pytest

from headstart.studies.contrasts import choose_contrasts, excludes_zero, is_significant
from tests.studies.test_verdict import FROZEN, FULL, GAIN, LINEAR, MAJORITY, SCRATCH, apart, arm


def test_pairs_of_one_base() -> None:
    arms = [SCRATCH, FROZEN, FULL, LINEAR, MAJORITY]
    contrasts = choose_contrasts(arms, "scratch")
    assert contrasts.primary == (("full", "scratch"), ("full", "tfidf"))
    assert contrasts.secondary == (("frozen", "scratch"), ("tfidf", "scratch"), ("full", "frozen"))
    assert contrasts.pairs == contrasts.primary + contrasts.secondary


def test_pairs_are_not_named_twice() -> None:
    assert choose_contrasts([SCRATCH, FULL, LINEAR], "full").pairs == (("full", "scratch"), ("full", "tfidf"))
    assert choose_contrasts([LINEAR], "tfidf").pairs == ()


def test_pairs_of_two_bases() -> None:
    arms = [arm("scratch:a", 0.8), arm("scratch:b", 0.8), arm("full:a", 0.85), arm("full:b", 0.87)]
    contrasts = choose_contrasts(arms, "scratch:a")
    assert contrasts.primary == (("full:b", "scratch:b"),)
    assert contrasts.secondary == (
        ("scratch:b", "scratch:a"),
        ("full:a", "scratch:a"),
        ("full:b", "scratch:a"),
        ("full:b", "full:a"),
    )


def test_the_primary_question_without_a_pretrained_arm_is_scratch_against_the_linear_model() -> None:
    assert choose_contrasts([SCRATCH, LINEAR, MAJORITY], "scratch").primary == (("scratch", "tfidf"),)
    assert choose_contrasts([LINEAR, MAJORITY], "tfidf").primary == ()


def test_the_primary_arm_is_the_best_of_all_bases_on_valid() -> None:
    arms = [SCRATCH, arm("full:a", 0.85, valid=0.8), arm("frozen:b", 0.7, valid=0.9), LINEAR]
    assert choose_contrasts(arms, "scratch").primary == (("frozen:b", "scratch"), ("frozen:b", "tfidf"))


@pytest.mark.parametrize("student", ["full+self", "full+teacher"])
def test_a_student_is_compared_with_the_linear_model_that_had_its_texts(student: str) -> None:
    self_trained = arm("tfidf+self", 0.86)
    found = choose_contrasts([SCRATCH, FULL, arm(student, 0.88), LINEAR, self_trained], "scratch")
    assert found.primary == (("full", "scratch"), ("full", "tfidf"), (student, "full"), (student, "tfidf+self"))
    assert {("tfidf", "tfidf+self"), ("tfidf+self", "scratch")} <= set(found.secondary)
    without = choose_contrasts([SCRATCH, FULL, arm(student, 0.88), LINEAR], "scratch")
    assert without.primary == (("full", "scratch"), ("full", "tfidf"), (student, "full"))


def test_the_best_arm_of_a_base_is_chosen_on_valid() -> None:
    """Frozen is worse on test, which has no part in it."""
    frozen = arm("frozen", 0.841, valid=0.9)
    (arms,) = choose_contrasts([SCRATCH, FULL, frozen], "scratch").bases
    assert (arms.best, arms.others, arms.scratch) == (frozen, (FULL,), SCRATCH)


def test_a_contrastive_arm_is_a_pretrained_one() -> None:
    contrastive = arm("contrastive", 0.8, valid=0.95)
    found = choose_contrasts([SCRATCH, FULL, arm("frozen", 0.7), contrastive, LINEAR], "scratch")
    assert found.primary == (("contrastive", "scratch"), ("contrastive", "tfidf"))
    assert [each.name for each in found.bases[0].others] == ["full", "frozen"]
    assert {("contrastive", "full"), ("contrastive", "frozen")} <= set(found.secondary)


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

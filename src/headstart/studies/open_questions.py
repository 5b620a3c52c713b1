"""What would settle what is open, in words: how many test texts and seeds."""

from __future__ import annotations

from collections.abc import Iterator

from headstart.runs.comparison import ArmResult, Comparison, DifferenceResult
from headstart.studies import looks
from headstart.studies.contrasts import DISTILLED, PRETRAINED, STUDENTS, Contrasts
from headstart.studies.plan import study_needed
from headstart.studies.words import arm_name, points
from headstart.wording import listed, plural

TO_FIND = 0.02  # the difference that is planned for, where none is said to matter


def open_questions(comparison: Comparison, contrasts: Contrasts) -> Iterator[str]:
    """Sentences of the verdict's third paragraph; none where every primary question is decided."""
    differences = looks.open_questions(comparison)
    if not differences:
        return
    questions = [_question(comparison, contrasts, each) for each in differences]
    yield f"**Still open: {listed(questions)}.**"
    arms = [comparison.arm(name) for each in differences for name in (each.arm, each.reference)]
    if any(arm.mode in ("full", "contrastive", *STUDENTS, "scratch") and len(arm.runs) == 1 for arm in arms):
        yield "What would settle it is not known with one seed: use at least 3."
        return
    yield _needed(comparison, differences, arms)
    if not looks.seeds_can_help(comparison):
        yield "More seeds alone would not decide it."


def _question(comparison: Comparison, contrasts: Contrasts, difference: DifferenceResult) -> str:
    arm, reference = comparison.arm(difference.arm), comparison.arm(difference.reference)
    if arm.mode in PRETRAINED and reference.mode == "scratch":
        return "whether pretraining helps"
    if arm.mode in STUDENTS and reference.mode == "full":
        return f"whether {'the teacher' if arm.mode == DISTILLED else 'self-training'} helps"
    return f"whether {arm_name(arm, contrasts)} does better than {arm_name(reference, contrasts)}"


def _needed(comparison: Comparison, differences: list[DifferenceResult], arms: list[ArmResult]) -> str:
    """Test texts and seeds that find what matters with a power of 80 %, for all that is open."""
    size = comparison.matters or TO_FIND
    known = [(each.components, each.level) for each in differences if each.components is not None]
    sizes = [needed for each in known if (needed := study_needed(each[0], size, each[1])) is not None]
    if len(sizes) < len(differences):
        return f"The seeds differ too much to find {points(size)} points with any number of test texts."
    rows, seeds = max(rows for rows, _ in sizes), max(seeds for _, seeds in sizes)
    runs = max(len(arm.runs) for arm in arms)
    seeded = any(components.seeds for components, _ in known)
    more = {plural(rows, "test text"): comparison.rows} if rows > comparison.rows else {}
    more |= {plural(seeds, "seed"): runs} if seeded and seeds > runs else {}
    if not more:
        return f"This study finds {points(size)} points with a power of 80 %, so the difference is probably smaller."
    wanted, there = listed(list(more)), listed([f"{count:,}" for count in more.values()])
    return f"To find {points(size)} points with a power of 80 % would take about {wanted}; this study has {there}."

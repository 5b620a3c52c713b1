"""Sampled softmax: every target is a candidate, and the chance of being one is what it is said to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headstart.batches import candidates as module
from headstart.batches.batch import IGNORE_INDEX, Batch, micro_batch, pad_batch
from headstart.batches.candidates import MULTIPLE, CandidateBatches, draw_candidates, word_frequencies
from headstart.training.cross_entropy import sampled_cross_entropy
from tests.batches.helpers import few, seeds, store

WORDS = 300
ZIPF = 1 / np.arange(1, WORDS + 1) ** 1.1
FREQUENCIES = ZIPF / ZIPF.sum()


@few
@given(st.lists(st.integers(0, WORDS - 1), max_size=400), st.integers(1, WORDS), seeds)
def test_every_target_is_a_candidate_and_none_is_there_twice(targets: list[int], size: int, seed: int) -> None:
    found = draw_candidates(np.array(targets, np.int64), size, FREQUENCIES, np.random.default_rng(seed))
    assert set(targets) <= set(found.ids.tolist())
    assert (np.diff(found.ids) > 0).all()
    assert 0 <= found.ids[0] <= found.ids[-1] < WORDS
    enough = len(set(targets)) + MULTIPLE <= size
    assert len(found.ids) == WORDS or len(found.ids) % MULTIPLE == 0
    assert len(found.ids) < size + MULTIPLE or not enough
    assert (found.log_chance <= 0).all()
    assert np.isfinite(found.log_chance).all()


def test_the_chance_of_a_word_is_its_share_of_many_draws() -> None:
    generator = np.random.default_rng(0)
    drawn, said = np.zeros(WORDS), np.zeros(WORDS)
    for _ in range(3000):
        found = draw_candidates(generator.choice(WORDS, 60, p=FREQUENCIES), 128, FREQUENCIES, generator)
        drawn[found.ids] += 1
        said[found.ids] = np.exp(found.log_chance)
    assert abs(drawn / 3000 - said).max() < 0.05  # five standard errors, and what the chance varies by itself
    assert drawn[0] / 3000 > 0.999
    assert 0.2 < drawn[-1] / 3000 < 0.5


@pytest.mark.parametrize("corrected", [True, False])
def test_true_probabilities_have_no_gradient_in_the_mean(corrected: bool) -> None:
    """As in the whole softmax, at logits that are the logarithms of the true probabilities there is nothing to learn.

    Without the correction frequent words, which are in every softmax, would be taken for rarer than they are.
    """
    generator, draws = np.random.default_rng(1), 2000
    gradients = np.zeros((draws, WORDS))
    for number in range(draws):
        targets = generator.choice(WORDS, 60, p=FREQUENCIES)
        ids, log_chance = (torch.from_numpy(array) for array in draw_candidates(targets, 128, FREQUENCIES, generator))
        bias = torch.from_numpy(np.log(FREQUENCIES)).requires_grad_()
        nothing = torch.zeros(60, 1, dtype=torch.float64), torch.zeros(WORDS, 1, dtype=torch.float64)
        chance = log_chance.double() * corrected
        loss = sampled_cross_entropy(*nothing, bias, torch.from_numpy(targets), ids, chance)
        gradients[number] = torch.autograd.grad(loss, bias)[0].numpy()
    mean = gradients.mean(0)
    errors = abs(mean) / (gradients.std(0) / draws**0.5)
    assert (errors.max() < 5) == corrected
    assert (abs(mean[200:].sum()) < 0.03 * 60 * FREQUENCIES[200:].sum()) == corrected  # the rarest, all together


def test_batches_with_more_targets_than_that_have_few_sizes() -> None:
    even = np.full(50_000, 1 / 50_000)
    generator = np.random.default_rng(0)
    sizes = {len(draw_candidates(np.arange(found), 4096, even, generator).ids) for found in range(100, 6000, 50)}
    assert sizes == {4096, 4608, 5120, 5632, 6144}


def test_frequencies_are_those_of_the_tokens_and_the_special_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNTED", 3)  # of the four tokens
    documents = store([[5, 5, 6], [7]])
    found = word_frequencies(documents, 10, [0, 2])
    assert found.tolist() == pytest.approx([0.25, 0, 0.25, 0, 0, 0.25, 0.125, 0.125, 0, 0])


@dataclass
class Fixed:
    """Epochs of three steps, each of these targets."""

    version: int = 7

    def steps(self, epoch: int) -> int:
        return 3

    def batch(self, epoch: int, step: int) -> Batch:
        ids = torch.arange(10)
        targets = torch.where(ids % 3 == 0, IGNORE_INDEX, ids + 1)
        return Batch(ids, torch.tensor([0, 6, 10], dtype=torch.int32), 6, targets=targets, causal=True)


def test_candidates_are_a_function_of_seed_epoch_and_step() -> None:
    def drawn(seed: int, epoch: int, step: int) -> list[int]:
        candidates = CandidateBatches(Fixed(), 64, FREQUENCIES, seed).batch(epoch, step).candidates
        assert candidates is not None
        return candidates.tolist()

    assert drawn(3, 1, 2) == drawn(3, 1, 2)
    assert len({tuple(drawn(*key)) for key in ((3, 1, 2), (4, 1, 2), (3, 2, 2), (3, 1, 1))}) == 4
    batches = CandidateBatches(Fixed(), 64, FREQUENCIES, 3)
    assert (batches.steps(0), batches.version) == (3, 7)  # those of the batches within
    assert IGNORE_INDEX not in drawn(3, 1, 2)


def test_parts_of_a_batch_and_a_padded_one_have_its_candidates() -> None:
    batch = CandidateBatches(Fixed(), 64, FREQUENCIES, 3).batch(0, 0)
    parts: list[Any] = [micro_batch(batch, index, 2) for index in range(2)]
    for other in (*parts, pad_batch(batch, 128)):
        assert other.candidates is batch.candidates
        assert other.log_chance is batch.log_chance

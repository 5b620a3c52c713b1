from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, log_loss

from headstart.metrics import fit_temperature, macro_f1, score


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_macro_f1_is_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    labels, predicted = np.array(pairs).T
    expected = f1_score(labels, predicted, average="macro", zero_division=0.0)
    assert macro_f1(predicted, labels, 4) == pytest.approx(expected)


def test_scores_are_scikit_learns() -> None:
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(50, 3))
    log_probabilities = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    labels = draw.integers(3, size=50)
    found = score(log_probabilities, labels)
    assert found["accuracy"] == accuracy_score(labels, log_probabilities.argmax(1))
    assert found["loss"] == pytest.approx(log_loss(labels, np.exp(log_probabilities), labels=[0, 1, 2]))


def test_probabilities_that_are_nearly_alike_have_a_small_temperature() -> None:
    """Those of a linear model with a strong penalty: right, and hardly above the others."""
    draw = np.random.default_rng(0)
    labels = draw.integers(12, size=600)
    logits = draw.normal(size=(600, 12)) + 2 * np.eye(12)[labels]
    log_probabilities = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    expected = 0.005 * fit_temperature(log_probabilities, labels)
    assert fit_temperature(0.005 * log_probabilities, labels) == pytest.approx(expected, rel=1e-3)

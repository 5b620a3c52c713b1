"""Two classifiers that answer together."""

from __future__ import annotations

import numpy as np

from headstart.metrics import score
from headstart.studies.ensemble import blend


def test_two_that_are_wrong_on_different_rows_do_better_together() -> None:
    draw = np.random.default_rng(0)
    labels = draw.integers(2, size=2000)
    signs = np.stack([1 - 2 * labels, 2 * labels - 1], axis=1)
    one, other = (
        (lambda z: z - np.log(np.exp(z).sum(1, keepdims=True)))(
            signs * strength * (1 + draw.normal(scale=2.0, size=(2000, 1)))
        )
        for strength in (5.0, 0.2)  # as good as one another, one far too sure and one not sure enough
    )
    valid = np.arange(2000) < 500
    share, both = blend(one, other, labels, valid)
    assert 0.3 < share < 0.7
    assert np.allclose(np.exp(both).sum(1), 1)
    accuracy = {
        name: score(rows[~valid], labels[~valid])["accuracy"]
        for name, rows in (("one", one), ("other", other), ("both", both))
    }
    assert accuracy["both"] > max(accuracy["one"], accuracy["other"]) + 0.03


def test_rows_outside_valid_choose_nothing() -> None:
    draw = np.random.default_rng(1)
    rows = [np.log(draw.dirichlet([1, 1, 1], size=100)) for _ in range(2)]
    labels, valid = draw.integers(3, size=100), np.arange(100) < 50
    share, both = blend(rows[0], rows[1], labels, valid)
    again, same = blend(rows[0], rows[1], np.where(valid, labels, (labels + 1) % 3), valid)
    assert share == again
    assert np.array_equal(both, same)

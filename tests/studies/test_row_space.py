"""Regression in the space of the rows is regression on the features, to the last digits that matter."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from headstart.studies import row_space as row_space_module
from headstart.studies.row_space import RowSpace, row_space


def sparse_rows(seed: int, rows: int, columns: int) -> csr_matrix:
    rng = np.random.default_rng(seed)
    values = np.where(rng.random((rows, columns)) < 0.05, rng.random((rows, columns)), 0.0)
    return csr_matrix(values.astype(np.float32))


@pytest.mark.parametrize("strength", [0.3, 30.0])
@pytest.mark.parametrize("frequent", [0.0, 0.05, 1.0])
def test_the_probabilities_are_those_of_the_features(
    strength: float, frequent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether all columns are multiplied as a dense matrix, the frequent ones, or none."""
    monkeypatch.setattr(row_space_module, "FREQUENT", frequent)
    train, other = sparse_rows(1, 60, 400), sparse_rows(2, 25, 400)
    labels = np.arange(60) % 4
    model = LogisticRegression(C=strength, max_iter=5000, tol=1e-8)
    expected = model.fit(train.astype(np.float64), labels).predict_proba(other)
    space = RowSpace(train)
    model.fit(space.rows.astype(np.float64), labels)
    assert model.predict_proba(space.project(other)) == pytest.approx(expected, abs=2e-4)
    logits = other @ space.to_features(model.coef_).T + model.intercept_
    assert logits == pytest.approx(space.project(other) @ model.coef_.T + model.intercept_, abs=1e-4)


def test_the_same_text_twice() -> None:
    train = sparse_rows(3, 20, 200)
    space = RowSpace(train[[*range(20), 0, 0, 1]])
    assert np.isfinite(space.rows).all()
    assert space.rows @ space.rows.T == pytest.approx((space.train @ space.train.T).toarray(), abs=1e-4)


def test_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows always, in float64 where classes are few; many rows with many classes; more rows than columns never."""
    features = sparse_rows(1, 60, 400)
    few, many = row_space(features, 2), row_space(features, 20)
    assert few is not None and few.rows.dtype == few.project(features).dtype == np.float64
    assert many is not None and many.rows.dtype == many.project(features).dtype == np.float32
    assert row_space(features[:, :50], 20) is None
    monkeypatch.setattr(row_space_module, "FEW_ROWS", 59)
    assert row_space(features, 5) is None
    assert row_space(features, 20) is not None
    monkeypatch.setattr(row_space_module, "MOST_ROWS", 59)
    assert row_space(features, 20) is None


def test_texts_that_are_mixtures_of_a_few_others() -> None:
    """Many rows in a space of few dimensions: rounded to float32, X Xᵀ has negative eigenvalues."""
    rng = np.random.default_rng(4)
    train = csr_matrix((rng.random((800, 10)) @ rng.random((10, 1000))).astype(np.float32))
    space = RowSpace(train)
    wide = train.astype(np.float64)
    products = (wide @ wide.T).toarray()
    assert space.rows @ space.rows.T == pytest.approx(products, rel=1e-4)

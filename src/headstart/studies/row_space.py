"""Logistic regression on many more features than texts, in as many dimensions as there are texts.

With an L2 penalty, the best coefficients are a combination of the training rows: what they have in other directions
costs and brings nothing. With X Xᵀ = L Lᵀ (Cholesky), the rows of L have the inner products of the rows of X, so
regression on L gives the same probabilities. It has n coefficients a class, where X has one for each of its many
thousand n-grams: with 77 classes it is ten times as fast.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headstart.metrics import Floats

MOST_ROWS = 10_000  # of train: L has their square
LEAST_CLASSES = 3  # with two, regression on the sparse rows is fast enough
JITTER = 1e-7  # of the mean square of a row: two texts may be the same


def worthwhile(features: Any, classes: int) -> bool:
    rows, columns = features.shape
    return classes >= LEAST_CLASSES and rows <= min(columns, MOST_ROWS)


class RowSpace:
    """The space that the rows of a sparse matrix (n, F) span: (n, n) instead of (n, F)."""

    def __init__(self, train: Any) -> None:
        from scipy.linalg import cholesky

        self.train = train
        wide = train.astype(np.float64)  # rounded to float32, products of like rows are no Gram matrix any more
        gram: Floats = (wide @ wide.T).toarray()  # (n, n)
        gram[np.diag_indices_from(gram)] += JITTER * gram.trace() / len(gram)
        self._factor: Floats = cholesky(gram, lower=True, overwrite_a=True)

    @property
    def rows(self) -> Floats:
        """(n, n): the training rows."""
        return self._factor.astype(np.float32)

    def project(self, features: Any) -> Floats:
        """(m, F) → (m, n): other rows, as far as they lie in the space."""
        from scipy.linalg import solve_triangular

        products = (features @ self.train.T).toarray().astype(np.float64)
        result: Floats = solve_triangular(self._factor, products.T, lower=True).T.astype(np.float32)
        return result

    def to_features(self, coefficients: Floats) -> Floats:
        """(C, n) → (C, F): coefficients of the features that have the same products with every row."""
        from scipy.linalg import solve_triangular

        combination = solve_triangular(self._factor, coefficients.T.astype(np.float64), lower=True, trans="T")
        result: Floats = (self.train.T @ combination).T.astype(np.float32)
        return result

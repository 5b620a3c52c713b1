"""Regression on many sparse features in the space that the rows span, which has at most as many dimensions as rows.

With an L2 penalty the best coefficients are a combination of the training rows: what they have in other directions
costs and brings nothing. With X Xᵀ = L Lᵀ (Cholesky), the rows of L have the inner products of the rows of X, so
regression on L gives the same probabilities. It has n coefficients a class, where X has one for each of its many
thousand n-grams: with 77 classes it is ten times as fast.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headstart.metrics import Floats

MOST_ROWS = 10_000  # of train: L has their square
MANY_CLASSES = 10  # with fewer, regression on the sparse rows is faster, unless there are few rows
FEW_ROWS = 3000
FREQUENT = 0.05  # of the rows: columns with more are multiplied as a dense matrix, at fifty times the speed
JITTER = 1e-7  # of the mean square of a row: two texts may be the same


def row_space(train: Any, classes: int) -> RowSpace | None:
    """None where regression on the features themselves is faster."""
    rows, columns = train.shape
    many = classes >= MANY_CLASSES  # products take most of the time, and float32 halves it
    if rows > min(columns, MOST_ROWS if many else FEW_ROWS):
        return None
    return RowSpace(train, np.float32 if many else np.float64)


class RowSpace:
    """The space that the rows of a sparse matrix (n, F) span: (n, n) instead of (n, F)."""

    def __init__(self, train: Any, dtype: type[np.floating[Any]] = np.float32) -> None:
        from scipy.linalg import cholesky

        self.train, self.dtype = train, dtype
        self._frequent = train.getnnz(axis=0) > FREQUENT * train.shape[0]
        self._dense, self._rest = self._parts(train)
        gram = self._products(self._dense, self._rest)  # (n, n)
        gram[np.diag_indices_from(gram)] += JITTER * gram.trace() / len(gram)
        self._factor: Floats = cholesky(gram, lower=True, overwrite_a=True)

    @property
    def rows(self) -> Floats:
        """(n, n): the training rows."""
        return self._factor.astype(self.dtype, copy=False)

    def project(self, features: Any) -> Floats:
        """(m, F) → (m, n): other rows, as far as they lie in the space."""
        from scipy.linalg import solve_triangular

        products = self._products(*self._parts(features))
        result: Floats = solve_triangular(self._factor, products.T, lower=True).T.astype(self.dtype, copy=False)
        return result

    def to_features(self, coefficients: Floats) -> Floats:
        """(C, n) → (C, F): coefficients of the features that have the same products with every row."""
        from scipy.linalg import solve_triangular

        combination = solve_triangular(self._factor, coefficients.T.astype(np.float64), lower=True, trans="T")
        result: Floats = (self.train.T @ combination).T.astype(np.float32)
        return result

    def _parts(self, features: Any) -> tuple[Floats, Any]:
        """The frequent columns, dense, and the others. Products of like rows rounded to float32 are no Gram matrix."""
        wide = features.astype(np.float64)
        return wide[:, self._frequent].toarray(), wide[:, ~self._frequent]

    def _products(self, dense: Floats, rest: Any) -> Floats:
        """(m, n): of these rows with those of train."""
        result: Floats = (rest @ self._rest.T).toarray()
        result += dense @ self._dense.T
        return result

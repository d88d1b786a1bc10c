"""Preprocessing that is the same everywhere: fitted once on rows that everybody has, then frozen.

A transformer that was fitted again in each round would see the pseudo-rows, and one that was fitted
at each site the site's rows: in both cases the learners of two sites would not speak of the same
columns.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.averaging.estimators.conventions import settled, steps_of
from consilience.exceptions import DataError, ParameterError

Rows = Any
"""Rows of features: an (n, p) float array, or a sparse matrix of scipy."""


def as_rows(x: Any) -> Rows:
    """Rows as an array or a sparse matrix in row order, without a copy where they are one."""
    from scipy import sparse

    return x.tocsr() if sparse.issparse(x) else np.asarray(x)


def stacked(blocks: list[Rows], *, by_column: bool, reuse: bool) -> Rows:
    """Rows under one another.

    Parameters
    ----------
    blocks : list of (n_i, p) arrays or sparse matrices
    by_column : bool
        Whether the learner goes through columns, which are then laid out one after another.
    reuse : bool
        Write into memory that the next call in this thread overwrites: only for learners that keep
        no rows. Fresh memory costs more than the copy.
    """
    from scipy import sparse

    if any(sparse.issparse(block) for block in blocks):
        return sparse.vstack(blocks, format="csc" if by_column else "csr", dtype=np.float64)
    n, p = sum(len(block) for block in blocks), blocks[0].shape[1]
    flat = _scratch(n * p) if reuse else np.empty(n * p)
    rows = flat.reshape((n, p), order="F" if by_column else "C")
    at = 0
    for block in blocks:
        for i in range(0, len(block), _PIECE):
            piece = block[i : i + _PIECE]
            rows[at : at + len(piece)] = piece
            at += len(piece)
    return rows


_PIECE = 512
"""Rows that are turned into columns at a time, while they are in the cache."""
_KEPT = 1 << 23
"""Numbers that a thread keeps for its next stack (64 MB); larger stacks are given back."""
_memory = threading.local()


def _scratch(size: int) -> NDArray[np.float64]:
    if size > _KEPT:
        return np.empty(size)
    kept: NDArray[np.float64] | None = getattr(_memory, "rows", None)
    if kept is None or len(kept) < size:
        kept = _memory.rows = np.empty(size)
    return kept[:size]


class Frozen:
    """Transformers of an estimator, fitted once on the reference rows.

    Parameters
    ----------
    estimator : estimator
        Unfitted; the steps before the last of a pipeline are meant.
    reference : (m, p) array or sparse matrix, optional
    seed : int
        For the draws of the transformers.

    Attributes
    ----------
    steps : list of (name, fitted transformer)
    reference : rows or None
        Transformed reference rows.

    Raises
    ------
    ParameterError
        There is a transformer that learns from the response, or no reference rows to fit it on.
    DataError
        The reference rows are not a finite table.
    """

    def __init__(self, estimator: Any, reference: Any, seed: int) -> None:
        from sklearn.base import clone

        self.steps: list[tuple[str, Any]] = []
        rows = None if reference is None else _checked(reference)
        for name, step in steps_of(estimator):
            kind = type(step).__name__
            if rows is None:
                raise ParameterError(
                    f"{kind} is fitted on the reference rows, so that it is the same everywhere: "
                    "give reference rows, or leave it out"
                )
            try:
                fitted = settled(clone(step), seed).fit(rows)
                rows = as_rows(fitted.transform(rows))
            except (TypeError, ValueError, AttributeError) as error:
                if isinstance(error, ParameterError):
                    raise
                raise ParameterError(
                    f"{kind} cannot be fitted on the reference rows alone "
                    f"({type(error).__name__}): preprocessing must not need the response, nor "
                    "names of columns"
                ) from None
            self.steps.append((self._free(name), fitted))
        self.reference: Rows = rows

    def _free(self, name: str) -> str:
        """Name that no earlier step has: pipelines in pipelines may repeat names."""
        taken = [known for known, _ in self.steps]
        return name if name not in (*taken, "learner") else f"{name}-{len(taken)}"

    def transform(self, x: Rows) -> Rows:
        """Rows as the learner sees them."""
        for _, step in self.steps:
            x = step.transform(x)
        return as_rows(x) if self.steps else x

    def before(self, learner: Any) -> Any:
        """Fitted learner that predicts from rows as they come."""
        if not self.steps:
            return learner
        from sklearn.pipeline import Pipeline

        return Pipeline([*self.steps, ("learner", learner)])

    def behind(self, fitted: Any) -> Any:
        """Fitted learner itself, of what :meth:`before` gave."""
        return fitted.steps[-1][1] if self.steps and hasattr(fitted, "steps") else fitted


def _checked(reference: Any) -> Rows:
    from scipy import sparse

    if sparse.issparse(reference):
        rows = reference.tocsr().astype(np.float64)
        values = rows.data
    else:
        rows = values = np.ascontiguousarray(reference, dtype=np.float64)
    if rows.ndim != 2 or not rows.shape[0] or not np.isfinite(values).all():
        raise DataError("reference rows must be a table of finite numbers with at least one row")
    return rows

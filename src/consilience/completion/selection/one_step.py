"""The one-step leave-one-out of complete matrices as a curve of errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.completion.estimators.entry_plans import plan_alphas, plan_ranks
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.centring import centre_of
from consilience.numerics.entries import Entries
from consilience.numerics.held_out_entries import EntryCurve

ONE_STEP = {"one-step": "exact", "one-step-as-printed": "as_printed"}


def one_step_ranks(entries: Entries, ranks: Any, center: str, cv: str) -> EntryCurve:
    """Errors of truncated singular value decompositions by rank.

    Parameters
    ----------
    entries : Entries
        Complete.
    ranks : "auto", int or sequence of int
        A number means all up to it, "auto" all below min(n, p).
    center : {"none", "columns", "rows-and-columns"}
        Of the whole matrix: it is not left out.
    cv : {"one-step", "one-step-as-printed"}

    Raises
    ------
    ParameterError
        Another word, or ranks out of their range.
    DataError
        The matrix has missing entries.
    """
    from consilience.completion.kernels.leave_one_entry_out import hard_predictions

    x, variant = _complete(entries, center, cv)
    if isinstance(ranks, str):
        if ranks != "auto":
            raise ParameterError.of("ranks", '"auto" or a list of numbers', ranks)
        ranks = np.arange(min(x.shape))
    tried = list(plan_ranks(entries, np.zeros(0, dtype=np.int64), ranks=ranks).path.parameters)
    found = hard_predictions(x, tried, variant=variant)
    return _curve("rank", tried, x, found, (tried[0] == 0, False))


def one_step_alphas(entries: Entries, alphas: Any, center: str, cv: str) -> EntryCurve:
    """Errors of soft-thresholded singular value decompositions by penalty.

    Parameters
    ----------
    entries : Entries
        Complete.
    alphas : "auto", int or sequence of float
        "auto" means a number of 19, from the penalty that leaves nothing to a thousandth of it.
    center, cv
        As for :func:`one_step_ranks`.

    Raises
    ------
    ParameterError
        Another word, or penalties out of their range.
    DataError
        The matrix has missing entries.
    """
    from consilience.completion.kernels.leave_one_entry_out import soft_predictions

    x, variant = _complete(entries, center, cv)
    plan = plan_alphas(entries, alphas=alphas, center=center)
    tried = [float(alpha) for alpha in plan.path.parameters]
    if isinstance(alphas, str):
        tried = (tried[0] * np.geomspace(1.0, 1e-3, 19)).tolist()
    found = soft_predictions(x, tried, variant=variant)
    return _curve("alpha", tried, x, found, plan.natural(tried[0], tried[-1]))


def _complete(entries: Entries, center: str, cv: str) -> tuple[FloatArray, str]:
    if cv not in ONE_STEP:
        allowed = 'a number of folds, an EntrywiseKFold, "one-step" or "one-step-as-printed"'
        raise ParameterError.of("cv", allowed, cv)
    if not entries.complete:
        raise DataError(f'cv = "{cv}" needs a complete matrix: use folds where entries are missing')
    return centre_of(entries, center).removed(entries).dense(), ONE_STEP[cv]


def _curve(
    parameter: str,
    tried: list[Any],
    x: FloatArray,
    found: Iterable[FloatArray],
    natural: tuple[bool, bool],
) -> EntryCurve:
    errors, spread = [], []
    for predicted in found:
        squares = (predicted - x) ** 2
        known = bool(np.isfinite(squares).all())
        # an entry that alone decides on its row or column has no prediction: the error is unknown
        errors.append(float(squares.mean()) if known else np.nan)
        spread.append(float(squares.std(ddof=1) / np.sqrt(x.size)) if known else np.nan)
    return EntryCurve(
        parameter,
        np.asarray(tried),
        np.array([errors]),
        np.array([x.size], dtype=np.int64),
        natural,
        np.array(spread),
    )

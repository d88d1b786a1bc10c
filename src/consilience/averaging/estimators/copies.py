"""Copies of rows that stand for weights, for learners whose ``fit`` takes no ``sample_weight``.

Every own row of positive weight stays in every fit, and own rows weigh the same against each other
in all of them, whatever the pseudo-rows weigh: the copies of own rows follow from the own weights
alone, times a whole number. Were they to change with rho, two answers could differ by one row, and
rounds would fit other rows each time.

Source: Ya Le's Stanford thesis, chapter 1, *A General Algorithm for Distributed Learning*, whose
refits weigh pseudo-rows by rho; copies in place of weights are this package's.
"""

from __future__ import annotations

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError

MOST_COPIES = 128
"""Copies at most, per row that goes in. Rounds with rho ``k**0.9`` reach 64 at k = 100."""

_FINE_COPIES = 8
"""As many per row may be spent on whole numbers that lie nearer to the weights."""
_FINE_OWN = 2
"""The same for the own rows alone: every copy of theirs asks for rho copies of pseudo-rows."""

_EXACT = 1e-9


def copies_of(own: FloatArray, pseudo: FloatArray) -> tuple[IntArray, IntArray, float]:
    """Copies of rows that stand for weights, for learners that take none.

    Parameters
    ----------
    own : (n,) array
        Weights of the own rows.
    pseudo : (k,) array
        Weights of the pseudo-rows; may be empty.

    Returns
    -------
    own_copies : (n,) int array
        At least 1 where the weight is positive, 0 elsewhere.
    pseudo_copies : (k,) int array
        0 only where the weight comes to less than half a copy. Both are proportional to the
        weights where few copies allow that exactly, and otherwise as near as they come.
    per_weight : float
        Copies that stand for a weight of one; the smallest positive own weight has 1 or more.

    Raises
    ------
    DataError
        No own row of positive weight, or more than :data:`MOST_COPIES` copies for each row that
        goes in, so that memory stays a bounded multiple of the rows'.
    """
    positive = own[own > 0]
    if not len(positive):
        raise DataError("a fit needs rows of positive weight: check the weights")
    unit, rows = float(positive.min()), len(own) + len(pseudo)
    if not own.sum() <= MOST_COPIES * len(own) * unit:
        raise DataError(
            "too many copies of rows would stand for the weights, which differ too much: give "
            "weights that are nearer to each other, or a learner that takes sample_weight"
        )
    fine, own_copies = _nearest(own / unit, _FINE_OWN * len(own))
    per_weight = fine / unit
    wanted = per_weight * pseudo
    if not own_copies.sum() + wanted.sum() <= MOST_COPIES * rows:
        sentence = (
            "too many copies of rows would stand for the weight of the reference rows: give a "
            "smaller rho or fewer rounds, more reference rows, or a learner that takes "
            "sample_weight"
        )
        # It tells settings and the number of rows at most, which the coordinator knows.
        raise DataError(sentence, public=sentence)
    times, pseudo_copies = _nearest(wanted, _FINE_COPIES * rows, beside=int(own_copies.sum()))
    return times * own_copies, pseudo_copies, times * per_weight


def _nearest(wanted: FloatArray, most: float, beside: int = 0) -> tuple[int, IntArray]:
    """Multiple of numbers that lies nearest to whole ones: 1, or more if `most` allows."""
    total = float(wanted.sum()) + beside
    best = 1
    counts, least = _whole(wanted)
    for times in range(2, _FINE_COPIES + 1):
        if least < _EXACT or times * total > most:
            break
        found, fault = _whole(times * wanted)
        if fault < least - _EXACT:
            best, counts, least = times, found, fault
    return best, counts


def _whole(wanted: FloatArray) -> tuple[IntArray, float]:
    """Whole numbers with the same running totals, and the share of weight that is misplaced."""
    # Whole parts are set aside, so that no sum of parts can round a number of 1 or more to 0.
    whole = np.floor(wanted + _EXACT)
    parts = np.cumsum(np.maximum(wanted - whole, 0.0))
    counts = whole + np.diff(np.floor(parts + 0.5), prepend=0.0)
    counts[wanted >= 0.5] = np.maximum(counts[wanted >= 0.5], 1.0)
    total = float(wanted.sum())
    fault = float(np.abs(counts - wanted).sum() / total) if total > 0 else 0.0
    return counts.astype(np.int64), fault

"""What sums over weighted records rest on: chances of events in classes that overlap."""

from __future__ import annotations

import numpy as np

from consilience.arrays import FloatArray, IntArray


def chance_facts(
    record: IntArray, group: IntArray, weight: FloatArray, amount: FloatArray
) -> tuple[IntArray, FloatArray]:
    """Records behind each sum, and the largest share of one record.

    Parameters
    ----------
    record, group : (m,) int arrays
        Which record adds to which sum; in several entries if it adds several things.
    weight : (m,) array
        Share of the record that belongs to the class of the sum, 0 to 1: as much of a record as
        this counts.
    amount : (m,) array
        What it adds, at least 0.

    Returns
    -------
    records : (G,) int array
        Sum of the weights of the records that add something, rounded down, though not to 0.
    share : (G,) array
    """
    n_groups = int(group.max(initial=-1)) + 1
    pair, place = np.unique(record * max(n_groups, 1) + group, return_inverse=True)
    most = np.zeros(len(pair))
    np.maximum.at(most, place.ravel(), np.where(amount > 0, weight, 0.0))
    added = np.bincount(place.ravel(), weights=amount, minlength=len(pair))
    of = pair % max(n_groups, 1)
    weights = np.bincount(of, weights=most, minlength=n_groups)
    total = np.bincount(of, weights=added, minlength=n_groups)
    largest = np.zeros(n_groups)
    np.maximum.at(largest, of, added)
    records = np.where(weights > 0, np.maximum(np.floor(weights + 1e-9), 1), 0).astype(np.int64)
    share = np.divide(largest, total, out=np.zeros(n_groups), where=total > 0)
    return records, share

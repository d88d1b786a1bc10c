"""Counts of label tuples at a site where hardly any tuple is frequent.

With many models, tuples of labels are nearly as many as rows. Counting all rows with the one or two
tuples that happen to be frequent (`label_patterns.merge_rare`) then tells hardly anything of the
site. Tuples that are cut to the labels of few models are frequent, and models of several sites say
more than as many of one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.kernels.label_patterns import (
    SiteSummary,
    coarsen,
    distinct_patterns,
    summarise_site,
)

LEAST_COVERED = 0.5
"""Share of the rows whose own tuple must be frequent for tuples to be counted at full length."""


def turns(owners: Sequence[Hashable]) -> IntArray:
    """Order of models in which sites take turns: the first of every site, then the second.

    Parameters
    ----------
    owners : sequence of length M
        Site of each model; sites are in the order in which they occur.

    Returns
    -------
    (M,) int array
    """
    seen: dict[Hashable, int] = {}
    rounds = []
    for owner in owners:
        rounds.append(seen.get(owner, 0))
        seen[owner] = rounds[-1] + 1
    return np.argsort(rounds, kind="stable").astype(np.int64)


def summarise_by_turns(
    labels: ArrayLike,
    class_parameters: Sequence[FloatArray],
    owners: Sequence[Hashable],
    min_records: int,
) -> SiteSummary:
    """Counts of label tuples that a site may send, cut to few models where tuples are rare.

    Parameters
    ----------
    labels : array of int, shape (N, M)
        Class of every row of the site under every model.
    class_parameters : sequence of M arrays (K_m, d)
        Class parameters of all models.
    owners : sequence of length M
        Site of each model.
    min_records : int
        Smallest count of a cell; 1 sends the exact table.

    Returns
    -------
    SiteSummary
        As of `summarise_site` where at least half of the rows have a frequent tuple. Otherwise
        tuples are cut to the labels of the first models (`coarsen`), sites taking turns.
    """
    given = np.asarray(labels)
    n_classes = [len(beta) for beta in class_parameters]
    table, _ = distinct_patterns(given, n_classes)
    covered = int(table.counts[table.counts >= min_records].sum())
    if covered >= LEAST_COVERED * len(given):
        return summarise_site(given, class_parameters, min_records)
    order = turns(owners)
    turned, tuple_of = distinct_patterns(given[:, order], [n_classes[m] for m in order])
    coarse = coarsen(turned, [class_parameters[m] for m in order], min_records)
    if coarse.how == "none":
        # No class of the first model is frequent, so neither is any whole tuple.
        nothing = replace(table, patterns=table.patterns[:0], counts=table.counts[:0])
        return replace(coarse, table=nothing, cells=coarse.cells[tuple_of])
    back = coarse.table.patterns[:, np.argsort(order)]
    result, row_of = distinct_patterns(back, n_classes, coarse.table.counts)
    return replace(coarse, table=result, cells=row_of[coarse.cells[tuple_of]])

"""Groups of class centres by complete linkage, merge by merge, and models completed from them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def merges(points: FloatArray) -> list[tuple[float, list[list[int]]]]:
    """Distance at which each number of groups is reached, and the groups; from all single ones."""
    groups = [[i] for i in range(len(points))]
    found: list[tuple[float, list[list[int]]]] = [(0.0, groups)]
    while len(groups) > 1:

        def apart(pair: tuple[int, int], among: list[list[int]] = groups) -> float:
            return max(
                float(np.linalg.norm(points[a] - points[b]))
                for a in among[pair[0]]
                for b in among[pair[1]]
            )

        first, second = min(combinations(range(len(groups)), 2), key=apart)
        height = apart((first, second))
        rest = [g for i, g in enumerate(groups) if i not in (first, second)]
        groups = [*rest, groups[first] + groups[second]]
        found.append((height, groups))
    return found


def match(
    centres: Sequence[FloatArray], least: int, most: int
) -> tuple[list[list[tuple[int, int]]], float]:
    """Groups of (model, class), and the ratio of heights below and above the cut."""
    points = np.concatenate(list(centres))
    names = [(m, k) for m, each in enumerate(centres) for k in range(len(each))]
    steps = {len(groups): (height, groups) for height, groups in merges(points)}
    best, chosen = np.inf, least
    for number in range(least, min(most, len(points) - 1) + 1):
        above = steps[number - 1][0] if number > 1 else np.inf
        if steps[number][0] / above < best:
            best, chosen = steps[number][0] / above, number
    return [[names[i] for i in group] for group in steps[chosen][1]], best


def completed(
    centres: Sequence[FloatArray],
    owners: Sequence[Hashable],
    n_clusters: int,
    *,
    bound: float,
    exact_bound: float,
) -> list[FloatArray]:
    """Centres of each model with those that it lacks, where that number of classes is given."""
    groups, ratio = match(centres, n_clusters, n_clusters + len(set(owners)))
    if ratio > (exact_bound if len(groups) == n_clusters else bound):
        return list(centres)
    found = [[*each] for each in centres]
    for group in groups:
        sites = {owners[m] for m, _ in group}
        if len(sites) == 1 and len(groups) > n_clusters:
            continue
        of_sites = [
            np.mean([centres[m][k] for m, k in group if owners[m] == site], axis=0)
            for site in sites
        ]
        for m, each in enumerate(found):
            if all(m != other for other, _ in group):
                each.append(np.mean(of_sites, axis=0))
    return [np.array(sorted(map(tuple, each))) for each in found]

"""What the sites bring, and the tree that their ranks give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.federated_community_bayes.messages import Offered, Settings
from consilience.discriminant.federated_community_bayes.pooling import Combined, PooledRanks
from consilience.discriminant.kernels.communities import (
    cut_nodes,
    linkage_tree,
    members,
    similarity,
)
from consilience.exceptions import QuorumError


@dataclass(frozen=True, eq=False)
class Survey:
    """Rows by site.

    Attributes
    ----------
    settings : Settings
    sites : tuple of str
        Those with training rows.
    counts : dict of str to (K,) int array
        Training rows by level.
    choosing, test : dict of str to int
    classes : (m,) int array
        Levels with training rows somewhere.
    """

    settings: Settings
    sites: tuple[str, ...]
    counts: dict[str, IntArray]
    choosing: dict[str, int]
    test: dict[str, int]
    classes: IntArray

    @property
    def by_class(self) -> IntArray:
        """Training rows of all sites by level."""
        return np.asarray(np.sum([self.counts[site] for site in self.sites], axis=0))

    @property
    def told(self) -> dict[str, dict[str, int]]:
        """What a site's other replies are judged by: training rows, and classes that have some."""
        counts = self.counts.items()
        return {s: {"rows": int(n.sum()), "classes": int((n > 0).sum())} for s, n in counts}

    @property
    def total(self) -> int:
        """Training rows of all sites."""
        return int(self.by_class.sum())

    @property
    def priors(self) -> FloatArray:
        """Frequencies of the classes with rows."""
        return np.asarray(self.by_class[self.classes] / self.total)


def survey_of(s: Settings, offered: Mapping[str, Offered], *, chooses: bool) -> Survey:
    """Read the sites' offers.

    Raises
    ------
    QuorumError
        Fewer than two classes have rows, or nobody can choose a number of communities.
    """
    counts, choosing, test = {}, {}, {}
    for site, reply in offered.items():
        counts[site] = np.asarray(reply.training.value, dtype=np.int64)
        choosing[site], test[site] = int(reply.choosing.value), int(reply.test.value)
    sites = tuple(site for site in sorted(counts) if counts[site].any())
    total = np.sum([counts[site] for site in sites], axis=0) if sites else np.zeros(0)
    classes = np.flatnonzero(total > 0)
    if len(classes) < 2:
        raise QuorumError(
            "fewer than two classes have enough training rows at any site: let larger sites take "
            "part, or hold out fewer rows"
        )
    if chooses and not any(choosing[site] for site in sites):
        raise QuorumError(
            "no site has enough rows to choose the number of communities: give n_communities, or "
            "let larger sites take part"
        )
    return Survey(s, sites, counts, choosing, test, classes)


@dataclass(frozen=True, eq=False)
class Tree:
    """Communities of all candidate numbers.

    Attributes
    ----------
    merges : (p - 1, 4) array
        As scipy has it.
    similarity : (p, p) array
    nodes : dict of int to tuple of int
        By number of communities: places in `communities`.
    communities : tuple of int arrays
        Each once, whatever cut it is in.
    """

    merges: FloatArray
    similarity: FloatArray
    nodes: dict[int, tuple[int, ...]]
    communities: tuple[IntArray, ...]

    def among(
        self, fitted: Sequence[Combined], wanted: Sequence[int], total: int
    ) -> dict[int, tuple[tuple[int, IntArray], ...]]:
        """Candidates of which every community has a fit: place and columns of each.

        Those of which some community rests on less than half of the training rows are taken only
        where there are no others.

        Raises
        ------
        QuorumError
            There is none.
        """
        complete = {
            n: tuple((c, self.communities[c]) for c in places)
            for n, places in self.nodes.items()
            if all(fitted[c].phi is not None for c in places)
        }
        broad = {
            n: parts
            for n, parts in complete.items()
            if all(fitted[c].rows.sum() >= total / 2 for c, _ in parts)
        }
        found = broad if set(broad) & set(wanted) else complete
        if not found:
            raise QuorumError(
                "of every number of communities some community has no fit that may leave a site: "
                "ask for more communities, lower C, or let larger sites take part"
            )
        return found


def tree_of(
    survey: Survey,
    pooled: PooledRanks,
    sites: Sequence[str],
    wanted: Sequence[int],
    linkage: Any,
) -> Tree:
    """Join features by their rank correlations.

    Raises
    ------
    QuorumError
        No site told any.
    """
    p = pooled.correlations.shape[1]
    if not pooled.told.any() and any(1 < n < p for n in wanted):
        raise QuorumError(
            "no site has a class with twice as many training rows as columns, so none may tell its "
            "rank correlations: drop columns, let larger sites take part, or set n_communities to "
            "1 or to the number of columns"
        )
    told = np.stack([survey.counts[site] for site in sites])
    weights = (told * pooled.told).sum(axis=0)[survey.classes]
    similar = similarity(pooled.correlations[survey.classes], weights)
    merges = linkage_tree(similar, linkage)
    nodes = {n: cut_nodes(merges, n) for n in wanted}
    # In the order in which sites tell them, as far as they may: the base without communities, then
    # the other numbers from the smallest communities on.
    order = [*(n for n in nodes if n == 1), *sorted((n for n in nodes if n > 1), reverse=True)]
    listed = list(dict.fromkeys(node for n in order for node in nodes[n]))
    place = {node: i for i, node in enumerate(listed)}
    return Tree(
        merges,
        similar,
        {n: tuple(place[node] for node in cut) for n, cut in nodes.items()},
        tuple(members(merges, node) for node in listed),
    )

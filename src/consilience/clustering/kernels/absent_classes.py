"""Which classes of different sites' models are the same, and which site's model lacks one.

A site that holds no rows of a class has a model that does not know it: its labels say nothing of
such rows at other sites, and an ensemble of such models finds few of the classes. Centres of all
models of an ensemble are put into groups (complete linkage); a model without a centre in a group
gets the mean of the group's as one more class.

Source: Dennis, Li and Smith, *Heterogeneity for the win: one-shot federated clustering*, ICML 2021,
where the groups are the result. Here each site may split a class that it holds, since it looks for
more than it has, so that centres of one site may be in one group; and the models are joined as
before.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from consilience.arrays import FloatArray, IntArray

COMPACT = 0.5
"""Largest ratio of two heights of the tree for which its groups are taken to be classes."""
EXPECTED = 0.9
"""The same where there are just as many groups as classes that were asked for.

With .9 for any number of groups, some that are no classes are passed on: at the hospitals of the
heart example halves then agree less (``replications/ensemble_clustering/absent``).
"""


@dataclass(frozen=True, eq=False)
class MatchedClasses:
    """Classes of all models in groups.

    Attributes
    ----------
    groups : tuple of M arrays (K_m,)
        Group of each class of each model; numbered in the order in which they occur.
    centres : (G, d) array
        Mean of each group's centres: first within each site, then over sites.
    owners : tuple of G tuples
        Sites whose models have a class in the group.
    ratio : float
        Height of the last merge within groups over that of the first between them; small where
        groups are compact and far apart.
    exact : bool
        Whether there are as many groups as classes that were asked for.
    """

    groups: tuple[IntArray, ...]
    centres: FloatArray
    owners: tuple[tuple[Hashable, ...], ...]
    ratio: float
    exact: bool

    def compact(self, *, given: bool) -> bool:
        """Whether groups are compact enough to be classes."""
        return self.ratio <= (EXPECTED if given and self.exact else COMPACT)

    def classes(self, *, given: bool) -> tuple[int, ...]:
        """Groups that are classes: of two sites, or of one where just as many are there as given.

        More groups than that are classes of several sites, and outlying rows of single ones. A
        number that was not given may be too small, and says nothing of groups of single sites.
        """
        single = given and self.exact
        return tuple(g for g, sites in enumerate(self.owners) if single or len(sites) > 1)


def match_classes(
    centres: Sequence[FloatArray], owners: Sequence[Hashable], least: int, most: int
) -> MatchedClasses | None:
    """Put the class centres of all models into groups.

    Complete linkage; of the cuts into `least` to `most` groups the one at which the height of the
    tree grows by the largest factor, the one of fewest groups where several do.

    Parameters
    ----------
    centres : sequence of M arrays (K_m, d)
    owners : sequence of length M
        Site of each model.
    least, most : int
        Numbers of groups that are considered; there are fewer than centres in all.

    Returns
    -------
    MatchedClasses or None
        None where there are too few centres for a cut.
    """
    from scipy.cluster.hierarchy import cut_tree, linkage

    points = np.concatenate(list(centres))
    n = len(points)
    most = min(most, n - 1)
    if least > most or least < 1:
        return None
    tree = linkage(points, method="complete")
    # Joining two of g + 1 groups reaches `heights[n - g - 1]`; one group has nothing above it.
    heights = np.append(tree[:, 2], np.inf)
    numbers = np.arange(least, most + 1)
    lower, upper = heights[n - numbers - 1], heights[n - numbers]
    # Heights that differ by rounding alone must not choose between two cuts.
    ratios = np.round(np.where(upper > 0, lower / np.where(upper > 0, upper, 1.0), 1.0), 9)
    best = int(ratios.argmin())
    group = cut_tree(tree, n_clusters=int(numbers[best])).ravel().astype(np.int64)
    _, first, group = np.unique(group, return_index=True, return_inverse=True)
    group = np.argsort(np.argsort(first))[group]
    sizes = [len(each) for each in centres]
    site = np.repeat(np.arange(len(sizes)), sizes)
    means, sites = [], []
    for g in range(int(numbers[best])):
        here = [m for m in range(len(sizes)) if (group[site == m] == g).any()]
        names = tuple(dict.fromkeys(owners[m] for m in here))
        of_site = [np.isin(site, [m for m in here if owners[m] == name]) for name in names]
        means.append(np.mean([points[(group == g) & of].mean(axis=0) for of in of_site], axis=0))
        sites.append(names)
    parts = np.split(group, np.cumsum(sizes)[:-1])
    return MatchedClasses(
        tuple(parts),
        np.stack(means),
        tuple(sites),
        float(ratios[best]),
        int(numbers[best]) == least,
    )

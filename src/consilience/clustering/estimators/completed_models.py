"""Local models of numbers that get the classes which only other sites hold.

The rule was chosen by simulation (``replications/ensemble_clustering/absent``). Models of coded
rows stay as they are: chances of a class that few rows hold are too uncertain to be matched.

First it is found which classes of different sites' models are the same, and which site's model
lacks one.

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
from typing import Any

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.estimators.local_models import (
    ClusterModel,
    GaussianMixtureModel,
    KMeansModel,
    LocalModel,
    kind_of,
)


@dataclass(frozen=True, eq=False)
class Completed:
    """Models that know the classes of all sites.

    Attributes
    ----------
    models : tuple of M local models
        Those that lack nothing are the given ones.
    matched : MatchedClasses or None
        Classes of all sites; None where they form no groups, or the models are of coded rows.
    """

    models: tuple[LocalModel, ...]
    matched: MatchedClasses | None = None


def completed_models(
    models: Sequence[LocalModel],
    owners: Sequence[Hashable],
    n_clusters: int,
    *,
    given: bool = True,
) -> Completed:
    """Add to each model the classes that it lacks, if the classes of all models form groups.

    Parameters
    ----------
    models : sequence of M local models
    owners : sequence of length M
        Site of each.
    n_clusters : int
        Classes that are looked for: as many groups, or more, of which those of two sites are
        classes.
    given : bool
        Whether that number was asked for. Otherwise a class of one site alone may be outlying rows.
    """
    matched = matched_models(models, owners, n_clusters, n_clusters + len(set(owners)))
    if matched is None or not matched.compact(given=given):
        return Completed(tuple(models))
    found = []
    classes = matched.classes(given=given)
    for model, groups in zip(models, matched.groups, strict=True):
        absent = [g for g in classes if g not in groups]
        found.append(_with_classes(model, absent, models, matched) if absent else model)
    return Completed(tuple(found), matched)


def classes_of_all(
    models: Sequence[LocalModel], owners: Sequence[Hashable], fewer: int, most: int
) -> int:
    """Classes of all sites, where each knows some: groups that two sites at least have a class in.

    Parameters
    ----------
    models, owners
        Models of the numbers of classes that their sites prefer.
    fewer, most : int
        What most sites prefer, and the largest number that is considered.

    Returns
    -------
    int
        More than `fewer` and no more than `most`; 0 where the models show no such number, or
        the groups are not far apart.
    """
    matched = matched_models(models, owners, max(2, fewer), most + len(set(owners)))
    if matched is None or not matched.compact(given=False):
        return 0
    found = len(matched.classes(given=False))
    return found if fewer < found <= most else 0


def matched_models(
    models: Sequence[LocalModel], owners: Sequence[Hashable], least: int, most: int
) -> MatchedClasses | None:
    """Match the class means of models of numbers; None of others, or of one site's."""
    if len(set(owners)) < 2 or any(kind_of(model) for model in models):
        return None
    means = [model.means for model in models]  # type: ignore[union-attr]
    return match_classes(means, owners, least, most)


def _with_classes(
    model: Any, absent: Sequence[int], models: Sequence[Any], matched: MatchedClasses
) -> ClusterModel:
    """A model with groups as further classes, in the order of models: that of their means."""
    means = np.concatenate([model.means, matched.centres[list(absent)]])
    order = np.lexsort(means.T[::-1]).astype(np.int64)
    if isinstance(model, KMeansModel):
        return KMeansModel(means[order])
    shares, covariances = [model.proportions], [model.covariances]
    for group in absent:
        of_models, largest = [], (0.0, model.covariances[:1])
        for other, groups in zip(models, matched.groups, strict=True):
            here = np.flatnonzero(groups == group)
            of_models.append(float(other.proportions[here].sum()))
            for k in here:
                if other.proportions[k] > largest[0] and model.covariance_type != "tied":
                    largest = (float(other.proportions[k]), other.covariances[k : k + 1])
        # A site without the class counts: as a share of all rows it is the smaller.
        shares.append(np.array([np.mean(of_models)]))
        covariances.append(largest[1])
    proportions = np.concatenate(shares)
    proportions = (proportions / proportions.sum())[order]
    spread = model.covariances
    if model.covariance_type != "tied":
        spread = np.concatenate(covariances)[order]
    return GaussianMixtureModel(means[order], spread, proportions, model.covariance_type)


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

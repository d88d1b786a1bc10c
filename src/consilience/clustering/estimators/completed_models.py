"""Local models of numbers that get the classes which only other sites hold.

The rule was chosen by simulation (``replications/ensemble_clustering/absent``). Models of coded
rows stay as they are: chances of a class that few rows hold are too uncertain to be matched.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.clustering.estimators.local_models import (
    ClusterModel,
    GaussianMixtureModel,
    KMeansModel,
    LocalModel,
    kind_of,
)
from consilience.clustering.kernels.absent_classes import MatchedClasses, match_classes


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

"""What the replications of community Bayes share: all numbers of communities judged at once.

Rows are kept and figures computed as in the other replications (``assisted_glm/study.py``).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.discriminant.estimators.community_bayes import default_base
from consilience.discriminant.estimators.community_bayes_fit import (
    base_log_probabilities,
    class_similarity,
    evidence,
    fit_base,
    log_priors,
    nodes_of_cuts,
)
from consilience.discriminant.kernels.communities import linkage_tree, members

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

ALMOST_NONE = 1e-4
"""Ridge of the base that is almost without a penalty."""
RIDGES = (1e-4, 0.1, 1.0, 10.0)
"""Where the ridge is chosen."""


@dataclass(frozen=True)
class Judged:
    """Errors by number of communities: on rows that choose, and on test rows."""

    candidates: Sequence[int]
    choosing: FloatArray
    test: FloatArray

    @property
    def best(self) -> int:
        """Place of the fewest errors, among equals of the fewest communities."""
        return int(self.choosing.argmin())


def base_with(ridge: float) -> Any:
    """The estimator's own base, with another ridge."""
    return default_base().set_params(logisticregression__C=1.0 / ridge)


def validated(
    x: FloatArray,
    y: IntArray,
    x_valid: FloatArray,
    y_valid: IntArray,
    rows: FloatArray,
    truth: IntArray,
    candidates: Sequence[int],
    ridge: float,
) -> Judged:
    """Fit every community once to `x`, judge each number of them on two sets of rows."""
    n_classes = int(y.max()) + 1
    base = base_with(ridge)
    tree = linkage_tree(class_similarity(x, y, n_classes), "average")
    prior = log_priors(y, n_classes)
    parts = [(x_valid, y_valid), (rows, truth)]
    scores = [np.tile(prior, (len(candidates), len(part), 1)) for part, _ in parts]
    for node, places in nodes_of_cuts(tree, candidates).items():
        columns = members(tree, node)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # separable rows: the fit goes on to its last iteration
            fitted = fit_base(base, {}, x[:, columns], y)
        for score, (part, _) in zip(scores, parts, strict=True):
            logs = base_log_probabilities(fitted, part[:, columns], n_classes)
            score[places] += evidence(logs, prior)
    choosing, test = (
        (score.argmax(axis=2) != labels).mean(axis=1)
        for score, (_, labels) in zip(scores, parts, strict=True)
    )
    return Judged(candidates, choosing, test)

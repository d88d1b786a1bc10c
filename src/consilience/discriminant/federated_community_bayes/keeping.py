"""The classifier as a predictor for rows in the units of the table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.estimators.community_bayes_predictor import CommunityBayesPredictor


def predictor_of(
    communities: Sequence[IntArray],
    rows: Sequence[tuple[FloatArray, FloatArray]],
    priors: FloatArray,
    *,
    classes: Sequence[str],
    feature_names: Sequence[str],
    scaling: FloatArray | None,
) -> CommunityBayesPredictor:
    """Build the predictor from coefficients of prepared columns.

    Parameters
    ----------
    communities : sequence of L int arrays
    rows : sequence of L pairs
        Coefficients (1 or m, q) and intercepts (1 or m,): one row is the log odds of the second
        class.
    priors : (m,) array
    classes : sequence of m str
    feature_names : sequence of p str
    scaling : (3, p) array or None
        Fill values, centres and scales of the preparation.
    """
    coefs, intercepts = [], []
    for coefficients, intercept in rows:
        if len(coefficients) == 1:
            coefficients = np.vstack([0.0 * coefficients, coefficients])
            intercept = np.append(0.0, intercept)
        coefs.append(coefficients)
        intercepts.append(intercept)
    return CommunityBayesPredictor(
        communities=communities,
        coefs=coefs,
        intercepts=np.stack(intercepts),
        priors=priors,
        classes=np.array([str(level) for level in classes]),
        feature_names=feature_names,
        scaling=scaling,
    )

"""Standard errors of mixtures of multinomials from the scores of the rows.

The empirical information is the weighted sum of the outer products of the rows' scores, in logits
of shares and of level probabilities; the delta method takes the inverse back to probabilities.

Source: Linzer and Lewis, *poLCA*, Journal of Statistical Software 42(10), 2011, standard error
estimation, after McLachlan and Peel, *Finite Mixture Models*, 2000, chapter 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.clustering.kernels.chance_errors import chance_errors, logit_jacobian
from consilience.clustering.kernels.multinomial_mixture import CategoryPatterns, MultinomialMixture

_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class MixtureErrors:
    """Standard errors, NaN throughout where the rows do not tell the parameters apart.

    Attributes
    ----------
    proportions : (K,) array
    probabilities : (K, L) array
        The columns one after the other; NaN for a level that does not occur.
    """

    proportions: FloatArray
    probabilities: FloatArray


def mixture_errors(model: MultinomialMixture, data: CategoryPatterns) -> MixtureErrors:
    """Standard errors of shares and level probabilities at the fit.

    Parameters
    ----------
    model : MultinomialMixture
        Fitted to these rows.
    data : CategoryPatterns

    Notes
    -----
    The model is taken to be right, and pseudo-counts to be few against the counts. Close to 0 or 1
    a probability is not near normal, and its interval should not be read off its standard error.
    """
    k, n_levels = model.n_classes, int(np.sum(model.n_levels))
    seen = _occurring(data)
    by_class = [levels[c] for c in range(k) for levels in model.columns]
    jacobian = logit_jacobian([model.proportions, *by_class])
    information = np.zeros((k + k * n_levels,) * 2)
    for begin in range(0, len(data.codes), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        scores = _scores(model, data.codes[part])
        information += scores.T @ (data.weights[part, None] * scores)
    # Of each set of logits one is the reference: the share of the first class, and the level that
    # has the largest probability in its column and class.
    free = _free(model, seen)
    errors = chance_errors(information, jacobian, free)
    levels = np.where(seen[None, :], errors[k:].reshape(k, n_levels), np.nan)
    return MixtureErrors(errors[:k], levels)


def _occurring(data: CategoryPatterns) -> NDArray[np.bool_]:
    """Levels that occur in a row with a weight, (L,)."""
    found = [
        np.bincount(column[(column >= 0) & (data.weights > 0)], minlength=size) > 0
        for column, size in zip(data.codes.T, data.n_levels, strict=True)
    ]
    return np.concatenate(found)


def _scores(model: MultinomialMixture, codes: NDArray[np.int32]) -> FloatArray:
    """Derivatives of each row's log density by all logits, (n, K + K L)."""
    shares = np.exp(model.log_posterior(codes)[0])
    parts = [shares - model.proportions]
    by_column = []
    for j, levels in enumerate(model.columns):
        told = codes[:, j] >= 0
        hits = (codes[:, j, None] == np.arange(levels.shape[1])) & told[:, None]
        # (n, K, L_j); a missing entry tells nothing of its column.
        apart = hits[:, None, :] - told[:, None, None] * levels[None]
        by_column.append(shares[:, :, None] * apart)
    parts.append(np.concatenate(by_column, axis=2).reshape(len(codes), -1))
    return np.concatenate(parts, axis=1)


def _free(model: MultinomialMixture, seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    free = [np.arange(model.n_classes) > 0]
    for c in range(model.n_classes):
        start = 0
        for levels in model.columns:
            p = levels[c]
            own = seen[start : start + p.size] & (p > 0)
            start += p.size
            own[np.argmax(np.where(own, p, -1.0))] = False
            free.append(own)
    return np.concatenate(free)

"""Standard errors of mixtures of Markov chains from the scores of the sequences.

The empirical information is the weighted sum of the outer products of the sequences' scores, in
logits of shares, first states and steps; the delta method takes the inverse back to chances. Steps
inside gaps enter by their expectation given what was seen on both sides.

Source: McLachlan and Peel, *Finite Mixture Models*, 2000, chapter 2, as for latent classes in
:mod:`.multinomial_mixture_errors`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.clustering.kernels.chance_errors import chance_errors, logit_jacobian
from consilience.clustering.kernels.markov_mixture import Events, MarkovParameters
from consilience.clustering.kernels.mixture_starts import log_shares

_BLOCK = 2048
_LEAST = 1.0


@dataclass(frozen=True, eq=False)
class MarkovErrors:
    """Standard errors, NaN throughout where the sequences do not tell the parameters apart.

    Attributes
    ----------
    proportions : (K,) array
    initial : (K, S) array
    transition : (K, S, S) array
        NaN, as in `initial`, for a chance that rests on less than one expected count: it is at the
        edge, and taken as known for the others.
    """

    proportions: FloatArray
    initial: FloatArray
    transition: FloatArray


def markov_errors(parameters: MarkovParameters, events: Events) -> MarkovErrors:
    """Standard errors of shares and chances at the fit.

    Parameters
    ----------
    parameters : MarkovParameters
        Fitted to these sequences.
    events : Events

    Notes
    -----
    The model is taken to be right, and pseudo-counts to be few against the counts. The information
    is that of n sequences: with fewer of them than free chances there are no errors. Memory grows
    with the square of K (S + S^2).
    """
    k, s = parameters.n_classes, parameters.n_states
    inside = expectations(parameters, events)
    width = s + s * s
    with np.errstate(divide="ignore"):
        shares = np.log(parameters.proportions)
    posterior = np.exp(log_shares(parameters.joint(events), shares)[0])
    information = np.zeros((k + k * width,) * 2)
    counts = np.zeros(k * width)
    for begin in range(0, len(events), _BLOCK):
        part = np.arange(begin, min(begin + _BLOCK, len(events)))
        scores, seen = _scores(parameters, events, inside, posterior[part], part)
        weight = events.weights[part]
        information += scores.T @ (weight[:, None] * scores)
        counts += weight @ seen
    chances = parameters.class_parameters
    free = _free(chances, counts.reshape(k, width) >= _LEAST, s)
    told = np.concatenate([np.ones(k, dtype=bool), counts >= _LEAST])
    jacobian = logit_jacobian([parameters.proportions, *chances.reshape(-1, s)])
    errors = chance_errors(information, jacobian, free)
    errors = np.where(told, errors, np.nan)
    cells = errors[k:].reshape(k, width)
    return MarkovErrors(errors[:k], cells[:, :s], cells[:, s:].reshape(k, s, s))


def expectations(parameters: MarkovParameters, events: Events) -> FloatArray:
    """First states and steps expected in each event given the class, (F, K, S + S^2).

    Notes
    -----
    Of a step from a to b over g unseen points ``E[x, y] = T[x, y] sum_j (T^j)[a, x]
    (T^(g-j))[y, b] / (T^(g+1))[a, b]``; of a first state b after g unseen points the first one has
    the chances ``u[x] (T^g)[x, b]``, and the steps ``sum_j (u T^j)[x] T[x, y] (T^(g-1-j))[y, b]``,
    divided by ``(u T^g)[b]``.
    """
    t, u = parameters.transition, parameters.initial
    k, s = u.shape
    longest = int(events.gap.max(initial=0))
    powers = [np.broadcast_to(np.eye(s), t.shape)]
    for _ in range(longest + 1):
        powers.append(powers[-1] @ t)
    begins = [(u[:, None, :] @ power)[:, 0, :] for power in powers]
    found = np.zeros((len(events.gap), k, s + s * s))
    for f, (gap, a, b) in enumerate(zip(events.gap, events.source, events.target, strict=True)):
        steps = np.zeros((k, s, s))
        if a >= 0:
            for j in range(gap + 1):
                steps += powers[j][:, a, :, None] * powers[gap - j][:, None, :, b]
            total = powers[gap + 1][:, a, b]
        else:
            for j in range(gap):
                steps += begins[j][:, :, None] * powers[gap - 1 - j][:, None, :, b]
            total = begins[gap][:, b]
            found[f, :, :s] = u * powers[gap][:, :, b]
        found[f, :, s:] = (t * steps).reshape(k, -1)
        found[f] = np.divide(
            found[f], total[:, None], out=np.zeros((k, s + s * s)), where=total[:, None] > 0
        )
    return found


def _scores(
    parameters: MarkovParameters,
    events: Events,
    inside: FloatArray,
    posterior: FloatArray,
    part: NDArray[np.int64],
) -> tuple[FloatArray, FloatArray]:
    """Derivatives of each sequence's log density by all logits, and expected counts by class."""
    k, s = parameters.n_classes, parameters.n_states
    low, high = events.indptr[part[0]], events.indptr[part[-1] + 1]
    owner = np.repeat(np.arange(len(part)), np.diff(events.indptr[part[0] : part[-1] + 2]))
    table = np.zeros((len(part), len(events.gap)))
    table[owner, events.events[low:high]] = events.counts[low:high]
    columns, counts = [posterior - parameters.proportions], []
    for c in range(k):
        expected = posterior[:, c, None] * (table @ inside[:, c])
        first, steps = expected[:, :s], expected[:, s:].reshape(-1, s, s)
        apart = steps - steps.sum(axis=2, keepdims=True) * parameters.transition[c]
        columns.append(first - first.sum(axis=1, keepdims=True) * parameters.initial[c])
        columns.append(apart.reshape(len(part), -1))
        counts.append(expected)
    return np.concatenate(columns, axis=1), np.concatenate(counts, axis=1)


def _free(chances: FloatArray, told: NDArray[np.bool_], s: int) -> NDArray[np.bool_]:
    """Logits to find: not that of the first share, nor of the largest told chance of a row."""
    rows = told.reshape(-1, s).copy()
    rows[np.arange(len(rows)), np.where(rows, chances.reshape(-1, s), -1.0).argmax(axis=1)] = False
    return np.concatenate([np.arange(len(chances)) > 0, rows.ravel()])

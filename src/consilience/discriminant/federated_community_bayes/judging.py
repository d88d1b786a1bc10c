"""Figures of made models on rows that a site held out, as far as they may be told.

Every judged model is a question of somebody else's choice about the rows. Where records are
protected, a steep model, whose loss would count the rows beyond a plane, is judged as if it were
flatter; losses are bounded; and a mean is rounded to no less than what any row could do to it, at a
place that only the site knows. A plane beyond all rows but one leaves the losses of all others
spread out, so that the one does not show to somebody who does not know them.
"""

from __future__ import annotations

import hashlib

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.federated_community_bayes.messages import Judged, n_parameters
from consilience.discriminant.federated_community_bayes.rows import CHOOSING, LEFT_OUT, Rows
from consilience.discriminant.kernels import multinomial
from consilience.exceptions import ProtocolError
from consilience.numerics.random import stream
from consilience.wire.disclosure import Limits, Released, aggregate, bundle, rounded, weighted_means

STEEPEST = 10.0
"""Root mean square of the contrasts of a model over the site's rows."""
LARGEST_LOSS = float(np.log(100.0))
"""Where records are protected, a class counts as no less likely than 1 in 100."""
LARGEST_GAIN = 1.0
"""Where records are protected, no choosing row is more for or against a candidate than this."""


def judged_models(
    rows: Rows,
    part: int,
    models: FloatArray,
    classes: IntArray,
    limits: Limits,
    *,
    counts: bool,
    consent: bool,
) -> Judged:
    """Judge models on one part of the rows.

    Parameters
    ----------
    rows : Rows
    part : int
    models : (a, m - 1, p + 1) array
        Contrasts of the classes, intercepts first.
    classes : (m,) int array
        Levels of these classes.
    limits : Limits
    counts : bool
        Whether shares of wrong predictions are told.
    consent : bool
        Whether the policy lets values of single records leave. Otherwise nothing is told of fewer
        rows than twice the coefficients of a model: with more of them somebody who knows the
        columns of a person finds a model that is large there alone, and asks for the class.

    Returns
    -------
    Judged
        Mean log loss of the first model, and by how much that of each other one is lower.
    """
    m = len(classes)
    if models.shape[1:] != (m - 1, rows.x.shape[1] + 1) or not len(models):
        raise ProtocolError("judged models are none of the study's columns and classes")
    held = rows.part == part
    y = np.searchsorted(classes, rows.codes[held])
    few = len(y) < 2 * n_parameters(rows.x.shape[1], m)
    if not len(y) or (few and limits.min_records > 1 and not consent):
        gaps = aggregate(np.full((0, len(models)), np.nan)).withhold(np.ones(len(models), bool))
        return Judged(losses=gaps, errors=gaps, wrong=_shares([], np.zeros(len(models)), 0, limits))
    values, wrong = figures_of(rows, part, models, y, protected=limits.min_records > 1)
    least, shifts = None, np.zeros(len(models))
    if limits.min_records > 1:
        least, shifts = steps_of(len(models), len(y), part), _shifts(models, rows.seed, part)
        values = values + least * shifts
    means = weighted_means(values, limits=limits, entities=np.arange(len(y)), least=least)
    told = wrong if counts else []
    return Judged(
        losses=means.mean,
        errors=means.variance,
        wrong=_shares(told, shifts, len(y), limits),
    )


def figures_of(
    rows: Rows, part: int, models: FloatArray, y: IntArray, *, protected: bool
) -> tuple[FloatArray, list[float]]:
    """Log losses of the rows of a part, before anything is rounded.

    Parameters
    ----------
    rows : Rows
    part : int
    models : (a, m - 1, p + 1) array
    y : (n,) int array
        Class of each row of the part.
    protected : bool
        Flatten models and bound losses.

    Returns
    -------
    values : (n, a) array
        Loss under the first model, and by how much it is lower under each other one.
    wrong : list of a float
        Shares of wrong predictions.
    """
    used = rows.part != LEFT_OUT
    held = (rows.part == part)[used]
    design, q = multinomial.design_of(rows.x[used]), multinomial.contrasts(models.shape[1] + 1)
    losses, wrong = [], []
    for phi in models:
        eta = design @ phi.T
        scores = (_flattened(eta) if protected else eta)[held] @ q.T
        scores = scores - scores.max(axis=1, keepdims=True)
        log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        loss = -log_p[np.arange(len(y)), y]
        losses.append(np.minimum(loss, LARGEST_LOSS) if protected else loss)
        wrong.append(float(np.mean(scores.argmax(axis=1) != y)))
    gains = [losses[0] - other for other in losses[1:]]
    if protected and part == CHOOSING:
        gains = [np.clip(gain, -LARGEST_GAIN, LARGEST_GAIN) for gain in gains]
    return np.column_stack([losses[0], *gains]), wrong


def steps_of(n_models: int, n_rows: int, part: int) -> FloatArray:
    """Steps of rounding where records are protected: no less than what any row could do, (a,)."""
    reach = np.full(n_models, LARGEST_LOSS)
    if part == CHOOSING:
        reach[1:] = 2.0 * LARGEST_GAIN
    return _step_above(reach / n_rows)


def _flattened(eta: FloatArray) -> FloatArray:
    """Contrasts of no more than a certain size over the site's rows."""
    size = float(np.sqrt((eta**2).sum(axis=1).mean()))
    return eta if size <= STEEPEST else eta * (STEEPEST / size)


def _step_above(x: FloatArray) -> FloatArray:
    """Smallest of 1, 2, 5 times a power of ten that is at least x (a hair less); 0 for 0."""
    safe = np.where(x > 0, x, 1.0)
    power = 10.0 ** np.floor(np.log10(safe))
    lead = np.array([1.0, 2.0, 5.0, 10.0])
    found = lead[np.searchsorted(lead, safe / power * (1 - 1e-9))] * power
    return np.asarray(np.where(x > 0, found * (1 - 1e-9), 0.0))


def _shifts(models: FloatArray, seed: int, part: int) -> FloatArray:
    """Places of the rounding, (a,) in [-.5, .5): nobody else's knowledge, the same if asked again.

    So roundings of several sites even out, and nobody can put a mean between two of its steps.
    """
    first = hashlib.sha256(np.ascontiguousarray(models[0]).tobytes()).hexdigest()
    found = [
        stream(seed, "told", part, first, hashlib.sha256(model.tobytes()).hexdigest()).random()
        for model in np.ascontiguousarray(models)
    ]
    return np.array(found) - 0.5


def _shares(wrong: list[float], shifts: FloatArray, n: int, limits: Limits) -> Released:
    """Shares of wrong predictions, to within `min_records` rows; NaN where none are told."""
    if not wrong:
        return bundle([rounded(float("nan"), n_records=0, step=1.0) for _ in shifts])
    step = min(1.0, max(limits.min_records, 1) / n)
    moved = (share + step * shift for share, shift in zip(wrong, shifts, strict=True))
    return bundle([rounded(share, n_records=n, step=step) for share in moved])

"""What one site does before anything is exchanged: choose a candidate, fit it, cross-fit it.

Source: Ye, Ghanadan and Ding (2022), step "select": candidates are fitted on one half of the rows
and compared on the other. The odd row goes to the training half, ties to the first candidate. Added
here: the chosen method is cross-fitted, so that a site's own loss is as honest as a foreign one.
Least squares on few rows for each coefficient is shrunken (`is_few`): as it is, its error would
hide any difference and any likeness of two sites.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import ParameterError
from consilience.learners.candidates import Task, build, folds, label, record_losses

ROWS_PER_COEFFICIENT = 3
"""Below this least squares is shrunken: its variance is more than half of that of the noise."""

Accept = Callable[[Any, FloatArray], tuple[Any, str | None]]


@dataclass(frozen=True, eq=False)
class Selection:
    """Outcome at one site.

    Attributes
    ----------
    chosen : int
        Position of the chosen candidate; -1 where none could be used.
    fitted : estimator or None
        Chosen candidate, fitted on all rows.
    accepted : object
        What `accept` made of it.
    half_losses : (n // 2, C) array
        Losses on the half that did not train; NaN for candidates that were not tried.
    own_losses : (n,) array
        Cross-fitted losses of the chosen candidate.
    refused : dict of str to str
        Candidates that were left out, and why.
    """

    chosen: int
    fitted: Any
    accepted: Any
    half_losses: FloatArray
    own_losses: FloatArray
    refused: dict[str, str] = field(default_factory=dict)


def is_few(n_rows: int, n_features: int) -> bool:
    """Whether ``"linear"`` is fitted with a ridge penalty, chosen by leaving out one row."""
    return n_rows < ROWS_PER_COEFFICIENT * (n_features + 1)


def predict(estimator: Any, x: FloatArray, n_outputs: int) -> FloatArray:
    """Predictions (n, q); probabilities are put in the order of the declared levels."""
    if n_outputs == 1:
        return np.asarray(estimator.predict(x), dtype=float).reshape(len(x), 1)
    prediction = np.zeros((len(x), n_outputs))
    prediction[:, np.asarray(estimator.classes_, dtype=np.int64)] = estimator.predict_proba(x)
    return prediction


def select(
    x: FloatArray,
    y: FloatArray,
    *,
    candidates: Sequence[str],
    loss: str,
    n_outputs: int,
    min_records: int,
    rng: np.random.Generator,
    draws: np.random.Generator,
    accept: Accept,
    known: dict[str, str] | None = None,
) -> Selection:
    """Choose a candidate, fit it on all rows and cross-fit it.

    Parameters
    ----------
    x : (n, p) array
    y : (n,) array
    candidates : sequence of str
        Text forms.
    loss : str
    n_outputs : int
        1 in regression, else the number of levels.
    min_records : int
        Rows behind every leaf and neighbourhood.
    rng : numpy.random.Generator
        Halves and folds.
    draws : numpy.random.Generator
        The estimators' own draws.
    accept : callable
        ``(fitted, x) -> (form, fault)``; a candidate with a fault is left out, the next best is
        tried.
    known : dict, optional
        Candidates that are left out from the start, and why.

    Returns
    -------
    Selection
    """
    task: Task = "regression" if n_outputs == 1 else "classification"
    few = is_few(len(y), x.shape[1])
    refused = dict(known or {})
    order = rng.permutation(len(y))
    seeds = draws.integers(2**31 - 1, size=len(candidates))
    # the odd row goes to the training half, on which the source is silent
    train, test = order[: (len(y) + 1) // 2], order[(len(y) + 1) // 2 :]

    def fit(c: int, rows: IntArray) -> Any:
        shrunk = task == "regression" and few and candidates[c].strip() == "linear"
        text = "ridge" if shrunk else candidates[c]
        made = build(text, task, min_records=min_records, seed=int(seeds[c]))
        return made.fit(x[rows], y[rows] if n_outputs == 1 else y[rows].astype(np.int64))

    def held_out(c: int, rows: IntArray, held: IntArray) -> FloatArray:
        return record_losses(loss, y[held], predict(fit(c, rows), x[held], n_outputs))

    losses = np.full((len(test), len(candidates)), np.nan)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # Convergence of a candidate is judged by its held-out loss, not by its warnings.
        warnings.simplefilter("ignore")
        open_ = [c for c in range(len(candidates)) if label(candidates[c]) not in refused]
        for c in open_:
            try:
                losses[:, c] = held_out(c, train, test)
            except ParameterError:
                raise
            except Exception:  # noqa: BLE001  any failure of a candidate only leaves it out
                refused[label(candidates[c])] = "it failed to fit on half of the rows"
            else:
                if not np.isfinite(losses[:, c]).all():
                    refused[label(candidates[c])] = "it predicted values that are not finite"
                    losses[:, c] = np.nan
        tried = [c for c in open_ if np.isfinite(losses[:, c]).all() and len(test)]
        # the smallest loss first, and of equal ones the first candidate
        for c in sorted(tried, key=lambda c: (losses[:, c].mean(), c)):
            try:
                fitted = fit(c, np.arange(len(y)))
                accepted, fault = accept(fitted, x)
                # the loss of each record under a fit that did not see it
                own, n_folds = np.full(len(y), np.nan), min(folds(candidates[c]), len(y))
                for held in np.array_split(rng.permutation(len(y)), n_folds):
                    own[held] = held_out(c, np.setdiff1d(np.arange(len(y)), held), held)
            except Exception:  # noqa: BLE001
                fault = "it failed to fit on all rows"
            if fault is None and not np.isfinite(own).all():
                fault = "it predicted values that are not finite"
            if fault is None:
                return Selection(c, fitted, accepted, losses, own, refused)
            refused[label(candidates[c])] = fault
    return Selection(-1, None, None, losses, np.full(len(y), np.nan), refused)

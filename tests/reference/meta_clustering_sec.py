"""The whole of meta clustering with linear candidates, as a textbook would write it.

Select, exchange, cluster, use: loops over sites, pairs and rows, from the formulas. Draws (halves,
folds, views) are given, so that the library can be compared number by number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tests.reference import meta_clustering_naive as naive

Matrix = NDArray[np.float64]
Rows = list[int]


@dataclass
class View:
    """Rows that take part, rows held out, and for the former their order and their folds."""

    rows: Rows
    held: Rows
    order: Rows
    folds: list[Rows]


@dataclass
class Local:
    """A site in one view: candidate, coefficients with the intercept first, cross-fitted losses."""

    chosen: int
    model: Matrix
    candidate_losses: list[float]
    own: list[float]


@dataclass
class Found:
    excess: Matrix
    variance: Matrix
    effective: Matrix
    raw: Matrix
    difference: Matrix
    standard_error: Matrix
    z: Matrix
    heights: list[float]
    labels: list[int]
    locals: list[Local]


@dataclass
class Study:
    """All views of a study; `gain` by name, then by site."""

    main: Found
    var_y: list[float]
    together: Matrix
    gain: dict[str, list[float]] = field(default_factory=dict)


def fit(x: Matrix, y: Matrix, intercept: bool) -> Matrix:
    columns = np.column_stack([np.ones(len(x)), x]) if intercept else x
    coef = np.linalg.lstsq(columns, y, rcond=None)[0]
    return coef if intercept else np.concatenate([[0.0], coef])


def predict(model: Matrix, row: Matrix) -> float:
    return float(model[0] + sum(b * v for b, v in zip(model[1:], row, strict=True)))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def select(x: Matrix, y: Matrix, view: View, intercepts: list[bool]) -> Local:
    """Halves (the odd row trains; ties to the first), refit on all rows, cross-fit."""
    x, y = x[view.rows], y[view.rows]
    n = len(y)
    train, test = view.order[: math.ceil(n / 2)], view.order[math.ceil(n / 2) :]
    losses = []
    for intercept in intercepts:
        model = fit(x[train], y[train], intercept)
        losses.append(mean([(y[r] - predict(model, x[r])) ** 2 for r in test]))
    chosen = losses.index(min(losses))
    own = [math.nan] * n
    for fold in view.folds:
        others = [r for r in range(n) if r not in fold]
        model = fit(x[others], y[others], intercepts[chosen])
        for r in fold:
            own[r] = (y[r] - predict(model, x[r])) ** 2
    return Local(chosen, fit(x, y, intercepts[chosen]), losses, own)


def one_view(
    tables: list[tuple[Matrix, Matrix]],
    views: list[View],
    intercepts: list[bool],
    var_y: list[float],
    tau: float,
    n_clusters: int | None,
) -> Found:
    """Groups found from one view of every site's rows."""
    size = len(tables)
    xs = [x for x, _ in tables]
    n = [len(y) for _, y in tables]
    locals_ = [select(x, y, v, intercepts) for (x, y), v in zip(tables, views, strict=True)]
    d, q, effective, raw = (np.full((size, size), math.nan) for _ in range(4))
    for j, (x, y) in enumerate(tables):
        rows = views[j].rows
        for i in range(size):
            loss = [(y[r] - predict(locals_[i].model, x[r])) ** 2 for r in rows]
            raw[i, j] = mean(loss)
            if i != j:
                weights = naive.overlap_weights(x[rows], i, j, xs)
                differences = [a - b for a, b in zip(loss, locals_[j].own, strict=True)]
                d[i, j], q[i, j], effective[i, j] = naive.excess(differences, weights)
    w, se, z = naive.pairwise(d, q, effective, n, var_y, tau)
    bound = naive.upper(d, q, effective, n, var_y)
    evidence = np.array(
        [[i == j or naive.alike(bound, i, j, 1.0) for j in range(size)] for i in range(size)]
    )
    steps, _ = naive.merge_all(z, evidence)
    labels = naive.cluster(z, n_clusters, evidence)
    return Found(d, q, effective, raw, w, se, z, [h for _, _, h in steps], labels, locals_)


def sec(
    tables: list[tuple[Matrix, Matrix]],
    views: list[list[View]],
    *,
    n_folds: int,
    intercepts: list[bool],
    tau: float = 0.03,
    n_clusters: int | None = None,
) -> Study:
    """The method.

    Parameters
    ----------
    tables : list of (x, y)
    views : list by view of lists by site
        The main view, then `n_folds` with held-out rows, then resamples.
    intercepts : list of bool
        Linear candidates, with or without an intercept.
    """
    size = len(tables)
    var_y = [mean([(v - mean(list(y))) ** 2 for v in y]) for _, y in tables]
    found = [one_view(tables, view, intercepts, var_y, tau, n_clusters) for view in views]
    resamples = found[1 + n_folds :]
    together = np.full((size, size), math.nan)
    for i in range(size):
        for j in range(size):
            if resamples:
                together[i, j] = mean([float(f.labels[i] == f.labels[j]) for f in resamples])
    study = Study(found[0], var_y, together)
    if n_folds:
        folds = list(zip(views[1 : 1 + n_folds], found[1 : 1 + n_folds], strict=True))
        study.gain = gains(tables, folds)
    return study


def gains(
    tables: list[tuple[Matrix, Matrix]], folds: list[tuple[list[View], Found]]
) -> dict[str, list[float]]:
    """Held-out losses of own, group's and everybody's model, and with a shrunken intercept."""
    n = [len(y) for _, y in tables]
    shifts = [shrunken(*residuals(tables, views, found, n)) for views, found in folds]
    gain: dict[str, list[float]] = {}
    for j, (x, y) in enumerate(tables):
        names = ("own", "group", "all", "shifted", "constant")
        losses: dict[str, list[float]] = {name: [] for name in names}
        for (views, found), shift in zip(folds, shifts, strict=True):
            group = [i for i in range(len(n)) if found.labels[i] == found.labels[j]]
            for r in views[j].held:
                everyone = average(found, range(len(n)), n, x[r])
                made = {
                    "own": predict(found.locals[j].model, x[r]),
                    "group": average(found, group, n, x[r]),
                    "all": everyone,
                    "shifted": everyone + shift[j],
                    "constant": mean([float(y[k]) for k in views[j].rows]),
                }
                for name, value in made.items():
                    losses[name].append((y[r] - value) ** 2)
        pairs = [
            ("own", "group"),
            ("own", "all"),
            ("group", "all"),
            ("all", "shifted"),
            ("constant", "all"),
            ("constant", "group"),
        ]
        for a, b in pairs:
            losses[f"{a}_minus_{b}"] = [u - v for u, v in zip(losses[a], losses[b], strict=True)]
        for name, values in losses.items():
            centre = mean(values)
            gain.setdefault(name, []).append(centre)
            error = math.sqrt(sum((v - centre) ** 2 for v in values)) / len(values)
            gain.setdefault(f"{name}_error", []).append(error)
    return gain


def average(found: Found, sites: object, n: list[int], row: Matrix) -> float:
    """``sum n_j f_j(x) / sum n_j``."""
    members = list(sites)  # type: ignore[call-overload]
    total = sum(n[i] for i in members)
    return sum(n[i] * predict(found.locals[i].model, row) for i in members) / total


def residuals(
    tables: list[tuple[Matrix, Matrix]], views: list[View], found: Found, n: list[int]
) -> tuple[list[float], list[float]]:
    """Mean residual of each site under everybody's average, and its squared standard error."""
    means, variances = [], []
    for (x, y), view in zip(tables, views, strict=True):
        left = [y[r] - average(found, range(len(n)), n, x[r]) for r in view.rows]
        means.append(mean(left))
        variances.append(sum((v - means[-1]) ** 2 for v in left) / len(left) ** 2)
    return means, variances


def shrunken(m: list[float], v: list[float]) -> list[float]:
    """Intercepts shrunk to their common mean by the method of moments."""
    w = [1 / a for a in v]
    centre = sum(a * b for a, b in zip(w, m, strict=True)) / sum(w)
    spread = sum(a * (b - centre) ** 2 for a, b in zip(w, m, strict=True)) - (len(m) - 1)
    tau2 = max(0.0, spread / (sum(w) - sum(a**2 for a in w) / sum(w)))
    w = [1 / (a + tau2) for a in v]
    centre = sum(a * b for a, b in zip(w, m, strict=True)) / sum(w)
    return [centre + tau2 / (tau2 + a) * (b - centre) for a, b in zip(v, m, strict=True)]

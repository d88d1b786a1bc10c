"""Group learners that differ by a variable which may not be used, and predict for newcomers.

All records are simulated (``simulate_fairness``: the design behind Table 1 of Ye, Ghanadan and
Ding, *Meta Clustering for Collaborative Learning*, JCGS 2022), so one person holds them and the
policy is ``simulation``: draws then come from the public seed, and the figures can be repeated.

    python examples/fairness/run.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience import Columns, Federation, MetaClustering, Run
from consilience.datasets.simulate_meta import GroupedSites, simulate_fairness
from consilience.numerics.random import stream

N_KNOWN, N_NEW, N_ROWS = 30, 20, 60
HALF = N_ROWS // 2
INFLUENCES = (0.01, 1.0, 3.0)
"""b: what one standard deviation of the hidden variable does to the response."""


@dataclass(frozen=True)
class Outcome:
    """Figures of one data set; errors are mean squared errors at the newcomers.

    Attributes
    ----------
    influence : float
    groups : int
        Among the learners that were there first.
    joined : int
        Newcomers that joined one of these groups.
    with_hidden, common, group : float
        One regression with the hidden variable; one without it; the models of the own group.
    told : float
        Share of the variance of the hidden variable that the groups explain.
    """

    influence: float
    groups: int
    joined: int
    with_hidden: float
    common: float
    group: float
    told: float


def regression(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Coefficients of least squares, the intercept first."""
    return np.linalg.lstsq(np.column_stack([np.ones(len(x)), x]), y, rcond=None)[0]


def error(coefficients: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Mean squared error of a regression."""
    return float(np.square(y - coefficients[0] - x @ coefficients[1:]).mean())


def pooled(drawn: GroupedSites, sites: range, rows: slice) -> tuple[np.ndarray, ...]:
    """Predictors, hidden variable and response of some rows of some learners."""
    x = np.concatenate([drawn.features[i][rows] for i in sites])
    y = np.concatenate([drawn.responses[i][rows] for i in sites])
    return x, np.repeat(drawn.hidden[list(sites)], len(x) // len(sites)), y


def explained(value: np.ndarray, labels: np.ndarray) -> float:
    """Share of the variance of a value that groups explain."""
    within = sum(((value[labels == g] - value[labels == g].mean()) ** 2).sum() for g in set(labels))
    return float(1 - within / ((value - value.mean()) ** 2).sum())


def group_and_place(drawn: GroupedSites, seed: int) -> tuple[Run, Run]:
    """Group those that are there, then place the newcomers by half of their rows."""
    tables = drawn.tables()
    known = {name: tables[name] for name in drawn.names[:N_KNOWN]}
    new = {name: tables[name].iloc[:HALF] for name in drawn.names[N_KNOWN:]}
    columns = Columns(features=drawn.feature_names, target="y")
    method = MetaClustering(candidates="linear", gain_folds=0, stability_runs=0)
    first = method.run(Federation.local(known, columns=columns, policy="simulation"), seed=seed)
    later = method.run(
        Federation.local(new, columns=columns, policy="simulation"), seed=seed, follows=first
    )
    return first, later


def study(influence: float, seed: int = 1) -> Outcome:
    """Draw the learners, group and place them, and score on the newcomers' other rows."""
    drawn = simulate_fairness(
        influence, rng=stream(seed, "fairness example"), n_sites=N_KNOWN + N_NEW, n_rows=N_ROWS
    )
    first, later = group_and_place(drawn, seed)
    new = range(N_KNOWN, N_KNOWN + N_NEW)
    squares = [
        np.square(
            drawn.responses[i][HALF:]
            - later.site(drawn.names[i]).predictor.predict(drawn.features[i][HALF:])
        )
        for i in new
    ]
    x, hidden, y = pooled(drawn, range(N_KNOWN), slice(None))
    x_new, hidden_new, y_new = pooled(drawn, new, slice(HALF, None))
    placed = dict(zip(later.result.sites, later.result.labels, strict=True))
    with_hidden = regression(np.column_stack([x, hidden]), y)
    return Outcome(
        influence=influence,
        groups=first.result.n_clusters,
        joined=sum(placed[drawn.names[i]] < first.result.n_clusters for i in new),
        with_hidden=error(with_hidden, np.column_stack([x_new, hidden_new]), y_new),
        common=error(regression(x, y), x_new, y_new),
        group=float(np.concatenate(squares).mean()),
        told=explained(drawn.hidden[:N_KNOWN], first.result.labels),
    )


def main() -> None:
    """Print one line for each influence."""
    print("influence  groups  joined  with hidden  common  own group  hidden variable told")
    for influence in INFLUENCES:
        o = study(influence)
        print(
            f"{o.influence:9g}  {o.groups:6d}  {o.joined:6d}  {o.with_hidden:11.2f}  "
            f"{o.common:6.2f}  {o.group:9.2f}  {o.told:20.2f}"
        )


if __name__ == "__main__":
    main()

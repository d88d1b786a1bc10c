"""What the replications of latent class regression share: designs, fits, and errors to the oracle.

Rows are kept and figures computed as in the other replications (``assisted_glm/study.py``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.datasets.simulate_latent_classes import (
    N_FOLDS,
    LatentClasses,
    LatentClassEvents,
    simulate_latent_classes,
)
from consilience.engines.federation import Federation
from consilience.numerics.random import stream
from consilience.protocol.method import Columns
from consilience.sites.policy import Policy
from replications.reference_averaging.simulate import split_evenly

FloatArray = NDArray[np.float64]
Predict = Callable[[LatentClassEvents], FloatArray]


def design(n_classes: int, seed: int, *key: str | int, **settings: Any) -> LatentClasses:
    """Data of one replicate."""
    rng = stream(seed, "latent classes", n_classes, *key)
    return simulate_latent_classes(n_classes, rng=rng, **settings)


def parts(data: LatentClasses, seed: int) -> tuple[LatentClassEvents, LatentClassEvents]:
    """Training and test events of a replicate: each of the five folds is the test in turn."""
    fold = seed % N_FOLDS
    events = data.events
    return events.take(events.fold != fold), events.take(events.fold == fold)


def to_oracle(data: LatentClasses, test: LatentClassEvents, predicted: FloatArray) -> float:
    """Mean squared error on test events over that of ridge regression with the true labels."""
    train = data.events.fold != test.fold[0]
    oracle = data.expected(test, data.oracle(train))
    return float(((test.y - predicted) ** 2).mean() / ((test.y - oracle) ** 2).mean())


# --------------------------------------------------------------------------- fits


def central(train: LatentClassEvents, n_classes: int | str, seed: int, **settings: Any) -> Any:
    """The estimator on all rows in one place."""
    from consilience.latent_regression.estimators.latent_class_regressor import LatentClassRegressor

    estimator = LatentClassRegressor(n_classes=n_classes, random_state=seed, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(train.x, train.y, entity=train.entity, agent=train.agent)


def agents_by_site(events: LatentClassEvents, n_sites: int) -> dict[str, NDArray[np.str_]]:
    """Agents in the order of their names, spread evenly over sites."""
    agents = np.unique(events.agent)
    places = split_evenly(len(agents), n_sites)
    return {f"site{b:03d}": agents[place] for b, place in enumerate(places)}


def federated(
    train: LatentClassEvents,
    n_classes: int | str,
    seed: int,
    *,
    n_sites: int,
    policy: str = "simulation",
    **settings: Any,
) -> tuple[Any, Predict]:
    """The method over sites of several agents, and its predictions for known agents."""
    from consilience.latent_regression.protocol import LatentClassRegression

    names = tuple(f"x{j + 1}" for j in range(train.x.shape[1]))
    columns = Columns(features=names, target="y", agent="agent", entity="entity")
    members = agents_by_site(train, n_sites)
    tables = {
        site: train.take(np.isin(train.agent, agents)).to_frame()
        for site, agents in members.items()
    }
    granted = Policy(preset=policy, foreign_models=True)  # type: ignore[arg-type]
    federation = Federation.local(tables, columns=columns, policy=granted, n_jobs=1)
    method = LatentClassRegression(n_classes=n_classes, **{"holdout": 0.0, **settings})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = method.run(federation, seed=seed)

    def predict(events: LatentClassEvents) -> FloatArray:
        found = np.full(len(events), np.nan)
        for site, agents in members.items():
            mine = np.isin(events.agent, agents)
            if mine.any():
                some = events.take(mine)
                found[mine] = run.site(site).predictor.predict(
                    some.x, entity=some.entity, agent=some.agent
                )
        return found

    return run, predict


# --------------------------------------------------------------------------- rivals


def pooled_ridge(train: LatentClassEvents, test: LatentClassEvents) -> FloatArray:
    """One regression for everybody."""
    x = np.column_stack([np.ones(len(train)), train.x])
    coef = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ train.y)
    return np.asarray(coef[0] + test.x @ coef[1:])


def own_ridge(data: LatentClasses, train: LatentClassEvents, test: LatentClassEvents) -> FloatArray:
    """One regression for each entity, with the true sigma and delta."""
    names, code = np.unique(train.entity, return_inverse=True)
    x = np.column_stack([np.ones(len(train)), train.x])
    f = x.shape[1]
    squares = np.zeros((len(names), f, f))
    cross = np.zeros((len(names), f))
    np.add.at(squares, code, x[:, :, None] * x[:, None, :])
    np.add.at(cross, code, x * train.y[:, None])
    squares += (data.sigma / data.delta) ** 2 * np.eye(f)
    coef = np.linalg.solve(squares, cross[:, :, None])[:, :, 0]
    mine = coef[np.searchsorted(names, test.entity)]
    return np.asarray(mine[:, 0] + (test.x * mine[:, 1:]).sum(axis=1))


def known_classes(
    data: LatentClasses, train: LatentClassEvents, test: LatentClassEvents
) -> FloatArray:
    """True coefficients, noise and shares of every agent; only the labels are not known.

    What is left between this and the oracle is that a few events do not tell the class.
    """
    names, first, code = np.unique(train.entity, return_index=True, return_inverse=True)
    means = np.column_stack([np.ones(len(train)), train.x]) @ data.weights.T
    fits = -0.5 * ((train.y[:, None] - means) / data.sigma) ** 2
    agents = np.unique(data.events.agent)
    logs = np.log(data.theta[np.searchsorted(agents, train.agent[first])] + 1e-300)
    np.add.at(logs, code, fits)
    share = np.exp(logs - logs.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    x = np.column_stack([np.ones(len(test)), test.x])
    return np.asarray(
        (share[np.searchsorted(names, test.entity)] * (x @ data.weights.T)).sum(axis=1)
    )

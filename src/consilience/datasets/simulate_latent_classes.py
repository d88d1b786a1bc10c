"""Simulated events of entities of agents whose entities fall into latent classes.

Source: Yang, Carette, Jimbo and Maruyama, *Federated Latent Class Regression for Hierarchical
Data* (arXiv 2206.10783), the model and the simulation study.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.datasets import check_least
from consilience.exceptions import ParameterError

if TYPE_CHECKING:
    from pandas import DataFrame

TextArray = NDArray[np.str_]

N_FOLDS = 5


@dataclass(frozen=True, eq=False)
class LatentClassEvents:
    """Events, entity after entity, agent after agent.

    Attributes
    ----------
    agent, entity : (n,) arrays of text
        Whose event it is; an entity's name is that of no other agent's entity.
    x : (n, F - 1) array
        Features without the column of ones.
    y : (n,) array
    label : (n,) array of int
        True class of the event's entity.
    event : (n,) array of int
        Number of the event within its entity, from 0.
    fold : (n,) array of int
        One of five parts; no part holds all events of an entity.
    """

    agent: TextArray
    entity: TextArray
    x: FloatArray
    y: FloatArray
    label: IntArray
    event: IntArray
    fold: IntArray

    def __len__(self) -> int:
        return len(self.y)

    def take(self, where: NDArray[Any]) -> LatentClassEvents:
        """Return some events: a mask or places."""
        return LatentClassEvents(**{name: part[where] for name, part in vars(self).items()})

    def to_frame(self) -> DataFrame:
        """Return a table of ``agent``, ``entity``, ``x1`` and so on, and ``y``."""
        import pandas as pd

        columns = {f"x{j}": self.x[:, j - 1] for j in range(1, self.x.shape[1] + 1)}
        return pd.DataFrame({"agent": self.agent, "entity": self.entity, **columns, "y": self.y})


@dataclass(frozen=True, eq=False)
class LatentClasses:
    """Simulated events with the truth.

    Attributes
    ----------
    events : LatentClassEvents
        Of the agents and entities to fit.
    new_entities, new_agents : LatentClassEvents
        Of further entities of these agents, and of further agents with one entity each.
    weights : (K, F) array
        Coefficients of each class, the intercept first.
    shares : (K,) array
        psi: share of each class over agents.
    theta : (A, K) array
        Share of each class in each agent to fit.
    sigma, delta : float
        Standard deviations of the response around its mean, and of the coefficients.
    """

    events: LatentClassEvents
    new_entities: LatentClassEvents
    new_agents: LatentClassEvents
    weights: FloatArray
    shares: FloatArray
    theta: FloatArray
    sigma: float
    delta: float

    @property
    def n_classes(self) -> int:
        """Number of classes: K."""
        return len(self.shares)

    def oracle(self, train: NDArray[Any] | None = None) -> FloatArray:
        """Return each class's coefficients by ridge regression with the true labels: (K, F).

        The posterior mean given the labels, sigma and delta; no method can be expected to do
        better.

        Parameters
        ----------
        train : (n,) array, optional
            Mask or places of the events to use; all by default.
        """
        used = self.events if train is None else self.events.take(train)
        design = _design(used.x)
        found = np.zeros_like(self.weights)
        for k in range(self.n_classes):
            x, y = design[used.label == k], used.y[used.label == k]
            # prior N(0, delta^2 I) and noise sigma^2: ridge of sigma^2 / delta^2
            penalty = (self.sigma / self.delta) ** 2 * np.eye(design.shape[1])
            found[k] = np.linalg.solve(x.T @ x + penalty, x.T @ y)
        return found

    def expected(self, events: LatentClassEvents, weights: FloatArray | None = None) -> FloatArray:
        """Return the mean of each event under its true class and the given (or true) weights."""
        chosen = self.weights if weights is None else weights
        return np.asarray((_design(events.x) * chosen[events.label]).sum(axis=1))


def simulate_latent_classes(
    n_classes: int,
    *,
    rng: np.random.Generator,
    n_agents: int = 128,
    n_entities: float = 4.0,
    n_events: float = 20.0,
    n_features: int = 8,
    sigma: float = 1.0,
    delta: float = 1.0,
    alpha: float | None = None,
    beta: float = 4.0,
    shares: Sequence[float] | None = None,
    spread: float = 0.0,
    new_entities: int = 0,
    new_agents: int = 0,
    new_events: int = 10,
) -> LatentClasses:
    """Simulate the source's design.

    ``psi ~ Dir(alpha/K, ...)``, ``theta_i ~ Dir(beta psi)``, ``z_ij ~ theta_i``,
    ``w_k ~ N(0, delta^2 I)`` and ``y ~ N(w_z' x, sigma^2)``; features are standard normal beside a
    column of ones. An agent has ``1 + Poisson`` entities and an entity ``2 + Poisson`` events.
    Departures: shares of the classes may be given, and agents may be of very unequal size.

    Parameters
    ----------
    n_classes : int
        K.
    rng : numpy.random.Generator
    n_agents : int
        A (the source: 128).
    n_entities : float
        Mean number of entities of an agent, at least 1 (the source: 4 or 16).
    n_events : float
        Mean number of events of an entity, at least 2 (the source: 5 or 20).
    n_features : int
        F, the column of ones included.
    sigma, delta : float
        Standard deviations of the noise and of the coefficients.
    alpha : float, optional
        Concentration of the shares; K by default.
    beta : float
        Concentration of an agent's shares around the common ones.
    shares : sequence of K positive numbers, optional
        psi, in place of a draw; scaled to sum 1.
    spread : float
        Standard deviation over agents of the logarithm of the mean number of further entities,
        which keeps its mean over agents.
    new_entities, new_agents : int
        Further entities, at the agents in turn, and further agents of one entity each.
    new_events : int
        Events of each of these.

    Returns
    -------
    LatentClasses

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    check_least(1, n_classes=n_classes, n_agents=n_agents, n_features=n_features)
    check_least(1, n_entities=n_entities, new_events=new_events)
    check_least(2, n_events=n_events)
    check_least(0, new_entities=new_entities, new_agents=new_agents, spread=spread, sigma=sigma)
    # of concentration alpha / K = 1 in each class: uniform on the simplex
    alpha = float(n_classes) if alpha is None else alpha
    for name, value in {"delta": delta, "alpha": alpha, "beta": beta}.items():
        if not value > 0:
            raise ParameterError.of(name, "a positive number", value)
    psi = _shares(n_classes, alpha, shares, rng)
    weights = delta * rng.standard_normal((n_classes, n_features))
    theta = np.atleast_2d(rng.dirichlet(beta * psi, size=n_agents))
    # log-normal with mean 1: the mean number of entities stays what was asked for
    further = (n_entities - 1.0) * np.exp(spread * rng.standard_normal(n_agents) - spread**2 / 2)
    # no agent without an entity
    sizes = 1 + rng.poisson(further)
    owner = np.repeat(np.arange(n_agents), sizes)
    # no entity whose events could not be divided into training and test
    n_each = 2 + rng.poisson(n_events - 2.0, size=len(owner))
    events = _events(owner, theta, n_each, weights, sigma, rng, "e")
    later = np.arange(new_entities) % n_agents
    more = _events(later, theta, np.full(new_entities, new_events), weights, sigma, rng, "n")
    strangers = np.atleast_2d(rng.dirichlet(beta * psi, size=new_agents).reshape(-1, n_classes))
    # agents that no fit saw: shares of their own, around the same psi
    place, n_new = np.arange(new_agents), np.full(new_agents, new_events)
    others = _events(place, strangers, n_new, weights, sigma, rng, "e", first=n_agents)
    return LatentClasses(events, more, others, weights, psi, theta, sigma, delta)


def _shares(
    n_classes: int, alpha: float, given: Sequence[float] | None, rng: np.random.Generator
) -> FloatArray:
    if given is None:
        drawn = rng.dirichlet(np.full(n_classes, alpha / n_classes))
        return np.asarray(np.maximum(drawn, 1e-12) / np.maximum(drawn, 1e-12).sum())
    psi = np.asarray(given, dtype=float)
    if psi.shape != (n_classes,) or not (psi > 0).all():
        raise ParameterError.of("shares", "one positive number a class", given)
    return np.asarray(psi / psi.sum())


def _events(
    owner: IntArray,
    theta: FloatArray,
    n_each: IntArray,
    weights: FloatArray,
    sigma: float,
    rng: np.random.Generator,
    letter: str,
    first: int = 0,
) -> LatentClassEvents:
    """Draw labels, features and responses of entities: `owner` is the agent of each, ascending."""
    ends = np.cumsum(theta, axis=1)[owner]
    # by the inverse of the distribution; the last end is 1 but for rounding
    below = rng.uniform(size=(len(owner), 1)) * ends[:, -1:] >= ends
    label = np.minimum(below.sum(axis=1), len(weights) - 1).astype(np.int64)
    # agent after agent, as the fields of the result say
    order = np.argsort(owner, kind="stable")
    owner, label, n_each = owner[order], label[order], n_each[order]
    starts = np.searchsorted(owner, owner)
    agents = np.array([f"a{first + i:04d}" for i in owner], dtype=np.str_)
    numbers = np.arange(len(owner)) - starts
    names = [f"{a}-{letter}{j:02d}" for a, j in zip(agents, numbers, strict=True)]
    entities = np.array(names, dtype=np.str_)
    row = np.repeat(np.arange(len(owner)), n_each)
    x = rng.standard_normal((len(row), weights.shape[1] - 1))
    mean = (_design(x) * weights[label[row]]).sum(axis=1)
    y = mean + sigma * rng.standard_normal(len(row))
    event = np.arange(len(row)) - np.repeat(np.cumsum(n_each) - n_each, n_each)
    # entities begin at different folds, so that folds are of one size
    turn = rng.integers(N_FOLDS, size=len(owner))
    fold = (event + turn[row]) % N_FOLDS  # events of an entity are exchangeable: no order to break
    return LatentClassEvents(agents[row], entities[row], x, y, label[row], event, fold)


def _design(x: FloatArray) -> FloatArray:
    return np.column_stack([np.ones(len(x)), x])

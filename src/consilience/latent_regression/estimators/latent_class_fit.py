"""Fit latent classes to blocks of events: restarts, mergers, the best of several answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError
from consilience.latent_regression.estimators.latent_class_chain import (
    Averages,
    Chain,
    as_arrays,
    start_chain,
)
from consilience.numerics.agreement import adjusted_rand_index
from consilience.numerics.parallel import one_thread, ordered_map
from consilience.numerics.random import stream

if TYPE_CHECKING:
    from consilience.latent_regression.kernels.latent_class import Blocks, Classes, Totals


AUTO_START = 18
NOISE = (0.1, 0.03, 0.3, 1.0)
"""Noise in the first sweep of the restarts in turn, see `start_chain`."""
_ROUNDS = 1 << 20  # of one restart; draws of different rounds are independent
_RESIDUE = 0.5  # a class with less than half an expected entity is empty


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to fit; see `LatentClassRegressor`, whose units are those of the table.

    Attributes
    ----------
    n_classes : int or "auto"
    n_start : int, optional
    n_sweeps, n_settle, n_average, n_restarts : int
    sigma, delta : float or "draw"
        In the units of the blocks.
    alpha : float, optional
    beta : float or "grid"
    concentration : {"exact", "shortcut"}
    schedule : {"sequential", "parallel"}
    learning_rate : float

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """

    n_classes: int | str = 4
    n_start: int | None = None
    n_sweeps: int = 40
    n_settle: int = 20
    n_average: int = 20
    n_restarts: int = 4
    sigma: float | str = "draw"
    delta: float | str = "draw"
    alpha: float | None = None
    beta: float | str = "grid"
    concentration: str = "exact"
    schedule: str = "sequential"
    learning_rate: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        if self.n_classes != "auto":
            _whole("n_classes", self.n_classes, 1, ' or "auto"')
        if self.n_start is not None:
            _whole("n_start", self.n_start, 1)
        for name, least in (
            ("n_sweeps", 1),
            ("n_settle", 0),
            ("n_average", 1),
            ("n_restarts", 1),
        ):
            _whole(name, getattr(self, name), least)
        for name, word in (("sigma", "draw"), ("delta", "draw"), ("beta", "grid")):
            if getattr(self, name) != word:
                _positive(name, getattr(self, name), f' or "{word}"')
        if self.alpha is not None:
            _positive("alpha", self.alpha)
        if self.concentration not in ("exact", "shortcut"):
            raise ParameterError.of("concentration", '"exact" or "shortcut"', self.concentration)
        if self.schedule not in ("sequential", "parallel"):
            raise ParameterError.of("schedule", '"sequential" or "parallel"', self.schedule)
        _positive("learning_rate", self.learning_rate)
        if self.learning_rate > 1:
            raise ParameterError.of("learning_rate", "above 0 and at most 1", self.learning_rate)

    def starting_classes(self, n_entities: int) -> int:
        """Classes to begin with.

        Raises
        ------
        ParameterError
            More classes than entities.
        """
        k = 1 if self.n_classes == "auto" else int(self.n_classes)
        if k > n_entities:
            raise ParameterError(
                f"n_classes must be at most the number of entities with events, {n_entities}, "
                f"but {k} was given"
            )
        wanted = AUTO_START if self.n_classes == "auto" else 2 * k
        return max(k, min(self.n_start or wanted, n_entities))


@dataclass(frozen=True, eq=False)
class ClassFit:
    """The restart with the largest marginal likelihood; classes by falling size.

    Attributes
    ----------
    labels : (E,) array of int
        Most probable class of each entity, in the order of the blocks.
    probabilities : (E, K) array
        Averaged over the last sweeps.
    totals : Totals
        With these labels.
    classes : Classes
        With these totals.
    mean, covariance : (K, F) and (K, F, F) arrays
        Of the coefficients, by the law of total variance over the last sweeps.
    base : (K,) array
        psi.
    sigma2, delta2, alpha, beta : float
    agent_counts : (A, K) array
        Expected entities by agent and class.
    trace : dict of (T,) arrays
        By sweep: ``log_marginal``, ``sigma``, ``moved``, ``n_classes``, ``learning_rate``.
    log_marginals : (R,) array
        Of the events in each restart: a bound, averaged over its last sweeps, less
        ``(K - 1)/2 log E`` for the shares.
    agreement : (R, R) array
        Adjusted Rand index between the labels of any two restarts.
    merge_path : tuple of (int, float)
        Classes after each merger, and its gain.
    asked : int or "auto"
        Classes that were asked for.
    jumped : bool
        Whether the learning rate was lowered.
    """

    labels: IntArray
    probabilities: FloatArray
    totals: Totals
    classes: Classes
    mean: FloatArray
    covariance: FloatArray
    base: FloatArray
    sigma2: float
    delta2: float
    alpha: float
    beta: float
    agent_counts: FloatArray
    trace: dict[str, FloatArray]
    log_marginals: FloatArray
    agreement: FloatArray
    merge_path: tuple[tuple[int, float], ...]
    asked: int | str
    jumped: bool

    @property
    def n_classes(self) -> int:
        """Classes that hold entities."""
        return len(self.base)


def fit_classes(
    blocks: Blocks,
    settings: Settings,
    seed: int,
    *,
    keys: NDArray[np.uint64] | None = None,
    n_jobs: int | None = None,
) -> ClassFit:
    """Fit latent classes to blocks of events.

    Parameters
    ----------
    blocks : Blocks
        E entities of A agents; y has a variance of about 1.
    settings : Settings
    seed : int
        The same answer for the same seed, whatever `n_jobs` is.
    keys : (A,) array of uint64, optional
        Of the agents' streams (`agent_key`); by default made of the seed and the agents' places.
    n_jobs : int, optional
        Restarts at a time.

    Returns
    -------
    ClassFit

    Raises
    ------
    ParameterError
        More classes than entities with events.
    DataError
        No events.
    """
    from consilience.latent_regression.kernels.latent_class import agent_key

    with_events = int(np.count_nonzero(blocks.n > 0))
    if with_events == 0:
        raise DataError("there is no event with an outcome: nothing can be fitted")
    n_start = settings.starting_classes(with_events)
    if keys is None:
        names = [agent_key(seed, str(a)) for a in range(blocks.n_agents)]
        keys = np.array(names, dtype=np.uint64)
    one = partial(_restart, blocks=blocks, settings=settings, seed=seed, keys=keys, n=n_start)
    runs = ordered_map(one, range(settings.n_restarts), n_jobs=n_jobs)
    return _best(blocks, settings, runs)


def _restart(
    number: int,
    *,
    blocks: Blocks,
    settings: Settings,
    seed: int,
    keys: NDArray[np.uint64],
    n: int,
) -> tuple[Averages, dict[str, Any]]:
    """One run from its own start, on one thread wherever it runs."""
    with one_thread():
        return _run(number, blocks=blocks, settings=settings, seed=seed, keys=keys, n=n)


def _run(
    number: int,
    *,
    blocks: Blocks,
    settings: Settings,
    seed: int,
    keys: NDArray[np.uint64],
    n: int,
) -> tuple[Averages, dict[str, Any]]:
    rng = stream(seed, "latent classes", number)
    chain = start_chain(
        blocks,
        settings,
        keys,
        rng,
        first_round=number * _ROUNDS,
        n_start=n,
        noise=NOISE[number % len(NOISE)],
    )
    for _ in range(settings.n_sweeps):
        chain.sweep()
    wanted = None if settings.n_classes == "auto" else int(settings.n_classes)
    _merge_and_settle(chain, wanted)
    found = chain.average(settings.n_average)
    sizes = found.probabilities[blocks.n > 0].sum(axis=0)
    order = np.argsort(-sizes, kind="stable")
    used = order[sizes[order] >= _RESIDUE]
    about = {"trace": as_arrays(chain.trace), "path": tuple(chain.path), "jumped": chain.jumped}
    found = found.take(used if len(used) else order[:1])
    # What the shares of more classes may fit by chance, as in the BIC.
    shares = 0.5 * (len(found.base) - 1) * float(np.log(np.count_nonzero(blocks.n > 0)))
    return replace(found, log_marginal=found.log_marginal - shares), about


def _merge_and_settle(chain: Chain, wanted: int | None) -> None:
    for _ in range(3):
        merged = chain.n_classes > (wanted or 1) and chain.merge(wanted)
        for _ in range(chain.settings.n_settle):
            chain.sweep()
        if wanted is not None or not merged:
            return


def _best(
    blocks: Blocks, settings: Settings, runs: list[tuple[Averages, dict[str, Any]]]
) -> ClassFit:
    from consilience.latent_regression.kernels.latent_class import classes_of, totals_of

    labels = [run.probabilities.argmax(axis=1).astype(np.int64) for run, _ in runs]
    with_events = blocks.n > 0
    agreement = np.eye(len(runs))
    for i in range(len(runs)):
        for j in range(i):
            same = adjusted_rand_index(labels[i][with_events], labels[j][with_events])
            agreement[i, j] = agreement[j, i] = same
    log_marginals = np.array([run.log_marginal for run, _ in runs])
    best = int(np.argmax(log_marginals))
    run, about = runs[best]
    totals = totals_of(blocks, labels[best], len(run.base))
    counts = np.zeros((blocks.n_agents, len(run.base)))
    np.add.at(counts, blocks.agent, run.probabilities)
    return ClassFit(
        labels[best],
        run.probabilities,
        totals,
        classes_of(totals, run.sigma2, run.delta2),
        run.mean,
        run.covariance,
        run.base,
        run.sigma2,
        run.delta2,
        float(len(run.base)) if settings.alpha is None else settings.alpha,
        run.beta,
        counts,
        about["trace"],
        log_marginals,
        agreement,
        about["path"],
        settings.n_classes,
        about["jumped"],
    )


def _whole(name: str, value: Any, least: int, more: str = "") -> None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least:
        raise ParameterError.of(name, f"a whole number of at least {least}{more}", value)


def _positive(name: str, value: Any, more: str = "") -> None:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not (value > 0 and np.isfinite(value)):
        raise ParameterError.of(name, f"a positive number{more}", value)

"""Kinds or degrees: classes beside one regression and a mixed model on events that each leaves out.

The mixed model is ``y = X w + Z b_e + noise`` with ``b_e ~ N(0, sigma2 G)`` for each entity e, Z
some columns of X; one regression is the case without Z. Its restricted likelihood needs the sums
of an entity alone: with ``G = L L'`` and ``M = I + L' Z'Z L`` the inverse of ``H = I + Z G Z'``
leaves ``X'H^-1 X = X'X - X'Z L M^-1 L' Z'X``, and ``|H| = |M|``. Agents may have coefficients of
their own, too: their sums are those that H leaves, added over their entities, and the same again.
Classes know an entity's agent by its shares of them; without these agents that differ by degrees
would be taken for kinds.

Every entity in turn is left out of what all share. Half of its events are then known, and tell its
class or its own coefficients; the other half is predicted; and the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError
from consilience.latent_regression.kernels.degrees import (
    NO_DEGREES,
    Degrees,
    by_entity,
    row_log_density,
    view_of,
)
from consilience.latent_regression.kernels.latent_class import (
    Blocks,
    block_log_likelihood,
    blocks_of,
    classes_of,
    totals_of,
)
from consilience.latent_regression.kernels.marginal_likelihood import Noise

_LOG_2PI = float(np.log(2.0 * np.pi))
KINDS, DEGREES, NO_KINDS = "kinds", "degrees, not kinds", "no evidence of kinds"
KINDS_OR_DEGREES = "kinds or degrees"
"""Over sites that tell too little to compare classes with a mixed model."""
LEAST_ENTITIES = 5
"""With two events or more, below which nothing is compared."""
MOST_ENTITIES = 2000
"""That are left out; the variances of the mixed model rest on all."""
MOST_COLUMNS = 12
"""Of the design with own coefficients of entities and agents: of more only the intercept's."""
SMALLEST_SIGMA2 = 1e-10
"""Where y is explained without a rest; y has variance 1."""
SAME = "the same model of one class"
_TAIL_DRAWS = 64
"""Of coefficients, over which the density of events with t noise is averaged."""
_DEPENDENT = 1e-10
_STEPS = 60
_GAIN = 0.01
"""Of the deviance, below which the variances of a mixed model need no further step: it is far below
what events that are left out can tell."""
_FLAT = 1e-9
"""Share of the largest variance below which there is none."""


# ------------------------------------------------------------------------------- the mixed model


@dataclass(frozen=True, eq=False)
class MixedFit:
    """A mixed model by restricted maximum likelihood.

    Attributes
    ----------
    mean : (F,) array
        Coefficients that all share.
    sigma2 : float
        Variance of the noise.
    ratio : (F, F) array
        G: covariance of the entities' own coefficients over sigma2; 0 where they have none.
    between : (F, F) array
        The same of agents.
    deviance : float
        -2 log restricted likelihood.
    precision : (F, F) array
        ``sum_e X'H^-1 X`` with the penalty, of agents' H where these have own coefficients: the
        inverse covariance of `mean`, times sigma2.
    inner : (E, F, F) and (E, F) arrays
        ``X'H^-1 X`` and ``X'H^-1 y`` of each entity.
    outer : (A, F, F) and (A, F) arrays
        The same of each agent; of each entity where agents have no coefficients.
    agent : (E,) array of int
        Place of each entity's agent in `outer`.
    """

    mean: FloatArray
    sigma2: float
    ratio: FloatArray
    between: FloatArray
    deviance: float
    precision: FloatArray
    inner: tuple[FloatArray, FloatArray]
    outer: tuple[FloatArray, FloatArray]
    agent: IntArray

    def in_units(self, size: FloatArray) -> MixedFit:
        """The same fit of columns that are (F,) times as large."""
        square = size[:, None] * size
        return replace(
            self,
            mean=self.mean / size,
            ratio=self.ratio / square,
            between=self.between / square,
            deviance=self.deviance + 2.0 * float(np.log(size).sum()),
            precision=self.precision * square,
            inner=(self.inner[0] * square, self.inner[1] * size),
            outer=(self.outer[0] * square, self.outer[1] * size),
        )


class _State(NamedTuple):
    """What the likelihood and its slopes need, for G of the entities and of the agents."""

    fit: MixedFit
    slopes: tuple[FloatArray, ...]
    information: tuple[FloatArray, ...]


def mixed_model(
    blocks: Blocks,
    random: Sequence[int],
    between: Sequence[int] = (),
    *,
    penalty: float = 0.0,
    gain: float = 1e-7,
) -> MixedFit:
    """Fit a mixed model to sums of events by entity.

    Parameters
    ----------
    blocks : Blocks
    random : sequence of int
        Columns of the design with a coefficient of each entity, q of them with a covariance of
        their own; none: one regression for all.
    between : sequence of int
        Columns with a coefficient of each agent.
    penalty : float
        Added to the diagonal of ``sum X'H^-1 X``: of a normal prior of the shared coefficients,
        ``N(0, sigma2 / penalty)``. It is needed where columns follow from one another.
    gain : float
        Of the deviance in a step, below which the variances have converged.

    Returns
    -------
    MixedFit

    Notes
    -----
    Fisher scoring of G, which is kept nonnegative definite; where that does not raise the
    likelihood, scoring among the directions in which G is not 0. Entities and agents take turns.
    Source of likelihood and slope: Harville, *Maximum likelihood approaches to variance component
    estimation and to related problems*, JASA 72, 1977, sections 3 to 5.
    """
    columns = [np.asarray(j, dtype=np.int64) for j in (random, between)]
    ratios = [np.zeros((len(j), len(j))) for j in columns]
    # in units in which all columns have one mean square: variances are comparable then
    squares = np.diagonal(blocks.products, axis1=1, axis2=2).sum(axis=0)
    size = np.sqrt(np.where(squares > 0, squares, 1.0) / max(float(blocks.n.sum()), 1.0))
    penalties = penalty / size**2
    blocks = replace(
        blocks,
        products=blocks.products / (size[:, None] * size),
        cross=blocks.cross / size,
    )
    now = _state(blocks, columns, ratios, penalties)
    levels = [level for level, j in enumerate(columns) if len(j)]
    for _ in range(_STEPS if levels else 0):
        start = now.fit.deviance
        for level in levels:
            before = now.fit.deviance
            for step in _steps(ratios[level], now.slopes[level], now.information[level]):
                trial = [*ratios]
                trial[level] = _semidefinite(ratios[level] + step)
                found = _state(blocks, columns, trial, penalties)
                if found.fit.deviance < before - gain:
                    ratios, now = trial, found
                    break
        if now.fit.deviance >= start - gain:
            break
    return now.fit.in_units(size)


def _steps(ratio: FloatArray, slope: FloatArray, information: FloatArray) -> Iterator[FloatArray]:
    """Scoring steps of G to be tried: in all directions, then in those in which G is not 0."""
    values, vectors = np.linalg.eigh(ratio)
    inside = vectors[:, values > _FLAT * values.max(initial=0.0)]
    for basis in (np.eye(len(ratio)), inside):
        both = np.kron(basis, basis)
        turned = basis.T @ slope @ basis
        size = np.linalg.lstsq(both.T @ information @ both, turned.ravel(), rcond=1e-12)[0]
        step = basis @ size.reshape(turned.shape) @ basis.T
        yield from (-length * step for length in (1.0, 0.5, 0.1))


class _Level(NamedTuple):
    """Sums of entities or agents, and what they are with own coefficients integrated out.

    Attributes
    ----------
    products, cross : (n, F, F) and (n, F) arrays
        ``X'X`` and ``X'y``; of agents ``X'H^-1 X`` and ``X'H^-1 y`` with H of their entities.
    columns : (q,) array of int
        Of the design, those of Z.
    middle : (n, q, q) array
        ``L M^-1 L'``: the covariance of own coefficients given those that all share, over sigma2.
    left : (n, F, F) and (n, F) arrays
        ``X'H^-1 X`` and ``X'H^-1 y``.
    squares, log_det : float
        What ``y'y`` loses, and ``log |M|``, in all.
    """

    products: FloatArray
    cross: FloatArray
    columns: IntArray
    middle: FloatArray
    left: tuple[FloatArray, FloatArray]
    squares: float
    log_det: float


def _level(products: FloatArray, cross: FloatArray, j: IntArray, ratio: FloatArray) -> _Level:
    root, q = _root(ratio), len(j)
    z, across, own = products[:, j][:, :, j], products[:, j], cross[:, j]
    inner = np.eye(q) + root.T @ z @ root
    middle = root @ np.linalg.solve(inner, np.broadcast_to(root.T, (len(z), q, q)))
    felt = np.swapaxes(middle @ across, 1, 2)
    left = products - felt @ across, cross - _apply(felt, own)
    squares = float((own * _apply(middle, own)).sum())
    log_det = float(np.linalg.slogdet(inner)[1].sum())
    return _Level(products, cross, j, middle, left, squares, log_det)


def _pull(
    level: _Level, mean: FloatArray, covariance: FloatArray, sigma2: float, free: float
) -> tuple[FloatArray, FloatArray]:
    """Slope of the deviance in G, and its expected second derivative.

    Parameters
    ----------
    level : _Level
    mean, covariance : (.., F) and (.., F, F) arrays
        Posterior of coefficients less own ones, the covariance over sigma2.
    sigma2 : float
    free : float
        Events less coefficients.
    """
    j, middle, q = level.columns, level.middle, len(level.columns)
    z, across = level.products[:, j][:, :, j], level.products[:, j]
    # Z'H^-1 Z, Z'H^-1 X and Z'H^-1 (y - X w)
    by_z = z @ middle
    d = z - by_z @ z
    w = across - by_z @ across
    g = level.cross[:, j] - _apply(across, np.broadcast_to(mean, level.cross.shape))
    g = g - _apply(by_z, g)
    slope = d.sum(axis=0) - (w @ covariance @ np.swapaxes(w, 1, 2)).sum(axis=0)
    slope = slope - g.T @ g / sigma2
    flat = d.reshape(len(d), q * q)
    twice = (flat.T @ flat).reshape(q, q, q, q).transpose(0, 2, 1, 3).reshape(q * q, q * q)
    total = d.sum(axis=0).ravel()
    return (slope + slope.T) / 2, twice - np.outer(total, total) / free


def _state(
    blocks: Blocks, columns: Sequence[IntArray], ratios: Sequence[FloatArray], penalty: FloatArray
) -> _State:
    """Restricted deviance at G, its slopes and its expected second derivatives."""
    f, agent = blocks.n_features, np.arange(blocks.n_entities)
    entities = _level(blocks.products, blocks.cross, columns[0], ratios[0])
    sums = entities.left
    if len(columns[1]):
        agent = blocks.agent
        sums = np.zeros((blocks.n_agents, f, f)), np.zeros((blocks.n_agents, f))
        for total, part in zip(sums, entities.left, strict=True):
            np.add.at(total, agent, part)
    agents = _level(*sums, columns[1], ratios[1])
    precision = agents.left[0].sum(axis=0) + np.diag(penalty)
    linear = agents.left[1].sum(axis=0)
    mean = np.linalg.solve(precision, linear)
    free = max(float(blocks.n.sum()) - f, 1.0)
    squares = float(blocks.squares.sum()) - entities.squares - agents.squares
    sigma2 = max((squares - float(mean @ linear)) / free, SMALLEST_SIGMA2)
    log_dets = entities.log_det + agents.log_det + np.linalg.slogdet(precision)[1]
    deviance = free * (np.log(sigma2) + 1.0 + _LOG_2PI) + log_dets
    covariance = np.linalg.inv(precision)
    own, between = (_among(f, j, ratio) for j, ratio in zip(columns, ratios, strict=True))
    left = entities.left, agents.left
    fit = MixedFit(mean, sigma2, own, between, float(deviance), precision, *left, agent)
    pulls = [_pull(agents, mean, covariance, sigma2, free)]
    if len(columns[1]):  # an entity's less its own are those of its agent
        middle = _among(f, columns[1], agents.middle)
        felt = np.eye(f) - middle @ sums[0]
        mean = (_apply(felt, np.broadcast_to(mean, sums[1].shape)) + _apply(middle, sums[1]))[agent]
        covariance = (middle + felt @ covariance @ np.swapaxes(felt, 1, 2))[agent]
    pulls.insert(0, _pull(entities, mean, covariance, sigma2, free))
    return _State(fit, *zip(*pulls, strict=True))


def _among(f: int, j: IntArray, matrix: FloatArray) -> FloatArray:
    """A matrix of some columns (.., q, q), or several, among all of them (.., F, F)."""
    full = np.zeros((*matrix.shape[:-2], f, f))
    full[..., j[:, None], j] = matrix
    return full


def _apply(matrices: FloatArray, vectors: FloatArray) -> FloatArray:
    """Each matrix (E, m, n) times its vector (E, n)."""
    return np.asarray((matrices @ vectors[:, :, None])[:, :, 0])


def _inverse(matrices: FloatArray) -> FloatArray:
    """Of symmetric matrices (E, F, F), as symmetric ones."""
    found = np.linalg.inv(matrices)
    return np.asarray((found + np.swapaxes(found, 1, 2)) / 2, dtype=np.float64)


def _root(matrix: FloatArray) -> FloatArray:
    """A root L of nonnegative definite matrices ``L L'``."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :])


def _semidefinite(matrix: FloatArray) -> FloatArray:
    root = _root((matrix + matrix.T) / 2)
    return np.asarray(root @ root.T)


# ------------------------------------------------------------------------- events that are left out


class Rows(NamedTuple):
    """Rows of events in the units of the fit; y has variance 1.

    Attributes
    ----------
    x : (N, F) array
        Design.
    y : (N,) array
        NaN: no outcome.
    entity, agent : (N,) arrays of int
    weight : (N,) array
    """

    x: FloatArray
    y: FloatArray
    entity: IntArray
    agent: IntArray
    weight: FloatArray


@dataclass(frozen=True, eq=False)
class Halves:
    """Some entities, and two halves of the events of each.

    Attributes
    ----------
    at : (m,) array of int
        Places of the entities among all.
    rows : (n,) array of int
        Rows of the caller's table that were halved.
    whole, first, second : Blocks
        Their events, and each half of them.
    """

    at: IntArray
    rows: IntArray
    whole: Blocks
    first: Blocks
    second: Blocks


def halves_of(events: Rows, blocks: Blocks, u: FloatArray) -> Halves | None:
    """Halve the events of entities with two of them or more; None where these are too few.

    Parameters
    ----------
    events : Rows
    blocks : Blocks
        Their sums.
    u : (N,) array
        The half of an entity's events with the smaller numbers is the first.
    """
    used = np.isfinite(events.y) & (events.weight > 0)
    size = np.bincount(blocks.entity[used], minlength=blocks.n_entities)
    at = np.flatnonzero(size >= 2)
    if len(at) < LEAST_ENTITIES:
        return None
    at = at[:: -(-len(at) // MOST_ENTITIES)]
    chosen = np.zeros(blocks.n_entities, dtype=bool)
    chosen[at] = True
    rows = np.flatnonzero(used & chosen[blocks.entity])
    rows = rows[np.lexsort((u[rows], blocks.entity[rows]))]
    entity = blocks.entity[rows]
    rank = np.arange(len(rows)) - np.searchsorted(entity, entity)
    in_first = 2 * rank < size[entity]
    x, y, _, agent, weight = (part[rows] for part in events)
    whole, first, second = (
        blocks_of(x, np.where(part, y, np.nan), entity, agent, weight)
        for part in (np.ones(len(rows), dtype=bool), in_first, ~in_first)
    )
    return Halves(at, rows, whole, first, second)


class Sweep(NamedTuple):
    """What a sweep of a chain drew: labels (E,), noise of all or of each class, what is shared."""

    labels: IntArray
    base: FloatArray
    beta: float
    sigma2: Noise
    delta2: float
    degrees: Degrees = NO_DEGREES


class Scores(NamedTuple):
    """Sums over the events of each entity, (m,): log density and squared error when left out."""

    log_score: FloatArray
    error: FloatArray


def mixed_scores(fit: MixedFit, halves: Halves) -> Scores:
    """Log density and squared error of each half, given the other and all other entities.

    The variances are those of all entities. ``X w`` of the others is known to ``sigma2 A^-1``, A
    their sum of ``X'H^-1 X``: to the entity it is one more random effect. Where agents have own
    coefficients, others are first the other agents, and then the other entities of its own.
    """
    own_precision, own_linear = (part[halves.at] for part in fit.inner)
    agent = fit.agent[halves.at]
    here_precision, here_linear = (part[agent] for part in fit.outer)
    total = fit.precision @ fit.mean
    others = _inverse(fit.precision - here_precision)
    mean = _apply(others, total - here_linear)
    sums = [np.zeros_like(part) for part in fit.outer]
    for whole, part in zip(sums, fit.inner, strict=True):
        np.add.at(whole, fit.agent, part)
    before = _inverse(others + fit.between)
    others = _inverse(before + sums[0][agent] - own_precision)
    mean = _apply(others, _apply(before, mean) + sums[1][agent] - own_linear)
    root = _root(fit.ratio + others)
    every = _normal(halves.whole, mean, root, fit.sigma2)[0]
    scores = Scores(np.zeros(len(mean)), np.zeros(len(mean)))
    for known, left in ((halves.first, halves.second), (halves.second, halves.first)):
        density, moved = _normal(known, mean, root, fit.sigma2)
        scores.log_score[:] += every - density
        scores.error[:] += _squared(left, np.einsum("nf,nf->n", left.x, moved[_owner(left)]))
    return scores


def like_classes(
    mean: FloatArray, shares: FloatArray, sigma2: float, delta2: float
) -> tuple[FloatArray, FloatArray]:
    """Mean (F,) and ratio (F, F) of own coefficients that are normal, with the moments of classes.

    Beside it only the shape counts: a few points, or a normal distribution around their mean.

    Parameters
    ----------
    mean : (K, F) array
        Coefficients of the classes.
    shares : (K,) array
    sigma2, delta2 : float
        Variance of the noise, and prior variance of coefficients: that of own ones beside one
        class, which has no covariance.
    """
    weights = shares / shares.sum()
    centre = weights @ mean
    away = mean - centre
    spread = (away.T * weights) @ away if len(mean) > 1 else delta2 * np.eye(len(centre))
    return centre, spread / sigma2


def own_predictions(
    mean: FloatArray,
    ratio: FloatArray,
    sigma2: float,
    blocks: Blocks,
    x: FloatArray,
    entity: IntArray,
) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of further events under a mixed model whose parameters are known.

    Parameters
    ----------
    mean : (F,) array
    ratio : (F, F) array
        Covariance of own coefficients over `sigma2`.
    sigma2 : float
    blocks : Blocks
        What is known of the entities.
    x : (n, F) array
    entity : (n,) array of int
        Place of each event's entity in `blocks`.
    """
    root = np.broadcast_to(_root(ratio), blocks.products.shape)
    moved = _normal(blocks, np.broadcast_to(mean, blocks.cross.shape), root, sigma2)[1]
    turned = np.swapaxes(root, 1, 2)
    left = np.eye(x.shape[1]) + turned @ blocks.products @ root
    spread = root @ _solve(left, turned)
    away = np.einsum("nf,nfg,ng->n", x, spread[entity], x)
    return (x * moved[entity]).sum(axis=1), sigma2 * (1.0 + away)


def class_scores(blocks: Blocks, sweeps: Sequence[Sweep], halves: Halves) -> Scores:
    """The same of classes, over the labels of all other entities that a chain drew.

    A chain draws from the posterior of all events, and ``p(left | known, others)`` is the harmonic
    mean of its value in each sweep, in which the entity itself is out of its class (Gelfand, Dey,
    *Bayesian model choice: asymptotics and exact calculations*, JRSS B 56, 1994, equation 9).
    Predictions are weighted alike.
    """
    m = len(halves.at)
    logs = np.zeros((2, len(sweeps), m))
    means: list[list[FloatArray]] = [[], []]
    for s, sweep in enumerate(sweeps):
        k = len(sweep.base)
        totals = totals_of(blocks, sweep.labels, k)
        classes = classes_of(totals, sweep.sigma2, sweep.delta2)
        mine, rows = sweep.labels[halves.at], np.arange(m)
        noise = np.broadcast_to(sweep.sigma2, k)[mine, None]
        prior = _log_prior(blocks, sweep, halves.at)
        own = np.zeros((m, k))
        own[rows, mine] = 1.0
        every = block_log_likelihood(halves.whole, classes, own)
        parts = [block_log_likelihood(half, classes, own) for half in (halves.first, halves.second)]
        # of its own class: what the half says beside the other half is what is left without both
        alone = [every[rows, mine] - other[rows, mine] for other in parts[::-1]]
        joint = _log_sum(prior + every)
        sides = ((halves.first, halves.second), (halves.second, halves.first))
        for h, (part, (_, left)) in enumerate(zip(parts, sides, strict=True)):
            part[rows, mine] = alone[h]
            known = _log_sum(prior + part)
            logs[h, s] = joint - known
            weights = np.exp(prior + part - known[:, None])
            # its own class knows the half that is known
            precision = classes.precision[mine] - left.products / noise[:, None]
            linear = classes.linear[mine] - left.cross / noise
            moved = np.linalg.solve(precision, linear[:, :, None])[:, :, 0]
            mixture = weights @ classes.mean + weights[rows, mine, None] * (
                moved - classes.mean[mine]
            )
            means[h].append(np.einsum("nf,nf->n", left.x, mixture[_owner(left)]))
    return _over_sweeps(logs, means, halves)


def degree_scores(
    blocks: Blocks, sweeps: Sequence[Sweep], halves: Halves, rng: np.random.Generator
) -> Scores:
    """The same as `class_scores` of classes with degrees.

    Coefficients of an entity, under each class, are those of its class plus its own, and normal
    given the known half. Under t noise the density of the other half is averaged over draws of
    them: what a row weighs is known only where its outcome is.

    Parameters
    ----------
    blocks : Blocks
        As the table has them.
    sweeps : sequence of Sweep
    halves : Halves
    rng : numpy.random.Generator
    """
    m, f = len(halves.at), blocks.n_features
    logs = np.zeros((2, len(sweeps), m))
    means: list[list[FloatArray]] = [[], []]
    place = np.zeros(len(blocks.entity), dtype=np.int64)
    place[blocks.order] = np.arange(len(blocks.order))
    sides = ((halves.first, halves.second), (halves.second, halves.first))
    noise = rng.standard_normal((_TAIL_DRAWS, m, f, 1))
    for s, sweep in enumerate(sweeps):
        given, k = sweep.degrees, len(sweep.base)
        white = view_of(blocks, given).white
        sigma2 = np.broadcast_to(sweep.sigma2, k)
        classes = classes_of(totals_of(white, sweep.labels, k), sweep.sigma2, sweep.delta2)
        inverses, mine = np.linalg.inv(classes.precision), sweep.labels[halves.at]
        prior = _log_prior(blocks, sweep, halves.at)
        for h, (known, left) in enumerate(sides):
            if given.precision is not None:
                precision = given.precision[place[halves.rows[known.order]]]
                known = view_of(known, replace(NO_DEGREES, precision=precision)).scaled
            density, later = np.zeros((m, k)), np.zeros((m, k))
            moved = np.zeros((m, k, f))
            for c in range(k):
                # an entity in this class is taken out of it
                at = halves.at[mine == c]
                spread = np.repeat(inverses[[c]], m, axis=0)
                mean = np.repeat(classes.mean[[c]], m, axis=0)
                spread[mine == c] = np.linalg.inv(
                    classes.precision[c] - white.products[at] / sigma2[c]
                )
                linear = classes.linear[c] - white.cross[at] / sigma2[c]
                mean[mine == c] = _apply(spread[mine == c], linear)
                root = _root(spread / sigma2[c] + given.spread(f))
                density[:, c], moved[:, c] = _normal(known, mean, root, float(sigma2[c]))
                if given.precision is None:
                    every = _normal(halves.whole, mean, root, float(sigma2[c]))[0]
                    later[:, c] = every - density[:, c]
                else:
                    inner = np.eye(f) + np.swapaxes(root, 1, 2) @ known.products @ root
                    turned = np.swapaxes(np.linalg.cholesky(inner), 1, 2)
                    away = (root @ np.linalg.solve(turned, noise))[..., 0] * np.sqrt(sigma2[c])
                    later[:, c] = _tail_density(
                        left, moved[:, c] + away, float(sigma2[c]), given.df
                    )
            logs[h, s] = _log_sum(prior + density + later) - _log_sum(prior + density)
            weights = np.exp(prior + density - _log_sum(prior + density)[:, None])
            mixture = np.einsum("mk,mkf->mf", weights, moved)
            means[h].append(np.einsum("nf,nf->n", left.x, mixture[_owner(left)]))
    return _over_sweeps(logs, means, halves)


def _tail_density(left: Blocks, drawn: FloatArray, sigma2: float, df: float) -> FloatArray:
    """Log density of the events of each entity under t noise, over draws (J, m, F), (m,)."""
    logs = np.empty((left.n_entities, len(drawn)))
    for j, coefficients in enumerate(drawn):
        away = left.y - np.einsum("nf,nf->n", left.x, coefficients[_owner(left)])
        logs[:, j] = by_entity(left, row_log_density(away**2 / sigma2, left.weight, df))
    scale = 0.5 * left.n * np.log(sigma2)
    return np.asarray(_log_sum(logs) - np.log(len(drawn)) - scale)


def _log_prior(blocks: Blocks, sweep: Sweep, at: IntArray) -> FloatArray:
    """``log(N_i^k + beta psi_k)`` of some entities, themselves not counted, (m, K)."""
    counts = np.zeros((blocks.n_agents, len(sweep.base)))
    np.add.at(counts, (blocks.agent, sweep.labels), 1.0)
    others = counts[blocks.agent[at]]
    others[np.arange(len(at)), sweep.labels[at]] -= 1.0
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(others + sweep.beta * sweep.base))


def _over_sweeps(logs: FloatArray, means: list[list[FloatArray]], halves: Halves) -> Scores:
    """Harmonic means of densities (2, S, m) over sweeps, and predictions weighted alike."""
    m, n_sweeps = len(halves.at), logs.shape[1]
    scores = Scores(np.zeros(m), np.zeros(m))
    for h, left in enumerate((halves.second, halves.first)):
        odds = _log_sum(-logs[h].T)
        scores.log_score[:] += np.log(n_sweeps) - odds
        share = np.exp(-logs[h] - odds)[:, _owner(left)]
        scores.error[:] += _squared(left, (share * np.array(means[h])).sum(axis=0))
    return scores


def _solve(left: FloatArray, right: FloatArray) -> FloatArray:
    """Solve with matrices (E, q, q) that are 1 and a nonnegative one.

    Made-up parameters can make an entity's singular by rounding: its answer is another then, and
    nobody else's, since what is told of all would else follow that entity's values.
    """
    try:
        return np.asarray(np.linalg.solve(left, right))
    except np.linalg.LinAlgError:
        right = np.broadcast_to(right, (len(left), *right.shape[-2:]))
        if len(left) > 1:
            each = [_solve(a[None], b[None]) for a, b in zip(left, right, strict=True)]
            return np.concatenate(each)
        values, u = np.linalg.eigh(left)
        return np.asarray(u @ (np.swapaxes(u, -1, -2) @ right / np.maximum(values, 1.0)[..., None]))


def _normal(
    part: Blocks, mean: FloatArray, root: FloatArray, sigma2: float
) -> tuple[FloatArray, FloatArray]:
    """Log density of the events under ``N(X m, sigma2 (I + X L L' X'))``, and the mean they make.

    Parameters
    ----------
    part : Blocks
    mean, root : (E, F) and (E, F, F) arrays
        m and L of each entity.
    sigma2 : float

    Returns
    -------
    density : (E,) array
    moved : (E, F) array
        Posterior mean of the entity's coefficients.
    """
    s = part.products
    g = part.cross - _apply(s, mean)
    squares = part.squares - (mean * (part.cross + g)).sum(axis=1)
    turned = np.swapaxes(root, 1, 2)
    inner = np.eye(s.shape[1]) + turned @ s @ root
    at_root = _apply(turned, g)
    solved = np.asarray(_solve(inner, at_root[:, :, None])[:, :, 0], dtype=np.float64)
    squares = np.maximum(squares - (at_root * solved).sum(axis=1), 0.0)
    log_det = np.linalg.slogdet(inner)[1]
    density = -0.5 * (part.n * (_LOG_2PI + np.log(sigma2)) + log_det + squares / sigma2)
    return density, mean + _apply(root, solved)


def _owner(part: Blocks) -> IntArray:
    """Entity of each row with an outcome."""
    return np.repeat(np.arange(part.n_entities), np.diff(part.start))


def _squared(part: Blocks, predicted: FloatArray) -> FloatArray:
    """Sum of squared errors of each entity."""
    found = np.bincount(_owner(part), weights=(part.y - predicted) ** 2, minlength=part.n_entities)
    return np.asarray(found, dtype=np.float64)


def _log_sum(logs: FloatArray) -> FloatArray:
    """Log of the sum of exponentials over the last axis."""
    most = logs.max(axis=-1, keepdims=True)
    return np.asarray(most[..., 0] + np.log(np.exp(logs - most).sum(axis=-1)))


# ------------------------------------------------------------------------------- kinds or degrees


class Difference(NamedTuple):
    """What one model has over another, per event, with standard errors over entities.

    Attributes
    ----------
    log_score, log_error : float
        Mean log density.
    saved, saved_error : float
        Squared error saved, as a share of that of the other.
    clear : bool
        Whether both are above 0 beyond chance (two-sided 5% each). Log density alone would take
        heavy tails for classes, which are wider than one normal; squared error alone says little
        of classes that are hard to tell.
    """

    log_score: float
    log_error: float
    saved: float
    saved_error: float
    clear: bool

    @property
    def ahead(self) -> bool:
        """Whether both are above 0 by more than their standard errors."""
        return bool(self.log_score > self.log_error and self.saved > self.saved_error)

    @property
    def told(self) -> str:
        """Both with their errors, in parentheses."""
        return (
            f"(log density of an event {self.log_score:+.3f} \N{PLUS-MINUS SIGN} "
            f"{self.log_error:.3f}, squared error {-self.saved:+.1%} \N{PLUS-MINUS SIGN} "
            f"{self.saved_error:.1%})"
        )


@dataclass(frozen=True, eq=False)
class Evidence:
    """Classes beside one regression and a mixed model on events that each of them left out.

    Attributes
    ----------
    verdict : {"kinds", "degrees, not kinds", "no evidence of kinds"}
        Kinds, where classes predict better than one regression, and than every mixed model by
        their log density without more squared error. Degrees, where classes or the mixed model
        predict better than one regression.
    n_classes : int
        Classes that were compared.
    one_is_enough : bool
        Whether classes are not even a standard error ahead of one regression in both figures; or,
        where classes have degrees or t noise, one class of the same model predicts as well.
    n_entities : int
        Entities that were left out in turn.
    curved : bool
        Whether the squares of the columns predict better than the columns alone: one regression
        and mixed model have them then.
    random : str
        Of the mixed model: "intercepts", "intercepts and slopes" or, without an intercept,
        "slopes", which end in "of entities and agents" where agents have own ones, too; or "the
        same model of one class". It is what predicts best, of those that classes are not ahead of
        if there are any. Agents have coefficients of their own where there are several, and one has
        several entities. The last is there for classes with degrees or t noise.
    log_score, error : dict of float
        Mean log density and mean squared error by event (in the units of y) of ``one regression``,
        ``mixed model`` and ``classes``.
    to_one, to_mixed, mixed_to_one : Difference
        Of classes and one regression, classes and mixed model, mixed model and one regression.
    """

    verdict: str
    n_classes: int
    one_is_enough: bool
    n_entities: int
    curved: bool
    random: str
    log_score: dict[str, float]
    error: dict[str, float]
    to_one: Difference
    to_mixed: Difference
    mixed_to_one: Difference

    @property
    def sentence(self) -> str:
        """The verdict with the differences and their standard errors."""
        k, one, mixed = f"{self.n_classes} classes", "one regression", "a mixed model"
        mixed = self.random if self.random == SAME else f"{mixed} with random {self.random}"
        beside_one, beside_mixed = self.to_one.told, self.to_mixed.told
        if self.verdict == KINDS:
            said = f"{k} predict better than {one} {beside_one} and than {mixed} {beside_mixed}"
        elif self.n_classes > 1 and self.to_one.clear:
            said = f"{k} predict better than {one} {beside_one}, but not clearly better than "
            said += f"{mixed} {beside_mixed}"
        else:
            better = "predicts" if self.mixed_to_one.clear else "does not predict clearly"
            said = f"{mixed} {better} better than {one} {self.mixed_to_one.told}"
            if self.n_classes > 1:
                ahead = ", though by more than a standard error" if self.to_one.ahead else ""
                worse = self.to_one.saved < -self.to_one.saved_error
                better = "predict worse" if worse else "do not predict clearly better"
                said = f"{k} {better} than {one} {beside_one}{ahead}; {said}"
        if self.curved:
            said += "; one regression and mixed model have the squares of the columns too, which "
            said += "predict better than the columns alone: add them"
        judged = f"judged on the events of {self.n_entities} entities, each left out in turn"
        return f"{self.verdict}: {judged}, {said}"


def evidence_of(
    events: Rows,
    blocks: Blocks,
    sweeps: Sequence[Sweep],
    n_classes: int,
    rng: np.random.Generator,
    *,
    one: Sequence[Sweep] = (),
    intercept: bool,
    unit: float,
) -> Evidence | None:
    """Compare classes with degrees; None where too few entities have two events.

    Parameters
    ----------
    events : Rows
    blocks : Blocks
        Their sums.
    sweeps : sequence of Sweep
        Of the chain that is kept.
    n_classes : int
        K, as the result has it.
    rng : numpy.random.Generator
        For halves of the events.
    one : sequence of Sweep
        Of the same model with one class, where classes have degrees or t noise.
    intercept : bool
        Whether the first column is that of ones.
    unit : float
        Standard deviation of y in the units of the table.
    """
    u = rng.random(len(events.y))
    halves = halves_of(events, blocks, u)
    f = blocks.n_features
    if halves is None or float(blocks.n.sum()) < 2 * f:
        return None
    try:
        if sweeps[0].degrees.none:
            classes = class_scores(blocks, sweeps, halves)
        else:
            classes = degree_scores(blocks, sweeps, halves, rng)
        own = own_coefficients(f, intercept)
        random: dict[str, tuple[Sequence[int], Sequence[int]]]
        random = {name: (j, ()) for name, j in own.items()}
        if 1 < blocks.n_agents < blocks.n_entities:
            random |= {f"{name} of entities and agents": (j, j) for name, j in own.items()}
        rivals = [_rival(blocks, halves, *j) for j in (((), ()), *random.values())]
        curved = False
        if f <= MOST_COLUMNS:
            wider = events._replace(x=np.column_stack([events.x, events.x[:, intercept:] ** 2]))
            wide = blocks_of(wider.x, wider.y, wider.entity, wider.agent, wider.weight)
            apart = halves_of(wider, wide, u)
            if apart is not None:
                bent = _rival(wide, apart, (), ())
                curved = _difference(bent, rivals[0], halves).clear
                if curved:
                    rivals = [bent, *(_rival(wide, apart, *j) for j in random.values())]
    except (np.linalg.LinAlgError, DataError):
        return None  # columns that depend on one another under weights that leave no prior
    regression, *mixed = rivals
    if len(one):
        mixed.append(degree_scores(blocks, one, halves, rng))
    n = halves.whole.n.sum()
    if not all(
        np.isfinite(part).all() for scores in (classes, regression, *mixed) for part in scores
    ):
        return None

    def beats(other: Difference) -> bool:
        return other.log_score > _limit(halves) * other.log_error and other.saved > 0

    # Noise with tails makes one class the likeliest of all where own coefficients predict better.
    beaten = [beats(_difference(classes, rival, halves)) for rival in mixed]
    best = max(range(len(mixed)), key=lambda i: (not beaten[i], mixed[i].log_score.sum()))
    models = {"one regression": regression, "mixed model": mixed[best], "classes": classes}
    to_one, to_mixed, mixed_to_one = (
        _difference(model, rival, halves)
        for model, rival in (
            (classes, regression),
            (classes, mixed[best]),
            (mixed[best], regression),
        )
    )
    if n_classes > 1 and to_one.clear and all(beaten):
        verdict = KINDS
    elif (n_classes > 1 and to_one.clear) or mixed_to_one.clear:
        verdict = DEGREES
    else:
        verdict = NO_KINDS
    # What is fitted follows another rule than what is said, since few entities often fail to show
    # what predicts much better: the simplest model within a standard error of the best (Breiman,
    # Friedman, Olshen, Stone, Classification and Regression Trees, 1984, section 3.4.3).
    enough = not to_one.ahead if n_classes > 1 else verdict == NO_KINDS
    if len(one):
        enough |= not beaten[-1]
    return Evidence(
        verdict,
        n_classes,
        enough,
        len(halves.at),
        curved,
        (*random, SAME)[best],
        {k: float(v.log_score.sum() / n - np.log(unit)) for k, v in models.items()},
        {k: float(v.error.sum() / n * unit**2) for k, v in models.items()},
        to_one,
        to_mixed,
        mixed_to_one,
    )


def own_coefficients(n_columns: int, intercept: bool) -> dict[str, tuple[int, ...]]:
    """Columns of the design with own coefficients in each of the mixed models, by their name."""
    own: dict[str, tuple[int, ...]] = {"intercepts": (0,)} if intercept else {}
    if n_columns <= MOST_COLUMNS:
        slopes = n_columns > intercept
        own[" and ".join([*own, *["slopes"] * slopes])] = tuple(range(n_columns))
    return own or {"slopes of the first column": (0,)}


def _rival(blocks: Blocks, halves: Halves, random: Sequence[int], between: Sequence[int]) -> Scores:
    """Scores of a mixed model with own coefficients of entities and agents, or none."""
    trace = float(np.trace(blocks.products, axis1=1, axis2=2).sum())
    penalty = max(1.0, _DEPENDENT * trace)
    return mixed_scores(mixed_model(blocks, random, between, penalty=penalty, gain=_GAIN), halves)


def _limit(halves: Halves) -> float:
    from scipy.stats import t

    return float(t.isf(0.025, len(halves.at) - 1))


def _difference(model: Scores, other: Scores, halves: Halves) -> Difference:
    """Of a model over another: ratios of sums over entities, and their errors."""
    n, m, limit = halves.whole.n, len(halves.at), _limit(halves)

    def ratio(gain: FloatArray, size: FloatArray) -> tuple[float, float]:
        value = float(gain.sum() / size.sum())
        rest = float(((gain - value * size) ** 2).sum()) * m / (m - 1)
        return value, np.sqrt(rest) / float(size.sum())

    log_score = ratio(model.log_score - other.log_score, n)
    saved = ratio(other.error - model.error, np.maximum(other.error, np.finfo(float).tiny))
    clear = log_score[0] > limit * log_score[1] and saved[0] > limit * saved[1]
    return Difference(*log_score, *saved, bool(clear))

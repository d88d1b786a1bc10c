"""Marginal likelihood of latent classes, mergers that raise it, and draws of what they share.

Given its entities, a class is a Bayesian linear regression with known noise: coefficients
``w_k ~ N(0, delta2 I)``, events ``y ~ N(w_k'x, sigma2)``. All that is needed here are the totals of
each class (sums of ``xx'``, ``xy``, ``yy``, events, entities), never an event.

A merger gains what the classes' events are likelier under one regression than under two; labels
that were drawn fit their classes, so it costs the entropy of the labels between the two.

Source: arXiv 2206.10783, section 3 (model); marginal likelihood, merging and the draws of sigma2,
delta2 and psi are not in it. Derivation: ``docs/proofs/latent-classes.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError
from consilience.parameters import LEFT_OUT, check, number, whole

if TYPE_CHECKING:
    from consilience.latent_regression.kernels.latent_class import Classes, Totals


SIGMA2_PRIOR = (0.5, 0.5e-3)
"""Shape and rate of sigma2's inverse gamma: one event of squared residual 0.001 (var y = 1)."""
DELTA2_PRIOR = (0.5, 0.05)
"""Shape and rate of delta2's inverse gamma: one coefficient with a square of 0.1."""
NOISE_DF = 4.0
"""Of the prior of a class's own noise, ``sigma2_k ~ InvGamma(df/2, df s/2)``: 90% of its standard
deviations are from .65 to 2.4 times the root of s."""
SCALE_PRIOR = (0.5, 0.5)
"""Shape and rate of the gamma prior of s: as the square of a normal number (var y = 1)."""
BETAS: FloatArray = 2.0 ** np.arange(-3.0, 8.5, 0.5)
"""Grid of the concentration beta of an agent's shares of the classes."""

Noise = float | FloatArray
"""Variance of the noise: of all classes, or of each, (K,)."""
POSITIVE = number(above=0)
_TINY = np.finfo(np.float64).tiny
_SHARE_OF_VARIANCE = 1e-6  # least start of sigma2, relative to the mean square of y
_MODE_STEPS = 10  # to the most likely noise of a class
_STEP = 0.5
_NODES: FloatArray = _STEP * np.arange(-96.0, 97.0)  # of its logarithm, in standard deviations


# --------------------------------------------------------------------------- marginal likelihood


def log_marginal(totals: Totals, sigma2: Noise, delta2: float) -> FloatArray:
    """Log density of the events of each class, its coefficients integrated out.

    Parameters
    ----------
    totals : Totals
        K classes.
    sigma2 : float or (K,) array
        Variance of the noise, of all classes or of each.
    delta2 : float
        Of a coefficient.

    Returns
    -------
    (K,) array
        ``log N(y; 0, sigma2 I + delta2 X X')`` with all its constants, so that sums over classes
        compare across K; 0 for a class without events. With frequency weights a row counts as
        often as its weight says.

    Raises
    ------
    ParameterError
        A variance that is not positive.
    DataError
        Totals that are no sums of outer products.
    """
    _, mean, log_det = coefficient_posterior(totals.products, totals.cross, sigma2, delta2)
    exponent = residuals(totals, mean) / sigma2 + np.einsum("kf,kf->k", mean, mean) / delta2
    return np.asarray(
        -0.5 * (totals.n * np.log(2.0 * np.pi * sigma2) + log_det + exponent), dtype=np.float64
    )


def log_marginal_noise(
    totals: Totals, scale: float, delta2: float
) -> tuple[FloatArray, FloatArray]:
    """The same with each class's own noise integrated out, too.

    Parameters
    ----------
    totals : Totals
        K classes.
    scale : float
        s of the prior ``sigma2_k ~ InvGamma(df/2, df s/2)``, df = `NOISE_DF`.
    delta2 : float

    Returns
    -------
    log_density : (K,) array
        By the trapezoidal rule over log sigma2, to 1e-7.
    sigma2 : (K,) array
        The most likely noise.
    """
    check_variances(scale, delta2)
    values, vectors = np.linalg.eigh(totals.products)
    values = np.maximum(values, 0.0)
    squares = np.einsum("kfg,kf->kg", vectors, totals.cross) ** 2
    n, rate = totals.n + NOISE_DF, NOISE_DF * scale

    def at(sigma2: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Squared residuals of the mean coefficients with their penalty, and ``sigma2 + d2 v``."""
        grown = sigma2[..., None] + delta2 * values[:, None]
        fitted = (delta2 * squares[:, None] / grown).sum(axis=-1)
        return np.maximum(totals.squares[:, None] - fitted, 0.0), grown

    sigma2 = np.full((len(n), 1), scale)
    for _ in range(_MODE_STEPS):
        # EM: the expected squared residuals, over coefficients given the last sigma2
        rest, grown = at(sigma2)
        shrunk = sigma2[..., None] / grown
        penalty = delta2 * squares[:, None] / grown**2 * sigma2[..., None]
        expected = rest - penalty.sum(axis=-1) + sigma2 * (1.0 - shrunk).sum(axis=-1)
        sigma2 = (np.maximum(expected, 0.0) + rate) / n[:, None]
    # the least standard deviation of log sigma2; of few events there may be two modes, far apart
    width = np.sqrt(2.0 / n)[:, None]
    nodes = sigma2 * np.exp(width * _NODES)
    rest, grown = at(nodes)
    log_dets = np.log(grown / nodes[..., None]).sum(axis=-1)
    logs = -0.5 * (totals.n[:, None] * np.log(2.0 * np.pi * nodes) + log_dets + rest / nodes)
    # density of log sigma2 under its prior
    half = 0.5 * NOISE_DF
    logs += half * math.log(0.5 * rate) - math.lgamma(half) - half * np.log(nodes)
    logs -= 0.5 * rate / nodes
    most = logs.max(axis=1)
    found = most + np.log(np.exp(logs - most[:, None]).sum(axis=1) * width[:, 0] * _STEP)
    return np.asarray(found), sigma2[:, 0]


def residuals(totals: Totals, weights: FloatArray) -> FloatArray:
    """Squared residuals of the events of each class, (K,), under its coefficients (K, F)."""
    # |y - X w|^2 = y'y + w'(S w - 2 r), with S = X'X and r = X'y
    away = np.einsum("kfg,kg->kf", totals.products, weights) - 2.0 * totals.cross
    each = totals.squares + np.einsum("kf,kf->k", weights, away)
    return np.asarray(np.maximum(each, 0.0))


def check_variances(sigma2: Noise, delta2: float) -> None:
    """Both must be above 0."""
    for each in sigma2 if isinstance(sigma2, np.ndarray) else [sigma2]:
        check({"sigma2": POSITIVE, "delta2": POSITIVE}, {"sigma2": each, "delta2": delta2})


def coefficient_posterior(
    products: FloatArray, cross: FloatArray, sigma2: Noise, delta2: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """``A = delta2 D = I + (delta2/sigma2) S`` of each class, its mean, and ``log|A|``."""
    check_variances(sigma2, delta2)
    # A = delta2 D has a diagonal of at least 1, whatever the units
    ratio = np.asarray(delta2 / sigma2)
    with np.errstate(over="ignore", invalid="ignore"):  # refused in the next line
        scaled = np.eye(cross.shape[1]) + ratio[..., None, None] * products
        linear = ratio[..., None] * cross
    if not (np.isfinite(scaled).all() and np.isfinite(linear).all()):
        raise DataError("the sums of a class are not finite: bring the columns to a common scale")
    try:
        root = np.linalg.cholesky(scaled)
    except np.linalg.LinAlgError as error:
        raise DataError(
            "the sums of a class are no sums of squares, or so large that they round to none: "
            "bring the columns to a common scale"
        ) from error
    mean = np.linalg.solve(scaled, linear[..., None])[..., 0]
    log_det = 2.0 * np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    return scaled, np.asarray(mean), np.asarray(log_det)


def each_share(alpha: float, n_classes: int) -> float:
    """alpha/K; `ParameterError` unless alpha is a positive number."""
    check({"alpha": POSITIVE}, locals())
    return alpha / max(n_classes, 1)


# --------------------------------------------------------------------------- draws


def draw_weights(classes: Classes, rng: np.random.Generator) -> FloatArray:
    """Draw ``w_k ~ N(m_k, D_k^-1)`` for every class, shape (K, F)."""
    noise = rng.standard_normal(classes.mean.shape)
    # w = m + L'^-1 e has the covariance (L L')^-1 = D^-1
    root = np.swapaxes(np.asarray(classes.cholesky), 1, 2)
    return np.asarray(classes.mean + np.linalg.solve(root, noise[..., None])[..., 0])


def draw_sigma2(totals: Totals, weights: FloatArray, rng: np.random.Generator) -> float:
    """Draw the variance of the noise, given labels and coefficients.

    With the coefficients integrated out sigma2 has no known distribution. So they are drawn first,
    given the last sigma2 and delta2 (`draw_weights`), and then
    ``sigma2 | w ~ InvGamma(shape + n/2, rate + sum_k |y_k - X_k w_k|^2 / 2)`` with the shape and
    rate of `SIGMA2_PRIOR`. The coefficients may then be forgotten: labels, sigma2 and delta2 keep
    their joint posterior.

    Parameters
    ----------
    totals : Totals
        K classes.
    weights : (K, F) array
        Drawn coefficients (`draw_weights`) under the last sigma2 and delta2; delta2 is to be drawn
        with the same ones.
    rng : numpy.random.Generator
    """
    squares = float(np.sum(residuals(totals, weights)))
    return _inverse_gamma(SIGMA2_PRIOR, float(np.sum(totals.n)), squares, rng)


def draw_class_noise(
    totals: Totals, weights: FloatArray, scale: float, rng: np.random.Generator
) -> tuple[FloatArray, float]:
    """Draw the noise of each class as `draw_sigma2` does that of all, and then what they share.

    Parameters
    ----------
    totals, weights, rng
        As in `draw_sigma2`.
    scale : float
        s of the prior ``sigma2_k ~ InvGamma(df/2, df s/2)``, df = `NOISE_DF`.

    Returns
    -------
    sigma2 : (K,) array
        ``InvGamma((df + n_k)/2, (df s + |y_k - X_k w_k|^2)/2)``; of an empty class the prior.
    scale : float
        s anew: ``Gamma(a + K df/2, b + df/2 sum 1/sigma2_k)`` with a and b of `SCALE_PRIOR`.
    """
    rates = 0.5 * (NOISE_DF * scale + residuals(totals, weights))
    drawn = rates / np.maximum(rng.standard_gamma(0.5 * (NOISE_DF + totals.n)), _TINY)
    shape, rate = SCALE_PRIOR
    shape += 0.5 * NOISE_DF * len(drawn)
    rate += 0.5 * NOISE_DF * float(np.sum(1.0 / drawn))
    return drawn, max(float(rng.standard_gamma(shape)) / rate, _TINY)


def draw_delta2(weights: FloatArray, rng: np.random.Generator) -> float:
    """Draw the variance of a coefficient, ``InvGamma(shape + K F/2, rate + sum w^2 / 2)``.

    Parameters
    ----------
    weights : (K, F) array
        Drawn coefficients (`draw_weights`) of the classes that have events: an empty class knows
        no more than the last delta2, and would hold it back. Posterior means are too small.
    rng : numpy.random.Generator
    """
    return _inverse_gamma(DELTA2_PRIOR, weights.size, float(np.sum(weights * weights)), rng)


def draw_psi(tables: ArrayLike, alpha: float, rng: np.random.Generator) -> FloatArray:
    """Draw the shares of the classes, ``psi ~ Dir(alpha/K + tables)``.

    Parameters
    ----------
    tables : (K,) array
        Table counts of each class, summed over agents.
    alpha : float
    rng : numpy.random.Generator

    Returns
    -------
    (K,) array
        Positive, with sum 1: drawn as logarithms, so that a small alpha makes no exact zeros.

    Raises
    ------
    ParameterError
        alpha that is not positive.
    """
    counts = np.asarray(tables, dtype=np.float64)
    a = counts + each_share(alpha, len(counts))
    # Gamma(a) is Gamma(a + 1) U^(1/a), and its logarithm does not underflow
    logs = np.log(rng.standard_gamma(a + 1.0)) + np.log1p(-rng.random(len(a))) / a
    shares = np.maximum(np.exp(logs - logs.max()), _TINY)
    return np.asarray(shares / shares.sum())


def start_sigma2(
    products: FloatArray, cross: FloatArray, squares: ArrayLike, n: ArrayLike
) -> float:
    """Variance of the residuals of one ridge regression for all events.

    It contains what the classes differ by, and is a start from above.

    Parameters
    ----------
    products, cross, squares, n : arrays, (.., F, F), (.., F), (..,), (..,)
        Sums by entity, by class or of everything.

    Returns
    -------
    float
        Residual sum of squares over the degrees of freedom that are left, between a millionth of
        the mean square of y and the mean square itself; positive also where y is 0 throughout.
    """
    f = np.asarray(cross).shape[-1]
    s = np.asarray(products, dtype=np.float64).reshape(-1, f, f).sum(axis=0)
    r = np.asarray(cross, dtype=np.float64).reshape(-1, f).sum(axis=0)
    q, events = float(np.sum(squares)), float(np.sum(n))
    if not (events > 0 and q > 0):
        return _SHARE_OF_VARIANCE
    penalised = s + np.eye(f)
    w = np.linalg.solve(penalised, r)
    left = events - float(np.trace(np.linalg.solve(penalised, s)))
    residual = max(q - 2.0 * float(w @ r) + float(w @ s @ w), 0.0) / max(left, 1.0)
    return min(max(residual, _SHARE_OF_VARIANCE * q / events), q / events)


def _inverse_gamma(
    prior: tuple[float, float], n: float, squares: float, rng: np.random.Generator
) -> float:
    """Draw a variance, given n normal deviations from their known means and a proper prior."""
    shape, rate = prior
    return (rate + 0.5 * squares) / max(float(rng.standard_gamma(shape + 0.5 * n)), _TINY)


# --------------------------------------------------------------------------- agents


def concentration_log_likelihood(
    agent_counts: ArrayLike, base: ArrayLike, betas: ArrayLike
) -> FloatArray:
    """Log likelihood of beta from the classes of the entities of each agent.

    Parameters
    ----------
    agent_counts : (A, K) array of int
        Entities of each agent in each class.
    base : (K,) array
        psi; sum 1.
    betas : (G,) array
        Values of beta, for instance `BETAS`.

    Returns
    -------
    (G,) array
        Sum over agents of the Dirichlet-multinomial log probabilities of their labels under
        ``theta_i ~ Dir(beta psi)``; ``-inf`` where a class has entities and no share. Sums over
        sites of agents add up.

    Raises
    ------
    ParameterError
        A beta that is not positive.
    """
    from scipy.special import gammaln

    grid = np.asarray(betas, dtype=np.float64)
    if not (np.isfinite(grid).all() and (grid > 0).all()):
        raise ParameterError.of("beta", POSITIVE.words, betas)
    counts = np.asarray(agent_counts, dtype=np.int64)
    psi = np.asarray(base, dtype=np.float64)
    sizes, often = np.unique(counts.sum(axis=1), return_counts=True)
    found = (gammaln(grid)[:, None] - gammaln(grid[:, None] + sizes)) @ often
    # each number of entities of each class once, whatever the agent
    of_class = np.arange(counts.shape[1]) * (int(counts.max(initial=0)) + 1)
    cells, often = np.unique((counts + of_class)[counts > 0], return_counts=True)
    k = np.searchsorted(of_class, cells, side="right") - 1
    if not (psi[k] > 0).all():
        return np.full(len(grid), -np.inf)
    a = grid[:, None] * psi[k]
    found = found + (gammaln(a + (cells - of_class[k])) - gammaln(a)) @ often
    return np.asarray(found, dtype=np.float64)


def align_classes(probabilities: FloatArray, reference: FloatArray, sizes: FloatArray) -> IntArray:
    """Find the order of classes in which labels agree best with others.

    Parameters
    ----------
    probabilities, reference : (E, K) arrays
        Of each entity's label; rows of `reference` need not sum to 1.
    sizes : (E,) array
        Weight of each entity: its events.

    Returns
    -------
    (K,) array of int64
        ``probabilities[:, order]`` is nearest to `reference`: no other order has a larger
        ``sum_e sizes_e sum_k p_ek r_ek``.
    """
    from scipy.optimize import linear_sum_assignment

    overlap = (np.asarray(reference) * np.asarray(sizes)[:, None]).T @ np.asarray(probabilities)
    return np.asarray(linear_sum_assignment(overlap, maximize=True)[1], dtype=np.int64)


def coefficient_moments(
    kept: Sequence[Classes], weights: ArrayLike | None = None
) -> tuple[FloatArray, FloatArray]:
    """Mean and covariance of the coefficients of each class over kept rounds.

    Parameters
    ----------
    kept : sequence of R Classes
        Of rounds in which class k is the same class.
    weights : (R, K) array, optional
        How much each round says of each class: its expected events. A class that stood empty in a
        round says what the prior says, and not what its coefficients were. By default, and for a
        class that was empty throughout, all rounds count alike.

    Returns
    -------
    mean : (K, F) array
    covariance : (K, F, F) array
        Law of total variance: mean of the posterior covariances plus covariance of the means, of
        the mixture of the R posteriors.

    Raises
    ------
    DataError
        No round.
    """
    if not len(kept):
        raise DataError("moments of coefficients need at least one round")
    means = np.stack([classes.mean for classes in kept])
    share = np.ones(means.shape[:2]) if weights is None else np.array(weights, dtype=np.float64)
    # a class that stood empty throughout: all rounds alike
    share[:, ~(share.sum(axis=0) > 0)] = 1.0
    share /= share.sum(axis=0)
    mean = np.einsum("rk,rkf->kf", share, means)
    covariance = np.zeros(mean.shape + mean.shape[1:])
    for classes, part in zip(kept, share, strict=True):  # one round at a time: little memory
        away = classes.mean - mean
        spread = np.linalg.inv(classes.precision) + away[:, :, None] * away[:, None, :]
        covariance += part[:, None, None] * spread
    return mean, (covariance + np.swapaxes(covariance, 1, 2)) / 2


# ------------------------------------------------------------------------------------------ mergers


Entropies = Callable[[IntArray, int | None], FloatArray]
"""Entropies of labels between classes that merge, see `label_entropies`."""

_ENTRIES_PER_CHUNK = 1 << 21
_RESIDUE = 0.5  # a smoothed class with less than half an entity is what a class has left behind


def pair_entropies(probabilities: FloatArray) -> FloatArray:
    """Uncertainty of the labels between each two classes, which is gone when they become one.

    Parameters
    ----------
    probabilities : (E, K) array
        Of each entity's label.

    Returns
    -------
    (K, K) array
        ``sum_e -(p_a log p_a/(p_a + p_b) + p_b log p_b/(p_a + p_b))``; 0 on the diagonal.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    k = p.shape[1]
    found = np.zeros((k, k))
    plain = _p_log_p(p).sum(axis=0)
    for a in range(k):
        # entropy of the split of p_a + p_b into its parts
        both = _p_log_p(p[:, [a]] + p[:, a + 1 :]).sum(axis=0)
        found[a, a + 1 :] = found[a + 1 :, a] = np.maximum(both - plain[a] - plain[a + 1 :], 0.0)
    return found


def label_entropies(probabilities: FloatArray) -> Entropies:
    """Entropies between classes that merge, from the labels' probabilities (E, K).

    Returns
    -------
    callable
        Of the class that each of the K has become, (K,), and of one class or None: the entropies of
        that class with all, (K,), or of all pairs, (K, K).
    """
    p = np.asarray(probabilities, dtype=np.float64).T

    def between(group: IntArray, row: int | None = None) -> FloatArray:
        """Entropies by the labels' probabilities, added up over what has become one class."""
        merged = np.zeros_like(p)
        np.add.at(merged, group, p)
        if row is None:
            return pair_entropies(merged.T)
        alone = _p_log_p(merged).sum(axis=1)
        one = _p_log_p(merged + merged[row]).sum(axis=1) - alone - alone[row]
        one[row] = 0.0
        return np.asarray(np.maximum(one, 0.0))

    return between


def expected_entropies(totals: Totals, sigma2: float, delta2: float) -> Entropies:
    """Entropies between classes that merge, as they are to be expected from the sums alone.

    Returns
    -------
    callable
        As `label_entropies`.

    Notes
    -----
    For an entity of class a with the mean products S of its class, the log likelihood ratio of a
    against b is ``N(d/2, d)`` with ``d = (m_a - m_b)' S (m_a - m_b) / sigma2``; the entropy of the
    two labels is integrated over it (Gauss-Hermite), with the numbers of entities as prior. That
    entities differ in size, and agents in shares, is passed over.
    """
    k = totals.n_classes
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    shares = weights / weights.sum()

    def between(group: IntArray, row: int | None = None) -> FloatArray:
        """Entropies that are to be expected between classes with these sums."""
        merged = totals.merged(group, k)
        _, mean, _ = coefficient_posterior(merged.products, merged.cross, sigma2, delta2)
        counts = np.maximum(np.asarray(merged.counts, dtype=np.float64), 0.0)
        some = np.where(counts > 0, counts, 1.0)
        each = merged.products / some[:, None, None]

        def one_way(a: IntArray, b: IntArray) -> FloatArray:
            """Entropies of the labels of the entities of `a`, against `b`."""
            step = mean[a] - mean[b]
            # d = (m_a - m_b)' S (m_a - m_b) / sigma2; the log likelihood ratio is N(d/2, d)
            distance = np.maximum(np.einsum("nf,nfg,ng->n", step, each[a], step), 0.0) / sigma2
            ratio = distance[:, None] / 2 + np.sqrt(distance)[:, None] * nodes
            ratio += np.log(some[a] / some[b])[:, None]
            # cut where the exponential would overflow
            p = 1.0 / (1.0 + np.exp(-np.clip(ratio, -700.0, 700.0)))
            entropy = -(_p_log_p(p) + _p_log_p(1.0 - p)) @ shares
            return np.asarray(np.where((a != b) & (counts[b] > 0), counts[a] * entropy, 0.0))

        every = np.arange(k)
        if row is not None:
            same = np.full(k, row)
            return one_way(same, every) + one_way(every, same)
        a, b = np.divmod(np.arange(k * k), k)
        all_ways = one_way(a, b).reshape(k, k)
        return np.asarray(all_ways + all_ways.T)

    return between


def _p_log_p(p: FloatArray) -> FloatArray:
    return np.asarray(p * np.log(np.where(p > 0, p, 1.0)))


def merge_gain(
    totals: Totals, sigma2: float, delta2: float, alpha: float, *, partition: bool = True
) -> FloatArray:
    """Gain in log probability when two classes become one.

    Parameters
    ----------
    totals : Totals
        K classes.
    sigma2, delta2 : float
        Variance of the noise and of a coefficient.
    alpha : float
        ``psi ~ Dir(alpha/K, .., alpha/K)``, with K the number of rows of `totals`.
    partition : bool
        Add the gain in the log probability of the partition, a Dirichlet-multinomial one times the
        ``K! / (K - k)!`` labellings that are the same partition into k classes, to that of
        `log_marginal`. Without it labels that were fitted to superfluous classes look like evidence
        for them: see Notes.

    Returns
    -------
    (K, K) array
        Symmetric; ``-inf`` on the diagonal, 0 for a class without entities.

    Raises
    ------
    ParameterError
        A variance or alpha that is not positive.
    DataError
        Totals that are no sums of outer products.

    Notes
    -----
    The prior over agents, ``theta_i ~ Dir(beta psi)``, has no closed form in the totals; the
    entities count as draws from psi.  Two halves of one class share n events and N entities at
    random: the data gain about ``F/2 log n`` by a merger, the partition ``N log 2``. Sampled labels
    are not random but fit, which costs up to as much as the partition gains.
    """
    state = _Groups(totals, sigma2, delta2, alpha if partition else None)
    k = len(state.counts)
    first, second = np.triu_indices(k, 1)
    gains = np.full((k, k), -np.inf)
    found = state.gains(first, second) + state.gain_of_labelling(first, second)
    gains[first, second] = gains[second, first] = found
    return gains


def merge_down(
    totals: Totals,
    sigma2: Noise,
    delta2: float,
    *,
    n_classes: int | None,
    alpha: float,
    partition: bool = True,
    entropies: Entropies | None = None,
    noise_scale: float | None = None,
) -> tuple[IntArray, list[tuple[int, float]]]:
    """Merge classes, always the two that gain most.

    Parameters
    ----------
    totals : Totals
        K classes.
    sigma2, delta2 : float
        Variance of the noise and of a coefficient.
    n_classes : int, optional
        Stop at this number, whatever the gains. Without it mergers are made down to a single class
        and undone to where the log probability was highest.
    alpha, partition
        See `merge_gain`. alpha/K stays as it was with the K classes of `totals`.
    entropies : callable, optional
        `label_entropies` or `expected_entropies`. The log probability of events and
        drawn labels plus the entropy of the labels bounds that of the events (its mean is the
        variational bound), so a merger costs the entropy between the two. Without it classes that
        overlap look superfluous.
    noise_scale : float, optional
        With it classes have their own noise, which is integrated out (`log_marginal_noise`).

    Returns
    -------
    mapping : (K,) array of int64
        New class of each old one, in descending order of their entities (ties by the first old
        class in them); there are ``mapping.max() + 1``. A class with less than half an entity, of
        smoothed totals the rest of one that has been left, goes to the class where it fits best.
    path : list of (int, float)
        Classes after each merger that was made and kept, and its gain.

    Raises
    ------
    ParameterError
        `n_classes` below 1, or as `merge_gain`.
    DataError
        As `merge_gain`.
    """
    check({"n_classes": whole(1) | LEFT_OUT}, locals())
    state = _Groups(totals, sigma2, delta2, alpha if partition else None, noise_scale)
    k = len(state.counts)
    lost = np.zeros((k, k)) if entropies is None else entropies(state.group, None)
    first, second = np.triu_indices(k, 1)
    gains = np.full((k, k), -np.inf)
    gains[first, second] = state.gains(first, second) - lost[first, second]
    gains[second, first] = gains[first, second]

    def join(a: int, b: int) -> None:
        """Put b into a, and bring what mergers gain up to date."""
        state.join(a, b)
        gains[b] = gains[:, b] = -np.inf
        others = state.alive[state.alive != a]
        if entropies is not None:
            lost[a] = entropies(state.group, a)
        gains[a, others] = state.gains(np.full(len(others), a), others) - lost[a, others]
        gains[others, a] = gains[a, others]

    for small in np.flatnonzero(state.counts < _RESIDUE):
        into = int(np.argmax(np.where(state.counts >= _RESIDUE, gains[small], -np.inf)))
        if into != small:  # it is where every class is empty
            join(into, int(small))
    path: list[tuple[int, float]] = []
    mappings = [state.group.copy()]
    least = 1 if n_classes is None else n_classes
    while len(state.alive) > least:
        a, b = divmod(int(np.argmax(gains)), k)  # symmetric: the first maximum has a < b
        gain = float(gains[a, b] + state.gain_of_labelling(np.array([a]), np.array([b]))[0])
        join(a, b)
        path.append((len(state.alive), gain))
        mappings.append(state.group.copy())
    kept = len(path)
    if n_classes is None:
        # mergers after the highest log probability are undone
        kept = int(np.argmax(np.cumsum([0.0, *(gain for _, gain in path)])))
    # groups are numbered by size, ties by the first old class in them
    names, members, inverse = np.unique(mappings[kept], return_index=True, return_inverse=True)
    sizes = np.bincount(inverse, weights=totals.counts, minlength=len(names))
    place = np.empty(len(names), dtype=np.int64)
    place[np.lexsort((members, -sizes))] = np.arange(len(names))
    return place[inverse], path[:kept]


class _Groups:
    """Classes that are joined one after the other, with what the gain of a pair needs."""

    def __init__(
        self,
        totals: Totals,
        sigma2: Noise,
        delta2: float,
        alpha: float | None,
        noise_scale: float | None = None,
    ) -> None:
        self.sigma2, self.delta2, self.noise_scale = sigma2, delta2, noise_scale
        self.sums = totals.take(np.arange(totals.n_classes))
        self.counts = self.sums.counts
        k, f = self.sums.cross.shape
        if k == 0:
            raise DataError("there is no class to merge")
        self.each = None if alpha is None else each_share(alpha, k)
        self.group = np.arange(k)
        self.alive = np.arange(k)
        self.scaled, self.mean = np.empty((k, f, f)), np.empty((k, f))
        self.log_det, self.log_density = np.empty(k), np.empty(k)
        self.look(self.alive)

    def look(self, at: IntArray) -> None:
        """Compute what gains need of some classes."""
        sums = self.sums.take(at)
        if self.noise_scale is not None:
            self.log_density[at] = log_marginal_noise(sums, self.noise_scale, self.delta2)[0]
            return
        self.scaled[at], self.mean[at], self.log_det[at] = coefficient_posterior(
            sums.products, sums.cross, self.sigma2, self.delta2
        )

    def gains(self, first: IntArray, second: IntArray) -> FloatArray:
        """Gain of each pair, less what depends on the number of classes alone."""
        found = np.zeros(len(first))
        size = max(1, _ENTRIES_PER_CHUNK // self.mean.shape[1] ** 2)
        for part in np.split(np.arange(len(first)), range(size, len(first), size)):
            a, b = first[part], second[part]
            both = self.sums.take(a) + self.sums.take(b)
            if self.noise_scale is not None:
                as_one = log_marginal_noise(both, self.noise_scale, self.delta2)[0]
                found[part] = as_one - self.log_density[a] - self.log_density[b]
                continue
            _, mean, log_det = coefficient_posterior(
                both.products, both.cross, self.sigma2, self.delta2
            )
            # squared distances from the common mean: the large sums of squares cancel on paper
            away = -np.einsum("pf,pf->p", mean, mean)
            for side in (a, b):
                step = mean - self.mean[side]
                away += np.einsum("pf,pfg,pg->p", step, self.scaled[side], step)
            found[part] = -0.5 * (away / self.delta2 + log_det - self.log_det[a] - self.log_det[b])
        if self.each is not None:
            from scipy.special import gammaln

            n_a, n_b = self.counts[first], self.counts[second]
            found += gammaln(self.each + n_a + n_b) + gammaln(self.each)
            found -= gammaln(self.each + n_a) + gammaln(self.each + n_b)
        return found

    def gain_of_labelling(self, first: IntArray, second: IntArray) -> FloatArray:
        """Gain of the number of labellings that are one partition."""
        # K! / (K - k)! labellings, with k - 1 in the place of k
        used = int(np.count_nonzero(self.counts))
        both = (self.counts[first] > 0) & (self.counts[second] > 0)
        if self.each is None:
            return np.zeros(len(first))
        return np.where(both, -math.log(len(self.counts) - max(used, 1) + 1), 0.0)

    def join(self, a: int, b: int) -> None:
        """Put everything of b into a."""
        for sums in self.sums.arrays:
            sums[a] += sums[b]
            sums[b] = 0.0
        self.group[self.group == b] = a
        self.alive = self.alive[self.alive != b]
        self.look(np.array([a]))

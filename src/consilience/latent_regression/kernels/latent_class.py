"""Likelihood of entities under the classes of a latent class regression.

Model (Yang, Carette, Jimbo, Maruyama, arXiv 2206.10783, section 3): entity j of agent i has one
class k for all its events, ``y = w_k' x + noise`` of variance sigma^2, ``w_k ~ N(0, delta^2 I)``.
Given the other entities, ``w_k ~ N(m, D^-1)`` with ``D = I / delta^2 + X'X / sigma^2`` and
``m = D^-1 X'y / sigma^2``. The events of an entity are judged all at once: the product over events
in the source (with the variance of its equation 4 read as ``sigma^2 + x' D^-1 x``) telescopes to a
normal density with the entity's S, r, q and n, at the price of one Cholesky factorisation.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError
from consilience.latent_regression.kernels.latent_class_sums import (
    Blocks,
    Totals,
    blocks_of,
    kernel_events,
    plain,
    totals_of,
    tree_sum,
)

__all__ = [
    "Blocks",
    "Classes",
    "FloatArray",
    "IntArray",
    "Totals",
    "agent_key",
    "block_log_likelihood",
    "blocks_of",
    "classes_of",
    "draw_uniform",
    "totals_of",
    "tree_sum",
]


@dataclass(frozen=True, eq=False)
class Classes:
    """Posterior of the coefficients of each class, ``N(mean, precision^-1)``.

    Attributes
    ----------
    precision : (K, F, F) array
        ``D = I / delta2 + products / sigma2``.
    mean : (K, F) array
        ``m = D^-1 linear``.
    cholesky : (K, F, F) array
        Lower L with ``L L' = D``.
    log_det : (K,) array
        ``log |D|``.
    sigma2, delta2 : float
        Variance of the noise and of the prior of the coefficients.
    linear : (K, F) array
        ``c = cross / sigma2``.
    """

    precision: FloatArray
    mean: FloatArray
    cholesky: FloatArray
    log_det: FloatArray
    sigma2: float
    delta2: float
    linear: FloatArray

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return int(self.log_det.size)

    def take(self, classes: ArrayLike) -> Classes:
        """Some classes, in the order asked for."""
        index = np.asarray(classes, dtype=np.int64)
        parts = (self.precision, self.mean, self.cholesky, self.log_det)
        precision, mean, cholesky, log_det = (part[index] for part in parts)
        return Classes(
            precision, mean, cholesky, log_det, self.sigma2, self.delta2, self.linear[index]
        )


def classes_of(totals: Totals, sigma2: float, delta2: float) -> Classes:
    """Posterior of the coefficients given the totals (the source's D_k, c_k and A_k).

    Raises
    ------
    ParameterError
        A variance is not positive and finite.
    DataError
        The totals are so large that D has no Cholesky factor of finite numbers.
    """
    check_variances(sigma2, delta2)

    from consilience.latent_regression.kernels import latent_class_kernels as kernels

    k, f = totals.cross.shape
    state = kernels.State(
        np.empty((k, f, f)), np.empty((k, f)), np.zeros((k, f, f)), np.empty((k, f)), np.empty(k)
    )
    kernels.factor_classes(
        plain(totals.products), plain(totals.cross), 1.0 / sigma2, 1.0 / delta2, state
    )
    if not (np.isfinite(state.log_det).all() and np.isfinite(state.mean).all()):
        raise out_of_range()
    return Classes(
        precision=state.precision,
        mean=state.mean,
        cholesky=state.cholesky,
        log_det=state.log_det,
        sigma2=float(sigma2),
        delta2=float(delta2),
        linear=state.linear,
    )


def block_log_likelihood(
    blocks: Blocks, classes: Classes, own: ArrayLike | None = None
) -> FloatArray:
    """Log density of all events of an entity under each class.

    With ``e = y - X m`` and ``g = X'e / sigma^2``, ``M = D + S / sigma^2``::

        -n/2 log(2 pi sigma^2) - (log|M| - log|D|)/2 - (e'e / sigma^2 - g' M^-1 g)/2

    which is the product over n of the source's equation (4), corrected, with equations (8) and (9).

    Parameters
    ----------
    blocks : Blocks
    classes : Classes
    own : (E, K) array, optional
        Weight, from 0 to 1, with which the entity itself is in the totals of each class; it is
        taken out exactly: ``D - own S / sigma^2`` and ``c - own r / sigma^2``.

    Returns
    -------
    (E, K) array
        0 for an entity without events.

    Raises
    ------
    DataError
        A density is not a finite number.
    """
    from consilience.latent_regression.kernels import latent_class_density as density

    e, k = blocks.n_entities, classes.n_classes
    out = np.empty((e, k))
    given = kernel_events(blocks), kernel_state(classes)
    variances = 1.0 / classes.sigma2, 1.0 / classes.delta2
    if not density.likelihoods(*given, *variances, checked_own(own, e, k), 0, e, out):
        raise out_of_range()
    return out


def kernel_state(classes: Classes) -> Any:
    """Classes as compiled code takes them."""
    from consilience.latent_regression.kernels import latent_class_kernels as kernels

    c = classes
    return kernels.State(*map(plain, (c.precision, c.linear, c.cholesky, c.mean, c.log_det)))


def checked_own(own: ArrayLike | None, n_entities: int, n_classes: int) -> FloatArray:
    """Weights of the entities in the totals; without rows: there are none."""
    if own is None:
        return np.zeros((0, n_classes))
    weights = plain(own)
    if weights.shape != (n_entities, n_classes):
        raise ParameterError.of("own", f"of shape {(n_entities, n_classes)}", weights.shape)
    return weights


def check_variances(sigma2: float, delta2: float) -> None:
    """Refuse variances that are not positive finite numbers."""
    for name, value in (("sigma2", sigma2), ("delta2", delta2)):
        if not (np.isfinite(value) and value > 0):
            raise ParameterError.of(name, "positive and finite", value)


def out_of_range() -> DataError:
    """The error of a likelihood that is not a finite number."""
    return DataError(
        "the likelihood of a latent class is not a finite number: "
        "bring features and target to a common scale first"
    )


def agent_key(seed: int, agent: str | int) -> int:
    """Key of an agent's random numbers: below 2^64, from the SHA-256 of seed and agent.

    It does not depend on the site of the agent or on the other agents. ``1`` and ``"1"`` are
    different agents.
    """
    name: str | int = agent if isinstance(agent, str) else int(agent)
    text = repr(("latent class", int(seed), name))
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "little")


def draw_uniform(key: ArrayLike, round_number: int, position: ArrayLike) -> NDArray[np.float64]:
    """Uniform numbers in (0, 1) that depend on key, round and position only.

    Parameters
    ----------
    key, position : array_like of int
        Broadcast against each other; see :func:`agent_key`. A position is that of an entity within
        its agent.
    round_number : int
    """
    from consilience.latent_regression.kernels import latent_class_kernels as kernels

    keys, places = np.broadcast_arrays(
        np.asarray(key, dtype=np.uint64), np.asarray(position, dtype=np.uint64)
    )
    out = np.empty(keys.size)
    kernels.uniforms(keys.ravel(), np.uint64(round_number), places.ravel(), out)
    return out.reshape(keys.shape)

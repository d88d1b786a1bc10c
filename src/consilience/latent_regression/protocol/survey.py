"""What the sites bring: sizes, and the moments that set the units of the fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.latent_regression.kernels.latent_class import tree_sum
from consilience.latent_regression.kernels.latent_class_model import (
    start_sigma2,
)
from consilience.latent_regression.protocol.messages import (
    Offered,
    Settings,
    full_products,
)

_CONSTANT = 1e-12
_DEPENDENT = 1e-10
"""Variance of a combination of standardised features that is none."""
_PART = 1e-3


@dataclass(frozen=True, eq=False)
class Survey:
    """Sizes by site and moments over sites.

    Attributes
    ----------
    sites : tuple of str
        Those that answered, in name order.
    events, entities, agents : dict of str to float
        Of the sites that tell them; events are sums of weights.
    centre, scale : (p + 1,) arrays
        Of features and response: means and standard deviations, or roots of mean squares where
        there is no intercept.
    sigma2 : float
        Residual variance of one regression for all, in these units.
    ridge : (F,) array
        That regression.
    constant : (p + 1,) bool array
        Features and response that do not vary.
    shared : (p,) bool array
        Features that follow from others of them.
    """

    sites: tuple[str, ...]
    events: dict[str, float]
    entities: dict[str, float]
    agents: dict[str, float]
    centre: FloatArray
    scale: FloatArray
    sigma2: float
    ridge: FloatArray
    constant: NDArray[np.bool_]
    shared: NDArray[np.bool_]

    @property
    def told(self) -> dict[str, dict[str, float]]:
        """What a site's other replies are judged by, where it told how much it has."""
        return {s: {"events": n, "entities": self.entities[s]} for s, n in self.events.items()}


def survey_of(offered: Mapping[str, Offered], settings: Settings, n_features: int) -> Survey | None:
    """Add up what the sites bring; None where no site tells anything."""
    p = n_features + 2
    told = {}
    for site, reply in sorted(offered.items()):
        row = np.asarray(reply.sums.value)[0]
        if np.isfinite(row).all():
            told[site] = row
    if not told:
        return None
    total = full_products(tree_sum(list(told.values()))[None, :], p)[0]
    centre, scale, constant = _units(total, settings.fit_intercept)
    sigma2, ridge = _one_class(total, centre, scale, settings.fit_intercept)
    return Survey(
        sites=tuple(sorted(offered)),
        events={site: float(row[0]) for site, row in told.items()},
        entities={site: float(row[-2]) for site, row in told.items()},
        agents={site: float(row[-1]) for site, row in told.items()},
        centre=centre,
        scale=scale,
        sigma2=sigma2,
        ridge=ridge,
        constant=constant,
        shared=_dependent(total, centre, scale, constant),
    )


def _units(
    total: FloatArray, fit_intercept: bool
) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Centres and scales of features and response, and which of them do not vary."""
    n = total[0, 0]
    squares = np.diagonal(total)[1:] / n
    centre = total[0, 1:] / n if fit_intercept else np.zeros(len(squares))
    spread = np.maximum(squares - centre**2, 0.0)
    # What rounding leaves of a constant column is no scale.
    constant = ~(spread > _CONSTANT * squares)
    return centre, np.sqrt(np.where(constant, 1.0, spread)), constant


def _scaled(total: FloatArray, centre: FloatArray, scale: FloatArray) -> FloatArray:
    """The sums of products in the units of a fit."""
    p = len(total)
    change = np.zeros((p, p))
    change[0, 0] = 1.0
    change[0, 1:] = -centre / scale
    change[np.arange(1, p), np.arange(1, p)] = 1.0 / scale
    return np.asarray(change.T @ total @ change)


def _dependent(
    total: FloatArray,
    centre: FloatArray,
    scale: FloatArray,
    constant: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Which features are a combination of others, as far as sums of products tell."""
    products = _scaled(total, centre, scale)[1:-1, 1:-1] / total[0, 0]
    found = np.zeros(len(products), dtype=bool)
    varies = np.flatnonzero(~constant[:-1])
    if len(varies):
        values, vectors = np.linalg.eigh(products[np.ix_(varies, varies)])
        none = np.abs(vectors[:, values < _DEPENDENT])
        found[varies] = (none > _PART).any(axis=1)
    return found


def _one_class(
    total: FloatArray, centre: FloatArray, scale: FloatArray, fit_intercept: bool
) -> tuple[float, FloatArray]:
    """Residual variance and coefficients of one ridge regression for all, in the units of a fit."""
    moved = _scaled(total, centre, scale)
    first = 0 if fit_intercept else 1
    products, cross = moved[first:-1, first:-1], moved[first:-1, -1]
    square = max(float(moved[-1, -1]), 0.0)
    sigma2 = float(
        start_sigma2(products[None], cross[None], np.array([square]), np.array([total[0, 0]]))
    )
    ridge = np.linalg.solve(products + np.eye(len(products)), cross)
    return sigma2, np.asarray(ridge, dtype=np.float64)

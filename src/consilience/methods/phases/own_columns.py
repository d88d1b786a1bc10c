"""A partner's own columns, in the units in which what is revealed of them adds up over runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.methods.base import SiteContext, SiteData
from consilience.wire.disclosure import Released, addressed, column_factor, projection

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class OwnColumns:
    """Columns of a site with the factor from which ranks are computed.

    Attributes
    ----------
    x : (n, p) array
        In the table's units, scaling undone: one name is one column in every run.
    scale : (p,) array
        What a coefficient of the prepared column is divided by to be one of `x`.
    names : tuple of str
    factor : (min(n, p), p) array
    """

    x: FloatArray
    scale: FloatArray
    names: tuple[str, ...]
    factor: FloatArray

    @classmethod
    def of(cls, data: SiteData, factor: FloatArray | None = None) -> OwnColumns:
        """Columns of the prepared rows; `factor` where an earlier step computed it."""
        p = data.features.shape[1]
        scale = np.ones(p) if data.scaling is None else data.scaling[2]
        x = data.features if (scale == 1.0).all() else data.features * scale
        if factor is None:
            factor = column_factor(x)
        return cls(x, scale, data.feature_names, factor)

    def unscaled(self, directions: FloatArray) -> FloatArray:
        """Coefficients of prepared columns as coefficients of `x`."""
        return np.asarray((directions.T / self.scale).T)

    def known(self, site: SiteContext, directions: FloatArray) -> tuple[int, int, bool]:
        """Directions known after a release, how many there are, and whether the policy agrees."""
        wide = directions.reshape(len(self.scale), -1)
        return site.revealed(self.factor, self.names, self.unscaled(wide))

    def released(self, directions: FloatArray, to: str) -> Released:
        """Centred columns along directions (of the prepared columns), for one site's eyes."""
        value = projection(self.x, self.unscaled(directions), names=self.names, factor=self.factor)
        return addressed(value, to)

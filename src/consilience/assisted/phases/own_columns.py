"""A partner's own columns, in the units in which what is revealed of them adds up over runs."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from consilience.arrays import FloatArray
from consilience.protocol.method import SiteContext, SiteData
from consilience.wire.disclosure import Projectable, Released, addressed, projectable, projection

_KNOWN: WeakKeyDictionary[SiteData, OwnColumns] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
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
    centred : (n, p) array
        Prepared columns without their means over all matched rows.
    ready : Projectable
        `x`, ready to be released along directions.
    """

    x: FloatArray
    scale: FloatArray
    names: tuple[str, ...]
    factor: FloatArray
    centred: FloatArray
    ready: Projectable

    @classmethod
    def of(cls, data: SiteData, factor: FloatArray | None = None) -> OwnColumns:
        """Columns of the prepared rows; `factor` where an earlier step computed it.

        Computed once for rows that stay in this process between steps.
        """
        if data in _KNOWN:
            return _KNOWN[data]
        p = data.features.shape[1]
        scale = np.ones(p) if data.scaling is None else data.scaling[2]
        x = data.features if (scale == 1.0).all() else data.features * scale
        ready = projectable(x, factor)
        centred = ready.centred
        if x is not data.features or ready.zeroed:
            centred = data.features - data.features.mean(axis=0)
            centred.flags.writeable = False
        _KNOWN[data] = found = cls(x, scale, data.feature_names, ready.factor, centred, ready)
        return found

    def unsent(self, directions: FloatArray) -> FloatArray:
        """Directions (of the prepared columns) that complete given ones to all of the columns.

        Along them the centred columns are orthonormal to what was sent, and to one another.

        Parameters
        ----------
        directions : (p, k) array

        Returns
        -------
        (p, r - k) array
        """
        factor = self.factor / self.scale
        left, size, turn = np.linalg.svd(factor, full_matrices=False)
        kept = size > 1e-8 * size.max(initial=0.0)
        basis, back = left[:, kept], (turn[kept] / size[kept, None]).T
        seen = basis.T @ (factor @ directions)
        span = np.linalg.svd(seen, full_matrices=True)
        rank = int((span[1] > 1e-8 * span[1].max(initial=0.0)).sum()) if seen.size else 0
        return np.asarray(back @ span[0][:, rank:])

    def unscaled(self, directions: FloatArray) -> FloatArray:
        """Coefficients of prepared columns as coefficients of `x`."""
        return np.asarray((directions.T / self.scale).T)

    def known(self, site: SiteContext, directions: FloatArray) -> tuple[int, int, bool]:
        """Directions known after a release, how many there are, and whether the policy agrees."""
        wide = directions.reshape(len(self.scale), -1)
        return site.revealed(self.factor, self.names, self.unscaled(wide))

    def known_after(self, site: SiteContext, directions: FloatArray) -> tuple[int, int, bool]:
        """Return the same, where directions that may not leave are not counted."""
        known, rank, allowed = self.known(site, directions)
        if not allowed:
            known, _, _ = self.known(site, np.empty((len(self.scale), 0)))
        return known, rank, allowed

    def released(self, directions: FloatArray, to: str) -> Released:
        """Centred columns along directions (of the prepared columns), for one site's eyes."""
        return addressed(projection(self.ready, self.unscaled(directions), names=self.names), to)

"""Pieces of exchange that both methods of this wing share.

A party's own columns with what is revealed of them over all runs, the response at the initiator,
and an order of its rows that no coordinator chooses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.assisted.kernels.glm import Family
from consilience.exceptions import DataError
from consilience.numerics.random import stream
from consilience.protocol.method import SiteContext, SiteData
from consilience.wire.disclosure import Projectable, Released, addressed, projectable, projection

NOTHING = np.empty(0)
_KNOWN: WeakKeyDictionary[SiteData, OwnColumns] = WeakKeyDictionary()


class Ranked:
    """A reply that says how many directions of its sender's columns are known."""

    known: int

    def check(self, request: object, known: Mapping[str, Any]) -> str | None:
        """No more directions are known than there are."""
        rank: Any = getattr(self, "rank", known.get("rank"))
        return None if self.known <= rank else "more directions than there are columns"


# --------------------------------------------------------------------------- own columns


def units_of(data: SiteData) -> tuple[FloatArray, FloatArray]:
    """What was subtracted from each column of the table, and what it was divided by."""
    if data.scaling is None:
        return np.zeros(data.features.shape[1]), np.ones(data.features.shape[1])
    return data.scaling[1], data.scaling[2]


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
    ready : Projectable
        `x`, ready to be released along directions.
    features : (n, p) array
        Prepared columns.
    """

    x: FloatArray
    scale: FloatArray
    names: tuple[str, ...]
    factor: FloatArray
    ready: Projectable
    features: FloatArray

    @classmethod
    def of(cls, data: SiteData, factor: FloatArray | None = None) -> OwnColumns:
        """Columns of the prepared rows; `factor` where an earlier step computed it.

        Computed once for rows that stay in this process between steps.
        """
        if data in _KNOWN:
            return _KNOWN[data]
        scale = units_of(data)[1]
        x = data.features if (scale == 1.0).all() else data.features * scale
        ready = projectable(x, factor)
        names = data.feature_names
        _KNOWN[data] = found = cls(x, scale, names, ready.factor, ready, data.features)
        return found

    @property
    def plain(self) -> bool:
        """Whether prepared columns are released as they are but for their means."""
        return self.x is self.features and not bool(self.ready.constant.any())

    @cached_property
    def centred(self) -> FloatArray:
        """Prepared columns without their means over all matched rows, (n, p), read-only."""
        if self.plain:
            return self.ready.centred
        centred: FloatArray = self.features - self.features.mean(axis=0)
        centred.flags.writeable = False
        return centred

    def along(self, directions: FloatArray) -> FloatArray:
        """Product of the centred columns with directions."""
        return self.ready @ directions if self.plain else np.asarray(self.centred @ directions)

    def require_variation(self) -> None:
        """Check that a partner's columns are not all constant; raise `DataError`."""
        if not np.any(self.factor):
            raise DataError.shared(
                "the partner's columns are constant over the matched rows: they cannot help"
            )

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
        # lengths of X d are those of factor d: X = Q factor
        left, size, turn = np.linalg.svd(factor, full_matrices=False)
        kept = size > 1e-8 * size.max(initial=0.0)
        basis, back = left[:, kept], (turn[kept] / size[kept, None]).T
        seen = basis.T @ (factor @ directions)
        # left singular vectors beyond the rank are orthogonal to what was sent
        span = np.linalg.svd(seen, full_matrices=True)
        rank = int((span[1] > 1e-8 * span[1].max(initial=0.0)).sum()) if seen.size else 0
        return np.asarray(back @ span[0][:, rank:])

    def every(self, site: SiteContext) -> bool:
        """Whether the policy lets all directions be known."""
        return self.known(site, np.eye(len(self.names)))[2]

    def room(self, site: SiteContext) -> bool:
        """Whether the policy lets one direction more be known than are known now."""
        more = self.unsent(site.known_along(self.names) * self.scale[:, None])[:, :1]
        return bool(more.shape[1]) and self.known(site, more)[2]

    def told(self, site: SiteContext, *, unit: bool) -> FloatArray:
        """Directions (of the prepared columns, p, k) that are known already, over all runs.

        Parameters
        ----------
        site : SiteContext
        unit : bool
            Orthonormal as coefficients; otherwise the columns along them are.
        """
        return self.spanning(site.known_along(self.names) * self.scale[:, None], unit=unit)

    def spanning(self, directions: FloatArray, *, unit: bool) -> FloatArray:
        """Directions of the same span, orthonormal as coefficients or else as columns."""
        factor = self.factor / self.scale
        lengths = np.linalg.norm(factor @ directions, axis=0)
        live = lengths > 1e-8 * lengths.max(initial=0.0)
        directions = directions[:, live] / lengths[live]
        _, size, turn = np.linalg.svd(factor @ directions, full_matrices=False)
        # The gate counts by coefficients: nearly dependent ones would lose too many digits here.
        kept = size > 1e-5 * size.max(initial=0.0)
        found = directions @ (turn[kept].T / size[kept])
        return np.asarray(np.linalg.qr(found)[0] if unit else found)

    def unscaled(self, directions: FloatArray) -> FloatArray:
        """Coefficients of prepared columns as coefficients of `x`."""
        # z d = x (d / scale) but for a constant, where z are the prepared columns
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


def numbers_of(message: object, data: SiteData) -> str:
    """Name under which a site keeps how many numbers it told (for ``keeps`` of a step)."""
    return f"numbers {data.content_hash}"


def may_release(site: SiteContext, own: OwnColumns, n_rows: int, numbers: int) -> bool:
    """Whether so many numbers may be told; if so, they count from now on.

    A release ``X d`` is counted as a direction (``sites.revealed_rank``). Numbers such as the gain
    of a local fit, or what an equation hides of a target, are not of that form, yet each is an
    equation in the hidden columns: whoever chooses the questions gets a whole direction, one number
    for each row, from about as many answers as there are rows. So a data set tells at most half as
    many as it has rows, over all runs; where all directions may be known anyway there is no limit.

    Parameters
    ----------
    site : SiteContext
        In a step that keeps `numbers_of`.
    own : OwnColumns
    n_rows : int
        Rows of the run.
    numbers : int
    """
    if own.every(site):
        return True
    told = 0 if site.kept is None else int(site.kept["told"])
    if told + numbers > n_rows // 2:
        return False
    site.keep({"told": told + numbers})
    return True


# --------------------------------------------------------------------------- the initiator's rows


def clusters_of(data: SiteData) -> IntArray | None:
    """Number of each row's cluster; None where the site names no column of clusters."""
    return None if data.cluster is None else np.unique(data.cluster, return_inverse=True)[1]


def digest_order(data: SiteData, places: IntArray, label: str) -> IntArray:
    """Order some of a site's rows by what all of them hold.

    Figures about a part of the rows are equations in what these rows hold. Where a coordinator
    draws the part by a public seed, it has as many equations as it starts runs, and solves them. So
    a part is drawn by the content of the rows: the same one in every run, whatever is asked, and
    nobody who lacks the table can tell which rows are in it.

    Parameters
    ----------
    data : SiteData
        Matched rows, in the order of their ids: that of the table does not matter.
    places : (m,) int array
        Places among these rows.
    label : str
        What the order is for; another label gives another order.

    Returns
    -------
    (m,) int array
        The same places.

    Raises
    ------
    DataError
        There are no ids or no target: the order would be known to whoever has the rest.
    """
    if data.id is None or data.target is None:
        raise DataError.shared("rows without an id and a target have no order of their own")
    # ids, response and columns: nobody who lacks one of them can order the rows
    digest = hashlib.blake2b(digest_size=32)
    for values in (data.id.astype("U"), data.target, data.features):
        digest.update(repr((values.dtype.str, values.shape)).encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return stream(0, label, digest.hexdigest()).permutation(places)


def whole_groups(size: int, n: int, least: int) -> int:
    """About `size` of n rows, or all of them: no two sizes differ by a few rows only."""
    size = max(size - size % least, least)
    return size if n - size >= least else n


def response_of(data: SiteData, family: Family) -> tuple[FloatArray, BoolArray]:
    """Read the response of a family from a site's target.

    Returns
    -------
    y : (n,) array
        1 for the second of two declared levels; 0 where it is not known.
    known : (n,) bool array
        Rows without a response are people whose outcome is to be predicted.

    Raises
    ------
    DataError
        There is no target, or it does not fit the family; the sentence shows no value.
    """
    target = data.target
    if target is None:
        raise DataError.shared("the initiator's table has no target: name it in its own columns")
    if target.dtype.kind == "U":
        found = set(np.unique(target)) - {""}
        levels = next((tuple(v) for v in data.levels.values() if found <= set(v)), ())
        if len(levels) != 2:
            raise DataError.shared(
                "the target has declared levels and there are not just two of them"
            )
        known = target != ""
        # the second declared level is the event
        y = np.where(target == levels[1], 1.0, 0.0)
    else:
        known = ~np.isnan(target)
        y = np.where(known, target, 0.0)
    if not known.any():
        raise DataError.shared("no matched row has a response")
    fault = family.check(y[known])
    if fault is not None:
        raise DataError.shared(
            f"the response does not fit the family {family.name!r}: it must be {fault}"
        )
    return y, known

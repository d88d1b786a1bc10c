"""What the sites bring: rows, means and spreads by class, and what gives way where some is missing.

A class and column that a site withholds leaves two ways out: to do without the column everywhere,
or without the rows of this class at this site. Whichever costs the smaller share (of the columns,
or of the rows) for each gap that it closes goes first, until no gap is left. Then every sum is over
the same rows, and pooled matrices are those of a table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.estimators.sparse_qda_units import QDAUnits, units_of
from consilience.discriminant.federated_sparse_qda.messages import Offered
from consilience.exceptions import DataError, QuorumError
from consilience.numerics.block_moments import pooled


@dataclass(frozen=True, eq=False)
class Survey:
    """Aggregates by site and class.

    Attributes
    ----------
    sites : tuple of str
        B sites, in name order.
    counts, held : (B, K) arrays
        Rows that are not held out, and those that are.
    means, variances : (B, K, p) arrays
        NaN where they are withheld.
    used : (B, K) bool array
        Whose rows count in the moments.
    features : (p,) bool array
        Columns that take part.
    protected, judges : dict of str to bool
        Whether a site withholds moments of large blocks; whether it counts errors of models.
    """

    sites: tuple[str, ...]
    counts: FloatArray
    held: FloatArray
    means: FloatArray
    variances: FloatArray
    used: NDArray[np.bool_]
    features: NDArray[np.bool_]
    protected: Mapping[str, bool]
    judges: Mapping[str, bool]

    def only(self, sites: Sequence[str]) -> Survey:
        """Some of the sites."""
        at = [self.sites.index(site) for site in sites]
        return dataclasses.replace(
            self,
            sites=tuple(self.sites[i] for i in at),
            counts=self.counts[at],
            held=self.held[at],
            means=self.means[at],
            variances=self.variances[at],
            used=self.used[at],
        )

    def squares(self) -> dict[str, dict[str, FloatArray]]:
        """By site: sums of squares about the means of its classes, and about nought, (K, p)."""
        about = self.counts[:, :, None] * self.variances
        all_ = about + self.counts[:, :, None] * self.means**2
        return {s: {"squares": about[b], "sizes": all_[b]} for b, s in enumerate(self.sites)}

    @property
    def sizes(self) -> FloatArray:
        """Rows of the moments by site and class, (B, K)."""
        return np.where(self.used, self.counts, 0.0)

    @property
    def n(self) -> FloatArray:
        """Rows of the moments by class, (K,)."""
        return np.asarray(self.sizes.sum(axis=0))

    @property
    def complete(self) -> bool:
        """Whether every class has rows to tell a variance from."""
        return bool((self.n >= 2).all())

    def pooled(self, columns: IntArray) -> tuple[FloatArray, FloatArray]:
        """Means and variances by class over all sites, (K, m) each."""
        means, variances = [], []
        for k in range(self.counts.shape[1]):
            at = np.flatnonzero(self.used[:, k])
            own = self.counts[at, k]
            n, mean, squares = pooled(
                own,
                [self.means[b, k, columns] for b in at],
                [n * self.variances[b, k, columns] for n, b in zip(own, at, strict=True)],
            )
            means.append(mean)
            variances.append(squares / n)
        return np.array(means), np.array(variances)

    def units(self) -> QDAUnits:
        """Columns that take part and vary, with their scales and floors.

        Raises
        ------
        QuorumError
            None does.
        """
        columns = np.flatnonzero(self.features)
        means, variances = self.pooled(columns)
        try:
            found = units_of(self.n, means, variances)
        except DataError as error:
            raise QuorumError(f"no column is left to tell the classes apart: {error}") from None
        return dataclasses.replace(
            found, n_features=len(self.features), kept=columns[found.kept].astype(np.int64)
        )


def survey_of(offered: Mapping[str, Offered], levels: Sequence[str]) -> Survey:
    """Put together what the sites bring; see the module's words on what gives way.

    Raises
    ------
    QuorumError
        A class that no site has rows of, or no column is left.
    """
    sites = tuple(sorted(offered))
    counts, held = (
        np.array([getattr(offered[site], name).value for site in sites], dtype=float)
        for name in ("counts", "held")
    )
    means, variances = (
        np.stack([np.asarray(getattr(offered[site], name).value) for site in sites])
        for name in ("means", "spreads")
    )
    gaps = np.isnan(means) & (counts[:, :, None] > 0)
    used, features = _giving_way(counts, gaps)
    lost = [level for level, n in zip(levels, (counts * used).sum(axis=0), strict=True) if n < 2]
    if lost:
        raise QuorumError(
            f"no site can tell the moments of class {lost[0]!r}: let sites with more rows of it "
            "take part, or leave it out"
        )
    if not features.any():
        raise QuorumError("every column is withheld by some site: leave out sparse columns")
    protected = {site: bool(offered[site].protected) for site in sites}
    judges = {site: bool(offered[site].judges) for site in sites}
    return Survey(sites, counts, held, means, variances, used, features, protected, judges)


def _giving_way(
    counts: FloatArray, gaps: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which classes of which sites count, and which columns, so that no gap is left."""
    used, features = counts > 0, np.ones(gaps.shape[2], dtype=bool)
    open_ = gaps.copy()
    while open_.any():
        by_column, by_class = open_.sum(axis=(0, 1)), open_.sum(axis=2)
        share = counts / max(float((counts * used).sum()), 1.0)
        # A class that no other site has cannot be done without.
        only = used & (used.sum(axis=0) == 1)
        gain = np.where(only, 0.0, by_class / np.maximum(share, 1e-12))
        worst = int(by_column.max())
        if worst * features.sum() >= gain.max():
            gone = by_column == worst
            features[gone] = False
            open_[:, :, gone] = False
        else:
            b, k = np.unravel_index(int(np.argmax(gain)), gain.shape)
            used[b, k] = False
            open_[b, k] = False
    return used, features


def notes_of(
    survey: Survey, units: QDAUnits, levels: Sequence[str], names: Sequence[str]
) -> list[str]:
    """Say what gave way."""
    found = []
    for b, site in enumerate(survey.sites):
        small = [levels[int(k)] for k in np.flatnonzero(survey.counts[b] == 0)]
        away = [levels[int(k)] for k in np.flatnonzero((survey.counts[b] > 0) & ~survey.used[b])]
        if small:
            found.append(
                f"Site {site} has no rows, or too few to tell of, in class {_listed(small)}."
            )
        if away:
            found.append(
                f"The rows of class {_listed(away)} at site {site} are not in the moments: the "
                "site withholds some of their columns."
            )
    gone = [names[int(j)] for j in np.flatnonzero(~survey.features)]
    if gone:
        found.append(
            f"Columns {_listed(gone)} take no part: some site withholds them (too few rows differ "
            "from the others, or one row dominates)."
        )
    constant = np.setdiff1d(np.flatnonzero(survey.features), units.kept)
    if len(constant):
        found.append(
            f"Columns {_listed([names[int(j)] for j in constant])} are constant everywhere."
        )
    if len(units.floored):
        found.append(
            "Columns that do not vary within a class got a variance there: "
            f"{_listed(sorted({names[int(j)] for j in units.floored[:, 1]}))}."
        )
    return found


def _listed(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(str(name) for name in names[:most])
    more = len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown

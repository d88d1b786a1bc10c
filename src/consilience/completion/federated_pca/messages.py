"""Messages of components over sites, and the model as it travels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.completion.kernels.ppca import PPCAModel
from consilience.exceptions import ProtocolError
from consilience.numerics.block_moments import square_of
from consilience.parameters import allows, just
from consilience.wire.disclosure import Released
from consilience.wire.message import Aggregate, Model, Public, is_gram, message, states

# --- The model as it travels.

# With these every number of a posterior is one, also of a row of 1e100, the largest that is read.
_LARGEST = 1e100
_VARIANCES = (1e-60, 1e100)
SPREADS = (1e-25, 1e45)
"""Largest standard deviations of a column with which a model can be used.

The noise variance is at least 1e-10 of the largest eigenvalue.
"""
_UNUSABLE = "the model cannot be used"


def arrays_of(model: PPCAModel, columns: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Arrays of a model over some of the columns."""
    return {
        "mean": model.mean,
        "directions": model.directions,
        "variances": model.variances,
        "noise": np.array([model.noise]),
        "columns": np.asarray(columns, dtype=np.int64),
    }


def model_of(arrays: Any, p: int) -> tuple[PPCAModel, NDArray[np.int64]]:
    """Model and its columns from what came; nothing is said of the site's rows if it is none.

    Parameters
    ----------
    arrays : mapping of str to array
    p : int
        Columns of the study.

    Raises
    ------
    ProtocolError
    """
    try:
        parts = {k: np.asarray(arrays[k]) for k in ("mean", "directions", "variances", "noise")}
        columns = np.asarray(arrays["columns"], dtype=np.int64)
        parts = {name: part.astype(np.float64) for name, part in parts.items()}
    except (LookupError, TypeError, ValueError):
        raise ProtocolError.shared(_UNUSABLE) from None
    m, k = len(columns), len(np.atleast_1d(parts["variances"]))
    shapes = {"mean": (m,), "directions": (m, k), "variances": (k,), "noise": (1,)}
    fits = columns.ndim == 1 and all(parts[name].shape == shape for name, shape in shapes.items())
    fits = fits and m > 0 and bool((np.diff(columns) > 0).all())
    fits = fits and bool(columns[0] >= 0) and bool(columns[-1] < p)
    if not fits or not _within_reason(parts):
        raise ProtocolError.shared(_UNUSABLE)
    noise = float(parts["noise"][0])
    return PPCAModel(parts["mean"], parts["directions"], parts["variances"], noise), columns


def _within_reason(parts: dict[str, NDArray[np.float64]]) -> bool:
    """Numbers with which the posterior of every row is a number, whatever the row holds."""
    noise, variances, v = float(parts["noise"][0]), parts["variances"], parts["directions"]
    least, most = _VARIANCES
    if not all((np.abs(part) <= _LARGEST).all() for part in parts.values()):
        return False
    if not (least <= noise <= most and (variances >= 0).all() and (variances <= most).all()):
        return False
    if not (variances <= 1e15 * noise).all():
        return False
    return bool(np.allclose(v.T @ v, np.eye(v.shape[1]), atol=1e-6))


# --- Messages of components over sites.

_MOST_ROWS = 1 << 40
LEVELS = (10, 5, 2, 1)
"""Numbers of groups that a site tells moments of: groups of one are unions of those before it."""


@dataclass(frozen=True)
class Settings:
    """What travels with each message.

    Attributes
    ----------
    n_splits : int
        Groups of rows that a site tells moments of, at most.
    """

    n_splits: int = allows(just(*LEVELS))


@message("federated-pca/moments", version=2)
class Moments:
    """Ask for the moments of groups of rows."""

    settings: Settings = states(Settings)


@message("federated-pca/told", version=1)
class Told:
    """Rows, means and sums of products of the site's groups."""

    counts: Released = Aggregate("g", "rows of each group", kind="int", low=1, high=_MOST_ROWS)
    means: Released = Aggregate(
        "g p", "column means of each group; a gap in a column that the site withholds", gaps=True
    )
    products: Released = Aggregate(
        "g t",
        "by group: sums of products of deviations from its means, upper triangle over the "
        "columns without gaps; where cells are missing, their expectation",
        gaps=True,
        low=-1e200,
        high=1e200,
    )

    def check(self, request: Moments, known: Mapping[str, Any]) -> str | None:
        """Groups of the same two columns or more, and products that rows have."""
        counts, means, products = self.counts.value, self.means.value, self.products.value
        told = ~np.isnan(means)
        m = int(told[:1].sum())
        if len(counts) not in LEVELS or len(counts) > request.settings.n_splits:
            return "another number of groups than is told"
        if m < 2 or (told != told[0]).any() or products.shape[1] != m * (m + 1) // 2:
            return "groups of other columns"
        squares = [square_of(line, m) for line in products]
        if np.isnan(products).any() or not all(is_gram(square) for square in squares):
            return "products that no rows have"
        spreads = np.array([np.diag(square) for square in squares]) / counts[:, None]
        if max(np.abs(means[told]).max(), np.sqrt(spreads.max())) > SPREADS[1]:
            return (
                "columns that are too large for a model: take other units, or set [preparation] "
                'standardize to "pooled"'
            )
        return None


@message("federated-pca/possible", version=1)
class Possible:
    """What a site could tell, where only totals are to be known: 1 for yes, 0 for no."""

    levels: Released = Aggregate("l", "so many groups: 10, 5, 2 or 1", low=0, high=1)
    columns: Released = Aggregate("p", "each column", low=0, high=1)


@message("federated-pca/shared-moments", version=1)
class SharedMoments:
    """Ask for sums over the columns, and in as many groups, as every site can tell."""

    settings: Settings = states(Settings)
    groups: int = Public("", "groups that every site can tell", kind="int", to="all", low=1)
    columns: Released = Aggregate("m", "columns in use", kind="int", to="all", low=0)


@message("federated-pca/group-totals", version=1)
class GroupTotals:
    """What a site adds to the sums of each group."""

    counts: Released = Aggregate("g", "rows of each group", kind="int", low=1, high=_MOST_ROWS)
    sums: Released = Aggregate("g m", "column sums of each group")
    products: Released = Aggregate(
        "g t", "by group: sums of products, upper triangle; expected ones where cells are missing"
    )


@message("federated-pca/conclude", version=2)
class Conclude:
    """The components that the sites share."""

    settings: Settings = states(Settings)
    model: Released = Model(
        "*mean, directions, variances, noise, columns", "the model of the pooled rows", to="all"
    )


@message("federated-pca/concluded", version=1)
class Concluded:
    """The site keeps the model and what it says of its rows; nothing of that leaves."""

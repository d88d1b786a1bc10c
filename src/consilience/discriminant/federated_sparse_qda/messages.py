"""Messages of sparse quadratic discriminant analysis over sites, and its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import IntArray
from consilience.discriminant.classes import levels_of
from consilience.parameters import allows, number
from consilience.wire.disclosure import Released
from consilience.wire.message import Aggregate, Model, Public, is_gram, message, states

MAX_CLASSES = 100
_MOST_ROWS = 1 << 40
_ROUNDING = 1e-6
_LARGEST = 1e60
"""Of means and deviations: squares of sums of products of such are numbers."""
MAX_ALPHAS = 50
"""Penalties whose models a site judges in a run."""
MAX_LINKS = 6
"""Questions for links that a site answers in a run."""


@dataclass(frozen=True)
class Settings:
    """What every step must know: travels with each message.

    Attributes
    ----------
    levels : tuple of str
        Classes, as declared.
    holdout : float
        Share of each site's rows that no model sees.
    """

    levels: tuple[str, ...] = allows(levels_of(MAX_CLASSES))
    holdout: float = allows(number(0, 0.5))


@message("federated-sparse-qda/offer", version=2)
class Offer:
    """Ask what the sites bring."""

    settings: Settings = states(Settings)


@message("federated-sparse-qda/offered", version=1)
class Offered:
    """Rows, means and spreads by class; classes of few rows count as empty."""

    protected: bool = Public("", "blocks of more columns than half the rows stay here", kind="bool")
    judges: bool = Public("", "the site says how many rows models get wrong", kind="bool")
    counts: Released = Aggregate(
        "K", "rows of each class that are not held out", kind="int", low=0, high=_MOST_ROWS
    )
    held: Released = Aggregate(
        "K", "rows of each class that are held out", kind="int", low=0, high=_MOST_ROWS
    )
    means: Released = Aggregate("K p", "column means", gaps=True, low=-_LARGEST, high=_LARGEST)
    spreads: Released = Aggregate(
        "K p",
        "mean squared deviations from the means of the site's classes",
        gaps=True,
        low=0,
        high=_LARGEST**2,
    )

    def check(self, request: Offer, known: Mapping[str, Any]) -> str | None:
        """A column of a class is told whole or not at all, and none of a class without rows."""
        told = ~np.isnan(self.means.value)
        fine = (told == ~np.isnan(self.spreads.value)).all()
        fine = fine and not told[self.counts.value == 0].any()
        return None if fine else "columns of which something is withheld and something told"


@message("federated-sparse-qda/links", version=2)
class Links:
    """Ask which columns are linked at the site."""

    settings: Settings = states(Settings)
    features: NDArray[np.bool_] = Public("p", "columns that take part", kind="bool", to="all")
    classes: NDArray[np.bool_] = Public("K", "classes that count here", kind="bool", to="site")
    scale: Released = Aggregate("m", "pooled spread within the classes", to="all")
    threshold: float = Public(
        "",
        "columns are linked where the norm over classes of their sums of products is above it",
        kind="float",
        to="site",
    )


@message("federated-sparse-qda/linked", version=1)
class Linked:
    """Which columns are linked, directly or through others."""

    fits: bool = Public(
        "", "whether every component could leave as moments; if not, nothing is told", kind="bool"
    )
    labels: Released = Aggregate(
        "m", "component of each column, 0 without a link", kind="int", low=0
    )


@message("federated-sparse-qda/moments", version=2)
class Moments:
    """Ask for sums of products within blocks."""

    settings: Settings = states(Settings)
    features: NDArray[np.bool_] = Public("p", "columns that take part", kind="bool", to="all")
    classes: NDArray[np.bool_] = Public("K", "classes that count here", kind="bool", to="site")
    labels: Released = Aggregate("m", "block of each column, 0 for none", kind="int", to="all")


@message("federated-sparse-qda/products", version=1)
class Products:
    """Sums of products of deviations from the site's means, by class."""

    products: Released = Aggregate(
        "K t",
        "upper triangles, block after block; gaps where a class cannot tell a block",
        gaps=True,
        low=-_MOST_ROWS * _LARGEST**2,
        high=_MOST_ROWS * _LARGEST**2,
    )

    def check(self, request: Moments, known: Mapping[str, Any]) -> str | None:
        """Products within the blocks that were asked for, that rows of the told spreads have."""
        blocks = blocks_of(request.labels.value)
        columns = np.flatnonzero(request.features)
        for block, sums in zip(blocks, unpacked(self.products.value, blocks), strict=True):
            if not all(is_gram(square) for square in sums):
                return "products that no rows have"
            told = np.diagonal(sums, axis1=1, axis2=2)
            wanted, size = (known[name][:, columns[block]] for name in ("squares", "sizes"))
            # Diagonals repeat the sums of squares that the offer told, but for rounding.
            apart = np.abs(told - wanted) > _ROUNDING * wanted + _ROUNDING**2 * size
            if apart[request.classes].any():
                return "products of other rows than the spreads"
        return None


def blocks_of(labels: NDArray[np.integer]) -> list[NDArray[np.intp]]:
    """Places of each label above 0 that two or more columns have, by label."""
    found = [np.flatnonzero(labels == label) for label in np.unique(labels[labels > 0])]
    return [block for block in found if len(block) > 1]


def component_labels(components: NDArray[np.integer]) -> IntArray:
    """Number components of two or more columns from 1, in order of first columns; others are 0."""
    _, first, of, size = np.unique(
        components, return_index=True, return_inverse=True, return_counts=True
    )
    # A column alone is in no block.
    several = np.flatnonzero(size > 1)
    number = np.zeros(len(first), dtype=np.int64)
    number[several[np.argsort(first[several])]] = np.arange(1, len(several) + 1)
    return np.asarray(number[of.ravel()])


def unpacked(
    packed: NDArray[np.float64], blocks: Sequence[NDArray[np.intp]]
) -> tuple[NDArray[np.float64], ...]:
    """Sums of products by block, (K, q, q) each, from upper triangles side by side.

    Raises
    ------
    ValueError
        They are those of other blocks.
    """
    # Numbers of each triangle.
    halves = [len(block) * (len(block) + 1) // 2 for block in blocks]
    ends = np.cumsum([0, *halves])
    if packed.shape[1] != ends[-1]:
        raise ValueError("sums of products of other blocks")
    found = []
    for block, start, end in zip(blocks, ends[:-1], ends[1:], strict=True):
        full = np.zeros((len(packed), len(block), len(block)))
        rows, columns = np.triu_indices(len(block))
        full[:, rows, columns] = full[:, columns, rows] = packed[:, start:end]
        found.append(full)
    return tuple(found)


@message("federated-sparse-qda/judge", version=2)
class Judge:
    """Models that are to be judged on the site's rows, one for each penalty."""

    settings: Settings = states(Settings)
    held: bool = Public(
        "",
        "judge on the held-out rows; otherwise on the others, which these models did not see",
        kind="bool",
        to="all",
    )
    models: Released = Model("*by penalty: one model each", "models of a path", to="site")

    def lengths(self) -> dict[str, int]:
        """Models."""
        return {"models": len(self.models.value)}


@message("federated-sparse-qda/judged", version=1)
class Judged:
    """Shares of rows that the models get wrong."""

    rates: Released = Aggregate(
        "",
        "by penalty: share of rows in a wrong class, rounded; a gap where there are too few",
        kind="float",
        many="models",
        gaps=True,
        low=0,
        high=2,
    )


@message("federated-sparse-qda/conclude", version=2)
class Conclude:
    """The model, and one without links."""

    settings: Settings = states(Settings)
    models: Released = Model("*the model, then the one without links", "two models", to="all")

    def lengths(self) -> dict[str, int]:
        """Models, and figures: theirs, and of their difference."""
        return {"models": len(self.models.value), "m": len(self.models.value) + 1}


@message("federated-sparse-qda/concluded", version=1)
class Concluded:
    """What the models are worth on rows that were held out."""

    rates: Released = Aggregate(
        "",
        "by model: share of held-out rows in a wrong class, rounded",
        kind="float",
        many="models",
        gaps=True,
        low=0,
        high=2,
    )
    losses: Released = Aggregate(
        "m",
        "log loss of each model and, after these, of the second less that of the first; gaps "
        "where records are protected",
        gaps=True,
    )
    errors: Released = Aggregate("m", "their squared standard errors", gaps=True, low=0)


@message("federated-sparse-qda/possible", version=1)
class Possible:
    """What a site could tell: 1 for yes, 0 for no."""

    groups: Released = Aggregate("g", "all classes in 4, 3, 2 groups, or one", low=0, high=1)
    classes: Released = Aggregate("K", "classes, in one group", low=0, high=1)
    columns: Released = Aggregate("p", "columns", low=0, high=1)


@message("federated-sparse-qda/shared-classes", version=1)
class SharedClasses:
    """Ask for sums over the columns, and in as many groups, as every site can tell."""

    settings: Settings = states(Settings)
    groups: int = Public("", "groups that every site can tell", kind="int", to="all", low=1)
    columns: Released = Aggregate("m", "columns in use", kind="int", to="all", low=0)


@message("federated-sparse-qda/class-totals", version=1)
class ClassTotals:
    """What a site adds to the sums of each class, group after group."""

    counts: Released = Aggregate("c", "rows", kind="int", low=1, high=_MOST_ROWS)
    sums: Released = Aggregate("c m", "column sums")
    products: Released = Aggregate("c t", "sums of products, upper triangle")


@message("federated-sparse-qda/keep", version=1)
class Keep:
    """The model, where nothing is asked of it."""

    settings: Settings = states(Settings)
    model: Released = Model("*the model", "the model of the pooled rows", to="all")


@message("federated-sparse-qda/kept", version=1)
class Kept:
    """The site keeps the model."""

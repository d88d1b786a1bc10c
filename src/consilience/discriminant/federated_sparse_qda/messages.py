"""Messages of sparse quadratic discriminant analysis over sites, and its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import DisclosureError
from consilience.wire.disclosure import Released
from consilience.wire.message import Disclosure, is_gram, message, sends

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

    levels: tuple[str, ...]
    holdout: float

    def to_json(self) -> str:
        """Text form for the wire."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read it back, at a site.

        Raises
        ------
        DisclosureError
            More classes, or a larger share of held-out rows, than a site answers for.
        """
        raw = json.loads(text)
        settings = cls(tuple(str(level) for level in raw["levels"]), float(raw["holdout"]))
        sound = 2 <= len(settings.levels) <= MAX_CLASSES and 0 <= settings.holdout <= 0.5
        if not sound or len(set(settings.levels)) < len(settings.levels):
            raise DisclosureError(
                "other classes, or a larger share of held-out rows, than a site answers for",
                public="other classes than a site answers for",
            )
        return settings


@message("federated-sparse-qda/offer", version=1)
class Offer:
    """Ask what the sites bring."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="settings, as JSON")


@message("federated-sparse-qda/offered", version=1)
class Offered:
    """Rows, means and spreads by class; classes of few rows count as empty."""

    protected: bool = sends(
        Disclosure.PUBLIC, kind="bool", doc="blocks of more columns than half the rows stay here"
    )
    judges: bool = sends(
        Disclosure.PUBLIC, kind="bool", doc="the site says how many rows models get wrong"
    )
    counts: Released = sends(
        Disclosure.AGGREGATE,
        ("K",),
        kind="int",
        low=0,
        high=_MOST_ROWS,
        doc="rows of each class that are not held out",
    )
    held: Released = sends(
        Disclosure.AGGREGATE,
        ("K",),
        kind="int",
        low=0,
        high=_MOST_ROWS,
        doc="rows of each class that are held out",
    )
    means: Released = sends(
        Disclosure.AGGREGATE,
        ("K", "p"),
        gaps=True,
        low=-_LARGEST,
        high=_LARGEST,
        doc="column means",
    )
    spreads: Released = sends(
        Disclosure.AGGREGATE,
        ("K", "p"),
        gaps=True,
        low=0,
        high=_LARGEST**2,
        doc="mean squared deviations from the means of the site's classes",
    )

    def check(self, request: Offer, known: Mapping[str, Any]) -> str | None:
        """A column of a class is told whole or not at all, and none of a class without rows."""
        told = ~np.isnan(self.means.value)
        fine = (told == ~np.isnan(self.spreads.value)).all()
        fine = fine and not told[self.counts.value == 0].any()
        return None if fine else "columns of which something is withheld and something told"


@message("federated-sparse-qda/links", version=1)
class Links:
    """Ask which columns are linked at the site."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="as in the offer")
    features: NDArray[np.bool_] = sends(
        Disclosure.PUBLIC, ("p",), kind="bool", audience="all", doc="columns that take part"
    )
    classes: NDArray[np.bool_] = sends(
        Disclosure.PUBLIC, ("K",), kind="bool", audience="site", doc="classes that count here"
    )
    scale: Released = sends(
        Disclosure.AGGREGATE, ("m",), audience="all", doc="pooled spread within the classes"
    )
    threshold: float = sends(
        Disclosure.PUBLIC,
        kind="float",
        audience="site",
        doc="columns are linked where the norm over classes of their sums of products is above it",
    )


@message("federated-sparse-qda/linked", version=1)
class Linked:
    """Which columns are linked, directly or through others."""

    fits: bool = sends(
        Disclosure.PUBLIC,
        kind="bool",
        doc="whether every component could leave as moments; if not, nothing is told",
    )
    labels: Released = sends(
        Disclosure.AGGREGATE,
        ("m",),
        kind="int",
        low=0,
        doc="component of each column, 0 without a link",
    )


@message("federated-sparse-qda/moments", version=1)
class Moments:
    """Ask for sums of products within blocks."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="as in the offer")
    features: NDArray[np.bool_] = sends(
        Disclosure.PUBLIC, ("p",), kind="bool", audience="all", doc="columns that take part"
    )
    classes: NDArray[np.bool_] = sends(
        Disclosure.PUBLIC, ("K",), kind="bool", audience="site", doc="classes that count here"
    )
    labels: Released = sends(
        Disclosure.AGGREGATE,
        ("m",),
        kind="int",
        audience="all",
        doc="block of each column, 0 for none",
    )


@message("federated-sparse-qda/products", version=1)
class Products:
    """Sums of products of deviations from the site's means, by class."""

    products: Released = sends(
        Disclosure.AGGREGATE,
        ("K", "t"),
        gaps=True,
        low=-_MOST_ROWS * _LARGEST**2,
        high=_MOST_ROWS * _LARGEST**2,
        doc="upper triangles, block after block; gaps where a class cannot tell a block",
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
            apart = np.abs(told - wanted) > _ROUNDING * wanted + _ROUNDING**2 * size
            if apart[request.classes].any():
                return "products of other rows than the spreads"
        return None


def blocks_of(labels: NDArray[np.integer]) -> list[NDArray[np.intp]]:
    """Places of each label above 0 that two or more columns have, by label."""
    found = [np.flatnonzero(labels == label) for label in np.unique(labels[labels > 0])]
    return [block for block in found if len(block) > 1]


def unpacked(
    packed: NDArray[np.float64], blocks: Sequence[NDArray[np.intp]]
) -> tuple[NDArray[np.float64], ...]:
    """Sums of products by block, (K, q, q) each, from upper triangles side by side.

    Raises
    ------
    ValueError
        They are those of other blocks.
    """
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


@message("federated-sparse-qda/judge", version=1)
class Judge:
    """Models that are to be judged on the site's rows, one for each penalty."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="as in the offer")
    held: bool = sends(
        Disclosure.PUBLIC,
        kind="bool",
        audience="all",
        doc="judge on the held-out rows; otherwise on the others, which these models did not see",
    )
    models: Released = sends(
        Disclosure.MODEL, "by penalty: one model each", audience="site", doc="models of a path"
    )

    def lengths(self) -> dict[str, int]:
        """Models."""
        return {"models": len(self.models.value)}


@message("federated-sparse-qda/judged", version=1)
class Judged:
    """Shares of rows that the models get wrong."""

    rates: Released = sends(
        Disclosure.AGGREGATE,
        kind="float",
        many="models",
        gaps=True,
        low=0,
        high=2,  # they are rounded
        doc="by penalty: share of rows in a wrong class, rounded; a gap where there are too few",
    )


@message("federated-sparse-qda/conclude", version=1)
class Conclude:
    """The model, and one without links."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="as in the offer")
    models: Released = sends(
        Disclosure.MODEL, "the model, then the one without links", audience="all", doc="two models"
    )

    def lengths(self) -> dict[str, int]:
        """Models, and figures: theirs, and of their difference."""
        return {"models": len(self.models.value), "m": len(self.models.value) + 1}


@message("federated-sparse-qda/concluded", version=1)
class Concluded:
    """What the models are worth on rows that were held out."""

    rates: Released = sends(
        Disclosure.AGGREGATE,
        kind="float",
        many="models",
        gaps=True,
        low=0,
        high=2,  # they are rounded
        doc="by model: share of held-out rows in a wrong class, rounded",
    )
    losses: Released = sends(
        Disclosure.AGGREGATE,
        ("m",),
        gaps=True,
        doc="log loss of each model and, after these, of the second less that of the first; gaps "
        "where records are protected",
    )
    errors: Released = sends(
        Disclosure.AGGREGATE, ("m",), gaps=True, low=0, doc="their squared standard errors"
    )

"""Messages of components over sites."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from consilience.exceptions import DisclosureError
from consilience.wire.disclosure import Released
from consilience.wire.message import Disclosure, message, sends

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

    n_splits: int

    def to_json(self) -> str:
        """Text form for the wire."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read it back, at a site.

        Raises
        ------
        DisclosureError
            A number of groups that no site tells moments of.
        """
        n_splits = json.loads(text)["n_splits"]
        if isinstance(n_splits, bool) or n_splits not in LEVELS:
            sentence = "another number of groups than a site tells moments of"
            raise DisclosureError(sentence, public=sentence)
        return cls(int(n_splits))


@message("federated-pca/moments", version=1)
class Moments:
    """Ask for the moments of groups of rows."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="settings, as JSON")


@message("federated-pca/told", version=1)
class Told:
    """Rows, means and sums of products of the site's groups."""

    counts: Released = sends(Disclosure.AGGREGATE, ("g",), kind="int", doc="rows of each group")
    means: Released = sends(
        Disclosure.AGGREGATE,
        ("g", "p"),
        gaps=True,
        doc="column means of each group; a gap in a column that the site withholds",
    )
    products: Released = sends(
        Disclosure.AGGREGATE,
        ("g", "t"),
        gaps=True,
        doc="by group: sums of products of deviations from its means, upper triangle over the "
        "columns without gaps; where cells are missing, their expectation",
    )


@message("federated-pca/conclude", version=1)
class Conclude:
    """The components that the sites share."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="settings, as JSON")
    model: Released = sends(
        Disclosure.MODEL,
        "mean, directions, variances, noise, columns",
        audience="all",
        doc="the model of the pooled rows",
    )


@message("federated-pca/concluded", version=1)
class Concluded:
    """The site keeps the model and what it says of its rows; nothing of that leaves."""

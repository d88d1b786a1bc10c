"""The rows of the initiator by what they are for: training, held out, to be predicted."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.assisted.glm.messages import Settings
from consilience.assisted.phases.response import response_of
from consilience.exceptions import DataError
from consilience.numerics.random import stream
from consilience.protocol.method import SiteContext, SiteData
from consilience.protocol.phases.holdout import held_out

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """Matched rows at the initiator.

    Attributes
    ----------
    y : (n,) array
        True response; 0 where it is not known.
    train, held, new : (n,) bool arrays
    weights : (n,) array
        Case weights.
    """

    y: FloatArray
    train: Mask
    held: Mask
    new: Mask
    weights: FloatArray

    @property
    def known(self) -> Mask:
        """Rows with a response."""
        return np.asarray(self.train | self.held)

    @property
    def training_weights(self) -> FloatArray:
        """Weights that are 0 outside the training."""
        return np.where(self.train, self.weights, 0.0)


def by_purpose(data: SiteData, s: Settings, site: SiteContext) -> Rows:
    """Split the rows by what they are for.

    Held-out figures of many splits would be equations in the response, one for each split. So no
    coordinator chooses a split (see ``phases/holdout``). Only a policy that protects no single
    record (``min_records = 1``) leaves it to the public seed.

    Raises
    ------
    DataError
        No target, one that does not fit the family, no variation among the training rows, or too
        few of them.
    """
    response = response_of(data, s.true_family())
    places = np.flatnonzero(response.known)
    held = np.zeros(data.n_rows, dtype=bool)
    if site.limits.min_records == 1:
        drawn = stream(s.split_seed, "holdout").permutation(places)
        held[drawn[: round(s.holdout * len(places))]] = True
    else:
        # Matched rows are in the order of their ids: that of the table, and its format, are nothing
        # to them, so ids and response stand for the table.
        matched = dataclasses.replace(data, rows=np.arange(data.n_rows), n_read=0, content_hash="")
        cells = np.where(response.known, 0, -1)
        held[held_out(matched, cells, [s.holdout], site.limits)[0]] = True
    weights = np.ones(data.n_rows) if data.weight is None else np.asarray(data.weight)
    rows = Rows(response.y, response.known & ~held, held, ~response.known, weights)
    fault = s.true_family().check(rows.y[rows.train])
    if fault is not None:
        sentence = f"the response of the training rows does not fit: it must be {fault}"
        raise DataError(sentence, public=sentence)
    if np.ptp(rows.y[rows.train]) == 0:
        sentence = "the response of the training rows has one value only"
        raise DataError(sentence, public=sentence)
    require_rows(rows.train, data.features.shape[1], s, "initiator")
    return rows


def require_rows(train: Mask, rank: int, s: Settings, role: str) -> None:
    """Check that a party's columns leave rows for the rest; a penalty makes up for that.

    Raises
    ------
    DataError
    """
    if not s.alpha and int(train.sum()) < 2 * (rank + 2):
        sentence = (
            f"the training rows are fewer than twice the {role}'s columns: "
            "set a penalty (alpha), or leave columns out"
        )
        raise DataError(sentence, public=sentence)

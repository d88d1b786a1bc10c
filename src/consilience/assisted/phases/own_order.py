"""An order of a site's matched rows that follows from what they hold: no coordinator chooses it.

Figures about a part of the rows are equations in what these rows hold. Where a coordinator draws
the part by a public seed, it has as many equations as it starts runs, and solves them. So a part is
drawn by the content of the rows: the same one in every run, whatever is asked, and nobody who lacks
the table can tell which rows are in it.
"""

from __future__ import annotations

import hashlib

import numpy as np

from consilience.arrays import IntArray
from consilience.exceptions import DataError
from consilience.numerics.random import stream
from consilience.protocol.method import SiteData


def own_order(data: SiteData, places: IntArray, label: str) -> IntArray:
    """Order some of a site's rows by what all of them hold.

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
        sentence = "rows without an id and a target have no order of their own"
        raise DataError(sentence, public=sentence)
    digest = hashlib.blake2b(digest_size=32)
    for values in (data.id.astype("U"), data.target, data.features):
        digest.update(repr((values.dtype.str, values.shape)).encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return stream(0, label, digest.hexdigest()).permutation(places)


def whole_groups(size: int, n: int, least: int) -> int:
    """About `size` of n rows, or all of them: no two sizes differ by a few rows only."""
    size = max(size - size % least, least)
    return size if n - size >= least else n

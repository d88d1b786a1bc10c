"""Which ranks a matrix can have."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from consilience.exceptions import ParameterError


def check_ranks(ranks: Sequence[int], n: int, p: int, *, increasing: bool = False) -> list[int]:
    """Refuse ranks that no n x p matrix has.

    Parameters
    ----------
    ranks : sequence of int
    n, p : int
    increasing : bool
        Whether each must be above the one before.

    Returns
    -------
    list of int

    Raises
    ------
    ParameterError
        A rank is not a whole number from 0 to min(n, p), or they do not increase.
    """
    top = min(n, p)
    for rank in ranks:
        whole = isinstance(rank, int | np.integer) and not isinstance(rank, bool)
        if not whole or not 0 <= rank <= top:
            allowed = f"a whole number from 0 to {top}, as there are {n} rows and {p} columns"
            raise ParameterError.of("rank", allowed, rank)
    found = [int(rank) for rank in ranks]
    if increasing and any(after <= before for before, after in pairwise(found)):
        raise ParameterError.of("ranks", "increasing", found)
    return found

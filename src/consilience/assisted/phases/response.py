"""What the initiator's target is to a family: for methods over columns, at that site only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.assisted.kernels.glm import Family
from consilience.exceptions import DataError
from consilience.protocol.method import SiteData


@dataclass(frozen=True)
class Response:
    """The response of the matched rows.

    Attributes
    ----------
    y : (n,) array
        0 where it is not known.
    known : (n,) bool array
        Rows without a response are people whose outcome is to be predicted.
    levels : tuple of str
        Declared levels; the second one counts as 1.
    """

    y: FloatArray
    known: NDArray[np.bool_]
    levels: tuple[str, ...] = ()


def response_of(data: SiteData, family: Family) -> Response:
    """Read the response of a family from a site's target.

    Raises
    ------
    DataError
        There is no target, or it does not fit the family; the sentence shows no value.
    """
    target = data.target
    if target is None:
        raise _refusal("the initiator's table has no target: name it in its own columns")
    levels: tuple[str, ...] = ()
    if target.dtype.kind == "U":
        levels = next(
            (tuple(v) for k, v in data.levels.items() if set(np.unique(target)) - {""} <= set(v)),
            (),
        )
        if len(levels) != 2:
            raise _refusal("the target has declared levels and there are not just two of them")
        known = target != ""
        y = np.where(target == levels[1], 1.0, 0.0)
    else:
        known = ~np.isnan(target)
        y = np.where(known, target, 0.0)
    if not known.any():
        raise _refusal("no matched row has a response")
    fault = family.check(y[known])
    if fault is not None:
        raise _refusal(f"the response does not fit the family {family.name!r}: it must be {fault}")
    return Response(y, known, levels)


def _refusal(sentence: str) -> DataError:
    return DataError(sentence, public=sentence)

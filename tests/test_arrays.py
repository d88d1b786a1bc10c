"""Arrays of all rooms: a table with columns beside it is read like one table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience.arrays import AT_ONCE, by_column, ends_of, side_by_side

N = 9001


def both() -> tuple[Any, np.ndarray]:
    """Two columns beside a table of three, and all five in one piece each."""
    x = np.random.default_rng(0).normal(size=(N, 5))
    parts = side_by_side(np.ascontiguousarray(x[:, :3]), [x[:, 3].copy(), x[:, 4].copy()])
    return parts, np.asfortranarray(x)


@pytest.mark.parametrize(
    "key",
    [
        slice(None),
        slice(2, 4100),
        np.array([[1, 5], [3, 1]]),
        np.arange(N) % 3 == 0,
        *((slice(None), columns) for columns in (1, 4, np.int64(3), [0, 3, 4], slice(None))),
        *((slice(None), slice(*ends)) for ends in ((1, 4), (0, 2), (3, 5), (4, 5))),
        (slice(None), np.array([True, False, False, True, True])),
        (np.arange(N) % 3 == 0, 4),
        np.ix_(np.arange(N) % 3 == 0, [0, 4]),
    ],
    ids=repr,
)
def test_parts_are_those_of_one_table(key: Any) -> None:
    parts, whole = both()
    np.testing.assert_array_equal(np.asarray(parts[key]), whole[key])


def test_it_is_a_table_to_what_knows_of_arrays_only() -> None:
    parts, whole = both()
    assert parts.shape == whole.shape and len(parts) == N and by_column(parts) is parts
    copy = np.asarray(parts)
    assert copy.flags.f_contiguous
    np.testing.assert_array_equal(copy, whole)
    np.testing.assert_array_equal(list(parts.T), whole.T)


def test_a_column_beside_is_nobodys_copy() -> None:
    """What is overwritten, or put in another order, is what owns its data."""
    assert not both()[0][:, 4].flags.owndata


def test_ends_are_those_of_all_blocks() -> None:
    x = np.random.default_rng(1).normal(size=(2 * AT_ONCE + 3, 2))
    x[-1, 0], x[0, 1] = 99, np.nan
    np.testing.assert_array_equal(ends_of(x), [x.min(axis=0), x.max(axis=0)])
    np.testing.assert_array_equal(ends_of(x[:0]), [[np.inf] * 2, [-np.inf] * 2])

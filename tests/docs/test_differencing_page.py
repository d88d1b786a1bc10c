"""What docs/proofs/differencing.md says of the gate's guard is what the guard does."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.sites import gate
from consilience.sites.policy import Policy
from consilience.testing.fakes import Sums
from consilience.wire.disclosure import aggregate

N = 200


def release(x: np.ndarray, cells: np.ndarray, series: gate.Series) -> gate.Reviewed:
    released = aggregate(x, cells=cells, n_cells=2, series="s")
    return gate.review(Sums(sums=released), Policy(), series)


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(5.0, 1.0, size=(N, 1))
    return x, (np.arange(N) >= N // 2).astype(np.int64)


def test_two_releases_do_not_isolate_few_records(rows: tuple[np.ndarray, np.ndarray]) -> None:
    x, first = rows
    for moved, verdict in ((9, "repeated"), (10, "released")):
        second = first.copy()
        second[:moved] = 1
        before = release(x, first, {})
        after = release(x, second, before.series)
        assert after.verdicts[0].verdict == verdict
        change = before.content.sums.value - after.content.sums.value  # type: ignore[attr-defined]
        wanted = x[:moved].sum() if verdict == "released" else 0.0
        assert change[0, 0] == pytest.approx(wanted)


def test_three_releases_do_not_either(rows: tuple[np.ndarray, np.ndarray]) -> None:
    """Ten records join a cell, then nine of them and another one leave: the third is repeated."""
    x, first = rows
    second = first.copy()
    second[100:110] = 0
    third = second.copy()
    third[100:109] = 1
    third[0] = 1
    reviewed = [release(x, first, {})]
    for cells in (second, third):
        reviewed.append(release(x, cells, reviewed[-1].series))
    assert [r.verdicts[0].verdict for r in reviewed] == ["released", "released", "repeated"]
    sums = [r.content.sums.value[0, 0] for r in reviewed]  # type: ignore[attr-defined]
    assert sums[2] == sums[1]

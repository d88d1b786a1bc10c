"""Tables of low rank, and rows in clusters: moments, ranks, shares, means."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.datasets.simulate_matrices import (
    SINGULAR_VALUES,
    simulate_clusters,
    simulate_low_rank,
)
from consilience.exceptions import ParameterError
from consilience.numerics.random import stream


@pytest.mark.parametrize("factors", ["gaussian", "sparse"])
def test_signal_has_the_rank_and_the_size_of_its_singular_values(factors):
    tables = [simulate_low_rank(rng=stream(seed, factors), factors=factors) for seed in range(200)]
    assert tables[0].x.shape == (50, 100) and tables[0].rank == 6
    values = np.linalg.svd(tables[0].signal, compute_uv=False)
    assert (values > 1e-8).sum() == 6
    # the squared length of sqrt(p) U D V' has expectation p sum(d^2); its standard error over
    # 200 tables is about 150 with normal factors, 500 with sparse ones
    sizes = [(table.signal**2).sum() for table in tables]
    wanted = 100 * np.square(SINGULAR_VALUES).sum()
    assert np.mean(sizes) == pytest.approx(wanted, abs=600 if factors == "gaussian" else 2000)


def test_sparse_factors_leave_zeros():
    table = simulate_low_rank(400, 300, rng=stream(0), singular_values=[5.0], factors="sparse")
    # an entry is not 0 with probability .01: standard error .001 (rows and columns are shared)
    assert (table.signal != 0).mean() == pytest.approx(0.01, abs=0.005)


@pytest.mark.parametrize(
    ("noise", "variance", "error"), [("white", 1.0, 0.02), ("heavy", 1.0, 0.2)]
)
def test_noise_has_variance_one(noise, variance, error):
    table = simulate_low_rank(400, 300, rng=stream(1), singular_values=[], noise=noise)
    assert table.rank == 0
    assert not table.signal.any()
    # 120,000 entries: standard error .004; the fourth moment of t with 3 degrees is infinite
    assert table.x.var() == pytest.approx(variance, abs=error)
    assert table.error(table.x) == pytest.approx(table.x.var(), abs=1e-4)


def test_coloured_noise_differs_by_row_and_column():
    table = simulate_low_rank(2000, 1000, rng=stream(2), singular_values=[], noise="coloured")
    plain = simulate_low_rank(2000, 1000, rng=stream(2), singular_values=[])
    # rows have (s_i + mean of t) / 2 with s_i = 1 / chi2_3, whose median is 1 / 2.366; the
    # mean of 1,000 t_j is 1 give or take .2 (its variance is infinite)
    by_row = np.median((table.x**2).mean(axis=1))
    assert by_row == pytest.approx(0.5 * (1 / 2.366 + 1), abs=0.2)
    for axis in (0, 1):
        spread, none = (np.std(np.log((t.x**2).mean(axis=axis))) for t in (table, plain))
        assert spread > 5 * none


def test_share_of_observed_entries():
    table = simulate_low_rank(20, 30, rng=stream(3), observed=0.6)
    assert np.isfinite(table.x).sum() == 360
    assert np.isfinite(table.signal).all()
    assert np.isfinite(simulate_low_rank(6, 6, rng=stream(3), observed=0.001).x).sum() == 1


@pytest.mark.parametrize(
    ("design", "p"), [("plane", 2), ("line", 10), ("correlated", 10), ("heavy", 10)]
)
def test_clusters(design, p):
    table = simulate_clusters(design, rng=stream(4), n_per_cluster=4000)
    assert table.x.shape == (20_000, p) and table.n_clusters == 5
    assert np.bincount(table.labels).tolist() == [4000] * 5
    wanted = dict(zip(range(5), (-0.1, 0.0, 0.1, 0.3, 0.5), strict=True))
    for k in range(5):
        rows = table.x[table.labels == k]
        # 4,000 rows: standard errors .016 of means and correlations, .05 of variances of t
        np.testing.assert_allclose(rows.mean(axis=0), table.means[k], atol=0.08)
        np.testing.assert_allclose(rows.var(axis=0), 1.0, atol=0.3 if design == "heavy" else 0.1)
        rho = wanted[k] if design == "correlated" else 0.0
        off = np.corrcoef(rows.T)[np.triu_indices(p, 1)]
        np.testing.assert_allclose(off, rho, atol=0.08)


def test_means_of_the_cluster_designs():
    plane = simulate_clusters("plane", rng=stream(5)).means
    assert sorted(map(tuple, plane)) == [(v, v) for v in (-5.0, -2.5, 0.0, 2.5, 5.0)]
    line = simulate_clusters("line", rng=stream(5)).means
    np.testing.assert_allclose(np.diff(line, axis=0), 3.5)
    drawn = np.array([simulate_clusters("correlated", rng=stream(s)).means for s in range(200)])
    # 10,000 normal coordinates: standard error .02 of their standard deviation
    assert drawn.std() == pytest.approx(2.0, abs=0.1)


def test_same_stream_same_table():
    made = [simulate_low_rank(rng=stream(s), noise="coloured").x for s in (1, 1, 2)]
    np.testing.assert_array_equal(made[0], made[1])
    assert not np.allclose(made[0], made[2])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"factors": "round"}, "factors"),
        ({"noise": "pink"}, "noise"),
        ({"n_rows": 0}, "n_rows"),
        ({"n_columns": 0}, "n_columns"),
        ({"n_rows": 5}, "singular_values"),
        ({"singular_values": [1.0, -1.0]}, "singular_values"),
        ({"sparsity": 0.0}, "sparsity"),
        ({"observed": 1.5}, "observed"),
    ],
)
def test_settings_out_of_range(settings, named):
    with pytest.raises(ParameterError, match=named):
        simulate_low_rank(**settings, rng=stream(0))


def test_cluster_settings_out_of_range():
    with pytest.raises(ParameterError, match="design"):
        simulate_clusters("ring", rng=stream(0))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="n_per_cluster"):
        simulate_clusters("plane", rng=stream(0), n_per_cluster=0)

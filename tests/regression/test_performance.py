"""Calibration and discrimination by site, beside those of the rows, and what may leave."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy.stats import rankdata

from consilience import PooledRegression, report
from consilience.exceptions import ParameterError, StudyError
from consilience.regression import performance
from consilience.regression.report.pooled_regression import shared_bands
from consilience.wire.disclosure import Limits
from tests.regression.test_pooled_regression import (
    SITES,
    draw,
    federation,
    fitted,
    tables_of,
)

OF = {"family": "binomial", "performance": True}


def rank_area(eta: np.ndarray, y: np.ndarray) -> float:
    """Mann-Whitney's statistic over the number of pairs."""
    n = y.sum()
    return float((rankdata(eta)[y == 1].sum() - n * (n + 1) / 2) / (n * (len(y) - n)))


def predicted(result: object, table: pd.DataFrame, b: int) -> np.ndarray:
    slopes = result.estimate[result.n_constants :]  # type: ignore[attr-defined]
    constant = result.estimate[b if result.n_constants > 1 else 0]  # type: ignore[attr-defined]
    return np.asarray(constant + table[["age", "dose", "ward"]].to_numpy() @ slopes)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("policy", ["simulation", "consortium"])
def test_they_are_those_of_the_rows(policy: str, own: bool) -> None:
    drawn = (draw("binomial", n, i, shift=s) for i, (n, s) in enumerate(((400, 0), (500, 1))))
    tables = dict(zip(SITES, drawn, strict=False))
    plain = fitted(tables, policy, family="binomial", site_effects=own)
    result = fitted(tables, policy, site_effects=own, **OF)
    assert result.rounds == plain.rounds + 1 and plain.performance.empty
    np.testing.assert_array_equal(result.estimate, plain.estimate)
    frame, bands = result.performance, result.risk_bands
    etas, ys = [], []
    for b, (name, table) in enumerate(tables.items()):
        eta, y = predicted(result, table, b), table["y"].to_numpy()
        expected = sm.Logit(y, sm.add_constant(eta)).fit(disp=0, tol=1e-14)
        told = frame.loc[name, ["intercept", "slope"]].to_numpy(dtype=float)
        np.testing.assert_allclose(told, expected.params, rtol=1e-8, atol=1e-9)
        errors = frame.loc[name, ["intercept_error", "slope_error"]].to_numpy(dtype=float)
        np.testing.assert_allclose(errors, expected.bse, rtol=1e-8)
        risk = 1 / (1 + np.exp(-eta))
        over = y.sum() / risk.sum()
        assert frame.loc[name, "observed_by_expected"] == pytest.approx(over, rel=1e-9)
        for line in bands[bands["site"] == name].itertuples():
            inside = (risk >= line[2]) & (risk < line[3])
            assert (line.rows, line.events) == (inside.sum(), y[inside].sum())
            assert line.expected == pytest.approx(risk[inside].sum(), rel=1e-9)
        exact, (low, high) = rank_area(eta, y), result.areas[b]
        assert low <= exact <= high
        without, events = result.bands[b].T
        tied = without @ events / (without.sum() * events.sum())  # pairs within a band
        assert high - low == pytest.approx(tied, rel=1e-9)
        etas.append(eta), ys.append(y)
    exact = rank_area(np.concatenate(etas), np.concatenate(ys))
    assert result.areas[-1, 0] <= exact <= result.areas[-1, 1] < 1
    if policy == "consortium":
        cells = result.bands[result.bands.sum(axis=2) > 0]
        assert cells.min() >= Limits().min_records
    if own:  # own constants make sites right on average
        np.testing.assert_allclose(frame["observed_by_expected"], 1, rtol=1e-8)


def test_bands_are_joined_alike_until_each_kind_is_there() -> None:
    eta = np.arange(12.0)
    y = np.array([0, 0, 1, 1, 1, 0, 1, 1, 0, 1, 0, 1], dtype=float)
    cuts = np.arange(0.5, 11)
    band = performance.bands_of(eta, y, cuts, 2)
    # by fours the second have one row without an event; by eights all have two of either kind
    assert band.tolist() == [0] * 8 + [8] * 4
    assert performance.bands_of(eta, y, cuts, 1).tolist() == [0] * 4 + [4] * 4 + [8] * 4
    assert performance.bands_of(eta, y, cuts, 6).tolist() == [-1] * 12
    # where a row lies within the first eight moves no band
    assert (
        performance.bands_of(eta, y[[4, 1, 2, 3, 0, *range(5, 12)]], cuts, 2).tolist()
        == band.tolist()
    )
    counts = np.zeros((1, 12, 2), dtype=np.int64)
    for k, v in zip(band, y.astype(int), strict=True):
        counts[0, k, v] += 1
    # 3 + 2 rows without an event, 5 + 2 with one: 3 x 2 pairs are in order, 2 x 5 are not
    low, high = performance.area(counts)
    assert (low, high) == (pytest.approx(6 / 35), pytest.approx(25 / 35))
    # a site that told nothing changes nothing
    assert performance.area(np.concatenate([counts, 0 * counts])) == (low, high)


def test_what_is_not_judged() -> None:
    tables = tables_of("binomial")
    with pytest.raises(StudyError, match="binomial or Cox fit without weights"):
        fitted(tables, family="poisson", performance=True)
    # too few events for two bands of a site: it has one, and one of which nothing is told
    few = tables | {"cedar": tables["cedar"].assign(y=lambda t: (t.index % 29 == 0) * 1.0)}
    result = fitted(few, "simulation", **OF)
    assert np.isfinite(result.areas).all()


def test_page(tmp_path: Path) -> None:
    done = PooledRegression(**OF).run(federation(tables_of("binomial")), seed=0)
    text = report.write(done, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Are predicted risks right?" in text and "observed / expected" in text
    assert "Shares of events against predicted risks in bands" in text
    assert [ax.get_title(loc="left") for ax in done.plot("calibration").axes[:4]] == [
        "all sites",
        *SITES,
    ]
    assert type(done.result).from_files(done.result.to_files()).to_files() == done.result.to_files()


def judged(**changes: object) -> SimpleNamespace:
    """Two sites with bands of four risks, the second of which joins them by twos; a silent one."""
    bands = np.zeros((3, 4, 2), dtype=np.int64)
    bands[0] = [[40, 10], [30, 10], [20, 20], [10, 40]]
    bands[1, [0, 2]] = [[60, 20], [15, 45]]
    expected = np.array([[8.0, 11, 21, 39], [19, 0, 44, 0], [np.nan] * 4])
    cuts = np.array([[0.2], [0.3], [0.6]])
    found = {"bands": bands, "expected": expected, "cuts": cuts, "sites": ("ash", "birch", "cedar")}
    return SimpleNamespace(**{**found, **changes})


def test_bands_of_several_sites_are_those_that_all_have() -> None:
    found = shared_bands(judged(), [0, 1])
    assert {name: line.tolist() for name, line in found.items()} == {
        "low": [0.0, 0.3],
        "high": [0.3, 1.0],
        "rows": [170.0, 150.0],
        "events": [40.0, 105.0],
        "expected": [38.0, 104.0],
    }
    alone = shared_bands(judged(), [0])
    assert alone["high"].tolist() == [0.2, 0.3, 0.6, 1.0]
    assert alone["expected"].tolist() == [8.0, 11.0, 21.0, 39.0]
    withheld = judged().expected
    withheld[1, 2] = np.nan
    pooled = shared_bands(judged(expected=withheld), [0, 1])["expected"]
    assert pooled[0] == 38 and np.isnan(pooled[1])


def test_the_figure_of_risks_draws_what_sites_tell() -> None:
    """Joined bands as wide as they are; no mark where the mean risk stays; no silent site."""
    withheld = judged().expected
    withheld[1, 2] = np.nan
    figure = report.plot_calibration(judged(expected=withheld))
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["all sites", "ash", "birch"]
    birch = figure.axes[2]
    reach, interval = birch.collections
    assert [line[:, 0].tolist() for line in reach.get_segments()] == [[0.0, 0.3], [0.3, 1.0]]
    marks = np.column_stack(birch.lines[0].get_data())
    np.testing.assert_allclose(marks[0], [19 / 80, 0.25])
    assert np.isnan(marks[1, 0])
    low, high = interval.get_segments()[0][:, 1]
    assert low < 0.25 < high and (low, high) == pytest.approx((0.1684, 0.3548), abs=1e-3)
    one = report.plot_calibration(judged(bands=judged().bands[:1], expected=withheld[:1]))
    assert [ax.get_title(loc="left") for ax in one.axes] == ["ash"]
    with pytest.raises(ParameterError):
        report.plot_calibration(judged(bands=0 * judged().bands))

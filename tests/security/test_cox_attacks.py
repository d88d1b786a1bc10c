"""Questions about risk sets that a coordinator of a Cox regression makes up."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from consilience import Policy
from consilience.protocol.method import Refused
from consilience.regression import cox, kernels
from consilience.regression.protocol.messages import Settings
from consilience.regression.protocol.site import _judged, _spans, _told_of_cox
from tests.security.test_pooled_regression_attacks import hostile, own_fit, sums_at

COX = Settings("cox", False, time="years")
FEATURES = ("x0", "x1", "years")


def table_of(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    years = rng.exponential(np.exp(-0.4 * x[:, 0]))
    died = (rng.random(n) < 0.6).astype(float)
    return pd.DataFrame(np.column_stack([x, years, died]), columns=[*FEATURES, "y"])


def asked(theta: tuple[float, float], turn: int = 1, settings: Settings = COX) -> object:
    return sums_at([0.0, *theta], turn, settings=settings)


@pytest.mark.parametrize("far", [0.5, 6.0, 30.0])
def test_steep_coefficients_single_out_nobody_in_the_risk_sets(far: float) -> None:
    """At steep ones the mean of a risk set is its largest value: that of the person who leaves."""
    table = table_of(200, 1)
    _, told = hostile(table, "consortium", [asked((far, 0.0))], COX, FEATURES)
    assert isinstance(told, Refused) is (far > 1)
    _, free = hostile(table, "simulation", [asked((60.0, 0.0))], COX, FEATURES)
    by = table.sort_values("years", ascending=False)
    largest, died = np.maximum.accumulate(by["x0"].to_numpy()), by["y"].to_numpy() == 1
    at = (largest - by["x0"].to_numpy())[died].sum()
    assert free.score.value[0] == pytest.approx(at, rel=0.02)


def test_one_row_far_out_stays_by_its_share_about_risk_sets() -> None:
    """About its risk sets a row has most of a curvature that about all rows is spread."""
    table = table_of(120, 2)
    late = table["years"].rank().to_numpy() > 60
    # All events are late; of those at risk then all are alike but one, who is like all before.
    odd = np.flatnonzero(late)[np.argmax(table["years"].to_numpy()[late])]
    table["x0"] = np.where(late & (np.arange(120) != odd), -1.0, 1.0) + 0.01 * table["x0"]
    table["y"] = late.astype(float)
    rows = kernels.Rows(
        kernels.Design(table[["x0", "x1"]].to_numpy(), np.zeros(2), np.ones(2)),
        table["y"].to_numpy(),
        time=table["years"].to_numpy(),
    )
    piece, own = cox.summed(rows, np.zeros(2))
    told_of_row = _told_of_cox(COX, piece, own, _judged(rows.design, _spans(rows.design.x)))
    for name in ("score", "curvature"):  # either would let it show by itself
        evidence = told_of_row[name].evidence
        assert evidence is not None and evidence.share is not None and evidence.share > 0.7
    assert own.curvature[odd, 0] > 0.8 * own.curvature[:, 0].sum()
    assert own.hazard.max() < 0.2 * own.hazard.sum()
    _, told = hostile(table, "consortium", [asked((0.0, 0.0))], COX, FEATURES)
    assert isinstance(told, Refused)
    one_shot = Settings("cox", False, time="years", fit="one-shot")
    policy = Policy(per_record=True, foreign_models=True)
    for rule, told_of in ((policy, 0), (Policy(preset="simulation"), 9)):
        _, fit = hostile(table, rule, [own_fit(one_shot)], one_shot, FEATURES)
        assert len(fit.fit.value) >= told_of and bool(len(fit.fit.value)) is bool(told_of)


def test_a_likelihood_without_columns_tells_the_order_so_it_stays() -> None:
    event = np.random.default_rng(3).permutation(np.repeat([0.0, 1.0], 12))
    told = np.log(24.0 - np.flatnonzero(event)).sum()
    first = [math.log(24 - i) for i in range(12)]
    last = [math.log(12 - i) for i in range(12)]
    halves: list[dict[int, list[tuple[float, tuple[int, ...]]]]] = [{}, {}]
    for half, logs in zip(halves, (first, last), strict=True):
        for k in range(13):
            sums = ((sum(logs[i] for i in of), of) for of in itertools.combinations(range(12), k))
            half[k] = sorted(sums)
    found = []
    for k in range(13):
        values = np.array([one for one, _ in halves[1][12 - k]])
        for value, of in halves[0][k]:
            for at in np.flatnonzero(np.abs(values + value - told) < 1e-9):
                found.append((of, halves[1][12 - k][at][1]))
    truth = tuple(tuple(np.flatnonzero(part).tolist()) for part in np.split(event, 2))
    assert truth in found and len(found) == 24
    for n, gap in ((120, True), (400, False)):
        _, sums = hostile(table_of(n, 4), "consortium", [asked((0.0, 0.0))], COX, FEATURES)
        assert np.isnan(sums.figures.value[2]) == gap
        assert sums.figures.value[0] == pytest.approx(0, abs=1e-9)
        _, free = hostile(table_of(n, 4), "simulation", [asked((0.0, 0.0))], COX, FEATURES)
        assert np.isfinite(free.figures.value[2])


def test_questions_keep_to_the_study_and_to_what_was_told() -> None:
    table = table_of(200, 5)
    one_shot = Settings("cox", False, time="years", fit="one-shot")
    for policy, settings, ask in (
        ("strict", COX, asked((0.0, 0.0))),
        ("strict", one_shot, own_fit(one_shot)),
        ("consortium", COX, own_fit(COX)),
        # times as a column of their own
        ("consortium", COX, sums_at([0.0] * 4, 1, (0, 1, 2), COX)),
        ("consortium", COX, asked((0.0, 0.0), settings=Settings("cox", False, time="x1"))),
        ("consortium", COX, asked((0.0, 0.0), settings=Settings("poisson", False))),
        ("consortium", COX, asked((0.0, 0.0), settings=Settings("cox", False, errors="HC0"))),
    ):
        _, told = hostile(table, policy, [ask], settings, FEATURES)
        assert isinstance(told, Refused), settings
    moments, told = hostile(table, "consortium", [asked((0.0, 0.0))], COX, FEATURES)
    assert len(moments.means.value) == 3 and not isinstance(told, Refused)
    rare = table.assign(x1=lambda t: (np.arange(200) < 3).astype(float))
    moments, told = hostile(rare, "consortium", [asked((0.0, 0.0))], COX, FEATURES)
    assert np.isnan(moments.means.value).tolist() == [False, True, False]
    assert isinstance(told, Refused)

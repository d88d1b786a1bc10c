"""Questions about risk sets that a coordinator of a Cox regression makes up."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience import Columns, Federation, Policy, PooledRegression
from consilience.exceptions import QuorumError
from consilience.protocol.method import Ask, Refused
from consilience.regression import cox, kernels, performance
from consilience.regression.protocol.messages import Judge, Settings
from consilience.regression.protocol.site import (
    _drift,
    _few_events,
    _judged,
    _spans,
    _told_of_cox,
)
from consilience.wire.disclosure import Limits, relayed
from consilience.wire.message import Disclosure
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


def judged(settings: Settings, theta: tuple[float, float] = (0.4, 0.1)) -> Ask:
    """What a question about pairs in order, and about proportional hazards, looks like."""
    told = sums_at([0.0, *theta], 1, settings=settings).message
    same = {
        name: getattr(told, name)
        for name in ("columns", "centre", "scale", "sites", "constants", "slopes")
    }
    cuts = relayed(np.zeros(0), Disclosure.MODEL)
    return Ask("judge", Judge(settings=settings, cuts=cuts, **same))


def test_late_events_count_more_only_where_enough_of_them_tell_of_the_columns() -> None:
    settings = dataclasses.replace(COX, performance=True)
    table, rng = table_of(300, 8), np.random.default_rng(8)
    kind = table.assign(x0=(table["x0"] > 0).astype(float))
    outlier = table.assign(x0=np.where(np.arange(300) == 7, 60.0, table["x0"]))
    few = table.assign(y=(rng.permutation(300) < 12).astype(float), years=table["years"].rank())
    for rows, theta, told_of in (
        (table, (0.4, 0.1), True),
        (kind, (0.4, 0.1), True),
        (kind, (20.0, 0.0), False),
        (outlier, (0.0, 0.0), False),
        (few, (0.0, 0.0), False),
    ):
        for policy in ("consortium", "simulation"):
            _, told = hostile(rows, policy, [judged(settings, theta)], settings, FEATURES)
            if isinstance(told, Refused):  # the moments kept a column that one row rules
                assert policy == "consortium" and not told_of
            else:
                assert (len(told.drift.value) == 13) is (told_of or policy == "simulation")


def test_of_the_late_events_alone_no_row_has_most() -> None:
    rng = np.random.default_rng(9)
    order, x = np.arange(400.0), rng.normal(size=400)
    # one row has .42 of the curvature of a round, .76 and .92 of those with g and its square
    x = np.where(order < 240, 3 * x, 0.05 * x) + 12.0 * (order == 390)
    rows = kernels.Rows(
        kernels.Design(x[:, None], np.zeros(1), np.ones(1)),
        ((rng.random(400) < 0.6) | (order == 390)).astype(float),
        time=order + 1,
    )
    judged_by = _judged(rows.design, _spans(rows.design.x))
    least = Limits(10)
    assert not _few_events(rows, least)
    assert not performance.is_steep(rows, cox.summed(rows, np.zeros(1))[0], 10)
    told = [
        _drift(dataclasses.replace(rows, y=y), np.zeros(1), "efron", judged_by, least)
        for y in (rows.y, np.where(order < 240, rows.y, 0.0))
    ]
    assert told[0] is None and told[1] is not None
    assert _drift(rows, np.zeros(1), "efron", judged_by, Limits(1)) is not None


def everything(table: pd.DataFrame, policy: Any, settings: Settings) -> list[bytes]:
    """All that a site tells of a table in a run that asks for all that there is."""
    asks = [own_fit(settings)]
    if not settings.one_shot:
        asks = [asked((far, -far / 2), turn, settings) for turn, far in enumerate((0.0, 0.5, 1.0))]
    asks = [*asks, judged(settings)]
    told = hostile(table, policy, asks, settings, FEATURES)
    assert not any(isinstance(one, Refused) for one in told) or policy == "strict"
    fields = [vars(one).values() for one in told if not isinstance(one, Refused)]
    return [np.asarray(field.value).tobytes() for one in fields for field in one]


@pytest.mark.parametrize("fit", ["exact", "one-shot"])
@pytest.mark.parametrize("ties", cox.TIES)
def test_nothing_depends_on_who_of_the_last_few_had_the_event_when(fit: str, ties: str) -> None:
    """Whatever order nine people end in, a site with ten of them or more at risk tells the same."""
    settings = Settings("cox", False, time="years", fit=fit, ties=ties, performance=True)
    settings = settings if fit == "one-shot" else dataclasses.replace(settings, errors="HC0")
    rng = np.random.default_rng(6)
    table = table_of(260, 6)
    table["years"] = np.ceil(table["years"] * 40)
    after = np.sort(table["years"])[-10]
    late = (table["years"] > after).to_numpy()
    assert 0 < late.sum() < 10 and table["y"][late].sum() > 0
    plain = everything(table, "consortium", settings)
    free = everything(table, "simulation", settings)
    for _ in range(4):
        other = table.copy()
        other.loc[late, "years"] = after + rng.integers(1, 9, late.sum())
        assert everything(other, "consortium", settings) == plain
        # the control: where nothing is protected they have their part
        assert everything(other, "simulation", settings) != free
    # one more person, and the order counts
    late = (table["years"] >= after).to_numpy()
    other.loc[late, "years"] = after + np.arange(late.sum()) - 3
    assert everything(other, "consortium", settings) != plain


def test_a_site_without_the_grants_tells_nothing_that_depends_on_times() -> None:
    table, rng = table_of(260, 7), np.random.default_rng(7)
    other = table.assign(years=rng.permutation(table["years"]))
    for fit in ("exact", "one-shot"):
        settings = Settings("cox", False, time="years", fit=fit, performance=True)
        told = [everything(one, "strict", settings) for one in (table, other)]
        assert told[0] == told[1] and len(told[0]) == (3 if fit == "one-shot" else 0)


def test_two_ways_with_ties_differ_by_few_tied_events_so_a_site_keeps_to_one() -> None:
    table = table_of(200, 1).assign(x1=lambda t: (t["x1"] > 0).astype(float))
    by = table.sort_values("years")
    first, last = by.index[by["y"] == 1][[50, 51]]
    between = table["years"].between(table.loc[first, "years"], table.loc[last, "years"])
    table.loc[between, "years"] = table.loc[first, "years"]
    at_risk = table[table["years"] >= table.loc[first, "years"]]
    n, inside = len(at_risk), at_risk["x1"].sum()
    tied = table.loc[[first, last], "x1"].sum()
    told = []
    for ties in ("breslow", "efron"):
        settings = dataclasses.replace(COX, ties=ties)
        _, sums = hostile(
            table, "consortium", [asked((0, 0), settings=settings)], settings, FEATURES
        )
        told.append(sums.score.value[1])
    # Size and members of one risk set, and columns of two people: fractions of whole numbers.
    expected = (inside - tied / 2) / (n - 1) - inside / n
    assert told[1] - told[0] == pytest.approx(expected, rel=1e-9)
    columns = Columns(features=FEATURES, target="y")
    for policy, refuses in (("consortium", True), ("simulation", False)):
        made = Federation.local({"a": table, "b": table_of(220, 2)}, columns=columns, policy=policy)

        def fitted(ties: str, family: str = "cox", made: Any = made) -> Any:
            how = {"time": "years", "ties": ties} if family == "cox" else {}
            return PooledRegression(family=family, **how).run(made, seed=0)

        before = fitted("efron").result.estimate
        fitted("", "binomial")  # other fits have no ties
        if refuses:
            with pytest.raises(QuorumError, match="set ties to 'efron'"):
                fitted("breslow")
        else:
            fitted("breslow")
        np.testing.assert_array_equal(fitted("efron").result.estimate, before)


def parted(n: int, seed: int) -> tuple[pd.DataFrame, int, int, int]:
    """Of two kinds of people one leaves early: events, those of one kind, those after its last."""
    rng = np.random.default_rng(seed)
    kind, other = (rng.random(n) < 0.5).astype(float), rng.normal(size=n)
    years = rng.exponential(1, n) * np.where(kind == 1, 0.45, 1.0)
    died = (rng.random(n) < 0.6).astype(float)
    table = pd.DataFrame({"x0": kind, "x1": other, "years": years, "y": died})
    by = table[table["years"] <= np.sort(years)[-10]]
    seen, left = by[by["y"] == 1], table.loc[table["x0"] == 1, "years"].max()
    return table, len(seen), int(seen["x0"].sum()), int((seen["years"] > left).sum())


def guess_of(told: Any, n: int, events: int, of_kind: int) -> float:
    """Events with nobody of a kind at risk, from sums at some slopes, by linear algebra.

    With z = exp(slope) and r people without the kind for one with it at an event, the mean is
    z / (z + r): of what was told, that combination is taken that is nearly 1 at infinite r and
    nearly 0 at all others. All else is known: how many events there are until follow-up ends.
    """
    slopes, score, curvature, loss = np.array(told).T
    ratio = np.append(np.geomspace(1 / n, n, 600), 1e300)
    z = np.exp(slopes)[:, None]
    mean = z / (z + ratio)
    known = np.vstack([1 - mean, mean * (1 - mean), np.log1p((z - 1) / (1 + ratio))])
    sums = np.concatenate([events - of_kind - score, curvature, loss + slopes * of_kind])
    wanted, found = np.append(np.zeros(600), 1.0), []
    for small in 10.0 ** np.arange(-13, -5):
        low = small * np.sqrt(len(ratio)) * np.eye(len(known))
        weights = np.linalg.lstsq(
            np.vstack([known.T, low]), np.append(wanted, np.zeros(len(known))), rcond=None
        )[0]
        off = 100 * np.abs(weights @ known - wanted).mean() + 1e-12 * np.abs(weights).sum()
        found.append((off, float(weights @ sums)))
    return min(found)[1]


def figures_of(slope: float, told: Any) -> tuple[float, float, float, float]:
    score, curvature = told.score.value[0], told.curvature.value[0, 0]
    return slope, score, curvature, told.figures.value[0]


def test_made_up_slopes_count_few_events_so_consent_is_needed_and_an_honest_run_does_not() -> None:
    # Ten tables of 300 people, with 1 to 9 events after the last of one kind has left; all else is
    # known. From 28 slopes their number follows in each table, from the four or five of Newton's
    # method in none: no combination of what they tell is near 1 at these events and 0 at others.
    made_up, honest = 0, 0
    tables = (parted(300, seed) for seed in itertools.count())
    some = itertools.islice((one for one in tables if 0 < one[3] < 10), 10)
    for table, events, of_kind, truth in some:
        far = next(s for s in np.arange(5, 1, -0.25) if not isinstance(told_at(table, s), Refused))
        slopes = np.linspace(-1.0, far, 28)
        asks = [asked((slope, 0.0), turn) for turn, slope in enumerate(slopes, 1)]
        _, *told = hostile(table, "consortium", asks, COX, FEATURES)
        by = [figures_of(slope, one) for slope, one in zip(slopes, told, strict=True)]
        made_up += round(guess_of(by, 300, events, of_kind)) == truth
        steps = [figures_of(0.0, told_at(table, 0.0))]
        while abs(steps[-1][1]) > 1e-9 * events:
            slope = steps[-1][0] - steps[-1][1] / steps[-1][2]
            steps.append(figures_of(slope, told_at(table, slope)))
        honest += round(guess_of(steps, 300, events, of_kind)) == truth
    assert (made_up, honest) == (10, 0)


def told_at(table: pd.DataFrame, slope: float) -> Any:
    """What a site tells at one slope."""
    return hostile(table, "consortium", [asked((slope, 0.0))], COX, FEATURES)[1]


def test_no_score_at_steep_slopes_is_a_count_of_few_events() -> None:
    table, events, of_kind, truth = parted(300, 4)
    assert truth > 0
    for far in (-20.0, -5.0, -3.5, 5.0, 20.0):
        _, told = hostile(table, "consortium", [asked((far, 0.0))], COX, FEATURES)
        assert isinstance(told, Refused) and "fewer events" in told.reason
    late = table["years"] > np.sort(table["years"])[-10]
    free = table.assign(y=table["y"].where(~late, 0.0))
    _, told = hostile(free, "simulation", [asked((20.0, 0.0))], COX, FEATURES)
    assert events - of_kind - told.score.value[0] == pytest.approx(truth, abs=1e-5)
    one_shot = Settings("cox", False, time="years", fit="one-shot")
    # and an own fit there: the events before the end are of one kind alone
    rare = table.assign(years=table["years"] * np.where(table["x0"] == 1, 0.02, 1.0))
    for policy, told_of in (("consortium", False), ("simulation", True)):
        _, fit = hostile(rare, policy, [own_fit(one_shot)], one_shot, FEATURES)
        assert bool(len(fit.fit.value)) is told_of

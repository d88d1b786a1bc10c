"""Made-up averages and made-up offers of reference averaging that single out one person.

Two averages that differ at one held-out row only made a difference of losses that one row rules: it
was withheld, and the gap was the answer. Whoever is asked about is in these tests held out, or is
not; what is told must be the same.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import rankdata
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from consilience import Columns, Federation
from consilience.averaging.protocol import site as at_site
from consilience.averaging.protocol.messages import Offer, Settings
from consilience.learners.foreign_models import within_reach
from consilience.numerics.own_rows import row_digests
from consilience.protocol.method import Ask, Refused
from consilience.sites.policy import Policy
from consilience.testing.fakes import members, rows_of
from consilience.wire.disclosure import Limits
from consilience.wire.estimators.archive import write_archive
from tests.averaging.protocol.test_reference_averaging import spread_rows
from tests.granted import granted
from tests.security.test_federated_pca_attacks import Villain
from tests.security.test_foreign_models_attacks import box, split
from tests.security.test_reference_attacks import (
    Array,
    Questions,
    fit,
    hostile,
    judge,
    linear,
    offering,
    refused,
    settings,
    table_of,
)

FOREST = "random-forest(n_estimators=4, min_samples_leaf=10)"
LIMITS = Limits(min_records=10, max_share=0.5)
WAY = np.array([1.0, np.e / 2, 0.0])
"""A direction of the two columns that are known: no two people are at the same place."""


def told(table: pd.DataFrame, s: Settings, *averages: Any) -> Array | Refused:
    """Difference of the last two averages and its squared error, as a coordinator hears it."""

    def ask() -> Questions:
        yield from offering(s)
        answer = (yield Ask("fit", fit(s, spread_rows(9, 3))))["s"]
        for k, average in enumerate(averages):
            answer = (yield Ask("judge", judge(s, average, round_=k)))["s"]
            if isinstance(answer, Refused):
                return answer
        return np.array([answer.losses.value[0, 0], answer.errors.value[0, 0]])

    return hostile(table, ask)  # type: ignore[no-any-return]


def held_out(table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Rows of the table that the site holds out, which nobody else knows."""
    found: list[np.ndarray] = []
    draw = at_site.held_rows

    def seen(*given: Any) -> Any:
        found.append(draw(*given))
        return found[-1]

    with monkeypatch.context() as patch:
        patch.setattr(at_site, "held_rows", seen)
        hostile(table, lambda: offering(settings(holdout=0.3)))
    return found[-1]


def step_at(place: float) -> dict[str, Any]:
    """An average that is nearly a step."""
    steep = 1e6
    return {**linear(3), "coef": steep * WAY[None], "intercept": np.array([-steep * place])}


@pytest.mark.parametrize("seed", range(20))
def test_a_slab_around_a_held_out_person_tells_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact, for a person in the middle: the answer is that of two averages that do not differ.

    It was a gap for 20 of 20 people who are held out, and none for 15 of 20 others.
    """
    table = table_of(100, seed=seed)
    held, places = held_out(table, monkeypatch), table.to_numpy()[:, :3] @ WAY
    middle = held[np.argsort(places[held])[len(held) // 2]]
    place = places[middle]
    half = np.abs(np.delete(places, middle) - place).min() / 2
    s = settings(holdout=0.3)
    answer = told(table, s, step_at(place - half), step_at(place + half))
    assert isinstance(answer, np.ndarray) and answer.tolist() == [0, 0]


def boxes(person: Array, value: float, apart: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Forests of one box and one stump: nothing in the box, then this value, twice the third."""
    made = [split(box(person[0], person[1], v, v), apart) for v in (0.0, 2 * value)]
    return tuple({**tree, "link": "mean"} for tree in made)  # type: ignore[return-value]


def test_boxes_around_people_in_forests_do_not_tell_who_is_held_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the study's learner is made of trees, forms rule nothing out.

    A pair of averages that differ everywhere by a little and at the person by much. What is told of
    those who are held out is above that of others with a probability of .5, +- .09 for 20 and 20;
    it was above for .86 by the squared error, which one row made, and for 1 where they differ at
    the person alone.
    """
    s, answers = settings(FOREST, holdout=0.3), []
    for seed in range(20):
        table = table_of(100, seed=seed)
        held = held_out(table, monkeypatch)
        for row in (held[0], np.setdiff1d(np.arange(100), held)[0]):
            person = table.to_numpy()[row, :3]
            empty, full = boxes(person, 3.0, 0.6)
            full["value"] = full["value"] + np.where(full["value"] == 0, 0.04, 0.0)
            answers.append(told(table, s, empty, full))
    for numbers in np.abs(np.array(answers)).T:
        assert np.isfinite(numbers).all()
        above = (rankdata(numbers)[::2].sum() - 210) / 400
        assert above < 0.77


@pytest.mark.parametrize("few", [0, 1, 9, 10, 30])
@pytest.mark.parametrize("weight", [None, np.linspace(0.1, 9.0, 50)])
def test_what_fewer_rows_than_the_policys_make_is_no_difference(few: int, weight: Any) -> None:
    d = np.zeros((50, 1))
    d[:few, 0] = np.random.default_rng(0).normal(size=few) + 100.0 * (np.arange(few) == 0)
    cut = at_site._without_few(d, weight, LIMITS)
    assert cut.any() == (few >= 10)
    counted = np.sort(np.abs(cut[:, 0] * (1.0 if weight is None else weight)))[::-1]
    assert counted[9] == pytest.approx(counted[0])


@pytest.mark.parametrize("few", [0, 1, 9, 10])
def test_an_average_that_is_flat_but_for_a_few_rows_is_flat(few: int) -> None:
    y = np.random.default_rng(0).normal(size=60)
    says = np.zeros((60, 1))
    says[:few] = 3.0
    assert within_reach([says], y, 10)[0].any() == (few >= 10)


def means(values: Any, **how: bool) -> Any:
    rows: Any = SimpleNamespace(held_weight=None, limits=LIMITS, seed=7)
    return at_site.Rows.means(rows, values, **how)


def test_a_difference_that_is_withheld_looks_like_none() -> None:
    """One row makes most of it: without the cut above, the gate would withhold it."""
    d = np.full((40, 2), 0.01)
    d[0, 0], d[:, 1] = 50.0, np.random.default_rng(0).normal(size=40)
    mean, variance = means(d)
    assert mean.value[0] == variance.value[0] == 0.0 and mean.value[1] != 0.0
    # losses themselves are no differences: none is told as a gap
    raw, _ = means(d, differences=False)
    assert np.isnan(raw.value[0])


def test_the_same_question_is_rounded_the_same_way_and_another_one_by_chance() -> None:
    d = np.random.default_rng(0).normal(size=(40, 1)) + 0.3

    def said(factor: float) -> float:
        return float(means(d * factor)[0].value.item())

    assert len({said(1 + 1e-12 * k) for k in range(9)}) == 1
    other = [said(1 + 1e-5 * k) for k in range(99)]
    low, high = sorted(set(other))
    # up or down such that the mean is right: within four standard errors
    assert abs(np.mean(other) - d.mean()) < 4 * (high - low) / 2 / np.sqrt(99) + 1e-3 * d.mean()


def test_averages_have_the_form_of_the_studys_learner() -> None:
    """A ridge's average is linear; and packed trees are no pipeline of polynomials."""
    from sklearn.tree import DecisionTreeRegressor

    table = table_of(100)
    tree = box(0.0, 0.0, 0.0, 3.0)
    refused(told(table, settings("ridge", holdout=0.3), tree), "form")
    x, y = table.to_numpy()[:, :3], table["y"].to_numpy()
    steps = make_pipeline(PolynomialFeatures(1), LinearRegression()).fit(x, y)
    packed = [
        {"form": "skops", "data": write_archive(made, fitted=True), "columns": 3}
        for made in (
            steps,
            make_pipeline(PolynomialFeatures(1), DecisionTreeRegressor(max_depth=2)).fit(x, y),
        )
    ]
    s = settings(make_pipeline(PolynomialFeatures(1), LinearRegression()), holdout=0.3)
    assert isinstance(told(table, s, packed[0]), np.ndarray)
    refused(told(table, s, packed[1]), "form")


def test_an_average_that_overflows_beyond_a_place_is_none_that_failed() -> None:
    """Otherwise the refusal tells whether a row lies there."""
    table = table_of(100)
    x, y = table.to_numpy()[:, :3], table["y"].to_numpy()
    table["x0"] *= 10.0
    steps = make_pipeline(PolynomialFeatures(1), LinearRegression()).fit(x, y)
    steps[1].coef_ = np.array([0.0, float(np.finfo(float).max) / 8, 0.0, 0.0])
    over = {"form": "skops", "data": write_archive(steps, fitted=True), "columns": 3}
    s = settings(make_pipeline(PolynomialFeatures(1), LinearRegression()), holdout=0.3)
    assert isinstance(told(table, s, over), np.ndarray)


def test_judged_averages_are_charged_over_all_runs() -> None:
    """What is bounded for ever is the number of models of others, of which an average is one."""
    policy = granted(Policy(max_models_per_row=1))
    table = table_of(50)
    columns = Columns(features=("x0", "x1", "x2"), target="y")
    site = members(Federation.local({"s": table}, columns=columns, policy=policy))["s"]
    s = settings("ridge", holdout=0.2, guard=True, penalties=tuple(float(k) for k in range(1, 51)))
    asked = 0
    for run in ("r1", "r2"):
        villain = Villain(site, run, columns.features, method="reference-averaging", target="y")
        villain.ask("offer", Offer(settings=s, salt="1", digests=NOTHING))
        villain.ask("fit", fit(s, spread_rows(9, 3)))
        for k in range(3):
            question = judge(s, linear(3, 0.0, 0.1 * k), tracks=tuple(range(50)))
            reply = villain.raw("judge", question)
            asked += 50 * (reply.status == "reply")
    assert asked == 200 and "allows to be asked" in reply.reason


NOTHING = np.zeros((0, 32), dtype=np.uint8)


# --------------------------------------------------------------------------- whose rows


class Offers:
    """A coordinator that offers rows, run after run."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.columns = Columns(features=tuple(table.columns[:-1]), target="y")
        federation = Federation.local({"s": table}, columns=self.columns, policy=granted())
        self.data, self.site = rows_of(federation)["s"], members(federation)["s"]
        self.runs = 0

    def are_own(self, rows: Array, fillers: int = 0) -> bool:
        self.runs += 1
        name, features = f"r{self.runs}", self.columns.features
        villain = Villain(self.site, name, features, method="reference-averaging", target="y")
        rng = np.random.default_rng(self.runs)
        made = rng.integers(0, 256, size=(fillers, 32), dtype=np.uint8)
        digests = np.concatenate([row_digests(rows, "1"), made])
        message = Offer(settings=settings(), salt="1", digests=digests)
        return bool(villain.ask("offer", message).own_rows)


def smokers(n: int, seed: int) -> pd.DataFrame:
    """Two in five never smoked, and have a common row."""
    rng = np.random.default_rng(seed)
    never = rng.random(n) < 0.4
    cigarettes = np.where(never, 0.0, rng.gamma(4, 4, n).round(1))
    years = np.where(never, 0.0, (cigarettes / 20 * rng.gamma(4, 6, n)).round(2))
    relapse = (rng.random(n) < 0.4) * 1.0
    return pd.DataFrame({"a": cigarettes, "b": years, "c": relapse, "y": rng.normal(size=n)})


@pytest.mark.parametrize("seed", range(20))
def test_copies_of_a_common_row_are_nobody_who_is_known(seed: int) -> None:
    """Exact: whatever the number of copies and of fillers, with a person's row beside, is no.

    Membership was told rightly for 60 of 60 people, by eleven runs each.
    """
    table = smokers(200, seed)
    offers = Offers(table)
    common = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]).repeat([24, 16], axis=0)
    person = table[table["a"] > 0].iloc[:1, :3].to_numpy()
    for fillers in (0, 8, 16, 32, 64):
        assert not offers.are_own(np.vstack([common, person]), fillers)


def test_the_number_of_rows_that_are_noticed_is_a_tables_secret() -> None:
    """Ten at least and nineteen at most; who knows nine learns of a tenth in a table of ten.

    Of 20 tables ten rows are noticed in 2 +- 1.3 of them; it was all of them.
    """
    least = []
    for seed in range(20):
        table = table_of(100, seed=seed)
        offers, x = Offers(table), table.to_numpy()[:, :3]
        least.append(at_site.least_own_rows(offers.data, LIMITS))
        if seed < 5:
            strangers = spread_rows(30, 3)
            assert not offers.are_own(np.vstack([x[: least[-1] - 1], strangers]))
            assert offers.are_own(np.vstack([x[: least[-1]], strangers]))
    assert set(least) <= set(range(10, 20)) and len(set(least)) > 4
    assert sum(n == 10 for n in least) < 7

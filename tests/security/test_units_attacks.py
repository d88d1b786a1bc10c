"""Made-up numbers by which a site moves, scales and fills its columns (`docs/proofs/units.md`)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience import (
    Columns,
    FederatedSparseQDA,
    Federation,
    MetaClustering,
    Preparation,
    ReferenceAveraging,
)
from consilience.completion.federated_pca import FederatedPCA
from consilience.completion.federated_pca.messages import Told
from consilience.exceptions import QuorumError
from consilience.latent_regression.protocol import LatentClassRegression
from consilience.latent_regression.protocol.events import Events
from consilience.numerics.block_moments import square_of
from consilience.protocol.mean_and_sd import Centre, MeanAndSD, SumsRequest
from consilience.protocol.method import Ask, CoordinatorContext, Exchange, Method
from consilience.protocol.phases import moments, standardise
from consilience.sites import step_runner
from consilience.sites.policy import Policy
from consilience.testing.fakes import scripted
from consilience.testing.table_attacks import told
from consilience.wire.codec import decode_message
from consilience.wire.disclosure import relayed
from consilience.wire.envelope import Reply
from consilience.wire.message import Disclosure
from tests.granted import GRANTED
from tests.latent_regression.protocol.latent import events as class_events
from tests.latent_regression.protocol.latent import federation as classes_of

N, PERSON, AGE = 120, 7, 57.77
Groups = list[tuple[float, np.ndarray, np.ndarray]]


def people(lacking: int = 0, seed: int = 8) -> pd.DataFrame:
    """Somebody whose age is known; of some people `lab` is missing."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {"age": rng.normal(60, 9, N).round(2), "lab": rng.normal(5, 1, N), "rate": 70.0}
    )
    table["rate"] += rng.normal(0, 5, N)
    table.loc[PERSON, "age"] = AGE
    table.loc[rng.permutation(N)[:lacking], "lab"] = np.nan
    return table


def told_groups(
    table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, units: Sequence[tuple[Any, Any]]
) -> Groups:
    """What one strict site tells of groups of rows, in made-up units: fills and centres."""
    p = table.shape[1]

    def scaling(fill: Any, centre: Any) -> np.ndarray:
        return np.stack([np.broadcast_to(one, p) for one in (fill, centre, 1.0)]).astype(float)

    def made_up(ctx: Any) -> Generator[Ask, Any, np.ndarray]:
        yield from standardise.moments(ctx)
        for one in units[:-1]:
            values = [relayed(line, Disclosure.AGGREGATE) for line in scaling(*one)]
            yield Ask("standardise.apply", standardise.Scale(False, *values))
        return scaling(*units[-1])

    monkeypatch.setattr(standardise, "_scaling", made_up)
    preparation = Preparation(missing="aggregated-mean", standardize="pooled")
    federation = Federation.local(
        {"s": table},
        columns=Columns(features=tuple(table.columns)),
        preparation=preparation,
        policy=GRANTED,
    )
    replies = told(FederatedPCA(rank=1), scripted(federation))
    messages = [decode_message(reply.message) for reply in replies.values() if reply.message]
    (last,) = (one for one in messages if isinstance(one, Told))
    kept = np.flatnonzero(~np.isnan(last.means.value[0]))
    found: Groups = []
    for n, means, line in zip(
        last.counts.value, last.means.value, last.products.value, strict=True
    ):
        products = np.full((p, p), np.nan)
        products[np.ix_(kept, kept)] = square_of(line, len(kept))
        found.append((float(n), means, products))
    return found


def lab_of_the_person(monkeypatch: pytest.MonkeyPatch) -> float | None:
    """Cut the ages below the person's and above it; the lab value is what differs."""
    table = people()
    age = np.sort(table["age"].to_numpy())
    at = int(np.searchsorted(age, AGE))
    below, above = (age[at - 1] + AGE) / 2, (AGE + age[at + 1]) / 2
    high = 2.0**60  # numbers are 256 apart from here on, 128 below
    first, second = (
        told_groups(
            table, monkeypatch, [(0.0, [cut - 128.0, 0, 0]), (0.0, [-high, 0, 0]), (0.0, 0.0)]
        )
        for cut in (below, above)
    )
    for (_, means, before), (_, _, after) in zip(first, second, strict=True):
        if abs(before[0, 1] - after[0, 1]) > 1e-6:
            return float(means[1] + (before[0, 1] - after[0, 1]) / 256)
    return None


def test_two_cuts_of_a_column_tell_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that were moved by 1e18 were cut in two: who is between two cuts was a difference.

    A place of one's choice takes two moves, which a site does not make, and a column that is far
    from its centre is one value. *Control*: without these rules two strict runs, in which each sum
    rests on many people, tell the lab value of somebody whose age is known.
    """
    with pytest.raises(ValueError, match="not enough values"):  # no moments were told
        lab_of_the_person(monkeypatch)
    monkeypatch.setattr(step_runner, "_asked_once", lambda *_: {})
    assert lab_of_the_person(monkeypatch) is None
    monkeypatch.setattr(standardise, "_FAR", np.inf)
    assert lab_of_the_person(monkeypatch) == pytest.approx(people()["lab"][PERSON], abs=1e-6)


def test_many_steps_down_and_up_need_more_than_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """By steps of 1e-30 a column gets where numbers are few, and so does the one step of a run.

    *Control*: eleven steps down and up round ages to whole numbers of one's choice.
    """
    x = people().to_numpy()
    centred = x[:, [0]] - x[:, [0]].mean()

    def steps(number: int) -> np.ndarray:
        found = centred
        for scale in (1e30,) * number + (1e-30,) * number:
            found = standardise.moved(found, np.zeros(1)) / scale
        return found

    np.testing.assert_allclose(steps(1), centred, rtol=1e-14)
    assert np.unique(steps(11)).size == 1 or not np.allclose(steps(11), centred, rtol=1e-3)


@pytest.mark.parametrize("height", [0.0, 1e3, 1e6])
def test_columns_move_whole_or_are_one_value(height: float) -> None:
    x = np.random.default_rng(2).normal(height, 1.0, (500, 1))
    for power in range(-3, 30):
        moved = standardise.moved(x, np.array([height + 10.0**power]))
        lost = np.abs(moved - moved.mean() - (x - x.mean())).max()
        assert lost < 1e-8 or np.unique(moved).size == 1, (power, lost)
    assert lost > 1, "the last ones are one value"


def over_the_missing(monkeypatch: pytest.MonkeyPatch, table: pd.DataFrame) -> np.ndarray:
    """Number of rows without `lab`, and the sum of `rate` over them, by two made-up fills."""
    found = []
    for fill in (3.0, 7.0):
        groups = told_groups(table, monkeypatch, [(fill, 0.0)])
        lab = sum(n * means[1] for n, means, _ in groups)
        product = sum(two[1, 2] + n * means[1] * means[2] for n, means, two in groups)
        found.append((lab, product))
    return np.asarray(np.subtract(found[1], found[0]) / 4.0)


def test_a_made_up_fill_adds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty cells, filled by a number of somebody's choice, added up the rows that have them.

    *Control*: where a site fills as it is told, two strict runs tell how many people lack a value
    and the sum of another column over these three.
    """
    table = people(lacking=3)
    np.testing.assert_allclose(over_the_missing(monkeypatch, table), 0.0, atol=1e-12)

    def as_told(x: np.ndarray, given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.where(np.isnan(x), given, x), given

    monkeypatch.setattr(standardise, "_filled", as_told)
    number, total = over_the_missing(monkeypatch, table)
    assert number == pytest.approx(3, abs=1e-6)
    assert total == pytest.approx(table["rate"][table["lab"].isna()].sum(), abs=1e-3)


def test_few_missing_values_do_not_follow_from_what_is_told_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Moments of a column before and after its cells are filled are those of one column."""
    table = people(lacking=3)
    groups = told_groups(table, monkeypatch, [(0.0, 0.0)])
    n = sum(n for n, _, _ in groups)
    mean = sum(n * means[1] for n, means, _ in groups) / n
    spread = sum(two[1, 1] + n * (means[1] - mean) ** 2 for n, means, two in groups) / n
    preparation = Preparation(missing="aggregated-mean", standardize="pooled")
    federation = Federation.local(
        {"s": table},
        columns=Columns(features=("age", "lab", "rate")),
        preparation=preparation,
        policy=GRANTED,
    )
    monkeypatch.undo()
    scaling = FederatedPCA(rank=1).run(federation, seed=0).scaling
    np.testing.assert_allclose(scaling[:, 1], [mean, mean, np.sqrt(spread)], rtol=1e-12)


def rate_of_who_lacks_a_value(table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> float:
    """Somebody's rate, from what is expected of the missing `lab` in an honest run."""
    table = table[["lab", "rate"]]
    federation = scripted(
        Federation.local(
            {"s": table},
            columns=Columns(features=("lab", "rate")),
            preparation=Preparation(missing="keep", standardize="pooled"),
            policy=GRANTED,
        )
    )
    replies = told(FederatedPCA(rank=1), federation)
    messages = [decode_message(reply.message) for reply in replies.values() if reply.message]
    (last,) = (one for one in messages if isinstance(one, Told))
    counts, means = last.counts.value, last.means.value
    # On the scale of the run the mean of the values that are there is 0.
    expected = counts @ means[:, 0]
    products = [square_of(line, 2) for line in last.products.value]
    guesses = [
        means[g, 1] + (expected - means[g, 0]) * two[1, 1] / two[0, 1]
        for g, two in enumerate(products)
    ]
    rate = table["rate"].to_numpy()
    found = np.array(guesses) * rate.std() + rate.mean()
    truth = float(rate[table["lab"].isna()][0])
    return float(np.abs(found - truth).min())


def test_what_is_expected_of_one_row_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments of the largest likelihood add what the other columns say of a missing value.

    *Control*: with one person's value missing, an honest run told another column of that person.
    The best of a few guesses is near by chance now and then, hence the median of nine tables.
    """

    def errors() -> list[float]:
        found = []
        for seed in range(9):
            table = people(lacking=1, seed=seed)
            table["lab"] += 0.1 * (table["rate"] - 70)
            found.append(rate_of_who_lacks_a_value(table, monkeypatch))
        return found

    with_rule = np.median(errors())  # of a spread of 5
    monkeypatch.setattr(
        "consilience.completion.federated_pca.site._without_few_gaps", lambda x, n: x
    )
    assert np.median(errors()) < 0.5 < with_rule


RULES = [
    (MeanAndSD(), "aggregated-mean"),
    (MeanAndSD(), "indicator"),
    (FederatedPCA(rank=1), "aggregated-mean"),
    (FederatedPCA(rank=1), "indicator"),
    (FederatedPCA(rank=1), "keep"),
]


def prepared(table: pd.DataFrame, missing: Any, **settings: Any) -> Federation:
    return scripted(
        Federation.local(
            {"s": table},
            columns=Columns(features=tuple(table.columns)),
            preparation=Preparation(missing=missing),
            **settings,
        )
    )


@pytest.mark.parametrize(("method", "missing"), RULES)
def test_empty_cells_are_filled_or_kept_by_the_same_grant(method: Method, missing: Any) -> None:
    """It is the study's rule that counts: the answer is the same for every table."""
    for lacking in (0, 3, 30):
        with pytest.raises(QuorumError, match="lets no study fill or keep empty cells"):
            method.run(prepared(people(lacking), missing))
    Policy(preset="simulation").check_method(type(method), Preparation(missing=missing))
    GRANTED.check_method(type(method), Preparation(missing=missing))
    for allowed in ("refuse", "complete-rows"):
        Policy().check_method(type(method), Preparation(missing=allowed))


def test_with_the_grant_few_empty_cells_can_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of a column before its cells are filled, and the moments: why there is the grant.

    The steward's page and docs/proofs/units.md say so.
    """
    table = people(lacking=3)
    found: list[float] = []

    def unprepared(ctx: Any) -> Generator[Ask, Any, None]:
        yield from ()

    def out_of_order(self: MeanAndSD, ctx: Any) -> Generator[Ask, Any, Any]:
        mean = (yield Ask("moments.sums", moments.Request()))["s"].means.value
        sums = (yield Ask("sums", SumsRequest()))["s"].totals.value
        found.append(N - sums[1] / mean[1])
        raise QuorumError("it has what it wanted")

    monkeypatch.setattr(standardise, "standardise", unprepared)
    monkeypatch.setattr(MeanAndSD, "coordinate", out_of_order)
    for settings in ({}, {"policy": GRANTED}):
        told(MeanAndSD(), prepared(table, "aggregated-mean", **settings))
    assert found == [pytest.approx(3.0)]


def test_a_made_up_mean_does_not_cut_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Squares about a point 1e17 away take two values, by which side of a place a row is on.

    *Control*: of the rows as they are, one has another square than all others: that it is alone
    made the site refuse. Now what is told is, to the last digit, a function of what is told anyway.
    """
    table = people()
    table.loc[PERSON, "lab"] = 8.5
    x = table.to_numpy()

    def told_squares(centre: float) -> np.ndarray:
        federation = scripted(
            Federation.local({"s": table}, columns=Columns(features=tuple(table.columns)))
        )
        made_up = Centre(mean=relayed(np.full(3, centre), Disclosure.AGGREGATE))
        monkeypatch.setattr("consilience.protocol.mean_and_sd.Centre", lambda mean: made_up)
        replies = told(MeanAndSD(), federation)
        last = decode_message(replies[max(replies)].message)
        return np.asarray(last.squares.value)

    for centre in (0.0, 1e3, 2.0**57):
        wanted = len(x) * (x.var(axis=0) + (x.mean(axis=0) - centre) ** 2)
        np.testing.assert_allclose(told_squares(centre), wanted, rtol=1e-13)
    _, times = np.unique((x[:, 1] - 2.0**57) ** 2, return_counts=True)
    assert sorted(times) == [1, N - 1]


class FarAway(LatentClassRegression):
    """Begins in units whose centre cuts the response in two."""

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        exchange = super().coordinate(ctx)
        asked = next(exchange)
        while asked.step != "begin":
            asked = exchange.send((yield asked))
        centre = asked.message.centre.value.copy()
        centre[-1] = 2.0**53
        told = relayed(centre, Disclosure.AGGREGATE)
        ctx.require((yield Ask("begin", dataclasses.replace(asked.message, centre=told))))
        raise QuorumError("enough")


def test_a_centre_far_away_does_not_cut_the_response_of_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a response in two values, products with a column add up the rows above a place."""
    values: list[int] = []
    true = Events.scaled

    def noting(self: Events, centre: np.ndarray, scale: np.ndarray) -> np.ndarray:
        found = true(self, centre, scale)
        values.append(np.unique(found[:, -1]).size)
        return found

    monkeypatch.setattr(Events, "scaled", noting)
    federation = scripted(classes_of({"s": class_events(12)}))
    told(FarAway(n_classes=1, start="random", holdout=0.0), federation)
    assert values == [1]


COPIES: dict[str, tuple[Method, str]] = {
    "site-moments": (
        ReferenceAveraging(estimator="ridge", penalties=(1.0,), reference="moments", max_rounds=1),
        "site-moments.within",
    ),
    "pool-moments": (
        MetaClustering(candidates="linear", gain_folds=0, stability_runs=0, prediction="pooled"),
        "pool-moments",
    ),
    "class moments": (FederatedSparseQDA(), "moments"),
}


@pytest.mark.parametrize("policy", ["consortium", "simulation"])
@pytest.mark.parametrize("rule", ["none", "pooled"])
@pytest.mark.parametrize("case", list(COPIES))
def test_scaled_columns_are_copies_of_each_other_still(case: str, rule: Any, policy: str) -> None:
    """But for one person: of x y and y y follows that person's (y - x) y."""
    method, step = COPIES[case]
    tables = {}
    for seed, site in enumerate("abc"):
        rng = np.random.default_rng(seed)
        made = pd.DataFrame({"x": rng.uniform(20, 80, 200).round(1)})
        made["y"] = made["x"].mask(made.index == 7, 33.3)
        made["t"] = rng.normal(size=200) + made["x"] / 20
        tables[site] = made
    columns = Columns(features=("x", "y"), target="t")
    if case == "class moments":
        columns = dataclasses.replace(columns, levels={"t": ("low", "high")})
        tables = {s: t.assign(t=np.where(t["t"] > 2.5, "high", "low")) for s, t in tables.items()}
    given = Preparation(standardize=rule)
    federation = scripted(
        Federation.local(tables, columns=columns, policy=policy, preparation=given)
    )
    with contextlib.suppress(QuorumError):
        method.run(federation, seed=0)
    replies = (Reply.from_bytes(raw) for raw in federation.engine.replies.values())  # type: ignore[attr-defined]
    said = [reply for reply in replies if reply.step == step]
    assert len(said) >= 3
    for reply in said:
        products = decode_message(reply.message).products.value if reply.message else np.nan
        square = np.reshape(products, (2, 2)) if np.size(products) == 4 else products
        both = square[0, 1] if case == "site-moments" else square
        assert np.isfinite(both).all() == (policy == "simulation"), (reply.site, products)

"""A coordinator that asks for more than its study of components, at a real site.

Each thing that a rule stops is tried again where the rule is off: there it must succeed. Figures
are those of docs/proofs/fold-moments.md.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import consilience
from consilience import Columns, Federation
from consilience.completion.federated_pca import FederatedPCA, messages
from consilience.completion.federated_pca import site as groups
from consilience.completion.federated_pca.messages import Conclude, Moments, Settings, arrays_of
from consilience.completion.kernels.ppca import PPCAModel
from consilience.protocol.method import Preparation, SiteData, get_method
from consilience.protocol.phases import standardise
from consilience.protocol.phases.opening import Open
from consilience.protocol.phases.standardise import Scale
from consilience.sites import step_runner
from consilience.sites.site import Site
from consilience.testing.fakes import members
from consilience.wire.codec import decode_message
from consilience.wire.disclosure import relayed
from consilience.wire.envelope import Reply, Request
from consilience.wire.message import Disclosure
from tests.granted import GRANTED
from tests.security.hostile import unchecked

Array = NDArray[np.float64]
N, P = 300, 10
FEATURES = tuple(f"x{j}" for j in range(P))


class Refused(Exception):
    """The site declined."""


def table_of(n: int = N, p: int = P, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)) @ rng.normal(size=(3, p)) + rng.normal(size=(n, p))
    return pd.DataFrame(x, columns=[f"x{j}" for j in range(p)])


def site_of(table: pd.DataFrame, policy: Any = "strict") -> Site:
    columns = Columns(features=tuple(table.columns))
    return members(Federation.local({"s": table}, columns=columns, policy=policy))["s"]


class Villain:
    """Coordinator of one site that keeps everything it is told; a run for each object."""

    def __init__(
        self,
        site: Site,
        run: str,
        features: Any = FEATURES,
        missing: Any = "refuse",
        *,
        method: str = "federated-pca",
        partition: str = "rows",
        indicators: Any = None,
        categorical: Any = "refuse",
        **roles: Any,
    ) -> None:
        self.site, self.run, self.method = site, run, method
        self.asked, self.last = 0, (0, 0)
        preparation = Preparation(
            missing=missing,
            standardize="pooled",
            indicators=indicators or {},
            categorical=categorical,
        )
        rules = json.dumps(dataclasses.asdict(preparation))
        text = json.dumps(dataclasses.asdict(Columns(features=tuple(features), **roles)))
        self.opening = Open(text, rules, "", partition, "")
        self.open()

    def open(self) -> None:
        """Open the run at the site."""
        self.ask("opening.read", self.opening)

    def raw(self, step: str, message: Any) -> Reply:
        """The reply of the site, or its refusal."""
        self.asked += 1
        request = Request(
            run=self.run,
            study="s" * 64,
            method=self.method,
            method_version=get_method(self.method).version,
            release=consilience.__version__,
            round=self.asked,
            attempt=1,
            after_round=self.last[0],
            after_attempt=self.last[1],
            step=step,
            site=self.site.name,
            seed=1,
            message=unchecked(message),
        )
        return Reply.from_bytes(self.site.answer(request.to_bytes()))  # type: ignore[arg-type]

    def ask(self, step: str, message: Any) -> Any:
        reply = self.raw(step, message)
        if reply.status != "reply":
            raise Refused(reply.reason)
        self.last = (self.asked, 1)
        return decode_message(reply.message)

    def moments(self, n_splits: int) -> tuple[Array, Array]:
        """Rows of each group, and its sums: rows, values, products about nought."""
        reply = self.ask("moments", Moments(settings=Settings(n_splits)))
        counts, means = reply.counts.value.astype(float), np.asarray(reply.means.value)
        p = means.shape[1]
        sums = []
        for n, mean, upper in zip(counts, means, reply.products.value, strict=True):
            square = np.zeros((p, p))
            square[np.triu_indices(p)] = upper
            square = square + np.triu(square, 1).T + n * np.outer(mean, mean)
            sums.append(np.concatenate([[n], n * mean, square.ravel()]))
        return counts, np.array(sums)


# --------------------------------------------------------------------------- several runs


def with_a_gap() -> pd.DataFrame:
    """A table of which one row lacks the last column."""
    table = table_of(p=4)
    table.loc[17, "x3"] = np.nan
    return table


def sums_of_complete_rows(site: Site, p: int, n_splits: int = 2) -> Array:
    """Rows and sums of the first three columns by group, in a study of some columns."""
    villain = Villain(site, f"run-{p}", FEATURES[:p], missing="complete-rows")
    return villain.moments(n_splits)[1][:, :4]


def test_a_dropped_row_is_not_the_difference_of_two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    row = table_of(p=4).loc[17, ["x0", "x1", "x2"]].to_numpy()
    site = site_of(with_a_gap(), "simulation")
    without, of_all = (sums_of_complete_rows(site, p).sum(axis=0) for p in (3, 4))
    # The control: one run has the row, the other lacks it.
    np.testing.assert_allclose((without - of_all)[1:], row, atol=1e-9)
    site, deals = site_of(with_a_gap()), noted_deals(monkeypatch, 5)
    for p in (3, 4):
        assert len(sums_of_complete_rows(site, p, 5)) == 5
    assert fewest_apart(*deals) >= 10


def test_other_rows_are_dealt_anew_where_they_are_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(120, p=5)
    table.loc[:9, "x3"] = np.nan
    table.loc[10:19, "x4"] = np.nan
    deals = noted_deals(monkeypatch, 2)
    for last in ("x3", "x4"):
        site = site_of(table)  # anew, or the guard over runs leaves out rows as well
        villain = Villain(site, f"run-{last}", (*FEATURES[:3], last), missing="complete-rows")
        assert villain.moments(2)[0].sum() == 110
    assert fewest_apart(*deals) >= 10


def noted_deals(monkeypatch: pytest.MonkeyPatch, number: int) -> list[list[frozenset[int]]]:
    """Rows of each group, for each run that follows."""
    deals: list[list[frozenset[int]]] = []

    def noted(data: Any, context: Any) -> Any:
        leaves = leaves_of(data, context)
        of = groups.merged(leaves, number)
        deals.append([frozenset(data.rows[of == g].tolist()) for g in range(number)])
        return leaves

    leaves_of = groups.leaves_of
    monkeypatch.setattr(groups, "leaves_of", noted)
    return deals


def fewest_apart(*deals: list[frozenset[int]]) -> int:
    """Rows by which a union of groups of one deal differs from one of another."""
    first, second = (
        {frozenset().union(*some) for n in range(6) for some in itertools.combinations(deal, n)}
        for deal in deals
    )
    return min(len(a ^ b) for a in first for b in second if a or b)


@pytest.mark.parametrize(("n", "number"), [(49, 1), (60, 2), (98, 2), (300, 5)])
def test_groups_of_few_rows_are_one(n: int, number: int) -> None:
    """Of two deals of few rows two groups may be nearly the same ones; left-out rows count not."""
    table = table_of(n + 1, p=4)
    table.loc[17, "x3"] = np.nan
    assert len(sums_of_complete_rows(site_of(table), 4, 5)) == number
    assert len(sums_of_complete_rows(site_of(table.drop(index=17)), 4, 5)) == number


def smallest_difference(first: Array, second: Array) -> tuple[int, Array]:
    """Smallest set of rows whose sums follow from two lists of groups of one order of the rows.

    Groups are put in the order in which they would follow one another.
    """
    ends = [np.cumsum(part[:, 0]) for part in (first, second)]
    sums = np.concatenate([np.cumsum(first, axis=0), np.cumsum(second, axis=0)])
    at = np.concatenate(ends)
    order = np.argsort(at, kind="stable")
    sizes = np.diff(at[order])
    sizes[sizes < 0.5] = np.inf
    place = int(np.argmin(sizes))
    return int(sizes[place]), sums[order][place + 1] - sums[order][place]


def test_runs_with_other_numbers_of_groups_tell_nothing_of_fewer_rows() -> None:
    """Groups of five and two are sums of those of ten: ten lines of numbers, whatever is asked."""
    table = table_of(P * 60)
    site = site_of(table)
    told = {g: Villain(site, f"run{g}").moments(g)[1] for g in (2, 5, 10)}
    assert [len(told[g]) for g in (2, 5, 10)] == [2, 5, 10]
    together = np.concatenate([told[10], told[5], told[2]])
    rank = np.linalg.matrix_rank(together / np.abs(together).max(axis=0), tol=1e-9)
    assert rank == 10
    for coarse in (told[5], told[2]):
        weights = np.linalg.lstsq(told[10].T, coarse.T, rcond=None)[0]
        np.testing.assert_allclose(weights, np.round(weights), atol=1e-6)
        assert set(np.round(weights).ravel()) <= {0.0, 1.0}
    assert min(told[10][:, 0]) >= 2 * P


def test_without_the_rule_two_runs_tell_moments_of_a_few_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A control: consecutive parts of one order, quarters in one run and fifths in the next.

    A quarter less a fifth is 15 rows of 15 columns: their products are the rows up to a rotation.
    """
    fifths, quarters = np.arange(60) // 12, np.arange(60) // 15

    def leaves(data: Any, site: Any) -> Array:
        order = np.random.default_rng(3).permutation(data.n_rows)
        part = np.empty(data.n_rows, dtype=np.int64)
        part[order] = np.arange(data.n_rows) * 60 // data.n_rows
        return part

    monkeypatch.setattr(groups, "leaves_of", leaves)
    monkeypatch.setattr(messages, "LEVELS", (5, 4, 1))
    monkeypatch.setattr("consilience.wire.message.rules_of", lambda record: {})
    parts = {5: fifths, 4: quarters, 1: np.zeros(60, dtype=np.int64)}
    monkeypatch.setattr(groups, "merged", lambda leaf, g: parts[g][leaf])
    table = table_of()
    site = site_of(table)
    first = Villain(site, "one").moments(5)[1]
    second = Villain(site, "two").moments(4)[1]
    size, sums = smallest_difference(first, second)
    assert size == 15
    chosen = leaves(type("D", (), {"n_rows": N}), None)
    rows = table.to_numpy()[(chosen >= 12) & (chosen < 15)]
    np.testing.assert_allclose(sums[1 : 1 + P], rows.sum(axis=0), atol=1e-9)
    np.testing.assert_allclose(sums[1 + P :].reshape(P, P), rows.T @ rows, atol=1e-8)
    values = np.linalg.eigvalsh(sums[1 + P :].reshape(P, P))
    np.testing.assert_allclose(values[::-1], np.linalg.svd(rows)[1] ** 2, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("n_splits", [0, 3, 4, 20, 300, True, "5", 2.5])
def test_no_other_numbers_of_groups(n_splits: Any) -> None:
    villain = Villain(site_of(table_of()), "one")
    with pytest.raises(Refused, match="it must be 10, 5, 2 or 1"):
        villain.moments(n_splits)


def test_other_columns_are_told_of_the_same_groups() -> None:
    """Columns in halves: pairs of both halves stay untold, and no run cuts the groups anew."""
    site = site_of(table_of())
    whole = Villain(site, "all").moments(5)[1]
    half = Villain(site, "half", FEATURES[:8]).moments(5)[1]
    np.testing.assert_allclose(half[:, : 1 + 8], whole[:, : 1 + 8], atol=1e-8)


def test_draws_by_the_columns_would_cut_them_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: with a digest of the columns that are asked for, each run has other groups."""
    from consilience.numerics.random import stream

    def leaves(data: Any, site: Any) -> Array:
        seed = int(abs(data.features).sum() * 1e6) % 2**60
        return stream(seed, "x").permutation(data.n_rows) * 10 // data.n_rows

    monkeypatch.setattr(groups, "leaves_of", leaves)
    site = site_of(table_of())
    lines = [
        Villain(site, f"run{k}", np.delete(FEATURES, k + 2)).moments(5)[1][:, :3] for k in range(8)
    ]
    together = np.concatenate(lines)
    # Sums of the first two columns over eight times five groups, all different.
    assert len(np.unique(np.round(together[:, 1], 9))) == 40


# --------------------------------------------------------------------------- within a run


def test_a_second_question_in_a_run_is_refused() -> None:
    villain = Villain(site_of(table_of()), "one")
    villain.moments(5)
    with pytest.raises(Refused, match="answered once in a run"):
        villain.moments(2)


def rescaled(villain: Villain, centre: float) -> Array:
    """Squares of the first column by group, after it was moved; in a line of its own."""
    villain.last = (1, 1)
    first = np.zeros(P)
    first[0] = centre
    fill, moved, scale = (
        relayed(a, Disclosure.AGGREGATE) for a in (np.zeros(P), first, np.ones(P))
    )
    villain.ask("standardise.apply", Scale(own=False, fill=fill, centre=moved, scale=scale))
    reply = villain.ask("moments", Moments(settings=Settings(5)))
    return np.asarray(reply.products.value)[:, 0]


def in_units_as_sent(data: SiteData) -> tuple[Array, Array, Array]:
    """Sums over scaled rows, as they were before."""
    p = data.features.shape[1]
    return data.features, np.zeros(p), np.ones(p)


def test_rows_in_other_units_are_not_told_once_more() -> None:
    """In other units other digits leave."""
    villain = Villain(site_of(table_of()), "one")
    rescaled(villain, 2.0**53)
    for centre in (0.0, 2.0**54):
        with pytest.raises(Refused, match="answered once in a run"):
            rescaled(villain, centre)
    villain.last = (1, 1)
    with pytest.raises(Refused, match="answered once in a run"):
        villain.moments(5)


def test_without_the_rule_other_units_tell_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same question on rows in two units has one answer, to rounding.

    *Control*: far from nought numbers are rounded, and tell how many rows lie beyond a point,
    where a column that is far from its centre is not one value (`docs/proofs/units.md`).
    """
    asked = step_runner._asked_once

    def careless(step: Any, prior: Any, *more: Any) -> Any:
        if step.name == "standardise.apply":
            return {}
        return asked(step, dataclasses.replace(prior, transforms=()), *more)

    monkeypatch.setattr(step_runner, "_asked_once", careless)
    villain = Villain(site_of(table_of()), "one")
    near = [rescaled(villain, 2.0**k) for k in (0, 5, 10)]
    np.testing.assert_allclose(near[1:], [near[0]] * 2, rtol=1e-9)
    monkeypatch.setattr(standardise, "_FAR", np.inf)
    monkeypatch.setattr(SiteData, "in_own_units", in_units_as_sent)
    far = [rescaled(villain, 2.0**k) for k in (52, 53)]
    assert len({tuple(np.round(line, 3)) for line in (near[0], *far)}) == 3


def made_up(scale: float = 1.0, mean: float = 0.0, k: int = 2) -> dict[str, Any]:
    v = np.linalg.qr(np.random.default_rng(1).normal(size=(P, k)))[0]
    model = PPCAModel(np.full(P, mean), v, np.full(k, scale), 1e-12 * scale)
    return arrays_of(model, np.arange(P))


WRONG: dict[str, Any] = {"mean": np.zeros(2)}
MODELS = (
    made_up(),
    made_up(1e20),
    made_up(mean=1e29),
    made_up(k=14),
    {**made_up(), "variances": np.array([1e30, 1e30])},
    {**made_up(), **WRONG},
)


@pytest.mark.parametrize("arrays", MODELS)
def test_a_made_up_model_learns_nothing(arrays: dict[str, Any]) -> None:
    """The end says the same whatever the rows are, so there is nothing to ask by a model."""
    replies = []
    for seed in (0, 1):
        table = table_of(seed=seed)
        table.iloc[0, 0] += 1e6 * seed
        table.iloc[1 + seed, 3] = np.nan
        villain = Villain(site_of(table, "simulation"), "one", missing="keep")
        villain.moments(5)
        settings = Settings(5)
        model = relayed(arrays, Disclosure.MODEL)
        reply = villain.raw("conclude", Conclude(settings=settings, model=model))
        replies.append((reply.status, reply.message, reply.reason))
    assert replies[0] == replies[1]
    assert len(replies[0][1]) < 100


def test_no_count_of_missing_cells_leaves() -> None:
    """One cell or thirty: numbers of rows are the same, and no gap tells of them.

    A control: numbers of values by column, which moments of pairs would need, tell each cell.
    """
    told = []
    for holes in (0, 1, 30):
        table = table_of()
        table.iloc[:holes, 2] = np.nan
        counts, sums = Villain(site_of(table, GRANTED), "one", missing="keep").moments(5)
        told.append(counts)
        assert np.isfinite(sums).all()
        assert (N - table["x2"].isna().sum() != N) == (holes > 0)
    assert (told[0] == told[1]).all() and (told[0] == told[2]).all()


def test_what_is_told_is_less_than_a_third_of_the_numbers() -> None:
    """p (p + 3) / 2 numbers of at least 2p rows: at most (p + 3) / 4p of all that are in them."""
    for n, p in ((300, 15), (700, 31), (200, 10)):
        table = table_of(n, p)
        names = tuple(table.columns)
        counts, _ = Villain(site_of(table), "one", names).moments(10)
        assert (counts >= 2 * p).all()
        assert len(counts) * p * (p + 3) / 2 <= (p + 3) / (4 * p) * n * p


def test_strict_sites_stay_in_the_answer() -> None:
    """The study itself goes on: a rule that stops everything would protect too."""
    tables = {s: table_of(seed=7) + 0.1 * i for i, s in enumerate("abc")}
    columns = Columns(features=FEATURES)
    found = FederatedPCA().run(Federation.local(tables, columns=columns), seed=0).result
    assert found.rank == 3 and found.groups_by_site.tolist() == [5, 5, 5]

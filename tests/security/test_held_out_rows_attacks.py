"""A coordinator that runs honest studies with other shares of held-out rows, and takes differences.

Which rows a protected site holds out is no study's choice, so two runs rest on the same rows or on
rows that differ by many.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

from consilience import Columns, Federation
from consilience.assisted.glm import training as assisted_rows
from consilience.averaging.protocol import site as averaging_rows
from consilience.averaging.protocol.messages import Accepted
from consilience.collaborators.protocol import site as meta_rows
from consilience.discriminant.federated_community_bayes import site as bayes_rows
from consilience.discriminant.federated_sparse_qda import site as qda_rows
from consilience.discriminant.one_table.sparse_qda import SparseQDAStudy
from consilience.latent_regression.protocol import events as latent_rows
from consilience.numerics.random import stream
from consilience.protocol import one_table as table_rows
from consilience.protocol.method import Ask, SiteData
from consilience.protocol.phases import holdout
from consilience.wire.disclosure import Limits
from tests.averaging.protocol.test_reference_averaging import spread_rows
from tests.granted import GRANTED
from tests.security.test_reference_attacks import asking, fit, hostile, offering, settings, table_of

Array = NDArray[Any]
SHARES = tuple(i / 100 for i in range(20, 31))


# --------------------------------------------------------------------------- differences of fits


def _sum_of_responses(table: pd.DataFrame, share: float, policy: str) -> tuple[int, float]:
    """Rows that are not held out, and the sum of their responses.

    A ridge of next to no slope is the mean response: an average of p + 1 that linear fits tell.
    """
    s = settings(Ridge(alpha=1e13), holdout=share)
    told: Accepted = hostile(table, lambda: offering(s), policy=policy)
    assert told.held.value > 0
    n = int(told.n.value) - int(told.held.value)
    answer = hostile(table, asking(s, Ask("fit", fit(s, spread_rows(9, 3)))), policy=policy)
    return n, n * float(np.mean(answer.fits.value[1]["at"]))


def _told_responses(policy: str) -> int:
    """Responses of single rows that runs with neighbouring shares tell."""
    table = table_of(100)
    sums = dict(_sum_of_responses(table, share, policy) for share in SHARES)
    steps = [abs(sums[n] - sums[n - 1]) for n in sums if n - 1 in sums]
    y = np.abs(table["y"].to_numpy())
    return sum(bool(np.abs(y - step).min() < 1e-7) for step in steps)


@pytest.mark.parametrize("policy", ["strict", "consortium"])
def test_shares_one_after_the_other_tell_no_response(policy: str) -> None:
    """Differences of two runs were the response of one row, eight times in ten.

    *Control*: where no record is protected they are.
    """
    assert _told_responses(policy) == 0
    assert _told_responses("simulation") >= 8


# ------------------------------------------------------------------- differences of covariances


def _scatter(table: pd.DataFrame, share: float) -> tuple[int, np.ndarray]:
    """Rows of the first class in the fit, and their sum of products about the mean, as told.

    Partial correlations beside entries of the precision matrix give its diagonal.
    """
    features = tuple(c for c in table.columns if c.startswith("x"))
    columns = Columns(features=features, target="y", levels={"y": ("a", "b")})
    federation = Federation.local({"s": table}, columns=columns, policy=GRANTED)
    run = SparseQDAStudy(alpha=0.0, standardize=False, holdout=share).run(federation, seed=1)
    result, p = run.result, len(features)
    entry, partial = np.zeros((2, p, p))
    for (i, j), e, r in zip(
        result.pairs, result.precision[:, 0], result.partial[:, 0], strict=True
    ):
        entry[i, j] = entry[j, i] = e
        partial[i, j] = partial[j, i] = r
    square = (entry / np.where(partial == 0, 1.0, partial)) ** 2
    for i in range(p):
        j, k = (c for c in range(p) if c != i)
        entry[i, i] = np.sqrt(square[i, j] * square[i, k] / square[j, k])
    # How many rows are fitted an attacker counts in the errors that are told, or guesses.
    fitted = run.site("s").values("held_out") == 0
    n = int((fitted & (table["y"] == "a")).sum())
    return n, n * np.linalg.inv(entry)


def test_no_difference_of_two_covariances_is_a_row() -> None:
    """It had rank one: the row less its class mean, as it is, up to its sign."""
    rng = np.random.default_rng(5)
    table = pd.DataFrame(rng.normal(size=(200, 3)), columns=["x0", "x1", "x2"])
    table["x1"] += 0.6 * table["x0"]
    table["x2"] += 0.6 * table["x1"]
    table["y"] = np.where(np.arange(200) % 2, "a", "b")
    of_class = table[table["y"] == "a"][["x0", "x1", "x2"]].to_numpy()
    told = [_scatter(table, share) for share in (0.2, 0.21, 0.22, 0.23)]
    found = 0
    for (n, first), (m, second) in itertools.pairwise(told):
        values, vectors = np.linalg.eigh(first - second)
        if n == m + 1 and abs(values[1]) < 1e-6 * values[2]:
            # The mean without the row is told too; here that of the class is near enough.
            off = of_class - of_class.mean(axis=0)
            near = np.abs(off @ vectors[:, 2]) / np.linalg.norm(off, axis=1)
            found += int(near.max() > 0.99)
    assert told[0][0] < len(of_class) and found == 0


# --------------------------------------------------------------------- all methods, across runs

N, LEAST = 360, 10
LEVELS = ("a", "b", "c")
NO_CLASSES: tuple[str, ...] = ()


@dataclass(frozen=True)
class Context:
    """What the choice of rows may see of a site, in one run."""

    rng: np.random.Generator
    limits: Limits = field(default_factory=lambda: Limits(min_records=LEAST))
    site: str = "s"
    keys: dict[str, bytes] = field(default_factory=dict)

    def stream(self, *key: str | int) -> np.random.Generator:
        return stream(0, *key)


def table_at(p: int, entity: bool) -> SiteData:
    """A table as a study of p columns reads it: rows, classes and entities are always the same."""
    rng = np.random.default_rng(8)
    x, kind = rng.normal(size=(N, 5)), rng.choice(3, size=N, p=[0.5, 0.3, 0.2])
    return SiteData(
        x[:, :p],
        tuple(f"x{j}" for j in range(p)),
        np.arange(N),
        target=np.array(LEVELS)[kind],
        target_name="y",
        levels={"y": LEVELS},
        id=np.array([f"id{i}" for i in range(N)]),
        entity=np.array([f"e{i // 2}" for i in range(N)]) if entity else None,
        content_hash="ab" * 32,
    )


def with_numbers(data: SiteData) -> SiteData:
    y = (np.asarray(data.target) == "a") + np.arange(N) / 7
    return dataclasses.replace(data, target=y, target_name="z", levels={})


def of_one_table(data: SiteData, share: float, site: Any) -> list[Array]:
    rows = table_rows.fitted_and_held(data, LEVELS, share, site)
    return [rows.fitted, rows.held]


def of_sparse_qda(data: SiteData, share: float, site: Any) -> list[Array]:
    rows = qda_rows.by_class(data, qda_rows.Settings(levels=LEVELS, holdout=share), site)
    return [rows.kept, rows.held]


def of_community_bayes(data: SiteData, share: float, site: Any) -> list[Array]:
    found = []
    for choosing in (0.0, 0.2):
        s = bayes_rows.Settings(LEVELS, 1.0, choosing, min(share, 0.4))
        part = bayes_rows.by_part(data, s, site).part
        found += [np.flatnonzero(part == p) for p in (0, 1, 2)]
    return found


def of_reference_averaging(levels: tuple[str, ...]) -> Any:
    def found(data: SiteData, share: float, site: Any) -> list[Array]:
        s = settings("ridge", holdout=share, levels=levels)
        rows = averaging_rows.fitted_and_held(data if levels else with_numbers(data), s, site)
        return [np.arange(N), rows.kept, rows.held]

    return found


def of_latent_classes(data: SiteData, share: float, site: Any) -> list[Array]:
    if data.entity is None:
        data = dataclasses.replace(data, entity=np.array([f"f{i // 6}" for i in range(N)]))
    s = latent_rows.Settings(2, "local", "exact", True, share, 0.9)
    events = latent_rows.events_of(with_numbers(data), s, site)
    return [np.flatnonzero(events.used), np.flatnonzero(events.held)]


def of_assisted_glm(data: SiteData, share: float, site: Any) -> list[Array]:
    given: dict[str, Any] = {
        **{f.name: "" for f in dataclasses.fields(assisted_rows.Settings)},
        **{"family": "normal", "power": 1.5, "alpha": 0.0, "response": "share"},
        **{"holdout": share, "split_seed": int(site.rng.integers(99))},
    }
    s = assisted_rows.Settings(**given)
    rows = assisted_rows.by_purpose(with_numbers(data), s, site)
    return [np.flatnonzero(rows.train), np.flatnonzero(rows.held)]


def of_meta_clustering(data: SiteData, share: float, site: Any) -> list[Array]:
    s = meta_rows.Settings(("linear",), "squared", (), False, round(10 * share), 3, "models", "")
    found = meta_rows.shown_views(with_numbers(data), s, {"seed": 0}, site)
    return [rows for view in found for rows in (view.rows, view.held)]


CHOICES: dict[str, Callable[[SiteData, float, Any], list[Array]]] = {
    "one table": of_one_table,
    "sparse-qda": of_sparse_qda,
    "community-bayes": of_community_bayes,
    "reference-averaging of numbers": of_reference_averaging(NO_CLASSES),
    "reference-averaging of classes": of_reference_averaging(LEVELS),
    "latent-class-regression": of_latent_classes,
    "assisted-glm": of_assisted_glm,
    "meta-clustering": of_meta_clustering,
}
BY_CLASS = ("one table", "sparse-qda", "community-bayes", "reference-averaging of classes")
ALONE = ("latent-class-regression", "assisted-glm", "meta-clustering")
"""Methods whose deal is their own: within entities, of matched rows, and in thirds."""


def row_sets(name: str, entity: bool) -> dict[bytes, NDArray[np.bool_]]:
    """Sets of rows on which runs of a method rest, under other shares, columns and seeds."""
    found = {}
    for share in (0.0, 0.1, 0.2, 0.21, 0.25, 0.3, 0.4, 0.5):
        for p in (1, 5):
            site = Context(np.random.default_rng(int(100 * share) + p))
            for rows in CHOICES[name](table_at(p, entity), share, site):
                mask = np.zeros(N, dtype=bool)
                mask[rows] = True
                found[mask.tobytes()] = mask
    return found


def smallest_piece(sets: Iterable[NDArray[np.bool_]], cell: NDArray[np.bool_]) -> int:
    """Rows of the smallest group of a cell that no set parts: what linear combinations tell."""
    history = np.array(list(sets))[:, cell]
    return int(np.unique(history, axis=1, return_counts=True)[1].min())


def cells_of(by_class: bool) -> list[NDArray[np.bool_]]:
    y = np.asarray(table_at(1, False).target)
    return [np.ones(N, dtype=bool), *(y == level for level in LEVELS if by_class)]


@pytest.mark.parametrize("entity", [False, True])
def test_runs_of_all_methods_rest_on_whole_pieces(entity: bool) -> None:
    """Whatever runs are put together: any combination is of `min_records` rows, of every class."""
    found = {name: row_sets(name, entity) for name in CHOICES if name not in ALONE}
    assert min(len(sets) for sets in found.values()) >= 3  # each method holds rows out
    everyone, *classes = cells_of(by_class=True)
    together = [mask for sets in found.values() for mask in sets.values()]
    assert smallest_piece(together, everyone) >= LEAST
    for cell in classes:
        told = [mask for name in BY_CLASS for mask in found[name].values()]
        assert smallest_piece(told, cell) >= LEAST


@pytest.mark.parametrize("entity", [False, True])
def test_any_two_runs_of_all_methods_differ_by_many_rows_or_by_none(entity: bool) -> None:
    together: dict[bytes, NDArray[np.bool_]] = {}
    for name in CHOICES:
        sets = row_sets(name, entity)
        assert len(sets) >= 3
        together |= sets
    for first, second in itertools.combinations(together.values(), 2):
        assert (first != second).sum() >= LEAST


@pytest.mark.parametrize("entity", [False, True])
def test_methods_with_a_deal_of_their_own_rest_on_whole_pieces(entity: bool) -> None:
    views = row_sets("meta-clustering", entity)
    thirds = [mask for mask in views.values() if 2 < N / max(mask.sum(), 1) < 4]
    others = [row_sets(name, entity).values() for name in ALONE[:2]]
    for sets in (thirds, *others):
        assert smallest_piece(sets, np.ones(N, dtype=bool)) >= LEAST


def test_agents_move_no_held_out_event() -> None:
    """Two runs, one of which names an agent for one event, differed by that event."""
    data = table_at(1, True)
    sets = [of_latent_classes(data, 0.2, Context(np.random.default_rng(0)))[-1]]
    for at in range(0, N, 7):
        ward = np.array(["a"] * N)
        ward[at] = "b"
        for agent in (ward, np.array([f"w{i // 5}" for i in range(N)])):
            named = dataclasses.replace(data, agent=agent)
            sets.append(of_latent_classes(named, 0.2, Context(np.random.default_rng(at)))[-1])
    assert len(sets[0]) >= LEAST
    for other in sets[1:]:
        np.testing.assert_array_equal(other, sets[0])


def test_nested_shares_would_leave_single_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: the first rows of one order, as many as are asked for."""

    def nested(data: Any, cells: Any, shares: Any, limits: Any, **rest: Any) -> Any:
        return (np.arange(int(shares[0] * N)), *(np.empty(0, np.int64) for _ in shares[1:]))

    for module in (table_rows, holdout, averaging_rows, assisted_rows):
        monkeypatch.setattr(module, "held_out", nested)
    everyone = np.ones(N, dtype=bool)
    for name in CHOICES:
        if name not in ALONE and name != "community-bayes":
            assert smallest_piece(row_sets(name, False).values(), everyone) < LEAST


def test_rows_keep_their_part_whatever_rows_a_study_reads() -> None:
    """Another rule for missing values, or other levels, leave out rows and move none."""
    data = table_at(5, False)
    index = np.flatnonzero(np.arange(N) % 29 != 3)
    for name in ("sparse-qda", "reference-averaging of numbers"):
        some = [np.asarray(CHOICES[name](data, 0.2, Context(np.random.default_rng(1)))[-1])]
        part = data.take(index)
        if name == "sparse-qda":
            kept = of_sparse_qda(part, 0.25, Context(np.random.default_rng(2)))[-1]
        else:
            y = np.asarray(with_numbers(data).target)[index]
            numbers = dataclasses.replace(part, target=y, target_name="z", levels={})
            s = settings("ridge", holdout=0.25)
            site: Any = Context(np.random.default_rng(2))
            kept = averaging_rows.fitted_and_held(numbers, s, site).held
        np.testing.assert_array_equal(index[kept], np.intersect1d(some[0], index))

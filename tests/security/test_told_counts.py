"""What one run tells of 0/1 columns, solved for counts: none is of few records, in any method.

Functions of the columns that are combinations of what a site told are found by linear algebra from
its replies, without a look at the rule. A method whose sums are not known here fails the last test.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience.averaging.protocol import ReferenceAveraging
from consilience.collaborators.protocol import MetaClustering
from consilience.completion.federated_pca import FederatedPCA
from consilience.discriminant.federated_sparse_qda import FederatedSparseQDA
from consilience.engines.federation import Federation
from consilience.exceptions import ConsilienceError
from consilience.numerics.block_moments import square_of
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import Columns, Method, Preparation
from consilience.regression.protocol import PooledRegression
from consilience.sites.policy import Policy
from consilience.testing.fakes import FakeEngine, scripted
from consilience.wire.codec import decode_message
from consilience.wire.envelope import Reply, Request
from tests.exchange.cases import CASES
from tests.granted import GRANTED
from tests.reference.told_moments import solved_counts

Told = dict[Any, list[tuple[np.ndarray, float]]]
"""For each group of records: what a record at each point adds to a sum, and the sum."""
P = 4
"""Limits of `strict`, at sites that judge models of others: it concerns no sum of columns."""
POINTS = np.array(list(itertools.product((0.0, 1.0), repeat=P)))
ONES = np.ones(len(POINTS))


def about(column: int, mean: float) -> np.ndarray:
    return np.asarray(POINTS[:, column] - mean)


def of_sums(found: Told, n: Any, means: Any, group: Any = "rows") -> None:
    """Numbers of records and means; spreads of 0/1 columns are functions of these."""
    told = found.setdefault(group, [(ONES, float(np.max(np.nan_to_num(n))))])
    for j, mean in enumerate(means):
        if not np.isnan(mean):
            told.append((POINTS[:, j], float(mean * told[0][1])))


def of_products(found: Told, products: Any, means: Any, group: Any = "rows") -> None:
    for i, j in itertools.combinations_with_replacement(range(P), 2):
        if products.size and not np.isnan(products[i, j]):
            found[group].append((about(i, means[i]) * about(j, means[j]), float(products[i, j])))


def upper(values: np.ndarray, columns: np.ndarray) -> np.ndarray:
    full = np.full((P, P), np.nan)
    i, j = np.triu_indices(len(columns))
    full[columns[i], columns[j]] = full[columns[j], columns[i]] = values
    return full


def read_moments(found: Told, m: Any, state: dict[str, Any]) -> None:
    of_sums(found, m.n.value, m.means.value)


def read_within(found: Told, m: Any, state: dict[str, Any]) -> None:
    if m.n.value:
        of_sums(found, m.n.value, m.means.value)
        of_products(found, m.products.value, m.means.value)


def read_totals(found: Told, m: Any, state: dict[str, Any]) -> None:
    of_sums(found, m.n.value, m.totals.value / m.n.value)


def read_pooled(found: Told, m: Any, state: dict[str, Any]) -> None:
    products = m.products.value[: P + 1, : P + 1]
    for i, j in itertools.combinations_with_replacement(range(P + 1), 2):
        columns = np.c_[ONES, POINTS]
        found.setdefault("rows", [(ONES, float(products[0, 0]))]).append(
            (columns[:, i] * columns[:, j], float(products[i, j]))
        )


def read_groups(found: Told, m: Any, state: dict[str, Any]) -> None:
    for g, n in enumerate(m.counts.value):
        means = m.means.value[g]
        of_sums(found, n, means, g)
        columns = np.flatnonzero(~np.isnan(means))
        of_products(found, upper(m.products.value[g], columns), means, g)


def read_offer(found: Told, m: Any, state: dict[str, Any]) -> None:
    state["means"] = m.means.value
    for k, n in enumerate(m.counts.value):
        if n:
            of_sums(found, n, m.means.value[k], k)


def read_blocks(found: Told, m: Any, state: dict[str, Any]) -> None:
    """One block of all columns that no site withheld: what was asked says which."""
    asked = np.flatnonzero(state["asked"].features)
    if not (np.asarray(state["asked"].labels.value) == 1).all() or len(asked) < 2:
        return
    for k, row in enumerate(m.products.value):
        if state["asked"].classes[k] and k in found and not np.isnan(row).any():
            of_products(found, upper(row, asked), state["means"][k], k)


def read_regression(found: Told, m: Any, state: dict[str, Any]) -> None:
    """The response is the last column, and no 0/1 one."""
    means = m.means.value
    of_sums(found, m.n.value, means[:P])
    columns = np.flatnonzero(~np.isnan(means))
    full = np.full((P + 1, P + 1), np.nan)
    full[np.ix_(columns, columns)] = square_of(m.products.value, len(columns))
    of_products(found, full[:P, :P], means[:P])


READERS: dict[str, Callable[[Told, Any, dict[str, Any]], None]] = {
    "moments.sums": read_moments,
    "site-moments.within": read_within,
    "sums": read_totals,
    "pool-moments": read_pooled,
    "federated-pca moments": read_groups,
    "federated-sparse-qda offer": read_offer,
    "federated-sparse-qda moments": read_blocks,
    "pooled-regression moments": read_regression,
}
HEART = [
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
]
OTHERS = {
    "deviations": "squares of 0/1 columns about a point: functions of n and the totals",
    "federated-community-bayes ranks": "correlations of ranks: no means beside them",
    "latent-class-regression offer": "see docs/proofs/class-sums.md",
    "latent-class-regression round": "see docs/proofs/class-sums.md",
    "latent-class-regression begin": "see docs/proofs/class-sums.md",
    "latent-class-regression curve": "see docs/proofs/class-sums.md",
    "meta-clustering use": "losses of models, not sums of columns",
    "testing.class-sums": "a method of the tests",
}
"""Steps that tell moments in another way, and what holds there."""


def told_by(federation: Federation, method: Method) -> dict[str, Told]:
    """What each site told in a run; a run that ends early has told what it had."""
    federation = scripted(federation)
    with contextlib.suppress(ConsilienceError):
        method.run(federation, seed=0)
    engine = federation.engine
    assert isinstance(engine, FakeEngine)
    found: dict[str, Told] = {}
    states: dict[str, dict[str, Any]] = {}
    for (round_, site), raw in sorted(engine.replies.items()):
        reply = Reply.from_bytes(raw)
        step = reply.step if reply.step in READERS else f"{method.name} {reply.step}"
        if not reply.message or step not in READERS:
            continue
        state = states.setdefault(site, {})
        state["asked"] = decode_message(Request.from_bytes(engine.requests[round_, site]).message)
        READERS[step](found.setdefault(site, {}), decode_message(reply.message), state)
    return found


def few(found: dict[str, Told], least: int = 10) -> list[float]:
    """Counts below the limit that follow from what sites told, of sets somebody could be in."""
    return [
        count
        for told in found.values()
        for sums in told.values()
        for count in solved_counts(sums).values()
        if count < least - 0.5
    ]


def tables(seed: int, n: int) -> dict[str, pd.DataFrame]:
    """0/1 columns of which pairs and threes meet in few rows, and a response."""
    made = {}
    for i, site in enumerate("abc"):
        rng = np.random.default_rng([seed, i])
        x = (rng.random((n, P)) < rng.uniform(0.3, 0.7, size=P)).astype(float)
        twin = np.where(rng.random(n) < 0.85, x[:, 0] != x[:, 1], x[:, 3])
        x[:, 2] = twin if i != 1 else x[:, 2]
        table = pd.DataFrame(x, columns=[f"x{j}" for j in range(P)])
        table["y"] = x @ [1.0, -1.0, 0.5, 0.2] + rng.normal(size=n)
        table["kind"] = np.where(table["y"] > 0.3, "yes", "no")
        made[site] = table
    return made


def study(given: dict[str, pd.DataFrame], method: Method, policy: Policy) -> Federation:
    levels = {"kind": ("no", "yes")}
    target = "kind" if method.name == "federated-sparse-qda" else "y"
    return Federation.local(
        given,
        columns=Columns(
            features=tuple(f"x{j}" for j in range(P)),
            target=None if method.name in ("mean-and-sd", "federated-pca") else target,
            levels=levels if target == "kind" else {},
        ),
        preparation=Preparation(),
        policy=policy,
    )


METHODS: dict[str, Method] = {
    "mean-and-sd": MeanAndSD(),
    "meta-clustering": MetaClustering(
        candidates="linear", gain_folds=0, stability_runs=0, prediction="pooled"
    ),
    "reference-averaging": ReferenceAveraging(
        estimator="ridge", penalties=(1.0,), reference="moments", max_rounds=1
    ),
    "federated-pca": FederatedPCA(n_splits=2),
    "federated-sparse-qda": FederatedSparseQDA(n_alphas=2),
    "pooled-regression": PooledRegression(when_withheld="without-column"),
}


@pytest.mark.parametrize("name", METHODS)
def test_no_method_tells_a_count_of_few(name: str) -> None:
    method = METHODS[name]
    some = 0
    for seed, n in ((1, 60), (2, 90), (3, 140)):
        given = tables(seed, n)
        found = told_by(study(given, method, GRANTED), method)
        assert few(found) == []
        some += sum(len(sums) for told in found.values() for sums in told.values())
    assert some > 12, "something must have been told"


@pytest.mark.parametrize("name", METHODS)
def test_without_a_limit_it_is_seen(name: str) -> None:
    """The control: sites that protect no record tell such counts, and solving finds them."""
    method = METHODS[name]
    found = told_by(study(tables(1, 60), method, Policy.from_settings("simulation")), method)
    if name == "mean-and-sd":  # sums alone are counts of single columns
        assert few(found, 35)
    else:
        assert few(found)


@pytest.mark.parametrize("pain", [3, 4])
def test_heart(pain: int, data_dir: Any) -> None:
    """Meta-clustering told that 4 patients of Cleveland have fbs and exang, and the like."""
    given = {}
    for site in ("cleveland", "hungarian", "switzerland", "va"):
        path = data_dir("heart") / f"processed.{site}.data"
        table = pd.read_csv(path, header=None, names=HEART, na_values="?")
        chosen = table[["sex", "fbs", "exang", "cp", "thalach"]].astype(float).dropna()
        if len(chosen) < 100:
            continue
        x = chosen[["sex", "fbs", "exang"]].to_numpy()
        last = (chosen["cp"] == pain).to_numpy(dtype=float)
        made = pd.DataFrame(np.c_[x, last], columns=[f"x{j}" for j in range(P)])
        made["y"] = chosen["thalach"].to_numpy()
        given[site] = made
    assert len(given) >= 3
    method = METHODS["meta-clustering"]
    found = told_by(study(given, method, GRANTED), method)
    assert set(found) == set(given)
    assert few(found) == []
    assert all(len(told["rows"]) > 3 for told in found.values())


def test_every_sum_of_columns_is_read_here() -> None:
    """A method that tells moments in a new step has to say how to read them."""
    rules = ("moments", "class-moments", "class-sums")
    names = ("means", "spreads", "totals", "products")
    unknown = set()
    for case in CASES.values():
        for line in case.record.run.transcript:
            sums = line.rule == "sum" and line.field in names
            named = {line.step, f"{case.method.name} {line.step}"}
            if (line.rule in rules or sums) and not named & {*READERS, *OTHERS}:
                unknown.add((case.method.name, line.step, line.field))
    assert unknown == set()

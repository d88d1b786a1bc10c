"""Community Bayes over sites: exact where it says so, near the pooled fit where it says that."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from consilience import Columns, FederatedCommunityBayes, Federation, Policy, Preparation
from consilience.datasets.simulate_wide import community_classes
from consilience.discriminant.estimators.community_bayes import CommunityBayesClassifier
from consilience.discriminant.federated_community_bayes import (
    FederatedCommunityBayesResult,
    pooling,
)
from consilience.discriminant.federated_community_bayes.messages import (
    Fit,
    Fitted,
    Rank,
    Ranks,
    Settings,
    packed,
    unpacked,
)
from consilience.discriminant.federated_community_bayes.pooling import Tree, tree_of
from consilience.discriminant.federated_community_bayes.site import (
    class_ranks,
    row_factors,
    thin_pairs,
)
from consilience.discriminant.kernels import multinomial
from consilience.discriminant.kernels.communities import skeptic, spearman
from consilience.exceptions import DataError, ParameterError, QuorumError, StudyError
from consilience.wire.disclosure import Limits, relayed
from consilience.wire.message import Disclosure
from tests.granted import granted
from tests.protocol.own_lists import with_own_lists
from tests.wire.replies import refusal

Array = NDArray[np.float64]
Tables = dict[str, pd.DataFrame]
LEVELS = ("a", "b", "c")
SETTINGS = Settings(LEVELS, 1.0, 0.0, 0.0)
PROTECTED, OPEN = Limits(), Limits(1, 1.0, 1)


def tables_of(
    sizes: list[int], *, p: int = 8, n_blocks: int = 2, n_classes: int = 3, seed: int = 0
) -> Tables:
    """Sites with so many rows of each class; blocks of features that are correlated."""
    rng = np.random.default_rng(seed)
    design = community_classes(
        "block", rng=rng, n_blocks=n_blocks, n_features=p, n_classes=n_classes
    )
    made = {}
    for b, n in enumerate(sizes):
        x, y = design.draw(n, rng=rng)
        table = pd.DataFrame(2.0 + 3.0 * x, columns=[f"x{j}" for j in range(p)])
        table["y"] = np.array(LEVELS)[y]
        made[f"s{b}"] = table
    return made


def federation(
    tables: Tables,
    policy: Any = "simulation",
    levels: tuple[str, ...] | None = None,
    standardize: Any = "pooled",
    **settings: Any,
) -> Federation:
    first = next(iter(tables.values()))
    found = sorted({str(v) for t in tables.values() for v in t["y"]})
    columns = Columns(
        features=tuple(c for c in first.columns if c != "y"),
        target="y",
        levels={"y": tuple(found) if levels is None else levels},
    )
    return Federation.local(
        tables,
        columns=columns,
        policy=granted(policy),
        preparation=Preparation(standardize=standardize),
        **settings,
    )


def run_of(method: FederatedCommunityBayes, tables: Tables, policy: Any = "simulation") -> Any:
    return method.run(federation(tables, policy), seed=0)


def pooled_rows(tables: Tables) -> tuple[Array, NDArray[Any]]:
    table = pd.concat([tables[name] for name in sorted(tables)])
    return table.drop(columns="y").to_numpy(float), table["y"].to_numpy().astype(str)


ALL_ROWS: dict[str, Any] = {"choosing": 0.0, "holdout": 0.0}


# --------------------------------------------------------------------------- exact


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("n_communities", [1, 2, 5])
@pytest.mark.parametrize("policy", ["simulation", "consortium"])
def test_the_exact_fit_is_that_of_the_pooled_rows(
    n_classes: int, n_communities: int, policy: str
) -> None:
    """Per community, against scikit-learn on the pooled rows, to 1e-8; sites of unequal size."""
    tables = tables_of([30, 90, 45], n_classes=n_classes)
    tables["s1"] = tables["s1"].iloc[:-25]
    method = FederatedCommunityBayes(n_communities=n_communities, fit="exact", C=2.0, **ALL_ROWS)
    result = run_of(method, tables, policy).result
    x, y = pooled_rows(tables)
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)
    assert result.how == "exact" and len(result.communities) == n_communities
    base = LogisticRegression(C=2.0, tol=1e-14, max_iter=1000, solver="newton-cholesky")
    for columns, coef, intercept in zip(
        result.communities, result.slopes, result.intercepts, strict=True
    ):
        fitted = base.fit(scaled[:, columns], y)
        np.testing.assert_allclose(coef, fitted.coef_, rtol=0, atol=1e-8)
        np.testing.assert_allclose(intercept, fitted.intercept_, rtol=0, atol=1e-8)


@pytest.mark.parametrize("n_communities", [1, 3, 8])
def test_at_one_site_it_is_the_estimator(n_communities: int) -> None:
    """One table has no others' ranks: tree, fit and probabilities are those of the classifier."""
    tables = tables_of([60])
    method = FederatedCommunityBayes(n_communities=n_communities, **ALL_ROWS)
    run = run_of(method, tables)
    x, y = pooled_rows(tables)
    base = make_pipeline(
        StandardScaler(), LogisticRegression(tol=1e-14, solver="newton-cholesky", max_iter=1000)
    )
    wanted = CommunityBayesClassifier(base, n_communities=n_communities).fit(x, y)
    assert [c.tolist() for c in run.result.communities] == [c.tolist() for c in wanted.communities_]
    found = run.result.to_estimator().predict_proba(x)
    np.testing.assert_allclose(found, wanted.predict_proba(x), rtol=0, atol=1e-8)
    kept = run.site("s0").predictor
    np.testing.assert_array_equal(kept.predict_proba(x), found)
    once = dataclasses.replace(method, fit="one-shot")
    one_shot = run_of(once, tables).result
    np.testing.assert_allclose(one_shot.to_estimator().predict_proba(x), found, rtol=0, atol=1e-8)


def test_prepared_rows_are_refused() -> None:
    tables = tables_of([150, 150])
    for table in tables.values():
        table[[c for c in table if c != "y"]] += 30.0
    x, _ = pooled_rows(tables)
    made = run_of(
        FederatedCommunityBayes(n_communities=2, **ALL_ROWS), tables
    ).result.to_estimator()
    assert len(made.predict(x)) == len(x)
    with pytest.raises(DataError, match="looks prepared already"):
        made.predict((x - x.mean(axis=0)) / x.std(axis=0))


def test_it_starts_anew_with_the_others_when_a_site_is_lost() -> None:
    """Newton rounds end at the minimum of the sites that are left."""
    sums = pooling.Descent([3], 2, 1.0)
    rng = np.random.default_rng(1)
    parts = [(rng.normal(size=(80, 3)), rng.integers(0, 2, size=80)) for _ in range(3)]
    q = multinomial.contrasts(2)
    rounds = 0
    while sums.active and rounds < 50:
        rounds += 1
        present = parts if rounds <= 2 else parts[:2]
        if rounds == 3:
            sums.restart()
        told = []
        for x, y in present:
            found = multinomial.pieces(multinomial.design_of(x), y, sums.asked[0], q)
            told.append(packed(np.array([found.loss]), found.gradient, curvature=found.curvature))
        sums.hear(0, told, 160)
    x, y = (np.concatenate([part[i] for part in parts[:2]]) for i in (0, 1))
    np.testing.assert_allclose(sums.phi[0], multinomial.fit(x, y, 2, 1.0), atol=1e-10)


def test_packed_fits_come_out_as_they_went_in() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 4))
    head, matrix = unpacked(packed(np.arange(4.0), curvature=root.T @ root), 4, 4)
    np.testing.assert_array_equal(head, np.arange(4.0))
    np.testing.assert_allclose(matrix, root.T @ root)


def test_fits_that_no_rows_have() -> None:
    """Of two communities of a column each, and two classes: two coefficients and a curvature."""
    communities = relayed((np.array([0]), np.array([1])), Disclosure.AGGREGATE)
    request = Fit(settings=SETTINGS, communities=communities)
    good = packed(np.array([0.1, 7.0]), curvature=np.array([[20.0, 1.0], [1.0, 300.0]]))
    nothing = np.zeros(0)

    def judged(*fits: Array, classes: int = 2) -> str:
        return refusal(Fitted, {"fits": fits}, request, {"rows": 80, "classes": classes})

    assert judged(good, nothing) == ""
    assert judged(good) and judged(good, nothing, nothing)
    for place, value in ((2, 81.0), (3, 200.0), (4, -1.0), (0, np.nan)):
        wrong = np.where(np.arange(5) == place, value, good)
        assert judged(good, wrong), place
    assert judged(good[:-1], nothing) and judged(good, nothing, classes=3)
    assert judged(good, nothing, classes=1)


# --------------------------------------------------------------------------- one-shot


def _distance(tables: Tables) -> tuple[float, float]:
    """Mean squared distance to the pooled fit: of the one-shot fit, of the mean of own fits."""
    x, y = pooled_rows(tables)
    codes = np.searchsorted(np.unique(y), y)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    ends = np.cumsum([0, *(len(tables[name]) for name in sorted(tables))])
    q = multinomial.contrasts(3)
    fits, counts, own = [], [], []
    for first, last in itertools.pairwise(ends):
        rows, classes = x[first:last], codes[first:last]
        phi = multinomial.fit(rows, classes, 3, 1.0)
        design = multinomial.design_of(rows)
        curvature = multinomial.pieces(design, classes, phi, q).curvature
        fits.append(packed(phi, curvature=curvature))
        counts.append(np.bincount(classes, minlength=3))
        own.append(phi)
    made = pooling.combine(fits, np.stack(counts), x.shape[1], 1.0)
    pooled = multinomial.fit(x, codes, 3, 1.0)
    assert made.phi is not None
    alone = float(np.mean([np.mean((phi - pooled) ** 2) for phi in own]))
    return float(np.mean((made.phi - pooled) ** 2)), alone


def test_the_one_shot_fit_comes_near_the_pooled_one_with_the_rows_of_a_site() -> None:
    """Its distance falls about as one over the rows of a site, that of own fits as its root.

    Means over 5 draws; the ratios 16 and 4 of squared distances, when rows grow fourfold, are met
    to within a factor of 2.5 (they are means of ratios of noisy numbers, no statistical claim).
    """
    far, near, alone_far, alone_near = (np.zeros(5) for _ in range(4))
    for seed in range(5):
        far[seed], alone_far[seed] = _distance(tables_of([60] * 4, seed=seed))
        near[seed], alone_near[seed] = _distance(tables_of([240] * 4, seed=seed))
    assert far.mean() / near.mean() > 16 / 2.5
    assert 4 / 2.5 < alone_far.mean() / alone_near.mean() < 4 * 2.5
    assert near.mean() < 0.1 * alone_near.mean()


def test_no_row_rules_a_cell_of_a_curvature_that_is_told() -> None:
    """Its weight is taken down as far as the rule asks, that of others not at all."""
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(40, 4)), np.abs(rng.normal(size=(40, 2)))
    rows[3, 1] = 1e3
    rows[:, 2] = np.arange(40) == 7  # one row has all of these cells
    factors = row_factors(rows, weights, 0.5)
    assert factors[7] == 0.0 and 0 < factors[3] < 1e-3
    assert (np.delete(factors, [3, 7]) > 0.2).all()
    for w in weights.T:
        terms = np.abs(rows[:, :, None] * rows[:, None, :]) * (w * factors)[:, None, None]
        total = terms.sum(axis=0)
        assert (terms.max(axis=0)[total > 0] <= 0.5 * total[total > 0]).all()
    np.testing.assert_array_equal(row_factors(rng.normal(size=(90, 3)), np.ones((90, 1)), 0.5), 1.0)


def test_the_base_is_told_first_and_candidates_with_all_their_fits_on_most_rows_compete() -> None:
    counts = np.array([30, 30])
    tree = Tree(
        np.zeros((0, 4)),
        np.zeros((2, 2)),
        {1: (0,), 2: (1, 2)},
        (np.array([0, 1]), np.array([0]), np.array([1])),
    )
    phi = np.zeros((1, 2))
    whole, part = (pooling.Combined(phi, f * counts) for f in (1.0, 0.3))
    none = pooling.Combined(None, 0.0 * counts)
    assert set(tree.among([whole, whole, whole], (1, 2), 60)) == {1, 2}
    assert set(tree.among([whole, part, whole], (1, 2), 60)) == {1}
    assert set(tree.among([none, part, whole], (1, 2), 60)) == {2}
    with pytest.raises(QuorumError, match="has no fit"):
        tree.among([none, none, whole], (1, 2), 60)


def test_a_site_with_some_classes_speaks_of_the_odds_between_them() -> None:
    """The parabola of its restricted likelihood, in the common coefficients: by differences."""
    rng = np.random.default_rng(2)
    present = np.array([0, 2])
    x, y = rng.normal(size=(50, 2)), rng.integers(0, 2, size=50)
    design, m = multinomial.design_of(x), 3
    common, own = multinomial.contrasts(m), multinomial.contrasts(2)
    back = np.linalg.pinv(own) @ common[present]

    def loss(phi: Array) -> float:
        eta = (design @ phi.T @ common.T)[:, present]
        return float((np.log(np.exp(eta).sum(axis=1)) - eta[np.arange(50), y]).sum())

    for seed in range(3):
        phi = np.random.default_rng(seed).normal(size=(m - 1, 3))
        mine = multinomial.pieces(design, y, back @ phi, own)
        assert mine.loss == pytest.approx(loss(phi), rel=1e-12)


def test_sites_with_different_classes_are_joined_where_the_odds_are_determined() -> None:
    tables = tables_of([80, 80, 80], seed=4)
    tables["s0"] = tables["s0"][tables["s0"]["y"] != "c"]
    tables["s1"] = tables["s1"][tables["s1"]["y"] != "a"]
    tables.pop("s2")
    method = FederatedCommunityBayes(n_communities=2, fit="one-shot", **ALL_ROWS)
    result = run_of(method, tables, "strict").result
    assert result.levels == LEVELS
    x, y = pooled_rows(tables_of([400], seed=4))
    told = result.to_estimator()
    assert (told.predict(x) != y).mean() < 0.45  # chance is 2 in 3
    apart = {"s0": tables["s0"], "s1": tables["s1"][tables["s1"]["y"] == "c"]}
    with pytest.raises(QuorumError, match="no site could tell"):
        run_of(method, apart, "strict")


def test_a_community_that_some_sites_withhold_speaks_relative_to_its_own_classes() -> None:
    """With the frequencies of all sites, its intercept would bring those of its sites in twice."""
    phi = np.zeros((1, 2))
    phi[0, 0] = np.log(0.9 / 0.1)  # nothing but the class frequencies of its rows
    found = pooling.Combined(phi, np.array([10.0, 90.0]))
    priors = np.array([0.5, 0.5])
    np.testing.assert_allclose(pooling.towards_priors(found, priors)[0, 0], 0.0, atol=1e-12)


def test_the_joint_model_is_the_product_of_communities() -> None:
    rng = np.random.default_rng(0)
    for m in (2, 4):
        q = multinomial.contrasts(m)
        priors = rng.dirichlet(np.ones(m))
        parts = [np.array([0, 3]), np.array([1]), np.array([2, 4])]
        phis = [rng.normal(size=(m - 1, len(c) + 1)) for c in parts]
        x = rng.normal(size=(20, 5))
        score = (1 - len(parts)) * np.log(priors)[None, :]
        for columns, phi in zip(parts, phis, strict=True):
            design = multinomial.design_of(x[:, columns])
            score = score + multinomial.log_probabilities(design, phi, q)
        wanted = score - np.logaddexp.reduce(score, axis=1)[:, None]
        model = pooling.joint_model(parts, phis, priors, 5)
        found = multinomial.log_probabilities(multinomial.design_of(x), model, q)
        np.testing.assert_allclose(found, wanted, atol=1e-12)


# --------------------------------------------------------------------------- ranks


def test_ranks_of_a_site_are_spearman_and_pooled_by_rows() -> None:
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(n, 3)) ** 3 for n in (40, 90)]
    tables = [(class_ranks(part, OPEN).value,) for part in x]
    for (table,), part in zip(tables, x, strict=True):
        np.testing.assert_allclose(table, spearman(part), atol=1e-12)
    pooled = pooling.pool_ranks(tables, np.array([[40], [90]]), 3)
    wanted = skeptic((40 * spearman(x[0]) + 90 * spearman(x[1])) / 130)
    np.testing.assert_allclose(pooled.correlations[0], wanted, atol=1e-12)
    assert pooled.told.all() and not pooled.gaps.any()


def test_withheld_ranks_come_from_the_others() -> None:
    first, second = np.full((2, 2), np.nan), np.array([[1.0, 0.4], [0.4, 1.0]])
    empty = np.zeros((0, 0))
    counts = np.array([[50, 50], [20, 0]])
    pooled = pooling.pool_ranks([(first, empty), (second, empty)], counts, 2)
    np.testing.assert_allclose(pooled.correlations[0], skeptic(second.copy()))
    assert not pooled.correlations[1].any()
    np.testing.assert_array_equal(pooled.told, [[False, False], [True, False]])
    only = pooling.pool_ranks([(first, empty)], counts[:1], 2)
    assert not only.told.any()


@pytest.mark.parametrize(
    "table",
    [
        np.array([[1.0, 2.0], [2.0, 1.0]]),
        np.array([[1.0, 0.2], [0.3, 1.0]]),
        np.eye(3),
        np.array([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]]),
    ],
)
def test_tables_that_are_no_correlations_are_not_believed(table: Array) -> None:
    p = 3 if len(table) == 3 and not np.array_equal(table, np.eye(3)) else 2
    good, known = np.eye(p), {"p": p, "K": 2}
    assert refusal(Ranks, {"tables": (good, good[:0, :0])}, Rank(settings=SETTINGS), known) == ""
    assert refusal(Ranks, {"tables": (good, table)}, Rank(settings=SETTINGS), known)
    assert refusal(Ranks, {"tables": (good,)}, Rank(settings=SETTINGS), known)


def test_protected_ranks_leave_rare_values_out() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    x[:, 1] = np.arange(60) < 5  # five ones
    x[:, 2] = np.arange(60) % 2
    x[:, 3] = (np.arange(60) % 2) * (np.arange(60) > 4)  # never without x2, rarely differs from it
    value = class_ranks(x, PROTECTED).value
    gaps = np.isnan(value)
    assert gaps[1].all() and gaps[:, 1].all()
    assert gaps[2, 3] and not gaps[0, 2] and not gaps[0, 3]
    assert not np.isnan(class_ranks(x, OPEN).value).any()
    assert class_ranks(x[:7], PROTECTED).value.shape == (0, 0)
    assert class_ranks(x[:7], OPEN).value.shape == (0, 0)  # fewer than 2p rows


def test_thin_pairs_are_small_joint_groups() -> None:
    """A slow version: every combination of two values counted."""
    rng = np.random.default_rng(3)
    x = (rng.random(size=(70, 5)) < [0.5, 0.3, 0.2, 0.9, 0.5]).astype(float)
    x[:, 4] = rng.normal(size=70)
    found = thin_pairs(x, PROTECTED)
    for i in range(4):
        for j in range(4):
            groups = [((x[:, i] == a) & (x[:, j] == b)).sum() for a in (0, 1) for b in (0, 1)]
            few = min(groups) if i != j else min(groups[0], groups[3])
            assert found[i, j] == (few < 10)
    assert not found[4].any() and not thin_pairs(x, OPEN).any()


def _from_pooled(n_sites: int, shift: float, seed: int) -> tuple[float, float]:
    """Distance to the correlations behind the rows: of pooled ranks, of the sites' own."""
    rng = np.random.default_rng(seed)
    p = 10
    truth = 0.5 ** np.abs(np.subtract.outer(np.arange(p), np.arange(p)))
    root = np.linalg.cholesky(truth)
    x = rng.normal(size=(960, p)) @ root.T
    of = np.arange(960) % n_sites
    x = x + shift * rng.normal(size=(n_sites, p))[of]
    off = ~np.eye(p, dtype=bool)
    tables = [(spearman(x[of == b]),) for b in range(n_sites)]
    counts = np.bincount(of)[:, None]
    own = pooling.pool_ranks(tables, counts, p).correlations[0]
    pooled = skeptic(spearman(x))
    return tuple(float(np.sqrt(np.mean((m - truth)[off] ** 2))) for m in (pooled, own))  # type: ignore[return-value]


@pytest.mark.parametrize("n_sites", [2, 4, 8, 16])
def test_own_ranks_are_near_pooled_ones_and_better_where_sites_are_shifted(n_sites: int) -> None:
    """Errors of correlations, means over 5 draws (Monte Carlo error below .002 in each).

    Without shifts the sites' own ranks lose little (60 rows a site at 16 sites); with shifts of one
    standard deviation pooled ranks take the sites for correlation, more so the fewer sites.
    """
    alike = np.mean([_from_pooled(n_sites, 0.0, seed) for seed in range(5)], axis=0)
    assert alike[1] < 1.1 * alike[0]
    shifted = np.mean([_from_pooled(n_sites, 1.0, seed) for seed in range(5)], axis=0)
    assert shifted[1] < 1.1 * alike[0]
    assert shifted[0] > 2 * shifted[1]


# --------------------------------------------------------------------------- choosing and judging


def test_the_number_of_communities_and_the_figures_are_those_of_the_held_out_rows() -> None:
    """Everything that is said of choosing and test rows, computed again from the pooled table."""
    tables = tables_of([60, 90, 75], p=12, n_blocks=3)
    run = run_of(FederatedCommunityBayes(candidates=(1, 3, 6, 12)), tables)
    result = run.result
    parts, x, y = [], [], []
    for name in sorted(tables):
        told = run.site(name).to_frame("predictions")
        table = tables[name].iloc[told["row"].to_numpy()]
        parts.append(told["part"].to_numpy())
        x.append(table.drop(columns="y").to_numpy(float))
        y.append(table["y"].to_numpy().astype(str))
    part, rows, target = np.concatenate(parts), np.concatenate(x), np.concatenate(y)
    for name, share in (("choosing", 0.2), ("test", 0.2), ("training", 0.6)):
        assert (part == name).mean() == pytest.approx(share, abs=0.01)
    base = make_pipeline(
        StandardScaler(with_mean=False, with_std=False),
        LogisticRegression(tol=1e-14, solver="newton-cholesky", max_iter=1000),
    )
    scaled = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    codes = np.searchsorted(LEVELS, target)
    train, choose, test = (part == name for name in ("training", "choosing", "test"))

    def proba(n: int, where: Any) -> Array:
        from consilience.discriminant.kernels.communities import cut

        priors = np.bincount(codes[train]) / train.sum()
        parts_of = cut(result.tree, n)
        score = (1 - n) * np.log(priors)[None, :]
        for columns in parts_of:
            fitted = base.fit(scaled[train][:, columns], codes[train])
            score = score + fitted.predict_log_proba(scaled[where][:, columns])
        return np.asarray(np.exp(score - np.logaddexp.reduce(score, axis=1)[:, None]))

    def loss(n: int, where: Any) -> float:
        return float(-np.log(proba(n, where)[np.arange(where.sum()), codes[where]]).mean())

    losses = np.array([loss(n, choose) for n in (1, 3, 6, 12)])
    np.testing.assert_allclose(result.candidate_loss, losses, atol=1e-7)
    np.testing.assert_allclose(result.candidate_gain, losses[0] - losses, atol=1e-7)
    assert result.chosen == int(np.argmin(losses))
    wrong = [(proba(n, choose).argmax(axis=1) != codes[choose]).sum() for n in (1, 3, 6, 12)]
    np.testing.assert_allclose(result.cv_errors, wrong, atol=1e-6)
    n = result.n_communities
    assert result.judged == ("communities", "one community", "class frequencies")
    np.testing.assert_allclose(result.log_loss[:2], [loss(n, test), loss(1, test)], atol=1e-7)
    found = [(proba(k, test).argmax(axis=1) != codes[test]).sum() for k in (n, 1)]
    np.testing.assert_allclose(result.errors[:2], found, atol=1e-6)
    assert result.error_rows == test.sum()
    np.testing.assert_allclose(result.log_loss_gain[1], loss(1, test) - loss(n, test), atol=1e-7)


def test_blocks_are_found_over_sites() -> None:
    tables = tables_of([200] * 3, p=12, n_blocks=3, seed=2)
    result = run_of(FederatedCommunityBayes(n_communities=3), tables, "strict").result
    assert [c.tolist() for c in result.communities] == [
        list(range(4)),
        list(range(4, 8)),
        list(range(8, 12)),
    ]
    assert result.community_names()[0] == ("x0", "x1", "x2", "x3")
    assert result.how == "one-shot" and result.fixed


def test_what_strict_sites_tell_is_near_what_open_ones_tell() -> None:
    """Log loss on the same new rows, of the strict and of the exact fit: within .02 at 3 x 300."""
    tables = tables_of([100] * 3, p=12, n_blocks=3)
    new, truth = pooled_rows(tables_of([100] * 4, p=12, n_blocks=3))
    x, y = new[-300:], np.searchsorted(LEVELS, truth[-300:])
    losses = []
    for policy in ("strict", "simulation"):
        told = run_of(FederatedCommunityBayes(n_communities=3), tables, policy).result
        log_p = told.to_estimator().predict_log_proba(x)
        losses.append(float(-log_p[np.arange(300), y].mean()))
    assert abs(losses[0] - losses[1]) < 0.02


# --------------------------------------------------------------------------- edges


def test_wide_sites_tell_small_communities_only() -> None:
    """40 columns, 60 rows a site: no ranks, no fit of all columns; single columns can be told."""
    tables = tables_of([20] * 4, p=40, n_blocks=10)
    with pytest.raises(QuorumError, match="twice as many training rows as columns"):
        run_of(FederatedCommunityBayes(n_communities=10), tables, "strict")
    result = run_of(FederatedCommunityBayes(n_communities=40), tables, "strict").result
    assert result.n_communities == 40 and result.judged == ("communities", "class frequencies")
    assert any("nothing tells what communities gain" in said for said in result.remarks)
    with pytest.raises(QuorumError, match="no site could tell a fit"):
        run_of(FederatedCommunityBayes(n_communities=1), tables, "strict")


def test_small_classes_take_no_part_and_are_said() -> None:
    tables = tables_of([60, 60])
    for name in tables:
        few = tables[name][tables[name]["y"] == "c"].iloc[:8]
        tables[name] = pd.concat([tables[name][tables[name]["y"] != "c"], few])
    for asked in (with_own_lists(federation(tables), tables), federation(tables, "strict")):
        run = FederatedCommunityBayes(n_communities=2).run(asked, seed=0)
        assert run.result.levels == ("a", "b")
        assert any("rows of c" in said for said in run.result.remarks)
        assert len(run.site("s0").to_frame("predictions")) == 120


def test_a_constant_column_and_a_duplicate_do_no_harm() -> None:
    tables = tables_of([60, 60])
    for table in tables.values():
        table["x6"] = 3.0
        table["x7"] = table["x0"]
    for policy in ("simulation", "strict"):
        result = run_of(FederatedCommunityBayes(n_communities=3), tables, policy).result
        assert np.isfinite(result.log_loss[0]) and result.log_loss[0] < result.log_loss[-1]


def test_twenty_classes_and_unbalanced_ones() -> None:
    rng = np.random.default_rng(0)
    names = [f"k{i:02d}" for i in range(20)]
    tables = {}
    for b in range(2):
        codes = np.repeat(np.arange(20), [20 + 15 * (k % 5) for k in range(20)])
        x = rng.normal(size=(len(codes), 4)) + 2.0 * rng.permuted(np.eye(4), axis=0)[codes % 4]
        tables[f"s{b}"] = pd.DataFrame(x, columns=list("abcd"))
        tables[f"s{b}"]["y"] = np.array(names)[codes]
    result = run_of(FederatedCommunityBayes(n_communities=2), tables, "simulation").result
    assert len(result.levels) == 20
    assert result.log_loss[0] < result.log_loss[-1]


def test_exact_is_refused_by_sites_that_tell_no_values_of_records() -> None:
    tables = tables_of([60, 60])
    method = FederatedCommunityBayes(n_communities=2, fit="exact")
    with pytest.raises(QuorumError, match="per_record"):
        run_of(method, tables, "strict")
    allowed = Policy(preset="strict", per_record=True)
    assert run_of(method, tables, allowed).result.how == "exact"
    assert (
        run_of(FederatedCommunityBayes(n_communities=2), tables, allowed).result.how == "one-shot"
    )


def test_result_round_trip_summary_and_frame() -> None:
    tables = tables_of([300, 300])
    run = run_of(FederatedCommunityBayes(), tables, "strict")
    result = run.result
    again = FederatedCommunityBayesResult.from_files(result.to_files())
    assert again.to_files() == result.to_files()
    assert again.summary() == result.summary()
    assert "features fall into" in result.summary() and "log loss" in result.summary()
    for nothing in (
        {"n_held": np.zeros_like(result.n_held)},
        dict.fromkeys(("log_loss", "errors"), np.full_like(result.log_loss, np.nan)),
    ):
        told = dataclasses.replace(result, **nothing).summary()
        assert "No test rows tell what it is worth." in told and "log loss" not in told
    frame = result.to_frame()
    assert set(frame.columns) == {"community", "feature", "class", "coefficient"}
    assert len(frame) == 8 * 3
    x, _ = pooled_rows(tables)
    np.testing.assert_array_equal(
        run.site("s0").predictor.predict(x), result.to_estimator().predict(x)
    )


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"n_communities": 0}, "n_communities"),
        ({"n_communities": "many"}, "n_communities"),
        ({"candidates": (1, 1)}, "candidates"),
        ({"candidates": tuple(range(1, 23))}, "candidates"),
        ({"C": 0.0}, "C"),
        ({"C": 1e9}, "C"),
        ({"fit": "newton"}, "fit"),
        ({"linkage": "ward"}, "linkage"),
        ({"choosing": 0.0}, "choosing"),
        ({"holdout": 0.5}, "holdout"),
        ({"max_rounds": 0}, "max_rounds"),
    ],
)
def test_parameters(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ParameterError, match=word):
        FederatedCommunityBayes.from_parameters(changes)


def test_studies_that_cannot_be() -> None:
    tables = tables_of([60, 60])
    method = FederatedCommunityBayes(n_communities=2)
    numeric = dataclasses.replace(
        federation(tables), columns=Columns(features=("x0", "x1"), target="x2")
    )
    with pytest.raises(StudyError, match="declare the levels"):
        method.run(numeric, seed=0)
    with pytest.raises(StudyError, match="one scale"):
        method.run(federation(tables, standardize="site"), seed=0)
    with pytest.raises(ParameterError, match="number of columns"):
        run_of(FederatedCommunityBayes(n_communities=9), tables)
    with pytest.raises(QuorumError, match="choose the number"):
        run_of(FederatedCommunityBayes(), tables_of([18, 18]), "strict")
    few = tables_of([8, 8])
    with pytest.raises(QuorumError, match="fewer than 10 rows are complete"):
        run_of(method, few, "strict")


def test_two_communities_of_many_features_need_correlations() -> None:
    told, gaps = np.zeros((2, 1), dtype=bool), np.zeros((4, 4), dtype=bool)
    none = pooling.PooledRanks(np.zeros((1, 4, 4)), told, gaps)
    survey: Any = None
    with pytest.raises(QuorumError, match="no site has a class with twice as many"):
        tree_of(survey, none, ("s0", "s1"), (2,), "average")

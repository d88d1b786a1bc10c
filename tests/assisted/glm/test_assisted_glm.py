"""The joint GLM of several parties against the textbook fit on all columns in one place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm, t

from consilience.assisted.glm import AssistedGLM
from consilience.assisted.glm.messages import INTERCEPT
from consilience.engines.federation import Federation
from consilience.exceptions import QuorumError, StudyError
from consilience.protocol.method import Preparation
from consilience.sites.policy import Policy
from tests.assisted.assisted import FAMILIES, SIGNED, Parties, check_tables, draw_response, parties
from tests.reference import glm, pooled_glm

DEFAULT = Policy(preset="consortium", share_response=True)


def method(name: str = "binomial", **settings: Any) -> AssistedGLM:
    plain = {"family": name, "response": "share", "holdout": 0.0, "exchange": "turns"}
    return AssistedGLM(**{**plain, **settings})


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def inverse_link(name: str, eta: np.ndarray) -> np.ndarray:
    if name == "binomial":
        return 1 / (1 + np.exp(-eta))
    return np.exp(eta) if name in ("poisson", "gamma", "tweedie") else eta


# --------------------------------------------------------------------------- the pooled fit


@pytest.mark.parametrize("shared", [0, 2])
@pytest.mark.parametrize("name", FAMILIES)
def test_fit_errors_and_limits_are_those_of_the_pooled_columns(name: str, shared: int) -> None:
    them = parties(name, shared=shared, seed=shared)
    run = them.federation().run(method(name), seed=1)
    pooled = them.pooled(name)
    assert run.result.complete
    eta = them.values(run, "a", "linear_predictor")
    np.testing.assert_allclose(eta, pooled.eta, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(
        them.values(run, "a", "prediction"), inverse_link(name, pooled.eta), rtol=1e-8
    )
    # The parts of the two parties add up: the partner's own output is its part.
    part = them.values(run, "b", "linear_predictor")
    np.testing.assert_allclose(part, them.values(run, "a", "partners_part"), atol=1e-8)
    identified = check_tables(run, them, pooled)
    # Without shared columns all 8 are identified. A shared column takes its coefficients at both
    # sides with it, and the constant too, which moves with the shared columns' means.
    assert identified == (8 - 1 - shared if shared else 8)
    # Limits of new people, and of all others.
    design = pooled.design
    error = np.sqrt(np.einsum("ij,jk,ik->i", design, pooled.covariance, design))
    reach = norm.ppf(0.975) * error
    low, high = inverse_link(name, np.stack([pooled.eta - reach, pooled.eta + reach]))
    np.testing.assert_allclose(them.values(run, "a", "lower"), low, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(them.values(run, "a", "upper"), high, rtol=1e-6, atol=1e-9)
    new = ~them.known
    assert run.result.n_new == new.sum() == run.result.intervals["certified"]
    np.testing.assert_allclose(
        run.result.intervals["mean_width"], (high - low)[new].mean(), rtol=1e-6
    )
    assert np.array_equal(them.values(run, "a", "is_new"), new.astype(int))


@pytest.mark.parametrize("errors", ["hc1", "hc3"])
@pytest.mark.parametrize("clustered", [False, True])
def test_errors_for_heavy_tails_and_clusters_are_the_pooled_ones(
    clustered: bool, errors: str
) -> None:
    of = np.random.default_rng(8).permutation(np.arange(300) // 15).astype(str)
    them = parties("poisson", weights=True, seed=8)
    them = them.with_(clusters=of if clustered else None)
    run = them.federation().run(method("poisson", errors=errors), seed=1)
    pooled = them.pooled("poisson", errors=errors)
    assert check_tables(run, them, pooled) == 8
    of_t = t(19) if clustered else norm
    table = run.result.own_coefficients
    np.testing.assert_allclose(table["p"], 2 * of_t.sf(np.abs(table["z"])), rtol=1e-9)
    error = np.sqrt(np.einsum("ij,jk,ik->i", pooled.design, pooled.covariance, pooled.design))
    high = np.exp(pooled.eta + of_t.ppf(0.975) * error)
    np.testing.assert_allclose(them.values(run, "a", "upper"), high, rtol=1e-6)
    assert (run.result.n_clusters, run.result.errors) == (20 if clustered else 0, errors)
    words = ["by 20 clusters"] * clustered + ["HC3"] * (errors == "hc3")
    assert (
        f"standard errors ({', '.join(words)})." if words else "errors."
    ) in run.result.summary()
    # The initiator's own model has errors of the same kind.
    own = pooled_glm.fit(
        [them.blocks["a"]],
        np.where(them.known, them.y, 0.0),
        "poisson",
        used=them.known,
        weights=them.weights,
        errors=errors,
        cluster=them.clusters,
    )
    np.testing.assert_allclose(
        run.result.alone["error"], np.sqrt(np.diag(own.covariance)), rtol=1e-6
    )


@pytest.mark.parametrize("acceleration", ["span", "anderson"])
@pytest.mark.parametrize("name", ["poisson", "normal"])
def test_an_offset_gives_the_pooled_fit_of_statsmodels(name: str, acceleration: str) -> None:
    import statsmodels.api as sm

    them = parties(name, n_new=9, seed=9)
    exposure = np.random.default_rng(9).uniform(0.2, 5.0, size=300)
    y = np.where(
        them.known,
        draw_response(
            name, np.nan_to_num(them.y) / 3 + np.log(exposure), np.random.default_rng(10)
        ),
        np.nan,
    )
    them = them.with_(y=y, offset=np.log(exposure))
    run = them.federation().run(method(name, acceleration=acceleration, n_rounds=20), seed=1)
    pooled = them.pooled(name)
    assert check_tables(run, them, pooled) == 8
    np.testing.assert_allclose(them.values(run, "a", "linear_predictor"), pooled.eta, rtol=1e-8)
    used, x = them.known, pooled.design
    family = sm.families.Poisson() if name == "poisson" else sm.families.Gaussian()
    fitted = sm.GLM(y[used], x[used], family=family, offset=them.offset[used]).fit(tol=1e-14)
    np.testing.assert_allclose(
        run.result.own_coefficients["estimate"], fitted.params[:4], rtol=1e-8
    )
    # Errors by HC0, without the factor for small samples.
    hc0 = sm.GLM(y[used], x[used], family=family, offset=them.offset[used]).fit(
        tol=1e-14, cov_type="HC0"
    )
    n, error = used.sum(), run.result.own_coefficients["error"]
    np.testing.assert_allclose(error, np.sqrt(n / (n - 8)) * hc0.bse[:4], rtol=1e-8)
    null = sm.GLM(y[used], np.ones(n), family=family, offset=them.offset[used]).fit()
    assert run.result.deviance["null"] == pytest.approx(null.deviance, rel=1e-6)
    # The own model has it too, and the partner's part has not.
    own = pooled_glm.fit([them.blocks["a"]], np.nan_to_num(y), name, used=used, offset=them.offset)
    np.testing.assert_allclose(run.result.alone["estimate"], own.coef, rtol=1e-6, atol=1e-9)
    part = them.values(run, "b", "linear_predictor")
    np.testing.assert_allclose(part, them.values(run, "a", "partners_part"), atol=1e-8)
    assert run.result.offset


def test_bounded_errors_beside_an_offset() -> None:
    """The partner keeps a direction: what it is told of the joint fit has the offset."""
    them = parties("poisson", n=400, sizes=(3, 6), seed=12)
    offset = np.log(np.random.default_rng(9).uniform(0.2, 5.0, size=400))
    y = np.random.default_rng(1).poisson(np.exp(0.1 + 0.3 * them.blocks["b"][:, 0] + offset))
    them = them.with_(y=np.where(them.known, y, np.nan), offset=offset)
    policy = {"a": SIGNED, "b": DEFAULT}
    run = them.federation(policy=policy).run(method("poisson"), seed=1)
    assert run.result.revealed["b"] == (5, 6)
    table, exact = (
        run.result.own_coefficients,
        np.sqrt(np.diag(them.pooled("poisson").covariance)[:4]),
    )
    known = np.isfinite(table["error"])
    assert known.sum() >= 3 and set(table["status"]) <= {"identified", "bounded"}
    assert (table["error"][known] >= 0.97 * exact[known]).all()
    assert (table["error"][known] <= 1.03 * table["factor"][known] * exact[known]).all()
    # The same offset for all moves the intercept, and neither errors nor their bounds.
    plain, moved = (
        them.with_(offset=o).federation(policy=policy).run(method("poisson"), seed=1)
        for o in (None, np.full(400, 0.7))
    )
    for name in ("error", "factor"):
        found, wanted = (run.result.own_coefficients[name] for run in (moved, plain))
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("sizes", [(6, 12), (4, 6, 6)])
def test_errors_to_an_accuracy_take_fewer_directions(sizes: tuple[int, ...]) -> None:
    """The sandwich of what is known is short of the pooled one by at most 2% here."""
    them = parties("normal", n=500, sizes=sizes, n_new=0, seed=13)
    pooled, known = them.pooled("normal"), []
    exact = np.sqrt(np.diag(pooled.covariance))[: 1 + sizes[0]]
    for accuracy in (0.0, 0.05, 0.3):
        result = them.federation().run(method("normal", interval_accuracy=accuracy), seed=1).result
        known.append(sum(k for site, (k, _) in result.revealed.items() if site != "a"))
        table = result.own_coefficients
        assert (table["factor"] <= 1 + accuracy + 1e-6).all()
        assert (table["error"] >= 0.98 * exact).all()
        assert (table["error"] <= (1 + accuracy) * 1.001 * exact).all()
    assert sum(sizes[1:]) == known[0] >= known[1] >= known[2] < known[0]
    # An initiator that may not ask gets all from partners that let all be known.
    policy = {site: DEFAULT if site == "a" else SIGNED for site in them.blocks}
    run = them.federation(policy=policy).run(method("normal", interval_accuracy=0.3), seed=1)
    assert run.result.complete


@pytest.mark.parametrize("preset", ["consortium", "simulation"])
def test_whole_clusters_are_held_out(preset: str) -> None:
    of = np.random.default_rng(8).permutation(np.arange(600) // 10).astype(str)
    them = parties("normal", n=600, seed=8).with_(clusters=of)
    signed = SIGNED if preset == "consortium" else Policy(preset="simulation", share_response=True)
    run = them.federation(policy=signed).run(method("normal", holdout=0.2), seed=1)
    held = them.values(run, "a", "held_out") == 1
    assert 0 < held.sum() <= 0.4 * 600
    assert not set(of[held]) & set(of[them.known & ~held])
    # A cluster for each row is no cluster; else differences add up within clusters.
    if preset == "simulation":
        alone, plain = (
            them.with_(clusters=c)
            .federation(policy=signed)
            .run(method("normal", holdout=0.2), seed=1)
            for c in (them.ids, None)
        )
        errors = [r.result.holdout["error"] for r in (alone, plain, run)]
        g = alone.result.n_held_clusters
        assert g == alone.result.n_holdout and plain.result.n_held_clusters == 0
        assert errors[0] == pytest.approx(errors[1] * np.sqrt(g / (g - 1)), rel=1e-9) != errors[2]
        assert run.result.n_held_clusters == len(set(of[held]))


def test_a_penalised_fit_has_clusters_and_no_test_of_independent_rows() -> None:
    of = (np.arange(300) // 10).astype(str)
    them = parties("binomial", seed=8).with_(clusters=of)
    run = them.federation().run(method(alpha=0.05), seed=1)
    assert run.result.n_clusters == 30 and np.isnan(run.result.own_coefficients["error"]).all()


def test_clusters_belong_to_the_initiator_and_are_at_least_two() -> None:
    them = parties("normal", seed=8).with_(clusters=np.full(300, "one"))
    with pytest.raises(QuorumError, match="all in one cluster: errors need at least two"):
        them.federation().run(method("normal"), seed=1)
    columns = them.columns(b={"cluster": "b0"})
    with pytest.raises(
        StudyError, match="name the cluster: the initiator, and nobody else, has one"
    ):
        Federation.local(them.frames(), columns=columns, policy=SIGNED)


@pytest.mark.parametrize("name", FAMILIES)
def test_training_alone_comes_within_1e_6(name: str) -> None:
    """Without the concluding fit, at most as many rounds as the partner has columns."""
    them = parties(name, shared=1, sizes=(4, 6), seed=3)
    run = them.federation().run(method(name, interval="none"), seed=1)
    eta = them.values(run, "a", "linear_predictor")
    assert relative(eta, them.pooled(name).eta) < 1e-6
    assert run.result.rounds <= 7
    table = run.result.rounds_table
    assert (np.diff(table["deviance"]) <= 1e-9 * table["deviance"][0]).all()
    assert not run.result.complete
    assert np.isnan(run.result.own_coefficients["error"]).all()


@pytest.mark.parametrize("correlation", [0.9, 0.99])
def test_training_where_the_parties_columns_are_much_alike(correlation: float) -> None:
    rng = np.random.default_rng(11)
    them = parties(n=400, sizes=(4, 4), seed=11)
    a = them.blocks["a"]
    b = correlation * a + np.sqrt(1 - correlation**2) * rng.normal(size=a.shape)
    them = them.with_(blocks={"a": a, "b": b})
    run = them.federation().run(method(interval="none"), seed=1)
    assert relative(them.values(run, "a", "linear_predictor"), them.pooled("binomial").eta) < 1e-6
    assert run.result.rounds <= 4


@pytest.mark.parametrize("acceleration", ["anderson", "none"])
def test_other_ways_reach_the_same_fit(acceleration: str) -> None:
    them = parties("poisson", seed=4)
    run = them.federation().run(
        method("poisson", acceleration=acceleration, n_rounds=300, tol=1e-10, interval="none"),
        seed=1,
    )
    assert run.result.stopped == "converged"
    assert relative(them.values(run, "a", "linear_predictor"), them.pooled("poisson").eta) < 1e-7
    # Joint intervals complete any of them to the pooled fit.
    run = them.federation().run(method("poisson", acceleration=acceleration, n_rounds=20), seed=1)
    assert check_tables(run, them, them.pooled("poisson")) == 8


@pytest.mark.parametrize("at", ["site:a", "third-party"])
def test_three_parties(at: str) -> None:
    them = parties(sizes=(2, 3, 2), shared=1, seed=5)
    run = them.federation(at=at).run(method(), seed=1)
    pooled = them.pooled("binomial")
    np.testing.assert_allclose(
        them.values(run, "a", "linear_predictor"), pooled.eta, rtol=1e-8, atol=1e-8
    )
    assert check_tables(run, them, pooled) == 1 + 3 + 2
    assert run.result.partners == ("b", "c")
    assert run.result.revealed == {"a": (2, 2), "b": (4, 4), "c": (2, 2)}
    names = [INTERCEPT, "a0", "a1"] if at == "site:a" else ["x0", "x1", "x2"]
    assert run.result.own_coefficients["name"].tolist() == names
    alone = run.result.deviance["alone"]
    assert run.result.deviance["joint"] < alone < run.result.deviance["null"]


def test_three_parties_train_to_1e_6() -> None:
    them = parties("gamma", sizes=(3, 3, 3), shared=1, seed=6)
    run = them.federation().run(method("gamma", interval="none"), seed=1)
    assert relative(them.values(run, "a", "linear_predictor"), them.pooled("gamma").eta) < 1e-6


def test_case_weights() -> None:
    them = parties("normal", weights=True, seed=7)
    run = them.federation().run(method("normal"), seed=1)
    pooled = them.pooled("normal")
    np.testing.assert_allclose(
        them.values(run, "a", "linear_predictor"), pooled.eta, rtol=1e-8, atol=1e-8
    )
    assert check_tables(run, them, pooled) == 8
    plain = them.with_(weights=None).pooled("normal")
    assert relative(plain.eta, pooled.eta) > 1e-3, "weights that change nothing test nothing"


# --------------------------------------------------------------------------- preparation


@pytest.mark.parametrize("interval", ["joint", "none"])
def test_standardised_by_site(interval: str) -> None:
    """Every party scales its own matched rows; estimates are in those units."""
    them = parties(shared=1, seed=8)
    far = {s: 1000.0 + 50.0 * x for s, x in them.blocks.items()}
    them = them.with_(blocks=far)
    federation = them.federation(preparation=Preparation(standardize="site"))
    run = federation.run(method(interval=interval), seed=1)
    scaled = {s: (x - x.mean(axis=0)) / x.std(axis=0) for s, x in far.items()}
    scaled_them = them.with_(blocks=scaled)
    pooled = scaled_them.pooled("binomial")
    assert relative(them.values(run, "a", "linear_predictor"), pooled.eta) < 1e-6
    if interval == "joint":
        # The constant is identified here: all columns have mean 0, the shared one too.
        assert check_tables(run, scaled_them, pooled) == 8 - 1
    # Predictors are in the table's units.
    a = run.site("a").predictor.part(far["a"])
    b = run.site("b").predictor.part(far["b"])
    np.testing.assert_allclose(a + b, them.values(run, "a", "linear_predictor"), rtol=1e-8)


def test_categorical_columns_and_a_response_with_levels() -> None:
    them = parties(seed=9)
    rng = np.random.default_rng(9)
    ward = np.array(["north", "south", "west"])[rng.integers(3, size=300)]
    frames, columns = them.frames(), them.columns()
    place = {one: k for k, one in enumerate(them.ids)}
    frames["b"]["ward"] = [ward[place.get(i, 0)] for i in frames["b"]["id_b"]]
    frames["a"]["y"] = [None if np.isnan(v) else ("ill" if v else "well") for v in frames["a"]["y"]]
    levels = {"ward": ("north", "south", "west")}
    roles = them.columns(
        a={"levels": {"y": ("well", "ill")}},
        b={"features": (*columns["b"].features, "ward"), "levels": levels},
    )
    from consilience.engines.federation import Federation

    federation = Federation.local(
        frames,
        columns=roles,
        policy=SIGNED,
        preparation=Preparation(categorical="treatment"),
    )
    run = federation.run(method(), seed=1)
    coded = np.column_stack([ward == "south", ward == "west"]).astype(float)
    them = them.with_(blocks={**them.blocks, "b": np.column_stack([them.blocks["b"], coded])})
    assert check_tables(run, them, them.pooled("binomial")) == 10
    assert "ward=south" in list(run.site("b").to_frame("coefficients")["name"])


@pytest.mark.parametrize("rule", ["aggregated-mean", "indicator", "complete-rows"])
def test_missing_cells(rule: str) -> None:
    them = parties(seed=10)
    rng = np.random.default_rng(10)
    gaps = {s: rng.uniform(size=x.shape) < 0.04 for s, x in them.blocks.items()}
    holed = {s: np.where(gaps[s], np.nan, x) for s, x in them.blocks.items()}
    them = them.with_(blocks=holed)
    run = them.federation(preparation=Preparation(missing=rule)).run(method(), seed=1)
    if rule == "complete-rows":
        kept = ~np.any([g.any(axis=1) for g in gaps.values()], axis=0)
        left = them.with_(
            blocks={s: x[kept] for s, x in holed.items()}, y=them.y[kept], ids=them.ids[kept]
        )
        assert check_tables(run, left, left.pooled("binomial")) == 8
        assert run.result.n_records == left.known.sum()
        return
    blocks = {}
    for site, x in holed.items():
        filled = np.where(gaps[site], np.nanmean(x, axis=0), x)
        marks = gaps[site][:, gaps[site].any(axis=0)].astype(float)
        blocks[site] = np.column_stack([filled, marks]) if rule == "indicator" else filled
    filled_them = them.with_(blocks=blocks)
    pooled = filled_them.pooled("binomial")
    assert relative(them.values(run, "a", "linear_predictor"), pooled.eta) < 1e-8


# --------------------------------------------------------------------------- held-out rows


def test_held_out_rows_compare_and_join_the_concluding_fit() -> None:
    them = parties(n=400, seed=12)
    run = them.federation().run(method(holdout=0.25), seed=1)
    result = run.result
    held = them.values(run, "a", "held_out").astype(bool)
    # A fifth of 400 matched rows, of which 388 have a response, whatever share is asked for.
    assert 68 <= held.sum() == result.n_holdout <= 80 and them.known.sum() == 388
    assert not (held & ~them.known).any()
    assert result.n_records == them.known.sum() - held.sum()
    # The training left them out, and the comparison is of the training's fit.
    trained = them.pooled("binomial", used=them.known & ~held)
    alone = them.with_(blocks={"a": them.blocks["a"]}).pooled("binomial", used=them.known & ~held)
    y = them.y[held]
    for way, fit in (("joint", trained), ("alone", alone)):
        mean = 2 * glm.loss("binomial", y, fit.eta[held]).mean()
        np.testing.assert_allclose(result.holdout[way], mean, rtol=1e-6)
        rows = them.known & ~held
        total = 2 * glm.loss("binomial", them.y[rows], fit.eta[rows]).sum()
        np.testing.assert_allclose(result.deviance[way], total, rtol=1e-6)
        np.testing.assert_allclose(
            result.pseudo_r2[way], 1 - total / result.deviance["null"], rtol=1e-6
        )
        p = fit.eta[held]
        pairs = (p[y == 1][:, None] > p[y == 0]).mean()
        np.testing.assert_allclose(result.auc[way], pairs, atol=1e-6)
    gain = 2 * (
        glm.loss("binomial", y, alone.eta[held]) - glm.loss("binomial", y, trained.eta[held])
    )
    np.testing.assert_allclose(result.holdout["alone_minus_joint"], gain.mean(), rtol=1e-4)
    np.testing.assert_allclose(result.holdout["error"], gain.std() / np.sqrt(held.sum()), rtol=1e-4)
    # What is reported is the fit on all rows.
    pooled = them.pooled("binomial")
    np.testing.assert_allclose(
        them.values(run, "a", "linear_predictor"), pooled.eta, rtol=1e-8, atol=1e-8
    )
    assert check_tables(run, them, pooled) == 8


def test_calibration_is_of_the_held_out_rows() -> None:
    them = parties(n=600, seed=13)
    run = them.federation().run(method(holdout=0.4), seed=1)
    held = them.values(run, "a", "held_out").astype(bool)
    trained = them.pooled("binomial", used=them.known & ~held)
    found = run.result.calibration["joint"]
    order = np.argsort(trained.eta[held])
    p = 1 / (1 + np.exp(-trained.eta[held]))
    parts = np.array_split(order, len(found["predicted"]))
    assert np.isfinite(found["predicted"]).sum() >= 2
    assert np.isfinite(found["observed"]).sum() >= 2
    for k, part in enumerate(parts):
        if np.isfinite(found["predicted"][k]):
            assert abs(found["predicted"][k] - p[part].mean()) < 0.01
        if np.isfinite(found["observed"][k]):
            assert abs(found["observed"][k] - them.y[held][part].mean()) < 0.05


# --------------------------------------------------------------------------- policies


def test_the_default_policy_stops_one_short_and_says_so() -> None:
    them = parties(sizes=(6, 4), seed=14)
    policy = {"a": SIGNED, "b": DEFAULT}
    run = them.federation(policy).run(method(tol=1e-12), seed=1)
    result = run.result
    assert result.stopped == "rank"
    assert result.revealed["b"] == (3, 4)
    assert not result.complete
    assert "a policy ended the training" in result.summary()
    assert any("policy of b" in note and "max_revealed_rank" in note for note in run.notes)
    assert (result.own_coefficients["status"] != "identified").all() or np.isfinite(
        result.own_coefficients["factor"]
    ).any()
    # The deviance that is left is what a refit on the pooled columns would gain, to second order.
    pooled = them.pooled("binomial")
    left = result.deviance["joint"] - 2 * pooled.deviance_loss
    assert left >= -1e-9
    assert result.deviance["joint"] < result.deviance["alone"]
    np.testing.assert_allclose(result.remaining, left, atol=max(0.5 * left, 1e-9))


def test_the_default_policy_holds_for_the_initiator_too() -> None:
    them = parties(sizes=(3, 6), seed=15)
    run = them.federation({"a": DEFAULT, "b": SIGNED}).run(method(tol=1e-12), seed=1)
    assert run.result.stopped == "rank"
    assert run.result.revealed["a"] == (2, 3)
    assert any("policy of a" in note for note in run.notes)
    sent = [x for x in run.transcript if x.site == "a" and x.field == "own" and x.revealed]
    assert sent[-1].revealed == "2 of 3"


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_a_number_as_a_limit(limit: int) -> None:
    them = parties(sizes=(4, 5), seed=16)
    strict = Policy(preset="consortium", share_response=True, max_revealed_rank=limit)
    run = them.federation({"a": SIGNED, "b": strict}).run(method(), seed=1)
    assert run.result.revealed["b"] == (limit, 5)
    assert run.result.rounds == limit
    alone = run.result.deviance["alone"]
    joint = run.result.deviance["joint"]
    if limit:
        assert joint < alone
    else:
        np.testing.assert_allclose(joint, alone, rtol=1e-8)


@pytest.mark.parametrize("acceleration", ["span", "anderson", "none"])
def test_one_partner_may_not_speak_and_the_others_go_on(acceleration: str) -> None:
    them = parties(sizes=(3, 3, 3), seed=18)
    silent = Policy(preset="consortium", max_revealed_rank=0)
    federation = them.federation({"a": SIGNED, "b": silent, "c": SIGNED})
    how = method(acceleration=acceleration, interval="none", n_rounds=60, tol=1e-9)
    run = federation.run(how, seed=1)
    assert run.result.revealed["b"] == (0, 3)
    assert any("policy of b" in note for note in run.notes)
    rest = them.with_(blocks={s: them.blocks[s] for s in "ac"}).pooled("binomial")
    assert relative(them.values(run, "a", "linear_predictor"), rest.eta) < 1e-6
    # What b could add is said, to second order, and is what the pooled fit adds at least.
    gap = 2 * (rest.deviance_loss - them.pooled("binomial").deviance_loss)
    assert 0.3 * gap < run.result.remaining < 1.2 * gap


@pytest.mark.parametrize("strict", ["b", "c"])
def test_partners_of_different_policies(strict: str) -> None:
    """Who sent all directions that were left is judged beside one who may not."""
    them = parties(n=400, sizes=(3, 6, 5), seed=6)
    policy = dict.fromkeys(them.blocks, SIGNED)
    policy[strict] = replace(SIGNED, max_revealed_rank=4)
    run = them.federation(policy).run(method(n_rounds=2), seed=1)
    result, pooled = run.result, them.pooled("binomial")
    assert not result.complete and result.stopped == "rounds"
    sizes = {s: x.shape[1] for s, x in them.blocks.items()}
    assert result.revealed == {s: (4 if s == strict else k, k) for s, k in sizes.items()}
    assert (result.own_coefficients["status"] == "bounded").all()
    # Two rounds are no full fit: the errors are close to the pooled ones, and wider by the bound.
    for j, (error, factor) in enumerate(
        zip(result.own_coefficients["error"], result.own_coefficients["factor"], strict=True)
    ):
        whole = pooled.error(np.eye(len(pooled.coef))[j])
        assert 1 <= factor < 1.5 and 0.97 * whole < error < 1.3 * whole
    for partner in "bc":
        table = run.site(partner).to_frame("coefficients")
        assert (table["status"] == "not certified").all()
        np.testing.assert_allclose(
            them.blocks[partner] @ table["estimate"]
            - np.mean(them.blocks[partner] @ table["estimate"]),
            them.values(run, partner, "linear_predictor"),
        )


def test_a_limit_of_rounds() -> None:
    them = parties(sizes=(4, 5), seed=17)
    run = them.federation().run(method(n_rounds=1, interval="none"), seed=1)
    assert run.result.stopped == "rounds" and run.result.rounds == 1
    assert "limit of rounds" in run.result.summary()
    assert run.result.remaining > 0


# --------------------------------------------------------------------------- other settings


def _ridge(them: Parties, name: str, alpha: float) -> np.ndarray:
    return them.pooled(name, ridge=alpha).eta


@pytest.mark.parametrize("name", ["binomial", "normal", "gamma", "pseudo-huber"])
@pytest.mark.parametrize("acceleration", ["span", "anderson"])
def test_ridge_is_that_of_the_pooled_columns(name: str, acceleration: str) -> None:
    them = parties(name, shared=1, seed=18)
    run = them.federation().run(
        method(name, alpha=0.05, acceleration=acceleration, n_rounds=100, tol=1e-9), seed=1
    )
    eta = them.values(run, "a", "linear_predictor")
    assert relative(eta, _ridge(them, name, 0.05)) < 1e-6
    assert set(run.result.own_coefficients["status"]) == {"penalised"}
    assert np.isnan(run.result.own_coefficients["error"]).all()
    assert np.isnan(them.values(run, "a", "lower")).all()
    assert "no intervals" in run.result.summary()


@pytest.mark.parametrize(
    ("name", "alpha", "l1_ratio"), [("binomial", 0.03, 1.0), ("poisson", 0.2, 0.5)]
)
def test_lasso_and_elastic_net_are_those_of_the_pooled_columns(
    name: str, alpha: float, l1_ratio: float
) -> None:
    from glum import GeneralizedLinearRegressor

    them = parties(name, n=300, sizes=(4, 4), seed=19)
    run = them.federation().run(
        method(name, alpha=alpha, l1_ratio=l1_ratio, n_rounds=200, tol=1e-9), seed=1
    )
    assert run.result.acceleration != "span"
    model = GeneralizedLinearRegressor(
        family=name, alpha=alpha, l1_ratio=l1_ratio, gradient_tol=1e-10, max_iter=2000
    )
    a, b = them.blocks["a"], them.blocks["b"]
    x = np.column_stack([a, b - b.mean(axis=0)])
    model.fit(x[them.known], them.y[them.known])
    eta = model.intercept_ + x @ model.coef_
    assert relative(them.values(run, "a", "linear_predictor"), eta) < 1e-5
    assert (model.coef_ == 0).any(), "a penalty that leaves out nothing tests little"
    found = run.result.own_coefficients["estimate"][1:]
    np.testing.assert_allclose(found, model.coef_[:4], atol=1e-5)
    np.testing.assert_array_equal(found == 0, model.coef_[:4] == 0)


def test_inflated_intervals_are_an_upper_bound() -> None:
    """Model-based variances over 1 - rho are never below those of the joint model."""
    them = parties(sizes=(3, 3), seed=20)
    run = them.federation().run(
        method(acceleration="none", interval="inflated", n_rounds=100, tol=1e-9), seed=1
    )
    assert run.result.rounds >= 5
    low = them.values(run, "a", "lower")
    high = them.values(run, "a", "upper")
    pooled = them.pooled("binomial")
    x = pooled.design[them.known]
    p = 1 / (1 + np.exp(-pooled.eta[them.known]))
    model = np.linalg.inv(x.T @ ((p * (1 - p))[:, None] * x))
    new = ~them.known
    error = np.sqrt(np.einsum("ij,jk,ik->i", pooled.design[new], model, pooled.design[new]))
    logit = np.log(high / (1 - high)) - np.log(low / (1 - low))
    widths = logit[new] / (2 * norm.ppf(0.975))
    assert (widths >= error * (1 - 1e-6)).all()
    assert (widths < 4 * error).all(), "a bound that says nothing"
    assert run.result.intervals["certified"] == new.sum()
    assert any("variance function" in note for note in run.notes)


def test_inflated_intervals_need_five_rounds() -> None:
    them = parties(sizes=(3, 3), seed=20)
    run = them.federation().run(
        method(acceleration="none", interval="inflated", n_rounds=3), seed=1
    )
    assert run.result.intervals["certified"] == 0
    assert np.isnan(them.values(run, "a", "lower")).all()
    assert any("at least 5 rounds" in note for note in run.notes)
    assert 'standard errors by interval = "joint"' in run.result.summary()


def test_paper_intervals_are_local_sandwiches_with_bonferroni() -> None:
    them = parties("normal", sizes=(3, 3), seed=21)
    run = them.federation().run(method("normal", interval="paper"), seed=1)
    pooled = them.pooled("normal")
    rows = them.known
    s = np.where(rows, pooled.eta - np.where(rows, them.y, 0.0), 0.0)
    total = np.zeros(len(s))
    for site in "ab":
        x = them.blocks[site]
        d = np.column_stack([np.ones(len(x)), x]) if site == "a" else x - x.mean(axis=0)
        bread = np.linalg.inv(d[rows].T @ d[rows])
        meat = (d * s[:, None] ** 2)[rows].T @ d[rows]
        covariance = bread @ meat @ bread
        total += np.sqrt(np.einsum("ij,jk,ik->i", d, covariance, d))
    reach = norm.ppf(1 - 0.05 / 4)  # two intervals at 97.5%
    new = ~rows
    assert any("do not hold their level" in note for note in run.notes)
    width = (them.values(run, "a", "upper") - them.values(run, "a", "lower"))[new]
    # Local parts may carry a factor for small samples: the one of 288 rows and 4 columns.
    np.testing.assert_allclose(width, 2 * reach * total[new], rtol=0.02)


def test_level_and_power_are_used() -> None:
    them = parties("tweedie", seed=22)
    wide = them.federation().run(method("tweedie", level=0.99), seed=1)
    slim = them.federation().run(method("tweedie", level=0.5), seed=1)
    for run, level in ((wide, 0.99), (slim, 0.5)):
        low, high = (np.log(them.values(run, "a", k)) for k in ("lower", "upper"))
        eta = them.values(run, "a", "linear_predictor")
        np.testing.assert_allclose((low + high) / 2, eta, atol=1e-9)
        run_reach = (high - low) / 2 / norm.ppf((1 + level) / 2)
        if level == 0.99:
            error = run_reach
    np.testing.assert_allclose(run_reach, error, rtol=1e-9)
    other = them.federation().run(method("tweedie", power=1.2), seed=1)
    assert (
        relative(
            them.values(other, "a", "linear_predictor"), them.values(wide, "a", "linear_predictor")
        )
        > 1e-4
    )


def test_same_seed_same_result_and_order_of_rows_does_not_matter() -> None:
    them = parties(n=200, seed=23)
    first = them.federation().run(method(holdout=0.2), seed=1)
    second = them.federation().run(method(holdout=0.2), seed=1)
    assert first.result.to_files() == second.result.to_files()
    from consilience.engines.federation import Federation

    frames = {s: f.sort_values(f"id_{s}") for s, f in them.frames(seed=77).items()}
    other = Federation.local(frames, columns=them.columns(), policy=SIGNED)
    third = other.run(method(holdout=0.2), seed=1)
    assert third.result.to_files() == first.result.to_files()


def test_rounds_table_and_numbers_sent() -> None:
    them = parties(n=200, sizes=(3, 4), seed=24)
    run = them.federation().run(method(holdout=0.0), seed=1)
    table = run.result.rounds_table
    assert table["round"].tolist() == list(range(len(table["round"])))
    assert table["partner"].tolist() == ["", *["b"] * (len(table["round"]) - 1)]
    np.testing.assert_array_equal(np.diff(table["numbers_sent"])[:3], 2 * 200)

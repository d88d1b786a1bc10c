"""What latent class regression tells: classes, figures, outputs at the sites, predictors."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq
from scipy.stats import multivariate_normal, norm

from consilience import Columns, Federation, Run
from consilience.datasets.simulate_latent_classes import simulate_latent_classes
from consilience.engines.federation import load_run
from consilience.engines.local import LocalEngine
from consilience.exceptions import DataError, ProtocolError, RunError
from consilience.latent_regression.protocol import LatentClassRegression
from consilience.latent_regression.protocol import events as site_events
from consilience.latent_regression.protocol import result as words
from consilience.latent_regression.protocol import site as at_site
from consilience.latent_regression.protocol.result import LatentClassRegressionResult
from consilience.protocol.method import Preparation
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.sites.site_store import DiskStore
from consilience.testing.fakes import array_loader
from tests.latent_regression.protocol.latent import COLUMNS, by_site, events, federation, odd_noise

FEATURES = ["x1", "x2"]
SIZES = [4, 4]


def found_classes(policy: str = "strict", start: str = "local") -> tuple[Any, Run, pd.DataFrame]:
    """Three clear classes at two sites of many entities."""
    drawn = simulate_latent_classes(
        3,
        rng=np.random.default_rng(11),
        n_agents=8,
        n_entities=20,
        n_events=12,
        n_features=3,
        sigma=0.3,
    )
    frame = drawn.events.to_frame()
    method = LatentClassRegression(n_classes=3, start=start)
    return drawn, method.run(federation(by_site(frame, SIZES), policy), seed=2), frame


@pytest.fixture(scope="module")
def strict() -> tuple[Any, Run, pd.DataFrame]:
    return found_classes()


# --------------------------------------------------------------------------- classes


def test_classes_are_found_under_a_strict_policy(strict: tuple[Any, Run, pd.DataFrame]) -> None:
    """Coefficients within 5 of their own errors of the truth, in some order of the classes."""
    drawn, run, _ = strict
    result = run.result
    assert result.n_classes == 3
    found = np.column_stack([result.intercepts, result.slopes])
    errors = np.column_stack([result.intercept_errors, result.coefficient_errors])
    nearest = np.abs(found[:, None] - drawn.weights[None]).sum(axis=2).argmin(axis=1)
    assert sorted(nearest) == [0, 1, 2]
    assert (np.abs(found - drawn.weights[nearest]) < 5 * errors + 0.01).all()
    assert result.sigma == pytest.approx(0.3, rel=0.05)
    assert (np.diff(result.class_sizes) <= 0).all()
    assert result.class_shares.sum() == pytest.approx(1.0)


def test_labels_of_entities(strict: tuple[Any, Run, pd.DataFrame]) -> None:
    """Twelve events at this noise leave no doubt: a class here is one class of the truth."""
    drawn, run, frame = strict
    agents = np.unique(frame["agent"])
    labels = np.zeros(len(frame), dtype=int)
    for name, table in by_site(frame, SIZES).items():
        labels[frame["agent"].isin(table["agent"].unique())] = run.site(name).values("class")
    assert len(agents) == sum(SIZES)
    pairs = pd.crosstab(labels, drawn.events.label)
    assert (pairs.max(axis=1) / pairs.sum(axis=1)).min() > 0.99
    assert set(labels) == {1, 2, 3}


def test_rows_and_table_of_a_site(strict: tuple[Any, Run, pd.DataFrame]) -> None:
    """Classes by row are in the order of the site's table, and say what classes.csv says."""
    _, run, frame = strict
    table = by_site(frame, SIZES)["site-1"]
    site = run.site("site-1")
    by_row, chance = site.values("class"), site.values("class_probability")
    told = site.to_frame("classes")
    assert list(told.columns) == ["agent", "entity", "class", "probability", "events"]
    assert len(told) == table["entity"].nunique()
    joined = table.merge(told, on=["agent", "entity"], how="left")
    np.testing.assert_array_equal(by_row, joined["class"])
    np.testing.assert_allclose(chance, joined["probability"], rtol=1e-12)
    counted = table.groupby(["agent", "entity"]).size()
    np.testing.assert_array_equal(
        told["events"], [counted[pair] for pair in zip(told["agent"], told["entity"], strict=True)]
    )
    assert site.provenance["method"] == "latent-class-regression"


def test_classes_of_shuffled_rows() -> None:
    """The same entities have the same classes, whatever the order of events within the table."""
    frame = events(4, n_entities=6, n_events=8)
    again = frame.sample(frac=1.0, random_state=3).sort_values("agent", kind="stable")
    # Entities are numbered by first appearance: put one event of each first, in the old order.
    first = frame.drop_duplicates(["agent", "entity"])
    again = pd.concat([first, again.drop(index=first.index)])
    method = LatentClassRegression(
        n_classes=2, start="random", rounds=3, settle_rounds=2, average_rounds=2, holdout=0.0
    )
    tables = []
    for one in (frame, again):
        run = method.run(federation({"here": one}), seed=1)
        tables.append(run.site("here").to_frame("classes"))
        labels = pd.Series(run.site("here").values("class"), index=one.index)
        assert labels.groupby([one["agent"], one["entity"]]).nunique().max() == 1
    pd.testing.assert_frame_equal(tables[0], tables[1], rtol=1e-9)


# --------------------------------------------------------------------------- predictors


def test_predictor_on_a_disk(tmp_path: Path) -> None:
    """Saved by the site, and read back from its home by somebody who has only the folder."""
    frame = events(6, n_entities=6, n_events=8)
    sites = []
    for name, table in by_site(frame, [3, 3]).items():
        loader = array_loader(
            table[FEATURES].to_numpy(),
            FEATURES,
            target=table["y"].to_numpy(),
            agent=table["agent"].to_numpy().astype(str),
            entity=table["entity"].to_numpy().astype(str),
        )
        policy = Policy(preset="simulation")
        sites.append(Site(name, loader, policy=policy, home=DiskStore(tmp_path / name)))
    method = LatentClassRegression(
        n_classes=2, start="random", rounds=3, settle_rounds=2, average_rounds=2
    )
    found = Federation(LocalEngine(sites), COLUMNS, Preparation())
    run = method.run(found, seed=1, out=tmp_path / "run", run_id="one")
    table = by_site(frame, [3, 3])["site-1"]
    known: dict[str, Any] = {"entity": table["entity"], "agent": table["agent"]}
    wanted = run.site("site-1").predictor.predict(table[FEATURES], **known)

    home = DiskStore(tmp_path / "site-1")
    read = Site("site-1", loader, home=home).output("one")
    again = read.predictor
    np.testing.assert_array_equal(again.predict(table[FEATURES], **known), wanted)
    low, high = again.predict_interval(table[FEATURES], **known).T
    assert np.mean((table["y"] > low) & (table["y"] < high)) > 0.8
    assert (tmp_path / "site-1" / "outputs" / "one" / "classes.csv").is_file()
    with pytest.raises(DataError, match="columns must be x1, x2"):
        again.predict(table[["x2", "x1"]])

    loaded = load_run(tmp_path / "run").result
    assert loaded.to_files() == run.result.to_files()


@pytest.mark.parametrize("standardize", ["none", "pooled"])
def test_to_estimator(standardize: Any) -> None:
    """What every site says of strangers, in the columns' own units, prepared or not."""
    frame = events(6, n_entities=6, n_events=8)
    frame["x1"] = 100.0 + 20.0 * frame["x1"]
    method = LatentClassRegression(
        n_classes=2, start="random", rounds=3, settle_rounds=2, average_rounds=2
    )
    tables = by_site(frame, [3, 3])
    found = federation(tables, preparation=Preparation(standardize=standardize))
    run = method.run(found, seed=1)
    result, stranger = run.result, run.result.to_estimator()
    new = frame[FEATURES].to_numpy()[:50] * 1.1
    said = stranger.predict(new)
    for name in tables:
        site = run.site(name).predictor
        nobody = {"entity": np.repeat("nobody", 50), "agent": np.repeat("nowhere", 50)}
        np.testing.assert_allclose(site.predict(new, **nobody), said, rtol=1e-9)
        np.testing.assert_allclose(
            site.predict_interval(new, **nobody), stranger.predict_interval(new), rtol=1e-6
        )
    if standardize == "none":
        by_class = result.intercepts + new @ result.slopes.T
        np.testing.assert_allclose(said, by_class @ result.class_shares, rtol=1e-9)
    chances = stranger.predict_proba(new)
    np.testing.assert_allclose(chances, np.tile(result.class_shares, (50, 1)), rtol=1e-9)
    drawn = stranger.sample(new, 400, rng=np.random.default_rng(0))
    # Standard error of a mean of 400 draws; one row in a thousand lies beyond 4.
    error = drawn.std(axis=0) / 20
    assert (np.abs(drawn.mean(axis=0) - said) < 5 * error).all()


def test_prepared_units_give_the_same_predictions() -> None:
    frame = events(6, n_entities=6, n_events=8)
    frame["x1"] = 100.0 + 20.0 * frame["x1"]
    said = []
    for standardize in ("none", "pooled"):
        found = federation(by_site(frame, [3, 3]), preparation=Preparation(standardize=standardize))  # type: ignore[arg-type]
        run = LatentClassRegression(
            n_classes=2, start="random", rounds=3, settle_rounds=2, average_rounds=2, noise=0.5
        ).run(found, seed=1)
        table = by_site(frame, [3, 3])["site-0"]
        predictor = run.site("site-0").predictor
        said.append(
            predictor.predict(table[FEATURES], entity=table["entity"], agent=table["agent"])
        )
    # The rounds of the preparation come first, so that agents draw other numbers.
    assert np.corrcoef(said)[0, 1] > 0.95


# --------------------------------------------------------------------------- what people read


@pytest.mark.parametrize("noise", ["normal", "t3"])
def test_eight_classes_of_one_regression_are_no_kinds(noise: str) -> None:
    """At four sites: held-out error beside one ridge's is the first sentence."""
    rng = np.random.default_rng(3)
    frame = events(8, n_classes=1, n_entities=10, n_events=6, seed=3)
    drawn = rng.normal(size=len(frame)) if noise == "normal" else rng.standard_t(3, len(frame))
    frame = frame.assign(y=frame["x1"] + 0.5 * frame["x2"] + drawn)
    method = LatentClassRegression(n_classes=8, rounds=8, settle_rounds=4, average_rounds=4)
    result = method.run(federation(by_site(frame, [2] * 4)), seed=1).result
    assert result.n_classes > 1 and result.pooled_mse[2] > result.pooled_mse[0]
    assert result.verdict == "no evidence of kinds"
    assert result.summary().startswith("No evidence of kinds: on held-out events the squared error")
    assert "run again with n_classes = 1" in result.summary()


def test_summary_and_frame(strict: tuple[Any, Run, pd.DataFrame]) -> None:
    _, run, frame = strict
    result = run.result
    text = result.summary()
    entities = frame["entity"].nunique()
    assert result.verdict == "kinds" and text.startswith("Kinds: on held-out events the squared")
    assert f"3 classes describe y for {entities} entities of 2 sites" in text
    assert "one chain cannot tell" in result.remarks[0]
    assert f"{result.sigma:.4g}" in text
    assert f"the mean squared error of the classes is {result.pooled_mse[2]:.4g}" in text
    table = result.to_frame()
    assert list(table["term"]) == ["(intercept)", "x1", "x2"] * 3
    assert list(table["class"]) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    width = (table["high"] - table["low"]) / table["error"]
    np.testing.assert_allclose(width, 2 * norm.ppf(0.95), rtol=1e-9)
    np.testing.assert_allclose(
        table["estimate"].to_numpy().reshape(3, 3),
        np.column_stack([result.intercepts, result.slopes]),
    )


def test_round_trip_of_the_result(strict: tuple[Any, Run, pd.DataFrame]) -> None:
    result = strict[1].result
    files = result.to_files()
    again = LatentClassRegressionResult.from_files(files)
    assert again.to_files() == files
    assert again.summary() == result.summary()
    rows_ = np.zeros((2, 2))
    np.testing.assert_array_equal(
        again.to_estimator().predict(rows_), result.to_estimator().predict(rows_)
    )


def test_what_is_known_of_rounds(strict: tuple[Any, Run, pd.DataFrame]) -> None:
    _, run, frame = strict
    result = run.result
    r = result.rounds_run
    for name in ("trace_sigma", "trace_moved", "trace_log_marginal", "trace_classes"):
        assert getattr(result, name).shape == (r + 1,), name
    assert result.learning_rates.shape == (r,)
    for name in ("reported", "released", "repeated", "withheld"):
        assert getattr(result, name).shape == (r + 1, 2), name
    assert result.reported.all()
    assert result.n_agents.tolist() == [4.0, 4.0]
    assert result.n_entities.sum() == frame["entity"].nunique()
    assert result.n_events.sum() < len(frame)  # some are held out
    assert result.n_events.sum() > 0.7 * len(frame)
    assert result.site_class_sizes.shape == (2, 3)
    np.testing.assert_allclose(
        result.site_class_sizes.sum(axis=0), result.class_sizes, rtol=0.1, atol=2
    )
    assert (result.released[0] > 0).all()


# --------------------------------------------------------------------------- held-out figures


@pytest.mark.parametrize(
    ("fit_intercept", "weighted"), [(True, False), (False, False), (True, True)]
)
def test_heldout_figures_are_those_of_a_direct_computation(
    fit_intercept: bool, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = events(6, n_entities=6, n_events=8).reset_index(drop=True)
    drawn = np.random.default_rng(5).uniform(0.1, 3.0, len(frame))
    frame = frame.assign(w=drawn if weighted else 1.0)
    held: dict[str, np.ndarray] = {}
    draw = site_events._draws

    def watched(site: Any, *given: Any) -> Any:
        keys, out = draw(site, *given)
        held[site.site] = out
        return keys, out

    monkeypatch.setattr(site_events, "_draws", watched)
    tables = by_site(frame, [3, 3])
    method = LatentClassRegression(
        n_classes=2,
        start="random",
        rounds=4,
        settle_rounds=3,
        average_rounds=3,
        holdout=0.25,
        level=0.8,
        fit_intercept=fit_intercept,
    )
    columns = dataclasses.replace(COLUMNS, weight="w")
    result = method.run(federation(tables, columns=columns), seed=1).result
    first = 0 if fit_intercept else 1
    pooled = pd.concat([t[~held[name]] for name, t in tables.items()])
    z = np.column_stack([np.ones(len(pooled)), pooled[FEATURES]])[:, first:]
    h = pooled["w"].to_numpy()
    centre = np.average(z, axis=0, weights=h) * fit_intercept
    if fit_intercept:
        centre[0] = 0.0
    scale = np.sqrt(np.average(z**2, axis=0, weights=h) - centre**2)
    middle = np.average(pooled["y"], weights=h) * fit_intercept
    unit = np.sqrt(np.average(pooled["y"] ** 2, weights=h) - middle**2)
    scaled = (z - centre) / scale
    target = (pooled["y"].to_numpy() - middle) / unit
    gram = (scaled.T * h) @ scaled
    ridge = np.linalg.solve(gram + np.eye(len(gram)), scaled.T @ (h * target))
    freedom = np.trace(np.linalg.solve(gram + np.eye(len(gram)), gram))
    variance = (h * (target - scaled @ ridge) ** 2).sum() / (h.sum() - freedom)
    for b, (name, table) in enumerate(tables.items()):
        order = table.drop_duplicates(["agent", "entity"]).sort_values("agent", kind="stable")
        number = {
            pair: i for i, pair in enumerate(zip(order["agent"], order["entity"], strict=True))
        }
        of = np.array([number[pair] for pair in zip(table["agent"], table["entity"], strict=True)])
        out, w = held[name], table["w"].to_numpy()
        x = (np.column_stack([np.ones(len(table)), table[FEATURES]])[:, first:] - centre) / scale
        y = (table["y"].to_numpy() - middle) / unit
        means = x @ result.mean.T
        spread = np.sqrt(
            (result.sigma / unit) ** 2 + np.einsum("nf,kfg,ng->nk", x, result.covariance, x)
        )
        # entities by their own events alone
        logs = np.log(np.tile(result.class_shares, (len(order), 1)))
        for e, k in np.ndindex(logs.shape):
            mine = (of == e) & ~out
            v = x[mine] @ result.covariance[k] @ x[mine].T
            v += (result.sigma / unit) ** 2 * np.diag(1 / w[mine])
            logs[e, k] += multivariate_normal.logpdf(y[mine], means[mine, k], v)
        weights = (np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True))[of]
        # own coefficients around the mean of the classes, with their covariance
        size = result.class_shares / result.class_shares.sum()
        sigma2 = (result.sigma / unit) ** 2
        centre_of = size @ result.mean
        g = sum(w * np.outer(m - centre_of, m - centre_of) for w, m in zip(size, result.mean))
        g = g / sigma2
        own, wide = np.zeros(len(table)), np.zeros(len(table))
        for e in range(len(order)):
            mine = (of == e) & ~out
            # an event of weight w has noise of variance sigma2 / w
            v = x[mine] @ g @ x[mine].T + np.diag(1 / w[mine])
            gain = np.linalg.solve(v, x[mine] @ g).T
            spread_of = g - gain @ x[mine] @ g
            deviation = gain @ (y[mine] - x[mine] @ centre_of)
            own[of == e] = x[of == e] @ (centre_of + deviation)
            wide[of == e] = 1 + np.einsum("nf,fg,ng->n", x[of == e], spread_of, x[of == e])
        mixed = (weights * means).sum(axis=1)
        errors = [(y - x @ ridge) ** 2, (y - own) ** 2, (y - mixed) ** 2, y**2]
        wanted = [np.average(e[out], weights=w[out]) * unit**2 for e in errors]
        np.testing.assert_allclose(result.heldout_mse[b], wanted, rtol=1e-7)
        densities = (
            norm.logpdf(y, x @ ridge, np.sqrt(variance)),
            norm.logpdf(y, own, np.sqrt(sigma2 * wide)),
            np.log((weights * norm.pdf(y[:, None], means, spread)).sum(axis=1)),
        )
        scores = [np.average(d[out], weights=w[out]) - np.log(unit) for d in densities]
        np.testing.assert_allclose(result.heldout_log_score[b], scores, rtol=1e-6)
        assert result.heldout_ahead[b] == pytest.approx(scores[2] - scores[1], rel=1e-5)
        ends = np.array(
            [
                [quantile(q, weights[i], means[i], spread[i]) for q in (0.1, 0.9)]
                for i in np.flatnonzero(out)
            ]
        )
        inside = (y[out] >= ends[:, 0]) & (y[out] <= ends[:, 1])
        assert result.coverage[b] == pytest.approx(np.average(inside, weights=w[out]))
        width = np.average(ends[:, 1] - ends[:, 0], weights=w[out]) * unit
        assert result.interval_width[b] == pytest.approx(width, rel=1e-6)


def quantile(q: float, weights: np.ndarray, means: np.ndarray, spread: np.ndarray) -> float:
    def above(value: float) -> float:
        return float((weights * norm.cdf(value, means, spread)).sum() - q)

    return float(brentq(above, means.min() - 20 * spread.max(), means.max() + 20 * spread.max()))


@pytest.mark.parametrize("seed", [2, 5])
def test_own_intercepts_over_sites_are_degrees(seed: int) -> None:
    """Beside a ridge of each entity 13 of 31 such tables were called kinds."""
    rng = np.random.default_rng(seed)
    entity = np.repeat(np.arange(200), 8)
    x = rng.normal(size=(len(entity), 2))
    y = x @ [0.8, -0.4] + 0.7 * rng.normal(size=200)[entity] + rng.normal(size=len(entity))
    table = pd.DataFrame(x, columns=FEATURES)
    table = table.assign(y=y, agent=(entity // 10).astype(str), entity=entity.astype(str))
    method = LatentClassRegression(n_classes="auto", holdout=0.2)
    result = method.run(federation(by_site(table, [5] * 4), "simulation"), seed=0).result
    assert result.n_classes > 1 and words.saved(result).clear > 0
    assert result.verdict == "degrees, not kinds"


@pytest.mark.parametrize("preset", ["simulation", "strict"])
def test_without_evidence_of_kinds_one_regression_is_kept(preset: str) -> None:
    """That beside which classes were judged, at all sites; figures are what was judged."""
    tables = odd_noise()

    def told(n_classes: int | str) -> Run:
        method = LatentClassRegression(n_classes=n_classes, holdout=0.2)
        return method.run(federation(tables, preset), seed=0)

    run = told("auto")
    result = run.result
    assert result.verdict == "no evidence of kinds" and result.n_replaced > 1
    assert result.n_classes == 1 and result.class_shares.tolist() == [1.0]
    assert f"of {result.n_replaced} classes is" in result.summary()
    assert "One class is kept in their place." in result.summary()
    assert np.isnan(result.coverage).all() and np.isfinite(result.heldout_mse).any()
    # one regression with its errors, as one class by itself is fitted to the same events
    one = told(1).result
    for name in ("slopes", "intercepts", "coefficient_errors", "intercept_errors", "sigma"):
        np.testing.assert_allclose(getattr(result, name), getattr(one, name), rtol=0.02, atol=0.002)
    np.testing.assert_allclose(result.heldout_mse[:, 0], one.heldout_mse[:, 0], rtol=1e-3)
    for site in tables:
        kept = run.site(site).predictor
        np.testing.assert_array_equal(kept.mean, result.mean)
        assert (run.site(site).values("class") == 1).all()
    # a number of classes that was asked for stays
    assert told(3).result.n_classes > 1
    # nothing is told of the class that is kept
    lines = [x for x in run.transcript if x.direction == "from-site" and x.step == "keep"]
    assert all(line.disclosure == "public" for line in lines)


@pytest.mark.parametrize("missed", ["keep", "conclude"])
def test_a_site_that_misses_the_end_or_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, missed: str
) -> None:
    def refusing(message: Any, data: Any, state: Any, site: Any) -> Any:
        if "0" in data.agent:
            raise ProtocolError("not now")
        return getattr(at_site, missed).function(message, data, state, site)

    steps = [
        dataclasses.replace(step, function=refusing) if step.name == missed else step
        for step in LatentClassRegression.steps
    ]
    monkeypatch.setattr(LatentClassRegression, "steps", tuple(steps))
    tables = odd_noise()
    run = LatentClassRegression(n_classes="auto", holdout=0.2).run(federation(tables), seed=0)
    first, *others = tables
    assert run.result.n_classes == 1
    assert all(len(run.site(site).predictor.mean) == 1 for site in others)
    named = any(f"those that were judged are kept at {first}" in note for note in run.notes)
    assert named == (missed == "keep")
    if missed == "keep":
        assert len(run.site(first).predictor.mean) == run.result.n_replaced
    else:  # it keeps nothing, so nothing takes a place
        assert not any(x.step == "keep" and x.site == first for x in run.transcript)
        with pytest.raises(RunError, match="is kept here"):
            _ = run.site(first).predictor


@pytest.mark.parametrize("seed", [0, 1])
def test_sites_that_differ_by_degrees_are_no_kinds(seed: int) -> None:
    """Each site is an agent: judged by its mixture, classes were called kinds in 13 of 14."""
    rng = np.random.default_rng(seed)
    tables = {}
    for b in range(12):
        entity = np.repeat(np.arange(30), 3)
        own = rng.normal(size=2) + 0.3 * rng.normal(size=(30, 2))
        x = rng.normal(size=len(entity))
        y = own[entity, 0] + own[entity, 1] * x + rng.normal(size=len(entity))
        tables[f"s{b:02}"] = pd.DataFrame({"x1": x, "y": y, "entity": entity.astype(str)})
    columns = Columns(features=("x1",), target="y", entity="entity")
    method = LatentClassRegression(n_classes=4, holdout=0.2)
    run = method.run(federation(tables, "simulation", columns=columns), seed=seed)
    assert words.saved(run.result).clear > 0
    assert run.result.verdict == "degrees, not kinds"


def test_nothing_held_out_measures_nothing() -> None:
    frame = events(4, n_entities=6, n_events=8)
    method = LatentClassRegression(
        n_classes=2, start="random", rounds=2, settle_rounds=1, average_rounds=1, holdout=0.0
    )
    columns = Columns(features=FEATURES, target="y", agent="agent", entity="entity")
    result = method.run(federation(by_site(frame, [2, 2]), columns=columns), seed=1).result
    assert np.isnan(result.heldout_mse).all()
    assert "No events were held out" in result.summary()
    assert np.isnan(result.pooled_mse).all()

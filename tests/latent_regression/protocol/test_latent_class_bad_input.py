"""Latent class regression on tables, settings and replies that are not as they should be."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience import Columns, Federation, Run
from consilience.engines.local import LocalEngine
from consilience.exceptions import (
    ParameterError,
    ProtocolError,
    QuorumError,
    StudyError,
)
from consilience.latent_regression.protocol import LatentClassRegression
from consilience.latent_regression.protocol import site as at_site
from consilience.protocol.method import Preparation
from consilience.testing.fakes import array_loader, federation_of
from tests.collaborators.protocol.test_meta_clustering_bad_input import (
    altered_field,
    is_one_sentence,
)
from tests.granted import GRANTED
from tests.latent_regression.protocol.latent import (
    BRIEF,
    COLUMNS,
    by_site,
    events,
    federation,
    study,
)
from tests.protocol.recalling import RUN, altered

FEATURES = ("x1", "x2")
TABLE = events(8, n_entities=8, n_events=8)
CANARY = 7351.25951


def said(error: BaseException, *words: str) -> None:
    """One sentence with these words, and with no value of a row."""
    text = str(error)
    assert is_one_sentence(error), text
    for word in words:
        assert word in text, text
    assert "7351" not in text


def run_on(frame: pd.DataFrame, policy: str = "simulation", **changes: Any) -> Run:
    """Two sites of four agents."""
    columns, preparation = changes.pop("columns", COLUMNS), changes.pop("preparation", None)
    more = {} if preparation is None else {"preparation": preparation}
    found = federation(
        by_site(frame, changes.pop("sizes", [4, 4])), policy, columns=columns, **more
    )
    return study(**changes).run(found, seed=1)


def sound(run: Run) -> None:
    """Everything that people read is made of numbers."""
    result = run.result
    for name in ("slopes", "coefficient_errors", "intercepts", "class_sizes", "class_shares"):
        assert np.isfinite(getattr(result, name)).all(), name
    assert result.sigma > 0
    assert np.isfinite(result.sigma)
    assert result.class_shares.sum() == pytest.approx(1.0)
    assert result.summary()
    assert len(result.to_frame())
    for site in result.sites:
        chance = run.site(site).values("class_probability")
        assert ((chance > 0) & (chance <= 1 + 1e-9)).all()


# --------------------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (Columns(features=FEATURES, target="y", agent="agent"), ("target and entity", "[data]")),
        (Columns(features=FEATURES, entity="entity"), ("target and entity", "[data]")),
        (
            Columns(features=FEATURES, target="y", entity="entity", levels={"y": ("low", "high")}),
            ("'y'", "declared levels", "give 0 and 1"),
        ),
    ],
    ids=["no entity", "no target", "levels on the target"],
)
def test_columns_that_do_not_fit(columns: Columns, words: tuple[str, ...]) -> None:
    with pytest.raises(StudyError) as caught:
        run_on(TABLE, columns=columns)
    said(caught.value, *words)


def test_nothing_to_regress_on() -> None:
    bare = Columns(target="y", entity="entity", agent="agent")
    with pytest.raises(StudyError, match="nothing to regress on") as caught:
        run_on(TABLE, columns=bare, fit_intercept=False)
    said(caught.value)
    run = run_on(TABLE, columns=bare)
    sound(run)
    assert run.result.slopes.shape == (run.result.n_classes, 0)


def test_units_of_each_site() -> None:
    with pytest.raises(StudyError, match="one scale") as caught:
        run_on(TABLE, preparation=Preparation(standardize="site"))
    said(caught.value, "[preparation]", "pooled")


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"n_classes": 0}, "n_classes"),
        ({"n_classes": 101}, "n_classes"),
        ({"n_classes": 2.0}, "n_classes"),
        ({"n_classes": True}, "n_classes"),
        ({"n_classes": "many"}, "n_classes"),
        ({"n_start": 1}, "n_start"),
        ({"n_start": 201}, "n_start"),
        ({"n_start": 0, "n_classes": "auto"}, "n_start"),
        ({"start": "warm"}, "start"),
        ({"start": ["local"]}, "start"),
        ({"rounds": -1}, "rounds"),
        ({"rounds": 501}, "rounds"),
        ({"rounds": 2.5}, "rounds"),
        ({"settle_rounds": -1}, "settle_rounds"),
        ({"average_rounds": 0}, "average_rounds"),
        ({"average_rounds": 251}, "average_rounds"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": 1.1}, "learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"learning_rate": "fast"}, "learning_rate"),
        ({"participation": 0.0}, "participation"),
        ({"participation": 2}, "participation"),
        ({"participation": "auto"}, "participation"),
        ({"concentration": "maximal"}, "concentration"),
        ({"noise": 0.0}, "noise"),
        ({"noise": float("inf")}, "noise"),
        ({"noise": "auto"}, "noise"),
        ({"prior_scale": -1.0}, "prior_scale"),
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": "auto"}, "alpha"),
        ({"beta": 0.0}, "beta"),
        ({"beta": None}, "beta"),
        ({"holdout": 0.51}, "holdout"),
        ({"holdout": -0.1}, "holdout"),
        ({"holdout": "a fifth"}, "holdout"),
        ({"level": 1.0}, "level"),
        ({"adapt_rate": 1}, "adapt_rate"),
        ({"server_cache": "yes"}, "server_cache"),
        ({"fit_intercept": None}, "fit_intercept"),
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, dict) else value,
)
def test_settings_that_cannot_be(parameters: dict[str, Any], word: str) -> None:
    with pytest.raises(ParameterError) as caught:
        LatentClassRegression.from_parameters(parameters)
    said(caught.value, word)


# --------------------------------------------------------------------------- tables


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("x1", np.nan, ("x1", "missing")),
        ("x2", np.inf, ("x2", "infinite")),
        ("y", np.nan, ("column y", "missing")),
        ("y", -np.inf, ("column y", "infinite")),
        ("x1", 1e200, ("too large to be squared", "units")),
    ],
    ids=["missing feature", "infinite feature", "no outcome", "infinite outcome", "huge"],
)
def test_cells_that_are_no_numbers(column: str, value: float, words: tuple[str, ...]) -> None:
    frame = TABLE.reset_index(drop=True)
    frame["x1"] += CANARY
    frame.loc[len(frame) - 3, column] = value
    with pytest.raises(QuorumError) as caught:
        run_on(frame)
    said(caught.value, "site-1 refused", *words)


def test_an_entity_under_two_agents_is_two_entities() -> None:
    """Entities are numbered anew within each agent: the names tell nothing across agents."""
    frame = TABLE.copy()
    numbered = frame.groupby("agent")["entity"].transform(lambda names: pd.factorize(names)[0])
    run = run_on(frame.assign(entity="entity " + numbered.astype(str)))
    plain = run_on(frame)
    assert run.result.to_files() == plain.result.to_files()
    told = run.site("site-0").to_frame("classes")
    assert told["entity"].duplicated().any()
    assert not told.duplicated(["agent", "entity"]).any()


def test_one_agent_only_and_a_site_that_is_one() -> None:
    alone = TABLE[TABLE["agent"] == TABLE["agent"].iloc[0]]
    sound(run_on(alone, sizes=[1]))
    unnamed = Columns(features=FEATURES, target="y", entity="entity")
    run = run_on(TABLE, columns=unnamed)
    sound(run)
    assert run.result.n_agents.tolist() == [1.0, 1.0]
    assert set(run.site("site-0").to_frame("classes")["agent"]) == {"site-0"}


@pytest.mark.parametrize("policy", ["simulation", "strict"])
def test_one_site_only(policy: str) -> None:
    run = run_on(TABLE, policy, sizes=[8])
    sound(run)
    assert run.result.sites == ("site-0",)


def test_every_event_is_an_entity() -> None:
    run = run_on(TABLE.assign(entity=np.arange(len(TABLE))))
    sound(run)
    assert run.result.n_entities.sum() == len(TABLE)


@pytest.mark.parametrize("policy", ["simulation", "strict"])
def test_more_columns_than_an_entity_or_a_class_has_events(policy: str) -> None:
    frame = TABLE.copy()
    rng = np.random.default_rng(0)
    names = [f"x{j}" for j in range(1, 60)]
    for name in names[2:]:
        frame[name] = rng.normal(size=len(frame))
    wide = Columns(features=names, target="y", agent="agent", entity="entity")
    if policy == "strict":  # 2 x 61 events are needed to tell of a class
        with pytest.raises(QuorumError, match="class that is large enough") as caught:
            run_on(frame, policy, columns=wide)
        said(caught.value, "fewer classes or columns")
    run = run_on(frame, policy, columns=wide, start="local")
    sound(run)


def test_more_columns_than_events_under_a_strict_policy() -> None:
    frame = TABLE.copy()
    names = [f"x{j}" for j in range(1, 200)]
    more = pd.DataFrame(
        np.random.default_rng(0).normal(size=(len(frame), 197)),
        columns=names[2:],
        index=frame.index,
    )
    wide = Columns(features=names, target="y", agent="agent", entity="entity")
    with pytest.raises(QuorumError, match="no site has enough events") as caught:
        run_on(pd.concat([frame, more], axis=1), "strict", columns=wide)
    said(caught.value, "drop columns")


@pytest.mark.parametrize("policy", ["simulation", "strict"])
def test_collinear_and_constant_columns(policy: str) -> None:
    frame = TABLE.assign(same=TABLE["x1"] + TABLE["x2"], seven=7.0, again=TABLE["x1"])
    columns = Columns(
        features=("x1", "x2", "same", "seven", "again"),
        target="y",
        agent="agent",
        entity="entity",
    )
    run = run_on(frame, policy, columns=columns)
    sound(run)
    assert "The same in all events, as far as sums of squares tell: seven." in run.result.summary()
    assert "follow from one another: x1, x2, same, again." in run.result.summary()
    assert "follow from one another" not in run_on(TABLE, policy).result.summary()
    np.testing.assert_allclose(run.result.slopes[:, 3], 0.0, atol=1e-9)
    # What is told twice is shared: the prior pulls both halves alike.
    together = run.result.slopes[:, [0, 4]]
    np.testing.assert_allclose(together[:, 0], together[:, 1], atol=1e-6)


@pytest.mark.parametrize("factor", [1e8, 1e-8], ids=["huge", "tiny"])
@pytest.mark.parametrize("start", ["random", "local"])
def test_units_do_not_matter(factor: float, start: str) -> None:
    """A power of two leaves every digit as it is; any other changes the last ones."""
    plain = run_on(TABLE, start=start).result
    power = 2.0 ** np.round(np.log2(factor))
    frame = TABLE.assign(x1=TABLE["x1"] * power, y=TABLE["y"] * power)
    moved = run_on(frame, start=start).result
    assert moved.n_classes == plain.n_classes
    np.testing.assert_allclose(moved.class_sizes, plain.class_sizes, rtol=1e-9)
    np.testing.assert_allclose(moved.slopes[:, 0], plain.slopes[:, 0], rtol=1e-9)
    np.testing.assert_allclose(moved.slopes[:, 1], plain.slopes[:, 1] * power, rtol=1e-9)
    np.testing.assert_allclose(moved.intercepts, plain.intercepts * power, rtol=1e-9)
    assert moved.sigma == pytest.approx(plain.sigma * power)


def test_columns_far_from_zero() -> None:
    plain = run_on(TABLE).result
    moved = run_on(TABLE.assign(x1=TABLE["x1"] + 1e4, y=TABLE["y"] - 1e4)).result
    np.testing.assert_allclose(moved.slopes, plain.slopes, rtol=1e-4, atol=1e-4)
    assert moved.sigma == pytest.approx(plain.sigma, rel=1e-3)


@pytest.mark.parametrize("policy", ["simulation", "strict"])
@pytest.mark.parametrize("value", [0.0, 3.25])
@pytest.mark.parametrize("start", ["random", "local"])
def test_all_outcomes_equal(policy: str, value: float, start: str) -> None:
    run = run_on(TABLE.assign(y=value), policy, start=start)
    sound(run)
    assert "y is the same in all events: no regression tells classes apart." in run.result.remarks
    rows = by_site(TABLE, [4, 4])["site-0"]
    found = run.site("site-0").predictor.predict(
        rows[list(FEATURES)], entity=rows["entity"], agent=rows["agent"]
    )
    np.testing.assert_allclose(found, value, atol=0.01)


def test_outcomes_that_are_explained_without_a_rest() -> None:
    run = run_on(TABLE.assign(y=3.0 * TABLE["x1"] - TABLE["x2"]))
    sound(run)
    assert run.result.sigma < 0.05
    best = int(np.argmax(run.result.class_sizes))
    np.testing.assert_allclose(run.result.slopes[best], [3.0, -1.0], atol=0.05)


def test_a_target_of_zeros_and_ones() -> None:
    run = run_on(TABLE.assign(y=(TABLE["y"] > 0).astype(float)), "strict")
    sound(run)


# --------------------------------------------------------------------------- classes


@pytest.mark.parametrize("start", ["random", "local"])
def test_more_classes_than_entities(start: str) -> None:
    few = TABLE[TABLE["agent"].isin(np.unique(TABLE["agent"])[:2])]
    run = run_on(few, sizes=[1, 1], n_classes=30, start=start)
    sound(run)
    assert run.result.n_classes <= few["entity"].nunique()
    assert "of 30 classes hold entities: the data tell no more apart." in run.result.summary()


@pytest.mark.parametrize("policy", ["simulation", "strict"])
@pytest.mark.parametrize("start", ["random", "local"])
def test_one_class(policy: str, start: str) -> None:
    """A regression with known noise: the posterior mean of all events."""
    run = run_on(TABLE, policy, n_classes=1, start=start)
    sound(run)
    result = run.result
    assert result.n_classes == 1
    assert result.class_sizes[0] == pytest.approx(TABLE["entity"].nunique())
    design = np.column_stack([np.ones(len(TABLE)), TABLE[list(FEATURES)]])
    plain = np.linalg.lstsq(design, TABLE["y"].to_numpy(), rcond=None)[0]
    found = np.array([result.intercepts[0], *result.slopes[0]])
    np.testing.assert_allclose(found, plain, atol=0.02)  # the prior pulls by about 1 / 500


@pytest.mark.parametrize("n_start", [2, 3, 12])
def test_classes_at_the_beginning(n_start: int) -> None:
    run = run_on(TABLE, n_start=n_start)
    sound(run)
    assert run.result.trace_classes[0] <= n_start
    assert run.result.n_classes <= 2


def test_classes_that_empty_vanish() -> None:
    """Events of one regression, begun with twelve classes of chance."""
    rng = np.random.default_rng(3)
    frame = TABLE.assign(y=TABLE["x1"] + 0.1 * rng.normal(size=len(TABLE)))
    run = run_on(frame, n_start=12, rounds=8, settle_rounds=6)
    sound(run)
    assert run.result.trace_classes[0] == 12
    assert run.result.class_sizes[0] > 0.9 * TABLE["entity"].nunique()


# --------------------------------------------------------------------------- small sites


def test_sites_too_small_to_tell_anything() -> None:
    few = TABLE[TABLE.groupby("agent").cumcount() < 2]
    with pytest.raises(QuorumError, match="no site has enough events") as caught:
        run_on(few, "strict")
    said(caught.value, "let larger sites take part", "drop columns")


def test_classes_too_small_to_be_sent() -> None:
    """Moments of all events leave, sums of classes by chance do not."""
    few = TABLE[TABLE.groupby("agent").cumcount() < 12]
    with pytest.raises(QuorumError, match="class that is large enough") as caught:
        run_on(few, "strict", n_classes=40)
    said(caught.value, "fewer classes")


def test_a_small_site_among_large_ones() -> None:
    tables = {**by_site(TABLE, [4, 4]), "tiny": events(1, n_entities=2, n_events=3, seed=5)}
    run = study().run(federation(tables, "strict"), seed=1)
    sound(run)
    result = run.result
    assert np.isnan(result.n_events[2])
    assert np.isnan(result.n_entities[2])
    for words in ("Too few events to tell the moments of all columns at tiny", "No class of tiny"):
        assert any(words in remark for remark in result.remarks)
    # It has its labels all the same.
    assert len(run.site("tiny").values("class")) == len(tables["tiny"])


# --------------------------------------------------------------------------- weights


def weighted_arrays(weight: np.ndarray, rows: np.ndarray) -> Federation:
    """One site of arrays; `rows` are taken from the table."""
    frame = TABLE.iloc[rows]
    roles = {
        "target": frame["y"].to_numpy(),
        "agent": frame["agent"].to_numpy().astype(str),
        "entity": frame["entity"].to_numpy().astype(str),
        "weight": weight,
    }
    from consilience.sites.policy import Policy

    found = federation_of(
        {"site-0": frame[list(FEATURES)].to_numpy()},
        names=FEATURES,
        roles={"site-0": roles},
        policy=Policy(preset="simulation"),
    )
    columns = Columns(features=FEATURES, target="y", agent="agent", entity="entity", weight="w")
    return Federation(found.engine, columns, found.preparation)


@pytest.mark.parametrize("start", ["random", "local"])
def test_whole_weights_are_repeated_rows(start: str) -> None:
    rng = np.random.default_rng(2)
    times = rng.integers(1, 4, size=len(TABLE))
    weighted = study(start=start).run(
        weighted_arrays(times.astype(float), np.arange(len(TABLE))), seed=1
    )
    rows = np.repeat(np.arange(len(TABLE)), times)
    repeated = study(start=start).run(weighted_arrays(np.ones(len(rows)), rows), seed=1)
    for name in (
        "mean",
        "covariance",
        "class_sizes",
        "class_events",
        "sigma",
        "trace_log_marginal",
    ):
        a, b = getattr(weighted.result, name), getattr(repeated.result, name)
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10, err_msg=name)
    assert weighted.result.n_events[0] == pytest.approx(times.sum())


def test_rows_of_weight_zero_are_not_there() -> None:
    """Those of an entity that has others; what is left of the table is in the same order."""
    first = TABLE.groupby(["agent", "entity"]).cumcount().to_numpy() == 0
    some = np.random.default_rng(2).random(len(TABLE)) < 0.3
    weight = np.where(some & ~first, 0.0, 1.0)
    kept = np.flatnonzero(weight > 0)
    whole = study().run(weighted_arrays(weight, np.arange(len(TABLE))), seed=1).result
    part = study().run(weighted_arrays(np.ones(len(kept)), kept), seed=1).result
    np.testing.assert_allclose(whole.mean, part.mean, rtol=1e-9)
    assert whole.n_events[0] == len(kept)


def test_rows_of_weight_zero_stand_behind_nothing() -> None:
    """Of 20 rows of a strict site only 5 weigh: too few to tell of."""
    from consilience.sites.site import Site

    frame = TABLE.iloc[:20]
    weight = np.zeros(20)
    weight[::4] = 1.0
    loader = array_loader(
        frame[list(FEATURES)].to_numpy(),
        FEATURES,
        target=frame["y"].to_numpy(),
        entity=frame["entity"].to_numpy().astype(str),
        weight=weight,
    )
    columns = Columns(features=FEATURES, target="y", entity="entity", weight="w")
    found = Federation(
        LocalEngine([Site("site-0", loader, policy=GRANTED)]), columns, Preparation()
    )
    with pytest.raises(QuorumError, match="no site has enough events"):
        study().run(found, seed=1)


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan])
def test_weights_that_cannot_be(weight: float) -> None:
    columns = Columns(features=FEATURES, target="y", agent="agent", entity="entity", weight="w")
    with pytest.raises(QuorumError, match="w") as caught:
        run_on(TABLE.assign(w=weight), columns=columns)
    said(caught.value, "site-0, site-1 refused", "column w")


def test_no_intercept() -> None:
    frame = TABLE.assign(y=2.0 * TABLE["x1"] + 0.1 * TABLE["y"])
    run = run_on(frame, fit_intercept=False)
    sound(run)
    assert (run.result.intercepts == 0).all()
    assert "(intercept)" not in set(run.result.to_frame()["term"])


# --------------------------------------------------------------------------- odd replies


def answering(step: str, **changes: Any) -> Run:
    """One site alters its replies to a step after its gate."""
    tables = by_site(TABLE, [4, 4])
    made = altered(federation(tables), tables, "site-1", step, altered_field(**changes))
    return study().run(made, seed=1, run_id=RUN)


def cell_of(value: float, place: int) -> Callable[[Any], np.ndarray]:
    def change(sums: Any) -> np.ndarray:
        found = np.array(sums)
        found[:, place] = value
        return found

    return change


ODD: dict[str, tuple[str, dict[str, Any]]] = {
    "moments of other columns": ("offer", {"sums": lambda v: np.ones((4, 7))}),
    "moments of fewer classes": ("offer", {"sums": lambda v: np.array(v)[:2]}),
    "negative moments": ("offer", {"sums": lambda v: -np.array(v)}),
    "moments of no events": ("offer", {"sums": lambda v: 0 * np.array(v)}),
    "negative squares at first": ("begin", {"sums": lambda v: -np.array(v)}),
    "narrower sums": ("round", {"sums": lambda v: np.array(v)[:, :-1]}),
    "negative squares": ("round", {"sums": lambda v: -np.array(v)}),
    "no sums of squares": ("round", {"sums": cell_of(1e9, 1)}),
    "more events than there are": ("round", {"sums": cell_of(1e6, 0)}),
    "more entities than there are": ("round", {"sums": cell_of(1e6, -2)}),
    "a status that is none": ("round", {"status": lambda v: np.array(v) + 7}),
    "fewer classes": (
        "round",
        {"sums": lambda v: np.array(v)[:2], "status": lambda v: np.array(v)[:2]},
    ),
}


@pytest.mark.parametrize("odd", [odd for odd, (step, _) in ODD.items() if step != "round"])
def test_odd_replies_at_the_beginning_stop_the_run_and_name_the_site(odd: str) -> None:
    step, changes = ODD[odd]
    with pytest.raises(QuorumError) as caught:
        answering(step, **changes)
    said(caught.value, "site-1", "not accepted")


@pytest.mark.parametrize("odd", [odd for odd, (step, _) in ODD.items() if step == "round"])
def test_odd_replies_in_a_round_are_as_none(odd: str) -> None:
    step, changes = ODD[odd]
    run = answering(step, **changes)
    sound(run)
    assert any("site-1 was absent" in note and "not accepted" in note for note in run.notes)
    assert not run.result.reported[1:, 1].any()


@pytest.mark.parametrize(
    "changes",
    [
        {"sums": lambda v: np.array(v)[:2]},
        {"status": lambda v: np.array(v)[:2]},
        {"sums": cell_of(np.inf, 0)},
    ],
    ids=["fewer sums", "fewer words", "infinite sums"],
)
def test_replies_that_cannot_be_read_are_as_none(changes: dict[str, Any]) -> None:
    run = answering("round", **changes)
    sound(run)
    assert any("site-1" in note for note in run.notes)
    assert not run.result.reported[1:, 1].any()


@pytest.mark.parametrize(
    ("step", "changes"),
    [
        ("round", {"moved": float("nan")}),
        ("round", {"moved": 1e9}),
        ("round", {"moved": -1e9}),
        ("conclude", {"figures": lambda v: np.full(np.shape(v), np.nan)}),
    ],
    ids=["no moves", "all moves", "negative moves", "no figures"],
)
def test_odd_figures_do_no_harm(step: str, changes: dict[str, Any]) -> None:
    run = answering(step, **changes)
    sound(run)


def test_brief_runs_are_of_the_length_they_say() -> None:
    run = run_on(TABLE)
    assert run.result.rounds_run == sum(BRIEF.values())
    assert run.result.merged_at == BRIEF["rounds"]


@pytest.mark.parametrize("mapping", [[0, 1], [0, 1, 2, 0], [0, 1, -2], [0, 1, 3]])
def test_cells_that_become_classes_that_do_not_exist(mapping: list[int]) -> None:
    """The last question of a coordinator that errs or lies is checked as those of the rounds."""

    def held(value: Any) -> Any:
        return SimpleNamespace(value=value)

    message: Any = SimpleNamespace(
        mean=held(np.zeros((3, 2))),
        covariance=held(np.broadcast_to(np.eye(2), (3, 2, 2))),
        sigma2=held(1.0),
        delta2=held(1.0),
        mapping=np.array([0, 1, 2]),
    )
    assert at_site._classes(message, 2, 3).n_classes == 3
    message.mapping = np.array(mapping)
    with pytest.raises(ProtocolError, match="classes that do not exist"):
        at_site._classes(message, 2, 3)

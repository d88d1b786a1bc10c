"""Reference averaging on tables, learners, rows and messages that are not as they should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import (
    Lasso,
    LassoCV,
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    Ridge,
    RidgeCV,
    SGDRegressor,
)
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC
from sklearn.tree import DecisionTreeClassifier

from consilience import Columns, Federation, Policy, Run
from consilience.averaging.protocol import ReferenceAveraging
from consilience.exceptions import (
    ConsilienceError,
    ParameterError,
    ProtocolError,
    QuorumError,
    StudyError,
)
from consilience.protocol.method import Preparation
from consilience.testing.fakes import scripted
from consilience.wire.envelope import Request
from tests.averaging.protocol.test_reference_averaging import (
    BARE,
    Tables,
    classes,
    draw,
    federation_over,
    spread_rows,
    study,
)
from tests.collaborators.protocol.test_meta_clustering_bad_input import (
    altered_field,
    archive,
    is_one_sentence,
)
from tests.protocol.recalling import RUN, Change, altered
from tests.rotation import by_turns

CANARY = 7351.25951


def said(error: BaseException, *words: str) -> None:
    """One sentence with these words, and with no value of a row."""
    text = str(error)
    assert is_one_sentence(error), text
    for word in words:
        assert word in text, text
    assert "7351" not in text


def steps_of(run_or_engine: Any) -> set[str]:
    return {Request.from_bytes(data).step for data in run_or_engine.requests.values()}


# --------------------------------------------------------------------------- what is asked for


def test_no_target_and_no_features() -> None:
    tables = draw([50, 50])
    bare = Federation.local(tables, columns=Columns(features=("x0", "x1")))
    with pytest.raises(StudyError, match="needs a response") as caught:
        ReferenceAveraging(estimator="ridge").run(bare)
    said(caught.value, "target")
    with pytest.raises(ConsilienceError, match="feature") as caught:
        none = Federation.local(tables, columns=Columns(features=(), target="y"))
        ReferenceAveraging(estimator="ridge").run(none)
    said(caught.value)


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"estimator": "quadratic"}, "estimator"),
        ({"estimator": None}, "estimator"),
        ({"estimator": 3}, "estimator"),
        ({"estimator": Ridge}, "estimator"),
        ({"estimator": ()}, "estimator"),
        ({"estimator": "ridge(__import__('os'))"}, "settings"),
        ({"estimator": "ridge(alpha=__import__('os').getcwd())"}, "settings"),
        ({"estimator": "ridge(alpha=1.0)(alpha=2.0)"}, "settings"),
        ({"estimator": "ridge(alpha=1.0"}, "settings"),
        ({"estimator": "ridge(**{'alpha': 1.0})"}, "settings"),
        ({"estimator": "ridge(1.0)"}, "settings"),
        ({"estimator": "ridge() or lasso()"}, "settings"),
        ({"estimator": "ridge(beta=1.0)"}, "settings of scikit-learn's Ridge"),
        ({"estimator": "ridge(alpha=" + "[" * 5000 + "]" * 5000 + ")"}, "settings"),
        ({"estimator": "ridge(alpha=lambda: 1)"}, "settings"),
        ({"estimator": "object:Ridge:AAAA"}, "cannot be read"),
        ({"estimator": "object:Ridge"}, "cannot be read"),
        ({"penalties": (1.0, 1.0)}, "penalties"),
        ({"penalties": (-1.0,)}, "penalties"),
        ({"penalties": ("a",)}, "penalties"),
        ({"penalties": (float("nan"), 1.0)}, "penalties"),
        ({"penalties": (float("inf"),)}, "penalties"),
        ({"penalties": tuple(range(51))}, "0 to 50 different values"),
        ({"penalties": (0.1, 1.0), "holdout": 0.0}, "held out"),
        ({"penalties": (0.1, 1.0), "guard": False}, "held out"),
        ({"reference": "rows"}, "reference"),
        ({"reference": "/etc/passwd"}, "reference"),
        ({"reference": []}, "reference"),
        ({"reference": [1.0, 2.0]}, "reference"),
        ({"reference": [[1.0], [1.0, 2.0]]}, "reference"),
        ({"reference": [["a", "b"]]}, "reference"),
        ({"reference": [[np.inf, 1.0]]}, "reference"),
        ({"reference": np.ones((2, 2, 2))}, "reference"),
        ({"reference": None}, "reference"),
        ({"n_reference": 1}, "n_reference"),
        ({"n_reference": 2.5}, "n_reference"),
        ({"n_reference": "many"}, "n_reference"),
        ({"n_reference": True}, "n_reference"),
        ({"schedule": "random"}, "schedule"),
        ({"schedule": ["fixed"]}, "schedule"),
        ({"rho": 0.0}, "rho"),
        ({"rho": -1.0}, "rho"),
        ({"rho": float("inf")}, "rho"),
        ({"rho": "auto"}, "rho"),
        ({"rho": None}, "rho"),
        ({"exponent": 1.0}, "exponent"),
        ({"exponent": -0.1}, "exponent"),
        ({"exponent": float("nan")}, "exponent"),
        ({"max_rounds": -1}, "max_rounds"),
        ({"max_rounds": 1001}, "max_rounds"),
        ({"max_rounds": 2.0}, "max_rounds"),
        ({"max_rounds": True}, "max_rounds"),
        ({"patience": 0}, "patience"),
        ({"patience": None}, "patience"),
        ({"holdout": 0.6}, "holdout"),
        ({"holdout": -0.1}, "holdout"),
        ({"holdout": "a fifth"}, "holdout"),
        ({"convention": "average"}, "convention"),
        ({"convention": None}, "convention"),
        ({"guard": 1}, "guard"),
        ({"guard": "yes"}, "guard"),
        ({"loss": "hinge"}, "loss"),
        ({"loss": None}, "loss"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_parameters_out_of_range(parameters: dict[str, Any], word: str) -> None:
    with pytest.raises(ParameterError) as caught:
        ReferenceAveraging(**{"estimator": "ridge", **parameters}).validate()
    text = str(caught.value)
    assert word in text, text
    assert "candidate" not in text, text
    assert "\n" not in text and 20 < len(text) < 1500


class Homemade(Ridge):
    """Nobody knows how it weighs."""


REFUSED_LEARNERS: dict[str, tuple[Any, tuple[str, ...], tuple[str, ...]]] = {
    "RidgeCV": (RidgeCV(), (), ("RidgeCV", "penalties=")),
    "LassoCV": (LassoCV(), (), ("LassoCV", "penalties=")),
    "LogisticRegressionCV": (LogisticRegressionCV(), ("a", "b"), ("penalties=",)),
    "RidgeCV in a pipeline": (make_pipeline(StandardScaler(), RidgeCV()), (), ("penalties=",)),
    "labels of LinearSVC": (LinearSVC(), ("a", "b"), ("LinearSVC", "probabilities")),
    "labels of SVC": (SVC(), ("a", "b"), ("SVC", "probabilities")),
    "classifier": (LogisticRegression(), (), ("not for regression",)),
    "classifier by name": ("logistic", (), ("not for regression",)),
    "regressor": (Ridge(), ("a", "b"), ("not for classification",)),
    "early stopping": (SGDRegressor(early_stopping=True), (), ("early_stopping=False",)),
    "class weights": (
        LogisticRegression(class_weight="balanced"),
        ("a", "b"),
        ("class_weight", "weights"),
    ),
}


@pytest.mark.parametrize("policy", ["strict", "simulation"])
@pytest.mark.parametrize("name", REFUSED_LEARNERS)
def test_learners_that_cannot_be_averaged(name: str, policy: str) -> None:
    learner, levels, words = REFUSED_LEARNERS[name]
    tables = classes([60, 60]) if levels else draw([60, 60])
    with pytest.raises(ConsilienceError) as caught:
        study(tables, policy, estimator=learner, levels=levels)
    said(caught.value, *words)


@pytest.mark.parametrize(
    "learner",
    [
        KNeighborsRegressor(20),
        SVR(kernel="rbf"),
        KernelRidge(kernel="rbf"),
        GaussianProcessRegressor(),
        make_pipeline(StandardScaler(), KNeighborsRegressor(20)),
    ],
    ids=["neighbours", "svr", "kernel ridge", "gaussian process", "neighbours in a pipeline"],
)
def test_learners_that_carry_rows_do_not_leave_a_strict_site(learner: Any) -> None:
    tables = draw([80, 90])
    with pytest.raises(ConsilienceError) as caught:
        study(tables, "strict", estimator=learner, convention="sum", max_rounds=2)
    said(caught.value, "training rows")


def test_learners_that_carry_rows_where_one_person_holds_all() -> None:
    tables = draw([60, 70])
    run = study(tables, estimator=KNeighborsRegressor(5), max_rounds=2)
    assert np.isfinite(run.result.to_estimator().predict(spread_rows(5, 3))).all()


def test_a_tree_that_returns_labels() -> None:
    """Leaves of one row: every probability is 0 or 1."""
    tables = classes([80, 90])
    with pytest.raises(ConsilienceError, match="its leaves or neighbourhoods more rows") as caught:
        study(tables, estimator=DecisionTreeClassifier(), levels="ab", max_rounds=2)
    said(caught.value)


def test_neighbours_that_return_labels() -> None:
    with pytest.raises(ConsilienceError, match="its leaves or neighbourhoods more rows") as caught:
        study(classes([80, 90]), estimator=KNeighborsClassifier(1), levels="ab", max_rounds=2)
    said(caught.value)


def test_a_learner_that_is_not_known() -> None:
    with pytest.raises(ConsilienceError) as caught:
        study(draw([50, 50]), estimator=Homemade())
    said(caught.value)


def test_a_known_learner_whose_weights_are_not_known() -> None:
    """What the sentence offers is what the parameter takes."""
    from sklearn.linear_model import TheilSenRegressor

    with pytest.raises(ParameterError) as caught:
        study(draw([50, 50]), estimator=TheilSenRegressor())
    said(caught.value, "convention", "TheilSenRegressor")
    offered = [w for w in ("sum", "normalised", "rows", "trees") if f"'{w}'" in str(caught.value)]
    for name in offered:
        ReferenceAveraging(estimator="ridge", convention=name).validate()


def test_a_grid_for_a_learner_without_a_penalty() -> None:
    with pytest.raises(ConsilienceError) as caught:
        study(draw([50, 50]), estimator="linear", penalties=(0.1, 1.0))
    said(caught.value, "penalt")


def test_loss_and_response_do_not_fit() -> None:
    with pytest.raises(ParameterError, match="loss"):
        study(draw([50, 50]), loss="log")
    with pytest.raises(ParameterError, match="loss"):
        study(classes([50, 50]), estimator="logistic", levels="ab", loss="squared")


def test_scales_by_site() -> None:
    with pytest.raises(StudyError) as caught:
        study(draw([50, 50]), preparation=Preparation(standardize="site"))
    said(caught.value, "standardize", "pooled")


# --------------------------------------------------------------------------- reference rows


def test_reference_rows_of_the_wrong_width() -> None:
    federation = scripted(federation_over(draw([50, 50])))
    with pytest.raises(StudyError) as caught:
        ReferenceAveraging(estimator="ridge", reference=np.ones((9, 4))).run(federation, seed=1)
    said(caught.value, "4 columns", "has 3")
    assert not {"fit", "offer"} & steps_of(federation.engine)


def test_reference_rows_with_missing_cells() -> None:
    rows = spread_rows(9, 3)
    rows[2, 1] = np.nan
    federation = scripted(federation_over(draw([50, 50])))
    with pytest.raises(StudyError) as caught:
        ReferenceAveraging(estimator="ridge", reference=rows).run(federation, seed=1)
    said(caught.value, "missing cells")
    assert not {"fit", "offer"} & steps_of(federation.engine)


@pytest.mark.parametrize(
    ("rows", "rank", "word"),
    [
        (spread_rows(2, 3), 2, "fewer rows than columns"),
        (np.column_stack([spread_rows(30, 2), np.zeros(30)]), 2, "constant, or combinations"),
        (spread_rows(30, 3) @ np.diag([1.0, 1.0, 0.0]) @ np.ones((3, 3)), 1, "combinations"),
    ],
    ids=["few", "zero column", "one direction"],
)
def test_reference_rows_of_low_rank(rows: Any, rank: int, word: str) -> None:
    run = study(draw([50, 60]), reference=rows, max_rounds=2)
    result = run.result
    assert (result.reference_rank, result.reference_needed_rank) == (rank, 3)
    text = result.summary()
    assert word in text and "do not tend to the fit of all rows" in text and "moments" in text
    assert any(word in note for note in run.notes)


def test_too_few_rows_are_drawn() -> None:
    run = study(draw([50, 60]), n_reference=2, max_rounds=2)
    assert run.result.reference_rank == 2
    assert "needs at least 3 rows" in run.result.summary() or "need 3" in run.result.summary()


def test_nearly_dependent_reference_rows_are_said() -> None:
    rows = spread_rows(30, 3)
    rows[:, 2] = rows[:, 0] + 1e-6 * rows[:, 2]
    result = study(draw([50, 60]), reference=rows, max_rounds=1).result
    assert "nearly dependent" in result.summary()


@pytest.mark.parametrize("scales", ["none", "pooled"])
@pytest.mark.parametrize("changed", ["copied", "shuffled", "among others", "single precision"])
def test_private_rows_stop_the_run_before_one_travels(changed: str, scales: Any) -> None:
    tables = draw([60, 70, 80])
    rows = tables["s1"].drop(columns="y").to_numpy()[:30].copy()
    if changed == "shuffled":
        rows = rows[::-1].copy()
    elif changed == "among others":
        rows = np.vstack([spread_rows(200, 3), rows])
    elif changed == "single precision":
        rows = rows.astype(np.float32).astype(float)
    tables["s0"].loc[0, "x0"] = CANARY
    preparation = Preparation(standardize=scales)
    federation = scripted(federation_over(tables, "strict", preparation=preparation))
    with pytest.raises(StudyError) as caught:
        ReferenceAveraging(estimator="ridge", reference=rows).run(federation, seed=1)
    said(caught.value, "s1", "public rows")
    assert "s0" not in str(caught.value) and "s2" not in str(caught.value)
    assert "fit" not in steps_of(federation.engine)
    wanted = [row.astype("<f8").tobytes() for row in rows[-30:]]
    sent = b"".join(federation.engine.requests.values())  # type: ignore[attr-defined]
    assert not any(raw in sent for raw in wanted)


def test_a_few_equal_rows_are_no_accusation() -> None:
    tables = draw([60, 70])
    rows = np.vstack([spread_rows(100, 3), tables["s1"].drop(columns="y").to_numpy()[:9]])
    assert study(tables, "strict", reference=rows, max_rounds=1).result.owners == ("s0", "s1")


# --------------------------------------------------------------------------- tables


@by_turns(
    ["ridge", "lasso(alpha=0.1)", "random-forest(n_estimators=3)"],
    ["simulation", "strict"],
    [0.0, 3.25, -1e9],
    names=("learner", "policy", "value"),
)
def test_a_constant_response(learner: str, policy: str, value: float) -> None:
    tables = {s: t.assign(y=value) for s, t in draw([60, 70]).items()}
    result = study(tables, policy, estimator=learner, max_rounds=2).result
    found = result.to_estimator().predict(spread_rows(9, 3))
    np.testing.assert_allclose(found, value, rtol=1e-6, atol=1e-9)
    assert not result.kept and result.summary()


@pytest.mark.parametrize("policy", ["simulation", "strict"])
def test_a_response_that_is_constant_at_one_site(policy: str) -> None:
    tables = draw([60, 70, 80])
    tables["s1"]["y"] = 3.25
    result = study(tables, policy, estimator="ridge", max_rounds=2).result
    assert result.owners == ("s0", "s1", "s2")


@pytest.mark.parametrize("policy", ["simulation", "strict"])
@pytest.mark.parametrize("learner", ["ridge", "linear", "lasso(alpha=0.05)"])
def test_constant_and_duplicate_columns(policy: str, learner: str) -> None:
    tables = draw([80, 90, 100])
    for i, table in enumerate(tables.values()):
        table.insert(0, "same", 7.1)
        table.insert(1, "twice", table["x0"])
        table.insert(2, "by_site", float(i))
    result = study(tables, policy, estimator=learner, max_rounds=4).result
    assert result.owners == ("s0", "s1", "s2")
    x = np.vstack([t.drop(columns="y").to_numpy() for t in tables.values()])
    y = np.concatenate([t["y"] for t in tables.values()])
    found = result.to_estimator().predict(x)
    assert np.mean((y - found) ** 2) < 2.5, "the noise has a variance of 1"


def test_a_site_with_three_rows() -> None:
    tables = draw([60, 70, 3])
    result = study(tables, estimator="ridge", max_rounds=2).result
    assert result.owners == ("s0", "s1", "s2")
    with pytest.raises(QuorumError) as caught:
        study(tables, "strict", estimator="ridge", max_rounds=2)
    said(caught.value, "s2")
    strict = study(tables, "strict", estimator="ridge", max_rounds=2, quorum=2).result
    assert strict.sites == ("s0", "s1")
    assert strict.sizes.tolist() == [60, 70]


@pytest.mark.parametrize("learner", ["ridge", "lasso(alpha=0.2)", "linear"])
def test_fewer_rows_than_columns(learner: str) -> None:
    tables = draw([20, 25, 30], p=40)
    result = study(tables, estimator=learner, max_rounds=3, reference=spread_rows(60, 40)).result
    assert np.isfinite(result.slopes).all()
    for policy in ("simulation", "strict"):
        with pytest.raises(StudyError, match="give public rows as the reference"):
            study(tables, policy, estimator=learner, max_rounds=3)
    with pytest.raises(ConsilienceError) as caught:
        study(tables, "strict", estimator=learner, max_rounds=3, reference=spread_rows(60, 40))
    said(caught.value)


def test_everybody_is_too_small_to_hold_out() -> None:
    """Thirty rows are enough for a fit of three slopes, six of them judge nothing."""
    tables = draw([30, 34])
    result = study(tables, "strict", estimator="ridge", max_rounds=3).result
    assert result.reason == "not-measured"
    assert result.held.tolist() == [0, 0]
    assert np.isnan(result.local_losses).all()
    assert "no rows were held out" in result.summary()
    with pytest.raises(QuorumError) as caught:
        study(tables, "strict", estimator="ridge", penalties=(0.1, 1.0), max_rounds=3)
    said(caught.value, "penalties", "one penalty")


def test_one_site_only() -> None:
    for policy in ("simulation", "strict"):
        result = study(draw([90]), policy, estimator="ridge", max_rounds=3).result
        assert (result.kept, result.reason) == (False, "no-gain")
        goal = Ridge().fit(*_xy(draw([90])))
        np.testing.assert_allclose(result.slopes[0], goal.coef_, rtol=1e-9)


def _xy(tables: Tables) -> tuple[Any, Any]:
    table = pd.concat(tables.values())
    return table.drop(columns="y").to_numpy(), table["y"].to_numpy()


@pytest.mark.parametrize("policy", ["simulation", "strict"])
@pytest.mark.parametrize("scales", ["none", "pooled"])
def test_columns_of_huge_scale(policy: str, scales: Any) -> None:
    """A column of 1e12 beside one of 1e-6: the fit of all rows is still come close to."""
    tables = draw([80, 90, 100], shift=0.3)
    units = np.array([1e12, 1.0, 1e-6])
    huge = {
        s: t.assign(**{f"x{j}": t[f"x{j}"] * units[j] for j in range(3)}) for s, t in tables.items()
    }
    preparation = Preparation(standardize=scales)
    result = study(huge, policy, estimator="linear", preparation=preparation, max_rounds=10).result
    x, y = _xy(huge)
    found = result.to_estimator().predict(x)
    # Least squares itself gives up the smallest column beside the largest one.
    best = np.mean((y - LinearRegression().fit(x, y).predict(x)) ** 2) if scales == "none" else 1.0
    assert np.mean((y - found) ** 2) < 1.2 * best
    assert np.isfinite(result.rhos).all()


@pytest.mark.parametrize("policy", ["simulation", "strict"])
def test_one_giant_row(policy: str) -> None:
    tables = draw([80, 90, 100])
    tables["s1"].loc[3, "y"] = 1e12
    tables["s2"].loc[4, "x0"] = 1e9
    try:
        result = study(tables, policy, estimator="ridge", max_rounds=3).result
        assert result.summary() and np.isfinite(result.slopes).all()
    except ConsilienceError as error:
        said(error)


def test_overflow_is_no_crash() -> None:
    tables = {s: t * 1e200 for s, t in draw([60, 70]).items()}
    try:
        assert study(tables, estimator="ridge", max_rounds=2).result.summary()
    except ConsilienceError as error:
        said(error)


def test_predictions_that_are_not_finite() -> None:
    """A network that diverges: the site says so, and no row."""
    tables = draw([60, 70])
    tables["s0"].loc[1, "x0"] = CANARY
    wild = MLPRegressor(hidden_layer_sizes=(3,), solver="sgd", learning_rate_init=1e9, max_iter=50)
    with pytest.raises(
        ConsilienceError, match="values that are not finite: check its settings"
    ) as caught:
        study(tables, estimator=wild, max_rounds=2)
    said(caught.value, "s0")


def test_missing_and_foreign_values() -> None:
    tables = draw([60, 70, 80])
    tables["s1"].loc[3, "y"] = np.nan
    with pytest.raises(QuorumError, match=r"s1 refused: column y") as caught:
        study(tables)
    said(caught.value)
    assert study(tables, quorum=2, max_rounds=1).result.sites == ("s0", "s2")
    tables = classes([60, 70])
    tables["s1"].loc[3, "y"] = "zebra"
    with pytest.raises(ConsilienceError, match="levels") as caught:
        study(tables, estimator="logistic", levels="ab")
    said(caught.value)
    assert "zebra" not in str(caught.value)


def test_texts_in_the_response() -> None:
    tables = draw([60, 70, 80])
    tables["s1"]["y"] = tables["s1"]["y"].astype(str)
    tables["s1"].loc[7, "y"] = "CANARY-1234"
    with pytest.raises(QuorumError, match="s1 refused") as caught:
        study(tables)
    assert "CANARY" not in str(caught.value)


def test_counts_for_a_learner_of_positive_responses() -> None:
    """Poisson regression of negative values: the site's error names no value."""
    tables = draw([60, 70])
    tables["s0"].loc[3, "y"] = -CANARY
    with pytest.raises(ConsilienceError) as caught:
        study(tables, estimator="poisson", max_rounds=2)
    said(caught.value, "s0")


def test_a_learner_that_fails_at_the_sites() -> None:
    tables = draw([60, 70])
    tables["s0"].loc[3, "x0"] = CANARY
    with pytest.raises(ConsilienceError) as caught:
        study(tables, estimator=Lasso(max_iter=-5), max_rounds=1)
    said(caught.value)


def test_a_policy_that_lets_nothing_out() -> None:
    with pytest.raises(ConsilienceError) as caught:
        study(draw([60, 60]), Policy(min_records=70), max_rounds=1)
    said(caught.value)


# --------------------------------------------------------------------------- hostile replies


def with_altered(
    tables: Tables,
    name: str,
    step: str,
    change: Change,
    *,
    levels: Any = (),
    quorum: int | None = None,
    policy: str = "strict",
    **settings: Any,
) -> Run:
    federation = altered(
        federation_over(tables, policy, levels=levels), tables, name, step, change, quorum=quorum
    )
    given = {"estimator": "ridge", "max_rounds": 2, **settings}
    return ReferenceAveraging(**given).run(federation, seed=0, run_id=RUN)


def fits(change: Callable[[Any], Any]) -> Change:
    """Every fit of a reply, changed."""
    return lambda f: {**f, "fits": tuple(change(dict(fit)) for fit in f["fits"])}


WRONG_FITS: dict[str, Change] = {
    "no fits": altered_field(fits=()),
    "one too few": altered_field(fits=lambda v: v[:-1]),
    "one too many": altered_field(fits=lambda v: (*v, v[0])),
    "a number": altered_field(fits=3.0),
    "a text": altered_field(fits="fits"),
    "texts": altered_field(fits=("a", "b")),
    "an array": altered_field(fits=np.ones((2, 60, 1))),
    "nothing in them": fits(lambda fit: {}),
    "other rows": fits(lambda fit: {**fit, "at": np.ones((7, 1))}),
    "other outputs": fits(lambda fit: {**fit, "at": np.ones((60, 2))}),
    "one dimension": fits(lambda fit: {**fit, "at": np.ones(60)}),
    "NaN": fits(lambda fit: {**fit, "at": np.full((60, 1), np.nan)}),
    "infinite": fits(lambda fit: {**fit, "at": np.full((60, 1), np.inf)}),
    "text for numbers": fits(lambda fit: {**fit, "at": "many"}),
    "tuple for numbers": fits(lambda fit: {**fit, "at": (1.0, "a")}),
}


@pytest.mark.parametrize("schedule", ["adaptive", "asynchronous"])
@pytest.mark.parametrize("name", WRONG_FITS)
def test_wrong_fits_name_their_site(name: str, schedule: str) -> None:
    with pytest.raises((ProtocolError, QuorumError)) as caught:
        with_altered(draw([80, 90, 100]), "s1", "fit", WRONG_FITS[name], schedule=schedule)
    said(caught.value, "s1")
    assert "s0" not in str(caught.value)


WRONG_MODELS: dict[str, Any] = {
    "nothing": None,
    "text": "a model",
    "no form": {"coef": np.ones(3)},
    "other columns": {
        "form": "linear",
        "coef": np.ones((1, 4)),
        "intercept": np.zeros(1),
        "link": "identity",
    },
    "NaN": {
        "form": "linear",
        "coef": np.full((1, 3), np.nan),
        "intercept": np.zeros(1),
        "link": "identity",
    },
    "no archive": archive({"schema.json": b"{}"}, 3),
    "array": np.ones(3),
}


@pytest.mark.parametrize("name", WRONG_MODELS)
def test_models_that_cannot_be_judged(name: str) -> None:
    """Of a site that is asked for models to be judged: the run ends with a sentence."""
    change = fits(lambda fit: {**fit, "model": WRONG_MODELS[name]} if "model" in fit else fit)
    with pytest.raises(ConsilienceError) as caught:
        with_altered(draw([80, 90, 100]), "s1", "fit", change)
    said(caught.value)


def test_no_models_to_be_judged() -> None:
    def change(fit: dict[str, Any]) -> dict[str, Any]:
        return {"at": fit["at"]}

    with pytest.raises(ConsilienceError) as caught:
        with_altered(draw([80, 90, 100]), "s1", "fit", fits(change))
    said(caught.value, "s1")


@pytest.mark.parametrize("name", WRONG_MODELS)
def test_models_that_cannot_be_used(name: str) -> None:
    change = altered_field(model=WRONG_MODELS[name])
    with pytest.raises(ConsilienceError) as caught:
        with_altered(draw([80, 90, 100]), "s1", "conclude", change)
    said(caught.value)


WRONG_ACCEPTED: dict[str, dict[str, Any]] = {
    "no rows": {"n": 0},
    "negative rows": {"n": -5},
    "more held than there are": {"held": 500},
    "negative held": {"held": -1},
    "no weight": {"weight": np.zeros(2)},
    "NaN weight": {"weight": np.full(2, np.nan)},
    "infinite weight": {"weight": np.full(2, np.inf)},
    "negative weight": {"weight": -np.ones(2)},
    "more weight without held rows": {"weight": np.array([1.0, 2.0])},
    "weights of others": {"weight": np.ones(3)},
    "no weights": {"weight": np.zeros(0)},
    "rows as a text": {"n": "many"},
    "squares of others": {"square": np.ones(2)},
    "negative square": {"square": np.array([-1.0])},
    "infinite square": {"square": np.array([np.inf])},
    "own rows as a text": {"own_rows": "yes"},
}


@pytest.mark.parametrize("name", WRONG_ACCEPTED)
def test_offers_that_cannot_be(name: str) -> None:
    change = altered_field(**WRONG_ACCEPTED[name])
    with pytest.raises((ProtocolError, QuorumError)) as caught:
        with_altered(draw([80, 90, 100]), "s1", "offer", change)
    said(caught.value, "s1")


WRONG_LOSSES: dict[str, Change] = {
    "other tracks": altered_field(losses=np.zeros((3, 2)), errors=np.zeros((3, 2))),
    "other losses": altered_field(losses=np.zeros((1, 3)), errors=np.zeros((1, 3))),
    "errors of others": altered_field(errors=np.zeros((2, 2))),
    "infinite": altered_field(losses=np.full((1, 2), np.inf)),
    "negative errors": altered_field(errors=-np.ones((1, 2))),
}


@pytest.mark.parametrize("name", WRONG_LOSSES)
@pytest.mark.parametrize("step", ["fit", "judge"])
def test_losses_that_cannot_be(name: str, step: str) -> None:
    change = WRONG_LOSSES[name]

    def after_round_0(f: dict[str, Any]) -> dict[str, Any]:
        return change(f) if len(f["losses"]) else f

    try:
        run = with_altered(draw([80, 90, 100]), "s1", step, after_round_0)
    except ConsilienceError as error:
        said(error, "s1")
    else:
        assert name in ("infinite", "negative errors"), "other shapes are not for guessing"
        assert np.isfinite(run.result.gains[0, 1]), "its numbers count for nothing"
        assert np.isfinite(run.result.gain_errors[0, 1])


@pytest.mark.parametrize(
    "probe",
    [np.full(2, np.inf), np.full(2, np.nan), np.array([-1.0, 0.0]), np.ones(3), np.zeros(0)],
    ids=["infinite", "NaN", "negative", "three", "none"],
)
def test_probes_that_cannot_be(probe: Any) -> None:
    try:
        result = with_altered(draw([80, 90, 100]), "s1", "fit", altered_field(probe=probe)).result
        assert result.separable and result.summary()
    except ConsilienceError as error:
        said(error, "s1")


@pytest.mark.parametrize(
    "fields",
    [
        {"losses": np.ones(2)},
        {"losses": np.ones(4), "differences": np.ones(3)},
        {"errors": -np.ones(2)},
        {"errors": np.full(2, np.inf)},
        {"losses": "none"},
    ],
    ids=["few losses", "many", "negative", "infinite", "text"],
)
def test_conclusions_that_cannot_be(fields: dict[str, Any]) -> None:
    try:
        run = with_altered(draw([80, 90, 100]), "s1", "conclude", altered_field(**fields))
        assert run.result.summary()
        assert len(run.result.to_frame())
    except ConsilienceError as error:
        said(error, "s1")


@pytest.mark.parametrize("value", [1e3, 1e100, 1e300])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_site_that_pulls_the_average_far_away(value: float) -> None:
    """Sound in form, absurd in content: no crash, and the influence shows who it was."""
    change = fits(lambda fit: {**fit, "at": np.full_like(fit["at"], value)})
    try:
        result = with_altered(draw([80, 90, 100]), "s1", "fit", change, **BARE).result
        assert np.nanargmax(result.influence[0, 0]) == 1
        assert result.summary()
    except ConsilienceError as error:
        said(error)


def test_probabilities_that_are_none() -> None:
    tables = classes([150, 160, 170])
    for value in (np.array([-0.5, 1.5]), np.array([0.2, 0.2])):

        def change(fit: dict[str, Any], value: Any = value) -> dict[str, Any]:
            return {**fit, "at": np.tile(value, (40, 1))}

        try:
            run = with_altered(
                tables, "s1", "fit", fits(change), estimator="logistic", levels="ab", **BARE
            )
            assert value.min() >= 0 and run.result.summary()
        except ConsilienceError as error:
            said(error)


def test_the_helper_alters_what_a_site_really_sends() -> None:
    run = with_altered(draw([80, 90, 100]), "s1", "fit", altered_field())
    assert run.result.owners == ("s0", "s1", "s2")

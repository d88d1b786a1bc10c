"""What every study of one table does, with an estimator of scikit-learn."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from consilience.discriminant.one_table.messages import STAYS, STAYS_FEW, Fit, Settings
from consilience.engines.federation import Run
from consilience.exceptions import (
    ConsilienceError,
    ParameterError,
    QuorumError,
    StudyError,
    WireError,
)
from consilience.protocol.method import Ask, Preparation
from consilience.protocol.one_table import Rows, fitted_and_held, hidden, judge
from consilience.sites.policy import Policy
from consilience.wire.codec import decode_message, pack
from consilience.wire.disclosure import Limits
from consilience.wire.message import message_type
from tests.discriminant.one_table.one_table import ShrunkenLDA, federation, table
from tests.protocol.own_lists import with_own_lists


def run_of(given: dict[str, Any], method: Any = None, **settings: Any) -> Run:
    return (method or ShrunkenLDA()).run(federation(given, **settings), seed=0)


def features(given: dict[str, Any]) -> np.ndarray:
    return np.column_stack([v for name, v in given.items() if name.startswith("x")])


# --- what is told --------------------------------------------------------------------------------


def test_counts_are_those_of_the_rows_that_stay_at_the_site() -> None:
    given = table(500)
    run = run_of(given)
    result, left = run.result, run.site("clinic")
    held, y = left.values("held_out") == 1, (given["kind"] == "wild").astype(int)
    assert result.n == 500 and result.n_held == held.sum() == 100
    assert result.n_by_class.tolist() == [250, 250]
    # A fifth of the table, of each class as it falls: a deviation of 4.5 rows.
    assert abs(np.bincount(y[held]) - 50).max() < 20
    wrong = left.labels != y
    assert result.errors[0] == wrong[held].sum()
    assert result.error_rates[0] == pytest.approx(wrong[held].mean())
    wanted = [[((y == i) & (left.labels == j) & held).sum() for j in (0, 1)] for i in (0, 1)]
    np.testing.assert_array_equal(result.confusion, wanted)
    assert result.cv_errors.tolist() == left.to_frame("shrinkages")["wrong"].tolist()
    assert result.cv_rows == 400
    assert result.summary().startswith(
        f"Of 100 rows that were held out, LDA gets {result.errors[0]:.0f} wrong ("
    )


def test_scores_are_means_over_held_out_rows() -> None:
    given = table(300)
    left = run_of(given).site("clinic").to_frame("predictions")
    run = run_of(given, policy="simulation")
    result = run.result
    rows = run.site("clinic").to_frame("predictions")
    rows = rows[rows["held_out"] == 1]
    right = rows["kind"] == rows["prediction"]
    own = np.where(right, rows["probability"], 1 - rows["probability"])
    assert result.log_loss[0] == pytest.approx(-np.log(own).mean(), rel=1e-12)
    assert result.brier[0] == pytest.approx((2 * (1 - own) ** 2).mean(), rel=1e-12)
    spread = -np.log(own)
    error = np.sqrt(((spread - spread.mean()) ** 2).sum()) / len(own)
    assert result.log_loss_se[0] == pytest.approx(error, rel=1e-12)
    assert np.isnan(result.log_loss_gain[0])
    assert result.log_loss_gain[1] == pytest.approx(result.log_loss[1] - result.log_loss[0])
    assert list(left.columns) == ["row", "kind", "prediction", "probability", "held_out"]


def test_a_protected_site_rounds_scores() -> None:
    given = table(300)
    strict, open_ = (run_of(given, policy=p).result for p in ("strict", "simulation"))
    # Other rows are held out (their digest decides), so the scores agree only roughly.
    assert strict.log_loss[0] == pytest.approx(open_.log_loss[0], abs=0.25)
    assert strict.log_loss[0] == round(strict.log_loss[0], 3) != open_.log_loss[0]
    assert np.array_equal(strict.cv_se, [0.012, 0.012])
    assert np.array_equal(open_.cv_se, [0.0123456, 0.0123456])


def test_rows_that_are_held_out_take_no_part() -> None:
    given = table(200)
    first = run_of(given, policy="simulation")
    held = first.site("clinic").values("held_out") == 1
    changed = {**given, "x0": np.where(held, 50.0, given["x0"])}
    second = run_of(changed, policy="simulation")
    np.testing.assert_array_equal(second.site("clinic").values("held_out"), held)
    np.testing.assert_array_equal(first.result.means, second.result.means)
    assert first.result.log_loss[0] != second.result.log_loss[0]


def test_the_same_rows_give_the_same_answer_in_every_run() -> None:
    given = table()
    first, second = (ShrunkenLDA().run(federation(given), seed=s).result for s in (1, 2))
    assert first.to_files() == second.to_files()


def test_entities_are_held_out_whole() -> None:
    given = table(240)
    run = run_of(given, entity="person")
    held = run.site("clinic").values("held_out") == 1
    # A fifth of 80 people of three rows: 48, with a deviation of 11.
    assert run.result.n_held == held.sum() and 15 < held.sum() < 90
    for person in np.unique(given["person"]):
        assert len(set(held[given["person"] == person])) == 1


def test_large_entities_are_left_out_of_the_held_out_rows() -> None:
    """An entity with most of the rows would leave nothing to fit."""
    given = table(240)
    given["person"] = np.where(np.arange(240) < 150, 0, given["person"])
    for policy in ("strict", "simulation"):
        held = run_of(given, entity="person", policy=policy).site("clinic").values("held_out") == 1
        assert not held[:150].any() and held.sum() <= 48


def test_without_held_out_rows() -> None:
    result = run_of(table(), ShrunkenLDA(holdout=0.0)).result
    assert result.n_held == 0
    assert np.isnan(result.errors).all() and np.isnan(result.confusion).all()
    assert np.isnan(result.brier).all() and np.isnan(result.error_rates).all()
    assert result.summary().startswith("No rows were held out")
    assert len(result.to_frame()) == 2


def test_a_small_table_holds_nothing_out_and_says_so() -> None:
    run = run_of(table(45))
    assert run.result.n_held == 0
    assert any("too few rows to hold any out" in note for note in run.notes)
    assert run_of(table(45), policy="simulation").result.n_held == 8


# --- what is withheld ----------------------------------------------------------------------------


def test_small_numbers_of_errors_stay() -> None:
    result = run_of(table(300, apart=4.0)).result
    assert np.isnan(result.errors).all() and np.isnan(result.confusion).all()
    assert "too few to be told are wrong by LDA, other LDA" in result.summary()
    assert f"Mean log losses: LDA {result.log_loss[0]:.2g}, other" in result.summary()


def test_no_errors_at_all_may_be_told() -> None:
    result = run_of(table(300, apart=12.0)).result
    assert result.errors.tolist() == [0, 0] and result.cv_errors.tolist() == [0, 0]
    assert result.confusion.sum() == 60 and result.confusion[[0, 1], [1, 0]].tolist() == [0, 0]


def test_the_site_itself_sees_small_numbers() -> None:
    run = run_of(table(300, apart=4.0))
    assert np.isnan(run.result.errors[0])
    rules = run.site("clinic").to_frame("rules")
    confusion = run.site("clinic").to_frame("confusion")
    apart = confusion[confusion["class"] != confusion["prediction"]]
    assert 0 < rules["errors"][0] == apart["held_out_rows"].sum() < 10
    assert confusion["held_out_rows"].sum() == 60 == rules["held_out_rows"][0]
    assert confusion["fitted_rows"].sum() == 240


def test_a_model_that_rests_on_too_few_rows_stays() -> None:
    given = table(120)
    fitted = run_of(given).site("clinic").values("held_out") == 0
    most = int(np.unique(given["kind"][fitted], return_counts=True)[1].min()) // 2
    told = run_of(given, ShrunkenLDA(n_parameters=most)).result
    assert told.model_stays == "" and told.means.shape == (2, 4)
    stays = run_of(given, ShrunkenLDA(n_parameters=most + 1)).result
    assert stays.model_stays == STAYS and stays.means.size == 0
    simulated = run_of(table(120), ShrunkenLDA(n_parameters=25), policy="simulation")
    assert simulated.result.model_stays == ""


def test_small_classes_are_not_there() -> None:
    given = table(300)
    given["kind"] = np.array(["calm", "mad", "wild"])[
        np.r_[np.zeros(6, int), np.ones(94, int), np.full(200, 2)]
    ]
    listed = with_own_lists(federation(given), {"clinic": given})
    for asked in (listed, federation(given)):
        assert ShrunkenLDA().run(asked, seed=0).result.n_by_class.tolist() == [0, 94, 200]


@pytest.mark.parametrize("least", [2, 3])
def test_hidden_counts_cannot_be_told_from_the_others(least: int) -> None:
    for counts in itertools.product(range(6), repeat=4):
        array = np.array(counts)
        mask = hidden(array, least)
        assert not ((array[~mask] > 0) & (array[~mask] < least)).any()
        rest = array[mask].sum()
        assert rest == 0 or rest >= least or not array[~mask].any()


def test_confusion_tells_no_small_number_with_what_else_is_known() -> None:
    """Rows of a class and the number of errors are known; what is unknown is large in sum."""
    rng = np.random.default_rng(2)
    limits, least = Limits(min_records=5), 5
    some = 0
    for _ in range(300):
        k = int(rng.integers(2, 4))
        y = np.repeat(np.arange(k), rng.integers(1, 30, size=k))
        guess = np.where(rng.random(len(y)) < 0.6, y, rng.integers(k, size=len(y)))
        proba = np.full((len(y), k), 0.1)
        proba[np.arange(len(y)), guess] = 1.0
        everything = np.arange(len(y))
        rows = Rows(
            np.zeros((len(y), 1)), y, None, ("x",), tuple("abc"[:k]), everything, everything, 0
        )
        judged = judge(rows, [np.log(proba / proba.sum(axis=1, keepdims=True))], limits)
        found = np.asarray(judged.confusion.value, dtype=float).reshape(k, k)
        table_ = np.array([[((y == i) & (guess == j)).sum() for j in range(k)] for i in range(k)])
        gone = np.isnan(found).any(axis=1)
        assert (np.isnan(found).all(axis=1) == gone).all()
        np.testing.assert_array_equal(found[~gone], table_[~gone])
        assert not ((found > 0) & (found < least)).any()
        if gone.any() and not gone.all():
            some += 1
            right = np.diag(table_)[gone].sum()
            wrong = table_[gone].sum() - right
            assert all(part == 0 or part >= least for part in (right, wrong))
        errors = float(np.asarray(judged.errors.value)[0])
        assert np.isnan(errors) or errors in (0.0, len(y)) or least <= errors <= len(y) - least
    assert some > 20


@pytest.mark.parametrize("also", [0, 2])
def test_what_few_entities_have_hides_behind_others(also: int) -> None:
    for counts in itertools.product((0, 1, 4, 9), repeat=3):
        array = np.array(counts)
        few = np.arange(3) == also
        if not array[also]:
            continue
        mask = hidden(array, 3, few)
        assert mask[also]
        assert (mask & (array > 0)).sum() > 1 or not array[~mask].any()


def test_classes_of_few_entities_are_not_told() -> None:
    """Two people have all rows of a class, however many these are."""
    given = table(400)
    given["person"] = np.where(given["kind"] == "wild", np.arange(400) % 2, 2 + np.arange(400) % 40)
    run = run_of(given, entity="person")
    assert np.isnan(run.result.n_by_class).all()
    assert run.result.model_stays == STAYS_FEW
    assert run_of(given, entity="person", policy="simulation").result.model_stays == ""
    # With three each, nothing is held back for that reason.
    given["person"] = np.where(
        given["kind"] == "wild", np.arange(400) % 30, 30 + np.arange(400) % 30
    )
    many = run_of(given, entity="person").result
    assert many.model_stays == "" and many.n_by_class.tolist() == [200, 200]


@pytest.mark.parametrize(("people", "told"), [(2, False), (3, True)])
def test_errors_of_few_entities_are_not_told(people: int, told: bool) -> None:
    n = 120
    y = np.arange(n) % 2
    guess = np.where(np.arange(n) < 40, 1 - y, y)  # 20 wrong of each class
    groups = np.where(np.arange(n) < 40, np.arange(n) // 2 % people, 10 + np.arange(n) // 8)
    everything = np.arange(n)
    rows = Rows(np.zeros((n, 1)), y, groups, ("x",), ("a", "b"), everything, everything, 0)
    proba = np.where(np.arange(2) == guess[:, None], 0.9, 0.1)
    judged = judge(rows, [np.log(proba)], Limits())
    assert np.isnan(judged.errors.value).all() != told
    assert np.isnan(judged.confusion.value).all() != told
    if told:
        assert judged.errors.value[0] == 40
        assert judged.confusion.value.tolist() == [40, 20, 20, 40]


def test_few_entities_are_not_held_out() -> None:
    """Errors among the rows of two people would be facts of these."""
    given = table(400)
    given["person"] = np.arange(400) // 50
    few = Policy(min_entities=5)
    assert run_of(given, entity="person", policy=few).result.n_held == 0
    given["person"] = np.arange(400) // 5
    assert run_of(given, entity="person", policy=few).result.n_held > 0


def test_figures_leave_as_far_as_rows_bear_them() -> None:
    method = ShrunkenLDA(shrinkages=tuple(np.linspace(0.1, 0.9, 12)))
    assert len(run_of(table(60), method).result.candidates) == 12
    few = run_of(table(20), method).result
    assert few.chosen >= 0 and len(few.candidates) == 12 and len(few.cv_se) == 0
    assert len(run_of(table(20), method, policy="simulation").result.cv_se) == 12


# --- what is refused -----------------------------------------------------------------------------


def refusal(given: dict[str, Any], **settings: Any) -> str:
    with pytest.raises(QuorumError) as caught:
        run_of(given, **settings)
    return str(caught.value)


def test_one_site_only() -> None:
    with pytest.raises(StudyError) as caught:
        run_of(table(), sites=3)
    assert str(caught.value) == (
        "method 'testing-shrunken-lda' takes the table of one site and the study names 3: name one "
        "in [sites], or use the method 'mean-and-sd'"
    )


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"target": None, "levels": {}}, "name it as target"),
        ({"levels": {}}, "declare the levels of column 'kind'"),
        ({"levels": {"kind": ("calm",)}}, "two or more"),
        ({"features": ()}, "name them in [data]"),
        ({"weight": "person"}, "leave out the weight"),
    ],
)
def test_columns_that_do_not_fit(columns: dict[str, Any], said: str) -> None:
    given = table()
    if "features" in columns:
        given = {name: v for name, v in given.items() if not name.startswith("x")}
        columns = {}
    with pytest.raises(StudyError, match=said.replace("[", r"\[")):
        run_of(given, **columns)


@pytest.mark.parametrize("share", [-0.1, 0.51, "much", True, float("nan")])
def test_holdout_out_of_range(share: Any) -> None:
    with pytest.raises(ParameterError, match=r"holdout must be a number from 0 to 0\.5"):
        run_of(table(), ShrunkenLDA(holdout=share))


def test_tables_that_cannot_be_fitted() -> None:
    given = table()
    lone = given["kind"].copy()
    lone[:] = "wild"
    lone[3] = "calm"
    levels = {"kind": ("calm", "wild")}
    few = refusal({**given, "kind": lone}, levels=levels, policy="simulation")
    assert "a class has fewer than 2 rows" in few
    assert "all of one class" in refusal({**given, "kind": lone}, levels=levels)
    lone[3] = "wild"
    assert "all of one class" in refusal({**given, "kind": lone}, levels=levels)
    assert "no row is complete" in refusal(table(9))
    assert run_of(table(16), policy="simulation").result.n_held == 2


def test_an_estimator_that_fails_shows_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, rows: Rows, scaling: Any) -> Any:
        raise ConsilienceError(f"a value is {rows.x[0, 0]}")

    monkeypatch.setattr(ShrunkenLDA, "fit_table", fail)
    given = table()
    said = refusal(given)
    assert "clinic refused: the table cannot be fitted as it is" in said
    assert str(given["x0"][0])[:6] not in said


def test_rows_without_a_level_are_refused() -> None:
    given = table()
    given["kind"][5:15] = [""] * 10
    levels = {"kind": ("calm", "wild")}
    assert "has no value" in refusal(given, levels=levels) or "clinic" in refusal(
        given, levels=levels
    )
    run = run_of(given, levels=levels, preparation=Preparation(missing="complete-rows"))
    assert run.result.n == 230


def test_rows_are_refused_that_preparation_should_have_filled() -> None:
    from types import SimpleNamespace

    from consilience.protocol.method import SiteData

    site: Any = SimpleNamespace(limits=Policy().limits, rng=np.random.default_rng(0))
    target = np.array(["a", "b"] * 20)
    x = np.zeros((40, 1))
    x[3] = np.nan
    levels = {"y": ("a", "b")}
    data = SiteData(x, ("x",), np.arange(40), target=target, levels=levels)
    with pytest.raises(ConsilienceError, match="missing values"):
        fitted_and_held(data, ("a", "b"), 0.2, site)


def test_the_site_is_told_what_was_noticed() -> None:
    given = federation(table())
    ShrunkenLDA().run(given, seed=0)
    assert any(line.get("said") == "A remark for the site." for line in given.log("clinic"))


# --- what a coordinator could try ----------------------------------------------------------------


class Greedy(ShrunkenLDA):
    """Asks again, with other parameters."""

    def coordinate(self, ctx: Any) -> Any:
        import dataclasses

        yield from super().coordinate(ctx)
        other = dataclasses.replace(self, holdout=0.3)
        return (yield from super(Greedy, other).coordinate(ctx))


def test_a_site_fits_once_in_a_run() -> None:
    with pytest.raises(QuorumError, match="step 'fit' is answered once in a run"):
        run_of(table(), Greedy())


class Careless(ShrunkenLDA):
    """Sends settings that no study file could hold."""

    def coordinate(self, ctx: Any) -> Any:
        for parameters in WRONG_PARAMETERS:
            message = Fit(settings=Settings(parameters, ("calm", "wild")))
            replies = yield Ask("fit", message)
            assert not replies.present, parameters
            reasons.extend(r.reason for r in replies.missing.values())
        ctx.require(replies, at_least=1)


WRONG_PARAMETERS: tuple[dict[str, Any], ...] = ({"holdout": 0.99}, {"other": 1}, {"holdout": {}})
reasons: list[str] = []


def test_settings_are_checked_at_the_site() -> None:
    """Each is refused there, in words that show nothing."""
    with pytest.raises(QuorumError):
        run_of(table(), Careless())
    assert len(reasons) == len(WRONG_PARAMETERS)
    assert all("do not fit the study" in said for said in reasons)


@pytest.mark.parametrize(
    "settings",
    ["", {}, {"parameters": 3, "levels": ("a", "b")}, {"parameters": {}, "levels": ()}],
)
def test_settings_of_another_form_are_not_read(settings: Any) -> None:
    kind = message_type(Fit)
    sent = pack({"m": kind.name, "v": kind.version, "f": {"settings": settings}})
    with pytest.raises(WireError, match=r"fit\.settings"):
        decode_message(sent)

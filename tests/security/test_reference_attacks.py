"""A coordinator that asks for more than its study of reference averaging, through the real gate.

What a site stops must stay stopped; what an exchange tells by its nature is measured, with the
figure that the method's leakage statement gives.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LassoLars, LinearRegression, Ridge

import consilience
from consilience import Columns, Federation
from consilience.averaging.estimators.proximal_fit import MOST_COPIES, copies_of
from consilience.averaging.protocol import ReferenceAveraging, travelling
from consilience.averaging.protocol.messages import (
    Conclude,
    Fit,
    Judge,
    Offer,
    Settings,
    Use,
)
from consilience.engines import driver
from consilience.exceptions import StudyError
from consilience.learners.candidates import as_text
from consilience.numerics.own_rows import row_digests
from consilience.parameters import plain
from consilience.protocol.method import Ask, Preparation, Refused
from consilience.protocol.phases.opening import Open
from consilience.testing.attacks import canaries_after, number_canary, plant
from consilience.testing.fakes import federation_of, members, rows_of, scripted, with_data
from consilience.wire.codec import decode_message, encode_message, unpack
from consilience.wire.disclosure import relayed
from consilience.wire.envelope import Reply, Request
from consilience.wire.message import Disclosure
from tests.averaging.protocol.test_reference_averaging import (
    Tables,
    classes,
    curved,
    draw,
    federation_over,
    spread_rows,
)
from tests.collaborators.protocol.test_meta_clustering import numbers
from tests.granted import GRANTED, granted
from tests.security.hostile import reads_all, unchecked

Array = NDArray[np.float64]
AGGREGATE, MODEL = Disclosure.AGGREGATE, Disclosure.MODEL
Questions = Generator[Ask, Any, Any]
NO_DIGESTS = np.zeros((0, 32), dtype=np.uint8)


class _Answered(Exception):
    """Ends a run in which a hostile coordinator has what it wants."""


def hostile(
    table: pd.DataFrame,
    questions: Callable[[], Questions],
    *,
    levels: tuple[str, ...] = (),
    policy: Any = "strict",
    seed: int = 3,
) -> Any:
    """What a coordinator with questions of its own gets from a real site."""
    found: list[Any] = []

    def coordinate(self: ReferenceAveraging, ctx: Any) -> Any:
        found.append((yield from questions()))
        raise _Answered

    features = tuple(c for c in table.columns if c != "y")
    columns = Columns(features=features, target="y", levels={"y": levels} if levels else {})
    federation = Federation.local({"s": table}, columns=columns, policy=granted(policy))
    learner = "logistic" if levels else "ridge"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(_Answered):
        patch.setattr(ReferenceAveraging, "coordinate", coordinate)
        reads_all(patch)
        ReferenceAveraging(estimator=learner).run(federation, seed=seed)
    return found[0]


def settings(estimator: Any = "ridge(fit_intercept=False)", **changes: Any) -> Settings:
    text = travelling(estimator) if isinstance(estimator, str) else as_text(estimator)
    usual = Settings(
        estimator=text,
        convention="auto",
        levels=(),
        loss="squared",
        penalties=(),
        holdout=0.0,
        guard=False,
        keep=4,
        schedule="fixed",
    )
    return dataclasses.replace(usual, **changes)


def offering(s: Settings, **changes: Any) -> Questions:
    message = Offer(settings=s, salt="1", digests=NO_DIGESTS)
    return (yield Ask("offer", dataclasses.replace(message, **changes)))["s"]


def fit(s: Settings, reference: Array, target: Any = None, **changes: Any) -> Fit:
    """A question as any coordinator can write it."""
    t = np.empty((0, 0, 0, 0)) if target is None else np.asarray(target, dtype=float)
    plain: dict[str, Any] = {
        "settings": s,
        "round": 0 if target is None else 1,
        "rho": 0.0 if target is None else 1.0,
        "tracks": (0,),
        "total": relayed(100.0, AGGREGATE),
        "reference": relayed(reference, AGGREGATE),
        "target": relayed(t, MODEL),
        "owners": (),
        "shares": relayed(np.empty(0), AGGREGATE),
        "judged": (),
        "models": relayed((), MODEL),
    }
    return Fit(**{**plain, **changes})


def linear(p: int, slopes: Any = 0.0, intercept: float = 0.0) -> dict[str, Any]:
    return {
        "form": "linear",
        "coef": np.full((1, p), slopes, dtype=float),
        "intercept": np.array([float(intercept)]),
        "link": "identity",
    }


def judged(*models: Any, tracks: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """Fields that have an average of made-up models judged."""
    share = np.full(len(models), 1.0 / len(models))
    return {
        "owners": tuple(f"m{i}" for i in range(len(models))),
        "shares": relayed(share, AGGREGATE),
        "judged": tracks,
        "models": relayed(tuple(tuple(models) for _ in tracks), MODEL),
    }


def judge(s: Settings, *models: Any, tracks: tuple[int, ...] = (0,), round_: int = 0) -> Judge:
    return Judge(settings=s, round=round_, **judged(*models, tracks=tracks))


def asking(s: Settings, *questions: Ask) -> Callable[[], Questions]:
    """Offer, then questions; the last answer, or the first refusal."""

    def ask() -> Questions:
        answer = yield from offering(s)
        for question in questions:
            if isinstance(answer, Refused):
                return answer
            answer = (yield question)["s"]
        return answer

    return ask


def table_of(n: int = 100, p: int = 3, seed: int = 0) -> pd.DataFrame:
    return draw([n], p, seed=seed, shift=0.3)["s0"]


def refused(answer: Any, *words: str) -> None:
    assert isinstance(answer, Refused), answer
    for word in words:
        assert word in answer.reason, answer.reason
    assert "\n" not in answer.reason and "Traceback" not in answer.reason


# --------------------------------------------------------------------------- canaries


def planted_federation(kind: str) -> tuple[ReferenceAveraging, Any]:
    rng = np.random.default_rng(4)
    x = {name: rng.normal(size=(90, 3)) for name in "abc"}
    roles = {
        name: {
            "target": x[name] @ np.array([1.0, -2.0, 0.5]) + rng.normal(size=90),
            "target_name": "y",
            "id": np.array([f"{name}{i}" for i in range(90)]),
        }
        for name in x
    }
    federation = federation_of(x, policy=GRANTED, roles=roles)
    columns = dataclasses.replace(federation.columns, target="y", id="id")
    made = {
        "ridge": ReferenceAveraging(estimator="ridge", max_rounds=3),
        "grid": ReferenceAveraging(estimator="lasso", penalties=(0.01, 0.1), max_rounds=3),
        "asynchronous": ReferenceAveraging(
            estimator="ridge", schedule="asynchronous", max_rounds=3
        ),
        "forest": ReferenceAveraging(estimator="random-forest(n_estimators=4)", max_rounds=2),
        "public rows": ReferenceAveraging(
            estimator="linear", reference=spread_rows(30, 3), max_rounds=3
        ),
    }
    return made[kind], dataclasses.replace(federation, columns=columns)


@pytest.mark.parametrize("kind", ["ridge", "grid", "asynchronous", "forest", "public rows"])
def test_no_planted_value_is_found_outside_its_site(kind: str) -> None:
    method, federation = planted_federation(kind)
    canaries = []
    for name in "abc":
        data, found = plant(rows_of(federation)[name])
        y = np.array(data.target)
        y[5] = y.mean() + 0.314159265358979 * y.std()
        data = dataclasses.replace(data, target=y)
        canaries += [*found, number_canary(f"{name} target", float(y[5]))]
        federation = with_data(federation, name, lambda _, data=data: data)
    run, seen = canaries_after(method, federation, canaries)
    assert run is not None and run.result.owners == ("a", "b", "c")
    assert len(canaries) >= 12
    assert seen == []


@pytest.mark.parametrize("case", ["curved", "giants", "classes", "asynchronous"])
def test_no_value_of_a_row_leaves_a_strict_site(case: str) -> None:
    """Nor its square, nor a product of its cells; one site has a single large value."""
    tables: Tables = curved([90, 80, 100])
    given: dict[str, Any] = {"estimator": "ridge", "max_rounds": 4}
    levels: tuple[str, ...] = ()
    if case == "giants":
        tables["s2"].loc[5, "x0"] = 1e4
        tables["s2"].loc[6, "y"] = -1e4
    elif case == "classes":
        tables, levels = classes([150, 160, 170]), ("a", "b")
        given["estimator"] = "logistic"
    elif case == "asynchronous":
        given["schedule"] = "asynchronous"
    federation = scripted(federation_over(tables, "strict", levels=levels, quorum=1))
    run = ReferenceAveraging(**given).run(federation, seed=0)
    assert run.result.owners
    count = 0
    for (_, site), data in federation.engine.replies.items():  # type: ignore[attr-defined]
        reply = Reply.from_bytes(data)
        if reply.status != "reply":
            continue
        sent = np.concatenate([np.zeros(0), *numbers(unpack(reply.message)["f"])])
        sent = sent[np.isfinite(sent) & (sent != 0)]
        count += len(sent)
        cells = tables[site].drop(columns="y" if levels else []).to_numpy(float)
        products = (cells[:, :, None] * cells[:, None, :]).ravel()
        for known in (cells.ravel(), products):
            close = np.isclose(sent[:, None], known[None, :], rtol=1e-9, atol=0)
            assert not close.any(), (reply.step, sent[close.any(axis=1)])
    assert count > 500


# --------------------------------------------------------------------------- rules of the gate


@pytest.mark.parametrize(("n", "p", "passes"), [(60, 29, True), (60, 30, False), (9, 2, False)])
def test_rows_are_at_least_twice_the_parameters(n: int, p: int, passes: bool) -> None:
    """p slopes and an intercept."""
    s = settings("ridge")
    answer = hostile(table_of(n, p), asking(s, Ask("fit", fit(s, spread_rows(p + 5, p)))))
    if passes:
        assert answer.fits.value[0]["at"].shape == (p + 5, 1)
    else:
        refused(answer)
        if n > 10:
            refused(answer, "twice as many rows as parameters")


@pytest.mark.parametrize(
    ("n", "p", "holdout", "held"),
    [(100, 3, 0.2, 20), (100, 9, 0.2, 20), (100, 10, 0.2, 0), (45, 2, 0.2, 0), (100, 3, 0.95, 40)],
)
def test_fits_differ_by_enough_rows_or_by_none(n: int, p: int, holdout: float, held: int) -> None:
    """Held out are at least min_records rows and twice the parameters, and kept as many."""
    s = settings("ridge", holdout=holdout)
    found = hostile(table_of(n, p), lambda: offering(s))
    assert int(found.held.value) == held
    first = fit(s, spread_rows(p + 5, p))
    answer = hostile(table_of(n, p), asking(s, Ask("fit", first)))
    at = [f["at"] for f in answer.fits.value]
    assert len(at) == 2
    assert np.array_equal(at[0], at[1]) is (held == 0)


def test_without_the_difference_rule_two_fits_would_tell_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A control: a site that held out one row is stopped by its gate."""
    from consilience.averaging.protocol import site as at_rows

    monkeypatch.setattr(at_rows, "held_rows", lambda *_: np.zeros(1, dtype=np.int64))
    s = settings("ridge", holdout=0.2)
    answer = hostile(table_of(), asking(s, Ask("fit", fit(s, spread_rows(9, 3)))))
    refused(answer)


def test_the_rows_that_are_held_out_are_the_same_in_every_run() -> None:
    """Otherwise two runs would give two differences."""
    s, a = settings("ridge", holdout=0.2), spread_rows(9, 3)
    found = [
        hostile(table_of(), asking(s, Ask("fit", fit(s, a))), seed=seed).fits.value[1]["at"]
        for seed in (1, 2)
    ]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("holdout", [0.2, 0.21, 0.22, 0.25])
def test_shares_of_held_out_rows_one_after_the_other(holdout: float) -> None:
    """One run, one share: another offer is another run."""
    s = settings("ridge", holdout=0.2)

    def ask() -> Questions:
        yield from offering(s)
        return (yield from offering(settings("ridge", holdout=holdout, keep=5)))

    refused(hostile(table_of(), ask), "answered once")


LEARNERS_WITH_ROWS = (
    "sklearn.neighbors.KNeighborsRegressor",
    "sklearn.svm.SVR",
    "sklearn.kernel_ridge.KernelRidge",
    "sklearn.gaussian_process.GaussianProcessRegressor",
)


@pytest.mark.parametrize("name", LEARNERS_WITH_ROWS)
def test_learners_that_carry_rows(name: str) -> None:
    import importlib

    module, _, kind = name.rpartition(".")
    s = settings(getattr(importlib.import_module(module), kind)(), convention="sum")
    refused(hostile(table_of(), lambda: offering(s)), "training rows")


def test_leaves_count_own_rows_only() -> None:
    """Reference rows put where a leaf would hold a single own row do not fill it."""
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.tree import DecisionTreeRegressor

    table = table_of(120, 2)
    table.loc[0, "x0"] = 50.0
    table.loc[0, "y"] = 777.0
    a = np.column_stack([np.full(60, 50.0), np.linspace(-1, 1, 60)])
    target = np.full((1, 1, 60, 1), 700.0)
    for learner in (
        DecisionTreeRegressor(min_samples_leaf=10),
        RandomForestRegressor(3, min_samples_leaf=10),
    ):
        s = settings(learner)
        answer = hostile(table, asking(s, Ask("fit", fit(s, a, target, rho=0.01))))
        refused(answer, "leaf rests on fewer")


def test_refits_whose_leaves_cannot_be_counted() -> None:
    from sklearn.ensemble import HistGradientBoostingRegressor

    table = table_of(120, 2)
    table.loc[0, "x0"] = 50.0
    a = np.column_stack([np.full(60, 50.0), np.linspace(-1, 1, 60)])
    s = settings(HistGradientBoostingRegressor(max_iter=2, early_stopping=False))
    target = np.full((1, 1, 60, 1), 700.0)
    refused(hostile(table, asking(s, Ask("fit", fit(s, a, target, rho=1e-6)))), "own rows")
    assert not isinstance(hostile(table, asking(s, Ask("fit", fit(s, a)))), Refused)


# --------------------------------------------------------------------------- odd questions


A = spread_rows(9, 3)
TARGET = np.zeros((1, 1, 9, 1))
PLAIN = settings()
ODD: dict[str, Callable[[], Ask]] = {
    "another learner": lambda: Ask("fit", fit(settings("linear"), A)),
    "another share": lambda: Ask("fit", fit(settings(holdout=0.3), A)),
    "another penalty": lambda: Ask("fit", fit(settings("ridge(alpha=1e-9)"), A)),
    "round -1": lambda: Ask("fit", fit(PLAIN, A, round=-1)),
    "round 1001": lambda: Ask("fit", fit(PLAIN, A, TARGET, round=1001)),
    "huge round": lambda: Ask("fit", fit(PLAIN, A, TARGET, round=2**62)),
    "track 1": lambda: Ask("fit", fit(PLAIN, A, tracks=(1,))),
    "track -1": lambda: Ask("fit", fit(PLAIN, A, tracks=(-1,))),
    "other columns": lambda: Ask("fit", fit(PLAIN, spread_rows(9, 4))),
    "no reference": lambda: Ask("fit", fit(PLAIN, np.empty((0, 3)))),
    "target of other rows": lambda: Ask("fit", fit(PLAIN, A, np.zeros((1, 1, 8, 1)))),
    "target of other tracks": lambda: Ask("fit", fit(PLAIN, A, np.zeros((1, 2, 9, 1)))),
    "target of two trajectories": lambda: Ask("fit", fit(PLAIN, A, np.zeros((2, 1, 9, 1)))),
    "target of two outputs": lambda: Ask("fit", fit(PLAIN, A, np.zeros((1, 1, 9, 2)))),
    "negative weight": lambda: Ask("fit", fit(PLAIN, A, TARGET, rho=-1.0)),
    "negative total": lambda: Ask("fit", fit(PLAIN, A, total=relayed(-5.0, AGGREGATE))),
    "conclude before a fit": lambda: Ask("conclude", Conclude(settings=PLAIN, track=0, round=0)),
    "conclude another track": lambda: Ask("conclude", Conclude(settings=PLAIN, track=7, round=0)),
    "judge with other settings": lambda: Ask("judge", judge(settings("linear"), linear(3))),
    "use with other settings": lambda: Ask(
        "use",
        Use(
            settings=settings("linear"),
            owners=(),
            shares=relayed(np.empty(0), AGGREGATE),
            models=relayed((), MODEL),
        ),
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_questions_get_a_refusal(name: str) -> None:
    """One sentence each, with no value, and nothing else happens."""
    table = table_of()
    table.loc[3, "x0"] = 7351.25951
    answer = hostile(table, asking(PLAIN, ODD[name]()))
    refused(answer)
    assert "7351" not in answer.reason


def test_a_fit_before_the_offer() -> None:
    def ask() -> Questions:
        return (yield Ask("fit", fit(PLAIN, A)))["s"]

    refused(hostile(table_of(), ask))


@pytest.mark.parametrize(
    "changes",
    [
        {"penalties": tuple(range(51))},
        {"holdout": -0.5},
        {"holdout": 1.0},
        {"holdout": "all"},
        {"estimator": "object:Ridge:AAAA"},
        {"estimator": "__import__('os')"},
        {"levels": ("a", "b")},
        {"loss": "none"},
        {"keep": "many"},
        {"unheard": 1},
        (),
        "ridge",
    ],
    ids=str,
)
def test_settings_that_no_study_has(changes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands in their place on the way is refused."""
    given = {**plain(PLAIN), **changes} if isinstance(changes, dict) else changes

    def encoded(message: Any) -> bytes:
        stated = isinstance(getattr(message, "settings", None), Settings)
        return unchecked(dataclasses.replace(message, settings=given) if stated else message)

    monkeypatch.setattr(driver, "encode_message", encoded)
    refused(hostile(table_of(), lambda: offering(PLAIN)))


@pytest.mark.parametrize("levels", [(), ("a", "b")])
def test_levels_are_those_of_the_study(levels: tuple[str, ...]) -> None:
    s = settings("logistic", levels=("a", "b", "c"), loss="log")
    table = classes([100])["s0"] if levels else table_of()
    refused(hostile(table, lambda: offering(s), levels=levels))


FOREIGN: dict[str, Any] = {
    "nothing": None,
    "text": "a model",
    "no form": {"coef": np.ones(3)},
    "other columns": linear(4),
    "overflow": linear(3, 1e308, 1e308),
    "not an archive": {"form": "skops", "data": b"PK\x03\x04 no", "columns": 3},
    "classes": {
        "form": "linear",
        "coef": np.ones((2, 3)),
        "intercept": np.zeros(2),
        "link": "logit",
    },
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_models_that_are_malformed(name: str) -> None:
    s = settings("ridge", holdout=0.2, guard=True)
    first = Ask("fit", fit(s, A))
    answer = hostile(table_of(), asking(s, first, Ask("judge", judge(s, FOREIGN[name]))))
    refused(answer)


@pytest.mark.parametrize(
    "changes",
    [
        {"judged": (0, 1)},
        {"shares": relayed(np.ones(3), AGGREGATE)},
        {"shares": relayed(np.empty(0), AGGREGATE)},
        {"models": relayed((), MODEL)},
        {"models": relayed(((),), MODEL)},
    ],
    ids=["tracks", "shares", "no shares", "no models", "no model of a track"],
)
def test_portfolios_that_do_not_fit_together(changes: dict[str, Any]) -> None:
    s = settings("ridge", holdout=0.2, guard=True)
    question = dataclasses.replace(judge(s, linear(3)), **changes)
    answer = hostile(table_of(), asking(s, Ask("fit", fit(s, A)), Ask("judge", question)))
    refused(answer)


# --------------------------------------------------------------------------- how often


GRID = tuple(float(k) for k in range(1, 51))


def judging(s: Settings, times: int, at_once: int = 1) -> Callable[[], Questions]:
    """Averages of ever other models; how many were judged before the refusal."""

    def ask() -> Questions:
        yield from offering(s)
        yield Ask("fit", fit(s, A))
        tracks = tuple(range(at_once))
        for k in range(times):
            answer = (yield Ask("judge", judge(s, linear(3, 0.0, 0.1 * k), tracks=tracks)))["s"]
            if isinstance(answer, Refused):
                return k * at_once, answer.reason
        return times * at_once, ""

    return ask


@pytest.mark.parametrize(("n", "limit"), [(50, 200), (100, 400)])
def test_the_number_of_judged_averages_is_limited(n: int, limit: int) -> None:
    """Twenty for each held-out row, two hundred at least; many at once count as many."""
    s = settings("ridge", holdout=0.2, guard=True, penalties=GRID)
    counted, reason = hostile(table_of(n), judging(s, 40, at_once=25))
    assert counted == limit
    assert "more questions" in reason


class Lines:
    """A coordinator of one site that begins new lines of questions at any earlier answer."""

    def __init__(self, table: pd.DataFrame, policy: Any = "strict") -> None:
        federation = federation_over({"s": table}, policy)
        self.site = members(federation)["s"]
        self.columns, self.round = federation.columns, 0

    def ask(self, step: str, message: Any, after: int) -> Any:
        self.round += 1
        request = Request(
            run="run-1",
            study="s" * 64,
            method="reference-averaging",
            method_version=ReferenceAveraging.version,
            release=consilience.__version__,
            round=self.round,
            attempt=1,
            after_round=after,
            after_attempt=1 if after else 0,
            step=step,
            site="s",
            seed=1,
            message=encode_message(message),
        )
        reply = Reply.from_bytes(self.site.answer(request.to_bytes()))
        return Refused(reply.reason) if reply.status != "reply" else decode_message(reply.message)

    def begin(self, s: Settings) -> int:
        """Open, offer and fit; the round of the fit."""
        rules = json.dumps(dataclasses.asdict(Preparation()))
        text = json.dumps(dataclasses.asdict(self.columns))
        for step, message in (
            ("opening.read", Open(text, rules, "", "rows", "")),
            ("offer", Offer(settings=s, salt="1", digests=NO_DIGESTS)),
            ("fit", fit(s, A)),
        ):
            answer = self.ask(step, message, self.round)
            assert not isinstance(answer, Refused), answer
        return self.round


def test_judged_averages_are_counted_over_all_lines_of_questions() -> None:
    """Each line begins at the first fit, where nothing was judged yet."""
    s = settings("ridge", holdout=0.2, guard=True, penalties=GRID)
    lines = Lines(table_of(50))
    first = lines.begin(s)
    for k in range(12):
        question = judge(s, linear(3, 0.0, 0.1 * k), tracks=tuple(range(20)))
        answer = lines.ask("judge", question, first)
        assert isinstance(answer, Refused) is (k >= 10), k
    refused(answer, "more questions")
    other = fit(s, A, np.zeros((2, 1, 9, 1)), **judged(linear(3)))
    refused(lines.ask("fit", other, first), "more questions")


def test_fits_are_counted_over_all_lines_of_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    from consilience.averaging.protocol import site as at_site

    monkeypatch.setattr(at_site, "MOST_FITS", 20)
    s = settings("ridge")
    lines = Lines(table_of(50))
    first = lines.begin(s)
    rng = np.random.default_rng(0)
    for k in range(22):
        answer = lines.ask("fit", fit(s, A, rng.normal(size=(1, 1, 9, 1))), first)
        assert isinstance(answer, Refused) is (k >= 19), k
    refused(answer, "more questions")


def test_a_penalty_is_fitted_and_judged_once_in_a_question() -> None:
    """Otherwise one fit that is counted would be three hundred."""
    s, wide = settings("ridge"), np.zeros((1, 300, 9, 1))
    many = dataclasses.replace(
        fit(s, A, wide[:, :1]), tracks=(0,) * 300, target=relayed(wide, MODEL)
    )
    refused(hostile(table_of(), asking(s, Ask("fit", fit(s, A)), Ask("fit", many))))
    s = settings("ridge", holdout=0.2, guard=True)
    twice = judge(s, linear(3), tracks=(0, 0))
    refused(hostile(table_of(), asking(s, Ask("fit", fit(s, A)), Ask("judge", twice))))


def test_a_run_has_one_set_of_reference_rows() -> None:
    s = settings("ridge")
    again = asking(s, Ask("fit", fit(s, A)), Ask("fit", fit(s, A + 1.0)))
    refused(hostile(table_of(), again))
    same = hostile(table_of(), asking(s, Ask("fit", fit(s, A)), Ask("fit", fit(s, A))))
    assert not isinstance(same, Refused)


def test_no_limit_where_nothing_is_protected() -> None:
    s = settings("ridge", holdout=0.2, guard=True, penalties=GRID)
    counted, _ = hostile(table_of(50), judging(s, 12, at_once=50), policy="simulation")
    assert counted == 600


def test_losses_are_rounded() -> None:
    """A made-up model that is far off at one row cannot weigh this row by its loss."""
    s = settings("ridge", holdout=0.2, guard=True)
    table = table_of()

    def ask() -> Questions:
        yield from offering(s)
        yield Ask("fit", fit(s, A))
        yield Ask("judge", judge(s, linear(3)))
        answers = []
        for scale in (1e3, 1e6, 1e12, 1e60):
            slopes = np.array([[scale, 0.0, 0.0]])
            model = {**linear(3), "coef": slopes}
            answers.append((yield Ask("judge", judge(s, model)))["s"])
        return answers

    y = table["y"].to_numpy()
    bound = (np.ptp(y) * 20) ** 2
    for answer in hostile(table, ask):
        if isinstance(answer, Refused):
            continue
        value = answer.losses.value
        told = value[np.isfinite(value)]
        assert (np.abs(told) < bound).all(), told
        if told.size:
            step = 10.0 ** np.floor(np.log10(np.abs(told).max()))
            assert np.allclose(told / step * 100, np.round(told / step * 100), atol=1e-6)


# --------------------------------------------------------------------------- what rounds tell


def moments_from_answers(
    answers: list[Array], averages: list[Array], a: Array, alpha: float, n: int, rho: float
) -> tuple[Array, Array]:
    """X'X and X'y of a ridge from its coefficients under known averages.

    A refit solves ``(X'X + alpha I + rho n U) b = X'y + rho n A'f / m``: linear in X'X and X'y,
    each answer gives p equations, of which symmetry makes p(p+1)/2 + p unknowns.
    """
    m, p = a.shape
    pairs = [(i, j) for i in range(p) for j in range(i, p)]
    left, right = [], []
    u = a.T @ a / m
    for b, f in zip(answers, averages, strict=True):
        known = rho * n * (a.T @ f / m) - (alpha * np.eye(p) + rho * n * u) @ b
        for row in range(p):
            equation = np.zeros(len(pairs) + p)
            for k, (i, j) in enumerate(pairs):
                if row in (i, j):
                    equation[k] += b[j if row == i else i]
            equation[len(pairs) + row] = -1.0
            left.append(equation)
            right.append(known[row])
    solution, *_ = np.linalg.lstsq(np.array(left), np.array(right), rcond=None)
    second = np.zeros((p, p))
    for k, (i, j) in enumerate(pairs):
        second[i, j] = second[j, i] = solution[k]
    return second, solution[len(pairs) :]


@pytest.mark.parametrize("p", [2, 3, 4])
def test_answers_to_p_plus_one_averages_determine_the_second_moments(p: int) -> None:
    """Measured: p + 1 averages that a coordinator makes up give X'X and X'y; one does not.

    Symmetry needs fewer equations than p + 1 answers give, so about half of them are enough: with
    one answer at hand p equations stand against p(p + 3)/2 unknowns.
    """
    n, alpha, rho = 100, 1.0, 1.0
    table = table_of(n, p)
    x, y = table.drop(columns="y").to_numpy(), table["y"].to_numpy()
    s = settings("ridge(alpha=1.0, fit_intercept=False)")
    a = spread_rows(3 * p, p)
    rng = np.random.default_rng(5)
    averages = [rng.normal(size=len(a)) * 3 for _ in range(p + 1)]

    def ask() -> Questions:
        yield from offering(s)
        yield Ask("fit", fit(s, a, total=relayed(float(n), AGGREGATE)))
        found = []
        for k, f in enumerate(averages):
            question = fit(
                s,
                a if k == 0 else a[:0],
                f[None, None, :, None],
                rho=rho,
                round=k + 1,
                total=relayed(float(n), AGGREGATE),
            )
            answer = (yield Ask("fit", question))["s"]
            found.append(answer.fits.value[0]["at"][:, 0])
        return found

    found = [np.linalg.lstsq(a, at, rcond=None)[0] for at in hostile(table, ask)]
    truth = x.T @ x

    def error(k: int) -> float:
        second, _ = moments_from_answers(found[:k], averages[:k], a, alpha, n, rho)
        return float(np.linalg.norm(second - truth) / np.linalg.norm(truth))

    assert error(p + 1) < 1e-8
    assert error(1) > 1e-2
    _, cross = moments_from_answers(found, averages, a, alpha, n, rho)
    np.testing.assert_allclose(cross, x.T @ y, rtol=1e-6, atol=1e-6)
    # Second moments, and no row: the rows enter through these sums alone.
    rotated = np.linalg.qr(rng.normal(size=(n, n)))[0]
    other = Ridge(alpha=1.0, fit_intercept=False).fit(rotated @ x, rotated @ y).coef_
    np.testing.assert_allclose(
        other, Ridge(alpha=1.0, fit_intercept=False).fit(x, y).coef_, rtol=1e-8
    )


def test_two_sets_of_fits_do_not_differ_by_a_few_records_of_a_column() -> None:
    """Second moments of all rows minus those without the held-out rows, after p + 1 averages.

    Where one held-out row has a 1 in a column, the row of this column would be that record.
    """
    n, p, rho = 100, 3, 1.0
    table = table_of(n, p)
    table["x2"] = 0.0
    s = settings("ridge(alpha=1.0, fit_intercept=False)", holdout=0.2)
    a, rng = spread_rows(3 * p, p), np.random.default_rng(5)
    averages = [rng.normal(size=len(a)) * 3 for _ in range(p + 1)]
    total = relayed(float(n), AGGREGATE)

    def ask() -> Questions:
        yield from offering(s)
        found = []
        for k, f in enumerate(averages):
            target = np.stack([f, f])[:, None, :, None]
            question = fit(s, a, target, rho=rho, round=k + 1, total=total)
            fits = (yield Ask("fit", question))["s"].fits.value
            found.append([np.linalg.lstsq(a, x["at"][:, 0], rcond=None)[0] for x in fits])
        return found

    told = 0
    for seed in range(6):
        ones = np.random.default_rng([1, seed]).permutation(n)[:12]
        table["x2"] = np.isin(np.arange(n), ones).astype(float)
        found = hostile(table, ask)
        by_rows = [
            moments_from_answers([b[t] for b in found], averages, a, alpha, size, rho)[0]
            for t, alpha, size in ((0, 1.0, n), (1, 0.8, 80))
        ]
        x = table.drop(columns="y").to_numpy()
        np.testing.assert_allclose(by_rows[0], x.T @ x, rtol=1e-6, atol=1e-6)
        difference = by_rows[0] - by_rows[1]
        # The other columns differ by twenty records, which is what the rule is for.
        assert difference[0, 0] > 1.0
        near = np.abs(difference[2] - x[ones]).max(axis=1)
        # A whole number would be that of held-out rows; none is no record, twelve are all that
        # have a 1.
        whole = np.round(difference[2, 2])
        told += int(near.min() < 1e-6) + int(
            abs(difference[2, 2] - whole) < 1e-6 and whole not in (0, len(ones))
        )
    assert told == 0


def test_predictions_at_the_reference_are_the_model() -> None:
    """As many reference rows as columns, and nothing is hidden behind predictions."""
    table = table_of(100, 3)
    s = settings("linear(fit_intercept=False)")
    answer = hostile(table, asking(s, Ask("fit", fit(s, A))))
    slopes, *_ = np.linalg.lstsq(A, answer.fits.value[0]["at"][:, 0], rcond=None)
    x, y = table.drop(columns="y").to_numpy(), table["y"].to_numpy()
    expected = LinearRegression(fit_intercept=False).fit(x, y).coef_
    np.testing.assert_allclose(slopes, expected, rtol=1e-8)


def score_told(table: pd.DataFrame, a: Array, rho: float) -> Any:
    """Fit of a learner without weights, and what the reference rows say of the own rows.

    Without a penalty the scores of all copies sum to zero, and everybody can count the copies of
    the reference rows: what they lack of zero are the own residuals times (1, x).
    """
    question = fit(settings(LassoLars(alpha=1e-12)), a, np.zeros((1, 1, len(a), 1)), rho=rho)
    answer = hostile(table, asking(settings(LassoLars(alpha=1e-12)), Ask("fit", question)))
    if isinstance(answer, Refused):
        return answer
    own, theirs, _ = copies_of(np.ones(len(table)), np.full(len(a), rho * len(table) / len(a)))
    with_one = np.column_stack([np.ones(len(a)), a])
    b = np.linalg.lstsq(with_one, answer.fits.value[0]["at"][:, 0], rcond=None)[0]
    return b, with_one.T @ (theirs * (with_one @ b)) / own[0]


@pytest.mark.parametrize(
    ("m", "rho"), [(100, 100.0), (100, 399.0), (100, 799.0), (4000, 399.0), (4000, 799.0)]
)
def test_copies_of_reference_rows_push_no_own_row_out(m: int, rho: float) -> None:
    """A learner without weights gets copies; were a row alone among them, its score would tell it.

    An answer rests on all rows, which the gate has counted, or there is none.
    """
    table = table_of(500, 3)
    told = score_told(table, np.random.default_rng(1).normal(size=(m, 3)), rho)
    # More copies than a site makes are refused.
    assert isinstance(told, Refused) == ((500 * (1 + rho)) > MOST_COPIES * (500 + m))
    if isinstance(told, Refused):
        return
    b, score = told
    x = np.column_stack([np.ones(500), table.drop(columns="y").to_numpy()])
    scores = x * (table["y"].to_numpy() - x @ b)[:, None]
    np.testing.assert_allclose(score, scores.sum(axis=0), rtol=1e-6)
    assert np.abs(x - score / score[0]).max(axis=1).min() > 1e-2


@pytest.mark.parametrize(("n", "m"), [(100, 500), (500, 100)])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_no_answer_rests_on_one_own_row_more_than_another(n: int, m: int, k: int) -> None:
    """Weights of reference rows just below those of own rows invite an own row once more.

    With sums over all rows known from other answers, such a row would be told exactly.
    """
    table = table_of(n, 3)
    rho = m / n / (1.0 + k / n)
    b, score = score_told(table, np.random.default_rng(1).normal(size=(m, 3)), rho)
    x = np.column_stack([np.ones(n), table.drop(columns="y").to_numpy()])
    scores = x * (table["y"].to_numpy() - x @ b)[:, None]
    np.testing.assert_allclose(score, scores.sum(axis=0), atol=1e-6)


# --------------------------------------------------------------------------- whose rows


@pytest.mark.parametrize("held", [0, 9, 30])
def test_a_guess_at_rows_is_answered_by_yes_or_no_only(held: int) -> None:
    """Thirty digests that are rows of the site give a yes, nine do not; no row is told apart."""
    table = table_of(100)
    x = table.drop(columns="y").to_numpy()
    guess = np.vstack([x[:held], spread_rows(60 - held, 3)])
    digests = row_digests(guess, "1")
    s = settings()
    answer = hostile(table, lambda: offering(s, digests=digests))
    assert answer.own_rows is (held == 30)

    # Another guess is another run, which the policy counts.
    def twice() -> Questions:
        yield from offering(s, digests=digests)
        return (yield from offering(s, digests=digests[:40]))

    refused(hostile(table, twice), "answered once")


@pytest.mark.parametrize(
    "digests",
    [np.zeros((5, 31), dtype=np.uint8), np.zeros((5, 32), dtype=np.int64), np.zeros(32, np.uint8)],
    ids=["short", "wide numbers", "one"],
)
def test_digests_that_are_none(digests: Any) -> None:
    try:
        answer = hostile(table_of(), lambda: offering(settings(), digests=digests))
    except Exception as error:  # noqa: BLE001  the coordinator's own codec may stop it
        assert "digests" in str(error)
    else:
        assert isinstance(answer, Refused) or answer.own_rows is False


def test_reference_rows_of_one_site_do_not_reach_another() -> None:
    """The coordinator that accuses nobody sends rows; an honest one has asked before."""
    tables = draw([80, 90])
    rows = tables["s0"].drop(columns="y").to_numpy()[:40]
    federation = scripted(federation_over(tables, "strict"))
    with pytest.raises(StudyError, match="s0"):
        ReferenceAveraging(estimator="ridge", reference=rows).run(federation, seed=0)
    sent = b"".join(federation.engine.requests.values())  # type: ignore[attr-defined]
    assert not any(value.tobytes() in sent for value in rows.ravel())


def test_made_up_averages_tell_a_row_of_a_learner_with_a_curved_loss() -> None:
    """What no rule sees, as the leakage statement says: two steep averages either side of a row.

    The score of the own rows follows from the answer, since that of the pseudo-rows is known; under
    a steep average it is a sum over one side of a plane, and two sums differ by what lies between.
    If this stops working, the statement of the method, its guide and its decision record change.
    """
    rng = np.random.default_rng(5)
    n = 200
    x = np.round(rng.normal(size=(n, 3)), 3)
    y = x @ [1.0, -1.0, 0.5] + rng.logistic(size=n) > 0
    table = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=np.where(y, "yes", "no"))
    a = np.random.default_rng(0).normal(size=(400, 3)) * 1.5
    with_one = np.column_stack([np.ones(len(a)), a])
    s = settings("logistic(C=1e6)", levels=("no", "yes"), loss="log")
    rho = 1e5

    def score_of(place: float) -> Array:
        steep = np.clip(100.0 * (a[:, 0] - place), -20.0, 20.0)
        wanted = 1.0 / (1.0 + np.exp(-steep))
        target = np.stack([1.0 - wanted, wanted], axis=1)[None, None]
        answer = hostile(
            table, asking(s, Ask("fit", fit(s, a, target, rho=rho))), levels=("no", "yes")
        )
        at = answer.fits.value[0]["at"][:, 1]
        return n * rho / len(a) * (with_one.T @ (wanted - at))

    first, second = np.sort(x[:, 0])[::-1][:2]
    between = score_of((first + second) / 2) - score_of(first + (first - second) / 2)
    row = x[np.argmax(x[:, 0])]
    np.testing.assert_allclose(between[0], 1.0, atol=0.05)
    np.testing.assert_allclose(between[1:] / between[0], row, atol=0.02)

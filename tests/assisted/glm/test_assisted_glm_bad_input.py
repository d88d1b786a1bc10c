"""What an assisted GLM does with data that have no answer: one sentence, and nothing kept."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.assisted.glm import AssistedGLM
from consilience.engines.federation import Federation, load_run
from consilience.engines.local import LocalEngine
from consilience.exceptions import ConsilienceError, QuorumError, RunError, StudyError
from consilience.protocol.method import Preparation
from consilience.sites.policy import Policy
from consilience.testing.fakes import members, scripted
from consilience.wire.envelope import Request
from tests.assisted.assisted import SIGNED, Parties, check_tables, parties
from tests.rotation import by_turns

DEFAULT = Policy(preset="consortium", share_response=True)
OUTPUTS = ("predictor", "coefficients", "rows", "table")


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """Overflow and the like are no warnings for a user to puzzle over."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def method(name: str = "binomial", **settings: Any) -> AssistedGLM:
    plain = {"family": name, "response": "share", "holdout": 0.0, "exchange": "turns"}
    return AssistedGLM(**{**plain, **settings})


def refused(federation: Federation, how: AssistedGLM, words: str, out: Path | None = None) -> str:
    """Run; the error must be one sentence with these words, and no site may keep a result."""
    with pytest.raises(ConsilienceError, match=words) as caught:
        how.run(federation, seed=1, out=out)
    said = str(caught.value)
    assert "\n" not in said and "own log" not in said
    for site in members(federation).values():
        home: Any = site.home
        for run in home.runs():
            kept = [n for n in home.output_names(run) if any(word in n for word in OUTPUTS)]
            assert kept == [], f"{site.name} kept {kept}"
    if out is not None:
        assert not (out / "result.json").exists()
        with pytest.raises(RunError):
            load_run(out)
    return said


# --------------------------------------------------------------------------- the response


@pytest.mark.parametrize("by", ["a", "b", "both"])
@pytest.mark.parametrize(
    ("how", "policy"),
    [
        ({}, SIGNED),
        ({}, DEFAULT),
        ({"holdout": 0.3, "interval": "none"}, SIGNED),
        ({"acceleration": "none", "n_rounds": 6}, SIGNED),
        ({"acceleration": "anderson", "n_rounds": 6}, SIGNED),
    ],
    ids=["full", "default", "without intervals", "none", "anderson"],
)
def test_separation(by: str, policy: Policy, how: dict[str, Any], tmp_path: Path) -> None:
    them = parties(n=200)
    a, b = them.blocks["a"][:, 0], them.blocks["b"][:, 0]
    them = them.with_(y=({"a": a, "b": b, "both": a + b}[by] > 0).astype(float))
    federation = them.federation(policy)
    said = refused(federation, method(**how), "separate the response", tmp_path / "run")
    assert "set a penalty" in said and "a refused" in said


def test_separation_is_no_matter_under_a_penalty() -> None:
    them = parties(n=200)
    them = them.with_(y=(them.blocks["a"][:, 0] + them.blocks["b"][:, 0] > 0).astype(float))
    run = method(alpha=0.02, tol=1e-9, n_rounds=100).run(them.federation(), seed=1)
    eta = them.pooled("binomial", ridge=0.02).eta
    np.testing.assert_allclose(them.values(run, "a", "linear_predictor"), eta, atol=1e-5)


def test_counts_that_are_all_zero_beyond_a_limit_separate_too() -> None:
    them = parties("poisson", n=200, n_new=0)
    y = np.where(them.blocks["b"][:, 0] > 0, 0.0, 1.0 + (np.arange(200) % 3))
    gone = them.with_(y=y, blocks={**them.blocks, "b": np.abs(them.blocks["b"])})
    gone.blocks["b"][:, 0] = (y == 0).astype(float)
    refused(gone.federation(), method("poisson"), "separate the response")


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_one_class(value: float, tmp_path: Path) -> None:
    them = parties(n=100)
    them = them.with_(y=np.where(them.known, value, np.nan))
    words = "a refused: the response does not fit the family 'binomial': it must be of both classes"
    refused(them.federation(), method(), words, tmp_path / "run")


def test_one_class_among_the_training_rows() -> None:
    """The only case is held out in a fifth of the tables."""
    them = parties(n=100, n_new=0)
    said = []
    for row in range(30):
        alone = them.with_(y=np.arange(100) == float(row))
        try:
            method(holdout=0.5, n_rounds=1).run(alone.federation(), seed=1)
            said.append(False)
        except QuorumError as refusal:
            said.append("training rows does not fit: it must be of both" in str(refusal))
    # None of 30 is held out with a probability of .001.
    assert any(said) and not all(said)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("binomial", lambda y: y + 0.5, "0 or 1"),
        ("binomial", lambda y: y + 1, "0 or 1"),
        ("poisson", lambda y: y - 1, "whole numbers of at least 0"),
        ("poisson", lambda y: y + 0.5, "whole numbers of at least 0"),
        ("poisson", lambda y: y * 0, "above 0 in some record"),
        ("gamma", lambda y: np.floor(y), "above 0"),
        ("tweedie", lambda y: y - 1, "at least 0"),
        ("normal", lambda y: y * 0 + 3, "one value only"),
        ("normal", lambda y: y * 0, "one value only"),
        ("gamma", lambda y: y * 0 + 3, "one value only"),
        ("normal", lambda y: y * 1e200, "at most 1e.100 in size"),
    ],
)
def test_a_response_that_does_not_fit(name: str, change: Any, words: str) -> None:
    them = parties(name, n=100, seed=2)
    refused(them.with_(y=change(them.y)).federation(), method(name), f"a refused: .*{words}")


def test_no_response_at_all() -> None:
    them = parties("normal", n=100)
    them = them.with_(y=np.full(100, np.nan))
    refused(them.federation(), method("normal"), "no matched row has a response")


def test_whether_the_response_is_given_must_be_said(tmp_path: Path) -> None:
    federation = scripted(parties(n=100).federation(Policy(preset="consortium")))
    refused(
        federation,
        AssistedGLM(),
        r"b needs the response .*: set response = 'share' .* or 'masked'",
        tmp_path / "run",
    )
    engine: Any = federation.engine
    steps = {Request.from_bytes(data).step for data in engine.requests.values()}
    assert not {s for s in steps if s.startswith(("open_", "share", "receive", "turn"))}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"family": "logit"}, "family"),
        ({"response": "give"}, "response"),
        ({"flip": 0.5, "response": "masked"}, "flip"),
        ({"family": "poisson", "response": "masked"}, "flips a response of 0 and 1"),
        ({"acceleration": "fast"}, "acceleration"),
        ({"alpha": -1.0}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"l1_ratio": 1.5}, "l1_ratio"),
        ({"n_rounds": 0}, "n_rounds"),
        ({"n_rounds": 2.5}, "n_rounds"),
        ({"tol": 0.0}, "tol"),
        ({"holdout": 1.0}, "holdout"),
        ({"exchange": "once"}, "exchange"),
        ({"interval": "inflated"}, "acceleration = 'none'"),
        ({"level": 1.0}, "level"),
        ({"family": "tweedie", "power": 2.0}, "power"),
    ],
)
def test_parameters_out_of_range(settings: dict[str, Any], words: str) -> None:
    given = {"response": "share", **settings}
    with pytest.raises(StudyError, match=words):
        AssistedGLM(**given).run(parties(n=100).federation(), seed=1)


# --------------------------------------------------------------------------- the columns


def test_dependent_columns_on_both_sides() -> None:
    them = parties(seed=3)
    a, b = them.blocks["a"], them.blocks["b"]
    a = np.column_stack([a, a @ [1.0, -2.0, 0.5]])
    b = np.column_stack([b, b[:, 0] - b[:, 1], np.full(len(b), 7.0)])
    names = {"a": tuple("pqrs"), "b": tuple("tuvwxy")}
    them = them.with_(blocks={"a": a, "b": b}, names=names)
    run = method().run(them.federation(), seed=1)
    pooled = them.pooled("binomial")
    np.testing.assert_allclose(
        them.values(run, "a", "linear_predictor"), pooled.eta, rtol=1e-8, atol=1e-8
    )
    # p, q, r, s depend on each other, as do t, u, x; y is constant; v, w and the constant are left.
    assert check_tables(run, them, pooled) == 3
    assert run.result.revealed == {"a": (3, 3), "b": (4, 4)}
    assert "cannot be told from those of other columns" in run.result.summary()


@pytest.mark.parametrize("standardize", ["none", "site"])
def test_a_partner_with_constant_columns(standardize: Any) -> None:
    them = parties(n=100, seed=4)
    them = them.with_(blocks={**them.blocks, "b": np.ones((100, 4)) * [0.0, 1.0, 2.5, 1e6]})
    federation = them.federation(preparation=Preparation(standardize=standardize))
    refused(federation, method(), "b refused: the partner's columns are constant")


def test_an_initiator_with_constant_columns() -> None:
    """It has nothing of its own to say, and the partner everything."""
    them = parties(n=150, seed=4)
    them = them.with_(blocks={"a": np.full((150, 3), 2.0), "b": them.blocks["b"]})
    run = method().run(them.federation(), seed=1)
    np.testing.assert_allclose(
        them.values(run, "a", "linear_predictor"), them.pooled("binomial").eta, atol=1e-8
    )


@pytest.mark.parametrize("policy", [SIGNED, DEFAULT], ids=["full", "default"])
def test_a_partner_that_duplicates_the_initiators_columns(policy: Policy) -> None:
    them = parties(seed=5)
    turn = np.random.default_rng(5).normal(size=(3, 4))
    them = them.with_(blocks={"a": them.blocks["a"], "b": them.blocks["a"] @ turn + 4.0})
    run = method(holdout=0.25).run(them.federation(policy), seed=1)
    result = run.result
    assert result.stopped == "nothing new"
    np.testing.assert_allclose(result.deviance["joint"], result.deviance["alone"], rtol=1e-9)
    np.testing.assert_allclose(result.holdout["alone_minus_joint"], 0, atol=1e-9)
    assert "no clear difference" in result.summary() and "nothing new" in result.summary()
    if policy is SIGNED:
        assert set(result.own_coefficients["status"]) == {"shared"}
        assert np.isnan(result.own_coefficients["estimate"]).all()
        alone = them.with_(blocks={"a": them.blocks["a"]}).pooled("binomial")
        np.testing.assert_allclose(them.values(run, "a", "linear_predictor"), alone.eta, atol=1e-8)
    else:
        assert not np.isfinite(result.own_coefficients["error"]).any()


def test_scales_far_apart() -> None:
    them = parties("poisson", seed=6)
    blocks = {"a": them.blocks["a"] * 1e-9, "b": them.blocks["b"] * [1e9, 1.0, 1e-6, 1e3]}
    scaled = them.with_(blocks=blocks)
    run = method("poisson").run(scaled.federation(), seed=1)
    np.testing.assert_allclose(
        them.values(run, "a", "linear_predictor"), them.pooled("poisson").eta, atol=1e-8
    )


@pytest.mark.parametrize("name", ["poisson", "gamma", "tweedie"])
@pytest.mark.parametrize("size", [1e6, 1e15, 1e99])
def test_means_of_any_size_overflow_nowhere(name: str, size: float) -> None:
    them = parties(name, seed=7)
    y = them.y.copy()
    y[np.flatnonzero(them.known)[:5]] = size
    x = them.blocks["b"] * np.where(np.arange(300) == 50, 1e4, 1.0)[:, None]
    run = method(name).run(them.with_(y=y, blocks={**them.blocks, "b": x}).federation(), seed=1)
    assert np.isfinite(run.result.deviance["joint"])
    assert run.result.deviance["joint"] <= run.result.deviance["alone"]
    assert np.isfinite(them.values(run, "a", "linear_predictor")).all()


@pytest.mark.parametrize("site", ["a", "b"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_cells_without_a_number(site: str, value: float) -> None:
    them = parties(n=100)
    x = them.blocks[site].copy()
    x[3, 1] = value
    federation = them.with_(blocks={**them.blocks, site: x}).federation()
    words = "missing values" if np.isnan(value) else "infinite values"
    refused(federation, method(), f"{site} refused: a column: {words}")


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan, np.inf])
def test_case_weights_that_are_none(weight: float) -> None:
    them = parties(n=100, weights=True)
    assert them.weights is not None
    v = them.weights.copy()
    v[3] = weight
    refused(them.with_(weights=v).federation(), method(), "a refused: a column")


# --------------------------------------------------------------------------- rows


def of(frames: dict[str, Any], them: Parties, **settings: Any) -> Federation:
    return Federation.local(frames, columns=them.columns(), **{"policy": SIGNED, **settings})


def test_no_common_ids(tmp_path: Path) -> None:
    them = parties(n=100)
    frames = them.frames()
    frames["b"]["id_b"] = [f"other {i}" for i in frames["b"]["id_b"]]
    federation = of(frames, them)
    said = refused(federation, method(), "0 rows are common to a and b", tmp_path / "run")
    assert "same partner key" in said


def test_other_partner_keys_have_no_common_ids() -> None:
    them = parties(n=100)
    federation = them.federation()
    members(federation)["b"]._partner_key = bytes(range(32))
    refused(federation, method(), "0 rows are common|not made with the partner key")


def test_too_few_common_rows() -> None:
    them = parties(n=100)
    few = them.frames()
    ids = few["b"]["id_b"]
    few["b"]["id_b"] = np.where(ids.isin(them.ids[:9]), ids, "other " + ids)
    refused(of(few, them), method(), "9 rows are common to a and b")
    none = {s: f[f[f"id_{s}"].isin(them.ids[:9])] for s, f in them.frames().items()}
    refused(of(none, them), method(), "too few rows have an id of their own")
    strict = dataclasses.replace(SIGNED, min_records=30)
    some = {s: f[f[f"id_{s}"].isin(them.ids[:25])] for s, f in them.frames().items()}
    refused(of(some, them, policy={"a": SIGNED, "b": strict}), method(), "too few")


@pytest.mark.parametrize(("sizes", "site"), [((12, 3), "a"), ((3, 15), "b")])
def test_more_columns_than_rows_can_tell(sizes: tuple[int, int], site: str) -> None:
    them = parties("normal", n=25, sizes=sizes, n_new=0)
    words = f"{site} refused: the training rows are fewer than twice the"
    refused(them.federation(), method("normal"), words)
    run = method("normal", alpha=0.1).run(them.federation(), seed=1)
    assert run.result.deviance["joint"] <= run.result.deviance["alone"] * (1 + 1e-9)


def test_more_columns_together_than_rows() -> None:
    them = parties("normal", n=24, sizes=(8, 8, 9), n_new=0)
    federation = them.federation()
    words = "as many columns together as there are rows"
    refused(federation, method("normal"), words)


def test_more_columns_than_rows_under_a_lasso() -> None:
    them = parties("normal", n=60, sizes=(50, 60), seed=8, effect=0.3)
    run = method("normal", alpha=0.5, l1_ratio=1.0, n_rounds=60).run(them.federation(), seed=1)
    assert run.result.stopped == "converged"
    assert run.result.revealed["b"][1] == 59, "the rank, not the number of columns"
    assert len(run.result.own_coefficients["name"]) == 0
    assert any("coefficients of a stay there" in note for note in run.notes)
    table = run.site("a").to_frame("coefficients")
    assert 0 < (table["estimate"][1:] != 0).sum() < 50
    assert np.isnan(run.result.remaining)


def test_repeated_and_missing_ids_are_told_to_their_owner_only() -> None:
    them = parties(n=120, seed=9)
    frames = them.frames()
    place = {one: k for k, one in enumerate(frames["b"]["id_b"])}
    twice, gone = them.ids[[3, 4]], them.ids[[7]]
    frames["b"].loc[place[them.ids[5]], "id_b"] = twice[0]
    frames["b"].loc[place[them.ids[6]], "id_b"] = twice[1]
    frames["b"].loc[place[gone[0]], "id_b"] = None
    federation = of(frames, them)
    run = method().run(federation, seed=1)
    left = np.isin(them.ids, [*twice, *gone, them.ids[5], them.ids[6]])
    assert run.result.n_records == (them.known & ~left).sum()
    said = " ".join(str(line.get("said", "")) for line in federation.log("b"))
    assert "4 rows repeat an id" in said and "1 rows have no id" in said
    other = " ".join(str(line.get("said", "")) for line in federation.log("a"))
    assert "repeat" not in other and "no id" not in other
    text = repr(run.result) + repr(run.notes) + repr(run.transcript)
    assert "repeat an id" not in text


# --------------------------------------------------------------------------- a partner is lost


def steps_and_rounds(them: Parties, how: AssistedGLM) -> dict[int, tuple[str, str]]:
    federation = scripted(them.federation())
    how.run(federation, seed=1)
    engine: Any = federation.engine
    return {r: (Request.from_bytes(d).step, s) for (r, s), d in engine.requests.items()}


@by_turns(
    ["contribute", "receive", "finish", "record"],
    ["refused", "absent", "late"],
    names="moment, action",
)
def test_a_partner_lost_and_the_run_resumed(moment: str, action: Any, tmp_path: Path) -> None:
    them = parties("normal", n=120, sizes=(3, 4, 2), seed=10)
    how = method("normal", holdout=0.2)
    undisturbed = how.run(them.federation(), seed=1)
    places = steps_and_rounds(them, how)
    rounds = [r for r, (step, _) in places.items() if step == moment]
    round_ = rounds[len(rounds) // 2]
    site = places[round_][1]
    federation = scripted(them.federation(), {(round_, site): action})
    out = tmp_path / "run"
    with pytest.raises(QuorumError, match=site) as caught:
        how.run(federation, seed=1, out=out)
    assert "\n" not in str(caught.value)
    # Nothing half-trained is reported as done.
    assert not (out / "result.json").exists()
    with pytest.raises(RunError, match="has not ended"):
        load_run(out)
    plain = dataclasses.replace(federation, engine=LocalEngine(members(federation).values()))
    for one in members(plain).values():
        one.confirm = None
    run = how.run(plain, out=out, resume=True, retry_refused=True)
    assert run.result.to_files() == undisturbed.result.to_files()
    np.testing.assert_array_equal(
        them.values(run, "a", "prediction"), them.values(undisturbed, "a", "prediction")
    )
    assert load_run(out).result.to_files() == undisturbed.result.to_files()
    # Asked twice, a partner reveals no more than if it had been asked once.
    assert run.result.revealed == undisturbed.result.revealed


def test_a_partner_lost_for_good_leaves_no_result(tmp_path: Path) -> None:
    them = parties("normal", n=120, seed=11)
    how = method("normal")
    places = steps_and_rounds(them, how)
    round_ = next(r for r, (step, _) in places.items() if step == "contribute") + 2
    federation = scripted(them.federation(), {(round_, "b"): "absent"})
    refused(federation, how, "b was absent", tmp_path / "run")
    with pytest.raises(QuorumError, match="b was absent"):
        how.run(federation, out=tmp_path / "run", resume=True, retry_refused=True)
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_partner_that_answers_with_nonsense_is_refused() -> None:
    """Bytes of a reply that were altered on the way end the run, or nothing comes of them."""
    them = parties("normal", n=120, seed=12)
    how = method("normal")
    wanted = how.run(them.federation(), seed=1).result
    places = steps_and_rounds(them, how)
    round_ = next(r for r, (step, _) in places.items() if step == "contribute")

    def flip(data: bytes) -> bytes:
        at = len(data) // 2
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    federation = scripted(them.federation(), {(round_, "b"): flip})
    try:
        run = how.run(federation, seed=1)
    except ConsilienceError as error:
        assert "\n" not in str(error)
    else:
        assert run.result.to_files() == wanted.to_files()

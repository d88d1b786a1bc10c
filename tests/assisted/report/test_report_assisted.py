"""Reports of assisted learning: no claim beyond the evidence, ranks and prices in their place."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from consilience import Columns, Federation, Policy, load_run
from consilience import report as room
from consilience.assisted.glm import AssistedGLM
from consilience.assisted.report import (
    assistance_test,
    assisted_glm,
    figures_assisted,
)
from consilience.assisted.test import AssistanceTest
from consilience.engines.federation import Run
from consilience.protocol.method import Method
from consilience.report import charts, disclosure, html
from consilience.report.html import meanings_of
from consilience.report.sections import Block, MethodReport, Table, p_value, report_of
from consilience.wire.transcript import Line
from tests.assisted.report.assisted_results import joint_fit, partner_test, power_grid, run_of
from tests.collaborators.report.test_report_meta_clustering import drawn, letters, spoken
from tests.report.test_report import ANCHORS, Page
from tests.report.told import answered

TEST, GLM = assistance_test.AssistanceTestReport(), assisted_glm.AssistedGLMReport()
NAN = float("nan")
UNTESTED = {
    "lab": {
        "score": {
            "statistic": np.array([NAN]),
            "df": np.array([0]),
            "p": np.array([NAN]),
            "combined": NAN,
        }
    }
}
NO_ROUNDS: dict[str, Any] = {
    key: np.empty(0) for key in ("round", "deviance", "change", "numbers_sent")
} | {"partner": ()}
NO_HOLDOUT = dict.fromkeys(("null", "alone", "joint", "alone_minus_joint", "error"), NAN)

TESTS: dict[str, Callable[[], Any]] = {
    "useful": partner_test,
    "nothing": lambda: partner_test({"lab": 0.3}),
    "nothing-weak": lambda: partner_test({"lab": 0.3}, n=40),
    "several": lambda: partner_test({"lab": 6.0, "bank": 0.2, "shop": 5.0}),
    "no-noise": lambda: partner_test(epsilon=None),
    "one-draw": lambda: partner_test(draws=1),
    "given": lambda: partner_test(given=("bank",)),
    "few-rare": lambda: partner_test({"lab": 2.4}, test="wald", minority=4.2),
    "warned": lambda: partner_test(warnings=("column 2 of the mixtures adds nothing new",)),
    "no-classes": lambda: partner_test(family="normal", minority=NAN),
    "no-power": lambda: partner_test(power={}),
    "untested": lambda: partner_test(tests=UNTESTED, useful={"lab": False}, n_draws=1),
    "left-out": lambda: partner_test(left_out={"bank": "it did not answer in time"}),
    "tiny": lambda: partner_test({"lab": 40.0}),
    "many": lambda: partner_test({f"partner number {i} $x$ <b>": 0.5 * i for i in range(12)}),
}
FITS: dict[str, Callable[[], Any]] = {
    "gain": joint_fit,
    "no-gain": lambda: joint_fit(saved=0.01),
    "loss": lambda: joint_fit(saved=-0.08),
    "no-holdout": lambda: joint_fit(
        n_holdout=0, holdout=NO_HOLDOUT, auc={"alone": NAN, "joint": NAN}
    ),
    "few-held-out": lambda: joint_fit(n_holdout=20),
    "rank": lambda: joint_fit(stopped="rank", remaining=3.2),
    "rounds": lambda: joint_fit(stopped="rounds"),
    "masked": lambda: joint_fit(response="masked", flip=0.2),
    "poisson": lambda: joint_fit(family="poisson", auc={}),
    "several": lambda: joint_fit(partners=("lab", "bank")),
    "wide": lambda: joint_fit(columns=70),
    "penalised": lambda: joint_fit(penalty={"alpha": 0.1, "l1_ratio": 0.0}),
    "no-rounds": lambda: joint_fit(rounds=0, rounds_table=NO_ROUNDS, stopped="nothing new"),
    "no-error": lambda: joint_fit(error=NAN),
    "all-shared": lambda: shared_only(),
    "new": lambda: joint_fit(n_new=12, intervals=intervals("joint")),
    "new-inflated": lambda: joint_fit(n_new=12, intervals=intervals("inflated")),
    "new-paper": lambda: joint_fit(n_new=12, intervals=intervals("paper")),
    "new-without": lambda: joint_fit(n_new=12),
    "few-new": lambda: joint_fit(n_new=-1, intervals={**intervals("joint"), "certified": -1}),
    "complete": lambda: joint_fit(complete=True),
    "later": lambda: later(),
    "untrained": lambda: joint_fit(
        saved=0.0, error=0.0, rounds=0, stopped="rank", rounds_table=NO_ROUNDS
    ),
    "useless": lambda: joint_fit(
        response="masked",
        flip=0.2,
        saved=-9e3,
        error=3e3,
        deviance={"null": 300.0, "alone": 250.0, "joint": 1.4e6},
    ),
    "all-revealed": lambda: joint_fit(revealed={"clinic": (6, 6), "lab": (7, 7)}),
}


def shared_only() -> Any:
    base = joint_fit(columns=3)
    nothing = np.full(3, NAN)
    of: dict[str, Any] = dict.fromkeys(("estimate", "error", "z", "p", "factor"), nothing)
    return joint_fit(
        columns=3, own_coefficients={**base.own_coefficients, **of, "status": ("shared",) * 3}
    )


def later() -> Any:
    """People predicted with the model of an earlier run: nothing was fitted."""
    nothing: dict[str, Any] = {"alone": NAN, "joint": NAN}
    return joint_fit(
        n_new=40,
        n_records=0,
        n_holdout=0,
        rounds=0,
        rounds_table=NO_ROUNDS,
        stopped="converged",
        followed="study-1",
        deviance={**nothing, "null": NAN},
        holdout=NO_HOLDOUT,
        pseudo_r2=nothing,
        auc=nothing,
        own_coefficients={},
        alone={},
        calibration={},
        intervals={**intervals("joint"), "n_new": 40, "certified": 40},
    )


def intervals(kind: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "n_new": 12,
        "certified": 8,
        "bounded": 3,
        "level": 0.95,
        "mean_width": 0.213,
    }


def blocks(report: MethodReport, result: Any) -> dict[str, Block]:
    return {block.title: block for block in report.evidence(run_of(result, "x"))}


def table(block: Block, caption: str) -> Table:
    return next(t for t in (*block.tables, *block.folded) if t.caption == caption)


def check_everything(report: MethodReport, result: Any) -> None:
    run = run_of(result, "x")
    said = report.headline(run)
    assert said.text.endswith((".", ").")) and len(said.text) < 700
    names = []
    for block in report.evidence(run):
        text = spoken(block)
        assert not re.search(r"\b(nan|inf|None)\b", text), text
        for drawing in (block.picture,) if block.picture else ():
            assert drawing.alt and drawing.caption
            assert "<svg" in drawn(drawing.figure)
            names.append(drawing.name)
        for t in (*block.tables, *block.folded):
            assert t.rows and all(len(row) == len(t.head) for row in t.rows)
            assert len(set(t.head)) == len(t.head)
    assert len(set(names)) == len(names)
    assert report.facts(run)
    assert len(report.limits(run)) >= 7
    everything = (said.text, *said.more, *report.handling(run), *report.limits(run))
    for words in everything:
        assert not re.search(r"\b(nan|inf|None)\b|[^.]\.\.[^.]|  ", words), words


@pytest.mark.parametrize("case", TESTS)
def test_every_outcome_of_a_test_can_be_told(case: str) -> None:
    check_everything(TEST, TESTS[case]())


@pytest.mark.parametrize("case", FITS)
def test_every_outcome_of_a_fit_can_be_told(case: str) -> None:
    check_everything(GLM, FITS[case]())


@pytest.mark.parametrize("method", [AssistanceTest, AssistedGLM])
def test_every_parameter_says_what_it_means(method: type[Method]) -> None:
    words = meanings_of(method)
    assert [f.name for f in dataclasses.fields(method) if not words.get(f.name)] == []


def test_methods_find_their_reports() -> None:
    assert isinstance(report_of("assistance-test"), assistance_test.AssistanceTestReport)
    assert isinstance(report_of("assisted-glm"), assisted_glm.AssistedGLMReport)


# --- the test of a partner ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "tone", "text"),
    [
        ("useful", "good", "The columns of lab are of use to clinic"),
        ("nothing", "caution", "No evidence that the columns of lab are of use to clinic"),
        ("no-noise", "good", "level 0.05"),
        ("given", "good", "given bank"),
        ("few-rare", "caution", "Wald test"),
        ("untested", "caution", "lab could not be tested."),
    ],
)
def test_headline_of_a_test(case: str, tone: str, text: str) -> None:
    said = TEST.headline(run_of(TESTS[case](), "x"))
    assert text in said.text
    assert said.tone == tone


def test_headline_tells_useful_partners_from_others() -> None:
    said = answered(TEST.headline(run_of(TESTS["several"](), "x")))
    assert "The columns of lab and shop are of use" in said
    assert "No evidence that the columns of bank are of use" in said


def test_partners_without_a_sketch_are_named_with_the_reason() -> None:
    run = run_of(TESTS["left-out"](), "x")
    assert "bank sent no mixtures." in TEST.headline(run).more
    assert "bank was not tested: it did not answer in time." in TEST.handling(run)


def test_headline_without_evidence_given_others() -> None:
    said = TEST.headline(run_of(partner_test({"lab": 0.3}, given=("bank",)), "x")).text
    assert "of use to clinic, given bank (score test" in said


def test_nothing_found_is_told_beside_what_could_have_been_found() -> None:
    weak = TEST.headline(run_of(partner_test({"lab": 0.3}, n=40), "x"))
    assert weak.tone == "caution"
    assert any("no sign that lab is of no use" in m for m in weak.more)
    grid = power_grid()
    title = "Could it have been seen?"
    assert "says little" in blocks(TEST, partner_test({"lab": 0.3}, n=40))[title].warning
    assert not blocks(TEST, partner_test({"lab": 9.0}, n=40))[title].warning
    strong = partner_test({"lab": 0.3}, power={"lab": {**grid, "power": np.ones((7, 3))}})
    said = TEST.headline(run_of(strong, "x"))
    assert said.tone == "plain"
    assert any("lower the deviance by 0.01 per record" in m for m in said.more)


def test_table_holds_every_test_and_marks_the_one_that_decides() -> None:
    result = partner_test({"lab": 2.2, "bank": 0.0})
    found = blocks(TEST, result)["Which partners are of use?"]
    rows = table(found, "Tests").rows
    assert len(rows) == 8
    assert [r[1] for r in rows[:4]] == [
        "score (decides)",
        "Wald",
        "Wald, HC3",
        "likelihood ratio",
    ]
    for partner, kind, _, df, p, said in rows:
        key = {v: k for k, v in figures_assisted.KINDS.items()}[kind.replace(" (decides)", "")]
        combined = result.tests[partner][key]["combined"]
        assert p == p_value(combined)
        assert said == ("yes" if combined < 0.05 else "no")
        assert df == "3"
    assert len(table(found, "p-value of every draw").rows) == 6


def test_price_stands_beside_the_bound_of_the_source() -> None:
    (row,) = table(blocks(TEST, partner_test())["What it cost"], "Price of the test").rows
    assert row == ("lab", "8", "24.8", "1.70", "24%", "3 of 7")
    (free,) = table(
        blocks(TEST, partner_test(epsilon=None))["What it cost"], "Price of the test"
    ).rows
    assert free[1:4] == ("no noise", "\N{EN DASH}", "\N{EN DASH}")


def test_few_records_of_the_rarer_class_are_warned_of() -> None:
    warned = blocks(TEST, partner_test(minority=3.0))["Is the partner of use?"].warning
    assert "rejects too often" in warned
    assert not blocks(TEST, partner_test(minority=30.0))["Is the partner of use?"].warning


def test_power_at_the_epsilon_of_the_run() -> None:
    grid = power_grid()
    at = dict(figures_assisted.power_at(partner_test(epsilon=8.0), "lab"))
    assert at[0.1] == pytest.approx(grid["power"][4, 2])
    between = dict(figures_assisted.power_at(partner_test(epsilon=6.0), "lab"))
    assert grid["power"][3, 2] < between[0.1] < grid["power"][4, 2]
    without = dict(figures_assisted.power_at(partner_test(epsilon=None), "lab"))
    assert without[0.01] == grid["power"][6, 0]
    outside = dict(figures_assisted.power_at(partner_test(epsilon=100.0), "lab"))
    assert np.isnan(outside[0.01])


# --- the joint model ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "tone", "text"),
    [
        ("gain", "good", "lower by 0.080 (95% interval 0.041 to 0.119)"),
        ("no-gain", "plain", "No evidence that training with lab predicts better"),
        ("loss", "caution", "predicts worse than clinic alone"),
        ("no-holdout", "caution", "no record was held out"),
        ("few-held-out", "caution", "predicts better"),
        ("no-error", "caution", "No evidence"),
        ("untrained", "caution", "No joint model: before the first round"),
        ("useless", "caution", "worse than a constant"),
    ],
)
def test_headline_of_a_fit(case: str, tone: str, text: str) -> None:
    said = GLM.headline(run_of(FITS[case](), "x"))
    assert text in said.text
    assert said.tone == tone


def test_nothing_held_out_is_told_beside_the_training_records() -> None:
    more = GLM.headline(run_of(joint_fit(saved=0.01), "x")).more
    assert "falls by 100.0 with at most 7 further coefficients" in more[0]
    assert "unlikely by chance" in more[0]
    same = {"null": 1240.0, "alone": 1003.0, "joint": 1000.0}
    more = GLM.headline(run_of(joint_fit(saved=0.01, deviance=same), "x")).more
    assert "too, the deviance falls no more than expected by chance" in more[0]
    for other in ({"family": "normal"}, {"response": "masked", "flip": 0.2}):
        more = GLM.headline(run_of(joint_fit(**other), "x")).more
        assert "likelihood ratio" not in " ".join(more)


def test_what_the_budget_of_directions_cost_is_said() -> None:
    result = FITS["rank"]()
    assert any(
        "the deviance by a further 3.20" in m for m in GLM.headline(run_of(result, "x")).more
    )
    assert "stopped it short" in blocks(GLM, result)["How training went"].warning


def test_shared_and_uncertified_coefficients_have_no_interval() -> None:
    result = joint_fit(columns=8)
    rows = table(blocks(GLM, result)["Coefficients of the model"], "Coefficients").rows
    dash = "\N{EN DASH}"
    by_status = {row[5].split(",")[0]: row for row in rows}
    assert by_status["shared"][1:5] == (dash,) * 4
    assert by_status["not certified"][1] != dash and by_status["not certified"][2:5] == (dash,) * 3
    assert by_status["bounded"][5] == "bounded, factor 1.200"
    half = figures_assisted.half_widths(result)
    status = list(result.own_coefficients["status"])
    assert half[status.index("identified")] == pytest.approx(1.96 * 0.2, rel=1e-4)
    assert half[status.index("bounded")] == pytest.approx(1.96 * 0.24, rel=1e-4)
    by_clusters = figures_assisted.half_widths(dataclasses.replace(result, n_clusters=11))
    np.testing.assert_allclose(by_clusters, half * stats.t(10).ppf(0.975) / stats.norm.ppf(0.975))
    assert np.isnan(half[[s in ("shared", "not certified") for s in status]]).all()
    text = letters(drawn(room.plot_assisted_coefficients(result)))
    assert "no coefficient: shared" in text and "joint, no interval" in text


def test_few_clusters_that_were_held_out_take_a_larger_difference() -> None:
    """At 2.5 standard errors: enough of many clusters, and not of four (t of 3 degrees)."""
    result = joint_fit()
    gain = {"alone_minus_joint": 0.05, "error": 0.02}
    result = dataclasses.replace(result, holdout={**result.holdout, **gain})
    few = dataclasses.replace(result, n_clusters=20, n_held_clusters=4)
    assert "predicts better than" in result.summary()
    assert "shows no clear difference to" in few.summary()
    told = " ".join(spoken(block) for block in blocks(GLM, few).values())
    assert "Only 4 clusters were held out" in told


def test_only_the_largest_of_many_coefficients_are_drawn() -> None:
    result = joint_fit(columns=70)
    rows = figures_assisted.shown_coefficients(result)
    z = np.abs(np.nan_to_num(result.own_coefficients["z"]))
    assert len(rows) == 40 and z[rows].min() >= np.sort(z)[-40]
    assert len(table(blocks(GLM, result)["Coefficients of the model"], "Coefficients").rows) == 70


def test_calibration_that_is_not_there_is_missed_by_name() -> None:
    """Groups too small for the rules of a small table: the block would only be gone."""
    title = "Is the joint model better?"
    shown = blocks(GLM, joint_fit())[title]
    assert not any("No calibration is shown" in text for text in shown.text)
    nothing = {"predicted": np.full(2, NAN), "observed": np.full(2, NAN), "records": np.full(2, 6)}
    small = joint_fit(n_holdout=12, calibration={"alone": nothing, "joint": nothing})
    said = blocks(GLM, small)[title].text
    assert any("No calibration is shown" in text and "too few for groups" in text for text in said)


def test_comparison_has_its_error() -> None:
    found = blocks(GLM, joint_fit())["Is the joint model better?"]
    (row,) = table(found, "Held-out comparison").rows
    assert row == ("alone less joint", "0.080", "0.020", "0.041 to 0.119", "a gain")
    rows = table(found, "Deviance").rows
    assert [r[0] for r in rows] == ["constant only", "clinic alone", "joint model"]
    assert rows[2][1:] == ("1,000.0", "0.194", "1.17", "0.790")


@pytest.mark.parametrize("name", ["numbers sent so far", "round"])
def test_rounds_are_listed(name: str) -> None:
    rows = table(blocks(GLM, joint_fit())["How training went"], "Every round")
    assert name in rows.head and rows.rows[-1][-1] == "7,200"


def test_who_saw_the_response_is_said() -> None:
    shared = " ".join(GLM.handling(run_of(joint_fit(), "x")))
    assert "received the response itself" in shared
    masked = " ".join(GLM.handling(run_of(FITS["masked"](), "x")))
    assert "flipped with probability 0.2" in masked and "epsilon 1.39" in masked


def test_limits_say_that_training_is_not_private() -> None:
    for case in ("gain", "masked"):
        known = " ".join(GLM.limits(run_of(FITS[case](), "x")))
        assert "not differentially private" in known
        assert "column space" in known


@pytest.mark.parametrize(
    ("share", "n", "low", "high"),
    # Brown, Cai and DasGupta (2001): Wilson's interval keeps inside [0, 1] at the ends.
    [(0.5, 100, 0.4038, 0.5962), (0.0, 10, 0.0, 0.2775), (1.0, 10, 0.7225, 1.0)],
)
def test_wilson_interval(share: float, n: int, low: float, high: float) -> None:
    found = charts.wilson(np.array([share]), np.array([float(n)]))
    assert found[0][0] == pytest.approx(low, abs=1e-4)
    assert found[1][0] == pytest.approx(high, abs=1e-4)


def test_coefficients_of_very_different_size_are_all_seen() -> None:
    result = joint_fit(columns=4)
    result.own_coefficients["estimate"][0] = 5000.0
    (axes,) = room.plot_assisted_coefficients(result).axes
    assert axes.get_xscale() == "symlog"
    (axes,) = room.plot_assisted_coefficients(joint_fit(columns=4)).axes
    assert axes.get_xscale() == "linear" and "standard errors" not in axes.get_xlabel()


def test_columns_in_units_of_their_own_are_drawn_in_standard_errors() -> None:
    result = joint_fit(columns=4)
    result.alone["error"][3] = 0.18  # the own model knows all of its errors
    for name in ("estimate", "error"):
        result.own_coefficients[name][1] *= 1000
        result.alone[name][1] *= 1000
    (axes,) = room.plot_assisted_coefficients(result).axes
    assert axes.get_xscale() == "linear" and "standard errors" in axes.get_xlabel()


# --- revealed rank --------------------------------------------------------------------------


def line(site: str, round_: int, revealed: str = "", **changes: Any) -> Line:
    made = Line(
        run="r",
        round=round_,
        step="train",
        site=site,
        direction="from-site",
        audience="initiator",
        field="message",
        disclosure="per-record",
        shape="100",
        bytes=800,
        digest="",
        verdict="released",
        rule="projection",
        epsilon=0.0,
        revealed=revealed,
    )
    return dataclasses.replace(made, **changes)


LINES = (
    line("lab", 1, "2 of 7"),
    line("clinic", 1, "1 of 6", shape="sealed"),
    line("lab", 2, "3 of 7"),
    line("lab", 3, verdict="refused", field=""),
    line("clinic", 2, "6 of 6"),
)


def test_revealed_rank_is_read_from_the_transcript() -> None:
    run = dataclasses.replace(run_of(joint_fit(), "x"), transcript=LINES)
    assert disclosure.revealed(run) == {"clinic": (6, 6), "lab": (3, 7)}
    facts = dict(disclosure.key_figures(run))
    assert facts["revealed by lab"] == "3 of 7"
    found = {b.title: b for b in disclosure.disclosure(run, FakeMethod, GLM)}  # type: ignore[arg-type]
    block = found["How much of the columns is known"]
    rows = block.tables[0].rows
    assert rows == (("clinic", "1", "6", "6", "100%"), ("lab", "2", "3", "7", "43%"))
    assert block.warning.startswith("clinic has revealed every direction")
    by_field = found["Field by field"].folded
    lab = next(t for t in by_field if t.caption.startswith("lab"))
    assert lab.head[-1] == "revealed" and [r[-1] for r in lab.rows][:2] == ["2 of 7", "3 of 7"]
    assert "1 field (800 B) went from one site to another" in " ".join(found["In short"].text)


def test_runs_without_directions_say_nothing_of_them() -> None:
    lines = tuple(dataclasses.replace(x, revealed="", shape="100") for x in LINES)
    run = dataclasses.replace(run_of(joint_fit(), "x"), transcript=lines)
    found = {b.title: b for b in disclosure.disclosure(run, FakeMethod, GLM)}  # type: ignore[arg-type]
    assert "How much of the columns is known" not in found
    assert "revealed" not in found["Field by field"].folded[0].head
    assert not any(name.startswith("revealed") for name, _ in disclosure.key_figures(run))


# --- real runs ------------------------------------------------------------------------------


CANARY = "canary-91d2"
LAB = ("sodium-of-the-lab", "zinc-of-the-lab", "iron-of-the-lab")


@pytest.fixture(scope="module")
def federation() -> Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6))
    y = (rng.random(400) < 1 / (1 + np.exp(-x @ np.array([1, -1, 0, 1.5, 1, -1])))).astype(float)
    y[390:] = np.nan
    ids = [f"{CANARY}-{i:03d}" for i in range(400)]
    clinic = pd.DataFrame(x[:, :3], columns=["age", "<b>dose</b>", "price $ in $"])
    tables = {
        "clinic": clinic.assign(id=ids, y=y),
        "lab": pd.DataFrame(x[:, 3:], columns=list(LAB)).assign(id=ids),
    }
    columns = {
        "clinic": Columns(id="id", features=list(clinic.columns), target="y"),
        "lab": Columns(id="id", features=list(LAB)),
    }
    full = Policy(preset="consortium", share_response=True, max_revealed_rank="full")
    return Federation.local(tables, columns=columns, policy=full)


@pytest.fixture(scope="module", params=["assistance-test", "assisted-glm"])
def run(
    request: pytest.FixtureRequest, federation: Federation, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    method: Any = (
        AssistedGLM(response="share")
        if request.param == "assisted-glm"
        else AssistanceTest(n_directions=2)
    )
    return federation.run(method, seed=1, out=tmp_path_factory.mktemp("runs") / request.param)


@pytest.fixture(scope="module")
def rendered(run: Run) -> str:
    return html.render(run)


def test_report_of_a_real_run(rendered: str) -> None:
    page = Page(rendered)
    ids = [attrs.get("id") for tag, attrs in page.tags if tag == "section"]
    assert tuple(ids) == ANCHORS
    assert not any(tag in ("script", "b") for tag, _ in page.tags)
    assert "Each site chose its own columns" in page.text
    assert "encrypted with keys that only the two have" in page.text
    assert not re.search(r"\b(nan|inf|None)\b", page.text)


def test_report_of_a_real_run_holds_no_record_and_no_name_of_a_partners_column(
    rendered: str,
) -> None:
    assert CANARY not in rendered
    assert not any(name in rendered for name in LAB)


def test_rank_in_the_report_is_that_of_the_result(run: Run) -> None:
    told = disclosure.revealed(run)
    result: Any = run.result
    if run.info.method == "assisted-glm":
        # the clinic told nothing, since the lab opened its columns
        assert result.revealed["clinic"][0] == 0
        assert told == {s: tuple(ranks) for s, ranks in result.revealed.items() if ranks[0]}
    else:
        assert told == {"lab": (result.revealed["lab"], result.n_columns["lab"])}
    assert told["lab"][0] >= 2


def test_report_from_files_is_that_of_the_run(run: Run, rendered: str) -> None:
    assert run.directory is not None
    assert html.render(load_run(run.directory)) == rendered


class FakeMethod:
    """What the section on disclosure asks of a method."""

    leakage = "What was sent is listed."
    steps: ClassVar[dict[str, Any]] = {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_holdout": 225}, "a calibrated probability of each person, from the 225 held-out"),
        ({"n_holdout": 225, "family": "normal"}, "limits of the response of each person, at level"),
        ({"n_holdout": 18, "family": "normal"}, "Too few records were held out"),
        ({"n_holdout": 0, "family": "normal"}, "No record was held out, so nothing is said"),
        (
            {"n_holdout": 225, "n_clusters": 60, "n_held_clusters": 18, "family": "normal"},
            "Too few records were held out",
        ),
    ],
)
def test_new_people_are_told_what_is_known_of_their_response(
    changes: dict[str, Any], said: str
) -> None:
    result = joint_fit(n_new=12, intervals=intervals("joint"), **changes)
    words = " ".join(" ".join(blocks(GLM, result)["New people"].text).split())
    assert said in words
    has = said.startswith(("a calibrated", "limits"))
    assert bool(result.responses) is has is ("from the rows that were held out" in result.summary())

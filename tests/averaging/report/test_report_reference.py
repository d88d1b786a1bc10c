"""Report of reference averaging: each outcome is told as it is, at any size, every fact placed."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from consilience import Columns, Federation, Preparation
from consilience import report as room
from consilience.averaging.protocol import ReferenceAveraging
from consilience.averaging.protocol.result import ReferenceAveragingResult
from consilience.averaging.report import figures_reference, reference_averaging
from consilience.averaging.report import reference_averaging as words
from consilience.engines.federation import Run
from consilience.engines.rundir import RunInfo
from consilience.protocol.mean_and_sd import MeanAndSDResult
from consilience.report.sections import Block, Headline
from consilience.wire.transcript import Line
from tests.granted import GRANTED
from tests.report.told import answered, check_told, drawn, letters, spoken

REPORT = words.ReferenceAveragingReport()
PLOTS = (
    room.plot_reference_comparison,
    room.plot_reference_contributions,
    room.plot_reference_influence,
    room.plot_reference_probes,
    room.plot_reference_rounds,
)


def result_of(
    n_sites: int = 5,
    n_rounds: int = 8,
    *,
    gain: float = -0.15,
    error: float = 0.04,
    penalties: tuple[float, ...] = (),
    p: int = 4,
    seed: int = 0,
    **changes: Any,
) -> ReferenceAveragingResult:
    """A result as a run would make it; gain and error are shares of averaging's loss of 50."""
    rng = np.random.default_rng(seed)
    g, rounds = max(1, len(penalties)), np.arange(n_rounds + 1)
    base = np.array([50.0 + 2.0 * t for t in range(g)])
    path = 1 - np.exp(-rounds / 2.0)
    gains = gain * base[:, None] * path
    kept = bool(n_rounds and gain + error < 0)
    own = np.full(n_sites, 60.0) + rng.normal(size=n_sites)
    averaging = np.full(n_sites, 50.0)
    last = averaging + (gains[0, -1] if kept else 0.0)
    losses = np.stack([own, averaging, last], axis=1)
    influence = np.linspace(0.02, 0.06, n_sites) * np.exp(-rounds / 3.0)[:, None]
    made = ReferenceAveragingResult(
        feature_names=tuple(f"x{j}" for j in range(p)),
        target_name="y",
        levels=(),
        task="regression",
        loss="squared",
        estimator="ridge(alpha=1.0)",
        convention="sum",
        linear=True,
        least_squares=True,
        schedule="adaptive",
        rho=1.0,
        exponent=0.9,
        rho_scale=1.0,
        penalty_name="alpha",
        penalties=np.array(penalties, dtype=float),
        sites=tuple(f"s{i:03d}" for i in range(n_sites)),
        sizes=np.full(n_sites, 100.0),
        held=np.full(n_sites, 20.0),
        reference_kind="moments",
        n_reference=20 * p,
        reference_rank=p,
        reference_needed_rank=p,
        reference_condition=4.2,
        probes=np.column_stack([np.full(n_sites, 3e-5), np.full(n_sites, 1e-6)]),
        separable=True,
        rhos=np.array([0.0, *(k**0.9 for k in range(1, n_rounds + 1))]),
        contributed=np.ones((n_rounds + 1, n_sites), dtype=bool),
        movement=np.tile(np.concatenate([[0.0], 0.05 * np.exp(-rounds[1:] / 2.0)]), (g, 1)),
        influence=np.tile(influence, (g, 1, 1)),
        base_loss=base,
        gains=gains,
        gain_errors=np.abs(error) * base[:, None] * (rounds > 0),
        local_losses=losses,
        local_differences=losses[:, :2] - losses[:, 2:],
        local_errors=np.tile([4.0, 3.0], (n_sites, 1)),
        chosen_track=0,
        chosen_round=n_rounds if kept else 0,
        kept=kept,
        reason="gain" if kept else "no-gain",
        owners=tuple(f"s{i:03d}" for i in range(n_sites)),
        shares=np.full(n_sites, 1 / n_sites),
        models=(),
        slopes=np.linspace(-1, 1, p)[None, :],
        intercepts=np.array([0.5]),
        scaling=np.empty((0, 0)),
        remarks=(),
    )
    return dataclasses.replace(made, **changes)


def without_measure(n_sites: int = 5, **changes: Any) -> ReferenceAveragingResult:
    """Nothing was held out, as with guard=False."""
    base = result_of(n_sites)
    given: dict[str, Any] = {
        "held": np.zeros(n_sites),
        "base_loss": np.full(1, np.nan),
        "gains": np.full((1, 1), np.nan),
        "gain_errors": np.full((1, 1), np.nan),
        "local_losses": np.full((n_sites, 3), np.nan),
        "local_differences": np.full((n_sites, 2), np.nan),
        "local_errors": np.full((n_sites, 2), np.nan),
        "reason": "not-measured",
        "probes": np.full((n_sites, 2), np.nan),
        **changes,
    }
    return dataclasses.replace(base, **given)


def forest() -> ReferenceAveragingResult:
    return without_measure(
        estimator="random-forest",
        linear=False,
        least_squares=False,
        convention="trees",
        separable=False,
        reason="not-separable",
        kept=False,
        chosen_round=0,
        rhos=np.zeros(1),
        contributed=np.ones((1, 5), dtype=bool),
        movement=np.zeros((1, 1)),
        influence=result_of().influence[:, :1],
        probes=np.tile([0.15, 1e-12], (5, 1)),
        slopes=np.empty((0, 0)),
        intercepts=np.empty(0),
    )


def classes() -> ReferenceAveragingResult:
    return result_of(
        levels=("a", "b", "c"),
        task="classification",
        loss="log",
        estimator="logistic(C=1.0)",
        least_squares=False,
        slopes=np.arange(12.0).reshape(3, 4),
        intercepts=np.zeros(3),
        penalty_name="C",
    )


def gaps() -> ReferenceAveragingResult:
    base = result_of()
    told = base.contributed.copy()
    told[2:5, 1] = told[7, 1] = told[:, 3] = False
    influence = base.influence.copy()
    influence[:, :, 3] = np.nan
    losses, differences = base.local_losses.copy(), base.local_differences.copy()
    losses[3], differences[3] = np.nan, np.nan
    return dataclasses.replace(
        base,
        contributed=told,
        influence=influence,
        local_losses=losses,
        local_differences=differences,
        local_errors=np.where(np.isnan(differences), np.nan, base.local_errors),
    )


def asynchronous() -> ReferenceAveragingResult:
    base = result_of(schedule="asynchronous")
    only = np.zeros(9, dtype=bool)
    only[[0, 8]] = True
    return dataclasses.replace(
        base,
        gains=np.where(only, base.gains, np.nan),
        gain_errors=np.where(only, base.gain_errors, np.nan),
    )


CASES = {
    "gain": result_of,
    "weak-gain": lambda: result_of(gain=-0.05, error=0.04),
    "no-gain": lambda: result_of(gain=-0.02, error=0.04),
    "worse": lambda: result_of(gain=0.2),
    "grid": lambda: result_of(penalties=(0.1, 1.0, 10.0)),
    "grid-no-gain": lambda: result_of(penalties=(0.1, 1.0), gain=0.01),
    "not-measured": without_measure,
    "no-rounds": lambda: dataclasses.replace(forest(), reason="not-measured", separable=True),
    "not-separable": forest,
    "classes": classes,
    "two-levels": lambda: dataclasses.replace(
        classes(), levels=("a", "b"), slopes=np.ones((1, 4)), intercepts=np.zeros(1)
    ),
    "gaps": gaps,
    "asynchronous": asynchronous,
    "one-site": lambda: result_of(1),
    "many": lambda: result_of(80, 100, p=60),
    "one-round": lambda: result_of(n_rounds=1),
    "rank": lambda: result_of(
        reference_rank=2,
        reference_condition=np.inf,
        remarks=("The reference set has rank 2 and the columns need 4: few rows.",),
    ),
}


def run_of(result: ReferenceAveragingResult, transcript: tuple[Line, ...] = ()) -> Run:
    info = RunInfo(
        run="r",
        name="study",
        study="hash",
        method="reference-averaging",
        method_version=1,
        parameters={},
        release="0",
        libraries={},
        seed=1,
        sites=result.sites,
        engine="local",
    )
    return Run(info=info, result=result, transcript=transcript, notes=())


def line(round_: int, step: str, site: str, size: int, verdict: str = "released") -> Line:
    return Line(
        run="r",
        round=round_,
        step=step,
        site=site,
        direction="from-site",
        audience="coordinator",
        field="f",
        disclosure="model",
        shape="",
        bytes=size,
        digest="",
        verdict=verdict,
        rule="",
        epsilon=0.0,
    )


def headline(result: ReferenceAveragingResult) -> Headline:
    return REPORT.headline(run_of(result))


def blocks(result: ReferenceAveragingResult) -> dict[str, Block]:
    return {block.title: block for block in REPORT.evidence(run_of(result))}


@functools.cache
def blocks_of(case: str) -> dict[str, Block]:
    """Blocks of a case, to be read only."""
    return blocks(CASES[case]())


# --- every outcome --------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_every_outcome_can_be_told(case: str) -> None:
    check_told(REPORT, run_of(CASES[case]()), limits=7)


@pytest.mark.parametrize(
    ("case", "tone", "text"),
    [
        ("gain", "good", "after 8 rounds of refits the squared error on held-out rows is 14.7%"),
        ("weak-gain", "plain", "may still be chance"),
        ("no-gain", "plain", "No gain: round 8, the best of 8, is not better"),
        ("worse", "plain", "no round of refits lost less than averaging"),
        ("not-measured", "caution", "Not measured: there were no held-out rows"),
        ("not-separable", "caution", "refits of random-forest towards the average do not lead to"),
        ("classes", "good", "log loss"),
    ],
)
def test_headline_says_which_outcome_came(case: str, tone: str, text: str) -> None:
    said = headline(CASES[case]())
    assert said.tone == tone
    assert text in answered(said)
    returned = "Plain averaging is returned" in answered(said)
    assert returned == (case in ("no-gain", "worse", "not-separable"))


def test_the_kept_round_is_named_where_nothing_was_measured() -> None:
    assert "the fits of round 8 are returned" in headline(without_measure()).text
    nothing = dataclasses.replace(forest(), reason="not-measured", separable=True)
    assert "plain averaging is returned" in headline(nothing).text


def test_the_exact_way_is_named_where_there_is_one() -> None:
    def says(result: ReferenceAveragingResult) -> bool:
        return any("cross-products" in sentence for sentence in headline(result).more)

    assert says(result_of())
    assert says(result_of(estimator="lasso(alpha=0.1)"))
    other = result_of(estimator="poisson", least_squares=False)
    assert not says(other), "its loss is not the squared one"
    assert not says(classes())
    assert any("Newton" in sentence for sentence in REPORT.limits(run_of(classes())))
    assert not says(forest())
    # 8 numbers of 8 bytes left in all: the sums would be dearer, so they are not advertised.
    dear = run_of(result_of(), (line(1, "fit", "s000", 64),))
    assert not any("cross-products" in s for s in REPORT.headline(dear).more)
    cheap = run_of(result_of(), (line(1, "fit", "s000", 640_000),))
    assert any("instead of 640.0 kB" in s for s in REPORT.headline(cheap).more)


def test_a_fit_that_is_worse_than_the_sites_own_is_not_hidden() -> None:
    base = result_of()
    worse = dataclasses.replace(base, local_differences=base.local_differences - [30.0, 0.0])
    assert any("worse than the sites' own fits" in s for s in headline(worse).more)
    assert any("better than the sites' own fits" in s for s in headline(base).more)
    unclear = dataclasses.replace(base, local_errors=np.full((5, 2), 60.0))
    assert any("no clear difference" in s for s in headline(unclear).more)


def test_a_learner_that_fails_the_probe_is_told_why() -> None:
    assert any("Forests" in s for s in headline(forest()).more)
    stopped = dataclasses.replace(forest(), convention="sum", estimator="logistic(tol=0.1)")
    assert any("smaller tolerance" in s for s in headline(stopped).more)


def test_too_small_a_reference_is_in_the_answer() -> None:
    assert any("rank 2" in s for s in headline(CASES["rank"]()).more)
    assert "rank 2" in blocks_of("rank")["The reference rows"].warning


# --- evidence -------------------------------------------------------------------------------


def test_rounds_that_end_too_early_are_said_to() -> None:
    still = result_of(n_rounds=2)
    title = "What the rounds gained and cost"
    assert "more rounds may gain more" in blocks(still)[title].warning
    done = result_of(n_rounds=40)
    assert not blocks(done)[title].warning
    assert "more of them would bring little" in spoken(blocks(done)[title])


def test_shares_are_of_the_loss_of_averaging() -> None:
    result = result_of(gain=-0.2, n_rounds=60)
    gain, error = figures_reference.curve(result)
    assert gain[-1] == pytest.approx(-0.2)
    assert error[-1] == pytest.approx(0.04)
    assert figures_reference.loss_unit(result) == pytest.approx(50.0)


def test_totals_are_those_of_the_rounds() -> None:
    table = blocks_of("gain")["Compared with each site's own fit and plain averaging"].tables[0]
    total = dict(zip(table.head, table.rows[-1], strict=True))
    assert total["site"] == "all sites"
    assert total["held out"] == "100"
    assert float(total["averaging"]) == pytest.approx(50.0)
    assert total["reduction against averaging"] == "14.7%"


def test_no_total_is_made_of_different_sites() -> None:
    table = blocks_of("gaps")["Compared with each site's own fit and plain averaging"].tables[0]
    total = dict(zip(table.head, table.rows[-1], strict=True))
    assert total["own fit"] == total["averaging"] == "\N{EN DASH}"
    assert "figures for all sites are then those of the other sites" in table.note
    assert any("at the 4 of 5 sites that report it" in s for s in headline(gaps()).more)
    assert any("s003 withheld a loss" in s for s in REPORT.handling(run_of(gaps())))
    few = result_of(held=np.array([20.0, 20, 20, 0, 20]))
    assert any("s003 had too few rows" in s for s in REPORT.handling(run_of(few)))


def test_rounds_that_nobody_measured_are_not_called_the_best() -> None:
    told = spoken(blocks_of("asynchronous")["What the rounds gained and cost"])
    assert "Only the last round was measured" in told
    assert "last round is the best one" not in told


def test_sites_are_weighted_by_the_rows_they_held_out() -> None:
    result = result_of(2, held=np.array([30.0, 10.0]))
    values, errors = np.array([1.0, 5.0]), np.array([0.4, 0.8])
    mean, error = figures_reference.over_sites(result, values, errors)
    assert mean == pytest.approx(2.0)
    assert error == pytest.approx(np.hypot(0.75 * 0.4, 0.25 * 0.8))
    assert figures_reference.over_sites(result, np.array([np.nan, 5.0]), errors)[0] == 5.0


def test_bytes_of_each_round_are_those_of_the_transcript() -> None:
    result = result_of(2, 2)
    sent = [line(1, "site-moments.within", "s000", 7), line(1, "site-moments.within", "s001", 3)]
    for k in range(3):
        sent += [line(2 + k, "fit", s, 100) for s in ("s000", "s000", "s001")]
    sent += [line(5, "judge", "s000", 999), line(6, "conclude", "s001", 999)]
    sent.append(dataclasses.replace(sent[2], direction="to-site", bytes=10**6))
    found = figures_reference.bytes_by_round(result, sent)
    assert found.tolist() == [310, 610, 910]
    assert not len(figures_reference.bytes_by_round(result, sent[:5])), "a part of the transcript"
    svg = letters(drawn(room.plot_reference_rounds(result, sent)))
    assert "kilobytes that had left all sites by then" in svg
    assert "kilobytes" not in letters(drawn(room.plot_reference_rounds(result)))


def test_bytes_of_rounds_with_an_absent_site() -> None:
    result = result_of(2, 1, contributed=np.array([[True, True], [True, False]]))
    sent = [
        line(1, "fit", "s000", 10),
        line(1, "fit", "s001", 20),
        line(2, "fit", "s000", 40),
        line(2, "fit", "s001", 0, "absent"),
    ]
    assert figures_reference.bytes_by_round(result, sent).tolist() == [30, 70]


def test_without_waiting_a_round_is_as_many_answers_as_sites() -> None:
    result = result_of(2, 1, schedule="asynchronous")
    order = ("s000", "s001", "s000", "s000")
    sent = [line(1 + i, "fit", site, 2**i) for i, site in enumerate(order)]
    assert figures_reference.bytes_by_round(result, sent).tolist() == [3, 15]


def test_missing_contributions_are_shown_with_their_rounds() -> None:
    told = blocks_of("gaps")["Who contributed to which round"]
    (table,) = told.folded
    assert table.rows == (("s001", "5", "2\N{EN DASH}4, 7"), ("s003", "0", "0\N{EN DASH}8"))
    assert "s003 never sent a fit" in told.warning
    assert "All 5 sites answered" in spoken(blocks_of("gain")["Who contributed to which round"])
    svg = letters(drawn(room.plot_reference_contributions(gaps())))
    assert "its last predictions stayed in the average" in svg
    whole = letters(drawn(room.plot_reference_contributions(result_of())))
    assert "its last predictions" not in whole


def test_the_probe_has_a_limit_that_follows_the_noise() -> None:
    probes = np.array([[5e-3, 1e-6], [5e-3, np.nan], [0.5, 0.1], [3.0, 0.1], [np.nan, np.nan]])
    result = result_of(probes=probes)
    assert figures_reference.unstable(result).tolist() == [False, False, True, True, False]
    changes, noise = np.geomspace(1e-3, 1, 40), np.geomspace(1e-6, 1, 40)
    grid = np.array([(c, e) for c in changes for e in noise])
    many = result_of(len(grid), probes=grid)
    above = grid[:, 0] > figures_reference.separable_limit(many)
    assert (above == figures_reference.unstable(many)).all(), "drawn limit and rule agree"
    told = blocks(result)["Does the learner reproduce its own predictions?"]
    assert "It failed at s002 and s003" in told.warning
    assert len(told.folded[0].rows) == 4
    passed = blocks_of("gain")["Does the learner reproduce its own predictions?"]
    assert "It passed at all 5 sites" in spoken(passed)
    assert "It failed at 5 of 5 sites" in spoken(
        blocks_of("not-separable")["Does the learner reproduce its own predictions?"]
    )


def test_the_best_penalty_and_its_round_are_in_the_table() -> None:
    result = result_of(penalties=(0.1, 1.0, 10.0))
    table = blocks(result)["Which penalty"].tables[0]
    assert [row[0] for row in table.rows] == ["0.1", "1", "10"]
    assert [row[-1] for row in table.rows] == ["kept", "", ""]
    averaging, best, _, rounds = figures_reference.penalty_losses(result)
    np.testing.assert_allclose(averaging, [0.0, 0.04, 0.08])
    assert (best < averaging).all()
    assert rounds.tolist() == [8, 8, 8]
    assert "at the end of the grid" in spoken(blocks(result)["Which penalty"])
    two = result_of(penalties=(0.1, 1.0))
    assert "at the end of the grid" not in spoken(blocks(two)["Which penalty"])
    assert "Which penalty" not in blocks_of("gain")


def test_coefficients_by_level_and_the_largest_of_many() -> None:
    (table,) = blocks_of("classes")["The model"].tables
    assert table.head == ("column", "a", "b", "c")
    assert table.rows[0][0] == "intercept"
    many = blocks(result_of(p=60))["The model"]
    assert len(many.tables[0].rows) == reference_averaging.MOST_COEFFICIENTS + 1
    assert "Those 40 of 60 columns" in spoken(many)
    assert "The model" not in blocks_of("not-separable")
    levels = tuple("abcdefghij")
    ten = dataclasses.replace(
        classes(),
        levels=levels,
        slopes=np.arange(40.0).reshape(10, 4),
        intercepts=np.arange(10.0),
    )
    (table,) = blocks(ten)["The model"].tables
    assert table.head == ("column", *levels[: reference_averaging.MOST_LEVELS])
    assert [float(row[-1]) for row in table.rows] == [7.0, 28.0, 29.0, 30.0, 31.0]


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("n", [1, 80])
def test_figures_of_any_size(plot: Any, n: int) -> None:
    figure = plot(result_of(n, 30))
    check_size(figure, drawn(figure))


def check_size(figure: Any, svg: str) -> None:
    assert isinstance(figure, Figure)
    assert "nan" not in svg.lower().replace("dominant", "")
    assert figure.get_figheight() < 16


@pytest.mark.parametrize("plot", PLOTS)
def test_names_of_others_are_never_markup_or_mathematics(plot: Any) -> None:
    evil = ("<script>alert(1)</script>", "a$x_1$b", "n" * 90)
    figure = plot(result_of(3, 30, sites=evil, owners=evil))
    svg = drawn(figure)
    check_size(figure, svg)
    assert "<script" not in svg
    assert "n" * 40 not in svg


# --- a real run -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Run:
    """Four sites along one column, so that averaging shrinks its slope away."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(400, 2))
    x = x[np.argsort(x[:, 0])]
    y = 3.0 * x[:, 0] + x[:, 1] + rng.normal(size=400)
    tables = {
        f"site-{b}": {"a": part[:, 0], "b": part[:, 1], "y": of}
        for b, (part, of) in enumerate(zip(np.split(x, 4), np.split(y, 4), strict=True))
    }
    federation = Federation.local(
        tables,
        columns=Columns(features=("a", "b"), target="y"),
        preparation=Preparation(standardize="pooled"),
        policy=GRANTED,
    )
    method = ReferenceAveraging(estimator="ridge(alpha=200.0)", max_rounds=5)
    return method.run(federation, seed=0)


def test_report_of_a_real_run(real: Run, tmp_path: Path) -> None:
    assert real.result.kept, "averaging shrinks the slope four times too much here"
    path = room.write(real, tmp_path)
    page = path.read_text(encoding="utf-8")
    for heading in ("Question", "Answer in a sentence", "Evidence", "What left each site"):
        assert f"<h2>{heading}</h2>" in page
    assert "<h2>Limits</h2>" in page
    assert "The rounds help" in page
    assert "There is an exact method" in page
    assert "kilobytes that had left all sites by then" in page
    sent = figures_reference.bytes_by_round(real.result, real.transcript)
    total = sum(x.bytes for x in real.transcript if x.direction == "from-site")
    assert len(sent) == real.result.n_rounds + 1
    assert (np.diff(sent) > 0).all()
    assert 0.9 * total < sent[-1] <= total


def test_report_says_what_the_gaps_are(real: Run) -> None:
    gaps_of = {x.field for x in real.transcript if x.verdict == "withheld"}
    told = any("made in the first round only" in s for s in REPORT.handling(real))
    assert told == (gaps_of == {"probe"})


def test_report_refuses_the_result_of_another_method(real: Run) -> None:
    with pytest.raises(TypeError, match="ReferenceAveragingResult"):
        REPORT.headline(dataclasses.replace(real, result=object.__new__(MeanAndSDResult)))

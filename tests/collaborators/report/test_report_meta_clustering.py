"""Report of meta clustering: honest headlines, figures of any size, every fact in its place."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience import Columns, Federation, MetaClustering, Policy, load_run
from consilience import report as room
from consilience.collaborators.kernels import cluster, detectable, power
from consilience.collaborators.protocol.result import MetaClusteringResult
from consilience.collaborators.report import figures_meta
from consilience.collaborators.report import meta_clustering as words
from consilience.engines.federation import Run
from consilience.engines.rundir import RunInfo
from consilience.report import html
from consilience.report.sections import Block, Headline
from tests.report.told import answered, check_told, drawn, letters, spoken

REPORT = words.MetaClusteringReport()
PLOTS = (
    room.plot_detectable,
    room.plot_gain,
    room.plot_merges,
    room.plot_pairwise_tests,
    room.plot_together,
)


def result_of(
    n_sites: int = 8,
    n_groups: int = 2,
    *,
    rows: int = 200,
    unknown: float = 0.0,
    distance: float = 1.5,
    seed: int = 0,
    **changes: Any,
) -> MetaClusteringResult:
    """A result as a run would make it, from drawn excess losses."""
    rng = np.random.default_rng(seed)
    sites = tuple(f"s{i:03d}" for i in range(n_sites))
    truth = np.arange(n_sites) % n_groups
    apart = (truth[:, None] != truth[None, :]).astype(float)
    n = np.full(n_sites, rows, dtype=np.int64)
    variance = np.linspace(2.0, 3.0, n_sites)
    error = np.sqrt(np.full((n_sites, n_sites), 8.0 / rows))
    noise = np.triu(rng.normal(size=(n_sites, n_sites)), 1)
    difference = distance * apart + 0.02 + error * (noise + noise.T) * 0.7
    total = 0.03 * (variance[:, None] + variance[None, :])
    z = (difference - total) / error
    hidden = np.triu(rng.random((n_sites, n_sites)) < unknown, 1)
    z = np.where(hidden | hidden.T, np.nan, z)
    np.fill_diagonal(z, 0.0)
    found = cluster(z)
    useful = np.full((n_sites, n_sites), 1.5)
    off = np.isfinite(z) & ~np.eye(n_sites, dtype=bool)
    gain = {}
    for key, mean in (
        ("own", 1.1),
        ("group", 1.0),
        ("all", 1.3),
        ("shifted", 1.3),
        ("own_minus_group", 0.1),
        ("own_minus_all", -0.2),
        ("group_minus_all", -0.3),
        ("all_minus_shifted", 0.0),
    ):
        gain[key] = mean + rng.normal(size=n_sites) * 0.05
        if "minus" in key:
            gain[f"{key}_error"] = np.full(n_sites, 0.06)
    made = MetaClusteringResult(
        sites=sites,
        labels=found.labels,
        left_out={},
        n_clusters=int(found.labels.max()) + 1,
        status="groups" if found.labels.any() else "no-groups",
        chosen_by="rule",
        rule="pairwise",
        exchange="models",
        loss="squared",
        margin=0.03,
        feature_names=("x1", "x2"),
        target="y",
        levels=(),
        n_records=n,
        candidates=("linear", "random-forest"),
        chosen=tuple("linear" if i % 3 else "random-forest" for i in range(n_sites)),
        candidate_losses=np.tile([1.1, 1.2], (n_sites, 1)),
        refused_candidates={},
        target_variance=variance,
        own_loss=np.full(n_sites, 1.1),
        own_loss_error=np.full(n_sites, 0.08),
        excess=difference / 2,
        excess_variance=error**2 / 2,
        effective=np.where(hidden | hidden.T, 12.0, rows * 0.9),
        difference=np.where(np.isfinite(z), difference, np.nan),
        standard_error=np.where(np.isfinite(z), error, np.nan),
        z=z,
        power=np.where(off, power(useful, total, error), 0.0),
        detectable=np.where(off, detectable(total, error) / (total / 0.03), np.nan),
        merges={
            "ids": found.merges.ids,
            "heights": found.merges.heights,
            "thresholds": found.merges.thresholds,
        },
        dissimilarity=np.empty((0, 0)),
        eigenvalues=np.empty(0),
        cv_losses=np.empty(0),
        together=np.where(apart > 0, 0.05, 0.95),
        stability_runs=10,
        gain=gain,
        shift_spread=0.2,
        means=np.zeros((n_sites, 2)),
        inverse=np.eye(2),
        trace=2.0,
        standardize=False,
        models=(),
    )
    return dataclasses.replace(made, **changes)


def one_site() -> MetaClusteringResult:
    return result_of(1, 1, status="one-site", left_out={"s9": "it has too few rows"})


def few_rows() -> MetaClusteringResult:
    return result_of(8, 1, rows=6, status="too-few-rows")


def no_signal() -> MetaClusteringResult:
    return result_of(
        8, 1, rows=20, status="no-signal", own_loss=np.full(8, 3.1), power=np.zeros((8, 8))
    )


def spectral(n_sites: int = 8, **changes: Any) -> MetaClusteringResult:
    base = result_of(n_sites, 2)
    apart = np.abs(base.labels[:, None] - base.labels[None, :]) * 2.0
    nothing = np.full((n_sites, n_sites), np.nan)
    given: dict[str, Any] = {
        "rule": "spectral",
        "dissimilarity": apart + 0.05 * (1 - np.eye(n_sites)),
        "eigenvalues": np.concatenate([[1.0, 0.95], np.linspace(0.3, -0.1, n_sites)])[:n_sites],
        "merges": {},
        "z": nothing,
        "power": np.zeros((n_sites, n_sites)),
        "detectable": nothing,
        "gain": {},
        **changes,
    }
    return dataclasses.replace(base, **given)


def newcomers() -> MetaClusteringResult:
    """Two more sites placed into earlier groups, one of them tested in one direction only."""
    base = result_of(8, 2)
    least = base.detectable.copy()
    least[7, :] = least[:, 7] = np.nan
    able = np.where(np.isnan(least), 0.0, base.power)
    return dataclasses.replace(
        base, merges={}, detectable=least, power=able, gain={}, stability_runs=0
    )


def open_pairs() -> MetaClusteringResult:
    """Two groups, a site that nothing is known of, and two that lose with their groups."""
    base = result_of(9, 2)
    labels = np.array([0, 1, 0, 1, 0, 1, 0, 1, 2])
    z, upper = base.z.copy(), np.where(base.z > 1.85, 2.0, 0.3)
    z[8], z[:, 8] = 0.4, 0.4
    upper[8], upper[:, 8] = 8.2, 3.9
    for matrix in (z, upper):
        np.fill_diagonal(matrix, 0.0)
    gain = {**base.gain, "constant": np.full(9, 2.0), "constant_minus_group": np.full(9, 1.0)}
    gain["constant_minus_group_error"] = np.full(9, 0.06)
    gain["own_error"] = gain["constant_error"] = np.full(9, 0.06)
    gain["own_minus_group"] = np.where(np.arange(9) == 3, -0.9, 0.1)
    gain["constant_minus_group"][4] = -3.0
    gain["constant"][4] = 0.4
    return dataclasses.replace(
        base, labels=labels, n_clusters=3, z=z, upper=upper, tolerance=1.0, gain=gain
    )


CASES = {
    "open-pairs": open_pairs,
    "newcomers": newcomers,
    "groups": result_of,
    "no-groups": lambda: result_of(8, 1),
    "too-few-rows": few_rows,
    "no-signal": no_signal,
    "one-site": one_site,
    "pair": lambda: result_of(2, 1),
    "pair-apart": lambda: result_of(2, 2),
    "many": lambda: result_of(60, 3),
    "gaps": lambda: result_of(8, 2, unknown=0.3),
    "nothing-comparable": lambda: result_of(8, 1, unknown=1.1),
    "no-gain": lambda: result_of(8, 2, gain={}, stability_runs=0),
    "spectral": spectral,
    "spectral-one": lambda: spectral(
        2, status="no-groups", labels=np.zeros(2, dtype=np.int64), n_clusters=1
    ),
    "held-out": lambda: result_of(8, 2, chosen_by="cv", cv_losses=np.array([3.0, 1, 1.2, np.nan])),
    "levels": lambda: result_of(8, 2, levels=("no", "yes")),
}


def run_of(result: MetaClusteringResult) -> Run:
    """A run around a result, without a transcript."""
    sites = tuple(sorted({*result.sites, *result.left_out}))
    info = RunInfo(
        run="r",
        name="study",
        study="hash",
        method="meta-clustering",
        method_version=1,
        parameters={},
        release="0",
        libraries={},
        seed=1,
        sites=sites,
        engine="local",
    )
    return Run(info=info, result=result, transcript=(), notes=())


def headline(result: MetaClusteringResult) -> Headline:
    return REPORT.headline(run_of(result))


def blocks(result: MetaClusteringResult) -> dict[str, Block]:
    return {block.title: block for block in REPORT.evidence(run_of(result))}


# --- every outcome --------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_every_outcome_can_be_told(case: str) -> None:
    check_told(REPORT, run_of(CASES[case]()), limits=7, longest=300)


@pytest.mark.parametrize(
    ("case", "tone", "text"),
    [
        ("groups", "good", "8 sites fall into 2 groups: s000, s002, s004 and s006"),
        ("no-groups", "plain", "No evidence of groups"),
        ("too-few-rows", "caution", "Too few rows: the"),
        ("no-signal", "caution", "no better than a constant"),
        ("one-site", "caution", "Only s000 could be used"),
        ("pair-apart", "good", "All 2 sites differ"),
        ("many", "good", "60 sites fall into 3 groups: 20, 20 and 20 sites"),
        ("held-out", "good", "chosen by held-out loss"),
        ("spectral", "caution", "makes no test"),
        ("spectral-one", "caution", "did not divide"),
    ],
)
def test_headline_is_short_and_honest(case: str, tone: str, text: str) -> None:
    said = headline(CASES[case]())
    assert said.tone == tone
    assert text in answered(said)


def test_headline_names_who_stands_alone_unknown_and_for_whom_collaborating_loses() -> None:
    result = open_pairs()
    assert result.undecided == ("s008",)
    assert result.uses[3] == "own"
    assert result.uses[4] == "constant"
    assert result.losing == ("s003", "s004")
    said = headline(result)
    assert said.tone == "caution"
    assert "s008 stands alone for want of evidence" in str(said)
    assert "For 2 sites collaborating loses on held-out rows" in str(said)
    assert "s003 uses its own model and s004 uses a constant" in str(said)
    told = str(blocks(result)["Which sites belong together"])
    assert "Neither alike nor told apart" in told
    assert "a quarter of the other's loss" in told
    # a site that differs from all others is not one of these, nor are results of earlier runs
    apart = dataclasses.replace(result, z=np.where(np.eye(9) > 0, 0.0, 9.0))
    assert apart.not_told_apart == {}
    assert result_of().not_told_apart == {}
    assert result_of().losing == ()


def test_headline_admits_what_speaks_against_the_groups() -> None:
    base = result_of()
    worse = {**base.gain, "group_minus_all": np.full(8, 0.3)}
    against = headline(dataclasses.replace(base, gain=worse))
    assert against.tone == "caution"
    assert "model of all sites predicts better" in against.text
    shaky = headline(dataclasses.replace(base, together=np.full((8, 8), 0.4)))
    assert shaky.tone == "caution"
    assert "seldom repeat" in shaky.text
    forced = cluster(base.z, n_clusters=4)
    given = dataclasses.replace(base, labels=forced.labels, n_clusters=4, chosen_by="given")
    assert "do not separate all of these groups" in headline(given).text
    three = result_of(9, 3)
    forced = cluster(three.z, n_clusters=2)
    given = dataclasses.replace(three, labels=forced.labels, n_clusters=2, chosen_by="given")
    assert "speak against some of these unions" in headline(given).text
    coarser = dataclasses.replace(given, labels=forced.labels, chosen_by="cv", stability_runs=0)
    assert "speak against some of these unions" in headline(coarser).text
    weak = dataclasses.replace(result_of(8, 1), power=np.zeros((8, 8)))
    assert headline(weak).tone == "caution"


def test_groups_without_signal_are_not_sold_as_groups() -> None:
    said = headline(result_of(8, 2, status="no-signal"))
    assert said.tone == "caution"
    assert "differ in level at most" in answered(said)
    assert not any("held-out" in sentence for sentence in said.more)
    assert "better than a constant" in blocks(no_signal())["What working together gains"].warning


def test_sites_without_a_group_are_named_with_the_reason() -> None:
    result = one_site()
    text = spoken(blocks(result)["Which sites belong together"])
    assert "s9" in text
    assert "it has too few rows" in text
    assert "s9 has no group" in " ".join(REPORT.handling(run_of(result)))
    assert "s9" in " ".join(headline(result).more)


# --- evidence -------------------------------------------------------------------------------


def test_no_evidence_and_too_few_rows_look_different() -> None:
    enough, few = result_of(8, 1), few_rows()
    assert figures_meta.power_counts(enough) == (28, 0, 0)
    assert figures_meta.power_counts(few) == (0, 28, 0)
    title = "Which differences could have been detected"
    assert not blocks(enough)[title].warning
    assert "no evidence that they are alike" in blocks(few)[title].warning
    assert "28 pairs: in one group, and a difference would show" in letters(
        drawn(room.plot_detectable(enough))
    )
    assert "28 pairs: in one group, too few rows to tell" in letters(
        drawn(room.plot_detectable(few))
    )


def test_pairs_that_cannot_be_compared_are_shown_and_counted() -> None:
    result = result_of(8, 2, unknown=0.3)
    missing = int(np.isnan(figures_meta.pairs(result.z)).sum())
    assert missing > 0
    assert figures_meta.power_counts(result)[2] == missing
    found = blocks(result)
    assert "Hatched" in found["Which sites differ"].picture.caption  # type: ignore[union-attr]
    assert "<pattern" in drawn(room.plot_pairwise_tests(result))
    assert "<pattern" not in drawn(room.plot_pairwise_tests(result_of(8, 2)))
    text = spoken(found["Who could be compared with whom"])
    assert f"{28 - missing} of 28 pairs could be compared" in text
    lonely = result.z.copy()
    lonely[3, :] = lonely[:, 3] = np.nan
    alone = blocks(dataclasses.replace(result, z=lonely))["Who could be compared with whom"]
    assert "s003 was compared with no other site" in alone.warning


def test_merges_are_judged_one_by_one() -> None:
    result = result_of()
    text = spoken(blocks(result)["How the groups came about"])
    assert "6 of 7 merges were made" in text
    assert "1.85" in text
    assert "0.5" in text
    assert "not exactly the branches" not in text
    shown = letters(drawn(room.plot_merges(result)))
    assert "1.85: two single sites" in shown
    assert "0.5: large groups" in shown
    assert "not merged" in shown
    moved = result.labels.copy()
    moved[0] = 1 - moved[0]
    relocated = blocks(dataclasses.replace(result, labels=moved))
    assert "not exactly the branches" in spoken(relocated["How the groups came about"])


def test_merges_of_parts_without_a_pair_are_drawn_at_the_edge() -> None:
    z = np.full((4, 4), np.nan)
    z[0, 1] = z[1, 0] = z[2, 3] = z[3, 2] = -1.0
    np.fill_diagonal(z, 0.0)
    found = cluster(z)
    merges = {
        "ids": found.merges.ids,
        "heights": found.merges.heights,
        "thresholds": found.merges.thresholds,
    }
    result = dataclasses.replace(
        result_of(4, 1),
        z=z,
        merges=merges,
        labels=found.labels,
        n_clusters=int(found.labels.max()) + 1,
    )
    assert np.isinf(found.merges.heights).any()
    assert "no pair to" in letters(drawn(room.plot_merges(result)))
    text = spoken(blocks(result)["How the groups came about"])
    assert "whether they belong together is unknown" in text.replace("\n", " ")


def test_newcomers_are_placed_without_merges() -> None:
    result = newcomers()
    found = blocks(result)
    assert "How the groups came about" not in found
    assert "newcomer joined" in spoken(found["Which sites differ"])
    kinds = figures_meta.power_kinds(result)
    assert np.bincount(kinds, minlength=4).tolist() == [16, 9, 0, 3]


def test_sites_stand_by_group_and_then_as_they_merged() -> None:
    result = result_of(12, 3)
    order = figures_meta.site_order(result)
    assert sorted(order.tolist()) == list(range(12))
    assert np.all(np.diff(result.labels[order]) >= 0)
    first = result.merges["ids"][0].tolist()
    place = {int(site): i for i, site in enumerate(order)}
    assert abs(place[first[0]] - place[first[1]]) == 1


def test_gain_is_in_shares_and_says_what_it_rests_on() -> None:
    result = result_of()
    block = blocks(result)["What working together gains"]
    text = spoken(block)
    assert "Losses are on held-out rows" in text
    assert "as given" in text
    tried = words.GAIN_WORDS["own_minus_group"]
    row = next(r for r in block.tables[0].rows if r[0] == tried)
    mean, error = result.overall_gain("own_minus_group")
    assert row[1] == f"{100 * mean:.1f}%"
    assert row[2] == f"{100 * (mean - 1.96 * error):.1f}% to {100 * (mean + 1.96 * error):.1f}%"
    assert figures_meta.gains(result) == list(figures_meta.GAINS)
    one = dataclasses.replace(result, n_clusters=1, labels=np.zeros(8, dtype=np.int64))
    assert "group_minus_all" not in figures_meta.gains(one)
    assert "What working together gains" not in blocks(result_of(gain={}))
    unknown = {k: np.full(8, np.nan) for k in result.gain}
    assert figures_meta.gains(dataclasses.replace(result, gain=unknown)) == []


def test_stability_only_where_it_was_asked_for() -> None:
    title = "Would the groups be found again?"
    assert title not in blocks(result_of(stability_runs=0))
    sure = blocks(result_of())[title]
    assert "within groups 95%" in spoken(sure)
    assert not sure.warning
    shaky = np.full((8, 8), 0.4)
    assert "fell apart in most resamples" in blocks(result_of(together=shaky))[title].warning


def test_spectral_rule_shows_eigenvalues_and_no_tests() -> None:
    found = blocks(spectral())
    assert "How many groups" in found
    assert "How the groups came about" not in found
    assert "Which differences could have been detected" not in found
    assert "gap after number 2 is 0.65" in spoken(found["How many groups"])
    assert "no standard error" in spoken(found["Which sites differ"])


def test_candidates_with_losses_and_refusals() -> None:
    result = result_of(refused_candidates={"s001": "knn: it carries training rows"})
    block = blocks(result)["What the sites fitted"]
    text = spoken(block)
    assert "linear at 5 sites and random-forest at 3 sites" in text
    assert "it carries training rows" in text
    handled = " ".join(REPORT.handling(run_of(result)))
    assert "s001" in handled
    assert "not compared with itself" in handled
    losses = block.folded[0]
    assert losses.head == ("site", "chose", "linear", "random-forest")
    row = next(r for r in losses.rows if r[0] == "s000")
    assert row == ("s000", "random-forest", "55.0%", "60.0%")


def test_limits_are_those_of_the_run() -> None:
    plain = " ".join(REPORT.limits(run_of(result_of())))
    for known in ("few rows", "gradually", "Trees", "intervals for single predictions", "lies"):
        assert known in plain
    scaled = " ".join(REPORT.limits(run_of(result_of(standardize=True))))
    assert "own scale" in scaled
    assert "own scale" not in plain


# --- figures --------------------------------------------------------------------------------


def long_names(result: MetaClusteringResult) -> MetaClusteringResult:
    sites = tuple(f"site $x$ {i} of a rather long <name>" for i in range(len(result.sites)))
    return dataclasses.replace(result, sites=sites)


@pytest.mark.parametrize("n_sites", [2, 8, 42, 43, 60, 200, 500])
def test_figures_of_any_size_keep_their_labels_inside(n_sites: int) -> None:
    result = long_names(result_of(n_sites, min(n_sites, 3), unknown=0.1))
    for plot in PLOTS:
        svg = drawn(plot(result))
        box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
        assert box is not None
        width, height = (float(v) for v in box.groups())
        assert width < 72 * 9.5, plot.__name__
        assert height < 72 * 20, plot.__name__
        assert len(svg) < 1_500_000, plot.__name__
        assert min(float(v) for v in re.findall(r"font-size: ([\d.]+)px", svg)) >= 8, plot.__name__
        if n_sites <= 42 and plot is not room.plot_detectable:
            assert "long &lt;name" in svg or "\N{HORIZONTAL ELLIPSIS}" in svg


@pytest.mark.parametrize("n_groups", [7, 60])
def test_maps_of_many_groups(n_groups: int) -> None:
    result = result_of(60, 3, labels=np.arange(60) % n_groups, n_clusters=n_groups)
    for plot in PLOTS:
        assert "<svg" in drawn(plot(result))


def test_extreme_values_do_not_break_the_scales() -> None:
    result = result_of()
    z = np.where(result.z > 2, 1e6, result.z)
    found = cluster(z)
    merges = {
        "ids": found.merges.ids,
        "heights": found.merges.heights,
        "thresholds": found.merges.thresholds,
    }
    wild = dataclasses.replace(
        result,
        z=z,
        merges=merges,
        detectable=result.detectable * 1e7,
        gain={k: v * 1e8 for k, v in result.gain.items()},
    )
    for plot in PLOTS:
        svg = drawn(plot(wild))
        assert "nan" not in letters(svg)
        assert len(svg) < 1_000_000


def test_colours_follow_the_page() -> None:
    for figure in (room.plot_merges(result_of()), room.plot_gain(result_of())):
        svg = drawn(figure)
        assert "var(--ink)" in svg
        for colour in ("#1b1f24", "#5c6670", "#d5dae0", "#fefefe"):
            assert colour not in svg


def test_same_result_same_drawing() -> None:
    for n_sites in (8, 60):
        result = result_of(n_sites, 2, unknown=0.1)
        for plot in PLOTS:
            assert drawn(plot(result)) == drawn(plot(result)), plot.__name__


# --- a real run -----------------------------------------------------------------------------


def simulated(n_sites: int = 6, n: int = 90) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(3)
    tables = {}
    for i in range(n_sites):
        x = rng.normal(size=(n, 3))
        y = x @ [1.0, 2.0 if i % 2 else -2.0, 1.0] + rng.normal(size=n)
        tables[f"clinic-{i}"] = pd.DataFrame(x, columns=["a", "b", "$c$"]).assign(**{"<b>y</b>": y})
    tables["clinic-5"] = tables["clinic-5"].iloc[:7]
    return tables


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "meta"
    federation = Federation.local(
        simulated(),
        columns=Columns(features=("a", "b", "$c$"), target="<b>y</b>"),
        policy=Policy(foreign_models=True),
        quorum=3,
    )
    federation.run(
        MetaClustering(candidates=("linear", "ridge"), gain_folds=2, stability_runs=2),
        seed=1,
        out=path,
    )
    return path


def test_report_of_a_real_run(directory: Path) -> None:
    run = load_run(directory)
    text = html.render(run)
    assert html.render(run) == text
    plain = re.sub(
        r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<svg.*?</svg>", "", text, flags=re.S))
    )
    assert "5 sites fall into 2 groups" in plain
    assert "clinic-5 has no group" in plain
    assert "it has too few rows" in plain
    for title in blocks(run.result):  # type: ignore[arg-type]
        assert title.replace("'", "&#39;") in text
    for site in run.info.sites:
        sent = sum(
            line.bytes
            for line in run.transcript
            if line.site == site and line.direction == "from-site"
        )
        assert f"{sent:,}" in plain
    assert "<b>y</b>" not in text


def test_report_of_a_real_run_holds_no_record(directory: Path) -> None:
    text = re.sub(r"<svg.*?</svg>", "", html.render(load_run(directory)), flags=re.S)
    shown = {float(x) for x in re.findall(r"-?\d+\.\d{4,}", text)}
    values = np.concatenate([t.to_numpy().ravel() for t in simulated().values()])
    assert not shown.intersection(np.round(values, 4))


def test_where_no_pair_was_compared_nothing_could_be_seen() -> None:
    title = "Which differences could have been detected"
    block = blocks(CASES["nothing-comparable"]())[title]
    assert (
        block.warning == "No pair of sites could be compared, so no difference could be detected."
    )
    assert block.picture is None
    assert title not in blocks(CASES["spectral"]())

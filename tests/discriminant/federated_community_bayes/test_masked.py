"""Communities from masked totals: the fit of the run in plain, and nothing of single sites."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.spatial import cKDTree
from scipy.stats import rankdata

from consilience import FederatedCommunityBayes, Federation, load_run
from consilience.discriminant.federated_community_bayes import masked as masked_sums
from consilience.discriminant.federated_community_bayes import messages, pooling
from consilience.discriminant.federated_community_bayes import site as at_site
from consilience.discriminant.federated_community_bayes.site import LARGEST_LOSS
from consilience.discriminant.kernels import multinomial
from consilience.engines.study_check import check_admitted
from consilience.exceptions import (
    DataError,
    DisclosureError,
    ProtocolError,
    QuorumError,
    StudyError,
)
from consilience.protocol.method import Ask, CoordinatorContext, Exchange
from consilience.protocol.phases import holdout, prepare, secure_sums, standardise
from consilience.protocol.phases.secure_sums import ALL, MASKED
from consilience.sites.policy import Policy
from consilience.sites.study import Study
from consilience.testing.fakes import scripted
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure
from tests.discriminant.federated_community_bayes.test_federated_community_bayes import (
    ALL_ROWS,
    LEVELS,
    Tables,
    federation,
    pooled_rows,
    tables_of,
)

TABLES = tables_of([60, 70, 80], p=6)
# Rounds: 1 opening, 2 introductions, 3 meeting, 4 levels, 5 to 9 scaling, then totals and openings.
POSSIBLE, RANKS, FITS_POSSIBLE, FITS, KEEP = 10, 12, 14, 16, 18


def secure(tables: Tables = TABLES, policy: Any = "strict", **settings: Any) -> Federation:
    return federation(tables, policy, **{"sums": "secure", **settings})


def run_of(tables: Tables = TABLES, policy: Any = "strict", **parameters: Any) -> Any:
    parameters = {"n_communities": 2, **ALL_ROWS, **parameters}
    return FederatedCommunityBayes(**parameters).run(secure(tables, policy), seed=0)


def fit_of(result: Any) -> tuple[list[list[int]], np.ndarray]:
    """Communities, and all coefficients in a row."""
    pairs = zip(result.slopes, result.intercepts, strict=True)
    flat = [part.ravel() for slopes, intercepts in pairs for part in (slopes, intercepts)]
    return [c.tolist() for c in result.communities], np.concatenate(flat)


# --------------------------------------------------------------------------- the model


@pytest.mark.parametrize("policy", ["simulation", "consortium", "strict"])
@pytest.mark.parametrize(("n_classes", "n_communities"), [(2, 1), (3, 2), (2, 6)])
def test_the_one_shot_fit_is_that_of_the_run_in_plain(
    policy: str, n_classes: int, n_communities: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for how much each row counts in the curvature of its site."""
    monkeypatch.setattr(masked_sums, "FACTORS", (1.0, 1.0))
    tables = tables_of([60, 70, 80], p=6, n_classes=n_classes)
    method = FederatedCommunityBayes(n_communities=n_communities, fit="one-shot", C=2.0, **ALL_ROWS)
    found = method.run(secure(tables, policy), seed=0)
    wanted = method.run(federation(tables, policy), seed=0)
    one, other = fit_of(found.result), fit_of(wanted.result)
    assert one[0] == other[0] and len(one[0]) == n_communities
    np.testing.assert_allclose(one[1], other[1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.result.priors, wanted.result.priors, rtol=1e-15)
    np.testing.assert_array_equal(found.result.n_by_class, wanted.result.n_by_class)
    np.testing.assert_array_equal(found.result.community_rows, wanted.result.community_rows)
    # Each of three sites rounds rows times a correlation to a whole number.
    far = np.abs(found.result.similarity - wanted.result.similarity).max()
    assert 0 < far <= 3 * 0.5 * np.sqrt(n_classes) * np.pi / 3
    x, _ = pooled_rows(tables)
    for site in tables:
        kept, plain = found.site(site).predictor, wanted.site(site).predictor
        np.testing.assert_allclose(kept.predict_proba(x), plain.predict_proba(x), atol=1e-12)
        assert found.site(site).to_frame("predictions").equals(
            wanted.site(site).to_frame("predictions")
        ) or np.allclose(
            found.site(site).to_frame("predictions")["probability"],
            wanted.site(site).to_frame("predictions")["probability"],
            atol=1e-12,
        )


def test_factors_of_rows_move_a_fit_by_a_small_part_of_its_standard_errors() -> None:
    """Of thirty data sets .041 standard errors in the mean square, and .126 at most, were seen."""
    moved = []
    for seed in range(8):
        tables = tables_of([60, 70, 80], p=3, n_blocks=1, n_classes=2, seed=seed)
        method = FederatedCommunityBayes(n_communities=1, fit="one-shot", **ALL_ROWS)
        found, plain = (
            method.run(federation(tables, "strict", sums=sums), seed=0).result
            for sums in ("secure", "plain")
        )
        x, y = pooled_rows(tables)
        scaled, codes = (x - x.mean(axis=0)) / x.std(axis=0), np.searchsorted(LEVELS, y)
        phi, q = multinomial.fit(scaled, codes, 2, 1.0), multinomial.contrasts(2)
        pieces = multinomial.pieces(multinomial.design_of(scaled), codes, phi, q)
        inverse = np.linalg.inv(pieces.curvature + np.diag([0.0, 1.0, 1.0, 1.0]))
        errors = np.sqrt(np.diag(inverse)[1:]) * abs(q[0, 0])  # of slopes as of rows of classes
        apart = (np.asarray(found.slopes[0]) - np.asarray(plain.slopes[0]))[0]
        moved.append(apart / errors)
    assert 0.005 < np.sqrt(np.mean(np.square(moved))) < 0.1
    assert np.abs(moved).max() < 0.25


@pytest.mark.parametrize("policy", ["simulation", "consortium"])
@pytest.mark.parametrize("n_communities", [1, 3])
def test_the_exact_fit_is_that_of_the_pooled_rows(policy: str, n_communities: int) -> None:
    result = run_of(policy=policy, fit="exact", n_communities=n_communities, C=2.0).result
    assert result.how == "exact" and result.rounds_run > 3
    x, y = pooled_rows(TABLES)
    scaled, codes = (x - x.mean(axis=0)) / x.std(axis=0), np.searchsorted(LEVELS, y)
    for columns, slopes, intercepts in zip(
        result.communities, result.slopes, result.intercepts, strict=True
    ):
        phi = multinomial.fit(scaled[:, columns], codes, 3, 0.5)
        wanted, constant = multinomial.as_rows(phi)
        np.testing.assert_allclose(slopes, wanted, rtol=0, atol=1e-9)
        np.testing.assert_allclose(intercepts, constant, rtol=0, atol=1e-9)


def losses_of(run: Any, tables: Tables, part: str) -> np.ndarray:
    """Log loss of each row of a part at all sites, by what each site keeps."""
    found = []
    for site, table in tables.items():
        kept = run.site(site).to_frame("predictions")
        rows = table.iloc[kept["row"][kept["part"] == part]]
        chances = run.site(site).predictor.predict_proba(rows.drop(columns="y").to_numpy(float))
        truth = np.searchsorted(LEVELS, rows["y"].to_numpy(str))
        found.append(-np.log(chances[np.arange(len(rows)), truth]))
    return np.concatenate(found)


def test_figures_are_those_of_the_pooled_rows() -> None:
    """Where no record is protected to the last digit, standard errors about the mean of all."""
    run = run_of(policy="simulation", candidates=(1, 2, 6), n_communities="auto", choosing=0.2,
                 holdout=0.2)  # fmt: skip
    result = run.result
    losses = losses_of(run, TABLES, "test")
    n = len(losses)
    assert result.n_held.tolist() == [n] and result.error_rows == n
    assert result.log_loss[0] == pytest.approx(losses.mean(), abs=1e-12)
    assert result.log_loss_se[0] == pytest.approx(losses.std() / np.sqrt(n), abs=1e-12)
    kept = [run.site(site).to_frame("predictions") for site in TABLES]
    wrong = 0
    for table, of in zip(TABLES.values(), kept, strict=True):
        of = of[of["part"] == "test"]
        wrong += int((of["predicted"].to_numpy() != table["y"].to_numpy()[of["row"]]).sum())
    assert result.errors[0] == pytest.approx(wrong, abs=1e-9)
    choosing = losses_of(run, TABLES, "choosing")
    assert result.n_choosing.tolist() == [len(choosing)] and result.cv_rows == 0
    assert result.candidate_loss[result.chosen] == pytest.approx(choosing.mean(), abs=1e-12)
    assert result.chosen == int(np.argmin(result.candidate_loss))
    assert np.isnan(result.cv_errors).all()


def test_protected_sites_round_sums_of_figures_to_what_a_row_could_do() -> None:
    """In the same steps at all sites: the total says nothing of how many rows one of them has."""
    tables = tables_of([200, 220, 240], p=6)
    run = run_of(tables, candidates=(1, 2, 6), n_communities="auto", choosing=0.2, holdout=0.2)
    result, n = run.result, int(run.result.n_held.sum())
    steps = result.log_loss[0] * n / LARGEST_LOSS
    assert steps == pytest.approx(round(steps), abs=1e-9)
    bounded = np.minimum(losses_of(run, tables, "test"), LARGEST_LOSS)
    assert abs(result.log_loss[0] - bounded.mean()) <= 3 * 0.5 * LARGEST_LOSS / n
    chose = int(result.n_choosing.sum())
    halves = result.candidate_gain * chose / 2.0
    np.testing.assert_allclose(halves, np.round(halves), atol=1e-9)
    assert (result.candidate_gain != 0).any()
    tens = result.errors / 10
    np.testing.assert_allclose(tens, np.round(tens), atol=1e-9)
    squares = (result.candidate_gain_se[1:] * chose) ** 2 + chose * result.candidate_gain[1:] ** 2
    np.testing.assert_allclose(squares / 4, np.round(squares / 4), atol=1e-6)


# --------------------------------------------------------------------------- what is seen


def test_the_coordinator_sees_no_number_of_a_site() -> None:
    tables = tables_of([200, 220, 240], p=6)
    run = run_of(tables, candidates=(1, 2), n_communities="auto", choosing=0.2, holdout=0.2)
    told = [
        line for line in run.transcript if line.site in tables and line.direction == "from-site"
    ]
    assert {line.disclosure for line in told} == {"public", "masked"}
    steps = {line.step for line in told if line.disclosure == "masked"}
    assert steps == {
        "moments.totals", "moments.squares", "possible", "rank_totals", "fits_possible",
        "fit_totals", "judge_possible", "judge_total", "test_possible", "test_total",
    }  # fmt: skip
    result = run.result
    assert result.sites == (ALL,) and MASKED in result.remarks
    assert "training rows of all sites tell 3 classes" in result.summary()
    assert list(result.site_rows.index) == [ALL]


def test_the_report_speaks_of_all_sites() -> None:
    tables = tables_of([200, 220, 240], p=6)
    run = run_of(tables, candidates=(1, 2), n_communities="auto", choosing=0.2, holdout=0.2)
    page = " ".join(run.report().html.split())
    assert "to masked totals, where every site" in page
    assert "Sums over sites were masked" in page and "Held-out rows by site" not in page
    assert "sent coefficients and their curvature" not in page


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], Any]:
    """What each site adds to the total of a step, before it is masked."""
    seen: dict[tuple[str, str], Any] = {}
    true = secure_sums.concealed

    def noted(content: Any, asked: Any, question: str, site: Any) -> Any:
        seen[asked.name, site.site] = content
        return true(content, asked, question, site)

    monkeypatch.setattr(secure_sums, "concealed", noted)
    return seen


# --------------------------------------------------------------------------- digits of totals


def spearmen(table: pd.DataFrame) -> np.ndarray:
    """Rows times Spearman, of each class and pair of columns."""
    found = []
    for level in LEVELS:
        ranks = rankdata(table[table["y"] == level].drop(columns="y").to_numpy(float), axis=0)
        upper = np.triu_indices(ranks.shape[1], 1)
        found.append(len(ranks) * np.corrcoef(ranks.T)[upper])
    return np.array(found)


def sizes_that_fit(totals: np.ndarray, rows: int) -> list[tuple[int, ...]]:
    """Rows of three sites for which the totals are whole multiples of one over (n^2 - 1)."""
    found = []
    for first, second in itertools.combinations_with_replacement(range(10, rows - 20), 2):
        last = rows - first - second
        if last >= second:
            whole = totals * np.lcm.reduce([n * n - 1 for n in (first, second, last)])
            if np.abs(whole - np.round(whole)).max() < 1e-3:
                found.append((first, second, last))
    return found


def test_correlations_do_not_tell_how_many_rows_a_site_has(added: Any) -> None:
    """Without ties rho is a fraction over n (n^2 - 1): exact totals leave few sizes."""
    tables = tables_of([13, 17, 20], p=4)
    run_of(tables, "simulation", fit="one-shot")
    exact = sum(spearmen(table) for table in tables.values())
    assert (13, 17, 20) in sizes_that_fit(exact, 50) and len(sizes_that_fit(exact, 50)) <= 5
    told = [added["rank_totals", site].ranks.value for site in tables]
    for own, table in zip(told, tables.values(), strict=True):
        np.testing.assert_array_equal(own, np.round(spearmen(table)))
    assert sizes_that_fit(np.sum(told, axis=0), 50) == sizes_that_fit(np.zeros(1), 50)


def test_ranks_of_fewer_than_ten_rows_stay() -> None:
    tables = tables_of([9, 20, 20], p=4)
    with pytest.raises(QuorumError, match="not every site has a class with twice as many"):
        run_of(tables, "simulation", fit="one-shot")
    assert run_of(tables, "simulation", fit="one-shot", n_communities=1).result.n_fitted == [147]


def test_fits_of_columns_of_few_values_stay() -> None:
    """Of a column of 0 and 1 a fit follows from four counts: those of three sites are searched."""
    n, q, tables = 12, multinomial.contrasts(2), {}
    for ones in itertools.product(range(1, n), repeat=2):  # of the rows of each class
        x = np.r_[np.arange(n) < ones[0], np.arange(n) < ones[1]][:, None] * 1.0
        y = np.repeat([0, 1], n)
        phi = multinomial.fit(x, y, 2, 1.0)
        curvature = multinomial.pieces(multinomial.design_of(x), y, phi, q).curvature
        slope = pooling.slope_at_zero(phi.ravel(), curvature, 1, 1.0)
        tables[ones] = messages.packed(slope, curvature=curvature)
    three = [(3, 8), (5, 5), (10, 2)]
    total = sum(tables[ones] for ones in three)
    values = np.array(list(tables.values()))
    pairs = (values[:, None] + values).reshape(-1, values.shape[1])
    found = cKDTree(pairs).query_ball_point(total - values, 1e-9)
    names = list(tables)
    sets = {
        tuple(sorted((names[i], names[j // len(names)], names[j % len(names)])))
        for i, near in enumerate(found)
        for j in near
    }
    assert sets == {tuple(sorted(three))}  # nothing but the counts of the three sites
    rng = np.random.default_rng(0)
    made = {
        site: pd.DataFrame({"x0": rng.integers(0, 2, 60), "x1": rng.integers(0, 3, 60),
                            "x2": rng.normal(size=60), "y": np.array(LEVELS)[np.arange(60) % 2]})
        for site in ("s0", "s1", "s2")
    }  # fmt: skip
    with pytest.raises(QuorumError, match="ten different rows in its columns"):
        run_of({s: t.drop(columns="x2") for s, t in made.items()}, "simulation", fit="one-shot")
    kept = run_of(made, "simulation", fit="one-shot", n_communities=1).result
    assert kept.n_communities == 1  # beside a column of many values all rows are different


@pytest.mark.parametrize("factors", [(1.0, 1.0), masked_sums.FACTORS])
def test_fits_that_are_little_but_shares_do_not_tell_the_classes_of_a_site(
    factors: tuple[float, float], added: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a heavy penalty the curvature of an intercept is a fraction over a site's rows."""
    monkeypatch.setattr(masked_sums, "FACTORS", factors)
    rng, true = np.random.default_rng(5), [(23, 41), (37, 30), (52, 28)]
    tables = {}
    for site, (first, second) in enumerate(true):
        n = first + second
        y = np.repeat([0, 1], [first, second])
        table = pd.DataFrame(rng.normal(size=(n, 3)) + y[:, None], columns=["u", "v", "w"])
        tables[f"s{site}"] = table.assign(y=np.array(LEVELS)[y])
    run_of(tables, n_communities=3, C=1e-6)
    fits = [added["fit_totals", site].sums.value[-messages.n_numbers(1, 2) :] for site in tables]
    told = sum(messages.unpacked(fit, 2, 2)[1][0, 0] for fit in fits)
    rows = [sum(pair) for pair in true]
    # Whoever knows the sites' numbers of rows tries all ways to share out the first class.
    ways = [np.arange(10, n - 9) for n in rows]
    parts = [k * (n - k) / n for k, n in zip(ways, rows, strict=True)]
    sums = parts[0][:, None, None] + parts[1][:, None] + parts[2]
    shared = ways[0][:, None, None] + ways[1][:, None] + ways[2] == sum(a for a, _ in true)
    gap = abs(told - sum(a * b / (a + b) for a, b in true))
    if factors == (1.0, 1.0):
        assert int((np.abs(sums[shared] - told) <= gap).sum()) == 1
        return
    # What the coordinator knows of the sum of the factors is its spread, that of 211 uniform ones
    # times weights of a quarter; by chance one draw may be near what it would be without factors.
    spread = 0.25 * (factors[1] - factors[0]) * np.sqrt(sum(rows) / 12)
    assert 1e-3 < gap < 4 * spread
    assert int((np.abs(sums[shared] - told) <= spread).sum()) > 100


@pytest.mark.parametrize("policy", ["simulation", "strict"])
def test_factors_of_rows_follow_from_the_table_alone(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other seeds of a study, which are public, and other units do not draw them anew."""
    true, drawn = masked_sums.holdout.independent, []

    def noted(data: Any, *label: Any) -> Any:
        drawn.append((data.features[0, 0], true(data, *label)))
        return drawn[-1][1]

    monkeypatch.setattr(masked_sums.holdout, "independent", noted)
    moved = {**TABLES, "s1": TABLES["s1"].assign(x0=TABLES["s1"]["x0"] * 1.5)}  # units of all sites
    for tables, seed in ((TABLES, 0), (TABLES, 1), (moved, 0)):
        method = FederatedCommunityBayes(n_communities=2, fit="one-shot", **ALL_ROWS)
        method.run(secure(tables, policy), seed=seed)
    first = [factors for _, factors in drawn if len(factors) == len(TABLES["s0"])]
    values = {value for value, factors in drawn if len(factors) == len(TABLES["s0"])}
    assert len(first) == 6 and len(values) == 2
    for again in first[1:]:
        np.testing.assert_array_equal(again, first[0])
    n = len(first[0])  # evenly dealt ones would add up to what is known
    assert not np.allclose(np.sort(first[0]), (np.arange(n) + 0.5) / n)


# --------------------------------------------------------------------------- what some keep back


@pytest.mark.parametrize("rows_of_class", [0, 1, 9])
def test_a_class_that_a_site_lacks_stops_the_run(rows_of_class: int) -> None:
    first = TABLES["s0"]
    few = np.flatnonzero(first["y"] == "c")[rows_of_class:]
    tables = {**TABLES, "s0": first.drop(index=first.index[few])}
    with pytest.raises(QuorumError, match="some site has too few training rows of class 'c'"):
        run_of(tables)


def test_a_class_that_no_site_has_is_never_predicted() -> None:
    made = secure(levels=(*LEVELS, "d"))
    result = FederatedCommunityBayes(n_communities=2, **ALL_ROWS).run(made, seed=0).result
    assert result.levels == LEVELS and any("enough rows of d" in r for r in result.remarks)


def test_a_site_of_one_record_says_nothing_of_it(added: Any) -> None:
    """It is counted at no class but its own, and the run stops before any total of rows."""
    tables = {**TABLES, "s3": TABLES["s0"].iloc[:1]}
    with pytest.raises(QuorumError, match="some site has too few training rows of class"):
        run_of(tables, "simulation", holdout=0.2)
    told = added["possible", "s3"]
    assert told.classes.value.sum() == 1 and not told.pairs.value.any()
    assert {step for step, _ in added} <= {"moments.totals", "moments.squares", "possible"}


def test_correlations_that_a_site_withholds_are_in_no_total(added: Any) -> None:
    tables = dict(TABLES)
    tables["s1"] = tables["s1"].assign(x3=(np.arange(210) % 21 < 1) * 1.0)
    result = run_of(tables, n_communities=1).result
    upper = np.array(np.triu_indices(6, 1))
    with_it = (upper == 3).any(axis=0)
    for site in tables:
        gaps = np.isnan(added["rank_totals", site].ranks.value)
        np.testing.assert_array_equal(gaps, np.broadcast_to(with_it, gaps.shape))
    assert any("in common at some site" in remark for remark in result.remarks)
    assert not result.similarity[3, [0, 1, 2, 4, 5]].any()


def test_a_fit_that_a_site_withholds_is_in_no_total(added: Any) -> None:
    """Rows twice the parameters: 45 rows of two classes bear up to 21 columns; three of them no."""
    tables = tables_of([12, 70, 80], p=6)
    result = run_of(tables, n_communities=6).result
    marks = {site: added["fits_possible", site].fits.value for site in tables}
    assert marks["s0"].tolist() == [0.0] + [1.0] * 6 and marks["s1"].all()
    sizes = {added["fit_totals", site].sums.value.size for site in tables}
    assert sizes == {6 * messages.n_numbers(1, 3)}
    assert result.judged == ("communities", "class frequencies")
    assert any("no fit that may leave all sites" in remark for remark in result.remarks)
    with pytest.raises(QuorumError, match="no community has a fit that every site could tell"):
        run_of(tables, n_communities=1)


def test_too_few_rows_that_would_judge() -> None:
    """Seven coefficients of each of two contrasts need 28 rows of a part at each site."""
    tables = {**TABLES, "s0": tables_of([30], p=6)["s0"]}
    with pytest.raises(QuorumError, match="too few choosing rows"):
        run_of(tables, n_communities="auto", choosing=0.2, holdout=0.2)
    # Beside a run with holdout = 0 the totals would differ by the rows that the others held out.
    with pytest.raises(QuorumError, match=r"too few test rows .* set holdout to 0"):
        run_of(tables, holdout=0.2)
    assert np.isnan(run_of(tables, holdout=0.0).result.log_loss).all()


def test_a_part_that_some_site_has_not_is_held_out_by_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A site with a second part alone would be the difference of runs with shares of .2 and .4."""
    true = holdout.admits
    size = len(TABLES["s0"])

    def admits(rows: Any, *more: Any) -> Any:
        return true(rows, *more)[: 1 if rows.sum() <= size else 2]

    monkeypatch.setattr(holdout, "admits", admits)
    assert np.isfinite(run_of(holdout=0.2).result.log_loss).all()
    with pytest.raises(QuorumError, match=r"too few test rows .* set holdout to 0"):
        run_of(holdout=0.4)


@pytest.mark.parametrize("shares", [(0.2, 0.0), (0.0, 0.2)])
def test_a_site_without_a_part_is_in_no_total_of_a_study_that_holds_it_out(
    shares: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a coordinator asks for no row of it; there is no table at all here."""
    monkeypatch.setattr(masked_sums, "require_masks", lambda site: None)
    asked = messages.SharedRanks(
        messages.Settings(LEVELS, 1.0, *shares),
        aggregate([0, 1, 2]),
        np.zeros((3, 1), dtype=bool),
        np.zeros(2, dtype=bool),
    )
    pairs, parts = np.ones((3, 1), dtype=bool), np.zeros(2, dtype=bool)
    state: Any = {"could": {"classes": np.arange(3), "pairs": pairs, "parts": parts}}
    with pytest.raises(ProtocolError, match=NOT_OFFERED):
        masked_sums.rank_totals(asked, None, state, None)  # type: ignore[arg-type]


ASKED: dict[str, Any] = {
    "candidates": (1, 2, 6),
    "n_communities": "auto",
    "choosing": 0.2,
    "holdout": 0.2,
}
LARGE = tables_of([200, 220, 240], p=6)


@pytest.fixture
def withholding(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int, int], None]:
    """Have figures withheld by a site of so many rows of a part, from some look at them on."""

    def begin(rows: int, place: int, first: int) -> None:
        true, looks = masked_sums.disclosure.weighted_means, []

        def withheld(values: Any, **more: Any) -> Any:
            found = true(values, **more)
            looks.extend([1] * (len(values) == rows))
            hidden = np.arange(values.shape[1]) == place
            mine = len(values) == rows and len(looks) > first
            return dataclasses.replace(found, mean=found.mean.withhold(hidden & mine))

        monkeypatch.setattr(masked_sums.disclosure, "weighted_means", withheld)

    return begin


def test_a_figure_that_a_site_withholds_is_in_no_total(added: Any, withholding: Any) -> None:
    """The others are told all the same: errors, and by how much rules differ."""
    whole = run_of(LARGE, **ASKED)
    kept = whole.site("s1").to_frame("predictions")["part"].value_counts()
    assert kept["test"] == kept["choosing"]
    withholding(int(kept["test"]), 0, 0)
    run = run_of(LARGE, **ASKED)
    for site in LARGE:
        for step in ("judge_total", "test_total"):
            told = added[step, site]
            assert np.isnan(told.losses.value).tolist()[:2] == [True, False]
            assert np.isnan(told.squares.value).tolist()[:2] == [True, False]
    found, wanted = run.result, whole.result
    assert np.isnan(found.log_loss).all() and np.isnan(found.candidate_loss).all()
    np.testing.assert_array_equal(found.candidate_gain[1:], wanted.candidate_gain[1:])
    np.testing.assert_array_equal(found.errors, wanted.errors)
    np.testing.assert_array_equal(found.log_loss_gain[1:], wanted.log_loss_gain[1:])
    assert found.chosen == wanted.chosen
    assert f"Of {found.n_held[0]} test rows: communities " in found.summary()
    assert "% wrong; one community " in found.summary() and "log loss on" not in found.summary()
    for rows in ("choosing", "test"):
        assert any(f"one of the {rows} rows makes most" in remark for remark in found.remarks)


@pytest.mark.parametrize("place", [0, 1])
def test_a_figure_that_a_site_said_it_could_tell_is_told_or_none_is(
    place: int, withholding: Any
) -> None:
    """The total without it would be that of two."""
    rows = run_of(LARGE, **ASKED).site("s1").to_frame("predictions")["part"].value_counts()
    withholding(int(rows["choosing"]), place, 1)
    with pytest.raises(QuorumError, match="fewer sites tell a part of step 'judge_total'"):
        run_of(LARGE, **ASKED)


# --------------------------------------------------------------------------- made-up questions


class Altered(FederatedCommunityBayes):
    """Asks another question in a step than the coordinator of the package."""

    step = ""
    change: Any = None
    apart = False
    twice = False
    beside = False

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        exchange = super().coordinate(ctx)
        asked = next(exchange)
        while True:
            given = asked
            if isinstance(asked, Ask) and asked.step == self.step:
                made = self.change(asked.message)
                if self.apart:
                    first, *others = sorted(asked.to or ())
                    made = dict.fromkeys(others, asked.message) | {first: made}
                if self.twice:
                    yield asked
                if self.beside:
                    yield dataclasses.replace(asked, message=made, to=tuple(asked.to or ())[:1])
                    made = asked.message
                given = dataclasses.replace(asked, message=made)
            try:
                asked = exchange.send((yield given))
            except StopIteration as end:
                return end.value


def altered(step: str, change: Callable[[Any], Any], **more: Any) -> FederatedCommunityBayes:
    flags = {name: more.pop(name) for name in ("apart", "twice", "beside") if name in more}
    method = Altered(**{"n_communities": 2, **ALL_ROWS, **more})
    for name, value in {"step": step, "change": change, **flags}.items():
        object.__setattr__(method, name, value)
    return method


def aggregate(values: Any) -> Any:
    return relayed(np.array(values, dtype=int), Disclosure.AGGREGATE)


def other(**fields: Any) -> Callable[[Any], Any]:
    return lambda message: dataclasses.replace(message, **fields)


NOT_OFFERED = "more, or for less, than this site said it could tell"


def flipped(message: Any) -> Any:
    return dataclasses.replace(message, pairs=~message.pairs)


@pytest.mark.parametrize(
    ("step", "change"),
    [
        ("rank_totals", other(classes=aggregate([0, 1]), pairs=np.zeros((2, 15), dtype=bool))),
        ("rank_totals", other(classes=aggregate([]), pairs=np.zeros((0, 15), dtype=bool))),
        ("rank_totals", flipped),
        ("rank_totals", other(parts=np.array([True, False]))),
        ("rank_totals", other(parts=np.array([False, True]))),
        ("fit_totals", other(places=aggregate([0]))),
        ("fit_totals", other(places=aggregate([]))),
        ("fit_totals", other(places=aggregate([2, 1]))),
    ],
)
def test_a_site_tells_only_what_it_offered(step: str, change: Any) -> None:
    """Twelve rows of a class at the first site are too few for a fit of all columns."""
    tables = {**tables_of([12, 70, 80], p=6)}
    tables["s1"] = tables["s1"].assign(x3=(np.arange(210) % 21 < 1) * 1.0)
    method = altered(step, change, n_communities=6)
    with pytest.raises(QuorumError, match=NOT_OFFERED):
        method.run(secure(tables), seed=0)


@pytest.mark.parametrize(
    ("step", "classes", "parts"),
    [("judge_possible", [0, 1], [1, 1]), ("judge_possible", [0, 1, 2], [0, 1]),
     ("judge_total", [0, 1, 2], [0, 1, 1]), ("judge_total", [0, 1, 2], [1, 1]),
     ("judge_total", [0, 1, 2], [1, 0, 1]), ("test_total", [0, 1, 2], [1, 0, 1]),
     ("test_possible", [0, 1], [1, 1]), ("test_possible", [0, 1, 2], [1, 0]),
     ("test_total", [0, 1, 2], [0, 1, 1]),
     ("slope_totals", [0, 1], [1, 1]), ("slope_totals", [0, 1, 2, 3], [1, 1])],
)  # fmt: skip
def test_it_looks_at_no_row_for_what_was_not_offered(
    step: str, classes: Any, parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no table at all here: the refusal can hang on nothing in it."""
    monkeypatch.setattr(masked_sums, "require_masks", lambda site: None)
    asked = {one.name: one for one in masked_sums.STEPS}[step]
    told = np.array([True, False])
    message = SimpleNamespace(
        classes=aggregate(classes), models=SimpleNamespace(value=()), told=told
    )
    part = at_site.CHOOSING if step == "judge_total" else at_site.TEST
    judged = {"part": part if parts[0] else -1, "figures": np.array(parts[1:], dtype=bool)}
    for state in ({}, {"classes": np.arange(3), "parts": parts, "judged": judged}):
        with pytest.raises(ProtocolError, match=NOT_OFFERED):
            asked(message, None, state, None)


@pytest.mark.parametrize(
    ("step", "change"),
    [
        ("possible", lambda m: dataclasses.replace(
            m, settings=dataclasses.replace(m.settings, c=2.0))),
        ("rank_totals", flipped),
        ("fits_possible", lambda m: dataclasses.replace(
            m, communities=relayed(m.communities.value[::-1], Disclosure.AGGREGATE))),
        ("fit_totals", other(places=aggregate([0, 1]))),
    ],
)  # fmt: skip
def test_a_site_that_was_asked_another_question_is_in_no_total(step: str, change: Any) -> None:
    """Of what it was asked before in the run, too: there is no total of sites that differ."""
    if step == "rank_totals":
        change = other(pairs=np.arange(45).reshape(3, 15) > 0)
    with pytest.raises((ProtocolError, QuorumError), match=r"sums of different cells|settings of"):
        altered(step, change, apart=True).run(secure(), seed=0)


def test_a_site_that_was_asked_beside_the_others_is_in_no_total() -> None:
    """Sums of one site at coefficients of its own: what it adds afterwards has other masks."""

    def steep(message: Any) -> Any:
        phis = tuple(phi + 50.0 for phi in message.coefficients.value)
        return dataclasses.replace(message, coefficients=relayed(phis, Disclosure.MODEL))

    with pytest.raises(ProtocolError, match="asked other questions before it"):
        altered("slope_totals", steep, fit="exact", beside=True).run(
            secure(policy="consortium"), seed=0
        )


@pytest.mark.parametrize("step", ["possible", "rank_totals", "fits_possible", "fit_totals"])
def test_totals_are_told_once_in_a_run(step: str) -> None:
    with pytest.raises(QuorumError, match="answered once in a run"):
        altered(step, lambda message: message, twice=True).run(secure(), seed=0)


def test_units_of_others_do_not_decide_what_a_site_could_tell(
    added: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Centres a million spreads away make columns one value: ranks do not hang on that."""
    run_of()
    wanted = {site: added["possible", site].pairs.value for site in TABLES}
    true = standardise.transform

    def moved(message: Any, data: Any) -> Any:
        centre = relayed(np.asarray(message.centre.value) + 1e29, Disclosure.AGGREGATE)
        return true(dataclasses.replace(message, centre=centre), data)

    step = prepare.steps_of(FederatedCommunityBayes)["standardise.apply"]
    monkeypatch.setitem(vars(step), "transform", moved)
    added.clear()
    with pytest.raises(QuorumError, match="no community has a fit"):
        run_of()
    for site, pairs in wanted.items():
        np.testing.assert_array_equal(added["possible", site].pairs.value, pairs)
        assert pairs.all() and not added["fits_possible", site].fits.value.any()


def test_no_site_says_whether_its_rows_are_far_from_made_up_units(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Predictors refuse tables in other units: whether half of the rows are far is a median."""
    true = standardise.transform

    def smaller(message: Any, data: Any) -> Any:
        scale = relayed(np.asarray(message.scale.value) / 100.0, Disclosure.AGGREGATE)
        return true(dataclasses.replace(message, scale=scale), data)

    step = prepare.steps_of(FederatedCommunityBayes)["standardise.apply"]
    monkeypatch.setitem(vars(step), "transform", smaller)
    remarks = run_of(holdout=0.2).result.remarks
    assert not any("did not take the model" in remark for remark in remarks)


@pytest.mark.parametrize(("largest", "fine"), [(1e100, True), (1.1e100, False), (1e300, False)])
def test_models_are_judged_where_scores_are_numbers(largest: float, fine: bool) -> None:
    """In units of 1e-30 too: else made-up models would find the size of a site's largest row."""
    codes = np.arange(80) % 2
    x = 1e50 * np.random.default_rng(0).uniform(-1, 1, size=(80, 3))
    rows = at_site.Rows(x, codes, np.full(80, at_site.TRAINING), 0, np.empty(0, dtype=int))
    held = dataclasses.replace(rows, part=np.where(np.arange(80) < 40, 0, at_site.TEST))
    models = relayed(np.full((2, 1, 4), largest), Disclosure.MODEL)
    message = messages.Judge(
        messages.Settings(("a", "b"), 1.0, 0.0, 0.2), aggregate([0, 1]), models
    )
    if not fine:
        with pytest.raises(ProtocolError, match="none of the study's columns"):
            at_site.asked_of(held, at_site.TEST, message)
        return
    asked, y = at_site.asked_of(held, at_site.TEST, message)
    with np.errstate(over="raise", invalid="raise"):
        values, _, _ = at_site.figures_of(held, at_site.TEST, asked, y, least=10)
    assert np.isfinite(values).all()


def test_sums_that_are_no_number_stop_the_run_for_all() -> None:
    """At coefficients of 1e308: a refusal, or a gap, would say at which site they are."""

    def far(message: Any) -> Any:
        steep = tuple(np.full_like(phi, 1e308) for phi in message.coefficients.value)
        return dataclasses.replace(message, coefficients=relayed(steep, Disclosure.MODEL))

    method = altered("slope_totals", far, fit="exact")
    with np.errstate(all="ignore"), pytest.raises(DataError, match="is above"):
        method.run(secure(policy="consortium"), seed=0)


@pytest.mark.parametrize("step", masked_sums.STEPS)
def test_steps_of_masked_sums_are_refused_in_plain(step: Any) -> None:
    message = SimpleNamespace(models=SimpleNamespace(value=()))
    with pytest.raises(DisclosureError, match="have not met"):
        step(message, None, {}, SimpleNamespace(keys={}))


def test_no_more_models_are_judged_than_in_plain() -> None:
    many = SimpleNamespace(models=SimpleNamespace(value=np.zeros((21, 1, 3))))
    with pytest.raises(DisclosureError, match="more numbers of communities"):
        masked_sums.judge_possible(many, None, {}, None)
    with pytest.raises(ProtocolError, match="three models"):
        masked_sums.test_possible(many, None, {}, None)


def test_the_exact_fit_needs_consent_with_masks_too() -> None:
    with pytest.raises(QuorumError, match="per_record"):
        run_of(fit="exact")


@pytest.mark.parametrize(
    ("step", "field", "value"),
    [
        ("possible", "classes", 9.0),
        ("rank_totals", "counts", -1.0),
        ("rank_totals", "ranks", 1e6),
        ("fits_possible", "fits", -1.0),
        ("fit_totals", "sums", -1.0),
        ("slope_totals", "sums", -1.0),
    ],
)
def test_totals_that_no_rows_have_are_refused(
    step: str, field: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = masked_sums.total

    def wrong(ctx: Any, asked: Any, reply: Any, **more: Any) -> Any:
        found = yield from true(ctx, asked, reply, **more)
        if asked.step == step:
            at = -1 if step == "fit_totals" else 0
            found.values[field].flat[at] = value
        return found

    monkeypatch.setattr(masked_sums, "total", wrong)
    exact = {"fit": "exact"} if step == "slope_totals" else {}
    with pytest.raises(ProtocolError, match="what no rows have"):
        run_of(policy="consortium", **exact)


def test_scaling_must_be_pooled() -> None:
    with pytest.raises(StudyError, match='standardize to "pooled"'):
        FederatedCommunityBayes(n_communities=2).run(secure(standardize="none"), seed=0)
    study = Study.from_settings(
        {
            "name": "classes",
            "method": "federated-community-bayes",
            "sums": "secure",
            "data": {"features": ["x0", "x1"], "target": "y", "levels": {"y": list(LEVELS)}},
            "sites": {"names": ["a", "b", "c"]},
        }
    )
    with pytest.raises(StudyError, match='standardize to "pooled"'):
        check_admitted(study, FederatedCommunityBayes())


@pytest.mark.parametrize("preset", ["simulation", "strict"])
def test_a_steward_can_insist(preset: Any) -> None:
    insists = Policy(preset=preset, masked_sums=True, foreign_models=True)
    assert run_of(policy=insists).result.sites == (ALL,)


# --------------------------------------------------------------------------- absence


FIVE = tables_of([50] * 5, p=4)
THREE = tables_of([20] * 3, p=2, n_classes=2)


def test_a_site_that_is_lost_before_it_gave_is_not_in_the_model() -> None:
    made = dataclasses.replace(secure(FIVE), quorum=4)
    method = FederatedCommunityBayes(n_communities=2, **ALL_ROWS)
    run = method.run(scripted(made, {(1, "s2"): "absent"}), seed=0)
    wanted = run_of({name: t for name, t in FIVE.items() if name != "s2"}).result
    np.testing.assert_allclose(fit_of(run.result)[1], fit_of(wanted)[1], atol=1e-12)
    for round_ in (POSSIBLE, RANKS, FITS_POSSIBLE, FITS):  # two rounds of scaling before it gave
        with pytest.raises(QuorumError, match="s2 was absent"):
            method.run(scripted(made, {(round_, "s2"): "absent"}), seed=0)


@pytest.mark.parametrize("round_", [FITS + 1, KEEP])
def test_a_site_that_is_lost_after_it_gave_is_in_the_model(round_: int) -> None:
    made = dataclasses.replace(secure(FIVE), quorum=4)
    method = FederatedCommunityBayes(n_communities=2, **ALL_ROWS)
    run = method.run(scripted(made, {(round_, "s2"): "absent"}), seed=0)
    assert fit_of(run.result)[1].tolist() == fit_of(method.run(made, seed=0).result)[1].tolist()
    late = any("s2 did not take the model" in remark for remark in run.result.remarks)
    assert late == (round_ == KEEP)


@pytest.mark.parametrize("round_", range(POSSIBLE, KEEP + 9))
def test_a_run_that_stopped_goes_on_with_the_same_answer(round_: int, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def stop(kind: str, facts: dict[str, Any]) -> None:
        if kind == "arrived" and facts["round"] == round_:
            raise Killed

    method = FederatedCommunityBayes(candidates=(1, 2), fit="one-shot")
    made, path = secure(THREE, "simulation"), tmp_path / "run"
    with pytest.raises(Killed):
        method.run(made, seed=0, run_id="kept", out=path, on_event=stop)
    method.run(made, out=path, run_id="kept", resume=True)
    whole = method.run(secure(THREE, "simulation"), seed=0, run_id="kept")
    assert load_run(path).result.to_files() == whole.result.to_files()

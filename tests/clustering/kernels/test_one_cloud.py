"""Classes judged on rows that they were not found on, against draws of one cloud."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from consilience.clustering.estimators.local_models import entries_of
from consilience.clustering.kernels import one_cloud
from consilience.clustering.kernels.one_cloud import Compared
from tests.reference import one_cloud as reference


def rows_and_labels(
    seed: int, n: int = 40, p: int = 3, k: int = 3
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(k, size=n)
    return rng.normal(size=(n, p)) + labels[:, None], labels


@pytest.mark.parametrize("seed", range(4))
def test_statistics_of_numbers_equal_the_textbook(seed: int) -> None:
    rows, labels = rows_and_labels(seed)
    tables, classes = np.stack([rows, rows + 7.0]), np.stack([labels, labels])
    wanted = [reference.separation(rows, labels)] * 2
    np.testing.assert_allclose(one_cloud.separation(tables, classes), wanted, atol=1e-13)
    # Classes that do not occur change nothing, and rows of small ones are left out.
    np.testing.assert_allclose(one_cloud.separation(tables, 2 * classes), wanted, atol=1e-13)
    least = int(np.sort(np.bincount(labels))[1])
    kept = np.bincount(labels)[labels] >= least
    wanted = [reference.separation(rows[kept], labels[kept])] * 2
    np.testing.assert_allclose(one_cloud.separation(tables, classes, least), wanted, atol=1e-13)
    shares = [reference.share_between(rows, labels)] * 2
    np.testing.assert_array_equal(one_cloud.share_between(tables, 2 * classes), shares)
    shares = [reference.share_between(rows[kept], labels[kept])] * 2
    np.testing.assert_array_equal(one_cloud.share_between(tables, classes, least), shares)


def test_information_of_categories_and_sequences_equals_the_textbook() -> None:
    rng = np.random.default_rng(0)
    codes, labels = rng.integers(-1, 3, size=(30, 4)), rng.integers(2, size=30)
    cells = [[(j, v) for j, v in enumerate(row) if v >= 0] for row in codes]
    found = one_cloud.information(entries_of(codes, "latent-class", (3,) * 4), 30, labels)
    assert found == pytest.approx(reference.information(cells, labels) - 8 / 60, abs=1e-13)
    # Of sequences: the first state, then steps, each in the row of the state that they leave.
    cells = [
        [(-1, row[0])] * (row[0] >= 0) + [(a, b) for a, b in pairwise(row) if a >= 0 and b >= 0]
        for row in codes.tolist()
    ]
    found = one_cloud.information(entries_of(codes, "markov-mixture", (3,)), 30, labels)
    assert found == pytest.approx(reference.information(cells, labels) - 8 / 60, abs=1e-13)


def test_of_one_class_or_equal_rows_nothing_is_said() -> None:
    rows, labels = rows_and_labels(0)
    one = np.zeros((1, 40), dtype=np.int64)
    assert np.isnan(one_cloud.separation(rows[None], one))
    assert np.isnan(one_cloud.separation(np.ones((1, 40, 3)), labels[None]))
    assert np.isnan(one_cloud.share_between(rows[None], one))
    codes = np.random.default_rng(0).integers(3, size=(40, 4))
    entries = entries_of(codes, "latent-class", (3,) * 4)
    assert np.isnan(one_cloud.information(entries, 40, one[0]))


# --- draws -----------------------------------------------------------------------------------


def test_scores_equal_the_textbook() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(30, 2)).round(1)  # with ties
    x[rng.random(x.shape) < 0.2] = np.nan
    found = one_cloud.scored(np.stack([x, x[::-1]]), x)
    for j in range(2):
        seen = ~np.isnan(x[:, j])
        wanted = reference.scored(x[seen, j].tolist(), x[seen, j].tolist())
        np.testing.assert_allclose(found[0, seen, j], wanted, atol=1e-12)
    np.testing.assert_array_equal(found[1], found[0, ::-1])
    assert (np.isnan(found[0]) == np.isnan(x)).all()
    # A monotone change of a column changes nothing.
    np.testing.assert_array_equal(one_cloud.scored(np.exp(x), np.exp(x)), found[0])


def test_a_cloud_has_the_margins_and_the_correlation() -> None:
    rng = np.random.default_rng(1)
    covariance = 0.6 * np.ones((4, 4)) + 0.4 * np.eye(4)
    x = rng.multivariate_normal(np.zeros(4), covariance, size=80)
    x[:, 2] = np.exp(x[:, 2])
    x[:, 3] = np.digitize(x[:, 3], [-1, 0, 1])
    for table in (x, (x > np.median(x, axis=0)).astype(float)):
        drawn = one_cloud.cloud_draws(table, rng.standard_normal((40, 80, 4)))
        np.testing.assert_array_equal(np.sort(drawn, axis=1)[7], np.sort(table, axis=0))
        wanted = np.corrcoef(one_cloud.scored(table, table).T)
        off = np.array([np.corrcoef(one_cloud.scored(draw, table).T) - wanted for draw in drawn])
        # One of 80 rows: draws without the correlation of the rows would be off by .07 (root of
        # the mean square). Of two levels a correlation jumps by .05 where one value moves.
        assert np.sqrt((off**2).mean()) < 0.02
        assert np.abs(off.mean(axis=0)).max() < 0.01


def test_statistics_at_the_correlation_of_the_rows_equal_the_textbook() -> None:
    rng = np.random.default_rng(3)
    rows, labels = rows_and_labels(3)
    drawn = rng.permuted(np.repeat(rows[None], 12, axis=0), axis=1)
    told = one_cloud.separation(drawn, np.repeat(labels[None], 12, axis=0))
    wanted = reference.at_correlation(told, drawn, rows, labels)
    others = (rows[:, 0] > 1.0).astype(np.int64)
    gaps = np.where(np.arange(12) < 2, np.nan, told)
    found = one_cloud.at_correlation([told, gaps], drawn, rows, [labels, others])
    np.testing.assert_allclose(found[0], wanted, atol=1e-12)
    known = reference.at_correlation(told[2:], drawn[2:], rows, others)
    np.testing.assert_allclose(found[1][2:], known, atol=1e-12)
    assert np.isnan(found[1][:2]).all()
    # Draws that have it stay as they are.
    same = np.repeat(rows[None], 12, axis=0)
    np.testing.assert_array_equal(one_cloud.at_correlation([told], same, rows, [labels])[0], told)


def test_missing_values_stay_where_they_are_and_fewer_rows_have_the_quantiles() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(60, 3))
    x[rng.random(x.shape) < 0.2] = np.nan
    for make in (one_cloud.cloud_draws, one_cloud.shuffled_draws):
        drawn = make(x, rng.standard_normal((5, 60, 3)))
        assert (np.isnan(drawn) == np.isnan(x)).all()
        np.testing.assert_array_equal(np.sort(drawn[0], axis=0), np.sort(x, axis=0))
        few = make(x, rng.standard_normal((5, 20, 3)))
        assert (np.isnan(few) == np.isnan(x[:20])).all()
        assert np.isin(few[~np.isnan(few)], x).all()


def test_shuffled_columns_have_nothing_in_common() -> None:
    rng = np.random.default_rng(3)
    x = np.repeat(rng.normal(size=(500, 1)), 2, axis=1)
    drawn = one_cloud.shuffled_draws(x, rng.standard_normal((4, 500, 2)))
    # Correlation of independent permutations: standard error 1/sqrt(499) = 0.045.
    assert all(abs(np.corrcoef(draw.T)[0, 1]) < 0.18 for draw in drawn)


def test_one_chain_has_the_shares_of_first_states_and_of_steps_at_each_time() -> None:
    rng = np.random.default_rng(4)
    stays = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
    codes = np.zeros((600, 6), dtype=np.int64)
    for t in range(5):
        moves = rng.integers(1, 3, size=600) * (rng.random(600) > stays[t])
        codes[:, t + 1] = (codes[:, t] + moves) % 3
    codes[rng.random(codes.shape) < 0.1] = -1
    drawn = one_cloud.chain_draws(codes, 3, rng.standard_normal((30, 600, 6)))
    assert ((drawn < 0) == (codes < 0)).all()
    for t in range(5):
        both = (codes[:, t] >= 0) & (codes[:, t + 1] >= 0)
        stayed = (drawn[:, both, t] == drawn[:, both, t + 1]).mean()
        # Some 480 steps at each time: standard error .02 at most.
        assert stayed == pytest.approx((codes[both, t] == codes[both, t + 1]).mean(), abs=0.06)
    seen = codes[:, 0] >= 0
    assert (drawn[:, seen, 0] == 0).mean() == pytest.approx((codes[seen, 0] == 0).mean(), abs=0.03)


def test_levels_are_ordered_along_what_columns_have_in_common() -> None:
    rng = np.random.default_rng(5)
    degree = rng.normal(size=600)
    codes = np.stack(
        [np.digitize(degree + 0.4 * rng.normal(size=600), [-0.5, 0.5]) for _ in range(3)], axis=1
    )
    names = np.array([2, 0, 1])  # the order of codes says nothing
    shuffled = names[codes]
    shuffled[0, 0] = -1
    placed = one_cloud.level_scores(shuffled, (3, 3, 3))
    for j in range(3):
        order = [placed[(shuffled[:, j] == names[c]), j][0] for c in range(3)]
        assert order in ([0, 1, 2], [2, 1, 0])
    np.testing.assert_array_equal(one_cloud.levels_of(placed[None], shuffled, placed)[0], shuffled)


# --- scores ----------------------------------------------------------------------------------


def compared(x: np.ndarray, drawn: np.ndarray, labels: Any, least: int = 1) -> Compared:
    """Rows beside draws as sites see them."""
    seen, scores = one_cloud.scored(x, x), one_cloud.scored(drawn, x)
    told = one_cloud.separation(scores, labels(drawn), least)
    told = one_cloud.at_correlation([told], scores, seen, [labels(x)])[0]
    return Compared(one_cloud.separation(seen[None], labels(x)[None], least)[0], told)


def test_scores_are_standard_deviations_cut_to_ten() -> None:
    draws = np.array([1.0, 2.0, 3.0])
    assert Compared(4.0, draws).score == pytest.approx(2.0)
    assert Compared(4.0, draws, shrink=0.5).score == pytest.approx(4.0)
    assert Compared(1e9, draws).score == 10
    assert Compared(1.0, np.zeros(3)).score == 10, "draws that are never apart"
    assert np.isnan(Compared(1.0, np.ones(3)).score), "what is given says nothing"
    assert np.isnan(one_cloud.averaged([]).score)
    mean = one_cloud.averaged([Compared(4.0, draws), Compared(6.0, draws[::-1])])
    assert (mean.found, mean.draws.tolist()) == (5.0, [2.0, 2.0, 2.0])


def test_draws_without_a_statistic_stand_beside_nothing() -> None:
    """Else rows that happen to have two classes are above draws of which some have one."""
    draws = np.array([1.0, np.nan, 3.0, np.nan])
    assert Compared(4.0, draws).score == pytest.approx(2 / np.sqrt(2))
    others = np.array([5.0, 7.0, np.nan, np.nan])
    mean = one_cloud.averaged([Compared(4.0, draws), Compared(8.0, others)])
    # Above their means 2 and 6: -1 and -1, 1, 1, and nothing.
    np.testing.assert_array_equal(mean.draws, [3.0, 5.0, 5.0, np.nan])
    rare = np.where(np.arange(99) < 19, np.arange(99.0), np.nan)
    assert np.isnan(Compared(4.0, rare).score), "hardly any draw has two classes"
    assert np.isnan(one_cloud.averaged([Compared(4.0, rare)]).found)


def test_what_halves_have_in_common_by_chance_varies_more_than_draws() -> None:
    """Both halves of one split say the same; P splits say it 2 P / (P + 1) times as well."""
    draws = np.array([1.0, 2.0, 3.0])
    for n, share in ((1, 1.0), (2, 1.0), (10, 0.6)):
        mean = one_cloud.averaged([Compared(3.0, draws)] * n, by_chance=True)
        assert mean.score == pytest.approx(1 / np.sqrt(share))
    # Variances of parts are averaged; how draws are correlated over them makes no difference.
    parts = [Compared(3.0, draws), Compared(3.0, 7 * draws[[1, 2, 0]] - 12)]
    assert one_cloud.averaged(parts, by_chance=True).score == pytest.approx(1 / np.sqrt(50 / 2))
    # As simulated: u_A'u_B over both halves of random splits of sums of noise.
    rng = np.random.default_rng(5)
    n, n_splits, tables = 40, 3, 4000
    noise = rng.normal(size=(tables, n, 2))
    mean = np.zeros(tables)
    for _ in range(n_splits):
        half = rng.permutation(n) < n // 2
        mean += (noise[:, half].sum(axis=1) * noise[:, ~half].sum(axis=1)).sum(axis=1) / n_splits
    single = 2 * (n / 2) ** 2
    assert mean.var() / single == pytest.approx(1 / 2 + 1 / (2 * n_splits), abs=0.06)


def test_draws_hang_together_over_splits_at_least_as_rows_do() -> None:
    """Halves of two splits share half of their rows: the mean of P like partitions has half of
    the variance of one."""
    rng = np.random.default_rng(5)
    tables = rng.normal(size=(6, 99))  # of three splits, with nothing in common
    for mixed in (0.0, 1.0):
        others = tables + mixed * rng.normal(size=tables.shape)
        parts = [Compared(3.0, x, 1.0, y) for x, y in zip(tables, others, strict=True)]
        alike = np.mean([np.corrcoef(x, y)[0, 1] for x, y in zip(tables, others, strict=True)])
        wanted = (1 + 2 * alike) / 6 * tables.var(axis=1, ddof=1).mean()
        mean = one_cloud.averaged(parts).draws
        assert mean.var(ddof=1) == pytest.approx(wanted)
        assert mean.mean() == pytest.approx(tables.mean())
    # Draws that are more correlated are left alone, and of equal ones nothing is said.
    draws = np.array([1.0, 2.0, 3.0])
    for elsewhere in (draws, np.ones(3)):
        parts = [Compared(3.0, draws, 1.0, elsewhere)] * 6
        assert one_cloud.averaged(parts).score == pytest.approx(1.0)
    # As simulated: sums of noise over both halves of random splits.
    noise = rng.normal(size=(4000, 40))
    halves = [rng.permutation(40) < 20 for _ in range(3)]
    both = [noise[:, half].sum(axis=1) for split in halves for half in (split, ~split)]
    assert np.mean(both, axis=0).var() / 20 == pytest.approx((1 + 2) / 6, abs=0.04)


def test_a_small_class_of_a_skewed_cloud_holds_its_level() -> None:
    """300 tables of which some two thirds have six rows in the class: .05, standard error .02."""
    rng = np.random.default_rng(8)
    labels = lambda rows: (rows.sum(axis=-1) > 9).astype(int)  # noqa: E731
    scores = []
    for _ in range(300):
        x = np.exp(rng.multivariate_normal(np.zeros(3), 0.3 + 0.7 * np.eye(3), size=50))
        drawn = one_cloud.cloud_draws(x, rng.standard_normal((39, 50, 3)))
        scores.append(compared(x, drawn, labels, 6).score)
    said = np.array(scores)[~np.isnan(scores)]
    assert 100 < len(said) < 250
    assert (said > 1.645).mean() <= 0.05 + 3 * 0.02
    assert abs(said.mean()) < 0.3


def test_sites_are_combined_by_the_root_of_their_rows() -> None:
    scores = np.array([1.0, 2.0, np.nan])
    assert one_cloud.combined(scores, np.array([100.0, 400.0, 9.0])) == pytest.approx(
        (10 * 1 + 20 * 2) / np.sqrt(500)
    )
    assert np.isnan(one_cloud.combined(scores[2:], np.ones(1)))


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_a_partition_found_elsewhere_holds_its_level(correlation: float) -> None:
    """120 tables: .05 with standard error .02; more designs and runs are in replications."""
    rng = np.random.default_rng(6)
    covariance = np.full((3, 3), correlation) + (1 - correlation) * np.eye(3)
    above = 0
    for _ in range(120):
        x = rng.multivariate_normal(np.zeros(3), covariance, size=50)
        drawn = one_cloud.cloud_draws(x, rng.standard_normal((39, 50, 3)))
        labels = lambda rows: (rows.sum(axis=-1) > 0.2).astype(int)  # noqa: E731
        above += compared(x, drawn, labels).score > 1.645
    assert 0 <= above / 120 <= 0.05 + 3 * 0.02


def test_columns_of_two_levels_hold_their_level() -> None:
    """300 tables: mean 0 with standard error .06. Draws off their correlation made it -.36."""
    rng = np.random.default_rng(9)
    labels = lambda rows: (rows.sum(axis=-1) > 2).astype(int)  # noqa: E731
    scores = []
    for _ in range(300):
        x = rng.multivariate_normal(np.zeros(5), 0.5 + 0.5 * np.eye(5), size=50) > 0
        drawn = one_cloud.cloud_draws(x.astype(float), rng.standard_normal((39, 50, 5)))
        scores.append(compared(x.astype(float), drawn, labels).score)
    assert abs(np.mean(scores)) <= 3 * 0.06
    assert 0.05 - 3 * 0.013 <= np.mean(np.array(scores) > 1.645) <= 0.05 + 3 * 0.013


def test_two_classes_are_found() -> None:
    rng = np.random.default_rng(7)
    found = 0
    for _ in range(20):
        x = rng.normal(size=(60, 3)) + 2.0 * rng.integers(2, size=(60, 1))
        drawn = one_cloud.cloud_draws(x, rng.standard_normal((39, 60, 3)))
        labels = lambda rows: (rows.sum(axis=-1) > 3).astype(int)  # noqa: E731
        found += compared(x, drawn, labels).score > 1.645
    assert found >= 16

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from consilience.discriminant.estimators.sparse_qda_fit import (
    PreparedMoments,
    QDASettings,
    precision_path,
    units_of,
)
from consilience.discriminant.kernels import joint_precision, joint_precision_block
from consilience.discriminant.kernels.joint_precision import (
    JointPrecision,
    RowMoments,
    components,
    fit_precisions,
    largest_penalty,
)
from consilience.discriminant.kernels.joint_precision_block import Problem, solve_block
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.random import stream
from tests.discriminant.estimators.sparse_qda_data import in_one_block
from tests.reference import joint_precision as textbook


def table(
    p: int, sizes: tuple[int, ...], seed: int, density: float = 0.15
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of classes whose features are sparse mixtures on different scales."""
    rng = stream(seed, "table")
    mixing = np.eye(p) + 0.4 * rng.standard_normal((p, p)) * (rng.random((p, p)) < density)
    rows = [rng.standard_normal((n, p)) @ (mixing * rng.uniform(0.8, 1.2, (p, p))) for n in sizes]
    x = np.concatenate(rows) * rng.uniform(0.5, 2, p)
    return x, np.repeat(np.arange(len(sizes)), sizes)


def moments_of(p: int, sizes: tuple[int, ...], seed: int, density: float = 0.15) -> RowMoments:
    return RowMoments.of(*table(p, sizes, seed, density), len(sizes))


def whole(moments: RowMoments) -> np.ndarray:
    return moments.block(np.arange(moments.n_features))


def unscreened(moments: RowMoments, lam: float, tol: float) -> np.ndarray:
    """The same solver on all features at once."""
    s = whole(moments)
    start = np.stack([np.diag(1 / np.diag(m)) for m in s])
    return solve_block(Problem(s, moments.n, lam), start, tol=tol, max_iter=100).t


def partition(labels: np.ndarray) -> list[list[int]]:
    return [np.flatnonzero(labels == c).tolist() for c in range(labels.max() + 1)]


@pytest.mark.parametrize("sizes", [(60,), (40, 90), (12, 7, 30), (30, 9)])
@pytest.mark.parametrize("ratio", [0.7, 0.3, 0.1])
def test_equals_the_textbook(sizes: tuple[int, ...], ratio: float) -> None:
    moments = moments_of(6, sizes, 1)
    lam = ratio * largest_penalty(moments)
    fitted = fit_precisions(moments, lam, tol=1e-13)
    s, n = whole(moments), moments.n
    wanted = textbook.proximal_gradient(s, n, lam, tol=1e-11)
    t = fitted.dense()
    scale = 6 * n.sum()
    # Both are within a relative gap of 1e-11 of the minimum.
    assert abs(textbook.objective(s, n, lam, wanted) - fitted.objective) < 1e-10 * scale
    assert fitted.objective == pytest.approx(textbook.objective(s, n, lam, t), rel=1e-12)
    np.testing.assert_allclose(t, wanted, atol=2e-4 * np.abs(wanted).max())
    assert -1e-14 < fitted.relative_gap <= 1e-13
    # Clipping alone gives a gap that vanishes with the distance, not with its square.
    assert -1e-10 * scale < textbook.gap(s, n, lam, t) < 1e-6 * scale
    assert fitted.penalty_norm == pytest.approx(textbook.penalty(t), rel=1e-10)
    np.testing.assert_allclose(fitted.log_det, np.linalg.slogdet(t)[1], rtol=1e-10, atol=1e-10)


def test_the_bound_holds_before_convergence() -> None:
    """Negative control of the certificate: early stops are above the minimum by at most the gap."""
    moments = moments_of(30, (25, 40), 3)
    lam = 0.05 * largest_penalty(moments)
    best = fit_precisions(moments, lam, tol=1e-13).objective
    open_gaps = 0
    for steps in (1, 2, 3):
        early = fit_precisions(moments, lam, tol=1e-13, max_iter=steps)
        assert early.objective - best <= early.gap + 1e-9
        assert early.dual <= best + 1e-9
        open_gaps += early.relative_gap > 1e-6
    assert open_gaps >= 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ratio", [0.9, 0.6, 0.45, 0.3])
def test_screening_is_exact(seed: int, ratio: float) -> None:
    moments = moments_of(24, (40, 15, 30), seed, density=0.05)
    lam = ratio * largest_penalty(moments)
    full = unscreened(moments, lam, 1e-14)
    fitted = fit_precisions(moments, lam, tol=1e-14)
    np.testing.assert_allclose(fitted.dense(), full, atol=1e-10 * np.abs(full).max())
    joined = np.sqrt((full**2).sum(axis=0)) > 0
    reach = np.linalg.matrix_power(joined.astype(float), 24) > 0
    of_solution = sorted({tuple(np.flatnonzero(row)) for row in reach})
    labels = components(moments, lam)
    assert sorted(tuple(c) for c in partition(labels)) == of_solution
    assert partition(labels) == textbook.components(whole(moments), moments.n, lam)


def test_tiles_and_sources_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = moments_of(50, (20, 30), 5, density=0.03)
    matrices = in_one_block(moments.n, whole(moments))
    lam_max = largest_penalty(moments)
    wanted = [components(moments, r * lam_max) for r in (0.8, 0.5, 0.2)]
    monkeypatch.setattr(joint_precision, "TILE", 7)
    for source in (moments, matrices):
        assert largest_penalty(source) == pytest.approx(lam_max, rel=1e-14)
        for labels, ratio in zip(wanted, (0.8, 0.5, 0.2), strict=True):
            np.testing.assert_array_equal(components(source, ratio * lam_max), labels)
    a = fit_precisions(moments, 0.3 * lam_max, tol=1e-13).dense()
    b = fit_precisions(matrices, 0.3 * lam_max, tol=1e-13).dense()
    np.testing.assert_allclose(a, b, atol=1e-9 * np.abs(a).max())


def test_ends_of_the_path_are_exact() -> None:
    moments = moments_of(12, (40, 60), 6)
    lam_max = largest_penalty(moments)
    for lam in (lam_max, 2 * lam_max):
        fitted = fit_precisions(moments, lam)
        assert fitted.blocks == () and fitted.n_links == 0 and fitted.gap == 0
        np.testing.assert_array_equal(fitted.diagonal, 1 / moments.diagonal)
    assert fit_precisions(moments, lam_max * (1 - 1e-9)).n_links == 1
    fitted = fit_precisions(moments, 0.0)
    np.testing.assert_allclose(fitted.dense(), np.linalg.inv(whole(moments)), rtol=1e-9)
    assert fitted.gap == 0 and fitted.n_links == 66


def test_lam_zero_refuses_a_singular_matrix_by_name() -> None:
    with pytest.raises(DataError, match=r"class 1 .* singular .* positive lam"):
        fit_precisions(moments_of(12, (40, 10), 6), 0.0)
    x, codes = table(12, (40, 40), 6)
    x[:, 5] = x[:, 2] * 3  # a copy in other units
    with pytest.raises(DataError, match="class 0"):
        fit_precisions(RowMoments.of(x, codes, 2), 0.0)


def duplicated() -> RowMoments:
    x, codes = table(20, (40, 30, 35), 7)
    return RowMoments.of(np.concatenate([x, x[:, :5]], axis=1), codes, 3)


DESIGNS: dict[str, tuple[Callable[[], RowMoments], float]] = {
    "more rows than features": (lambda: moments_of(40, (100, 150), 8), 0.01),
    "fewer rows than features": (lambda: moments_of(40, (15, 20, 18), 9), 0.01),
    "two rows in a class": (lambda: moments_of(20, (2, 3, 2), 10), 0.02),
    "unbalanced": (lambda: moments_of(25, (400, 20, 4), 11), 0.01),
    "20 classes": (lambda: moments_of(15, (12,) * 20, 12), 0.01),
    "one class": (lambda: moments_of(20, (50,), 13), 0.01),
    "duplicates": (duplicated, 0.01),
}


@pytest.mark.parametrize("name", DESIGNS)
def test_gap_along_the_path(name: str) -> None:
    make, smallest = DESIGNS[name]
    moments = make()
    lams = largest_penalty(moments) * np.geomspace(1, smallest, 12)
    path = path_of(moments, lams)
    check_path(moments, path)
    assert path[-1].n_links > path[3].n_links > 0


def path_of(
    moments: RowMoments, lams: np.ndarray, *, max_block: int | None = None, stop: bool = False
) -> list[JointPrecision]:
    """The path that users run, in the units of the moments."""
    units = units_of(moments.n, moments.means, moments.diagonal, standardize=False)
    prepared = PreparedMoments(moments.n, moments.means, units, moments)
    settings = QDASettings(max_block=max_block)
    return list(precision_path(prepared, lams / prepared.total, settings, stop=stop))


def check_path(moments: RowMoments, path: list[JointPrecision]) -> None:
    """Gap of each fit, its value by the textbook, blocks that only grow."""
    s, n = whole(moments), moments.n
    scale = moments.n_features * n.sum()
    before: list[set[int]] = []
    for fitted in path:
        assert -1e-12 < fitted.relative_gap <= 1e-8
        assert fitted.gap == pytest.approx(fitted.objective - fitted.dual, abs=1e-9 * scale)
        t = fitted.dense()
        np.testing.assert_array_equal(t, t.transpose(0, 2, 1))
        off = np.sqrt((t**2).sum(axis=0)) * (1 - np.eye(t.shape[1]))
        value = (n * (np.einsum("kij,kij->k", s, t) - np.linalg.slogdet(t)[1])).sum()
        assert fitted.objective == pytest.approx(value + fitted.lam * off.sum(), abs=1e-9 * scale)
        assert fitted.n_links == np.count_nonzero(np.triu(off))
        now = [set(block.tolist()) for block in fitted.blocks]
        assert all(any(small <= large for large in now) for small in before)
        before = now


@pytest.mark.parametrize("name", ["vowel", "digits", "block"])
def test_gap_along_paths_that_are_hard(name: str, data_dir: Callable[[str], Path]) -> None:
    """Real data on which block coordinate descent stalls, and 100 features that are not linked."""
    if name == "vowel":
        rows = np.loadtxt(data_dir("esl/vowel.train.csv"), delimiter=",", skiprows=1)
        rows = rows[np.isin(rows[:, 0], (6, 7, 9, 10))]
        x, codes = rows[:, 1:], np.searchsorted((6, 7, 9, 10), rows[:, 0])
    elif name == "digits":
        rows = np.loadtxt(data_dir("esl/zip.train.csv.gz"), delimiter=",", skiprows=1)
        rows = rows[np.isin(rows[:, 0], (3, 8))]
        x = rows[:, 1:].reshape(-1, 8, 2, 8, 2).mean(axis=(2, 4)).reshape(-1, 64)
        codes = (rows[:, 0] == 8).astype(int)
    else:
        rng = stream(0, "block")
        precision = np.eye(100)
        precision[:4, :4] = 0.8 + 0.2 * np.eye(4)
        x = rng.standard_normal((3000, 100))
        x[1500:] = x[1500:] @ np.linalg.cholesky(np.linalg.inv(precision)).T
        codes = np.repeat([0, 1], 1500)
    moments = RowMoments.of(x, codes, int(codes.max()) + 1)
    lams = largest_penalty(moments) * np.geomspace(1, 0.01, 20)
    path = path_of(moments, lams)
    check_path(moments, path)
    cold = fit_precisions(moments, lams[-1], tol=1e-11)
    assert abs(cold.objective - path[-1].objective) <= path[-1].gap + 1e-10 * abs(cold.objective)


def test_warm_and_cold_starts_agree() -> None:
    moments = moments_of(30, (20, 45), 14)
    lam_max = largest_penalty(moments)
    cold = fit_precisions(moments, 0.1 * lam_max, tol=1e-14)
    for ratio in (0.4, 0.05):  # from above and from below
        start = fit_precisions(moments, ratio * lam_max)
        warm = fit_precisions(moments, 0.1 * lam_max, start=start, tol=1e-14)
        np.testing.assert_allclose(
            warm.dense(), cold.dense(), atol=1e-8 * np.abs(cold.dense()).max()
        )


def factors(p: int, sizes: tuple[int, ...], seed: int) -> RowMoments:
    """Rows with strong factors in common, where conjugate gradients need many steps."""
    rng = stream(seed, "factors")
    shared = rng.standard_normal((4, p))
    rows = [
        rng.standard_normal((n, 4)) @ (shared + 0.3 * rng.standard_normal((4, p)))
        + 0.5 * rng.standard_normal((n, p))
        for n in sizes
    ]
    return RowMoments.of(np.concatenate(rows), np.repeat(np.arange(len(sizes)), sizes), len(sizes))


@pytest.mark.parametrize("sizes", [(60, 90), (20, 15, 30)])
def test_dense_blocks_along_a_path_agree_with_coordinate_descent_and_newton(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = factors(24, sizes, 22)
    lams = largest_penalty(moments) * np.geomspace(1, 0.02, 12)
    path = path_of(moments, lams)
    check_path(moments, path)
    dense = [fitted for fitted in path if list(fitted.solvers) == ["admm"]]
    assert dense  # alternating directions alone, each from the two before
    assert all(gamma is not None for fitted in dense for gamma in fitted.duals)
    monkeypatch.setattr(joint_precision_block, "STEEP", 10_000)
    for fitted in path[::3]:
        other = fit_precisions(moments, fitted.lam)
        assert "admm" not in other.solvers or other.solvers["newton"] > 0
        gap = fitted.gap + other.gap + 1e-9 * abs(other.objective)
        assert abs(other.objective - fitted.objective) <= gap
        t = other.dense()
        np.testing.assert_allclose(fitted.dense(), t, atol=5e-3 * np.abs(t).max())


def test_steps_learn_from_the_fits_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer steps where the reach follows the last start, and starts follow three fits."""

    def steps(p: int, sizes: tuple[int, ...], seed: int) -> int:
        moments = factors(p, sizes, seed)
        lams = largest_penalty(moments) * np.geomspace(1, 0.01, 20)
        path = path_of(moments, lams)
        check_path(moments, path)
        return sum(fitted.solvers.get("admm", 0) for fitted in path)

    designs = (24, (60, 90), 22), (40, (60, 90), 24), (40, (30, 25, 40), 24)
    now = [steps(*design) for design in designs]
    monkeypatch.setattr(joint_precision_block, "reach_of", lambda *_: joint_precision_block.REACH)
    onward = joint_precision.onward
    monkeypatch.setattr(joint_precision, "onward", lambda at, values: onward(at, values[:2]))
    plain = [steps(*design) for design in designs]
    assert all(a < b for a, b in zip(now, plain, strict=True))
    assert sum(now) <= 0.95 * sum(plain)


def test_a_dense_block_goes_on_where_alternating_directions_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = factors(20, (30, 25), 23)
    lams = largest_penalty(moments) * np.geomspace(1, 0.02, 12)
    monkeypatch.setattr(joint_precision_block, "LONGEST", 3)
    path = path_of(moments, lams)
    check_path(moments, path)
    assert any(fitted.solvers.get("coordinate", 0) > 0 for fitted in path[6:])


def test_repeats_and_workers_give_the_same_bytes() -> None:
    joblib = pytest.importorskip("joblib")
    rng = stream(15, "pair")
    x, codes = table(70, (60, 60), 15)
    y, _ = table(70, (60, 60), 16)
    both = np.concatenate([x, y], axis=1)[rng.permutation(120)]
    moments = RowMoments.of(both, codes, 2)
    s = whole(moments)
    s[:, :70, 70:] = s[:, 70:, :70] = 0
    split = in_one_block(moments.n, s)
    lam = 0.1 * largest_penalty(split)
    one = fit_precisions(split, lam)
    with joblib.parallel_config("threading"):
        two = fit_precisions(split, lam, n_jobs=2)
    assert sum(len(block) >= 60 for block in one.blocks) == 2
    for a, b in zip(one.precisions, two.precisions, strict=True):
        assert a.tobytes() == b.tobytes()
    assert one.objective == two.objective


def test_what_is_built_from_blocks() -> None:
    moments = moments_of(20, (40, 30), 17, density=0.04)
    fitted = fit_precisions(moments, 0.4 * largest_penalty(moments))
    t = fitted.dense()
    assert fitted.n_links > 0 and np.isfinite(fitted.diagonal[0]).any()
    pairs, entries = fitted.links()
    i, j = np.nonzero(np.triu(np.abs(t).sum(axis=0), 1))
    np.testing.assert_array_equal(pairs, np.stack([i, j], axis=1))
    np.testing.assert_array_equal(entries, t[:, i, j].T)
    np.testing.assert_allclose(fitted.log_det, np.linalg.slogdet(t)[1], rtol=1e-12)


def test_memory_follows_the_largest_block() -> None:
    """3,000 features: a 3,000 x 3,000 matrix alone would take 72 MB."""
    rng = stream(19, "wide")
    x = rng.standard_normal((300, 3000))
    x[:, 1] += x[:, 0]
    moments = RowMoments.of(x, np.repeat([0, 1], 150), 2)
    tracemalloc.start()
    fitted = fit_precisions(moments, 0.8 * largest_penalty(moments))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert fitted.blocks[0].tolist() == [0, 1]
    assert peak < 16e6


def test_a_block_that_is_too_large_is_refused_before_it_is_made() -> None:
    moments = moments_of(20, (40, 30), 20, density=0.5)
    lam = 0.01 * largest_penalty(moments)
    sentence = r"the largest block has 20 of 20 features at alpha = .* raise alpha or max_block"
    with pytest.raises(ParameterError, match=sentence):
        fit_precisions(moments, lam, max_block=19)
    with pytest.raises(ParameterError, match=sentence):
        path_of(moments, np.array([50 * lam, lam]), max_block=19)
    assert len(path_of(moments, np.array([50 * lam, lam]), max_block=19, stop=True)) == 1
    assert len(fit_precisions(moments, lam, max_block=20).blocks[0]) == 20


def test_wrong_input_is_refused() -> None:
    moments = moments_of(6, (20, 30), 21)
    for lam in (-1.0, np.nan, np.inf):
        with pytest.raises(ParameterError, match="lam"):
            fit_precisions(moments, lam)
    with pytest.raises(ParameterError, match="tol"):
        fit_precisions(moments, 1.0, tol=0)
    with pytest.raises(ParameterError, match="max_iter"):
        fit_precisions(moments, 1.0, max_iter=0)
    x, codes = table(6, (20, 30), 21)
    with pytest.raises(DataError, match="class 2 has no row"):
        RowMoments.of(x, codes, 3)
    x[codes == 1, 4] = 7.0
    with pytest.raises(DataError, match="feature 4 has no positive variance in class 1"):
        fit_precisions(RowMoments.of(x, codes, 2), 1.0)

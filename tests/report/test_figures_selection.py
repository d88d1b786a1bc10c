"""Figures of held-out entries: the curve and its marks, one-step leave-one-out, the model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from consilience import report as room
from consilience.completion.kernels.low_rank import leave_one_out_hard
from consilience.exceptions import ParameterError
from consilience.numerics.held_out_entries import EntryCurve
from consilience.report import figures_selection
from consilience.report.figures_selection import Curve, curve_of
from tests.report.told import drawn, letters, spoken


def curve(
    kind: str = "rank",
    best: int = 4,
    q: int = 9,
    *,
    folds: int = 5,
    natural: tuple[bool, bool] = (True, False),
    steep: float = 0.05,
) -> EntryCurve:
    """A curve with its smallest error at a place, simplest first as searches have it."""
    values = np.geomspace(30.0, 1.0, q) if kind == "alpha" else np.arange(q)
    rng = np.random.default_rng(0)
    mean = 1.0 + steep * (np.arange(q) - best) ** 2
    errors = mean + 0.02 * rng.standard_normal((folds, 1)) * np.ones(q)
    return EntryCurve(kind, values, errors, np.full(folds, 100), natural)


def words(figure: Figure) -> str:
    return letters(drawn(figure))


# --- reading --------------------------------------------------------------------------------


def test_candidates_are_in_order_whatever_was_simplest() -> None:
    found = curve_of(curve("alpha", best=6))
    assert (np.diff(found.values) > 0).all()
    given = curve("alpha", best=6)
    assert found.values[found.minimum] == given.best
    assert found.error[found.minimum] == given.mean.min()
    assert found.values[found.simplest] == given.best_one_standard_error >= given.best
    assert found.n_entries == 500


@pytest.mark.parametrize("wrap", ["curve", "search", "result"])
def test_curves_are_read_from_whatever_has_one(wrap: str) -> None:
    made = curve()
    one = {
        "curve": made,
        "search": SimpleNamespace(curve_=made),
        "result": SimpleNamespace(curve=lambda: made),
    }[wrap]
    found = curve_of(one)
    assert isinstance(found, Curve) and found.minimum == 4 and not found.at_edge
    assert curve_of(found) is found


def test_what_has_no_curve_is_refused() -> None:
    with pytest.raises(ParameterError, match="held-out entries"):
        room.plot_entry_curve(np.zeros(3))
    with pytest.raises(ParameterError, match="one parameter"):
        room.plot_entry_curve({"a": curve("rank"), "b": curve("alpha")})
    with pytest.raises(ParameterError, match="1 to 5 curves"):
        room.plot_entry_curve({str(i): curve() for i in range(6)})
    for plot in (room.plot_loadings, room.plot_singular_values):
        with pytest.raises(ParameterError, match="a fit with"):
            plot(curve())


# --- the curve ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text"),
    [("rank", "rank 4"), ("alpha", "penalty 5.48"), ("n_clusters", "4 clusters")],
)
def test_the_smallest_error_is_named(kind: str, text: str) -> None:
    assert f"smallest: {text}" in words(room.plot_entry_curve(curve(kind)))


def test_the_simplest_within_a_standard_error_is_named_where_it_differs() -> None:
    flat = curve(steep=1e-4)
    said = words(room.plot_entry_curve(flat))
    assert f"simplest within a standard error: rank {flat.best_one_standard_error}" in said
    assert flat.best_one_standard_error < 4
    assert "simplest" not in words(room.plot_entry_curve(curve(steep=0.05)))


@pytest.mark.parametrize(
    ("best", "natural", "told"),
    [
        (8, (True, False), True),
        (8, (True, True), False),
        (0, (True, False), False),
        (0, (False, False), True),
        (4, (False, False), False),
    ],
)
def test_only_an_artificial_edge_is_told(best: int, natural: tuple[bool, bool], told: bool) -> None:
    said = words(room.plot_entry_curve(curve(best=best, natural=natural)))
    assert ("the grid ends here" in said) == told
    assert ("no choice" in said) == told


def test_a_steep_curve_shows_its_bottom_again() -> None:
    steep = np.concatenate([np.linspace(60, 2, 6), 1.0 + 0.01 * np.arange(12)])
    folds = steep + 0.02 * np.random.default_rng(0).standard_normal((5, 18))
    made = EntryCurve("rank", np.arange(18), folds, np.full(5, 100), (True, False))
    figure = room.plot_entry_curve(made)
    assert len(figure.axes) == 2 and "the bottom of the curve" in words(figure)
    low, high = figure.axes[1].get_xlim()
    assert low < 6 < high and low > 0
    bottom, top = figure.axes[1].get_ylim()
    assert bottom < made.mean.min() < top < 10
    assert len(room.plot_entry_curve(curve(steep=0.005)).axes) == 1


def test_bars_are_standard_errors() -> None:
    made = curve()
    axes = room.plot_entry_curve(made).axes[0]
    bars: Any = next(c for c in axes.collections if len(c.get_paths()) == 9)
    ends = np.array([path.vertices[:, 1] for path in bars.get_paths()])
    np.testing.assert_allclose(ends[:, 1] - ends[:, 0], 2 * made.se)
    single = EntryCurve("rank", np.arange(4), np.array([[4.0, 2, 1, 3]]), np.array([9]))
    assert "standard error" not in words(room.plot_entry_curve(single))


def test_several_curves_are_told_apart_by_name() -> None:
    said = words(room.plot_entry_curve({"hard": curve(), "a$x_1$b": curve(best=5)}))
    assert "hard" in said and "a$x_1$b" in said.replace("\\$", "$")


def test_candidates_that_are_no_numbers_are_named() -> None:
    names, errors = np.array(["medians", "k$2$"]), np.array([[2.0, 1.0], [2.2, 1.1]])
    made = EntryCurve("estimator", names, errors, np.full(2, 10), (True, True))
    said = words(room.plot_entry_curve(made)).replace("\\$", "$")
    assert "medians" in said and "smallest: k$2$" in said


def test_unknown_errors_leave_gaps() -> None:
    made = curve()
    errors = made.errors.copy()
    errors[:, 7:] = np.nan
    part = EntryCurve("rank", made.parameters, errors, made.n_held, (True, False))
    assert "nan" not in drawn(room.plot_entry_curve(part)).lower()
    nothing = EntryCurve("rank", made.parameters, np.full((2, 9), np.nan), np.array([3, 3]))
    assert not curve_of(nothing).known
    assert "smallest" not in words(room.plot_entry_curve(nothing))


# --- one step -------------------------------------------------------------------------------


def test_leave_one_out_is_drawn_beside_folds() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((12, 2)) @ rng.standard_normal((2, 8))
    x += 0.1 * rng.standard_normal(x.shape)
    both = {v: leave_one_out_hard(x, range(6), variant=v) for v in ("exact", "as_printed")}
    figure = room.plot_leave_one_out(both, beside=curve(), truth=2)
    said = words(figure)
    assert "exact" in said and "as_printed" in said and "folds" in said
    one = room.plot_leave_one_out(both["exact"])
    assert "one-step leave-one-out" in words(one)
    # A rank at which some entry decides alone has no error.
    full = leave_one_out_hard(x, range(9))
    assert np.isinf(full.errors[-1]) and "inf" not in words(room.plot_leave_one_out(full))


# --- the model ------------------------------------------------------------------------------


def model(k: int = 3, p: int = 5, **more: Any) -> Any:
    weights = np.linspace(-1, 1, k * p).reshape(k, p)
    return SimpleNamespace(
        components_=weights,
        singular_values_=np.arange(k, 0, -1.0),
        feature_names_in_=[f"column {j}" for j in range(p)],
        n_features_in_=p,
        **more,
    )


def test_loadings_have_a_number_in_each_cell() -> None:
    said = words(room.plot_loadings(model()))
    assert "column 4" in said and "+1.00" in said and "\N{MINUS SIGN}1.00" in said
    search = SimpleNamespace(best_estimator_=model())
    assert "column 0" in words(room.plot_loadings(search))


def test_of_many_columns_those_that_weigh_most_are_drawn() -> None:
    weights = np.zeros((20, 90))
    weights[0, 7], weights[1, 80], weights[19, 50] = 1.0, -2.0, 9.0
    names, shown = figures_selection.shown_loadings(tuple(f"x{j}" for j in range(90)), weights)
    assert shown.shape == (30, 12) and {"x7", "x80"} <= set(names) and "x50" not in names
    assert names == sorted(names, key=lambda name: int(name[1:]))


def test_singular_values_or_shares() -> None:
    assert "singular value" in words(room.plot_singular_values(model()))
    shares = model(explained_variance_ratio_=np.array([0.5, 0.25, 0.1]))
    said = words(room.plot_singular_values(shares))
    assert "share of the variance" in said and "sum" in said


# --- words ----------------------------------------------------------------------------------


def test_the_block_says_what_is_near_and_where_the_grid_ends() -> None:
    flat = curve_of(curve(steep=1e-4))
    block = figures_selection.choice(flat, 4, "minimum", "Which rank?")
    assert "within a standard error of the smallest error" in spoken(block)
    assert "chosen" in spoken(block) and "500 entries were held out" in spoken(block)
    assert not block.warning
    edge = curve_of(curve(best=8))
    block = figures_selection.choice(edge, -1, "minimum", "Which rank?")
    assert "this is no choice" in block.warning and "chosen" not in spoken(block).split("smallest")
    ends = curve_of(curve(best=8, natural=(True, True)))
    assert not figures_selection.choice(ends, 8, "minimum", "Which rank?").warning


def test_what_the_simplest_candidate_leaves_is_the_yardstick() -> None:
    found = curve_of(curve(best=4, steep=0.05))
    assert figures_selection.predicted(found, 0) == 0.0
    share = 1.0 - found.error[4] / found.error[0]
    assert figures_selection.predicted(found, 4) == pytest.approx(share)
    assert np.isnan(figures_selection.predicted(curve_of(curve("alpha")), 4))
    assert np.isnan(figures_selection.predicted(found, -1))


def test_sites_that_tell_nothing_have_a_dash() -> None:
    found = curve_of(curve("n_clusters"))
    table = figures_selection.by_site(
        found, {"b": np.full(9, np.nan), "a": 10.0 * found.error}, {"a": 10, "b": 0}, 4
    )
    assert table is not None and [row[0] for row in table.rows] == ["a", "b"]
    assert table.rows[0][2:] == (f"{found.error[4]:.4f}", "4")
    assert table.rows[1][2:] == ("\N{EN DASH}", "\N{EN DASH}") and "not told" in table.note
    assert figures_selection.by_site(found, {}, {}, 4) is None

"""Figures of pooled regressions: coefficients with limits, and one slope at every site."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from consilience.arrays import FloatArray
from consilience.exceptions import ParameterError
from consilience.report import charts

MOST = 40
"""Lines of a figure; the page has a table of all."""


def most_different(result: Any) -> str:
    """The column in which sites differ most, by its p-value; the first where none is known."""
    known = np.nan_to_num(result.q_p_values, nan=1.0)
    return str(result.columns[int(np.argmin(known))])


def plot_regression(result: Any) -> Figure:
    """Draw the coefficients of the columns, over their standard errors, with limits.

    Parameters
    ----------
    result : PooledRegressionResult

    Returns
    -------
    matplotlib.figure.Figure
    """
    slopes = slice(result.n_constants, None)
    statistic = np.asarray(result.statistic[slopes])
    half = (result.high - result.low)[slopes] / 2 / result.error[slopes]
    shown = np.argsort(-np.abs(statistic), kind="stable")[:MOST]
    with charts.style():
        fig, ax = charts.sheet(0.27 * len(shown) + 0.8)
        # by_sign draws limits of a normal variable: others are as wide as their half width says.
        error = half[shown] / charts.Z95
        charts.by_sign(ax, np.arange(len(shown)), statistic[shown], error, True)
        ax.axvline(0, color=charts.INK, linewidth=0.9)
        ax.set_yticks(range(len(shown)), [charts.label(result.columns[j], 34) for j in shown])
        ax.set_ylim(len(shown) - 0.5, -0.5)
        level = charts.minus(f"{100 * result.level:g} %")
        ax.set_xlabel(f"coefficient over its standard error, with {level} limits")
        charts.bare(ax)
    return fig


def plot_forest(result: Any, column: str | None = None) -> Figure:
    """Draw one slope at every site with its interval, and the pooled one, at the level of the fit.

    Parameters
    ----------
    result : PooledRegressionResult
    column : str, optional
        The one in which sites differ most unless given.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ParameterError
        No column of the regression.
    """
    name = most_different(result) if column is None else column
    if name not in result.columns:
        raise ParameterError.of("column", f"one of {', '.join(result.columns)}", column)
    j = result.columns.index(name)
    pooled, low, high = (
        float(values[result.n_constants + j])
        for values in (result.estimate, result.low, result.high)
    )
    value, error = result.site_estimates[:, j], result.site_errors[:, j]
    named = len(result.sites) <= charts.NAMED
    with charts.style():
        fig, ax = charts.sheet((0.27 if named else 0.05) * len(result.sites) + 1.2)
        at = np.arange(1, len(result.sites) + 1)
        # by_sign draws 95 %: intervals of another level are as wide as its quantile says.
        width = NormalDist().inv_cdf((1 + result.level) / 2) / charts.Z95
        charts.by_sign(ax, at, value, error * width, named)
        _weights(ax, at, value, error)
        ax.axvspan(low, high, color=charts.BLUE, alpha=0.14, linewidth=0)
        ax.axvline(pooled, color=charts.BLUE, linewidth=1.4)
        ax.hlines(0, low, high, color=charts.BLUE, linewidth=1.8)
        charts.marks(ax, [pooled], [0], "D", charts.BLUE, charts.BLUE, 6.5, zorder=3)
        ax.axvline(0, color=charts.INK, linewidth=0.9)
        charts.site_axis(ax, result.sites, ("all sites",))
        level = charts.minus(f"{100 * result.level:g} %")
        ax.set_xlabel(f"coefficient of {charts.label(name, 40)}, with {level} intervals")
        charts.bare(ax)
    return fig


def _weights(ax: Any, at: Any, value: FloatArray, error: FloatArray) -> None:
    """Squares whose areas are what the sites weigh in the comparison."""
    known = np.isfinite(error)
    if known.any():
        weight = 1 / error[known] ** 2
        size = 90 * weight / weight.max()
        look: dict[str, Any] = {"color": charts.MUTED, "alpha": 0.25, "marker": "s", "zorder": 2}
        ax.scatter(value[known], at[known], s=size, linewidths=0, **look)

"""Report of a pooled regression; its sentences stand in ``pooled_regression.j2``.

Figures of pooled regressions: coefficients, one slope at every site, and predicted risks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from consilience.arrays import FloatArray
from consilience.exceptions import ParameterError
from consilience.numerics.two_way_tables import holm
from consilience.regression.protocol.result import (
    SIGNIFICANT,
    PooledRegressionResult,
)
from consilience.report import charts
from consilience.report.charts import minus, short
from consilience.report.sections import (
    DASH,
    Run,
    TemplateReport,
    number,
    numbers,
    p_value,
    percent,
    site_name,
)

MOST = 40
"""Lines of a figure; the page has a table of all."""
PANELS = 24
"""Of risks: all sites together, and sites one by one."""


def most_different(result: Any) -> str:
    """The column in which sites differ most, by its p-value; the first where none is known."""
    known = np.nan_to_num(result.q_p_values, nan=1.0)
    return str(result.columns[int(np.argmin(known)) if len(known) else 0])


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
        level = charts.minus(f"{100 * result.level:g}%")
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
        No column of the regression, or nothing is known of single sites.
    """
    if result.masked:
        raise ParameterError.of("result", "of a run without masked sums", result)
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
        # by_sign draws 95%: intervals of another level are as wide as its quantile says.
        width = NormalDist().inv_cdf((1 + result.level) / 2) / charts.Z95
        charts.by_sign(ax, at, value, error * width, named)
        _weights(ax, at, value, error)
        ax.axvspan(low, high, color=charts.BLUE, alpha=0.14, linewidth=0)
        ax.axvline(pooled, color=charts.BLUE, linewidth=1.4)
        ax.hlines(0, low, high, color=charts.BLUE, linewidth=1.8)
        charts.marks(ax, [pooled], [0], "D", charts.BLUE, charts.BLUE, 6.5, zorder=3)
        ax.axvline(0, color=charts.INK, linewidth=0.9)
        charts.site_axis(ax, result.sites, ("all sites",))
        level = charts.minus(f"{100 * result.level:g}%")
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


def judged_sites(result: Any) -> list[int]:
    """Sites that tell bands of risk, by their place."""
    return [b for b, counts in enumerate(result.bands) if counts.any()]


def shared_bands(result: Any, sites: Sequence[int]) -> dict[str, FloatArray]:
    """Bands of risk in which all of some sites count, and what these count in them together.

    A site joins its bands by twos, fours and so on, so that each of the widest bands of two sites
    is one of the bands, or several, of the other.

    Returns
    -------
    dict of str to (K,) array
        ``low`` and ``high`` of the predicted risk, ``rows``, ``events``, and ``expected`` events,
        NaN where a site does not tell them.
    """
    counts, expected = result.bands[list(sites)], result.expected[list(sites)]
    full = counts.sum(axis=2) > 0
    first = np.flatnonzero(full.all(axis=0))
    edges = np.concatenate([[0.0], np.ravel(result.cuts), [1.0]])
    rows, events = (
        np.add.reduceat(part.sum(axis=0), first) for part in (counts.sum(2), counts[..., 1])
    )
    told = np.add.reduceat(np.where(full, expected, 0.0).sum(axis=0), first)
    found = {"low": edges[first], "high": edges[[*first[1:], len(edges) - 1]]}
    return found | {"rows": rows.astype(float), "events": events.astype(float), "expected": told}


def plot_calibration(result: Any) -> Figure:
    """Draw shares of events against predicted risks in bands, over all sites and at each.

    Parameters
    ----------
    result : PooledRegressionResult
        Of a study that asked for `performance`.

    Returns
    -------
    matplotlib.figure.Figure
        A mark for each band, at its mean predicted risk, with a 95% interval of the share
        (Wilson); as wide as the band is a pale line, without a mark where the site does not tell
        the mean risk.

    Raises
    ------
    ParameterError
        No site told bands.
    """
    told = judged_sites(result)
    if not told:
        raise ParameterError.of("result", "of a fit whose predicted risks sites judged", result)
    parts = [("all sites", told)] if len(told) > 1 else []
    parts += [(charts.label(result.sites[b], 28), [b]) for b in told]
    parts = parts[:PANELS]
    across = 2 if len(parts) in (2, 4) else min(len(parts), 3)
    height = 0.6 + 2.2 * -(-len(parts) // across)
    with charts.style():
        fig, axes = charts.panels(len(parts), height, across, sharex=True, sharey=True)
        top = 0.0
        for ax, (name, sites) in zip(axes, parts, strict=True):
            colour = charts.BLUE if len(sites) > 1 or len(parts) == 1 else charts.INK
            top = max(top, _risks(ax, shared_bands(result, sites), colour))
            ax.set_title(name, loc="left")
        for ax in axes:
            ax.plot([0, 1], [0, 1], color=charts.MUTED, linewidth=1, zorder=1)
            ax.set_xlim(-0.04 * top, min(1.05 * top, 1.0))
            ax.set_ylim(-0.04 * top, min(1.05 * top, 1.0))
            ax.xaxis.set_major_formatter(charts.SHARES)
            ax.yaxis.set_major_formatter(charts.SHARES)
            ax.tick_params(labelbottom=True)
            charts.bare(ax, "both")
        fig.supxlabel("predicted risk", fontsize=10)
        fig.supylabel("share with an event", fontsize=10)
    return fig


def _risks(ax: Any, bands: dict[str, FloatArray], colour: str) -> float:
    """Draw the bands of one panel, and say how far they go up or across."""
    share, risk = bands["events"] / bands["rows"], bands["expected"] / bands["rows"]
    low, high = charts.wilson(share, bands["rows"])
    ax.hlines(share, bands["low"], bands["high"], color=charts.RULE, linewidth=3, zorder=1)
    ax.vlines(risk, low, high, color=colour, linewidth=1.4)
    charts.marks(ax, risk, share, "o", colour, colour, 4.5)
    known = [*high.tolist(), *risk[np.isfinite(risk)].tolist()]
    # Of the last band it is not known how far its rows go.
    return max([*known, *bands["high"][:-1].tolist()])


ERRORS = {
    "model": "of the model",
    "HC0": "robust (HC0)",
    "HC1": "robust (HC1)",
    "cluster": "robust, with sites as clusters",
}
LINKS = {"gaussian": "identity", "binomial": "logit"}
"""All others have the log link."""


class PooledRegressionReport(TemplateReport[PooledRegressionResult]):
    """Words, tables and figures on a regression over all sites."""

    kind = PooledRegressionResult

    def context(self, result: PooledRegressionResult, run: Run) -> dict[str, Any]:
        """Rows of tables, and names that fit a line."""
        # Down a column of one scale, decimals are alike.
        statistics = [minus(f"{z:z,.2f}") if math.isfinite(z) else DASH for z in result.statistic]
        estimates = zip(
            result.names,
            result.estimate,
            result.error,
            statistics,
            result.p_value,
            result.low,
            result.high,
            strict=True,
        )
        compared = result.columns[: len(result.q)]  # none where sums were masked
        apart = zip(compared, result.q, result.q_p_values, result.i2, strict=True)
        focus = most_different(result)
        adjusted = holm(np.nan_to_num(result.p_value[result.n_constants :], nan=1.0)) < SIGNIFICANT
        j = result.columns.index(focus)
        return {
            "coefficients": [
                (
                    short(name, 40),
                    *numbers((b, se)),
                    z,
                    p_value(float(p)),
                    *numbers((lo, hi)),
                )
                for name, b, se, z, p, lo, hi in estimates
            ],
            "ratios": [
                (short(str(name), 40), *numbers(found))
                for name, *found in result.ratios.itertuples()
            ],
            "tests": [
                (f"{name} test", number(x), f"{df:,}", p_value(p))
                for name, (x, df, p) in result.tests.items()
            ],
            "differences": [
                (short(name, 40), number(q), p_value(float(p)), percent(float(i2)))
                for name, q, p, i2 in apart
            ],
            "by_site": [
                (site_name(site), f"{int(n):,}", *numbers((b[j], e[j])))
                for site, n, b, e in zip(
                    result.sites,
                    result.n_by_site,
                    result.site_estimates,
                    result.site_errors,
                    strict=not result.masked,
                )
            ],
            "focus": short(focus, 40),
            "shown_names": [
                short(name, 40)
                for name, one in zip(result.columns, result.shown, strict=True)
                if one
            ],
            "sure_names": [
                short(name, 40) for name, one in zip(result.columns, adjusted, strict=True) if one
            ],
            "errors": ERRORS[result.errors],
            "link": LINKS.get(result.family, "log"),
            "told": not math.isnan(result.deviance),
            "significant": SIGNIFICANT,
            "untested": result.untested,
            "compared": result.heterogeneity[1] > 0,
            "performance": [
                (
                    site_name(str(site)),
                    f"{int(line['rows']):,}",
                    f"{int(line['events']):,}",
                    *(_or_not(float(line[name])) for name in _JUDGED),
                    _between(line["auc_low"], line["auc_high"]),
                )
                for site, line in result.performance.iterrows()
                if not result.is_cox
            ],
            "concordance": [
                (site, rows, events, *map(_or_not, line))
                for site, rows, events, line in zip(
                    [*map(site_name, result.sites), "all sites"],
                    [f"{n:,}" for n in (*result.n_by_site, result.n)],
                    [f"{d:,}" for d in (*result.events, result.events.sum())],
                    result.concordance.tolist(),
                    strict=False,
                )
            ],
            "drift": [
                (short(str(name), 40), number(float(x)), f"{df:.0f}", p_value(float(p)))
                for name, x, df, p in result.proportional_hazards.itertuples()
            ],
            "area": _between(*result.areas[-1]) if len(result.areas) else "",
            "plot_regression": plot_regression,
            "plot_forest": plot_forest,
            "plot_calibration": plot_calibration,
            "judged": [site_name(result.sites[b]) for b in judged_sites(result)],
            "panels": PANELS - 1,
            "known": bool(np.isfinite(result.site_estimates[:, j]).any()),
        }

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Rows, sites, columns, fit."""
        result = self.read(run)
        return (
            ("rows", f"{result.n:,}"),
            *([("events", f"{int(result.events.sum()):,}")] if result.is_cox else []),
            ("sites in the fit", f"{len(result.sites):,}"),
            ("columns", f"{len(result.columns):,}"),
            ("log likelihood", _or_not(result.log_likelihood)),
            ("AIC", _or_not(result.aic)),
        )


_JUDGED = ("observed_by_expected", "intercept", "slope", "slope_error")


def _between(low: float, high: float) -> str:
    return "not told" if math.isnan(low) else f"{number(float(low))} to {number(float(high))}"


def _or_not(value: float) -> str:
    return "not told" if math.isnan(value) else number(value)


REPORT = PooledRegressionReport

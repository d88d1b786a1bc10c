"""Report of a pooled regression; its sentences stand in ``pooled_regression.j2``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.numerics.two_way_tables import holm
from consilience.regression.protocol.result import (
    SIGNIFICANT,
    PooledRegressionResult,
)
from consilience.regression.report import figures_regression as figures
from consilience.report.charts import minus, short
from consilience.report.run import Run
from consilience.report.sections import DASH, number, numbers, p_value, percent, site_name
from consilience.report.words import TemplateReport

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
        focus = figures.most_different(result)
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
            "plot_regression": figures.plot_regression,
            "plot_forest": figures.plot_forest,
            "plot_calibration": figures.plot_calibration,
            "judged": [site_name(result.sites[b]) for b in figures.judged_sites(result)],
            "panels": figures.PANELS - 1,
            "known": bool(np.isfinite(result.site_estimates[:, j]).any()),
            "logs": result.family not in LINKS,
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

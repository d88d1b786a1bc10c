"""Result of a pooled regression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.exceptions import ParameterError
from consilience.protocol.next_study import Asked, Led, NextStudy, partner, subtypes
from consilience.protocol.one_table import counted
from consilience.protocol.phases.secure_sums import MASKED
from consilience.protocol.result import Frame, Result, lines, of_rows
from consilience.regression.kernels import chi2_tail

if TYPE_CHECKING:
    import pandas as pd

_CALIBRATION = ("intercept", "slope", "intercept_error", "slope_error")
SIGNIFICANT = 0.05
"""Below it a p-value is said to show something."""
UNTESTED = "Whether slopes differ by site is tested with site_effects = true only."
"""Of exact fits of other families than gaussian, or with HC errors, with one constant."""
SUPPOSES = (
    'This supposes the variances of the model; errors = "HC1" with site_effects = true does not.'
)
SUPPOSES_OF_COX = 'This supposes the model; errors = "HC0" does not.'


@dataclass(frozen=True, eq=False)
class PooledRegressionResult(Result):
    """One regression over the rows of all sites.

    Attributes
    ----------
    family, errors, fit : str
        Parameters of the study; ``fit`` is "exact" or "one-shot".
    response, offset, weight : str
        Column that is explained, its offset and the weights; empty where there are none.
    weights : str
        What a weight means, "precision" or "frequency".
    names : tuple of str
        Of the k coefficients: one constant, or one for each site, then the columns.
    n_constants : int
    estimate, error, statistic, p_value, low, high : (k,) arrays
        Coefficients with standard errors, z (or t) statistics, p-values and limits; those of a
        ridge take the shrinkage for no bias.
    covariance : (k, k) array
    level : float
        Of the limits.
    df : float
        Degrees of freedom of t statistics; infinite where they are z.
    alpha, alpha_error : float
        Of the negative binomial, and its standard error where it is estimated by likelihood; NaN
        otherwise.
    dispersion : str
        "likelihood", "moments" or "given"; empty of other families.
    scale, loss, deviance, null_deviance, log_likelihood, aic : float
        Dispersion and fit; the null model has the constants alone. ``loss`` is minus the log
        likelihood at dispersion 1 but for terms in the response alone. All after it are NaN where a
        site may not tell these terms: some whole number is the response of few rows; of a weighted
        gaussian, where few rows have some weight, the last two alone.
    tests : dict of str to (statistic, df, p)
        "Wald", "score" and "likelihood ratio" tests that all slopes are 0; empty with a ridge.
    sites : tuple of str
        That take part, in name order.
    n_by_site : (S,) int array
        Rows; by weights of frequency what they stand for. With masked sums of all sites, (1,).
    events : (S,) int array
        Of a Cox regression: rows with an event; empty of other families.
    time, ties : str
        Of a Cox regression: the column of times, and how events at one time count.
    site_estimates, site_errors : (S, m) arrays
        Slopes by site, each with a constant of its own: the site's own fit for gaussian and
        one-shot, else one scoring step from the pooled one, which is rough where constants differ
        and the model has one. NaN of a site that does not tell all slopes. Empty where sums were
        masked, as the next three are.
    q, q_p_values, i2 : (m,) arrays
        Cochran's Q of each slope, its p-value, and I squared; NaN unless :attr:`compares_sites`.
    heterogeneity : (statistic, df, p)
        All slopes at once; df is 0 where fewer than two sites have estimates, and unless
        :attr:`compares_sites`.
    cuts : (K - 1, 1) array
        Risks between bands; empty, as the next four are, unless the study asks for performance.
    bands : (S, K, 2) int array
        Rows without and with an event by site and band of predicted risk. A band without rows is
        part of the one before it: each told one has enough rows of either kind.
    expected : (S, K) array
        Sums of predicted risks; NaN where they may not leave.
    calibration : (S, 4) array
        Intercept and slope of the regression of the response on the linear predictor, and their
        standard errors: 0 and 1 where risks are right. NaN of a site that tells none.
    areas : (S + 1, 2) array
        Least and largest area under the ROC curve that the bands allow, by site and over all.
    concordance : (S + 1, 2) array
        Of a Cox regression: share of pairs in order, by site and over all pairs within sites, with
        its error; NaN where a site does not tell it.
    proportional : (m + 1, 3) array
        Of a Cox regression: score tests that a coefficient does not change while events add up, by
        column and of all at once: chi-square statistic, degrees of freedom, p-value. Empty unless
        the study asks for performance and some site tells what it needs.
    proportional_sites : int
        How many do.
    ridge : float
    rounds : int
        Rounds of questions about rows.
    withheld : dict of str to tuple of str
        Columns that sites withheld, by site; with masked sums of "some sites".
    left_out : tuple of str
        Sites that are not in the fit.
    remarks : tuple of str
    """

    often = ("n", "sites", "covariance", "to_text", "wald_test", "likelihood_ratio")
    also_shown = ("ratios",)

    family: str
    errors: str
    fit: str
    response: str
    offset: str
    weight: str
    weights: str
    names: tuple[str, ...]
    n_constants: int
    estimate: FloatArray
    error: FloatArray
    statistic: FloatArray
    p_value: FloatArray
    low: FloatArray
    high: FloatArray
    covariance: FloatArray
    level: float
    df: float
    scale: float
    alpha: float
    alpha_error: float
    dispersion: str
    loss: float
    deviance: float
    null_deviance: float
    log_likelihood: float
    aic: float
    tests: dict[str, tuple[float, int, float]]
    sites: tuple[str, ...]
    n_by_site: IntArray
    events: IntArray
    time: str
    ties: str
    site_estimates: FloatArray
    site_errors: FloatArray
    q: FloatArray
    q_p_values: FloatArray
    i2: FloatArray
    heterogeneity: tuple[float, int, float]
    cuts: FloatArray
    bands: IntArray
    expected: FloatArray
    calibration: FloatArray
    areas: FloatArray
    ridge: float
    rounds: int
    withheld: dict[str, tuple[str, ...]]
    left_out: tuple[str, ...]
    remarks: tuple[str, ...]
    concordance: FloatArray = field(default_factory=lambda: np.zeros((0, 2)))
    proportional: FloatArray = field(default_factory=lambda: np.zeros((0, 3)))
    proportional_sites: int = 0

    @property
    def n(self) -> int:
        """Rows in the fit."""
        return int(self.n_by_site.sum())

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, without constants."""
        return self.names[self.n_constants :]

    @property
    def shown(self) -> BoolArray:
        """Which slopes differ from 0 at 5%, (m,)."""
        return np.asarray(self.p_value[self.n_constants :] < SIGNIFICANT)

    @property
    def compares_sites(self) -> bool:
        """Whether the fit can be asked if slopes differ by site.

        Exact fits of other families than gaussian, and those with HC errors, can with constants by
        site: a step from a common constant is far from a site's own fit.
        """
        if self.masked:
            return False
        own = self.n_constants == len(self.sites) > 0
        moments = self.family == "gaussian" and not self.robust
        return moments or self.fit == "one-shot" or own or self.is_cox

    @property
    def masked(self) -> bool:
        """Whether sums were masked, so that nothing is known of single sites."""
        return len(self.n_by_site) < len(self.sites)

    @property
    def untested(self) -> str:
        """Why it is not asked whether slopes differ by site; empty where it is."""
        return "" if self.compares_sites else MASKED if self.masked else UNTESTED

    @property
    def is_cox(self) -> bool:
        """Whether it is of the hazard of an event."""
        return bool(self.time)

    @property
    def kind(self) -> str:
        """Family as it is written in a sentence."""
        return "Cox" if self.is_cox else self.family

    @property
    def supposes(self) -> str:
        """What the test if sites differ takes for granted."""
        return SUPPOSES_OF_COX if self.is_cox else SUPPOSES

    @property
    def _with_events(self) -> str:
        return f"with {int(self.events.sum()):,} events " if self.is_cox else ""

    @property
    def robust(self) -> bool:
        """Whether errors, and the test if sites differ, rest on squared scores of rows."""
        return self.errors in ("HC0", "HC1")

    @property
    def sites_differ(self) -> bool:
        """Whether the test over all slopes says so at 5%."""
        return self.heterogeneity[2] < SIGNIFICANT

    @property
    def z_name(self) -> str:
        """What the statistics are called."""
        return "z" if math.isinf(self.df) else "t"

    def summary(self) -> str:
        """Say which columns matter, and whether the sites agree."""
        found = [name for name, is_shown in zip(self.columns, self.shown, strict=True) if is_shown]
        about = (
            f"{self.kind} regression of {self.response} on {counted(len(self.columns), 'column')}, "
            f"{self.n:,} rows {self._with_events}of {counted(len(self.sites), 'site')}"
        )
        which = f"{', '.join(found) or 'none'} {'differ' if len(found) > 1 else 'differs'}"
        parts = [f"{about}: {which} from 0 at 5%."]
        statistic, df, p = self.heterogeneity
        if not self.compares_sites:
            parts.append(self.untested)
        elif not df:
            parts.append("Too few sites tell all slopes to ask whether sites differ.")
        elif self.sites_differ:
            parts.append(
                f"The sites differ (Q = {statistic:.4g} on {df} df, p = {p:.2g}): one set of "
                "coefficients is an average of several."
            )
            parts += [] if self.is_cox else ["MetaClustering finds which sites share one."]
            parts += [] if self.robust else [self.supposes]
        else:
            parts.append(
                f"No sign that sites differ (Q = {statistic:.4g} on {df} df, p = {p:.2g})."
            )
        if len(self.proportional) and self.proportional[-1, 2] < SIGNIFICANT:
            statistic, df, p = self.proportional[-1]
            parts.append(
                f"Hazard ratios change with time (chi-square = {statistic:.4g} on {df:.0f} df, "
                f"p = {p:.2g}): a coefficient is an average over the times of events."
            )
        if self.left_out:
            parts.append(f"Not in it: {', '.join(self.left_out)}.")
        return " ".join([*parts, *self.remarks])

    def next_studies(self, asked: Asked) -> Led:
        """Whom, where sites differ; else subtypes."""
        statistic, df, p = self.heterogeneity
        if self.masked:
            yield f"{MASKED} A study without sums = 'secure' can test it, if all sites agree."
            return
        if len(self.sites) > 1 and not self.compares_sites:
            yield NextStudy(
                method="pooled-regression", why=UNTESTED, parameters={"site_effects": True}
            )
            return
        tested = f"(Q = {statistic:.4g} on {df} df, p = {p:.2g})"
        if self.is_cox:  # the studies that follow others know no censored response
            if df and self.sites_differ:
                yield (
                    f"Sites differ {tested}: read the coefficients beside those of each site, and "
                    "fit those that are alike by themselves ([sites] names)."
                )
            else:
                yield (
                    "No method that follows knows times until an event. Survival at stated times "
                    "is predicted at each site, by predict_survival of the predictor it keeps."
                )
            return
        if df and self.sites_differ and not asked.follows:
            yield NextStudy(
                method="meta-clustering",
                why=f"Sites differ {tested}: these coefficients are an average over sites that "
                "have different ones. Which sites share one linear relationship?",
                parameters={"candidates": ("linear",)},
                sites=self.sites,
            )
            if asked.columns.weight or asked.columns.offset:
                yield "MetaClustering knows no weights and no offset: its groups are without them."
            return
        if df and self.sites_differ:
            yield (
                f"Sites still differ {tested}, though the run before put them together: read the "
                "coefficients beside those of each site. Kinds of rows may be behind it."
            )
        why = f"No sign that sites differ {tested}." if df and not self.sites_differ else ""
        yield from subtypes(asked, why, self.sites)
        yield partner(asked)

    @Frame
    def coefficients(self) -> pd.DataFrame:
        """Every coefficient with its standard error, statistic, p-value and limits."""
        told = ("estimate", "error", "statistic", "p_value", "low", "high")
        return lines({name: getattr(self, name) for name in told}, column=self.names)

    @property
    def ratio(self) -> str:
        """What exp of a slope is; empty for a gaussian response."""
        if self.is_cox:
            return "hazard ratio"
        return {"gaussian": "", "binomial": "odds ratio"}.get(self.family, "ratio of means")

    @Frame
    def ratios(self) -> pd.DataFrame:
        """Odds ratio, hazard ratio or ratio of means of a column, with its limits."""
        if not self.ratio:
            return lines({})
        told = {self.ratio.replace(" ", "_"): self.estimate, "low": self.low, "high": self.high}
        with np.errstate(over="ignore"):  # a coefficient above 709 of a tiny unit
            ratios = {name: np.exp(values[self.n_constants :]) for name, values in told.items()}
        return lines(ratios, column=self.columns)

    @Frame
    def site_coefficients(self) -> pd.DataFrame:
        """Every slope at every site, with its standard error."""
        s, m = self.site_estimates.shape
        named = {"site": np.repeat(self.sites[:s], m), "column": np.tile(self.columns, s)}
        slopes = {"estimate": self.site_estimates.ravel(), "error": self.site_errors.ravel()}
        return lines({**named, **slopes})

    @Frame
    def differences(self) -> pd.DataFrame:
        """Cochran's Q of every slope, whether sites differ in it, with p-value and I squared."""
        told = {"Q": self.q, "p_value": self.q_p_values, "I2": self.i2}
        return lines(told, column=self.columns[: len(self.q)])

    @Frame
    def overall_tests(self) -> pd.DataFrame:
        """Tests that all slopes are 0."""
        told = ((name, *found) for name, found in sorted(self.tests.items()))
        return of_rows(told, "test", "statistic", "df", "p_value")

    @Frame
    def performance(self) -> pd.DataFrame:
        """A site whose predicted risks were judged: events, calibration, area under the ROC.

        Of a Cox regression events and concordance with its error.
        """
        if self.is_cox:
            s = len(self.concordance[:-1])
            of: dict[str, Any] = {"rows": self.n_by_site[:s], "events": self.events[:s]}
            of |= dict(zip(("concordance", "error"), self.concordance[:-1].T, strict=True))
            return lines(of, site=self.sites[:s])
        s = len(self.bands)
        rows, events = (self.bands[:, :, v].sum(axis=1) for v in (0, 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            over = events / self.expected.sum(axis=1)
        told: dict[str, Any] = {
            "rows": rows + events,
            "events": events,
            "observed_by_expected": over,
        }
        told |= dict(zip(_CALIBRATION, self.calibration.T if s else [[]] * 4, strict=True))
        told |= dict(zip(("auc_low", "auc_high"), self.areas[:s].T if s else [[]] * 2, strict=True))
        return lines(told, site=self.sites[:s])

    @Frame
    def proportional_hazards(self) -> pd.DataFrame:
        """Tests of a Cox regression that hazard ratios do not change, by column and of all."""
        told = dict(zip(("statistic", "df", "p_value"), self.proportional.T, strict=True))
        names = (*self.columns, "all columns") if len(self.proportional) else ()
        return lines(told, column=names)

    @Frame
    def risk_bands(self) -> pd.DataFrame:
        """A band of predicted risk at a site: its limits, rows, events and expected events."""
        edges = np.concatenate([[0.0], self.cuts.ravel(), [1.0]])
        found = []
        for b, site in enumerate(self.sites[: len(self.bands)]):
            full = np.flatnonzero(self.bands[b].sum(axis=1))
            for k, end in zip(full, [*full[1:], len(edges) - 1], strict=True):
                n, events = int(self.bands[b, k].sum()), int(self.bands[b, k, 1])
                found.append((site, edges[k], edges[end], n, events, self.expected[b, k]))
        return of_rows(found, "site", "low", "high", "rows", "events", "expected")

    def to_text(self) -> str:
        """Return the table as statistical packages print it."""
        head = [
            f"Pooled {self.kind} regression of {self.response}",
            f"rows {self.n:,} {self._with_events}".rstrip()
            + f", sites {len(self.sites)}, errors {self.errors}, fit {self.fit}",
        ]
        roles = [f"time {self.time}, ties by {self.ties}"] if self.is_cox else []
        roles += [f"offset {self.offset}"] if self.offset else []
        roles += [f"weight {self.weight} ({self.weights})"] if self.weight else []
        if self.dispersion:
            error = "" if math.isnan(self.alpha_error) else f" (std err {self.alpha_error:.5g})"
            how = "given" if self.dispersion == "given" else f"by {self.dispersion}"
            roles.append(f"alpha {self.alpha:.5g}{error}, {how}")
        head += [", ".join(roles)] if roles else []
        told = "not told" if math.isnan(self.aic) else f"{self.log_likelihood:.5g}"
        head.append(
            f"log likelihood {told}" + ("" if math.isnan(self.aic) else f", AIC {self.aic:.5g}")
            if self.is_cox
            else f"log likelihood, deviance and AIC not told, scale {self.scale:.5g}"
            if math.isnan(self.deviance)
            else f"log likelihood and AIC not told, deviance {self.deviance:.5g} "
            f"(null {self.null_deviance:.5g}), scale {self.scale:.5g}"
            if math.isnan(self.aic)
            else f"log likelihood {self.log_likelihood:.5g}, deviance {self.deviance:.5g} "
            f"(null {self.null_deviance:.5g}), AIC {self.aic:.5g}, scale {self.scale:.5g}"
        )
        low, high = (f"{(1 + s * self.level) / 2:.3g}" for s in (-1, 1))
        heads = ("coef", "std err", self.z_name, f"P>|{self.z_name}|", f"[{low}", f"{high}]")
        frame = self.coefficients.set_axis(heads, axis="columns")
        table = frame.to_string(float_format="{:.4f}".format)
        width = max(map(len, [*head, *table.splitlines()]))
        lines = ["=" * width, *head, "-" * width, *table.splitlines(), "=" * width]
        return "\n".join([*lines, self.summary()])

    def wald_test(self, columns: Sequence[str]) -> tuple[float, int, float]:
        """Test that some coefficients are 0: chi-square statistic, degrees of freedom, p-value.

        Parameters
        ----------
        columns : sequence of str

        Raises
        ------
        ParameterError
            A name that no coefficient has, or errors by too few clusters to test so many at once.
        """
        unknown = [name for name in columns if name not in self.names]
        if unknown or not columns:
            raise ParameterError.of("columns", f"some of {', '.join(self.names)}", list(columns))
        at = [self.names.index(name) for name in dict.fromkeys(columns)]
        v = self.covariance[np.ix_(at, at)]
        if np.linalg.matrix_rank(v) < len(at):
            raise ParameterError(
                f"errors by {len(self.sites)} clusters cannot test {len(at)} coefficients at once: "
                "name fewer columns"
            )
        value = float(self.estimate[at] @ np.linalg.solve(v, self.estimate[at]))
        return value, len(at), chi2_tail(value, len(at))

    def likelihood_ratio(self, smaller: PooledRegressionResult) -> tuple[float, int, float]:
        """Compare with a fit of fewer columns to the same rows: statistic, df, p-value.

        It rests on losses, so it is known also where log likelihoods are not told. Of negative
        binomial fits both have one alpha, or each its likeliest one; Pearson's sum has no
        likelihood.

        Parameters
        ----------
        smaller : PooledRegressionResult

        Raises
        ------
        ParameterError
            It is not nested in this one, rests on other rows, or has an alpha with which
            likelihoods do not compare.
        """
        of = ("family", "response", "offset", "weight", "weights", "n", "sites", "fit")
        more = ("time", "ties")
        same = [*(getattr(self, what) for what in (*of, *more)), self.ridge]
        other = [*(getattr(smaller, what) for what in (*of, *more)), 0.0]
        if same != other or smaller.ridge or not set(smaller.names) < set(self.names):
            raise ParameterError(
                "a likelihood-ratio test needs a fit of some of the columns to the same rows, both "
                "without a ridge"
            )
        df = len(self.names) - len(smaller.names)
        if self.dispersion and self.alpha != smaller.alpha:
            value = 2 * (self.log_likelihood - smaller.log_likelihood)
            if {self.dispersion, smaller.dispersion} != {"likelihood"} or math.isnan(value):
                raise ParameterError(
                    "the two fits have other alphas, and not both the likeliest ones with log "
                    f"likelihoods that are told: fit the smaller one with alpha = {self.alpha!r}, "
                    "that of the larger one"
                )
        elif self.family == "gaussian":
            value = self.n * math.log(smaller.loss / self.loss)
        else:
            value = 2 * (smaller.loss - self.loss) / self.scale
        return value, df, chi2_tail(value, df)

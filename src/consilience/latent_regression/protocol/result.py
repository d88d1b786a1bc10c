"""Result of latent class regression: the classes, and what they are worth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.latent_regression.estimators.latent_class_predictor import (
    LatentClassPredictor,
    Units,
)
from consilience.latent_regression.kernels.evidence import (
    DEGREES,
    KINDS,
    KINDS_OR_DEGREES,
    NO_KINDS,
)
from consilience.latent_regression.protocol.coordinator import Ending, Rounds
from consilience.latent_regression.protocol.events import AS_BEFORE, NEW, WITHHELD
from consilience.latent_regression.protocol.messages import MARKS, N_CURVED, N_FIGURES, Concluded
from consilience.protocol.method import CoordinatorContext
from consilience.protocol.next_study import Asked, Led, partner, regression
from consilience.protocol.phases.secure_sums import ALL, MASKED
from consilience.protocol.result import Frame, Result, lines

if TYPE_CHECKING:
    import pandas as pd

RIDGE, MIXED, CLASSES, NULL = range(4)
"""Columns of `heldout_mse`."""
HARDLY = 0.01
"""Share of the error below which a difference is called none."""
Z95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, eq=False)
class LatentClassRegressionResult(Result):
    """Classes of regressions over the entities of all sites.

    Arrays go by class (K of them, by falling number of entities), by site in the order of `sites`
    (B), and by round 0 to R. Coefficients are in the units of the prepared columns.

    Attributes
    ----------
    feature_names : tuple of str
    target_name : str
    n_classes : int
    chosen : {"given", "auto"}
        How the number of classes came about.
    slopes, coefficient_errors : (K, p) arrays
    intercepts, intercept_errors : (K,) arrays
        Posterior means and standard deviations, uncertain labels included.
    class_sizes : (K,) array
        Entities, as they were counted in the sums of the last rounds (averages).
    class_events : (K,) array
    class_shares : (K,) array
        psi: shares of the classes over agents.
    sigma, delta : float
        Standard deviations of the noise (units of the target) and of the coefficients (of the
        standardised columns, per standard deviation of the target).
    alpha, beta : float
        Concentrations of the shares, and of the agents' shares around them.
    concentration, start : str
    level : float
        Of intervals.
    learning_rates : (R,) array
    participation : float
    rounds_run : int
    merged_at : int
        Round after which classes were merged for good.
    slowed : bool
        Whether labels jumped to and fro, so that the learning rate was lowered.
    trace_sigma, trace_moved, trace_log_marginal, trace_classes : (R + 1,) arrays
        Noise (units of the target), share of labels that moved beyond chance
        (at sites that protect records: of entities that moved in what was sent), log marginal
        likelihood of the smoothed sums, classes with entities.
    merge_path : (m, 2) array
        Number of classes after each merging, and the log marginal likelihood it gained.
    sites : tuple of str
        With masked sums "all sites", which are then one.
    n_agents, n_entities, n_events : (B,) arrays
        NaN where a site withholds them. Events are sums of weights without those held out.
    reported : (R + 1, B) bool array
    released, repeated, withheld : (R + 1, B) int arrays
        Classes with new sums, with the same members as before, and left out.
    site_class_sizes : (B, K) array
        Entities as counted in each site's last sums.
    heldout_mse : (B, 4) array
        Mean squared error on held-out events: ridge, mixed model, classes, mean. In the mixed
        model entities have own coefficients, normal with the mean and covariance of the classes.
    heldout_log_score : (B, 3) array
        Mean log density: ridge, mixed model, classes.
    heldout_weight : (B,) array
        Events of the site, for averages over sites.
    coverage, interval_width : (B,) arrays
    heldout_gain, heldout_gain_error : (B,) arrays
        Mean squared error of ridge less that of classes, and its standard error, in which the
        events of an entity count together.
    heldout_effective : (B,) array
        Effective number of held-out events, coarsely where records are protected.
    heldout_ahead, heldout_ahead_error : (B,) arrays
        Mean log density of classes less that of the mixed model, and its standard error, likewise.
    mean, covariance : arrays (K, F), (K, F, F)
        Of the coefficients in the units of the fit.
    centre, scale : (p + 1,) arrays
        Centres and scales of features and target in the fit.
    fit_intercept : bool
    scaling : (3, p) array or empty
        Fill values, centres and scales of the preparation.
    remarks : tuple of str
    heldout_curve, heldout_curve_error : (B, 4) arrays
        Mean squared error of one regression with squares of the columns less that of classes, log
        density of classes less its; the same beside own coefficients about that curve, with the
        covariance of the classes; and standard errors. NaN or empty where it is not compared.
    curve_sites : tuple of str
        Whose events told that regression with squares.
    n_replaced : int
        Classes in whose place one is kept: held-out figures are of them, without coverage and
        width. 0: of those that are kept.
    """

    often = ("n_classes", "sites", "sigma", "verdict", "to_estimator")

    feature_names: tuple[str, ...]
    target_name: str
    n_classes: int
    chosen: str
    slopes: FloatArray = field(metadata={"stored": "coefficients"})
    coefficient_errors: FloatArray
    intercepts: FloatArray
    intercept_errors: FloatArray
    class_sizes: FloatArray
    class_events: FloatArray
    class_shares: FloatArray
    sigma: float
    delta: float
    alpha: float
    beta: float
    concentration: str
    start: str
    level: float
    learning_rates: FloatArray
    participation: float
    rounds_run: int
    merged_at: int
    slowed: bool
    trace_sigma: FloatArray
    trace_moved: FloatArray
    trace_log_marginal: FloatArray
    trace_classes: FloatArray
    merge_path: FloatArray
    sites: tuple[str, ...]
    n_agents: FloatArray
    n_entities: FloatArray
    n_events: FloatArray
    reported: NDArray[np.bool_]
    released: NDArray[np.int64]
    repeated: NDArray[np.int64]
    withheld: NDArray[np.int64]
    site_class_sizes: FloatArray
    heldout_mse: FloatArray
    heldout_log_score: FloatArray
    heldout_weight: FloatArray
    coverage: FloatArray
    interval_width: FloatArray
    heldout_gain: FloatArray
    heldout_gain_error: FloatArray
    heldout_effective: FloatArray
    heldout_ahead: FloatArray
    heldout_ahead_error: FloatArray
    mean: FloatArray
    covariance: FloatArray
    centre: FloatArray
    scale: FloatArray
    fit_intercept: bool
    scaling: FloatArray
    remarks: tuple[str, ...] = ()
    n_replaced: int = 0
    heldout_curve: FloatArray = field(default_factory=lambda: np.empty((0, 4)))
    heldout_curve_error: FloatArray = field(default_factory=lambda: np.empty((0, 4)))
    curve_sites: tuple[str, ...] = ()

    @property
    def masked(self) -> bool:
        """Whether sums were masked: all sites are then one, `sites` its name."""
        return self.sites == (ALL,)

    @property
    def n_judged(self) -> int:
        """Classes that the held-out figures are of."""
        return self.n_replaced or self.n_classes

    @property
    def one_is_enough(self) -> bool:
        """Whether classes do not save a standard error of one ridge's, with a higher log score."""
        gain, score = saved(self), self.pooled_log_score
        ahead = gain.share > gain.half / Z95 and score[CLASSES] > score[RIDGE]
        return self.verdict in (NO_KINDS, DEGREES) and self.n_classes > 1 and not ahead

    @property
    def verdict(self) -> str | None:
        """Kinds or degrees, by held-out events; None where none are told.

        Kinds, where classes have less squared error than one ridge beyond chance (95%) and no
        lower log score, and beside the mixed model a higher log score beyond chance and less
        squared error. Degrees, where they are ahead of one ridge only, or where the mixed model
        has less error than one ridge. Kinds or degrees, where they are ahead of one ridge and
        sites withhold what compares them with the mixed model, or tell no error of it. Where
        sites with half of the events tell what compares classes with a regression with squares of
        the columns, and with own coefficients about it, kinds are ahead of these likewise.
        """
        gain, score = saved(self), self.pooled_log_score
        if not np.isfinite(gain.share):
            return None
        ahead, less = lead(self), saved_over(self, MIXED)
        unsure = gain.share > 0 and not math.isfinite(gain.half)
        better = (gain.clear > 0 or unsure) and not score[CLASSES] < score[RIDGE]
        if self.n_judged > 1 and better:
            alike = np.isfinite(self.heldout_mse).all(axis=1) == np.isfinite(self.heldout_ahead)
            if unsure or not (np.isfinite([ahead.half, less.share]).all() and alike.all()):
                return KINDS_OR_DEGREES
            if not (ahead.clear > 0 and less.share > 0):
                return DEGREES
            return self._verdict_beside_curve or KINDS
        return DEGREES if saved_over(self, RIDGE, by=MIXED).better else NO_KINDS

    @property
    def _some_compare(self) -> bool:
        return bool(np.isfinite(self.heldout_curve).all(axis=1).any())

    @property
    def curve_told(self) -> bool:
        """Whether sites with half of the events tell what classes are beside a curve."""
        told = np.asarray(np.isfinite(self.heldout_curve).all(axis=1))
        weight = np.nan_to_num(self.heldout_weight)
        return bool(told.any() and 2 * weight[: len(told)][told].sum() >= weight.sum())

    @property
    def _verdict_beside_curve(self) -> str | None:
        """What is said in the place of kinds, where these are not ahead of a curve."""
        if not self.curve_told:
            return None
        error, score, own_error, own_score = self.over_curves
        if not all(math.isfinite(found.half) for found in (error, own_score)):
            return KINDS_OR_DEGREES
        if error.clear > 0 and score.share >= 0:
            return None if own_score.clear > 0 and own_error.share >= 0 else DEGREES
        less = self.heldout_curve[:, 0] - self.heldout_curve[:, 2]
        return DEGREES if _over_sites(self, less / self._unit).better else NO_KINDS

    @property
    def over_curves(self) -> list[Saved]:
        """What classes save over one regression with squares, and their lead in log density.

        The same two beside own coefficients about that curve come after these.
        """
        units = (self._unit, 1.0, self._unit, 1.0)
        both = zip(self.heldout_curve.T, self.heldout_curve_error.T, units, strict=True)
        found = []
        for told, error, unit in both:
            one = _over_entities(self, told / unit, error / unit)
            known = math.isfinite(one.half)
            found.append(one if known else _over_sites(self, told / unit))
        return found

    @property
    def _unit(self) -> float:
        return float(self.pooled(self.heldout_mse[:, [RIDGE]])[0])

    @property
    def curve_is_enough(self) -> bool:
        """Whether squares make one regression better, and classes are not clearly ahead of it."""
        if self.n_judged == 1 or not self.curve_told:
            return False
        error = self.over_curves[0]
        if error.clear > 0 or not math.isfinite(error.half):
            return False
        less = (self.heldout_gain - self.heldout_curve[:, 0]) / self._unit
        return _over_sites(self, less).share >= HARDLY

    @property
    def pooled_mse(self) -> FloatArray:
        """Mean squared errors of four models, over the sites that tell all of theirs."""
        return self.pooled(np.where(self._complete, self.heldout_mse, np.nan))

    @property
    def pooled_log_score(self) -> FloatArray:
        """Mean log density over these sites: ridge, mixed model, classes."""
        return self.pooled(np.where(self._complete, self.heldout_log_score, np.nan))

    @property
    def _complete(self) -> NDArray[np.bool_]:
        """Sites that tell all of these figures, (B, 1): means of others are not compared."""
        both = np.column_stack([self.heldout_mse, self.heldout_log_score])
        return np.asarray(np.isfinite(both).all(axis=1, keepdims=True))

    @property
    def pooled_coverage(self) -> float:
        """Share of held-out events inside their intervals, over the sites that tell it."""
        return float(self.pooled(self.coverage[:, None])[0])

    def pooled(self, values: FloatArray) -> FloatArray:
        """Mean of figures (B, m) of each site over held-out events; NaN where no site tells."""
        told = np.isfinite(values) & np.isfinite(self.heldout_weight)[:, None]
        weight = np.where(told, np.nan_to_num(self.heldout_weight)[:, None], 0.0)
        total = weight.sum(axis=0)
        summed = (weight * np.where(told, values, 0.0)).sum(axis=0)
        return np.asarray(np.where(total > 0, summed / np.where(total > 0, total, 1.0), np.nan))

    def to_estimator(self) -> LatentClassPredictor:
        """Return a predictor for entities that no site knows, in the columns' own units."""
        prepared = self.scaling if self.scaling.size else None
        nobody = np.empty(0, dtype="<U1")
        return LatentClassPredictor(
            self.mean,
            self.covariance,
            sigma2=(self.sigma / self.scale[-1]) ** 2,
            base=self.class_shares,
            beta=self.beta,
            units=Units.of(self.centre, self.scale, self.fit_intercept, prepared),
            agents=nobody,
            agent_counts=np.zeros((0, self.n_classes)),
            entities=nobody,
            entity_agents=np.empty(0, dtype=np.int64),
            probabilities=np.zeros((0, self.n_classes)),
            feature_names=self.feature_names,
        )

    def summary(self) -> str:
        """Return a few plain sentences that answer the study's question."""
        n = self.n_classes
        how = " were found and" if self.chosen == "auto" else ""
        shares = ", ".join(f"{share:.0%}" for share in self.class_sizes / self.class_sizes.sum())
        counted = np.where(self.reported[0], np.nan_to_num(self.n_entities), 0.0)
        entities, telling = int(counted.sum()), int((counted > 0).sum())
        where = ALL if self.masked else f"{telling} {'sites' if telling != 1 else 'site'}"
        who = f"{entities} entities of {where}"
        if n > 1:
            found = f"{n} classes{how} describe {self.target_name} for {who}; they hold {shares}"
            found += " of the entities that are counted."
        else:
            found = f"One class describes {self.target_name} for {who}."
        sentences = [
            self._kinds_or_degrees(),
            found,
            f"The noise within a class has a standard deviation of {self.sigma:.4g}.",
        ]
        mse, score = self.pooled_mse, self.pooled_log_score
        judged = "the classes" if self.n_judged > 1 else "the class"
        if np.isfinite([*mse, *score]).all():
            sentences.append(
                f"On held-out events the mean squared error of {judged} is {mse[2]:.4g}; one "
                f"regression for all has {mse[0]:.4g}, a mixed model {mse[1]:.4g}, the mean "
                f"{mse[3]:.4g} (log score {score[CLASSES]:.3f} against {score[RIDGE]:.3f} of one "
                "regression)."
            )
            if np.isfinite(self.pooled_coverage):
                sentences.append(
                    f"Intervals of {self.level:.0%} hold {self.pooled_coverage:.0%} of them."
                )
        return " ".join((*sentences, *self.remarks))

    def next_studies(self, asked: Asked) -> Led:
        """One regression where there are no kinds; otherwise a partner's columns."""
        if self.verdict == NO_KINDS:
            why = (
                "Held-out events show no kinds: one regression over all of them says the same, "
                "with tests and limits."
            )
            yield from regression(asked, why, **({} if self.masked else {"sites": self.sites}))
            return
        if self.verdict is None:
            yield (
                "Sites withhold what would say if there are kinds."
                if self._measured
                else "No events were held out, so nothing says if there are kinds: ask for holdout."
            )
        elif self.verdict == DEGREES:
            better = ", fits as well or better" if lead(self).clear <= 0 else ""
            yield (
                "Entities differ by degrees, not by kinds: a mixed model, which is no method here"
                f"{better}."
            )
        yield partner(asked)

    @property
    def _measured(self) -> bool:
        """Whether any site tells anything of held-out events."""
        return bool(np.isfinite(np.column_stack([self.heldout_mse, self.coverage])).any())

    def _kinds_or_degrees(self) -> str:
        verdict, gain, ahead = self.verdict, saved(self), lead(self)
        if verdict is None:
            none = (
                "Sites withhold what" if self._measured else "No events were held out, so nothing"
            )
            return f"{none} measures what the classes tell."
        classes = f"{self.n_judged} classes" if self.n_judged > 1 else "one class"
        error, of_lead = _error(gain, ".1%"), _error(ahead, ".3f")
        said = (
            f"{verdict[0].upper()}{verdict[1:]}: on held-out events the squared error of {classes} "
            f"is {_below(gain.share)} that of one ridge{f' ({error})' if error else ''}"
        )
        less = saved_over(self, MIXED).share
        if verdict == KINDS_OR_DEGREES:
            return said + "; sites tell too little to tell kinds from degrees."
        if math.isfinite(less):
            said += f", and {_below(less)} that of a mixed model"
        if math.isfinite(ahead.share):
            higher = "higher" if ahead.share >= 0 else "lower"
            said += f" (log density of an event {higher} by {abs(ahead.share):.3f}"
            said += f" {of_lead})" if of_lead else ")"
        said += "."
        if verdict != KINDS and self.n_judged > 1 and gain.clear > 0:
            lower = self.pooled_log_score[CLASSES] < self.pooled_log_score[RIDGE]
            said += " Their log score is lower, though." if lower else ""
        if gain.clear > 0 and self.curve_sentence:
            said += f" {self.curve_sentence}"
        elif verdict == NO_KINDS and self.n_classes > 1:
            said += " Read the data as one regression: run again with n_classes = 1."
        if self.n_replaced:
            said += " One class is kept in their place."
        if verdict == DEGREES and ahead.clear <= 0:
            better = "may fit better" if not ahead.share > 0 else "fits about as well"
            said += f" A mixed model {better}."
        return said

    @property
    def curve_sentence(self) -> str:
        """A sentence on one regression with squares, where classes were compared with it."""
        verdict = self.verdict
        if verdict == KINDS and not self.curve_told:
            most = " at sites with half of the events" if self._some_compare else ""
            return (
                f"The classes were not compared with a curve{most}, which looks like kinds where "
                "the means of its column differ by entity: add squares of the columns, and see "
                "whether kinds are left."
            )
        if self.n_judged == 1 or not self.curve_told:
            return ""
        error = self.over_curves[0]
        if verdict == KINDS:
            said = "The classes are ahead of one regression with squares of the columns, too"
        elif self.curve_is_enough:
            well = "better" if error.clear < 0 else "as well"
            said = f"One regression with squares of the columns predicts {well}: add them"
        elif verdict == NO_KINDS:
            said = "The classes are not clearly ahead of one regression with squares of the columns"
        elif verdict == DEGREES and lead(self).clear > 0 and saved_over(self, MIXED).share > 0:
            said = (
                "Own coefficients about a curve predict about as well: add squares of the columns"
            )
        else:
            return ""
        some = f" (by squares that {len(self.curve_sites)} of {len(self.sites)} sites tell)"
        return f"{said}{some if self.squares_of_some else ''}."

    @property
    def squares_of_some(self) -> bool:
        """Whether sites kept the sums with squares back that others told."""
        return not self.masked and 0 < len(self.curve_sites) < len(self.sites)

    @Frame
    def coefficients(self) -> pd.DataFrame:
        """Every coefficient of each class with its standard deviation and limits."""
        from scipy.stats import norm

        estimate = np.column_stack([self.intercepts, self.slopes])
        error = np.column_stack([self.intercept_errors, self.coefficient_errors])
        terms = ("(intercept)", *self.feature_names)
        first = 0 if self.fit_intercept else 1
        n_terms, z = len(terms[first:]), float(norm.ppf(0.5 + self.level / 2))
        value, away = estimate[:, first:].ravel(), error[:, first:].ravel()
        return lines(
            {
                "class": np.repeat(np.arange(1, self.n_classes + 1), n_terms),
                "share": np.repeat(self.class_sizes / self.class_sizes.sum(), n_terms),
                "term": terms[first:] * self.n_classes,
                "estimate": value,
                "error": away,
                "low": value - z * away,
                "high": value + z * away,
            }
        )

    @Frame
    def classes(self) -> pd.DataFrame:
        """Every class: entities and events counted in it, and its share over agents."""
        told = {"entities": self.class_sizes, "events": self.class_events}
        numbers = np.arange(1, self.n_classes + 1)
        return lines(told | {"share_over_agents": self.class_shares}, **{"class": numbers})

    @Frame
    def site_classes(self) -> pd.DataFrame:
        """Entities of each class at every site."""
        by_class = enumerate(self.site_class_sizes.T, 1)
        return lines({f"class {k}": sizes for k, sizes in by_class}, site=self.sites)

    @Frame
    def held_out(self) -> pd.DataFrame:
        """Every site's errors on held-out events, of the classes and of simpler models."""
        models = ("one_regression", "mixed_model", "classes", "mean")
        told = {"events": self.heldout_weight}
        told |= {f"mse_{name}": mse for name, mse in zip(models, self.heldout_mse.T, strict=True)}
        told |= {"gain": self.heldout_gain, "gain_error": self.heldout_gain_error}
        told |= {"ahead": self.heldout_ahead, "ahead_error": self.heldout_ahead_error}
        told |= {"coverage": self.coverage, "interval_width": self.interval_width}
        return lines(told, site=self.sites)

    @Frame
    def rounds(self) -> pd.DataFrame:
        """Noise, share of labels that moved, log marginal likelihood and classes, by round."""
        traced = ("sigma", "moved", "log_marginal", "classes")
        told = {name: getattr(self, f"trace_{name}") for name in traced}
        return lines(told, round=range(len(self.trace_sigma)))


# ------------------------------------------------------------------------------- kinds or degrees


@dataclass(frozen=True)
class Saved:
    """What the classes have over another model.

    Attributes
    ----------
    share : float
        Squared error that they save, in shares of that model's; or log density of an event.
    half : float
        Half of a 95% interval; NaN where nothing tells.
    among : str
        What the interval is over: entities or sites.
    """

    share: float
    half: float = math.nan
    among: str = "entities"

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the interval of a share: no model saves more than another's whole error."""
        return self.share - self.half, min(self.share + self.half, 1.0)

    @property
    def better(self) -> bool:
        """Whether more than `HARDLY` is saved, beyond chance where an interval says so."""
        return self.share >= HARDLY and (self.clear > 0 or not math.isfinite(self.half))

    @property
    def clear(self) -> int:
        """1 where the classes are better beyond chance, -1 where they are worse, else 0."""
        return int(math.copysign(1, self.share)) if abs(self.share) > self.half else 0


def _below(share: float) -> str:
    return f"{abs(share):.1%} {'below' if share >= 0 else 'above'}"


def _error(found: Saved, form: str) -> str:
    half = found.half / Z95
    return f"\N{PLUS-MINUS SIGN} {half:{form}}" if math.isfinite(half) else ""


def saved(result: Any) -> Saved:
    """What the classes save over one ridge for all: sites say by how much, with its error."""
    told = np.isfinite(result.heldout_gain)
    told_mse = np.where(told, result.heldout_mse[:, RIDGE], np.nan)
    unit = float(result.pooled(told_mse[:, None])[0])
    found = _over_entities(result, result.heldout_gain / unit, result.heldout_gain_error / unit)
    return found if math.isfinite(found.half) else saved_over(result, RIDGE)


def lead(result: Any) -> Saved:
    """Log density of an event under the classes less that under the mixed model."""
    found = _over_entities(result, result.heldout_ahead, result.heldout_ahead_error)
    return found if math.isfinite(found.half) else _over_sites(result, result.heldout_ahead)


def _over_entities(result: Any, values: FloatArray, errors: FloatArray) -> Saved:
    """Mean over sites of what each tells with its error."""
    found, weight = weighted(result, values)
    error, part = weighted(result, np.where(np.isfinite(values), errors, np.nan))
    mean = float(weight @ found) if len(found) else math.nan
    if not len(found) or len(error) < len(found):
        return Saved(mean)
    # error of a weighted mean over independent sites
    return Saved(mean, Z95 * float(np.sqrt((part**2 * error**2).sum())))


def saved_over(result: Any, model: int, by: int = CLASSES) -> Saved:
    """What they (or `by`) save over a model without an error: an interval over three sites."""
    mse = result.heldout_mse
    unit = float(result.pooled(mse[:, [model]])[0])
    return _over_sites(result, (mse[:, model] - mse[:, by]) / unit)


def _over_sites(result: Any, values: FloatArray) -> Saved:
    from scipy.stats import t

    difference, weight = weighted(result, values)
    n = len(difference)
    if not n:
        return Saved(math.nan)
    share = float(weight @ difference)
    if n < 3:
        return Saved(share)
    # between sites, by the spread of their differences
    error = np.sqrt(((weight * (difference - share)) ** 2).sum() * n / (n - 1))
    return Saved(share, float(t.isf(0.025, n - 1) * error), "sites")


def weighted(result: Any, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Values of the sites that tell one, and their shares of the events of these sites."""
    weight = np.nan_to_num(result.heldout_weight)
    told = np.isfinite(values) & (weight > 0)
    return values[told], weight[told] / max(float(weight[told].sum()), np.finfo(float).tiny)


# ------------------------------------------------------------------------------- how it comes about


def build_result(
    ctx: CoordinatorContext,
    rounds: Rounds,
    ending: Ending,
    concluded: Mapping[str, Concluded],
    *,
    n_replaced: int = 0,
) -> LatentClassRegressionResult:
    """Put the result together."""
    method, survey, sites, trace = rounds.method, rounds.survey, rounds.survey.sites, rounds.trace
    k, sums = len(ending.mean), rounds.sums
    units = Units.of(survey.centre, survey.scale, method.fit_intercept)
    coefficients, intercepts, spread = units.raw(ending.mean, ending.covariance)
    errors = np.sqrt(np.maximum(np.diagonal(spread, axis1=1, axis2=2), 0.0))
    # by site: figures, their squared standard errors and effective numbers; sizes of its classes;
    # by status, round and site: its numbers of classes
    figures = np.full((len(sites), 3, N_FIGURES + N_CURVED), np.nan)
    site_sizes = np.full((len(sites), k), np.nan)
    by_status = np.zeros((4, len(trace["status"]), len(sites)), dtype=np.int64)
    for b, site in enumerate(sites):
        if site in concluded:
            reply = concluded[site]
            told = [r.value for r in (reply.figures, reply.variances, reply.effective)]
            figures[b, :, : len(told[0])] = told
        if site in rounds.standing:
            site_sizes[b] = ending.summed(rounds.standing[site].now[:, -MARKS])
        for r, told in enumerate(trace["status"]):
            by_status[:, r, b] = told.get(site, 0)
    if n_replaced:
        figures[:, :, 7:9] = np.nan  # intervals of classes that are not kept
    if rounds.curve is None:
        figures[:, :, N_FIGURES:] = np.nan  # one regression without squares once more
    nothing = (np.nan, np.nan, np.nan)
    n_events, n_entities, n_agents = np.array([survey.sizes.get(s, nothing) for s in sites]).T
    return LatentClassRegressionResult(
        feature_names=ctx.feature_names,
        target_name=str(ctx.columns.target),
        n_classes=k,
        chosen="auto" if isinstance(method.n_classes, str) else "given",
        slopes=coefficients,
        coefficient_errors=errors[:, 1:],
        intercepts=intercepts,
        intercept_errors=errors[:, 0],
        class_sizes=ending.summed(sums.counts),
        class_events=ending.summed(sums.n),
        class_shares=ending.base,
        sigma=float(np.sqrt(ending.sigma2)) * units.target_scale,
        delta=float(np.sqrt(ending.delta2)),
        alpha=rounds.alpha,
        beta=rounds.beta,
        concentration=method.concentration,
        start=method.start,
        level=float(method.level),
        learning_rates=np.array(trace["rate"][1:], dtype=float),
        participation=float(method.participation),
        rounds_run=rounds.round,
        merged_at=rounds.merged_at,
        slowed=rounds.slowed,
        trace_sigma=np.array(trace["sigma"]) * units.target_scale,
        trace_moved=np.array(trace["moved"]),
        trace_log_marginal=np.array(trace["log_marginal"]),
        trace_classes=np.array(trace["classes"], dtype=float),
        merge_path=np.array(rounds.path, dtype=float).reshape(-1, 2),
        sites=sites,
        n_agents=n_agents,
        n_entities=n_entities,
        n_events=n_events,
        reported=np.array([[site in told for site in sites] for told in trace["status"]]),
        released=by_status[NEW],
        repeated=by_status[AS_BEFORE],
        withheld=by_status[WITHHELD],
        site_class_sizes=site_sizes,
        heldout_mse=figures[:, 0, :4],
        heldout_log_score=figures[:, 0, 4:7],
        heldout_weight=n_events,
        coverage=figures[:, 0, 7],
        interval_width=figures[:, 0, 8],
        heldout_gain=figures[:, 0, 9],
        heldout_gain_error=np.sqrt(figures[:, 1, 9]),
        heldout_effective=figures[:, 2, 9],
        heldout_ahead=figures[:, 0, 10],
        heldout_ahead_error=np.sqrt(figures[:, 1, 10]),
        mean=ending.mean,
        covariance=ending.covariance,
        centre=survey.centre,
        scale=survey.scale,
        fit_intercept=method.fit_intercept,
        scaling=np.empty((0, 0)) if ctx.scaling is None else np.asarray(ctx.scaling),
        remarks=tuple(_remarks(ctx, rounds, k)),
        n_replaced=n_replaced,
        heldout_curve=figures[:, 0, N_FIGURES:],
        heldout_curve_error=np.sqrt(figures[:, 1, N_FIGURES:]),
        curve_sites=rounds.curve_sites,
    )


def _remarks(ctx: CoordinatorContext, rounds: Rounds, n_classes: int) -> Iterator[str]:
    """What was noticed about the data, the start and the sites."""
    method, survey = rounds.method, rounds.survey
    masked = ctx.masks is not None
    if masked:
        yield MASKED
    if n_classes > 1:
        yield (
            "The rounds are one chain, and one chain cannot tell whether another start would find "
            "the same classes: run the study with another seed and compare the classes at the "
            "sites, before they are read as facts."
        )
    same = [n for n, c in zip(ctx.feature_names, survey.constant[:-1], strict=True) if c]
    if same:
        yield (
            f"The same in all events, as far as sums of squares tell: {', '.join(same)}. Take it "
            "out of the features, or shift it to a smaller mean."
        )
    shared = [n for n, c in zip(ctx.feature_names, survey.shared, strict=True) if c]
    if shared:
        yield (
            f"Columns that follow from one another: {', '.join(shared)}. The prior shares their "
            "coefficients between them; predictions do not suffer."
        )
    if survey.constant[-1]:
        yield f"{ctx.columns.target} is the same in all events: no regression tells classes apart."
    protected = any(preset != "simulation" for preset in ctx.presets.values())
    if method.start == "random" and method.n_classes != 1 and protected:
        yield (
            "Classes seldom form from a random start where sites protect records, since their sums "
            "change by groups of entities only: "
            + ("ask without masks." if masked else 'set start to "local".')
        )
    if isinstance(method.n_classes, int) and n_classes < method.n_classes:
        yield (
            f"Only {n_classes} of {method.n_classes} classes hold entities: the data tell no more "
            "apart."
        )
    if rounds.slowed:
        yield (
            "Labels jumped to and fro between rounds, as they do at low noise under a large "
            f"learning rate; it was lowered to {rounds.rate:.3g}."
        )
    silent = ["some sites"] if masked and not rounds.known else []
    silent += [site for site in survey.sites if site not in survey.sizes]
    if silent:
        yield (
            f"Too few events to tell the moments of all columns at {', '.join(silent)}, or too few "
            "with some value of a column that has few values: the units rest on the other sites."
        )
    missed = [site for site in survey.sites if site not in rounds.standing]
    if missed:
        yield f"Not there at the beginning, and so not in the classes: {', '.join(missed)}."
    never = [site for site, standing in sorted(rounds.standing.items()) if not standing.sums.any()]
    if never:
        yield (
            f"No class of {', '.join(never)} was large enough to be sent at the end: its events "
            "are predicted, but the classes do not rest on them."
        )

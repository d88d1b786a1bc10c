"""Any estimator on data that are split: refits towards the sites' average, close to the pooled fit.

==================================  ====================================================
coordinator                         site
==================================  ====================================================
(phase site_moments, where the reference rows are drawn from pooled moments)
offer: Offer                    ->  checks the learner and, by digests, that the
  settings, digests (m, 32)         reference rows are not its own
                                <-  Accepted: n, held, weights,
                                    sum of squared lengths              AGGREGATE
fit: Fit, round 0               ->  fits its own rows; probes its learner
  reference (m, p)              <-  Fitted: predictions (m, q) by
                                    trajectory and track, models        MODEL
fit: Fit, rounds 1 .. K         ->  judges the average of the round before; refits
  average (T, g, m, q), rho         with the pseudo-rows (a, average(a))
  models of the round before    <-  Fitted: as before                   MODEL
                                    held-out losses (g, 2)              AGGREGATE
judge: Judge                    ->  judges the average of the last round
                                <-  Judged: held-out losses (g, 2)      AGGREGATE
conclude: Conclude              ->  takes the fit of all rows of that round
  track, round                  <-  Concluded: model (all)              MODEL
                                    losses of its own fit, averaging    AGGREGATE
use: Use                        ->  keeps the average as its predictor
  models (all)                  <-  Used                                PUBLIC
==================================  ====================================================

The average is ``fbar(a) = sum_b n_b/N f_b(a)`` over the reference rows a. Round 0 is plain
averaging. Refit k minimises the mean loss of own rows, the penalty, and rho_k times the mean loss
of the pseudo-rows, with rho_k = c k^.9 (adaptive) or c (fixed). Asynchronous: each arriving reply
moves the average, and its site goes on at once; k counts the replies of all sites, in rounds.

Phases: site_moments (and opening, agree_levels, standardise before all methods).

Source: Ya Le's Stanford thesis, chapter 1 (with T. Hastie and E. Dobriban), *A General Algorithm
for Distributed Learning*. Departures:

* Weights follow from how a learner weighs loss against penalty
  (``averaging.estimators.conventions``); the penalty keeps its meaning for the pooled table, and
  rho is in units of the data.
* Classes are averaged as probabilities: each reference row enters once per level.
* A probe at every site finds learners that do not keep their own predictions (forests, boosting),
  and rows that are held out measure every round: the best round is kept if it beats averaging by
  more than a standard error, otherwise averaging is returned.
* Under the asynchronous schedule rho follows the replies of all sites, not those of the site: with
  counts of their own, sites of different speed would have different weights for good, and the
  average would tend to a fit that counts the rows of slow sites more.
* Reference rows come from pooled first *and* second moments, from public rows, or N(0, I).
* A grid of penalties is fitted side by side (`penalties`), the best chosen on held-out rows.

Absence: a site that does not answer the offer is left out, down to the quorum. One that misses a
round keeps its last predictions in the average and is asked again in the next; what comes late is
folded in there. One that is missing at the end has no model in the average, which is said.

Leakage: the coordinator knows each site's number of rows, used and held out, sums of their weights
and of the squares of its features, its predictions at the reference rows in every round, how two
refits change these, losses on held-out rows with standard errors, rounded, and its models: where
rows are held out in every round, and at the end. With `reference = "moments"` it also knows means,
spreads and cross-products of the columns; the means are open to all sites. All sites know the
models and the average. For a
linear learner m >= p predictions are the model, and the answers to p + 1 averages determine the
site's matrix of second moments and its moments with the response: what the rule for moment matrices
lets out, so the gate asks for as many rows. Of fits of all rows and of part of them it asks that
for the rows by which they differ. An honest exchange asks for no value of any row. A coordinator
that makes up averages can do better than that: a learner with a curved loss (logistic regression)
that is pulled to steep averages on either side of a row answers with scores in which this row
stands out, and two such answers give its values. No rule sees it, since each fit rests on all rows.
Sites bound the number of fits, sets of reference rows and judged averages of a run; what protects
them is whom they answer: approved studies and trusted coordinators. The answer to an offer tells
whether at least `min_records` (or, by a secret, up to twice as many) distinct offered rows, beyond
coincidence, stand in the site's table once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from consilience.averaging.estimators.conventions import NAMES as CONVENTIONS
from consilience.averaging.estimators.conventions import convention_of, innermost, settled
from consilience.averaging.protocol import site as at_site
from consilience.averaging.protocol.coordinator import Rounds
from consilience.averaging.protocol.messages import MAX_ROUNDS, MAX_TRACKS, Settings, Use
from consilience.averaging.protocol.result import ReferenceAveragingResult
from consilience.exceptions import ParameterError, StudyError
from consilience.learners import candidates
from consilience.learners.candidates import LOSSES
from consilience.learners.collaborative_predictor import CollaborativePredictor
from consilience.numerics.reference_average import SCHEDULES
from consilience.parameters import FLAG, LEFT_OUT, allows, number, one_of, several, whole
from consilience.protocol.method import Ask, CoordinatorContext, Exchange, Method, register
from consilience.protocol.phases import site_moments
from consilience.protocol.phases.holdout import say_share
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure

Rows = tuple[tuple[float, ...], ...]

# --- Parameters that are more than a value: learners, reference rows.

REFERENCES = ("moments", "normal")
_SHOWN = 120


_FINE = {"tol": 1e-6, "max_iter": 10_000}
"""A solver that stops early does not keep its own predictions, and each round adds to its error."""
_LEAVES = {"min_samples_leaf": 10}

LEARNERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "linear": ("linear_model.LinearRegression", {}),
    "ridge": ("linear_model.Ridge", {}),
    "lasso": ("linear_model.Lasso", _FINE),
    "elastic-net": ("linear_model.ElasticNet", _FINE),
    "poisson": ("linear_model.PoissonRegressor", _FINE),
    "gamma": ("linear_model.GammaRegressor", _FINE),
    "tweedie": ("linear_model.TweedieRegressor", _FINE),
    "logistic": ("linear_model.LogisticRegression", _FINE),
    "random-forest": ("ensemble.RandomForestRegressor", _LEAVES),
    "random-forest-classifier": ("ensemble.RandomForestClassifier", _LEAVES),
    "gradient-boosting": ("ensemble.GradientBoostingRegressor", _LEAVES),
    "gradient-boosting-classifier": ("ensemble.GradientBoostingClassifier", _LEAVES),
}
"""Learners by name; scikit-learn's defaults, but for the settings named here."""


def estimator_text(estimator: Any) -> str:
    """Text form of a learner that a person gave: a name with settings stays as it was written.

    Raises
    ------
    ParameterError
        Not a known name, or an estimator that does not travel.
    """
    if isinstance(estimator, str):
        travelling(estimator)
        return estimator
    return _as_text(estimator)


def _as_text(estimator: Any) -> str:
    try:
        return candidates.as_text(estimator)
    except ParameterError as error:
        if not isinstance(estimator, str) and not hasattr(estimator, "get_params"):
            raise ParameterError.of(
                "estimator", "a name or a scikit-learn estimator", estimator
            ) from None
        # It is one of several there.
        raise ParameterError(str(error).replace("candidate", "estimator", 1)) from None


def travelling(text: str) -> str:
    """Text in which a learner goes to the sites.

    Raises
    ------
    ParameterError
        Unknown name or setting; a site reads literals only, and nothing is evaluated.
    """
    if text.startswith(candidates.OBJECT):
        return _as_text(text)
    allowed = f"one of {', '.join(LEARNERS)}, such a name with settings in brackets, or an object"
    name, bracket, rest = text.strip().partition("(")
    if name.strip() not in LEARNERS:
        raise ParameterError.of("estimator", allowed, text[:_SHOWN])
    path, settings = LEARNERS[name.strip()]
    made = candidates.sklearn_estimator(path, **settings)
    if bracket:
        try:
            made.set_params(**candidates.literals(rest))
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            raise ParameterError(
                f"the settings of estimator {text[:_SHOWN]!r} are not read: write them as "
                f"{name.strip()}(setting=value, ...), with settings of scikit-learn's "
                f"{type(made).__name__}"
            ) from None
    return candidates.as_text(made)


def reference_rows(reference: Any) -> str | Rows:
    """Reference as it was named, or rows that were given as plain numbers.

    Raises
    ------
    ParameterError
        Neither a known word nor a table of finite numbers.
    """
    if isinstance(reference, str):
        if reference not in REFERENCES:
            raise ParameterError.of(
                "reference",
                f"one of {', '.join(REFERENCES)}, or rows (in a study file: a [reference] section)",
                reference,
            )
        return reference
    try:
        rows = np.asarray(reference, dtype=float)
    except (TypeError, ValueError):
        rows = np.empty(0)
    if rows.ndim != 2 or not rows.size or np.isinf(rows).any():
        raise ParameterError(
            "reference must be a table of finite numbers, one column for each encoded feature: "
            "give public rows, or one of moments, normal"
        )
    return tuple(tuple(float(v) for v in row) for row in rows)


# --- The method.


@register
@dataclass(frozen=True, kw_only=True)
class ReferenceAveraging(Method[ReferenceAveragingResult]):
    """Fit any estimator on rows that are split over sites, close to the fit of all rows.

    Parameters
    ----------
    estimator : str or estimator
        What would be fitted on the pooled rows, penalty included: a name (``"ridge"``, ``"lasso"``,
        ``"elastic-net"``, ``"linear"``, ``"logistic"``, ``"poisson"``, ``"gamma"``, ``"tweedie"``,
        ``"random-forest"``, ...; with fine solver tolerances), a name with settings such as
        ``"lasso(alpha=0.01)"``, or a scikit-learn estimator. The steps of a pipeline before the
        last are fitted once, on the reference rows.
    penalties : sequence of float
        Grid of the learner's penalty (alpha, or C), fitted side by side; the best on held-out rows
        is kept. Empty takes the estimator as it is.
    reference : {"moments", "normal"} or (m, p) array
        Reference rows: drawn from the pooled means and covariances, from N(0, I) (only good where
        columns are nearly independent and on that scale), or public rows of the encoded features in
        their own units. Never private rows.
    n_reference : int, optional
        Rows that are drawn; 20 for each column unless given, fewer for more than 447 columns.
    schedule : {"adaptive", "fixed", "asynchronous"}
        Weight of the reference rows by round: growing by `exponent`, or `rho` in every one;
        asynchronously each site goes on once its reply is in.
    rho : float
        Weight of the pseudo-rows in the first refit, in units of the data.
    exponent : float
        Growth of the weight with the round, in [0, 1).
    max_rounds : int
        Refits at most; 0 is plain averaging.
    patience : int
        Rounds without gain after which a track ends; not under the asynchronous schedule.
    holdout : float
        Share of each site's rows that measures the rounds, in [0, .5]; sites with too few rows hold
        out none, protected ones one or two fifths or none. 0 measures nothing, and the last round
        is kept.
    convention : {"auto", "sum", "normalised", "rows", "trees"}
        How the learner weighs loss against penalty, where it is not known.
    guard : bool
        Probe the learner, and keep a refit only where it is better than averaging.
    loss : {"auto", "squared", "brier", "log"}
        What held-out rows are judged by: squared error in regression, log loss for classes.

    Notes
    -----
    Any site's predictions at the reference rows count as its model; a site needs twice as many rows
    as the model has parameters.
    """

    estimator: str
    penalties: tuple[float, ...] = allows(several(number(0), most=MAX_TRACKS), default=())
    reference: str | Rows = "moments"
    n_reference: int | None = allows(whole(2) | LEFT_OUT, default=None)
    schedule: str = allows(one_of(*SCHEDULES), default="adaptive")
    rho: float = allows(number(above=0), default=1.0)
    exponent: float = allows(number(0, below=1), default=0.9)
    max_rounds: int = allows(whole(0, MAX_ROUNDS), default=20)
    patience: int = allows(whole(1), default=2)
    holdout: float = allows(number(0, 0.5), default=0.2)
    convention: str = allows(one_of("auto", *CONVENTIONS), default="auto")
    guard: bool = allows(FLAG, default=True)
    loss: str = allows(one_of("auto", *LOSSES), default="auto")

    name: ClassVar[str] = "reference-averaging"
    version: ClassVar[int] = 4
    title: ClassVar[str] = "What would any estimator say, fitted on all rows, where they are split?"
    steps = (
        *site_moments.STEPS,
        at_site.offer,
        at_site.fit,
        at_site.judge,
        at_site.conclude,
        at_site.use,
    )
    absence: ClassVar[str] = (
        "A site that misses the offer is left out, down to the quorum. One that misses a round "
        "keeps its last predictions in the average and is asked again in the next round. One that "
        "is missing at the end has no model in the average."
    )
    leakage: ClassVar[str] = (
        "The coordinator knows each site's number of rows, used and held out, sums of weights and "
        "of squares of its features; its predictions at the reference rows and its models in "
        "every round (for linear learners, after as many rounds as columns, its second moments), "
        "how two refits change the predictions, and losses on held-out rows with standard errors, "
        'rounded. With reference = "moments" it also knows means, spreads and cross-products of '
        "the columns, with pooled scaling means and spreads. All sites know the models. A "
        "coordinator that makes up averages can learn values of single rows from learners with a "
        "curved loss."
    )
    Result = ReferenceAveragingResult
    predictor: ClassVar[Any] = CollaborativePredictor
    roles: ClassVar[tuple[str, ...]] = ("target", "entity", "weight")
    foreign_models: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "estimator", estimator_text(self.estimator))
        object.__setattr__(self, "reference", reference_rows(self.reference))
        # Numbers as Python has them, for study files and run directories.
        grid = self.penalties
        listed = tuple(grid) if isinstance(grid, list | tuple | np.ndarray) else (grid,)
        object.__setattr__(
            self, "penalties", tuple(v.item() if isinstance(v, np.generic) else v for v in listed)
        )

    def check_together(self) -> None:
        """Several penalties need held-out rows; the learner must be known."""
        if len(self.penalties) > 1 and (self.holdout == 0 or not self.guard):
            raise ParameterError(
                "penalties are compared on rows that are held out: holdout must be above 0 and "
                "guard true, or give one penalty"
            )
        travelling(self.estimator)

    def admit(self, ctx: CoordinatorContext) -> None:
        """Check that there is a response, and that learner and response go together."""
        if ctx.columns.target is None:
            raise StudyError("reference-averaging needs a response: name it as [data] target")
        if not ctx.columns.features:
            raise StudyError("reference-averaging predicts from features: name them in [data]")
        # A row of the reference would be another row on every site's own scale.
        if ctx.preparation.standardize == "site":
            raise StudyError(
                "reference rows mean the same at all sites only on one scale: set [preparation] "
                'standardize to "pooled" or "none"'
            )
        settings = self._settings(ctx)
        try:
            made = candidates.build(settings.estimator, settings.task, min_records=1, seed=0)
        except ParameterError as error:  # it is one of several candidates there
            raise ParameterError(str(error).replace("candidate", "estimator", 1)) from None
        convention, learner = convention_of(made, self.convention), innermost(made)
        settled(learner, 0)
        if self.penalties and not convention.penalty:
            raise ParameterError(
                f"{type(learner).__name__} has no penalty to choose: leave penalties out"
            )
        if settings.task == "regression" and settings.loss != "squared":
            raise ParameterError.of("loss", "squared where the response is numeric", self.loss)
        if settings.task == "classification" and settings.loss == "squared":
            raise ParameterError.of("loss", "brier or log where the response has levels", self.loss)

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Offer, rounds, choice, use."""
        settings = self._settings(ctx)
        say_share(ctx, settings.holdout)
        rounds = Rounds(self, ctx, settings)
        yield from rounds.offer()
        if self.schedule == "asynchronous":
            yield from rounds.asynchronous()
        else:
            yield from rounds.synchronous()
        result = yield from rounds.conclude(rounds.choice())
        message = Use(
            settings=settings,
            owners=result.owners,
            shares=relayed(result.shares, Disclosure.AGGREGATE),
            models=relayed(result.models, Disclosure.MODEL),
        )
        ctx.require((yield Ask("use", message, to=rounds.sites)))
        return result

    def stated(self) -> dict[str, Any]:
        """The estimator as it travels, and no held-out rows without the guard."""
        holdout = self.holdout if self.guard else 0.0
        return super().stated() | {"estimator": travelling(self.estimator), "holdout": holdout}

    def _settings(self, ctx: CoordinatorContext) -> Settings:
        levels = tuple(ctx.columns.levels.get(ctx.columns.target or "", ()))
        loss = self.loss if self.loss != "auto" else ("log" if levels else "squared")
        return Settings(
            estimator=travelling(self.estimator),
            convention=self.convention,
            levels=levels,
            loss=loss,
            penalties=self.penalties,
            holdout=float(self.holdout) if self.guard else 0.0,
            guard=bool(self.guard),
            # The best round is judged one round late, and then others are waited for.
            keep=int(self.patience) + 2,
            schedule=self.schedule,
        )

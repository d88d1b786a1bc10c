"""An estimator as a method: fitted to the table of one site, which keeps the model.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
fit: Fit                    ->  holds rows out, fits the others, judges the
  parameters, levels              held-out ones, keeps the predictor
                            <-  Fitted: rows by class, errors by rule, confusion,
                                  errors by candidate, scores         AGGREGATE
                                  figures of the candidates, what the
                                  model tells (pairs, groups)         MODEL
==============================  ==================================================

Each method of this kind is a module: ``sparse_qda``, ``community_bayes``. Methods that choose by
held-out entries of a matrix with gaps are others: ``matrix_completion``, ``cluster_count``, over
``entry_study``, which has their ladder. For several sites each has a method of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.classes import ClassesMethod, ClassesResult
from consilience.discriminant.one_table import messages
from consilience.exceptions import ConsilienceError, DataError, StudyError
from consilience.parameters import allows, number, plain
from consilience.protocol import one_table
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Exchange,
    SiteContext,
    SiteData,
    State,
    Step,
    get_method,
    step,
)
from consilience.protocol.phases.holdout import say_share
from consilience.protocol.result import Frame, ResultT, lines
from consilience.wire.disclosure import count, estimator, estimator_fault, model

if TYPE_CHECKING:
    import pandas as pd


# --------------------------------------------------------------------------- the result


@dataclass(frozen=True, eq=False, kw_only=True)
class OneTableResult(ClassesResult):
    """What a site tells of a fit to its table. NaN: withheld by the rules of the site's policy.

    Attributes
    ----------
    site : str
    n, n_held : int
        Rows that take part, and those of them that are held out.
    confusion : (K, K) array
        Held-out rows by class and class predicted by the first rule.
    brier, brier_se, brier_gain, brier_gain_se : (m,) arrays
        Mean Brier scores of held-out rows (sums over classes), as log losses are told.
    cv_se : (a,) array
        Standard errors of the shares of the `cv_rows` rows that are not held out which each
        candidate gets wrong in cross-validation; empty where none was done.
    cv_rows : int
    model_stays : str
        Why what the model tells stays at the site; empty where it is here.
    """

    site: str
    n: int
    n_held: int
    confusion: FloatArray
    brier: FloatArray
    brier_se: FloatArray
    brier_gain: FloatArray
    brier_gain_se: FloatArray
    cv_se: FloatArray
    cv_rows: int
    model_stays: str

    @property
    def error_rates(self) -> FloatArray:
        """Share of held-out rows that each rule gets wrong; NaN where withheld or none are held."""
        return np.asarray(self.errors / (self.n_held or np.nan))

    @property
    def n_fitted(self) -> int:
        """Rows that are fitted."""
        return self.n - self.n_held

    def judged_sentence(self) -> str:
        """Say how the first rule did on held-out rows, and the others beside it."""
        if not self.n_held:
            return "No rows were held out, so nothing judges the fit anew."
        told, few = [], []
        for name, wrong, rate in zip(self.judged, self.errors, self.error_rates, strict=True):
            if np.isnan(wrong):
                few.append(name)
            else:
                told.append(f"{name} gets {wrong:.0f} wrong ({rate:.1%})")
        if few:
            told.append(
                f"too few to be told are wrong by {', '.join(few)} (the site's own rules.csv has "
                "the numbers)"
            )
        sentence = f"Of {self.n_held} rows that were held out, {'; '.join(told)}."
        if np.isnan(self.errors[0]) and not np.isnan(self.log_loss).all():
            pairs = zip(self.judged, self.log_loss, strict=True)
            losses = (f"{name} {loss:.2g}" for name, loss in pairs if not np.isnan(loss))
            sentence += f" Mean log losses: {', '.join(losses)}."
        return sentence

    @Frame
    def rules(self) -> pd.DataFrame:
        """Every rule: errors and scores on held-out rows."""
        columns = {"errors": self.errors, "error_rate": self.error_rates}
        for name in messages.SCORES:
            columns |= {name: getattr(self, name), f"{name}_se": getattr(self, f"{name}_se")}
        return lines(columns, rule=self.judged)

    @Frame
    def predicted(self) -> pd.DataFrame:
        """Held-out rows of every class by the class predicted by the first rule."""
        by_level = dict(zip(self.levels, self.confusion.T, strict=True))
        return lines(by_level, **{"class": self.levels})


# --------------------------------------------------------------------------- the study


LogProba = Callable[[FloatArray], FloatArray]

FREQUENCIES = "class frequencies"
"""Rule that looks at no feature."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalFit:
    """A fit at the site.

    Attributes
    ----------
    classes : tuple of str
        Levels that occur, in the order of the columns of log-probabilities.
    rules : dict of str to callable
        Rules by name, the one that is kept first: columns to log-probabilities (n, classes). The
        others are what it is compared with.
    predictor : object
        What stays at the site: has ``to_arrays``.
    wrong : (a,) int array
        Rows that each candidate got wrong in cross-validation; empty where none was done.
    cv_se, cv_log_loss : (a,) arrays
        Standard errors of the shares of such rows, and their mean log losses; empty where they are
        not known.
    figures : dict of str to number or array
        The place that was ``chosen``, ``candidates`` (a,), and others; the first leave first where
        the rows bear no more.
    model : dict of str to array
        What the model tells: leaves the site only where its rows bear it.
    n_parameters : int
        Parameters that are told of each class.
    parts : callable or None
        Columns to what each part of the first rule says for each class, (n, parts, classes).
    tables : dict of str to dict
        Tables for the site's own people, by name.
    remarks : tuple of str
        Sentences for the site's own people.
    """

    classes: tuple[str, ...]
    rules: Mapping[str, LogProba]
    predictor: Any
    wrong: IntArray
    cv_se: FloatArray
    cv_log_loss: FloatArray = field(default_factory=lambda: np.empty(0))
    parts: LogProba | None = None
    figures: Mapping[str, Any]
    model: Mapping[str, Any]
    n_parameters: int
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OneTableStudy(ClassesMethod[ResultT]):
    """Base of the methods that fit an estimator to the table of one site.

    A subclass is a frozen dataclass whose fields are the estimator's parameters; it states
    ``steps = (fit_step(name),)`` and the name of its method for several sites, and implements
    `fit_table` and `conclude`.

    Parameters
    ----------
    holdout : float
        Share of the rows that judge the fit and take no part in it, in [0, .5]; whole entities,
        where the study names an entity. A protected site holds out one or two
        fifths, or nothing.
    """

    holdout: float = allows(number(0, 0.5), default=0.2)

    absence: ClassVar[str] = (
        "There is one site: without it the run stops, and goes on with it when it is asked again."
    )
    tolerates = {"fit": "all"}  # noqa: RUF012  a constant of the class

    @abstractmethod
    def fit_table(self, rows: one_table.Rows, scaling: FloatArray | None) -> LocalFit:
        """Fit the rows that are not held out; runs at the site.

        Parameters
        ----------
        rows : Rows
        scaling : (3, p) array or None
            What the preparation applied to the features, for the predictor.
        """

    @abstractmethod
    def conclude(self, common: Mapping[str, Any], reply: messages.Fitted) -> OneTableResult:
        """Make the result; `common` are the fields of `OneTableResult`."""

    def admit_features(self, ctx: CoordinatorContext) -> None:
        """Check what depends on the features, once they are known."""

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Ask once."""
        self.admit_features(ctx)
        say_share(ctx, self.holdout)
        levels = tuple(ctx.columns.levels[str(ctx.columns.target)])
        settings = messages.Settings(self.parameters(), levels)
        asked = Ask("fit", messages.Fit(settings=settings), to=ctx.sites[:1])
        replies = ctx.require((yield asked), at_least=1)
        (site, reply), *_ = replies.items()
        if not reply.n_held.value and self.holdout:
            ctx.note(
                f"Site {site} has too few rows to hold any out, or too few of a class: nothing "
                "judges the fit anew."
            )
        k, figures = len(levels), reply.figures.value
        told = ("n_by_class", "errors", "cv_errors")
        common: dict[str, Any] = {
            "site": site,
            "target_name": str(ctx.columns.target),
            "levels": levels,
            "feature_names": ctx.feature_names,
            "n": int(reply.n.value),
            "n_held": int(reply.n_held.value),
            **{name: np.asarray(getattr(reply, name).value, dtype=float) for name in told},
            "judged": tuple(reply.judged),
            "confusion": np.asarray(reply.confusion.value, dtype=float).reshape(k, k),
            "cv_rows": int(reply.n.value) - int(reply.n_held.value),
            "chosen": int(figures.get("chosen", -1)),
            "model_stays": str(reply.stays),
        }
        for name in ("cv_se", "candidates"):
            common[name] = np.asarray(figures.get(name, np.empty(0)), dtype=float)
        for j, score in enumerate(messages.SCORES):
            common |= {
                score: np.asarray(reply.scores.value)[:, j],
                f"{score}_se": np.sqrt(reply.score_errors.value)[:, j],
                f"{score}_gain": np.asarray(reply.gains.value)[:, j],
                f"{score}_gain_se": np.sqrt(reply.gain_errors.value)[:, j],
            }
        return self.conclude(common, reply)


# --------------------------------------------------------------------------- at the site


def fit_step(method: str) -> Step:
    """Return the step of a method of this kind, by the method's name."""

    @step("fit", once=True)
    def fit(
        message: messages.Fit, data: SiteData, state: State, site: SiteContext
    ) -> tuple[messages.Fitted, State]:
        """Fit, judge held-out rows, keep the predictor."""
        settings = message.settings
        study = get_method(method).from_parameters(settings.parameters)
        if not isinstance(study, OneTableStudy):
            raise StudyError(f"method {method!r} does not fit one table")
        rows = one_table.fitted_and_held(data, settings.levels, study.holdout, site)
        try:
            made = study.fit_table(rows, data.scaling)
        except ConsilienceError as error:
            sentence = "the table cannot be fitted as it is; the site's own log says why"
            raise DataError(str(error), public=sentence) from error
        for remark in made.remarks:
            site.note(remark)
        return _answered(study, made, rows, data, site), state

    return fit


def _answered(
    study: OneTableStudy, made: LocalFit, rows: one_table.Rows, data: SiteData, site: SiteContext
) -> messages.Fitted:
    """Leave what the fit gives at the site, and say what may be told of it."""
    limits, n_rows, n_levels = site.limits, len(rows.fitted), len(rows.levels)
    # Levels that do not occur are never predicted.
    log_proba = {name: np.full((len(rows.y), n_levels), -np.inf) for name in made.rules}
    there = [rows.levels.index(name) for name in made.classes]
    # Scores of rows that were fitted go to the site's own table only.
    for name, rule in made.rules.items():
        log_proba[name][:, there] = rule(rows.x)
    # Scores of the class frequencies would tell of a small class.
    small = one_table.small_classes(rows, limits).any()
    names = tuple(name for name in made.rules if not (small and name == FREQUENCIES))
    parts = None
    if made.parts is not None:
        # Shapes are known even where nothing is held out.
        found = made.parts(rows.x[rows.held]) if len(rows.held) else made.parts(rows.x[:1])[:0]
        parts = np.full((*found.shape[:2], n_levels), np.nan)
        parts[:, :, there] = found
    said, said_errors = one_table.evidence(rows, parts, limits)
    _keep(log_proba, made, rows, data, site)
    cv_errors = one_table.errors_by_candidate(made.wrong, n_rows, limits)
    # A standard error is told where the number is, to two digits: with all digits it would tell the
    # numbers in the folds. So are log losses.
    given, protects = dict(made.figures), limits.min_records > 1
    rough = {"cv_se": made.cv_se, "cv_log_loss": made.cv_log_loss} if len(cv_errors.value) else {}
    for name, values in rough.items():
        if name == "cv_se":
            values = np.where(np.isnan(cv_errors.value), np.nan, values)
        if len(values):
            digits = [float(f"{value:.1e}") for value in values]
            given[name] = np.array(digits) if protects else values
    # As many figures as there are rows at most; those that come first leave first.
    figures, left = {}, n_rows
    for name, value in given.items():
        left -= int(np.size(value))
        if left >= 0 or not protects:
            figures[name] = value
    # What the model tells, or nothing and the reason.
    told, stays = model({}, kind="figures", n_records=0), messages.STAYS_FEW
    if rows.fewest_entities() >= limits.min_entities:
        released = estimator(
            dict(made.model),
            type_name=study.name,
            n_records=int(np.bincount(rows.y[rows.fitted])[there].min()),
            n_parameters=made.n_parameters,
            leaves=None,
        )
        fits = released.evidence is None or estimator_fault(released.evidence, limits) is None
        told, stays = (released, "") if fits else (told, messages.STAYS)
    return messages.Fitted(
        n=count(len(rows.y)),
        n_held=count(len(rows.held)),
        n_by_class=one_table.rows_by_class(rows, limits),
        **plain(one_table.judge(rows, [log_proba[name][rows.held] for name in names], limits)),
        evidence=said,
        evidence_errors=said_errors,
        cv_errors=cv_errors,
        figures=model(figures, kind="figures", n_records=n_rows),
        model=told,
        judged=names,
        stays=stays,
    )


def _keep(
    log_proba: Mapping[str, FloatArray],
    made: LocalFit,
    rows: one_table.Rows,
    data: SiteData,
    site: SiteContext,
) -> None:
    """Leave predictor, predictions and tables at the site."""
    first, names = next(iter(log_proba.values())), np.array(rows.levels)
    # Of the rule that is kept.
    guess, chance = first.argmax(axis=1), np.exp(first.max(axis=1))
    held = np.zeros(len(rows.y), dtype=np.int64)
    held[rows.held] = 1
    site.output("labels", guess.astype(np.int64))
    site.output("probability", chance)
    site.output("held_out", held)
    site.output("predictor", made.predictor)
    predictions = {
        "row": data.rows,
        **({} if data.id is None else {"id": data.id.tolist()}),
        data.target_name or "target": names[rows.y].tolist(),
        "prediction": names[guess].tolist(),
        "probability": chance,
        "held_out": held,
    }
    pairs = [(i, j) for i in range(len(names)) for j in range(len(names))]
    inside = [(rows.y == i) & (guess == j) for i, j in pairs]
    confusion = {
        "class": [str(names[i]) for i, _ in pairs],
        "prediction": [str(names[j]) for _, j in pairs],
        "held_out_rows": [int((mask & (held == 1)).sum()) for mask in inside],
        "fitted_rows": [int((mask & (held == 0)).sum()) for mask in inside],
    }
    # How every rule did on the rows that are held out, with all digits.
    y, rules = rows.y[rows.held], [lp[rows.held] for lp in log_proba.values()]
    means = [
        one_table.row_scores(lp, y).mean(axis=0) if len(y) else (np.nan, np.nan) for lp in rules
    ]
    judged = {
        "rule": list(made.rules),
        "held_out_rows": [len(y)] * len(rules),
        "errors": [int((lp.argmax(axis=1) != y).sum()) for lp in rules],
        **{name: [float(m[j]) for m in means] for j, name in enumerate(messages.SCORES)},
    }
    tables = {"predictions": predictions, "confusion": confusion, "rules": judged, **made.tables}
    for name, columns in tables.items():
        site.table(name, columns)

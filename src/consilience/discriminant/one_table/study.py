"""What every study of one table does: ask once, fit and judge at the site, tell what may leave."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.one_table.messages import (
    SCORES,
    STAYS,
    STAYS_FEW,
    Fit,
    Fitted,
    Settings,
)
from consilience.discriminant.one_table.result import OneTableResult
from consilience.exceptions import ConsilienceError, DataError, ParameterError, StudyError
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Exchange,
    Method,
    SiteContext,
    SiteData,
    State,
    Step,
    get_method,
    step,
)
from consilience.protocol.one_table import (
    Rows,
    errors_by_candidate,
    evidence,
    fitted_and_held,
    judge,
    row_scores,
    rows_by_class,
    small_classes,
)
from consilience.protocol.phases.holdout import say_share
from consilience.wire.disclosure import Limits, Released, count, estimator, estimator_fault, model

LogProba = Callable[[FloatArray], FloatArray]

MOST_HELD = 0.5
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
    n_rows, n_parameters : int
        Rows of the smallest class, and parameters that are told of each.
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
    n_rows: int
    n_parameters: int
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OneTableStudy(Method):
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

    holdout: float = 0.2

    absence: ClassVar[str] = (
        "There is one site: without it the run stops, and goes on with it when it is asked again."
    )
    tolerates = {"fit": "all"}  # noqa: RUF012  a constant of the class
    roles: ClassVar[tuple[str, ...]] = ("target", "entity")
    foreign_models: ClassVar[bool] = True  # fits of somebody's choice, and what they found

    def validate(self) -> None:
        """Check parameters; raise `ParameterError`."""
        share = self.holdout
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise ParameterError.of("holdout", "a number in [0, .5]", share)
        if not 0 <= share <= MOST_HELD:
            raise ParameterError.of("holdout", "a number in [0, .5]", share)

    def admit(self, ctx: CoordinatorContext) -> None:
        """Check that there are classes and features, and one site."""
        columns = ctx.columns
        if columns.target is None:
            raise StudyError(f"{self.name} needs the column of the classes: name it as target")
        if len(columns.levels.get(columns.target, ())) < 2:
            raise StudyError(
                f"{self.name} tells classes apart: declare the levels of column "
                f"{columns.target!r}, two or more, in [data.levels]"
            )
        if not columns.features:
            raise StudyError(f"{self.name} predicts from features: name them in [data]")
        if columns.weight is not None:
            raise StudyError(f"{self.name} weighs all rows alike: leave out the weight in [data]")

    @abstractmethod
    def fit_table(self, rows: Rows, scaling: FloatArray | None) -> LocalFit:
        """Fit the rows that are not held out; runs at the site.

        Parameters
        ----------
        rows : Rows
        scaling : (3, p) array or None
            What the preparation applied to the features, for the predictor.
        """

    @abstractmethod
    def conclude(self, common: Mapping[str, Any], reply: Fitted) -> OneTableResult:
        """Make the result; `common` are the fields of `OneTableResult`."""

    def admit_features(self, ctx: CoordinatorContext) -> None:
        """Check what depends on the features, once they are known."""

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Ask once."""
        self.admit_features(ctx)
        say_share(ctx, self.holdout)
        levels = tuple(ctx.columns.levels[str(ctx.columns.target)])
        settings = Settings(self.parameters(), levels)
        asked = Ask("fit", Fit(settings=settings.to_json()), to=ctx.sites[:1])
        replies = ctx.require((yield asked), at_least=1)
        (site, reply), *_ = replies.items()
        if not reply.n_held.value and self.holdout:
            ctx.note(
                f"Site {site} has too few rows to hold any out, or too few of a class: nothing "
                "judges the fit anew."
            )
        k, figures = len(levels), reply.figures.value
        common: dict[str, Any] = {
            "site": site,
            "target_name": str(ctx.columns.target),
            "levels": levels,
            "feature_names": ctx.feature_names,
            "n": int(reply.n.value),
            "n_held": int(reply.n_held.value),
            "n_by_class": np.asarray(reply.n_by_class.value, dtype=float),
            "judged": tuple(reply.judged),
            "errors": np.asarray(reply.errors.value, dtype=float),
            "confusion": np.asarray(reply.confusion.value, dtype=float).reshape(k, k),
            "cv_errors": np.asarray(reply.cv_errors.value, dtype=float),
            "cv_se": np.asarray(figures.get("cv_se", np.empty(0)), dtype=float),
            "cv_rows": int(reply.n.value) - int(reply.n_held.value),
            "candidates": np.asarray(figures.get("candidates", np.empty(0)), dtype=float),
            "chosen": int(figures.get("chosen", -1)),
            "model_stays": str(reply.stays),
        }
        for j, score in enumerate(SCORES):
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
    def fit(message: Fit, data: SiteData, state: State, site: SiteContext) -> tuple[Fitted, State]:
        """Fit, judge held-out rows, keep the predictor."""
        settings = Settings.from_json(message.settings)
        study = get_method(method).from_parameters(settings.parameters)
        if not isinstance(study, OneTableStudy):
            raise StudyError(f"method {method!r} does not fit one table")
        rows = fitted_and_held(data, settings.levels, study.holdout, site)
        return _answered(study, rows, data, site), state

    return fit


def _answered(study: OneTableStudy, rows: Rows, data: SiteData, site: SiteContext) -> Fitted:
    try:
        made = study.fit_table(rows, data.scaling)
    except ConsilienceError as error:
        sentence = "the table cannot be fitted as it is; the site's own log says why"
        raise DataError(str(error), public=sentence) from error
    for remark in made.remarks:
        site.note(remark)
    limits = site.limits
    log_proba = [_by_level(rule(rows.x), made.classes, rows.levels) for rule in made.rules.values()]
    names = _told_rules(made, rows, limits)
    told_of = [lp for name, lp in zip(made.rules, log_proba, strict=True) if name in names]
    judged = judge(rows, [lp[rows.held] for lp in told_of], limits)
    said, said_errors = evidence(rows, _parts(made, rows), limits)
    _keep(log_proba, made, rows, data, site)
    cv_errors = errors_by_candidate(made.wrong, len(rows.fitted), limits)
    figures = _figures(made, cv_errors.value, len(rows.fitted), limits)
    told, stays = _told(made, study, rows, limits)
    return Fitted(
        n=count(len(rows.y)),
        n_held=count(len(rows.held)),
        n_by_class=rows_by_class(rows, limits),
        errors=judged.errors,
        confusion=judged.confusion,
        scores=judged.scores,
        score_errors=judged.score_errors,
        gains=judged.gains,
        gain_errors=judged.gain_errors,
        evidence=said,
        evidence_errors=said_errors,
        cv_errors=cv_errors,
        figures=figures,
        model=told,
        judged=names,
        stays=stays,
    )


def _told_rules(made: LocalFit, rows: Rows, limits: Limits) -> tuple[str, ...]:
    """Rules whose figures leave: scores of the class frequencies would tell of a small class."""
    small = small_classes(rows, limits).any()
    return tuple(name for name in made.rules if not (small and name == FREQUENCIES))


def _parts(made: LocalFit, rows: Rows) -> FloatArray | None:
    """What each part of the first rule says for each level, of the rows that are held out."""
    if made.parts is None:
        return None
    found = made.parts(rows.x[rows.held]) if len(rows.held) else made.parts(rows.x[:1])[:0]
    full = np.full((*found.shape[:2], len(rows.levels)), np.nan)
    full[:, :, [rows.levels.index(name) for name in made.classes]] = found
    return full


def _by_level(
    log_proba: FloatArray, classes: tuple[str, ...], levels: tuple[str, ...]
) -> FloatArray:
    """Log-probabilities by declared level; levels that do not occur are never predicted."""
    full = np.full((len(log_proba), len(levels)), -np.inf)
    full[:, [levels.index(name) for name in classes]] = log_proba
    return full


def _figures(made: LocalFit, cv_errors: FloatArray, n_rows: int, limits: Limits) -> Released:
    """Figures of the candidates, as many as there are rows at most.

    A standard error is told where the number is, to two digits: with all digits it would tell the
    numbers in the folds. So are log losses.
    """
    protects = limits.min_records > 1
    given = dict(made.figures)
    if len(cv_errors):
        rough = {"cv_se": np.where(np.isnan(cv_errors), np.nan, made.cv_se)}
        if len(made.cv_log_loss):
            rough["cv_log_loss"] = made.cv_log_loss
        given |= {name: _two_digits(v) if protects else v for name, v in rough.items()}
    told: dict[str, Any] = {}
    left = n_rows
    for name, value in given.items():
        left -= int(np.size(value))
        if left >= 0 or not protects:
            told[name] = value
    return model(told, kind="figures", n_records=n_rows)


def _two_digits(values: FloatArray) -> FloatArray:
    return np.array([float(f"{value:.1e}") for value in values])


def _told(made: LocalFit, study: OneTableStudy, rows: Rows, limits: Limits) -> tuple[Released, str]:
    """What the model tells, or nothing and the reason."""
    if rows.fewest_entities() < limits.min_entities:
        return model({}, kind="figures", n_records=0), STAYS_FEW
    released = estimator(
        dict(made.model),
        type_name=study.name,
        n_records=made.n_rows,
        n_parameters=made.n_parameters,
        leaves=None,
    )
    if released.evidence is None or estimator_fault(released.evidence, limits) is None:
        return released, ""
    return model({}, kind="figures", n_records=0), STAYS


def _keep(
    log_proba: list[FloatArray], made: LocalFit, rows: Rows, data: SiteData, site: SiteContext
) -> None:
    """Leave predictor, predictions and tables at the site."""
    guess = log_proba[0].argmax(axis=1)
    chance = np.exp(log_proba[0].max(axis=1))
    held = np.zeros(len(rows.y), dtype=np.int64)
    held[rows.held] = 1
    site.output("labels", guess.astype(np.int64))
    site.output("probability", chance)
    site.output("held_out", held)
    site.output("predictor", made.predictor)
    names = np.array(rows.levels)
    ids = {} if data.id is None else {"id": data.id.tolist()}
    site.table(
        "predictions",
        {
            "row": data.rows,
            **ids,
            data.target_name or "target": names[rows.y].tolist(),
            "prediction": names[guess].tolist(),
            "probability": chance,
            "held_out": held,
        },
    )
    pairs = [(i, j) for i in range(len(names)) for j in range(len(names))]
    inside = [(rows.y == i) & (guess == j) for i, j in pairs]
    site.table(
        "confusion",
        {
            "class": [str(names[i]) for i, _ in pairs],
            "prediction": [str(names[j]) for _, j in pairs],
            "held_out_rows": [int((mask & (held == 1)).sum()) for mask in inside],
            "fitted_rows": [int((mask & (held == 0)).sum()) for mask in inside],
        },
    )
    site.table("rules", _rules_table(log_proba, made, rows))
    for name, columns in made.tables.items():
        site.table(name, columns)


def _rules_table(log_proba: list[FloatArray], made: LocalFit, rows: Rows) -> dict[str, Any]:
    """How every rule did on the rows that are held out, with all digits."""
    y = rows.y[rows.held]
    table: dict[str, Any] = {"rule": list(made.rules), "held_out_rows": [len(y)] * len(log_proba)}
    held = [lp[rows.held] for lp in log_proba]
    table["errors"] = [int((lp.argmax(axis=1) != y).sum()) for lp in held]
    means = [row_scores(lp, y).mean(axis=0) if len(y) else (np.nan, np.nan) for lp in held]
    return table | {name: [float(m[j]) for m in means] for j, name in enumerate(SCORES)}

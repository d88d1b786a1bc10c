"""Sparse quadratic discriminant analysis of one table: classes told apart by pairs of features.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
fit: Fit                    ->  holds rows out; chooses the penalty by
  parameters, levels              cross-validation among the others, fits them
                            <-  Fitted: rows, rows by class (K), errors
                                  of each rule (m), confusion (K^2),
                                  scores, errors by penalty (a)       AGGREGATE
                                  penalties, links, largest blocks,
                                  gap; pairs that interact            MODEL
==============================  ==================================================

The site keeps predictor, predictions by row, the path and the interactions as tables. Beside the
rule stand naive Bayes with normal densities (the penalty that leaves no pair), quadratic
discriminant analysis where every class has more rows than columns (no penalty), and linear
discriminant analysis with shrinkage: what the sparse precision matrices gain over each.

Source: Le and Hastie, *Sparse quadratic discriminant analysis and community Bayes*, arXiv
1407.4543, section 2; see ``discriminant.estimators.sparse_qda``. Departures: rows of one entity are
judged together in cross-validation where the study names an entity.

Absence: without the site the run stops, and goes on when it is asked again.

Leakage: the coordinator knows how many rows of each class there are and how many are held out, how
many held-out rows each rule gets wrong, how many of each class the first rule takes for which
other, and how many are wrong in cross-validation at each penalty, with standard errors, where these
numbers and their complements are 0 or large enough (and those of held-out rows are of enough
entities, where the study names them); mean scores of held-out rows and by how much rules differ,
rounded to what one row moves them by, with standard errors; the penalties, which tell the largest
correlation within the classes, and at each how many pairs are linked and how large the largest
block is; how exact the fit is. Where every class has twice as many rows as the largest block has
parameters it also knows which pairs are linked and how strongly, with precisions and partial
correlations by class. No value of any row leaves. Runs with other parameters give other counts on
the same rows: the policy bounds the number of runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from consilience.arrays import FloatArray
from consilience.discriminant import one_table
from consilience.discriminant.classes import LinksResult, path_seconds
from consilience.discriminant.estimators.predictors import SparseQDAPredictor
from consilience.discriminant.estimators.sparse_qda_fit import (
    TIES,
    QDASettings,
    SparseQDAInteractions,
)
from consilience.discriminant.one_table.messages import Fitted
from consilience.exceptions import DataError, StudyError
from consilience.parameters import FLAG, LEFT_OUT, allows, just, number, one_of, several, whole
from consilience.protocol.method import CoordinatorContext, SiteData, register
from consilience.protocol.one_table import Rows, counted

if TYPE_CHECKING:
    from consilience.discriminant.estimators.sparse_qda import SparseQDA


NAME = "sparse-qda"
MOST_ALPHAS = 100
_SETTINGS = ("n_alphas", "smallest", "ties", "standardize", "max_block", "tol")
_NO_PAIR = 1e100
_MOST_FOR_LDA = 1000
_SHOWN = 3
_NAMED = 5


@dataclass(frozen=True, eq=False, kw_only=True)
class SparseQDAStudyResult(one_table.OneTableResult, LinksResult):
    """Classes of one table told apart by pairs of features."""

    def summary(self) -> str:
        """Return errors, penalty and strongest pairs in a few sentences."""
        said = [self.judged_sentence()]
        if self.chosen >= 0 and len(self.n_links):
            n_links = int(self.n_links[self.chosen])
            how = "given" if self.fixed else "chosen"
            said.append(
                f"At the penalty that was {how}, alpha = {self.alpha:.3g}, "
                f"{counted(n_links, 'pair')} among the {len(self.feature_names)} features "
                f"interact{'s' if n_links == 1 else ''} within the classes."
            )
        if self.model_stays:
            said.append(f"Which pairs these are stays at the site: {self.model_stays}.")
        elif len(self.pairs):
            names = (
                f"{self.feature_names[i]} with {self.feature_names[j]}"
                for i, j in self.pairs[:_SHOWN]
            )
            said.append(f"The strongest: {', '.join(names)}.")
        return " ".join(said)


@register
@dataclass(frozen=True, kw_only=True)
class SparseQDAStudy(one_table.OneTableStudy[SparseQDAStudyResult]):
    """Tell classes apart by normal densities whose precision matrices share their zeros.

    Parameters
    ----------
    alpha : float or "cv"
        Penalty for a row, or chosen by cross-validated errors.
    n_alphas : int
        Penalties of the grid, geometric from the smallest one without any pair downwards.
    smallest : float or "auto"
        Last penalty of the grid over the first; "auto" is 0.001 where every class has more rows
        than columns, else 0.01.
    alphas : sequence of float
        Grid to choose from, in place of the former two; 0 is quadratic discriminant analysis.
    cv : int
        Folds: stratified, in the order of the rows; whole entities, where the study names an entity
        (a speaker, a patient).
    ties : {"sparsest", "densest", "middle"}
        Which penalty among those with the same number of errors, which is common.
    priors : sequence of float
        Probabilities of the declared levels; by default their shares of the rows.
    standardize : bool
        Divide columns by their pooled standard deviation within the classes.
    max_block : int
        Features that may be linked together at most.
    tol : float
        Relative duality gap at which a fit ends.
    holdout : float
        Share of the rows that judge the fit and take no part in it, in [0, .5]; a protected site
        holds out one or two fifths, or nothing.
    """

    alpha: float | str = allows(number(0) | just("cv"), default="cv")
    n_alphas: int = allows(whole(2, MOST_ALPHAS), default=20)
    smallest: float | str = allows(number(above=0, below=1) | just("auto"), default="auto")
    alphas: tuple[float, ...] = allows(
        several(number(0), most=MOST_ALPHAS, different=False), default=()
    )
    cv: int = allows(whole(2), default=5)
    ties: str = allows(one_of(*TIES), default="sparsest")
    priors: tuple[float, ...] = allows(
        several(number(above=0, below=1), different=False), default=()
    )
    standardize: bool = allows(FLAG, default=True)
    max_block: int = allows(whole(2) | LEFT_OUT, default=2000)
    tol: float = allows(number(above=0), default=1e-8)

    name: ClassVar[str] = NAME
    version: ClassVar[int] = 6
    title: ClassVar[str] = "Which pairs of features tell the classes of one table apart?"
    steps = (one_table.fit_step(NAME),)
    leakage: ClassVar[str] = (
        "The coordinator knows rows by class and rows held out; how many held-out rows each rule "
        "gets wrong, and which classes are mistaken for which; mean scores of held-out rows and "
        "by how much rules differ, rounded, with standard errors; errors in cross-validation by "
        "penalty; the penalties, and at each how many pairs are linked and how large the largest "
        "block is; how exact the fit is. Where the rows bear it, it also knows which pairs are "
        "linked and how strongly, with precisions and partial correlations by class. The "
        "predictor stays at the site."
    )
    Result = SparseQDAStudyResult
    predictor: ClassVar[Any] = SparseQDAPredictor
    several: ClassVar[str] = "federated-sparse-qda"

    def admit(self, ctx: CoordinatorContext) -> None:
        """Check that classes, features and priors go together."""
        super().admit(ctx)
        k = len(ctx.columns.levels[str(ctx.columns.target)])
        if self.priors and len(self.priors) != k:
            raise StudyError(
                f"priors has {len(self.priors)} numbers and the target {k} levels: give one for "
                "each, in the order of [data.levels]"
            )

    def expected_seconds(self, data: SiteData, n_sites: int) -> float:
        """Of all folds and the fit to all rows."""
        given = {name: getattr(self, name) for name in ("alpha", *_SETTINGS)}
        return path_seconds(data, QDASettings(**given, alphas=self.alphas or None), self.cv)

    # ------------------------------------------------------------------ at the site

    def fit_table(self, rows: Rows, scaling: FloatArray | None) -> one_table.LocalFit:
        """Fit, and fit what it is compared with."""
        import warnings

        x, y, groups = rows.table
        with warnings.catch_warnings():  # the estimator's remarks are kept, for the site's own log
            warnings.simplefilter("ignore")
            fitted = self._estimator(rows, alpha=self.alpha, cv=self.cv).fit(x, y, groups=groups)
            rules = {NAME: fitted.predict_log_proba, **self._others(rows)}
        path, linked = fitted.path_, fitted.interactions_
        # What the fit tells of pairs, the classes in the order of the declared levels.
        places = [rows.levels.index(str(name)) for name in fitted.classes_]
        partial = np.full((len(linked), len(rows.levels)), np.nan)
        precision = partial.copy()
        precision[:, places], partial[:, places] = linked.precision, linked.partial_correlation
        names, levels = np.array(rows.names, dtype=object), np.array(rows.levels)
        entries = (linked.pairs, linked.strength, precision, partial)
        first_names, second_names = names[linked.pairs.T]
        told = SparseQDAInteractions(first_names, second_names, *entries, levels)
        wrong, nothing = path.cv_wrong.sum(axis=0), np.full(len(path), np.nan)
        return one_table.LocalFit(
            classes=tuple(str(name) for name in fitted.classes_),
            rules=rules,
            predictor=fitted.predictor_.with_names(rows.names, scaling),
            wrong=wrong if len(path.cv_rows) else wrong[:0],
            cv_se=path.cv_se,
            figures={
                "chosen": int(np.flatnonzero(path.alphas == fitted.alpha_)[0]),
                "gap": fitted.gap_,
                "candidates": path.alphas,
                "n_links": path.n_links,
                "largest_block": path.largest_block,
            },
            model={
                "pairs": linked.pairs,
                "strength": linked.strength,
                "precision": precision,
                "partial": partial,
                "blocks": tuple(np.asarray(b, dtype=np.int64) for b in fitted.blocks_),
            },
            # Of a class in the block that has most: variances and entries that are not 0.
            n_parameters=max(
                [1, *(len(b) + int(np.isin(told.pairs[:, 0], b).sum()) for b in fitted.blocks_)]
            ),
            tables={
                "interactions": told.columns(),
                "path": {
                    "alpha": path.alphas,
                    "n_links": path.n_links,
                    "largest_block": path.largest_block,
                    "relative_penalty": path.relative_penalties,
                    "gap": path.gaps,
                    "cv_wrong": wrong if len(path.cv_rows) else nothing,
                    "cv_se": path.cv_se,
                },
            },
            remarks=_remarks(fitted, rows.names),
        )

    def _estimator(self, rows: Rows, **more: Any) -> SparseQDA:
        from consilience.discriminant.estimators.sparse_qda import SparseQDA

        settings = {name: getattr(self, name) for name in _SETTINGS}
        return SparseQDA(
            **settings, alphas=self.alphas or None, priors=self._priors_of(rows), **more
        )

    def _priors_of(self, rows: Rows) -> FloatArray | None:
        """Priors in the order of sorted classes, of those that occur."""
        if not self.priors:
            return None
        known = sorted({rows.levels[k] for k in rows.y[rows.fitted]})
        given = np.array([self.priors[rows.levels.index(name)] for name in known])
        return np.asarray(given / given.sum())

    def _others(self, rows: Rows) -> dict[str, one_table.LogProba]:
        """Rules that stand beside: no pair, all pairs, one matrix for all classes."""
        from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

        x, y, _ = rows.table
        # No pair is linked at a penalty that no correlation reaches.
        naive = self._estimator(rows, alpha=_NO_PAIR).fit(x, y)
        found: dict[str, one_table.LogProba] = {"naive Bayes": naive.predict_log_proba}
        # Without a penalty every class needs more rows than columns.
        if x.shape[1] < np.unique(y, return_counts=True)[1].min() and x.shape[1] <= self.max_block:
            try:
                full = self._estimator(rows, alpha=0.0).fit(x, y)
                found["QDA"] = full.predict_log_proba
            except DataError:  # columns that follow from one another: there is no such fit
                pass
        if x.shape[1] <= _MOST_FOR_LDA:
            linear = LinearDiscriminantAnalysis(
                solver="lsqr", shrinkage="auto", priors=self._priors_of(rows)
            )
            found["LDA with shrinkage"] = linear.fit(x, y).predict_log_proba
        return found

    # ------------------------------------------------------------------ at the coordinator

    def conclude(self, common: Mapping[str, Any], reply: Fitted) -> SparseQDAStudyResult:
        """Make the result."""
        figures, told, k = reply.figures.value, reply.model.value, len(common["levels"])
        fixed, alphas = not isinstance(self.alpha, str), common["candidates"]
        chosen = float(alphas[common["chosen"]]) if len(alphas) else np.nan
        # What is not told is empty.
        whole, none = np.empty(0, dtype=np.int64), np.empty((0, k))
        empty: dict[str, Any] = {"strength": np.empty(0), "precision": none, "partial": none}
        return SparseQDAStudyResult(
            **common,
            alpha=float(self.alpha) if fixed else chosen,
            fixed=fixed,
            gap=float(figures.get("gap", np.nan)),
            n_links=np.asarray(figures.get("n_links", whole)),
            largest_block=np.asarray(figures.get("largest_block", whole)),
            pairs=np.asarray(told.get("pairs", whole.reshape(0, 2))),
            blocks=tuple(np.asarray(block) for block in told.get("blocks", ())),
            **(empty | {name: np.asarray(told[name]) for name in empty if name in told}),
        )


def _remarks(fitted: SparseQDA, names: tuple[str, ...]) -> tuple[str, ...]:
    """What was noticed, with the study's names of columns; constant ones are told on reading."""
    others = (text for text in fitted.remarks_ if not text.startswith("columns are constant"))
    floored = [names[j] for j in np.unique(fitted.floored_[:, 1])]
    if not floored:
        return tuple(others)
    sentence = (
        "within a class these columns are constant, and their pooled variance over its rows stands "
        f"in: {', '.join(floored[:_NAMED])}{' and others' if floored[_NAMED:] else ''}"
    )
    return (sentence, *others)

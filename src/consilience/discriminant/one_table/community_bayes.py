"""Community Bayes of one table: logistic regressions by communities of features.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
fit: Fit                    ->  holds rows out; chooses the number of
  parameters, levels              communities by cross-validation among the
                                  others, fits them
                            <-  Fitted: rows, rows by class (K), errors
                                  of each rule (m), confusion (K^2),
                                  scores, evidence by community (l),
                                  errors by candidate (a)             AGGREGATE
                                  candidates and their log losses;
                                  communities, tree                   MODEL
==============================  ==================================================

The site keeps predictor, predictions by row, candidates and communities as tables. Beside the rule
stand the same regression on all features at once (one community), one regression for each feature
(naive Bayes), and the class frequencies: what communities gain over each. Much of what they gain
over a regression without a penalty, a penalty gains too, so the first comparison is with the same
penalty.

Source: Le and Hastie, *Sparse quadratic discriminant analysis and community Bayes*, arXiv
1407.4543, the section on community Bayes; see ``discriminant.estimators.community_bayes``.
Departures: a base with a ridge; rows of one entity are judged together in cross-validation where
the study names one.

Absence: without the site the run stops, and goes on when it is asked again.

Leakage: the coordinator knows how many rows of each class there are and how many are held out, how
many held-out rows each rule gets wrong, how many of each class the first rule takes for which
other, and how many are wrong in cross-validation at each number of communities, with standard
errors, where these numbers and their complements are 0 or large enough (and those of held-out rows
are of enough entities, where the study names them); mean scores of held-out rows, by how much rules
differ and the mean evidence of each community, rounded to what one row moves them by, with standard
errors; log losses of cross-validation, to two digits; the penalty; in how many communities the
classes can be told apart without error. Where every class has twice as many rows as there are
features it also knows the communities and the heights of the tree that joins them, which tell
average rank correlations. No coefficient and no value of any row leaves. Runs with other parameters
give other counts on the same rows: the policy bounds the number of runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import numpy as np

from consilience.arrays import FloatArray
from consilience.discriminant import one_table
from consilience.discriminant.classes import CommunitiesResult
from consilience.discriminant.estimators.community_bayes_fit import Scoring
from consilience.discriminant.estimators.predictors import CommunityBayesPredictor, some
from consilience.discriminant.kernels.communities import Linkage
from consilience.discriminant.one_table.messages import Fitted
from consilience.exceptions import StudyError
from consilience.parameters import FLAG, allows, just, number, one_of, several, whole
from consilience.protocol.method import CoordinatorContext, register
from consilience.protocol.one_table import Rows, counted

if TYPE_CHECKING:
    from consilience.discriminant.estimators.community_bayes import CommunityBayesClassifier


NAME = "community-bayes"
MOST_CANDIDATES = 100
_MOST_SINGLE = 200
_SHOWN = 4
_C = "logisticregression__C"


@dataclass(frozen=True, eq=False, kw_only=True)
class CommunityBayesStudyResult(one_table.OneTableResult, CommunitiesResult):
    """Classes of one table told apart by communities of features.

    Attributes
    ----------
    n_communities : int
    cv_log_loss : (a,) array
        Mean log loss of cross-validation at each candidate.
    evidence, evidence_se : (L,) arrays
        Mean over held-out rows of what a community says for the right class (log-posterior less log
        prior), with standard errors; NaN where withheld.
    n_separable : int
        Communities in which the classes can be told apart without error: there the penalty alone
        decides the size of the coefficients; -1 where it is not told.
    """

    n_communities: int
    cv_log_loss: FloatArray
    evidence: FloatArray
    evidence_se: FloatArray
    n_separable: int

    def summary(self) -> str:
        """Return errors, number of communities and the largest of them in a few sentences."""
        said = [self.judged_sentence()]
        p = len(self.feature_names)
        if self.n_communities > 0:
            how = "as was given" if self.fixed else "as cross-validation chose"
            count = counted(self.n_communities, "community", "communities")
            said.append(f"{p} features are taken as {count}, {how}.")
        if self.n_separable > 0:
            said.append(
                f"In {counted(self.n_separable, 'community', 'communities')} the classes can be "
                "told apart without error: there the penalty decides the coefficients."
            )
        if self.model_stays:
            said.append(f"Which features belong together stays at the site: {self.model_stays}.")
        elif len(self.communities) > 1:
            order = sorted(range(len(self.communities)), key=lambda c: -len(self.communities[c]))
            names = (some(self.communities_names[c], _SHOWN) for c in order[:_SHOWN])
            rest = "; and others" if len(order) > _SHOWN else ""
            said.append(f"They are: {'; '.join(names)}{rest}.")
        return " ".join(said)


@register
@dataclass(frozen=True, kw_only=True)
class CommunityBayesStudy(one_table.OneTableStudy[CommunityBayesStudyResult]):
    """Tell classes apart by logistic regressions on communities of features.

    Parameters
    ----------
    n_communities : int or "cv"
        Number of communities, or chosen by cross-validation.
    candidates : sequence of int
        Numbers to choose from; 1 to 20, or to the number of features, unless given.
    linkage : {"average", "complete", "single"}
        How features are joined, by their rank correlations within the classes.
    C : float
        Inverse strength of the ridge of the regressions, on standardised features.
    penalties : sequence of float
        Grid of C to choose from together with the number of communities, in place of C.
    cv : int
        Folds: stratified, in the order of the rows; whole entities, where the study names an entity
        (a speaker, a patient).
    one_standard_error : bool
        Take the fewest communities whose loss is within a standard error of the smallest.
    scoring : {"error", "log_loss"}
        What cross-validation makes small.
    holdout : float
        Share of the rows that judge the fit and take no part in it, in [0, .5]; a protected site
        holds out one or two fifths, or nothing.
    """

    n_communities: int | str = allows(whole(1) | just("cv"), default="cv")
    candidates: tuple[int, ...] = allows(
        several(whole(1), most=MOST_CANDIDATES, different=False), default=()
    )
    linkage: str = allows(one_of(*get_args(Linkage)), default="average")
    C: float = allows(number(above=0), default=1.0)
    penalties: tuple[float, ...] = allows(
        several(number(above=0), most=MOST_CANDIDATES, different=False), default=()
    )
    cv: int = allows(whole(2), default=5)
    one_standard_error: bool = allows(FLAG, default=False)
    scoring: str = allows(one_of(*get_args(Scoring)), default="error")

    name: ClassVar[str] = NAME
    version: ClassVar[int] = 3
    title: ClassVar[str] = "Which groups of features tell the classes of one table apart?"
    steps = (one_table.fit_step(NAME),)
    leakage: ClassVar[str] = (
        "The coordinator knows rows by class and rows held out; how many held-out rows each rule "
        "gets wrong, and which classes are mistaken for which; mean scores of held-out rows, by "
        "how much rules differ and the mean evidence of each community, rounded, with standard "
        "errors; errors and log losses in cross-validation by number of communities; the penalty, "
        "and in how many communities the classes can be told apart without error. Where the rows "
        "bear it, it also knows which features belong together and the heights of the tree that "
        "joins them. The coefficients stay at the site."
    )
    Result = CommunityBayesStudyResult
    predictor: ClassVar[Any] = CommunityBayesPredictor
    several: ClassVar[str] = "federated-community-bayes"

    def admit_features(self, ctx: CoordinatorContext) -> None:
        """Check that there are not more communities than features."""
        wanted = [*self.candidates]
        if not isinstance(self.n_communities, str):
            wanted = [self.n_communities]
        p = len(ctx.feature_names)
        if max(wanted, default=1) > p:
            raise StudyError(
                f"{max(wanted)} communities of {p} features cannot be: ask for at most {p}"
            )

    # ------------------------------------------------------------------ at the site

    def fit_table(self, rows: Rows, scaling: FloatArray | None) -> one_table.LocalFit:
        """Fit, and fit what it is compared with."""
        import warnings

        x, y, groups = rows.table
        with warnings.catch_warnings():  # what the estimator says of separation is told below
            warnings.simplefilter("ignore")
            fitted = self._estimator(self.n_communities).fit(x, y, groups=groups)
            rules = {NAME: fitted.predict_log_proba, **self._others(rows, fitted)}
        # What cross-validation says of each number of communities, at the chosen penalty.
        best = fitted.best_params_.get(_C, self.C)
        numbers, wrong = np.array([fitted.n_communities_]), np.empty(0, dtype=np.int64)
        se = log_loss = np.empty(0)
        tables = _tables(fitted, rows.names)
        if hasattr(fitted, "cv_results_"):
            table = fitted.cv_results_
            at = np.array([one.get(_C, self.C) == best for one in table["params"]])
            numbers, se, log_loss = (
                np.asarray(table[name])[at] for name in ("n_communities", "error_se", "log_loss")
            )
            wrong = table["fold_wrong"].sum(axis=1)[at]
            tables["candidates"] = {
                "n_communities": table["n_communities"],
                "C": [one.get(_C, self.C) for one in table["params"]],
                **{name: table[name] for name in ("error", "error_se", "log_loss", "log_loss_se")},
            }
        found = len(fitted.separable_)
        remark = (
            f"in {counted(found, 'community', 'communities')} the classes can be told apart "
            "without error: there the penalty alone decides the size of the coefficients"
        )
        return one_table.LocalFit(
            classes=tuple(str(name) for name in fitted.classes_),
            rules=rules,
            parts=fitted.contributions,
            predictor=fitted.to_predictor().with_names(rows.names, scaling),
            wrong=wrong,
            cv_se=se,
            cv_log_loss=log_loss,
            figures={
                "chosen": int(np.flatnonzero(numbers == fitted.n_communities_)[0]),
                "C": float(best),
                "n_separable": found,
                "candidates": numbers,
            },
            model={"communities": fitted.communities_, "tree": fitted.tree_},
            n_parameters=x.shape[1],
            tables=tables,
            remarks=(remark,) if found else (),
        )

    def _estimator(self, n_communities: int | str) -> CommunityBayesClassifier:
        from consilience.discriminant.estimators.community_bayes import (
            CommunityBayesClassifier,
            default_base,
        )

        names = ("linkage", "cv", "one_standard_error", "scoring")
        settings: dict[str, Any] = {name: getattr(self, name) for name in names}
        return CommunityBayesClassifier(
            default_base().set_params(**{_C: self.C}),
            n_communities=n_communities,
            candidates=self.candidates or None,
            param_grid={_C: list(self.penalties)} if self.penalties else None,
            **settings,
        )

    def _others(
        self, rows: Rows, fitted: CommunityBayesClassifier
    ) -> dict[str, one_table.LogProba]:
        """Rules that stand beside: all features at once, each by itself, none."""
        x, y, groups = rows.table
        one = self._estimator(1).fit(x, y, groups=groups)
        found: dict[str, one_table.LogProba] = {"one community": one.predict_log_proba}
        if x.shape[1] <= _MOST_SINGLE:
            each = self._estimator(x.shape[1]).fit(x, y, groups=groups)
            found["naive Bayes"] = each.predict_log_proba
        # The same chances for every row.
        shares = np.log(fitted.priors_)
        found[one_table.FREQUENCIES] = lambda x: np.tile(shares, (len(x), 1))
        return found

    # ------------------------------------------------------------------ at the coordinator

    def conclude(self, common: Mapping[str, Any], reply: Fitted) -> CommunityBayesStudyResult:
        """Make the result."""
        figures, told = reply.figures.value, reply.model.value
        chosen, numbers = common["chosen"], common["candidates"]
        fixed = not isinstance(self.n_communities, str)
        told_number = int(numbers[chosen]) if len(numbers) else -1
        return CommunityBayesStudyResult(
            **common,
            n_communities=int(self.n_communities) if fixed else told_number,
            fixed=fixed,
            C=float(figures.get("C", np.nan)),
            cv_log_loss=np.asarray(figures.get("cv_log_loss", np.empty(0))),
            communities=tuple(np.asarray(part) for part in told.get("communities", ())),
            tree=np.asarray(told.get("tree", np.empty((0, 4)))),
            evidence=np.asarray(reply.evidence.value),
            evidence_se=np.sqrt(reply.evidence_errors.value),
            n_separable=int(figures.get("n_separable", -1)),
        )


def _tables(fitted: CommunityBayesClassifier, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Communities (numbered from 1) and tree, for the site's own people."""
    tree, communities = fitted.tree_, fitted.communities_
    return {
        "communities": {
            "feature": [names[j] for part in communities for j in part],
            "community": [c for c, part in enumerate(communities, 1) for _ in part],
        },
        "tree": {
            "first": tree[:, 0].astype(np.int64),
            "second": tree[:, 1].astype(np.int64),
            "height": tree[:, 2],
            "features": tree[:, 3].astype(np.int64),
        },
    }

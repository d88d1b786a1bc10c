"""What the four methods that tell classes apart have in common: their checks, and their results."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.estimators import sparse_qda_fit
from consilience.discriminant.estimators.sparse_qda_fit import QDASettings, SparseQDAInteractions
from consilience.exceptions import StudyError
from consilience.parameters import Allowed, several
from consilience.protocol.method import CoordinatorContext, Method, SiteData
from consilience.protocol.next_study import CLEAR, Asked, Led, regression
from consilience.protocol.phases.secure_sums import ALL
from consilience.protocol.result import Frame, Result, ResultT, lines, of_rows

if TYPE_CHECKING:
    import pandas as pd


SIMPLER = ("one community", "naive Bayes")
"""Rules beside the fitted one that know no groups or pairs of columns."""


def levels_of(most: int | None = None) -> Allowed:
    """Allow the names of two classes or more."""
    return several(Allowed(lambda v: isinstance(v, str), "a text"), 2, most)


class ClassesMethod(Method[ResultT]):
    """A method that predicts a target with declared levels from features, all rows alike."""

    roles: ClassVar[tuple[str, ...]] = ("target", "entity")
    foreign_models: ClassVar[bool] = True  # held-out rows judge models of somebody's choice
    single_values: ClassVar[bool] = False  # a grid may be one value

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            given = getattr(self, field.name)
            listed = isinstance(given, list | tuple | np.ndarray)
            if isinstance(field.default, tuple) and (listed or self.single_values):
                values = given if listed else (given,)
                plain = tuple(v.item() if isinstance(v, np.generic) else v for v in values)
                object.__setattr__(self, field.name, plain)

    def admit(self, ctx: CoordinatorContext) -> None:
        """Check that there are classes and features."""
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


class SitesMethod(ClassesMethod[ResultT]):
    """Such a method over sites; a grid may be a single value."""

    tolerates: ClassVar[dict[str, Literal["quorum", "all", "any"]]] = {
        "judge": "any",
        "conclude": "any",
    }
    single_values = True

    def admit(self, ctx: CoordinatorContext) -> None:
        """Check that there are classes and features, and that columns mean the same everywhere."""
        super().admit(ctx)
        if ctx.preparation.standardize == "site":
            raise StudyError(
                "columns mean the same at all sites only on one scale: set [preparation] "
                'standardize to "pooled" or "none"'
            )


def path_seconds(data: SiteData, settings: QDASettings, n_paths: int) -> float:
    """About how long sparse QDA of a table takes here, with paths beside the one on all rows.

    Levels with fewer than two rows, and rows with an empty cell, take no part; 0 where nothing is
    left to tell apart.
    """
    x = data.features
    classes, codes, n = np.unique(np.asarray(data.target), return_inverse=True, return_counts=True)
    used = (n >= 2)[codes] & ~np.isnan(x).any(axis=1)
    n = np.bincount(codes[used], minlength=len(classes))
    used &= (n >= 2)[codes]
    left, codes = np.unique(codes[used], return_inverse=True)
    if len(left) < 2 or not np.ptp(x[used], axis=0).any():
        return 0.0
    prepared = sparse_qda_fit.prepare_rows(x[used], codes, len(left))
    alphas = sparse_qda_fit.grid_of(prepared, settings)
    n_paths = n_paths if len(alphas) > 1 else 0
    return sparse_qda_fit.expected_seconds(prepared, alphas, n_paths, settings)


# --------------------------------------------------------------------------- results


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassesResult(Result):
    """Classes that are told apart. NaN: not told.

    Attributes
    ----------
    target_name : str
    levels : tuple of str
        The K classes.
    feature_names : tuple of str
        All p columns.
    n_by_class : (K,) array
        Rows.
    judged : tuple of str
        The m rules that held-out rows judge: the one that was fitted, and others beside it.
    errors : (m,) array
        Held-out rows that a rule gets wrong.
    log_loss, log_loss_se, log_loss_gain, log_loss_gain_se : (m,) arrays
        Mean log loss of held-out rows, and how much worse than the first each rule scores on the
        same rows, with standard errors.
    candidates : (a,) array
        What was compared.
    cv_errors : (a,) array
        Rows that each candidate got wrong where they took no part.
    chosen : int
        Place of the candidate that is kept.
    """

    often: ClassVar[tuple[str, ...]] = (
        "levels",
        "judged",
        "errors",
        "log_loss",
        "log_loss_gain",
        "candidates",
        "chosen",
    )

    target_name: str
    levels: tuple[str, ...]
    feature_names: tuple[str, ...]
    n_by_class: Any
    judged: tuple[str, ...]
    errors: FloatArray
    log_loss: FloatArray
    log_loss_se: FloatArray
    log_loss_gain: FloatArray
    log_loss_gain_se: FloatArray
    candidates: FloatArray
    cv_errors: FloatArray
    chosen: int

    def next_studies(self, asked: Asked) -> Led:
        """A regression, where groups or pairs of columns do not show that they help."""
        simpler = next((name for name in SIMPLER if name in self.judged), "")
        j = self.judged.index(simpler) if simpler else -1
        gain, error = (
            (float(self.log_loss_gain[j]), float(self.log_loss_gain_se[j]))
            if j >= 0 and len(self.log_loss_gain)
            else (np.nan, np.nan)
        )
        if not np.isfinite(gain):
            yield "No held-out rows compare the rule with a simpler one: nothing says what is next."
        elif gain > CLEAR * error:
            yield (
                f"On held-out rows the rule is clearly better than {simpler}: how columns go "
                "together matters, and no simpler study would say more."
            )
        else:
            why = (
                f"On held-out rows the rule is not clearly better than {simpler}: a logistic "
                "regression on the same columns has coefficients with standard errors."
            )
            yield from regression(asked, why)

    @Frame
    def class_rows(self) -> pd.DataFrame:
        """Rows of every class."""
        return lines({"rows": self.n_by_class}, **{"class": self.levels})


@dataclass(frozen=True, eq=False, kw_only=True)
class SitesResult(ClassesResult):
    """Over sites.

    Attributes
    ----------
    sites : tuple of str
        B sites.
    n_by_site : (B, K) array
        Rows that are fitted.
    priors : (K,) array
    site_errors : (B, m) array
        Share of each site's held-out rows in a wrong class.
    scaling : (3, p) array
        Fill values, centres and scales of the preparation; empty where nothing was done.
    remarks : tuple of str
    """

    often: ClassVar[tuple[str, ...]] = ("sites", "to_estimator")

    sites: tuple[str, ...]
    n_by_site: Any
    priors: FloatArray
    site_errors: FloatArray
    scaling: FloatArray
    remarks: tuple[str, ...] = ()

    @property
    def masked(self) -> bool:
        """Whether sums were masked: all sites are then one, `sites` its name."""
        return self.sites == (ALL,)

    @Frame
    def site_rows(self) -> pd.DataFrame:
        """Every site: rows of each class, and share of held-out rows in a wrong class, by rule."""
        told = dict(zip(self.levels, np.asarray(self.n_by_site).T, strict=True))
        wrong = zip(self.judged, self.site_errors.T, strict=True)
        return lines(told | {f"wrong by {rule}": share for rule, share in wrong}, site=self.sites)


@dataclass(frozen=True, eq=False, kw_only=True)
class LinksResult(ClassesResult):
    """Classes told apart by pairs of features.

    Attributes
    ----------
    alpha : float
        Penalty for a row of the fit; NaN where it is not told.
    fixed : bool
        It was given, not chosen.
    gap : float
        Relative duality gap of the fit.
    n_links, largest_block : (a,) arrays of int
        Pairs of features that interact at each penalty, and features of the largest block.
    pairs : (L, 2) array of int
        Columns that interact in the fit, the strongest pair first; empty where the model stays.
    strength : (L,) array
        Norm of the pair's entries over the classes, of standardised columns.
    precision, partial : (L, K) arrays
        Entries of the precision matrices and partial correlations by class; NaN for classes without
        rows.
    blocks : tuple of (q,) arrays of int
        Columns that are linked with one another.
    """

    often: ClassVar[tuple[str, ...]] = ("interactions", "n_links")

    alpha: float
    fixed: bool
    gap: float
    n_links: IntArray
    largest_block: IntArray
    pairs: IntArray
    strength: FloatArray
    precision: FloatArray
    partial: FloatArray
    blocks: tuple[IntArray, ...]

    @property
    def interactions(self) -> SparseQDAInteractions:
        """The pairs with their names."""
        names = np.array(self.feature_names, dtype=object)
        told = (self.pairs, self.strength, self.precision, self.partial)
        levels = np.array(self.levels, dtype=object)
        first, second = names[self.pairs.T]
        return SparseQDAInteractions(first, second, *told, levels)

    @Frame
    def links(self) -> pd.DataFrame:
        """Every pair of features that interact, the strongest first."""
        return self.interactions.to_frame()


@dataclass(frozen=True, eq=False, kw_only=True)
class CommunitiesResult(ClassesResult):
    """Classes told apart by communities of features.

    Attributes
    ----------
    fixed : bool
        The number of communities was given, not chosen.
    C : float
        Inverse strength of the ridge.
    communities : tuple of arrays of int
        Features of each; empty where the model stays at the site.
    tree : (p - 1, 4) array
        Clustering of the features, as in scipy.
    """

    often: ClassVar[tuple[str, ...]] = ("communities", "tree")

    fixed: bool
    C: float
    communities: tuple[IntArray, ...]
    tree: FloatArray

    @property
    def communities_names(self) -> tuple[tuple[str, ...], ...]:
        """Names of the features of each community."""
        return tuple(tuple(self.feature_names[j] for j in part) for part in self.communities)

    @Frame
    def members(self) -> pd.DataFrame:
        """Every feature with its community."""
        named = enumerate(self.communities_names, 1)
        return of_rows(((k, name) for k, names in named for name in names), "community", "feature")

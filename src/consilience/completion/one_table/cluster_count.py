"""How many classes do the rows of one table fall into? A choice by held-out entries.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
search: Search              ->  holds entries out by folds that it alone knows,
  parameters                      predicts them with 1, 2, ... classes of k-means
                                  on observed coordinates, keeps labels
                            <-  Searched: rows, cells, squared errors by
                                  fold and number, rows by class      AGGREGATE
                                  means of the classes, numbers that
                                  other criteria choose               MODEL
==============================  ==================================================

Source: Ya Le's Stanford thesis, chapter 3. Departures: folds leave an entry in every row and
column; errors are means per entry; a smallest error at an artificial end of the grid is no choice;
other criteria begin at two classes.

Absence: there is one site, without which the run stops.

Leakage: the coordinator knows how many rows, columns and cells there are; numbers and squared
errors of held-out cells, which it cannot name, by fold and number of classes, with standard errors;
the size and the mean of every class of `min_records` rows or more; how many classes other criteria
choose, and the values of these criteria for each number of classes, if no row makes most of the
squared errors. Labels, the classes' other figures and the predictor stay at the site.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.completion.estimators.entry_plans import CLUSTER_MODELS, plan_clusters
from consilience.completion.estimators.predictors import ClassPredictor, GapRows
from consilience.completion.kernels import assumptions
from consilience.completion.kernels.cluster_criteria import all_criteria
from consilience.completion.one_table import entry_study
from consilience.completion.one_table.entry_study import EntryStudy, EntryStudyResult, LocalSearch
from consilience.completion.one_table.matrix import Matrix
from consilience.numerics.entries import Entries
from consilience.numerics.observed_kmeans import kpod, observed_kmeans
from consilience.numerics.random import stream
from consilience.parameters import allows, just, one_of, several, whole
from consilience.protocol.method import SiteContext, register
from consilience.protocol.next_study import Asked, Led, NextStudy
from consilience.protocol.one_table import counted
from consilience.protocol.result import Frame, lines

if TYPE_CHECKING:
    import pandas as pd

NAME = "cluster-count"
MOST_CLUSTERS = 100
_MOST_CANDIDATES = 50
_CRITERIA_ROWS = 3000
_CRITERIA_STARTS = 3


@dataclass(frozen=True, eq=False, kw_only=True)
class ClusterCountResult(EntryStudyResult):
    """Number of classes, and what they look like.

    Attributes
    ----------
    n_clusters : int
        Of the classes that were kept: the choice, or the end of the grid where nothing was chosen.
    sizes : (k,) array
        Rows of each class, the largest first; NaN where withheld.
    centers : (k, p) array
        Means of the classes in the units of the table, of the rows that have the value; NaN where
        these are too few.
    criteria : dict of str to int
        Number of classes that other criteria choose on the complete rows; 0: they choose none.
        Empty where too few rows are complete, or too many rows.
    criteria_curves : dict of str to (A,) array
        Their values by candidate, NaN where they have none.
    """

    often = ("n_clusters", "sizes", "centers", "criteria")

    n_clusters: int
    sizes: FloatArray
    centers: FloatArray
    criteria: dict[str, int]
    criteria_curves: dict[str, FloatArray]

    errors = EntryStudyResult.errors  # the main table first

    @Frame
    def classes(self) -> pd.DataFrame:
        """Every class: rows, and the means of the columns."""
        told = {"size": self.sizes}
        told |= dict(zip(self.feature_names, self.centers.T, strict=True))
        return lines(told, **{"class": range(len(self.sizes))})

    @Frame
    def other_criteria(self) -> pd.DataFrame:
        """Values of other criteria for each number of classes, on the complete rows."""
        curves = dict(sorted(self.criteria_curves.items()))
        return lines(curves, n_clusters=self.candidates if curves else ())

    def summary(self) -> str:
        """Say how many classes there are, by what, and what other criteria say."""
        return " ".join([self.choice_sentence(), self.criteria_sentence()]).strip()

    def next_studies(self, asked: Asked) -> Led:
        """Whether these are classes, or a division of one cloud."""
        if self.at_edge:
            yield "No number of classes is chosen: try larger ones by n_clusters."
        elif self.n_clusters < 2:
            yield "One class: there is nothing to divide."
        elif asked.missing == "keep":
            yield (
                "Whether these are classes, or a division of one cloud, EnsembleClustering says of "
                "complete rows; this run kept empty cells, so it would be asked of other rows."
            )
        else:
            yield NextStudy(
                method="ensemble-clustering",
                why=f"The smallest error is at {self.n_clusters} classes. Whether they are "
                "classes, or a division of one cloud, halves of the rows say.",
                parameters={"n_clusters": self.n_clusters},
            )

    def choice_sentence(self) -> str:
        """The number of classes and the error behind it."""
        tried = f" (up to {self.candidates[-1]:.0f} were tried)" if len(self.candidates) else ""
        where = f"{self.shape[0]:,} rows of {counted(self.shape[1], 'column')}"
        if self.at_edge:
            return (
                f"Held-out entries choose no number of classes in {where}: the error is smallest "
                f"at {self.n_clusters}, the last that was tried."
            )
        text = f"{counted(self.n_clusters, 'class', 'classes')} in {where}".capitalize()
        found = self.curve()
        if found is None or np.isnan(found.mean[self.chosen]):
            return f"{text}, by the error of held-out entries{tried}."
        mean = found.mean
        one = f"{mean[0]:.4g} with {int(self.candidates[0])}"
        best = f"{mean[self.chosen]:.4g} with {self.n_clusters}"
        told = one if self.chosen == 0 else f"{best}, {one}"
        text = f"{text}: mean squared error per held-out entry {told}{tried}."
        if self.by_other_rule < 0:
            return text
        number = int(self.candidates[self.by_other_rule])
        if self.rule == "minimum":
            return f"{text} Within one standard error of it is {number} already."
        return f"{text} The smallest error itself is at {number}."

    def criteria_sentence(self) -> str:
        """What other criteria choose."""
        if not self.criteria:
            return ""
        said = ", ".join(f"{name} {k or 'none'}" for name, k in self.criteria.items())
        if all(self.criteria.values()):
            return f"Other criteria: {said}."
        return (
            f"Other criteria: {said}. None stands where the numbers that were tried end before the "
            "criterion's rule holds."
        )


@register
@dataclass(frozen=True, kw_only=True)
class ClusterCountStudy(EntryStudy[ClusterCountResult]):
    """Choose the number of classes of rows by held-out entries, and keep the classes.

    Parameters
    ----------
    n_clusters : "auto" or sequence of int
        Candidates. "auto" starts with 1 to 10 and goes on until the smallest error lies inside.
    model : {"observed-kmeans", "kpod"}
        K-means over the values that each row has, or by filling gaps with the row's own centre.
    n_init : int
        Starts of each fit.
    n_splits : int
        Folds of scattered entries.
    rule : {"minimum", "one-standard-error"}
        The number with the smallest error, or the smallest within one standard error of it.
    """

    n_clusters: str | tuple[int, ...] = allows(
        just("auto") | several(whole(1, MOST_CLUSTERS), 1, _MOST_CANDIDATES, different=False),
        default="auto",
    )
    model: str = allows(one_of(*CLUSTER_MODELS), default="observed-kmeans")
    n_init: int = allows(whole(1, 10_000), default=10)
    n_splits: int = allows(whole(2, entry_study.MOST_SPLITS), default=10)

    name: ClassVar[str] = NAME
    version: ClassVar[int] = 4
    title: ClassVar[str] = "How many classes do the rows of one table fall into?"
    steps = (entry_study.search_step(NAME),)
    leakage: ClassVar[str] = (
        "The coordinator knows how many rows, columns and cells there are; numbers and squared "
        "errors of held-out cells, which it cannot name, by fold and number of classes, with "
        "standard errors; sizes and means of classes of enough rows; how many classes other "
        "criteria choose, and the values of these criteria for each number of classes. Labels and "
        "the predictor stay at the site."
    )
    Result = ClusterCountResult
    predictor: ClassVar[Any] = ClassPredictor
    several: ClassVar[str] = "ensemble-clustering"
    roles: ClassVar[tuple[str, ...]] = ()
    takes_triplets: ClassVar[bool] = False

    @property
    def largest_asked(self) -> int:
        """Largest number of classes of a grid that was given."""
        return 0 if isinstance(self.n_clusters, str) else max(self.n_clusters)

    # ------------------------------------------------------------------ at the site

    def most_allowed(self, entries: Entries) -> int | None:
        """As many classes as rows with a value."""
        return int((entries.row_counts > 0).sum())

    def search_matrix(self, matrix: Matrix, seed: int, site: SiteContext) -> LocalSearch:
        """Choose the number of classes, fit all entries."""
        entries = matrix.entries
        folds = self.folds_of(entries, seed)
        given: Any = self.n_clusters
        plan = plan_clusters(
            entries, model=self.model, n_clusters=given, seed=seed, n_init=self.n_init
        )
        grow = plan.grow
        if grow is not None:  # to what a study asks for at most
            plan = dataclasses.replace(
                plan, grow=lambda curve: [k for k in grow(curve) if k <= MOST_CLUSTERS]
            )
        curve, predictions = plan.predictions(entries, folds)
        chosen = curve.place(self.rule)
        solve = observed_kmeans if self.model == "observed-kmeans" else kpod
        k, rng = int(curve.parameters[chosen]), stream(seed, "fit")
        fit = solve(entries, k, rng=rng, n_init=self.n_init)
        others, remarks = criteria_of(matrix, curve.parameters, seed)
        x = entries.dense()
        doubts = (
            assumptions.correlated_classes(x, fit.labels, seed=seed % 2**31),
            assumptions.heavy_tails(x - fit.centres[fit.labels]),
        )
        named = GapRows(matrix.column_names, matrix.units)
        # For the site's own people: rows and means.
        classes = {
            "class": list(range(fit.n_clusters)),
            "rows": np.bincount(fit.labels, minlength=fit.n_clusters),
            **dict(
                zip(matrix.column_names.astype(str), named.in_units(fit.centres).T, strict=True)
            ),
        }
        return LocalSearch(
            entries=entries,
            folds=folds,
            curve=curve,
            predictions=predictions,
            chosen=chosen,
            found={"n_clusters": fit.n_clusters},
            figures=others,
            of_sizes=frozenset(name for name, value in others.items() if np.ndim(value)),
            predictor=ClassPredictor(fit.centres, fit.column_means, named),
            labels=fit.labels,
            outputs={"labels": fit.labels},
            tables={"classes": classes},
            remarks=(*remarks, *filter(None, doubts)),
        )

    # ------------------------------------------------------------------ at the coordinator

    def found(self, reply: entry_study.Searched) -> dict[str, Any]:
        """Classes, and what other criteria say."""
        figures = reply.figures.value
        mark = entry_study.CHOICE
        sizes = np.asarray(reply.sizes.value, dtype=float)
        chosen = {k.removeprefix(mark): int(v) for k, v in figures.items() if k.startswith(mark)}
        return {
            "model": self.model,
            "parameter": "n_clusters",
            "n_clusters": int(figures.get("n_clusters", len(sizes))),
            "sizes": sizes,
            "centers": np.asarray(reply.centres.value, dtype=float),
            "criteria": chosen,
            "criteria_curves": {k: np.asarray(figures[k]) for k in chosen if k in figures},
        }


def criteria_of(
    matrix: Matrix, candidates: NDArray[Any], seed: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What other criteria choose from the complete rows, and their values by candidate.

    Parameters
    ----------
    matrix : Matrix
    candidates : (A,) array of int
    seed : int

    Returns
    -------
    figures : dict
        `CHOICE` and a name (0: none) for each criterion, then the values by name.
    remarks : tuple of str
    """
    entries, largest = matrix.entries, int(candidates[-1])
    whole = np.flatnonzero(entries.row_counts == entries.shape[1])
    n = entries.shape[0]
    if len(whole) > _CRITERIA_ROWS or len(whole) < max(n / 2, 2 * largest) or largest < 2:
        said = (
            f"Other criteria look at complete rows: with {len(whole)} of {n} rows complete they "
            f"were not asked (half of the rows, two for each class and at most {_CRITERIA_ROWS})."
        )
        return {}, (said,)
    x = entries.dense()[whole]
    found = all_criteria(x, largest, rng=stream(seed, "criteria"), n_init=_CRITERIA_STARTS)
    choices = {entry_study.CHOICE + name: one.choice or 0 for name, one in found.items()}
    places = np.asarray(candidates, dtype=np.int64) - 1
    # More digits would tell of single rows, and nobody compares them.
    values = {
        name: np.array([float(f"{value:.3e}") for value in one.values[places]])
        for name, one in found.items()
    }
    said = f"Other criteria looked at {len(whole)} complete rows of {n}."
    return {**choices, **values}, (said,) if len(whole) < n else ()

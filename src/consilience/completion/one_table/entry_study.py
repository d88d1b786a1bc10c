"""What every study does that chooses by held-out entries of one table.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
search: Search              ->  holds entries out by folds that it alone knows,
  parameters                      chooses, fits, keeps what it found
                            <-  Searched: rows, cells, squared errors by
                                  fold and candidate, of a last part,
                                  rows by class                       AGGREGATE
                                  figures of the fits, means of
                                  the classes                         MODEL
==============================  ==================================================
"""

from __future__ import annotations

import dataclasses
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.completion.kernels.cluster_criteria import NAMES
from consilience.completion.one_table import matrix as matrices
from consilience.completion.one_table.matrix import Matrix
from consilience.exceptions import ConsilienceError, DataError, StudyError
from consilience.numerics.entries import CENTRES, Entries
from consilience.numerics.entry_folds import entry_folds
from consilience.numerics.held_out_entries import EntryCurve
from consilience.numerics.random import stream
from consilience.parameters import allows, one_of, whole
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
from consilience.protocol.one_table import hidden
from consilience.protocol.phases import entry_errors
from consilience.protocol.result import Frame, Result, ResultT, lines
from consilience.wire.disclosure import Limits, Released, aggregate, cell_counts, count, model
from consilience.wire.message import Aggregate, Model, Public, message, part

if TYPE_CHECKING:
    import pandas as pd

# --- What crosses in a study that chooses by held-out entries of one table.

_MOST_ROWS = 1 << 40
_LARGEST = 1e250  # of sums of squared errors, where entries of a table are 1e100 at most
MOST_SPLITS = 20
_RULES = ("minimum", "one-standard-error")
_PLACES = ("chosen", "minimiser", "one_standard_error")
CHOICE = "choice of "
"""Before the name of a criterion: how many classes it chooses."""


@message("one-table/search", version=2)
class Search:
    """Choose by held-out entries, fit, keep."""

    # Each method has parameters of its own, which the site holds against the method's rules.
    settings: Mapping[str, Any] = Public(
        "*by parameter: its value",
        "parameters of the method",
        to="site",
        others=True,
        parts={
            "n_splits": part(kind="int", low=2, high=MOST_SPLITS),
            "rule": part(kind="str", choices=_RULES),
        },
    )
    names: tuple[str, ...] = Public(
        "3", "what rows, columns and values of the matrix are called", kind="str", to="site"
    )


@message("one-table/searched", version=1)
class Searched:
    """What may be told of the search and of the fit."""

    n_rows: Released = Aggregate("", "rows of the matrix", kind="int", low=1, high=_MOST_ROWS)
    n_columns: Released = Model("", "columns of the matrix", kind="int", low=1, high=_MOST_ROWS)
    n_observed: Released = Aggregate(
        "", "cells with a value, or all if few are missing", kind="int", low=0
    )
    errors: Released = Aggregate(
        "f a",
        "sums of squared errors of held-out entries, by fold and candidate",
        gaps=True,
        low=0,
        high=_LARGEST,
    )
    entries: Released = Aggregate(
        "f", "held-out entries by fold", gaps=True, low=1, high=entry_errors.MOST_ENTRIES
    )
    se: Released = Model(
        "a", "standard errors of the errors per entry", gaps=True, low=0, high=_LARGEST
    )
    final: Released = Aggregate(
        "m",
        "sums of squared errors of entries that took no part, by rule",
        gaps=True,
        low=0,
        high=_LARGEST,
    )
    final_entries: Released = Aggregate("", "entries that took no part", kind="int", low=0)
    sizes: Released = Aggregate("k", "rows by class", gaps=True, low=0)
    centres: Released = Model("k p", "means of the classes", gaps=True, empty=True)
    figures: Released = Model(
        "*a dict of arrays",
        "figures of the fits",
        kind="any",
        gaps=True,
        others=True,
        parts={
            **dict.fromkeys(_PLACES, part(kind="int", low=-1, optional=True)),
            "at_edge": part(kind="int", low=0, high=1, optional=True),
            "natural": part((2,), kind="int", low=0, high=1, optional=True),
            "candidates": part(("a",), low=0, optional=True),
            "n_clusters": part(kind="int", low=1, optional=True),
            "rank": part(kind="int", low=0, optional=True),
            "alpha": part(low=0, optional=True),
            "center": part(kind="int", low=0, high=len(CENTRES) - 1, optional=True),
            "capped": part(kind="int", low=0, high=1, optional=True),
            "singular_values": part(("v",), low=0, optional=True),
            "final_se": part(("m",), gaps=True, low=0, optional=True),
            "final_gain_se": part(("m",), gaps=True, low=0, optional=True),
            **{CHOICE + name: part(kind="int", low=0, optional=True) for name in NAMES},
            # Also the duality gap of a matrix, which is one number.
            **{name: part("by candidate", gaps=True, optional=True) for name in NAMES},
        },
    )

    def check(self, request: Search, known: Mapping[str, Any]) -> str | None:
        """Errors are those of held-out entries; what goes together has one length."""
        settings, figures = request.settings, self.figures.value
        n_cells = self.n_rows.value * self.n_columns.value
        # The columns of triplets are the site's own.
        columns = known["p"] in (0, self.n_columns.value)
        if not columns or max(self.n_observed.value, self.final_entries.value) > n_cells:
            return "other cells than the study's table can have"
        errors, se = self.errors.value, self.se.value
        told = entry_errors.are_errors(errors, self.entries.value, se)
        if len(errors) > settings["n_splits"] or (len(errors) and not told):
            return "errors that no held-out entries have"
        if (len(self.final.value) > 0) != (self.final_entries.value > 0):
            return "entries that took no part, without errors"
        if len(self.sizes.value) != len(self.centres.value):
            return "sizes and means of other classes"
        if any(figures.get(name, -1) >= len(se) for name in _PLACES):
            return "a choice that is none of the candidates"
        of_classes = "n_clusters" in settings
        shape = se.shape if of_classes else ()
        fine = all(np.shape(figures.get(name, np.empty(shape))) == shape for name in NAMES)
        return None if fine else "figures of other candidates"


# --- Result of a choice by held-out entries of one table.


@dataclass(frozen=True, eq=False, kw_only=True)
class EntryStudyResult(Result):
    """What a site tells of a choice by held-out entries. NaN: withheld by its policy.

    Attributes
    ----------
    site : str
    form : {"columns", "triplets"}
        How the table holds the matrix.
    row_name, column_name : str
        What a row and a column of the matrix are.
    feature_names : tuple of str
        Columns by name; of triplets they stay at the site.
    shape : (n, p)
    n_observed : int
        Cells with a value; n p where fewer are missing than a count may tell.
    model, rule : str
    parameter : {"alpha", "rank", "n_clusters"}
    candidates : (A,) array
        What was chosen among, the simplest first; empty where there are more figures than rows.
    fold_errors : (G, A) array
        Sums of squared errors of held-out entries by fold, or by several folds together where the
        sum over one may not leave; no line where nothing may.
    fold_entries : (G,) int array
        Entries behind each line.
    curve_se : (A,) array
        Standard errors of the errors per entry, from the spread over all folds.
    minimiser, one_standard_error, chosen : int
        Places among the candidates: of the smallest error, of the simplest candidate within one
        standard error of it, and of what was fitted; -1 where not told.
    at_edge : bool
        Whether the smallest error is where the grid ends though the problem goes on: then nothing
        was chosen, and what was fitted is the end of the grid.
    natural : (bool, bool)
        Whether the problem ends at the first, and at the last candidate.
    n_splits : int
    """

    often: ClassVar[tuple[str, ...]] = ("parameter", "value", "candidates", "curve", "at_edge")

    site: str
    form: str
    row_name: str
    column_name: str
    feature_names: tuple[str, ...]
    shape: tuple[int, int]
    n_observed: int
    model: str
    rule: str
    parameter: str
    candidates: FloatArray
    fold_errors: FloatArray
    fold_entries: IntArray
    curve_se: FloatArray
    minimiser: int
    one_standard_error: int
    chosen: int
    at_edge: bool
    natural: tuple[bool, bool]
    n_splits: int

    @property
    def value(self) -> float:
        """Candidate that was fitted; NaN where it is not told."""
        told = 0 <= self.chosen < len(self.candidates)
        return float(self.candidates[self.chosen]) if told else float("nan")

    def curve(self) -> EntryCurve | None:
        """Return the curve of errors per held-out entry; None where it stays at the site."""
        if not len(self.fold_errors) or not len(self.candidates):
            return None
        first, last = self.natural
        return EntryCurve.of_sums(
            self.parameter,
            self.candidates,
            self.fold_errors,
            self.fold_entries,
            natural=(first, last),
            se=self.curve_se if len(self.curve_se) else None,
        )

    @property
    def by_other_rule(self) -> int:
        """Place of what the other rule would choose; -1 where that is not told, or the same."""
        other = self.one_standard_error if self.rule == "minimum" else self.minimiser
        return other if other != self.chosen and other < len(self.candidates) else -1

    @Frame
    def errors(self) -> pd.DataFrame:
        """Every candidate: error per held-out entry and its standard error."""
        found = self.curve()
        if found is None:
            return lines({self.parameter: [], "error": [], "standard_error": []})
        return found.to_frame()[[self.parameter, "error", "standard_error"]]


# --- What every study does that chooses by held-out entries of one table.


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalSearch:
    """A choice and a fit at the site.

    Attributes
    ----------
    entries : Entries
        What the folds are of.
    folds : (m,) int array
    curve : EntryCurve
    predictions : (m, a) array
        Of every held-out entry, by candidate.
    chosen : int
        Place of what was fitted.
    found : dict of str to number
        What was fitted. Where the rows bear few figures these leave first.
    figures : dict of str to number or array
        Those that leave before others come first.
    of_sizes : frozenset of str
        Those figures that tell how large entries are: they stay where one row makes most of it.
    of_one_row : bool
        Whether it does, by what the fits alone know.
    predictor : object
        What stays at the site: has ``to_arrays``.
    final : (n, r) array
        Squared errors of entries that took no part, summed over each row, by rule; NaN where a row
        has none.
    final_counts : (n,) int array
        How many there are.
    labels : (n,) int array
        Classes of the rows; empty where there are none. -1 is in none.
    outputs : dict of str to array
        Values by line of the table.
    tables : dict of str to dict
        Tables for the site's own people, by name.
    remarks : tuple of str
        Sentences for them.
    """

    entries: Entries
    folds: IntArray
    curve: EntryCurve
    predictions: FloatArray
    chosen: int
    found: Mapping[str, float]
    figures: Mapping[str, Any]
    predictor: Any
    of_sizes: frozenset[str] = frozenset()
    of_one_row: bool = False
    final: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    final_counts: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    labels: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    outputs: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EntryStudy(Method[ResultT]):
    """Base of the methods that choose by held-out entries of the table of one site.

    Parameters
    ----------
    n_splits : int
        Folds of scattered entries.
    rule : {"minimum", "one-standard-error"}
        The candidate with the smallest error, or the simplest within one standard error of it.
    """

    n_splits: int = allows(whole(2, MOST_SPLITS), default=5)
    rule: str = allows(one_of(*_RULES), default="minimum")

    absence: ClassVar[str] = (
        "There is one site: without it the run stops, and goes on with it when it is asked again."
    )
    tolerates = {"search": "all"}  # noqa: RUF012  a constant of the class
    foreign_models: ClassVar[bool] = True  # fits of somebody's choice, and what they found
    accepts_missing: ClassVar[bool] = True
    takes_triplets: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, value in self.parameters().items():  # grids as people write them
            if isinstance(value, list | range | np.ndarray):
                object.__setattr__(self, name, tuple(value))

    def admit(self, ctx: CoordinatorContext) -> None:
        """Check that the study names a matrix."""
        matrices.admit_matrix(ctx, self.name, triplets=self.takes_triplets)

    @abstractmethod
    def search_matrix(self, matrix: Matrix, seed: int, site: SiteContext) -> LocalSearch:
        """Choose and fit; runs at the site.

        Parameters
        ----------
        matrix : Matrix
        seed : int
            Of all draws.
        site : SiteContext
        """

    @abstractmethod
    def found(self, reply: Searched) -> dict[str, Any]:
        """Fields of the result of this kind of study, with `model` and `parameter`."""

    def most_allowed(self, entries: Entries) -> int | None:
        """Largest candidate that a matrix allows; None where any will do."""
        del entries
        return None

    @property
    def largest_asked(self) -> int:
        """Largest candidate of a grid of whole numbers; 0 where none was given."""
        return 0

    def matrix(self, data: SiteData, site: SiteContext) -> Matrix:
        """Read the matrix of a site."""
        return matrices.matrix_of(data, site)

    def folds_of(self, entries: Entries, seed: int) -> IntArray:
        """Draw the folds."""
        return entry_folds(entries, self.n_splits, stream(seed, "folds"))

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Ask once."""
        columns = ctx.columns
        triplets = not columns.features
        if not triplets and len(ctx.feature_names) < 2:
            raise StudyError(
                f"{self.name} predicts a cell from others of its row: name two columns or more as "
                "features in [data]"
            )
        names = (columns.id or "row", "column", "value")
        if triplets:
            names = (str(columns.agent), str(columns.entity), str(columns.target))
        message = Search(settings=self.parameters(), names=names)
        replies = ctx.require((yield Ask("search", message, to=ctx.sites[:1])), at_least=1)
        (site, reply), *_ = replies.items()
        figures = reply.figures.value
        natural = figures.get("natural", ())
        kind: Any = self.Result
        result: EntryStudyResult = kind(
            site=site,
            form=matrices.TRIPLETS if triplets else matrices.COLUMNS,
            row_name=names[0],
            column_name=names[1],
            feature_names=ctx.feature_names,
            shape=(int(reply.n_rows.value), int(reply.n_columns.value)),
            n_observed=int(reply.n_observed.value),
            rule=self.rule,
            candidates=np.asarray(
                figures.get("candidates", ()) if len(natural) else (), dtype=float
            ),
            fold_errors=np.asarray(reply.errors.value, dtype=float),
            fold_entries=np.asarray(reply.entries.value).astype(np.int64),
            curve_se=np.asarray(reply.se.value, dtype=float),
            at_edge=bool(figures.get("at_edge", 0)),
            natural=tuple(map(bool, natural)) if len(natural) else (False, False),
            n_splits=self.n_splits,
            **{name: int(figures.get(name, -1)) for name in _PLACES},
            **self.found(reply),
        )
        if result.at_edge:
            where = (
                "" if np.isnan(result.value) else f" at {result.parameter} = {result.value:.4g},"
            )
            ctx.note(
                f"The error of held-out entries is smallest{where} where the grid ends: this is no "
                "choice."
            )
        if result.curve() is None:
            ctx.note(
                f"The curve stays at site {site}: there are more figures than rows, or single rows "
                "make most of the squared errors."
            )
        return result


# --------------------------------------------------------------------------- at the site


def search_step(method: str) -> Step:
    """Return the step of a method of this kind, by the method's name."""

    @step("search", once=True)
    def search(
        message: Search, data: SiteData, state: State, site: SiteContext
    ) -> tuple[Searched, State]:
        """Choose by held-out entries, fit, keep."""
        study = get_method(method).from_parameters(message.settings)
        if not isinstance(study, EntryStudy):
            raise StudyError(f"method {method!r} does not choose by held-out entries")
        matrix = dataclasses.replace(study.matrix(data, site), names=message.names)
        seed = entry_errors.entry_seed(matrix.entries.values, site, study.name)
        most = study.most_allowed(matrix.entries)
        if most is not None and study.largest_asked > most:
            # How far it goes beyond the table, only the site's own people read.
            raise DataError(
                f"the study asks for candidates up to {study.largest_asked}, but the table allows "
                f"{most} at most",
                public="a candidate is above what the table allows: ask for smaller ones",
            )
        try:
            # What is said on the way is for the site's own log.
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                made = study.search_matrix(matrix, seed, site)
        except ConsilienceError as error:
            sentence = "the table cannot be fitted as it is; the site's own log says why"
            raise DataError(str(error), public=sentence) from error
        edge = made.curve.edge_remark()
        remarks = dict.fromkeys((*made.remarks, *(str(one.message) for one in caught)))
        for remark in (*remarks, *([] if edge is None else [edge])):
            site.note(remark)
        # Predictor, values by line and tables stay here.
        for name, values in made.outputs.items():
            site.output(name, values)
        site.output("predictor", made.predictor)
        curve = made.curve
        found = {"error": curve.mean, "standard_error": curve.se}
        by_fold = {f"fold_{f}": line for f, line in enumerate(curve.errors)}
        site.table("curve", {curve.parameter: curve.parameters, **found, **by_fold})
        for name, columns in made.tables.items():
            site.table(name, columns)
        return _told(made, matrix, site.limits), state

    return search


def _told(made: LocalSearch, matrix: Matrix, limits: Limits) -> Searched:
    n, p = matrix.entries.shape
    squares = (made.predictions - made.entries.values[:, None]) ** 2
    n_folds = int(made.folds.max()) + 1
    by_row = entry_errors.squared_errors_by_row(
        made.entries.rows, made.folds, squares, (n, n_folds)
    )
    found = entry_errors.released_errors(
        by_row, made.folds, n_missing=matrix.n_missing, limits=limits
    )
    seen = (
        n * p if entry_errors.few_missing(matrix.n_missing, limits) else matrix.entries.n_observed
    )
    curve = made.curve
    figures = {
        "chosen": made.chosen,
        "minimiser": curve.minimiser,
        "one_standard_error": curve.one_standard_error,
        "at_edge": int(curve.at_edge),
        **made.found,
        "natural": np.array(curve.natural, dtype=np.int64),
        "candidates": np.asarray(curve.parameters, dtype=float),
        **made.figures,
    }
    # Are the squared errors of a candidate, over all folds, mostly those of one row?
    sums = aggregate(np.nansum(by_row, axis=1)).withhold_unsafe(limits).value
    if made.of_one_row or not np.isfinite(sums).all():
        figures = {name: x for name, x in figures.items() if name not in made.of_sizes}
    sizes = np.bincount(made.labels[made.labels >= 0])
    if len(made.final):
        # Standard errors of the last errors per entry, and of their differences from the first
        # rule: entries of a row are not independent, so sums over rows are what is spread.
        sums_by_row, counts = np.nan_to_num(made.final), made.final_counts
        beside = sums_by_row - sums_by_row[:, :1]
        for name, values in (("final_se", sums_by_row), ("final_gain_se", beside)):
            moves = values - counts[:, None] * (values.sum(axis=0) / counts.sum())
            spread = np.sqrt((moves**2).sum(axis=0)) / counts.sum()
            figures[name] = entry_errors.two_digits(spread)
    final = aggregate(made.final) if len(made.final) else aggregate(np.zeros((1, 0)))
    return Searched(
        n_rows=count(n),
        n_columns=model(p, kind="summary", n_records=n),
        n_observed=count(seen),
        errors=found.errors,
        entries=found.entries,
        se=found.se,
        final=final.withhold_unsafe(limits),
        final_entries=count(int(made.final_counts.sum())),
        # A small class is withheld, and with it as many as hide it.
        sizes=cell_counts(made.labels, len(sizes)).withhold(hidden(sizes, limits.min_records)),
        centres=_centres(made, matrix, limits),
        figures=_figures(figures, n, limits),
    )


def _figures(given: Mapping[str, Any], n_rows: int, limits: Limits) -> Released:
    """Figures, as many as there are rows at most: the first leave first."""
    told: dict[str, Any] = {}
    left = n_rows
    for name, value in given.items():
        size = int(np.size(value))
        if size <= left or limits.min_records <= 1:
            told[name] = value
            left -= size
    return model(told, kind="figures", n_records=n_rows)


def _centres(made: LocalSearch, matrix: Matrix, limits: Limits) -> Released:
    """Means by class and column in the units of the table, of enough values each.

    The mean of a column over all rows may be known. So a class whose size is withheld has no means,
    and where a class has too few values of a column another one hides them.
    """
    k, p = int(made.labels.max(initial=-1)) + 1, matrix.entries.shape[1]
    if not k:
        return model(np.zeros((0, 0)), kind="summary", n_records=0)
    entries, labels = matrix.entries, made.labels
    sizes = np.bincount(labels[labels >= 0], minlength=k)
    told = ~hidden(sizes, limits.min_records)
    shown = np.where((labels >= 0) & told[labels], labels, -1)
    used = shown[entries.rows] >= 0
    cell = shown[entries.rows[used]] * p + entries.columns[used]
    values = matrix.in_units(entries.values[used], entries.columns[used])
    n = np.bincount(cell, minlength=k * p)
    means = np.bincount(cell, weights=values, minlength=k * p) / np.maximum(n, 1)
    means, counts = means.reshape(k, p), n.reshape(k, p)
    for j in range(p):
        means[hidden(counts[:, j], limits.min_records) | (counts[:, j] == 0), j] = np.nan
    return model(means, kind="centroids", n_records=int(sizes.sum()), cells=shown)

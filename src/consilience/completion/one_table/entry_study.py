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
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.completion.one_table.entry_messages import (
    Search,
    Searched,
    settings_read,
    settings_text,
)
from consilience.completion.one_table.entry_result import EntryStudyResult
from consilience.completion.one_table.matrix import (
    COLUMNS,
    TRIPLETS,
    Matrix,
    admit_matrix,
    matrix_of,
)
from consilience.exceptions import ConsilienceError, DataError, StudyError
from consilience.numerics.entries import Entries
from consilience.numerics.entry_folds import entry_folds
from consilience.numerics.held_out_entries import EntryCurve, check_rule
from consilience.numerics.random import stream
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
from consilience.protocol.one_table import hidden, whole_number
from consilience.protocol.phases.entry_errors import (
    entry_seed,
    few_missing,
    released_errors,
    squared_errors_by_row,
    two_digits,
)
from consilience.wire.disclosure import Limits, Released, aggregate, cell_counts, count, model

MOST_SPLITS = 20


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
class EntryStudy(Method):
    """Base of the methods that choose by held-out entries of the table of one site.

    Parameters
    ----------
    n_splits : int
        Folds of scattered entries.
    rule : {"minimum", "one-standard-error"}
        The candidate with the smallest error, or the simplest within one standard error of it.
    """

    n_splits: int = 5
    rule: str = "minimum"

    absence: ClassVar[str] = (
        "There is one site: without it the run stops, and goes on with it when it is asked again."
    )
    tolerates = {"search": "all"}  # noqa: RUF012  a constant of the class
    foreign_models: ClassVar[bool] = True  # fits of somebody's choice, and what they found
    accepts_missing: ClassVar[bool] = True
    takes_triplets: ClassVar[bool] = True

    def validate(self) -> None:
        """Check parameters; raise `ParameterError`."""
        whole_number("n_splits", self.n_splits, 2, MOST_SPLITS)
        check_rule(self.rule)

    def admit(self, ctx: CoordinatorContext) -> None:
        """Check that the study names a matrix."""
        admit_matrix(ctx, self.name, triplets=self.takes_triplets)

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
    def conclude(self, common: Mapping[str, Any], reply: Searched) -> EntryStudyResult:
        """Make the result; `common` are the fields of `EntryStudyResult`."""

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
        return matrix_of(data, site)

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
        message = Search(settings=settings_text(self.parameters()), names=names)
        replies = ctx.require((yield Ask("search", message, to=ctx.sites[:1])), at_least=1)
        (site, reply), *_ = replies.items()
        figures = reply.figures.value
        errors = np.asarray(reply.errors.value, dtype=float)
        common: dict[str, Any] = {
            "site": site,
            "form": TRIPLETS if triplets else COLUMNS,
            "row_name": names[0],
            "column_name": names[1],
            "feature_names": ctx.feature_names,
            "shape": (int(reply.n_rows.value), int(reply.n_columns.value)),
            "n_observed": int(reply.n_observed.value),
            "rule": self.rule,
            "candidates": np.asarray(
                figures.get("candidates", ()) if "natural" in figures else (), dtype=float
            ),
            "fold_errors": errors,
            "fold_entries": np.asarray(reply.entries.value).astype(np.int64),
            "curve_se": np.asarray(reply.se.value, dtype=float),
            "at_edge": bool(figures.get("at_edge", 0)),
            "natural": tuple(bool(x) for x in figures.get("natural", (False, False))),
            "n_splits": self.n_splits,
        }
        for name in ("minimiser", "one_standard_error", "chosen"):
            common[name] = int(figures.get(name, -1))
        result = self.conclude(common, reply)
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
        study = get_method(method).from_parameters(settings_read(message.settings))
        if not isinstance(study, EntryStudy):
            raise StudyError(f"method {method!r} does not choose by held-out entries")
        matrix = dataclasses.replace(study.matrix(data, site), names=message.names)
        seed = entry_seed(matrix.entries.values, site, study.name)
        _check_candidates(study, matrix.entries)
        made = _made(study, matrix, seed, site)
        _keep(made, matrix, site)
        return _told(made, matrix, site.limits), state

    return search


def _check_candidates(study: EntryStudy, entries: Entries) -> None:
    """Refuse a grid that goes beyond the table; how far, only the site's own people read."""
    most = study.most_allowed(entries)
    if most is not None and study.largest_asked > most:
        public = "a candidate is above what the table allows: ask for smaller ones"
        raise DataError(
            f"the study asks for candidates up to {study.largest_asked}, but the table allows "
            f"{most} at most",
            public=public,
        )


def _made(study: EntryStudy, matrix: Matrix, seed: int, site: SiteContext) -> LocalSearch:
    """Search; what is said on the way is for the site's own log."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made = study.search_matrix(matrix, seed, site)
    except ConsilienceError as error:
        sentence = "the table cannot be fitted as it is; the site's own log says why"
        raise DataError(str(error), public=sentence) from error
    remarks = dict.fromkeys((*made.remarks, *(str(one.message) for one in caught)))
    edge = made.curve.edge_remark()
    for remark in (*remarks, *([] if edge is None else [edge])):
        site.note(remark)
    return made


def _told(made: LocalSearch, matrix: Matrix, limits: Limits) -> Searched:
    n, p = matrix.entries.shape
    squares = (made.predictions - made.entries.values[:, None]) ** 2
    n_folds = int(made.folds.max()) + 1
    by_row = squared_errors_by_row(made.entries.rows, made.folds, squares, (n, n_folds))
    found = released_errors(by_row, made.folds, n_missing=matrix.n_missing, limits=limits)
    seen = n * p if few_missing(matrix.n_missing, limits) else matrix.entries.n_observed
    figures = {**_choice(made), **made.found, **_grid(made), **made.figures}
    if made.of_one_row or _one_row_decides(by_row, limits):
        figures = {name: x for name, x in figures.items() if name not in made.of_sizes}
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
        sizes=_sizes(made.labels, limits),
        centres=_centres(made, matrix, limits),
        figures=_figures({**figures, **_final_errors(made)}, n, limits),
    )


def _one_row_decides(by_row: FloatArray, limits: Limits) -> bool:
    """Whether the squared errors of a candidate, over all folds, are mostly those of one row."""
    sums = aggregate(np.nansum(by_row, axis=1)).withhold_unsafe(limits)
    return not bool(np.isfinite(sums.value).all())


def _choice(made: LocalSearch) -> dict[str, Any]:
    curve = made.curve
    return {
        "chosen": made.chosen,
        "minimiser": curve.minimiser,
        "one_standard_error": curve.one_standard_error,
        "at_edge": int(curve.at_edge),
    }


def _grid(made: LocalSearch) -> dict[str, Any]:
    return {
        "natural": np.array(made.curve.natural, dtype=np.int64),
        "candidates": np.asarray(made.curve.parameters, dtype=float),
    }


def _final_errors(made: LocalSearch) -> dict[str, Any]:
    """Standard errors of the last errors per entry, and of their differences from the first rule.

    Entries of a row are not independent, so sums over rows are what is spread.
    """
    if not len(made.final):
        return {}
    sums, counts = np.nan_to_num(made.final), made.final_counts
    beside = sums - sums[:, :1]
    return {"final_se": _se(sums, counts), "final_gain_se": _se(beside, counts)}


def _se(sums: FloatArray, counts: IntArray) -> FloatArray:
    mean = sums.sum(axis=0) / counts.sum()
    moves = sums - counts[:, None] * mean
    return two_digits(np.sqrt((moves**2).sum(axis=0)) / counts.sum())


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


def _sizes(labels: IntArray, limits: Limits) -> Released:
    """Rows by class; a small class is withheld, and with it as many as hide it."""
    k = int(labels.max(initial=-1)) + 1
    sizes = np.bincount(labels[labels >= 0], minlength=k)
    return cell_counts(labels, k).withhold(hidden(sizes, limits.min_records))


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


def _keep(made: LocalSearch, matrix: Matrix, site: SiteContext) -> None:
    """Leave predictor, values by line and tables at the site."""
    for name, values in made.outputs.items():
        site.output(name, values)
    site.output("predictor", made.predictor)
    curve = made.curve
    site.table(
        "curve",
        {
            curve.parameter: curve.parameters,
            "error": curve.mean,
            "standard_error": curve.se,
            **{f"fold_{f}": line for f, line in enumerate(curve.errors)},
        },
    )
    for name, columns in made.tables.items():
        site.table(name, columns)

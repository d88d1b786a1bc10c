"""What is in the missing cells of one table? A matrix of low rank, chosen by held-out entries.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
search: Search              ->  sets a last part aside; holds entries out by folds
  parameters                      that it alone knows, predicts them at every
                                  rank or penalty; judges the choice by the last
                                  part; fits all cells, keeps the completed table
                            <-  Searched: rows, cells, squared errors by
                                  fold and candidate, of the last part  AGGREGATE
                                  figures of the fits, singular values  MODEL
==============================  ==================================================

Sources: Ya Le's Stanford thesis, chapter 3; Mazumder, Hastie and Tibshirani, JMLR 11 (2010);
Hastie, Mazumder, Lee and Zadeh, JMLR 16 (2015); Keshavan, Montanari and Oh, JMLR 11 (2010);
Tipping and Bishop, JRSS B 61 (1999). Departures: folds leave an entry in every row and column;
errors are means per entry; a smallest error at an artificial end of the grid is no choice. The
model that stays at the site is fitted to all cells, the last part with them; that part judged the
same model fitted without it.

Absence: there is one site, without which the run stops.

Leakage: the coordinator knows how many rows, columns and cells there are; numbers and squared
errors of held-out cells, which it cannot name, by fold and candidate and of a last part, with
standard errors; the candidates, the chosen rank or penalty, how exact the fit is, and the singular
values; and, where the centre is left to the table, whether its values look like ratings, which less
than `min_records` rows do not decide. Candidates and penalties that the table decides, and singular
values, are told only if no row makes most of them. Scores, loadings, the completed table and the
predictor stay at the site.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.completion.estimators.entry_plans import RANK_MODELS, plan_alphas, plan_ranks
from consilience.completion.estimators.low_rank import Factors, fitted_model
from consilience.completion.estimators.predictors import CompletionPredictor, GapRows
from consilience.completion.kernels import assumptions
from consilience.completion.one_table import entry_study
from consilience.completion.one_table import matrix as matrices
from consilience.completion.one_table.entry_study import EntryStudy, EntryStudyResult, LocalSearch
from consilience.completion.one_table.matrix import Matrix
from consilience.exceptions import ParameterError
from consilience.numerics.entries import CENTRES, Entries, centre_of, rating_values
from consilience.numerics.entry_folds import held_out_part
from consilience.numerics.random import stream
from consilience.parameters import LEFT_OUT, allows, check, just, number, one_of, several, whole
from consilience.protocol.method import (
    CoordinatorContext,
    Exchange,
    SiteContext,
    SiteData,
    register,
)
from consilience.protocol.next_study import Asked, Led, NextStudy
from consilience.protocol.one_table import counted
from consilience.protocol.result import Frame, lines
from consilience.wire.disclosure import Limits, aggregate

if TYPE_CHECKING:
    import pandas as pd

NAME = "matrix-completion"
MODELS = ("soft", *RANK_MODELS)
_PENALISED = ("soft", "soft-unshrunk")
RULES = ("model", "row + column means", "column means")
"""What the last part judges, in the order of the errors."""
_MOST_CANDIDATES = 100
_MOST_HELD = 0.5
_LARGEST = 1e100  # penalty, as of values


@dataclass(frozen=True, eq=False, kw_only=True)
class MatrixCompletionResult(EntryStudyResult):
    """Penalty or rank of a low-rank matrix, and how well it predicts.

    Attributes
    ----------
    rank : int
        Of the fit to all cells; -1 where there are more figures than rows.
    alpha : float
        Its penalty; NaN for models without one, and where it would tell of a single row.
    singular_values : (rank,) array
        Decreasing; only those before one that is mostly of a single row, and none where there are
        more figures than rows.
    center : {"none", "columns", "rows-and-columns", "auto"}
        What was taken off first; "auto" where the table decided it and there are more figures than
        rows: the site's own log says whether rows were, too.
    grid : {"auto", "given"}
    holdout : float
    n_final : int
        Cells that took no part in the choice: 0 where none were set aside.
    final_errors : (3,) array
        Their mean squared errors: of the model, of row + column means, of column means.
    final_se, final_gain_se : (3,) arrays
        Standard errors of these, and of their differences from the model's, over rows.
    gap : float
        Relative duality gap of the fit; NaN for models without one.
    capped : bool
        Whether the limit on the rank bound the fit, which is no minimum then.
    """

    often = ("rank", "alpha", "final_error", "baseline_error")

    rank: int
    alpha: float
    singular_values: FloatArray
    center: str
    grid: str
    holdout: float
    n_final: int
    final_errors: FloatArray
    final_se: FloatArray
    final_gain_se: FloatArray
    gap: float
    capped: bool

    errors = EntryStudyResult.errors  # the main table first

    @Frame
    def final(self) -> pd.DataFrame:
        """Mean squared error of every rule on cells that took no part in the choice."""
        told = {"error": self.final_errors, "standard_error": self.final_se}
        told |= {"difference_error": self.final_gain_se}
        return lines(told, rule=RULES) if self.n_final else lines({})

    @Frame
    def components(self) -> pd.DataFrame:
        """Singular value of every component, as far as they are told."""
        numbers = range(1, len(self.singular_values) + 1)
        return lines({"singular_value": self.singular_values}, component=numbers)

    @property
    def final_error(self) -> float:
        """Mean squared error of the model on cells that took no part; NaN where not told."""
        return float(self.final_errors[0])

    @property
    def baseline_error(self) -> float:
        """Mean squared error of row + column means on the same cells."""
        return float(self.final_errors[1])

    @property
    def simpler(self) -> int:
        """Place among `RULES` of the simpler rule that predicts best, to be beaten by the model."""
        return 1 + int(np.argmin(np.nan_to_num(self.final_errors[1:], nan=np.inf)))

    def summary(self) -> str:
        """Say what was chosen and how well it predicts."""
        return " ".join([self.choice_sentence(), self.final_sentence()]).strip()

    def choice_sentence(self) -> str:
        """The rank or penalty, and where the choice comes from."""
        share = 1 - self.n_observed / (self.shape[0] * self.shape[1])
        lacks = f"{share:.1%} of the cells missing" if share else "every cell there, or nearly so"
        size = f"a matrix of {self.shape[0]:,} x {self.shape[1]:,}"
        kept = f"rank {self.rank}" if self.rank >= 0 else "a rank that stays at the site"
        name = "penalty" if self.parameter == "alpha" else self.parameter
        if self.parameter == "alpha" and not np.isnan(self.alpha):
            kept = f"penalty {self.alpha:.4g} ({kept})"
        if self.at_edge:
            return (
                f"Held-out entries choose no {name} for {size}: the error is smallest at {kept}, "
                "where the grid ends."
            )
        text = f"Held-out entries choose {kept} for {size}, {lacks}."
        if self.by_other_rule < 0:
            return text
        value = f"{name} {self.candidates[self.by_other_rule]:.4g}"
        if self.rule == "minimum":
            return f"{text} Within one standard error of the smallest error is {value} already."
        return f"{text} The smallest error itself is at {value}."

    def next_studies(self, asked: Asked) -> Led:
        """Classes of the rows of a table whose columns have something in common."""
        if self.form != "columns":
            yield "A matrix of triplets: no other method takes one."
        elif self.rank == 0:
            yield "The columns have nothing in common: there is nothing to divide rows by."
        else:
            yield NextStudy(
                method="cluster-count",
                why="Columns have something in common, which fills the gaps. Whether rows fall "
                "into classes is another question, which held-out cells of the same table answer.",
            )

    def final_sentence(self) -> str:
        """How well it predicts cells that took no part, beside means of rows and columns."""
        if not self.n_final:
            return "No cells were set aside, so nothing judges the choice anew."
        if np.isnan(self.final_error):
            return "The errors of the cells that were set aside stay at the site."
        text = (
            f"On {counted(self.n_final, 'cell')} that took no part the root mean squared error is "
            f"{np.sqrt(self.final_error):.4g}"
        )
        error = float(self.final_errors[self.simpler])
        if np.isnan(error):
            return f"{text}."
        worse = "" if self.final_error < error else ", which is no worse"
        return f"{text}, of {RULES[self.simpler]} {np.sqrt(error):.4g}{worse}."


@register
@dataclass(frozen=True, kw_only=True)
class MatrixCompletionStudy(EntryStudy[MatrixCompletionResult]):
    """Complete a table by a matrix of low rank that held-out entries choose.

    Parameters
    ----------
    model : {"soft", "soft-unshrunk", "hard", "optspace", "ppca"}
        Penalised by the nuclear norm; the same by ranks, with refitted singular values; truncated
        singular value decompositions; OptSpace; probabilistic principal components.
    grid : "auto" or sequence of float
        Penalties for "soft", ranks for the others, of which full rank is left out. "auto" goes on
        until the smallest error lies inside, or the problem ends.
    center : {"auto", "none", "columns", "rows-and-columns"}
        What is taken off first. "auto" takes rows and columns of tables like ratings (2 to 25
        distinct values in the table's own units, half of the cells missing or more), and columns
        otherwise; values that fewer than `min_records` rows have do not count, unless as many rows
        have one of them. "ppca" has a mean of its own.
    holdout : float
        Share of the cells that take no part in the choice and judge it, in [0, .5].
    duplicates : {"refuse", "mean"}
        What to do with triplets that repeat a row and column.
    max_rank : int or None
        Limit on the rank, for "soft".
    n_splits : int
        Folds of scattered entries.
    rule : {"minimum", "one-standard-error"}
        The candidate with the smallest error, or the simplest within one standard error of it.
    """

    model: str = allows(one_of(*MODELS), default="soft")
    grid: str | tuple[float, ...] = "auto"
    center: str = allows(one_of("auto", *CENTRES), default="auto")
    holdout: float = allows(number(0, _MOST_HELD), default=0.1)
    duplicates: str = allows(one_of("refuse", "mean"), default="refuse")
    max_rank: int | None = allows(whole(1) | LEFT_OUT, default=None)

    name: ClassVar[str] = NAME
    version: ClassVar[int] = 7
    title: ClassVar[str] = "What is in the missing cells of one table?"
    steps = (entry_study.search_step(NAME),)
    leakage: ClassVar[str] = (
        "The coordinator knows how many rows, columns and cells there are; numbers and squared "
        "errors of held-out cells, which it cannot name, by fold and candidate and of a last "
        "part, with standard errors; the candidates, the chosen rank or penalty, how exact the "
        'fit is, and the singular values; with center = "auto" whether the values look like '
        "ratings. The completed table, scores, loadings and the predictor stay at the site."
    )
    Result = MatrixCompletionResult
    predictor: ClassVar[Any] = CompletionPredictor
    several: ClassVar[str] = "federated-pca"
    roles: ClassVar[tuple[str, ...]] = ("target", "agent", "entity")  # of triplets

    def check_together(self) -> None:
        """The grid is of penalties or of ranks; only penalties know a limit on the rank."""
        if self.max_rank is not None and self.model != "soft":
            raise ParameterError("max_rank is for the model 'soft': give ranks as the grid")
        soft = self.model == "soft"
        one = number(above=0, high=_LARGEST) if soft else whole(0)
        grid = just("auto") | several(one, 1, _MOST_CANDIDATES, different=False)
        check({"grid": grid}, vars(self))

    @property
    def largest_asked(self) -> int:
        """Largest rank of a grid that was given."""
        if self.model == "soft" or isinstance(self.grid, str):
            return 0
        return int(max(self.grid))

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Ask once, for ranks that the columns allow."""
        p = len(ctx.feature_names) if ctx.columns.features else self.largest_asked
        if 1 < p < self.largest_asked:
            allowed = f"of ranks up to the number of columns, {p}"
            raise ParameterError.of("grid", allowed, self.largest_asked)
        result = yield from super().coordinate(ctx)
        if self.center == "auto" and result.center == "rows-and-columns":
            ctx.note(_RATINGS)
        return result

    # ------------------------------------------------------------------ at the site

    def most_allowed(self, entries: Entries) -> int | None:
        """Rank of the smaller side."""
        return None if self.model == "soft" else min(entries.shape)

    def matrix(self, data: SiteData, site: SiteContext) -> Matrix:
        """Read the matrix of a site.

        Parameters
        ----------
        data : SiteData
        site : SiteContext

        Returns
        -------
        Matrix
        """
        return matrices.matrix_of(data, site, duplicates=self.duplicates)

    def search_matrix(self, matrix: Matrix, seed: int, site: SiteContext) -> LocalSearch:
        """Choose without the last part, judge by it, fit all cells."""
        if self.center == "auto":
            ratings = self._like_ratings(matrix, site.limits)
            center = "rows-and-columns" if ratings else "columns"
            made = dataclasses.replace(self, center=center).search_matrix(matrix, seed, site)
            return dataclasses.replace(
                made,
                figures={**made.figures, "center": CENTRES.index(center)},  # if there is room left
                remarks=(*([_RATINGS] if ratings else []), *made.remarks),
            )
        entries = matrix.entries
        held = self._held(entries, seed, site.limits.min_records)
        train, last = entries.take(~held), entries.take(held)
        folds = self.folds_of(train, seed)
        given: Any = self.grid
        if self.model == "soft":
            plan = plan_alphas(train, alphas=given, center=self.center, max_rank=self.max_rank)
        else:
            plan = plan_ranks(train, folds, model=self.model, ranks=given, center=self.center)
        curve, predictions = plan.predictions(train, folds)
        chosen = curve.place(self.rule)
        value = curve.parameters[chosen].item()
        fit = fitted_model(self.model, value, entries, center=self.center, max_rank=self.max_rank)
        final, counts = self._final(train, last, value)
        named = GapRows(matrix.column_names, matrix.units)
        outputs: dict[str, Any] = {}
        if matrix.form == matrices.TRIPLETS:
            # Fitted value of each line of triplets, and whether it was of the last part.
            p = entries.shape[1]
            cells = entries.rows * p + entries.columns
            at = np.searchsorted(cells, matrix.lines @ np.array([p, 1]))
            low = fit.factors.at(entries.rows, entries.columns)
            outputs["fitted"] = matrix.in_units(low, entries.columns)[at]
            outputs["set_aside"] = held[at].astype(np.int64)
        tables, remarks = matrices.completed(matrix, fit.factors)
        of_sizes, of_one_row = {"singular_values"}, False
        if self.model != "soft" or self.grid == "auto":  # penalties that the table decides
            of_sizes |= {"alpha"}
        if self.model == "soft" and self.grid == "auto":
            of_sizes |= {"candidates"}
            of_one_row = self._begins_at_one_row(train, float(curve.parameters[0]), site.limits)
        found: dict[str, float] = {"rank": fit.rank}
        figures: dict[str, Any] = {}
        if self.model in _PENALISED:
            found["alpha"] = fit.alpha
            figures = {"gap": fit.gap, "capped": int(fit.capped)}
        # Singular values up to the first whose square, a sum over rows, is mostly of one row.
        sums = aggregate(fit.factors.scores**2).withhold_unsafe(site.limits).value
        first, *_ = [*np.flatnonzero(np.isnan(sums)), len(sums)]
        figures["singular_values"] = fit.factors.singular_values[:first]
        return LocalSearch(
            entries=train,
            folds=folds,
            curve=curve,
            predictions=predictions,
            chosen=chosen,
            found=found,
            figures=figures,
            of_sizes=frozenset(of_sizes),
            of_one_row=of_one_row,
            predictor=CompletionPredictor(fit.factors, named, matrix.row_names),
            final=final,
            final_counts=counts,
            outputs=outputs,
            tables={**tables, **matrices.factor_tables(matrix, fit.factors)},
            remarks=(*_remarks(matrix), *plan.remarks, *remarks, *_doubts(entries, fit.factors)),
        )

    def _like_ratings(self, matrix: Matrix, limits: Limits) -> bool:
        """Whether the table looks like ratings, in its own units: preparation may have others."""
        found = rating_values(matrix.entries.with_values(matrix.as_read), limits.min_records)
        return found > 0 and self.model != "ppca"

    def _begins_at_one_row(self, train: Entries, first: float, limits: Limits) -> bool:
        """Whether one row may make most of the largest singular value, at which a grid begins.

        Its square is a sum over rows, none of which adds more than its own sum of squares.
        """
        rest = centre_of(train, self.center).removed(train)
        squares = np.bincount(rest.rows, weights=rest.values**2, minlength=rest.shape[0])
        return limits.min_records > 1 and bool(squares.max() > limits.max_share * first**2)

    def _held(self, entries: Entries, seed: int, least: int) -> NDArray[np.bool_]:
        """Cells of the last part: none where they would be fewer than anything may rest on."""
        none = np.zeros(entries.n_observed, dtype=np.bool_)
        wanted = round(self.holdout * entries.n_observed)
        if wanted < max(least, 1):
            return none
        # Parts of two sizes are not nested: the errors of two runs would differ by single cells.
        drawn = "last part" if least <= 1 else f"last part of {wanted}"
        held = held_out_part(entries, self.holdout, stream(seed, drawn))
        rows = len(np.unique(entries.rows[held]))
        return held if min(held.sum(), rows) >= least else none

    def _final(self, train: Entries, last: Entries, value: float) -> tuple[FloatArray, IntArray]:
        """Squared errors of the last part by row and rule, (n, 3), and how many there are."""
        if not last.n_observed:
            return np.zeros((0, len(RULES))), np.zeros(0, dtype=np.int64)
        # the model that judges has not seen the last part; the one that is kept has
        fit = fitted_model(self.model, value, train, center=self.center, max_rank=self.max_rank)
        guesses = [fit.factors.at(last.rows, last.columns)]
        for kind in ("rows-and-columns", "columns"):
            guesses.append(centre_of(train, kind).at(last.rows, last.columns))
        n = last.shape[0]
        sums = np.full((n, len(RULES)), np.nan)
        told = last.row_counts > 0
        for j, guess in enumerate(guesses):
            squares = np.bincount(last.rows, weights=(guess - last.values) ** 2, minlength=n)
            sums[told, j] = squares[told]
        return sums, last.row_counts

    # ------------------------------------------------------------------ at the coordinator

    def found(self, reply: entry_study.Searched) -> dict[str, Any]:
        """The fit, and how well it predicts."""
        figures, n_final = reply.figures.value, int(reply.final_entries.value)
        sums = np.asarray(reply.final.value, dtype=float)
        unknown = np.full(len(RULES), np.nan)
        center = "columns" if self.model == "ppca" else self.center
        if center == "auto" and "center" in figures:
            center = CENTRES[int(figures["center"])]
        return {
            "model": self.model,
            "parameter": "alpha" if self.model == "soft" else "rank",
            "rank": int(figures.get("rank", -1)),
            "alpha": float(figures.get("alpha", np.nan)),
            "singular_values": np.asarray(figures.get("singular_values", ()), dtype=float),
            "center": center,
            "grid": "auto" if self.grid == "auto" else "given",
            "holdout": float(self.holdout),
            "n_final": n_final,
            "final_errors": sums / n_final if n_final else unknown,
            "final_se": np.asarray(figures.get("final_se", unknown), dtype=float),
            "final_gain_se": np.asarray(figures.get("final_gain_se", unknown), dtype=float),
            "gap": float(figures.get("gap", np.nan)),
            "capped": bool(figures.get("capped", 0)),
        }


_RATINGS = (
    "The table looks like ratings (few distinct values, half of the cells missing or more): terms "
    'for rows and columns were taken off first; center = "columns" leaves those for rows.'
)


def _doubts(entries: Entries, factors: Factors) -> tuple[str, ...]:
    """What speaks against the assumptions of the choice; of huge matrices nothing is looked at."""
    if entries.shape[0] * entries.shape[1] > matrices.MOST_CELLS:
        return ()
    left = np.full(entries.shape, np.nan)
    left[entries.rows, entries.columns] = entries.values - factors.at(entries.rows, entries.columns)
    return tuple(filter(None, (assumptions.along_an_order(left), assumptions.heavy_tails(left))))


def _remarks(matrix: Matrix) -> tuple[str, ...]:
    entries, said = matrix.entries, []
    if matrix.n_repeated:
        said.append(f"{matrix.n_repeated} triplets repeat the place of another one: averaged.")
    for counts, what in ((entries.row_counts, "rows"), (entries.column_counts, "columns")):
        if (counts == 0).any():
            said.append(
                f"{int((counts == 0).sum())} {what} have no value: they are filled by the centre."
            )
    return tuple(said)

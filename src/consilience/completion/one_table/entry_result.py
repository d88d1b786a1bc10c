"""Result of a choice by held-out entries of one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consilience.arrays import FloatArray, IntArray
from consilience.protocol.result import Result

if TYPE_CHECKING:
    import pandas as pd

    from consilience.numerics.held_out_entries import EntryCurve


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
        return self._candidate(self.chosen)

    def _candidate(self, place: int) -> float:
        told = 0 <= place < len(self.candidates)
        return float(self.candidates[place]) if told else float("nan")

    def curve(self) -> EntryCurve | None:
        """Return the curve of errors per held-out entry; None where it stays at the site."""
        from consilience.numerics.held_out_entries import EntryCurve

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

    def missing_sentence(self) -> str:
        """Say how large the matrix is and how much of it is observed."""
        n, p = self.shape
        missing = 1 - self.n_observed / (n * p)
        told = f"{missing:.0%} of the cells are missing" if missing > 0 else "hardly a cell missing"
        return f"{n:,} x {p:,} matrix, {told}"

    def to_frame(self) -> pd.DataFrame:
        """Return one line per candidate: error per held-out entry and its standard error."""
        import pandas as pd

        found = self.curve()
        if found is None:
            return pd.DataFrame({self.parameter: [], "error": [], "standard_error": []})
        return found.to_frame()[[self.parameter, "error", "standard_error"]]

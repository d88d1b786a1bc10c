"""Reports of studies that choose by held-out entries of one table: what two of them share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from consilience.completion.one_table.entry_study import EntryStudyResult
from consilience.report import selection_evidence
from consilience.report.drawing import short
from consilience.report.figures_selection import Curve, curve_of
from consilience.report.run import Run
from consilience.report.sections import Block, MethodReport, percent, plural

R = TypeVar("R", bound=EntryStudyResult)

STAYS = (
    "The errors of held-out entries stayed at the site: they rest on too few rows, or there "
    'would be more figures than rows. Where whoever asks has the table, the preset "simulation" '
    "tells everything."
)


class EntryStudyReport(MethodReport, Generic[R]):
    """Words that both studies share."""

    def handling(self, run: Run) -> Sequence[str]:
        """What stayed at the site."""
        return [
            f"{self.kept} stay at the site (consilience site outputs, with the site's own file and "
            f"the run {run.info.run})."
        ]

    def limits(self, run: Run) -> Sequence[str]:
        """What the error of held-out entries cannot say."""
        known = list(selection_evidence.KNOWN)
        preparation = run.info.settings.get("preparation") or {}
        if self.read(run).form == "columns" and preparation.get("standardize") == "none":
            known.append(
                "Columns were not put on a common scale: those with large units decide alone. Use "
                'standardize = "site" unless all have one unit.'
            )
        return known

    # ------------------------------------------------------------------ what differs by study

    kept = "The predictor and all figures of single rows"
    kind: type[R]

    def read(self, run: Run) -> R:
        """Return the result, checked."""
        if not isinstance(run.result, self.kind):
            raise TypeError(f"the result of the run is no {self.kind.__name__}")
        return run.result


def curve(result: EntryStudyResult) -> Curve | None:
    """Read the curve of a result; None where it stays at the site."""
    found = result.curve()
    return None if found is None else curve_of(found)


def place(result: EntryStudyResult, found: Curve) -> int:
    """Place of what was chosen among the candidates of a curve; -1 where nothing was."""
    if result.at_edge or not 0 <= result.chosen < len(found.values):
        return -1
    at = (found.values == float(result.candidates[result.chosen])).nonzero()[0]
    return int(at[0])


def withheld(title: str) -> Block:
    """Say that the curve is not told."""
    return Block(title, (STAYS,))


def size_facts(result: EntryStudyResult) -> list[tuple[str, str]]:
    """Size of the matrix, and how much of it is missing."""
    n, p = result.shape
    missing = 1.0 - result.n_observed / (n * p)
    of_triplets = result.form == "triplets"
    return [
        (f"rows ({short(result.row_name)})" if of_triplets else "rows", f"{n:,}"),
        (f"columns ({short(result.column_name)})" if of_triplets else "columns", f"{p:,}"),
        ("missing", percent(missing) if missing > 0 else "hardly any"),
    ]


def size_words(result: EntryStudyResult) -> str:
    """Say how large the matrix is, and what its rows and columns are."""
    n, p = result.shape
    cells = f"{plural(result.n_observed, 'cell')} of {n * p:,} have a value"
    if result.n_observed == n * p:
        cells = "every cell has a value, or nearly every one"
    if result.form == "triplets":
        return (
            f"The table holds one line for each value. As a matrix it has {plural(n, 'row')} "
            f"({short(result.row_name)}) and {plural(p, 'column')} ({short(result.column_name)}); "
            f"{cells}."
        )
    return f"The matrix has {plural(n, 'row')} and {plural(p, 'column')}; {cells}."

"""Reports of studies that choose by held-out entries: what they share."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from consilience.completion.one_table.entry_study import EntryStudyResult
from consilience.report import figures_selection
from consilience.report.charts import short
from consilience.report.figures_selection import curve_of
from consilience.report.sections import Run, TemplateReport, percent

R = TypeVar("R", bound=EntryStudyResult)


class EntryStudyReport(TemplateReport[R], Generic[R]):
    """What both studies of one table tell; their words are in ``selection_study.j2``."""

    def context(self, result: R, run: Run) -> dict[str, Any]:
        """The curve, the choice, the preparation."""
        preparation = run.info.settings.get("preparation") or {}
        return {
            **judged(result, at_edge=result.at_edge),
            "known_limits": figures_selection.KNOWN,
            "standardize": preparation.get("standardize"),
        }


def judged(result: Any, *, at_edge: bool) -> dict[str, Any]:
    """What held-out entries say of the candidates, and of the one that was chosen.

    The curve is None where it stays at the site; the place of the choice among its candidates is -1
    where nothing was chosen, or where the grid ends.
    """
    found = result.curve()
    curve = None if found is None else curve_of(found)
    place, share, near, choice = -1, math.nan, "", None
    if curve is not None:
        near = figures_selection.near_words(curve)
        if 0 <= result.chosen < len(curve.values) and not at_edge:
            at = (curve.values == float(result.candidates[result.chosen])).nonzero()[0]
            place = int(at[0])
        share = figures_selection.predicted(curve, place)
        choice = partial(figures_selection.choice, curve, place, result.rule)
    return {
        "figures": figures_selection,
        "finite": np.isfinite,
        "curve": curve,
        "place": place,
        "share": share,
        "near": near,
        "choice": choice,
    }


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

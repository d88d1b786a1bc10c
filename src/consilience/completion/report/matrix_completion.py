"""Report of matrix completion: how well missing cells are predicted, by what model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.completion.one_table.matrix_completion import RULES, MatrixCompletionResult
from consilience.completion.report import selection_study
from consilience.report.charts import Z95
from consilience.report.sections import DASH, Run, numbers, with_error


class MatrixCompletionReport(selection_study.EntryStudyReport[MatrixCompletionResult]):
    """Words, tables and figures on the missing cells of one table."""

    kind = MatrixCompletionResult

    def context(self, result: MatrixCompletionResult, run: Run) -> dict[str, Any]:
        """Errors on cells that took no part, and whether the model beats means of rows."""
        errors, se = np.asarray(result.final_errors), np.asarray(result.final_se)
        known = np.isfinite(errors)
        roots = iter(numbers(np.sqrt(errors[known])))
        simpler = float(errors[result.simpler])
        gain = simpler - result.final_error
        return {
            **super().context(result, run),
            "means": RULES,
            "roots": numbers(np.sqrt([result.final_error, simpler])),
            "simpler": RULES[result.simpler].replace("+", "and"),
            "useless": gain <= 0,
            "clear": gain > Z95 * float(result.final_gain_se[result.simpler]),
            "told": known.any(),
            "gaps": not known.all(),
            "error_rows": [
                (
                    name,
                    next(roots) if known[i] else DASH,
                    with_error(error, float(se[i])),
                    with_error(error - errors[0], float(result.final_gain_se[i])) if i else "",
                )
                for i, (name, error) in enumerate(zip(RULES, errors, strict=True))
            ],
        }

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Size, rank, penalty, gap."""
        result = self.read(run)
        facts = [*selection_study.size_facts(result)]
        if result.rank >= 0:
            facts.append(("rank", f"{result.rank:,}"))
        if math.isfinite(result.alpha):
            facts.append(("penalty (alpha)", f"{result.alpha:.3g}"))
        if result.model == "soft" and math.isfinite(result.gap) and not result.capped:
            facts.append(("distance from the optimum, at most", f"{max(result.gap, 0.0):.1e}"))
        return facts


REPORT = MatrixCompletionReport

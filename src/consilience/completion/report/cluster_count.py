"""Report of the number of classes in one table: what held-out entries and other criteria say."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from consilience.completion.one_table.cluster_count import ClusterCountResult
from consilience.completion.report import selection_study
from consilience.report import figures
from consilience.report.sections import DASH, Run, numbers, percent


class ClusterCountReport(selection_study.EntryStudyReport[ClusterCountResult]):
    """Words, tables and figures on the number of classes in one table."""

    kind = ClusterCountResult

    def context(self, result: ClusterCountResult, run: Run) -> dict[str, Any]:
        """Other criteria, and means by class."""
        sizes, centres = np.asarray(result.sizes), np.asarray(result.centers)
        values = {
            name: numbers(v) for name, v in result.criteria_curves.items() if np.isfinite(v).any()
        }
        means = zip(result.feature_names, centres.T, strict=True) if centres.size else ()
        told = np.isfinite(sizes).any()
        return {
            **super().context(result, run),
            "criteria": [(name, str(k) if k else "none") for name, k in result.criteria.items()],
            "criteria_head": ["classes", *values],
            "criteria_rows": [
                (f"{k:,.0f}", *(column[i] for column in values.values()))
                for i, k in enumerate(result.candidates if values else ())
            ],
            "told": told,
            "class_names": [f"class {k}" for k in range(len(sizes))],
            "class_rows": [
                ("rows", *(f"{n:,.0f}" if np.isfinite(n) else DASH for n in sizes)),
                ("share", *(percent(n / np.nansum(sizes)) for n in sizes if told)),
                *((name, *numbers(line)) for name, line in means),
            ],
            "gaps": np.isnan(sizes).any() or np.isnan(centres).any(),
            "columns": centres.shape[1] if centres.size else 0,
            "plot_class_profiles": figures.plot_class_profiles,
            "profiles": SimpleNamespace(
                class_means_scaled=centres,
                class_means=centres,
                class_sizes=np.nan_to_num(sizes),
                feature_names=result.feature_names,
            ),
        }

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Size, classes, what they predict."""
        result = self.read(run)
        facts = [*selection_study.size_facts(result)]
        facts.append(("classes that were kept", f"{result.n_clusters:,}"))
        share = selection_study.judged(result, at_edge=result.at_edge)["share"]
        if np.isfinite(share):
            facts.append(("less error than with one class", percent(share)))
        return facts


REPORT = ClusterCountReport

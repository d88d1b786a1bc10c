"""Report of the pooled means and standard deviations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from consilience.engines.federation import Run
from consilience.protocol.mean_and_sd import MeanAndSDResult
from consilience.report.sections import TemplateReport, numbers


class MeanAndSDReport(TemplateReport[MeanAndSDResult]):
    """Words on pooled moments."""

    kind = MeanAndSDResult

    def context(self, result: MeanAndSDResult, run: Run) -> dict[str, object]:
        """Means with their standard errors, and whether they are of scaled columns."""
        error = result.sd / np.sqrt(result.rows)  # NaN where all withhold
        columns = zip(result.feature_names, result.rows, result.mean, result.sd, error, strict=True)
        prepared = run.info.settings.get("preparation") or {}
        told = {line.site for line in run.transcript if line.field == "squares"}
        return {
            # Without a transcript all are taken to have answered.
            "n_sites": len(told) or len(run.info.sites),
            "rows": [
                (name, f"{n:,.0f}", *(w for v in of for w in numbers((v,), "withheld")))
                for name, n, *of in columns
            ],
            "scaled": prepared.get("standardize", "none") != "none",
        }

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Rows."""
        return (("rows", f"{self.read(run).n:,}"),)


REPORT = MeanAndSDReport

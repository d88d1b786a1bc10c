"""Report of the pooled means and standard deviations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from consilience.engines.federation import Run
from consilience.protocol.mean_and_sd import MeanAndSDResult
from consilience.report.sections import Block, Headline, MethodReport, Table, numbers, plural


class MeanAndSDReport(MethodReport):
    """Words on pooled moments."""

    def headline(self, run: Run) -> Headline:
        """Say how many rows and columns there are."""
        result = _result(run)
        p = len(result.feature_names)
        noun = "The mean and standard deviation" if p == 1 else "Means and standard deviations"
        return Headline(
            f"{noun} of {plural(p, 'column')} over the {result.n:,} rows of "
            f"{plural(len(run.info.sites), 'site')}.",
            more=("The table below has them; no site showed its rows to another.",),
        )

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Rows."""
        return (("rows", f"{_result(run).n:,}"),)

    def evidence(self, run: Run) -> Sequence[Block]:
        """Means with their standard errors."""
        result = _result(run)
        error = result.sd / np.sqrt(result.n)
        rows = tuple(
            (name, *numbers((mean, sd)), *numbers((e,)))
            for name, mean, sd, e in zip(
                result.feature_names, result.mean, result.sd, error, strict=True
            )
        )
        scaled = (run.info.settings.get("preparation") or {}).get("standardize", "none") != "none"
        text = ["The standard error takes all rows for independent draws from one population."]
        if scaled:
            text.append(
                "The study put the columns on a common scale first, so these are figures of the "
                "scaled columns."
            )
        head = ("column", "mean", "standard deviation", "standard error of the mean")
        return (Block("Pooled moments", tuple(text), tables=(Table("Columns", head, rows),)),)

    def limits(self, run: Run) -> Sequence[str]:
        """What pooling hides."""
        return (
            "A pooled mean hides differences between sites, and its standard error takes no "
            "account of them.",
        )


def _result(run: Run) -> MeanAndSDResult:
    if not isinstance(run.result, MeanAndSDResult):
        raise TypeError("the run is not one of mean-and-sd")
    return run.result


REPORT = MeanAndSDReport

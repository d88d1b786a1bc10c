"""Report of components over sites: how many, what they are made of, what they carry where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.completion.federated_pca.result import FederatedPCAResult
from consilience.completion.report.selection_study import judged
from consilience.report import figures_selection
from consilience.report.charts import short
from consilience.report.sections import Run, TemplateReport, numbers, percent, site_name


class FederatedPCAReport(TemplateReport[FederatedPCAResult]):
    """Words, tables and figures on components that sites share."""

    kind = FederatedPCAResult

    def context(self, result: FederatedPCAResult, run: Run) -> dict[str, Any]:
        """The curve and the choice, shares of the variance, rows by site."""
        found = judged(result, at_edge=result.at_edge and not result.fixed)
        shares = result.variances / result.variances.sum()
        carried = np.concatenate([[0.0], np.cumsum(shares)])
        shown = min(len(result.variances), figures_selection.MOST_BARS)
        lines = zip(numbers(result.variances[:shown]), shares, strict=False)
        columns = zip(
            result.sites,
            result.n_by_site,
            result.groups_by_site,
            result.site_explained,
            strict=True,
        )
        by_site = None
        if found["curve"] is not None:
            errors = dict(zip(result.sites, result.site_errors, strict=True))
            entries = {s: int(n) for s, n in zip(result.sites, result.site_entries, strict=True)}
            by_site = figures_selection.by_site(found["curve"], errors, entries, found["place"])
        ranks = result.candidates
        return {
            **found,
            "carried": float(result.explained_variance_ratio.sum()),
            "carried_by_rank": [percent(float(carried[int(k)])) for k in ranks],
            "shown": shown,
            "variance_rows": [
                (str(j + 1), text, percent(float(share)), percent(float(shares[: j + 1].sum())))
                for j, (text, share) in enumerate(lines)
            ],
            "by_site": [by_site] if by_site else [],
            "loadings": figures_selection.loadings,
            "site_rows": [
                (site_name(site), f"{int(n):,}", f"{int(groups):,}", percent(float(share)))
                for site, n, groups, share in columns
            ],
            "withheld": [short(name, 40) for name in result.withheld],
            "few": np.any(result.groups_by_site < 2),
        }

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Rows, columns, components, what they carry."""
        result = self.read(run)
        facts = [
            ("rows", f"{result.n:,}"),
            ("columns", f"{len(result.feature_names):,}"),
            ("components", f"{result.rank:,}"),
            ("share of the variance", percent(float(result.explained_variance_ratio.sum()))),
        ]
        share = judged(result, at_edge=result.at_edge and not result.fixed)["share"]
        if np.isfinite(share):
            facts.append(("of left-out entries predicted", percent(float(share))))
        return facts


REPORT = FederatedPCAReport

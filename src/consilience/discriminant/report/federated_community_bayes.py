"""Report of community Bayes over sites: errors, communities, how the fits were joined."""

from __future__ import annotations

from typing import Any

import numpy as np

from consilience.discriminant.federated_community_bayes import FederatedCommunityBayesResult
from consilience.discriminant.report.community_bayes import CommunityBayesReport
from consilience.report.sections import Run, site_name


class FederatedCommunityBayesReport(CommunityBayesReport):
    """Words, tables and figures on classifiers by communities of columns, over sites."""

    kind: type[Any] = FederatedCommunityBayesResult
    over_sites = True

    def context(self, result: Any, run: Run) -> dict[str, Any]:
        """As for one table, and what fits rest on; sites that did not tell all ranks."""
        told, behind = np.asarray(result.ranks_told, dtype=bool), np.asarray(result.community_rows)
        # Who missed the ranks has no line there, so that lines cannot be told apart.
        known = zip(result.sites, told, strict=True) if len(told) == len(result.sites) else ()
        return super().context(result, run) | {
            "n_choosing": int(np.nansum(result.n_choosing)),
            "silent": [site_name(site) for site, row in known if not row.all()],
            "fewest": f"{behind.min():,.0f}" if behind.size else "",
        }


REPORT = FederatedCommunityBayesReport

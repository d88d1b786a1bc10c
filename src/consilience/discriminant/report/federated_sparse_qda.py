"""Report of sparse quadratic discriminant analysis over sites: errors, links, what blocks told."""

from __future__ import annotations

from typing import Any

import numpy as np

from consilience.discriminant.federated_sparse_qda import FederatedSparseQDAResult
from consilience.discriminant.report.figures_choice import community_words
from consilience.discriminant.report.sparse_qda import SparseQDAReport
from consilience.report.charts import short
from consilience.report.sections import Run, listed, site_name


class FederatedSparseQDAReport(SparseQDAReport):
    """Words, tables and figures on classes told apart by linked columns, over sites."""

    kind: type[Any] = FederatedSparseQDAResult
    over_sites = True

    def context(self, result: Any, run: Run) -> dict[str, Any]:
        """As for one table, and the blocks that were asked for; classes that sites do not tell."""
        names, asked = result.feature_names, result.screened_blocks
        levels = np.array([short(level, 30) for level in result.levels], dtype=object)
        # A class whose columns a site withholds is not in the moments.
        used = zip(result.sites, np.asarray(result.used, dtype=bool), strict=True)
        return super().context(result, run) | {
            "looked_at": [len(block) for block in asked],
            "first_looked_at": [community_words(names, block, 4) for block in asked[:6]],
            "silent": [
                f"{site_name(s)} ({listed(levels[~row], 4)})" for s, row in used if not row.all()
            ],
        }


REPORT = FederatedSparseQDAReport

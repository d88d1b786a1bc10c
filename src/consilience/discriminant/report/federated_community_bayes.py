"""Report of community Bayes over sites: errors, communities, how the fits were joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from consilience.discriminant.federated_community_bayes.result import FederatedCommunityBayesResult
from consilience.discriminant.report.community_bayes import KNOWN, CommunityBayesReport
from consilience.report.run import Run
from consilience.report.sections import Block, listed, plural, site_name
from consilience.report.wide_evidence import Rules, count_words

KNOWN_OVER_SITES = (
    "Ranks are those within a site: what sites differ in does not count as correlation. Between "
    "few sites of few rows they are noisier than ranks of all rows together.",
    "A site that lies about its ranks or its fit moves the model; nothing in the exchange shows "
    "it.",
)


class FederatedCommunityBayesReport(CommunityBayesReport):
    """Words, tables and figures on classifiers by communities of columns, over sites."""

    result: ClassVar[type] = FederatedCommunityBayesResult
    study: ClassVar[str] = "community Bayes over sites"
    known: ClassVar[tuple[str, ...]] = (*KNOWN, *KNOWN_OVER_SITES)

    def evidence(self, run: Run) -> Sequence[Block]:
        """As for one table, and how fits were joined."""
        result = self.read(run)
        return (*super().evidence(run), _joined(result))

    def handling(self, run: Run) -> Sequence[str]:
        """What was withheld, rounded and kept."""
        result = self.read(run)
        words = [
            "The model goes to every site, which keeps it for predictions of its own; labels and "
            "predictions of rows stay there. There is no noise; losses and numbers of rows in a "
            "wrong class are rounded at sites that protect records."
        ]
        told = np.asarray(result.ranks_told, dtype=bool)
        if told.shape[0] == len(result.sites) and not told.all():
            silent = [
                site_name(site)
                for site, row in zip(result.sites, told, strict=True)
                if not row.all()
            ]
            words.append(
                f"Of some classes {listed(silent)} told no rank correlations: they have too few "
                "rows of them. The other sites stand for them."
            )
        return words

    def rows_words(self, result: Any, rules: Rules) -> str:
        """Say which rows are counted."""
        choosing = int(np.nansum(result.n_choosing))
        chose = f"; {choosing:,} more chose the number of communities" if choosing else ""
        return f"Rows that are fitted{chose}; {rules.n:,} more are held out."


def _joined(result: Any) -> Block:
    """How the fits of the sites became one."""
    if result.how == "exact":
        return Block(
            "How the fit was made",
            (
                "Sites sent sums of gradients and curvatures at coefficients of the coordinator's "
                f"in {plural(int(result.rounds_run), 'round')}: the fit is that of all rows "
                "together. It is allowed only where a site's policy consents, because made-up "
                "coefficients could single out rows.",
            ),
        )
    behind = np.asarray(result.community_rows, dtype=float)
    fewest = count_words(behind.min()) if behind.size else ""
    text = [
        "Each site fitted each community to its own rows and sent coefficients and their "
        "curvature, where its rows bear that; the coordinator joined the fits by their curvature. "
        "This is near the fit of all rows together, not equal to it: with many rows at each site "
        "the difference is far below the standard errors."
    ]
    if fewest:
        text.append(f"Every community's fit rests on {fewest} rows or more.")
    return Block("How the fits were joined", tuple(text))


REPORT = FederatedCommunityBayesReport

"""Report of ensemble clustering: what the classes are, and how far they can be believed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from consilience.clustering.protocol.result import EnsembleClusteringResult
from consilience.clustering.report import figures_classes, figures_sequences, sequence_evidence
from consilience.clustering.report.sequence_evidence import Facts, Row
from consilience.report import charts, figures, figures_selection
from consilience.report.figures_selection import curve_of
from consilience.report.run import Run
from consilience.report.sections import Block, Table, numbers
from consilience.report.words import TemplateReport


class EnsembleClusteringReport(TemplateReport[EnsembleClusteringResult]):
    """Words, tables and figures on classes shared by sites."""

    kind = EnsembleClusteringResult

    def context(self, result: EnsembleClusteringResult, run: Run) -> Facts:
        """What reads the tables and draws, and a few facts of the run."""
        preparation = run.info.settings.get("preparation") or {}
        return {
            "read": self,
            "coded_read": sequence_evidence,
            "figures": figures,
            "figures_classes": figures_classes,
            "drawn": figures_sequences,
            "infinity": np.inf,
            "classes": [f"class {k}" for k in range(result.n_clusters)],
            "own_scale": preparation.get("standardize") == "site",
            "target_known": bool(result.target) and np.isfinite(result.target_means).any(),
        }

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Rows, classes and stability."""
        result = self.read(run)
        s = result.stability_figures
        facts = [("rows counted", f"{result.n_records:,}"), ("classes", str(result.n_clusters))]
        if s:
            facts.append(("agreement of halves", f"{s['mean']:.2f}"))
            apart = s.get("apart", np.nan)
            told = "unknown" if np.isnan(apart) else f"{apart:.1f} sd"
            facts.append((f"above {result.without_classes}", told))
        return facts

    def profile(self, result: EnsembleClusteringResult) -> Facts:
        """Means by class, and the most unusual columns of each."""
        values, standard = figures.profile_values(result)
        shares = result.class_sizes / max(result.n_records, 1)
        rows: list[Row] = [
            ("rows", *(f"{int(n):,}" for n in result.class_sizes)),
            ("share", *(f"{share:.1%}" for share in shares)),
            *(
                (name, *numbers(np.where(np.abs(means) < 1e-12, 0.0, means), "withheld"))
                for name, means in zip(result.feature_names, result.class_means.T, strict=True)
            ),
        ]
        if result.target and not result.target_levels:
            rows.append((f"mean {result.target}", *numbers(result.target_means, "withheld")))
        names = [charts.short(name, 40) for name in result.feature_names]
        portraits = []
        if standard and 1 < result.n_clusters <= 12:
            for share, column in zip(shares, np.nan_to_num(values.T), strict=True):
                order = np.argsort(-np.abs(column), kind="stable")[:3]
                apart = [
                    f"{'high' if column[j] > 0 else 'low'} {names[j]}"
                    for j in order
                    if abs(column[j]) >= 0.3
                ]
                portraits.append((f"{share:.0%}", apart))
        gaps = bool(np.isnan(result.class_means).any())
        return {"rows": rows, "portraits": portraits, "standard": standard, "gaps": gaps}

    def size_rows(self, result: EnsembleClusteringResult) -> list[Row]:
        """Rows by class, over all sites and at each."""
        sizes = [("all sites", result.class_sizes), *sorted(result.class_sizes_by_site.items())]
        return [(site, *(f"{int(n):,}" for n in counts)) for site, counts in sizes]

    def target_rows(self, result: EnsembleClusteringResult) -> list[Row]:
        """Mean of the target by class, over all sites and at each."""
        by_site = [means for _, means in sorted(result.target_means_by_site.items())]
        return [
            (f"class {k}", *numbers((mean, *(means[k] for means in by_site)), "withheld"))
            for k, mean in enumerate(result.target_means)
        ]

    def agreement_rows(self, result: EnsembleClusteringResult) -> list[Row]:
        """Agreement of halves by site."""
        by_site = result.stability_figures["by_site"]
        return [(site, f"{value:.2f}") for site, value in sorted(by_site.items())]

    def choice(self, result: EnsembleClusteringResult) -> tuple[Block, tuple[Table, ...]]:
        """Errors of held-out entries by number of classes, and by site."""
        curve = curve_of(result.cv_curve())
        by_site = figures_selection.by_site(
            curve, result.cv_site_errors, result.cv_site_entries, result.cv_chosen
        )
        chosen = figures_selection.choice(curve, result.cv_chosen, result.cv_rule, "")
        return chosen, (by_site,) if by_site else ()

    def vote_rows(self, result: EnsembleClusteringResult) -> list[Row]:
        """Votes and criteria by site, and sums over the sites that voted where these chose."""
        votes = sorted(result.votes.items())
        rows: list[Row] = [
            (site, str(vote) if vote else "abstained", *numbers(result.vote_scores[site]))
            for site, vote in votes
        ]
        if result.chosen_by == "bic":
            scores = [result.vote_scores[site] for site, vote in votes if vote > 0]
            # A site that scored one number alone was left out of the sum.
            summed = [each for each in scores if np.isfinite(each).sum() > 1]
            most = max(map(len, result.vote_scores.values()))
            sums = np.sum(summed, axis=0) if summed else np.full(most, np.nan)
            rows.append(("sum", str(result.n_clusters), *numbers(sums)))
        return rows

    def eigenvalues(self, result: EnsembleClusteringResult) -> Row:
        """Absolute eigenvalues of the ensemble distance, the first being 1."""
        sizes = np.abs(result.eigenvalues)
        return numbers(sizes / sizes[0] if sizes[0] > 0 else sizes)

    def model_facts(self, result: EnsembleClusteringResult) -> Facts:
        """Weights of the local models, and agreement of pairs of them."""
        named = list(zip(result.model_names, result.weights, strict=True))
        off = result.agreement[~np.eye(len(named), dtype=bool)]
        return {
            "rows": [(f"{i}", name, f"{weight:.3f}") for i, (name, weight) in enumerate(named, 1)],
            "agreement": (off.mean(), off.min(), off.max()) if off.size else (),
            "dropped": [name for name, weight in named if weight < 1e-9],
        }


REPORT = EnsembleClusteringReport

"""Report of ensemble clustering: what the classes are, and how far they can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from consilience.clustering.protocol.result import EnsembleClusteringResult
from consilience.clustering.report import figures_sequences, sequence_evidence
from consilience.clustering.report.sequence_evidence import Facts, Row
from consilience.engines.federation import Run
from consilience.report import drawing, figures, selection_evidence
from consilience.report.figures_selection import curve_of
from consilience.report.sections import Block, Table, number, numbers, plural
from consilience.report.words import TemplateReport

FEW_PAIRS = 5


class EnsembleClusteringReport(TemplateReport[EnsembleClusteringResult]):
    """Words, tables and figures on classes shared by sites."""

    kind = EnsembleClusteringResult

    def context(self, result: EnsembleClusteringResult, run: Run) -> Facts:
        """What is known of the number of classes and of their stability, before any word of it."""
        s, votes = result.stability, result.votes or {}
        cast = [vote for vote in votes.values() if vote > 0]
        coded = result.model in ("markov-mixture", "latent-class")
        # Pairs of halves that say something, with and without permuted columns.
        comparisons = int(min(s["pairs"], s["null_pairs"])) if s else 0
        # Hardly any pair with permuted columns agrees as well as the pairs do on average.
        beyond_chance = bool(s and s["null_reached"] <= 0.05 * s["null_pairs"])
        chosen_by_vote = result.chosen_by not in ("cv", "given", "bic")
        votes_differ = len(set(cast)) > 1
        one_class = coded and set(cast) == {1}
        tone = "good" if beyond_chance and comparisons >= FEW_PAIRS else "caution"
        if result.n_clusters == 1:
            tone = "plain"
        doubtful = (chosen_by_vote and votes_differ) or result.cv_at_edge
        if doubtful or (one_class and result.n_clusters > 1):
            tone = "caution"
        alone = [s[key] for key in ("alone_mean", "ported_mean") if key in s]
        preparation = run.info.settings.get("preparation") or {}
        sites = len(result.class_sizes_by_site)
        own: Facts = {
            read.__name__: partial(read, result)
            for read in (
                profile,
                size_rows,
                target_rows,
                agreement_rows,
                choice,
                vote_rows,
                eigenvalues,
                model_facts,
                sequence_evidence.chain_facts,
                sequence_evidence.item_facts,
                sequence_evidence.outcome_facts,
                sequence_evidence.difference_facts,
                sequence_evidence.climb_facts,
            )
        }
        return own | {
            "figures": figures,
            "drawn": figures_sequences,
            "infinity": np.inf,
            "tone": tone,
            "rows": f"{result.n_records:,} rows at {plural(sites, 'site')}",
            "classes": [f"class {k}" for k in range(result.n_clusters)],
            "coded": coded,
            "sequences": result.model == "markov-mixture",
            "beyond_chance": beyond_chance,
            "comparisons": comparisons,
            "few": comparisons < FEW_PAIRS,
            "alone_as_stable": bool(s) and s["mean"] <= max(alone, default=-1.0),
            "cast": cast,
            "all_voted": len(cast) == len(votes),
            "votes_differ": votes_differ,
            "one_class": one_class,
            "chosen_by_vote": chosen_by_vote,
            "vote_numbers": max(map(len, (result.vote_scores or {}).values()), default=0),
            "other_numbers": sorted(
                {*cast, result.n_clusters_by_eigenvalues} - {result.n_clusters}
            ),
            "own_scale": preparation.get("standardize") == "site",
            "target_known": bool(result.target) and np.isfinite(result.target_means).any(),
        }

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Rows, classes and stability."""
        result = self.read(run)
        s = result.stability
        facts = [("rows counted", f"{result.n_records:,}"), ("classes", str(result.n_clusters))]
        if s:
            facts.append(("agreement of halves", f"{s['mean']:.2f}"))
            facts.append(("the same by chance", f"{s['null_mean']:.2f}"))
        return facts


def profile(result: EnsembleClusteringResult) -> Facts:
    """Means by class, and the most unusual columns of each."""
    values, standard = figures.profile_values(result)
    shares = result.class_sizes / max(result.n_records, 1)
    rows: list[Row] = [
        ("rows", *(f"{int(n):,}" for n in result.class_sizes)),
        ("share", *(f"{share:.1%}" for share in shares)),
        *(
            (name, *numbers(means))
            for name, means in zip(result.feature_names, result.class_means.T, strict=True)
        ),
    ]
    if result.target and not result.target_levels:
        rows.append((f"mean {result.target}", *numbers(result.target_means)))
    names = [drawing.short(name, 40) for name in result.feature_names]
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


def size_rows(result: EnsembleClusteringResult) -> list[Row]:
    """Rows by class, over all sites and at each."""
    sizes = {"all sites": result.class_sizes, **dict(sorted(result.class_sizes_by_site.items()))}
    return [(site, *(f"{int(n):,}" for n in counts)) for site, counts in sizes.items()]


def target_rows(result: EnsembleClusteringResult) -> list[Row]:
    """Mean of the target by class, over all sites and at each."""
    by_site = [means for _, means in sorted(result.target_means_by_site.items())]
    return [
        (f"class {k}", number(mean), *numbers(means[k] for means in by_site))
        for k, mean in enumerate(result.target_means)
    ]


def agreement_rows(result: EnsembleClusteringResult) -> list[Row]:
    """Agreement of halves by site."""
    return [(site, f"{value:.2f}") for site, value in sorted(result.stability["by_site"].items())]


def choice(result: EnsembleClusteringResult) -> tuple[Block, tuple[Table, ...]]:
    """Errors of held-out entries by number of classes, and by site."""
    curve = curve_of(result.cv_curve())
    by_site = selection_evidence.by_site(
        curve, result.cv_site_errors, result.cv_site_entries, result.cv_chosen
    )
    chosen = selection_evidence.choice(curve, result.cv_chosen, result.cv_rule, "")
    return chosen, (by_site,) if by_site else ()


def vote_rows(result: EnsembleClusteringResult) -> list[Row]:
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


def eigenvalues(result: EnsembleClusteringResult) -> Row:
    """Absolute eigenvalues of the ensemble distance, the first being 1."""
    sizes = np.abs(result.eigenvalues)
    return numbers(sizes / sizes[0] if sizes[0] > 0 else sizes)


def model_facts(result: EnsembleClusteringResult) -> Facts:
    """Weights of the local models, and agreement of pairs of them."""
    named = list(zip(result.model_names, result.weights, strict=True))
    off = result.agreement[~np.eye(len(named), dtype=bool)]
    return {
        "rows": [(f"{i}", name, f"{weight:.3f}") for i, (name, weight) in enumerate(named, 1)],
        "agreement": (off.mean(), off.min(), off.max()) if off.size else (),
        "dropped": [name for name, weight in named if weight < 1e-9],
    }


REPORT = EnsembleClusteringReport

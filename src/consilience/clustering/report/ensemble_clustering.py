"""Report of ensemble clustering: what the classes are, and how far they can be believed.

Figures of classes of sequences and of categories for the words in ``sequence_evidence.j2``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.clustering.protocol.result import EnsembleClusteringResult
from consilience.clustering.report import figures_classes, figures_sequences
from consilience.report import charts, figures, figures_selection
from consilience.report.charts import short
from consilience.report.figures_selection import curve_of
from consilience.report.sections import (
    DASH,
    Block,
    Run,
    Table,
    TemplateReport,
    number,
    numbers,
    percent,
)


class EnsembleClusteringReport(TemplateReport[EnsembleClusteringResult]):
    """Words, tables and figures on classes shared by sites."""

    kind = EnsembleClusteringResult

    def context(self, result: EnsembleClusteringResult, run: Run) -> Facts:
        """What reads the tables and draws, and a few facts of the run."""
        preparation = run.info.settings.get("preparation") or {}
        return {
            "read": self,
            **{function.__name__: function for function in CODED_FACTS},
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


NOTABLE = 0.1
"""Difference to the other classes from which a share is told in words."""
MOST_PAIRS = 60
Facts = dict[str, Any]
Row = tuple[str, ...]


def chain_facts(result: EnsembleClusteringResult) -> Facts:
    """Where each class is most, which step it makes more or less than others, and its chances."""
    chains = figures_sequences.chains_of(result)
    by_time = chains.by_time(max(int(result.n_times), 1))
    names = [short(name, 30) for name in chains.states]
    portraits = []
    if 1 < chains.n_classes <= figures_sequences.MOST_CLASSES:
        for k, where in enumerate(np.nan_to_num(by_time).mean(axis=1)):
            order = np.argsort(-where, kind="stable")[:3].tolist()
            places = [f"{names[a]} ({where[a]:.0%})" for a in order if where[a] >= NOTABLE]
            step = _own_step(chains, names, k, where)
            portraits.append((percent(chains.shares[k], 0), places, step))
    tables = []
    for initial, transition in zip(chains.initial, chains.transition, strict=True):
        rows = [("first state", *map(percent, initial))]
        rows += [
            (f"after {name}", *map(percent, chances))
            for name, chances in zip(names, transition, strict=True)
        ]
        tables.append((rows, not np.isfinite(transition).all()))
    length = by_time.shape[1]
    return {"states": names, "portraits": portraits, "tables": tables, "length": length}


def _own_step(
    chains: figures_sequences.Chains, names: list[str], k: int, where: FloatArray
) -> Facts:
    """Step that sets a class most apart from the others, from states it is often in."""
    others = np.arange(chains.n_classes) != k
    # What the others do: their steps, weighted by their shares.
    steps = chains.transition[others]
    known = np.isfinite(steps) * np.nan_to_num(chains.shares[others])[:, None, None]
    total = known.sum(axis=0)
    summed = (np.nan_to_num(steps) * known).sum(axis=0)
    elsewhere = np.divide(summed, total, out=np.full_like(total, np.nan), where=total > 0)
    apart = np.nan_to_num(chains.transition[k] - elsewhere)
    # Staying is no step.
    np.fill_diagonal(apart, 0.0)
    a, b = divmod(int((np.abs(apart) * where[:, None]).argmax()), len(names))
    if abs(apart[a, b]) < NOTABLE / 3:
        return {}
    own, rest = chains.transition[k, a, b], elsewhere[a, b]
    return {"source": names[a], "target": names[b], "own": own, "rest": rest}


def item_facts(result: EnsembleClusteringResult) -> Facts:
    """Chances of the levels, and those that each class has more than all rows together."""
    items = figures_sequences.items_of(result)
    rows: list[Row] = [("records", "", *(f"{int(n):,}" for n in result.class_sizes))]
    names = []
    for column, levels, chances in zip(items.columns, items.levels, items.chances, strict=True):
        for level, shares in zip(levels, chances.T, strict=True):
            rows.append((column, level, *map(percent, shares)))
            names.append(f"{short(column, 30)} = {short(level, 24)}")
    portraits = []
    if 1 < len(items.shares) <= figures_sequences.MOST_CLASSES:
        table = np.concatenate(items.chances, axis=1)
        weight = np.nan_to_num(items.shares)
        mean = weight @ np.nan_to_num(table) / max(float(weight.sum()), 1e-300)
        for share, own in zip(items.shares, table, strict=True):
            apart = np.nan_to_num(own - mean)
            most = [j for j in np.argsort(-apart, kind="stable")[:3] if apart[j] >= NOTABLE]
            said = [f"{names[j]} ({own[j]:.0%}, of all {mean[j]:.0%})" for j in most]
            portraits.append((percent(share, 0), said))
    return {
        "rows": rows,
        "portraits": portraits,
        "columns": len(items.columns),
        "drawn": len(figures_sequences.shown_items(items)),
    }


def outcome_facts(result: EnsembleClusteringResult) -> Facts:
    """Shares of the target's levels by class, over all sites and at each."""
    shares = result.target_shares
    levels = [short(level, 24) for level in result.target_levels]
    known = np.isfinite(shares)
    low = np.where(known, shares, np.inf).min(axis=0)
    high = np.where(known, shares, -np.inf).max(axis=0)
    apart = np.where(known.sum(axis=0) > 1, high - low, 0.0)
    j = int(np.argmax(apart))
    most: Facts = {}
    if apart[j] >= NOTABLE:
        most = {"level": levels[j], "high": high[j], "low": low[j]}
        most["largest"], most["smallest"] = np.nanargmax(shares[:, j]), np.nanargmin(shares[:, j])
    return {
        "levels": levels,
        "most": most,
        "rows": [(f"class {k}", *map(percent, own)) for k, own in enumerate(shares)],
        "by_site": [
            (f"class {k}", site, *map(percent, result.target_shares_at(site)[k]))
            for k in range(result.n_clusters)
            for site in sorted(result.target_shares_by_site)
        ],
    }


def difference_facts(result: EnsembleClusteringResult) -> list[Facts]:
    """By part of the tables: figures over pairs of sites, with their intervals, and each pair."""
    found = result.differences

    def at(key: str, i: int) -> float:
        return float(np.asarray(found[key], dtype=float).reshape(-1)[i])

    def interval(middle: str, kind: str, i: int) -> str:
        """An estimate and its limits; an upper limit that is infinite is put in words."""
        value, low, high = at(middle, i), at(f"{kind}_low", i), at(f"{kind}_high", i)
        if np.isnan(low) or np.isnan(high):
            return DASH
        shown = list(numbers([x for x in (value, low, high) if np.isfinite(x)]))
        point = shown.pop(0) if np.isfinite(value) else "none"
        return f"{point} ({shown[0]} to {shown[1]})" if shown[1:] else f"{point} (from {shown[0]})"

    parts = []
    for i, name in enumerate(found["parts"]):
        means = [at(key, i) for key in ("ensemble_mean", "local_mean", "chance")]
        ensemble, local = (np.asarray(found[key], dtype=float)[i] for key in ("ensemble", "local"))
        parts.append(
            {
                "name": name,
                "ratio": at("ratio", i),
                "low": at("ratio_low", i),
                "high": at("ratio_high", i),
                "cells": [
                    interval("ensemble_estimate", "ensemble", i),
                    interval("local_estimate", "local", i),
                    interval("ratio", "ratio", i),
                    *(number(mean) if np.isfinite(mean) else DASH for mean in means),
                ],
                "classes": [f"class {k}" for k in range(ensemble.shape[1])],
                "pairs": [
                    (f"{a}, {b}", *numbers([*ensemble[p], *local[p]]))
                    for p, (a, b) in enumerate(found["pairs"][:MOST_PAIRS])
                ],
                "left_out": len(found["pairs"]) - MOST_PAIRS,
            }
        )
    return parts


def climb_facts(result: EnsembleClusteringResult) -> tuple[list[Row], list[str]]:
    """How far below the best the starts of each site's model ended, and where they did."""
    rows: list[Row] = []
    unequal = []
    for site, given in sorted(result.start_spread.items()):
        values = np.asarray(given, dtype=float)
        if len(values) < 2:
            continue
        fall = float(0.0 - values.min())
        if fall > 0:
            unequal.append(site)
        below = f"{fall:.2g}" if fall < 100 else f"{fall:,.0f}"
        rows.append((site, below, str(int((values < 0).sum())), str(len(values))))
    return rows, unequal


CODED_FACTS = (chain_facts, item_facts, outcome_facts, difference_facts, climb_facts)
REPORT = EnsembleClusteringReport

"""Figures of classes of sequences and of categories for the words in ``sequence_evidence.j2``."""

from __future__ import annotations

from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.clustering.protocol.result import EnsembleClusteringResult
from consilience.clustering.report import figures_sequences
from consilience.report.charts import short
from consilience.report.sections import DASH, number, numbers, percent

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

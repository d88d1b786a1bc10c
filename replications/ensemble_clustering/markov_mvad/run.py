"""Paths from school to work in five regions: mixtures of Markov chains across sites.

Needs ``sequences/mvad.csv.gz`` in the folder that ``CONSILIENCE_DATA`` names. Resamples are drawn
from the sites' secret streams, here from fixed ones, so that the table can be computed again;
figures are means over `SECRETS` sets of them, with the standard deviation over the sets.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience import Columns, Federation, Policy, Preparation  # noqa: E402
from consilience.clustering.protocol import EnsembleClustering  # noqa: E402
from consilience.engines.local import LocalEngine  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from consilience.sites.loaders import memory_site  # noqa: E402
from consilience.sites.own_columns import SiteColumns  # noqa: E402
from consilience.testing.fakes import members, with_fixed_secrets  # noqa: E402
from examples.mvad.make_tables import STATES, months_of, read_paths  # noqa: E402
from replications.ensemble_clustering.coded_sites import (  # noqa: E402
    CodedSites,
    called_alike,
    fitted,
    gaps,
    local_models,
    vote,
)
from tools.stale_results import table_hash  # noqa: E402

HERE = Path(__file__).parent
K, SECRETS = 3, 10
TOLD = ("gap_over_local_told", "told_low", "told_high")


def regions(folder: Path) -> tuple[dict[str, object], tuple[str, ...]]:
    """Tables by region, and the columns of months."""
    paths = read_paths(folder)
    months = tuple(months_of(paths))
    return {str(name): rows[list(months)] for name, rows in paths.groupby("region")}, months


def coded(tables: dict[str, object]) -> CodedSites:
    place = {state: code for code, state in enumerate(STATES)}
    codes = tuple(np.vectorize(place.__getitem__)(rows.to_numpy()) for rows in tables.values())
    return CodedSites("markov-mixture", (len(STATES),), codes)


def federated(tables: dict[str, object], months: tuple[str, ...], secret: int, k: int | str):
    """One run of the method with fixed secrets."""
    columns = Columns(sequence=months, levels={months[0]: STATES})
    own = SiteColumns(offered={"*": STATES})
    granted = Policy(foreign_models=True)
    sites = [memory_site(name, table, granted, own=own) for name, table in tables.items()]
    federation = Federation(LocalEngine(sites), columns, Preparation())
    for i, site in enumerate(members(federation).values()):
        with_fixed_secrets(site, 100 * secret + i)
    method = EnsembleClustering(n_clusters=k, model="markov-mixture", stability_pairs=0)
    return method.run(federation, seed=secret)


def share_of_site(sites: CodedSites, labels: Sequence[NDArray[np.int64]]) -> float:
    """Part of the variance of months in each state within classes that lies between sites."""
    months = [
        np.stack([(codes == state).sum(axis=1) for state in range(sites.sizes[0])], axis=1)
        for codes in sites.codes
    ]
    everything, own = np.concatenate(months), np.concatenate(list(labels))
    site = np.repeat(np.arange(len(months)), [len(part) for part in months])
    between = within = 0.0
    for k in np.unique(own):
        mine = own == k
        mean = everything[mine].mean(axis=0)
        within += float(((everything[mine] - mean) ** 2).sum())
        for m in np.unique(site[mine]):
            part = everything[mine & (site == m)]
            between += float(len(part) * ((part.mean(axis=0) - mean) ** 2).sum())
    return between / within


def chance_share(
    sites: CodedSites, labels: Sequence[NDArray[np.int64]], *, seed: int, draws: int = 200
) -> float:
    """The same share where sites are permuted within classes, mean over draws."""
    own = np.concatenate(list(labels))
    everything, rng = sites.everything, stream(seed, "permuted")
    found = []
    for _ in range(draws):
        order = np.arange(len(own))
        for k in np.unique(own):
            place = np.flatnonzero(own == k)
            order[place] = rng.permutation(place)
        mixed = CodedSites(sites.kind, sites.sizes, sites.split(everything[order]))
        found.append(share_of_site(mixed, labels))
    return float(np.mean(found))


def one(sites: CodedSites, tables: dict[str, object], months: tuple[str, ...], secret: int):
    """Figures with one set of secrets."""
    run = federated(tables, months, secret, K)
    labels = [np.asarray(run.site(name).labels, dtype=np.int64) for name in tables]
    alone = local_models(sites, K, seed=secret)
    own = [m.label(rows) for m, rows in zip(alone, sites.codes, strict=True)]
    local = called_alike(own, labels, K)
    between, between_own = gaps(sites, labels, local, K)
    told = run.result.differences
    part = told["parts"].index("transition")
    together = fitted(sites.everything, sites, K, stream(secret, "pooled"), min_records=1)
    pooled = sites.split(together.label(sites.everything))
    shares = {"ensemble": share_of_site(sites, labels), "local": share_of_site(sites, local)}
    return {
        "gap_ensemble": between,
        "gap_local": between_own,
        "gap_pooled": gaps(sites, pooled, called_alike(own, pooled, K), K)[0],
        "gap_over_local": between / between_own,
        "gap_over_local_told": float(told["ratio"][part]),
        "told_low": float(told["ratio_low"][part]),
        "told_high": float(told["ratio_high"][part]),
        "site_share_ensemble": shares["ensemble"],
        "site_share_local": shares["local"],
        "site_share_pooled": share_of_site(sites, pooled),
        "site_share_chance": chance_share(sites, labels, seed=secret),
        "site_share_over_local": shares["ensemble"] / shares["local"],
    }


def middle_of(values: NDArray[np.float64]) -> str:
    """Median of the sets that tell a figure; an interval may have no upper end."""
    known = values[~np.isnan(values)]
    middle = float(np.quantile(known, 0.5, method="lower")) if len(known) else np.nan
    return f"{middle:.4f}" if np.isfinite(middle) else ""


def main() -> None:
    tables, months = regions(Path(os.environ["CONSILIENCE_DATA"]) / "sequences")
    sites = coded(tables)
    with threadpool_limits(1):
        sets = [one(sites, tables, months, secret) for secret in range(SECRETS)]
        voted = federated(tables, months, 0, "vote").result
        by_all = vote(CodedSites(sites.kind, sites.sizes, (sites.everything,)), seed=0)
    figures = {
        name: (np.mean([s[name] for s in sets]), np.std([s[name] for s in sets], ddof=1))
        for name in sets[0]
        if name not in TOLD
    }
    told = np.array([[s[name] for name in TOLD] for s in sets])
    row = {"n_clusters": str(K), "replicates": str(SECRETS)}
    for name, (value, error) in figures.items():
        row |= {name: f"{value:.4f}", f"{name}_se": f"{error:.4f}"}
    row |= {name: middle_of(values) for name, values in zip(TOLD, told.T, strict=True)}
    row["told_ratios"] = str(int(np.isfinite(told[:, 0]).sum()))
    row["told_bounded"] = str(int(np.isfinite(told[:, 2]).sum()))
    row["one_class_votes"] = str(sum(v == 1 for v in voted.votes.values()))
    row["chosen"], row["pooled_choice"] = str(voted.n_clusters), str(by_all[0])
    row["code_hash"] = table_hash(HERE)
    for name, value in row.items():
        print(name, value)
    with (HERE / "result.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(row), lineterminator="\n")
        writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()

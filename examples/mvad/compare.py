"""Is a class the same thing in every region? The run's classes beside those of regions alone.

    python examples/mvad/compare.py runs/mvad

For this the five tables are read together, which the study itself never does.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from consilience import MarkovMixture, Run, load_run
from consilience.clustering.kernels.sequences import Sequences
from consilience.sites.outputs import SiteOutput
from consilience.sites.site_store import DiskStore

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from examples.mvad.make_tables import REGIONS, STATES, months_of  # noqa: E402

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
FEW = 10
"""Steps from a state, in a class at a region, below which their shares are left out."""


def compare(labels: Mapping[str, Mapping[str, IntArray]], tables: Path) -> pd.DataFrame:
    """How much regions differ within classes.

    Parameters
    ----------
    labels : mapping of str to mapping of str to (n,) array
        By the way in which they were found, labels of every region's rows.
    tables : Path

    Returns
    -------
    DataFrame
        ``gap``: mean distance (Frobenius) of two regions' shares of steps within a class, over the
        states that enough steps leave in every one of the ways.
        ``region``: share of the variance of the time spent in each state, within classes, that
        lies between regions.
    """
    paths = {site: states_of(tables, site) for site in REGIONS}
    apart = gaps(paths, labels)
    return pd.DataFrame(
        {
            name: {"gap": apart[name], "region": share_of_region(paths, found)}
            for name, found in labels.items()
        }
    ).T


def states_of(tables: Path, site: str) -> Sequences:
    """Paths of one region."""
    rows = pd.read_csv(tables / f"{site}.csv")
    return Sequences.from_lists(rows[months_of(rows)].to_numpy().tolist(), STATES)


def gaps(
    paths: Mapping[str, Sequences], labels: Mapping[str, Mapping[str, IntArray]]
) -> dict[str, float]:
    """Mean distance of two regions' steps, over classes and pairs of regions, by way.

    Of two regions and a class only those states count that `FEW` steps leave at both regions
    whichever way the classes were found: a sum over more states is larger by itself.
    """
    k = 1 + max(int(found.max()) for way in labels.values() for found in way.values())
    steps = {
        name: {site: shares_of_steps(paths[site], way[site], k) for site in paths}
        for name, way in labels.items()
    }
    found: dict[str, list[FloatArray]] = {name: [] for name in labels}
    for a, b in itertools.combinations(sorted(paths), 2):
        apart = {name: (way[a] - way[b]) ** 2 for name, way in steps.items()}
        told = ~np.any([np.isnan(one).any(axis=2) for one in apart.values()], axis=0)
        for name, one in apart.items():
            found[name].append(np.sqrt(np.where(told[:, :, None], one, 0.0).sum(axis=(1, 2))))
    return {name: float(np.mean(those)) for name, those in found.items()}


def shares_of_steps(paths: Sequences, labels: IntArray, k: int) -> FloatArray:
    """Shares of the next state by class and present state, (K, S, S); NaN for few steps."""
    counts = np.zeros((k, paths.n_states, paths.n_states))
    for before, after in itertools.pairwise(paths.to_wide().T):
        seen = (before >= 0) & (after >= 0) & (labels >= 0)
        np.add.at(counts, (labels[seen], before[seen], after[seen]), 1.0)
    total = counts.sum(axis=2, keepdims=True)
    return np.divide(counts, total, out=np.full_like(counts, np.nan), where=total >= FEW)


def share_of_region(paths: Mapping[str, Sequences], labels: Mapping[str, IntArray]) -> float:
    """Share of the variance of time in state within classes that lies between regions."""
    time = {site: time_in_state(found) for site, found in paths.items()}
    between = within = 0.0
    for k in range(1 + max(int(found.max()) for found in labels.values())):
        parts = [time[site][labels[site] == k] for site in paths]
        centre = np.vstack(parts).mean(axis=0)
        within += float(((np.vstack(parts) - centre) ** 2).sum())
        between += sum(
            len(part) * float(((part.mean(axis=0) - centre) ** 2).sum())
            for part in parts
            if len(part)
        )
    return between / within


def time_in_state(paths: Sequences) -> FloatArray:
    """Share of its months that each path spends in each state, (n, S)."""
    wide = paths.to_wide()
    return np.stack([(wide == state).mean(axis=1) for state in range(paths.n_states)], axis=1)


def labels_of_run(run: Run, homes: Path) -> dict[str, IntArray]:
    """Labels that the run left at the regions."""
    return {
        site: np.asarray(SiteOutput(DiskStore(homes / site), run.info.run).labels)
        for site in run.info.sites
    }


def labels_alone(tables: Path, common: Mapping[str, IntArray]) -> dict[str, IntArray]:
    """Classes that each region finds without the others, matched to the common ones by members.

    Matching by members is the kindest way: it needs the labels of the run, which a region alone
    would not have.
    """
    k = 1 + max(int(found.max()) for found in common.values())
    matched = {}
    for site in sorted(common):
        own = MarkovMixture(k, states=STATES, random_state=0).fit(states_of(tables, site)).labels_
        shared = np.array(
            [[np.sum((own == a) & (common[site] == b)) for b in range(k)] for a in range(k)]
        )
        names = linear_sum_assignment(-shared)[1]
        matched[site] = names[own]
    return matched


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Differences of regions within classes.")
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--tables", type=Path, default=HERE / "tables")
    parser.add_argument("--homes", type=Path, default=HERE / "homes")
    options = parser.parse_args()
    together = labels_of_run(load_run(options.run), options.homes)
    found = {
        "classes of the run": together,
        "regions alone": labels_alone(options.tables, together),
    }
    print(compare(found, options.tables).to_string(float_format="{:.3f}".format))


if __name__ == "__main__":
    main()

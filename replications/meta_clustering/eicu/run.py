"""Length of stay at fifteen sites: models compared, groups, and what controls show.

Needs the data of ``examples/eicu`` in the folder that ``CONSILIENCE_DATA`` names.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.numerics.random import stream  # noqa: E402
from consilience.sites.study import Study  # noqa: E402
from examples.eicu.make_tables import site_tables  # noqa: E402
from replications.meta_clustering.eicu.models import compared, lines  # noqa: E402
from replications.meta_clustering.study import (  # noqa: E402
    Table,
    data_folder,
    figures,
    labels_of,
    options,
    replicate,
    run,
    same_partition,
)

HERE = Path(__file__).parent
STUDY = Study.load(ROOT / "examples" / "eicu" / "study.toml")
RUNS, SEEDS, REPEATS = 100, 20, 10
HOURS = float(np.log(24.0))
PLANTED = 3
SURGICAL = "the same and surgical"


def tables() -> dict[str, pd.DataFrame]:
    kept = site_tables(data_folder("eicu_demo"))
    return {name: table.dropna().reset_index(drop=True) for name, table in kept.items()}


def changed(how: str, seed: int) -> tuple[dict[str, pd.DataFrame], np.ndarray]:
    """Tables with a changed response, and the groups that are then true."""
    sites = tables()
    rng = stream(seed, "eicu", how)
    truth = np.zeros(len(sites), dtype=int)
    responses = [table["log_days"].to_numpy() for table in sites.values()]
    if how == "permuted within sites":
        responses = [rng.permutation(y) for y in responses]
    elif how == "permuted over all sites":
        ends = np.cumsum([len(y) for y in responses])[:-1]
        responses = np.split(rng.permutation(np.concatenate(responses)), ends)
    elif how == "hours coded as days at three sites":
        truth[rng.choice(len(sites), PLANTED, replace=False)] = 1
        responses = [y + HOURS * t for y, t in zip(responses, truth, strict=True)]
    made = {
        name: table.assign(log_days=y)
        for (name, table), y in zip(sites.items(), responses, strict=True)
    }
    return made, truth


def one(how: str, candidates: tuple[str, ...], surgical: bool, seed: int) -> dict[str, float]:
    made, truth = changed(how, seed)
    columns = STUDY.columns
    if surgical:
        columns = type(columns)(**{**vars(columns), "features": (*columns.features, "surgical")})
    result = run(
        made,
        seed=seed,
        columns=columns,
        preparation=STUDY.preparation,
        candidates=candidates,
    ).result
    return {
        "exact": float(same_partition(labels_of(result, tuple(made)), truth)),
        "clusters": float(result.n_clusters),
        "one_cluster": float(result.n_clusters == 1),
        "largest_z": float(np.nanmax(result.z)),
    }


def groups(table: Table, chosen: argparse.Namespace) -> None:
    from_study: tuple[str, ...] = tuple(STUDY.parameters["candidates"])
    for how, replicates in (
        ("as it is", SEEDS),
        ("permuted within sites", RUNS),
        ("permuted over all sites", RUNS),
        ("hours coded as days at three sites", RUNS),
    ):
        for candidates, surgical in (
            (from_study, False),
            (("linear",), False),
            (("linear",), True),
        ):
            line = f"{how}; {'+'.join(candidates)}{'; surgical' if surgical else ''}"
            if not re.search(chosen.only, line):
                continue
            sets = replicate(one, how, candidates, surgical, replicates=replicates, chosen=chosen)
            head = {
                "part": "groups",
                "response": how,
                "candidates": "+".join(candidates),
                "features": SURGICAL if surgical else "of the study",
                "replicates": len(sets),
            }
            table.add({**head, **figures(sets)})


def models(table: Table, chosen: argparse.Namespace) -> None:
    """Cross-validated errors, without any grouping."""
    for name, features, rows in lines(data_folder("eicu_demo"), STUDY.sites.names):
        if chosen.only not in f"models {name}":
            continue
        sets = replicate(compared, rows, features, replicates=REPEATS, chosen=chosen)
        head = {
            "part": "models",
            "response": name,
            "features": SURGICAL if "surgical" in features else "of the study",
            "replicates": len(sets),
        }
        table.add({**head, **figures(sets)})


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen)
    models(table, chosen)
    groups(table, chosen)


if __name__ == "__main__":
    main()

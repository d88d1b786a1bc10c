"""Write the tables of two parties that saw the same connections: a host and a network.

The host has ten figures on the last hundred connections to the destination, and knows which
connections turned out to be attacks by denial of service; the network has nine figures on the last
two seconds of traffic. This script stands in for the two exports and is no part of a study.

    python examples/nsl_kdd/make_tables.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).resolve().parent
NETWORK = [
    "count",
    "srv_count",
    "serror_rate",
    "srv_serror_rate",
    "rerror_rate",
    "srv_rerror_rate",
    "same_srv_rate",
    "diff_srv_rate",
    "srv_diff_host_rate",
]
N_EACH, N_NEW = 5000, 1000
"""Rows of each class in the tables, and of each class among the new connections."""


def connections(folder: Path) -> pd.DataFrame:
    """All normal connections and attacks by denial of service, in the order of the source."""
    fields = [line.split(",")[0] for line in (folder / "field_names.csv").read_text().split()]
    # Lines of this file end with a carriage return alone.
    lines = (folder / "attack_types.csv").read_text().split()
    groups = dict(line.split(",") for line in lines)
    rows = pd.read_csv(
        folder / "KDDTrain+_20Percent.txt.gz", header=None, names=[*fields, "label", "difficulty"]
    )
    group = rows["label"].map(groups)
    rows = rows.assign(connection=np.arange(len(rows)), dos=group.eq("dos").astype(int))
    return rows[group.isin(["dos", "normal"])].reset_index(drop=True)


def party_tables(folder: Path) -> dict[str, pd.DataFrame]:
    """Tables by the name of their file.

    Returns
    -------
    dict of str to DataFrame
        ``host`` and ``network`` with 5,000 connections of each class, and in ``new/`` 1,000 of each
        that are in neither. ``new/truth`` has their classes and is nobody's table.
    """
    rows = connections(folder)
    host = [name for name in rows.columns if name.startswith("dst_host_")]
    rng = np.random.default_rng(20240229)
    drawn = [rng.permutation(np.flatnonzero(rows["dos"] == c))[: N_EACH + N_NEW] for c in (0, 1)]
    groups = {
        "": rows.iloc[rng.permutation(np.concatenate([d[:N_EACH] for d in drawn]))],
        "new/": rows.iloc[rng.permutation(np.concatenate([d[N_EACH:] for d in drawn]))],
    }
    tables = {"new/truth": groups["new/"][["connection", "dos"]]}
    groups["new/"] = groups["new/"].assign(dos=None)
    for place, group in groups.items():
        tables[f"{place}host"] = group[["connection", *host, "dos"]]
        order = rng.permutation(len(group))
        tables[f"{place}network"] = group.iloc[order][["connection", *NETWORK]]
    return tables


def write_tables(folder: Path, out: Path) -> dict[str, int]:
    """Write one CSV file for each table; return their numbers of rows."""
    tables = party_tables(folder)
    for name, table in tables.items():
        path = out / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(path, index=False)
    return {name: len(table) for name, table in tables.items()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the tables of both parties.")
    parser.add_argument("--data", type=Path, help="folder of NSL-KDD")
    parser.add_argument("--out", type=Path, default=HERE / "tables")
    options = parser.parse_args()
    if options.data is None:
        if not os.environ.get("CONSILIENCE_DATA"):
            parser.error("set CONSILIENCE_DATA to the folder that holds nsl_kdd, or give --data")
        options.data = Path(os.environ["CONSILIENCE_DATA"]) / "nsl_kdd"
    if not options.data.is_dir():
        parser.error(f"there is no folder {options.data}")
    for name, count in write_tables(options.data, options.out).items():
        print(f"{name}: {count} rows")


if __name__ == "__main__":
    main()

"""Write the tables of eleven network services, the public rows, and connections for later.

The source is one table of connections to many services. Real services would export their own rows;
this script stands in for that and is no part of a study.

    python examples/nsl_kdd_services/make_tables.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).resolve().parent
SOURCE = "KDDTrain+_20Percent.txt.gz"
LEAST = 25
"""Connections of each class that make a service a site of its own; the others share one."""
REST = "rest"
N_PUBLIC = 400
"""Twenty for each of 19 columns and the intercept."""
NEW_SHARE = 0.2


def connections(folder: Path) -> pd.DataFrame:
    """All connections: the figures on traffic, service, and `dos`.

    The 19 figures are counts and rates over the last two seconds (``count`` to
    ``srv_diff_host_rate``) and over the last hundred connections (``dst_host_*``).
    """
    fields = [line.split(",")[0] for line in (folder / "field_names.csv").read_text().split()]
    # Lines of this file end with a carriage return alone.
    lines = (folder / "attack_types.csv").read_text().split()
    groups = dict(line.split(",") for line in lines)
    rows = pd.read_csv(folder / SOURCE, header=None, names=[*fields, "label", "difficulty"])
    figures = fields[fields.index("count") :]
    dos = np.where(rows["label"].map(groups) == "dos", "yes", "no")
    return rows[[*figures, "service"]].assign(dos=dos)


def sites_of(rows: pd.DataFrame) -> pd.Series:
    """Site of each connection: its service where that has enough of both classes, else the rest."""
    counts = rows.groupby("service")["dos"].value_counts().unstack(fill_value=0)
    own = counts.index[counts.min(axis=1) >= LEAST]
    site = rows["service"].where(rows["service"].isin(own), REST)
    return site.str.replace("_", "-")


def site_tables(
    rows: pd.DataFrame, seed: int = 20240229, *, by_service: bool = True
) -> tuple[dict[str, pd.DataFrame], pd.DataFrame, pd.DataFrame]:
    """Deal out the connections.

    Parameters
    ----------
    rows : DataFrame
        Of :func:`connections`.
    seed : int
        Of the draw of public and new connections (and of the sites where they are drawn too).
    by_service : bool
        Otherwise connections go to sites of the same sizes at random.

    Returns
    -------
    sites : dict of str to DataFrame
    public : DataFrame
        400 connections without their class, in no site's table.
    new : DataFrame
        A fifth of all, in neither.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rows))
    n_new = int(NEW_SHARE * len(rows))
    public, new = order[:N_PUBLIC], order[N_PUBLIC : N_PUBLIC + n_new]
    rest = np.sort(order[N_PUBLIC + n_new :])
    site = sites_of(rows).iloc[rest].to_numpy()
    if not by_service:
        site = rng.permutation(site)
    table = rows.drop(columns="service")
    names = [*sorted(set(site) - {REST}), REST]
    sites = {str(name): table.iloc[rest[site == name]] for name in names}
    return sites, table.iloc[public].drop(columns="dos"), table.iloc[new]


def write_tables(folder: Path, out: Path) -> dict[str, int]:
    """Write one CSV file per site, one of public and one of new rows; return numbers of rows."""
    sites, public, new = site_tables(connections(folder))
    tables = {**sites, "public": public, "new": new}
    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_csv(out / f"{name}.csv", index=False)
    return {name: len(table) for name, table in tables.items()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write one table per site.")
    parser.add_argument("--data", type=Path, help="folder of NSL-KDD")
    parser.add_argument("--out", type=Path, default=HERE / "tables")
    options = parser.parse_args()
    if options.data is None:
        if not os.environ.get("CONSILIENCE_DATA"):
            parser.error("set CONSILIENCE_DATA to the folder that holds nsl_kdd, or give --data")
        options.data = Path(os.environ["CONSILIENCE_DATA"]) / "nsl_kdd"
    if not (options.data / SOURCE).is_file():
        parser.error(f"there is no {SOURCE} in {options.data}")
    for name, count in write_tables(options.data, options.out).items():
        print(f"{name}: {count} rows")


if __name__ == "__main__":
    main()

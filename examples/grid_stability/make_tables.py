"""Write the tables and site files of fifty control areas, as each of them would have its own.

The source has 10,000 simulated grids in one table. A real area would export its own rows; this
script stands in for that and is no part of a study.

    python examples/grid_stability/make_tables.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).resolve().parent
SOURCE = "Data_for_UCI_named.csv.gz"
N_SITES, N_NEW = 50, 1000
RANGES = {
    **{f"tau{i}": (0.5, 10.0) for i in range(1, 5)},
    "p1": (1.5, 6.0),
    **{f"p{i}": (-2.0, -0.5) for i in range(2, 5)},
    **{f"g{i}": (0.05, 1.0) for i in range(1, 5)},
}
"""Limits of the simulation by its design, not by these rows: everybody knows them."""
INPUTS = tuple(RANGES)
SITE_FILE = """\
# Stays at the site.

name = "{name}"
home = "../homes/{name}"

[source]
path = "../tables/{name}.csv"

[columns]
offered = {{ "*" = "number" }}

[policy]
preset = "strict"
foreign_models = true # other sites' models may predict at the rows here
data_id = "grid-{name}"
"""


def feature_names() -> tuple[str, ...]:
    """The 12 inputs, their 12 squares and 66 products."""
    pairs = [(a, b) for i, a in enumerate(INPUTS) for b in INPUTS[i:]]
    return (*INPUTS, *(f"{a}_{b}" for a, b in pairs))


def with_products(rows: pd.DataFrame, centred: bool = True) -> pd.DataFrame:
    """Columns of :func:`feature_names` from the inputs.

    Parameters
    ----------
    rows : DataFrame
        With the inputs in their own units.
    centred : bool
        Put each input on -1 to 1 by its `RANGES` before multiplying. A square of an input that is
        far from 0 says nearly the same as the input.
    """
    inputs = {name: rows[name].to_numpy(dtype=float) for name in INPUTS}
    if centred:
        for name, (low, high) in RANGES.items():
            inputs[name] = (inputs[name] - (low + high) / 2) / ((high - low) / 2)
    columns = dict(inputs)
    for i, a in enumerate(INPUTS):
        for b in INPUTS[i:]:
            columns[f"{a}_{b}"] = inputs[a] * inputs[b]
    return pd.DataFrame(columns, index=rows.index)


def site_names(n_sites: int = N_SITES) -> tuple[str, ...]:
    """Names of the sites, in the order of their reaction times."""
    return tuple(f"area-{i:02d}" for i in range(1, n_sites + 1))


def read_grids(folder: Path) -> pd.DataFrame:
    """All simulated grids, inputs and `stab`."""
    return pd.read_csv(folder / SOURCE, sep=";")


def site_tables(
    grids: pd.DataFrame, seed: int = 20240229, *, by_tau1: bool = True, centred: bool = True
) -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
    """Tables of the sites, and grids that are in none of them.

    Parameters
    ----------
    grids : DataFrame
    seed : int
        Of the draw of new grids (and of the sites where they are drawn too).
    by_tau1 : bool
        Sort by `tau1` before the rows are dealt out; otherwise sites are random.
    centred : bool
        See :func:`with_products`.

    Returns
    -------
    sites : dict of str to DataFrame
        The 90 columns and `stab`.
    new : DataFrame
        Likewise, 1,000 rows.
    """
    order = np.random.default_rng(seed).permutation(len(grids))
    table = with_products(grids, centred).assign(stab=grids["stab"])
    new, rest = order[:N_NEW], order[N_NEW:]
    if by_tau1:
        rest = rest[np.argsort(grids["tau1"].to_numpy()[rest], kind="stable")]
    parts = np.array_split(rest, N_SITES)
    sites = {name: table.iloc[part] for name, part in zip(site_names(), parts, strict=True)}
    return sites, table.iloc[new]


def write_tables(folder: Path, out: Path, files: Path | None = None) -> dict[str, int]:
    """Write one CSV file per site and one of new grids; return their numbers of rows.

    Parameters
    ----------
    folder : Path
        Of the data set.
    out : Path
        Where the tables go.
    files : Path, optional
        Where the site files go; none are written otherwise.
    """
    sites, new = site_tables(read_grids(folder))
    tables = {**sites, "new": new}
    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_csv(out / f"{name}.csv", index=False)
    if files is not None:
        files.mkdir(parents=True, exist_ok=True)
        for name in sites:
            (files / f"{name}.toml").write_text(SITE_FILE.format(name=name), encoding="utf-8")
    return {name: len(table) for name, table in tables.items()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write one table per site.")
    parser.add_argument("--data", type=Path, help="folder of the data set")
    parser.add_argument("--out", type=Path, default=HERE / "tables")
    parser.add_argument("--sites", type=Path, default=HERE / "sites")
    options = parser.parse_args()
    if options.data is None:
        if not os.environ.get("CONSILIENCE_DATA"):
            parser.error(
                "set CONSILIENCE_DATA to the folder that holds grid_stability, or give --data"
            )
        options.data = Path(os.environ["CONSILIENCE_DATA"]) / "grid_stability"
    if not (options.data / SOURCE).is_file():
        parser.error(f"there is no {SOURCE} in {options.data}")
    rows = write_tables(options.data, options.out, options.sites)
    new = rows.pop("new")
    print(
        f"{len(rows)} sites with {min(rows.values())} to {max(rows.values())} rows, {new} new ones"
    )


if __name__ == "__main__":
    main()

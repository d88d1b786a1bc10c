"""Write the tables of five regions, each with the first six years after school of its own pupils.

The source has all young people in one table. A region that keeps its own records would export its
own; this script stands in for that and is no part of a study.

    python examples/mvad/make_tables.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pandas as pd

HERE = Path(__file__).resolve().parent
SOURCE = "mvad.csv.gz"
REGIONS = {
    "belfast": "Belfast",
    "north-east": "N.Eastern",
    "south": "Southern",
    "south-east": "S.Eastern",
    "west": "Western",
}
STATES = ("school", "FE", "HE", "training", "employment", "joblessness")
"""FE is further education (vocational, at a college), HE higher education."""
GOOD = "five_good_marks"


def read_paths(folder: Path) -> pd.DataFrame:
    """All young people.

    Returns
    -------
    DataFrame
        ``region``, ``five_good_marks`` (1: five or more at the end of compulsory education), and 70
        months from ``Sep.93`` to ``Jun.99``.
    """
    source = pd.read_csv(folder / SOURCE)
    months = [name for name in source.columns if name[-3:-2] == "." and name[-2:].isdigit()]
    # July and August 1993 are holidays: what is recorded there is no path yet.
    table = source[months[2:]].copy()
    table.insert(0, GOOD, (source["gcse5eq"] == "yes").astype(int))
    region = pd.Series("", index=source.index)
    for site, column in REGIONS.items():
        region[source[column] == "yes"] = site
    table.insert(0, "region", region)
    return table


def months_of(paths: pd.DataFrame) -> list[str]:
    """Columns of months, in order."""
    return [name for name in paths.columns if name not in ("region", GOOD)]


def write_tables(folder: Path, out: Path) -> dict[str, int]:
    """Write one CSV file for each region; return their numbers of rows.

    Parameters
    ----------
    folder : Path
        Of the data set.
    out : Path
        Where the tables go.
    """
    out.mkdir(parents=True, exist_ok=True)
    sizes = {}
    for site, rows in read_paths(folder).groupby("region"):
        rows.drop(columns="region").to_csv(out / f"{site}.csv", index=False)
        sizes[str(site)] = len(rows)
    return sizes


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the tables of five regions.")
    parser.add_argument("--data", type=Path, help="folder of the data set")
    parser.add_argument("--out", type=Path, default=HERE / "tables")
    options = parser.parse_args()
    if options.data is None:
        if not os.environ.get("CONSILIENCE_DATA"):
            parser.error("set CONSILIENCE_DATA to the folder that holds sequences, or give --data")
        options.data = Path(os.environ["CONSILIENCE_DATA"]) / "sequences"
    if not (options.data / SOURCE).is_file():
        parser.error(f"there is no {SOURCE} in {options.data}")
    for site, n in write_tables(options.data, options.out).items():
        print(f"{site}: {n}")


if __name__ == "__main__":
    main()

"""Write the tables of three language regions, each with the families that its people had.

The source has all people in one table. An institute that asks people in one language would keep its
own; this script stands in for that and is no part of a study.

    python examples/biofam/make_tables.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pandas as pd

HERE = Path(__file__).resolve().parent
SOURCE = "biofam.csv.gz"
STATES = (
    "with parents",
    "left",
    "married",
    "left, married",
    "child",
    "left, child",
    "left, married, child",
    "divorced",
)
AGES = tuple(f"a{age}" for age in range(15, 31))
LANGUAGES = ("french", "german", "italian")


def read_lives(folder: Path) -> pd.DataFrame:
    """All people who told their language.

    Returns
    -------
    DataFrame
        ``language``, ``woman`` (0, 1), ``born`` (year), and the state at each age from ``a15`` to
        ``a30``.
    """
    source = pd.read_csv(folder / SOURCE)
    source = source[source["plingu02"].isin(LANGUAGES)]
    lives = pd.DataFrame(
        {
            "language": source["plingu02"],
            "woman": (source["sex"] == "woman").astype(int),
            "born": source["birthyr"].astype(int),
        }
    )
    names = dict(enumerate(STATES))
    for age in AGES:
        lives[age] = source[age].astype(int).map(names)
    return lives.reset_index(drop=True)


def write_tables(folder: Path, out: Path) -> dict[str, int]:
    """Write one CSV file for each language; return their numbers of rows.

    Parameters
    ----------
    folder : Path
        Of the data set.
    out : Path
        Where the tables go.
    """
    out.mkdir(parents=True, exist_ok=True)
    sizes = {}
    for site, rows in read_lives(folder).groupby("language"):
        rows.drop(columns="language").to_csv(out / f"{site}.csv", index=False)
        sizes[str(site)] = len(rows)
    return sizes


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the tables of three languages.")
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

"""Write the tables of handwritten digits: one of all threes and eights, and those of three offices.

The source has images of 16 x 16 pixels; these tables have means of squares of 2 x 2. One more has
the threes alone, with all 256 pixels. An office that
reads letters would export its own; this script stands in for that and is no part of a study.

    python examples/digits/make_tables.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).resolve().parent
SOURCES = ("zip.train.csv.gz", "zip.test.csv.gz")
DIGITS = {3: "three", 8: "eight"}
SIZE = 8
FEATURES = tuple(f"r{i}c{j}" for i in range(SIZE) for j in range(SIZE))
"""Row and column of the image, from the upper left."""
PIXELS = tuple(f"r{i}c{j}" for i in range(2 * SIZE) for j in range(2 * SIZE))
OFFICES = ("albany", "buffalo", "syracuse")


def read_digits(path: Path) -> pd.DataFrame:
    """Threes and eights: ``digit`` and `FEATURES`, from -1 (paper) to 1 (ink)."""
    source = pd.read_csv(path)
    taken = source[source["digit"].isin(DIGITS)]
    pixels = taken.drop(columns="digit").to_numpy(dtype=float)
    means = pixels.reshape(-1, SIZE, 2, SIZE, 2).mean(axis=(2, 4)).reshape(-1, SIZE * SIZE)
    table = pd.DataFrame(means.round(5), columns=list(FEATURES))
    return table.assign(digit=taken["digit"].map(DIGITS).to_numpy())


def read_threes(path: Path) -> pd.DataFrame:
    """Threes as they are: `PIXELS`, from -1 (paper) to 1 (ink)."""
    source = pd.read_csv(path)
    pixels = source[source["digit"] == 3].drop(columns="digit")
    return pd.DataFrame(pixels.to_numpy(dtype=float), columns=list(PIXELS))


def over_offices(digits: pd.DataFrame, seed: int = 20240229) -> dict[str, pd.DataFrame]:
    """A third of the rows for each office, at random."""
    order = np.random.default_rng(seed).permutation(len(digits))
    parts = np.array_split(order, len(OFFICES))
    return {name: digits.iloc[np.sort(part)] for name, part in zip(OFFICES, parts, strict=True)}


def write_tables(folder: Path, out: Path) -> dict[str, int]:
    """Write the CSV files; return their numbers of rows.

    Parameters
    ----------
    folder : Path
        Of the data set.
    out : Path
        Where the tables go.
    """
    out.mkdir(parents=True, exist_ok=True)
    known, new = (read_digits(folder / name) for name in SOURCES)
    threes = read_threes(folder / SOURCES[0])
    tables = {"digits": known, **over_offices(known), "new": new, "threes": threes}
    for name, table in tables.items():
        table.to_csv(out / f"{name}.csv", index=False)
    return {name: len(table) for name, table in tables.items()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the tables of digits.")
    parser.add_argument("--data", type=Path, help="folder of the data set")
    parser.add_argument("--out", type=Path, default=HERE / "tables")
    options = parser.parse_args()
    if options.data is None:
        if not os.environ.get("CONSILIENCE_DATA"):
            parser.error("set CONSILIENCE_DATA to the folder that holds esl, or give --data")
        options.data = Path(os.environ["CONSILIENCE_DATA"]) / "esl"
    for name in SOURCES:
        if not (options.data / name).is_file():
            parser.error(f"there is no {name} in {options.data}")
    rows = write_tables(options.data, options.out)
    print(", ".join(f"{name}: {n} rows" for name, n in rows.items()))


if __name__ == "__main__":
    main()

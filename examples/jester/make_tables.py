"""Write the table of ratings of jokes: one line for each rating.

python examples/jester/make_tables.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pandas as pd

HERE = Path(__file__).resolve().parent
SOURCE = "Jester5k_triplets.csv.gz"
COLUMNS = ("person", "joke", "rating")


def read_ratings(path: Path) -> pd.DataFrame:
    """Ratings from -9.95 (worst) to 9.90: ``person``, ``joke``, ``rating``."""
    source = pd.read_csv(path)
    source.columns = list(COLUMNS)
    return source.sort_values(list(COLUMNS[:2]), kind="stable", ignore_index=True)


def write_table(folder: Path, out: Path) -> int:
    """Write the CSV file; return its number of lines.

    Parameters
    ----------
    folder : Path
        Of the data set.
    out : Path
        Where the table goes.
    """
    out.mkdir(parents=True, exist_ok=True)
    ratings = read_ratings(folder / SOURCE)
    ratings.to_csv(out / "ratings.csv", index=False)
    return len(ratings)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the table of ratings.")
    parser.add_argument("--data", type=Path, help="folder of the data set")
    parser.add_argument("--out", type=Path, default=HERE / "tables")
    options = parser.parse_args()
    if options.data is None:
        if not os.environ.get("CONSILIENCE_DATA"):
            parser.error("set CONSILIENCE_DATA to the folder that holds matrix, or give --data")
        options.data = Path(os.environ["CONSILIENCE_DATA"]) / "matrix"
    if not (options.data / SOURCE).is_file():
        parser.error(f"there is no {SOURCE} in {options.data}")
    print(f"ratings: {write_table(options.data, options.out):,}")


if __name__ == "__main__":
    main()

"""Write the table of vowels of fifteen speakers.

The source has rows in the order of the speakers, 66 of each; this script numbers the speakers. It
stands in for the export of a laboratory and is no part of a study.

    python examples/vowel/make_tables.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).resolve().parent
SOURCES = ("vowel.train.csv", "vowel.test.csv")
ROWS_OF_A_SPEAKER = 66
FEATURES = tuple(f"area_{j}" for j in range(1, 11))
VOWELS = {6: "had", 7: "hard", 9: "hoard", 10: "hood"}
"""Those that the source paper takes; the numbers are theirs in the data."""


def read_vowels(folder: Path) -> pd.DataFrame:
    """Vowels of all speakers: ``speaker``, ``vowel`` and `FEATURES`; 24 rows of each speaker."""
    rows = pd.concat([pd.read_csv(folder / name) for name in SOURCES], ignore_index=True)
    rows.columns = ["vowel", *FEATURES]
    speaker = 1 + np.arange(len(rows)) // ROWS_OF_A_SPEAKER
    rows.insert(0, "speaker", [f"s{i:02d}" for i in speaker])
    taken = rows[rows["vowel"].isin(VOWELS)]
    return taken.assign(vowel=taken["vowel"].map(VOWELS)).reset_index(drop=True)


def write_table(folder: Path, out: Path) -> int:
    """Write the CSV file; return its number of rows.

    Parameters
    ----------
    folder : Path
        Of the data set.
    out : Path
        Where the table goes.
    """
    out.mkdir(parents=True, exist_ok=True)
    table = read_vowels(folder)
    table.to_csv(out / "speakers.csv", index=False)
    return len(table)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the table of vowels.")
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
    print(f"{write_table(options.data, options.out)} rows")


if __name__ == "__main__":
    main()

"""Write the tables of spam: one of all letters, and those of three mailboxes.

The source has all letters in one table. Somebody who reads letters for a mailbox would count words
of its own; this script stands in for that and is no part of a study.

    python examples/spam/make_tables.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).resolve().parent
SOURCE = "spam.data.gz"
_WORDS = """
    make address all 3d our over remove internet order mail receive will people report addresses
    free business email you credit your font 000 money hp hpl george 650 lab labs telnet 857 data
    415 85 technology 1999 parts pm direct cs meeting original project re edu table conference
"""
WORDS = tuple(_WORDS.split())
SIGNS = ("semicolon", "parenthesis", "bracket", "exclamation", "dollar", "hash")
CAPITALS = ("capitals_average", "capitals_longest", "capitals_total")
FEATURES = (*WORDS, *SIGNS, *CAPITALS)
KINDS = ("mail", "spam")
N_TRAINED = 3000
BOXES = ("box-1", "box-2", "box-3")


def read_letters(folder: Path) -> pd.DataFrame:
    """All letters: logarithms of `FEATURES` (percentages, lengths of runs) + .1, and ``kind``."""
    names = [*FEATURES, "kind"]
    source = pd.read_csv(folder / SOURCE, sep=r"\s+", header=None, names=names)
    logs = np.log(source[list(FEATURES)] + 0.1).round(4)
    return logs.assign(kind=np.array(KINDS)[source["kind"]])


def split(
    letters: pd.DataFrame, seed: int = 20240229
) -> tuple[pd.DataFrame, dict[str, pd.DataFrame], pd.DataFrame]:
    """Letters to learn from, the same by mailbox, and those that are yet to come.

    Parameters
    ----------
    letters : DataFrame
        From `read_letters`.
    seed : int

    Returns
    -------
    known : DataFrame
        3,000 letters.
    boxes : dict of str to DataFrame
        A third of them each, at random.
    new : DataFrame
        The 1,601 others.
    """
    order = np.random.default_rng(seed).permutation(len(letters))
    known = letters.iloc[order[:N_TRAINED]]
    size = N_TRAINED // len(BOXES)
    boxes = {name: known.iloc[i * size : (i + 1) * size] for i, name in enumerate(BOXES)}
    return known, boxes, letters.iloc[order[N_TRAINED:]]


def write_tables(folder: Path, out: Path) -> dict[str, int]:
    """Write the CSV files; return their numbers of rows.

    Parameters
    ----------
    folder : Path
        Of the data set.
    out : Path
        Where the tables go.
    """
    known, boxes, new = split(read_letters(folder))
    out.mkdir(parents=True, exist_ok=True)
    tables = {"letters": known, **boxes, "new": new}
    for name, table in tables.items():
        table.to_csv(out / f"{name}.csv", index=False)
    return {name: len(table) for name, table in tables.items()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the tables of letters.")
    parser.add_argument("--data", type=Path, help="folder of the data set")
    parser.add_argument("--out", type=Path, default=HERE / "tables")
    options = parser.parse_args()
    if options.data is None:
        if not os.environ.get("CONSILIENCE_DATA"):
            parser.error("set CONSILIENCE_DATA to the folder that holds esl, or give --data")
        options.data = Path(os.environ["CONSILIENCE_DATA"]) / "esl"
    if not (options.data / SOURCE).is_file():
        parser.error(f"there is no {SOURCE} in {options.data}")
    rows = write_tables(options.data, options.out)
    print(", ".join(f"{name}: {n} rows" for name, n in rows.items()))


if __name__ == "__main__":
    main()

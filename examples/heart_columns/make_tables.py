"""Write the tables of two parties that examined the same patients: a clinic and a cardiology.

The data set comes as one table for each hospital. Here the clinic has what a first visit tells, and
the diagnosis; the cardiology has the resting ECG and the exercise test. This script stands in for
the two exports and is no part of a study.

    python examples/heart_columns/make_tables.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).resolve().parent
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
NAMES = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
)
CLINIC = ["age", "sex", "cp", "trestbps"]
CARDIOLOGY = ["restecg", "thalach", "exang", "oldpeak"]
N_NEW = 100


def patients(folder: Path) -> pd.DataFrame:
    """All patients of the four hospitals, with an id and whether they have the disease."""
    parts = []
    for hospital in HOSPITALS:
        part = pd.read_csv(
            folder / f"processed.{hospital}.data", header=None, names=NAMES, na_values="?"
        )
        part.insert(0, "patient", [f"{hospital}-{i + 1:03d}" for i in range(len(part))])
        parts.append(part.assign(hospital=hospital))
    rows = pd.concat(parts, ignore_index=True)
    return rows.assign(disease=(rows.pop("num") > 0).astype(int))


def party_tables(folder: Path) -> dict[str, pd.DataFrame]:
    """Tables by the name of their file.

    Returns
    -------
    dict of str to DataFrame
        ``clinic`` and ``cardiology``; the same in ``cleveland/`` of that hospital alone, and in
        ``new/`` of 100 patients who are kept out of the first two. ``new/truth`` has their
        diagnoses and is nobody's table.
    """
    rows = patients(folder)
    rng = np.random.default_rng(20240229)
    is_new = np.zeros(len(rows), dtype=bool)
    examined = np.flatnonzero(rows[CLINIC + CARDIOLOGY].notna().all(axis=1))
    is_new[rng.choice(examined, size=N_NEW, replace=False)] = True
    groups = {
        "": rows[~is_new],
        "cleveland/": rows[rows["hospital"] == "cleveland"],
        "new/": rows[is_new].assign(disease=None),
    }
    tables = {}
    for place, group in groups.items():
        tables[f"{place}clinic"] = group[["patient", *CLINIC, "disease"]]
        # Whoever had no exercise test was never at the cardiology, which has an order of its own.
        came = group[group["thalach"].notna()]
        order = rng.permutation(len(came))
        tables[f"{place}cardiology"] = came.iloc[order][["patient", *CARDIOLOGY]]
    tables["new/truth"] = rows.loc[is_new, ["patient", "disease"]]
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
    parser.add_argument("--data", type=Path, help="folder with the four files")
    parser.add_argument("--out", type=Path, default=HERE / "tables")
    options = parser.parse_args()
    if options.data is None:
        if not os.environ.get("CONSILIENCE_DATA"):
            parser.error("set CONSILIENCE_DATA to the folder that holds heart, or give --data")
        options.data = Path(os.environ["CONSILIENCE_DATA"]) / "heart"
    if not options.data.is_dir():
        parser.error(f"there is no folder {options.data}")
    for name, count in write_tables(options.data, options.out).items():
        print(f"{name}: {count} rows")


if __name__ == "__main__":
    main()

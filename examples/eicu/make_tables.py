"""Write one table per site, as each hospital group's own export would.

The demo release comes as tables of all hospitals together. A real site would export its own rows
from its own database; this script stands in for that and is no part of a study.

    python examples/eicu/make_tables.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).resolve().parent
LEAST_ROWS = 40
BEDS = {
    "<100": "under-100-beds",
    "100 - 249": "100-249-beds",
    "250 - 499": "250-499-beds",
    ">= 500": "500-or-more-beds",
}
SURGICAL = ("Operating Room", "Recovery Room", "PACU")
USED = {
    "patient": [
        "patientunitstayid",
        "uniquepid",
        "hospitalid",
        "gender",
        "age",
        "unitadmitsource",
    ],
    "hospital": ["hospitalid", "region", "numbedscategory"],
    "apachepatientresult": [
        "patientunitstayid",
        "apacheversion",
        "acutephysiologyscore",
        "apachescore",
        "actualiculos",
    ],
    "apacheapsvar": ["patientunitstayid", "vent"],
}


def first_stays(folder: Path) -> pd.DataFrame:
    """Join the tables of the demo release: the first scored stay of each patient.

    Returns
    -------
    DataFrame
        `site` (region and bed category), and the columns that the sites' tables hold.
    """
    read = {
        name: pd.read_csv(folder / f"{name}.csv.gz", usecols=columns)
        for name, columns in USED.items()
    }
    results = read["apachepatientresult"]
    # Two versions of the score are given for every stay; -1 is a score that could not be computed.
    scored = results[(results["apacheversion"] == "IVa") & (results["apachescore"] != -1)]
    stays = (
        read["patient"]
        .merge(scored, on="patientunitstayid", validate="one_to_one")
        .merge(read["apacheapsvar"], on="patientunitstayid", validate="one_to_one")
        .merge(read["hospital"], on="hospitalid", validate="many_to_one")
        .sort_values("patientunitstayid")
        .drop_duplicates("uniquepid")
        .reset_index(drop=True)
    )
    region = stays["region"].fillna("unknown-region").str.lower()
    beds = stays["numbedscategory"].map(BEDS).fillna("unknown-beds")
    return pd.DataFrame(
        {
            "site": region + "-" + beds,
            "stay": stays["patientunitstayid"],
            "age": stays["age"].replace("> 89", "90").astype(float),
            "sex": stays["gender"].str.lower(),
            "aps": stays["acutephysiologyscore"],
            "ventilated": stays["vent"],
            "surgical": stays["unitadmitsource"].isin(SURGICAL).astype(int),
            "log_days": np.log(stays["actualiculos"]),
        }
    )


def site_tables(folder: Path) -> dict[str, pd.DataFrame]:
    """Tables of the sites with at least `LEAST_ROWS` rows, by name."""
    stays = first_stays(folder)
    return {
        str(name): part.drop(columns="site").reset_index(drop=True)
        for name, part in stays.groupby("site")
        if len(part) >= LEAST_ROWS
    }


def write_tables(folder: Path, out: Path) -> dict[str, int]:
    """Write one CSV file per site; return their numbers of rows."""
    out.mkdir(parents=True, exist_ok=True)
    tables = site_tables(folder)
    for name, table in tables.items():
        table.to_csv(out / f"{name}.csv", index=False)
    return {name: len(table) for name, table in tables.items()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write one table per site.")
    parser.add_argument("--data", type=Path, help="folder of the demo release")
    parser.add_argument("--out", type=Path, default=HERE / "tables")
    options = parser.parse_args()
    if options.data is None:
        if not os.environ.get("CONSILIENCE_DATA"):
            parser.error("set CONSILIENCE_DATA to the folder that holds eicu_demo, or give --data")
        options.data = Path(os.environ["CONSILIENCE_DATA"]) / "eicu_demo"
    if not options.data.is_dir():
        parser.error(f"there is no folder {options.data}")
    rows = write_tables(options.data, options.out)
    for name, count in rows.items():
        print(f"{name}: {count} rows")
    print(f"{len(rows)} sites, {sum(rows.values())} rows, in {options.out}")


if __name__ == "__main__":
    main()

"""Write the tables of fourteen departments, each with its own students' ratings of lectures.

The source has all ratings in one table. A department that keeps its students' questionnaires would
export its own; this script stands in for that and is no part of a study.

    python examples/inst_eval/make_tables.py
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from examples.grouped_peers import folds_of  # noqa: E402

SOURCE = "lme4_InstEval.csv.gz"
FEATURES = ("lecturer_mean", "service", "semester", "terms_ago")
SHRINKAGE = 5.0
"""Ratings that the mean of all lecturers counts for, beside those of one lecturer."""
SITE_FILE = """\
# Stays at the site.

name = "{name}"
home = "../homes/{name}"

[source]
path = "../tables/{name}.csv"

[columns]
offered = {{ "*" = "number", student = "id" }}

[policy]
preset = "strict"
foreign_models = true # events may be summed by classes that the coordinator states
data_id = "inst-eval-{name}"
"""


def read_ratings(folder: Path) -> pd.DataFrame:
    """All ratings, with each student's own department.

    Returns
    -------
    DataFrame
        ``student``, ``lecturer``, ``department`` (of the lecturer), ``home`` (of the student),
        ``service`` (1 = a lecture for students of other departments), ``semester`` (of the
        student: 2, 4, 6, 8), ``terms_ago`` (1 to 6) and ``rating`` (1 to 5).
    """
    source = pd.read_csv(folder / SOURCE, index_col=0)
    rows = source.rename(
        columns={
            "s": "student",
            "d": "lecturer",
            "dept": "department",
            "studage": "semester",
            "lectage": "terms_ago",
            "y": "rating",
        }
    )
    return rows.assign(home=home_of(rows)).reset_index(drop=True)


def home_of(rows: pd.DataFrame) -> pd.Series:
    """Department of the student of each rating.

    Whoever hears a lecture that is no service for others hears it at home: nobody has two such
    departments. For 14 students without one it is the department of most of their lectures.
    """
    own = rows[rows["service"] == 0].groupby("student")["department"].first()
    most = rows.groupby("student")["department"].agg(
        lambda d: d.value_counts().sort_index().idxmax()
    )
    return rows["student"].map(own.reindex(most.index).fillna(most).astype(int))


def shrunken_mean(
    ratings: NDArray[np.float64], lecturers: NDArray[np.int64], known: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Mean rating of the lecturer of each row, drawn towards the mean of all.

    Parameters
    ----------
    ratings : (n,) array
    lecturers : (n,) int array
    known : (n,) bool array
        Rows whose ratings may be used. The mean for such a row leaves its own rating out;
        otherwise a row would be predicted with its own outcome.

    Returns
    -------
    (n,) array
    """
    centre = ratings[known].mean()
    own = np.where(known, ratings - centre, 0.0)
    total = np.bincount(lecturers, own)[lecturers] - own
    count = np.bincount(lecturers, known)[lecturers] - known
    return np.asarray(centre + total / (count + SHRINKAGE))


def site_name(department: int) -> str:
    return f"department-{department:02d}"


def department_means(ratings: pd.DataFrame, known: NDArray[np.bool_]) -> NDArray[np.float64]:
    """`shrunken_mean` of each lecturer among the students of one department: that of the row."""
    means = np.empty(len(ratings))
    for _, rows in ratings.groupby("home"):
        own = rows["rating"].to_numpy(dtype=float)
        lecturers = pd.factorize(rows["lecturer"])[0]
        means[rows.index] = shrunken_mean(own, lecturers, known[rows.index])
    return means


def site_tables(
    ratings: pd.DataFrame, seed: int = 20240229, fold: int = 0
) -> tuple[dict[str, pd.DataFrame], dict[str, pd.DataFrame]]:
    """Tables of the departments by name, and those of ratings that are yet to come.

    Returns
    -------
    sites : dict of str to DataFrame
        ``student``, ``lecturer``, `FEATURES` and ``rating``. The mean of a lecturer is that of the
        department's own students.
    new : dict of str to DataFrame
        One in five of the ratings of each student who gave more than one, likewise.
    """
    rng = np.random.default_rng(seed)
    known = folds_of(ratings["student"].to_numpy(), rng) != fold
    rows = ratings.assign(lecturer_mean=department_means(ratings, known).round(4), known=known)
    sites, new = {}, {}
    for home, table in rows.groupby("home"):
        columns = table[["student", "lecturer", *FEATURES, "rating"]]
        name = site_name(int(home))
        sites[name], new[name] = columns[table["known"]], columns[~table["known"]]
    return sites, new


def write_tables(folder: Path, out: Path, files: Path | None = None) -> dict[str, int]:
    """Write two CSV files per site; return the numbers of rows that the sites have.

    Parameters
    ----------
    folder : Path
        Of the data set.
    out : Path
        Where the tables go, those of new ratings into ``new``.
    files : Path, optional
        Where the site files go; none are written otherwise.
    """
    sites, new = site_tables(read_ratings(folder))
    (out / "new").mkdir(parents=True, exist_ok=True)
    for name, table in sites.items():
        table.to_csv(out / f"{name}.csv", index=False)
        new[name].to_csv(out / "new" / f"{name}.csv", index=False)
    if files is not None:
        files.mkdir(parents=True, exist_ok=True)
        for name in sites:
            (files / f"{name}.toml").write_text(SITE_FILE.format(name=name), encoding="utf-8")
    return {name: len(table) for name, table in sites.items()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write one table per department.")
    parser.add_argument("--data", type=Path, help="folder of the data set")
    parser.add_argument("--out", type=Path, default=HERE / "tables")
    parser.add_argument("--sites", type=Path, default=HERE / "sites")
    options = parser.parse_args()
    if options.data is None:
        if not os.environ.get("CONSILIENCE_DATA"):
            parser.error("set CONSILIENCE_DATA to the folder that holds grouped, or give --data")
        options.data = Path(os.environ["CONSILIENCE_DATA"]) / "grouped"
    if not (options.data / SOURCE).is_file():
        parser.error(f"there is no {SOURCE} in {options.data}")
    rows = write_tables(options.data, options.out, options.sites)
    print(f"{len(rows)} departments with {min(rows.values())} to {max(rows.values())} ratings")


if __name__ == "__main__":
    main()

"""What a run says of new ratings, beside ridge regressions and mixed models of all tables.

Nobody has all tables in earnest: this is how the example knows what the run is worth.

    python examples/inst_eval/compare.py runs/inst-eval
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from consilience import LatentClassRegressor, Run, load_run  # noqa: E402
from consilience.sites.outputs import SiteOutput  # noqa: E402
from consilience.sites.site_store import DiskStore  # noqa: E402
from examples.grouped_peers import entity_ridge, fit_mixed, pooled_ridge  # noqa: E402
from examples.inst_eval.make_tables import FEATURES  # noqa: E402

FloatArray = NDArray[np.float64]
LEVEL = 0.9


def read_tables(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables of all departments, one below the other, and new ratings; ``site`` says whose."""

    def whole(place: Path) -> pd.DataFrame:
        tables = [pd.read_csv(path).assign(site=path.stem) for path in sorted(place.glob("*.csv"))]
        return pd.concat(tables, ignore_index=True)

    return whole(folder), whole(folder / "new")


def of_the_run(run: Run, homes: Path, new: pd.DataFrame) -> tuple[FloatArray, FloatArray]:
    """Predictions and intervals by what the run left at each department."""
    mean, ends = np.empty(len(new)), np.empty((len(new), 2))
    for site, rows in new.groupby("site"):
        left = SiteOutput(DiskStore(homes / str(site)), run.info.run).predictor
        entity = rows["student"].astype(str)
        mean[rows.index] = left.predict(rows[list(FEATURES)], entity=entity)
        ends[rows.index] = left.predict_interval(rows[list(FEATURES)], level=LEVEL, entity=entity)
    return mean, ends


def of_all_tables(
    known: pd.DataFrame, new: pd.DataFrame, n_classes: int
) -> dict[str, tuple[FloatArray, FloatArray | None]]:
    """Predictions of what somebody with all tables could fit."""
    both = pd.concat([known, new], ignore_index=True)
    first, last = np.arange(len(known)), np.arange(len(known), len(both))
    x, y = both[list(FEATURES)].to_numpy(dtype=float), both["rating"].to_numpy(dtype=float)
    student = pd.factorize(both["student"])[0]
    lecturer = pd.factorize(both["site"] + both["lecturer"].astype(str))[0]
    rng = np.random.default_rng(0)
    model = LatentClassRegressor(n_classes=n_classes, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x[first], y[first], entity=student[first], agent=both["site"][first])
    ids = {"entity": student[last], "agent": both["site"][last]}
    slopes = ("lecturer_mean",)
    return {
        "mean": (np.full(len(new), y[first].mean()), None),
        "ridge": (pooled_ridge(x[first], y[first], x[last]), None),
        "ridge of each student": (
            entity_ridge(x[first], y[first], student[first], x[last], student[last], rng),
            None,
        ),
        "classes, all tables": (
            model.predict(x[last], **ids),
            model.predict_interval(x[last], level=LEVEL, **ids),
        ),
        "student intercepts": (mixed(both, first, last, student), None),
        "student intercepts and slopes": (mixed(both, first, last, student, slopes), None),
        "students and lecturers": (mixed(both, first, last, student, (), lecturer), None),
    }


def mixed(
    both: pd.DataFrame,
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    student: NDArray[np.int64],
    slopes: tuple[str, ...] = (),
    lecturer: NDArray[np.int64] | None = None,
) -> FloatArray:
    """Predictions of a mixed model; one with effects of lecturers does without their means."""
    names = [name for name in FEATURES if lecturer is None or name != "lecturer_mean"]
    columns = (both[names] - both[names].mean()) / both[names].std()
    columns.insert(0, "one", 1.0)
    x, z = columns.to_numpy(), columns[["one", *slopes]].to_numpy()
    model = fit_mixed(
        x[first],
        both["rating"].to_numpy(dtype=float)[first],
        z[first],
        student[first],
        None if lecturer is None else lecturer[first],
        n_groups=int(student.max()) + 1,
        n_levels=0 if lecturer is None else int(lecturer.max()) + 1,
    )
    of_new = None if lecturer is None else lecturer[last]
    return model.predict(x[last], z[last], student[last], of_new)


def compare(run: Run, homes: Path, tables: Path) -> pd.DataFrame:
    """Mean squared error of new ratings, beside that of ridge, and what intervals hold."""
    known, new = read_tables(tables)
    n_classes = len(run.result.to_frame()["class"].unique())
    found: dict[str, tuple[FloatArray, FloatArray | None]] = {
        "classes, this run": of_the_run(run, homes, new),
        **of_all_tables(known, new, n_classes),
    }
    y = new["rating"].to_numpy(dtype=float)
    lines = {
        name: {
            "error": float(np.mean((y - mean) ** 2)),
            "coverage": np.nan
            if ends is None
            else float(np.mean((ends[:, 0] <= y) & (y <= ends[:, 1]))),
        }
        for name, (mean, ends) in found.items()
    }
    table = pd.DataFrame(lines).T
    table.insert(1, "of ridge", table["error"] / table["error"]["ridge"])
    return table


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Errors on new ratings.")
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--tables", type=Path, default=HERE / "tables")
    parser.add_argument("--homes", type=Path, default=HERE / "homes")
    options = parser.parse_args()
    table = compare(load_run(options.run), options.homes, options.tables)
    print(table.to_string(float_format="{:.3f}".format, na_rep=""))


if __name__ == "__main__":
    main()

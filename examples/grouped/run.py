"""Latent classes beside a mixed model, where the mixed model fits: sleepstudy and Exam.

python examples/grouped/run.py
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from consilience import LatentClassRegressor  # noqa: E402
from examples.grouped_peers import entity_ridge, fit_mixed, folds_of, pooled_ridge  # noqa: E402

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Grouped:
    """Rows of a data set whose groups are the entities.

    Attributes
    ----------
    x : DataFrame
        One column for each number or indicator.
    y : (n,) array
    entity : (n,) int array
        Code of the group.
    slope : str
        Column whose coefficient differs between the groups of the mixed model.
    """

    x: pd.DataFrame
    y: FloatArray
    entity: IntArray
    slope: str


def read_sleepstudy(folder: Path) -> Grouped:
    """Reaction times (ms) of 18 subjects over ten days of little sleep."""
    rows = pd.read_csv(folder / "lme4_sleepstudy.csv.gz", index_col=0)
    return Grouped(
        rows[["Days"]].astype(float),
        rows["Reaction"].to_numpy(dtype=float),
        pd.factorize(rows["Subject"])[0],
        "Days",
    )


def read_exam(folder: Path) -> Grouped:
    """Examination scores of 4,059 pupils at 65 schools in London.

    Known beforehand: the score of the reading test at eleven, sex, the band of the pupil's other
    marks then, the mean reading score of the school, and whether it is a school for boys or girls.
    """
    rows = pd.read_csv(folder / "mlmRev_Exam.csv.gz", index_col=0)
    levels = pd.get_dummies(rows[["sex", "intake", "schgend"]], drop_first=True).astype(float)
    return Grouped(
        pd.concat([rows[["standLRT", "schavg"]], levels], axis=1),
        rows["normexam"].to_numpy(dtype=float),
        pd.factorize(rows["school"])[0],
        "standLRT",
    )


DATA = {"sleepstudy": read_sleepstudy, "Exam": read_exam}
Prediction = tuple[FloatArray, FloatArray | None]
"""Of new rows: the mean, and an interval of level .9 (two columns) where there is one."""


def ridge(data: Grouped, train: IntArray, new: IntArray, seed: int) -> Prediction:
    x = data.x.to_numpy()
    return pooled_ridge(x[train], data.y[train], x[new]), None


def own_ridge(data: Grouped, train: IntArray, new: IntArray, seed: int) -> Prediction:
    x, rng = data.x.to_numpy(), np.random.default_rng(seed)
    of = data.entity
    return entity_ridge(x[train], data.y[train], of[train], x[new], of[new], rng), None


def mixed_model(data: Grouped, train: IntArray, new: IntArray, seed: int) -> Prediction:
    """Intercepts and slopes of the groups are normal."""
    x = data.x.to_numpy()
    scale = x[train].std(axis=0)
    x = np.column_stack([np.ones(len(x)), (x - x[train].mean(axis=0)) / scale])
    z = x[:, [0, 1 + list(data.x).index(data.slope)]]
    unit = data.y[train].std()
    model = fit_mixed(
        x[train],
        data.y[train] / unit,
        z[train],
        data.entity[train],
        n_groups=int(data.entity.max()) + 1,
    )
    return unit * model.predict(x[new], z[new], data.entity[new]), None


def classes(data: Grouped, train: IntArray, new: IntArray, seed: int) -> Prediction:
    """Groups of one class have the same coefficients; their number follows from the rows."""
    model = LatentClassRegressor(n_classes="auto", random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(data.x.iloc[train], data.y[train], entity=data.entity[train])
    table, entity = data.x.iloc[new], data.entity[new]
    interval = model.predict_interval(table, level=0.9, entity=entity)
    return model.predict(table, entity=entity), interval


MODELS: Mapping[str, Callable[[Grouped, IntArray, IntArray, int], Prediction]] = {
    "ridge": ridge,
    "ridge of each group": own_ridge,
    "classes": classes,
    "mixed model": mixed_model,
}


def splits(data: Grouped, seed: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Rows to learn from and rows to predict, five times; every group is in the former."""
    fold = folds_of(data.entity, np.random.default_rng(seed))
    for k in range(int(fold.max()) + 1):
        yield np.flatnonzero(fold != k), np.flatnonzero(fold == k)


def compare(data: Grouped, seed: int) -> pd.DataFrame:
    """Squared error over the variance of y, and the share of outcomes in intervals of level .9."""
    errors: dict[str, list[FloatArray]] = {name: [] for name in MODELS}
    inside: dict[str, list[NDArray[np.bool_]]] = {name: [] for name in MODELS}
    for train, new in splits(data, seed):
        y = data.y[new]
        for name, model in MODELS.items():
            mean, interval = model(data, train, new, seed)
            errors[name].append((y - mean) ** 2 / data.y.var())
            if interval is not None:
                inside[name].append((interval[:, 0] <= y) & (y <= interval[:, 1]))
    return pd.DataFrame(
        {
            "error": {name: np.concatenate(all_of).mean() for name, all_of in errors.items()},
            "coverage": {
                name: np.concatenate(all_of).mean() for name, all_of in inside.items() if all_of
            },
        }
    ).reindex(MODELS)


def compare_often(data: Grouped, repeats: int) -> pd.DataFrame:
    """Averages over repeats with other folds."""
    first, *others = (compare(data, seed) for seed in range(repeats))
    return sum(others, first) / repeats


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Classes beside a mixed model.")
    parser.add_argument("--data", type=Path, help="folder of the two files")
    parser.add_argument("--repeats", type=int, default=2, help="of five-fold cross-validation")
    options = parser.parse_args()
    if options.data is None:
        if not os.environ.get("CONSILIENCE_DATA"):
            parser.error("set CONSILIENCE_DATA to the folder that holds grouped, or give --data")
        options.data = Path(os.environ["CONSILIENCE_DATA"]) / "grouped"
    if not options.data.is_dir():
        parser.error(f"there is no folder {options.data}")
    for name, read in DATA.items():
        data = read(options.data)
        found = compare_often(data, options.repeats)
        print(f"{name}: {len(data.y)} rows, {data.entity.max() + 1} groups")
        print(found.to_string(float_format="{:.3f}".format, na_rep=""))


if __name__ == "__main__":
    main()

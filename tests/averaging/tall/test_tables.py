"""Tables in memory, in mapped files and in Parquet data sets give the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from consilience import ReferenceAveragingClassifier, ReferenceAveragingRegressor
from consilience.averaging.tall.tables import (
    HeldTable,
    MappedPart,
    ParquetTable,
    even_sizes,
    number_of_splits,
)
from consilience.exceptions import DataError, ParameterError
from tests.averaging.tall.tables import classes, frame, regression, write


def together(parts: Any) -> tuple[np.ndarray, np.ndarray]:
    read = [part.read() for part in parts]
    return np.concatenate([x for x, *_ in read]), np.concatenate([y for _, y, _ in read])


def test_sizes() -> None:
    assert even_sizes(11, 3) == [4, 4, 3]
    assert number_of_splits(8, 1000) == 8
    assert number_of_splits(8, 39) == 3
    assert number_of_splits(8, 3) == 1


def test_rows_in_memory_are_dealt_out_without_a_copy() -> None:
    x, y = regression(50)
    parts = HeldTable(x, y).parts(4)
    assert all(np.shares_memory(part.x, x) for part in parts)
    assert [len(part.y) for part in parts] == even_sizes(len(y), 4)
    np.testing.assert_array_equal(parts[1].read()[0], x[1::4])


def test_a_mapped_file_is_read_by_the_workers(tmp_path: Path) -> None:
    x, y = regression(50)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    parts = HeldTable(np.asarray(mapped), y).parts(3)
    assert all(isinstance(part, MappedPart) for part in parts)
    np.testing.assert_array_equal(together(parts)[0], x)
    np.testing.assert_array_equal(together(parts)[1], y)
    some = HeldTable(np.asarray(mapped[10:][3:40]), y[13:50]).parts(3)
    assert all(isinstance(part, MappedPart) for part in some)
    np.testing.assert_array_equal(together(some)[0], x[13:50])
    # Columns of a mapped file are held as they are.
    held = HeldTable(np.asarray(mapped[:, 2:]), y).parts(2)
    np.testing.assert_array_equal(held[0].read()[0], x[::2, 2:])
    for table in (mapped, x):
        fitted = ReferenceAveragingRegressor(Ridge(), n_splits=3, random_state=0).fit(table, y)
        assert fitted.score(x, y) > 0.5


@pytest.mark.parametrize("n_splits", [1, 3, 7, 20])
def test_parquet_gives_all_rows_once(tmp_path: Path, n_splits: int) -> None:
    x, y = regression(400)
    table = ParquetTable(write(tmp_path / "data", frame(x, y)), "y")
    assert (table.n_rows, table.n_columns, table.largest_group) == (400, 6, 70)
    parts = table.parts(n_splits)
    assert [len(part.read()[1]) for part in parts] == even_sizes(table.n_rows, n_splits)
    np.testing.assert_array_equal(together(parts)[0], x)
    np.testing.assert_array_equal(together(parts)[1], y)


def test_one_file_and_chosen_columns(tmp_path: Path) -> None:
    x, y = regression(100)
    table = frame(x, y).assign(name="someone", flag=True, whole=3)
    table.to_parquet(tmp_path / "one.parquet", index=False)
    chosen = ParquetTable(tmp_path / "one.parquet", "y", ["whole", "x3", "flag"])
    read, _ = together(chosen.parts(4))
    np.testing.assert_array_equal(read, np.column_stack([np.full(100, 3), x[:, 3], np.ones(100)]))
    with pytest.raises(DataError, match="column 'name' is of type"):
        ParquetTable(tmp_path / "one.parquet", "y")


def test_columns_in_another_order(tmp_path: Path) -> None:
    x, y = regression(100)
    table = frame(x, y)
    (tmp_path / "data").mkdir()
    table[:50].to_parquet(tmp_path / "data" / "a.parquet", index=False)
    table[50:].iloc[:, ::-1].to_parquet(tmp_path / "data" / "b.parquet", index=False)
    np.testing.assert_array_equal(together(ParquetTable(tmp_path / "data", "y").parts(3))[0], x)


def test_parquet_is_the_array(tmp_path: Path) -> None:
    """Same rows in the same splits: a mapped file is cut as a data set is."""
    x, y = regression(300)
    folder = write(tmp_path / "data", frame(x, y))
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    settings: dict[str, Any] = {"n_splits": 5, "max_rounds": 4, "random_state": 0}
    one = ReferenceAveragingRegressor(Ridge(), **settings).fit(mapped, y)
    two = ReferenceAveragingRegressor(Ridge(), **settings).fit(folder, "y")
    np.testing.assert_array_equal(one.coef_, two.coef_)
    assert list(two.feature_names_in_) == [f"x{j}" for j in range(6)]
    names = frame(x, y).drop(columns="y")
    np.testing.assert_allclose(two.predict(names), one.predict(x), rtol=1e-12)


@pytest.mark.parametrize("stored", ["text", "category", "number"])
def test_classes_of_a_data_set(tmp_path: Path, stored: str) -> None:
    x, y = classes(300, q=3)
    kept: Any = y
    if stored == "category":
        kept = pd.Categorical(y)
    elif stored == "number":
        kept = np.searchsorted(np.unique(y), y) * 10
    folder = write(tmp_path / "data", frame(x, y).assign(y=kept))
    settings: dict[str, Any] = {"n_splits": 4, "max_rounds": 2, "random_state": 0}
    found = ReferenceAveragingClassifier(LogisticRegression(), **settings).fit(folder, "y")
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    held = ReferenceAveragingClassifier(LogisticRegression(), **settings).fit(mapped, y)
    names = frame(x, y).drop(columns="y")
    np.testing.assert_allclose(found.predict_proba(names), held.predict_proba(x), rtol=1e-12)
    assert list(found.classes_) == list(np.unique(np.asarray(kept)))


def test_bad_data_sets(tmp_path: Path) -> None:
    x, y = regression(60)
    folder = write(tmp_path / "data", frame(x, y))
    estimator = ReferenceAveragingRegressor()
    with pytest.raises(DataError, match="does not exist"):
        estimator.fit(tmp_path / "nowhere", "y")
    with pytest.raises(ParameterError, match="no column 'z'"):
        estimator.fit(folder, "z")
    with pytest.raises(ParameterError, match="name of a column"):
        estimator.fit(folder, y)
    with pytest.raises(ParameterError, match="columns="):
        estimator.fit(x, y, columns=["x0"])
    with pytest.raises(ParameterError, match="without the target"):
        estimator.fit(folder, "y", columns=["x0", "y"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no .* files"):
        estimator.fit(tmp_path / "empty", "y")
    (tmp_path / "text.parquet").write_text("no table")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        estimator.fit(tmp_path / "text.parquet", "y")
    frame(x, y).drop(columns="x5").to_parquet(folder / "z.parquet")
    with pytest.raises(DataError, match="other columns"):
        estimator.fit(folder, "y")


@pytest.mark.parametrize("column", ["x2", "y"])
@pytest.mark.parametrize("value", [np.nan, np.inf, None])
def test_gaps_are_named_by_column(tmp_path: Path, column: str, value: Any) -> None:
    x, y = regression(60)
    table = frame(x, y)
    table[column] = table[column].astype(object if value is None else float)
    table.loc[41, column] = value
    if value is None:
        table[column] = table[column].astype("Float64")
    folder = write(tmp_path / "data", table)
    with pytest.raises(DataError, match=f"column '{column}' holds missing"):
        ReferenceAveragingRegressor(n_splits=3).fit(folder, "y")


def test_a_missing_class_is_refused(tmp_path: Path) -> None:
    x, y = classes(60)
    table = frame(x, y).astype({"y": object})
    table.loc[3, "y"] = None
    folder = write(tmp_path / "data", table)
    with pytest.raises(DataError, match="column 'y' holds missing"):
        ReferenceAveragingClassifier(n_splits=3).fit(folder, "y")


def test_large_row_groups_are_said(tmp_path: Path) -> None:
    x, y = regression(300)
    folder = write(tmp_path / "data", frame(x, y), files=1, group=300)
    with pytest.warns(UserWarning, match="Row groups have up to 300 rows"):
        fitted = ReferenceAveragingRegressor(n_splits=10, max_rounds=1).fit(folder, "y")
    assert any("Row groups" in remark for remark in fitted.remarks_)


def test_weights_are_a_column_of_the_data_set(tmp_path: Path) -> None:
    x, y = regression(200)
    weight = np.arange(200.0)
    path = write(tmp_path / "set", frame(x, y).assign(w=weight))
    table = ParquetTable(path, "y", weight="w")
    assert "w" not in table.names
    found = np.concatenate([part.read()[2] for part in table.parts(3)])
    np.testing.assert_array_equal(found, weight)
    with pytest.raises(ParameterError, match="without the target and the weights"):
        ParquetTable(path, "y", ["x0", "w"], weight="w")
    negative = ParquetTable(
        write(tmp_path / "set2", frame(x, y).assign(w=-weight)), "y", weight="w"
    )
    with pytest.raises(DataError, match="'w' are negative"):
        negative.parts(1)[0].read()

"""Large tables are written to the byte as Python's csv writes them."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import pytest

from consilience.protocol.method import SiteData
from consilience.sites import outputs
from consilience.sites.encoding import code_check, is_number

N = 5000


def by_csv(columns: list[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(zip(*columns, strict=True))
    return text.getvalue().encode()


def awkward_numbers() -> np.ndarray:
    rng = np.random.default_rng(3)
    edges = [0.0, -0.0, 1.0, -1.0, 1e16, 1e15, 1e10, 1e10 + 0.5, 9999999999.5, 1e-4, 9.999999e-5]
    edges += [float("nan"), float("inf"), -float("inf"), 5e-324, 1.7e308, 123.0, 0.1, 1 / 3]
    parts = [
        np.array(edges),
        rng.normal(size=N),
        rng.normal(size=N) * 10.0 ** rng.integers(-30, 30, N),
        np.round(rng.normal(size=N), 3),
        rng.integers(0, 2**63, N).view(np.float64),  # any bits
    ]
    return np.concatenate(parts)


def test_numbers_are_shown_as_repr_shows_them() -> None:
    x = awkward_numbers()
    k = np.arange(len(x)) - 3
    found = outputs.csv_lines([k, x], [None, None])
    assert found == by_csv([k.tolist(), x.tolist()])


def test_blocks_and_rows_without_cells() -> None:
    n = outputs._BLOCK + 7
    rows = np.arange(0, n, 3)
    x = np.random.default_rng(0).normal(size=len(rows))
    cells: list[Any] = [""] * n
    for row, value in zip(rows.tolist(), x.tolist(), strict=True):
        cells[row] = value
    found = outputs.csv_lines([np.arange(n), x], [None, rows])
    assert found == by_csv([list(range(n)), cells])


@pytest.mark.parametrize(
    ("texts", "fine"),
    [
        (["é", "007", " x ", "None", "1e5", "'", "\u2028", ""], True),
        (["a,b"], False),
        (['say "x"'], False),
        (["two\nlines"], False),
        (["a\rb"], False),
    ],
)
def test_texts_that_csv_would_quote_are_left_to_it(texts: list[str], fine: bool) -> None:
    column = np.array(texts)
    assert outputs.quick(column) is fine
    if fine:
        found = outputs.csv_lines([np.arange(len(texts)), column], [None, None])
        assert found == by_csv([list(range(len(texts))), texts])


@pytest.mark.parametrize("dtype", ["f4", "i4", "?", ">f8", "S3"])
def test_other_types_are_left_to_csv(dtype: str) -> None:
    assert not outputs.quick(np.zeros(3, dtype=dtype))


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("dropped", [0, 300])
def test_both_ways_to_write_a_table_agree(
    monkeypatch: pytest.MonkeyPatch, with_ids: bool, dropped: int
) -> None:
    rng = np.random.default_rng(1)
    ids = np.array([f"é{i:05d}" for i in range(N)]) if with_ids else None
    rows = rng.permutation(N + dropped)[:N]
    data = SiteData(np.zeros((N, 1)), ("x",), rows, id=ids, n_read=N + dropped)
    columns = {"eta": rng.normal(size=N), "held": rng.integers(0, 2, N), "whole": np.ones(N)}
    made = outputs.encode_outputs(columns, {}, data)[outputs.TABLE]
    quickly = made()
    monkeypatch.setattr(outputs, "MANY_ROWS", N * 10)
    assert quickly == made()


@pytest.mark.parametrize(
    "codes", [(), ("NA",), ("-9", "NA"), ("1e2", "inf"), ("nan",), ("1_0",), ("0",)]
)
def test_codes_for_many_texts(codes: tuple[str, ...]) -> None:
    def is_code(text: str) -> bool:
        numbers = [float(code) for code in codes if is_number(code)]
        return text in codes or (is_number(text) and float(text) in numbers)

    many = code_check(codes)
    texts = ["", "NA", "-9", "-9.0", "100", "100.0", "inf", "Infinity", "nan", "10", "1_0", "-0.0"]
    texts += ["é", "007", "None", "x", " 0", "0.00"]
    assert [many(t) for t in texts] == [is_code(t) for t in texts]

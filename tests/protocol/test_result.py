from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from consilience.exceptions import ParameterError, ProtocolError, RunError
from consilience.protocol.result import Frame, Result, lines, of_rows, to_csv


@dataclass(frozen=True, eq=False)
class Anything(Result):
    content: Any
    more: Any = None


numbers = hnp.arrays(
    st.sampled_from([np.float64, np.int64, np.bool_]), hnp.array_shapes(min_dims=0, min_side=0)
)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | numbers
nests = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.from_regex("[a-z]{1,4}", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(nests)
@settings(max_examples=80)
def test_results_come_back_the_same(content: Any) -> None:
    files = Anything(content).to_files()
    back = Anything.from_files(files)
    assert back.to_files() == files


def test_types_come_back() -> None:
    content = {"a": (1, 2.5, "x", None, True), "b": np.array([[1, 2]]), "c": np.float64(3)}
    back = Anything(content, more=np.array([np.nan, np.inf])).from_files(
        Anything(content, more=np.array([np.nan, np.inf])).to_files()
    )
    assert back.content["a"] == (1, 2.5, "x", None, True)
    np.testing.assert_array_equal(back.content["b"], [[1, 2]])
    assert back.content["b"].dtype == np.int64
    np.testing.assert_array_equal(back.more, [np.nan, np.inf])


@pytest.mark.parametrize("content", [object(), np.array([object()]), {"a": {1, 2}}, b"bytes"])
def test_what_a_result_cannot_hold(content: Any) -> None:
    with pytest.raises(ProtocolError, match="result field"):
        Anything(content).to_files()


@pytest.mark.parametrize(
    "change",
    [
        {"result.json": b""},
        {"result.json": b'{"content": 1, "unknown": 2}'},
        {"result.json": b'{"content": {"$array": "gone"}}'},
        {"result.npz": b"PK"},
        {"result.npz": Anything(np.ones(3)).to_files()["result.npz"][:40]},
        {"result.npz": b""},
        {"result.npz": b"\x80\x04."},
    ],
)
def test_damaged_files(change: dict[str, bytes]) -> None:
    files = {**Anything(np.ones(3)).to_files(), **change}
    with pytest.raises(RunError, match="damaged or was made by another release"):
        Anything.from_files(files)


def test_an_array_of_objects_in_a_file_is_not_loaded() -> None:
    """Its loading would unpickle; the file is refused."""
    import io

    buffer = io.BytesIO()
    np.savez(buffer, content=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    files = {"result.json": b'{"content": {"$array": "content"}}', "result.npz": buffer.getvalue()}
    with pytest.raises(RunError):
        Anything.from_files(files)


@dataclass(frozen=True, eq=False)
class Tables(Anything):
    old: Any = field(default=None, metadata={"stored": "main"})

    often = ("more",)

    @Frame
    def main(self) -> Any:
        """The main one."""
        return lines({"value": self.content}, column=("a", "b"))

    @Frame
    def empty(self) -> Any:
        return of_rows([], "x", "y")


def test_tables_by_name() -> None:
    result = Tables([1.0, 2.0], old=3)
    assert list(result.frames) == ["main"]
    assert result.to_frame().equals(result.main) and result.main.loc["b", "value"] == 2
    assert result.to_frame("empty").columns.tolist() == ["x", "y"]
    result.main.loc["b", "value"] = 7
    assert result.main.loc["b", "value"] == 2, "everyone has a table of their own"
    with pytest.raises(ParameterError, match="table must be one of main, empty"):
        result.to_frame("other")
    with pytest.raises(AttributeError):
        result.main = None  # type: ignore[misc]
    assert "more" in dir(result) and "content" not in dir(result) and "main" in dir(result)


def test_a_field_whose_name_a_table_took_is_stored_under_it() -> None:
    files = Tables([1.0, 2.0], old=3).to_files()
    assert b'"main": 3' in files["result.json"] and b"old" not in files["result.json"]
    assert Tables.from_files(files).old == 3


def test_a_result_with_a_table_of_its_own_making() -> None:
    class Old(Anything):
        def to_frame(self, table: str | None = None) -> Any:
            return lines({"x": [1]})

    assert list(Old(1).frames) == ["result"]
    with pytest.raises(NotImplementedError):
        Anything(1).to_frame()


def test_no_text_of_a_table_is_a_formula_of_a_spreadsheet() -> None:
    """Names are of the study's author; numbers stay as they are."""
    frame = pd.DataFrame(
        {
            "=HYPERLINK(1)": ["@a", "b-c", None],
            "x": [-1.5, np.nan, 2.0],
            "mixed": [-1, "-1+1", "+2"],
        },
        index=pd.Index(["=1", "two", "\tthree"], name="column"),
    )
    assert to_csv(frame).splitlines() == [
        "column,'=HYPERLINK(1),x,mixed",
        "'=1,'@a,-1.5,-1",
        "two,b-c,,'-1+1",
        "'\tthree,,2.0,'+2",
    ]
    assert to_csv(frame.head(0).reset_index(drop=True)) == "'=HYPERLINK(1),x,mixed\n"

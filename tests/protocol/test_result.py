from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from consilience.exceptions import ProtocolError, RunError
from consilience.protocol.result import Result


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

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from consilience.exceptions import ProtocolError, RunError
from consilience.protocol.method import SiteData
from consilience.sites.outputs import PREDICTOR, ROWS, TABLE, SiteOutput, encode_outputs
from consilience.sites.site_store import MemoryStore

DATA = SiteData(
    np.ones((3, 1)), ("x",), np.array([0, 2, 3]), id=np.array(["a", "c,1", "d"]), n_read=5
)
LABELS = np.array([1, -1, 0])


def kept(files: dict[str, bytes]) -> SiteOutput:
    home = MemoryStore()
    home.write_outputs("run", files)
    return SiteOutput(home, "run")


def test_labels_in_input_order() -> None:
    output = kept(encode_outputs({"labels": LABELS}, {}, DATA))
    np.testing.assert_array_equal(output.labels, LABELS)
    np.testing.assert_array_equal(output.rows, [0, 2, 3])
    with pytest.raises(RunError, match="no output 'scores' here: labels"):
        output.values("scores")


def test_the_table_has_a_line_for_each_row_that_was_read() -> None:
    files = encode_outputs({"labels": LABELS}, {}, DATA)
    lines = list(csv.reader(io.StringIO(files[TABLE]().decode())))
    assert lines == [
        ["row", "id", "kept", "labels"],
        ["0", "a", "1", "1"],
        ["1", "", "0", ""],
        ["2", "c,1", "1", "-1"],
        ["3", "d", "1", "0"],
        ["4", "", "0", ""],
    ]


def test_outputs_of_earlier_steps_stay() -> None:
    output = kept(encode_outputs({"scores": np.ones(3)}, {"labels": LABELS}, DATA))
    np.testing.assert_array_equal(output.labels, LABELS)
    np.testing.assert_array_equal(output.values("scores"), np.ones(3))


@pytest.mark.parametrize("value", [np.ones(2), 3, "text", [1, 2, 3]])
def test_what_is_not_one_entry_for_each_row(value: object) -> None:
    with pytest.raises(ProtocolError, match="one entry for each row"):
        encode_outputs({"labels": value}, {}, DATA)


class Predictor:
    def to_arrays(self) -> dict[str, np.ndarray]:
        return {"centres": np.ones((2, 1))}


def test_a_predictor_is_kept_as_arrays() -> None:
    files = encode_outputs({"predictor": Predictor()}, {}, DATA)
    assert set(files) == {PREDICTOR}
    assert b"sklearn" not in files[PREDICTOR]


def test_damaged_outputs_are_named_as_such() -> None:
    with pytest.raises(RunError, match="damaged"):
        _ = kept({ROWS: b"\x01"}).rows

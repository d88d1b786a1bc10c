"""Results: frozen, aggregates only, saved as JSON and arrays and read back the same."""

from __future__ import annotations

import dataclasses
import html
import io
import json
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from consilience.exceptions import ProtocolError, RunError

if TYPE_CHECKING:
    import pandas as pd

R = TypeVar("R", bound="Result")


@dataclass(frozen=True, eq=False)
class Result:
    """Base of the results of methods.

    Fields are None, bool, int, float, str, arrays, and tuples and dicts (text keys) of these.
    """

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        # Before the decorator of the class would write one that prints every array.
        cls.__repr__ = cls.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.summary()}"

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer in sentences and the main table."""
        frame = self.to_frame().to_html(escape=True, border=0, max_rows=30)
        return f"<p>{html.escape(self.summary())}</p>\n{frame}"

    def summary(self) -> str:
        """Return a few plain sentences that answer the study's question."""
        raise NotImplementedError

    def to_frame(self) -> pd.DataFrame:
        """Return the main table of the result."""
        raise NotImplementedError

    def to_files(self) -> dict[str, bytes]:
        """Return the bytes of ``result.json`` and ``result.npz``; equal results, equal bytes."""
        arrays: dict[str, np.ndarray] = {}
        tree = {
            f.name: _to_json(getattr(self, f.name), f.name, arrays)
            for f in dataclasses.fields(self)
        }
        text = json.dumps(tree, indent=1, sort_keys=True, allow_nan=True) + "\n"
        buffer = io.BytesIO()
        np.savez(buffer, **dict(sorted(arrays.items())))  # type: ignore[arg-type]
        return {"result.json": text.encode(), "result.npz": buffer.getvalue()}

    @classmethod
    def from_files(cls: type[R], files: dict[str, bytes]) -> R:
        """Read what :meth:`to_files` made.

        Raises
        ------
        RunError
            The files are damaged or of another version.
        """
        try:
            tree = json.loads(files["result.json"])
            with np.load(io.BytesIO(files["result.npz"]), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            return cls(**{name: _from_json(value, arrays) for name, value in tree.items()})
        except _DAMAGED as error:
            raise RunError(
                f"the result cannot be read ({type(error).__name__}): it is damaged or was made "
                "by another release"
            ) from None


# What damaged bytes make of JSON, a zip archive and the arrays in it.
_DAMAGED = (
    LookupError,
    ValueError,
    TypeError,
    OSError,
    EOFError,
    RuntimeError,
    MemoryError,
    SyntaxError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)


def _to_json(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            raise ProtocolError(f"result field {path} is an array of objects")
        arrays[path] = value
        return {"$array": path}
    if isinstance(value, tuple | list):
        return [_to_json(item, f"{path}.{i}", arrays) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {str(key): _to_json(item, f"{path}.{key}", arrays) for key, item in value.items()}
    raise ProtocolError(f"result field {path} holds a {type(value).__name__}")


def _from_json(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return tuple(_from_json(item, arrays) for item in value)
    if isinstance(value, dict):
        # A dict of a result has no key of that form: keys are names.
        if set(value) == {"$array"}:
            return arrays[value["$array"]]
        return {key: _from_json(item, arrays) for key, item in value.items()}
    return value

"""Results: frozen, aggregates only, saved as JSON and arrays and read back the same."""

from __future__ import annotations

import dataclasses
import html
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, overload

import numpy as np

from consilience.exceptions import ParameterError, ProtocolError, RunError

if TYPE_CHECKING:
    import pandas as pd

    # Type checkers know it of themselves; Python has defaults of variables from 3.13 on.
    from typing_extensions import TypeVar

    from consilience.protocol.next_study import Asked, Led
else:
    from typing import TypeVar


class Frame:
    """A table of a result, made anew each time that it is read.

    It decorates the method that makes the table, whose name is the table's; the first line of the
    docstring says what a line of it is.
    """

    def __init__(self, make: Callable[[Any], pd.DataFrame]) -> None:
        self.make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, result: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(self, result: Any, owner: type[Any]) -> pd.DataFrame: ...
    def __get__(self, result: Any, owner: type[Any]) -> Any:
        return self if result is None else self.make(result)

    # With it documentation lists frames with the properties.
    def __set__(self, result: Any, value: Any) -> NoReturn:
        raise AttributeError("tables of a result cannot be set: copy one and change the copy")


def lines(columns: Mapping[str, Any], **index: Any) -> pd.DataFrame:
    """Make a table of columns; its index, if one is given by name, says what a line is."""
    import pandas as pd

    places = [pd.Index(list(values), name=name) for name, values in index.items()]
    return pd.DataFrame(columns, index=places[0] if places else None)


def of_rows(rows: Iterable[tuple[Any, ...]], *names: str) -> pd.DataFrame:
    """Make a table of its lines."""
    import pandas as pd

    return pd.DataFrame(list(rows), columns=list(names))


def of_records(records: Iterable[Mapping[str, Any]], index: str | None = None) -> pd.DataFrame:
    """Make a table of its lines, each with its names; one column may say what a line is."""
    import pandas as pd

    frame = pd.DataFrame(list(records))
    return frame if index is None else frame.set_index(index)


def to_csv(frame: pd.DataFrame) -> str:
    """Write a table as comma-separated values; spreadsheets take no text in it for a formula."""

    def plain(value: Any) -> Any:
        formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
        return f"'{value}" if formula else value

    safe = frame.rename(index=plain, columns=plain)
    safe = safe.apply(lambda column: column.map(plain) if column.dtype.kind == "O" else column)
    return str(safe.to_csv(index=frame.index.name is not None, lineterminator="\n"))


@dataclass(frozen=True, eq=False)
class Result:
    """Base of the results of methods.

    Fields are None, bool, int, float, str, arrays, and tuples and dicts (text keys) of these. One
    whose name is taken by a table has the name under which it is stored in its metadata.
    """

    _run: ClassVar[Any] = None
    often: ClassVar[tuple[str, ...]] = ()
    """Fields and methods that people use beside the tables, those of bases too; without any `dir`
    lists all of the class's own."""
    also_shown: ClassVar[tuple[str, ...]] = ()
    """Tables that `consilience show` prints after the main one, where they are not empty."""

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

    def __dir__(self) -> list[str]:
        often = {name for base in type(self).__mro__ for name in vars(base).get("often", ())}
        listed = {*self._makers(), *_LISTED, *(n for n in dir(Result) if n.startswith("_"))}
        own = often or set(super().__dir__()) - set(dir(Result))
        return sorted(listed | own)

    def __getstate__(self) -> dict[str, Any]:
        """Aggregates alone, for copies and files: a run is not part of its result."""
        return {name: value for name, value in vars(self).items() if name != "_run"}

    def summary(self) -> str:
        """Return a few plain sentences that answer the study's question."""
        raise NotImplementedError

    def next_studies(self, asked: Asked) -> Led:
        """Yield the studies that this result gives reason for, the first to be made first.

        Sentences come between them: on what need not be asked, or what no study can be written for.

        Parameters
        ----------
        asked : Asked
        """
        yield from ()

    @classmethod
    def _makers(cls) -> dict[str, Frame]:
        """Tables by name, those of the class itself before those of its bases."""
        return {
            name: value
            for base in cls.__mro__
            for name, value in vars(base).items()
            if isinstance(value, Frame)
        }

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """Tables by name, the main one first; each is an attribute too. Empty ones are left out."""
        makers = self._makers()
        if not makers:  # a result of before there were any
            return {"result": self.to_frame()}
        found = {name: maker.make(self) for name, maker in makers.items()}
        return {name: frame for name, frame in found.items() if len(frame)}

    def to_frame(self, table: str | None = None) -> pd.DataFrame:
        """Return the main table of the result, or another one.

        Parameters
        ----------
        table : str, optional
            One of `frames`.

        Raises
        ------
        ParameterError
            There is no such table; the sentence names those that there are.
        """
        makers = self._makers()
        if not makers:
            raise NotImplementedError
        name = next(iter(makers)) if table is None else table
        if name not in makers:
            raise ParameterError.of("table", f"one of {', '.join(makers)}", table)
        return makers[name].make(self)

    @property
    def figures(self) -> tuple[str, ...]:
        """Kinds of figure that `plot` draws, the one that stands with the answer first."""
        return tuple(self._report().figures)

    def plot(self, kind: str | None = None) -> Any:
        """Draw a figure of the run's report, to be restyled and saved.

        Parameters
        ----------
        kind : str, optional
            One of `figures`; the first of them unless given.

        Returns
        -------
        matplotlib.axes.Axes or (k,) array of Axes
            Drawn anew each time: one where the figure has one drawing, else those of its k
            drawings. Their ``figure`` is open in pyplot, so that a notebook shows it.

        Raises
        ------
        ParameterError
            The report has no such figure; the sentence names those that it has.
        RunError
            The result is of no run.
        """
        return self._report().axes(kind)

    def _report(self) -> Any:
        if self._run is None:
            raise RunError(
                "a result is drawn with its run: take the result of a run, or of load_run"
            )
        return self._run.report()

    @classmethod
    def stored_names(cls) -> dict[str, str]:
        """Names of fields by the names under which they are stored."""
        return {f.metadata.get("stored", f.name): f.name for f in dataclasses.fields(cls)}

    def to_files(self) -> dict[str, bytes]:
        """Return the bytes of ``result.json`` and ``result.npz``; equal results, equal bytes."""
        arrays: dict[str, np.ndarray] = {}
        tree = {
            stored: _to_json(getattr(self, name), stored, arrays)
            for stored, name in self.stored_names().items()
        }
        text = json.dumps(tree, indent=1, sort_keys=True, allow_nan=True) + "\n"
        buffer = io.BytesIO()
        np.savez(buffer, **dict(sorted(arrays.items())))  # type: ignore[arg-type]
        return {"result.json": text.encode(), "result.npz": buffer.getvalue()}

    @classmethod
    def from_files(cls, files: dict[str, bytes]) -> Self:
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
            names = cls.stored_names()
            return cls(**{names[k]: _from_json(value, arrays) for k, value in tree.items()})
        except _DAMAGED as error:
            raise RunError(
                f"the result cannot be read ({type(error).__name__}): it is damaged or was made "
                "by another release"
            ) from None


_LISTED = ("figures", "frames", "plot", "summary", "to_frame")
"""What every result lists by `dir`: other names of the base are for those who write methods."""

if TYPE_CHECKING:
    ResultT = TypeVar("ResultT", bound=Result, default=Result, covariant=True)
else:
    ResultT = TypeVar("ResultT", covariant=True)

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

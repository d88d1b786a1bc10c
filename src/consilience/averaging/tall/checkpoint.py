"""What a fit has reached, in one file of arrays that is whole or absent."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import RunError
from consilience.wire.files import atomic_write, explain

Arrays = dict[str, NDArray[Any]]

FILE = "rounds.npz"
_FORMAT = 2


class Checkpoint:
    """One file in a folder that is written anew after every round.

    Parameters
    ----------
    folder : path or None
        ``None`` keeps nothing.

    Raises
    ------
    RunError
        The file cannot be read.
    """

    def __init__(self, folder: Any) -> None:
        self.path = None if folder is None else Path(folder) / FILE
        self._found: Arrays = {}
        self._facts: dict[str, str] = {}
        if self.path is not None and self.path.exists():
            self._found = _read(self.path)
            self._facts = json.loads(str(self._found.pop("facts")))

    @property
    def seed(self) -> int | None:
        """Seed of the fit that was begun, if there is one."""
        return int(self._facts["seed"]) if "seed" in self._facts else None

    def resume(self, facts: Mapping[str, str]) -> Arrays:
        """Arrays of the round that was reached, or none.

        Parameters
        ----------
        facts : mapping of str to str
            What the settings and the data are.

        Raises
        ------
        RunError
            The file belongs to other settings or other data.
        """
        if self._facts:
            for name in sorted({*facts, *self._facts}):
                if facts.get(name) != self._facts.get(name):
                    raise RunError(
                        f"{self.path} belongs to a fit with another {name.replace('_', ' ')}: "
                        "give the same settings and the same table, or another checkpoint folder"
                    )
        found, self._found = self._found, {}
        self._facts = dict(facts)
        return found

    def write(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Put a new state in place of the last one."""
        if self.path is None:
            return
        facts = np.array(json.dumps(self._facts, sort_keys=True))
        buffer = io.BytesIO()
        named: dict[str, Any] = {"facts": facts, **arrays}
        np.savez(buffer, **named)
        atomic_write(self.path, buffer.getvalue())


def _read(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as stored:
            found = {name: stored[name] for name in stored.files}
        facts = json.loads(str(found["facts"]))
        if facts.get("format") != str(_FORMAT):
            raise RunError(
                f"{path} was written by another release: begin anew in another checkpoint folder"
            )
    except OSError as error:
        raise explain(error, "read", path) from error
    except (ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise RunError(
            f"{path} is not a checkpoint of this estimator: choose another checkpoint folder"
        ) from error
    return found


def facts_of(settings: Mapping[str, Any], *, seed: int, data: str) -> dict[str, str]:
    """What a checkpoint belongs to, as text by name.

    Versions are among it: other ones may give other numbers, and what goes on after a crash must
    end as if there had been none.
    """
    return {
        "format": str(_FORMAT),
        **{
            f"version_of_{name}": version(name) for name in ("consilience", "numpy", "scikit-learn")
        },
        "seed": str(seed),
        "data": data,
        **{name: described(value) for name, value in settings.items()},
    }


def described(value: Any) -> str:
    """A setting as text: estimators by type and parameters, arrays by their bytes."""
    if hasattr(value, "get_params") and not isinstance(value, type):
        inside = {k: described(v) for k, v in sorted(value.get_params(deep=True).items())}
        return f"{type(value).__module__}.{type(value).__qualname__}({inside})"
    if isinstance(value, str | bytes | bool | int | float | type(None)):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(described(v) for v in value)}]"
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
        array = np.ascontiguousarray(value)
        if array.dtype == object:
            return repr(array.tolist())
        return f"{array.dtype.str}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"

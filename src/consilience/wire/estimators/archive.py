"""Archive form: a skops file, written without what prediction does not need, read with suspicion.

A skops file is a ZIP of arrays (``.npy``) and one ``schema.json``, which names the type of every
object and how it is built. :func:`archive_fault` looks at all of it without building anything.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from consilience.exceptions import WireError
from consilience.wire.estimators.types import LOADERS, TRUSTED

MAX_BYTES = 64 << 20
MAX_UNPACKED = 256 << 20
MAX_ENTRIES = 20_000
MAX_RATIO = 200
MAX_SCHEMA = 16 << 20
MAX_DEPTH = 160
MAX_HEADER = 10_000
MAX_SPEC = 1 << 22

_FITTED = ("TreeNode", "LossNode")
"""Ways of building objects that only fitted estimators need."""

_SCHEMA = "schema.json"
_ARRAY = re.compile(r"[A-Za-z0-9_.-]{1,64}\.npy")
_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOTHING = {
    "__class__": "str",
    "__module__": "builtins",
    "__loader__": "JsonNode",
    "content": "null",
    "is_json": True,
}
_SINGLE = ("n_jobs", "memory")
"""Settings by which evaluation would start other processes or write files."""

_UNNEEDED = frozenset({
    "_best_coefs", "_best_intercepts", "_feature_subsample_rng", "_optimizer", "_random_seed",
    "_random_state", "_tree", "alphas_", "best_loss_", "coef_path_", "coefs_paths_",
    "cv_results_", "cv_values_", "dual_gap_", "estimator_errors_", "estimators_samples_",
    "inlier_mask_", "loss_", "loss_curve_", "memory", "mse_path_", "n_jobs",
    "named_estimators_", "oob_decision_function_", "oob_improvement_", "oob_prediction_",
    "oob_score_", "oob_scores_", "outliers_", "random_state", "scores_", "train_score_",
    "validation_score_", "validation_scores_",
})  # fmt: skip
"""Attributes that fitting leaves behind and prediction does not read: some hold a value per row."""

_GENERATORS = ("RandomStateNode", "RandomGeneratorNode")


def write_archive(estimator: Any, *, fitted: bool) -> bytes:
    """Write an estimator; equal estimators give equal bytes.

    Raises
    ------
    WireError
        A part of it is of a type that does not cross the wire, or it is too large.
    """
    from skops.io import dumps
    from skops.io.exceptions import UnsupportedTypeException

    name = type(estimator).__name__
    try:
        raw = dumps(estimator)
    except (UnsupportedTypeException, TypeError, ValueError, RecursionError) as error:
        raise WireError(
            f"a {name} does not cross the wire ({type(error).__name__}): choose another estimator"
        ) from None
    with zipfile.ZipFile(io.BytesIO(raw)) as source:
        files = {entry: source.read(entry) for entry in source.namelist()}
    schema = json.loads(files.pop(_SCHEMA))
    if fitted:
        _strip(schema, files)
    data = _packed(schema, files)
    fault = archive_fault(data, fitted=fitted)
    if fault is not None:
        raise WireError(f"a {name} does not cross the wire: {fault}")
    return data


def read_archive(data: bytes) -> Any:
    """Build the estimator of an archive that `archive_fault` has found nothing in.

    Of a party that is not trusted only ever inside a bounded child process.
    """
    from skops.io import loads

    return loads(data, trusted=TRUSTED)


def _strip(schema: Any, files: dict[str, bytes]) -> None:
    """Put nothing where fitting left what prediction does not read."""
    for node in _nodes(schema):
        content = node.get("content")
        if node.get("__loader__") != "DictNode" or not isinstance(content, dict):
            continue
        for key, part in content.items():
            if key in _UNNEEDED or part.get("__loader__") in _GENERATORS:
                content[key] = _NOTHING
        if content.get("_fit_method") is not None:
            content["_fit_method"] = {**_NOTHING, "content": '"brute"'}
        kinds = content.get("is_categorical_")
        if "bin_thresholds_" in content and isinstance(kinds, dict) and "file" in kinds:
            # Borders of bins lie between neighbouring values: with few rows they tell them.
            flags = np.load(io.BytesIO(files[kinds["file"]]), allow_pickle=False)
            if not flags.any():
                content["bin_thresholds_"] = _NOTHING


def _packed(schema: Any, files: dict[str, bytes]) -> bytes:
    """Write schema and arrays with numbers in order of appearance instead of addresses."""
    numbers: dict[Any, int] = {}
    names: dict[str, str] = {}
    for node in _nodes(schema):
        if "__id__" in node:
            node["__id__"] = numbers.setdefault(node["__id__"], len(numbers) + 1)
        if isinstance(node.get("file"), str):
            node["file"] = names.setdefault(node["file"], f"{len(names)}.npy")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for old, new in names.items():
            _put(target, new, files[old])
        _put(target, _SCHEMA, json.dumps(schema, separators=(",", ":")).encode())
    return buffer.getvalue()


def _put(target: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    target.writestr(entry, content)


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every map of a schema, outer ones first, without recursion."""
    waiting = [schema]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting.extend(reversed(item.values()))
        elif isinstance(item, list):
            waiting.extend(reversed(item))


# --------------------------------------------------------------------------- suspicion


def archive_fault(data: bytes, *, fitted: bool = True) -> str | None:
    """What is wrong with an archive, in one phrase; nothing in it is built or imported.

    Parameters
    ----------
    data : bytes
    fitted : bool
        False for an estimator with settings only, which is built in the site's own process: small,
        and without objects that are made of memory as it is.
    """
    if len(data) > MAX_BYTES:
        return f"its archive is larger than {MAX_BYTES >> 20} MB"
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
            fault = _entries_fault(archive.infolist(), len(data), fitted)
            if fault is not None:
                return fault
            shapes = {}
            for name, entry in entries.items():
                if name != _SCHEMA:
                    with archive.open(entry) as stream:
                        shapes[name] = _array_fault(stream, entry.file_size)
            fault = next((fault for fault in shapes.values() if fault is not None), None)
            if fault is not None:
                return fault
            schema = archive.read(_SCHEMA)
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError, RuntimeError):
        return "its archive is damaged"
    except Exception as error:  # noqa: BLE001 - zlib.error, struct.error: whatever cannot be read
        return f"its archive cannot be read ({type(error).__name__})"
    loaders = {k: v for k, v in LOADERS.items() if fitted or k not in _FITTED}
    sizes = {name: entry.file_size for name, entry in entries.items()}
    return _schema_fault(schema, sizes, loaders)


def _entries_fault(entries: list[zipfile.ZipInfo], n_bytes: int, fitted: bool) -> str | None:
    names = {entry.filename for entry in entries}
    if len(entries) > MAX_ENTRIES:
        return "its archive has too many entries"
    if len(names) != len(entries) or _SCHEMA not in names:
        return "its archive is not one of an estimator"
    for entry in entries:
        if entry.filename != _SCHEMA and not _ARRAY.fullmatch(entry.filename):
            return "its archive holds something other than arrays"
        deflated = entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if entry.flag_bits & 0x1 or not deflated:
            return "its archive is packed in a way that is not read"
    unpacked = sum(entry.file_size for entry in entries)
    largest = MAX_UNPACKED if fitted else MAX_SPEC
    if unpacked > largest:
        return f"its archive unpacks to more than {largest >> 20} MB"
    # Entries that overlap are read more often than they are stored: the way of a ZIP bomb.
    if sum(entry.compress_size for entry in entries) > n_bytes:
        return "its archive is damaged"
    # Small archives may be as regular as they like.
    if unpacked > max(1 << 22, MAX_RATIO * n_bytes):
        return "its archive unpacks to far more than its size"
    if next(e for e in entries if e.filename == _SCHEMA).file_size > MAX_SCHEMA:
        return "the description of its parts is too large"
    return None


def _array_fault(stream: Any, size: int) -> str | None:
    """Whether an array is as large as its header says, and of plain numbers or texts."""
    shape, dtype, offset = _header(stream)
    n = 1
    for length in shape:
        n *= length
    if dtype.hasobject:
        return "its archive holds an array of objects"
    return None if offset + n * dtype.itemsize == size else "an array is not as large as it says"


def _header(stream: Any) -> tuple[tuple[int, ...], Any, int]:
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    shape, _, dtype = read(stream, max_header_size=MAX_HEADER)
    return shape, dtype, stream.tell()


def _schema_fault(
    text: bytes, sizes: dict[str, int], loaders: dict[str, frozenset[str]]
) -> str | None:
    # Depth is counted before parsing: a parser of JSON that recurses would stop the process.
    brackets = np.frombuffer(_TEXTS.sub(b"", text), dtype=np.uint8)
    opening = (brackets == ord("[")) | (brackets == ord("{"))
    closing = (brackets == ord("]")) | (brackets == ord("}"))
    depth = np.cumsum(opening.astype(np.int32) - closing.astype(np.int32))
    if len(depth) and depth.max() > MAX_DEPTH:
        return "the description of its parts is nested too deeply"
    try:
        schema = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        return "the description of its parts cannot be read"
    if not isinstance(schema, dict) or schema.get("__loader__") != "ObjectNode":
        return "its archive is not one of an estimator"
    read = 0
    for node in _nodes(schema):
        fault = _node_fault(node, sizes, loaders)
        if fault is not None:
            return fault
        read += sizes.get(node.get("file", ""), 0)
    if read > MAX_UNPACKED:
        return f"its arrays unpack to more than {MAX_UNPACKED >> 20} MB"
    return None


def _node_fault(
    node: dict[str, Any], sizes: dict[str, int], loaders: dict[str, frozenset[str]]
) -> str | None:
    """Whether a map of the schema names a type off the list, or an array that there is not."""
    if not isinstance(node.get("file", ""), str) or ("file" in node and node["file"] not in sizes):
        return "it names an array that there is not"
    marks = [node.get(key) for key in ("__loader__", "__module__", "__class__")]
    if "__loader__" in node or "__class__" in node:
        if not all(isinstance(mark, str) for mark in marks):
            return "the description of its parts cannot be read"
        loader, module, kind = marks
        # Names in the refusal come from elsewhere: only a short and plain one is repeated.
        shown = f"{module}.{kind}"[:80]
        shown = shown if re.fullmatch(r"[\w.]+", shown) else "of its parts"
        if f"{module}.{kind}" not in loaders.get(loader, frozenset()):  # type: ignore[arg-type]
            return f"type {shown} is not on the list"
        content = node.get("content")
        is_array = isinstance(content, dict) and content.get("__loader__") == "NdArrayNode"
        if loader == "DTypeNode" and not is_array:
            return "type of an array is not on the list"
        return None
    # Settings that ask for other processes or for files.
    for key in _SINGLE:
        part = node.get(key)
        if isinstance(part, dict) and part.get("content") not in ("null", "1"):
            return f"its setting {key} is not allowed"
    return None


def packages_of(data: bytes) -> tuple[str, ...]:
    """Parts of scikit-learn of which an archive without a fault has objects."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        schema = json.loads(archive.read(_SCHEMA))
    modules = (str(node.get("__module__")).split(".") for node in _nodes(schema))
    return tuple(sorted({".".join(m[:2]) for m in modules if m[0] == "sklearn"}))


def float_numbers(data: bytes) -> int:
    """Numbers in the fitted arrays of an archive, those inside trees left out."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        schema = json.loads(archive.read(_SCHEMA))
        counted: set[str] = set()
        waiting: list[Any] = [schema]
        while waiting:
            item = waiting.pop()
            if isinstance(item, list):
                waiting.extend(item)
            elif isinstance(item, dict) and item.get("__class__") not in _TREES:
                if isinstance(item.get("file"), str):
                    counted.add(item["file"])
                waiting.extend(item.values())
        total = 0
        for name in counted:
            with archive.open(name) as stream:
                shape, dtype, _ = _header(stream)
            if dtype.kind == "f":
                total += int(np.prod(shape))
    return total


_TREES = ("Tree", "TreePredictor", "_BinMapper")

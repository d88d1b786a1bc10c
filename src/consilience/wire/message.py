"""Messages: frozen dataclasses whose fields say what they disclose, their shape and who reads them.

A message is declared once and used by both ends::

    @message("mean-and-sd/sums", version=1)
    class Sums:
        n: Released = sends(Disclosure.AGGREGATE, kind="int", doc="rows at the site")
        total: Released = sends(Disclosure.AGGREGATE, ("p",), doc="column sums")

Fields that are not ``PUBLIC`` hold a :class:`~consilience.wire.disclosure.Released` value; the
codec accepts nothing else. Names in a shape ("p") bind to one length within a message.

The audience of a field says who reads it. Where it is a role (neither ``"coordinator"`` nor
``"all"`` nor ``"site"``), the coordinator only passes the field on, and a :class:`Sealed` value may
stand in its place (see ``wire.sealing``).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, TypeVar, dataclass_transform

import numpy as np

from consilience.exceptions import ProtocolError, WireError

Kind = Literal["float", "int", "bool", "str", "any"]
T = TypeVar("T")

OPEN_AUDIENCES = ("coordinator", "all", "site")
"""Audiences whose fields the coordinator reads; any other one is a role."""

_NAME = re.compile(r"[a-z][a-z0-9-]*(\.[a-z][a-z0-9-]*)?/[a-z][a-z0-9-]*")
_DTYPES = {"float": "f", "int": "iu", "bool": "b"}


class Disclosure(Enum):
    """What a field says about the records behind it."""

    PUBLIC = "public"
    """Known to everybody or chosen by nobody's data: names, settings, yes or no to a question."""
    AGGREGATE = "aggregate"
    """Counts and sums over records."""
    MODEL = "model"
    """Parameters of a fitted model, or its predictions at points that everybody knows."""
    PER_RECORD = "per-record"
    """A value for each record."""
    NOISED = "noised"
    """Values with noise of a stated epsilon."""


@dataclass(frozen=True)
class Sealed:
    """A value that one site has encrypted for another; made and opened by ``wire.sealing``.

    Attributes
    ----------
    sender, recipient : str
        Sites, as whoever carries the value may read them. Opening proves them.
    data : bytes
        Ciphertext.
    """

    sender: str
    recipient: str
    data: bytes = dataclasses.field(repr=False)


@dataclass(frozen=True)
class FieldSpec:
    """What a field of a message may hold.

    Attributes
    ----------
    disclosure : Disclosure
    shape : tuple of str or int, or str
        Dimensions of an array (``()`` is one scalar), or a phrase for a nested structure of
        dicts and tuples with arrays at its leaves.
    kind : {"float", "int", "bool", "str", "any"}
    audience : str
        ``"coordinator"``, ``"all"``, ``"site"`` (from the coordinator to one site) or a role.
    many : bool
        The field holds a tuple of such values; dimensions are not shared between them.
    gaps : bool
        NaN stands for cells that a site withheld. Otherwise every number must be finite.
    doc : str
        One phrase for the transcript and the docs.
    origin : str
        For a field that a coordinator passes on to a role: name of the message in which the value
        was sealed. No other message's value is opened there.
    """

    disclosure: Disclosure
    shape: tuple[str | int, ...] | str = ()
    kind: Kind = "float"
    audience: str = "coordinator"
    many: bool = False
    gaps: bool = False
    doc: str = ""
    origin: str = ""

    @property
    def for_role(self) -> bool:
        """Whether the audience is a role: the coordinator passes the field on unread."""
        return self.audience not in OPEN_AUDIENCES


def sends(
    disclosure: Disclosure,
    shape: tuple[str | int, ...] | str = (),
    *,
    kind: Kind = "float",
    audience: str = "coordinator",
    many: bool = False,
    gaps: bool = False,
    doc: str = "",
    origin: str = "",
) -> Any:
    """Declare a field of a message; see :class:`FieldSpec` for the arguments."""
    spec = FieldSpec(disclosure, shape, kind, audience, many, gaps, doc, origin)
    return dataclasses.field(metadata={"sends": spec})


@dataclass(frozen=True)
class MessageType:
    """Registered facts about a class of messages."""

    name: str
    version: int
    cls: type
    fields: dict[str, FieldSpec]


_REGISTRY: dict[str, MessageType] = {}


@dataclass_transform(frozen_default=True, field_specifiers=(sends,))
def message(name: str, *, version: int) -> Any:
    """Make a frozen dataclass a message and register it.

    Parameters
    ----------
    name : str
        ``"<method or phase>/<message>"``, lower case with hyphens; unique.
    version : int
        Raised whenever a field changes; another version is refused on arrival.

    Raises
    ------
    ProtocolError
        For a malformed or repeated name, or a field without ``sends(...)``.
    """
    if not _NAME.fullmatch(name):
        raise ProtocolError(f"message name {name!r} is not of the form 'method/message'")

    def register(cls: type[T]) -> type[T]:
        frozen = dataclass(frozen=True, eq=False)(cls)
        specs: dict[str, FieldSpec] = {}
        for field in dataclasses.fields(frozen):  # type: ignore[arg-type]
            spec = field.metadata.get("sends")
            if spec is None:
                raise ProtocolError(f"field {field.name!r} of message {name!r} lacks sends(...)")
            specs[field.name] = spec
        known = _REGISTRY.get(name)
        if known is not None and known.cls.__qualname__ != cls.__qualname__:
            raise ProtocolError(f"two messages are called {name!r}")
        _REGISTRY[name] = MessageType(name, version, frozen, specs)
        return frozen

    return register


def message_type(cls_or_name: type | str) -> MessageType:
    """Look up a message by class or name; `WireError` for an unknown one."""
    if isinstance(cls_or_name, str):
        if cls_or_name not in _REGISTRY:
            raise WireError(f"unknown message {cls_or_name[:80]!r}: is the package up to date?")
        return _REGISTRY[cls_or_name]
    for known in _REGISTRY.values():
        if known.cls is cls_or_name:
            return known
    raise ProtocolError(f"{cls_or_name.__name__} is not a registered message")


def registered() -> dict[str, MessageType]:
    """All messages that are registered so far, by name."""
    return dict(_REGISTRY)


def iterate_fields(msg: object) -> Iterator[tuple[str, FieldSpec, Any]]:
    """Yield name, declaration and content of each field, in declared order."""
    for name, spec in message_type(type(msg)).fields.items():
        yield name, spec, getattr(msg, name)


def check_shape(where: str, spec: FieldSpec, value: Any, dims: dict[str, int]) -> None:
    """Check a plain value against its declaration.

    Parameters
    ----------
    where : str
        Message and field, for the error.
    value : Any
        Plain value, after a Released one was opened. Where the audience is a role, a `Sealed` may
        stand for the whole of it, or for an item where there are `many`: what is inside is
        checked by whoever opens it.
    dims : dict
        Lengths bound so far in this message; extended in place.

    Raises
    ------
    WireError
        Wrong structure, dtype, shape, or a number that is not finite; a sealed value where the
        coordinator, every site or no site in particular is meant to read.
    """
    if isinstance(value, Sealed):
        if not spec.for_role:
            raise WireError(f"{where}: a sealed value in a field for {spec.audience!r}")
        return
    if spec.many:
        if not isinstance(value, tuple):
            raise WireError(f"{where}: a tuple was declared")
        inner = dataclasses.replace(spec, many=False)
        for item in value:
            check_shape(where, inner, item, {})
        return
    if holds_sealed(value):
        raise WireError(f"{where}: a sealed value inside another one")
    if isinstance(spec.shape, str):
        _check_leaves(where, spec, value)
        return
    if spec.shape == ():
        _check_scalar(where, spec, value)
        return
    if spec.kind == "str":
        _check_names(where, spec, value, dims)
        return
    if not isinstance(value, np.ndarray):
        raise WireError(f"{where}: an array was declared")
    if spec.kind != "any" and value.dtype.kind not in _DTYPES[spec.kind]:
        raise WireError(f"{where}: dtype {value.dtype} where {spec.kind} was declared")
    _bind(where, spec.shape, value.shape, dims)
    _check_finite(where, spec, value)


def holds_sealed(value: Any) -> bool:
    """Whether a plain value is sealed, or holds a sealed one."""
    if isinstance(value, dict):
        return any(holds_sealed(item) for item in value.values())
    if isinstance(value, tuple | list):
        return any(holds_sealed(item) for item in value)
    return isinstance(value, Sealed)


def _bind(
    where: str, declared: tuple[str | int, ...], found: tuple[int, ...], dims: dict[str, int]
) -> None:
    if len(declared) != len(found):
        raise WireError(f"{where}: {len(found)} dimensions where {len(declared)} were declared")
    for want, length in zip(declared, found, strict=True):
        expected = want if isinstance(want, int) else dims.setdefault(want, length)
        if expected != length:
            raise WireError(f"{where}: dimension {want!r} is {length}, expected {expected}")


def _check_scalar(where: str, spec: FieldSpec, value: Any) -> None:
    kinds = {"float": (float, int), "int": (int,), "bool": (bool,), "str": (str,)}
    if spec.kind == "any":
        return
    if not isinstance(value, kinds[spec.kind]) or (
        isinstance(value, bool) and spec.kind in ("float", "int")
    ):
        raise WireError(f"{where}: {type(value).__name__} where {spec.kind} was declared")
    if spec.kind == "float":
        _check_finite(where, spec, np.asarray(value, dtype=float))


def _check_names(where: str, spec: FieldSpec, value: Any, dims: dict[str, int]) -> None:
    if not isinstance(value, tuple) or not all(isinstance(v, str) for v in value):
        raise WireError(f"{where}: a tuple of texts was declared")
    _bind(where, tuple(spec.shape), (len(value),), dims)


def _check_finite(where: str, spec: FieldSpec, value: np.ndarray) -> None:
    if value.dtype.kind != "f":
        return
    bad = ~np.isfinite(value)
    if spec.gaps:
        bad &= ~np.isnan(value)
    if bad.any():
        raise WireError(f"{where}: numbers that are not finite")


def _check_leaves(where: str, spec: FieldSpec, value: Any) -> None:
    if isinstance(value, np.ndarray):
        _check_finite(where, spec, value)
    elif isinstance(value, float):
        _check_finite(where, spec, np.asarray(value))
    elif isinstance(value, dict):
        for item in value.values():
            _check_leaves(where, spec, item)
    elif isinstance(value, tuple):
        for item in value:
            _check_leaves(where, spec, item)

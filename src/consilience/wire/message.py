"""Messages: frozen dataclasses whose fields say what they disclose, their shape and who reads them.

A message is declared once and used by both ends::

    @message("mean-and-sd/sums", version=1)
    class Sums:
        n: Released = Aggregate("", "rows at the site", kind="int")
        total: Released = Aggregate("p", "column sums")

Fields that are not ``PUBLIC`` hold a :class:`~consilience.wire.disclosure.Released` value; the
codec accepts nothing else. Names in a shape ("p") bind to one length within a message.

A reply is judged by what its class declares and by nothing else (see ``codec.decode_reply``): a
name that its request declares too has the length that it has there, and some names stand for what
every run over rows knows: ``"p"`` prepared columns of ``"F"`` features, ``"K"`` declared levels of
the target, ``"S"`` of the states of a sequence. What follows from earlier replies of the same site
comes with the question (``Ask.known``). What keywords cannot say, a class says in a method::

    def check(self, request: Any, known: Mapping[str, Any]) -> str | None: ...

It returns what is wrong with the answer to a request, as a phrase without a value. Whatever it
stumbles over counts as wrong.

The audience of a field says who reads it. Where it is a role (neither ``"coordinator"`` nor
``"all"`` nor ``"site"``), the coordinator only passes the field on, and a :class:`Sealed` value may
stand in its place (see ``wire.sealing``).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Literal, TypeVar, dataclass_transform

import numpy as np

from consilience.exceptions import ProtocolError, WireError
from consilience.parameters import rules_of

Kind = Literal["float", "int", "bool", "str", "any"]
T = TypeVar("T")

OPEN_AUDIENCES = ("coordinator", "all", "site")
"""Audiences whose fields the coordinator reads; any other one is a role."""

_NAME = re.compile(r"[a-z][a-z0-9-]*(\.[a-z][a-z0-9-]*)?/[a-z][a-z0-9-]*")
_DTYPES = {"float": "f", "int": "iu", "bool": "b"}
_SCALARS: dict[str, tuple[type, ...]] = {
    "float": (float, int, np.integer, np.floating),
    "int": (int, np.integer),
    "bool": (bool,),
    "str": (str,),
}
_BARE = (str, float, int, bytes, np.ndarray)
_ROUNDING = 1e-6


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
    MASKED = "masked"
    """Part of a sum over sites, under masks that only the whole sum is without."""


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
    many : bool or str
        The field holds a tuple of such values; dimensions are not shared between them. A text
        names how many there are, like a dimension.
    gaps : bool
        NaN stands for cells that a site withheld. Otherwise every number must be finite.
    low, high : float
        Every number lies between them, both included.
    empty : bool
        An array without entries, of whatever shape, may stand in place of the declared one.
    gram : bool
        A square array is symmetric and, but for rounding, positive semidefinite; one with gaps
        has at least no product above what its diagonal allows.
    choices : tuple of str
        Texts are among these; any will do where none are named.
    parts : mapping of str to FieldSpec
        The field holds a dict with these keys, see `part`; lengths are shared with the message.
    others : bool
        Other keys may be there too.
    optional : bool
        Of a part: it may be missing.
    record : type or None
        The field holds settings: an object of this frozen dataclass, whose fields say what they
        may be (`parameters.allows`).
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
    many: bool | str = False
    gaps: bool = False
    doc: str = ""
    origin: str = ""
    low: float = -math.inf
    high: float = math.inf
    empty: bool = False
    gram: bool = False
    choices: tuple[str, ...] = ()
    parts: Mapping[str, FieldSpec] = dataclasses.field(default_factory=dict)
    others: bool = False
    optional: bool = False
    record: type | None = None

    @property
    def for_role(self) -> bool:
        """Whether the audience is a role: the coordinator passes the field on unread."""
        return self.audience not in OPEN_AUDIENCES

    @cached_property
    def of_one(self) -> FieldSpec:
        """Declaration of each of many values."""
        return dataclasses.replace(self, many=False)


def _declared(
    disclosure: Disclosure, shape: str, doc: str, *, to: str = "coordinator", **rules: Any
) -> Any:
    named = tuple(int(part) if part.isdigit() else part for part in shape.split())
    dims: tuple[str | int, ...] | str = shape[1:] if shape.startswith("*") else named
    spec = FieldSpec(disclosure, dims, audience=to, doc=doc, **rules)
    return dataclasses.field(metadata={"sends": spec})


def Public(shape: str = "", doc: str = "", **rules: Any) -> Any:
    """Declare a field of class `PUBLIC`: dimensions ("K p"), a phrase, rules of `FieldSpec`.

    A shape that begins with * is a phrase for a nested structure; `to` is the audience.
    """
    return _declared(Disclosure.PUBLIC, shape, doc, **rules)


def Aggregate(shape: str = "", doc: str = "", **rules: Any) -> Any:
    """Declare a field of class `AGGREGATE`; see `Public`."""
    return _declared(Disclosure.AGGREGATE, shape, doc, **rules)


def Model(shape: str = "", doc: str = "", **rules: Any) -> Any:
    """Declare a field of class `MODEL`; see `Public`."""
    return _declared(Disclosure.MODEL, shape, doc, **rules)


def PerRecord(shape: str = "", doc: str = "", **rules: Any) -> Any:
    """Declare a field of class `PER_RECORD`; see `Public`."""
    return _declared(Disclosure.PER_RECORD, shape, doc, **rules)


def Noised(shape: str = "", doc: str = "", **rules: Any) -> Any:
    """Declare a field of class `NOISED`; see `Public`."""
    return _declared(Disclosure.NOISED, shape, doc, **rules)


def Masked(shape: str = "", doc: str = "") -> Any:
    """Declare a field of class `MASKED`: limbs of numbers modulo 2^192 (``wire.secure_sums``)."""
    return _declared(Disclosure.MASKED, shape, doc, kind="int", low=0, high=2.0**64)


def states(record: type, *, to: str = "all", doc: str = "settings") -> Any:
    """Declare a field with the settings of a run, as an object of a frozen dataclass.

    Who receives it gets such an object again, of which every rule holds; what does not hold, or
    does not go together by the class's own ``__post_init__``, is refused.
    """
    spec = FieldSpec(Disclosure.PUBLIC, audience=to, doc=doc, record=record)
    return dataclasses.field(metadata={"sends": spec})


def part(shape: tuple[str | int, ...] | str = (), **rules: Any) -> FieldSpec:
    """Declare an entry of a field that is a dict; the field says what it discloses, and to whom."""
    return FieldSpec(Disclosure.PUBLIC, shape, **rules)


@dataclass(frozen=True)
class MessageType:
    """Registered facts about a class of messages."""

    name: str
    version: int
    cls: type
    fields: dict[str, FieldSpec]


_REGISTRY: dict[str, MessageType] = {}
_BY_CLASS: dict[type, MessageType] = {}


@dataclass_transform(
    frozen_default=True,
    field_specifiers=(Public, Aggregate, Model, PerRecord, Noised, Masked, states),
)
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
        For a malformed or repeated name, or a field that declares nothing.
    """
    if not _NAME.fullmatch(name):
        raise ProtocolError(f"message name {name!r} is not of the form 'method/message'")

    def register(cls: type[T]) -> type[T]:
        frozen = dataclass(frozen=True, eq=False)(cls)
        specs: dict[str, FieldSpec] = {}
        for field in dataclasses.fields(frozen):  # type: ignore[arg-type]
            spec = field.metadata.get("sends")
            if spec is None:
                raise ProtocolError(f"field {field.name!r} of message {name!r} declares nothing")
            specs[field.name] = spec
        # A module that is loaded again registers the same class once more: that is no clash.
        known = _REGISTRY.get(name)
        if known is not None and known.cls.__qualname__ != cls.__qualname__:
            raise ProtocolError(f"two messages are called {name!r}")
        if known is not None:
            _BY_CLASS.pop(known.cls, None)
        _REGISTRY[name] = _BY_CLASS[frozen] = MessageType(name, version, frozen, specs)
        return frozen

    return register


def message_type(cls_or_name: type | str) -> MessageType:
    """Look up a message by class or name; `WireError` for an unknown one."""
    if isinstance(cls_or_name, str):
        if cls_or_name not in _REGISTRY:
            raise WireError(f"unknown message {cls_or_name[:80]!r}: is the package up to date?")
        return _REGISTRY[cls_or_name]
    known = _BY_CLASS.get(cls_or_name)
    if known is not None:
        return known
    raise ProtocolError(f"{cls_or_name.__name__} is not a registered message")


def registered() -> dict[str, MessageType]:
    """All messages that are registered so far, by name."""
    return dict(_REGISTRY)


def iterate_fields(msg: object) -> Iterator[tuple[str, FieldSpec, Any]]:
    """Yield name, declaration and content of each field, in declared order."""
    for name, spec in message_type(type(msg)).fields.items():
        yield name, spec, getattr(msg, name)


def check_shape(
    where: str,
    spec: FieldSpec,
    value: Any,
    dims: dict[str, int],
    known: Mapping[str, int] | None = None,
) -> None:
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
    known : mapping, optional
        Lengths that hold for each of `many` values too.

    Raises
    ------
    WireError
        Wrong structure, dtype, shape, or a number that is not finite or out of its range; a sealed
        value where the coordinator, every site or no site in particular is meant to read.
    """
    if isinstance(value, Sealed):
        if not spec.for_role:
            raise fault(where, f"a sealed value in a field for {spec.audience!r}")
        return
    if spec.many:
        if not isinstance(value, tuple):
            raise fault(where, "a tuple was declared")
        if isinstance(spec.many, str):
            _bind(where, (spec.many,), (len(value),), dims)
        # Each item binds its own lengths: models of two sites need not have one size.
        for item in value:
            check_shape(where, spec.of_one, item, dict(known or {}))
        return
    if holds_sealed(value):
        raise fault(where, "a sealed value inside another one")
    if spec.record is not None:
        # The class is built from these by whoever decodes: no name too many, none too few.
        names = {field.name for field in dataclasses.fields(spec.record)}
        if not isinstance(value, dict) or set(value) != names:
            raise fault(where, "settings other than those that were declared")
        for name, rule in rules_of(spec.record).items():
            if not rule.holds(value[name]):
                raise fault(f"{where}.{name}", f"it must be {rule.words}")
        return
    if spec.parts:
        _check_parts(where, spec, value, dims, known)
        return
    if isinstance(spec.shape, str):
        _check_leaves(where, spec, value)
        return
    if spec.shape == ():
        _check_scalar(where, spec, value)
        return
    if spec.kind == "str":
        if not isinstance(value, tuple) or not all(isinstance(v, str) for v in value):
            raise fault(where, "a tuple of texts was declared")
        _bind(where, spec.shape, (len(value),), dims)
        _check_choices(where, spec, value)
        return
    if not isinstance(value, np.ndarray):
        raise fault(where, "an array was declared")
    if spec.kind != "any" and value.dtype.kind not in _DTYPES[spec.kind]:
        raise fault(where, f"dtype {value.dtype} where {spec.kind} was declared")
    # An abstention has no entries to compare, so its lengths bind nothing.
    if spec.empty and not value.size and value.ndim == len(spec.shape):
        return
    _bind(where, spec.shape, value.shape, dims)
    _check_numbers(where, spec, value)
    if spec.gram and not is_gram(value):
        raise fault(where, "products that no rows have")


def fault(where: str, what: str) -> WireError:
    """Error about a field; declarations are known to everybody, so everybody may read it."""
    return WireError(f"{where}: {what}", public=f"{where}: {what}")


def lengths_of(msg: object) -> dict[str, int]:
    """Lengths that a message gives to names of dimensions: of its arrays, and in `lengths`.

    A class whose settings are one text says what follows from them::

        def lengths(self) -> dict[str, int]: ...
    """
    stated = getattr(msg, "lengths", None)
    found: dict[str, int] = {} if stated is None else stated()
    for _, spec, content in iterate_fields(msg):
        value = getattr(content, "value", content)
        if isinstance(spec.many, str) and isinstance(value, tuple):
            found[spec.many] = len(value)
        if spec.many or isinstance(spec.shape, str):
            continue
        shape = value.shape if isinstance(value, np.ndarray) else ()
        if isinstance(value, tuple) and len(spec.shape) == 1:
            shape = (len(value),)
        pairs = zip(spec.shape, shape, strict=False)
        found |= {name: length for name, length in pairs if isinstance(name, str)}
    return found


def is_gram(matrix: np.ndarray, rounding: float = _ROUNDING) -> bool:
    """Whether a matrix, or each of several, can be that of the products of some columns.

    NaN marks what is withheld.

    Parameters
    ----------
    matrix : (..., q, q) array
    rounding : float
        Of correlations.
    """
    if matrix.ndim < 2 or matrix.shape[-2] != matrix.shape[-1]:
        return False
    # Products of real columns: squares on the diagonal, Cauchy-Schwarz beside it, no negative
    # eigenvalue.
    diagonal = np.nan_to_num(np.diagonal(matrix, axis1=-2, axis2=-1))
    if (diagonal < 0).any():
        return False
    root = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    with np.errstate(all="ignore"):
        unit = matrix / root[..., None, :] / root[..., :, None]
    gaps = np.isnan(matrix)
    told = np.where(gaps, 0.0, unit)
    turned = np.swapaxes(told, -2, -1)
    if (gaps != np.swapaxes(gaps, -2, -1)).any() or not (np.abs(told) <= 1 + rounding).all():
        return False
    if (np.abs(told - turned) > rounding).any():
        return False
    # Cells that are withheld can make an honest matrix indefinite.
    whole = told[~gaps.any(axis=(-2, -1))]
    if not whole.size:
        return True
    try:
        # Cholesky fails at an eigenvalue below zero; the ridge allows for rounding of honest sums.
        np.linalg.cholesky(whole + rounding * whole.shape[-1] * np.eye(whole.shape[-1]))
        return True
    except np.linalg.LinAlgError:
        return False


def holds_sealed(value: Any) -> bool:
    """Whether a plain value is sealed, or holds a sealed one."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return isinstance(value, Sealed)
    return any([holds_sealed(item) for item in value if not isinstance(item, _BARE)])


def _bind(
    where: str, declared: tuple[str | int, ...], found: tuple[int, ...], dims: dict[str, int]
) -> None:
    if len(declared) != len(found):
        raise fault(where, f"{len(found)} dimensions where {len(declared)} were declared")
    for want, length in zip(declared, found, strict=True):
        expected = want if isinstance(want, int) else dims.setdefault(want, length)
        if expected != length:
            # Neither length: some are numbers of people.
            raise fault(where, f"dimension {want!r} has another length than was declared")


def _check_scalar(where: str, spec: FieldSpec, value: Any) -> None:
    if spec.kind == "any":
        return
    number = spec.kind in ("float", "int")
    if not isinstance(value, _SCALARS[spec.kind]) or (number and isinstance(value, bool)):
        raise fault(where, f"{type(value).__name__} where {spec.kind} was declared")
    if number:
        _check_numbers(where, spec, np.asarray(value, dtype=float))
    _check_choices(where, spec, (value,))


def _check_choices(where: str, spec: FieldSpec, texts: tuple[Any, ...]) -> None:
    if spec.choices and not set(texts) <= set(spec.choices):
        raise fault(where, f"a text that is none of {', '.join(map(repr, spec.choices))}")


def _check_parts(
    where: str, spec: FieldSpec, value: Any, dims: dict[str, int], known: Mapping[str, int] | None
) -> None:
    if not isinstance(value, dict):
        raise fault(where, "a dict was declared")
    # What no part declares is held to the rules of the field as a whole.
    more = {name: item for name, item in value.items() if name not in spec.parts}
    if more and not spec.others:
        raise fault(where, "an entry that was not declared")
    _check_leaves(where, spec, more)
    for name, inner in spec.parts.items():
        if name in value:
            check_shape(f"{where}.{name}", inner, value[name], dims, known)
        elif not inner.optional:
            raise fault(where, f"no entry {name!r}")


def _check_numbers(where: str, spec: FieldSpec, value: np.ndarray) -> None:
    """Check that numbers are finite and in their range; gaps are neither."""
    if value.dtype.kind not in "fiu":
        return
    if value.dtype.kind == "f":
        # An infinity is refused even where gaps are allowed: only NaN stands for withheld.
        bad = ~np.isfinite(value)
        if spec.gaps:
            bad &= ~np.isnan(value)
        if bad.any():
            raise fault(where, "numbers that are not finite")
    if (value < spec.low).any() or (value > spec.high).any():
        between = f"between {spec.low:g} and {spec.high:g}"
        if math.isinf(spec.high):
            between = f"at {spec.low:g} or above"
        elif math.isinf(spec.low):
            between = f"at {spec.high:g} or below"
        raise fault(where, f"numbers that do not lie {between}")


def _check_leaves(where: str, spec: FieldSpec, value: Any) -> None:
    if isinstance(value, bool):
        return
    if isinstance(value, np.ndarray):
        _check_numbers(where, spec, value)
    elif isinstance(value, float | int):
        _check_numbers(where, spec, np.asarray(value, dtype=float))
    elif isinstance(value, dict | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            _check_leaves(where, spec, item)

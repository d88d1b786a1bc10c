"""The two files a person writes: ``study.toml``, shared by all, and ``site.toml``, which stays.

Both are read strictly: an unknown key is an error that names the closest known one, because a rule
with a slip in its name would otherwise be no rule.

Reference rows of a study: public rows in a file beside the study file.

Whoever starts the run reads them, in the columns into which all sites prepare their tables. Sites
never open the file: they know it by its hash, which is part of the study's.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import os
import re
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from consilience.exceptions import ConsilienceError, DataError, StudyError
from consilience.parameters import closest
from consilience.protocol.method import Columns, Preparation
from consilience.sites.encoding import feature_names
from consilience.sites.own_columns import SiteColumns, Unit
from consilience.sites.prepare import load_with_report
from consilience.sites.site_store import Hold
from consilience.sites.source import Source, expand, read_source
from consilience.wire.keys import KeyList, load_partner_key, parties

HASH_VERSION = "consilience-study-1"
RESERVED = frozenset({"all", "coordinator", "site", "third-party"})
THIRD_PARTY = "third-party"

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?")
_DEVICE = re.compile(r"(?i)(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?")

F = TypeVar("F", bound="_File")

_OTHER_KIND = {
    "Study": {"site file, not a study file": {"home", "source"}},
    "SiteFile": {"study file, not a site file": {"method", "sites"}},
}
"""What betrays that somebody gave the other kind of file."""


# --------------------------------------------------------------------------- reference rows

_SHA256 = re.compile(r"[0-9a-f]{64}")
_WORDS = (
    ("[source]", "[reference]"),
    ("the site file uses", "the study file uses"),
    (": a site needs at least one", ": give at least one"),
    (", list what stands for a missing value in [columns] missing_codes, or", ", or"),
    (", or list what stands for a missing value in [columns] missing_codes", ""),
    ("add it, or give its name there in [columns] rename", "add it under this name"),
)
"""What a site can do about its table and a study cannot do about reference rows."""


@dataclass(frozen=True, kw_only=True)
class Reference(Source):
    """The ``[reference]`` of a study file: a file as in ``[source]`` of a site file.

    Parameters
    ----------
    sha256 : str, optional
        Hash of the file's bytes. Where it is given, the study's hash is known without the file.

    Raises
    ------
    StudyError
        A setting is missing, unknown or contradicts another, or the rows are in a database.
    """

    sha256: str | None = None

    def __post_init__(self) -> None:
        """Check, in words about this section."""
        if self.path is None or self.url is not None or self.query is not None:
            raise StudyError(
                "[reference] needs the path of a file, whose content is part of the study: save "
                "the rows of a database in one"
            )
        try:
            super().__post_init__()
        except StudyError as error:
            raise type(error)(reworded(str(error))) from None
        if self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            raise StudyError(
                "[reference] sha256 is not a hash: give the 64 hexadecimal digits, in small "
                "letters, that 'sha256sum FILE' prints"
            )

    @property
    def file_name(self) -> str:
        """Name of the file, without where it is."""
        return PurePosixPath(str(self.path)).name


def reference_hash(reference: Reference, base: Path) -> str:
    """SHA-256 of the file's bytes, whatever the study file says that it is.

    Raises
    ------
    StudyError
        The file is missing or cannot be read.
    """
    try:
        path = base / expand(str(reference.path))
    except DataError as error:
        raise StudyError(reworded(str(error))) from None
    try:
        # Read in pieces: a reference file may be larger than the memory.
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StudyError(
            f"the reference file {path} cannot be read ({error.strerror}) and its content is part "
            "of the study: put it there, or write its sha256 into [reference]"
        ) from None


def reworded(sentence: str) -> str:
    """A sentence about a site's table, said of reference rows."""
    for old, new in _WORDS:
        sentence = sentence.replace(old, new)
    return sentence


# --------------------------------------------------------------------------- names


def check_name(kind: str, name: str) -> str:
    """Return a name of a study, site or run that is safe in paths and messages.

    Raises
    ------
    StudyError
        It is not 1 to 64 letters, digits, ``.``, ``_`` or ``-``, starting with a letter or digit;
        or it is reserved.
    """
    # Names become names of folders on every system, Windows included.
    fine = isinstance(name, str) and _NAME.fullmatch(name) is not None and ".." not in name
    if not fine:
        raise StudyError(
            f"{kind} name {str(name)[:80]!r} is not allowed: use 1 to 64 letters, digits, '.', '_' "
            "or '-', beginning with a letter or digit"
        )
    if name.lower() in RESERVED or _DEVICE.fullmatch(name):
        raise StudyError(f"{kind} name {name!r} is reserved: choose another one")
    return name


def _valid_name(kind: str) -> AfterValidator:
    return AfterValidator(lambda name: check_name(kind, name))


Name = Annotated[str, Field(min_length=1)]
# Written into the canonical text, and so into the hash: the identity, not who follows whom.
Keys = Annotated[KeyList, PlainValidator(KeyList.of), PlainSerializer(lambda keys: keys.identity)]
OneOrNoKeys = Annotated[
    KeyList | None,
    PlainValidator(lambda value: None if value is None else KeyList.of(value)),
    PlainSerializer(lambda keys: None if keys is None else keys.identity),
]
Parties = Annotated[tuple[KeyList, ...], PlainValidator(parties)]
SiteName = Annotated[str, _valid_name("site")]
Level = str | int | float | bool


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Data(_Strict):
    """``[data]``: columns by role."""

    features: tuple[Name, ...] = ()
    target: Name | None = None
    id: Name | None = None
    agent: Name | None = None
    entity: Name | None = None
    weight: Name | None = None
    offset: Name | None = None
    sequence: tuple[Name, ...] = ()
    levels: dict[Name, tuple[Level, ...]] = {}


class PreparationTable(_Strict):
    """``[preparation]``: rules that hold at every site."""

    missing: Literal["refuse", "complete-rows", "aggregated-mean", "indicator", "keep"] = "refuse"
    categorical: Literal["refuse", "treatment", "onehot"] = "refuse"
    indicators: dict[Name, tuple[Level, ...]] = {}
    standardize: Literal["none", "pooled", "site"] = "none"


class Sites(_Strict):
    """``[sites]``: who takes part.

    Attributes
    ----------
    names : tuple of str
    roles : dict of site to role
    quorum : int or None
        Sites that must answer; all by default.
    deadline : float
        Seconds that a site has for one answer.
    keys : dict of site to KeyList
    """

    names: tuple[SiteName, ...] = Field(min_length=1)
    roles: dict[str, Annotated[str, _valid_name("role")]] = {}
    quorum: int | None = Field(default=None, ge=1)
    deadline: float = Field(default=3600.0, gt=0)
    keys: dict[str, Keys] = {}

    @model_validator(mode="after")
    def _agrees(self) -> Sites:
        # Two folders that differ in capitals alone are one on some systems.
        folded = [name.lower() for name in self.names]
        for name in self.names:
            if folded.count(name.lower()) > 1:
                raise StudyError(
                    f"[sites] names site {name!r} twice, capitals aside: name each site once"
                )
        if self.quorum is not None and self.quorum > len(self.names):
            raise StudyError(
                f"[sites] quorum is {self.quorum}, more than the number of sites: lower it"
            )
        for table, given in (("roles", self.roles), ("keys", self.keys)):
            for name in given:
                if name not in self.names:
                    raise StudyError(
                        f"[sites] {table} names {name!r}, which is not among names"
                        f"{closest(name, self.names)}"
                    )
        return self


class Coordinator(_Strict):
    """``[coordinator]``: where the method runs, and its public key or keys."""

    at: str | None = None
    key: OneOrNoKeys = None


class Follows(_Strict):
    """``[follows]``: the run that this study goes on from."""

    run: Annotated[str, _valid_name("run")]


class Trust(_Strict):
    """``[trust]`` of a site file: public keys of coordinators that may ask."""

    coordinators: Parties = ()


class Retention(_Strict):
    """``[retention]`` of a site file: how long answers are kept to be given again.

    Attributes
    ----------
    days : int or None
        Days after the last question of a run; None keeps them until they are purged by hand.
    """

    days: int | None = Field(default=None, ge=1)


class Release(_Strict):
    """``[release]`` of a site file: which replies wait for the steward before they leave.

    Attributes
    ----------
    hold : bool or "per-record"
        True holds every reply, "per-record" those with values for each record.
    """

    hold: bool | Literal["per-record"] = False

    @property
    def held(self) -> Hold:
        """The same in one word."""
        if self.hold == "per-record":
            return "per-record"
        return "all" if self.hold else "none"


class Partners(_Strict):
    """``[partners]`` of a site file: the secret that the parties of a study over columns share.

    Attributes
    ----------
    key : str
        Path of the file that ``consilience site partner-key`` made; relative to the site file.
    """

    key: Name


class _File(_Strict):
    """A model read from a TOML file."""

    _path: Path | None = PrivateAttr(default=None)

    @classmethod
    def load(cls: type[F], path: str | Path) -> F:
        """Read a file.

        Raises
        ------
        StudyError
            The file is missing, is no TOML, or holds an unknown key or a wrong value.
        """
        path = Path(path)
        return cls.from_settings(_toml(path), where=str(path), path=path)

    @classmethod
    def from_settings(
        cls: type[F],
        settings: Mapping[str, Any],
        *,
        where: str = "the study",
        path: Path | None = None,
    ) -> F:
        """Build from the content of a file, whose relative paths start from where it is, if given.

        Raises
        ------
        StudyError
            Unknown key or wrong value.
        """
        for kind, keys in _OTHER_KIND.get(cls.__name__, {}).items():
            if keys <= set(settings):
                raise StudyError(f"{where} is a {kind}: give the other file")
        try:
            # Through JSON, so that lists become tuples and nothing else is converted.
            text = json.dumps(_days_of_keys(settings), default=_no_dates)
            model = cls.model_validate_json(text)
            model._path = path
            return model
        except ValidationError as error:
            sentence = _sentence(error, cls)
        except StudyError as error:
            sentence = str(error)
        raise StudyError(f"{where}: {sentence}")

    @property
    def where(self) -> str:
        """Beginning of a message about the file; empty where there is none."""
        return "" if self._path is None else f"{self._path}: "

    @property
    def path(self) -> Path | None:
        """Where the file is; None where there is none."""
        return self._path

    @property
    def base(self) -> Path:
        """Directory that relative paths start from."""
        return Path() if self._path is None else self._path.resolve().parent


class Study(_File):
    """A study file.

    Attributes
    ----------
    name, method : str
    parameters : dict
    partition : {"rows", "columns"}
    data, sites, coordinator, follows
        Tables of the file.
    preparation_table : PreparationTable
        ``[preparation]`` as written; `preparation` is what methods use.
    reference : Reference or None
        File of public rows, for methods that use reference rows; read by
        `read_reference`.
    seed : int or None
    sums : {"plain", "secure"}
        "secure": sites mask what they add to a sum over sites.
    """

    name: Annotated[str, _valid_name("study")]
    method: Name
    parameters: dict[str, Any] = {}
    partition: Literal["rows", "columns"] = "rows"
    data: Data
    preparation_table: PreparationTable = Field(
        default=PreparationTable(),
        validation_alias="preparation",
        serialization_alias="preparation",
    )
    sites: Sites
    coordinator: Coordinator = Coordinator()
    follows: Follows | None = None
    reference: Reference | None = None
    seed: int | None = Field(default=None, ge=0)
    sums: Literal["plain", "secure"] = "plain"

    _reference_hash: str | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _agrees(self) -> Study:
        at = self.coordinator.at
        if at is not None and at != THIRD_PARTY:
            site = at.removeprefix("site:")
            # A coordinator at a site sees what a coordinator sees: which site is the study's
            # decision.
            if not at.startswith("site:") or site not in self.sites.names:
                raise StudyError(
                    f"[coordinator] at is {at!r}: write 'third-party', or 'site:' and one of "
                    f"{', '.join(self.sites.names)}"
                )
        if self.partition == "rows":
            feature_names(self.columns, self.preparation)
        else:
            self._check_over_columns()
        return self

    def _check_over_columns(self) -> None:
        """Over columns: an id, one initiator, and no names of columns that only one party has."""
        if self.data.id is None:
            raise StudyError("a study over columns matches rows by id: set id in [data]")
        if self.columns.used() != (self.data.id,):
            raise StudyError(
                "[data] of a study over columns names the id only: each site lists its own "
                "features, target and levels in [columns] of its site file"
            )
        if self.reference is not None:
            raise StudyError(
                "in a study over columns no party knows the columns of all, so there are no "
                "reference rows: leave [reference] out"
            )
        if len(self.sites.names) < 2:
            raise StudyError("a study over columns needs at least two sites: add the partner's")
        roles = set(self.sites.roles.values())
        if not roles <= {"initiator", "partner"}:
            raise StudyError(
                "[sites] roles of a study over columns are 'initiator' and 'partner': correct them"
            )
        if sum(role == "initiator" for role in self.sites.roles.values()) != 1:
            raise StudyError(
                "a study over columns has one initiator, the site with the response: write "
                'roles = {SITE = "initiator"} in [sites]'
            )

    @property
    def columns(self) -> Columns:
        """Columns by role."""
        return Columns(**dict(self.data))

    @property
    def preparation(self) -> Preparation:
        """Rules of preparation."""
        return Preparation(**dict(self.preparation_table))

    @property
    def quorum(self) -> int:
        """Sites that must answer."""
        return len(self.sites.names) if self.sites.quorum is None else self.sites.quorum

    @property
    def coordinator_at(self) -> str:
        """``"third-party"``, or ``"site:NAME"``: by default the initiator over columns."""
        if self.coordinator.at is not None:
            return self.coordinator.at
        initiators = [s for s, role in self.sites.roles.items() if role == "initiator"]
        if self.partition == "columns" and len(initiators) == 1:
            return f"site:{initiators[0]}"
        return THIRD_PARTY

    @property
    def roles(self) -> dict[str, str]:
        """Role of each site; over columns whoever is not the initiator is a partner."""
        if self.partition == "rows":
            return dict(self.sites.roles)
        return {name: self.sites.roles.get(name, "partner") for name in self.sites.names}

    def canonical(self) -> str:
        """Content as JSON: the same whatever the order of keys, comments and blanks.

        Of a reference file it holds name and hash: what is in it counts, not where it is.

        Raises
        ------
        StudyError
            The reference file cannot be read, and the study does not say its hash.
        """
        content = {"": HASH_VERSION, **self.model_dump(mode="json", by_alias=True)}
        # Not null: studies without one keep the hash that they always had.
        if self.data.offset is None:
            del content["data"]["offset"]
        if self.sums == "plain":
            del content["sums"]
        if self.reference is None:
            del content["reference"]
        else:
            named = {"path": self.reference.file_name, "sha256": self.reference_hash()}
            content["reference"] |= named
            # As of the offset.
            for setting, usual in (("sheet", None), ("labels", True)):
                if content["reference"][setting] == usual:
                    del content["reference"][setting]
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)

    def reference_hash(self) -> str:
        """SHA-256 of the reference file: as the study says, else of the file when first asked.

        Raises
        ------
        StudyError
            The study has no reference, or the file cannot be read.
        """
        if self.reference is None:
            raise StudyError("the study has no reference rows: add a [reference] section")
        if self.reference.sha256 is not None:
            return self.reference.sha256
        if self._reference_hash is None:
            self._reference_hash = reference_hash(self.reference, self.base)
        return self._reference_hash

    def hash(self) -> str:
        """SHA-256 of the canonical content."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    @classmethod
    def from_canonical(cls, text: str) -> Study:
        """Read `canonical` back; `StudyError` for anything else."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict) or content.pop("", None) != HASH_VERSION:
            raise StudyError("a study that is not in its canonical form")
        study = cls.from_settings(content)
        if study.reference is not None and study.reference.sha256 is None:
            # Nobody who is told a study opens a file for it.
            raise StudyError("a study that is not in its canonical form")
        return study


class SiteFile(_File):
    """A site file. It never leaves the site.

    Attributes
    ----------
    name : str
    home : str
        Directory of the site's own records; see `home_path`.
    source : Source
    columns : SiteColumns
    policy : dict
        As written; read by the policy.
    trust : Trust
    partners : Partners or None
    retention : Retention
    release : Release
    """

    name: SiteName
    home: Name
    source: Source
    columns: SiteColumns = SiteColumns()
    policy: dict[str, Any] = {}
    trust: Trust = Trust()
    partners: Partners | None = None
    retention: Retention = Retention()
    release: Release = Release()

    def partner_key(self) -> bytes:
        """Secret that the parties share; empty where the file names none.

        Raises
        ------
        StudyError
            The file of the key is missing, readable by others, or no such key.
        """
        return b"" if self.partners is None else load_partner_key(self._path_of(self.partners.key))

    @property
    def home_path(self) -> Path:
        """The site's home; relative paths start from the site file.

        Raises
        ------
        StudyError
            The path uses an environment variable that is not set.
        """
        return self._path_of(self.home)

    def _path_of(self, text: str) -> Path:
        try:
            return Path(os.path.normpath(self.base / expand(text)))
        except DataError as error:
            raise StudyError(str(error)) from None


# --------------------------------------------------------------------------- one sentence


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StudyError(f"there is no file {path}: check the path") from None
    except (OSError, UnicodeDecodeError):
        raise StudyError(f"{path} cannot be read as a text file: check the path") from None
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{path} is not valid TOML: {error}") from None
    except RecursionError:
        raise StudyError(f"{path} is nested too deeply: check the file") from None


def _no_dates(value: object) -> Any:
    raise StudyError(f"a {type(value).__name__} is not allowed here: write it in quotes")


def _days_of_keys(value: Any) -> Any:
    """The same with ``until`` of keys as text: the one place where a file may hold a date."""
    if isinstance(value, Mapping):
        inner = {name: _days_of_keys(one) for name, one in value.items()}
        # A date and a time is another type of TOML, and no day.
        if type(inner.get("until")) is datetime.date and "key" in inner:
            inner["until"] = inner["until"].isoformat()
        return inner
    if isinstance(value, list | tuple):
        return [_days_of_keys(one) for one in value]
    return value


def _sentence(error: ValidationError, model: type[BaseModel]) -> str:
    """First mistake of a file, in words."""
    found = error.errors(include_url=False, include_context=True)
    # A misspelt key is also a missing one: its own mistake says more.
    unknown = [one for one in found if one["type"] in _UNKNOWN_KEY]
    first = (unknown or found)[0]
    place = [str(part) for part in first["loc"]]
    kind = first["type"]
    if kind in _UNKNOWN_KEY:
        known = _known_keys(model, place[:-1])
        where = f" in [{'.'.join(place[:-1])}]" if place[:-1] else ""
        return f"key {place[-1]!r} is not known{where}{closest(place[-1], known)}"
    # What pydantic adds for unions and positions in lists is no part of a key.
    parts = [part for part in place if not part.isdigit() and part not in _UNION_PARTS]
    key = ".".join(parts) or model.__name__
    if kind in ("missing", "missing_argument"):
        return f"key {key!r} is missing: add it"
    context = first.get("ctx", {})
    if "error" in context and isinstance(context["error"], ConsilienceError):
        return str(context["error"])
    message = first["msg"][:1].lower() + first["msg"][1:]
    for term, plain in _PLAIN_TERMS.items():
        message = message.replace(term, plain)
    return f"key {key!r}: {message}"


_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
_PLAIN_TERMS = {
    "a valid array": "a list",
    "an object": "a table",
    "a valid string": "text",
    "a valid integer": "a whole number",
    "a valid boolean": "true or false",
    "tuple": "list",
    " after validation, not 0": "",
}
_UNION_PARTS = frozenset({"str", "int", "float", "bool", "tuple[union[str,int,float],...]"})


def _known_keys(model: type[BaseModel], place: list[str]) -> list[str]:
    """Keys that a table of a file may hold."""
    current: Any = model
    for part in place:
        if isinstance(current, type) and issubclass(current, BaseModel):
            names = {
                info.validation_alias or key: info for key, info in current.model_fields.items()
            }
            annotation: Any = names[part].annotation if part in names else None
            # The model behind ``Model | None``.
            options = [a for a in typing.get_args(annotation) if a is not type(None)]
            current = options[0] if options else annotation
        else:
            current = Unit if part == "units" or current is Unit else None
    if current is None:
        return []
    if dataclasses.is_dataclass(current):
        return [f.name for f in dataclasses.fields(current)]
    return [str(info.validation_alias or key) for key, info in current.model_fields.items()]


@dataclass(frozen=True, eq=False)
class ReferenceRows:
    """Reference rows in the prepared columns, not standardised.

    Attributes
    ----------
    names : tuple of str
        Columns after preparation, as at every site.
    rows : (m, p) array
        NaN where a cell is missing and the study fills such cells with pooled means.
    rows_read : int
        Rows of the file; those with a missing cell are left out where the study keeps complete
        rows only.
    description : str
    content_hash : str
        SHA-256 of the file's bytes.
    """

    names: tuple[str, ...]
    rows: NDArray[np.float64]
    rows_read: int
    description: str
    content_hash: str

    def plain(self) -> tuple[tuple[float, ...], ...]:
        """The rows as a parameter of a method."""
        return tuple(tuple(row) for row in self.rows.tolist())


def read_reference(study: Study) -> ReferenceRows:
    """Read the reference rows of a study, prepared as its sites prepare their tables.

    The file needs the columns of the features, under the names of the study; others are ignored.

    Parameters
    ----------
    study : Study
        With a ``[reference]``.

    Raises
    ------
    StudyError
        The study has no reference rows or no features, or the file is not the one that it names.
    DataError
        The file cannot be read, or does not fit the columns and rules of the study.
    """
    if study.reference is None:
        raise StudyError("the study has no reference rows: add a [reference] section")
    if not study.data.features:
        raise StudyError("reference rows are rows of the features: name them in [data] features")
    try:
        table = read_source(study.reference, study.base)
    except DataError as error:
        raise DataError(reworded(str(error))) from None
    # By content: a file with the right name may be another one, and the study's hash would not show
    # it.
    if table.content_hash != study.reference_hash():
        raise StudyError(
            f"{table.description} is not the reference file of this study, whose SHA-256 begins "
            f"{study.reference_hash()[:12]}: put that file back, or correct sha256 in [reference]"
        )
    # Reference rows are nobody's records: they need no outcome, no id and no weight.
    columns = dataclasses.replace(study.columns.only(()), id=None)
    try:
        loaded = load_with_report(table, columns, study.preparation)
    except DataError as error:
        raise DataError(f"reference rows: {reworded(str(error))}") from None
    for column in loaded.report.columns:
        if column.n_foreign:
            raise DataError(
                f"reference rows: column {column.name!r} holds values outside the declared levels "
                f"in {column.n_foreign} rows of {table.description}: leave these rows out, or "
                "declare all levels in [data.levels]"
            )
    return ReferenceRows(
        names=loaded.data.feature_names,
        rows=loaded.data.features,
        rows_read=table.n_rows,
        description=table.description,
        content_hash=table.content_hash,
    )

"""How a site's columns differ from the study's: the ``[columns]`` of a site file.

`propose` says which columns of a table a site could offer to studies.
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import BoolArray as Mask
from consilience.exceptions import DataError, ParameterError, StudyError
from consilience.protocol.method import Columns, Preparation
from consilience.sites.encoding import is_number, match, plain_text
from consilience.sites.source import Table

EVERY = "*"
NUMBER, ID, NONE = "number", "id", "none"
Offer = Literal["number", "id", "none"] | tuple[str | int | float | bool, ...]


@dataclass(frozen=True, kw_only=True)
class Unit:
    """How a site's unit becomes the study's: ``value * scale + offset``."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.scale) or self.scale == 0:
            raise ParameterError.of("[columns] units scale", "a number other than 0", self.scale)
        if not math.isfinite(self.offset):
            raise ParameterError.of("[columns] units offset", "a finite number", self.offset)


@dataclass(frozen=True, kw_only=True)
class LongColumns:
    """Columns of a table with one row for each person and time, by their names there."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    id: str
    time: str
    state: str

    def __post_init__(self) -> None:
        # One column cannot be two of them: a time that is also the state tells nothing of either.
        if len({self.id, self.time, self.state}) < 3:
            raise StudyError("[columns] long needs three different columns: id, time and state")


@dataclass(frozen=True, kw_only=True)
class SiteColumns:
    """How a site's columns differ from the study's: the ``[columns]`` of a site file.

    Parameters
    ----------
    rename : mapping of str to str
        ``{study name: name in the site's table}``.
    units : mapping of str to Unit
        By study name.
    missing_codes : mapping of str to value or sequence of values
        By study name; ``"*"`` is every column. An empty cell is always missing.
    recode : mapping of str to mapping of value to value
        By study name: what the site writes and what the study calls it, as ``{"m": "male"}``.
        Values that are not named stay as they are. Offered levels, and those of the study, are the
        new ones; missing codes are values as they stand in the table.
    features, target, weight, cluster, offset, levels
        This site's own columns by role, for studies over columns: such a study names only the id,
        because no party is told the names of another's columns.
    bounds : mapping of str to (low, high)
        Limits of a column that hold by its meaning, never taken from the data; cells beyond them
        are cut where a method adds noise.
    long : LongColumns, optional
        The table has one row for each person and time, see ``sites.source_long``.
    offered : mapping of str to "number", "id", "none" or levels, optional
        By study name: the columns that studies over rows may name, and as what. A number may be a
        feature, target or weight; a column with levels these, a part of a sequence, and its levels
        indicators; an id may be the id, the agent or the entity, and never a feature. ``"*"`` holds
        for all columns that are not named. None (unless given) offers all columns.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    rename: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, Unit] = field(default_factory=dict)
    missing_codes: Mapping[str, str | int | float | tuple[str | int | float, ...]] = field(
        default_factory=dict
    )
    recode: Mapping[str, Mapping[str, str | int | float]] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    target: str | None = None
    weight: str | None = None
    cluster: str | None = None
    offset: str | None = None
    levels: Mapping[str, tuple[str | int | float | bool, ...]] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    long: LongColumns | None = None
    offered: Mapping[str, Any] | None = None  # `_offer` says in one sentence what is wrong

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))
        if self.offered is not None:
            offered = {name: _offer(name, what) for name, what in self.offered.items()}
            object.__setattr__(self, "offered", offered)
        for name, (low, high) in self.bounds.items():
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ParameterError.of(
                    f"[columns] bounds of {name}",
                    "two finite numbers, the lower one first",
                    (low, high),
                )
        codes = {
            name: tuple(
                plain_text(v) for v in (given if isinstance(given, list | tuple) else (given,))
            )
            for name, given in self.missing_codes.items()
        }
        units = {
            name: Unit(**unit) if isinstance(unit, Mapping) else unit
            for name, unit in self.units.items()
        }
        locals_ = list(self.rename.values())
        twice = [name for name in locals_ if locals_.count(name) > 1]
        if twice:
            raise StudyError(f"[columns] rename gives the site's column {twice[0]!r} two names")
        recode = {
            name: {old: plain_text(new) for old, new in given.items()}
            for name, given in self.recode.items()
        }
        object.__setattr__(self, "rename", dict(self.rename))
        object.__setattr__(self, "recode", recode)
        object.__setattr__(self, "missing_codes", codes)
        object.__setattr__(self, "units", units)

    def merged(self, columns: Columns, partition: str) -> Columns:
        """Roles at this site: over columns its own features, target and so on.

        Raises
        ------
        StudyError
            A study over columns finds no features here.
        """
        # Over rows all sites have the same columns: the study names them.
        if partition == "rows" or columns.features:
            return columns
        if not self.features:
            raise StudyError(
                "the site lists no features: a study over columns needs them in [columns] of the "
                "site file",
                public="the site lists no features",
            )
        own: dict[str, Any] = dict(self.levels)
        return dataclasses.replace(
            columns,
            features=self.features,
            target=self.target,
            weight=self.weight,
            cluster=self.cluster,
            offset=self.offset,
            levels=own,
        )

    def offer(self, name: str) -> str | tuple[str, ...]:
        """As what a study over rows may name a column: a number, an id, nothing, or levels."""
        given: Mapping[str, Any] = {} if self.offered is None else self.offered
        found: str | tuple[str, ...] = given.get(name, given.get(EVERY, NONE))
        return found

    def check_offer(self, columns: Columns, preparation: Preparation) -> None:
        """Check that a study over rows names nothing but what is on offer, in its role.

        The answer depends on the site file alone, so that it tells nothing of the table.

        Raises
        ------
        DataError
        """
        # No list, no limit: loaders see that a strict policy has one.
        if self.offered is None:
            return
        measured = (*columns.features, columns.target, columns.weight, columns.offset)
        for name in columns.used():
            offer = self.offer(name)
            named_as_id = name in (columns.id, columns.agent, columns.entity)
            levels = columns.levels.get(name, ())
            wanted = tuple(plain_text(v) for v in preparation.indicators.get(name, ()))
            # Indicators make 0/1 columns of single values; without them a column without levels is
            # a number.
            as_number = name in measured and not levels and not all(map(is_number, wanted))
            as_number |= name in measured and not levels and not wanted
            rule = ""
            advice = ": add it to [columns.offered] of the site file if studies may use it so"
            if offer == NONE:
                rule = "the site does not offer it"
            elif name in self.rename.values() and name not in self.rename:
                rule = "the site offers it by another name"
            elif named_as_id and offer != ID:
                rule = "the site does not offer it as an id"
            elif offer == ID and (name in measured or name in columns.sequence):
                rule = "the site offers it as an id only"
            elif isinstance(offer, str) and (levels or wanted or name in columns.sequence):
                rule = "the site does not offer its values as levels"
            elif isinstance(offer, tuple) and wanted and -2 in match(wanted, offer):
                rule = "an indicator is of a value that the site does not offer"
            elif isinstance(offer, tuple) and as_number and not all(map(is_number, offer)):
                rule = "the site offers it by its levels, not as a number"
                rule, advice = f"{rule}: declare them in [data] levels", ""  # for the study's eyes
            near = [other for other, what in self.offered.items() if what != NONE and other != "*"]
            close = difflib.get_close_matches(name, near, n=1, cutoff=0.8)
            if offer == NONE and name not in self.offered and close:
                advice = f": did you mean {close[0]!r}, which is on offer?"
            if rule:
                raise DataError(f"column {name!r}: {rule}{advice}", public=f"column {name}: {rule}")

    def local(self, name: str) -> str:
        """Name of a study's column in the site's table."""
        return self.rename.get(name, name)

    def recoded(self, table: Table) -> Table:
        """The site's table with its values as the study writes them.

        Raises
        ------
        StudyError
            A column is recoded that is not there, or holds neither texts nor numbers.
        """
        for name, values in self.recode.items():
            local = self.local(name)
            if local not in table.names:
                raise StudyError(f"[columns] recode names {name!r}, which is no column: correct it")
            if table.kind(local) not in ("text", "number", "boolean"):
                raise StudyError(
                    f"[columns] recode names {name!r}, a column of type {table.kind(local)}: only "
                    "texts and numbers can be recoded"
                )
            # A code is looked for in the table, so what stands for missing is not renamed.
            codes = self.codes(name)
            kept = {old: str(new) for old, new in values.items() if old not in codes}
            numbers = {float(old): new for old, new in kept.items() if is_number(old)}
            positions, texts = table.categories(local)
            found = [
                kept.get(text, numbers.get(float(text), text) if is_number(text) else text)
                for text in texts
            ]
            table = table.with_texts(local, positions, found)
        return table

    def renamed(self, table: Table) -> Table:
        """The site's table with its columns called as the study calls them.

        Raises
        ------
        StudyError
            A column is renamed that is not there, or gets the name of another one.
        """
        for name, local in self.rename.items():
            if local not in table.names:
                raise StudyError(
                    f"{local!r}, which is to be {name!r}, is no column: it has "
                    f"{', '.join(table.names)}"
                )
        study = {local: name for name, local in self.rename.items()}
        names = [study.get(local, local) for local in table.names]
        if twice := [name for name in names if names.count(name) > 1]:
            raise StudyError(f"two columns would be called {twice[0]!r}: rename the other one, too")
        return dataclasses.replace(table, frame=table.frame.rename_columns(names))

    def codes(self, name: str) -> tuple[str, ...]:
        """Missing codes of a study's column."""
        given: Mapping[str, Any] = self.missing_codes
        return (*given.get(EVERY, ()), *given.get(name, ()))


def check_own_roles(columns: Columns, role: str) -> None:
    """Check that a partner names no column that belongs to the response.

    Raises
    ------
    StudyError
    """
    for name in ("cluster", "offset"):
        if role != "initiator" and getattr(columns, name) is not None:
            raise StudyError(
                f"a partner's columns name the {name}: the initiator, and nobody else, has one"
            )


def _offer(name: str, what: Any) -> Any:
    """The same with levels as texts.

    Raises
    ------
    ParameterError
    """
    if isinstance(what, list | tuple) and all(isinstance(v, str | int | float) for v in what):
        levels = tuple(plain_text(value) for value in what)
        if len(set(levels)) == len(levels) > 0:
            return levels
    elif what in (NUMBER, ID, NONE):
        return what
    raise ParameterError.of(
        f"[columns] offered {name}", '"number", "id", "none" or a list of different levels', what
    )


# -------------------------------------------------------------------------------- columns to offer

MAX_LEVELS = 30
"""Different values from which on a column of numbers is measured, and one of texts too fine."""


@dataclass(frozen=True)
class Proposal:
    """What a site could offer.

    Attributes
    ----------
    offered : dict of str to "number" or levels
        By study name.
    left_out : dict of str to str
        Columns that are not offered, each with its reason.
    rare : dict of str to int
        Levels of offered columns that too few rows have, how many there are.
    alike : dict of str to str
        Offered columns of texts that hardly differ from an earlier one, as times of a sequence may.
    codes : dict of str to tuple of int
        Numbers that seem to stand for a missing value, and are none of the site's missing codes.
    """

    offered: dict[str, Offer]
    left_out: dict[str, str]
    rare: dict[str, int]
    alike: dict[str, str]
    codes: dict[str, tuple[int, ...]]

    def to_toml(self) -> str:
        """As a section that can be added at the end of a site file."""
        lines = ["[columns.offered]"]
        for name, offer in self.offered.items():
            n = self.rare.get(name, 0)
            notes = [f"without {n} rarer value{'s' * (n > 1)}"] if n else []
            if name in self.alike:
                notes.append(f"{self.alike[name]}: unless they are times, offer one of them")
            note = "".join(f" # {one}" for one in notes)
            lines.append(f"{toml_key(name)} = {toml_value(offer)}{note}")
        for name, codes in self.codes.items():
            lines.append(
                f"# {toml_key(name)}: {' and '.join(map(str, codes))} far beyond all other "
                "numbers: list it in [columns] missing_codes if it stands for a missing value"
            )
        for name, reason in self.left_out.items():
            lines.append(f"# {toml_key(name)}: {reason}")
        return "\n".join(lines) + "\n"


def propose(table: Table, own: SiteColumns, min_records: int) -> Proposal:
    """Propose an offer of the columns of a table.

    Numbers that vary are offered as numbers; what has few different values by those that at least
    `min_records` rows have, in this column or in another one with some of the same texts (as the
    columns of a sequence have). Ids, columns with a value of its own for each row that are no
    measurements, and dates are left out; so is a column that hardly differs from an earlier one.

    Parameters
    ----------
    table : Table
    own : SiteColumns
        Names and missing codes of the site.
    min_records : int
        Of the site's policy.
    """
    study_name = {local: name for name, local in own.rename.items()}
    table = own.recoded(table)
    proposal = Proposal({}, {}, {}, {}, {})
    texts: dict[str, dict[str, Mask]] = {}
    for local in table.names:
        name = study_name.get(local, local)
        if table.kind(local) not in ("text", "number", "boolean"):
            proposal.left_out[name] = f"of type {table.kind(local)}"
            continue
        positions, values = table.categories(local, own.codes(name))
        found = {value: positions == i for i, value in enumerate(values)}
        found = {value: rows for value, rows in found.items() if rows.any()}
        if all(is_number(_point(value, table)) for value in found):
            if codes := suspected_codes(table.numbers(local, own.codes(name))[0]):
                proposal.codes[name] = codes
            _propose_number(proposal, name, found, min_records, table)
        elif len(found) > MAX_LEVELS:
            proposal.left_out[name] = f"more than {MAX_LEVELS} different texts: {_BY_HAND}"
        else:
            texts[name] = found
    anywhere: dict[str, Mask] = {}
    for found in texts.values():
        for value, rows in found.items():
            anywhere[value] = anywhere.get(value, False) | rows
    # A state that is rare at one time of a sequence and common at another is no rare one.
    common = {value for value, rows in anywhere.items() if rows.sum() >= min_records}
    for name, found in texts.items():
        _propose_levels(proposal, name, sorted(found), common, min_records)
    local_name = {name: local for local, name in study_name.items()}
    parted = {
        name: _parts(table, local_name.get(name, name), own.codes(name), offer, min_records)
        for name, offer in proposal.offered.items()
    }
    for name, other in nearly_equal(parted, min_records).items():
        same = f"as {toml_key(other)} in all but fewer than {min_records} rows"
        offer = proposal.offered[name]
        if not isinstance(offer, str) and any(isinstance(value, str) for value in offer):
            proposal.alike[name] = same
        else:
            proposal.offered.pop(name)
            proposal.left_out[name] = f"{same}, of which studies of both would tell"
    return proposal


def _parts(
    table: Table, local: str, codes: tuple[str, ...], offer: Offer, least: int
) -> list[NDArray[Any]]:
    """Numbers of a column, or the rows of each level (or their complement: it parts them alike)."""
    if isinstance(offer, str):
        return [table.numbers(local, codes)[0]]
    positions, _ = table.categories(local, codes)
    # Rare levels are not offered, so they part no rows that a study could ask for.
    values = np.flatnonzero(np.bincount(positions[positions >= 0]) >= least)
    sets = [positions == value for value in values]
    return [rows ^ rows[0] for rows in sets if (~rows).sum() >= least]


def nearly_equal(columns: Mapping[str, Sequence[NDArray[Any]]], least: int) -> dict[str, str]:
    """Find columns that differ from an earlier one in fewer than `least` rows, or in none.

    Sums over one and over the other then differ by those of these people. Rows are dealt into
    2 `least` heaps: nearly equal columns are equal in more than half of them.

    Parameters
    ----------
    columns : mapping of str to sequence of (n,) arrays
        Numbers or sets of rows.
    least : int

    Returns
    -------
    dict of str to str
        The later column and the earlier one.
    """
    seen: dict[tuple[int, bytes], list[tuple[str, NDArray[Any]]]] = {}
    found: dict[str, str] = {}
    for name, arrays in columns.items():
        # Pigeonholes: columns that differ in fewer than `least` rows agree wholly in some of 2
        # `least` heaps.
        keys = [[(h, a[h :: 2 * least].tobytes()) for h in range(2 * least)] for a in arrays]
        for array, own in zip(arrays, keys, strict=True):
            for earlier, other in (pair for key in own for pair in seen.get(key, ())):
                same = (array == other) | ((array != array) & (other != other))
                if name not in found and (~same).sum() < least:
                    found[name] = earlier
        for array, own in zip(arrays, keys, strict=True):
            for key in own if name not in found else ():
                seen.setdefault(key, []).append((name, array))
    return found


def _point(value: str, table: Table) -> str:
    """A number of a text file with the decimal mark of Python."""
    return value.replace(",", ".") if table.decimal == "," else value


CODES = (99, 999, 9999, 99999, 999999, 888, 8888, 777, 7777, -9, -99, -999, -9999)
"""Numbers that often stand for a missing value. Not -1 or 9, which may well be measured."""


def suspected_codes(values: NDArray[np.float64]) -> tuple[int, ...]:
    """Usual codes for missing values that lie far beyond all other numbers of a column.

    One that is negative where no other number is, or farther from the others than these are from
    one another, and that at least two rows have.

    Parameters
    ----------
    values : (n,) float array
        Missing ones are NaN.

    Returns
    -------
    tuple of int
    """
    others = values[np.isfinite(values) & ~np.isin(values, CODES)]
    if not len(others):
        return ()
    low, high = others.min(), others.max()
    far = [c for c in CODES if max(low - c, c - high) > high - low > 0 or c < 0 <= low < high]
    # Two rows at least: one alone may be a slip, and few beside many are no codes.
    return tuple(sorted(c for c in far if 2 <= np.count_nonzero(values == c) < len(others)))


def _propose_number(
    to: Proposal, name: str, found: dict[str, Mask], min_records: int, table: Table
) -> None:
    # A level is compared as text where it has a decimal comma: "4,0" would be none.
    whole = all(float(_point(v, table)).is_integer() and v == _point(v, table) for v in found)
    if not found:
        to.left_out[name] = "no values"
    elif whole and len(found) <= MAX_LEVELS:
        common = {value for value, rows in found.items() if rows.sum() >= min_records}
        _propose_levels(to, name, sorted(found, key=float), common, min_records)
    # A whole number of its own for each row is no measurement: it names its row.
    elif whole and all(rows.sum() == 1 for rows in found.values()):
        to.left_out[name] = f"a whole number of its own in each row, as ids have: {_BY_HAND}"
    else:
        to.offered[name] = "number"


def _propose_levels(
    to: Proposal, name: str, values: list[str], common: set[str], min_records: int
) -> None:
    kept = [value for value in values if value in common]
    if not kept:
        to.left_out[name] = f"no value that {min_records} rows have"
        return
    to.offered[name] = tuple(_plain(value) for value in kept)
    if len(kept) < len(values):
        to.rare[name] = len(values) - len(kept)


_BY_HAND = f'as "{ID}" it may be named as id, agent or entity'


def _plain(text: str) -> str | int | float:
    if not is_number(text):
        return text
    number = float(text)
    return int(number) if number.is_integer() else number


# --------------------------------------------------------------------------- values as TOML

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_key(name: str) -> str:
    """A name as a key."""
    return name if _BARE_KEY.fullmatch(name) else toml_value(name)


def toml_value(value: object) -> str:
    """Text, a number, a truth value, a day, a list (or tuple) or a table as TOML on one line."""
    if isinstance(value, str):
        # JSON's texts are TOML's, but for halves of a sign that are written apart, and one code.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, Mapping):
        inner = (f"{toml_key(name)} = {toml_value(one)}" for name, one in value.items())
        return "{ " + ", ".join(inner) + " }"
    return json.dumps(value)


def toml_lines(pairs: Mapping[str, Any]) -> str:
    """Keys and values, a line for each that is not empty."""
    kept = {name: value for name, value in pairs.items() if value not in ((), "", None)}
    return "".join(f"{toml_key(name)} = {toml_value(value)}\n" for name, value in kept.items())


def study_text(settings: Mapping[str, Any], remark: str) -> str:
    """Write a study file: what is asked, with a remark of whole lines above it.

    Parameters
    ----------
    settings : mapping
        As the file has them, table by table; what is empty is left out.
    remark : str
    """
    tables = {name: value for name, value in settings.items() if isinstance(value, Mapping)}
    head = {name: value for name, value in settings.items() if name not in tables}
    tables = {"parameters": {}, **tables}
    data = dict(tables["data"])
    levels = data.pop("levels", {})
    kept = f"\n[data.levels]\n{toml_lines(levels)}" if levels else ""
    settled = toml_lines(tables.pop("parameters")) or (
        f"# As they are by default; 'consilience methods {head['method']}' lists them.\n"
    )
    above = "".join(f"# {line}\n" for line in remark.splitlines())
    text = f"{above}\n{toml_lines(head)}\n[parameters]\n{settled}\n[data]\n{toml_lines(data)}{kept}"
    del tables["data"]
    return text + "".join(
        f"\n[{name}]\n{toml_lines(table)}"
        for name, table in tables.items()
        if table or name in ("preparation", "sites")
    )

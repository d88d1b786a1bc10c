"""How a site's columns differ from the study's: the ``[columns]`` of a site file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from consilience.exceptions import DataError, ParameterError, StudyError
from consilience.protocol.method import Columns, Preparation
from consilience.sites.encoding import match
from consilience.sites.source import is_number, plain_text

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
    features, target, weight, levels
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
    features: tuple[str, ...] = ()
    target: str | None = None
    weight: str | None = None
    levels: Mapping[str, tuple[str | int | float | bool, ...]] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    long: LongColumns | None = None
    offered: Mapping[str, Offer] | None = None

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
        object.__setattr__(self, "rename", dict(self.rename))
        object.__setattr__(self, "missing_codes", codes)
        object.__setattr__(self, "units", units)

    def merged(self, columns: Columns, partition: str) -> Columns:
        """Roles at this site: over columns its own features, target, weight and levels.

        Raises
        ------
        StudyError
            A study over columns finds no features here.
        """
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
            columns, features=self.features, target=self.target, weight=self.weight, levels=own
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
        if self.offered is None:
            return
        measured = (*columns.features, columns.target, columns.weight)
        for name in columns.used():
            offer = self.offer(name)
            named_as_id = name in (columns.id, columns.agent, columns.entity)
            levels = columns.levels.get(name, ())
            wanted = tuple(plain_text(v) for v in preparation.indicators.get(name, ()))
            as_number = name in measured and not levels and not all(map(is_number, wanted))
            as_number |= name in measured and not levels and not wanted
            rule = ""
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
            if rule:
                raise DataError(
                    f"column {name!r}: {rule}: add it to [columns.offered] of the site file if "
                    "studies may use it so",
                    public=f"column {name}: {rule}",
                )

    def local(self, name: str) -> str:
        """Name of a study's column in the site's table."""
        return self.rename.get(name, name)

    def codes(self, name: str) -> tuple[str, ...]:
        """Missing codes of a study's column."""
        given: Mapping[str, Any] = self.missing_codes
        return (*given.get(EVERY, ()), *given.get(name, ()))


def _offer(name: str, what: Any) -> Any:
    """The same with levels as texts.

    Raises
    ------
    ParameterError
    """
    if isinstance(what, list | tuple):
        levels = tuple(plain_text(value) for value in what)
        if len(set(levels)) == len(levels) > 0:
            return levels
    elif what in (NUMBER, ID, NONE):
        return what
    raise ParameterError.of(
        f"[columns] offered {name}", '"number", "id", "none" or a list of different levels', what
    )

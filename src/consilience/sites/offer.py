"""Which columns of a table a site could offer to studies: a proposal for its steward."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.sites.own_columns import ID, Offer, SiteColumns
from consilience.sites.source import Table, is_number

Mask = NDArray[np.bool_]

MAX_LEVELS = 30
"""Different values from which on a column of numbers is measured, and one of texts too fine."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


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
    """

    offered: dict[str, Offer]
    left_out: dict[str, str]
    rare: dict[str, int]
    alike: dict[str, str]

    def to_toml(self) -> str:
        """As a section that can be added at the end of a site file."""
        lines = ["[columns.offered]"]
        for name, offer in self.offered.items():
            n = self.rare.get(name, 0)
            notes = [f"without {n} rarer value{'s' * (n > 1)}"] if n else []
            if name in self.alike:
                notes.append(f"{self.alike[name]}: unless they are times, offer one of them")
            note = "".join(f" # {one}" for one in notes)
            lines.append(f"{_key(name)} = {_value(offer)}{note}")
        for name, reason in self.left_out.items():
            lines.append(f"# {_key(name)}: {reason}")
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
    proposal = Proposal({}, {}, {}, {})
    texts: dict[str, dict[str, Mask]] = {}
    for local in table.names:
        name = study_name.get(local, local)
        if table.kind(local) not in ("text", "number", "boolean"):
            proposal.left_out[name] = f"of type {table.kind(local)}"
            continue
        positions, values = table.categories(local, own.codes(name))
        found = {value: positions == i for i, value in enumerate(values)}
        found = {value: rows for value, rows in found.items() if rows.any()}
        if all(is_number(value) for value in found):
            _propose_number(proposal, name, found, min_records)
        elif len(found) > MAX_LEVELS:
            proposal.left_out[name] = f"more than {MAX_LEVELS} different texts: {_BY_HAND}"
        else:
            texts[name] = found
    anywhere: dict[str, Mask] = {}
    for found in texts.values():
        for value, rows in found.items():
            anywhere[value] = anywhere.get(value, False) | rows
    common = {value for value, rows in anywhere.items() if rows.sum() >= min_records}
    for name, found in texts.items():
        _propose_levels(proposal, name, sorted(found), common, min_records)
    local_name = {name: local for local, name in study_name.items()}
    parted = {
        name: _parts(table, local_name.get(name, name), own.codes(name), offer, min_records)
        for name, offer in proposal.offered.items()
    }
    for name, other in nearly_equal(parted, min_records).items():
        same = f"as {_key(other)} in all but fewer than {min_records} rows"
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


def _propose_number(to: Proposal, name: str, found: dict[str, Mask], min_records: int) -> None:
    whole = all(float(value).is_integer() for value in found)
    if not found:
        to.left_out[name] = "no values"
    elif whole and len(found) <= MAX_LEVELS:
        common = {value for value, rows in found.items() if rows.sum() >= min_records}
        _propose_levels(to, name, sorted(found, key=float), common, min_records)
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


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name)


def _value(offer: Offer) -> str:
    if isinstance(offer, str):
        return json.dumps(offer)
    return "[" + ", ".join(json.dumps(value) for value in offer) + "]"

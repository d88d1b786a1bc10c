"""Which columns of a table a site could offer to studies: a proposal for its steward."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

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
    """

    offered: dict[str, Offer]
    left_out: dict[str, str]
    rare: dict[str, int]

    def to_toml(self) -> str:
        """As a section that can be added at the end of a site file."""
        lines = ["[columns.offered]"]
        for name, offer in self.offered.items():
            n = self.rare.get(name, 0)
            note = f" # without {n} rarer value{'s' * (n > 1)}" if n else ""
            lines.append(f"{_key(name)} = {_value(offer)}{note}")
        for name, reason in self.left_out.items():
            lines.append(f"# {_key(name)}: {reason}")
        return "\n".join(lines) + "\n"


def propose(table: Table, own: SiteColumns, min_records: int) -> Proposal:
    """Propose an offer of the columns of a table.

    Numbers that vary are offered as numbers; what has few different values by those that at least
    `min_records` rows have, in this column or in another one with some of the same texts (as the
    columns of a sequence have). Ids, columns with a value of its own for each row that are no
    measurements, and dates are left out.

    Parameters
    ----------
    table : Table
    own : SiteColumns
        Names and missing codes of the site.
    min_records : int
        Of the site's policy.
    """
    study_name = {local: name for name, local in own.rename.items()}
    proposal = Proposal({}, {}, {})
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
    return proposal


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

"""Federations whose sites share rows and hold different columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from consilience.exceptions import StudyError
from consilience.protocol.method import Columns, Method
from consilience.sites.own_columns import SiteColumns
from consilience.wire.partner_key import new_partner_key


def check_partition(method: type[Method], partition: str) -> None:
    """Check that a method is made for what the sites share.

    Raises
    ------
    StudyError
    """
    if method.partition != partition:
        raise StudyError(
            f"method {method.name!r} is for sites that share {_shared(method.partition)} and the "
            f"study says partition = {partition!r}: change one of them"
        )


def check_number(method: type[Method], n_sites: int) -> None:
    """Check that a method for the table of one site gets one site.

    Raises
    ------
    StudyError
    """
    if method.several and n_sites > 1:
        raise StudyError(
            f"method {method.name!r} takes the table of one site and the study names {n_sites}: "
            f"name one in [sites], or use the method {method.several!r}"
        )


def _shared(partition: str) -> str:
    return "columns and hold different rows" if partition == "rows" else "rows by their ids"


def over_columns(
    tables: Mapping[str, Any], columns: Mapping[str, Columns], settings: Mapping[str, Any]
) -> tuple[Columns, dict[str, SiteColumns], bytes, dict[str, Any]]:
    """Settings of a federation in memory whose sites hold different columns.

    Parameters
    ----------
    tables : mapping of site to table
    columns : mapping of site to Columns
    settings : mapping
        ``bounds`` and ``partner_key`` are taken out, ``roles``, ``at`` and ``partition`` filled in.

    Returns
    -------
    common : Columns
        What all sites are told: the id.
    own : dict of site to SiteColumns
    key : bytes
    settings : dict

    Raises
    ------
    StudyError
        Sites and columns do not go together, an id is missing, or not just one site has a target.
    """
    left = dict(settings)
    bounds: Mapping[str, Any] = left.pop("bounds", {})
    key = left.pop("partner_key", None) or new_partner_key()
    if set(tables) != set(columns):
        raise StudyError("columns by site and tables name different sites: give one for each")
    if len(tables) < 2:
        raise StudyError("a federation over columns needs at least two sites: add the partner's")
    for site in bounds:
        if site not in columns:
            raise StudyError(f"bounds name {site!r}, which is no site: give them by site")
    for site, given in columns.items():
        if given.id is None:
            raise StudyError(f"the columns of site {site!r} name no id: rows are matched by it")
    targets = [site for site, given in columns.items() if given.target is not None]
    if len(targets) != 1:
        raise StudyError(
            f"{len(targets)} sites have a target: one site, the initiator, names the response"
        )
    by_role = {s: "initiator" if s == targets[0] else "partner" for s in sorted(tables)}
    own = {
        site: _own(given, columns[targets[0]], dict(bounds.get(site, {})))
        for site, given in columns.items()
    }
    if left.get("roles") and dict(left["roles"]) != by_role:
        raise StudyError(f"roles contradict the columns: {targets[0]!r} has the target")
    left |= {"roles": by_role, "partition": "columns"}
    left.setdefault("at", f"site:{targets[0]}")
    if left["at"] not in ("third-party", *(f"site:{site}" for site in tables)):
        raise StudyError(f"at is {left['at']!r}: write 'third-party', or 'site:' and a site's name")
    check_place(left["at"], left["roles"])
    return Columns(id=columns[targets[0]].id), own, key, left


def check_place(at: str, roles: Mapping[str, str]) -> None:
    """Check that no partner coordinates a study of more than two parties.

    It has the partner key and passes on what the others seal: it could pose as one to another.

    Raises
    ------
    StudyError
    """
    place = at.removeprefix("site:")
    if len(roles) > 2 and roles.get(place) == "partner":
        raise StudyError(
            f"site {place!r} is a partner among more than two parties and cannot coordinate: let "
            "the initiator or a third party do it"
        )


def _own(given: Columns, initiator: Columns, bounds: dict[str, Any]) -> SiteColumns:
    if given.id is None or initiator.id is None:
        raise StudyError("columns by site need an id: rows are matched by it")
    plain = replace(given, id=None)
    return SiteColumns(
        rename={} if given.id == initiator.id else {initiator.id: given.id},
        features=plain.features,
        target=plain.target,
        weight=plain.weight,
        levels=dict(plain.levels),
        bounds=bounds,
    )

"""How a site gets at its rows: a table in memory, or the source that its file names."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, cast

from consilience.exceptions import StudyError
from consilience.protocol.method import Columns, Preparation, SiteData
from consilience.sites.home import DiskHome
from consilience.sites.jobs import Hold
from consilience.sites.loaded import AllRows, Everyone, Loaded
from consilience.sites.own_columns import SiteColumns
from consilience.sites.policy import Policy
from consilience.sites.prepare import load_with_report
from consilience.sites.prepared_cache import PreparedCache
from consilience.sites.site import Confirm, Site
from consilience.sites.source import Table, read_source
from consilience.sites.study import SiteFile

Partition = Literal["rows", "columns"]


def load(
    table: Table,
    columns: Columns,
    preparation: Preparation,
    site_columns: SiteColumns | None = None,
    *,
    partition: Partition = "rows",
    min_records: int = 1,
) -> SiteData:
    """Return the prepared rows; see `load_with_report`."""
    return load_with_report(
        table, columns, preparation, site_columns, partition=partition, min_records=min_records
    ).data


def memory_site(
    name: str,
    table: Any,
    policy: str | Policy = "strict",
    *,
    own: SiteColumns | None = None,
    partner_key: bytes = b"",
) -> Site:
    """Build a site over a table in memory (DataFrame, pyarrow Table or mapping of columns).

    Parameters
    ----------
    own : SiteColumns, optional
        How its columns differ from the study's.
    partner_key : bytes
        Secret that the parties share, over columns.
    """
    rules = policy if isinstance(policy, Policy) else Policy.from_settings(policy)
    read = read_source(table)

    def load(columns: Columns, preparation: Preparation, partition: Partition = "rows") -> Loaded:
        return load_with_report(
            read,
            columns,
            preparation,
            own,
            partition=partition,
            min_records=rules.min_records,
            common_rows=not rules.foreign_models,
        )

    return Site(name, load, policy=rules, partner_key=partner_key)


def file_site(
    file: SiteFile,
    *,
    confirm: Confirm | None = None,
    cache: bool = False,
    hold: Hold | None = None,
) -> Site:
    """Build the site that a site file describes, with its home on disk.

    Parameters
    ----------
    cache : bool
        Keep prepared rows in the home (`PreparedCache`), for processes that do not live long.
    hold : {"none", "per-record", "all"}, optional
        Which replies wait for the steward; as the file says unless given.

    Raises
    ------
    StudyError
        The policy is wrong, nothing is on offer under a strict one, or the home's path cannot be
        found out.
    RunError
        The home cannot be created.
    """

    def load(columns: Columns, preparation: Preparation, partition: Partition = "rows") -> Loaded:
        read = read_source(file.source, file.base)
        return load_with_report(
            read,
            columns,
            preparation,
            own,
            partition=partition,
            min_records=policy.min_records,
            common_rows=not policy.foreign_models,
        )

    def load_once(
        columns: Columns, preparation: Preparation, partition: Partition = "rows"
    ) -> Loaded:
        kept = PreparedCache(file)
        key = kept.key(columns, preparation, partition)
        found = kept.get(key)
        if found is None:
            found = load(columns, preparation, partition)
            # A table that was changed while it was read is not what the name says.
            if kept.key(columns, preparation, partition) == key:
                kept.put(key, found)
            return found
        if partition == "columns" or policy.min_records == 1:
            return found

        def everyone(names: tuple[str, ...]) -> Everyone:
            again = cast(AllRows, load(columns, preparation).everyone)
            return again(names)

        return dataclasses.replace(found, everyone=everyone)

    policy = Policy.from_settings(file.policy)
    own = offered_columns(file, policy)
    home = DiskHome(file.home_path)
    key = file.partner_key()
    loader = load_once if cache else load
    return Site(
        file.name,
        loader,
        policy=policy,
        home=home,
        confirm=confirm,
        partner_key=key,
        hold=file.release.held if hold is None else hold,
    )


def offered_columns(file: SiteFile, policy: Policy) -> SiteColumns:
    """What a site file says of columns; under a strict policy nothing is on offer but by its list.

    Raises
    ------
    StudyError
        The policy is strict and the file neither offers columns nor lists features of its own.
    """
    own = file.columns
    if policy.preset != "strict" or own.offered is not None:
        return own
    if not own.features:
        raise StudyError(
            f'site {file.name}: under policy preset "strict" the site file says which columns '
            "studies may name: add [columns.offered], which 'consilience site offer SITE_TOML' "
            "proposes"
        )
    return dataclasses.replace(own, offered={})

"""How a site gets at its rows: a table in memory, or the source that its file names."""

from __future__ import annotations

from typing import Any

from consilience.methods.base import Columns, Preparation
from consilience.sites.home import DiskHome
from consilience.sites.policy import Policy
from consilience.sites.prepare import Loaded, load_with_report
from consilience.sites.site import Confirm, Site
from consilience.sites.source import read_source
from consilience.sites.study import SiteFile


def memory_site(name: str, table: Any, policy: str | Policy = "strict") -> Site:
    """Build a site over a table in memory (DataFrame, pyarrow Table or mapping of columns)."""
    rules = policy if isinstance(policy, Policy) else Policy.from_settings(policy)
    read = read_source(table)

    def load(columns: Columns, preparation: Preparation) -> Loaded:
        return load_with_report(read, columns, preparation)

    return Site(name, load, policy=rules)


def file_site(file: SiteFile, *, confirm: Confirm | None = None) -> Site:
    """Build the site that a site file describes, with its home on disk.

    Raises
    ------
    StudyError
        The policy is wrong, or the home's path cannot be found out.
    RunError
        The home cannot be created.
    """

    def load(columns: Columns, preparation: Preparation) -> Loaded:
        return load_with_report(
            read_source(file.source, file.base), columns, preparation, file.columns
        )

    policy = Policy.from_settings(file.policy)
    return Site(file.name, load, policy=policy, home=DiskHome(file.home_path), confirm=confirm)

"""Sites whose own files list the levels of a study: there a level is one with however few rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from consilience.engines.federation import Federation
from consilience.engines.local import LocalEngine
from consilience.sites.loaders import memory_site
from consilience.sites.own_columns import SiteColumns
from consilience.sites.policy import Policy
from tests.granted import granted


def with_own_lists(
    federation: Federation, tables: Mapping[str, Any], policy: str | Policy = "strict"
) -> Federation:
    own = SiteColumns(offered={"*": "number", **federation.columns.levels})
    sites = [memory_site(name, table, granted(policy), own=own) for name, table in tables.items()]
    return dataclasses.replace(federation, engine=LocalEngine(sites))

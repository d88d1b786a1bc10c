"""Federations over columns for tests: the clinic asks, lab and pharmacy hold other columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from consilience.engines.federation import Federation
from consilience.protocol.method import Columns
from consilience.sites.policy import Policy
from consilience.testing.fakes import members, with_fixed_secrets

KEY = bytes(range(32))
SITES = ("clinic", "lab", "pharmacy")
Tables = dict[str, dict[str, Any]]


def tables(n: int = 120, *, sites: tuple[str, ...] = SITES, seed: int = 11) -> Tables:
    """One table for each site, rows of the same people in the same order.

    The lab's columns explain the clinic's response ``y`` (0 or 1), the pharmacy's do not. All
    features lie in the unit interval.
    """
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(n, 9))
    eta = (x - 0.5) @ np.array([2.0, -2, 0, 4, -4, 2, 0, 0, 0])
    y = (rng.uniform(size=n) < 1 / (1 + np.exp(-eta))).astype(float)
    ids = np.array([f"person-{i:04d}" for i in range(n)])
    made: Tables = {}
    for k, site in enumerate(SITES):
        made[site] = {f"{site}_{j}": x[:, 3 * k + j] for j in range(3)} | {"id": ids}
    made["clinic"]["y"] = y
    return {site: made[site] for site in sites}


def columns_of(made: Mapping[str, Mapping[str, Any]]) -> dict[str, Columns]:
    """Roles of the columns at each site."""
    return {
        site: Columns(
            features=[name for name in table if name not in ("id", "y")],
            id="id",
            target="y" if "y" in table else None,
        )
        for site, table in made.items()
    }


def policy(**settings: Any) -> Policy:
    """A policy under which the test may be asked for."""
    given = {"preset": "consortium", "noised": True, "max_epsilon": 4.0}
    return Policy(**{**given, **settings})


def federation(
    made: Mapping[str, Mapping[str, Any]], *, secrets: int | None = 0, **settings: Any
) -> Federation:
    """A federation over tables, with secrets that can be repeated unless `secrets` is None."""
    given: dict[str, Any] = {
        "columns": columns_of(made),
        "policy": policy(),
        "partner_key": KEY,
        "at": "third-party",
        "bounds": {
            site: {name: (0.0, 1.0) for name in table if name not in ("id", "y")}
            for site, table in made.items()
        },
    }
    built = Federation.local(made, **{**given, **settings})
    for i, site in enumerate(members(built).values()):
        if secrets is not None:
            with_fixed_secrets(site, secrets + i)
    return built


def rows(table: Mapping[str, Any], index: Any) -> dict[str, Any]:
    """Some rows of a table."""
    return {name: values[index] for name, values in table.items()}

"""Events of agents and entities for tests of latent class regression."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from consilience import Columns, Federation
from consilience.datasets.simulate_latent_classes import simulate_latent_classes
from consilience.engines.local import LocalEngine
from consilience.latent_regression.protocol import LatentClassRegression
from consilience.protocol.method import SiteContext, SiteData
from consilience.sites.policy import Policy
from consilience.testing.fakes import members
from tests.granted import granted

COLUMNS = Columns(features=("x1", "x2"), target="y", agent="agent", entity="entity")
BRIEF: dict[str, Any] = {"rounds": 3, "settle_rounds": 2, "average_rounds": 2}


def events(
    n_agents: int = 8,
    *,
    n_classes: int = 2,
    n_entities: float = 5.0,
    n_events: float = 6.0,
    n_features: int = 3,
    sigma: float = 0.4,
    seed: int = 0,
) -> pd.DataFrame:
    """A table of the model's own events."""
    drawn = simulate_latent_classes(
        n_classes,
        rng=np.random.default_rng(seed),
        n_agents=n_agents,
        n_entities=n_entities,
        n_events=n_events,
        n_features=n_features,
        sigma=sigma,
    )
    return drawn.events.to_frame()


def by_site(frame: pd.DataFrame, sizes: Sequence[int]) -> dict[str, pd.DataFrame]:
    """Agents in name order, so many to each site."""
    agents = np.unique(frame["agent"])
    assert len(agents) == sum(sizes)
    ends = np.cumsum([0, *sizes])
    return {
        f"site-{k}": frame[frame["agent"].isin(agents[ends[k] : ends[k + 1]])]
        for k in range(len(sizes))
    }


def odd_noise() -> dict[str, pd.DataFrame]:
    """One regression, whose t noise looks like classes."""
    rng = np.random.default_rng(3)
    entity = np.repeat(np.arange(200), 8)
    x = rng.normal(size=(len(entity), 2))
    y = x @ [0.8, -0.4] + rng.standard_t(3, size=len(entity))
    table = pd.DataFrame(x, columns=["x1", "x2"])
    table = table.assign(y=y, agent=(entity // 10).astype(str), entity=entity.astype(str))
    return by_site(table, [5] * 4)


def federation(
    tables: Mapping[str, pd.DataFrame], policy: str | Policy = "simulation", **changes: Any
) -> Federation:
    columns = changes.pop("columns", COLUMNS)
    return Federation.local(tables, columns=columns, policy=granted(policy), **changes)


def study(**settings: Any) -> LatentClassRegression:
    """Few rounds, random start, nothing held out."""
    common = {**BRIEF, "n_classes": 2, "start": "random", "holdout": 0.0}
    return LatentClassRegression(**{**common, **settings})


Seen = list[tuple[str, str, Any, dict[str, Any]]]


def watching(monkeypatch: Any, *steps: str) -> Seen:
    """Step, site, message and state afterwards of every answer from now on."""
    seen: Seen = []
    for step in LatentClassRegression.steps:
        if step.name in steps:
            watched = dataclasses.replace(step, function=_watched(step, seen))
            known = tuple(
                watched if s.name == step.name else s for s in LatentClassRegression.steps
            )
            monkeypatch.setattr(LatentClassRegression, "steps", known)
    return seen


def _watched(step: Any, seen: Seen) -> Callable[..., Any]:
    def function(message: Any, data: SiteData, state: dict[str, Any], site: SiteContext) -> Any:
        reply, after = step.function(message, data, state, site)
        seen.append((step.name, site.site, message, after))
        return reply, after

    return function


def fresh(found: Federation) -> Federation:
    """The same sites behind a fresh engine."""
    return dataclasses.replace(found, engine=LocalEngine(members(found).values()))

"""Coverage of 90 % intervals for events of seen entities, unseen ones and unseen agents."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.datasets.simulate_latent_classes import LatentClassEvents  # noqa: E402
from replications.assisted_glm.study import Table, mean, options, replicate, share  # noqa: E402
from replications.latent_class_regression.study import central, design, parts  # noqa: E402

HERE = Path(__file__).parent
FloatArray = NDArray[np.float64]
LEVEL = 0.9
QUANTILE = float(norm.ppf((1 + LEVEL) / 2))
REPLICATES = 10
MOST_OBSERVED = 5
"""Further events of an unseen entity are those whose intervals are looked at."""
NEW = {"new_entities": 640, "new_agents": 640, "new_events": 10}
LINES: dict[str, dict[str, Any]] = {
    "K 8, sigma 0.5, N* 16, N** 10": {
        "n_classes": 8,
        "sigma": 0.5,
        "n_entities": 16,
        "n_events": 10,
    },
    "K 4, sigma 1, N* 4, N** 5": {"n_classes": 4, "sigma": 1.0, "n_entities": 4, "n_events": 5},
    "K 16, sigma 0.1, N* 4, N** 20": {
        "n_classes": 16,
        "sigma": 0.1,
        "n_entities": 4,
        "n_events": 20,
    },
}


def inside(y: FloatArray, interval: FloatArray) -> tuple[float, float]:
    """Share of the events inside, and the mean width."""
    low, high = interval.T
    return float(((low <= y) & (y <= high)).mean()), float((high - low).mean())


def single(model: Any, events: LatentClassEvents) -> FloatArray:
    """Intervals of the most probable class alone, before any event of an unseen entity."""
    label = model.predict_proba(events.x, entity=events.entity, agent=events.agent).argmax(axis=1)
    centre = model.intercept_[label] + (events.x * model.coef_[label]).sum(axis=1)
    return np.column_stack([centre - QUANTILE * model.sigma_, centre + QUANTILE * model.sigma_])


def unseen(model: Any, events: LatentClassEvents, observed: int) -> tuple[float, float]:
    """Coverage and mean width where some events of each entity have been observed."""
    asked = events.event >= MOST_OBSERVED
    used = asked | (events.event < observed)
    some, asked = events.take(used), asked[used]
    interval = model.predict_interval(
        some.x,
        level=LEVEL,
        entity=some.entity,
        agent=some.agent,
        observed=np.where(asked, np.nan, some.y),
    )
    return inside(some.y[asked], interval[asked])


def one(line: str, seed: int) -> dict[str, tuple[float, float]]:
    """Coverage and width of each kind of event in one data set."""
    settings = dict(LINES[line])
    n_classes = settings.pop("n_classes")
    data = design(n_classes, seed, "coverage", line, **settings, **NEW)
    train, test = parts(data, seed)
    model = central(train, n_classes, seed)
    interval = model.predict_interval(test.x, level=LEVEL, entity=test.entity, agent=test.agent)
    found = {"seen entity": inside(test.y, interval)}
    for name, events in (("unseen entity", data.new_entities), ("unseen agent", data.new_agents)):
        for observed in range(MOST_OBSERVED + 1):
            found[f"{name}, {observed} events"] = unseen(model, events, observed)
        asked = events.take(events.event >= MOST_OBSERVED)
        found[f"{name}, 0 events, single label"] = inside(asked.y, single(model, asked))
    return found


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, list(LINES))
    for line, settings in LINES.items():
        if not table.wanted(line, REPLICATES):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=REPLICATES, chosen=chosen)
        table.add(
            line,
            [
                {
                    "event": kind,
                    "replicates": len(sets),
                    **share((each[kind][0] for each in sets), "coverage"),
                    **mean((each[kind][1] / settings["sigma"] for each in sets), "width", ".2f"),
                }
                for kind in sets[0]
            ],
        )


if __name__ == "__main__":
    main()

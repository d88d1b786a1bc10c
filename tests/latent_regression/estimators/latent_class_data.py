"""Small tables for the tests of latent classes."""

from __future__ import annotations

import numpy as np

from consilience.datasets.simulate_latent_classes import LatentClasses, simulate_latent_classes


def simulated(n_classes: int = 3, seed: int = 0, **settings: float) -> LatentClasses:
    """Few agents, few features: a fit takes a fraction of a second."""
    given = {"n_agents": 24, "n_entities": 4.0, "n_events": 8.0, "n_features": 4, "sigma": 0.3}
    return simulate_latent_classes(
        n_classes, rng=np.random.default_rng(seed), **{**given, **settings}
    )

"""Tables of a low rank with noise and gaps."""

from __future__ import annotations

import numpy as np


def gappy(
    n: int, p: int, rank: int, *, seed: int = 0, noise: float = 0.3, missing: float = 0.2
) -> tuple[np.ndarray, np.ndarray]:
    """A complete table, and the same with NaN where entries were taken away at random."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, p))
    x = common + noise * rng.standard_normal((n, p))
    return x, np.where(rng.random((n, p)) < missing, np.nan, x)

"""Put every promise of the histogram to the test, against numpy on the pooled rows."""

import numpy as np
from pooled_histogram import PooledHistogram

from consilience.testing.check_method import check_method
from consilience.testing.fakes import federation_of

EDGES = (-3.0, -1.0, 0.0, 1.0, 3.0)
FINE = (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)


def federation():
    """Return three fresh sites with 80, 90 and 100 rows."""
    rng = np.random.default_rng(0)
    return federation_of(
        {name: rng.normal(size=(n, 1)) for name, n in (("a", 80), ("b", 90), ("c", 100))}
    )


def oracle(rows):
    """Compute the same from all rows together; every bin is large enough here."""
    pooled = np.concatenate([data.features[:, 0] for data in rows.values()])
    return {"counts": np.histogram(pooled, bins=EDGES)[0]}


def fine_bins():
    """Return the method with bins that hold few rows; without an oracle, as counts are missing."""
    method = PooledHistogram(edges=FINE)
    if not method.run(federation(), seed=0).result.withheld.any():
        raise SystemExit("every bin is large enough: withheld cells are not put to the test")
    return method


if __name__ == "__main__":
    check_method(PooledHistogram(edges=EDGES), federation, oracle=oracle)
    check_method(fine_bins(), federation)
    print("all promises hold")  # noqa: T201

"""A small dask cluster on this machine, whose workers may be killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_PATIENT = {
    # A worker that is killed is started anew, however busy the machine is meanwhile.
    "distributed.deploy.lost-worker-timeout": "120s",
    "distributed.scheduler.allowed-failures": 2,
}


@contextmanager
def small_cluster(n_workers: int = 2) -> Iterator[Any]:
    """Client of a cluster of workers with one thread each; skips where dask is not installed."""
    dask = pytest.importorskip("dask", reason="the extra 'cluster' is missing")
    distributed = pytest.importorskip("distributed", reason="the extra 'cluster' is missing")
    with (
        dask.config.set(_PATIENT),
        distributed.LocalCluster(
            n_workers=n_workers, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client

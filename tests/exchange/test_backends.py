"""The same bytes wherever joblib computes the sites, a cluster included."""

from __future__ import annotations

from collections.abc import Iterator

import joblib
import pytest

from tests.exchange.cases import CASES


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None
        ) as workers,
        distributed.Client(workers),
    ):
        yield


@pytest.mark.parametrize("name", ["mean-and-sd", "ensemble-clustering"])
def test_a_dask_cluster_gives_the_same_bytes(name: str, cluster: None) -> None:
    case = CASES[name]
    wanted = case.method.run(case.factory(), seed=5)
    with joblib.parallel_config("dask"):
        found = case.method.run(case.factory(), seed=5)
    assert found.result.to_files() == wanted.result.to_files()

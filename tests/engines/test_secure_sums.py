"""Masked sums between sites that sign: the bytes of one process, and keys that are theirs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.completion.federated_pca import FederatedPCA
from consilience.describe.protocol import Describe
from consilience.discriminant.federated_community_bayes import FederatedCommunityBayes
from consilience.discriminant.federated_sparse_qda import FederatedSparseQDA
from consilience.engines.federation import Federation
from consilience.engines.folder import FolderEngine, watch
from consilience.engines.local import LocalEngine
from consilience.exceptions import QuorumError
from consilience.latent_regression.protocol import LatentClassRegression
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.regression.protocol import PooledRegression
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.sites.site_store import DiskStore
from consilience.sites.study import Study
from consilience.testing.fakes import array_loader
from consilience.wire.signing import SigningKey
from tests.engines.fake_link import fake_flower

NAMES = ("ash", "birch", "cedar", "doum")
KEYS = {name: SigningKey.generate() for name in NAMES}
COORDINATOR = SigningKey.generate()
METHODS = {
    "mean-and-sd": MeanAndSD(),
    "pooled-regression": PooledRegression(family="binomial", errors="HC1"),
    "latent-class-regression": LatentClassRegression(
        n_classes=2, start="random", rounds=2, settle_rounds=1, average_rounds=1
    ),
    "describe": Describe(bins={"x0": (-0.5, 0.5)}),
    "federated-pca": FederatedPCA(rank=1),
    "federated-sparse-qda": FederatedSparseQDA(n_alphas=3),
    "federated-community-bayes": FederatedCommunityBayes(candidates=(1, 2), fit="one-shot"),
}
WITH_LEVELS = ("federated-sparse-qda", "federated-community-bayes")
WITH_RESPONSE = ("pooled-regression", "latent-class-regression", *WITH_LEVELS)
CLASSES = ("low", "high")
ROWS = {name: np.random.default_rng(i).normal(size=(80 + i, 2)) for i, name in enumerate(NAMES)}


def study_of(keys: dict[str, Any], method: str = "mean-and-sd") -> Study:
    roles = {"target": "y"} if method in WITH_RESPONSE else {}
    roles |= {"entity": "e"} if method == "latent-class-regression" else {}
    roles |= {"levels": {"y": CLASSES}} if method in WITH_LEVELS else {}
    plain = type(METHODS[method])().parameters()
    own = {k: v for k, v in METHODS[method].parameters().items() if v != plain[k]}
    return Study.from_settings(
        {
            "name": "trial",
            "method": method,
            "sums": "secure",
            "parameters": own,
            "data": {"features": ["x0", "x1"], **roles},
            "preparation": {"standardize": "none" if method == "describe" else "pooled"},
            "sites": {"names": list(NAMES), "keys": keys},
        }
    )


LISTED = {name: key.public for name, key in KEYS.items()}


def site_of(
    name: str,
    root: Path | None = None,
    keys: dict[str, Any] | None = None,
    method: str = "mean-and-sd",
) -> Site:
    """A site whose steward has approved the studies with these keys."""
    named = LISTED if keys is None else keys
    approved = (study_of(named, method).hash(),)
    # Classes of so few rows form where a policy lets sums of few leave.
    of_classes = method in ("latent-class-regression", *WITH_LEVELS)
    preset: Any = "simulation" if of_classes else "consortium"
    home, x = None if root is None else DiskStore(root / name), ROWS[name]
    y = (x[:, 0] + np.random.default_rng(len(x)).logistic(size=len(x)) > 0) * 1.0
    entity = np.array([f"e{i // 4:02}" for i in range(len(x))])
    roles: dict[str, Any] = {"target": y, "target_name": "y", "entity": entity}
    if method in WITH_LEVELS:
        roles |= {"target": np.array(CLASSES)[y.astype(int)], "levels": {"y": CLASSES}}
    loader = array_loader(x, **roles)
    return Site(name, loader, home=home, policy=Policy(preset=preset, approved_studies=approved))


def in_one_process(method: str = "mean-and-sd") -> Any:
    engine = LocalEngine([site_of(name, method=method) for name in NAMES])
    study = study_of(LISTED, method)
    return Federation.from_study(study, engine=engine).run(METHODS[method], seed=0)


@contextmanager
def watched(
    root: Path, keys: dict[str, Any] | None = None, method: str = "mean-and-sd"
) -> Iterator[FolderEngine]:
    """Sites that are made anew for each look, as after a crash, with what is on their disks."""
    folder = root / "shared"
    folder.mkdir()
    stop = threading.Event()

    def look(name: str) -> None:
        while not stop.is_set():
            watch(
                site_of(name, root, keys, method),
                folder,
                key=KEYS[name],
                coordinators=[COORDINATOR.public],
                once=True,
            )
            stop.wait(0.02)

    threads = [threading.Thread(target=look, args=(name,)) for name in NAMES]
    for thread in threads:
        thread.start()
    try:
        yield FolderEngine(folder, NAMES, COORDINATOR, LISTED, poll=0.02)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("method", METHODS)
def test_over_a_folder_the_bytes_are_those_of_one_process(method: str, tmp_path: Path) -> None:
    wanted, study = in_one_process(method), study_of(LISTED, method)
    with watched(tmp_path, method=method) as engine:
        found = Federation.from_study(study, engine=engine).run(METHODS[method], seed=0)
    assert found.result.to_files() == wanted.result.to_files()
    assert np.array_equal(np.array(found.scaling), np.array(wanted.scaling))
    assert {x.protection for x in found.transcript if x.disclosure == "masked"} == {
        "sealed to coordinator"
    }


@pytest.mark.parametrize("method", METHODS)
def test_over_flower_the_bytes_are_those_of_one_process(method: str, tmp_path: Path) -> None:
    wanted, study = in_one_process(method), study_of(LISTED, method)
    sites = [site_of(name, tmp_path, method=method) for name in NAMES]
    with fake_flower(sites, own=KEYS) as engine:
        found = Federation.from_study(study, engine=engine).run(METHODS[method], seed=0)
    assert found.result.to_files() == wanted.result.to_files()


@pytest.mark.parametrize("keys", ["another", "none"])
def test_a_site_meets_nobody_whose_key_the_study_does_not_name(keys: str, tmp_path: Path) -> None:
    """A coordinator that knows a site by another key than the study's could pose as it."""
    named = {**LISTED, "cedar": SigningKey.generate().public}
    if keys == "none":
        del named["cedar"]
    with (
        watched(tmp_path, named) as engine,
        pytest.raises(QuorumError, match="'cedar' has not signed its keys by one that the study"),
    ):
        Federation.from_study(study_of(named), engine=engine).run(MeanAndSD(), seed=0)


def test_a_site_meets_nobody_in_a_study_that_its_steward_has_not_approved() -> None:
    """Whoever writes the study could name keys of its own for all sites but one."""
    sites = [Site(name, array_loader(ROWS[name])) for name in NAMES]
    with (
        fake_flower(sites, own=KEYS) as engine,
        pytest.raises(QuorumError, match="the steward approves the study first"),
    ):
        Federation.from_study(study_of(LISTED), engine=engine).run(MeanAndSD(), seed=0)

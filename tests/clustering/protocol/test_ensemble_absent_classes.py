"""Sites that hold some of the classes only: their models get the others before rows are counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

from consilience import Columns, EnsembleClustering, Federation, Run
from consilience.clustering.estimators.local_models import local_model_from_arrays
from consilience.report import html
from consilience.testing.fakes import members, with_fixed_secrets
from tests.granted import granted

HELD = {"a": (0, 1), "b": (1, 2, 3), "c": (2, 3), "d": (0, 2), "e": (1, 3)}
MEANS = np.array([[2.0, 0, 0], [0, 2, 0], [0, 0, 2], [2, 2, 2]])


def rows(held: dict[str, tuple[int, ...]] = HELD) -> tuple[dict[str, pd.DataFrame], Any]:
    rng = np.random.default_rng(7)
    tables, truth = {}, {}
    for site, classes in held.items():
        z = np.repeat(classes, 40)
        x = MEANS[z] + 0.3 * rng.standard_normal((len(z), 3))
        tables[site], truth[site] = pd.DataFrame(x, columns=["u", "v", "w"]), z
    return tables, truth


def run(tables: dict[str, pd.DataFrame], **settings: Any) -> Run:
    federation = Federation.local(
        tables, columns=Columns(features=("u", "v", "w")), policy=granted("strict")
    )
    for i, site in enumerate(members(federation).values()):
        with_fixed_secrets(site, i)
    method = EnsembleClustering(**{"stability_pairs": 0, "n_init": 5, **settings})
    found: Run = method.run(federation, seed=3)
    return found


def index(found: Run, truth: dict[str, np.ndarray]) -> float:
    labels = np.concatenate([found.site(site).labels for site in truth])
    return float(adjusted_rand_score(np.concatenate(list(truth.values())), labels))


@pytest.mark.parametrize(
    "settings",
    [
        {"n_clusters": 4},
        {"n_clusters": "vote"},
        {"n_clusters": "bic"},
        {"n_clusters": 4, "model": "gaussian-mixture"},
    ],
)
def test_classes_that_no_site_holds_all_of(settings: dict[str, Any]) -> None:
    tables, truth = rows()
    found = run(tables, **settings)
    result = found.result
    assert result.n_clusters == 4
    assert index(found, truth) > 0.97
    assert result.chosen_by == ("given" if settings["n_clusters"] == 4 else "matching")
    assert all(local_model_from_arrays(m).n_classes >= 4 for m in result.models)
    # Which final class is which: by its mean.
    gaps = ((result.class_means[:, None] - MEANS) ** 2).sum(axis=2)
    which = gaps.argmin(axis=1)
    for site, has in result.class_support.items():
        assert sorted(which[has == 1]) == sorted(HELD[site])
    few = {int(which[k]): sites for k, sites in result.few_sites().items()}
    assert few == {0: ("a", "d")}
    said = [note for note in found.notes if "had found by themselves" in note]
    assert len(said) == 1
    assert "(a, d)" in said[0]
    if result.chosen_by == "matching":
        assert "Matched across sites, the classes of their models are 4" in result.summary()


def test_sites_with_all_classes_have_what_they_had() -> None:
    """Nothing is added, so that nothing differs from the method without this rule."""
    tables, truth = rows(dict.fromkeys("abc", (0, 1, 2, 3)))
    for settings in ({"n_clusters": 4}, {"n_clusters": "vote"}):
        found = run(tables, **settings)
        assert found.result.class_support == {}
        assert [local_model_from_arrays(m).n_classes for m in found.result.models] == [4, 4, 4]
        assert not found.result.few_sites()
        assert index(found, truth) > 0.97


def test_the_page_says_which_classes_few_sites_found() -> None:
    tables, _ = rows()
    page = " ".join(html.render(run(tables, n_clusters="vote")).split())
    assert "models lacked classes that the models of other sites have" in page
    assert "each site may hold some of the classes only" in page
    assert "(a and d)" in page


def test_a_follow_up_run_knows_the_classes_of_all_sites() -> None:
    tables, truth = rows()
    federation = Federation.local(
        tables, columns=Columns(features=("u", "v", "w")), policy=granted("strict")
    )
    method = EnsembleClustering(n_clusters=4, stability_pairs=0, n_init=5)
    first = method.run(federation, seed=3)
    again = method.run(federation, seed=4, follows=first)
    for site in truth:
        np.testing.assert_array_equal(first.site(site).labels, again.site(site).labels)

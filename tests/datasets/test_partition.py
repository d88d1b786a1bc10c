from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience.datasets.load import partition
from consilience.exceptions import ParameterError

FRAME = pd.DataFrame({"a": np.arange(200.0), "c": np.repeat(["x", "y"], 100)})


@pytest.mark.parametrize(
    "options",
    [
        {"n_sites": 4},
        {"n_sites": 4, "scheme": "dirichlet", "y": FRAME["c"], "alpha": 0.5},
        {"n_sites": 4, "scheme": "dominant", "y": FRAME["c"]},
        {"scheme": "sizes", "sizes": [1, 2, 3, 4]},
    ],
)
def test_every_row_goes_to_one_site(options: dict[str, Any]) -> None:
    sites = partition(FRAME, **options, random_state=0)
    assert list(sites) == ["site-1", "site-2", "site-3", "site-4"]
    rows = np.concatenate([frame.index.to_numpy() for frame in sites.values()])
    assert sorted(rows) == list(range(200))
    for frame in sites.values():
        assert len(frame) >= 10
        assert frame.index.is_monotonic_increasing
        pd.testing.assert_frame_equal(frame, FRAME.loc[frame.index])


def test_seed_decides() -> None:
    first, again, other = (partition(FRAME, n_sites=3, random_state=s) for s in (1, 1, 2))
    assert first["site-1"].equals(again["site-1"])
    assert not first["site-1"].equals(other["site-1"])


def test_sizes() -> None:
    sites = partition(FRAME, scheme="sizes", sizes=[0.1, 0.4, 0.5], random_state=0)
    assert [len(frame) for frame in sites.values()] == [20, 80, 100]


def test_small_alpha_makes_sites_differ() -> None:
    def spread(alpha: float) -> float:
        sites = partition(
            FRAME, FRAME["c"], n_sites=4, scheme="dirichlet", alpha=alpha, random_state=0
        )
        return float(np.std([np.mean(frame["c"] == "x") for frame in sites.values()]))

    assert spread(0.5) > spread(1000.0)
    # With alpha = 1000 a share of 25 rows varies by 25 / sqrt(1000) < 1 row.
    assert spread(1000.0) < 0.05


def test_dominant_classes() -> None:
    sites = partition(FRAME, FRAME["c"], n_sites=2, scheme="dominant", share=0.8, random_state=0)
    assert [int((frame["c"] == "x").sum()) for frame in sites.values()] == [80, 20]


def test_arrays_and_names() -> None:
    sites = partition(np.zeros((30, 2)), names=["p", "q"], random_state=0)
    assert list(sites) == ["p", "q"]
    assert list(sites["p"].columns) == ["x0", "x1"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "n_sites"),
        ({"n_sites": 0}, "n_sites"),
        ({"n_sites": 2, "scheme": "random"}, "scheme"),
        ({"n_sites": 2, "names": ["a"]}, "n_sites"),
        ({"names": ["a", "a"]}, "names"),
        ({"n_sites": 2, "min_rows": 101}, "min_rows"),
        ({"n_sites": 2, "scheme": "dirichlet"}, "y must be"),
        ({"n_sites": 2, "scheme": "dirichlet", "y": [1]}, "y must be"),
        ({"n_sites": 2, "scheme": "dirichlet", "y": FRAME["c"], "alpha": 0}, "alpha"),
        ({"n_sites": 2, "scheme": "dominant", "y": FRAME["c"], "share": 1.0}, "share"),
        ({"scheme": "sizes", "sizes": [1, 0]}, "sizes"),
        ({"scheme": "sizes", "sizes": [1, 1000]}, "min_rows"),
        ({"scheme": "sizes", "n_sites": 2}, "sizes"),
        (
            {"n_sites": 20, "scheme": "dirichlet", "y": FRAME["c"], "alpha": 0.01},
            "raise alpha",
        ),
    ],
)
def test_bad_parameters(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        partition(FRAME, **options, random_state=0)

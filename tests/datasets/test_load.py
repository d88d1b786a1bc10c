from __future__ import annotations

import numpy as np
import pytest

from consilience.datasets.load import DEMOS, load_demo, load_demo_sites
from consilience.exceptions import ParameterError

SHAPES = {
    "breast_cancer": (569, 31),
    "diabetes": (442, 11),
    "digits": (1797, 65),
    "iris": (150, 5),
    "wine": (178, 14),
}


@pytest.mark.parametrize("name", sorted(DEMOS))
def test_columns_speak_for_themselves(name: str) -> None:
    frame = load_demo(name)
    assert frame.shape == SHAPES[name]
    assert len(set(frame.columns)) == frame.shape[1]
    assert all(column == column.lower() and column.isidentifier() for column in frame.columns)
    assert frame.columns[-1] == DEMOS[name].target
    assert not frame.isna().any().any()
    if DEMOS[name].classes:
        assert set(frame[DEMOS[name].target]) == set(DEMOS[name].classes)


def test_classes_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    frame = load_demo("breast_cancer")
    assert (frame["diagnosis"] == np.asarray(bunch.target_names)[bunch.target]).all()
    assert frame["mean_radius"].to_numpy() == pytest.approx(bunch.data[:, 0])


def test_unknown_name() -> None:
    with pytest.raises(ParameterError, match="one of breast_cancer"):
        load_demo("titanic")


def test_demo_sites_differ_and_are_large_enough() -> None:
    sites = load_demo_sites()
    counts = np.array(
        [frame["cultivar"].value_counts().sort_index().to_numpy() for frame in sites.values()]
    )
    assert counts.sum() == 178
    assert counts.min() >= 12
    assert (counts.argmax(axis=1) == [0, 1, 2]).all()
    # Moments of 13 features need 26 rows.
    assert counts.sum(axis=1).min() >= 26

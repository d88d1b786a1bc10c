from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from consilience.datasets.load import (
    DEMOS,
    load_demo,
    load_demo_cellar,
    load_demo_columns,
    load_demo_sites,
    load_demo_tumours,
)
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


def test_demo_columns_match_by_id_and_do_not_separate_the_classes() -> None:
    from consilience.assisted.kernels.glm import family, fit

    tables = load_demo_columns()
    clinic, laboratory = (t.set_index("patient") for t in tables.values())
    assert clinic.index.is_unique and laboratory.index.is_unique
    common = clinic.index.intersection(laboratory.index)
    assert (len(clinic), len(laboratory), len(common)) == (544, 549, 524)
    assert clinic.loc[common, "malignant"].isna().sum() == clinic["malignant"].isna().sum() == 24
    # The two tables have different orders, and ids say nothing of the class.
    assert list(laboratory.index) != sorted(laboratory.index)
    both = clinic.join(laboratory, how="inner").dropna()
    y = both.pop("malignant").to_numpy(dtype=float)
    x = ((both - both.mean()) / both.std()).to_numpy()
    found = fit(x, y, family("binomial"))
    assert found.converged and not found.separated
    # Every patient has the values of one tumour of the source.
    source = load_demo("breast_cancer")
    kept = both.merge(source, on=list(both.columns), how="left")
    assert len(kept) == 500
    assert (kept["diagnosis"].eq("malignant").to_numpy() == y).all()


def test_demo_columns_are_the_same_each_time() -> None:
    for first, second in zip(
        load_demo_columns().values(), load_demo_columns().values(), strict=True
    ):
        assert first.equals(second)


def test_tumours_at_clinics_are_those_of_one() -> None:
    (whole,) = load_demo_tumours(1).values()
    assert list(whole.columns[-1:]) == ["diagnosis"] and whole.shape == (569, 21)
    clinics = load_demo_tumours()
    assert [len(t) for t in clinics.values()] == [190, 189, 190]
    together = pd.concat(clinics.values())
    assert together.sort_values(list(whole)).to_numpy().tolist() == (
        whole.sort_values(list(whole)).to_numpy().tolist()
    )
    with pytest.raises(ParameterError, match="from 1 to 3"):
        load_demo_tumours(4)


def test_cellar_is_the_wines_with_gaps_at_random() -> None:
    (cellar,) = load_demo_cellar().values()
    wines = load_demo("wine")
    assert list(cellar) == list(wines) and cellar.shape == wines.shape
    gaps = cellar.isna().to_numpy()
    assert not gaps[:, -1].any() and 0.08 < gaps[:, :-1].mean() < 0.12
    kept = cellar.fillna(wines)
    assert kept.equals(wines)
    assert load_demo_cellar(0.0)["cellar"].equals(wines)
    with pytest.raises(ParameterError, match="gaps"):
        load_demo_cellar(0.9)

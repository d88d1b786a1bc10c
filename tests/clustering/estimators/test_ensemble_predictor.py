from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from consilience.clustering.estimators.local_models import KMeansModel
from consilience.clustering.estimators.predictors import EnsemblePredictor
from consilience.exceptions import DataError
from consilience.numerics.random import stream


def predictor(names=("age", "größe")):
    rng = stream(0, "predictor")
    models = [KMeansModel(rng.standard_normal((k, 2))) for k in (3, 2, 4)]
    return EnsemblePredictor(
        models,
        rng.standard_normal((9, 5)),
        rng.standard_normal((3, 5)),
        feature_names=names,
    )


def test_predicts_the_nearest_centre_of_summed_features():
    made = predictor()
    rows = stream(1).standard_normal((50, 2))
    phi = np.zeros((50, 5))
    offset = 0
    for model in made.models:
        gaps = ((rows[:, None] - model.means[None]) ** 2).sum(axis=2)
        phi += made.features[offset + gaps.argmin(axis=1)]
        offset += model.n_classes
    expected = ((phi[:, None] - made.centres[None]) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(made.predict(rows), expected)
    single = [made.predict(rows[i : i + 1])[0] for i in range(50)]
    np.testing.assert_array_equal(single, expected)


@pytest.mark.parametrize("names", [("age", "größe"), None])
def test_arrays_hold_the_predictor(names):
    made = predictor(names)
    arrays = made.to_arrays()
    assert all(a.dtype.kind in "iuf" for a in arrays.values())
    again = EnsemblePredictor.from_arrays(arrays)
    rows = stream(2).standard_normal((20, 2))
    np.testing.assert_array_equal(again.predict(rows), made.predict(rows))
    if names:
        assert again.feature_names_in_.tolist() == list(names)
    for key in ("features", "n_models", "model1.means"):
        with pytest.raises(DataError):
            EnsemblePredictor.from_arrays({k: v for k, v in arrays.items() if k != key})
    with pytest.raises(DataError):
        EnsemblePredictor.from_arrays({**arrays, "features": np.ones((2, 5))})


def test_columns_are_checked_by_name_and_number():
    made = predictor()
    frame = pd.DataFrame(np.ones((2, 2)), columns=["age", "größe"])
    assert made.predict(frame).shape == (2,)
    with pytest.raises(DataError, match="in this order"):
        made.predict(frame[["größe", "age"]])
    with pytest.raises(DataError, match="2 columns"):
        made.predict(np.ones((2, 3)))
    with pytest.raises(DataError, match="missing"):
        made.predict(np.array([[np.nan, 1.0]]))

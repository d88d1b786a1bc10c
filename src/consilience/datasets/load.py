"""Data sets that ship with scikit-learn, for demonstrations without a download."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from consilience.exceptions import ParameterError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class DemoInfo:
    """What a data set is.

    Attributes
    ----------
    title : str
    target : str
        Name of the last column: the known class, or a number.
    classes : tuple of str
        Levels of the target; empty where it is a number.
    """

    title: str
    target: str
    classes: tuple[str, ...] = ()


DEMOS: dict[str, DemoInfo] = {
    "breast_cancer": DemoInfo(
        "Cell nuclei of breast tumours", "diagnosis", ("malignant", "benign")
    ),
    "diabetes": DemoInfo("Progression of diabetes after a year", "progression"),
    "digits": DemoInfo("Handwritten digits, 8 x 8 pixels", "digit", tuple("0123456789")),
    "iris": DemoInfo("Flowers of three species", "species", ("setosa", "versicolor", "virginica")),
    "wine": DemoInfo(
        "Chemistry of wines of three cultivars",
        "cultivar",
        ("cultivar-1", "cultivar-2", "cultivar-3"),
    ),
}

_DIABETES = {
    "bp": "blood_pressure",
    "s1": "cholesterol",
    "s2": "ldl",
    "s3": "hdl",
    "s4": "cholesterol_by_hdl",
    "s5": "log_triglycerides",
    "s6": "glucose",
}


def load_demo(name: str) -> pd.DataFrame:
    """Load a data set.

    Parameters
    ----------
    name : {"breast_cancer", "diabetes", "digits", "iris", "wine"}

    Returns
    -------
    DataFrame
        Features, in original units, then the target (see `DEMOS`), as text where it is a class.

    Raises
    ------
    ParameterError
        There is no such data set.
    """
    import numpy as np
    import pandas as pd
    from sklearn import datasets

    if name not in DEMOS:
        raise ParameterError.of("name", f"one of {', '.join(sorted(DEMOS))}", name)
    info = DEMOS[name]
    options: dict[str, Any] = {"scaled": False} if name == "diabetes" else {}
    bunch = getattr(datasets, f"load_{name}")(**options)
    columns = [_column_name(str(column)) for column in bunch.feature_names]
    frame = pd.DataFrame(np.asarray(bunch.data, dtype=float), columns=columns)
    target = np.asarray(info.classes)[bunch.target] if info.classes else bunch.target
    frame[info.target] = target
    return frame


def _column_name(name: str) -> str:
    """Small letters, digits and underscores; units in brackets are left out."""
    plain = re.sub(r"\(.*\)", "", _DIABETES.get(name, name))
    return re.sub(r"[^a-z0-9]+", "_", plain.lower()).strip("_")


def load_demo_sites(random_state: int = 0) -> dict[str, pd.DataFrame]:
    """Load the wines at three sites, each with half of one cultivar and a quarter of the others.

    Every cultivar has at least 12 wines at every site, so that strict policies let class
    parameters pass.
    """
    from consilience.datasets.partition import partition

    wines = load_demo("wine")
    return partition(
        wines,
        wines["cultivar"],
        scheme="dominant",
        share=0.5,
        names=("north", "centre", "south"),
        random_state=random_state,
    )


def load_demo_clinics(random_state: int = 0) -> dict[str, pd.DataFrame]:
    """Load the diabetes patients at six clinics, drawn at random; one of them is made to differ.

    At the clinic "elm" the score of progression counts downwards (350 minus the score), as if its
    form asked for improvement. Nothing else differs: what is to be found is known.
    """
    from consilience.datasets.partition import partition

    clinics = partition(
        load_demo("diabetes"),
        names=("aspen", "birch", "cedar", "elm", "fir", "hazel"),
        random_state=random_state,
    )
    clinics["elm"] = clinics["elm"].assign(progression=350.0 - clinics["elm"]["progression"])
    return clinics


def load_demo_tumours(n_clinics: int = 3, random_state: int = 0) -> dict[str, pd.DataFrame]:
    """Load the breast tumours at clinics, drawn at random: means, worst values and ``diagnosis``.

    Parameters
    ----------
    n_clinics : int
        From 1 to 3.
    random_state : int

    Raises
    ------
    ParameterError
        Another number of clinics.
    """
    from consilience.datasets.partition import partition

    names = ("aspen", "birch", "cedar")
    if not 1 <= n_clinics <= len(names):
        raise ParameterError.of("n_clinics", f"from 1 to {len(names)}", n_clinics)
    tumours = load_demo("breast_cancer")
    shown = [c for c in tumours if c == "diagnosis" or c.startswith(("mean_", "worst_"))]
    if n_clinics == 1:
        return {names[0]: tumours[shown]}
    return partition(tumours[shown], names=names[:n_clinics], random_state=random_state)


def load_demo_cellar(gaps: float = 0.1, random_state: int = 0) -> dict[str, pd.DataFrame]:
    """Load the wines in one table, with cells that are missing at random.

    Parameters
    ----------
    gaps : float
        Share of the measurements that are missing, in [0, 0.5].
    random_state : int

    Raises
    ------
    ParameterError
        Another share.
    """
    import numpy as np

    if not 0 <= gaps <= 0.5:
        raise ParameterError.of("gaps", "in [0, 0.5]", gaps)
    wines = load_demo("wine")
    measured = wines.drop(columns="cultivar")
    missing = np.random.default_rng(random_state).random(measured.shape) < gaps
    return {"cellar": measured.mask(missing).assign(cultivar=wines["cultivar"])}


CLINIC_COLUMNS = (
    "mean_texture",
    "mean_smoothness",
    "mean_symmetry",
    "mean_fractal_dimension",
    "texture_error",
)
LABORATORY_COLUMNS = ("worst_compactness", "worst_concavity", "worst_concave_points")


def load_demo_columns(random_state: int = 0) -> dict[str, pd.DataFrame]:
    """Load the breast tumours at two parties that hold different columns of the same patients.

    The clinic has means over all nuclei of a sample, a standard error, and whether the tumour
    turned out ``malignant`` (0 or 1); the laboratory has the worst values of three measurements of
    the outline. Together they do not separate the classes, so that a logistic model has a fit. Ids
    and orders are drawn at random; on purpose 20 patients are at the clinic only and 25 at the
    laboratory only, and of the 524 at both 24 have no diagnosis yet.
    """
    import numpy as np

    tumours = load_demo("breast_cancer")
    rng = np.random.default_rng(random_state)
    n = len(tumours)
    order = rng.permutation(n)
    numbers = rng.choice(np.arange(1000, 10000), size=n, replace=False)
    tumours.insert(0, "patient", [f"P{number}" for number in numbers])
    tumours["malignant"] = (tumours["diagnosis"] == "malignant").astype("Int64")
    tumours.loc[order[20:44], "malignant"] = None
    # The first 20 are unknown to the laboratory, the last 25 to the clinic.
    clinic = tumours.loc[order[:-25], ["patient", *CLINIC_COLUMNS, "malignant"]]
    laboratory = tumours.loc[order[20:], ["patient", *LABORATORY_COLUMNS]]
    return {
        "clinic": clinic.sort_values("patient", ignore_index=True),
        "laboratory": laboratory.sample(frac=1, random_state=random_state, ignore_index=True),
    }

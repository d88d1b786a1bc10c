"""Data sets that ship with scikit-learn, for demonstrations without a download.

`partition` splits one table into sites, for demonstrations and tests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.datasets import check_choice
from consilience.exceptions import ParameterError

if TYPE_CHECKING:
    import pandas as pd

Scheme = Literal["iid", "dirichlet", "dominant", "sizes"]
ATTEMPTS = 1000


def partition(
    X: Any,
    y: Any = None,
    *,
    n_sites: int | None = None,
    scheme: Scheme = "iid",
    alpha: float = 1.0,
    share: float = 0.5,
    sizes: Sequence[float] | None = None,
    min_rows: int = 10,
    names: Sequence[str] | None = None,
    random_state: int | None = None,
) -> dict[str, pd.DataFrame]:
    """Split the rows of a table into sites; every row goes to exactly one.

    Parameters
    ----------
    X : (n, p) DataFrame or array
    y : (n,) array, optional
        Classes, for the schemes that look at them; put it into `X` to keep it as a column.
    n_sites : int, optional
        Needed unless `sizes` or `names` are given.
    scheme : {"iid", "dirichlet", "dominant", "sizes"}
        Equal sizes at random; every class spread over sites by proportions from
        Dirichlet(alpha, ..., alpha), so that sites differ in size and class proportions; every
        class with `share` of its rows at one site, in turn, and the rest spread evenly; or given
        sizes at random.
    alpha : float
        Small values make sites differ more.
    share : float
        In (0, 1), for ``scheme="dominant"``.
    sizes : sequence of float, optional
        Relative sizes of the sites, for ``scheme="sizes"``.
    min_rows : int
        Rows that every site gets at least.
    names : sequence of str, optional
        ``site-1``, ``site-2``, ... by default.
    random_state : int, optional

    Returns
    -------
    dict of str to DataFrame
        Rows in the order and with the index of `X`.

    Raises
    ------
    ParameterError
        A parameter is outside its range, or no split gives every site `min_rows`.
    """
    import pandas as pd

    frame = X
    if not isinstance(X, pd.DataFrame):
        array = np.asarray(X)
        if array.ndim != 2:
            raise ParameterError.of("X", "a DataFrame or an array with two dimensions", array.shape)
        frame = pd.DataFrame(array, columns=[f"x{j}" for j in range(array.shape[1])])
    check_choice("scheme", scheme, Scheme)
    if (scheme == "sizes") != (sizes is not None):
        raise ParameterError.of("sizes", "given exactly when scheme is 'sizes'", sizes)
    # the number of sites may come from any of three parameters
    site_names = _site_names(n_sites, sizes, names)
    n, m = len(frame), len(site_names)
    if not isinstance(min_rows, int) or min_rows < 1 or min_rows * m > n:
        raise ParameterError.of("min_rows", f"in 1..{n // m} for {n} rows and {m} sites", min_rows)
    rng = np.random.default_rng(random_state)
    if scheme in ("iid", "sizes"):
        site_of = _shares(n, np.ones(m) if sizes is None else np.asarray(sizes, float), rng)
    elif y is None or len(y) != n:
        raise ParameterError.of("y", "one class for each row", "none" if y is None else len(y))
    else:
        codes = np.unique(np.asarray(y), return_inverse=True)[1]
        classes = [np.flatnonzero(codes == k) for k in range(codes.max() + 1)]
        site_of = _by_class(classes, m, scheme, alpha, share, min_rows, rng)
    counts = np.bincount(site_of, minlength=m)
    # sizes that were asked for may leave a site too few rows
    if counts.min() < min_rows:
        raise ParameterError.of("min_rows", f"at most {counts.min()} for this split", min_rows)
    return {name: frame[site_of == k] for k, name in enumerate(site_names)}


def _site_names(
    n_sites: int | None, sizes: Sequence[float] | None, names: Sequence[str] | None
) -> list[str]:
    lengths = {len(given) for given in (sizes, names) if given is not None}
    if n_sites is not None:
        lengths.add(n_sites)
    if len(lengths) != 1 or min(lengths) < 1:
        raise ParameterError.of(
            "n_sites", "at least 1, and the length of sizes and names where they are given", n_sites
        )
    if names is None:
        return [f"site-{k + 1}" for k in range(lengths.pop())]
    if len(set(names)) < len(names):
        raise ParameterError.of("names", "all different", list(names))
    return list(names)


def _shares(n: int, sizes: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Site of each row, with given relative sizes."""
    if sizes.ndim != 1 or not np.isfinite(sizes).all() or (sizes <= 0).any():
        raise ParameterError.of("sizes", "positive numbers", sizes.tolist())
    # rounded ends, not sizes: every row goes to a site
    ends = np.round(np.cumsum(sizes) / sizes.sum() * n).astype(np.int64)
    site_of = np.searchsorted(ends, np.arange(n), side="right")
    return rng.permutation(site_of)


def _by_class(
    classes: Sequence[NDArray[np.int64]],
    m: int,
    scheme: str,
    alpha: float,
    share: float,
    min_rows: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Site of each row; class k is most frequent at site k modulo m, or where chance puts it."""
    if scheme == "dominant" and not 0 < share < 1:
        raise ParameterError.of("share", "in (0, 1)", share)
    if scheme == "dirichlet" and not (np.isfinite(alpha) and alpha > 0):
        raise ParameterError.of("alpha", "above 0", alpha)
    site_of = np.empty(sum(map(len, classes)), dtype=np.int64)
    for _ in range(ATTEMPTS):
        for k, members in enumerate(classes):
            if scheme == "dominant":
                # a single site has everything
                weights = np.full(m, (1 - share) / max(m - 1, 1))
                weights[k % m] = share
            else:
                # at small alpha a share may be 0 in floating point, and sizes are positive
                weights = np.maximum(rng.dirichlet(np.full(m, alpha)), 1e-12)
            site_of[members] = _shares(len(members), weights, rng)
        # By chance some site may have too few rows: then all of them are drawn again.
        if scheme == "dominant" or np.bincount(site_of, minlength=m).min() >= min_rows:
            return site_of
    raise ParameterError.of(
        "min_rows", f"reachable (no such split in {ATTEMPTS} draws: raise alpha)", min_rows
    )


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
    import pandas as pd
    from sklearn import datasets

    if name not in DEMOS:
        raise ParameterError.of("name", f"one of {', '.join(sorted(DEMOS))}", name)
    info = DEMOS[name]
    # scikit-learn scales this one table, and only this one can be had in its own units
    options: dict[str, Any] = {"scaled": False} if name == "diabetes" else {}
    bunch = getattr(datasets, f"load_{name}")(**options)
    # Small letters, digits and underscores; units in brackets are left out.
    plain = (re.sub(r"\(.*\)", "", _DIABETES.get(str(c), str(c))) for c in bunch.feature_names)
    columns = [re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") for name in plain]
    frame = pd.DataFrame(np.asarray(bunch.data, dtype=float), columns=columns)
    target = np.asarray(info.classes)[bunch.target] if info.classes else bunch.target
    frame[info.target] = target
    return frame


def load_demo_sites(random_state: int = 0) -> dict[str, pd.DataFrame]:
    """Load the wines at three sites, each with half of one cultivar and a quarter of the others.

    Every cultivar has at least 12 wines at every site, so that strict policies let class
    parameters pass.
    """
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
    clinics = partition(
        load_demo("diabetes"),
        names=("aspen", "birch", "cedar", "elm", "fir", "hazel"),
        random_state=random_state,
    )
    clinics["elm"] = clinics["elm"].assign(progression=350.0 - clinics["elm"]["progression"])
    return clinics


def transplants_in_turns(text: str, sites: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Heart transplants at hospitals that take turns: ``age``, ``days`` and ``died``.

    Parameters
    ----------
    text : str
        The three numbers of each person, with commas between people.
    sites : sequence of str
    """
    import pandas as pd

    rows = [line.split() for line in text.split(",")]
    table = pd.DataFrame(rows, columns=["age", "days", "died"])
    table = table.astype({"age": float, "days": int, "died": int})
    return {site: table.iloc[i :: len(sites)] for i, site in enumerate(sites)}


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
    names = ("aspen", "birch", "cedar")
    if not 1 <= n_clinics <= len(names):
        raise ParameterError.of("n_clinics", f"from 1 to {len(names)}", n_clinics)
    tumours = load_demo("breast_cancer")
    # without the standard errors: a guide shows fewer columns
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
    tumours = load_demo("breast_cancer")
    rng = np.random.default_rng(random_state)
    n = len(tumours)
    order = rng.permutation(n)
    numbers = rng.choice(np.arange(1000, 10000), size=n, replace=False)
    tumours.insert(0, "patient", [f"P{number}" for number in numbers])
    # whole numbers with gaps: who has no diagnosis yet is to be predicted
    tumours["malignant"] = (tumours["diagnosis"] == "malignant").astype("Int64")
    tumours.loc[order[20:44], "malignant"] = None
    # The first 20 are unknown to the laboratory, the last 25 to the clinic.
    clinic = tumours.loc[order[:-25], ["patient", *CLINIC_COLUMNS, "malignant"]]
    laboratory = tumours.loc[order[20:], ["patient", *LABORATORY_COLUMNS]]
    return {
        "clinic": clinic.sort_values("patient", ignore_index=True),
        "laboratory": laboratory.sample(frac=1, random_state=random_state, ignore_index=True),
    }

"""Joint training without a network, and the data sets that more than one table uses."""

from __future__ import annotations

import gzip
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from consilience.assisted.kernels.glm import family
from consilience.datasets.simulate_assisted import SplitColumns
from replications.assisted_glm.in_one_process import JointFit, fit_jointly

FloatArray = NDArray[np.float64]

# --------------------------------------------------------------------------- joint training


def train_jointly(
    data: SplitColumns,
    acceleration: str,
    rounds: int,
    *,
    mask: float = 0.0,
    **settings: Any,
) -> JointFit:
    """Train a and b for a number of rounds, without the network; they do not stop before."""
    model = family(data.family, mask=mask)
    return fit_jointly(
        data.columns["a"],
        [data.columns["b"]],
        data.y,
        model,
        acceleration=acceleration,
        n_rounds=rounds,
        tol=0.0,
        loss_tol=-1.0,
        **settings,
    )


def extended(train: SplitColumns, eta: FloatArray, fresh: SplitColumns) -> FloatArray:
    """Linear predictor of other records from that of the training records.

    It lies in the span of all columns and a constant, so least squares finds its coefficients; for
    shared columns only their sum over the parties is unique, and that is all it takes.
    """
    x, new = (np.column_stack([np.ones(len(d.y)), d.pooled]) for d in (train, fresh))
    result: FloatArray = new @ np.linalg.lstsq(x, eta, rcond=None)[0]
    return result


# --------------------------------------------------------------------------- real data

HOST = (
    "dst_host_count",
    "dst_host_srv_count",
    "dst_host_same_srv_rate",
    "dst_host_diff_srv_rate",
    "dst_host_same_src_port_rate",
    "dst_host_srv_diff_host_rate",
    "dst_host_serror_rate",
    "dst_host_srv_serror_rate",
    "dst_host_rerror_rate",
    "dst_host_srv_rerror_rate",
)
TRAFFIC = (
    "count",
    "srv_count",
    "serror_rate",
    "srv_serror_rate",
    "rerror_rate",
    "srv_rerror_rate",
    "same_srv_rate",
    "diff_srv_rate",
    "srv_diff_host_rate",
)


def data_folder(name: str) -> Path:
    """A folder of the real data; the program ends with one sentence where it is missing."""
    path = Path(os.environ.get("CONSILIENCE_DATA", "")) / name
    if not os.environ.get("CONSILIENCE_DATA") or not path.is_dir():
        raise SystemExit(f"set CONSILIENCE_DATA to the folder that holds {name}")
    return path


@cache
def connections() -> tuple[FloatArray, FloatArray]:
    """NSL-KDD: host and traffic columns (n, 19), and 1 for denial of service, 0 for normal."""
    folder = data_folder("nsl_kdd")
    fields = (folder / "field_names.csv").read_text(encoding="utf-8").split()
    names = [field.partition(",")[0] for field in fields]
    kinds = dict(
        entry.split(",")
        for entry in (folder / "attack_types.csv").read_text(encoding="utf-8").splitlines()
        if "," in entry
    )
    with gzip.open(folder / "KDDTrain+_20Percent.txt.gz", "rt", encoding="utf-8") as file:
        table = pd.read_csv(file, header=None, names=[*names, "label", "difficulty"])
    group = table["label"].map(lambda label: kinds.get(label, label))
    table, group = table[group.isin(["dos", "normal"])], group[group.isin(["dos", "normal"])]
    return (
        table[[*HOST, *TRAFFIC]].to_numpy(dtype=np.float64),
        (group == "dos").to_numpy(dtype=np.float64),
    )


def nsl_kdd(rng: np.random.Generator, n_each: int = 5000) -> SplitColumns:
    """Draw denials of service and normal connections, `n_each` of each, split by columns."""
    x, y = connections()
    chosen = np.concatenate(
        [rng.choice(np.flatnonzero(y == kind), n_each, replace=False) for kind in (0.0, 1.0)]
    )
    x, y = x[chosen], y[chosen]
    # units only; the fits do not depend on them, the iterations of the baselines would
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    k = len(HOST)
    return SplitColumns(
        {"a": x[:, :k], "b": x[:, k:]},
        {"a": HOST, "b": TRAFFIC},
        y,
        np.full(len(y), np.nan),
        dict.fromkeys((*HOST, *TRAFFIC), float("nan")),
        "binomial",
    )

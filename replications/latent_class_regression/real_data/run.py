"""InstEval, sleepstudy and Exam: classes beside mixed models and ridge regressions.

Needs ``grouped`` in the folder that ``CONSILIENCE_DATA`` names.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.engines.federation import Federation  # noqa: E402
from consilience.latent_regression.estimators.latent_class_regressor import LatentClassRegressor  # noqa: E402
from consilience.latent_regression.protocol import LatentClassRegression  # noqa: E402
from consilience.protocol.method import Columns  # noqa: E402
from consilience.sites.policy import Policy  # noqa: E402
from examples.grouped_peers import entity_ridge, fit_mixed, pooled_ridge  # noqa: E402
from replications.assisted_glm.study import Table, options  # noqa: E402
from replications.latent_class_regression.real_data.setups import (  # noqa: E402
    FloatArray,
    Split,
    grouped_splits,
    ratings_splits,
)

HERE = Path(__file__).parent
Prediction = tuple[FloatArray, FloatArray | None]
"""Of the new rows: the mean, and an interval of level .9 where there is one."""
Model = Callable[[Split, int], Prediction]


# --------------------------------------------------------------------------- models


def ridge(split: Split, seed: int) -> Prediction:
    x = split.x
    return pooled_ridge(x[split.train], split.y[split.train], x[split.new]), None


def own_ridge(split: Split, seed: int) -> Prediction:
    train, new, of = split.train, split.new, split.codes["entity"]
    rng = np.random.default_rng(seed)
    x, y = split.x, split.y
    return entity_ridge(x[train], y[train], of[train], x[new], of[new], rng), None


def mixed(
    split: Split,
    seed: int,
    *,
    group: str = "entity",
    slope: str | None = None,
    crossed: str | None = None,
    without: Sequence[str] = (),
) -> Prediction:
    """Normal effects of `group` (with a `slope`) and of `crossed`; some columns left out."""
    train, new = split.train, split.new
    kept = [j for j, name in enumerate(split.columns) if name not in without]
    centre, scale = split.x[train].mean(axis=0), split.x[train].std(axis=0)
    table = (split.x - centre) / scale
    one = np.ones((len(table), 1))
    x = np.column_stack([one, table[:, kept]])
    z = one if slope is None else np.column_stack([one, table[:, split.place(slope)]])
    groups = split.codes[group]
    levels = None if crossed is None else split.codes[crossed]
    unit = split.y[train].std()
    fitted = fit_mixed(
        x[train],
        split.y[train] / unit,
        z[train],
        groups[train],
        None if levels is None else levels[train],
        n_groups=int(groups.max()) + 1,
        n_levels=0 if levels is None else int(levels.max()) + 1,
    )
    of_new = None if levels is None else levels[new]
    return unit * fitted.predict(x[new], z[new], groups[new], of_new), None


def by_lme4(split: Split, seed: int, *, effects: str) -> Prediction:
    """R's ``lmer`` with random `effects` of student, lecturer, at_home (lecturer at home)."""
    table = pd.DataFrame(split.x, columns=list(split.columns)).assign(y=split.y)
    for name in ("student", "lecturer", "lecturer at home"):
        table[name.replace("lecturer at", "at").replace(" ", "_")] = split.codes[name]
    formula = f"y ~ {' + '.join(split.columns)} + {effects}"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        table.iloc[split.train].to_csv(folder / "train.csv", index=False)
        table.iloc[split.new].to_csv(folder / "new.csv", index=False)
        subprocess.run(["Rscript", str(HERE / "lme4.R"), place, formula], check=True)
        return pd.read_csv(folder / "predicted.csv")["predicted"].to_numpy(), None


def classes(split: Split, seed: int, *, n_classes: int | str, **degrees: str) -> Prediction:
    """The estimator, everything else by default."""
    train, new = split.train, split.new

    def of(rows: Any) -> dict[str, Any]:
        codes = split.codes
        return {name: codes[name][rows] for name in ("entity", "agent") if name in codes}

    model = LatentClassRegressor(n_classes=n_classes, random_state=seed, **degrees)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(split.x[train], split.y[train], **of(train))
    interval = model.predict_interval(split.x[new], level=0.9, **of(new))
    return model.predict(split.x[new], **of(new)), interval


def federated(split: Split, seed: int, *, n_classes: int, policy: str) -> Prediction:
    """The method over the agents as sites, everything else by default; no events are held out."""
    train, new = split.train, split.new
    names = split.codes["agent"].astype(str)
    table = pd.DataFrame(split.x, columns=list(split.columns))
    table = table.assign(y=split.y, entity=split.codes["entity"].astype(str))
    tables = {site: table.iloc[train[names[train] == site]] for site in np.unique(names)}
    federation = Federation.local(
        tables,
        columns=Columns(features=split.columns, target="y", entity="entity"),
        policy=Policy(preset=policy, foreign_models=True),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = LatentClassRegression(n_classes=n_classes, holdout=0.0).run(federation, seed=seed)
    mean, interval = np.empty(len(new)), np.empty((len(new), 2))
    for site in tables:
        mine = names[new] == site
        rows = table.iloc[new[mine]]
        left, entity = run.site(site).predictor, rows["entity"]
        x = rows[list(split.columns)]
        mean[mine] = left.predict(x, entity=entity)
        interval[mine] = left.predict_interval(x, level=0.9, entity=entity)
    return mean, interval


# --------------------------------------------------------------------------- lines


@dataclass(frozen=True)
class Line:
    """One data set with its models.

    Attributes
    ----------
    name : str
    splits : callable of a seed
    replicates : int
        Repeats of five-fold cross-validation.
    peer : str
        The mixed model that others are divided by.
    models : dict of str to callable
    needs_r : bool
    """

    name: str
    splits: Callable[[int], Iterator[Split]]
    replicates: int
    peer: str
    models: Mapping[str, Model]
    needs_r: bool = False


def by_number(*numbers: int | str) -> dict[str, Model]:
    """Classes with each of some settings of their number."""
    return {f"classes, {k}": partial(classes, n_classes=k) for k in numbers}


def with_degrees() -> dict[str, Model]:
    """Classes whose entities differ by degrees; one, unless more predict better."""
    slopes = {"random_effects": "slopes"}
    settings = {
        "intercepts": {"random_effects": "intercept"},
        "slopes": slopes,
        "slopes and t noise": slopes | {"noise": "t"},
    }
    return {
        f"classes, auto, with {name}": partial(classes, n_classes="auto", **degrees)
        for name, degrees in settings.items()
    }


def over_sites(n_classes: int, *policies: str) -> dict[str, Model]:
    """Classes over departments that keep their tables."""
    return {
        f"classes, {n_classes}, over sites, {policy}": partial(
            federated, n_classes=n_classes, policy=policy
        )
        for policy in policies
    }


def with_mean(kind: str, crossed: str, **more: Model) -> Line:
    """InstEval with the lecturer's mean as a column, students as entities."""
    peer = f"crossed effects of student and {crossed}"
    return Line(
        f"InstEval, lecturer's {kind}",
        partial(ratings_splits, kind),
        1,
        peer,
        {
            "ridge": ridge,
            "ridge of each entity": own_ridge,
            **by_number(4, 8, 12, "auto"),
            **with_degrees(),
            **more,
            "student intercepts": mixed,
            "student intercepts and slopes": partial(mixed, slope="lecturer_mean"),
            peer: partial(mixed, crossed=crossed, without=["lecturer_mean"]),
        },
    )


RAW = "crossed effects of student and lecturer"
LINES = (
    with_mean("mean of all", "lecturer"),
    with_mean(
        "mean in the department", "lecturer at home", **over_sites(8, "strict", "simulation")
    ),
    Line(
        "InstEval, raw columns, lecturers as entities",
        partial(ratings_splits, "raw"),
        1,
        RAW,
        {
            "ridge": ridge,
            "ridge of each entity": own_ridge,
            **by_number(12, "auto"),
            **with_degrees(),
            "lecturer intercepts": mixed,
            RAW: partial(mixed, group="student", crossed="lecturer"),
        },
    ),
    Line(
        "InstEval, raw columns, first fold, by lme4",
        lambda seed: islice(ratings_splits("raw", seed), 1),
        1,
        RAW,
        {
            RAW: partial(mixed, group="student", crossed="lecturer"),
            **{
                f"lme4: {effects}": partial(by_lme4, effects=effects)
                for effects in (
                    "(1 | student) + (1 | lecturer)",
                    "(1 | student) + (1 | at_home)",
                    "(1 | student) + (1 | lecturer) + (1 | at_home)",
                )
            },
        },
        needs_r=True,
    ),
    *(
        Line(
            name,
            partial(grouped_splits, name),
            replicates,
            "intercepts and slopes",
            {
                "ridge": ridge,
                "ridge of each entity": own_ridge,
                **by_number(*numbers, "auto"),
                **with_degrees(),
                "intercepts": mixed,
                "intercepts and slopes": partial(mixed, slope=slope),
            },
        )
        for name, slope, replicates, numbers in (
            ("sleepstudy", "Days", 10, (3, 4, 5)),
            ("Exam", "standLRT", 4, (3, 5, 8)),
        )
    ),
)

# --------------------------------------------------------------------------- figures


def one(line: Line, seed: int) -> dict[str, dict[str, Any]]:
    """By model: squared ``error`` over the variance of y by row, and what lies ``inside``."""
    found: dict[str, dict[str, Any]] = {}
    for split in line.splits(seed):
        for name, model in line.models.items():
            mean, interval = model(split, seed)
            y = split.y[split.new]
            kept = found.setdefault(name, {"entity": split.codes["entity"], "splits": 0})
            kept["splits"] += 1
            error = kept.setdefault("error", np.full(len(split.y), np.nan))
            error[split.new] = (y - mean) ** 2 / split.y.var()
            if interval is not None:
                inside = kept.setdefault("inside", np.full(len(split.y), np.nan))
                inside[split.new] = (interval[:, 0] <= y) & (y <= interval[:, 1])
    return found


def ratio(error: FloatArray, peer: FloatArray, entity: np.ndarray) -> tuple[float, float]:
    """Mean error over that of the peer, and its standard error from sums over entities."""
    value = error.sum() / peer.sum()
    gaps = np.bincount(entity, error - value * peer)
    return float(value), float(np.sqrt((gaps**2).sum()) / peer.sum())


def rows(line: Line, sets: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One row for each model; errors of a row are averaged over repeats first."""

    def over(model: str, figure: str) -> FloatArray:
        return np.mean([each[model][figure] for each in sets], axis=0)

    entity = np.asarray(sets[0][line.peer]["entity"])
    known = ~np.isnan(over(line.peer, "error"))
    peer = over(line.peer, "error")[known]
    made = []
    for model in sets[0]:
        error = over(model, "error")[known]
        value, spread = ratio(error, peer, entity[known])
        _, width = ratio(error, np.ones_like(error), entity[known])
        row = {
            "model": model,
            "replicates": len(sets),
            "folds": sets[0][model]["splits"],
            "error": f"{error.mean():.4f}",
            "error_se": f"{width:.4f}",
            "to_mixed": f"{value:.4f}",
            "to_mixed_se": "" if model == line.peer else f"{spread:.4f}",
        }
        for simpler in ("ridge", "ridge of each entity"):
            if simpler in sets[0]:
                theirs = over(simpler, "error")[known]
                row[f"to_{simpler.replace(' ', '_')}"] = f"{error.sum() / theirs.sum():.4f}"
        if "inside" in sets[0][model]:
            row["coverage"] = f"{over(model, 'inside')[known].mean():.3f}"
        made.append(row)
    return made


def has_lme4() -> bool:
    """Whether Debian's r-base-core and r-cran-lme4, or the like, are installed."""
    if shutil.which("Rscript") is None:
        return False
    asked = subprocess.run(["Rscript", "-e", "library(lme4)"], capture_output=True, check=False)
    return asked.returncode == 0


def main() -> None:
    table = Table(HERE, chosen := options(__doc__), [line.name for line in LINES])
    for line in LINES:
        if not table.wanted(line.name, line.replicates):
            continue
        if line.needs_r and not has_lme4():
            print(f"{line.name}: skipped, since there is no R with lme4 here", flush=True)
            continue
        seeds = range(chosen.seed, chosen.seed + (chosen.replicates or line.replicates))
        with threadpool_limits(1):
            sets = [one(line, seed) for seed in seeds]
        table.add(line.name, rows(line, sets))


if __name__ == "__main__":
    main()

"""What somebody finds who has the tables of both parties.

Nobody has them in earnest: this script is how the examples know how far their fits are from the
pooled one, and how often their tests would find the partner.

    python examples/pooled_fit.py distance examples/heart_columns/fit.toml runs/heart-fit
    python examples/pooled_fit.py chances examples/heart_columns/test.toml
    python examples/pooled_fit.py splits examples/heart_columns/fit.toml
    python examples/pooled_fit.py truth examples/heart_columns/predict.toml runs/heart-predict \\
        examples/heart_columns/new
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from consilience import Run
from consilience.assisted.kernels import assistance
from consilience.assisted.kernels.glm import family, fit
from consilience.engines.federation import load_run
from consilience.engines.study_run import read_site_files
from consilience.sites.prepare import load_with_report
from consilience.sites.source import read_source
from consilience.sites.study import SiteFile, Study

BINOMIAL = family("binomial")


@dataclass(frozen=True, eq=False)
class Whole:
    """Tables of all parties, row by row.

    Attributes
    ----------
    columns : DataFrame
        Of all parties by id, as the study prepares them, without a common scale.
    y : Series
        The response; NaN where it is not known.
    party : dict of party to list of columns
    bounds : dict of party to (2, p) array
        Public limits of its columns; NaN where it states none.
    """

    columns: pd.DataFrame
    y: pd.Series
    party: dict[str, list[str]]
    bounds: dict[str, np.ndarray]

    @property
    def scaled(self) -> pd.DataFrame:
        """Columns with mean 0 and standard deviation 1 over the common rows."""
        return (self.columns - self.columns.mean()) / self.columns.std(ddof=0)


def read_all(study: Study, files: Mapping[str, SiteFile]) -> Whole:
    """Read all tables and match their rows by id."""
    parts, party, bounds, y = [], {}, {}, pd.Series(dtype=float)
    for name, file in files.items():
        table = read_source(file.source, file.base)
        roles, rules = study.columns, study.preparation
        loaded = load_with_report(table, roles, rules, file.columns, partition="columns")
        data = loaded.data
        party[name], bounds[name] = list(data.feature_names), np.asarray(data.bounds)
        parts.append(pd.DataFrame(data.features, index=data.id, columns=party[name]))
        if data.target is not None:
            y = pd.Series(np.asarray(data.target, dtype=float), index=data.id)
    columns = pd.concat(parts, axis=1, join="inner")
    return Whole(columns, y.loc[columns.index], party, bounds)


def compare(study: Study, files: Mapping[str, SiteFile], run: Run) -> dict[str, float]:
    """Figures of a run beside those of the pooled fit.

    Returns
    -------
    dict of str to float
        ``rounds``, ``numbers_sent``; ``eta``: largest difference of a linear predictor from the
        pooled fit's, over the largest of these; ``error``: largest relative difference of the
        initiator's standard errors from the pooled ones (NaN where not all directions are known;
        the fit is then on the training rows, and is compared with a pooled fit to these); deviance
        of the training rows and mean deviance of a held-out row, of the run and of a pooled fit to
        the training rows.
    """
    result = run.result
    whole = read_all(study, files)
    home = files[result.initiator].home_path
    left = pd.read_csv(home / "outputs" / run.info.run / "labels.csv", dtype={"id": str})
    left = left[left["held_out"].notna()].set_index("id").loc[whole.columns.index]
    known = whole.y.notna().to_numpy()
    held = left["held_out"].to_numpy() == 1
    x, y, f = whole.scaled.to_numpy()[known], whole.y.to_numpy()[known], family(result.family)
    train = ~held[known]
    part = fit(x, y, f, weights=train.astype(float))
    pooled = fit(x, y, f) if result.complete else part
    eta = left["linear_predictor"].to_numpy()[known]
    order = [whole.columns.columns.get_loc(name) for name in whole.party[result.initiator]]
    mine = np.asarray(result.coefficients["error"])[1:]
    errors = standard_errors(x, y, pooled.eta, f)[1:][order]
    return {
        "rounds": result.rounds,
        "numbers_sent": int(result.rounds_table["numbers_sent"][-1]),
        "eta": float(np.abs(eta - pooled.eta).max() / np.abs(pooled.eta).max()),
        "error": float(np.abs(mine / errors - 1).max()) if result.complete else float("nan"),
        "deviance": result.deviance["joint"],
        "deviance_pooled": float(part.deviance),
        "held_out_alone": result.holdout["alone"],
        "held_out": result.holdout["joint"],
        "held_out_pooled": float(
            f.deviance(y[~train], part.eta[~train], np.ones((~train).sum())) / (~train).sum()
        ),
    }


def standard_errors(x: np.ndarray, y: np.ndarray, eta: np.ndarray, f: object) -> np.ndarray:
    """Standard errors of the intercept and the coefficients (sandwich with n / (n - p))."""
    design = np.column_stack([np.ones(len(x)), x])
    bread = np.linalg.inv(design.T @ (f.weight(y, eta)[:, None] * design))  # type: ignore[attr-defined]
    half = (design * f.score(y, eta)[:, None]) @ bread  # type: ignore[attr-defined]
    n, p = design.shape
    return np.asarray(np.sqrt(np.square(half).sum(axis=0) * n / (n - p)))


def without_levels(file: SiteFile) -> SiteFile:
    """A site file that takes all columns as numbers."""
    return file.model_copy(update={"columns": dataclasses.replace(file.columns, levels={})})


def splits(whole: Whole, initiator: str, *, n_splits: int = 50) -> dict[str, float]:
    """Mean deviance of a held-out row over splits that hold out a fifth, and the mean gain.

    The standard deviation is over the splits, which share rows: it is no standard error.
    """
    rng = np.random.default_rng(0)
    known = whole.y.notna().to_numpy()
    x, y = whole.scaled[known], whole.y.to_numpy()[known]
    found = []
    for _ in range(n_splits):
        train = np.ones(len(y))
        train[rng.permutation(len(y))[: len(y) // 5]] = 0.0
        held = train == 0
        etas = [
            fit(part.to_numpy(), y, BINOMIAL, weights=train).eta[held]
            for part in (x[whole.party[initiator]], x)
        ]
        found.append([2 * BINOMIAL.loss(y[held], eta).mean() for eta in etas])
    alone, joint = np.array(found).T
    gain = alone - joint
    return {"alone": alone.mean(), "joint": joint.mean(), "gain": gain.mean(), "sd": gain.std()}


def chances(
    whole: Whole,
    initiator: str,
    *,
    epsilon: float | None,
    n_directions: int,
    n_draws: int = 200,
    level: float = 0.05,
) -> float:
    """How often the score test finds the partner, over draws of its directions and of the noise.

    The noise is from numpy, whose draws are no protection: nothing of this leaves the script.
    """
    rng = np.random.default_rng(0)
    (partner,) = (name for name in whole.party if name != initiator)
    x_a = whole.scaled[whole.party[initiator]].to_numpy()
    columns = whole.columns[whole.party[partner]].to_numpy()
    known = whole.y.notna().to_numpy()
    y, found = whole.y.to_numpy()[known], 0
    if epsilon is None:
        x_b = whole.scaled[whole.party[partner]].to_numpy()
    else:
        x_b, _ = assistance.to_box(columns, *whole.bounds[partner])
    for _ in range(n_draws):
        directions = assistance.draw_directions(x_b.shape[1], n_directions, rng)
        z = x_b @ directions
        if epsilon is not None:
            z = z + rng.laplace(scale=assistance.noise_scale(directions, epsilon), size=z.shape)
        found += assistance.sketch_test(x_a[known], z[known], y, BINOMIAL).p_score < level
    return found / n_draws


def against_truth(run: Run, home: Path, truth: pd.Series) -> dict[str, float]:
    """Predictions of new people beside what turned out; the initiator's own model has no part."""
    left = pd.read_csv(home / "outputs" / run.info.run / "labels.csv", dtype={"id": str})
    left = left[left["prediction"].notna()].set_index("id")
    y, p = truth.loc[left.index].to_numpy(dtype=float), left["prediction"].to_numpy()
    return {
        "people": len(y),
        "happened": float(y.mean()),
        "predicted": float(p.mean()),
        "right": float(((p > 0.5) == y).mean()),
        "deviance": float(BINOMIAL.deviance(y, left["linear_predictor"].to_numpy(), y * 0 + 1))
        / len(y),
        "width": float((left["upper"] - left["lower"]).mean()),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="What somebody finds who has all tables.")
    commands = parser.add_subparsers(dest="what", required=True)
    distance = commands.add_parser("distance", help="a run beside the pooled fit")
    distance.add_argument("study", type=Path)
    distance.add_argument("run", type=Path)
    chance = commands.add_parser("chances", help="how often a test finds the partner")
    chance.add_argument("study", type=Path)
    split = commands.add_parser("splits", help="gain over many splits of the rows")
    split.add_argument("study", type=Path)
    split.add_argument("--numbers", action="store_true", help="take categories as numbers")
    truth = commands.add_parser("truth", help="predictions beside what turned out")
    truth.add_argument("study", type=Path)
    truth.add_argument("run", type=Path)
    truth.add_argument("sites", type=Path)
    options = parser.parse_args()
    study = Study.load(options.study)
    files = read_site_files(study, getattr(options, "sites", None))
    initiator = next(name for name, role in study.roles.items() if role == "initiator")
    if options.what == "distance":
        figures = compare(study, files, load_run(options.run))
    elif options.what == "truth":
        table = files[initiator].base / str(files[initiator].source.path)
        told = pd.read_csv(table.parent / "truth.csv", index_col=0, dtype={0: str})
        told.index = told.index.astype(str)
        home = files[initiator].home_path
        figures = against_truth(load_run(options.run), home, told.iloc[:, 0])
    elif options.what == "splits":
        if options.numbers:
            files = {name: without_levels(file) for name, file in files.items()}
        figures = splits(read_all(study, files), initiator)
    else:
        whole = read_all(study, files)
        t = int(study.parameters["n_directions"])
        figures = {
            f"epsilon {e}": chances(whole, initiator, epsilon=e, n_directions=t)
            for e in (1.0, 2.0, 4.0, 8.0, 16.0, None)
        }
    for name, value in figures.items():
        print(f"{name:16} {value:.6g}")


if __name__ == "__main__":
    main()

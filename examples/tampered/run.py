"""Which tampering with the response of one clinic does meta clustering find?

The 442 diabetes patients that ship with scikit-learn, given to six clinics at random; the response
of one of them, elm, is tampered with in nine ways. Each line is a run under ``strict`` policies,
once as the values are and once with every clinic's columns and response on its own scale.

    python examples/tampered/run.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_diabetes

from consilience import Columns, Federation, MetaClustering, Policy
from consilience.datasets.simulate_meta import tamper
from consilience.numerics.random import stream

CLINICS = ("ash", "birch", "cedar", "elm", "fir", "oak")
TAMPERED = "elm"
WAYS = {
    "nothing": None,
    "sign flipped": ("sign", 1.0),
    "x 0.5 around the mean": ("scale", 0.5),
    "x 1.5 around the mean": ("scale", 1.5),
    "x 2 around the mean": ("scale", 2.0),
    "x -1 around the mean": ("scale", -1.0),
    "shift by 0.5 sd": ("shift", 0.5),
    "shift by 1 sd": ("shift", 1.0),
    "permuted": ("permute", 1.0),
    "replaced by noise": ("noise", 1.0),
}
DRAWS = 10
"""Permutations, and sets of noise."""


@dataclass(frozen=True)
class Seen:
    """What one run says of elm.

    Attributes
    ----------
    alone : bool
        Whether the groups are elm and all others.
    z : float
        Mean z of elm against the others; above 1.85 single clinics stay apart.
    explained, elsewhere : float
        Share of the variance that elm's own model explains, cross-fitted; median of the others.
    """

    alone: bool
    z: float
    explained: float
    elsewhere: float


def tables(way: tuple[str, float] | None, draw: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """One table per clinic, elm's with a response that was tampered with."""
    patients = load_diabetes()
    order = stream(0, "clinics").permutation(len(patients.target))
    found = {}
    for clinic, rows in zip(CLINICS, np.array_split(order, len(CLINICS)), strict=True):
        y = patients.target[rows]
        if way is not None and clinic == TAMPERED:
            how, amount = way
            y = tamper(y, how, amount=amount, rng=stream(draw, "tampering"))
        columns = dict(zip(patients.feature_names, patients.data[rows].T, strict=True))
        found[clinic] = {**columns, "progression": y}
    return found


def look(way: tuple[str, float] | None, *, standardize: bool = False, draw: int = 0) -> Seen:
    """Group the clinics and look at elm."""
    clinics = tables(way, draw)
    features = tuple(name for name in clinics[TAMPERED] if name != "progression")
    federation = Federation.local(
        clinics,
        columns=Columns(features=features, target="progression"),
        policy=Policy(foreign_models=True),
    )
    method = MetaClustering(
        candidates="linear", standardize=standardize, gain_folds=0, stability_runs=0
    )
    result = method.run(federation, seed=0).result
    elm = result.sites.index(TAMPERED)
    return Seen(
        alone=result.n_clusters == 2 and (TAMPERED,) in result.groups,
        z=float(np.nanmean(np.delete(result.z[elm], elm))),
        explained=float(result.explained[elm]),
        elsewhere=float(np.median(np.delete(result.explained, elm))),
    )


def line(way: tuple[str, float] | None) -> str:
    """Cells of one way: with its share of draws where the tampering is random."""
    draws = DRAWS if way is not None and way[0] in ("permute", "noise") else 1
    cells, seen = [], []
    for standardize in (False, True):
        seen = [look(way, standardize=standardize, draw=draw) for draw in range(draws)]
        hits = sum(s.alone for s in seen)
        found = f"{hits}/{draws}" if draws > 1 else ("yes" if hits else "no")
        cells.append(f"{found:>5}  {np.mean([s.z for s in seen]):6.2f}")
    own = np.mean([s.explained for s in seen])
    return f"{'   '.join(cells)}   {own:6.2f}  {np.mean([s.elsewhere for s in seen]):16.2f}"


def main() -> None:
    """Print one line for each way."""
    print("                          as it is       on own scale   explained by the own model")
    print("response of elm         found  mean z   found  mean z      elm  median of others")
    for name, way in WAYS.items():
        print(f"{name:22}  {line(way)}")


if __name__ == "__main__":
    main()

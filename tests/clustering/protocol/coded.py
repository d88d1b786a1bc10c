"""Sites with sequences, and sites with tables of categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from consilience import Columns, Federation, Preparation
from consilience.testing.fakes import members, with_fixed_secrets
from replications.ensemble_clustering.simulate_sequences import simulate_sequences
from tests.granted import granted

STATES = ("a", "b", "c", "d", "e")
Tables = dict[str, pd.DataFrame]


def sequences(
    sizes: Sequence[int] = (150, 180), *, k: int = 2, lengths: Any = (10, 14), seed: int = 0
) -> tuple[Tables, dict[str, np.ndarray]]:
    drawn = simulate_sequences(
        rng=np.random.default_rng(seed),
        sizes=tuple(sizes),
        n_classes=k,
        n_states=5,
        lengths=lengths,
    )
    tables, truth = {}, {}
    for m in range(len(sizes)):
        codes = np.asarray(drawn.at(m))
        cells = np.array([*STATES, None], dtype=object)[codes]
        tables[f"s{m}"] = pd.DataFrame(cells, columns=[f"t{j}" for j in range(codes.shape[1])])
        truth[f"s{m}"] = drawn.label[drawn.site == m]
    return tables, truth


def categories(
    sizes: Sequence[int] = (150, 180), *, k: int = 2, seed: int = 0
) -> tuple[Tables, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    chances = rng.dirichlet(np.full(3, 0.4), size=(k, 8))
    tables, truth = {}, {}
    for m, n in enumerate(sizes):
        z = rng.choice(k, size=n, p=rng.dirichlet(np.full(k, 4.0)))
        codes = np.array([[rng.choice(3, p=chances[c, j]) for j in range(8)] for c in z])
        cells = np.array(["low", "mid", "high"], dtype=object)[codes]
        cells[rng.random(cells.shape) < 0.03] = None
        tables[f"s{m}"] = pd.DataFrame(cells, columns=[f"q{j}" for j in range(8)])
        truth[f"s{m}"] = z
    return tables, truth


def columns_of(tables: Mapping[str, pd.DataFrame], kind: str, target: str | None = None) -> Columns:
    names = [name for name in next(iter(tables.values())).columns if name != target]
    if kind == "markov-mixture":
        return Columns(sequence=names, levels={names[0]: STATES}, target=target)
    levels = {name: ("low", "mid", "high") for name in names}
    return Columns(features=names, levels=levels, target=target)


def federation(
    tables: Tables, kind: str, policy: Any = "strict", *, target: str | None = None
) -> Federation:
    coding = "refuse" if kind == "markov-mixture" else "onehot"
    made = Federation.local(
        tables,
        columns=columns_of(tables, kind, target),
        preparation=Preparation(missing="keep", categorical=coding),  # type: ignore[arg-type]
        policy=granted(policy),
    )
    for i, site in enumerate(members(made).values()):
        with_fixed_secrets(site, i)
    return made

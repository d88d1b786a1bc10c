"""Learners with a tampered response, on the electrical grid data: who is found, at what error."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.datasets.simulate_meta import tamper  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.meta_clustering.study import (  # noqa: E402
    Table,
    average_model,
    figures,
    grid,
    labels_of,
    options,
    replicate,
    run,
    same_partition,
    squared_error,
)

HERE = Path(__file__).parent
N_SITES, N_ROWS, N_TEST = 50, 160, 2000
INTACT = N_SITES - 1
"""The learner that is known to be intact."""
SPLITS, SPLITS_WITH_FOREST = 20, 5
VARIANTS = (
    ("shift", 0.5),
    ("shift", 1.0),
    ("scale", 1.5),
    ("scale", 2.0),
    ("permute", 0.0),
    ("noise", 0.0),
)
LINES = (
    *((("linear",), "sign", 0.0, d) for d in range(N_SITES)),
    *((("linear",), how, amount, d) for how, amount in VARIANTS for d in (1, 10)),
    *(
        (("linear", "random-forest"), how, amount, d)
        for how, amount in (("sign", 0.0), *VARIANTS)
        for d in (1, 10)
    ),
)


def one(
    candidates: tuple[str, ...], how: str, amount: float, tampered: int, seed: int
) -> dict[str, float]:
    rows = grid().to_numpy()
    rows = rows[stream(seed, "grid", "split").permutation(len(rows))]
    # which learners are changed must not depend on their number, so that lines can be compared
    changed = stream(seed, "grid", "changed").permutation(INTACT)[:tampered]
    rng = stream(seed, "grid", how, tampered)
    names = [f"learner-{i + 1:02d}" for i in range(N_SITES)]
    tables = {}
    for i, name in enumerate(names):
        part = rows[i * N_ROWS : (i + 1) * N_ROWS].copy()
        if i in changed:
            part[:, -1] = tamper(part[:, -1], how, amount=amount, rng=rng)
        tables[name] = pd.DataFrame(part, columns=grid().columns)
    result = run(tables, seed=seed, candidates=candidates).result
    found = labels_of(result, names)
    truth = np.isin(np.arange(N_SITES), changed)
    with_me = found == found[INTACT]
    x, y = rows[-N_TEST:, :-1], rows[-N_TEST:, -1]

    def error(who: np.ndarray) -> float:
        return squared_error(y, average_model(result, np.array(names)[who]).predict(x))

    pooled = rows[: N_SITES * N_ROWS][np.repeat(~truth, N_ROWS)]
    design = np.column_stack([np.ones(len(pooled)), pooled[:, :-1]])
    coefficients = np.linalg.lstsq(design, pooled[:, -1], rcond=None)[0]
    oracle = squared_error(y, np.column_stack([np.ones(len(x)), x]) @ coefficients)
    sec = error(with_me)
    tampered_alone = [float(found[i] != found[INTACT]) for i in changed]
    return {
        "exact": float(same_partition(found, truth)),
        "group_exact": float(np.array_equal(with_me, ~truth)),
        "tampered_found": float(np.mean(tampered_alone)) if tampered else float("nan"),
        "intact_kept": float(with_me[~truth].mean()),
        "clusters": float(result.n_clusters),
        "log_all": float(np.log(error(np.ones(N_SITES, dtype=bool)))),
        "log_alone": float(np.log(error(np.arange(N_SITES) == INTACT))),
        "log_sec": float(np.log(sec)),
        "log_oracle": float(np.log(oracle)),
        "above_oracle": sec / oracle - 1,
    }


def main() -> None:
    chosen = options(__doc__)
    grid()
    table = Table(HERE, chosen)
    for candidates, how, amount, tampered in LINES:
        kinds = "+".join(candidates)
        if chosen.only not in f"{kinds} {how} {amount} d={tampered}":
            continue
        sets = replicate(
            one,
            candidates,
            how,
            amount,
            tampered,
            replicates=SPLITS if len(candidates) == 1 else SPLITS_WITH_FOREST,
            chosen=chosen,
        )
        head = {
            "candidates": kinds,
            "tampering": how,
            "amount": amount or "",
            "tampered": tampered,
            "replicates": len(sets),
        }
        table.add({**head, **figures(sets)})


if __name__ == "__main__":
    main()

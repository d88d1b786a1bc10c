"""Digits 3 and 8 of the zip code data: normal densities with shared zeros beside their rivals.

Needs ``esl`` in the folder that ``CONSILIENCE_DATA`` names.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from replications.assisted_glm.study import Table, options, replicate  # noqa: E402
from replications.sparse_qda.study import (  # noqa: E402
    Fold,
    TrainTest,
    cross_validated,
    digits,
    rows_of_table,
)

HERE = Path(__file__).parent
N_FOLDS = 5
LINES = {
    "folds by class, rows in order": (False, False, 1),
    "folds by class, rows in order, standardised": (False, True, 1),
    "folds drawn": (True, False, 10),
}
"""Whether folds are drawn, columns are standardised; how often."""


def folds_of(data: TrainTest, drawn: bool, seed: int) -> list[Fold]:
    from sklearn.model_selection import StratifiedKFold

    splitter = StratifiedKFold(N_FOLDS, shuffle=drawn, random_state=seed if drawn else None)
    return list(splitter.split(data.x, data.y))


def one(line: str, seed: int) -> dict[str, dict[str, Any]]:
    """Figures by model."""
    drawn, standardize, _ = LINES[line]
    data = digits()
    return cross_validated(data, folds_of(data, drawn, seed), standardize=standardize)


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, list(LINES))
    for line, (_, _, replicates) in LINES.items():
        if not table.wanted(line, replicates):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=replicates, chosen=chosen)
        rows = rows_of_table(sets, len(digits().y_test))
        table.add(line, [{"folds": N_FOLDS, **row} for row in rows])


if __name__ == "__main__":
    main()

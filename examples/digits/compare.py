"""How many new digits a run gets wrong, beside other rules that see all rows.

python examples/digits/compare.py runs/digits
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.ensemble import RandomForestClassifier

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from consilience import Run, SparseQDA, load_run  # noqa: E402
from examples.digits.make_tables import FEATURES  # noqa: E402
from examples.wide_peers import left_at_sites, of_all_rows, table_of  # noqa: E402


def compare(run: Run, homes: Path, tables: Path) -> pd.DataFrame:
    """Wrong digits among the new ones, by rule."""
    known, new = (pd.read_csv(tables / f"{name}.csv") for name in ("digits", "new"))
    rules: dict[str, Any] = {
        "naive Bayes": SparseQDA(alpha=1e9, standardize=False),
        "QDA": SparseQDA(alpha=0.0, standardize=False),
        "QDA, shrunken by .1": QuadraticDiscriminantAnalysis(reg_param=0.1),
        "LDA with shrinkage": LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
        "random forest": RandomForestClassifier(500, random_state=0),
    }
    said = left_at_sites(run, homes, new)
    said |= of_all_rows(rules, known, new, list(FEATURES), "digit")
    return table_of(said, new["digit"])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Errors on new digits.")
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--tables", type=Path, default=HERE / "tables")
    parser.add_argument("--homes", type=Path, default=HERE / "homes")
    options = parser.parse_args()
    table = compare(load_run(options.run), options.homes, options.tables)
    print(table.to_string(float_format="{:.3f}".format))


if __name__ == "__main__":
    main()

"""How many new letters a run gets wrong, beside other rules that see all rows.

python examples/spam/compare.py runs/spam
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from consilience import CommunityBayesClassifier, Run, load_run  # noqa: E402
from examples.spam.make_tables import FEATURES  # noqa: E402
from examples.wide_peers import left_at_sites, of_all_rows, table_of  # noqa: E402

FEW = 200
"""Letters of a learner who has few."""
HARDLY = 1e4
"""C of a regression that is hardly penalised."""


def regression(c: float) -> Any:
    """Logistic regression on standardised columns."""
    return make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=5000))


def compare(run: Run, homes: Path, tables: Path) -> pd.DataFrame:
    """Wrong letters among the new ones, by rule; the last rules learn from 200 letters only."""
    known, new = (pd.read_csv(tables / f"{name}.csv") for name in ("letters", "new"))
    rules: dict[str, Any] = {
        "logistic regression": regression(1.0),
        "support vectors": make_pipeline(StandardScaler(), SVC()),
        "random forest": RandomForestClassifier(500, random_state=0),
    }
    few: dict[str, Any] = {
        "200 letters, communities, no penalty": CommunityBayesClassifier(regression(HARDLY)),
        "200 letters, regression, no penalty": regression(HARDLY),
        "200 letters, communities": CommunityBayesClassifier(),
        "200 letters, regression": regression(1.0),
    }
    said = left_at_sites(run, homes, new)
    said |= of_all_rows(rules, known, new, list(FEATURES), "kind")
    said |= of_all_rows(few, known.head(FEW), new, list(FEATURES), "kind")
    return table_of(said, new["kind"])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Errors on new letters.")
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--tables", type=Path, default=HERE / "tables")
    parser.add_argument("--homes", type=Path, default=HERE / "homes")
    options = parser.parse_args()
    table = compare(load_run(options.run), options.homes, options.tables)
    print(table.to_string(float_format="{:.3f}".format))


if __name__ == "__main__":
    main()

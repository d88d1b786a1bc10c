"""What the examples of wide classification are compared with, and how errors are counted."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from consilience import Run
from consilience.sites.outputs import SiteOutput
from consilience.sites.site_store import DiskStore


def left_at_sites(run: Run, homes: Path, new: pd.DataFrame) -> dict[str, Any]:
    """Classes of new rows by what a run left at each site; one entry where all sites have one."""
    said = {}
    for site in run.info.sites:
        predictor = SiteOutput(DiskStore(homes / site), run.info.run).predictor
        names = list(predictor.feature_names_in_)
        said[site] = np.asarray(predictor.predict(new[names]))
    first = next(iter(said.values()))
    if all(np.array_equal(first, other) for other in said.values()):
        return {f"{run.info.method}, this run": first}
    return {f"{run.info.method}, {site}": classes for site, classes in said.items()}


def of_all_rows(
    rules: Mapping[str, Any], known: pd.DataFrame, new: pd.DataFrame, features: list[str], y: str
) -> dict[str, Any]:
    """Classes of new rows by what somebody with all rows could fit."""
    said = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, rule in rules.items():
            said[name] = rule.fit(known[features], known[y]).predict(new[features])
    return said


def table_of(said: Mapping[str, Any], right: pd.Series) -> pd.DataFrame:
    """Wrong rows of each rule, with their share and its standard error."""
    wrong = {name: int((np.asarray(classes) != right).sum()) for name, classes in said.items()}
    table = pd.DataFrame({"wrong": wrong})
    table["share"] = table["wrong"] / len(right)
    table["error"] = np.sqrt(table["share"] * (1 - table["share"]) / len(right))
    return table

"""The page of a `PooledRegression` says what was found, and whether sites differ."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience import PooledRegression, report
from consilience.exceptions import ParameterError
from consilience.regression.report.pooled_regression import REPORT, most_different
from consilience.report import plot_forest, plot_regression
from tests.regression.test_pooled_regression import SITES, draw, federation, tables_of


def run_on(tables: Any, policy: Any = "strict", **parameters: Any) -> Any:
    return PooledRegression(**parameters).run(federation(tables, policy), seed=0)


def differing() -> dict[str, pd.DataFrame]:
    return tables_of("gaussian") | {"cedar": draw("gaussian", 230, 9, apart=1.0)}


def noise() -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(3)
    return {s: t.assign(y=rng.normal(size=len(t))) for s, t in tables_of("gaussian").items()}


@pytest.mark.parametrize(
    ("tables", "said", "tone"),
    [
        (tables_of("gaussian"), "y depends on age, dose", "good"),
        (differing(), "y depends on", "caution"),
        (noise(), "No column shows an effect on y", "plain"),
    ],
)
def test_headline(tables: Any, said: str, tone: str) -> None:
    headline = REPORT().headline(run_on(tables))
    assert headline.text.startswith(said) and headline.tone == tone
    more = " ".join(headline.more)
    assert ("average over sites" in more) is (tone == "caution")
    assert ("no sign that sites differ" in more) is (tone != "caution")


def test_what_chance_may_show_among_several_columns_is_said() -> None:
    run = run_on(noise())
    first, slopes = run.result.n_constants, len(run.result.columns)
    for smallest, tone, words in (
        (0.045, "plain", "None of them stays below 5%"),
        (0.049 / slopes, "good", None),
    ):
        p = np.full(len(run.result.names), 0.5)
        p[first] = smallest
        changed = dataclasses.replace(run, result=dataclasses.replace(run.result, p_value=p))
        said = REPORT().headline(changed)
        assert said.text.startswith("y depends on") and said.tone == tone
        assert ("adjusted for" in " ".join(said.more)) is bool(words)
        assert (words or "") in " ".join(said.more)


@pytest.mark.parametrize(
    ("family", "name"),
    [("binomial", "odds_ratio"), ("poisson", "ratio_of_means"), ("gaussian", "")],
)
def test_ratios(family: str, name: str) -> None:
    result = run_on(tables_of(family), "consortium", family=family).result
    assert ("ratios" in result.frames) == bool(name)
    if name:
        wanted = np.exp(result.coefficients.loc[list(result.columns), ["estimate", "low", "high"]])
        np.testing.assert_array_equal(result.ratios, wanted)
        assert list(result.ratios.columns) == [name, "low", "high"]


def test_page(tmp_path: Path) -> None:
    run = run_on(tables_of("poisson"), "consortium", family="poisson", errors="cluster")
    text = report.write(run, tmp_path / "page.html").read_text(encoding="utf-8")
    text = re.sub(r"\s+", " ", text)
    for sentence in (
        "exp(coefficient) is a ratio of means, for one unit more of the column",
        "Ratios of means",
        "robust, with sites as clusters",
        "likelihood ratio test",
        "Errors by site rest on 3 clusters",
        "one scoring step from the pooled ones",
        "One constant for all sites",
        "Deviance, log likelihood and AIC are not told",
        "Whether slopes differ by site is tested with site_effects = true only",
    ):
        assert sentence in text, sentence
    for gone in ("of the model without columns", "nan", "Q =", "differ most", "I²"):
        assert gone not in text, gone
    less = run_on(tables_of("gaussian"), site_effects=True, ridge=1.0)
    text = report.write(less, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Do the columns explain anything?" not in text and "One constant" not in text


def test_figures_draw_what_differs_most_unless_told() -> None:
    result = run_on(differing()).result
    assert most_different(result) == "dose"
    for column, words in ((None, "dose"), ("age", "age")):
        axis = plot_forest(result, column).axes[0]
        assert words in axis.get_xlabel()
        assert [tick.get_text() for tick in axis.get_yticklabels()] == ["all sites", *SITES]
    assert len(plot_regression(result).axes[0].get_yticklabels()) == 3
    less = run_on(differing(), level=0.9).result
    assert "90% intervals" in plot_forest(less).axes[0].get_xlabel()
    with pytest.raises(ParameterError):
        plot_forest(result, "height")


def test_the_methods_paragraph_cites_a_source_of_cox_regressions() -> None:
    _, _, cited = run_on(tables_of("gaussian")).methods_paragraph().split("\n\n")
    assert "McCullagh and Nelder, Generalized Linear Models (1989)" in cited
    assert "Cox, JRSS B 34 (1972)" in cited

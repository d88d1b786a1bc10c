"""Report of ensemble clustering over sequences and categories: every part of a real run is told."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience import Columns, EnsembleClustering, Federation, Preparation
from consilience import report as room
from consilience.clustering.report.ensemble_clustering import REPORT
from consilience.datasets.simulate_treatments import STATES, simulate_treatments
from consilience.exceptions import ParameterError
from consilience.testing.fakes import members, with_fixed_secrets
from tests.granted import GRANTED
from tests.report.told import answered, check_told, drawn, letters, spoken

APART = "Is a class the same thing at every site?"


def run_of(federation: Federation, model: str, **settings: Any) -> Any:
    for i, site in enumerate(members(federation).values()):
        with_fixed_secrets(site, i)
    method = EnsembleClustering(
        model=model, n_init=3, n_resamples=1, max_clusters=3, stability_pairs=0, **settings
    )
    return method.run(federation, seed=0)


@pytest.fixture(scope="module")
def sequences() -> Any:
    tables = simulate_treatments(0, n_patients=120)
    months = [name for name in tables["aspen"] if name.startswith("month")]
    federation = Federation.local(
        {site: table.drop(columns="path") for site, table in tables.items()},
        columns=Columns(sequence=tuple(months), levels={"month1": STATES}, target="admitted"),
        preparation=Preparation(missing="keep"),
        policy=GRANTED,
    )
    return run_of(federation, "markov-mixture", n_clusters=2)


@pytest.fixture(scope="module")
def categories() -> Any:
    rng = np.random.default_rng(0)
    chances = np.array([[0.8, 0.15, 0.05], [0.1, 0.2, 0.7]])
    levels = ("no", "some", "much")
    tables = {}
    for site in ("north", "south"):
        kind = rng.choice(2, size=150)
        codes = np.array([[rng.choice(3, p=chances[k]) for _ in range(4)] for k in kind])
        tables[site] = pd.DataFrame(np.array(levels)[codes], columns=["back", "head", "arm", "leg"])
    names = list(tables["north"])
    ends = ("home", "ward", "died")
    for site, table in tables.items():
        table["end"] = np.array(ends)[
            (np.arange(150) % 30 == 0).astype(int) + (table["back"] == "no")
        ]
        assert (table["end"] == "died").sum() < 10, site
    declared = {**dict.fromkeys(names, levels), "end": ends}
    federation = Federation.local(
        tables,
        columns=Columns(features=tuple(names), levels=declared, target="end"),
        preparation=Preparation(categorical="onehot"),
        policy=GRANTED,
    )
    return run_of(federation, "latent-class", n_clusters=2)


def told(run: Any, **changes: Any) -> Any:
    """The run with another result."""
    return dataclasses.replace(run, result=dataclasses.replace(run.result, **changes))


def titles(run: Any) -> list[str]:
    return [block.title for block in REPORT().evidence(run)]


def titled(run: Any, title: str) -> Any:
    """The block of that title, or None."""
    found = [block for block in REPORT().evidence(run) if block.title == title]
    return found[0] if found else None


def test_sequences_are_told(sequences: Any) -> None:
    check_told(REPORT(), sequences, limits=5)
    found = titles(sequences)
    for title in (
        "What the classes look like",
        "Where they are, by time",
        "How admitted differs between them",
        "Is a class the same thing at every site?",
    ):
        assert title in found
    said = " ".join(spoken(block) for block in REPORT().evidence(sequences))
    assert "most of the time in" in said and "after tablets" in said
    assert "standard deviations" not in said
    assert "Months, visits or years in which nothing was seen" in said
    limits = " ".join(REPORT().limits(sequences))
    assert "present one only" in limits and "k-means" not in limits


def test_categories_are_told(categories: Any) -> None:
    check_told(REPORT(), categories, limits=5)
    said = " ".join(spoken(block) for block in REPORT().evidence(categories))
    assert "back = much" in said and "independent" in said
    assert "Where they are, by time" not in titles(categories)
    (outcome,) = (
        b for b in REPORT().evidence(categories) if b.title == "How end differs between them"
    )
    assert "They differ most in" in spoken(outcome)
    by_site = outcome.folded[0]
    assert by_site.head == ("class", "site", "home", "ward", "died")
    assert len(by_site.rows) == 4
    assert {row[4] for row in by_site.rows} == {"\N{EN DASH}"}, "fewer than ten died at each site"


def test_pages_are_written(sequences: Any, categories: Any, tmp_path: Any) -> None:
    for name, run in (("s", sequences), ("c", categories)):
        page = room.write(run, tmp_path / f"{name}.html").read_text(encoding="utf-8")
        assert "<svg" in page and "nan" not in page.split()


def test_one_class_by_bic_is_said_plainly(sequences: Any) -> None:
    sites = sorted(sequences.result.class_sizes_by_site)
    votes = dict.fromkeys(sites, 1)
    one = told(sequences, votes=votes)
    said = REPORT().headline(one)
    assert "By BIC, every site prefers one class for its own records." in answered(said)
    assert "because the study asked for them" in answered(said) and said.tone == "caution"
    blocks = {block.title: block for block in REPORT().evidence(one)}
    meaning = spoken(blocks["How many by votes?"])
    assert (
        "does not show that there is only one kind of record" in meaning
        and "was not chosen by them" in meaning
    )
    # Controls: other votes, and sites that could not tell.
    others = told(sequences, votes=dict.fromkeys(sites, 2))
    assert "By BIC" not in answered(REPORT().headline(others))
    some = told(sequences, votes={**votes, sites[0]: 0})
    assert "every site that could vote" in answered(REPORT().headline(some))
    assert "By BIC" not in answered(REPORT().headline(told(sequences, votes={})))


def test_ratio_is_judged_by_its_interval(sequences: Any) -> None:
    """Below 1, above 1, and an interval with 1 in it are told apart."""
    found = sequences.result.differences
    for low, high, words in (
        (0.4, 0.8, "mean more nearly the same thing"),
        (1.2, 1.9, "did not make the classes more alike"),
        (0.6, 1.3, "which may be chance"),
        (0.6, np.inf, "0.60 or more; nothing bounds it above"),
        (1.2, np.inf, "did not make the classes more alike"),
        (np.nan, np.nan, "too little was told"),
    ):
        ends = {"ratio_low": np.full(2, low), "ratio_high": np.full(2, high)}
        ratio = {"ratio": np.full(2, 1.0 if low > 1 else 0.7), **ends}
        block = titled(told(sequences, differences={**found, **ratio}), APART)
        assert block is not None and words in " ".join(block.text)
        shown = " ".join(cell for row in block.tables[0].rows for cell in row).split()
        assert not {"inf", "nan", "(inf", "inf)", "nan)"} & {*shown, *" ".join(block.text).split()}
    alone_equal = {"ratio": np.full(2, np.nan), "ratio_low": np.full(2, 0.4)}
    nothing = {**found, **alone_equal, "ratio_high": np.full(2, np.inf)}
    block = titled(told(sequences, differences=nothing), APART)
    assert block is not None and "so there is no ratio; it is 0.40 or more" in " ".join(block.text)
    assert "(from 0.4" in block.tables[0].rows[0][3]
    assert titled(told(sequences, differences={}), APART) is None


def test_distances_are_drawn(sequences: Any) -> None:
    said = letters(drawn(room.plot_site_differences(sequences.result)))
    assert "steps, common classes" in said and "first states, alone" in said
    with pytest.raises(ParameterError, match="differences"):
        room.plot_site_differences(told(sequences, differences={}).result)


def test_rows_that_nobody_told_are_gaps_in_words_and_drawings(sequences: Any) -> None:
    steps = sequences.result.class_transition.copy()
    steps[0, 1] = np.nan
    gap = told(sequences, class_transition=steps)
    check_told(REPORT(), gap, limits=5)
    block = REPORT().evidence(gap)[0]
    assert "\N{EN DASH}: not told." in spoken(block)


def test_sites_that_told_nothing_leave_a_page(sequences: Any, tmp_path: Any) -> None:
    """Every site refused the last question: classes exist, what they look like is not known."""
    empty = {name: np.empty((0,) * n) for name, n in (("initial", 2), ("transition", 3))}
    untold = told(
        sequences, differences={}, **{f"class_{name}": each for name, each in empty.items()}
    )
    check_told(REPORT(), untold, limits=5)
    assert "No site told" in REPORT().evidence(untold)[0].warning
    assert "<svg" in room.write(untold, tmp_path / "page.html").read_text(encoding="utf-8")


def test_ends_of_climbs_are_told_where_they_are_known(sequences: Any) -> None:
    spread = {"aspen": np.array([0.0, 0.0]), "birch": np.array([0.0, -3.5])}

    def block_of(values: dict[str, Any]) -> Any:
        changed = told(sequences, start_spread=values)
        return titled(changed, "Did the climbs end at the same place?")

    said = spoken(block_of(spread))
    assert "At birch they ended at unequal heights" in said and "3.5" in said
    assert "At every site they ended at the same height" in spoken(
        block_of({"aspen": spread["aspen"]})
    )
    assert block_of({"aspen": np.array([0.0])}) is None

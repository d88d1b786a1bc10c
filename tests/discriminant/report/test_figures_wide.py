"""Figures of wide classification: what is linked, merged, compared and said of a row."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from scipy.cluster.hierarchy import dendrogram, linkage

from consilience import CommunityBayesClassifier, SparseQDA
from consilience import report as room
from consilience.discriminant.report import figures, figures_choice
from consilience.discriminant.report.figures_choice import Candidates, Contributions, Network, Tree
from consilience.exceptions import ParameterError
from consilience.report import charts
from tests.report.told import drawn, letters

EVIL = ("<script>alert(1)</script>", "a$x_1$b", "n" * 90, "d")


def network(p: int = 6, k: int = 2, seed: int = 0, share: float = 0.6) -> Network:
    rng = np.random.default_rng(seed)
    pairs = np.argwhere(np.triu(rng.random((p, p)) < share, 1))
    return Network(
        tuple(f"x{j}" for j in range(p)),
        tuple(f"kind {i}" for i in range(k)),
        pairs,
        np.sort(rng.exponential(size=len(pairs)))[::-1],
        rng.uniform(-0.9, 0.9, (len(pairs), k)),
    )


def tree(p: int, n_communities: int, method: str = "average", seed: int = 0) -> Tree:
    rng = np.random.default_rng(seed)
    merges = linkage(rng.normal(size=(p, 5)), method)
    return Tree(tuple(f"x{j}" for j in range(p)), merges, n_communities)


def path(kind: str = "alpha", **changes: Any) -> Candidates:
    values = np.geomspace(1.0, 0.01, 20) if kind == "alpha" else np.arange(1.0, 21.0)
    made = Candidates(
        kind,
        values,
        0.1 + 0.01 * np.arange(20.0),
        np.full(20, 0.01),
        7,
        np.arange(20.0) if kind == "alpha" else np.empty(0),
        "cross-validation",
    )
    return dataclasses.replace(made, **changes)


# --- network --------------------------------------------------------------------------------


def test_what_is_linked_is_named_and_what_is_not_is_left_out() -> None:
    found = network(40, share=0.0)
    pairs = np.array([[3, 7], [7, 9], [20, 21]])
    found = dataclasses.replace(
        found,
        pairs=pairs,
        strength=np.array([3.0, 2.0, 1.0]),
        partial=np.array([[0.5, 0.1], [0.1, -0.6], [np.nan, 0.2]]),
    )
    words = letters(drawn(room.plot_interactions(found))).split()
    assert {"x3", "x7", "x9", "x20", "x21"} <= set(words)
    assert not {"x0", "x8", "x22"} & set(words)
    which, value = figures.strongest(found)
    assert which.tolist() == [0, 1, 1]
    assert value.tolist() == [0.5, -0.6, 0.2]
    svg = letters(drawn(room.plot_interactions(found)))
    assert "kind 0" in svg and "kind 1" in svg and "negative" in svg
    one = dataclasses.replace(found, partial=np.abs(found.partial))
    assert "negative" not in letters(drawn(room.plot_interactions(one)))


def test_of_many_links_the_strongest_are_drawn() -> None:
    found = network(40)
    assert len(found.pairs) > figures.MOST_LINKS
    svg = letters(drawn(room.plot_interactions(found, 1)))
    a, b = (found.names[j] for j in found.pairs[0])
    shown = {word for word in svg.split() if word.startswith("x")}
    assert shown == {a, b}


def test_network_without_links_says_so() -> None:
    assert "no two features are linked" in letters(drawn(room.plot_interactions(network(share=0))))


@pytest.mark.parametrize(  # the drawing of p nodes depends on k in its colours only
    ("p", "k"), [(2, 2), (2, 20), (3, 8), (12, 2), (12, 20), (60, 8), (300, 2), (300, 20)]
)
def test_networks_of_any_size(p: int, k: int) -> None:
    figure = room.plot_interactions(network(p, k, share=1.0 if p < 4 else 0.3))
    assert isinstance(figure, Figure)
    assert figure.get_figheight() < 9
    assert "nan" not in drawn(figure).lower().replace("dominant", "")


def test_layout_keeps_what_is_linked_together_and_parts_apart() -> None:
    # A ring of eight, a chain of three, a pair.
    ring = [(i, (i + 1) % 8) for i in range(8)]
    pairs = np.array([*ring, (8, 9), (9, 10), (11, 12)])
    assert [part.tolist() for part in figures.connected(13, pairs)] == [
        list(range(8)),
        [8, 9, 10],
        [11, 12],
    ]
    made = figures.lay_out(13, pairs)
    assert (made.places >= 0).all()
    assert (made.places <= [made.width, made.height]).all()
    apart = np.hypot(*(made.places[:, None] - made.places[None]).transpose(2, 0, 1))
    linked = apart[tuple(pairs.T)]
    assert linked.min() > 0.5 and linked.max() < 1.6
    np.testing.assert_allclose(apart[tuple(np.array(ring).T)], apart[0, 1], rtol=0.02)
    assert apart[0, 4] > 1.8 * apart[0, 1], "opposite in the ring"
    assert apart[8, 10] == pytest.approx(2 * apart[8, 9], rel=0.02)
    # Boxes of parts do not overlap: nodes of two parts are never nearer than a margin.
    parts = np.array([0] * 8 + [1] * 3 + [2] * 2)
    assert apart[parts[:, None] != parts[None]].min() > figures.MARGIN[1]
    again = figures.lay_out(13, pairs)
    assert np.array_equal(made.places, again.places)


# --- tree -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["average", "complete", "single"])
def test_tree_has_the_brackets_of_scipy(method: str) -> None:
    found = tree(25, 4, method)
    mine = figures.drawn_tree(found)
    theirs = dendrogram(found.merges, no_plot=True)
    heights = sorted(tuple(np.sort(line[:, 0]).round(9)) for line in mine.lines)
    assert heights == sorted(tuple(np.sort(d).round(9)) for d in theirs["dcoord"])
    # Every bracket stands over leaves that lie side by side: no two lines cross.
    assert sorted(mine.names) == sorted(found.names)
    spans = [(line[1:3, 1].min(), line[1:3, 1].max(), line[1, 0]) for line in mine.lines]
    for low, high, far in spans:
        for other_low, other_high, other_far in spans:
            crosses = low < other_low < high < other_high
            assert not crosses or far != other_far


@pytest.mark.parametrize("n_communities", [1, 2, 7, 24, 25])
def test_cut_leaves_as_many_communities(n_communities: int) -> None:
    found = tree(25, n_communities)
    mine = figures.drawn_tree(found)
    assert mine.cut is not None
    below = sum(line[1, 0] < mine.cut for line in mine.lines)
    assert below == 25 - n_communities
    assert sum(group >= 0 for group in mine.groups) == 25 - n_communities
    svg = letters(drawn(room.plot_dendrogram(found)))
    assert f"cut: {n_communities} communit" in svg


def test_of_many_features_the_last_merges_are_drawn() -> None:
    found = tree(500, 30)
    mine = figures.drawn_tree(found, figures.MOST_LEAVES)
    assert len(mine.names) == figures.MOST_LEAVES
    more = [int(name.split(" and ")[1].split()[0]) for name in mine.names if " and " in name]
    assert len(mine.names) + sum(more) == 500
    assert len({group for group in mine.groups if group >= 0}) <= 30
    figure = room.plot_dendrogram(found)
    assert figure.get_figheight() < 13
    # As many leaves as communities where those are more.
    assert room.plot_dendrogram(tree(500, 100)).get_figheight() > figure.get_figheight()


def test_tree_of_one_feature_and_of_a_long_chain() -> None:
    assert "one feature alone" in letters(
        drawn(room.plot_dendrogram(Tree(("x",), np.empty((0, 4)), 1)))
    )
    p = 4000
    chain = np.column_stack(
        [
            np.r_[0, p + np.arange(p - 2)],
            np.arange(1, p),
            np.arange(1.0, p),
            np.arange(2, p + 1),
        ]
    )
    assert isinstance(room.plot_dendrogram(Tree(tuple(map(str, range(p))), chain, 3)), Figure)


# --- choice ---------------------------------------------------------------------------------


def test_what_was_chosen_is_named() -> None:
    svg = letters(drawn(room.plot_candidates(path())))
    assert "chosen: 0.183" in svg and "linked pairs" in svg and "cross-validation" in svg
    svg = letters(drawn(room.plot_candidates(path("communities"))))
    assert "chosen: 8" in svg and "number of communities" in svg and "linked" not in svg


@pytest.mark.parametrize(
    "changes",
    [
        {"errors": np.full(20, np.nan), "spread": np.full(20, np.nan)},
        {"spread": np.full(20, np.nan)},
        {"values": np.r_[np.geomspace(1.0, 0.01, 19), 0.0]},
        {"kind": "communities", "values": np.arange(1.0, 2001.0, 100.0), "links": np.empty(0)},
    ],
)
def test_gaps_and_long_ranges_are_drawn(changes: dict[str, Any]) -> None:
    svg = drawn(room.plot_candidates(path(**changes)))
    assert "nan" not in svg.lower().replace("dominant", "")


# --- one row --------------------------------------------------------------------------------


def test_contributions_add_up_to_the_log_odds() -> None:
    rng = np.random.default_rng(0)
    found = Contributions(
        tuple(f"c{i}" for i in range(40)),
        ("a", "b", "c"),
        rng.normal(size=(40, 3)),
        np.log([0.5, 0.3, 0.2]),
    )
    total = found.values.sum(axis=0) + found.prior
    names, values = figures_choice.gaps(found, 0, 2)
    assert values.sum() == pytest.approx(total[0] - total[2])
    assert names[0] == "prior" and names[-1] == "24 more" and len(names) == 18
    gap = found.values[:, 0] - found.values[:, 2]
    np.testing.assert_allclose(np.abs(values[1:17]), np.sort(np.abs(gap))[::-1][:16])
    svg = letters(drawn(room.plot_contributions(found, versus=("a", "c"))))
    assert "log odds of a against c" in svg
    first, second = np.array(found.levels)[np.argsort(-total)[:2]]
    assert f"of {first} against {second}" in letters(drawn(room.plot_contributions(found)))


# --- estimators -----------------------------------------------------------------------------


def test_figures_of_a_fitted_sparse_qda() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 5)), np.repeat(["calm", "wild"], 100)
    x[100:, 1] += 2.0 * x[100:, 0]
    fit = SparseQDA(n_alphas=4).fit(pd.DataFrame(x, columns=list("abcde")), y)
    found = figures_choice.network_of(fit)
    assert found.names == tuple("abcde") and found.levels == ("calm", "wild")
    assert found.pairs[0].tolist() == [0, 1]
    assert {"a", "b", "wild"} <= set(letters(drawn(room.plot_interactions(fit))).split())
    path = figures_choice.candidates_of(fit)
    assert path.values[path.chosen] == fit.alpha_
    np.testing.assert_array_equal(path.errors, fit.path_.cv_error)
    assert f"chosen: {fit.alpha_:.3g}" in letters(drawn(room.plot_candidates(fit)))
    assert figures_choice.network_of(SparseQDA(alpha=0.1).fit(x, y)).names[0] == "x0"


def test_figures_of_a_fitted_community_bayes() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(120, 6)), np.repeat([0, 1], 60)
    x[:, :3] += rng.normal(size=(120, 1)) + y[:, None]
    fit = CommunityBayesClassifier(candidates=(1, 3, 5), cv=3).fit(x, y)
    path = figures_choice.candidates_of(fit)
    assert path.values.tolist() == [1, 3, 5] and path.values[path.chosen] == fit.n_communities_
    assert np.isfinite(path.loss).all() and not path.links.size
    svg = letters(drawn(room.plot_candidates(fit)))
    assert "log loss" in svg and f"chosen: {fit.n_communities_}" in svg
    assert f"cut: {fit.n_communities_} communit" in letters(drawn(room.plot_dendrogram(fit)))
    said = figures_choice.contributions_of(fit, x[7])
    _, values = figures_choice.gaps(said, 1, 0)
    log_odds = np.diff(fit.predict_log_proba(x[[7]])[0])[0]
    assert values.sum() == pytest.approx(log_odds)
    assert "log odds of 1 against 0" in letters(
        drawn(room.plot_contributions(fit, x[7], versus=(1, 0)))
    )
    with pytest.raises(ParameterError, match="row"):
        room.plot_contributions(fit, pd.DataFrame(x[:2]))


# --- names ----------------------------------------------------------------------------------


def test_names_of_others_are_never_markup_or_mathematics() -> None:
    links = network(4, 4, share=1.0)
    figures = (
        room.plot_interactions(dataclasses.replace(links, names=EVIL, levels=EVIL)),
        room.plot_dendrogram(dataclasses.replace(tree(4, 2), names=EVIL)),
        room.plot_contributions(Contributions(EVIL, EVIL, np.eye(4), np.zeros(4))),
    )
    for figure in figures:
        svg = drawn(figure)
        assert "<script" not in svg
        assert "n" * 40 not in svg


def test_things_without_links_trees_or_candidates_are_refused() -> None:
    for read in (
        figures_choice.network_of,
        figures_choice.tree_of,
        figures_choice.candidates_of,
    ):
        with pytest.raises(ParameterError, match="fitted"):
            read(object())


def test_communities_are_named_by_their_first_features() -> None:
    words = figures_choice.community_words(("a", "b", "c", "d"), [1, 2, 3])
    assert words == "b, c and 1 more"
    assert figures_choice.community_words(("a", "b"), [0]) == "a"


def test_merges_beyond_the_cut_are_grey_and_those_within_are_not() -> None:
    found = tree(12, 3)
    mine = figures.drawn_tree(found)
    (lines,) = (
        made
        for made in room.plot_dendrogram(found).axes[0].collections
        if isinstance(made, LineCollection) and len(made.get_segments()) == len(mine.lines)
    )
    muted = to_rgba(charts.MUTED)
    grey = [tuple(colour) == muted for colour in lines.get_colors()]
    assert grey == [group < 0 for group in mine.groups] and 0 < sum(grey) < len(grey)

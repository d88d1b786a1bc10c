"""Figures of classes of sequences and of categories: shares, steps, lines, item profiles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from consilience import report as room
from consilience.clustering.kernels.sequences import Sequences
from consilience.clustering.report import figures_sequences
from consilience.clustering.report.figures_sequences import chains_of, items_of, told_of
from consilience.exceptions import DataError, ParameterError
from tests.report.told import drawn, letters

RNG = np.random.default_rng(0)
STATES = np.array(["home", "ward", "$intensive$ care unit"])
WIDE = np.array([[0, 0, 1, -1], [0, -1, 1, 1], [2, 2, 2, 2], [1, 2, -1, -1]])
LABELS = np.array([0, 0, 1, -1])


def chains(k: int = 2, s: int = 3) -> Any:
    names = STATES if s == 3 else np.array([f"s{i}" for i in range(s)])
    return SimpleNamespace(
        states_=names,
        initial_=RNG.dirichlet(np.ones(s), k),
        transition_=RNG.dirichlet(np.ones(s), (k, s)),
        proportions_=np.full(k, 1 / k),
    )


def items(d: int = 3, levels: int = 2, k: int = 2) -> Any:
    return SimpleNamespace(
        levels_=tuple(np.arange(levels) for _ in range(d)),
        class_probabilities_=tuple(RNG.dirichlet(np.ones(levels), k) for _ in range(d)),
        proportions_=np.full(k, 1 / k),
        feature_names_in_=np.array([f"q{j}" for j in range(d)], dtype=object),
    )


def sequences() -> Sequences:
    return Sequences.of(WIDE, states=STATES.tolist())


def words(figure: Figure) -> str:
    return letters(drawn(figure))


# --- reading --------------------------------------------------------------------------------


def test_chances_by_time_are_those_of_the_chain() -> None:
    found = chains_of(chains())
    shares = found.by_time(4)
    np.testing.assert_allclose(shares.sum(axis=2), 1.0)
    for k in range(2):
        np.testing.assert_allclose(shares[k, 0], found.initial[k])
        power = np.linalg.matrix_power(found.transition[k], 3)
        np.testing.assert_allclose(shares[k, 3], found.initial[k] @ power)


def test_steps_that_are_not_known_leave_chances_of_one() -> None:
    fitted = chains()
    fitted.transition_[0, 1] = np.nan
    shares = chains_of(fitted).by_time(3)
    np.testing.assert_allclose(shares.sum(axis=2), 1.0)


def test_shares_are_of_what_was_seen() -> None:
    """Gaps and ends of sequences count nowhere, nor does a sequence of no class."""
    told = told_of(LABELS, sequences())
    assert told.states == tuple(STATES) and told.n_classes == 2
    found = figures_sequences._seen_shares(told.wide, told.labels, 2, 3)
    np.testing.assert_allclose(found[0, :, 0], [1, 1, 0, 0])
    np.testing.assert_allclose(found[0, :, 1], [0, 0, 1, 1])
    np.testing.assert_allclose(found[1, :, 2], 1.0)
    nobody = figures_sequences._seen_shares(told.wide[:1], np.array([0]), 1, 3)
    assert np.isnan(nobody[0, 3]).all()


def test_classes_come_from_the_estimator() -> None:
    fitted = chains()
    fitted.predict = lambda x: LABELS
    frame = pd.DataFrame(np.array([*STATES, None], dtype=object)[WIDE], columns=list("abcd"))
    told = told_of(fitted, frame)
    np.testing.assert_array_equal(told.wide, WIDE)
    assert told.times == ("a", "b", "c", "d")


@pytest.mark.parametrize("labels", [LABELS[:2], LABELS * 0.5])
def test_labels_that_do_not_fit_are_refused(labels: Any) -> None:
    with pytest.raises(DataError, match="one for each sequence"):
        room.plot_sequence_index(labels, sequences())


def test_what_has_no_classes_is_refused() -> None:
    for plot in (room.plot_transitions, room.plot_item_profiles, room.plot_state_distribution):
        with pytest.raises(ParameterError, match="a fit with"):
            plot(SimpleNamespace())
    with pytest.raises(ParameterError, match="1 to 12 classes"):
        room.plot_transitions(chains(13))
    with pytest.raises(ParameterError, match="1 to 12 classes"):
        room.plot_sequence_index(np.full(4, -1), sequences())
    with pytest.raises(ParameterError, match="length"):
        room.plot_state_distribution(chains(), length=0)


# --- what is drawn --------------------------------------------------------------------------


def test_steps_stand_in_the_cells_in_percent() -> None:
    fitted = chains()
    fitted.transition_[0] = [[0.97, 0.03, 0.0], [0.5, 0.5, 0.0], [0.0, 0.004, 0.996]]
    said = words(room.plot_transitions(fitted))
    assert "class 0: 50%" in said and "first state" in said
    assert " 97 3 50 50 100 " in said


def test_of_many_states_the_map_has_no_numbers() -> None:
    said = words(room.plot_transitions(chains(2, 20)))
    assert "s19" in said and "97" not in said


def test_states_by_time_of_a_model_and_of_sequences() -> None:
    assert "class 1: 50%" in words(room.plot_state_distribution(chains(), length=5))
    said = words(room.plot_state_distribution(LABELS, sequences()))
    assert "class 0: 2 (67%)" in said and "class 1: 1 (33%)" in said
    assert "$intensi" in said, "a name is never read as mathematics"


def test_lines_of_a_large_class_are_thinned_and_it_says_so() -> None:
    wide = RNG.integers(0, 3, (500, 12))
    labels = np.repeat([0, 1], [450, 50])
    figure = room.plot_sequence_index(labels, Sequences.of(wide))
    assert "class 0: 450, 200 drawn" in words(figure) and "class 1: 50" in words(figure)
    (image,) = figure.axes[0].get_images()
    assert np.asarray(image.get_array()).shape == (200, 12)


def test_gaps_are_drawn_apart_from_ends() -> None:
    figure = room.plot_sequence_index(LABELS, sequences())
    (image,) = figure.axes[0].get_images()
    cells: Any = image.get_array()
    # Sorted: the sequence with the gap comes first, since what was not seen is before all states.
    assert cells[0, 1] == len(STATES) and cells.mask[1, 3] and not cells.mask[0].any()
    assert "not seen" in words(figure)
    assert "not seen" not in words(room.plot_sequence_index(LABELS[2:3], sequences().take([2])))


def test_a_class_that_nobody_is_in_is_an_empty_panel() -> None:
    figure = room.plot_sequence_index(np.array([0, 0, 2, 2]), sequences())
    assert "class 1: 0" in words(figure)
    assert "class 1: 0 (0%)" in words(
        room.plot_state_distribution(np.array([0, 0, 2, 2]), sequences())
    )


@pytest.mark.parametrize("draw", [room.plot_sequence_index, room.plot_state_distribution])
def test_sequences_without_any_state_are_not_drawn(draw: Any) -> None:
    fitted = SimpleNamespace(states_=STATES, predict=lambda x: np.zeros(len(x), dtype=int))
    with pytest.raises(DataError, match="there is nothing to draw"):
        draw(fitted, [[None], [None]])


@pytest.mark.parametrize("length", [0, "x", 1.5])
def test_lengths_of_figures_are_checked(length: Any) -> None:
    with pytest.raises(ParameterError, match="length must be a whole number of at least 1"):
        room.plot_state_distribution(chains(), length=length)


def test_item_profiles_and_their_numbers() -> None:
    fitted = items()
    fitted.class_probabilities_[1][0] = [0.13, 0.87]
    said = words(room.plot_item_profiles(fitted))
    assert " 13 " in said and " 87 " in said and "q1" in said


def test_of_many_columns_those_that_differ_most_are_drawn() -> None:
    fitted = items(60, 2)
    for j, chances in enumerate(fitted.class_probabilities_):
        chances[:] = [[0.9, 0.1], [0.1, 0.9]] if j in (7, 31) else [[0.5, 0.5], [0.5, 0.5]]
    kept = figures_sequences.shown_items(items_of(fitted))
    assert len(kept) == figures_sequences.MOST_LEVELS // 2 and {7, 31} <= set(kept)
    assert kept == sorted(kept)
    one = items(1, 100)
    assert figures_sequences.shown_items(items_of(one)) == [0]


def test_colours_of_states_differ() -> None:
    found = figures_sequences.state_colours(20)
    assert len(set(found)) == 20

"""Sentences on mixtures of sequences and categories say one thing as one."""

from __future__ import annotations

import pytest

from consilience import MarkovMixture
from consilience.clustering.estimators.mixture import fewer_because
from consilience.clustering.kernels.sequences import Sequences
from consilience.exceptions import DataError


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (["a"], "1 cell holds a state that is not the 1 known state: correct it"),
        (["a", "c"], "1 cell holds a state that is not one of the 2 known states: correct it"),
        (["c", "d"], "3 cells hold a state that is not one of the 2 known states: correct them"),
    ],
)
def test_cells_with_unknown_states(states: list[str], words: str) -> None:
    with pytest.raises(DataError, match=words):
        Sequences.from_lists([["a", "b", "a"]], states)


def test_no_sequences_at_all() -> None:
    with pytest.raises(DataError, match="X has no sequence .* give at least one"):  # noqa: RUF043
        MarkovMixture().fit([])


def test_why_there_are_fewer_classes() -> None:
    assert fewer_because(0, 1, "row") == "there is 1 distinct row"
    assert fewer_because(0, 2, "sequence") == "there are 2 distinct sequences"
    assert fewer_because(1, 5, "row") == "1 class was left without any row"
    assert fewer_because(2, 5, "row") == "2 classes were left without any row"

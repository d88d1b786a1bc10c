"""Communities of features: similarity, the tree, cuts by replaying its merges."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.discriminant.kernels.communities import (
    cut,
    cut_nodes,
    linkage_tree,
    members,
    similarity,
)
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.random import stream
from tests.reference.community_bayes import communities_slowly, similarity_slowly

LINKAGES = ("average", "complete", "single")


def some_similarity(seed: int, p: int, k: int = 3) -> np.ndarray:
    rng = stream(seed)
    return similarity([np.corrcoef(rng.standard_normal((3 * p, p)).T) for _ in range(k)], [9, 5, 2])


def as_sets(parts):
    return {tuple(int(j) for j in part) for part in parts}


def test_similarity_weighs_classes_by_their_rows():
    rng = stream(0)
    matrices = [np.corrcoef(rng.standard_normal((30, 4)).T) for _ in range(3)]
    found = similarity((m for m in matrices), [3, 20, 7])
    np.testing.assert_allclose(found, similarity_slowly(matrices, [3, 20, 7]), atol=1e-13)
    for wrong in ([3, 20], [3, 20, 7, 1]):
        with pytest.raises(ParameterError):
            similarity(matrices, wrong)
    with pytest.raises(ParameterError):
        similarity([], [])


@pytest.mark.parametrize("linkage", LINKAGES)
@pytest.mark.parametrize("p", [2, 3, 9, 24])
def test_every_cut_is_that_of_the_textbook(linkage, p):
    similar = some_similarity(p, p)
    tree = linkage_tree(similar, linkage)
    for n_communities in range(1, p + 1):
        found = cut(tree, n_communities)
        assert len(found) == n_communities  # also at L = p, where scipy's cut_tree has failed
        assert as_sets(found) == as_sets(communities_slowly(similar, n_communities, linkage))
        assert sorted(np.concatenate(found)) == list(range(p))
        assert [part[0] for part in found] == sorted(part[0] for part in found)
        assert all((np.diff(part) > 0).all() for part in found)


@pytest.mark.parametrize("linkage", LINKAGES)
def test_nodes_are_the_communities_of_all_cuts(linkage):
    tree = linkage_tree(some_similarity(1, 15), linkage)
    nodes = [members(tree, i) for i in range(2 * 15 - 1)]
    assert len(as_sets(nodes)) == 2 * 15 - 1
    seen = set()
    for n_communities in range(1, 16):
        at = cut_nodes(tree, n_communities)
        seen |= set(at)
        assert [tuple(nodes[i]) for i in at] == [tuple(part) for part in cut(tree, n_communities)]
    assert seen == set(range(29))


def test_cuts_are_nested():
    tree = linkage_tree(some_similarity(2, 12))
    for n_communities in range(1, 12):
        coarse, fine = cut(tree, n_communities), cut(tree, n_communities + 1)
        assert all(any(set(f) <= set(c) for c in coarse) for f in fine)


def test_ties_and_equal_features_do_not_hang_on_rounding():
    same = np.ones((6, 6))
    for linkage in LINKAGES:
        assert len(cut(linkage_tree(same, linkage), 6)) == 6
        jitter = same + 1e-15 * stream(3).uniform(size=(6, 6))
        jitter = (jitter + jitter.T) / 2
        for n_communities in range(1, 7):
            assert as_sets(cut(linkage_tree(jitter, linkage), n_communities)) == as_sets(
                cut(linkage_tree(same, linkage), n_communities)
            )
    assert len(cut(linkage_tree(np.eye(4)), 2)) == 2  # nothing is similar


def test_one_feature_is_one_community():
    tree = linkage_tree(np.ones((1, 1)))
    assert tree.shape == (0, 4)
    assert as_sets(cut(tree, 1)) == {(0,)}


def test_what_is_out_of_range():
    tree = linkage_tree(some_similarity(4, 5))
    for wrong in (0, 6, -1):
        with pytest.raises(ParameterError, match="from 1 to 5 features"):
            cut(tree, wrong)
    for wrong in (-1, 9):
        with pytest.raises(ParameterError, match="node"):
            members(tree, wrong)
    with pytest.raises(ParameterError, match="linkage must be one of"):
        linkage_tree(np.eye(3), "ward")  # type: ignore[arg-type]
    for wrong in (np.ones((2, 3)), np.full((2, 2), np.nan), np.ones(4)):
        with pytest.raises(DataError, match="square matrix"):
            linkage_tree(wrong)

from __future__ import annotations

import numpy as np
import pytest
from scipy.cluster.hierarchy import linkage as scipy_linkage
from scipy.spatial.distance import squareform

from consilience.collaborators import kernels as mc
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.random import stream
from tests.reference import meta_clustering_naive as naive

NAN = np.nan


def symmetric(upper: np.ndarray) -> np.ndarray:
    upper = np.triu(upper, 1)
    return upper + upper.T


def random_z(seed: int, n_sites: int, missing: float = 0.0, k: int = 2) -> np.ndarray:
    """Groups in z, blurred, so that the rule stops somewhere and relocation has work."""
    rng = stream(seed, "z", n_sites)
    group = rng.integers(0, k, n_sites)
    z = rng.standard_normal((n_sites, n_sites)) * 2.0
    z += np.where(group[:, None] == group[None, :], -0.5, 2.5)
    z[rng.random(z.shape) < missing] = NAN
    return symmetric(z)


def tables(seed: int, sizes: list[int], p: int, shift: float) -> list[np.ndarray]:
    rng = stream(seed, "tables")
    mixing = rng.standard_normal((p, p)) + np.eye(p)
    scale = 10.0 ** rng.integers(-3, 4, size=p)
    return [
        (rng.standard_normal((n, p)) @ mixing + shift * rng.standard_normal(p)) * scale + 5.0
        for n in sizes
    ]


def moments_of(x: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    covariances = np.stack([np.cov(t.T, bias=True).reshape(t.shape[1], -1) for t in x])
    return covariances, np.array([len(t) for t in x]), np.stack([t.mean(axis=0) for t in x])


# weights and losses


@pytest.mark.parametrize(
    ("sizes", "p", "shift"),
    [([30, 50, 41], 3, 0.7), ([25, 60], 1, 2.0), ([5, 6, 7], 20, 0.5), ([40, 40, 9, 80], 4, 0.0)],
)
def test_weights_equal_the_textbook(sizes, p, shift):
    x = tables(1, sizes, p, shift)
    covariances, n, means = moments_of(x)
    pooled = mc.shrunk_covariance(covariances, n, means)
    s, shrunk, shrink = naive.pooled_covariance(x)
    assert pooled.shrink == pytest.approx(shrink)
    assert pooled.trace == pytest.approx(np.trace(np.linalg.solve(shrunk, s)), rel=1e-8)
    for j in range(len(x)):
        found = mc.overlap_weights_all(x[j], j, means, n, pooled)
        assert found.shape == (len(x[j]), len(x))
        assert (found[:, j] == 0.5).all()
        for i in range(len(x)):
            expected = naive.overlap_weights(x[j], i, j, x)
            np.testing.assert_allclose(found[:, i], expected, rtol=1e-6, atol=1e-12)


def test_weights_do_not_depend_on_units_or_origin():
    x = tables(2, [60, 80], 3, 1.0)
    factor, origin = np.array([1e5, 1e-4, -3.0]), np.array([100.0, -2.0, 0.0])
    y = [t * factor + origin for t in x]
    weights = []
    for data in (x, y):
        covariances, n, means = moments_of(data)
        pooled = mc.shrunk_covariance(covariances, n, means)
        weights.append(mc.overlap_weights_all(data[0], 0, means, n, pooled))
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-6)


def test_sites_that_do_not_overlap_keep_few_rows():
    x = tables(3, [200, 200, 200], 2, 0.0)
    x[1] = x[1] + 6.0 * x[0].std(axis=0)
    covariances, n, means = moments_of(x)
    pooled = mc.shrunk_covariance(covariances, n, means)
    h = mc.overlap_weights_all(x[0], 0, means, n, pooled)
    effective = naive.excess_losses(np.zeros_like(h), h)[2]
    assert effective[1] < 20 < 150 < effective[2]
    assert effective[0] == pytest.approx(200)


def test_variances_alone_and_constant_columns():
    x = tables(4, [50, 70], 3, 1.0)
    covariances, n, means = moments_of(x)
    diagonal = mc.shrunk_covariance(np.diagonal(covariances, axis1=1, axis2=2), n, means)
    full = mc.shrunk_covariance(covariances * np.eye(3), n, means)
    assert diagonal.shrink == 1.0
    np.testing.assert_allclose(diagonal.inverse, full.inverse, rtol=1e-10)
    assert diagonal.trace == pytest.approx(3.0)

    wider = [np.column_stack([t, np.full(len(t), 0.1 * (k + 1))]) for k, t in enumerate(x)]
    covariances, n, means = moments_of(wider)
    with_constant = mc.shrunk_covariance(covariances, n, means)
    assert (with_constant.inverse[3] == 0).all() and (with_constant.inverse[:, 3] == 0).all()
    without = mc.shrunk_covariance(covariances[:, :3, :3], n, means[:, :3])
    # it counts in the amount of shrinking only
    assert without.trace - 0.3 < with_constant.trace <= without.trace
    # What is rounding is told by the means: none around 0, a lot far off.
    covariances, n, means = moments_of(x)
    near = mc.shrunk_covariance(covariances * 1e-6, n, np.zeros_like(means))
    assert (np.diagonal(near.inverse) > 0).all()
    far = mc.shrunk_covariance(covariances * 1e-6, n, means + np.array([0, 1e12, 0]))
    assert (np.diagonal(far.inverse) > 0).tolist() == [True, False, True]
    only_constant = mc.shrunk_covariance(np.zeros((2, 1, 1)), [5, 5])
    weights = mc.overlap_weights_all(
        np.ones((5, 1)), 0, np.array([[1.0], [2.0]]), [5, 5], only_constant
    )
    assert (weights == 0.5).all()


def test_one_row_per_site_still_gives_weights():
    pooled = mc.shrunk_covariance(np.zeros((2, 2, 2)), [1, 1])
    weights = mc.overlap_weights_all(np.ones((1, 2)), 1, np.eye(2), [1, 1], pooled)
    assert np.isfinite(weights).all()


@pytest.mark.parametrize(
    ("covariances", "sizes"),
    [
        (np.zeros((2, 3, 2)), [5, 5]),
        (np.zeros((2, 3, 3)), [5]),
        (np.full((1, 2, 2), NAN), [5]),
        (np.zeros((2, 2)), [5, 0]),
        (np.zeros(3), [5, 5, 5]),
    ],
)
def test_moments_that_cannot_be_pooled_are_refused(covariances, sizes):
    with pytest.raises(DataError):
        mc.shrunk_covariance(covariances, sizes)


# pairwise tests


def random_losses(seed: int, n_sites: int):
    rng = stream(seed, "losses")
    shape = (n_sites, n_sites)
    return (
        rng.standard_normal(shape),
        rng.random(shape),
        rng.uniform(15, 60, shape),
        list(rng.integers(50, 500, n_sites)),
        list(rng.random(n_sites)),
    )


def test_pairwise_tests_equal_the_textbook():
    parts = random_losses(6, 7)
    found = mc.pairwise_tests(*parts)
    w, se, z = naive.pairwise(*parts)
    np.testing.assert_allclose(found.difference, w, rtol=1e-12)
    np.testing.assert_allclose(found.standard_error, se, rtol=1e-12)
    np.testing.assert_allclose(found.z, z, rtol=1e-10)
    np.testing.assert_array_equal(found.comparable, ~np.isnan(z))
    assert np.isnan(z).any()
    np.testing.assert_array_equal(found.z, found.z.T)


def test_margin_and_units():
    d, q, effective, n, var_y = random_losses(7, 5)
    plain = mc.pairwise_tests(d, q, effective, n, var_y)
    for unit in (1e3, 1e-4):
        other = mc.pairwise_tests(d * unit**2, q * unit**4, effective, n, np.array(var_y) * unit**2)
        np.testing.assert_allclose(other.z, plain.z, rtol=1e-10)
    wider = mc.pairwise_tests(d, q, effective, n, var_y, margin=0.2)
    off = plain.comparable & ~np.eye(5, dtype=bool)
    assert (wider.z[off] < plain.z[off]).all()


def test_no_standard_error():
    excess = np.array([[0, 0.0, 1.0], [0, 0, 0.02], [1.0, 0.02, 0]])
    zero, rows = np.zeros((3, 3)), np.full((3, 3), 50.0)
    found = mc.pairwise_tests(excess, zero, rows, [50] * 3, [0.0, 0.0, 1.0])
    np.testing.assert_array_equal(found.z, [[0, 0, 1e6], [0, 0, 1e6], [1e6, 1e6, 0]])


def test_values_that_are_not_finite_make_a_pair_not_comparable():
    d, q, effective, n, var_y = random_losses(8, 4)
    effective[:] = 50.0
    d[0, 1], q[2, 3], q[1, 2], var_y[3] = NAN, np.inf, -1.0, NAN
    found = mc.pairwise_tests(d, q, effective, n, var_y)
    expected = np.ones((4, 4), dtype=bool)
    expected[[0, 1, 1, 2], [1, 0, 2, 1]] = False
    expected[3, :3] = expected[:3, 3] = False
    np.testing.assert_array_equal(found.comparable, expected)
    np.testing.assert_array_equal(np.isnan(found.z), ~expected)


def test_pairwise_tests_refuse_what_does_not_fit():
    d, q, effective, n, var_y = random_losses(9, 3)
    with pytest.raises(DataError):
        mc.pairwise_tests(d[:2], q, effective, n, var_y)
    with pytest.raises(DataError):
        mc.pairwise_tests(d, q, effective, n, var_y[:2])
    with pytest.raises(ParameterError, match="margin"):
        mc.pairwise_tests(d, q, effective, n, var_y, margin=-0.1)
    with pytest.raises(ParameterError, match="min_effective"):
        mc.pairwise_tests(d, q, effective, n, var_y, min_effective=NAN)


@pytest.mark.parametrize("growth", [0.0, 0.01, np.array([0.3, 0.0])])
def test_power_and_what_is_detectable_are_inverse(growth):
    margin, se = np.array([0.1, 0.5]), np.array([0.2, 0.05])
    for share in (0.5, 0.8, 0.99):
        smallest = mc.detectable(margin, se, share, growth=growth)
        np.testing.assert_allclose(mc.power(smallest, margin, se, growth=growth), share)
    for wrong in (0.49, 1.0, NAN):
        with pytest.raises(ParameterError, match="power"):
            mc.detectable(margin, se, power=wrong, growth=growth)


def test_power_in_plain_cases():
    margin, se = np.array([0.1, 0.5]), np.array([0.2, 0.05])
    # at the margin: P(Z > 1.85)
    np.testing.assert_allclose(mc.power(margin, margin, se), 0.0322, atol=5e-4)
    assert mc.power(0.9, 0.1, 0.2, growth=0.1) < mc.power(0.9, 0.1, 0.2)
    np.testing.assert_array_equal(mc.power([1.0, 0.0], [0.5, 0.5], [0.0, 0.0]), [1.0, 0.0])
    assert np.isnan(mc.power(1.0, 0.5, NAN))


def test_growth_takes_the_own_loss_or_else_the_variance():
    d, q, effective, n, var_y = random_losses(14, 3)
    effective[:] = [[9, 40, 50], [25, 9, 80], [20, 100, 9]]
    found = mc.pairwise_tests(d, q, effective, n, var_y, own_loss=[1.0, 2.0, 4.0])
    assert found.growth[0, 1] == pytest.approx(2.0 / 40 + 1.0 / 25)
    assert found.growth[2, 1] == pytest.approx(2.0 / 100 + 4.0 / 80)
    assert (np.diagonal(found.growth) == 0).all()
    found = mc.pairwise_tests(d, q, effective, n, var_y)
    assert found.growth[0, 1] == pytest.approx(var_y[1] / 40 + var_y[0] / 25)
    with pytest.raises(DataError):
        mc.pairwise_tests(d, q, effective, n, var_y, own_loss=[1.0])


def test_dissimilarities_equal_the_textbook():
    rng = stream(10, "v")
    cross, own = rng.random((6, 6)), rng.random(6)
    found = mc.source_dissimilarity(cross, own)
    np.testing.assert_allclose(found, naive.source_dissimilarity(cross, list(own)), rtol=1e-12)
    predictions = rng.random((5, 11))
    found = mc.reference_dissimilarity(predictions)
    np.testing.assert_allclose(found, naive.reference_dissimilarity(predictions), rtol=1e-12)
    two = mc.reference_dissimilarity(np.stack([predictions, predictions], axis=2))
    np.testing.assert_allclose(two, 2 * found, rtol=1e-12)


# linkage


def members(merges: mc.Merges) -> list[tuple[list[int], list[int]]]:
    known = [[i] for i in range(len(merges.ids) + 1)]
    pairs = []
    for a, b in merges.ids:
        pairs.append((known[a], known[b]))
        known.append(sorted(known[a] + known[b]))
    return pairs


@pytest.mark.parametrize("missing", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("n_sites", [1, 2, 3, 5, 9, 24])
def test_merges_and_labels_equal_the_textbook(n_sites, missing, monkeypatch):
    merge_all = naive.merge_all
    for seed in range(8):
        z = random_z(seed, n_sites, missing, k=1 + seed % 4)
        found = mc.linkage(z)
        steps, stop = merged = merge_all(z)
        # Every cut of the textbook starts from the same merges.
        monkeypatch.setattr(naive, "merge_all", lambda z, merged=merged: merged)
        assert members(found) == [(a, b) for a, b, _ in steps]
        np.testing.assert_allclose(found.heights, [h for _, _, h in steps], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.thresholds, [naive.threshold(a, b) for a, b, _ in steps])
        assert found.stop == stop
        assert mc.cluster(z).labels.tolist() == naive.cluster(z)
        for k in range(1, n_sites + 1):
            assert mc.cluster(z, n_clusters=k).labels.tolist() == naive.cluster(z, k)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("n_sites", [1, 2, 5, 9, 24])
def test_groups_on_evidence_equal_the_textbook(n_sites, share):
    for seed in range(8):
        z = random_z(seed, n_sites, 0.3, k=1 + seed % 4)
        drawn = stream(seed, "evidence", n_sites).random((n_sites, n_sites)) < share
        evidence = np.triu(drawn, 1) | np.triu(drawn, 1).T | np.eye(n_sites, dtype=bool)
        found = mc.cluster(z, evidence=evidence)
        steps, stop = naive.merge_all(z, evidence)
        assert members(found.merges) == [(a, b) for a, b, _ in steps]
        assert found.merges.stop == stop
        assert found.labels.tolist() == naive.cluster(z, None, evidence)
        # nobody is in a group of which it knows less than half
        for i, label in enumerate(found.labels):
            others = (found.labels == label) & (np.arange(n_sites) != i)
            assert 2 * evidence[i, others].sum() >= others.sum()
        if n_sites > 1:
            # a number that is given is a number that is found
            given = mc.cluster(z, n_clusters=2, evidence=evidence)
            assert given.labels.tolist() == naive.cluster(z, 2, evidence)


def test_bounds_of_losses_equal_the_textbook_and_have_no_units():
    d, q, effective, n, var_y = random_losses(8, 7)
    effective = np.maximum(effective, 3.0)
    found = mc.upper_losses(d, q, effective, n, var_y)
    expected = naive.upper(d, q, effective, n, var_y)
    off = ~np.eye(7, dtype=bool)
    np.testing.assert_allclose(found[off], expected[off], rtol=1e-10)
    other = mc.upper_losses(d * 1e6, q * 1e12, effective, n, np.array(var_y) * 1e6)
    np.testing.assert_allclose(other[off], found[off], rtol=1e-10)
    for tolerance in (0.0, 1.0, 3.0):
        alike = mc.evidence_of(found, tolerance)
        for i, j in zip(*np.nonzero(off), strict=True):
            assert alike[i, j] == naive.alike(expected, i, j, tolerance)
    found[2, 5] = np.nan
    assert not mc.evidence_of(found, np.inf)[5, 2]
    assert mc.evidence_of(found, np.inf)[2, 2]


def test_sites_are_not_joined_through_a_third_one_nor_by_a_huge_standard_error():
    unknown = np.nan
    # 0 and 2 were never compared, and 1 lies between: without evidence all three were one group
    z = np.array([[0.0, 0.1, unknown], [0.1, 0.0, 0.2], [unknown, 0.2, 0.0]])
    assert mc.cluster(z).labels.tolist() == [0, 0, 0]
    wide = np.array([[0.0, 0.2, unknown], [0.2, 0.0, 8.2], [unknown, 3.9, 0.0]])
    alike = mc.evidence_of(wide, 1.0)
    assert mc.cluster(z, evidence=alike).labels.tolist() == [0, 0, 1]
    # what nobody could compare is alone, and a newcomer without evidence joins nobody
    nobody = np.eye(3, dtype=bool)
    assert mc.cluster(z, evidence=nobody).labels.tolist() == [0, 1, 2]
    new = np.array([[0.0, 0.1, 0.2]])
    assert mc.join(new, [0, 0, 1]).tolist() == [0]
    assert mc.join(new, [0, 0, 1], evidence=np.array([[False, False, True]])).tolist() == [1]
    assert mc.join(new, [0, 0, 1], evidence=np.zeros((1, 3), dtype=bool)).tolist() == [-1]
    with pytest.raises(DataError, match="evidence"):
        mc.cluster(z, evidence=np.triu(np.ones((3, 3), dtype=bool)))


def test_the_group_is_used_unless_it_clearly_loses():
    names = ("own", "group", "constant", "own_minus_group", "constant_minus_group")
    #        better   as good  noisy and far off  clear, small  constant best  nothing told
    own = [2.0, 1.0, 3.1, 1.0, 3.0, np.nan]
    group = [1.0, 1.05, 111.0, 1.1, 2.6, np.nan]
    constant = [3.0, 3.0, 2.7, 2.0, 2.0, np.nan]
    gain = {
        "own": np.array(own),
        "group": np.array(group),
        "constant": np.array(constant),
        "own_minus_group": np.array(own) - group,
        "constant_minus_group": np.array(constant) - group,
        # the third one's is huge: by its standard error alone anything would be forgiven
        "own_minus_group_error": np.array([0.1, 0.1, 200.0, 0.05, 0.1, np.nan]),
        "constant_minus_group_error": np.array([0.1, 0.1, 200.0, 0.05, 5.0, np.nan]),
        "own_error": np.array([0.2, 0.2, 0.5, 0.2, 0.5, np.nan]),
        "constant_error": np.array([0.3, 0.3, 0.5, 0.3, 0.5, np.nan]),
    }
    assert set(names) < set(gain)
    together = np.zeros(6, dtype=bool)
    expected = ["group", "group", "constant", "own", "constant", "group"]
    assert mc.way_of_predicting(gain, together).tolist() == expected
    # alone there is no group to lose: the constant, unless the own model is clearly better
    alone = {**gain, "group": gain["own"], "own_minus_group": np.zeros(6)}
    alone["constant_minus_group"] = alone["constant"] - alone["own"]
    expected = ["group", "group", "constant", "group", "constant", "group"]
    assert mc.way_of_predicting(alone, ~together).tolist() == expected


def test_the_own_model_is_used_only_where_a_constant_is_clearly_worse():
    #         as good  by a quarter  clear  unclear  group far off  group says nothing
    own = np.array([3.869, 1.0, 1.0, 1.0, 1.0, 1.0])
    constant = np.array([3.880, 1.26, 1.1, 1.1, 1.1, 1.2])
    gain = {
        "own": own,
        "group": np.array([3.869, 1.0, 1.0, 1.0, 30.0, np.nan]),
        "constant": constant,
        # by way of the group the fifth one's difference could be anything, by its parts it cannot
        "own_minus_group_error": np.array([0.0, 0.0, 0.0, 0.0, 10.0, np.nan]),
        "constant_minus_group_error": np.array([0.375, 9.0, 0.06, 0.07, 10.0, np.nan]),
        "own_error": np.array([0.851, 9.0, 0.5, 0.5, 0.02, 0.1]),
        "constant_error": np.array([0.837, 9.0, 0.5, 0.5, 0.02, 0.1]),
    }
    gain |= {f"{way}_minus_group": gain[way] - gain["group"] for way in ("own", "constant")}
    alone = np.ones(6, dtype=bool)
    expected = ["constant", "group", "group", "constant", "own", "constant"]
    assert mc.way_of_predicting(gain, alone).tolist() == expected
    together = ["group", "group", "group", "group", "own", "group"]
    assert mc.way_of_predicting(gain, ~alone).tolist() == together


def test_random_cases_exercise_stopping_and_relocation():
    cases = [mc.cluster(random_z(seed, 24, 0.3, k=3)) for seed in range(8)]
    assert any(
        (case.labels != mc.cut(case.merges.ids, 23 - case.labels.max())).any() for case in cases
    )
    assert all(0 < case.merges.stop < 23 for case in cases)


def test_heights_equal_scipy_where_the_rule_makes_all_merges():
    rng = stream(11, "scipy")
    z = symmetric(rng.random((30, 30)) * 0.4)
    found = mc.linkage(z)
    expected = scipy_linkage(squareform(z, checks=False), "average")
    assert found.stop == 29
    np.testing.assert_allclose(found.heights, expected[:, 2])
    np.testing.assert_array_equal(np.sort(found.ids, axis=1), expected[:, :2])


def test_order_of_sites_does_not_change_the_clusters():
    z = random_z(12, 20, 0.1, k=3)
    order = stream(12, "order").permutation(20)
    plain, shuffled = mc.cluster(z).labels, mc.cluster(z[np.ix_(order, order)]).labels
    same = plain[order][:, None] == plain[order][None, :]
    np.testing.assert_array_equal(same, shuffled[:, None] == shuffled[None, :])


def test_ties_go_to_the_first_sites():
    z = np.full((4, 4), 1.0)
    found = mc.linkage(z)
    assert members(found) == [([0], [1]), ([0, 1], [2]), ([0, 1, 2], [3])]
    z = symmetric(np.where(np.eye(6, k=1) + np.eye(6, k=5) > 0, 0.0, 3.0))  # a ring
    assert members(mc.linkage(z))[:3] == [([0], [1]), ([2], [3]), ([4], [5])]


@pytest.mark.parametrize(("value", "expected"), [(1.85, [0, 0]), (1.8501, [0, 1]), (NAN, [0, 1])])
def test_two_sites(value, expected):
    found = mc.cluster(np.array([[0.0, value], [value, 0.0]]))
    assert found.labels.tolist() == expected
    assert found.merges.heights[0] == (value if value == value else np.inf)
    assert found.merges.thresholds[0] == pytest.approx(1.85)
    assert mc.cluster(np.array([[0.0, value], [value, 0.0]]), n_clusters=1).labels.max() + 1 == 1


def test_one_site_and_none():
    found = mc.cluster(np.zeros((1, 1)))
    assert found.labels.tolist() == [0] and found.merges.stop == 0 and found.labels.max() + 1 == 1
    assert found.merges.ids.shape == (0, 2)
    assert mc.spectral(np.zeros((1, 1)), rng=stream(0, "k")).labels.tolist() == [0]
    for call in (mc.cluster, lambda v: mc.spectral(v, rng=stream(0, "k"))):
        with pytest.raises(DataError):
            call(np.zeros((0, 0)))


def test_nothing_comparable_keeps_every_site_apart():
    found = mc.cluster(np.full((5, 5), NAN))
    assert found.labels.tolist() == [0, 1, 2, 3, 4]
    assert found.merges.stop == 0 and np.isinf(found.merges.heights).all()
    assert mc.cluster(np.full((5, 5), NAN), max_clusters=2).labels.max() + 1 == 2


def test_a_single_comparable_pair():
    z = np.full((4, 4), NAN)
    z[1, 3] = z[3, 1] = -1.0
    found = mc.cluster(z)
    assert found.labels.tolist() == [1, 0, 2, 0]
    assert found.merges.heights.tolist() == [-1.0, np.inf, np.inf]


def test_disconnected_sites_merge_last():
    z = symmetric(np.full((6, 6), 9.0))
    z[:3, 3:] = z[3:, :3] = NAN
    found = mc.linkage(z)
    assert found.stop == 0
    assert np.isinf(found.heights[-1]) and np.isfinite(found.heights[:-1]).all()
    assert mc.cluster(z, n_clusters=2).labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_given_and_bounded_numbers_of_clusters():
    z = symmetric(np.full((4, 4), 5.0))
    assert mc.cluster(z).labels.max() + 1 == 4
    assert mc.cluster(z, max_clusters=3).labels.max() + 1 == 3
    assert mc.cluster(z, max_clusters=99).labels.max() + 1 == 4
    assert mc.cluster(z, n_clusters=2, max_clusters=1).labels.max() + 1 == 2
    for wrong in (0, 5):
        with pytest.raises(ParameterError, match="from 1 to 4"):
            mc.cluster(z, n_clusters=wrong)
        with pytest.raises(ParameterError, match="from 1 to 4"):
            mc.spectral(z, rng=stream(0, "k"), n_clusters=wrong)
    with pytest.raises(ParameterError, match="max_clusters"):
        mc.cluster(z, max_clusters=0)


def test_equal_sites_are_not_moved_by_rounding():
    z = np.full((9, 9), 0.1)
    found = mc.cluster(z, n_clusters=3)
    assert (found.labels == mc.cut(found.merges.ids, 6)).all()


def test_relocation_moves_a_misplaced_site_and_keeps_k():
    z = symmetric(np.full((6, 6), 4.0))
    z[:3, :3] = z[3:, 3:] = -1.0
    assert mc.relocate(z, [0, 0, 1, 1, 1, 1]).tolist() == [0, 0, 0, 1, 1, 1]
    assert mc.relocate(z, [0, 1, 1, 1, 1, 1]).tolist() == [0, 0, 0, 1, 1, 1]
    assert mc.relocate(z, [0, 1, 2, 3, 4, 5]).tolist() == [0, 1, 2, 3, 4, 5]


def test_relocation_leaves_a_cluster_without_comparable_pairs():
    z = symmetric(np.full((4, 4), 1.0))
    z[3, 0] = z[0, 3] = NAN
    # 3 gains as much by leaving as 0 does: the first site goes
    assert mc.relocate(z, [0, 1, 1, 0]).tolist() == [0, 0, 0, 1]
    assert mc.relocate(np.full((3, 3), NAN), [0, 0, 1]).tolist() == [0, 0, 1]


@pytest.mark.parametrize("call", [mc.linkage, mc.cluster, lambda z: mc.relocate(z, [0, 0])])
def test_matrices_that_are_no_tests_are_refused(call):
    for wrong in (np.zeros((2, 3)), np.array([[0, 1.0], [2.0, 0]]), np.array([[0, np.inf]] * 2)):
        with pytest.raises(DataError):
            call(wrong)
    with pytest.raises(DataError):
        mc.relocate(np.zeros((3, 3)), [0, 0])


def test_newcomers():
    labels = [0, 0, 1, 2]
    z_new = np.array(
        [
            [0.0, 3.0, 1.6, 9.0],  # mean 1.5 in cluster 0
            [NAN, 2.0, 1.85, 9.0],
            [2.0, 2.0, 1.86, NAN],
            [NAN, NAN, NAN, NAN],
            [NAN, NAN, NAN, -5.0],
            [1.0, 1.0, 1.0, 1.0],
        ]
    )
    assert mc.join(z_new, labels).tolist() == [0, 1, -1, -1, 2, 0]
    assert mc.join(z_new[2], labels, threshold=1.9).tolist() == [1]
    with pytest.raises(DataError):
        mc.join(z_new, [0, 1])
    near = np.array([[0.5, 0.5, 0.6, 0.1]])  # a sum would choose cluster 0
    assert mc.join_similar(near, labels).tolist() == [1]


def test_many_sites():
    n_sites = 500
    group = np.arange(n_sites) % 7
    z = random_z(13, n_sites, 0.2) * 0.3 + np.where(group[:, None] == group[None, :], -0.5, 4.0)
    found = mc.cluster(z)
    assert found.labels.max() + 1 == 7
    assert all(len(set(found.labels[group == k])) == 1 for k in range(7))


# the source's rule


def dissimilarities(seed: int, n_sites: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = stream(seed, "groups")
    centres = rng.standard_normal((k, 3)) * 4
    group = np.arange(n_sites) % k
    points = centres[group] + rng.standard_normal((n_sites, 3)) * 0.3
    return np.square(points[:, None] - points[None, :]).sum(axis=2), group


@pytest.mark.parametrize(("n_sites", "k"), [(6, 2), (12, 3), (20, 2), (30, 5)])
def test_spectral_equals_the_textbook(n_sites, k):
    for seed in range(4):
        v, _ = dissimilarities(seed, n_sites, k)
        found = mc.spectral(v, rng=stream(seed, "starts"))
        s = naive.self_tuning(v)
        np.testing.assert_allclose(mc.similarity(v), s, rtol=1e-10)
        values, labels = naive.spectral(s, 10, seed)
        np.testing.assert_allclose(found.eigenvalues, values, atol=1e-10)
        assert found.labels.tolist() == labels
        again = mc.spectral(v * 1e6, rng=stream(seed, "starts"))
        assert again.labels.tolist() == labels


def test_spectral_finds_clear_groups_by_the_eigengap():
    v, group = dissimilarities(1, 20, 2)
    found = mc.spectral(v, rng=stream(1, "starts"))
    assert found.labels.tolist() == group.tolist()
    assert found.eigenvalues[0] == pytest.approx(1.0)
    given = mc.spectral(v, rng=stream(1, "starts"), n_clusters=3)
    assert given.labels.max() + 1 == 3
    assert mc.spectral(v, rng=stream(1, "starts"), n_clusters=20).labels.tolist() == list(range(20))


def test_a_fixed_scale_depends_on_units():
    v, _ = dissimilarities(2, 12, 3)
    fixed = mc.similarity(v, scale=2.0)
    np.testing.assert_allclose(fixed, np.exp(-v / 2.0))
    assert mc.spectral(v * 1e-9, rng=stream(2, "s"), scale=2.0).labels.max() + 1 == 1
    for wrong in (0.0, -1.0, np.inf, NAN, "median"):
        with pytest.raises(ParameterError, match="scale"):
            mc.similarity(v, scale=wrong)


def test_similarity_of_equal_and_unknown_sites():
    v = symmetric(np.full((5, 5), 2.0))
    v[:3, :3] = 0.0
    v[4, :4] = v[:4, 4] = NAN
    v[3, 0] = v[0, 3] = NAN
    found = mc.similarity(v)
    assert np.isfinite(found).all() and (np.diagonal(found) == 1).all()
    assert (found[:3, :3] == 1).all()
    assert (found[4, :4] == 0).all() and found[0, 3] == 0
    labels = mc.spectral(v, rng=stream(3, "s")).labels
    assert len(set(labels[:3])) == 1
    assert mc.spectral(np.zeros((4, 4)), rng=stream(3, "s")).labels.max() + 1 == 1
    for wrong in (-v, np.zeros((2, 3)), np.array([[0, 1.0], [2.0, 0]])):
        with pytest.raises(DataError):
            mc.similarity(wrong)


def test_two_sites_are_one_cluster_for_the_source():
    found = mc.spectral(np.array([[0.0, 1e9], [1e9, 0.0]]), rng=stream(4, "s"))
    assert found.labels.tolist() == [0, 0]

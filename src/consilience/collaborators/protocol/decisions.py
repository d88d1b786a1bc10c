"""What the coordinator makes of the sites' replies: sites in play, groups, one refit for each.

Source of the refit: Ye, Ghanadan and Ding (2022), "pooled" use. Least squares needs the
cross-products of a constant, the columns and the response, and nothing else; sums over sites give
the fit of the pooled rows exactly. Other methods need the rows, which leave a site only where its
policy allows values for each record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from consilience.arrays import FloatArray, IntArray
from consilience.collaborators import kernels
from consilience.collaborators.kernels import PairwiseTests, Pooled
from consilience.collaborators.protocol import messages
from consilience.collaborators.protocol.messages import Settings
from consilience.collaborators.protocol.site import MIN_ROWS
from consilience.exceptions import QuorumError
from consilience.learners.candidates import build
from consilience.protocol.method import Ask, CoordinatorContext, Replies
from consilience.protocol.phases.site_moments import SiteMoments
from consilience.wire import estimators
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure


@dataclass(frozen=True, eq=False)
class Seen:
    """Losses of all models at all sites, for one view.

    Attributes
    ----------
    excess, variance, effective, raw : (L, L) arrays
        Entry (i, j): model of site i on the rows of site j; NaN where it is not known.
    """

    excess: FloatArray
    variance: FloatArray
    effective: FloatArray
    raw: FloatArray

    def only(self, sites: Sequence[int]) -> Seen:
        """Restrict to some sites."""
        cells = np.ix_(list(sites), list(sites))
        parts = (self.excess, self.variance, self.effective, self.raw)
        return Seen(*(part[cells] for part in parts))


@dataclass(frozen=True, eq=False)
class Decision:
    """Groups of one view, with their evidence.

    Attributes
    ----------
    labels : (L,) int array
    tests : PairwiseTests
    merges : dict
        ``ids``, ``heights`` and ``thresholds``; empty under the spectral rule.
    dissimilarity, eigenvalues : arrays
        Empty under the pairwise rule.
    """

    labels: IntArray
    tests: PairwiseTests
    merges: dict[str, Any]
    dissimilarity: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    eigenvalues: FloatArray = field(default_factory=lambda: np.empty(0))


def pooled_covariance(moments: SiteMoments, sites: Sequence[str]) -> tuple[FloatArray, Pooled]:
    """Means by site and the pooled covariance within sites, for the overlap weights.

    A column that one of the sites withheld takes no part: its means are 0 for all, as are its rows
    and columns in the inverse.

    Returns
    -------
    means : (L, p) array
    pooled : Pooled
    """
    means = np.stack([moments.means[s] for s in sites])
    p = means.shape[1]
    known = np.flatnonzero(np.isfinite(means).all(axis=0))
    means = np.where(np.isfinite(means).all(axis=0), means, 0.0)
    if not len(known):
        return means, Pooled(np.zeros((p, p)), 0.0, 1.0)
    full = [s for s in sites if s in moments.products]
    if full:
        cells = np.ix_(known, known)
        total = np.zeros((len(known), len(known)))
        freedom = np.zeros_like(total)
        for s in full:
            products = moments.products[s][cells]
            there = np.isfinite(products)
            total += np.where(there, products, 0.0)
            freedom += np.where(there, max(moments.n[s] - 1, 1), 0.0)
        # n - 1 summed over the sites that tell their products
        rows = float(freedom.max())
        # Cells that some sites withheld rest on the others; `shrunk_covariance` divides by n - 1.
        covariance = np.where(freedom > 0, total / np.maximum(freedom, 1.0), 0.0)
        found = kernels.shrunk_covariance(
            (covariance * rows / (rows + 1))[None], [rows + 1], means[:, known]
        )
    else:
        spreads = np.stack([moments.spreads[s][known] for s in sites])
        found = kernels.shrunk_covariance(spreads, [moments.n[s] for s in sites], means[:, known])
    inverse = np.zeros((p, p))
    inverse[np.ix_(known, known)] = found.inverse
    return means, Pooled(inverse, found.trace, found.shrink)


def untested(n_sites: int) -> PairwiseTests:
    """No pair was tested."""
    unknown = np.full((n_sites, n_sites), np.nan)
    parts = {f.name: unknown for f in dataclasses.fields(PairwiseTests)}
    return PairwiseTests(**{**parts, "comparable": np.zeros((n_sites, n_sites), dtype=bool)})


def detection(
    tests: PairwiseTests, variance: FloatArray, own_loss: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """What each pair could have shown.

    Returns
    -------
    power : (L, L) array
        Chance of telling two sites apart if each one's model were of no use to the other, that is
        did as badly as the best constant. 0 where a pair cannot be compared.
    detectable : (L, L) array
        Excess loss shown with 80% power, in shares of the response variance; NaN likewise.
    """
    useful = np.maximum(variance - own_loss, 0.0)
    unit = variance[:, None] + variance[None, :]
    # excess of a pair whose models are of no use to each other
    target = useful[:, None] + useful[None, :]
    strength = kernels.power(target, tests.margin, tests.standard_error, growth=tests.growth)
    with np.errstate(divide="ignore", invalid="ignore"):
        least = kernels.detectable(tests.margin, tests.standard_error, growth=tests.growth) / unit
    # A pair that could not be compared could have shown nothing.
    usable = tests.comparable & ~np.eye(len(variance), dtype=bool)
    return np.where(usable, strength, 0.0), np.where(usable, least, np.nan)


def status_of(
    n_clusters: int,
    strength: FloatArray,
    useful: Sequence[tuple[FloatArray, FloatArray]],
    sizes: IntArray,
    *,
    rule: str,
    given: bool,
    comparable: NDArray[np.bool_] | None = None,
) -> str:
    """Say what the grouping means.

    Parameters
    ----------
    n_clusters : int
    strength : (L, L) array
        Power of each pair.
    useful : sequence of pairs of (L,) arrays
        By how much ways of predicting beat a constant at each site, with standard errors; NaN where
        it is not known.
    sizes : (L,) int array
    rule : str
    given : bool
        K was given, so more than one group is no finding.
    comparable : (L, L) bool array, optional
        Pairs that could be compared; all unless given.

    Notes
    -----
    "no-signal": over all sites, no way of predicting beats a constant (one-sided 5%, split among
    the ways).
    "too-few-rows": one group, but fewer than half of the pairs had 80% power; or no pair could be
    compared at all.
    """
    n_sites = len(sizes)
    if n_sites == 1:
        return "one-site"
    pairs = np.triu_indices(n_sites, 1)
    if rule == "pairwise" and comparable is not None and not comparable[pairs].any():
        return "too-few-rows"
    if n_clusters > 1 and not given:
        # Also where no model beats a constant: sites may differ in their constants.
        return "groups"
    # one-sided 5%, split among the ways of predicting
    least = float(ndtri(1 - 0.05 / max(1, len(useful))))
    if not any(_beyond(sizes, value, error) > least for value, error in useful):
        return "no-signal"
    if n_clusters > 1:
        return "groups"
    if rule == "spectral":
        return "no-groups"
    return (
        "no-groups" if (strength[pairs] >= kernels.ENOUGH_POWER).mean() >= 0.5 else "too-few-rows"
    )


def are_told_apart(z: FloatArray, labels: IntArray) -> bool:
    """Whether tests separate two groups at least, by the rule's threshold for their sizes.

    Groups may also stand apart because nothing shows that they are alike.
    """
    groups = [np.flatnonzero(labels == g) for g in range(int(labels.max()) + 1)]
    for a, first in enumerate(groups):
        for second in groups[a + 1 :]:
            between = z[np.ix_(first, second)]
            known = between[np.isfinite(between)]
            limit = kernels.merge_threshold(min(len(first), len(second)))
            if known.size and known.mean() > limit:
                return True
    return False


def _beyond(sizes: IntArray, value: FloatArray, error: FloatArray) -> float:
    """Standardised mean over all rows of what is known."""
    known = np.isfinite(value) & np.isfinite(error)
    n = sizes[known].astype(float)
    spread = float(np.sqrt((n**2 * error[known] ** 2).sum()))
    return float((n * value[known]).sum() / spread) if spread > 0 else 0.0


def togetherness(labels: Sequence[IntArray], n_sites: int) -> FloatArray:
    """Share of groupings in which two sites fall together, (L, L)."""
    if not labels:
        return np.full((n_sites, n_sites), np.nan)
    return np.asarray(np.mean([found[:, None] == found[None, :] for found in labels], axis=0))


def shrunken(shift: FloatArray, variance: FloatArray) -> tuple[FloatArray, float]:
    """Shrink the sites' intercepts towards their common mean.

    Parameters
    ----------
    shift, variance : (L,) arrays
        Mean residual of each site under the average model, and its squared standard error; NaN
        where a site withheld it.

    Returns
    -------
    intercepts : (L,) array
        0 where nothing is known.
    spread : float
        tau, by the method of moments (DerSimonian and Laird 1986).
    """
    known = np.isfinite(shift) & (variance > 0)
    if known.sum() < 2:
        return np.zeros(len(shift)), 0.0
    m, v = shift[known], variance[known]
    w = 1 / v
    mean = (w * m).sum() / w.sum()
    excess = (w * (m - mean) ** 2).sum() - (len(m) - 1)
    # DerSimonian and Laird (1986): method of moments
    tau2 = max(0.0, excess / (w.sum() - (w**2).sum() / w.sum()))
    w = 1 / (v + tau2)
    mean = (w * m).sum() / w.sum()
    intercepts = np.zeros(len(shift))
    # shrunken towards the common mean by the share of noise
    intercepts[known] = mean + tau2 / (tau2 + v) * (m - mean)
    return intercepts, float(np.sqrt(tau2))


# ----------------------------------------------------------------------------------------- partners


NOT_COMPARABLE = (
    "no other site can be compared with it: too few rows where their predictors overlap, or one "
    "row dominates the losses"
)
N_REFERENCE = 300
"""Points on which models are compared where they do not travel."""


@dataclass(frozen=True, eq=False)
class Partners:
    """Sites whose models are in play, in name order.

    Attributes
    ----------
    sites : tuple of str
    replies : dict of str to Selected
    sizes : (L,) int array
    variance, own : (L,) arrays
        Mean loss of the best constant, and of the site's own method, cross-fitted.
    means : (L, p) array
    pooled : Pooled
    models : tuple of tuple of models
        By site, by view; empty where models do not travel.
    position : (L,) int array
        Place of each site among the owners of the models that were sent round.
    n_owners : int
    settings : Settings
    left_out : dict of str to str
        Sites without a group, each with the reason; the rounds add to it.
    refused : dict of str to str
        Candidates that a site left out, and why.
    """

    sites: tuple[str, ...]
    replies: dict[str, messages.Selected]
    sizes: IntArray
    variance: FloatArray
    own: FloatArray
    means: FloatArray
    pooled: Pooled
    models: tuple[tuple[dict[str, Any], ...], ...]
    position: IntArray
    n_owners: int
    settings: Settings
    left_out: dict[str, str]
    refused: dict[str, str]

    def tests(self, seen: Seen, margin: float) -> PairwiseTests:
        """Tests of all pairs of one view."""
        known = (seen.excess, seen.variance, seen.effective, self.sizes, self.variance)
        return kernels.pairwise_tests(*known, margin=margin, own_loss=self.own)

    def only(self, kept: Sequence[int]) -> Partners:
        """Those that can be placed; `position` tells where they were among all owners."""
        rows = list(kept)
        return dataclasses.replace(
            self,
            sites=tuple(self.sites[i] for i in rows),
            sizes=self.sizes[rows],
            variance=self.variance[rows],
            own=self.own[rows],
            means=self.means[rows],
            models=tuple(self.models[i] for i in rows),
            position=self.position[rows],
        )

    def spread(self, labels: IntArray) -> IntArray:
        """Labels (..., L) of these sites among all owners, -1 for the others."""
        # owners that are not placed have no group
        wide = np.full((*labels.shape[:-1], self.n_owners), -1, dtype=np.int64)
        wide[..., self.position] = labels
        return wide


def reference_points(rng: np.random.Generator, moments: SiteMoments) -> FloatArray:
    """Points from a normal distribution with the pooled moments, (N_REFERENCE, p).

    Raises
    ------
    QuorumError
        No site has enough rows.
    """
    sites = [s for s in moments.n if moments.n[s]]
    if not sites:
        raise QuorumError("no site has enough rows")
    n = np.array([moments.n[s] for s in sites], dtype=float)[:, None]
    means = np.stack([moments.means[s] for s in sites])
    spreads = np.stack([moments.spreads[s] for s in sites])
    with np.errstate(invalid="ignore"):
        known = np.isfinite(means)
        rows = np.maximum((n * known).sum(axis=0), 1)
        mean = (n * np.nan_to_num(means)).sum(axis=0) / rows
        # total variance: within sites and between their means
        between = np.where(known, (np.nan_to_num(means) - mean) ** 2, 0.0)
        variance = (n * (np.nan_to_num(spreads) + between)).sum(axis=0) / rows
    return np.asarray(mean + np.sqrt(variance) * rng.standard_normal((N_REFERENCE, means.shape[1])))


def seen_by(replies: dict[str, messages.Losses], sites: Sequence[str], view: int) -> Seen:
    """Matrices of one view over all owners; NaN in the columns of sites that did not answer."""
    n_sites = len(sites)
    parts = {}
    for name in ("excess", "variance", "effective", "raw"):
        matrix = np.full((n_sites, n_sites), np.nan)
        for j, site in enumerate(sites):
            if site in replies:
                matrix[:, j] = np.asarray(getattr(replies[site], name).value)[view]
        parts[name] = matrix
    return Seen(**parts)


def placeable(
    partners: Partners, replies: dict[str, messages.Losses], seen: Seen, rule: str
) -> list[int]:
    """Sites that can be placed: with an answer, and comparable with somebody.

    Where no pair at all can be compared, all sites stay, each alone.
    """
    answered = [i for i, site in enumerate(partners.sites) if site in replies]
    if len(answered) < 2:
        return answered
    if rule == "spectral":
        own = np.isfinite(np.diagonal(seen.raw))
        usable = np.isfinite(seen.raw) & own[:, None] & own[None, :]
    else:
        enough = np.nan_to_num(seen.effective) >= MIN_ROWS
        usable = enough & np.isfinite(seen.excess) & np.isfinite(seen.variance)
    # a pair needs both directions
    pairs = usable & usable.T
    met = [i for i in answered if any(pairs[i, j] for j in answered if j != i)]
    if not met:
        return answered
    for i in answered:
        if i not in met:
            partners.left_out[partners.sites[i]] = NOT_COMPARABLE
    return met


Members = dict[str, tuple[tuple[Any, ...], IntArray]]


def members_of(partners: Partners, labels: IntArray) -> Members:
    """Models of each site's group, with their rows."""
    groups = [np.flatnonzero(labels == label) for label in labels]
    return {
        site: (tuple(partners.models[g][0] for g in group), partners.sizes[group])
        for site, group in zip(partners.sites, groups, strict=True)
    }


def messages_of(
    partners: Partners,
    labels: IntArray,
    members: Members,
    held: Sequence[IntArray] = (),
    shifts: FloatArray | None = None,
) -> dict[str, messages.Groups]:
    """What each site is told of the groups, with the models of its own.

    Parameters
    ----------
    partners, labels, members
    held : sequence of (L,) int arrays
        Groups without the rows of each fold.
    shifts : (folds, L) array, optional
        Intercepts.
    """
    folds = np.stack(held) if held else np.empty((0, len(labels)), dtype=np.int64)
    common = {
        "labels": relayed(partners.spread(labels), Disclosure.AGGREGATE),
        "held_labels": relayed(partners.spread(folds), Disclosure.AGGREGATE),
    }
    return {
        site: messages.Groups(
            **common,
            shifts=relayed(np.empty(0) if shifts is None else shifts[:, i], Disclosure.AGGREGATE),
            members=relayed(members[site][0], Disclosure.MODEL),
            member_sizes=relayed(members[site][1], Disclosure.AGGREGATE),
        )
        for i, site in enumerate(partners.sites)
    }


def intercepts(
    replies: dict[str, messages.Losses], sites: Sequence[str], n_folds: int
) -> tuple[FloatArray, float]:
    """Shrunken intercepts (folds, L), and their spread."""
    shifts = np.zeros((n_folds, len(sites)))
    spreads = []
    for w in range(n_folds):
        mean = np.array([float(np.ravel(replies[x].shift.value[w])[0]) for x in sites])
        variance = np.array([float(np.ravel(replies[x].shift_error.value[w])[0]) for x in sites])
        shifts[w], spread = shrunken(mean, variance)
        spreads.append(spread)
    return shifts, float(np.sqrt(np.mean(np.square(spreads)))) if spreads else float("nan")


def by_held_out_loss(
    replies: Mapping[str, messages.CutLosses], partners: Partners, most: int
) -> tuple[int, FloatArray]:
    """Choose the number of groups by the loss of the groups' averages on held-out rows.

    Returns
    -------
    chosen : int
        The number with the smallest loss, where it beats one group by more than 1.645 of the
        difference's standard errors; else 1.
    losses : (most,) array
        Mean loss for 1, 2, ... groups; NaN where no site told it.
    """
    total, gain, spread, rows = (np.zeros(most) for _ in range(4))
    for i, site in enumerate(partners.sites):
        if site not in replies:
            continue
        reply, n = replies[site], float(partners.sizes[i])
        told = (reply.losses, reply.against_one, reply.against_one_error)
        parts = np.stack([part.value for part in told])
        known = np.isfinite(parts).all(axis=0)
        loss, against, error = np.where(known, parts, 0.0)
        total, gain, spread = total + loss * n, gain + against * n, spread + error * n**2
        rows += known * n
    losses = np.where(rows > 0, total / np.maximum(rows, 1), np.nan)
    if np.isnan(losses).all():
        return 1, losses
    # More than one group must be better by a one-sided test at 5%.
    best = int(np.nanargmin(losses))
    return (best + 1 if gain[best] > 1.645 * np.sqrt(spread[best]) else 1), losses


# ------------------------------------------------------------------------------------------ pooling


def refit(
    ctx: CoordinatorContext, partners: Partners, labels: IntArray, members: Members
) -> Generator[Ask, Replies, Members]:
    """Replace the models of each group by one refit, where every member sends what it needs."""
    s, sites = partners.settings, np.array(partners.sites, dtype=object)
    groups = {g: tuple(sites[labels == g]) for g in np.unique(labels)}
    best, needed = {}, {}
    for g, inside in groups.items():
        # the candidate with the smallest held-out loss over the sites of the group
        losses = np.stack([np.asarray(partners.replies[x].losses.value) for x in inside])
        total = (losses * partners.sizes[labels == g][:, None]).sum(axis=0)
        known = not np.isnan(total).all()
        first = partners.replies[inside[0]].chosen.value[0]
        best[g] = s.candidates[int(np.nanargmin(total)) if known else int(first)]
        plain = best[g] == "linear" and not s.levels and not s.standardize
        needed[g] = "moments" if plain else "rows"
    sizes = {x: {"n": int(n)} for x, n in zip(partners.sites, partners.sizes, strict=True)}
    for what, step in (("moments", "pool-moments"), ("rows", "pool-rows")):
        to = tuple(x for x, g in zip(partners.sites, labels, strict=True) if needed[g] == what)
        if not to:
            continue
        request = messages.PoolRequest(what=what, levels=s.levels)
        replies = ctx.require((yield Ask(step, request, to=to, known=sizes)), at_least=0)
        for g in [g for g in groups if needed[g] == what]:
            model = None
            if all(x in replies for x in groups[g]):
                model = _refitted(ctx, s, best[g], what, [replies[x] for x in groups[g]])
            if model is None:
                ctx.note(
                    f"Group {g} has no pooled refit, since not all of its sites sent what it "
                    "needs, or the refit failed: its models are averaged instead."
                )
                continue
            size = np.array([partners.sizes[labels == g].sum()], dtype=np.int64)
            members = {**members, **{x: ((model,), size) for x in groups[g]}}
    return members


def _refitted(
    ctx: CoordinatorContext, s: Settings, candidate: str, what: str, replies: list[Any]
) -> dict[str, Any] | None:
    """One refit; None where a site sent nothing of use, or the rows cannot be fitted."""
    if what == "moments":
        parts = [np.asarray(reply.products.value) for reply in replies]
        return _least_squares(parts) if all(part.size for part in parts) else None
    try:
        rows = np.concatenate([np.asarray(reply.rows.value) for reply in replies])
        x, y = rows[:, :-1], rows[:, -1]
        seed = int(ctx.rng.integers(2**31 - 1))
        made = build(candidate, s.task, min_records=1, seed=seed)
        made.fit(x, y.astype(np.int64) if s.levels else y)
        classes = range(len(s.levels)) if s.levels else None
        return estimators.encode(made, n_features=x.shape[1], classes=classes)
    except Exception:  # noqa: BLE001  whatever is wrong with the rows, there is another way
        return None


def _least_squares(products: list[FloatArray]) -> dict[str, Any]:
    """Fit from summed cross-products of (1, x, y), after centring, which keeps digits."""
    total = np.sum(products, axis=0)
    n, first = total[0, 0], total[0]
    # sums about the means: X'X less n times the products of the means
    centred = (total - np.outer(first, first) / n)[1:, 1:]
    scale = np.sqrt(np.maximum(np.diagonal(centred)[:-1], 0.0))
    scale = np.where(scale > 0, scale, 1.0)
    # columns of length 1, for a sound least squares
    inner = centred[:-1, :-1] / scale / scale[:, None]
    coef = np.linalg.lstsq(inner, centred[:-1, -1] / scale, rcond=None)[0] / scale
    intercept = (first[-1] - first[1:-1] @ coef) / n
    found = {"coef": coef[None, :], "intercept": np.array([intercept])}
    return {"form": "linear", **found, "link": "identity"}

"""What the coordinator makes of the sites' ranks and fits. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.federated_community_bayes import messages
from consilience.discriminant.federated_community_bayes.messages import Judged, Settings
from consilience.discriminant.kernels import communities as trees
from consilience.discriminant.kernels import multinomial
from consilience.exceptions import ProtocolError, QuorumError
from consilience.protocol.phases.secure_sums import ALL

_SINGULAR = 1e-12


# --------------------------------------------------------------------------- ranks


@dataclass(frozen=True, eq=False)
class PooledRanks:
    """Rank correlations over the sites.

    Attributes
    ----------
    correlations : (K, p, p) array
        ``2 sin(pi/6 rho)`` by class; zeros where no site told.
    told : (B, K) bool array
        Which site told which class, in the order of the counts.
    gaps : (p, p) bool array
        Pairs of columns that some site withheld and no other told, in some class that was told.
    """

    correlations: FloatArray
    told: NDArray[np.bool_]
    gaps: NDArray[np.bool_]


def pool_ranks(tables: Sequence[tuple[FloatArray, ...]], counts: IntArray, p: int) -> PooledRanks:
    """Average Spearman correlations by rows, cell by cell.

    Parameters
    ----------
    tables : sequence of B tuples of K arrays, (p, p) or empty
    counts : (B, K) int array
        Training rows by site and class.
    p : int
    """
    n_classes = counts.shape[1]
    total, weight = np.zeros((n_classes, p, p)), np.zeros((n_classes, p, p))
    told = np.zeros(counts.shape, dtype=bool)
    for b, mine in enumerate(tables):
        for k, table in enumerate(mine):
            if not table.size:
                continue
            known = ~np.isnan(table)
            told[b, k] = bool(known.any())
            total[k] += np.where(known, counts[b, k] * np.nan_to_num(table), 0.0)
            weight[k] += counts[b, k] * known
    # 0 where no site told: as uncorrelated.
    rho = np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)
    found = np.stack([trees.skeptic(np.clip(r, -1.0, 1.0)) for r in rho])
    spoken = np.asarray(told.any(axis=0))
    found[~spoken] = 0.0
    gaps = np.any((weight == 0) & spoken[:, None, None], axis=0)
    return PooledRanks(found, told, np.asarray(gaps))


# --------------------------------------------------------------------------- one-shot fits


@dataclass(frozen=True, eq=False)
class Combined:
    """Fit of one community over the sites.

    Attributes
    ----------
    phi : (m - 1, q + 1) array or None
        None where the sites' fits do not determine it.
    rows : (m,) array
        Training rows by class of the sites whose fits are in it.
    """

    phi: FloatArray | None
    rows: FloatArray


def combine(fits: Sequence[FloatArray], counts: IntArray, q: int, ridge: float) -> Combined:
    """Minimise the sum of the sites' losses, each replaced by its parabola at the site's own fit.

    Parameters
    ----------
    fits : sequence of B packed fits, empty where withheld
    counts : (B, m) int array
        Training rows by site, of the classes that have rows.
    q : int
        Columns of the community.
    ridge : float
        Penalty of the common fit, and of each site's own.

    Notes
    -----
    At its own minimum a site's loss has the gradient ``-ridge`` times its coefficients, so
    coefficients and curvature tell the parabola. Sites take the whole penalty: small ones overfit
    otherwise, and a parabola far from the common minimum says little there. A site with some of the
    classes only speaks of the odds between these: its contrasts are ``J Phi`` of the common ones.
    """
    m = counts.shape[1]
    common = multinomial.contrasts(m)
    size = messages.n_parameters(q, m)
    left, right = np.zeros((size, size)), np.zeros(size)
    used, joined = [], np.eye(m, dtype=bool)
    for b, values in enumerate(fits):
        if not values.size:
            continue
        present = np.flatnonzero(counts[b] > 0)
        own = messages.n_parameters(q, len(present))
        flat, curvature = messages.unpacked(values, own, own)
        # J: contrasts of the classes of the site from the common ones.
        back = np.linalg.pinv(multinomial.contrasts(len(present))) @ common[present]
        jacobian = np.kron(back, np.eye(q + 1))
        left += jacobian.T @ curvature @ jacobian
        right += jacobian.T @ slope_at_zero(flat, curvature, q, ridge)
        joined[np.ix_(present, present)] = True
        used.append(b)
    rows = counts[used].sum(axis=0).astype(float)
    # Every class must be compared with every other, over sites.
    reached = np.linalg.matrix_power(joined.astype(float), m) > 0
    if not used or not reached.all():
        return Combined(None, rows)
    return minimum_of(left, right, rows, q, ridge)


def slope_at_zero(phi: FloatArray, curvature: FloatArray, q: int, ridge: float) -> FloatArray:
    """Minus the slope, at coefficients of 0, of a site's parabola: its own fit and curvature."""
    pull = ridge * phi.reshape(-1, q + 1)
    pull[:, 0] = 0.0
    # H phi less the gradient, which is minus the pull of the penalty.
    return np.asarray(curvature @ phi + pull.ravel())


def minimum_of(
    left: FloatArray, right: FloatArray, rows: FloatArray, q: int, ridge: float
) -> Combined:
    """Minimum of a sum of parabolas, by their curvature and slope at 0, and the penalty."""
    m = len(rows)
    free = np.zeros((m - 1, q + 1))
    free[:, 1:] = ridge
    left = left + np.diag(free.ravel())
    # Of unit diagonal, so that the smallest eigenvalue has no units.
    scale = np.sqrt(np.maximum(np.diag(left), 0.0))
    scale = np.where(scale > 0, scale, 1.0)
    scaled = left / scale[:, None] / scale
    if np.linalg.eigvalsh(scaled)[0] < _SINGULAR:
        return Combined(None, rows)
    phi = (np.linalg.solve(scaled, right / scale) / scale).reshape(m - 1, q + 1)
    return Combined(np.asarray(phi), rows)


def towards_priors(found: Combined, priors: FloatArray) -> FloatArray:
    """Intercepts of a fit whose sites have other class frequencies than all sites together.

    A community's evidence is its log odds less those of the class frequencies behind its fit.
    """
    if found.phi is None:
        raise ProtocolError("a community without a fit has no evidence")
    own = found.rows / found.rows.sum()
    phi = found.phi.copy()
    phi[:, 0] += contrast_of(np.log(priors)) - contrast_of(np.log(own))
    return phi


def contrast_of(log_odds: FloatArray) -> FloatArray:
    """Free coordinates of m scores, constants aside."""
    return np.asarray(np.linalg.pinv(multinomial.contrasts(len(log_odds))) @ log_odds)


# --------------------------------------------------------------------------- Newton rounds


class Descent:
    """Newton's method for many communities at once, over sums that sites tell.

    Parameters
    ----------
    sizes : sequence of int
        Columns of each community.
    m : int
        Classes.
    ridge : float
    """

    def __init__(self, sizes: Sequence[int], m: int, ridge: float) -> None:
        self.m, self.ridge = m, ridge
        self.phi = [np.zeros((m - 1, q + 1)) for q in sizes]
        self.asked = list(self.phi)
        self.step: list[FloatArray | None] = [None] * len(sizes)
        self.loss = [np.inf] * len(sizes)
        self.gain = [np.inf] * len(sizes)
        self.halved = [0] * len(sizes)
        self.done = [False] * len(sizes)

    @property
    def active(self) -> tuple[int, ...]:
        """Communities that are not at their minimum yet."""
        return tuple(c for c, done in enumerate(self.done) if not done)

    def restart(self) -> None:
        """Forget losses: the sums are over other sites from here on."""
        self.loss = [np.inf] * len(self.phi)

    def hear(self, c: int, sums: Sequence[FloatArray], n: int) -> None:
        """Take the sums of the sites at the coefficients that were asked for."""
        size = self.phi[c].size
        heads, matrices = zip(*(messages.unpacked(v, size, 1 + size) for v in sums), strict=True)
        head = np.sum(heads, axis=0)
        plain = multinomial.Pieces(float(head[0]), head[1:], np.sum(matrices, axis=0))
        at = self.asked[c]
        found = multinomial.penalised(plain, at, self.ridge)
        step = self.step[c]
        # Sufficient decrease (Armijo), beside rounding.
        enough = self.loss[c] - 1e-4 * self.gain[c] * 0.5 ** self.halved[c]
        if step is not None and found.loss > enough + 1e-12 * abs(found.loss):
            if self.halved[c] >= 40:
                self.done[c] = True
                return
            self.halved[c] += 1
            self.asked[c] = self.phi[c] + 0.5 ** self.halved[c] * step
            return
        self.phi[c], self.loss[c], self.halved[c] = at, found.loss, 0
        new, self.gain[c] = multinomial.newton_step(found)
        self.step[c] = forward = np.asarray(new.reshape(at.shape))
        # The error that is left is of the order of the last step's square.
        if not self.gain[c] > 1e-18 * n:
            self.done[c] = True
            return
        self.asked[c] = at + forward


# --------------------------------------------------------------------------- one model


def joint_model(
    communities: Sequence[IntArray], phis: Sequence[FloatArray], priors: FloatArray, p: int
) -> FloatArray:
    """``sum_l log p(k | x_l) + (1 - L) log pi_k`` as one linear model: contrasts (m - 1, p + 1)."""
    found = np.zeros((len(priors) - 1, p + 1))
    for columns, phi in zip(communities, phis, strict=True):
        found[:, 0] += phi[:, 0]
        found[:, 1 + columns] += phi[:, 1:]
    # The prior counts once, not in every community.
    found[:, 0] += (1 - len(communities)) * contrast_of(np.log(priors))
    return found


# --------------------------------------------------------------------------- figures


def pooled_figures(
    replies: Mapping[str, Judged], weights: Mapping[str, int], n: int
) -> tuple[FloatArray, FloatArray]:
    """Means of figures over sites by rows, and their standard errors; NaN where nobody tells.

    Parameters
    ----------
    replies : mapping of str to Judged
    weights : mapping of str to int
    n : int
        Figures: those of each model.
    """
    total, square, weight = np.zeros((3, n))
    for site, reply in sorted(replies.items()):
        figures, errors = reply.losses.value, reply.errors.value
        # A figure is over the sites that tell it.
        w = np.where(np.isfinite(figures), float(weights[site]), 0.0)
        total += w * np.nan_to_num(figures)
        square += w**2 * np.nan_to_num(errors)
        weight += w
    safe = np.where(weight > 0, weight, 1.0)
    gap = np.where(weight > 0, 0.0, np.nan)
    return total / safe + gap, np.sqrt(np.maximum(square, 0.0)) / safe + gap


@dataclass(frozen=True, eq=False)
class Candidate:
    """A number of communities of which each has a fit.

    Attributes
    ----------
    communities : tuple of int arrays
    phis : tuple of arrays
        Coefficients by community, with the intercepts of common class frequencies.
    rows : (L,) array
        Training rows behind each community's fit.
    model : (m - 1, p + 1) array
    """

    communities: tuple[IntArray, ...]
    phis: tuple[FloatArray, ...]
    rows: FloatArray
    model: FloatArray

    @classmethod
    def of(
        cls,
        parts: Sequence[tuple[int, IntArray]],
        fitted: Sequence[Combined],
        priors: FloatArray,
        p: int,
    ) -> Candidate:
        """Put the fits of some communities together; `parts` are their places and columns."""
        communities = tuple(columns for _, columns in parts)
        phis = tuple(towards_priors(fitted[c], priors) for c, _ in parts)
        rows = np.array([fitted[c].rows.sum() for c, _ in parts])
        return cls(communities, phis, rows, joint_model(communities, phis, priors, p))


@dataclass(frozen=True, eq=False)
class Choice:
    """What choosing rows say of the candidates, and which one is kept.

    Attributes
    ----------
    loss, gain, gain_se : (a,) arrays
        Mean log loss on choosing rows, by how much it is below that of the first candidate, and the
        standard error of this; NaN where nobody told.
    errors : (a,) array
        Of `rows` rows of those sites that tell them, wrong predictions.
    rows : int
    index : int
        Of the candidate with the lowest loss; the first where none tells.
    """

    loss: FloatArray
    gain: FloatArray
    gain_se: FloatArray
    errors: FloatArray
    rows: int
    index: int

    @classmethod
    def of(cls, replies: Mapping[str, Judged], survey: Survey, n: int) -> Choice:
        """Read what sites told of `n` candidates."""
        gain, gain_se = pooled_figures(replies, survey.choosing, n)
        told, first = np.isfinite(gain).any(), gain[0]
        gain[0] = gain_se[0] = 0.0 if told else np.nan
        errors, rows = np.zeros(n), 0
        for site, reply in sorted(replies.items()):
            wrong, size = np.array([float(v) for v in reply.wrong.value]), survey.choosing[site]
            # Sites without choosing rows, and protected ones, tell no wrong predictions.
            if size and np.isfinite(wrong).all():
                errors, rows = errors + size * wrong, rows + size
        errors = errors if rows else np.full(n, np.nan)
        index = int(np.nanargmax(gain)) if told else 0
        return cls(first - gain, gain, gain_se, errors, rows, index)


# --------------------------------------------------------------------------- survey and tree


@dataclass(frozen=True, eq=False)
class Survey:
    """Rows by site.

    Attributes
    ----------
    settings : Settings
    sites : tuple of str
        Those with training rows.
    counts : dict of str to (K,) int array
        Training rows by level.
    choosing, test : dict of str to int
    classes : (m,) int array
        Levels with training rows somewhere.
    """

    settings: Settings
    sites: tuple[str, ...]
    counts: dict[str, IntArray]
    choosing: dict[str, int]
    test: dict[str, int]
    classes: IntArray

    @property
    def by_class(self) -> IntArray:
        """Training rows of all sites by level."""
        return np.asarray(np.sum([self.counts[site] for site in self.sites], axis=0))

    @property
    def told(self) -> dict[str, dict[str, int]]:
        """What a site's other replies are judged by: training rows, and classes that have some."""
        counts = self.counts.items()
        return {s: {"rows": int(n.sum()), "classes": int((n > 0).sum())} for s, n in counts}

    @property
    def total(self) -> int:
        """Training rows of all sites."""
        return int(self.by_class.sum())

    @property
    def priors(self) -> FloatArray:
        """Frequencies of the classes with rows."""
        return np.asarray(self.by_class[self.classes] / self.total)


def survey_of(s: Settings, offered: Mapping[str, messages.Offered], *, chooses: bool) -> Survey:
    """Read the sites' offers.

    Raises
    ------
    QuorumError
        Fewer than two classes have rows, or nobody can choose a number of communities.
    """
    counts, choosing, test = {}, {}, {}
    for site, reply in offered.items():
        counts[site] = np.asarray(reply.training.value, dtype=np.int64)
        choosing[site], test[site] = int(reply.choosing.value), int(reply.test.value)
    sites = tuple(site for site in sorted(counts) if counts[site].any())
    total = np.sum([counts[site] for site in sites], axis=0) if sites else np.zeros(0)
    classes = np.flatnonzero(total > 0)
    if len(classes) < 2:
        raise QuorumError(
            "fewer than two classes have enough training rows at any site: let larger sites take "
            "part, or hold out fewer rows"
        )
    if chooses and not any(choosing[site] for site in sites):
        raise QuorumError(
            "no site has enough rows to choose the number of communities: give n_communities, or "
            "let larger sites take part"
        )
    return Survey(s, sites, counts, choosing, test, classes)


@dataclass(frozen=True, eq=False)
class Tree:
    """Communities of all candidate numbers.

    Attributes
    ----------
    merges : (p - 1, 4) array
        As scipy has it.
    similarity : (p, p) array
    nodes : dict of int to tuple of int
        By number of communities: places in `communities`.
    communities : tuple of int arrays
        Each once, whatever cut it is in.
    """

    merges: FloatArray
    similarity: FloatArray
    nodes: dict[int, tuple[int, ...]]
    communities: tuple[IntArray, ...]

    def among(
        self, fitted: Sequence[Combined], wanted: Sequence[int], total: int
    ) -> dict[int, tuple[tuple[int, IntArray], ...]]:
        """Candidates of which every community has a fit: place and columns of each.

        Those of which some community rests on less than half of the training rows are taken only
        where there are no others.

        Raises
        ------
        QuorumError
            There is none.
        """
        complete = {
            n: tuple((c, self.communities[c]) for c in places)
            for n, places in self.nodes.items()
            if all(fitted[c].phi is not None for c in places)
        }
        broad = {
            n: parts
            for n, parts in complete.items()
            if all(fitted[c].rows.sum() >= total / 2 for c, _ in parts)
        }
        found = broad if set(broad) & set(wanted) else complete
        if not found:
            raise QuorumError(
                "of every number of communities some community has no fit that may leave a site: "
                "ask for more communities, lower C, or let larger sites take part"
            )
        return found


def tree_of(
    survey: Survey, pooled: PooledRanks, sites: Sequence[str], wanted: Sequence[int], linkage: Any
) -> Tree:
    """Join features by their rank correlations.

    Raises
    ------
    QuorumError
        No site told any.
    """
    p = pooled.correlations.shape[1]
    if not pooled.told.any() and any(1 < n < p for n in wanted):
        who = "not every site" if list(sites) == [ALL] else "no site"
        raise QuorumError(
            f"{who} has a class with twice as many training rows as columns, so its rank "
            "correlations may not leave: drop columns, let larger sites take part, or set "
            "n_communities to 1 or to the number of columns"
        )
    told = np.stack([survey.counts[site] for site in sites])
    weights = (told * pooled.told).sum(axis=0)[survey.classes]
    similar = trees.similarity(pooled.correlations[survey.classes], weights)
    merges = trees.linkage_tree(similar, linkage)
    nodes = {n: trees.cut_nodes(merges, n) for n in wanted}
    # In the order in which sites tell them, as far as they may: the base without communities, then
    # the other numbers from the smallest communities on.
    order = [*(n for n in nodes if n == 1), *sorted((n for n in nodes if n > 1), reverse=True)]
    listed = list(dict.fromkeys(node for n in order for node in nodes[n]))
    place = {node: i for i, node in enumerate(listed)}
    return Tree(
        merges,
        similar,
        {n: tuple(place[node] for node in cut) for n, cut in nodes.items()},
        tuple(trees.members(merges, node) for node in listed),
    )


# --------------------------------------------------------------------------- the end


def figures_of_test_rows(survey: Survey, concluded: Mapping[str, Judged], n: int) -> dict[str, Any]:
    """Figures on test rows: by site, and over the sites, each over those that tell it.

    Parameters
    ----------
    survey : Survey
    concluded : mapping of str to Judged
    n : int
        Rules.
    """
    told = {site: reply for site, reply in concluded.items() if survey.test[site]}
    loss, wrong = np.full((2, len(survey.sites), n), np.nan)
    for b, site in enumerate(survey.sites):
        if site in told:
            first, *gains = told[site].losses.value
            loss[b] = [first, *(first - g for g in gains)]
            wrong[b] = told[site].wrong.value
    held = np.array([survey.test[site] if site in told else 0 for site in survey.sites])
    known = np.isfinite(wrong).all(axis=1) & (held > 0)
    weight = np.where(np.isfinite(loss), held[:, None], 0.0)
    total = weight.sum(axis=0)
    summed = (weight * np.nan_to_num(loss)).sum(axis=0)
    figures, error = pooled_figures(told, survey.test, n)
    # The first figure is a loss; the others are gains on it.
    rest = np.arange(n) > 0
    return {
        "n_held": held,
        "errors": (wrong[known] * held[known, None]).sum(axis=0)
        if known.any()
        else loss[0] * np.nan,
        "error_rows": int(held[known].sum()),
        "log_loss": np.where(total > 0, summed / np.where(total > 0, total, 1.0), np.nan),
        "log_loss_se": np.where(rest, np.nan, error),
        "log_loss_gain": np.where(rest, -figures, np.nan),
        "log_loss_gain_se": np.where(rest, error, np.nan),
        "site_errors": wrong,
        "site_log_loss": loss,
    }


def remarks_of(
    survey: Survey,
    pooled: PooledRanks,
    tree: Tree,
    numbers: Sequence[int],
    made: Mapping[int, Candidate],
    choice: Choice,
) -> tuple[str, ...]:
    """What the reader should know of the way to the result."""
    levels, classes, found = survey.settings.levels, survey.classes, []
    masked = survey.sites == (ALL,)
    enough = "all" if masked else "enough"
    absent = [level for k, level in enumerate(levels) if k not in classes]
    if absent:
        found.append(f"No site has enough rows of {', '.join(absent)}: never predicted.")
    told = "not told by every" if masked else "told by no"
    silent = [levels[k] for k in classes if not pooled.told[:, k].any()]
    if silent and pooled.told.any():
        found.append(
            f"Ranks within {', '.join(silent)} were {told} site "
            "(fewer training rows than twice the columns): the communities rest on the other "
            "classes."
        )
    if pooled.gaps.any() and pooled.told.any():
        found.append(
            "Some pairs of columns have a small group of rows in common at "
            f"{'some' if masked else 'every'} site, or differ in few rows: they count as "
            "uncorrelated."
        )
    dropped = [n for n in tree.nodes if n not in numbers and n != 1]
    if dropped:
        some = ", ".join(str(n) for n in dropped)
        found.append(
            f"Not every community of {some} communities has a fit that may leave {enough} sites."
        )
    if 1 not in made:
        found.append(
            f"One community of all columns has no fit that may leave {enough} sites, so nothing "
            "tells what communities gain."
        )
    if len(numbers) > 1 and np.isnan(choice.gain).all():
        who, why = (
            ("Not every", "one row makes most of a figure")
            if masked
            else ("No", "fewer than twice the coefficients of all columns")
        )
        found.append(
            f"{who} site may tell how candidates do on its choosing rows ({why}), so the fewest "
            "communities are kept: raise choosing, or give n_communities."
        )
    few = made[numbers[choice.index]].rows < survey.total
    if few.any():
        n_few = int(few.sum())
        found.append(
            f"The fits of {n_few} of {len(few)} communities rest on some of the sites only; the "
            "others withheld theirs."
        )
    return tuple(found)

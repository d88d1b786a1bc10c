"""Mixtures of Markov chains: their likelihood, expectation-maximisation and starts.

Class k has initial probabilities ``u_k`` and transition probabilities ``T_k`` over S states. What a
sequence says of the classes is how often each *event* happens in it: the first state that was seen
(after g time points where nothing was), and steps from one seen state to the next (with g unseen
between them). What was not seen is integrated out exactly: a step over g unseen time points has the
probability ``(T^(g+1))[a, b]``, a beginning with g unseen ones ``(u T^g)[b]``, and an unseen end
says nothing. So a pass of EM costs (distinct sequences) x (different events in one) x K, whatever
the lengths, and K products of S x S matrices for each time point of the longest gap.

Probabilities of steps over gaps are sums of products of numbers between 0 and 1, without
cancellation; everything else is in logarithms.

Source: Duan, Xiong, Liu, Liao and Cai, *Federated One-Shot Ensemble Clustering*
(arXiv 2409.08396), sequence data; EM of mixtures of Markov chains as in Helske and Helske (2019),
*Mixture Hidden Markov Models for Sequence Data: The seqHMM Package in R*. Departures: gaps are
integrated out, each cell has a pseudo-count, distinct sequences are computed once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.kernels import mixtures
from consilience.clustering.kernels.mixtures import Arrays, ClassMixture, EMStep, Search
from consilience.clustering.kernels.sequences import Sequences, check_gaps, distinct_rows
from consilience.exceptions import DataError

PARTS = ("initial", "transition", "proportions")
"""Arrays of a mixture, by the names of its attributes."""
_SUM_TO_ONE = 1e-6
_BLOCK = 2048
_LEAST = 1.0


@dataclass(frozen=True, eq=False)
class Events:
    """What distinct sequences say of the classes: counts of events.

    Attributes
    ----------
    n_states : int
    gap : (F,) array of int64
        Unseen time points before the state of each event.
    source : (F,) array of int64
        State before it; -1 for the first state of a sequence.
    target : (F,) array of int64
        The state.
    indptr : (D + 1,) array of int64
        Where the events of each distinct sequence begin.
    events : (m,) array of int64
        Which event, ascending within a sequence.
    counts : (m,) array of float64
        How often.
    weights : (D,) array of float64
        How many sequences each one stands for.
    inverse : (n,) array of int64
        Which of them each of the given sequences is.
    """

    n_states: int
    gap: IntArray
    source: IntArray
    target: IntArray
    indptr: IntArray
    events: IntArray
    counts: FloatArray
    weights: FloatArray
    inverse: IntArray

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def n(self) -> float:
        """Sum of the weights."""
        return float(self.weights.sum())

    @property
    def n_distinct(self) -> int:
        """Distinct sequences with a state and a weight; at least 1."""
        return max(int(self.telling.sum()), 1)

    @property
    def telling(self) -> NDArray[np.bool_]:
        """Distinct sequences of positive weight in which a state was seen, (D,)."""
        return (np.diff(self.indptr) > 0) & (self.weights > 0)

    def totals(self) -> FloatArray:
        """Weighted count of every event, (F,)."""
        each = self.counts * np.repeat(self.weights, np.diff(self.indptr))
        return np.bincount(self.events, weights=each, minlength=len(self.gap)).astype(np.float64)


def events_of(sequences: Sequences) -> Events:
    """Count the events of sequences; those with the same counts become one.

    Parameters
    ----------
    sequences : Sequences

    Returns
    -------
    Events
        In an order that does not depend on that of the sequences.

    Raises
    ------
    DataError
        A gap is longer than `LONGEST_GAP` time points.
    """
    part, inverse = sequences.distinct()
    seen = np.flatnonzero(part.codes >= 0)
    owner = part.owners[seen]
    target = part.codes[seen].astype(np.int64)
    first = np.diff(owner, prepend=-1) > 0
    gap = np.diff(seen, prepend=0) - 1
    gap[first] = seen[first] - part.offsets[:-1][owner[first]]
    check_gaps(gap)
    source = np.where(first, -1, np.roll(target, 1))
    # The key sorts by gap, then source (first states at first), then target.
    size = part.n_states
    key = (gap * (size + 1) + source + 1) * size + target
    kinds, event = np.unique(key, return_inverse=True)
    pair, counts = np.unique(owner * max(len(kinds), 1) + event, return_counts=True)
    owner, event = np.divmod(pair, max(len(kinds), 1))
    lengths = np.bincount(owner, minlength=len(part))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows, again = distinct_rows(np.column_stack([event, counts]).ravel(), 2 * offsets)
    weights = np.ones(len(part)) if part.weights is None else part.weights
    indptr = np.concatenate([[0], np.cumsum(lengths[rows])])
    places = np.arange(indptr[-1]) + np.repeat(offsets[rows] - indptr[:-1], lengths[rows])
    return Events(
        n_states=size,
        gap=kinds // (size * (size + 1)),
        source=kinds // size % (size + 1) - 1,
        target=kinds % size,
        indptr=indptr,
        events=np.ascontiguousarray(event[places]),
        counts=counts[places].astype(np.float64),
        weights=np.bincount(again, weights=weights, minlength=len(rows)).astype(np.float64),
        inverse=again[inverse],
    )


@dataclass(frozen=True, eq=False)
class MarkovParameters(ClassMixture):
    """Parameters of a mixture of K Markov chains over S states.

    Attributes
    ----------
    initial : (K, S) array
        u: probabilities of the first state in each class.
    transition : (K, S, S) array
        T: probabilities of the next state (last axis) given the present one.
    proportions : (K,) array
        Shares of the classes.

    Raises
    ------
    DataError
        Shapes do not fit, or probabilities are negative or do not sum to 1.
    """

    initial: FloatArray
    transition: FloatArray
    proportions: FloatArray

    def __post_init__(self) -> None:
        for name in PARTS:
            array = np.ascontiguousarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, array)
            if not np.isfinite(array).all() or (array < 0).any():
                raise DataError(f"{name} chances of a Markov mixture must be finite and at least 0")
            if array.ndim == 0 or (abs(array.sum(axis=-1) - 1) > _SUM_TO_ONE).any():
                raise DataError(f"{name} chances of a Markov mixture must sum to 1")
        k, s = self.proportions.size, self.initial.shape[-1]
        shapes = (self.initial.shape, self.transition.shape, self.proportions.shape)
        if shapes != ((k, s), (k, s, s), (k,)):
            raise DataError("the arrays of a Markov mixture do not fit together")

    @property
    def n_states(self) -> int:
        """S."""
        return self.initial.shape[1]

    @property
    def sizes(self) -> tuple[int, ...]:
        """States, as local models of coded rows call them."""
        return (self.n_states,)

    @property
    def class_parameters(self) -> FloatArray:
        """Initial probabilities beside all transition probabilities, (K, S + S^2)."""
        return np.column_stack([self.initial, self.transition.reshape(self.n_classes, -1)])

    def take(self, classes: NDArray[Any]) -> MarkovParameters:
        """Some of the classes; their proportions are made to sum to 1."""
        share = self.proportions[classes]
        return MarkovParameters(
            self.initial[classes], self.transition[classes], share / share.sum()
        )

    def joint(self, events: Events) -> FloatArray:
        """Log probability of each distinct sequence together with each class, (D, K).

        A row does not depend on which other sequences there are.
        """
        from consilience.clustering.kernels.compiled import joint

        if self.n_states != events.n_states:
            raise DataError(
                f"the mixture has {self.n_states} states, the sequences have {events.n_states}"
            )
        out = np.empty((len(events), self.n_classes))
        with np.errstate(divide="ignore"):
            tables = np.log(event_chances(self, events)), np.log(self.proportions)
        joint(events.indptr, events.events, events.counts, *tables, out)
        return out

    def log_joint(self, sequences: Sequences | NDArray[Any]) -> FloatArray:
        """Log probability of each sequence together with each class, (n, K).

        Sequences may be a table of codes (n, t), -1 where nothing was seen.
        """
        if not isinstance(sequences, Sequences):
            sequences = Sequences.of(sequences, self.n_states)
        events = events_of(sequences)
        return self.joint(events)[events.inverse]

    def to_arrays(self) -> Arrays:
        """Arrays by name."""
        return {name: getattr(self, name) for name in PARTS}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> MarkovParameters:
        """Rebuild from `to_arrays`, checking every number.

        Raises
        ------
        DataError
            An array is missing or cannot be a parameter of a mixture of Markov chains.
        """
        for name in PARTS:
            if name not in arrays or np.asarray(arrays[name]).dtype.kind not in "fiu":
                raise DataError(f"a Markov mixture needs an array of numbers named {name!r}")
        return cls(*(np.asarray(arrays[name], dtype=np.float64) for name in PARTS))


def event_chances(parameters: MarkovParameters, events: Events) -> FloatArray:
    """Probability of every event in every class, (F, K)."""
    table = np.empty((len(events.gap), parameters.n_classes))
    power, begin = parameters.transition, parameters.initial
    levels = _levels(events)
    late = any(_filled(firsts) for _, firsts in levels[1:])
    for gap, (steps, firsts) in enumerate(levels):
        if gap:
            # T^(gap + 1) and u T^gap
            power = power @ parameters.transition
            begin = _step(begin, parameters.transition) if late else begin
        if _filled(firsts):
            table[firsts] = begin[:, events.target[firsts]].T
        if _filled(steps):
            table[steps] = power[:, events.source[steps], events.target[steps]].T
    return table


def _levels(events: Events) -> list[tuple[slice, slice]]:
    """Steps and first states of every length of a gap from 0 to the longest."""
    ends = np.searchsorted(events.gap, np.arange(int(events.gap.max(initial=0)) + 2))
    found = []
    for low, high in itertools.pairwise(ends.tolist()):
        split = low + int(np.count_nonzero(events.source[low:high] < 0))
        found.append((slice(split, high), slice(low, split)))
    return found


def _filled(part: slice) -> bool:
    """Whether there is anything in a part: most lengths below that of a long gap have no event."""
    return bool(part.stop > part.start)


def _step(before: FloatArray, transition: FloatArray) -> FloatArray:
    """Probabilities one time point later, (K, S)."""
    return np.asarray((before[:, None, :] @ transition)[:, 0, :])


# ---------------------------------------------------------------------- expectation-maximisation


def em_step(
    events: Events, *, pseudo_count: float
) -> Callable[[MarkovParameters], EMStep[MarkovParameters]]:
    """One iteration of EM on given sequences, as a function of the parameters.

    Parameters
    ----------
    events : Events
    pseudo_count : float
        Added to the expected count of every cell of u and T (none to the proportions); 0 or more.
        The objective is the log likelihood plus ``pseudo_count`` times the sum of the logarithms of
        all these probabilities.
    """
    from consilience.clustering.kernels.compiled import sweep

    data = events.indptr, events.events, events.counts, events.weights

    def step(parameters: MarkovParameters) -> EMStep[MarkovParameters]:
        chances = event_chances(parameters, events)
        expected, sizes = np.empty_like(chances), np.empty(parameters.n_classes)
        with np.errstate(divide="ignore"):
            tables = np.log(chances), np.log(parameters.proportions)
            logs = np.log(parameters.initial).sum() + np.log(parameters.transition).sum()
        likelihood = float(sweep(*data, *tables, expected, sizes))
        # Log density of the pseudo-counts, but for a constant; without any there is none.
        objective = likelihood + (float(pseudo_count * logs) if pseudo_count else 0.0)
        initial, transition = expected_counts(events, parameters, chances, expected)
        following = MarkovParameters(
            _normalised(initial + pseudo_count),
            _normalised(transition + pseudo_count),
            _normalised(sizes),
        )
        return EMStep(objective, likelihood, following)

    return step


def expected_counts(
    events: Events, parameters: MarkovParameters, chances: FloatArray, expected: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """First states (K, S) and steps (K, S, S) expected, those inside gaps included.

    Parameters
    ----------
    events : Events
    parameters : MarkovParameters
    chances, expected : (F, K) arrays
        Chance and expected count of every event in every class.

    Notes
    -----
    With ``M_g[a, b]`` the expected count of steps over g unseen points divided by their chance, the
    expected steps are ``T * sum_g sum_{j<=g} (T^j)' M_g (T^(g-j))'`` elementwise; the double sum
    runs down over g at the cost of one pass. With ``m_g[b]`` the same of first states, those at the
    first time point are ``u * h_0`` where ``h_j = m_j + T h_(j+1)``, and the steps before the first
    seen state ``T * sum_j (u T^j)' h_(j+1)``.
    """
    t, n_classes, size = parameters.transition, parameters.n_classes, parameters.n_states
    initial, transition = np.zeros((n_classes, size)), np.zeros((n_classes, size, size))
    levels = _levels(events)
    steps, firsts = levels[0]
    initial[:, events.target[firsts]] = expected[firsts].T
    transition[:, events.source[steps], events.target[steps]] = expected[steps].T
    if len(levels) == 1:
        return initial, transition
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(expected > 0, expected / chances, 0.0)
    back = t.transpose(0, 2, 1)
    sums, total = np.zeros_like(t), np.zeros_like(t)
    late = any(_filled(firsts) for _, firsts in levels[1:])
    later = [np.zeros((n_classes, size))]
    for steps, firsts in levels[:0:-1]:
        # sum over g of M_g (T^(g-j))', and of (T^j)' before it
        sums = sums @ back
        if _filled(steps):
            sums[:, events.source[steps], events.target[steps]] += ratio[steps].T
        total = sums + back @ total
        if late:
            # h_j = m_j + T h_(j+1)
            first = np.zeros((n_classes, size))
            first[:, events.target[firsts]] = ratio[firsts].T
            later.append(first + (t @ later[-1][:, :, None])[:, :, 0])
    # What is left of the sum at gap 0, whose own events are counted above.
    total = sums @ back + back @ total
    # u * h_0, of which m_0 is counted above
    initial += parameters.initial * (t @ later[-1][:, :, None])[:, :, 0]
    begin = parameters.initial
    # sum over j of (u T^j)' h_(j+1)
    for ahead in later[:0:-1]:
        total += begin[:, :, None] * ahead[:, None, :]
        begin = _step(begin, t)
    return initial, transition + t * total


def _normalised(counts: FloatArray) -> FloatArray:
    """Counts as shares along the last axis; equal ones where nothing was counted."""
    total = counts.sum(axis=-1, keepdims=True)
    even = 1.0 / counts.shape[-1]
    with np.errstate(invalid="ignore"):
        return np.where(total > 0, counts / np.where(total > 0, total, 1.0), even)


# ---------------------------------------------------------------------- starts


def random_start(
    events: Events, n_classes: int, rng: np.random.Generator, *, pseudo_count: float = 0.1
) -> MarkovParameters:
    """Each class from the counts of some twenty random sequences, with equal shares.

    Events over gaps are left out. Symmetric random responsibilities, the usual start, leave all
    classes nearly equal.
    """
    drawn = mixtures.draw_members(np.where(events.telling, events.weights, 0.0), n_classes, rng)
    size = events.n_states
    initial, transition = np.zeros((n_classes, size)), np.zeros((n_classes, size, size))
    for k, i in ((k, i) for k, members in enumerate(drawn) for i in members):
        inside = slice(events.indptr[i], events.indptr[i + 1])
        event, counts = events.events[inside], events.counts[inside]
        first = (events.gap[event] == 0) & (events.source[event] < 0)
        step = (events.gap[event] == 0) & (events.source[event] >= 0)
        initial[k, events.target[event[first]]] += counts[first]
        transition[k, events.source[event[step]], events.target[event[step]]] += counts[step]
    # A start with a probability of 0 would keep it for ever.
    floor = max(pseudo_count, mixtures.START_COUNT)
    return MarkovParameters(
        _normalised(initial + floor),
        _normalised(transition + floor),
        np.full(n_classes, 1.0 / n_classes),
    )


def fit_markov_mixture(
    events: Events,
    n_classes: int,
    *,
    seed: int,
    **search: Any,
) -> Search[MarkovParameters]:
    """Fit a mixture of Markov chains by EM from many starts.

    Parameters
    ----------
    events : Events
    n_classes : int
        K.
    seed : int
        Every start has a stream of its own: more starts include those of fewer.
    n_init, **search
        See `best_of_starts`; with one class there is one start.
    pseudo_count : float
        See `em_step`.

    Returns
    -------
    Search
        Classes of ``best.parameters`` by falling share.

    Raises
    ------
    ParameterError
        A setting is out of its range.
    DataError
        No state was seen in a sequence of positive weight.
    """
    if not events.telling.any():
        raise DataError("no state was seen in any sequence of positive weight")
    kernel = em_step, random_start, "markov mixture"
    return mixtures.fit_mixture(events, n_classes, *kernel, seed=seed, **search)


def parameter_count(events: Events, n_classes: int) -> int:
    """Free parameters that the sequences can tell of.

    ``K - 1 + K (S - 1) + K S' (S - 1)``, where S counts the states that occur and S' those which
    are left at least once: a state of the alphabet that does not occur changes nothing.
    """
    used = events.totals() > 0
    states = len(np.unique(events.target[used]))
    left = len(np.unique(events.source[used & (events.source >= 0)]))
    return n_classes - 1 + n_classes * max(states - 1, 0) * (1 + left)


# ---------------------------------------------------------------------- standard errors


class MarkovErrors(NamedTuple):
    """Standard errors, NaN throughout where the sequences do not tell the parameters apart.

    Attributes
    ----------
    proportions : (K,) array
    initial : (K, S) array
    transition : (K, S, S) array
        NaN, as in `initial`, for a chance that rests on less than one expected count: it is at the
        edge, and taken as known for the others.
    """

    proportions: FloatArray
    initial: FloatArray
    transition: FloatArray


def markov_errors(parameters: MarkovParameters, events: Events) -> MarkovErrors:
    """Standard errors of shares and probabilities at the fit.

    Parameters
    ----------
    parameters : MarkovParameters
        Fitted to these sequences.
    events : Events

    Notes
    -----
    The empirical information is the weighted sum of the outer products of the sequences' scores, in
    logits of shares, first states and steps; the delta method takes the inverse back to
    probabilities. Steps inside gaps enter by their expectation given what was seen on both sides.
    Source: McLachlan and Peel, *Finite Mixture Models*, 2000, chapter 2.

    The model is taken to be right, and pseudo-counts to be few against the counts. The information
    is that of n sequences: with fewer of them than free probabilities there are no errors. Memory
    grows with the square of K (S + S^2).
    """
    k, s = parameters.n_classes, parameters.n_states
    inside = expectations(parameters, events)
    width = s + s * s
    joint = parameters.joint(events)
    posterior = np.exp(mixtures.log_shares(joint, parameters.proportions)[0])
    information = np.zeros((k + k * width,) * 2)
    counts = np.zeros((k, width))
    for begin in range(0, len(events), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        weight, share = events.weights[part], posterior[part]
        lengths = np.diff(events.indptr[begin : begin + _BLOCK + 1])
        at = slice(events.indptr[begin], events.indptr[begin] + lengths.sum())
        table = np.zeros((len(weight), len(events.gap)))
        table[np.repeat(np.arange(len(weight)), lengths), events.events[at]] = events.counts[at]
        # Derivatives of each sequence's log density by all logits.
        scores = [share - parameters.proportions]
        for c in range(k):
            expected = share[:, c, None] * (table @ inside[:, c])
            counts[c] += weight @ expected
            first, steps = expected[:, :s], expected[:, s:].reshape(-1, s, s)
            # by the logit of a probability p: counts - total * p
            apart = steps - steps.sum(axis=2, keepdims=True) * parameters.transition[c]
            scores.append(first - first.sum(axis=1, keepdims=True) * parameters.initial[c])
            scores.append(apart.reshape(len(weight), -1))
        each = np.concatenate(scores, axis=1)
        # McLachlan and Peel 2000, chapter 2: empirical information
        information += each.T @ (weight[:, None] * each)
    told = counts >= _LEAST
    chances = parameters.class_parameters.reshape(-1, s)
    # Logits to find: not that of the first share, nor of the largest told probability of a row.
    rows = told.reshape(-1, s).copy()
    rows[np.arange(len(rows)), np.where(rows, chances, -1.0).argmax(axis=1)] = False
    free = np.concatenate([np.arange(k) > 0, rows.ravel()])
    jacobian = mixtures.logit_jacobian([parameters.proportions, *chances])
    errors = mixtures.probability_errors(information, jacobian, free)
    cells = np.where(told, errors[k:].reshape(k, width), np.nan)
    return MarkovErrors(errors[:k], cells[:, :s], cells[:, s:].reshape(k, s, s))


def expectations(parameters: MarkovParameters, events: Events) -> FloatArray:
    """First states and steps expected in each event given the class, (F, K, S + S^2).

    Notes
    -----
    Of a step from a to b over g unseen points ``E[x, y] = T[x, y] sum_j (T^j)[a, x] (T^(g-j))[y, b]
    / (T^(g+1))[a, b]``; of a first state b after g unseen points the first one has the
    probabilities ``u[x] (T^g)[x, b]``, and the steps ``sum_j (u T^j)[x] T[x, y] (T^(g-1-j))[y,
    b]``, divided by ``(u T^g)[b]``.
    """
    t, u = parameters.transition, parameters.initial
    k, s = u.shape
    longest = int(events.gap.max(initial=0))
    powers = [np.broadcast_to(np.eye(s), t.shape)]
    for _ in range(longest + 1):
        powers.append(powers[-1] @ t)
    begins = [(u[:, None, :] @ power)[:, 0, :] for power in powers]
    found = np.zeros((len(events.gap), k, s + s * s))
    for f, (gap, a, b) in enumerate(zip(events.gap, events.source, events.target, strict=True)):
        steps = np.zeros((k, s, s))
        if a >= 0:
            # sum over j of (T^j)[a, x] (T^(g-j))[y, b]
            for j in range(gap + 1):
                steps += powers[j][:, a, :, None] * powers[gap - j][:, None, :, b]
            total = powers[gap + 1][:, a, b]
        else:
            # sum over j of (u T^j)[x] (T^(g-1-j))[y, b]
            for j in range(gap):
                steps += begins[j][:, :, None] * powers[gap - 1 - j][:, None, :, b]
            total = begins[gap][:, b]
            found[f, :, :s] = u * powers[gap][:, :, b]
        found[f, :, s:] = (t * steps).reshape(k, -1)
        found[f] = np.divide(
            found[f], total[:, None], out=np.zeros((k, s + s * s)), where=total[:, None] > 0
        )
    return found

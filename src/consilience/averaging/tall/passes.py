"""Passes over the splits of one table: the first look, and the rounds of reference averaging.

The first look gives moments, the rows that are held out, and rows for reference. Each split is
read once by a worker; what comes back is small. Draws depend on the seed and on the place of the
split, never on who reads it.

A *pass* of a round goes once over the rows of all splits, with every penalty of the grid. Workers
return predictions, not models: the models of a round follow from the average before it, so the
chosen round's models are fitted once, in a last pass.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import thread_time
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from consilience.arrays import FloatArray, IntArray
from consilience.averaging.estimators.conventions import Rows as Table
from consilience.averaging.estimators.proximal_fit import Learner, Start
from consilience.averaging.tall.tables import (
    HeldTable,
    ParquetTable,
    Part,
    Rows,
    even_sizes,
    with_levels,
)
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.parallel import Workers, one_thread
from consilience.numerics.random import stream
from consilience.numerics.reference_average import (
    MOST_COLUMNS,
    SCHEDULES,
    ReferenceFacts,
    averaged,
    moved,
    normal_reference,
    pool_moments,
    reference_facts,
    rho_of,
    scale_of,
)
from consilience.parameters import LEFT_OUT, allows, number, one_of, whole

MOST_HELD_OUT = 20_000
"""Held-out rows in all: enough to tell rounds apart, and few enough to be predicted by everyone."""
_HELD_BYTES = 2**28
"""Bound on the predictions for held-out rows that are in memory at a time."""
_ROWS_FOR_RANK = 4
"""Rows for each column in the splits that tell the rank which reference rows need."""


@dataclass(frozen=True, eq=False)
class Settings:
    """What the user has set; see the estimators."""

    estimator: Any
    task: Literal["regression", "classification"]
    penalties: tuple[float, ...]
    reference: Any
    convention: str
    guard: bool
    schedule: str = allows(one_of(*SCHEDULES))
    rho: float = allows(number(above=0))
    exponent: float = allows(number(0, below=1))
    n_splits: int = allows(whole(1))
    max_rounds: int = allows(whole(0))
    patience: int = allows(whole(1))
    n_reference: int | None = allows(whole(1) | LEFT_OUT)
    holdout: float = allows(number(above=0, below=1))


class _OfPart:
    """What goes to a worker with a split: with rows of its own straight, not by a scheduler."""

    part: Part

    def __sizeof__(self) -> int:
        return sys.getsizeof(self.part)


# --- First look at every split: its moments, the rows that are held out, rows for reference.


@dataclass(frozen=True)
class Look(_OfPart):
    """What one split is asked for."""

    part: Part
    place: int
    n_reference: int
    held: IntArray
    moments: bool
    classes: bool


@dataclass(frozen=True, eq=False)
class Seen:
    """What one split shows."""

    mass: float
    mean: FloatArray
    products: FloatArray | None
    square: float
    reference: Table
    held_x: Table
    held_y: NDArray[Any]
    held_weight: FloatArray
    levels: NDArray[Any]
    digest: bytes


@dataclass(frozen=True, eq=False)
class Survey:
    """What is known of a table before the rounds.

    Attributes
    ----------
    parts : list of Part
        The splits; give positions of `levels` where the target is a class.
    rows, sizes : (B,) arrays
        Rows of each split, and the sums of their weights: the same without weights.
    levels : (q,) array, or empty
    reference : (m, p) array or sparse matrix
    facts : ReferenceFacts
    rho_scale : float
    held : list of (h_b,) arrays
        Places of the rows that are held out, within each split.
    held_x, held_y, held_weight : (H, p), (H,) and (H,) arrays
        In the order of the splits; `held_x` is sparse where the table is.
    digest : str
        Of the rows of all splits, in their order.
    """

    parts: list[Part]
    rows: FloatArray
    sizes: FloatArray
    levels: NDArray[Any]
    reference: Table
    facts: ReferenceFacts
    rho_scale: float
    held: list[IntArray]
    held_x: Table
    held_y: FloatArray
    held_weight: FloatArray
    digest: str

    @property
    def held_masses(self) -> FloatArray:
        """Sums of the weights that are held out of each split, (B,)."""
        ends = np.cumsum([0, *map(len, self.held)])
        return np.array([self.held_weight[a:b].sum() for a, b in pairwise(ends.tolist())])


def held_out(
    sizes: Sequence[int], share: float, most: int, n_values: int, seed: int
) -> list[IntArray]:
    """Draw the rows of each split that are held out.

    Parameters
    ----------
    sizes : sequence of int
    share : float
        Of each split.
    most : int
        Rows in all.
    n_values : int
        Predictions for each held-out row that are in memory at a time, which bound them too.
    seed : int
    """
    most = min(most, max(1000, _HELD_BYTES // (8 * max(n_values, 1))))
    # one share for all splits, so that they weigh alike
    share = min(share, most / sum(sizes))
    found = []
    for b, size in enumerate(sizes):
        n = int(share * size) if share * size < size - 1 else max(size - 1, 0)
        drawn = stream(seed, "holdout", b).choice(size, n, replace=False)
        found.append(np.sort(drawn).astype(np.int64))
    return found


def look(task: Look, seed: int) -> Seen:
    """Read one split."""
    with one_thread():
        x, y, weight = task.part.read()
        n = x.shape[0]
        mean, products, square = _moments(x, weight, task.moments)
        # By the place of the split: whoever reads it draws the same rows.
        drawn = stream(seed, "reference", task.place).choice(
            n, min(task.n_reference, n), replace=False
        )
        digest = hashlib.sha256(repr(x.shape).encode())
        if sparse.issparse(x):
            for values in (x.indptr, x.indices, x.data):
                digest.update(np.ascontiguousarray(values).tobytes())
        else:
            digest.update(_sums_in_order(x).tobytes())
        digest.update(y.tobytes() if y.dtype != object else "\0".join(map(str, y)).encode())
        if weight is not None:
            digest.update(weight.tobytes())
        return Seen(
            mass=float(n) if weight is None else float(weight.sum()),
            mean=mean,
            products=products,
            square=square,
            reference=x[np.sort(drawn)],
            held_x=x[task.held],
            held_y=y[task.held],
            held_weight=np.ones(len(task.held)) if weight is None else weight[task.held],
            levels=np.unique(y) if task.classes else y[:0],
            digest=digest.digest(),
        )


def _moments(
    x: Table, weight: FloatArray | None, wanted: bool
) -> tuple[FloatArray, FloatArray | None, float]:
    """Means, sums of products of deviations where they are wanted, and the sum of squares."""
    if sparse.issparse(x):
        w = np.ones(x.shape[0]) if weight is None else weight
        scaled = x.multiply(np.sqrt(w)[:, None]).tocsr()
        mean = np.asarray(x.T @ w) / w.sum()
        products = None
        if wanted:
            products = (scaled.T @ scaled).toarray() - w.sum() * np.outer(mean, mean)
        return mean, products, float(scaled.data @ scaled.data)
    if weight is None:
        mean, square = x.mean(axis=0), float(np.einsum("ij,ij->", x, x))
    else:
        mean = np.average(x, axis=0, weights=weight)
        square = float(weight @ np.einsum("ij,ij->i", x, x))
    products = None
    if wanted:
        away = x - mean
        products = (away if weight is None else away * weight[:, None]).T @ away
    return mean, products, square


def _under_one_another(parts: list[Table]) -> Table:
    """Rows of all splits."""
    together: Table = sparse.vstack(parts, format="csr") if sparse.issparse(parts[0]) else None
    return np.concatenate(parts) if together is None else together


def _sums_in_order(x: FloatArray) -> NDArray[np.uint64]:
    """Sums of each column's bits, modulo 2^64, by a weight for each place: another order shows.

    Weights are odd, so that no single change goes unseen; whole numbers are the same on all
    machines. A cryptographic hash of the bytes takes twelve times as long.
    """
    places = stream(0, "places").integers(2**63, size=len(x), dtype=np.uint64)
    bits = np.ascontiguousarray(x).view(np.uint64)
    return np.asarray(np.einsum("i,ij->j", 2 * places + 1, bits), dtype=np.uint64)


def survey(
    workers: Workers,
    table: HeldTable | ParquetTable,
    settings: Settings,
    *,
    n_splits: int,
    levels: NDArray[Any] | None,
    seed: int,
    done: Callable[[int], None],
) -> Survey:
    """Read every split once and make the reference rows.

    Parameters
    ----------
    levels : (q,) array or None
        Known levels; the parts give positions then.
    done : callable
        Progress.

    Raises
    ------
    ParameterError
        Reference rows that do not fit.
    DataError
        A target with a single class.
    """
    sizes, p = even_sizes(table.n_rows, n_splits), table.n_columns
    classes = settings.task == "classification"
    tracks = max(len(settings.penalties), 1)
    # Rows are held out where a trial has something to settle.
    tried = settings.guard or tracks > 1
    n_outputs = 2 if classes and levels is None else len(levels) if levels is not None else 1
    values = tracks * n_splits * n_outputs
    held = held_out(sizes, settings.holdout * tried, MOST_HELD_OUT, values, seed)
    reference: Any = settings.reference
    drawn = isinstance(reference, str)
    if drawn and reference not in ("rows", "moments"):
        raise ParameterError.of("reference", "'rows', 'moments' or an array", reference)
    # A twentieth of a split's rows, so that they cost little; from 5 to 20 for each column.
    m = settings.n_reference or int(min(20 * p, max(5 * p, table.n_rows / n_splits / 20)))
    shares = np.zeros(n_splits, dtype=int)
    if drawn and reference == "rows":
        ends = np.cumsum([0, *sizes]) * m / sum(sizes)
        shares = np.diff(np.floor(ends + 1e-9)).astype(int)
    told = range(n_splits)
    if not drawn or reference == "rows":
        # Second moments only of splits enough to tell which columns go together.
        enough = np.cumsum(sizes) >= _ROWS_FOR_RANK * p
        n_told = max(int(np.argmax(enough)) + 1 if enough.any() else n_splits, 3)
        spread = np.linspace(0, n_splits - 1, min(n_told, n_splits)).astype(int)
        told = spread.tolist() if p <= MOST_COLUMNS else []
    parts, unknown = table.parts(n_splits), classes and levels is None
    looks = [
        Look(part, b, int(shares[b]), held[b], b in told, unknown) for b, part in enumerate(parts)
    ]
    seen = workers.map(look, looks, seed, done=done)
    masses = [s.mass for s in seen]
    if not all(masses):
        raise DataError("a split has rows of weight 0 only: take fewer splits, or leave them out")
    held_y: NDArray[Any] = np.concatenate([s.held_y for s in seen])
    if unknown:
        levels = np.unique(np.concatenate([s.levels for s in seen]))
        if len(levels) < 2:
            raise DataError("the target holds one class only: give rows of at least two classes")
        parts, held_y = with_levels(parts, levels), np.searchsorted(levels, held_y)
    rows, second = _reference_rows(seen, masses, reference, m, seed)
    return Survey(
        parts=parts,
        rows=np.asarray(sizes, dtype=float),
        sizes=np.asarray(masses, dtype=float),
        levels=np.zeros(0) if levels is None else levels,
        reference=rows,
        facts=reference_facts(rows, second),
        rho_scale=scale_of(sum(s.square for s in seen) / sum(masses), rows),
        held=held,
        held_x=_under_one_another([s.held_x for s in seen]),
        held_y=np.asarray(held_y, dtype=float),
        held_weight=np.concatenate([s.held_weight for s in seen]),
        digest=hashlib.sha256(b"".join(s.digest for s in seen)).hexdigest(),
    )


def _reference_rows(
    seen: list[Seen], sizes: Sequence[float], reference: Any, m: int, seed: int
) -> tuple[Table, FloatArray | None]:
    """Reference rows and second moments of the data, where they are known."""
    second = mean = covariance = None
    told = [(n, s) for n, s in zip(sizes, seen, strict=True) if s.products is not None]
    if told:
        mean, covariance = pool_moments(
            np.array([n for n, _ in told], dtype=float),
            [s.mean for _, s in told],
            [s.products for _, s in told],
        )
        # E xx' = S + mean mean': the directions in which the data vary
        second = covariance + np.outer(mean, mean)
    if isinstance(reference, str):
        if reference == "rows":
            return _under_one_another([s.reference for s in seen]), second
        if sparse.issparse(seen[0].reference):
            raise ParameterError(
                "reference = 'moments' makes rows without zeros: take 'rows' for a sparse table"
            )
        if mean is None or covariance is None:
            raise ParameterError("reference = 'moments' needs the second moments of the splits")
        return normal_reference(mean, covariance, m, stream(seed, "reference")), second
    rows, n_columns = reference, len(seen[0].mean)
    if rows.ndim != 2 or rows.shape[1] != n_columns or not rows.shape[0]:
        raise ParameterError(
            f"reference rows of shape {rows.shape} were given: "
            f"they need {n_columns} columns, those of X in its order, and at least one row"
        )
    if not np.isfinite(rows.data if sparse.issparse(rows) else rows).all():
        raise ParameterError("reference rows hold missing or infinite values: leave those rows out")
    return rows, second


# --- The rounds of reference averaging over the splits of one table.


@dataclass(frozen=True, eq=False)
class Common:
    """What every task of a trajectory needs: sent once where the backend can.

    Attributes
    ----------
    learners : tuple of Learner
        One for each penalty; they hold the reference rows, (m, p).
    n_reference : int
    held_x : (H, p) array
        Rows to predict besides the reference rows.
    """

    learners: tuple[Learner, ...]
    n_reference: int
    held_x: Table

    def __sizeof__(self) -> int:
        # Asked by a backend that sends large arguments once and keeps small ones in each task.
        return 8 * (self.n_reference + self.held_x.shape[0]) * self.held_x.shape[1] + 2000


@dataclass(frozen=True, eq=False)
class Task(_OfPart):
    """One split's part of a pass.

    Attributes
    ----------
    part : Part
    left_out : (h,) array
        Places of rows that are not fitted.
    tracks : tuple of int
        Penalties that are fitted.
    rho : float
        0 in round 0.
    target : (g, m, q) array or None
        Where the task has a target of its own.
    starts : tuple of Start or None
        For each of the tracks.
    keep : bool
        Whether the models come back.
    """

    part: Part
    left_out: IntArray
    tracks: tuple[int, ...]
    rho: float
    target: FloatArray | None
    starts: tuple[Start | None, ...]
    keep: bool = False


@dataclass(frozen=True, eq=False)
class Done:
    """What comes back: predictions (g, m, q) and (g, H, q), starts, CPU seconds, models."""

    at_reference: FloatArray
    at_held: FloatArray
    starts: tuple[Start | None, ...]
    seconds: float
    models: tuple[Any, ...] = ()


def rows_of(part: Part, left_out: IntArray) -> Rows:
    """Read a split without the rows that are left out."""
    x, y, weight = part.read()
    if len(left_out):
        kept = np.ones(x.shape[0], dtype=bool)
        kept[left_out] = False
        x, y, weight = x[kept], y[kept], None if weight is None else weight[kept]
    return x, np.asarray(y, dtype=float), weight


def refit(task: Task, common: Common, target: FloatArray) -> Done:
    """Fit one split with every penalty and predict; runs in a worker."""
    with one_thread():
        x, y, weight = rows_of(task.part, task.left_out)
        # A task without a target of its own aims at the common average.
        own = task.target if task.target is not None else target
        near, far, starts, models = [], [], [], []
        seconds = 0.0
        for i, track in enumerate(task.tracks):
            learner = common.learners[track]
            begin = thread_time()
            fitted = learner.fit(
                x,
                y,
                weight=weight,
                target=own[track] if task.rho else None,
                rho=task.rho,
                start=task.starts[i],
            )
            seconds += thread_time() - begin
            near.append(learner.at_reference(fitted))
            if common.held_x.shape[0]:
                far.append(learner.predict(fitted, common.held_x))
            else:
                far.append(np.zeros((0, near[-1].shape[1])))
            starts.append(learner.start_of(fitted))
            if task.keep:
                models.append(fitted)
        return Done(np.stack(near), np.stack(far), tuple(starts), seconds, tuple(models))


def probe(of: tuple[Task, int], common: Common, seed: int) -> tuple[float, float]:
    """Stability of the learner on one split, NaN for one of a single class; runs in a worker."""
    task, place = of
    with one_thread():
        x, y, weight = rows_of(task.part, task.left_out)
        learner = common.learners[task.tracks[0]]
        if learner.task == "classification" and len(np.unique(y)) < 2:
            return np.nan, np.nan
        return learner.probe(x, y, weight=weight, rng=stream(seed, "probe", place))


# --------------------------------------------------------------------------- one trajectory


@dataclass
class State:
    """Where a trajectory is after a round; everything in it is an array or a number.

    Attributes
    ----------
    round : int
        -1 before round 0.
    average : (g, m, q) array
    previous : (g, m, q) array
        The average that this round's models were fitted to.
    predictions, held : (g, B, m, q) and (g, B, H, q) arrays
        The latest ones of each split.
    starts : list, by track, of lists, by split, of Start or None
    flying, landed : (g, B, m, q) arrays, asynchronous only
        Targets of the fits that are under way, and of those that the latest predictions are from.
    flying_round, landed_round : (B,) arrays
        Their rounds and parts of rounds, which decide the weight of the pseudo-rows.
    counts : (B,) array
        Refits of each split that have arrived.
    clock : (B,) array
        When each split's next fit arrives.
    """

    round: int
    average: FloatArray
    previous: FloatArray
    predictions: FloatArray
    held: FloatArray
    starts: list[list[Start | None]]
    flying: FloatArray
    landed: FloatArray
    flying_round: FloatArray
    landed_round: FloatArray
    counts: IntArray
    clock: FloatArray


class Trajectory:
    """Rounds over all splits, with all penalties or some of them.

    Parameters
    ----------
    workers : Workers
    found : Survey
    settings : Settings
    learners : sequence of g Learner
    trial : bool
        Whether the rows that are held out are left out.
    seed : int
        Of the virtual clock.
    on_done : callable
        Progress: called when a split is through.
    """

    def __init__(
        self,
        workers: Workers,
        found: Survey,
        settings: Settings,
        learners: Sequence[Learner],
        *,
        trial: bool,
        seed: int,
        on_done: Callable[[int], None],
    ) -> None:
        self.workers, self.seed, self.on_done = workers, seed, on_done
        self.settings, self.scale = settings, found.rho_scale
        self.asynchronous = settings.schedule == "asynchronous"
        self.parts = found.parts
        self.left_out = found.held if trial else [h[:0] for h in found.held]
        self.sizes = found.sizes - found.held_masses if trial else found.sizes
        held_x = found.held_x if trial else found.held_x[:0]
        self.common = Common(tuple(learners), found.reference.shape[0], held_x)
        self.seconds = 0.0
        self._ready: dict[tuple[int, ...], dict[int, Done]] = {}

    def begin(self) -> State:
        """State before round 0."""
        g, b = len(self.common.learners), len(self.parts)
        m, h = self.common.n_reference, self.common.held_x.shape[0]
        q, own = self.common.learners[0].n_outputs, b if self.asynchronous else 0
        return State(
            round=-1,
            average=np.zeros((g, m, q)),
            previous=np.zeros((g, m, q)),
            predictions=np.zeros((g, b, m, q)),
            held=np.zeros((g, b, h, q)),
            starts=[[None] * b for _ in range(g)],
            flying=np.zeros((g, own, m, q)),
            landed=np.zeros((g, own, m, q)),
            flying_round=np.ones(b),
            landed_round=np.zeros(b),
            counts=np.zeros(b, dtype=np.int64),
            clock=np.zeros(b),
        )

    def weight(self, k: float) -> float:
        """Weight of the pseudo-rows in round k."""
        s = self.settings
        if k == 0:
            return 0.0
        return rho_of(k, schedule=s.schedule, rho=s.rho, exponent=s.exponent, scale=self.scale)

    def advance(self, state: State, tracks: Sequence[int]) -> None:
        """One round further; asynchronously, as many arrivals as there are splits."""
        # Penalties that were given up keep their last predictions.
        tracks = tuple(tracks)
        state.round += 1
        state.previous = state.average
        if self.asynchronous and state.round:
            self._arrivals(state, tracks)
            return
        for b, done in enumerate(self._fits(state, range(len(self.parts)), tracks)):
            self._take(state, b, tracks, done)
        average = state.average.copy()
        for track in tracks:
            average[track] = averaged(list(state.predictions[track]), self.sizes)
        state.average = average
        if self.asynchronous:
            state.flying = np.repeat(average[:, None], len(self.parts), axis=1)
            state.clock = np.array([self._lasting(b, 1) for b in range(len(self.parts))])

    def models(self, state: State, track: int) -> list[Any]:
        """Go one round further and keep its models; asynchronously, those of the last arrivals."""
        landed = self.asynchronous and state.round >= 0
        if not landed:
            state.round += 1
            state.previous = state.average.copy()
        own = (state.landed, state.landed_round) if landed else None
        found = self._fits(state, range(len(self.parts)), (track,), own, keep=True)
        for b, done in enumerate(found):
            self._take(state, b, (track,), done)
        if not landed:
            state.average[track] = averaged(list(state.predictions[track]), self.sizes)
        return [done.models[0] for done in found]

    # ------------------------------------------------------------------ inside

    def _fits(
        self,
        state: State,
        places: Sequence[int],
        tracks: tuple[int, ...],
        own: tuple[FloatArray, FloatArray] | None = None,
        *,
        keep: bool = False,
    ) -> list[Done]:
        """Fit some splits to the average, or to each one's own target of its own round."""
        tasks = [
            Task(
                self.parts[b],
                self.left_out[b],
                tracks,
                self.weight(state.round if own is None else float(own[1][b])),
                None if own is None else own[0][:, b],
                tuple(state.starts[track][b] for track in tracks),
                keep,
            )
            for b in places
        ]
        found = self.workers.map(refit, tasks, self.common, state.average, done=self.on_done)
        self.seconds += sum(done.seconds for done in found)
        return found

    def _take(self, state: State, b: int, tracks: tuple[int, ...], done: Done) -> None:
        for i, track in enumerate(tracks):
            state.predictions[track, b] = done.at_reference[i]
            state.held[track, b] = done.at_held[i]
            state.starts[track][b] = done.starts[i]

    def _arrivals(self, state: State, tracks: tuple[int, ...]) -> None:
        """As many arrivals as there are splits, in the order of the virtual clock.

        A fit that is under way does not change, so all of them run side by side; whoever arrives
        sets out again with the average as it is then. The weight of the pseudo-rows follows the
        arrivals of all: were it each split's own count, the limit would weigh slow splits more.
        """
        ready = self._ready.setdefault(tracks, {})
        # n_b / N of the rows that are fitted
        shares = self.sizes / self.sizes.sum()
        average = state.average.copy()
        for arrived in range(1, len(self.parts) + 1):
            b = int(np.argmin(state.clock))
            if b not in ready:
                due = [c for c in range(len(self.parts)) if c not in ready]
                flying = state.flying, state.flying_round
                ready.update(zip(due, self._fits(state, due, tracks, flying), strict=True))
            # fbar + n_b / N (new - old)
            old = state.predictions[:, b].copy()
            self._take(state, b, tracks, ready.pop(b))
            for track in tracks:
                average[track] = moved(
                    average[track], state.predictions[track, b], old[track], shares[b]
                )
            state.landed[:, b], state.landed_round[b] = state.flying[:, b], state.flying_round[b]
            state.flying[:, b] = average
            state.flying_round[b] = state.round + arrived / len(self.parts)
            state.counts[b] += 1
            state.clock[b] += self._lasting(b, int(state.counts[b]) + 1)
        state.average = average

    def _lasting(self, b: int, count: int) -> float:
        """How long a split's fit takes on the virtual clock: a pace of its own, and chance."""
        # Not the clock of the machine: a fit must be repeatable.
        pace = stream(self.seed, "pace", b).uniform(0.5, 1.5)
        return float(pace * stream(self.seed, "clock", b, count).uniform(0.8, 1.2))


# --------------------------------------------------------------------------- to and from arrays


_KEPT = (
    *("round", "average", "previous", "flying", "landed"),
    *("flying_round", "landed_round", "counts", "clock"),
)


def arrays_of(state: State, *, with_held: bool) -> dict[str, NDArray[Any]]:
    """A state as named arrays; `with_held` where the next round needs the latest predictions."""
    found = {name: np.asarray(getattr(state, name)) for name in _KEPT}
    if with_held:
        found |= {"predictions": state.predictions, "held": state.held}
    for track, starts in enumerate(state.starts):
        for b, start in enumerate(starts):
            for name, value in (start or {}).items():
                found[f"start/{track}/{b}/{name}"] = np.asarray(value)
    return found


def fill(state: State, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Put named arrays back into a state that :meth:`Trajectory.begin` made."""
    state.round = int(arrays["round"])
    for name in (*_KEPT[1:], "predictions", "held"):
        if name in arrays:
            setattr(state, name, arrays[name])
    starts: dict[tuple[int, int], dict[str, Any]] = {}
    for name, value in arrays.items():
        if name.startswith("start/"):
            _, track, place, key = name.split("/")
            starts.setdefault((int(track), int(place)), {})[key] = value
    for (i, b), start in starts.items():
        state.starts[i][b] = start

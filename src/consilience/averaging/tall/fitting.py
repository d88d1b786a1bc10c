"""A fit from the first look at a table to the models that are kept.

First the *trial*: rounds without the held-out rows, with every penalty of the grid, until the
held-out loss of the average no longer falls. It settles penalty and round. Then the same number of
rounds on all rows, with the chosen penalty only; its last models are kept. Both go on from a
checkpoint, one file of arrays that is whole or absent. Without guard and grid, or with nothing to
hold out, there is no trial and the last round is kept.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.averaging.estimators.conventions import innermost
from consilience.averaging.estimators.proximal_fit import Learner, separable
from consilience.averaging.tall.passes import (
    Settings,
    State,
    Survey,
    Task,
    Trajectory,
    arrays_of,
    fill,
    probe,
    survey,
)
from consilience.averaging.tall.tables import HeldTable, ParquetTable, number_of_splits
from consilience.exceptions import DataError, RunError
from consilience.learners.candidates import record_losses
from consilience.numerics.parallel import Workers
from consilience.numerics.random import seed_of
from consilience.numerics.reference_average import (
    Choice,
    averaged,
    choose,
    improving,
    influences,
    movement,
    pooled_gain,
    weighted_mean,
)
from consilience.parameters import check, rules_of
from consilience.wire.files import atomic_write, explain

# --- Progress of a fit on stderr: a bar on a terminal, one line for each pass elsewhere.


class Progress:
    """A bar for each pass over the splits.

    Parameters
    ----------
    shown : bool
    n_splits : int
    """

    def __init__(self, shown: bool, n_splits: int) -> None:
        self._n_splits, self._open = n_splits, ExitStack()
        self._console: Any = None
        if not shown:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Live

        self._console = Console(stderr=True, highlight=False, markup=False)
        self._live = Live(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("splits"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._live.add_task("reading", total=n_splits)

    def __enter__(self) -> Progress:
        if self._console is not None:
            self._open.enter_context(self._live)
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.close()

    def begin(self, what: str) -> None:
        """A new pass over the splits."""
        if self._console is None:
            return
        if self._live.disable:
            self._console.print(what)
        else:
            self._live.reset(self._task, description=what, total=self._n_splits)

    def done(self, place: int) -> None:
        """One split is through."""
        if self._console is not None:
            self._live.advance(self._task)


# --- What a fit has reached, in one file of arrays that is whole or absent.

Arrays = dict[str, NDArray[Any]]

FILE = "rounds.npz"
_FORMAT = 2


class Checkpoint:
    """One file in a folder that is written anew after every round.

    Parameters
    ----------
    folder : path or None
        ``None`` keeps nothing.

    Raises
    ------
    RunError
        The file cannot be read.
    """

    def __init__(self, folder: Any) -> None:
        self.path = None if folder is None else Path(folder) / FILE
        self._found: Arrays = {}
        self._facts: dict[str, str] = {}
        if self.path is None or not self.path.exists():
            return
        try:
            with np.load(self.path, allow_pickle=False) as stored:
                self._found = {name: stored[name] for name in stored.files}
            self._facts = json.loads(str(self._found.pop("facts")))
            if self._facts.get("format") != str(_FORMAT):
                raise RunError(
                    f"{self.path} was written by another release: begin anew in another checkpoint "
                    "folder"
                )
        except OSError as error:
            raise explain(error, "read", self.path) from error
        except (ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
            raise RunError(
                f"{self.path} is not a checkpoint of this estimator: choose another checkpoint "
                "folder"
            ) from error

    @property
    def seed(self) -> int | None:
        """Seed of the fit that was begun, if there is one."""
        return int(self._facts["seed"]) if "seed" in self._facts else None

    def resume(self, settings: Mapping[str, Any], *, seed: int, data: str) -> Arrays:
        """Arrays of the round that was reached, or none.

        Versions are among what must be the same: other ones may give other numbers, and what goes
        on after a crash must end as if there had been none.

        Raises
        ------
        RunError
            The file belongs to other settings or other data.
        """
        libraries = ("consilience", "numpy", "scikit-learn")
        facts = {
            "format": str(_FORMAT),
            **{f"version_of_{name}": version(name) for name in libraries},
            "seed": str(seed),
            "data": data,
            **{name: described(value) for name, value in settings.items()},
        }
        for name in sorted({*facts, *self._facts}) if self._facts else ():
            if facts.get(name) != self._facts.get(name):
                raise RunError(
                    f"{self.path} belongs to a fit with another {name.replace('_', ' ')}: "
                    "give the same settings and the same table, or another checkpoint folder"
                )
        found, self._found = self._found, {}
        self._facts = facts
        return found

    def write(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Put a new state in place of the last one."""
        if self.path is None:
            return
        facts = np.array(json.dumps(self._facts, sort_keys=True))
        buffer = io.BytesIO()
        named: dict[str, Any] = {"facts": facts, **arrays}
        np.savez(buffer, **named)
        atomic_write(self.path, buffer.getvalue())


def described(value: Any) -> str:
    """A setting as text: estimators by type and parameters, arrays by their bytes."""
    if hasattr(value, "get_params") and not isinstance(value, type):
        inside = {k: described(v) for k, v in sorted(value.get_params(deep=True).items())}
        return f"{type(value).__module__}.{type(value).__qualname__}({inside})"
    if isinstance(value, str | bytes | bool | int | float | type(None)):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(described(v) for v in value)}]"
    if hasattr(value, "tocsr"):
        return described([value.shape, value.indptr, value.indices, value.data])
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
        array = np.ascontiguousarray(value)
        if array.dtype == object:
            return repr(array.tolist())
        return f"{array.dtype.str}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


# --- A fit from the first look at a table to the models that are kept.

N_PROBED = 3
"""Splits whose stability is probed."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit leaves.

    Attributes
    ----------
    learner : Learner
    models : list of B models
    sizes : (B,) array
    levels : (q,) array, or empty
    choice : Choice
    history : dict of arrays
    remarks : tuple of str
    reference : (m, p) array or sparse matrix
    """

    learner: Learner
    models: list[Any]
    sizes: FloatArray
    levels: NDArray[Any]
    choice: Choice
    history: dict[str, Any]
    remarks: tuple[str, ...]
    reference: FloatArray


def fit_table(
    table: HeldTable | ParquetTable,
    settings: Settings,
    *,
    levels: NDArray[Any] | None,
    n_jobs: int | None,
    random_state: Any,
    checkpoint: Any,
    progress: bool,
) -> Fitted:
    """Fit a table; see :class:`ReferenceAveragingRegressor` for the settings.

    Raises
    ------
    ParameterError
        A setting is out of its range, or does not fit the learner.
    DataError
        The table cannot be used.
    RunError
        The checkpoint cannot be used.
    """
    check(rules_of(settings), vars(settings))
    memory = Checkpoint(checkpoint)
    if isinstance(random_state, int | np.integer):
        seed = int(random_state)
    elif memory.seed is not None:  # that of the fit that is resumed
        seed = memory.seed
    else:
        seed = seed_of(random_state)
    n_splits = number_of_splits(settings.n_splits, table.n_rows)
    with Workers(n_jobs) as workers, Progress(progress, n_splits) as shown:
        shown.begin("reading the splits")
        found = survey(
            workers, table, settings, n_splits=n_splits, levels=levels, seed=seed, done=shown.done
        )
        job = _Job(settings, found, workers, shown, memory, seed)
        remarks = job.remarks(table)
        reached = memory.resume(vars(settings), seed=seed, data=found.digest)
        return job.run(reached, remarks)


@dataclass
class _Job:
    """One fit: what all of its stages need."""

    settings: Settings
    found: Survey
    workers: Workers
    shown: Progress
    memory: Checkpoint
    seed: int

    def __post_init__(self) -> None:
        settings, found = self.settings, self.found
        self.n_splits = len(found.parts)
        self.held_sizes = found.held_masses
        self.loss = "squared" if settings.task == "regression" else "log"
        self.fit_seconds = 0.0
        self._stored: Arrays = {}
        self.max_rounds = settings.max_rounds if self.n_splits > 1 else 0
        base = Learner(
            settings.estimator,
            task=settings.task,
            n_levels=max(len(found.levels), 1),
            reference=found.reference,
            convention=settings.convention,
            # Of the trial too: a penalty for each mean loss must not depend on what is held out.
            n_total=float(found.sizes.sum()),
            seed=self.seed % 2**31,
        )
        self.learners = tuple(base.with_penalty(v) for v in settings.penalties) or (base,)
        self.judged = any(len(held) > 1 for held in found.held)
        if len(self.learners) > 1 and not self.judged:
            raise DataError(
                "no split has enough rows to hold some out, so penalties cannot be compared: give "
                "one penalty, fewer splits, or a larger holdout"
            )

    def _trajectory(self, learners: Sequence[Learner], *, trial: bool) -> Trajectory:
        return Trajectory(
            self.workers,
            self.found,
            self.settings,
            learners,
            trial=trial,
            seed=self.seed,
            on_done=self.shown.done,
        )

    # ------------------------------------------------------------------ what to say

    def remarks(self, table: HeldTable | ParquetTable) -> tuple[str, ...]:
        """Warn of what keeps the rounds from the fit of all rows."""
        said: list[str] = []
        if self.max_rounds:
            said += self.found.facts.remarks()
        least = int(self.found.rows.min())
        convention = self.learners[0].convention
        none = float("inf") if convention.inverse else 0.0
        own = innermost(self.settings.estimator).get_params().get(convention.penalty, none)
        unpenalised = convention.linear and none in (self.settings.penalties or (own,))
        if least < table.n_columns and unpenalised:
            said.append(
                f"Splits have as few as {least} rows for {table.n_columns} columns, and the "
                "learner has no penalty, so their fits are not determined: take fewer splits, or "
                "a learner with a penalty."
            )
        if isinstance(table, ParquetTable) and table.largest_group > 4 * least:
            said.append(
                f"Row groups have up to {table.largest_group} rows and splits {least}, so workers "
                "decode rows that they do not use: write the data set with row groups of about "
                f"{least} rows."
            )
        for sentence in said:
            warnings.warn(sentence, UserWarning, stacklevel=4)
        return tuple(said)

    # ------------------------------------------------------------------ stages

    def run(self, reached: Arrays, remarks: tuple[str, ...]) -> Fitted:
        """Trial, choice, and the rounds on all rows."""
        trial = Trial(len(self.learners), self.max_rounds, self.n_splits, len(self.found.held_y))
        # A trial where something is to be chosen and rows tell it.
        guarded = self.settings.guard and self.max_rounds > 0
        measured = self.judged and (guarded or len(self.learners) > 1)
        if measured:
            self._try(trial, _under(reached, "trial"))
        elif guarded:
            trial.probes = self._probes(self._trajectory(self.learners, trial=True))
        choice = self._choice(trial)
        if choice.reason == "not-separable":
            sentence = (
                f"{type(self.settings.estimator).__name__} is not a sum of losses plus a penalty "
                "(refitting it with its own predictions changes it), so the splits' plain fits "
                "are averaged: for the fit of all rows take another learner."
            )
            warnings.warn(sentence, UserWarning, stacklevel=4)
            remarks = (*remarks, sentence)
        models = self._all_rows(choice, trial, measured, _under(reached, "final"))
        rounds = self._trajectory(self.learners, trial=True)
        done = int(np.flatnonzero(~np.isnan(trial.influence).all(axis=(0, 2))).max(initial=0)) + 1
        return Fitted(
            learner=self.learners[choice.track],
            models=models,
            sizes=self.found.sizes,
            levels=self.found.levels,
            choice=choice,
            history={
                "sizes": self.found.sizes,
                "penalties": np.array(self.settings.penalties, dtype=float),
                "rhos": np.array([rounds.weight(k) for k in range(done)]),
                "movement": trial.movement[choice.track, :done],
                "influence": trial.influence[choice.track, :done],
                "gains": trial.gains[:, :done],
                "gain_errors": trial.errors[:, :done],
                "base_loss": self._base(trial) if measured else np.full(1, np.nan),
                "probes": trial.probes,
                "held_out_rows": np.array(len(self.found.held_y)),
                "reference_rank": np.array(self.found.facts.rank),
                "reference_needed_rank": np.array(self.found.facts.needed_rank),
                "reference_condition": np.array(self.found.facts.condition),
                "fit_seconds": np.array(self.fit_seconds),
                "rho_scale": np.array(self.found.rho_scale),
            },
            remarks=remarks,
            reference=self.found.reference,
        )

    def _try(self, trial: Trial, reached: Arrays) -> None:
        """Rounds without the held-out rows, until no penalty gains any more."""
        rounds = self._trajectory(self.learners, trial=True)
        state = rounds.begin()
        if reached:
            trial.fill(reached)
            state.round = int(reached["round"])
            if "average" in reached:  # else the trial had come to its end
                fill(state, reached)
        elif self.settings.guard and self.max_rounds:
            trial.probes = self._probes(rounds)
        while state.round < self.max_rounds and trial.active.any():
            if state.round >= 0 and not trial.separable:
                break
            # Penalties that no longer gain are given up one by one.
            going = np.flatnonzero(trial.active).tolist()
            self._announce("trial", state.round + 1, trial)
            rounds.advance(state, going)
            for track in going:
                self._measure(trial, rounds, state, track)
            kept = arrays_of(state, with_held=rounds.asynchronous)
            self.memory.write(_above("trial", kept | trial.arrays()))
        self.fit_seconds += rounds.seconds
        self._stored = _above("trial", trial.arrays() | {"round": np.array(state.round)})

    def _announce(self, stage: str, k: int, trial: Trial) -> None:
        gains = trial.gains[:, 1:k]
        said = ""
        if stage == "trial" and gains.size and not np.isnan(gains).all():
            said = f", best change of held-out loss {np.nanmin(gains):.3g}"
        self.shown.begin(f"{stage}: round {k} of at most {self.max_rounds}{said}")

    def _probes(self, rounds: Trajectory) -> FloatArray:
        learner = self.learners[0]
        if learner.convention.separable is False:
            return np.full((1, 2), np.inf)
        # First, middle and last: the rows of a mapped file may be sorted.
        places = sorted({0, self.n_splits // 2, self.n_splits - 1})[:N_PROBED]
        self.shown.begin(f"stability of the learner on {len(places)} splits")
        tasks = [
            (Task(rounds.parts[b], rounds.left_out[b], (0,), 0.0, None, (None,)), b) for b in places
        ]
        return np.array(self.workers.map(probe, tasks, rounds.common, self.seed))

    def _measure(self, trial: Trial, rounds: Trajectory, state: State, track: int) -> None:
        k = state.round
        self._note(trial, rounds, state, track)
        at_held = averaged(list(state.held[track]), rounds.sizes)
        losses = record_losses(self.loss, self.found.held_y, at_held)
        if k == 0:
            trial.base_rows[track] = losses
        ends = np.cumsum([len(held) for held in self.found.held])[:-1]
        pieces = np.split(losses - trial.base_rows[track], ends)
        weights = np.split(self.found.held_weight, ends)
        means, variances = np.array(
            [weighted_mean(v, w) for v, w in zip(pieces, weights, strict=True)]
        ).T
        gain, error = pooled_gain(means, variances, self.held_sizes)
        trial.gains[track, k], trial.errors[track, k] = gain, error
        if self.settings.guard:
            trial.active[track] = improving(trial.gains[track, : k + 1], self.settings.patience)

    def _note(self, trial: Trial, rounds: Trajectory, state: State, track: int = 0) -> None:
        k, average = state.round, state.average[track]
        if k:
            trial.movement[track, k] = movement(average, state.previous[track])
        trial.influence[track, k] = influences(
            list(state.predictions[track]), rounds.sizes, average
        )

    def _base(self, trial: Trial) -> FloatArray:
        """Held-out loss of plain averaging with each penalty."""
        return np.average(trial.base_rows, axis=1, weights=self.found.held_weight)

    def _choice(self, trial: Trial) -> Choice:
        base = self._base(trial) if trial.base_rows.size else np.full(1, np.nan)
        # Of plain averages the one that loses least on held-out rows.
        best = 0 if np.isnan(base).all() else int(np.nanargmin(base))
        if not self.max_rounds:
            return Choice(best, 0, False, "not-measured")
        if self.settings.guard and not trial.separable:
            return Choice(best, 0, False, "not-separable")
        if not self.settings.guard or not self.judged:
            last = base + trial.gains[:, -1]
            track = 0 if np.isnan(last).all() else int(np.nanargmin(last))
            return Choice(track, self.max_rounds, True, "not-measured")
        return choose(base, trial.gains, trial.errors)

    def _all_rows(self, choice: Choice, trial: Trial, measured: bool, reached: Arrays) -> list[Any]:
        """Rounds on all rows up to the chosen one, and its models."""
        rounds = self._trajectory([self.learners[choice.track]], trial=False)
        state = rounds.begin()
        if reached:
            fill(state, reached)
            if not measured:
                trial.fill(reached)
        # The chosen round itself is fitted at the end, where its models come back.
        last = choice.round if rounds.asynchronous and choice.round else choice.round - 1
        while state.round < last:
            self._announce("all rows", state.round + 1, trial)
            rounds.advance(state, [0])
            if not measured:
                self._note(trial, rounds, state)
            kept = arrays_of(state, with_held=rounds.asynchronous)
            kept |= {} if measured else trial.arrays()
            self.memory.write({**self._stored, **_above("final", kept)})
        self.shown.begin(f"models of round {choice.round}")
        models = rounds.models(state, 0)
        self.fit_seconds += rounds.seconds
        if not measured:
            self._note(trial, rounds, state)
        return models


class Trial:
    """Measurements by penalty (g) and round (K + 1)."""

    def __init__(self, g: int, max_rounds: int, n_splits: int, n_held: int) -> None:
        self.gains = np.full((g, max_rounds + 1), np.nan)
        self.errors = np.full((g, max_rounds + 1), np.nan)
        self.movement = np.full((g, max_rounds + 1), np.nan)
        self.influence = np.full((g, max_rounds + 1, n_splits), np.nan)
        self.base_rows = np.zeros((g, n_held))
        self.active = np.ones(g, dtype=bool)
        self.probes = np.zeros((0, 2))

    @property
    def separable(self) -> bool:
        """Whether most of the probes say so that could be made."""
        made = self.probes[~np.isnan(self.probes).any(axis=1)]
        # A split of one class cannot be probed, and has no vote.
        against = sum(not separable(float(one), float(two)) for one, two in made)
        return not len(made) or against < len(made) / 2

    def arrays(self) -> Arrays:
        """Everything, by name."""
        return {f"seen/{name}": value for name, value in vars(self).items()}

    def fill(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Put back what :meth:`arrays` gave."""
        for name in vars(self):
            setattr(self, name, arrays[f"seen/{name}"])


def _above(stage: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    return {f"{stage}/{name}": value for name, value in arrays.items()}


def _under(arrays: Arrays, stage: str) -> Arrays:
    return {
        name.removeprefix(f"{stage}/"): value
        for name, value in arrays.items()
        if name.startswith(f"{stage}/")
    }

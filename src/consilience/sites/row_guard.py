"""Which rows a run uses, so that it differs from no earlier run by few (`sites.row_history`).

The rows of all releases on a data set are kept in the home, for ever and whichever run they belong
to; so is which rows a run uses, so that the same ones are read again after a restart.

Rows by which two runs differ are told of like a release: their moments follow from the two.

Who subtracts the sums of one run from those of another has the sums over the rows in between, which
nobody released. If one of these rows alone has a 0/1 property, its other columns follow. So rows
that stay out take a quarter of the others with them, and a column of which few rows would be told,
in these or in others that runs part, is not told (`failing`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import AT_ONCE, BoolArray, FloatArray, IntArray, side_by_side
from consilience.exceptions import DataError
from consilience.protocol.method import EDGES, Method, OtherRuns, SiteData
from consilience.protocol.phases.holdout import parts_of_table
from consilience.sites.policy import Policy
from consilience.sites.prepare import AllRows, Everyone
from consilience.sites.row_history import UNSEEN, Atoms, RowHistory, row_keys
from consilience.sites.site_store import SiteStore
from consilience.wire.codec import digest
from consilience.wire.digits import finer_between, off_grid
from consilience.wire.equations import equations, outweighed
from consilience.wire.moment_facts import (
    Coded,
    coded_within,
    hanging_together,
    left_over,
    moment_facts,
    unsafe_columns,
)
from consilience.wire.support import Limits
from consilience.wire.usual_values import hardly_apart

KEPT = "rows of all releases"
"""Name under which they are kept."""
HIDDEN = "_hidden"
"""Ledger of the columns of which a run is told nothing."""
_SETS = "_row_sets"
"""Ledger of the number of the row set of each run, before it was in that of the data."""
_SECRET = 16
_NEW: dict[str, list[int]] = {"sets": [], "joint": []}
_COVER = 4
"""One of so many rows stays out with those that are missing."""

Mask = NDArray[np.bool_]
_ENOUGH = {False: 0.75, True: 0.5}
"""Share of the wanted rows that an earlier run's rows must be to be used again: where only new rows
wait for it, and where the rows would be parted once more."""


@dataclass(frozen=True, eq=False)
class _Told:
    """Columns of the table that a study asks for, or that earlier runs told.

    Attributes
    ----------
    names : list of str
    x : (n_read, p) array
        As the table is now.
    sets, joint : (s, p) bool arrays
        Whether a column was told over a set of rows, and with products.
    asked : (p,) bool array
    coded : tuple of Coded
    """

    names: list[str]
    x: NDArray[np.float64]
    sets: Mask
    joint: Mask
    asked: Mask
    coded: tuple[Coded, ...]

    def take(self, columns: Mask) -> _Told:
        """Some of the columns."""
        places = np.flatnonzero(columns)
        names = [self.names[j] for j in places]
        parts = (self.x[:, places], self.sets[:, places], self.joint[:, places])
        return _Told(names, *parts, self.asked[places], coded_within(self.coded, places))


class RowGuard:
    """Chooses the rows of one run after the other; the keys of the last table stay at hand.

    Parameters
    ----------
    policy : Policy
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._of: tuple[object, ...] = ()
        self._names: tuple[str, ...] = ()
        self._keys = np.empty(0, dtype=np.uint64)
        self._placed = self._keys
        self._places = np.empty(0, dtype=np.int64)

    def rows_to_use(
        self, method: type[Method], data: SiteData, all_rows: AllRows, home: SiteStore
    ) -> Mask:
        """Choose the rows that a run uses, and note durably that it does.

        Parameters
        ----------
        method : type
        data : SiteData
            The rows that the study wants.
        all_rows : callable
        home : SiteStore

        Returns
        -------
        (n_read,) bool array
            Of the table.

        Raises
        ------
        DataError
            A column of earlier releases is gone, so that rows are not known again; or too few rows
            are left.
        """
        wanted = np.zeros(data.n_read, dtype=bool)
        wanted[data.rows] = True
        kept = home.kept(self._policy.data_id, KEPT) or {}
        everyone = all_rows(tuple(kept.get("names", ())))
        secret = bytes(kept.get("secret", b"")) or os.urandom(_SECRET)
        history = RowHistory.from_plain(kept) if kept else RowHistory()
        self._know(data, everyone, secret)
        self._place(history)
        parts = np.zeros(data.n_read, dtype=np.int64)
        if self._policy.foreign_models:  # without, no method tells anything of a part
            parts = parts_of_table(data, everyone.entity)
        elif method.tells == "other":
            wanted = self._as_before(wanted, history, kept.get("other", []))
        else:
            told = self._told(data, everyone, kept, earlier=False)
            wanted = self._varied(wanted, history, told, method.tells == "moments")
        chosen, after = self._admit(history, wanted, (everyone.classes, parts))
        if not chosen.any():
            raise DataError(f"{TOO_ALIKE}: ask for the rows of an earlier run", public=TOO_ALIKE)
        if after is not history:
            noted = {"secret": secret, "names": list(everyone.names), **after.to_plain()}
            home.write_kept(self._policy.data_id, KEPT, {**kept, **noted})
        return chosen

    def marks(self, data: SiteData, all_rows: AllRows, home: SiteStore) -> NDArray[np.uint64]:
        """Numbers of all rows of the table by their content, the same at every home."""
        kept = home.kept(self._policy.data_id, KEPT) or {}
        return row_keys(all_rows(tuple(kept["names"])).content(), bytes(_SECRET))

    def _know(self, data: SiteData, everyone: Everyone, secret: bytes) -> None:
        """Compute the keys of the rows, unless they are those of the table before."""
        of = (data.content_hash, everyone.names, secret)
        if self._of != of:
            self._of, self._keys = of, row_keys(everyone.content(), secret)
            self._names = everyone.names
            self._placed = np.empty(0, dtype=np.uint64)

    def _place(self, history: RowHistory) -> None:
        """Find the rows of the table in a history, unless it has the rows of the last one."""
        if not np.array_equal(self._placed, history.keys) or not len(history.keys):
            self._placed, self._places = history.keys, history.places(self._keys)

    def _admit(
        self, history: RowHistory, wanted: Mask, cells: tuple[IntArray, ...] = ()
    ) -> tuple[Mask, RowHistory]:
        least = self._policy.min_records
        return history.admit(self._keys, wanted, cells, least=least, places=self._places)

    def _told(
        self, data: SiteData, everyone: Everyone, kept: Mapping[str, Any], *, earlier: bool = True
    ) -> _Told:
        """What is asked for and was told before; with `earlier` also what else was told, ever."""
        told: dict[str, dict[str, Any]] = dict(kept.get("told", {}))
        values = dict(everyone.prepared)
        if earlier:
            known = everyone.earlier({n: t["coding"] for n, t in told.items() if n not in values})
            values = {**known, **values}
        else:
            values = {name: x for name, x in values.items() if name in told}
        names = list(values)
        n_sets = 1 + max((max(t["sets"]) for t in told.values()), default=-1)
        sets, joint = (np.zeros((n_sets, len(names)), dtype=bool) for _ in range(2))
        x = _side_by_side([values[name][1] for name in names], data.n_read)
        categories: dict[str, list[int]] = {}
        wholes: dict[str, bool] = {}
        for j, name in enumerate(names):
            coding = values[name][0]
            sets[told.get(name, _NEW)["sets"], j] = True
            joint[told.get(name, _NEW)["joint"], j] = True
            if coding[1] != "number":
                categories.setdefault(coding[0], []).append(j)
                wholes[coding[0]] = 0 < len(coding[3]) <= len(set(coding[2]))
        asked = np.array([name in everyone.prepared for name in names], dtype=bool)
        coded = [Coded(tuple(places), wholes[of]) for of, places in categories.items()]
        return _Told(names, x, sets, joint, asked, tuple(coded))

    def _as_before(self, wanted: Mask, history: RowHistory, sets: Sequence[int]) -> Mask:
        """Rows of an earlier run of such methods: no rule looks at what two sets of rows tell."""
        atom = history.of_rows(self._places)
        whole = history.whole(atom)
        for s in sets:
            rows = history.sets[s][atom]
            if whole[history.sets[s]].all() and not (rows & ~wanted).any():
                return np.asarray(rows)
        if sets:
            raise DataError(f"{TOO_ALIKE}: ask for the rows of an earlier run", public=TOO_ALIKE)
        return wanted

    def _varied(self, wanted: Mask, history: RowHistory, told: _Told, joint: bool) -> Mask:
        """Of the rows that a run wants, those that it may use for the sake of earlier runs.

        Where an atom is parted the rows that stay out take others with them. New rows wait until
        moments of theirs may leave.
        """
        if not len(history.sets):
            return wanted
        chosen, _ = self._admit(history, wanted)
        atom, n_atoms = history.of_rows(self._places), history.sets.shape[1]
        taken = np.bincount(atom[chosen], minlength=n_atoms)
        whole = history.whole(atom)
        parted = (taken > 0) & ~(whole & (taken == np.bincount(atom, minlength=n_atoms)))
        parted[UNSEEN] = False
        new = chosen & (atom == UNSEEN)
        waits = bool(new.any() and told.names) and self._unlike(told, new, chosen, joint)
        if not parted.any() and not waits:
            return wanted
        earlier = np.zeros_like(wanted)
        for members in history.sets:
            rows = members[atom]
            if whole[members].all() and not (rows & ~wanted).any():
                earlier = rows if rows.sum() > earlier.sum() else earlier
        enough = _ENOUGH[bool(parted.any())] * wanted.sum()
        if earlier.sum() >= enough:
            return earlier
        order = np.argsort(self._keys, kind="stable")
        out = np.zeros_like(wanted)
        for a in np.flatnonzero(parted):
            self._part(order[atom[order] == a], wanted, out)
        if waits and (wanted & ~out & ~new).sum() >= enough:
            out |= atom == UNSEEN
        return wanted & ~out

    def _part(self, rows: IntArray, wanted: Mask, out: Mask) -> None:
        """Note in `out` which rows of an atom stay out, besides those that are not wanted.

        A quarter of all, whatever they hold: what is summed over those that stay out then says
        little of the few who are not wanted. And so many that one of these and nine look the same.
        """
        out[rows[: len(rows) // _COVER]] = True
        short = self._policy.min_records - int((~wanted[rows] & ~out[rows]).sum())
        out[rows[wanted[rows] & ~out[rows]][: max(short, 0)]] = True

    def _unlike(self, told: _Told, rows: Mask, chosen: Mask, joint: bool) -> bool:
        """Whether some of what may leave of all chosen rows may not leave of these."""
        every, none = np.ones(len(told.names), dtype=bool), np.zeros(len(told.names), dtype=bool)
        # Products of these rows follow where both runs tell products.
        products = np.asarray(told.joint.any(axis=0) & joint)
        views = [View(one, every, products, none) for one in (chosen, rows)]
        limits = self._policy.limits
        fine = ~failing(told.x, views[:1], every, limits, told.coded)
        return bool(failing(told.x, views, fine, limits, told.coded).any())

    def hide_columns(
        self,
        run: str,
        method: type[Method],
        data: SiteData,
        all_rows: AllRows,
        home: SiteStore,
        used: Mask,
    ) -> None:
        """Choose the prepared columns of which a run is told nothing, and note the others.

        Called after `rows_to_use`, which knows the rows. Where models of others are granted two
        columns, or two sets of rows, are no way in that is not there anyway.

        Parameters
        ----------
        run : str
        method : type
        data : SiteData
            As for `rows_to_use`.
        all_rows : callable
        home : SiteStore
        used : (n_read,) bool array
            What `rows_to_use` gave.
        """
        if self._policy.foreign_models:
            return
        everyone = all_rows(self._names)
        kept = home.kept(self._policy.data_id, KEPT) or {}
        history = RowHistory.from_plain(kept)
        self._place(history)
        atom = history.of_rows(self._places)
        this = np.zeros(history.sets.shape[1], dtype=bool)
        this[atom[used]] = True
        number = int(np.argmax((history.sets == this).all(axis=1)))
        ledger = home.ledger(self._policy.data_id)
        row_sets = {**ledger.get("row_sets", {}), run: number}
        home.write_ledger(self._policy.data_id, {**ledger, "row_sets": row_sets})
        if method.tells == "other":
            others = sorted({*map(int, kept.get("other", [])), number})
            home.write_kept(self._policy.data_id, KEPT, {**kept, "other": others})
            return
        joint = method.tells == "moments"
        record = {name: dict(of) for name, of in dict(kept.get("told", {})).items()}
        # It takes a while where rows are many, and comes out the same as long as nothing is new.
        limits = self._policy.limits
        binned, edges = _edges(self._policy.data_id, home)
        state = (data.content_hash, list(everyone.prepared), number, joint, record, limits, edges)
        key = digest(repr(state).encode())[:20]
        judged = dict(kept.get("judged", {}))
        if key not in judged:
            told = self._told(data, everyone, kept)
            views = _views(told, history.sets, this, atom, joint, self._policy.min_records)
            if edges:
                rows = history.sets[binned][atom]
                views = [
                    replace(v, edges=edges) if np.array_equal(v.rows, rows) else v for v in views
                ]
            again = np.zeros(len(told.names), dtype=bool)
            if number < len(told.sets):
                again = (told.joint if joint else told.sets)[number]
            bad = failing(told.x, views, told.asked, limits, told.coded, again)
            judged[key] = [name for name, hidden in zip(told.names, bad, strict=True) if hidden]
        hidden = set(judged[key])
        for name in everyone.prepared:
            if name in hidden:
                continue
            of = record.setdefault(
                name, {"coding": everyone.prepared[name][0], "sets": [], "joint": []}
            )
            of["sets"] = sorted({*of["sets"], number})
            of["joint"] = sorted({*of["joint"], *([number] if joint else [])})
        noted = {**kept, "told": record, "judged": judged}
        if record != kept.get("told") or judged != kept.get("judged"):
            home.write_kept(self._policy.data_id, KEPT, noted)
        for name in judged[key]:
            said = (
                f"Nothing of column {name} is told: by itself or beside what was told, few rows "
                "would be, or too many columns for the rows."
            )
            home.log("read", run=run, said=said)
        if judged[key]:
            home.write_ledger(HIDDEN, {**home.ledger(HIDDEN), run: list(judged[key])})

    def beside(
        self, run: str, data: SiteData, all_rows: AllRows, home: SiteStore, used: Mask
    ) -> tuple[NDArray[np.float64], tuple[Coded, ...]] | None:
        """Other columns of which products were told of all rows of a run, and which are coded."""
        if self._policy.foreign_models:
            return None
        kept = home.kept(self._policy.data_id, KEPT) or {}
        everyone = all_rows(tuple(kept["names"]))
        self._know(data, everyone, bytes(kept["secret"]))  # a run may go on after a restart
        told = self._told(data, everyone, kept)
        history = RowHistory.from_plain(kept)
        self._place(history)
        atom = history.of_rows(self._places)
        over = [s for s in range(len(told.joint)) if history.sets[s][atom[used]].all()]
        hidden = np.array([name in self.hidden(run, home) for name in told.names], dtype=bool)
        part = told.take(told.joint[over].any(axis=0) & (~told.asked | hidden))
        return (part.x[used], part.coded) if part.names else None

    def other_runs(self, run: str, home: SiteStore) -> OtherRuns | None:
        """What all runs so far tell of the rows of one of them."""
        row_sets = home.ledger(self._policy.data_id).get("row_sets", {})
        number = row_sets.get(run, home.ledger(_SETS).get(run))
        if self._policy.foreign_models or number is None:
            return None
        kept = home.kept(self._policy.data_id, KEPT) or {}
        sets = RowHistory.from_plain(kept).sets
        over = sets[:, sets[number]]
        told = list(dict(kept.get("told", {})).values())
        joint = sum(number in t["joint"] for t in told)
        return OtherRuns(
            row_set=int(number),
            parted=bool((over.any(axis=1) & ~over.all(axis=1)).any()),
            joint=joint,
            alone=sum(number in t["sets"] for t in told) - joint,
        )

    def hidden(self, run: str, home: SiteStore) -> tuple[str, ...]:
        """Columns of which a run is told nothing."""
        return tuple(home.ledger(HIDDEN).get(run, ()))


def _edges(data_id: str, home: SiteStore) -> tuple[int, int]:
    """Number of the rows of which bins were told, and edges of all columns; 0 edges of none."""
    kept = home.kept(data_id, EDGES) or {}
    edges = sum(len(of) for of in dict(kept.get("told", {})).values())
    row_set = int(kept.get("row_set", -1))
    return row_set, edges if row_set >= 0 else 0


def _views(told: _Told, sets: Mask, this: Mask, atom: Atoms, joint: bool, least: int) -> list[View]:
    """Rows of which a run, with earlier ones, tells what it is asked for.

    Classes of rows that the runs with the asked columns part, this one among them; classes that
    all earlier runs part, of which everything that was told counts; and each set of rows within
    which another one lies, which is then a column, too.
    """
    asked, none = told.asked, np.zeros(len(told.names), dtype=bool)
    tells = np.zeros((len(sets), len(told.names)), dtype=bool)
    products = tells.copy()
    tells[: len(told.sets)], products[: len(told.joint)] = told.sets, told.joint
    now = int(np.argmax((sets == this).all(axis=1)))
    views = []
    for fixed in (False, True):
        over = tells.any(axis=1) if fixed else (tells & asked).any(axis=1)
        over = over | (np.arange(len(sets)) == now) & (not fixed)
        kinds, kind = np.unique(sets[over].T, axis=0, return_inverse=True)
        for k, member in enumerate(kinds):
            rows = kind.ravel()[atom] == k
            if not member.any() or not rows.any():
                continue
            own = np.ones(len(told.names), dtype=bool) if fixed else asked
            here = (tells[over][member] & own).any(axis=0)
            pairs = (products[over][member] & own).any(axis=0)
            new = asked & bool(this[atom[rows]].any())
            views.append(View(rows, here | new, pairs | (new & joint), here if fixed else none))
    for s in range(len(sets)):
        for outer, inner in ((s, now), (now, s)):
            if (
                outer == inner
                or not (sets[outer] & sets[inner]).any()
                or not (sets[outer] & ~sets[inner]).any()
            ):
                continue
            rows, inside = sets[outer][atom], sets[inner][atom]
            here, pairs = tells[outer], products[outer]
            if outer == now:
                here, pairs = here | asked, pairs | (asked & joint)
            views.append(View(rows, here, pairs, tells[outer], inside))
            both = (tells[inner] | (asked & (inner == now))) & pairs
            kept = tells[outer] & tells[inner]
            views += _between(told, rows, inside, here, pairs, both, kept, least)
    return views


def _between(
    told: _Told,
    rows: Mask,
    inside: Mask,
    here: Mask,
    pairs: Mask,
    both: Mask,
    fixed: Mask,
    least: int,
) -> list[View]:
    """Rows with a property of which those of another run have nearly all, or none, less these."""
    views = []
    none = np.zeros(len(told.names), dtype=bool)
    for j in np.flatnonzero(here):
        known = told.x[rows, j][~np.isnan(told.x[rows, j])]
        # Many values show among the first ones; that there are two only among all.
        values = np.unique(known) if len(np.unique(known[:32])) <= 2 else known
        if len(values) != 2:
            continue
        for value in values:
            has = rows & (told.x[:, j] == value)
            if int((inside & rows & ~has).sum()) < least <= int((has & ~inside).sum()):
                columns = both if pairs[j] else none
                views.append(View(has & ~inside, columns, none, fixed & columns))
    return views


# --------------------------------------------------------------------------- rows between two sets

_SAMPLE = 20_000
TOO_ALIKE = (
    "the rows that the study asks for differ from those of earlier runs by fewer than this site "
    "may tell of"
)


@dataclass(frozen=True, eq=False)
class View:
    """Rows whose sums follow from what runs tell, and of which columns.

    Attributes
    ----------
    rows : (n,) bool array
    told : (p,) bool array
        Columns whose sums and squares follow.
    joint : (p,) bool array
        Those whose products with one another do.
    fixed : (p,) bool array
        Those that an earlier run told of these rows, whatever this one does.
    inside : (n,) bool array, optional
        Rows of another run, of which the number and sums of what it tells follow.
    edges : int
        Edges of bins that were told of these rows: columns, too.
    """

    rows: BoolArray
    told: BoolArray
    joint: BoolArray
    fixed: BoolArray
    inside: BoolArray | None = None
    edges: int = 0

    def within(self) -> FloatArray | None:
        """The set of rows as a column of 0 and 1, over the rows of the view."""
        return None if self.inside is None else self.inside[self.rows].astype(float)


def failing(
    x: FloatArray,
    views: Sequence[View],
    asked: BoolArray,
    limits: Limits,
    coded: Sequence[Coded] = (),
    again: BoolArray | None = None,
) -> BoolArray:
    """Columns of which a run tells nothing, for the sake of what it would tell with earlier ones.

    All that runs tell of the rows of a view is judged like one release of all its columns.

    Parameters
    ----------
    x : (n, p) array
        Columns that earlier runs told, or that this one asks for.
    views : sequence of View
    asked : (p,) bool array
    limits : Limits
    coded : sequence of Coded
    again : (p,) bool array, optional
        Columns that were told of the rows of this very run: to leave them out takes nothing back.

    Returns
    -------
    (p,) bool array

    Raises
    ------
    DataError
        The rows themselves depend on a column that was told: no column can be left out.
    """
    known = np.zeros_like(asked) if again is None else again
    hidden, surplus = np.zeros((2, len(asked)), dtype=bool)
    if _too_many(views, asked, asked, known, limits, hidden).any():
        # Those of thousands that may not be told anyway are not compared with one another.
        alone = asked & _alone(x, views, limits, coded)
        surplus = _too_many(views, asked & ~alone, asked, known, limits, hidden)
        hidden = alone | surplus
    finer: dict[tuple[int, int], bool] = {}
    while True:
        free = asked & ~hidden
        told = [view.told & (view.fixed | ~asked | free) for view in views]
        # Of thousands that are asked for few may be told: pairs of the others take room.
        at = np.flatnonzero(np.logical_or.reduce(told))
        bad = np.zeros((len(at), len(at)), dtype=bool)
        for v, view in enumerate(views):
            columns = np.flatnonzero(told[v])
            if not (view.rows.any() and (free[columns].any() or view.inside is not None)):
                continue
            own = _part(x, view.rows, columns)
            joint = view.joint[columns] & (view.fixed | free)[columns]
            inside, inner = view.within(), coded_within(coded, columns)
            # What enough of some rows have enough of all have.
            some = slice(None, None, max(len(own) // _SAMPLE, 1))
            few = None if inside is None else inside[some]
            part = _bad(own[some], joint, few, limits, inner, some.step > 1)
            if some.step > 1 and part.any():
                part = _bad(own, joint, inside, limits, inner)
            if some.step > 1 and limits.max_detection < np.inf:
                for i, j in enumerate(columns.tolist()):
                    if (v, j) not in finer:
                        finer[v, j] = off_grid(own[:, i], limits.min_records) is not None
                    part[i, i] |= finer[v, j]
                part[: len(columns), : len(columns)] |= _of_one(own, joint, limits)
            if view.inside is not None:
                with_rows, part = part[-1, :-1], part[:-1, :-1]
                if (with_rows & ~free[columns]).any():
                    raise DataError(
                        f"{TOO_ALIKE}: ask for the rows of an earlier run", public=TOO_ALIKE
                    )
                part = part | np.diag(with_rows)
            places = np.searchsorted(at, columns)
            bad[np.ix_(places, places)] |= part
        left = free[at]
        alone = left & ((bad & ~left).any(axis=1) | np.diagonal(bad))
        if not alone.any():
            pairs = bad & left & left[:, None]
            if not pairs.any():
                return hidden | _too_many(views, free, asked, known, limits, surplus)
            # Of those that are asked for together the worst gives way, the last of equal ones.
            faults = pairs.sum(axis=0)
            alone[len(faults) - 1 - int(np.argmax(faults[::-1]))] = True
        hidden[at[alone]] = True


def _part(x: FloatArray, rows: Mask, columns: IntArray) -> FloatArray:
    """Some rows of some columns, in their order; all of both without a copy."""
    whole = len(columns) == x.shape[1] and bool(rows.all())
    return x if whole else x[np.ix_(rows, columns)]


def _side_by_side(columns: Sequence[FloatArray], n_rows: int) -> FloatArray:
    """Columns as a table; the table itself where the first ones are all of it, in its order."""
    whole = columns[0].base if columns else None
    if whole is not None and whole.ndim == 2 and len(whole) == n_rows and whole.flags.c_contiguous:
        first, more = columns[: whole.shape[1]], columns[whole.shape[1] :]
        own = [part.__array_interface__ for part in whole.T]
        there = [one.__array_interface__ for one in first] == own
        if there and (not more or n_rows > AT_ONCE):  # short ones are quicker in one piece
            return side_by_side(whole, more) if more else whole
    x = np.zeros((n_rows, len(columns)))
    for j, one in enumerate(columns):
        x[:, j] = one
    return x


def _alone(
    x: FloatArray, views: Sequence[View], limits: Limits, coded: Sequence[Coded]
) -> BoolArray:
    """Columns that may not be told of the rows of some view, whatever else is."""
    unsafe = np.zeros(x.shape[1], dtype=bool)
    for view in views:
        columns = np.flatnonzero(view.told)
        if view.rows.any():
            own = _part(x, view.rows, columns)
            unsafe[columns] |= unsafe_columns(
                own, limits=limits, coded=coded_within(coded, columns)
            )
    return unsafe


def _too_many(
    views: Sequence[View],
    free: BoolArray,
    asked: BoolArray,
    again: BoolArray,
    limits: Limits,
    surplus: BoolArray,
) -> BoolArray:
    """Columns that are asked for beyond those of which the rows of a view may tell, the last ones.

    With as many columns as rows the products say what each row is. `surplus` are some of these that
    were found before.
    """
    hidden = surplus.copy()
    for view in views:
        n = int(view.rows.sum())
        # What was told of these rows counts, also where this run tells nothing of it.
        told = view.told & (view.fixed | ~asked | free | again)
        new = np.flatnonzero(told & free & ~again & ~hidden)
        fewest, most = 0, len(new)  # that give way: the more do, the more is allowed
        while fewest < most:
            tried, some = hidden.copy(), (fewest + most) // 2
            tried[new[len(new) - some :]] = True
            # A column that gives way keeps what earlier runs told of it: its mean, at most.
            left = told & (~tried | view.fixed)
            joint = int((told & ~tried & view.joint).sum())
            if limits.allow_columns(n, joint, int(left.sum()) - joint + view.edges):
                most = some
            else:
                fewest = some + 1
        hidden[new[len(new) - fewest :]] = True
    return hidden


def _of_one(x: FloatArray, joint: BoolArray, limits: Limits) -> BoolArray:
    """Pairs of columns that rest on few of many rows, which are not among some of them."""
    found = finer_between(x, limits.min_records)
    alone = np.zeros(x.shape[1], dtype=bool)
    for j, column in enumerate(x.T):  # one at a time, as copies of all are large
        squares = (column - np.nanmean(column)) ** 2
        alone[j] = np.nanmax(squares) > limits.max_share * np.nansum(squares)
    left = np.flatnonzero(joint & ~alone)
    weights = outweighed(x, limits.max_share, left) if len(left) > 1 else None
    if weights is not None:
        heavy = left[np.argsort(np.abs(weights))[-2:]]
        found[np.ix_(heavy, heavy)] = True
    found[np.diag_indices(len(alone))] = alone
    return found


def _bad(
    x: FloatArray,
    joint: BoolArray,
    inside: FloatArray | None,
    limits: Limits,
    coded: Sequence[Coded],
    some: bool = False,
) -> BoolArray:
    """Pairs of columns of which not both may be told, and on the diagonal columns that may not.

    A set of rows within the view is a column of its own, the last one: how many it has is told.
    """
    least, p = limits.min_records, x.shape[1]
    alone = unsafe_columns(x, limits=limits, coded=coded)
    bad = np.zeros((p + (inside is not None),) * 2, dtype=bool)
    bad[:p, :p] = np.diag(alone) | hardly_apart(x, least)
    if limits.max_detection < np.inf:
        bad[:p, :p] |= finer_between(x, least)
    for group in coded:  # levels of one category have nobody in common, as everybody knows
        bad[np.ix_(group.columns, group.columns)] &= np.eye(len(group.columns), dtype=bool)
    places = np.flatnonzero(joint & ~alone)
    unsafe = moment_facts(x[:, places], limits=limits, coded=coded_within(coded, places)).unsafe
    bad[np.ix_(places, places)] |= unsafe
    free = np.flatnonzero(~alone)
    if inside is not None:
        x, joint = np.column_stack([x, inside]), np.append(joint, False)
        free = np.append(free, p)
        bad[p, :p] = bad[:p, p] = _like_products(x, joint & ~np.append(alone, True), least)
    coded = coded_within(coded, free)
    sets = left_over(x[:, free], least, coded)
    sets += hanging_together(x[:, free], least, joint[free], coded)
    if limits.max_detection < np.inf:
        sets += equations(x[:, free], joint[free], limits, coded, some)
    for columns in sets:
        bad[np.ix_(free[columns], free[columns])] = True
    bad[np.diag_indices(p)] = alone
    return bad


def _like_products(x: FloatArray, joint: BoolArray, least: int) -> BoolArray:
    """Columns of which one, or a product of two, is the last one in all but few records."""
    p, last = x.shape[1] - 1, x[:, -1]
    found = np.zeros(p, dtype=bool)
    marks: dict[tuple[int, ...], FloatArray] = {}
    marks |= {(j,): x[:, j] for j in range(p) if len(np.unique(x[:, j][~np.isnan(x[:, j])])) == 2}
    places = [columns[0] for columns in marks if joint[columns[0]]]
    marks |= {(i, j): x[:, i] * x[:, j] for i, j in itertools.combinations(places, 2)}
    for columns, mark in marks.items():
        few = (np.nan_to_num(mark) != last).sum()
        if min(few, len(last) - few) < least:
            found[list(columns)] = True
    return found

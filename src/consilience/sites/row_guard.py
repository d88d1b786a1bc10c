"""Which rows a run uses, so that it differs from no earlier run by few (`privacy.row_history`).

The rows of all releases on a data set are kept in the home, for ever and whichever run they belong
to; so is which rows a run uses, so that the same ones are read again after a restart.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import DataError
from consilience.methods.base import SiteData
from consilience.methods.phases.holdout import parts_of_table
from consilience.privacy.row_history import UNSEEN, Atoms, RowHistory, row_keys
from consilience.sites import alike_columns
from consilience.sites.home import Home
from consilience.sites.loaded import AllRows, Everyone
from consilience.sites.policy import Policy
from consilience.sites.row_differences import covering, failing
from consilience.wire.codec import digest
from consilience.wire.moment_facts import Coded, coded_within

KEPT = "rows of all releases"
"""Name under which they are kept."""
HIDDEN = "_hidden"
"""Ledger of the columns of which a run is told nothing."""
_SECRET = 16

Mask = NDArray[np.bool_]
IntArray = NDArray[np.int64]
_ENOUGH = {False: 0.75, True: 0.5}
"""Share of the wanted rows that an earlier run's rows must be to be used again: where only new rows
wait for it, and where the rows would be parted once more."""


class _Told(NamedTuple):
    """Columns of a study that earlier runs told.

    Attributes
    ----------
    names : list of str
    x : (n_read, p) array
    sets : (s, p) bool array
        Whether a column was told over a set of rows.
    coded : tuple of Coded
    """

    names: list[str]
    x: NDArray[np.float64]
    sets: Mask
    coded: tuple[Coded, ...]


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

    def rows_to_use(self, data: SiteData, all_rows: AllRows, home: Home) -> Mask:
        """Choose the rows that a run uses, and note durably that it does.

        Parameters
        ----------
        data : SiteData
            The rows that the study wants.
        all_rows : callable
        home : Home

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
        of = (data.content_hash, everyone.names, secret)
        if self._of != of:
            self._of, self._keys = of, row_keys(everyone.content(), secret)
            self._names = everyone.names
            self._placed = np.empty(0, dtype=np.uint64)
        self._place(history)
        parts = np.zeros(data.n_read, dtype=np.int64)
        if self._policy.foreign_models:  # without, no method tells anything of a part
            parts = parts_of_table(data, everyone.entity)
        else:
            wanted = self._varied(wanted, history, self._told_before(data, everyone, kept))
        chosen, after = self._admit(history, wanted, (everyone.classes, parts))
        if not chosen.any():
            sentence = (
                "the rows that the study asks for differ from those of earlier runs by fewer than "
                "this site may tell of"
            )
            raise DataError(f"{sentence}: ask for the rows of an earlier run", public=sentence)
        if after is not history:
            noted = {"secret": secret, "names": list(everyone.names), **after.to_plain()}
            home.write_kept(self._policy.data_id, KEPT, {**kept, **noted})
        return chosen

    def _place(self, history: RowHistory) -> None:
        """Find the rows of the table in a history, unless it has the rows of the last one."""
        if not np.array_equal(self._placed, history.keys) or not len(history.keys):
            self._placed, self._places = history.keys, history.places(self._keys)

    def _admit(
        self, history: RowHistory, wanted: Mask, cells: tuple[IntArray, ...] = ()
    ) -> tuple[Mask, RowHistory]:
        least = self._policy.min_records
        return history.admit(self._keys, wanted, cells, least=least, places=self._places)

    def _told_before(self, data: SiteData, everyone: Everyone, kept: Mapping[str, Any]) -> _Told:
        """Columns of a study that earlier runs told, and over which sets of rows."""
        told = dict(kept.get("told", {}))
        names = [name for name in everyone.prepared if told.get(name)]
        places = np.array([data.feature_names.index(name) for name in names], dtype=np.int64)
        x = np.zeros((data.n_read, len(names)))
        for j, name in enumerate(names):
            x[:, j] = everyone.prepared[name][1]
        sets = np.zeros((1 + max((max(told[n]) for n in names), default=-1), len(names)), bool)
        for j, name in enumerate(names):
            sets[told[name], j] = True
        return _Told(names, x, sets, coded_within(data.coded, places))

    def _varied(self, wanted: Mask, history: RowHistory, told: _Told) -> Mask:
        """Of the rows that a run wants, those that it may use for the sake of earlier runs.

        Where an atom is parted the rows that stay out take others with them, so that moments of
        both parts may leave. New rows wait until theirs may.
        """
        if not told.names:
            return wanted
        chosen, _ = self._admit(history, wanted)
        atom, n_atoms = history.of_rows(self._places), history.sets.shape[1]
        taken = np.bincount(atom[chosen], minlength=n_atoms)
        whole = history.whole(atom)
        parted = (taken > 0) & ~(whole & (taken == np.bincount(atom, minlength=n_atoms)))
        parted[UNSEEN] = False
        new = chosen & (atom == UNSEEN)
        waits = bool(new.any()) and self._unlike(told, new, chosen)
        if not parted.any() and not waits:
            return wanted
        earlier = np.zeros_like(wanted)
        for s in np.flatnonzero(told.sets.any(axis=1)):
            rows = history.sets[s][atom]
            if whole[history.sets[s]].all() and not (rows & ~wanted).any():
                earlier = rows if rows.sum() > earlier.sum() else earlier
        if earlier.sum() >= _ENOUGH[bool(parted.any())] * wanted.sum():
            return earlier
        order = np.argsort(self._keys, kind="stable")
        out = np.zeros_like(wanted)
        for a in np.flatnonzero(parted):
            self._part(order[atom[order] == a], wanted, out, told, history.sets[:, a])
        if waits and (wanted & ~out & ~new).sum() >= _ENOUGH[False] * wanted.sum():
            out |= atom == UNSEEN
        return wanted & ~out

    def _part(self, rows: IntArray, wanted: Mask, out: Mask, told: _Told, sets: Mask) -> None:
        """Note in `out` which rows of an atom stay out, besides those that are not wanted."""
        columns = np.flatnonzero(told.sets[sets[: len(told.sets)]].any(axis=0))
        coded = coded_within(told.coded, columns)
        order, limits = np.arange(len(rows)), self._policy.limits
        out[rows[covering(told.x[np.ix_(rows, columns)], order, limits, coded)]] = True
        # One row that is not wanted and nine look the same.
        short = limits.min_records - int((~wanted[rows] & ~out[rows]).sum())
        out[rows[wanted[rows] & ~out[rows]][: max(short, 0)]] = True

    def _unlike(self, told: _Told, rows: Mask, chosen: Mask) -> bool:
        """Whether some moment that leaves of all chosen rows may not leave of some of them."""
        groups = np.where(rows, 0, -1)
        columns = np.ones((1, len(told.names)), dtype=bool)
        limits = self._policy.limits
        return bool(failing(told.x, groups, columns, chosen, limits, told.coded).any())

    def hide_columns(
        self, run: str, data: SiteData, all_rows: AllRows, home: Home, used: Mask
    ) -> None:
        """Choose the prepared columns of which a run is told nothing, and note the others.

        Called after `rows_to_use`, which knows the rows. Where models of others are granted two
        such columns, or two sets of rows, are no way in that is not there anyway.

        Parameters
        ----------
        run : str
        data : SiteData
            As for `rows_to_use`.
        all_rows : callable
        home : Home
        used : (n_read,) bool array
            What `rows_to_use` gave.
        """
        if self._policy.foreign_models:
            return
        everyone = all_rows(self._names)
        prepared = everyone.prepared
        known = home.kept(self._policy.data_id, alike_columns.KEPT) or {}
        found, after = alike_columns.hidden(prepared, self._keys, known, self._policy.min_records)
        home.write_kept(self._policy.data_id, alike_columns.KEPT, after)
        said = {name: "it hardly differs from another one" for name in found}
        kept = home.kept(self._policy.data_id, KEPT) or {}
        history = RowHistory.from_plain(kept)
        self._place(history)
        atom = history.of_rows(self._places)
        this = np.zeros(history.sets.shape[1], dtype=bool)
        this[atom[used]] = True
        told = self._told_before(data, everyone, kept)
        number = int(np.argmax((history.sets == this).all(axis=1)))
        # Of the same columns, sets and table the same comes out: it takes a while where rows are
        # many, and is kept.
        relevant = sorted({number, *np.flatnonzero(told.sets.any(axis=1)).tolist()})
        key = digest(f"{data.content_hash} {told.names} {relevant}".encode())[:20]
        judged = dict(kept.get("judged", {}))
        if key not in judged:
            judged[key] = self._differing(told, history.sets, this, atom, used)
        for name in judged[key]:
            said.setdefault(
                name, "the rows by which this run differs from an earlier one are too much alike"
            )
        lists = {name: list(map(int, of)) for name, of in dict(kept.get("told", {})).items()}
        for name in prepared:
            if name not in said and number not in lists.setdefault(name, []):
                lists[name].append(number)
        noted = {**kept, "told": lists, "judged": judged}
        if noted != kept:
            home.write_kept(self._policy.data_id, KEPT, noted)
        for name, why in said.items():
            home.log("read", run=run, said=f"Nothing of column {name} is told: {why}.")
        if said:
            home.write_ledger(HIDDEN, {**home.ledger(HIDDEN), run: list(said)})

    def _differing(self, told: _Told, sets: Mask, this: Mask, atom: Atoms, used: Mask) -> list[str]:
        """Columns that are not told for the sake of rows by which this run differs from others."""
        if not told.names:
            return []
        # (r, a) sets of rows that matter, this one last; (r, p) who tells what of them.
        rows = np.vstack([sets[: len(told.sets)], this])
        tells = np.vstack([told.sets, np.ones(len(told.names), dtype=bool)])
        kinds, kind = np.unique(rows[tells.any(axis=1)].T, axis=0, return_inverse=True)
        if len(kinds) <= 1 + (not kinds[0].any()):
            return []
        columns = (kinds.astype(int) @ tells[tells.any(axis=1)]) > 0
        limits = self._policy.limits
        groups = kind.ravel()[atom]
        bad = failing(told.x, groups, columns, used, limits, told.coded)
        return [name for name, hidden in zip(told.names, bad, strict=True) if hidden]

    def hidden(self, run: str, home: Home) -> tuple[str, ...]:
        """Columns of which a run is told nothing."""
        return tuple(home.ledger(HIDDEN).get(run, ()))

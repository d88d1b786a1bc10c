"""Which rows a run uses, so that it differs from no earlier run by few (`privacy.row_history`).

The rows of all releases on a data set are kept in the home, for ever and whichever run they belong
to; so is which rows a run uses, so that the same ones are read again after a restart.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import DataError
from consilience.methods.base import SiteData
from consilience.methods.phases.holdout import parts_of_table
from consilience.privacy.row_history import RowHistory, row_keys
from consilience.sites import alike_columns
from consilience.sites.home import Home
from consilience.sites.loaded import AllRows
from consilience.sites.policy import Policy

KEPT = "rows of all releases"
"""Name under which they are kept."""
HIDDEN = "_hidden"
"""Ledger of the columns of which a run is told nothing."""
_SECRET = 16

Mask = NDArray[np.bool_]


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
        if not np.array_equal(self._placed, history.keys) or not len(history.keys):
            self._placed, self._places = history.keys, history.places(self._keys)
        parts = np.zeros(data.n_read, dtype=np.int64)
        if self._policy.foreign_models:  # without, no method tells anything of a part
            parts = parts_of_table(data, everyone.entity)
        chosen, after = history.admit(
            self._keys,
            wanted,
            (everyone.classes, parts),
            least=self._policy.min_records,
            places=self._places,
        )
        if not chosen.any():
            sentence = (
                "the rows that the study asks for differ from those of earlier runs by fewer than "
                "this site may tell of"
            )
            raise DataError(f"{sentence}: ask for the rows of an earlier run", public=sentence)
        if after is not history:
            noted = {"secret": secret, "names": list(everyone.names), **after.to_plain()}
            home.write_kept(self._policy.data_id, KEPT, noted)
        return chosen

    def hide_columns(self, run: str, all_rows: AllRows, home: Home) -> None:
        """Choose the prepared columns of which a run is told nothing, and note the others.

        Called after `rows_to_use`, which knows the rows. Where models of others are granted two
        such columns are no way in that is not there anyway.
        """
        if self._policy.foreign_models:
            return
        kept = home.kept(self._policy.data_id, alike_columns.KEPT) or {}
        prepared = all_rows(self._names).prepared
        found, after = alike_columns.hidden(prepared, self._keys, kept, self._policy.min_records)
        home.write_kept(self._policy.data_id, alike_columns.KEPT, after)
        for name in found:
            said = f"Nothing of column {name} is told: it hardly differs from another one."
            home.log("read", run=run, said=said)
        if found:
            home.write_ledger(HIDDEN, {**home.ledger(HIDDEN), run: list(found)})

    def hidden(self, run: str, home: Home) -> tuple[str, ...]:
        """Columns of which a run is told nothing."""
        return tuple(home.ledger(HIDDEN).get(run, ()))

"""What a site told of its rows by bins, over all runs, and the edges that it may tell now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.describe.kernels import SPACING, common_gaps, cuts_to_tell
from consilience.protocol.method import SiteContext, SiteData
from consilience.wire.codec import digest

_SEPARATOR = "\x1f"
"""Between the parts of a name under which edges are kept."""


class Memory:
    """What a site told of its rows, over all runs, that later ones must go with.

    Attributes
    ----------
    rows : str
        Digest of the rows of this run; empty where a site knows none again.
    others : bool
        Whether bins were told of other rows.
    told : dict of str to list of float
        Edges that were told, by column.
    """

    def __init__(self, rows: str, row_set: int, order: IntArray, kept: Mapping[str, Any]) -> None:
        self.rows, self._order, self._number = rows, order, row_set
        self._binned, self._row_set = str(kept.get("rows", "")), int(kept.get("row_set", -1))
        self.others = self._binned not in ("", rows)
        self.told, self._tried = (
            {name: list(edges) for name, edges in dict(kept.get(part, {})).items()}
            for part in ("told", "tried")
        )
        self._gaps: dict[str, dict[str, bytes]] = dict(kept.get("gaps", {}))

    def has_bins(self, time: str) -> bool:
        """Whether edges of a column were told, without regard to events."""
        return bool(self.told.get(time))

    def has_curve(self, time: str) -> bool:
        """Whether a curve of a time was told."""
        return any(name.split(_SEPARATOR)[0] == time for name in self.told if _SEPARATOR in name)

    @classmethod
    def of(cls, data: SiteData, site: SiteContext) -> Memory:
        """What was kept of the data set, to be asked of the rows of this run."""
        marks = np.arange(data.n_rows) if data.marks is None else data.marks
        rows = "" if data.marks is None else digest(np.sort(marks).tobytes())
        number = -1 if data.other_runs is None else data.other_runs.row_set
        return cls(rows, number, np.argsort(marks), site.kept or {})

    def gaps(self, names: Sequence[str], missing: BoolArray, least: int) -> BoolArray:
        """Rows that count as without a value, as they did in earlier runs on these rows."""
        own, n = dict(self._gaps.get(self.rows, {})), len(missing)
        packed = list(dict.fromkeys(own.values()))
        told = []
        for line in packed:
            rows = np.zeros(n, dtype=bool)
            bits = np.unpackbits(np.frombuffer(line, dtype=np.uint8), count=n)
            rows[self._order] = bits.astype(bool)
            told.append(rows)
        before = [packed.index(own[name]) if name in own else -1 for name in names]
        found = common_gaps(missing, least, told, before)
        for name, rows in zip(names, found.T, strict=True):
            if rows.any() and self.rows:
                own.setdefault(name, np.packbits(rows[self._order]).tobytes())
        if own:
            self._gaps = {**self._gaps, self.rows: own}
        return found

    def apart(self, name: str, edges: FloatArray, sd: float) -> FloatArray:
        """Edges that are told already, or far enough from all that were asked for."""
        tried, found = list(self._tried.get(name, [])), []
        for edge in edges:
            near = [abs(edge - other) for other in tried]
            if edge in tried or not near or min(near) >= SPACING * sd * (1 - 1e-9):
                found.append(edge)
                tried.append(edge)
        self._tried[name] = sorted({float(edge) for edge in tried})
        return np.asarray(found, dtype=float)

    def leaves_few(self, name: str, values: FloatArray, least: int) -> bool:
        """Whether edges that were told leave a bin of few: not while rows and values are theirs."""
        told = self.told.get(name, [])
        below = np.searchsorted(np.sort(values), told, side="left")
        # Where one record may be told of, a bin may be empty.
        return (
            least > 1
            and bool(told)
            and int(np.diff(below, prepend=0, append=len(values)).min()) < least
        )

    def parts(
        self, of: tuple[str, ...], rows: Sequence[BoolArray], least: int
    ) -> list[tuple[str, ...]] | None:
        """Names of the parts of a curve, whatever levels are called; None if another one was told.

        Parameters
        ----------
        of : tuple of str
            Time, event, and grouping if there is one.
        rows : sequence of (n,) bool arrays
            Of each part.
        least : int
            Where one record may be told of, other curves do not matter.
        """
        names = [(*of, digest(np.packbits(part[self._order]).tobytes())) for part in rows]
        told = {tuple(name.split(_SEPARATOR)) for name in self.told if _SEPARATOR in name}
        before = {one for one in told if one[0] == of[0]}
        return names if least <= 1 or before <= set(names) else None

    def cuts(
        self,
        of: tuple[str, ...],
        values: FloatArray,
        edges: FloatArray,
        parted: bool,
        room: int,
        site: SiteContext,
    ) -> list[float] | None:
        """Edges that are told of some values, and noted; None where no bins are.

        Parameters
        ----------
        of : tuple of str
            A column; or a part of a curve.
        values : (n,) array
        edges : (e,) array
            In the order in which they are tried.
        parted : bool
            Whether other runs told of some of the rows only.
        room : int
            Further edges that may be told.
        site : SiteContext
        """
        least, name = site.limits.min_records, _SEPARATOR.join(of)
        if self.others or self.leaves_few(name, values, least):
            return None
        before, cuts = self.told.get(name, []), list(edges)
        if parted:
            wanted = edges[np.isin(edges, before)]
        else:
            wanted = self.apart(name, edges, float(values.std())) if least > 1 else edges
        if least > 1:
            cuts = cuts_to_tell(
                values,
                wanted,
                least=least,
                max_share=site.limits.max_share,
                told=before,
                most=len(before) + room,
            )
        self.add(name, edges, cuts)
        return None if parted and not len(cuts) else cuts

    def add(self, name: str, edges: FloatArray, cuts: Sequence[float]) -> None:
        """Note what is told now."""
        self._binned, self._row_set = self.rows, self._number
        told = set(self.told.get(name, [])) | {float(cut) for cut in cuts if cut in edges}
        self.told[name] = sorted(told)

    def keep(self, site: SiteContext) -> None:
        """Keep it, for all later runs."""
        if not self.rows:
            return
        plain = {
            part: {name: tuple(edges) for name, edges in of.items()}
            for part, of in (("told", self.told), ("tried", self._tried))
        }
        bins = {"rows": self._binned, "row_set": self._row_set, **plain}
        site.keep({**bins, "gaps": self._gaps})

"""Are the classes more than a division of one cloud? What a site computes of it, and tells.

Each half's partition of the rows is judged on the other half, against draws of one cloud and
against columns that have nothing to do with one another: see ``clustering.kernels.one_cloud``. Of
each comparison one standardised number leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.estimators.local_models import LocalModel, entries_of
from consilience.clustering.kernels import one_cloud
from consilience.clustering.kernels.ensemble import assign
from consilience.clustering.kernels.one_cloud import Compared
from consilience.numerics.random import stream
from consilience.wire.disclosure import Released, rounded

COMPARISONS = ("apart", "related")
_MOST_NORMALS = 8e6  # that are held at once; half of them stand for the rows that are judged
_FEWEST = 5  # rows of a class that is judged, whatever a policy allows


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a site as a model sees them, with what draws of them are made of.

    Attributes
    ----------
    rows : (n, p) array
        Numbers, or codes with -1 where missing.
    kind : str
        "markov-mixture", "latent-class", or "" for numbers.
    sizes : tuple of int
        Of codes: states, or levels of each column.
    drawn : (n0,) int array
        Rows that draws stand for.
    normals : (D, n, p) array
        Of the rows in `drawn`; of others nothing is kept.
    """

    rows: NDArray[Any]
    kind: str
    sizes: tuple[int, ...]
    drawn: IntArray
    normals: FloatArray

    @classmethod
    def of(cls, rows: NDArray[Any], kind: str, sizes: tuple[int, ...], seed: int) -> Rows:
        """Draw what all partitions share."""
        rng = stream(seed, "one cloud")
        n, p = rows.shape
        most = min(2 * one_cloud.MOST_DRAWN, int(_MOST_NORMALS / (one_cloud.N_DRAWS * p)))
        drawn = np.sort(rng.permutation(n)[:most])
        return cls(
            rows, kind, sizes, drawn, rng.standard_normal((one_cloud.N_DRAWS, len(drawn), p))
        )

    def compare(
        self,
        which: IntArray,
        label: Callable[[NDArray[Any]], IntArray],
        least: int,
        another: Callable[[NDArray[Any]], IntArray] | None = None,
    ) -> dict[str, Compared]:
        """Statistics of a partition on some rows, beside those of draws of them.

        Parameters
        ----------
        which : int array
            Rows that the partition has not seen.
        label : callable
            Class of each of some rows.
        least : int
            Rows of smaller classes are left out, of draws too.
        another : callable, optional
            The same of a partition of another split.

        Returns
        -------
        dict
            "apart", "related", and of numbers "between"; empty for too few rows, or one class.
        """
        place = np.searchsorted(self.drawn, which)
        held = np.isin(which, self.drawn)
        # Rows that draws stand for come first: draws have their gaps.
        which, place = np.concatenate([which[held], which[~held]]), place[held]
        rows, normals = self.rows[which], self.normals[:, place]
        if len(which) < 2 * least or len(place) < 2 * least:
            return {}
        shrink = float(np.sqrt(len(place) / len(rows)))
        labels = label(rows)
        if (np.bincount(labels) >= least).sum() < 2:
            return {}
        found = self._statistics(self._seen(rows, rows)[None], labels[None], least)
        # One cloud, and columns that have nothing to do with one another.
        apart: NDArray[Any]
        related: NDArray[Any]
        placed: FloatArray | None = None  # rows and draws of them in places of an order
        drawn_places = np.empty(0)
        if not self.kind:
            placed = rows
            apart = drawn_places = one_cloud.cloud_draws(rows, normals)
            related = one_cloud.shuffled_draws(rows, normals)
        else:
            loose = one_cloud.shuffled_draws(np.where(rows < 0, np.nan, rows), normals)
            related = np.where(np.isnan(loose), -1, loose).astype(np.int64)
            if self.kind == "markov-mixture":
                apart = one_cloud.chain_draws(rows, self.sizes[0], normals)
            else:
                placed = one_cloud.level_scores(rows, self.sizes)
                drawn_places = one_cloud.cloud_draws(placed, normals)
                apart = one_cloud.levels_of(drawn_places, rows, placed)
        compared = {}
        for name, drawn in (("apart", apart), ("related", related)):
            flat, seen = drawn.reshape(-1, drawn.shape[2]), self._seen(drawn, rows)
            classes = label(flat).reshape(len(drawn), -1)
            told, of_rows = [self._statistics(seen, classes, least)], [labels]
            if name == "apart":
                if another is not None:
                    others = another(flat).reshape(len(drawn), -1)
                    told.append(self._statistics(seen, others, least))
                    of_rows.append(another(rows))
                if placed is not None:
                    scores = one_cloud.scored(drawn_places, placed)
                    known = one_cloud.scored(placed, placed)
                    told = one_cloud.at_correlation(told, scores, known, of_rows)
                if not self.kind:
                    cut = one_cloud.clipped(drawn_places, rows)
                    between = one_cloud.share_between(cut, classes, least)
                    cut = one_cloud.clipped(rows, rows)[None]
                    share = one_cloud.share_between(cut, labels[None], least)
                    compared["between"] = Compared(float(share[0]), between, shrink)
            compared[name] = Compared(float(found[0]), told[0], shrink, *told[1:])
        return compared

    def _seen(self, tables: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
        """What statistics look at: of numbers their ranks."""
        return tables if self.kind else one_cloud.scored(tables, rows)

    def _statistics(self, tables: NDArray[Any], labels: IntArray, least: int) -> FloatArray:
        """Separation of each table, or information."""
        if not self.kind:
            return one_cloud.separation(tables, labels, least)
        told = []
        for rows, classes in zip(tables, labels, strict=True):
            kept = np.bincount(classes)[classes] >= least
            entries = entries_of(rows[kept], self.kind, self.sizes)
            told.append(one_cloud.information(entries, int(kept.sum()), classes[kept]))
        return np.array(told)


def evidence(
    rows: Rows,
    parts: Sequence[IntArray],
    partitions: Sequence[tuple[Sequence[LocalModel], FloatArray, FloatArray]],
    outside: Sequence[NDArray[np.bool_]],
    least: int,
    step: Callable[[int], float],
    rng: np.random.Generator,
) -> dict[str, Released]:
    """What a site tells of the partitions of all halves, by field of the message.

    Parameters
    ----------
    rows : Rows
    parts : sequence of int array
        Rows of each half: first and second one of each pair, pair by pair.
    partitions : sequence of (models, features, centres)
        What the ensembles of these halves make of label tuples.
    outside : sequence of (n,) bool array
        Rows that each ensemble leaves out.
    least : int
        Records that any class must have.
    step : callable
        Rounding step of a figure that rests on a number of records.
    rng : numpy Generator
        Of the offsets of what scores are rounded to.
    """
    least = max(least, _FEWEST)
    found: dict[str, list[Compared]] = {name: [] for name in (*COMPARISONS, "between")}
    labels = [
        partial(_final, models, features, centres) if models and len(centres) > 1 else None
        for models, features, centres in partitions
    ]
    for i, (label, left_out) in enumerate(zip(labels, outside, strict=True)):
        if label is None:
            continue
        other = parts[i + 1 if i % 2 == 0 else i - 1]
        other = other[~left_out[other]]
        another = labels[(i + 2) % len(labels)] if len(labels) > 2 else None
        for name, one in rows.compare(other, label, least, another).items():
            found[name].append(one)
    averages = {
        name: one_cloud.averaged(parts, by_chance=name == "related")
        for name, parts in found.items()
    }
    # One record, whatever it holds, moved the score of one half of m rows by up to 9 / sqrt(m) in
    # the tables tried, and it is in every other half only: the step is about half of that.
    judged = min((len(part) for part in parts), default=0)
    coarse = max(step(least), step(isqrt(judged) // 4))
    told = {}
    for name in COMPARISONS:
        # Rounding adds its own error. Without an offset sums over sites of one step would take few
        # values: at a level of .05 three sites would have .02 or .08.
        score = averages[name].score / np.sqrt(1 + coarse**2 / 12)
        score, offset = float(np.clip(score, coarse / 2 - 10, 10 - coarse / 2)), rng.random()
        n_records = 0 if np.isnan(score) else least
        told[name] = rounded(score, n_records=n_records, step=coarse, offset=offset)
    between = averages["between"]
    said = between.said
    shares = {"between": between.found, "cloud_between": np.nanmean(between.draws) if said else 0.0}
    for name, share in shares.items():
        told[name] = rounded(float(share), n_records=least if said else 0, step=step(least))
    return told


def _final(
    models: Sequence[LocalModel], features: FloatArray, centres: FloatArray, rows: NDArray[Any]
) -> IntArray:
    labels = np.stack([m.label(rows) for m in models], axis=1)
    return assign(labels, [m.n_classes for m in models], features, centres)

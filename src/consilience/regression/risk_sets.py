"""Which risk sets a site that protects records tells of in a Cox regression.

Follow-up ends where fewer people than a policy asks for are at risk: later events count as not
seen. Whether it has ended at a time is known just before that time, so the likelihood of what is
left is one of the same hazards (a stopping time: Andersen, Borgan, Gill and Keiding, *Statistical
Models Based on Counting Processes*, 1993, section III.2). Who is at risk last has no other part in
any sum than being at risk until then.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from consilience.arrays import FloatArray
from consilience.regression.kernels import Piece, Rows

_ROUNDING = 1e-9
_DEPENDENT = 1e-10
_LEAST = 0.25
"""Events that must tell of any columns, in `least` people of the policy, ..."""
_SHARE = 0.2
"""... and in events of the site."""


def at_risk(rows: Rows) -> FloatArray:
    """People at risk at each row's time, or fewer where some earlier time has fewer, (n,).

    Those with risks r_i before any coefficient, that is their weights times ``exp(offset)``, count
    as ``(sum r_i)^2 / sum r_i^2`` people, which is their number where all risks are one. Of people
    with tiny risks those beside them would otherwise be told as if they were alone.
    """
    time = np.asarray(rows.time, dtype=float)
    order = np.argsort(-time, kind="stable")
    risk = np.ones(len(time)) if rows.weight is None else rows.weight / rows.weight.max()
    if rows.offset is not None:
        risk = risk * np.exp(rows.offset - rows.offset.max())
    risk = risk[order]
    last = np.searchsorted(-time[order], -time[order], side="right") - 1
    whole, squares = np.cumsum(risk)[last], np.cumsum(risk**2)[last]
    people = np.where(squares > 0, whole**2 / np.where(squares > 0, squares, 1.0), 0.0)
    found = np.empty(len(time))
    found[order] = np.minimum.accumulate(people[::-1])[::-1]
    return found


def until_few(rows: Rows, least: int) -> Rows:
    """The same rows, of which those with fewer than `least` people at risk are seen no more.

    They have no event and the time infinity: what is summed cannot depend on what they had.
    """
    seen = at_risk(rows) >= least * (1 - _ROUNDING)
    time, y = np.asarray(rows.time, dtype=float), np.where(seen, rows.y, 0.0)
    return dataclasses.replace(rows, time=np.where(seen, time, np.inf), y=y)


def events_that_tell(rows: Rows, piece: Piece) -> float:
    """How many events over people who differ as all rows do would tell as much of the columns.

    The least eigenvalue of ``S^-1/2 C S^-1/2``, with C the curvature by weights of mean 1 and S the
    covariance of the columns. At no coefficients it is about the number of events. At steep ones
    nearly all who are at risk count for nothing: then scores are sums over few events.

    Parameters
    ----------
    rows : Rows
    piece : Piece
        At the coefficients.
    """
    x = (rows.design.x - rows.design.centre) / rows.design.scale
    covariance = np.cov(x, rowvar=False, bias=True).reshape(x.shape[1], -1)
    lengths = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    lengths[lengths == 0] = 1.0
    values, vectors = np.linalg.eigh(covariance / np.outer(lengths, lengths))
    kept = values > _DEPENDENT * max(values[-1], 0.0)
    turn = vectors[:, kept] / np.sqrt(values[kept]) / lengths[:, None]
    unit = 1.0 if rows.weight is None else float(rows.weight.mean())
    inside = turn.T @ piece.curvature @ turn / unit
    if not (kept.any() and np.isfinite(inside).all()):
        return 0.0
    return float(np.linalg.eigvalsh(inside)[0])


def is_steep(rows: Rows, piece: Piece, least: int) -> bool:
    """Whether scores at these coefficients are sums over too few of the events."""
    events = int((rows.y == 1).sum())
    return events_that_tell(rows, piece) < max(_LEAST * least, _SHARE * events)

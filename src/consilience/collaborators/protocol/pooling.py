"""One refit for each group: from cross-products where the method is linear, else from rows.

Source: Ye, Ghanadan and Ding (2022), "pooled" use. Least squares needs the cross-products of a
constant, the columns and the response, and nothing else; sums over sites give the fit of the pooled
rows exactly. Other methods need the rows, which leave a site only where its policy allows values
for each record.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.collaborators.protocol.messages import PoolRequest, Settings
from consilience.collaborators.protocol.partners import Partners
from consilience.learners.candidates import build
from consilience.protocol.method import Ask, CoordinatorContext, Replies

Members = dict[str, tuple[tuple[Any, ...], IntArray]]


def refit(
    ctx: CoordinatorContext,
    s: Settings,
    partners: Partners,
    labels: IntArray,
    members: Members,
) -> Generator[Ask, Replies, Members]:
    """Replace the models of each group by one refit, where every member sends what it needs."""
    best = {g: _best(partners, labels == g) for g in np.unique(labels)}
    for what, step in (("moments", "pool-moments"), ("rows", "pool-rows")):
        groups = [g for g, c in best.items() if _needs(s, c) == what]
        to = tuple(x for x, g in zip(partners.sites, labels, strict=True) if g in groups)
        if not to:
            continue
        request = PoolRequest(what=what, levels=s.levels)
        sizes = {x: {"n": int(n)} for x, n in zip(partners.sites, partners.sizes, strict=True)}
        replies = ctx.require((yield Ask(step, request, to=to, known=sizes)), at_least=0)
        for g in groups:
            sites = [x for x, k in zip(partners.sites, labels, strict=True) if k == g]
            given = [replies.get(x) for x in sites]
            model = _model(ctx, s, best[g], given)
            if model is None:
                ctx.note(
                    f"Group {g} has no pooled refit, since not all of its sites sent what it "
                    "needs, or the refit failed: its models are averaged instead."
                )
                continue
            size = np.array([partners.sizes[labels == g].sum()], dtype=np.int64)
            members = {**members, **{x: ((model,), size) for x in sites}}
    return members


def _best(partners: Partners, group: NDArray[np.bool_]) -> int:
    """Candidate with the smallest held-out loss over the sites of a group."""
    chosen = [x for x, inside in zip(partners.sites, group, strict=True) if inside]
    losses = np.stack([np.asarray(partners.replies[x].losses.value) for x in chosen])
    total = (losses * partners.sizes[group][:, None]).sum(axis=0)
    if np.isnan(total).all():
        return int(partners.replies[chosen[0]].chosen.value[0])
    return int(np.nanargmin(total))


def _needs(s: Settings, candidate: int) -> str:
    plain = s.candidates[candidate] == "linear" and not s.levels and not s.standardize
    return "moments" if plain else "rows"


def _model(
    ctx: CoordinatorContext, s: Settings, candidate: int, replies: list[Any]
) -> dict[str, Any] | None:
    """One refit; None where a site sent nothing, or the rows cannot be fitted."""
    if any(reply is None for reply in replies):
        return None
    if _needs(s, candidate) == "moments":
        parts = [np.asarray(reply.products.value) for reply in replies]
        return _least_squares(parts) if all(part.size for part in parts) else None
    parts = [np.asarray(reply.rows.value) for reply in replies]
    try:
        return _fit(s, candidate, np.concatenate(parts), ctx)
    except Exception:  # noqa: BLE001  whatever is wrong with the rows, there is another way
        return None


def _least_squares(products: list[FloatArray]) -> dict[str, Any]:
    """Fit from summed cross-products of (1, x, y), after centring, which keeps digits."""
    total = np.sum(products, axis=0)
    n, first = total[0, 0], total[0]
    centred = (total - np.outer(first, first) / n)[1:, 1:]
    scale = np.sqrt(np.maximum(np.diagonal(centred)[:-1], 0.0))
    scale = np.where(scale > 0, scale, 1.0)
    inner = centred[:-1, :-1] / scale / scale[:, None]
    coef = np.linalg.lstsq(inner, centred[:-1, -1] / scale, rcond=None)[0] / scale
    intercept = (first[-1] - first[1:-1] @ coef) / n
    return {
        "form": "linear",
        "coef": coef[None, :],
        "intercept": np.array([intercept]),
        "link": "identity",
    }


def _fit(s: Settings, candidate: int, rows: FloatArray, ctx: CoordinatorContext) -> dict[str, Any]:
    """Refit on pooled rows, at the coordinator."""
    from consilience.wire.estimators import encode

    x, y = rows[:, :-1], rows[:, -1]
    task = "classification" if s.levels else "regression"
    seed = int(ctx.rng.integers(2**31 - 1))
    made = build(s.candidates[candidate], task, min_records=1, seed=seed)  # type: ignore[arg-type]
    made.fit(x, y.astype(np.int64) if s.levels else y)
    classes = range(len(s.levels)) if s.levels else None
    return encode(made, n_features=x.shape[1], classes=classes)

"""What an initiator gets of a partner's columns by linear algebra: the table of a guide page.

Real runs of `AssistedGLM`, at growing limits on the directions that may be known. The attacker is
the initiator, who coordinates too: every message that came is decrypted, and the vectors that the
partner sent are put side by side. Run it as ``python -m tools.table_assisted_attack``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.assisted.glm import AssistedGLM, AssistedGLMResult
from consilience.engines.federation import Federation
from consilience.protocol.method import Columns
from consilience.sites.policy import Policy
from consilience.testing.fakes import members
from consilience.wire.codec import decode_message
from consilience.wire.disclosure import Released
from consilience.wire.envelope import Reply
from consilience.wire.message import iterate_fields
from consilience.wire.sealing import Keyring, open_message
from tests.sites.homes import records_of

FloatArray = NDArray[np.float64]
PAGE = Path(__file__).parents[1] / "docs" / "guide" / "what-assisted-learning-reveals.md"
HEADING = "## How much is recovered, by number of directions"
KEY = bytes(range(32))
N, RANK, KNOWN_ROWS = 400, 6, 30
SEEDS = range(10)


@dataclass(frozen=True)
class Recovered:
    """What linear algebra on the messages gives.

    Attributes
    ----------
    directions : int
        Dimensions of the span of what the partner sent.
    basis : float
        Share of an orthonormal basis of the partner's column space that lies in that span.
    angle : float
        Largest principal angle between the two, in degrees.
    with_two : float
        The same share, where two of the columns are known besides.
    rows : float
        Share of the variation of the columns that is predicted in all other rows by somebody who
        knows `KNOWN_ROWS` of the rows; the mean over columns.
    """

    directions: int
    basis: float
    angle: float
    with_two: float
    rows: float


def columns(seed: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Columns of both parties, with correlations between them, and a response of 0 and 1."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(N, 1))
    x = rng.normal(size=(N, 3 + RANK)) + 0.5 * common
    eta = x @ (rng.choice([-1, 1], size=x.shape[1]) * np.linspace(0.4, 1.2, x.shape[1]))
    y = (rng.uniform(size=N) < 1 / (1 + np.exp(-eta))).astype(float)
    return x[:, :3], x[:, 3:], y


def federation(
    x_a: FloatArray, x_b: FloatArray, y: FloatArray, limit: Any, **settings: Any
) -> Federation:
    """Initiator "a" (which lets all its own directions be known) and partner "b"."""
    ids = np.array([f"p{i:04d}" for i in range(len(y))])
    tables = {
        "a": {"id": ids, **{f"x{j}": x_a[:, j] for j in range(x_a.shape[1])}, "y": y},
        "b": {"id": ids, **{f"z{j}": x_b[:, j] for j in range(x_b.shape[1])}},
    }
    roles = {
        "a": Columns(id="id", features=tuple(f"x{j}" for j in range(x_a.shape[1])), target="y"),
        "b": Columns(id="id", features=tuple(f"z{j}" for j in range(x_b.shape[1]))),
    }
    policy = {
        "a": Policy(preset="consortium", share_response=True, max_revealed_rank="full"),
        "b": Policy(preset="consortium", max_revealed_rank=limit),
    }
    return Federation.local(tables, columns=roles, policy=policy, partner_key=KEY, **settings)


def seen(fed: Federation, run: str) -> FloatArray:
    """Every vector with a number for each row that the partner sent in a run, decrypted."""
    home: Any = {name: site.home for name, site in members(fed).items()}
    kept = {name: [kept for of, kept in records_of(home[name]) if of == run] for name in home}
    keys = next(r.state["_keys"] for r in kept["a"] if "peers" in r.state.get("_keys", {}))
    ring = Keyring(keys["private"], KEY, run, "a", keys["peers"])
    found = []
    for record in kept["b"]:
        reply = Reply.from_bytes(record.reply)
        if reply.status != "reply" or reply.step.startswith(("opening", "align_ids")):
            continue
        for _, _, content in iterate_fields(open_message(decode_message(reply.message), ring)):
            value = content.value if isinstance(content, Released) else None
            if isinstance(value, np.ndarray) and value.size and len(value) == N:
                found.append(value.reshape(N, -1))
    return np.column_stack([np.empty((N, 0)), *found])


def basis(x: FloatArray) -> FloatArray:
    """Orthonormal basis of the centred columns, each taken at length 1, to a relative 1e-7."""
    centred = x - x.mean(axis=0)
    lengths = np.linalg.norm(centred, axis=0)
    left, size, _ = np.linalg.svd(centred / np.where(lengths > 0, lengths, 1), full_matrices=False)
    return np.asarray(left[:, size > 1e-7 * size.max(initial=0.0)])


def recovered(messages: FloatArray, x_b: FloatArray) -> Recovered:
    """Attack the partner's columns with what it sent."""
    truth, span = basis(x_b), basis(messages)
    cosines = np.linalg.svd(truth.T @ span, compute_uv=False) if span.size else np.zeros(1)
    cosines = np.append(cosines, np.zeros(truth.shape[1] - len(cosines)))
    with_two = basis(np.column_stack([messages, x_b[:, :2]]))
    known, rest = slice(0, KNOWN_ROWS), slice(KNOWN_ROWS, None)
    design = np.column_stack([np.ones(N), messages])
    guess = design @ np.linalg.lstsq(design[known], x_b[known], rcond=1e-10)[0]
    wrong = np.square(x_b - guess)[rest].sum(axis=0)
    whole = np.square(x_b[rest] - x_b[rest].mean(axis=0)).sum(axis=0)
    return Recovered(
        directions=span.shape[1],
        basis=float(np.sum(cosines**2)) / truth.shape[1],
        angle=float(np.degrees(np.arccos(np.clip(cosines.min(), 0.0, 1.0)))),
        with_two=float(np.sum(np.square(truth.T @ with_two))) / truth.shape[1],
        rows=float(np.mean(1 - wrong / whole)),
    )


def attacked(seed: int, limit: Any) -> tuple[Recovered, AssistedGLMResult]:
    """Run the method under a limit and attack it."""
    x_a, x_b, y = columns(seed)
    fed = federation(x_a, x_b, y, limit)
    run = fed.run(AssistedGLM(response="share", exchange="turns"), seed=seed)
    if not isinstance(run.result, AssistedGLMResult):
        raise TypeError("a result of another method")
    return recovered(seen(fed, run.info.run), x_b), run.result


def section() -> str:
    """Text of the section with its table."""
    heads = (
        "`max_revealed_rank`",
        "directions in the messages",
        "share of the column space",
        "largest angle",
        "share, two columns known",
        f"rows predicted by who knows {KNOWN_ROWS} of them",
    )
    lines = [
        HEADING,
        "",
        f"From the messages of real runs, decrypted as the initiator has them: a partner with "
        f"{RANK} columns, {N} rows, logistic model, standard errors asked for; means over "
        f"{len(SEEDS)} data sets. Limits on the directions grow from top to bottom.",
        "",
        f"| {' | '.join(heads)} |",
        "|---|---|---|---|---|---|",
    ]
    for limit in (*range(RANK - 1), "default", "full"):
        each = [attacked(seed, limit)[0] for seed in SEEDS]
        name = f"`{json.dumps(limit)}`"
        name += f" ({RANK - 1})" if limit == "default" else ""
        counts = sorted({one.directions for one in each})
        lines.append(
            f"| {name} | {', '.join(str(c) for c in counts)} "
            f"| {np.mean([o.basis for o in each]):.3f} "
            f"| {np.mean([o.angle for o in each]):.1f} degrees "
            f"| {np.mean([o.with_two for o in each]):.3f} "
            f"| {100 * np.mean([o.rows for o in each]):.0f}% |"
        )
    lines += [
        "",
        "The share is k of r, and the largest angle between the column space and what was sent "
        "stays at 90 degrees until the last direction is sent: linear algebra finds nothing that "
        "was not sent. Known columns add their number: **under the default limit somebody who "
        'knows one column besides has the whole space**, and at `"full"` it is known to everybody '
        "who reads the messages. Who has the space and a few rows has all rows. Mind the last "
        "column under the default limit, too: five of six directions predict most of what the "
        "columns hold.",
        "",
        "`tools/table_assisted_attack.py` writes this section; the attacks that sites must "
        "withstand are in `tests/security/test_assisted_attacks.py`.",
        "",
    ]
    return "\n".join(lines)


def page(text: str) -> str:
    """The guide page with the section at its end, in place of an older one."""
    return text.split(HEADING)[0].rstrip() + "\n\n" + section()


if __name__ == "__main__":
    if "--print" in sys.argv:
        print(section())
    else:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

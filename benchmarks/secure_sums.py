"""What masked sums cost, by sites and by cells, beside plain sums and beside Flower's SecAgg+.

``PYTHONPATH=. python benchmarks/secure_sums.py`` writes results/secure_sums.json. Processor time of
one site and of the coordinator for one sum, in one process without an engine; whole runs of
``mean-and-sd`` on the local engine; and the work of one client of Flower's SecAgg+ by the functions
of its library, in the order of its workflow, for the same numbers and as many neighbours.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.ensemble_patterns import machine
from consilience import Columns, Federation
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.wire import secure_sums as wire

RESULTS = Path(__file__).parent / "results"
SITES = (3, 10, 30, 100, 300, 1000)
CELLS = (10, 1_000, 100_000, 1_000_000)


def ms(work: Callable[..., Any], *of: Any, **by: Any) -> tuple[float, Any]:
    """Processor milliseconds of a call, and what it gives."""
    began = time.process_time()
    found = work(*of, **by)
    return 1000 * (time.process_time() - began), found


def one_sum(n: int, cells: int) -> dict[str, Any]:
    """The second sum of a run: keys are known, channels between sites are set up."""
    rng = np.random.default_rng(n)
    names = [f"s{i:04d}" for i in range(n)]
    raw = {s: wire.Party("run", s, rng.bytes(32)) for s in names}
    introduced = {s: party.introduction() for s, party in raw.items()}
    parties = {s: party.met(introduced) for s, party in raw.items()}
    values = {s: rng.normal(size=cells) for s in names}
    graph = (wire.graph_seed(introduced), names)
    least = wire.threshold(len(parties[names[0]].around))
    masking: list[float] = []
    opening: list[float] = []
    for epoch in range(2):
        asked = wire.question_digest("sums", epoch, b"")
        given = {}
        for s in names:
            spent, given[s] = ms(parties[s].mask, values[s], asked)
            masking.append(spent)
        next_keys = {s: one.next_key for s, one in given.items()}
        own: dict[str, dict[int, bytes]] = {s: {} for s in names}
        for s in names:
            blobs = {o: given[o].blobs[s] for o in parties[s].around}
            spent, (a, _, parties[s]) = ms(parties[s].open, asked, next_keys, blobs, {})
            opening.append(spent)
            for o, share in a.items():
                own[o][wire.place_of(s, names)] = share
    shares = [(own[s], least, given[s].commitment, wire.commitment) for s in names]
    joining, pads = ms(lambda: [wire.found(*one) for one in shares])
    limbs = {s: one.limbs for s, one in given.items()}
    about = (dict(zip(names, pads, strict=True)), {}, {}, graph, "run", 1, asked)
    adding, found = ms(lambda: wire.decoded(wire.unmasked(limbs, *about)))
    plain, exact = ms(np.sum, list(values.values()), axis=0)
    one = given[names[0]]
    sealed = sum(map(len, one.blobs.values()))
    return {
        "sites": n,
        "cells": cells,
        "neighbours": len(one.blobs),
        "site_mask_ms": round(statistics.median(masking[n:]), 2),
        "site_open_ms": round(statistics.median(opening[n:]), 2),
        "coordinator_ms_a_site": round((joining + adding) / n, 3),
        "plain_ms_a_site": round(plain / n, 4),
        "site_sends_bytes": one.limbs.nbytes + sealed + 64 + 33 * len(one.blobs),
        "site_receives_bytes": sealed + 32 * n,
        "plain_bytes": 8 * cells,
        "largest_difference": float(np.abs(found - exact).max()),
    }


def whole_run(n: int) -> dict[str, Any]:
    """The sums of ``mean-and-sd`` over ten columns, with gate, records and transcript."""
    rng = np.random.default_rng(n)
    names = [f"x{j}" for j in range(10)]
    tables = {
        f"s{i:03d}": pd.DataFrame(rng.normal(size=(200, 10)), columns=names) for i in range(n)
    }
    plain = Federation.local(tables, columns=Columns(features=tuple(names)), policy="consortium")
    masked = Federation.local(
        tables, columns=Columns(features=tuple(names)), policy="consortium", sums="secure"
    )
    MeanAndSD().run(plain, seed=0)
    in_plain, told = ms(lambda: MeanAndSD().run(dataclasses.replace(plain), seed=1))
    in_masks, totals = ms(lambda: MeanAndSD().run(masked, seed=1))
    return {
        "sites": n,
        "plain_ms_a_site": round(in_plain / n, 1),
        "masked_ms_a_site": round(in_masks / n, 1),
        "largest_difference": float(np.abs(told.result.mean - totals.result.mean).max()),
    }


def flower_client(neighbours: int, cells: int) -> dict[str, Any]:
    """One client of SecAgg+ in one round: keys, shares, masks, as its library has them."""
    from flwr.common.secure_aggregation.crypto.shamir import create_shares
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
        decrypt,
        encrypt,
        generate_shared_key,
    )
    from flwr.common.secure_aggregation.ndarrays_arithmetic import (
        parameters_addition,
        parameters_mod,
    )
    from flwr.common.secure_aggregation.quantization import quantize
    from flwr.common.secure_aggregation.secaggplus_utils import (
        pseudo_rand_gen,
        share_keys_plaintext_concat,
    )
    from flwr.supercore.primitives.asymmetric import generate_key_pairs

    least = wire.threshold(neighbours)
    others = [generate_key_pairs() for _ in range(neighbours)]
    values = [np.random.default_rng(0).normal(size=cells)]

    def client() -> None:
        (sk1, _), (sk2, _) = generate_key_pairs(), generate_key_pairs()
        keys = [generate_shared_key(sk2, public) for _, public in others]
        shares = [create_shares(bytes(32), least, neighbours) for _ in range(2)]
        blobs = [
            encrypt(key, share_keys_plaintext_concat(0, i, shares[0][i], shares[1][i]))
            for i, key in enumerate(keys)
        ]
        masked = quantize(values, 8.0, 1 << 22)
        for seed in [bytes(32), *(generate_shared_key(sk1, public) for _, public in others)]:
            masked = parameters_addition(masked, pseudo_rand_gen(seed, 1 << 32, [(cells,)]))
        parameters_mod(masked, 1 << 32)
        for key, blob in zip(keys, blobs, strict=True):
            decrypt(key, blob)

    spent = statistics.median(ms(client)[0] for _ in range(3))
    return {"neighbours": neighbours, "cells": cells, "client_ms": round(spent, 2)}


def beside_flower(n: int, cells: int) -> dict[str, Any]:
    """A site of ours and a client of theirs, with as many neighbours."""
    ours = one_sum(n, cells)
    theirs = flower_client(n - 1, cells)
    spent = ours["site_mask_ms"] + ours["site_open_ms"]
    return {**theirs, "ours_ms": round(spent, 2), "ratio": round(spent / theirs["client_ms"], 2)}


def main() -> None:
    """Measure and write."""
    content = {
        "machine": machine(),
        "by_sites": [one_sum(n, 100) for n in SITES],
        "by_cells": [one_sum(10, cells) for cells in CELLS],
        "whole_runs": [whole_run(n) for n in (3, 10, 30, 100, 300)],
        "beside_secaggplus": [beside_flower(11, c) for c in CELLS[:3]] + [beside_flower(41, 1000)],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "secure_sums.json").write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()

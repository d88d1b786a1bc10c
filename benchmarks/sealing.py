"""What it costs that only its reader can open a message: bytes and milliseconds of an envelope.

``PYTHONPATH=. python benchmarks/sealing.py`` writes results/sealing.json. Both kinds of envelope
carry the same body and are signed and checked alike; one of them is sealed beside. A message is
closed by its sender and opened by its reader, each `TIMES` times in turn; medians.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.ensemble_patterns import machine
from consilience.wire.signing import Context, SigningKey, unseal

RESULTS = Path(__file__).parent / "results"
TIMES = {1_000: 2_001, 10_000_000: 41}


def seconds(work: Callable[[], Any]) -> float:
    """Processor time of one call: other jobs run beside it."""
    began = time.process_time()
    work()
    return time.process_time() - began


def case(size: int, times: int) -> dict[str, Any]:
    """One size of body."""
    sender, reader, follower = (SigningKey.generate() for _ in range(3))
    context = Context("run", 1, 1, "reply", "north", reader.public, about="0" * 64)
    body, readers = os.urandom(size), (reader.public,)
    sealed = sender.seal(context, body, readers=readers)
    signed = sender.seal(context, body)
    both = sender.seal(context, body, readers=(reader.public, follower.public))
    works: dict[str, Callable[[], Any]] = {
        "sign": lambda: sender.seal(context, body),
        "check": lambda: unseal(signed, public=sender.public, context=context),
        "seal": lambda: sender.seal(context, body, readers=readers),
        "open": lambda: reader.unseal(sealed, public=sender.public, context=context),
    }
    took: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(times):
        for name, work in works.items():
            took[name].append(seconds(work))
    ms = {name: 1000 * statistics.median(found) for name, found in took.items()}
    plain, closed = ms["sign"] + ms["check"], ms["seal"] + ms["open"]
    return {
        "body_bytes": size,
        "signed_bytes": len(signed),
        "sealed_bytes": len(sealed),
        "bytes_ratio": round(len(sealed) / len(signed), 4),
        "bytes_of_a_second_key": len(both) - len(sealed),
        **{f"{name}_ms": round(value, 3) for name, value in ms.items()},
        "added_ms": round(closed - plain, 3),
        "ms_ratio": round(closed / plain, 2),
        "times": times,
    }


def main() -> None:
    RESULTS.mkdir(exist_ok=True)
    content = {"machine": machine(), "messages": [case(size, n) for size, n in TIMES.items()]}
    (RESULTS / "sealing.json").write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()

"""Latent class regression over sites: draws and sums of the rounds, step by step."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.methods.latent_class_regression import rows
from tests.methods.latent import by_site, events, federation, study


@pytest.mark.parametrize("policy", ["simulation", "strict"])
def test_the_same_events_are_held_out_in_every_step(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[tuple[bytes, bytes]]] = {}
    draw = rows._draws

    def watched(site, *given):
        keys, held = draw(site, *given)
        seen.setdefault(site.site, []).append((keys.tobytes(), held.tobytes()))
        return keys, held

    monkeypatch.setattr(rows, "_draws", watched)
    tables = by_site(events(8, n_entities=8, n_events=10), [4, 4])
    study(holdout=0.2).run(federation(tables, policy), seed=1)
    assert set(seen) == {"site-0", "site-1"}
    for steps in seen.values():
        assert len(steps) == 3 + 7  # offer, begin, conclude, and rounds
        assert len(set(steps)) == 1
        assert np.frombuffer(steps[0][1], dtype=bool).any()

"""Classes beside one regression with squares of the columns, and own coefficients about it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience.latent_regression.kernels import marginal_likelihood as model
from consilience.latent_regression.kernels import prediction
from consilience.latent_regression.protocol import LatentClassRegression
from consilience.latent_regression.protocol import events as at_rows
from consilience.latent_regression.protocol import site as at_site
from consilience.latent_regression.protocol.coordinator import curve_of
from consilience.latent_regression.protocol.messages import Curved, Settings
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure
from tests.latent_regression.protocol.latent import by_site, events, federation
from tests.reference.curve import curve_ridge, log_normal, own_about_curve

SETTINGS = Settings(
    n_cells=4, start="random", concentration="exact", fit_intercept=True, holdout=0.2, level=0.9
)
SAYS_SQUARES = "The classes were not compared with a curve"


def curved(slopes: float = 0.0, seed: int = 2) -> dict[str, pd.DataFrame]:
    """One curve for all, whose column has other means in each entity; and own slopes."""
    rng = np.random.default_rng(seed)
    entity = np.repeat(np.arange(120), 8)
    x = rng.normal(size=(len(entity), 2)) + rng.normal(size=(120, 2))[entity]
    y = 0.5 + 0.8 * x[:, 0] + 0.6 * x[:, 0] ** 2 + rng.normal(size=len(entity))
    y += slopes * (rng.normal(size=(120, 2))[entity] * x).sum(axis=1)
    frame = {"agent": entity // 10, "entity": entity, "x1": x[:, 0], "x2": x[:, 1], "y": y}
    frame = pd.DataFrame(frame).astype({"agent": str, "entity": str})
    frame["agent"] = "a" + frame["agent"].str.zfill(2)
    return by_site(frame, (4, 4, 4))


def study(tables: dict[str, pd.DataFrame], policy: str = "simulation", **more: Any) -> Any:
    method = LatentClassRegression(n_classes=more.pop("n_classes", "auto"), holdout=0.2, **more)
    return method.run(federation(tables, policy), seed=3).result


def test_the_curve_is_the_textbooks() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 2)), rng.normal(size=60)
    rows, told = np.c_[np.ones(60), x, x**2, y], {}
    upper = np.triu_indices(6)
    for name, part in (("a", rows[:25]), ("b", rows[25:]), ("c", rows[:0])):
        sums = (part.T @ part)[upper] if len(part) else np.full(len(upper[0]), np.nan)
        told[name] = Curved(sums=relayed(sums[None], Disclosure.AGGREGATE))
    found = curve_of(told, SETTINGS, 2)
    assert found is not None
    assert found[0] == pytest.approx(curve_ridge(x, y))
    products = rows.T @ rows
    parts = products[:-1, :-1], products[:-1, -1], float(products[-1, -1]), 60.0
    assert found[1] == pytest.approx(model.start_sigma2(*parts))
    assert curve_of({"c": told["c"]}, SETTINGS, 2) is None


def test_figures_beside_the_curve_are_the_textbooks(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, seen = at_site._figures, {}

    def watched(message: Any, here: Any, blocks: Any, classes: Any, known: Any, unit: float) -> Any:
        seen[here.site.site] = (message, here, classes, known, unit)
        return figures(message, here, blocks, classes, known, unit)

    monkeypatch.setattr(at_site, "_figures", watched)
    result = study(curved(), n_classes=2)
    used = np.concatenate([here.z[~here.events.held] for _, here, *_ in seen.values()])
    curve = curve_ridge(used[:, 1:-1], used[:, -1])
    for at, name in enumerate(result.sites):
        message, here, classes, known, unit = seen[name]
        assert message.curve.value == pytest.approx(curve, abs=1e-9)
        z, held, entity = here.z, here.events.held, here.events.entity
        sigma2, variance = float(classes.sigma2), float(message.curve_variance.value)
        noise, shares = min(sigma2, variance), np.asarray(message.base.value)
        away = classes.mean - shares @ classes.mean
        spread = (away.T * shares) @ away
        lines = []
        for i in np.flatnonzero(held):
            own = (entity == entity[i]) & ~held
            x, y = z[i, 1:-1], z[i, -1]
            mean, var = prediction.class_predictions(z[[i], :-1].copy(), classes)
            share = known[entity[i]]
            mixed = float(share @ mean[0])
            parts = [np.exp(log_normal(y, m, v)) for m, v in zip(mean[0], var[0], strict=True)]
            score = np.log(share @ np.array(parts))
            along = np.r_[1.0, x, x**2] @ curve
            about = own_about_curve((z[own, 1:-1], z[own, -1]), x, curve, spread, noise)
            lines.append(
                [
                    ((y - along) ** 2 - (y - mixed) ** 2) * unit**2,
                    score - log_normal(y, along, variance),
                    ((y - about[0]) ** 2 - (y - mixed) ** 2) * unit**2,
                    score - log_normal(y, *about),
                ]
            )
        assert result.heldout_curve[at] == pytest.approx(np.mean(lines, axis=0), rel=1e-6)
    assert result.curve_sites == result.sites


def test_a_curve_is_no_kinds_and_the_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = curved(seed=17)  # from 0 the first whose classes are called kinds without squares
    with monkeypatch.context() as patch:
        patch.setattr(at_rows.Events, "curve_may_leave", lambda *_: False)
        alone = study(tables)
    result = study(tables)
    assert result.curve_told
    assert result.verdict != "kinds"
    assert "One regression with squares of the columns predicts better" in result.summary()
    assert not alone.curve_told and alone.curve_sites == ()
    assert np.isnan(alone.heldout_curve).all()
    assert alone.verdict == "kinds" and SAYS_SQUARES in alone.summary()
    assert (alone.mean == result.mean).all()


def test_a_curve_with_own_slopes_is_no_kinds() -> None:
    assert study(curved(slopes=0.5)).verdict != "kinds"


def test_two_classes_are_ahead_of_the_curve() -> None:
    tables = by_site(events(12, n_entities=10.0, n_events=8.0, sigma=0.4), (4, 4, 4))
    result = study(tables)
    assert result.verdict == "kinds" and result.curve_told
    assert "ahead of one regression with squares" in result.summary()


def test_a_site_that_keeps_squares_back_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    told = at_rows.Events.curve_may_leave

    tables = by_site(events(12, n_entities=10.0, n_events=8.0, sigma=0.4), (4, 4, 4))
    first = tables["site-0"]["agent"].min()
    monkeypatch.setattr(
        at_rows.Events,
        "curve_may_leave",
        lambda self, *given: first not in self.agent_names and told(self, *given),
    )
    result = study(tables)
    assert result.curve_sites == ("site-1", "site-2")
    # beside a curve that others told it tells nothing of its own
    assert np.isfinite(result.heldout_curve).all(axis=1).tolist() == [False, True, True]
    assert result.curve_told and "(by squares that 2 of 3 sites tell)" in result.summary()


@pytest.mark.parametrize("more", [{"n_classes": 1}, {"holdout": 0.0}])
def test_squares_are_asked_for_where_they_are_compared(more: dict[str, Any]) -> None:
    tables, given = curved(), {"n_classes": 2, "holdout": 0.2, **more}
    run = LatentClassRegression(**given).run(federation(tables, "simulation"), seed=3)
    assert "curve" not in {line.step for line in run.transcript}

"""What the coordinator knows while the rounds go on: last predictions, averages, held-out losses.

A *trajectory* is a set of rows on which everybody fits: all rows (0), and, where some are held out,
all but these (1). A *track* is one penalty of the grid. A site's last predictions stay in the
average until new ones come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.averaging.protocol.messages import Accepted, Fit, Fitted, Settings
from consilience.numerics.reference_average import (
    averaged,
    improving,
    influences,
    moved,
    movement,
    pooled_gain,
)
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure


@dataclass
class Rounds:
    """State of the exchange at the coordinator.

    Attributes
    ----------
    settings : Settings
    sites : tuple of str
        Sites that accepted, in name order.
    reference : (m, p) array
    rows, held : dict of site to int
    weights : dict of site to (T,) array
        Sum of weights of the rows of each trajectory.
    predictions : dict of site to (T, g, m, q) array
        Last ones of the sites that have ever answered.
    models : dict of site to list of model by track
        Last ones that did not see the held-out rows.
    counts : dict of site to int
        Refits that were asked for, under the asynchronous schedule.
    active : tuple of int
        Tracks that go on.
    averages : (T, g, m, q) array
        Of the last predictions; tracks that ended keep their last ones.
    probes : dict of site to (2,) array
    """

    settings: Settings
    sites: tuple[str, ...]
    reference: FloatArray
    rows: dict[str, int]
    held: dict[str, int]
    weights: dict[str, FloatArray]
    predictions: dict[str, FloatArray] = field(default_factory=dict)
    models: dict[str, list[Any]] = field(default_factory=dict)
    probes: dict[str, FloatArray] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    active: tuple[int, ...] = ()
    averages: FloatArray = field(default_factory=lambda: np.empty(0))
    rhos: list[float] = field(default_factory=list)
    contributed: list[tuple[str, ...]] = field(default_factory=list)
    movements: list[FloatArray] = field(default_factory=list)
    influence: list[FloatArray] = field(default_factory=list)
    increments: dict[int, tuple[FloatArray, FloatArray]] = field(default_factory=dict)
    _noted: FloatArray = field(default_factory=lambda: np.empty(0))

    @classmethod
    def begin(
        cls, settings: Settings, reference: FloatArray, accepted: Mapping[str, Accepted]
    ) -> Rounds:
        """Take in what the sites bring."""
        return cls(
            settings,
            tuple(sorted(accepted)),
            reference,
            {site: int(r.n.value) for site, r in accepted.items()},
            {site: int(r.held.value) for site, r in accepted.items()},
            {
                site: np.asarray(r.weight.value, dtype=float)[: settings.trajectories]
                for site, r in accepted.items()
            },
            active=tuple(range(settings.n_tracks)),
        )

    @property
    def total(self) -> float:
        """Sum of weights over all sites."""
        return float(sum(self.weights[site][0] for site in self.sites))

    @property
    def last(self) -> int:
        """Last round."""
        return len(self.rhos) - 1

    @property
    def judged(self) -> bool:
        """Whether some site measures what the rounds are worth."""
        return any(self.held[site] for site in self.sites)

    # ------------------------------------------------------------------ asking

    def ask(
        self, round_: int, rho: float, to: Sequence[str], *, judge: bool = True
    ) -> dict[str, Fit]:
        """Messages of a round by site; the reference goes to those who never answered a fit."""
        made: dict[bool, Fit] = {}
        for new in {site not in self.predictions for site in to}:
            made[new] = self._fit(round_, rho, new, judge)
        return {site: made[site not in self.predictions] for site in to}

    def _fit(self, round_: int, rho: float, new: bool, judge: bool) -> Fit:
        reference = self.reference if new else self.reference[:0]
        target = np.empty((0, 0, 0, 0)) if round_ == 0 else self.averages[:, list(self.active)]
        owners, shares, models = self.portfolio(self.active if judge and round_ else ())
        return Fit(
            settings=self.settings.to_json(),
            round=round_,
            rho=rho,
            tracks=self.active,
            total=relayed(self.total, Disclosure.AGGREGATE),
            reference=relayed(reference, Disclosure.AGGREGATE),
            target=relayed(target, Disclosure.MODEL),
            owners=owners,
            shares=relayed(shares, Disclosure.AGGREGATE),
            judged=self.active if owners else (),
            models=relayed(models, Disclosure.MODEL),
        )

    def known(self, to: Sequence[str]) -> dict[str, dict[str, int]]:
        """Reference rows, of which sites that have them are not told again."""
        return {site: {"reference": len(self.reference)} for site in to}

    def portfolio(
        self, tracks: Sequence[int], of: Mapping[str, list[Any]] | None = None
    ) -> tuple[tuple[str, ...], FloatArray, tuple[tuple[Any, ...], ...]]:
        """Owners, weights and models whose average is judged; nothing where nobody can judge."""
        models = self.models if of is None else of
        if not self.judged or not models or not tracks:
            return (), np.empty(0), ()
        owners = tuple(sorted(models))
        shares = np.array([self.weights[site][1] for site in owners])
        by_track = tuple(tuple(models[site][t] for site in owners) for t in tracks)
        return owners, shares / shares.sum(), by_track

    # ------------------------------------------------------------------ hearing

    def hear(self, site: str, reply: Fitted, tracks: Sequence[int]) -> None:
        """Take in one site's fits."""
        s, m = self.settings, len(self.reference)
        known = self.predictions.get(site)
        found = (
            np.zeros((s.trajectories, s.n_tracks, m, s.n_outputs)) if known is None else known
        ).copy()
        models = list(self.models.get(site, [None] * s.n_tracks))
        for i, fit in enumerate(reply.fits.value):
            t, place = divmod(i, len(tracks))
            found[t, tracks[place]] = fit["at"]
            models[tracks[place]] = fit.get("model", models[tracks[place]])
        self.predictions[site] = found
        if s.holdout > 0:
            self.models[site] = models
        if len(reply.probe.value):
            self.probes[site] = np.asarray(reply.probe.value, dtype=float)

    def average(self) -> None:
        """Average the last predictions of all who ever answered."""
        sites = sorted(self.predictions)
        self.averages = np.stack(
            [
                averaged(
                    [self.predictions[site][t] for site in sites],
                    [self.weights[site][t] for site in sites],
                )
                for t in range(self.settings.trajectories)
            ]
        )

    def move(self, site: str, reply: Fitted) -> None:
        """Take in one site's fits of all tracks, and move the average at once."""
        before = self.predictions.get(site)
        self.hear(site, reply, self.active)
        total = {name: self.weights[name] for name in self.predictions}
        if before is None:  # its first ones: everybody's share changes
            self.average()
            return
        for t in range(self.settings.trajectories):
            share = float(self.weights[site][t] / sum(w[t] for w in total.values()))
            self.averages[t] = moved(self.averages[t], self.predictions[site][t], before[t], share)

    def close_round(self, rho: float, contributed: Sequence[str], *, again: bool = True) -> None:
        """Note what a round did: who answered, how far the average moved, who pulls at it.

        Parameters
        ----------
        again : bool
            Average anew; under the asynchronous schedule the average has moved already.
        """
        before = self._noted if self._noted.size else self.averages
        if again:
            self.average()
        self._noted = self.averages.copy()
        tracks = range(self.settings.n_tracks)
        self.rhos.append(rho)
        self.contributed.append(tuple(contributed))
        self.movements.append(
            np.array(
                [
                    movement(self.averages[0, t], before[0, t]) if before.size else 0.0
                    for t in tracks
                ]
            )
        )
        sites = sorted(self.predictions)
        pulls = np.full((self.settings.n_tracks, len(self.sites)), np.nan)
        places = [self.sites.index(site) for site in sites]
        for t in tracks:
            own = [self.predictions[site][0, t] for site in sites]
            shares = [self.weights[site][0] for site in sites]
            pulls[t, places] = influences(own, shares, self.averages[0, t])
        self.influence.append(pulls)

    def judge(self, round_: int, replies: Mapping[str, Any], tracks: Sequence[int]) -> None:
        """Pool the sites' held-out losses of one round."""
        n = self.settings.n_tracks
        gain, error = np.full((n, 2), np.nan), np.full((n, 2), np.nan)
        sites = sorted(replies)
        found = [replies[site] for site in sites]
        means = np.stack([r.losses.value for r in found])
        variances = np.stack([r.errors.value for r in found])
        pooled = pooled_gain(means, variances, [self.held_weight(site) for site in sites])
        gain[list(tracks)], error[list(tracks)] = pooled
        self.increments[round_] = (gain, error)

    def held_weight(self, site: str) -> float:
        """Sum of the weights of a site's held-out rows."""
        return float(self.weights[site][0] - self.weights[site][-1])

    # ------------------------------------------------------------------ deciding

    def gains(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Held-out loss of averaging by track, and by round what it gained with its error.

        Returns
        -------
        base : (g,) array
            Relative to the first track.
        gains, errors : (g, K + 1) arrays
        """
        n = self.settings.n_tracks
        gains, errors = np.full((2, n, max(self.last, 0) + 1), np.nan)
        gains[:, 0] = errors[:, 0] = 0.0
        if 0 not in self.increments:
            return np.full(n, np.nan), gains, errors
        path = np.zeros(n)
        for round_ in sorted(self.increments):
            gain, error = self.increments[round_]
            if round_ == 0:
                continue
            # Steps from round to round are rounded by their own, smaller errors.
            path = path + np.nan_to_num(gain[:, 0])
            told = np.isfinite(gain[:, 1])
            gains[told, round_], errors[told, round_] = path[told], error[told, 1]
        return self.increments[0][0][:, 0], gains, errors

    def drop_tracks(self, patience: int) -> None:
        """End the tracks that have not gained in the last rounds.

        The rounds are compared by their increments, whose rounding is finer than that of the whole
        gain.
        """
        _, gains, _ = self.gains()
        judged = sorted(self.increments)
        self.active = tuple(t for t in self.active if improving(gains[t, judged], patience))

    def stable(self, is_stable: Any) -> bool:
        """Whether the learner keeps its own predictions at sites with at least half of the rows."""
        if not self.probes:
            return True
        told = {site: self.weights[site][0] for site in self.probes}
        moved_rows = sum(w for site, w in told.items() if not is_stable(*self.probes[site]))
        return bool(moved_rows < 0.5 * sum(told.values()))

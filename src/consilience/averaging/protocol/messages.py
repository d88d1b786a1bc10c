"""Messages of reference averaging. Nested fields go by trajectory, then by track of the grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.averaging.estimators.conventions import NAMES as CONVENTIONS
from consilience.learners.candidates import LOSSES
from consilience.numerics.reference_average import SCHEDULES
from consilience.parameters import FLAG, Allowed, allows, number, one_of, several, whole
from consilience.wire import estimators
from consilience.wire.disclosure import Released
from consilience.wire.message import Aggregate, Model, Public, message, part, states

_MOST_ROWS = 1 << 40
TEXT = Allowed(lambda value: isinstance(value, str), "a text")
MAX_TRACKS = 50
MAX_ROUNDS = 1000
"""Every fit tells a little more of the rows, whoever asks and why."""


@dataclass(frozen=True)
class Settings:
    """What a site needs to know.

    Attributes
    ----------
    estimator : str
        Text form (see ``learners.candidates``).
    convention : str
        How the learner weighs loss against penalty; "auto" looks it up.
    levels : tuple of str
        Declared levels of the response; empty in regression.
    loss : str
        "squared", "brier" or "log".
    penalties : tuple of float
        Grid of the learner's penalty; empty takes the estimator as it is.
    holdout : float
        Share of the rows that measures the rounds.
    guard : bool
        Whether the learner's stability is probed.
    keep : int
        Rounds of which fits are kept, besides the first.
    schedule : str
    """

    estimator: str = allows(TEXT)
    convention: str = allows(one_of("auto", *CONVENTIONS))
    levels: tuple[str, ...] = allows(several(TEXT))
    loss: str = allows(one_of(*LOSSES))
    penalties: tuple[float, ...] = allows(several(number(0), most=MAX_TRACKS))
    holdout: float = allows(number(0, below=1))
    guard: bool = allows(FLAG)
    keep: int = allows(whole(1, MAX_ROUNDS))
    schedule: str = allows(one_of(*SCHEDULES))

    @property
    def task(self) -> Literal["regression", "classification"]:
        """Regression, or classification where the response has levels."""
        return "classification" if self.levels else "regression"

    @property
    def n_outputs(self) -> int:
        """Columns of a prediction."""
        return max(1, len(self.levels))

    @property
    def trajectories(self) -> int:
        """Sets of rows on which everybody fits."""
        return 2 if self.holdout > 0 else 1

    @property
    def n_tracks(self) -> int:
        """Fits that go on side by side."""
        return max(1, len(self.penalties))


@message("reference-averaging/offer", version=2)
class Offer:
    """What will be asked, before any reference row travels."""

    settings: Settings = states(Settings)
    salt: str = Public("", "salt of the digests", kind="str", to="all")
    digests: NDArray[np.uint8] = Public(
        "m 32",
        "salted digests of reference rows that a person gave; none where they are drawn",
        kind="int",
        to="all",
    )


@message("reference-averaging/accepted", version=1)
class Accepted:
    """What a site brings."""

    own_rows: bool = Public("", "reference rows are rows of this site's table", kind="bool")
    n: Released = Aggregate("", "rows that take part", kind="int", low=1, high=_MOST_ROWS)
    held: Released = Aggregate("", "of these, rows that are held out", kind="int", low=0)
    weight: Released = Aggregate("2", "sums of weights of all rows, and of those not held out")
    square: Released = Aggregate(
        "1", "weighted sum of the squared lengths of rows of features", gaps=True, low=0
    )

    def check(self, request: Offer, known: Mapping[str, Any]) -> str | None:
        """Some rows are not held out, and both these and all have a weight."""
        weight = self.weight.value
        fine = self.held.value < self.n.value and 0 < weight[1] <= weight[0]
        return None if fine else "numbers of rows that cannot be"


@message("reference-averaging/fit", version=2)
class Fit:
    """Fit, or refit towards the average; and say what the average of the last round is worth."""

    settings: Settings = states(Settings)
    round: int = Public("", "0 is the first fit", kind="int", to="site")
    rho: float = Public("", "weight of the mean pseudo loss", kind="float", to="site")
    tracks: tuple[int, ...] = Public("", "tracks that go on", kind="int", many="going", to="all")
    total: Released = Aggregate("", "sum of weights over all sites", kind="float", to="all")
    reference: Released = Aggregate("m p", "reference rows, for a site that has none yet", to="all")
    target: Released = Model(
        "trajectories tracks rows q",
        "average of all sites' predictions at the reference rows; empty in the first round",
        to="all",
    )
    owners: tuple[str, ...] = Public("", "sites of the models", kind="str", many=True, to="all")
    shares: Released = Aggregate("owners", "weights of the owners' models", to="all")
    judged: tuple[int, ...] = Public(
        "", "tracks of the models", kind="int", many="judged", to="all"
    )
    models: Released = Model(
        "*by track, by owner: models that did not see the held-out rows",
        "models whose average is judged",
        to="all",
    )

    def lengths(self) -> dict[str, int]:
        """Fits, and columns of a prediction."""
        s = self.settings
        return {"fits": s.trajectories * len(self.tracks), "outputs": s.n_outputs}


@message("reference-averaging/fitted", version=1)
class Fitted:
    """Fits of a site, and the held-out loss of the average of the round before."""

    fits: Released = Model(
        "*by trajectory and track: predictions at the reference, and a model where one is judged",
        "fits of all rows, then of the rows that are not held out",
        many="fits",
        parts={"at": part(("reference", "outputs")), "model": part("a model", optional=True)},
    )
    probe: Released = Model(
        "probes",
        "changes of the predictions under refits with themselves; empty after the first round",
        low=0,
    )
    losses: Released = Aggregate(
        "judged 2",
        "held-out loss of the average, minus that of the round before and of the first",
        gaps=True,
    )
    errors: Released = Aggregate("judged 2", "squared standard errors", gaps=True, low=0)

    def check(self, request: Fit, known: Mapping[str, Any]) -> str | None:
        """A model of each track that is judged, and two probes of the first fit."""
        s, fits = request.settings, self.fits.value
        if len(self.probe.value) != (2 if s.guard and request.round == 0 else 0):
            return "other probes than were asked for"
        for fit in fits:
            wrong = _model_fault(fit["model"], s, known) if "model" in fit else None
            if wrong is not None:
                return wrong
        # Of the second trajectory all fits come with models: these are averaged and judged.
        told = s.holdout == 0 or all("model" in fit for fit in fits[len(request.tracks) :])
        return None if told else "no model to be judged"


def _model_fault(model: Any, s: Settings, known: Mapping[str, Any]) -> str | None:
    """Say what is wrong with a model, if it is none of the study's columns."""
    wrong = estimators.check(model, n_features=known["p"], n_outputs=s.n_outputs)
    return None if wrong is None else f"a model that cannot be used: {wrong}"


@message("reference-averaging/judge", version=2)
class Judge:
    """Models of a last round, to be judged without a refit."""

    settings: Settings = states(Settings)
    round: int = Public("", "round of the models", kind="int", to="all")
    owners: tuple[str, ...] = Public("", "sites of the models", kind="str", many=True, to="all")
    shares: Released = Aggregate("owners", "weights of the owners' models", to="all")
    judged: tuple[int, ...] = Public(
        "", "tracks of the models", kind="int", many="judged", to="all"
    )
    models: Released = Model(
        "*by track, by owner: models that did not see the held-out rows",
        "models whose average is judged",
        to="all",
    )


@message("reference-averaging/judged", version=1)
class Judged:
    """Held-out loss of the average."""

    losses: Released = Aggregate(
        "judged 2",
        "held-out loss of the average, minus that of the round before and of the first",
        gaps=True,
    )
    errors: Released = Aggregate("judged 2", "squared standard errors", gaps=True, low=0)


@message("reference-averaging/conclude", version=2)
class Conclude:
    """Which fit is kept."""

    settings: Settings = states(Settings)
    track: int = Public("", "penalty that is kept", kind="int", to="all")
    round: int = Public("", "round that is kept", kind="int", to="all")


@message("reference-averaging/concluded", version=1)
class Concluded:
    """The fit of all rows, and what averaging and one's own fit would have lost."""

    model: Released = Model("*one model", "fit of all rows", to="all")
    losses: Released = Aggregate(
        "3", "held-out loss of one's own fit, of averaging, of what is kept", gaps=True
    )
    differences: Released = Aggregate("2", "own and averaging, minus what is kept", gaps=True)
    errors: Released = Aggregate("2", "their squared standard errors", gaps=True, low=0)

    def check(self, request: Conclude, known: Mapping[str, Any]) -> str | None:
        """A model of the study's columns."""
        return _model_fault(self.model.value, request.settings, known)


@message("reference-averaging/use", version=2)
class Use:
    """All models that are kept."""

    settings: Settings = states(Settings)
    owners: tuple[str, ...] = Public("", "sites of the models", kind="str", many=True, to="all")
    shares: Released = Aggregate("owners", "weights of the owners' models", to="all")
    models: Released = Model("*by owner: one model each", "fits of all rows", to="all")


@message("reference-averaging/used", version=1)
class Used:
    """The predictor is kept."""

"""Messages of reference averaging. Nested fields go by trajectory, then by track of the grid."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import DisclosureError
from consilience.wire import estimators
from consilience.wire.disclosure import Released
from consilience.wire.message import Disclosure, message, part, sends

_MOST_ROWS = 1 << 40
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

    estimator: str
    convention: str
    levels: tuple[str, ...]
    loss: str
    penalties: tuple[float, ...]
    holdout: float
    guard: bool
    keep: int
    schedule: str

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

    def to_json(self) -> str:
        """Text form for the wire."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read it back, at a site.

        Raises
        ------
        DisclosureError
            More fits than a site answers for. The coordinator checks its parameters too, but a
            site does not rely on that.
        """
        raw = json.loads(text)
        for name in ("levels", "penalties"):
            raw[name] = tuple(raw[name])
        settings = cls(**raw)
        sound = settings.n_tracks <= MAX_TRACKS and 0 <= settings.holdout < 1
        if not sound or not 1 <= settings.keep <= MAX_ROUNDS:
            raise DisclosureError(
                "more penalties, or a larger share of held-out rows, than a site answers for",
                public="more fits than a site answers for",
            )
        return settings


@message("reference-averaging/offer", version=1)
class Offer:
    """What will be asked, before any reference row travels."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="settings, as JSON")
    salt: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="salt of the digests")
    digests: NDArray[np.uint8] = sends(
        Disclosure.PUBLIC,
        ("m", 32),
        kind="int",
        audience="all",
        doc="salted digests of reference rows that a person gave; none where they are drawn",
    )


@message("reference-averaging/accepted", version=1)
class Accepted:
    """What a site brings."""

    own_rows: bool = sends(
        Disclosure.PUBLIC, kind="bool", doc="reference rows are rows of this site's table"
    )
    n: Released = sends(
        Disclosure.AGGREGATE, kind="int", low=1, high=_MOST_ROWS, doc="rows that take part"
    )
    held: Released = sends(
        Disclosure.AGGREGATE, kind="int", low=0, doc="of these, rows that are held out"
    )
    weight: Released = sends(
        Disclosure.AGGREGATE, (2,), doc="sums of weights of all rows, and of those not held out"
    )
    square: Released = sends(
        Disclosure.AGGREGATE,
        (1,),
        gaps=True,
        low=0,
        doc="weighted sum of the squared lengths of rows of features",
    )

    def check(self, request: Offer, known: Mapping[str, Any]) -> str | None:
        """Some rows are not held out, and both these and all have a weight."""
        weight = self.weight.value
        fine = self.held.value < self.n.value and 0 < weight[1] <= weight[0]
        return None if fine else "numbers of rows that cannot be"


@message("reference-averaging/fit", version=1)
class Fit:
    """Fit, or refit towards the average; and say what the average of the last round is worth."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="as in the offer")
    round: int = sends(Disclosure.PUBLIC, kind="int", audience="site", doc="0 is the first fit")
    rho: float = sends(
        Disclosure.PUBLIC, kind="float", audience="site", doc="weight of the mean pseudo loss"
    )
    tracks: tuple[int, ...] = sends(
        Disclosure.PUBLIC, kind="int", many="going", audience="all", doc="tracks that go on"
    )
    total: Released = sends(
        Disclosure.AGGREGATE, kind="float", audience="all", doc="sum of weights over all sites"
    )
    reference: Released = sends(
        Disclosure.AGGREGATE,
        ("m", "p"),
        audience="all",
        doc="reference rows, for a site that has none yet",
    )
    target: Released = sends(
        Disclosure.MODEL,
        ("trajectories", "tracks", "rows", "q"),
        audience="all",
        doc="average of all sites' predictions at the reference rows; empty in the first round",
    )
    owners: tuple[str, ...] = sends(
        Disclosure.PUBLIC, kind="str", many=True, audience="all", doc="sites of the models"
    )
    shares: Released = sends(
        Disclosure.AGGREGATE, ("owners",), audience="all", doc="weights of the owners' models"
    )
    judged: tuple[int, ...] = sends(
        Disclosure.PUBLIC, kind="int", many="judged", audience="all", doc="tracks of the models"
    )
    models: Released = sends(
        Disclosure.MODEL,
        "by track, by owner: models that did not see the held-out rows",
        audience="all",
        doc="models whose average is judged",
    )

    def lengths(self) -> dict[str, int]:
        """Fits, and columns of a prediction."""
        s = Settings.from_json(self.settings)
        return {"fits": s.trajectories * len(self.tracks), "outputs": s.n_outputs}


@message("reference-averaging/fitted", version=1)
class Fitted:
    """Fits of a site, and the held-out loss of the average of the round before."""

    fits: Released = sends(
        Disclosure.MODEL,
        "by trajectory and track: predictions at the reference, and a model where one is judged",
        many="fits",
        parts={"at": part(("reference", "outputs")), "model": part("a model", optional=True)},
        doc="fits of all rows, then of the rows that are not held out",
    )
    probe: Released = sends(
        Disclosure.MODEL,
        ("probes",),
        low=0,
        doc="changes of the predictions under refits with themselves; empty after the first round",
    )
    losses: Released = sends(
        Disclosure.AGGREGATE,
        ("judged", 2),
        gaps=True,
        doc="held-out loss of the average, minus that of the round before and of the first",
    )
    errors: Released = sends(
        Disclosure.AGGREGATE, ("judged", 2), gaps=True, low=0, doc="squared standard errors"
    )

    def check(self, request: Fit, known: Mapping[str, Any]) -> str | None:
        """A model of each track that is judged, and two probes of the first fit."""
        s, fits = Settings.from_json(request.settings), self.fits.value
        if len(self.probe.value) != (2 if s.guard and request.round == 0 else 0):
            return "other probes than were asked for"
        for fit in fits:
            wrong = _model_fault(fit["model"], s, known) if "model" in fit else None
            if wrong is not None:
                return wrong
        told = s.holdout == 0 or all("model" in fit for fit in fits[len(request.tracks) :])
        return None if told else "no model to be judged"


def _model_fault(model: Any, s: Settings, known: Mapping[str, Any]) -> str | None:
    """Say what is wrong with a model, if it is none of the study's columns."""
    wrong = estimators.check(model, n_features=known["p"], n_outputs=s.n_outputs)
    return None if wrong is None else f"a model that cannot be used: {wrong}"


@message("reference-averaging/judge", version=1)
class Judge:
    """Models of a last round, to be judged without a refit."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="as in the offer")
    round: int = sends(Disclosure.PUBLIC, kind="int", audience="all", doc="round of the models")
    owners: tuple[str, ...] = sends(
        Disclosure.PUBLIC, kind="str", many=True, audience="all", doc="sites of the models"
    )
    shares: Released = sends(
        Disclosure.AGGREGATE, ("owners",), audience="all", doc="weights of the owners' models"
    )
    judged: tuple[int, ...] = sends(
        Disclosure.PUBLIC, kind="int", many="judged", audience="all", doc="tracks of the models"
    )
    models: Released = sends(
        Disclosure.MODEL,
        "by track, by owner: models that did not see the held-out rows",
        audience="all",
        doc="models whose average is judged",
    )


@message("reference-averaging/judged", version=1)
class Judged:
    """Held-out loss of the average."""

    losses: Released = sends(
        Disclosure.AGGREGATE,
        ("judged", 2),
        gaps=True,
        doc="held-out loss of the average, minus that of the round before and of the first",
    )
    errors: Released = sends(
        Disclosure.AGGREGATE, ("judged", 2), gaps=True, low=0, doc="squared standard errors"
    )


@message("reference-averaging/conclude", version=1)
class Conclude:
    """Which fit is kept."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="as in the offer")
    track: int = sends(Disclosure.PUBLIC, kind="int", audience="all", doc="penalty that is kept")
    round: int = sends(Disclosure.PUBLIC, kind="int", audience="all", doc="round that is kept")


@message("reference-averaging/concluded", version=1)
class Concluded:
    """The fit of all rows, and what averaging and one's own fit would have lost."""

    model: Released = sends(Disclosure.MODEL, "one model", audience="all", doc="fit of all rows")
    losses: Released = sends(
        Disclosure.AGGREGATE,
        (3,),
        gaps=True,
        doc="held-out loss of one's own fit, of averaging, of what is kept",
    )
    differences: Released = sends(
        Disclosure.AGGREGATE, (2,), gaps=True, doc="own and averaging, minus what is kept"
    )
    errors: Released = sends(
        Disclosure.AGGREGATE, (2,), gaps=True, low=0, doc="their squared standard errors"
    )

    def check(self, request: Conclude, known: Mapping[str, Any]) -> str | None:
        """A model of the study's columns."""
        return _model_fault(self.model.value, Settings.from_json(request.settings), known)


@message("reference-averaging/use", version=1)
class Use:
    """All models that are kept."""

    settings: str = sends(Disclosure.PUBLIC, kind="str", audience="all", doc="as in the offer")
    owners: tuple[str, ...] = sends(
        Disclosure.PUBLIC, kind="str", many=True, audience="all", doc="sites of the models"
    )
    shares: Released = sends(
        Disclosure.AGGREGATE, ("owners",), audience="all", doc="weights of the owners' models"
    )
    models: Released = sends(
        Disclosure.MODEL, "by owner: one model each", audience="all", doc="fits of all rows"
    )


@message("reference-averaging/used", version=1)
class Used:
    """The predictor is kept."""

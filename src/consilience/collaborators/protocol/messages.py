"""Messages of meta clustering. Nested fields go by view of the rows, then by site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.learners.candidates import Task
from consilience.parameters import FLAG, Allowed, allows, just, one_of, several, whole
from consilience.wire import estimators
from consilience.wire.codec import LARGEST
from consilience.wire.disclosure import Released
from consilience.wire.message import Aggregate, Model, PerRecord, Public, message, states

MAX_RUNS = 99
MAX_CANDIDATES = 20
"""Each view of the rows and each candidate tells a little more of them, whoever asks and why."""
NOTHING = ("too-few-rows", "constant-response", "rare-level", "no-candidate")
"""Why a site has no model."""
GAINS = (
    "own",
    "group",
    "all",
    "shifted",
    "own_minus_group",
    "own_minus_all",
    "group_minus_all",
    "all_minus_shifted",
    "constant",
    "constant_minus_all",
    "constant_minus_group",
)
"""What is told of ways of predicting."""
_MOST_ROWS = 1 << 40


def by_gain(means: FloatArray, errors: FloatArray) -> dict[str, FloatArray]:
    """Losses by name with standard errors, from means and squared errors in the order of `GAINS`.

    Parameters
    ----------
    means, errors : (len(GAINS), L) arrays

    Returns
    -------
    dict of str to (L,) array
    """
    found: dict[str, FloatArray] = {}
    for name, mean, square in zip(GAINS, means, errors, strict=True):
        found |= {name: mean.copy(), f"{name}_error": np.sqrt(square)}
    return found


_TEXT = Allowed(lambda v: isinstance(v, str), "a text")


@dataclass(frozen=True)
class Settings:
    """What a site needs to know.

    Attributes
    ----------
    candidates : tuple of str
        Text forms (see ``learners.candidates``).
    loss : str
        "squared", "brier" or "log".
    levels : tuple of str
        Declared levels of the response; empty in regression.
    standardize : bool
        Columns and response on each site's own scale.
    gain_folds, stability_runs : int
        Views of the rows beside the main one.
    exchange : str
        "models" or "reference".
    prediction : str
        "unpooled" or "pooled".
    """

    # A site does not rely on what the coordinator checked: these bounds are its own.
    candidates: tuple[str, ...] = allows(several(_TEXT, 1, MAX_CANDIDATES))
    loss: str = allows(one_of("squared", "brier", "log"))
    levels: tuple[str, ...] = allows(several(_TEXT))
    standardize: bool = allows(FLAG)
    gain_folds: int = allows(just(0) | whole(2, 10))
    stability_runs: int = allows(whole(0, MAX_RUNS))
    exchange: str = allows(one_of("models", "reference"))
    prediction: str = allows(one_of("unpooled", "pooled"))

    @property
    def n_outputs(self) -> int:
        """Columns of a prediction: probabilities of the levels, or one number."""
        return max(1, len(self.levels))

    @property
    def task(self) -> Task:
        """What the models do."""
        return "classification" if self.levels else "regression"

    @property
    def n_views(self) -> int:
        """Main view, folds, resamples."""
        return 1 + self.gain_folds + self.stability_runs


@message("meta-clustering/select-request", version=2)
class SelectRequest:
    """Choose and fit your own model."""

    settings: Settings = states(Settings, to="site")
    reference: Released = Aggregate(
        "a p",
        "points drawn from the pooled moments, on which to predict; none if models travel",
        to="all",
    )

    def lengths(self) -> dict[str, int]:
        """Candidates, views of the rows, columns of a prediction."""
        s = self.settings
        return {"c": len(s.candidates), "v": s.n_views, "outputs": s.n_outputs}


@message("meta-clustering/selected", version=1)
class Selected:
    """A site's models, or why it has none."""

    status: str = Public("", "ok, or why there is no model", kind="str", choices=("ok", *NOTHING))
    refused: tuple[Any, ...] = Public(
        "*by candidate: name, reason", "candidates that the site left out"
    )
    n: Released = Aggregate("", "rows", kind="int", low=0, high=_MOST_ROWS)
    chosen: Released = Model("", "by view: number of a candidate", kind="int", many=True, low=0)
    models: Released = Model("*by view: a model", "chosen methods, fitted on all rows", to="all")
    predictions: Released = Model(
        "a outputs",
        "by view: predictions on the reference points, where models do not travel",
        many=True,
    )
    variance: Released = Aggregate(
        "1", "mean loss of the best constant prediction", gaps=True, low=0
    )
    losses: Released = Aggregate(
        "c", "mean loss of each candidate on the other half", gaps=True, low=0
    )
    own: Released = Aggregate("v", "cross-fitted loss of the chosen, by view", gaps=True, low=0)
    own_error: Released = Aggregate("v", "squared standard errors of these", gaps=True, low=0)
    useful: Released = Aggregate("1", "loss of the best constant minus the own loss", gaps=True)
    useful_error: Released = Aggregate(
        "1", "its squared standard error, paired by record", gaps=True, low=0
    )

    def check(self, request: SelectRequest, known: Mapping[str, Any]) -> str | None:
        """By view a choice among the candidates, and a model of the study's columns."""
        if not _are_reasons(self.refused):
            return "candidates that were left out, without a reason"
        if self.status != "ok":
            return None
        s = request.settings
        if self.n.value != known.get("n", self.n.value) or self.n.value < 1:
            return "another number of rows than that of its moments"
        if len(self.chosen.value) != s.n_views or max(self.chosen.value) >= len(s.candidates):
            return "no candidate of the study"
        if self.variance.value[0] < 1 / LARGEST:
            return "a response that does not vary"
        made = self.models.value if s.exchange == "models" else self.predictions.value
        if len(made) != s.n_views:
            return "models of other views than were asked for"
        if s.exchange == "models":
            for model in made:
                wrong = estimators.check(model, n_features=known["p"], n_outputs=s.n_outputs)
                if wrong is not None:
                    return f"a model that cannot be used: {wrong}"
        return None


def _are_reasons(pairs: Any) -> bool:
    """Whether pairs are names with reasons."""
    return isinstance(pairs, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(t, str) for t in pair)
        for pair in pairs
    )


@message("meta-clustering/models", version=2)
class Models:
    """Everybody's models: try them on your rows."""

    settings: Settings = states(Settings, to="site")
    owners: tuple[str, ...] = Public("l", "whose model each one is", kind="str", to="all")
    models: Released = Model("*by view, by owner: a model", "models of all sites", to="all")
    sizes: Released = Aggregate("l", "rows of each owner", kind="int", to="all")
    means: Released = Aggregate("l p", "means of each owner", gaps=True, to="all")
    inverse: Released = Aggregate("p p", "inverse of the pooled covariance", to="all")
    trace: Released = Aggregate("", "trace behind the shrinkage", to="all")

    def lengths(self) -> dict[str, int]:
        """Views of the rows, and those with held-out rows."""
        return {"v": self.settings.n_views, "w": self.settings.gain_folds}


@message("meta-clustering/losses", version=1)
class Losses:
    """How the models do on a site's rows, against the site's own cross-fitted method."""

    failed: tuple[Any, ...] = Public(
        "*by failed model: owner, reason", "models that could not be used"
    )
    excess: Released = Aggregate("v l", "D: weighted mean excess loss", gaps=True)
    variance: Released = Aggregate("v l", "Q: its squared standard error", gaps=True, low=0)
    effective: Released = Aggregate("v l", "effective number of rows", gaps=True, low=0)
    raw: Released = Aggregate(
        "v l",
        "unweighted mean loss, the own model's training loss on the diagonal",
        gaps=True,
        low=0,
    )
    shift: Released = Aggregate(
        "w 1",
        "mean residual under the average of all models, by view with held-out rows",
        gaps=True,
    )
    shift_error: Released = Aggregate("w 1", "squared standard errors of these", gaps=True, low=0)

    def check(self, request: Models, known: Mapping[str, Any]) -> str | None:
        """Models that could not be used have a reason."""
        return None if _are_reasons(self.failed) else "models that failed, without a reason"


@message("meta-clustering/cuts", version=1)
class Cuts:
    """Groupings to be compared by the loss of their averaged models on held-out rows."""

    labels: Released = Aggregate(
        "w k l", "groups by view with held-out rows and number of groups", kind="int", to="all"
    )


@message("meta-clustering/cut-losses", version=1)
class CutLosses:
    """Held-out losses of the groupings."""

    losses: Released = Aggregate("k", "mean loss by number of groups", gaps=True, low=0)
    against_one: Released = Aggregate("k", "loss of one group minus these", gaps=True)
    against_one_error: Released = Aggregate(
        "k", "squared standard errors of these", gaps=True, low=0
    )


@message("meta-clustering/groups", version=1)
class Groups:
    """The outcome, for one site."""

    labels: Released = Aggregate("l", "group of each owner", kind="int", to="all")
    held_labels: Released = Aggregate(
        "w l", "groups found without the held-out rows", kind="int", to="all"
    )
    shifts: Released = Aggregate("w", "shrunken intercepts of this site", to="site")
    members: Released = Model("*by member: a model", "models of the site's group", to="all")
    member_sizes: Released = Aggregate("m", "rows behind these models", kind="int", to="all")


@message("meta-clustering/gains", version=2)
class Gains:
    """Mean losses on held-out rows and their differences."""

    means: Released = Aggregate(f"{len(GAINS)}", "losses and differences of losses", gaps=True)
    errors: Released = Aggregate(
        f"{len(GAINS)}", "squared standard errors of these", gaps=True, low=0
    )


@message("meta-clustering/pool-request", version=1)
class PoolRequest:
    """Send what one refit of the group needs."""

    what: str = Public("", "moments (linear) or rows (any method)", kind="str", to="site")
    levels: tuple[str, ...] = Public("k", "levels of the response", kind="str", to="site")


@message("meta-clustering/pool-moments", version=1)
class PoolMoments:
    """Cross-products of columns, response and a constant."""

    products: Released = Aggregate(
        "r r", "sums of products; empty where it is not asked for", empty=True, gram=True
    )

    def check(self, request: PoolRequest, known: Mapping[str, Any]) -> str | None:
        """Products of the study's columns over the rows that the site has."""
        found = self.products.value
        n = known.get("n")
        fine = not found.size or (len(found) == known["p"] + 2 and n in (None, found[0, 0]))
        return None if fine else "products of other columns or rows"


@message("meta-clustering/pool-rows", version=1)
class PoolRows:
    """Rows for a refit; only where the site's policy allows values for each record."""

    rows: Released = PerRecord("n q", "columns and response")

    def check(self, request: PoolRequest, known: Mapping[str, Any]) -> str | None:
        """The study's columns; a response that has levels is told by their numbers."""
        rows, k = self.rows.value, len(request.levels)
        codes = k == 0 or np.isin(rows[:, -1], np.arange(k)).all()
        fine = rows.shape[1] == known["p"] + 1 and codes
        return None if fine else "rows of other columns or levels"


# -------------------------------------------------------------------------- replies that do not fit


_LONGEST = 200  # characters of another site's words that are repeated
_NAMED = 10  # sites in one sentence
_FAR_OFF = 10.0  # times the loss of the best constant

WHY = {
    "too-few-rows": "it has too few rows",
    "constant-response": "its response takes one value only, but for a few rows at most",
    "rare-level": "too few of its rows, or none, have one of the levels of the response",
    "no-candidate": "none of the candidates could be used there",
}
WITHHELD = (
    "its losses were withheld: one row dominates them, or too few rows have one of the values of "
    "the response"
)


def has_nothing(reason: str) -> bool:
    """Whether a site was left out for what it said itself: no fault, and no matter of quorum."""
    return reason.startswith((*WHY.values(), WITHHELD))


def by_reason(reasons: Mapping[str, str]) -> str:
    """Sites with their reasons, each reason once: hundreds of sites can have the same."""
    said = []
    for reason in dict.fromkeys(reasons.values()):
        sites = [site for site, why in reasons.items() if why == reason]
        more = f" and {len(sites) - _NAMED} more" if len(sites) > _NAMED else ""
        said.append(f"{', '.join(sites[:_NAMED])}{more}: {reason}")
    return "; ".join(said)


def spoken(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Names with reasons as a site gave them, cut short."""
    return [(name[:_LONGEST], reason[:_LONGEST]) for name, reason in pairs]


def has_none(reply: Selected) -> str | None:
    """Why a site has no model, or none that can be compared; None where it has one."""
    if reply.status != "ok":
        return WHY[reply.status]
    known = np.isfinite([reply.variance.value[0], reply.own.value[0]]).all()
    return None if known else WITHHELD


def serves_itself(reply: Losses, place: int, variance: float) -> bool:
    """Whether a site's model, as it travelled, is any good for the rows that it was fitted on.

    A fit does no worse on them than a constant, about; one that is far off was damaged on its way.
    """
    return not float(reply.raw.value[0, place]) > _FAR_OFF * variance

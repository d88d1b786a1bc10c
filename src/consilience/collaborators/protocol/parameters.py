"""Parameters of meta clustering: their ranges, and what goes together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consilience.collaborators.protocol.messages import MAX_CANDIDATES, MAX_RUNS
from consilience.exceptions import ParameterError
from consilience.learners.candidates import label

if TYPE_CHECKING:
    from consilience.collaborators.protocol import MetaClustering


CHOICES = {
    "rule": ("pairwise", "spectral"),
    "exchange": ("models", "reference"),
    "loss": ("auto", "squared", "brier", "log"),
    "prediction": ("unpooled", "pooled"),
    "standardize": (False, True),
}


def check_parameters(method: MetaClustering) -> None:
    """Check each parameter, and those that must go together; raise `ParameterError`."""
    names = [label(c) for c in method.candidates]
    if not 1 <= len(names) <= MAX_CANDIDATES or len(set(names)) < len(names):
        raise ParameterError.of("candidates", f"1 to {MAX_CANDIDATES} different methods", names)
    for name, allowed in CHOICES.items():
        value = getattr(method, name)
        if type(value) is not type(allowed[0]) or value not in allowed:
            raise ParameterError.of(name, f"one of {allowed}", value)
    for name, fine, range_ in _numbers(method):
        if not fine:
            raise ParameterError.of(name, range_, getattr(method, name))
    _check_together(method)


def _numbers(method: MetaClustering) -> tuple[tuple[str, bool, str], ...]:
    """Whether each number is in its range."""
    k, most, scale = method.n_clusters, method.max_clusters, method.scale
    runs = method.stability_runs
    return (
        (
            "n_clusters",
            k in ("auto", "cv") or _whole(k, 1),
            "'auto', 'cv' or a whole number of at least 1",
        ),
        ("max_clusters", most is None or _whole(most, 1), "a whole number of at least 1"),
        ("margin", _number(method.margin) and 0 <= method.margin < 1, "a number in [0, 1)"),
        (
            "scale",
            scale == "self-tuning" or (_number(scale) and 0 < float(scale) < float("inf")),
            "'self-tuning' or a number above 0",
        ),
        (
            "gain_folds",
            _whole(method.gain_folds, 0) and 1 != method.gain_folds <= 10,
            "0, or a whole number from 2 to 10",
        ),
        (
            "stability_runs",
            _whole(runs, 0) and runs <= MAX_RUNS,
            f"a whole number from 0 to {MAX_RUNS}",
        ),
    )


def _check_together(method: MetaClustering) -> None:
    """Parameters that do not go together."""
    if method.exchange == "reference" and method.rule != "spectral":
        raise ParameterError(
            "exchange = 'reference' needs rule = 'spectral': predictions on reference points "
            "have no standard errors, which the pairwise rule tests with"
        )
    if method.exchange == "reference" and (
        method.n_clusters == "cv" or method.prediction == "pooled"
    ):
        raise ParameterError(
            "exchange = 'reference' goes with neither n_clusters = 'cv' nor prediction = "
            "'pooled': models do not travel, so nothing can be predicted together"
        )
    if method.n_clusters == "cv" and not method.gain_folds:
        raise ParameterError("n_clusters = 'cv' needs held-out rows: set gain_folds to 2 or more")


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

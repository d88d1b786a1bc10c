"""Which studies a local model can take: numbers, sequences of states, or categories."""

from __future__ import annotations

from consilience.clustering.protocol.messages import CODED
from consilience.protocol.method import Columns, Preparation


def misfit(kind: str, columns: Columns, preparation: Preparation) -> str:
    """What the study says that the model cannot take, in one sentence; "" if it takes all.

    Parameters
    ----------
    kind : {"kmeans", "gaussian-mixture", "markov-mixture", "latent-class"}
    columns : Columns
    preparation : Preparation
    """
    single = [name for name, known in columns.levels.items() if len(known) < 2]
    if single:
        return (
            f"levels of {single[0]!r} must be at least two different values: a column of one level "
            "tells no rows apart, leave it out"
        )
    if columns.weight is not None:
        return "ensemble-clustering weighs all rows alike: leave out [data] weight"
    if kind not in CODED:
        if preparation.missing == "keep":
            return (
                f"model {kind!r} needs a value in every cell and the study keeps missing ones: set "
                '[preparation] missing to "complete-rows" or "aggregated-mean"'
            )
        return ""
    if preparation.missing not in ("refuse", "complete-rows", "keep"):
        return f'model {kind!r} fills no cells: set [preparation] missing to "keep" or "refuse"'
    if preparation.standardize != "none":
        return f'model {kind!r} has no scales: set [preparation] standardize to "none"'
    if kind == "markov-mixture":
        if not columns.sequence:
            return (
                "model 'markov-mixture' needs sequence columns: name them in [data] sequence, and "
                "declare the states as levels of the first one"
            )
        if columns.features:
            return "model 'markov-mixture' clusters sequence columns alone: leave features out"
        return ""
    numbers = [name for name in columns.features if name not in columns.levels]
    if numbers or not columns.features:
        which = f": {numbers[0]!r} has none" if numbers else ""
        return f"model 'latent-class' needs features with declared levels{which}"
    if preparation.categorical != "onehot" or preparation.indicators:
        return (
            "model 'latent-class' needs every level of a column: set [preparation] categorical to "
            '"onehot", without indicators'
        )
    return ""

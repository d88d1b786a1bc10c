"""What a person should know about a fit of latent classes before reading it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from consilience.arrays import FloatArray
from consilience.latent_regression.estimators.latent_class_chain import resolved_sigma2
from consilience.latent_regression.estimators.latent_class_fit import ClassFit

if TYPE_CHECKING:
    from consilience.latent_regression.kernels.latent_class import Blocks


def remarks_of(
    found: ClassFit,
    x: FloatArray,
    y: FloatArray,
    blocks: Blocks,
    *,
    shared_ids: bool,
) -> Iterator[tuple[str, bool]]:
    """Sentences about a fit, none with a value of the data, and whether they are warnings.

    Parameters
    ----------
    found : ClassFit
    x : (n, p) array
        Rows that were used.
    y : (n,) array
    blocks : Blocks
    shared_ids : bool
        Whether an entity id belongs to several agents.
    """
    if found.asked != "auto" and found.n_classes < int(found.asked):
        yield (
            f"only {found.n_classes} of {found.asked} classes hold entities: "
            "ask for fewer, or read the fit as one of fewer classes",
            True,
        )
    if found.jumped:
        yield (
            "labels jumped to and fro between classes, so the learning rate was lowered: "
            "start with a lower learning_rate",
            True,
        )
    if found.sigma2 < 2.0 * resolved_sigma2(found.delta2, blocks.products):
        yield (
            "with so many events, or such weights, noise as small as this is lost in rounding: "
            "sigma_ is an upper bound; divide sample_weight, if given, by one number",
            float(blocks.n.sum()) > len(blocks.y),
        )
    if (y == y[0]).all():
        yield "y is constant: there is nothing that classes could differ by", False
    # Without an intercept a constant column takes its place.
    intercept = blocks.n_features > x.shape[1]
    constant = int((x == x[0]).all(axis=0).sum()) if intercept else 0
    if constant:
        yield (
            f"columns of X are constant ({constant}): the prior decides what they share with the "
            "intercept",
            False,
        )
    if len(x) < blocks.n_features:
        yield (
            f"there are fewer events than the {blocks.n_features} coefficients of a class: "
            "the prior decides",
            False,
        )
    elif _rank(blocks) < blocks.n_features - constant:
        yield "columns of X depend on one another: the prior shares out their coefficients", False
    if shared_ids:
        yield "some entity ids belong to several agents: each pair is an entity of its own", False
    if blocks.n_agents == 1 and found.n_classes > 1:
        yield "there is one agent only: agents' shares of the classes are not compared", False


def _rank(blocks: Blocks) -> int:
    sums = blocks.products.sum(axis=0)
    return int(np.linalg.matrix_rank(sums, tol=1e-9 * float(np.trace(sums)), hermitian=True))

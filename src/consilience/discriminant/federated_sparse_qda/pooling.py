"""The pooled moments of the classes, from those of the sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.estimators.sparse_qda_fit import PreparedMoments, floored
from consilience.discriminant.federated_sparse_qda.messages import Products, blocks_of, unpacked
from consilience.discriminant.federated_sparse_qda.survey import Survey
from consilience.exceptions import QuorumError
from consilience.numerics.block_moments import BlockMoments, pooled

Block = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class SiteProducts:
    """Sums of products of the sites within blocks.

    Attributes
    ----------
    levels : tuple of str
    columns : (m,) array of int
        Columns that take part.
    blocks : tuple of (q,) arrays of int
        Places among them.
    sums : dict of str to tuple of (K, q, q) arrays
        By site and block; NaN in classes that the site withholds there.
    """

    levels: tuple[str, ...]
    columns: IntArray
    blocks: tuple[Block, ...]
    sums: dict[str, tuple[FloatArray, ...]]

    @classmethod
    def of(
        cls,
        replies: Mapping[str, Products],
        columns: IntArray,
        labels: IntArray,
        levels: tuple[str, ...],
    ) -> SiteProducts:
        """Unpack the sites' replies."""
        blocks = tuple(blocks_of(labels))
        sums = {
            site: unpacked(np.asarray(reply.products.value, dtype=float), blocks)
            for site, reply in sorted(replies.items())
        }
        return cls(levels, columns, blocks, sums)

    def prepared(self, survey: Survey) -> PreparedMoments:
        """Moments over the sites of a survey, in their units.

        Raises
        ------
        QuorumError
            A class, or a block in a class, that none of these sites tells.
        """
        if (survey.n < 2).any():
            raise QuorumError("a class has no rows at these sites")
        units = survey.units()
        means, variances = survey.pooled(np.arange(len(survey.features))[units.kept])
        place = {int(j): i for i, j in enumerate(units.kept)}
        blocks, covariances = [], []
        diagonal = variances / units.scale**2
        for b, block in enumerate(self.blocks):
            inside = np.array([i for i, j in enumerate(self.columns[block]) if int(j) in place])
            if len(inside) < 2:
                continue
            at = np.array([place[int(j)] for j in self.columns[block[inside]]], dtype=np.intp)
            found = self._pooled(survey, b, inside)
            found /= units.scale[at][:, None] * units.scale[at][None, :]
            diagonal[:, at] = np.diagonal(found, axis1=1, axis2=2)
            blocks.append(at)
            covariances.append(found)
        known = BlockMoments(survey.n, diagonal, tuple(blocks), tuple(covariances))
        whole = len(self.blocks) == 1 and len(self.blocks[0]) == len(self.columns)
        all_means = np.zeros((len(means), len(survey.features)))
        all_means[:, units.kept] = means
        kind = PreparedMoments if whole else ScreenedMoments
        return kind(survey.n, all_means, units, floored(known, units))

    def _pooled(self, survey: Survey, b: int, inside: Block) -> FloatArray:
        """Covariances of a block by class, (K, q, q), from the sites that tell them."""
        columns = self.columns[self.blocks[b][inside]]
        found = []
        for k in range(len(survey.n)):
            at = [i for i in np.flatnonzero(survey.used[:, k]) if self.told(survey.sites[i], b, k)]
            if not at:
                raise QuorumError(
                    f"no site can tell the moments of a block of {len(inside)} columns in class "
                    f"{self.levels[k]!r}: raise the smallest alpha, or let sites with more rows "
                    "take part"
                )
            n, _, sums = pooled(
                [float(survey.counts[i, k]) for i in at],
                [survey.means[i, k, columns] for i in at],
                [self.sums[survey.sites[i]][b][k][np.ix_(inside, inside)] for i in at],
            )
            found.append(sums / n)
        return np.array(found)

    def told(self, site: str, b: int, k: int) -> bool:
        """Whether a site tells a block in a class."""
        return not bool(np.isnan(self.sums[site][b][k]).any())

    def withheld(self, survey: Survey) -> dict[str, list[tuple[int, int]]]:
        """By site: pairs of block and class whose rows count, but not in this block."""
        found: dict[str, list[tuple[int, int]]] = {}
        for i, site in enumerate(survey.sites):
            for b in range(len(self.blocks)):
                for k in np.flatnonzero(survey.used[i]):
                    if not self.told(site, b, int(k)):
                        found.setdefault(site, []).append((b, int(k)))
        return found


class ScreenedMoments(PreparedMoments):
    """Moments that are known within blocks only: there is no fit without a penalty."""

    @property
    def full_rank(self) -> bool:
        """Never: what lies between blocks is known to be small, not what it is."""
        return False


def notes_of(products: SiteProducts, survey: Survey) -> list[str]:
    """Say which classes of which sites are missing in some blocks."""
    found = []
    for site, pairs in products.withheld(survey).items():
        names = sorted({products.levels[k] for _, k in pairs})
        n_blocks = len({b for b, _ in pairs})
        found.append(
            f"Site {site} withheld the moments of class {', '.join(names)} in {n_blocks} of "
            f"{len(products.blocks)} blocks (fewer than twice as many rows as columns, or a cell "
            "of few rows): they come from the other sites."
        )
    return found

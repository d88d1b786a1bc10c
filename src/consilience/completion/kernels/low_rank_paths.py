"""Paths of low-rank fits that a search over held-out entries can judge, a class for each model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from consilience.completion.kernels.hard_impute import hard_path
from consilience.completion.kernels.optspace import optspace_path
from consilience.completion.kernels.ppca import ppca_path
from consilience.completion.kernels.soft_impute import rank_path, soft_path, unshrink
from consilience.numerics.entries import Entries
from consilience.numerics.entry_paths import Fits


@dataclass(frozen=True, kw_only=True)
class SoftPath(Fits):
    """Nuclear-norm penalties, decreasing.

    Parameters
    ----------
    unshrink : bool
        Refit the singular values by least squares.
    max_rank, solver
        As of :class:`consilience.SoftImpute`.
    """

    unshrink: bool = False
    max_rank: int | None = None
    solver: str = "auto"
    parameter: ClassVar[str] = "alpha"
    warm: ClassVar[bool] = True

    def fits(self, train: Entries, parameters: Sequence[Any], start: Any) -> Iterator[Any]:
        """Fits along decreasing penalties."""
        how: dict[str, Any] = {"max_rank": self.max_rank, "solver": self.solver, **self.given()}
        return soft_path(train, parameters, start=start, **how)

    def judged(self, train: Entries, fit: Any) -> Any:
        """The fit, with singular values refitted where that is asked for."""
        return unshrink(train, fit) if self.unshrink else fit


@dataclass(frozen=True, kw_only=True)
class UnshrunkRankPath(Fits):
    """Ranks of SOFT-IMPUTE+: the smallest penalty of each rank, singular values refitted."""

    warm: ClassVar[bool] = True

    def fits(self, train: Entries, parameters: Sequence[Any], start: Any) -> Iterator[Any]:
        """Penalised fits of increasing rank."""
        return rank_path(train, parameters, start=start, **self.given())

    def judged(self, train: Entries, fit: Any) -> Any:
        """The fit with singular values refitted."""
        return unshrink(train, fit)


@dataclass(frozen=True, kw_only=True)
class HardPath(Fits):
    """Ranks of HARD-IMPUTE, each from zero."""

    def fits(self, train: Entries, parameters: Sequence[Any], start: Any) -> Iterator[Any]:
        """Fits of increasing rank."""
        return hard_path(train, parameters, **self.given())


@dataclass(frozen=True, kw_only=True)
class OptSpacePath(Fits):
    """Ranks of OptSpace."""

    def fits(self, train: Entries, parameters: Sequence[Any], start: Any) -> Iterator[Any]:
        """Fits of increasing rank."""
        return optspace_path(train, parameters, **self.given())


@dataclass(frozen=True, kw_only=True)
class PPCAPath(Fits):
    """Ranks of probabilistic principal components, which estimate their own mean."""

    def fits(self, train: Entries, parameters: Sequence[Any], start: Any) -> Iterator[Any]:
        """Fits of increasing rank."""
        return ppca_path(train, parameters, **self.given())

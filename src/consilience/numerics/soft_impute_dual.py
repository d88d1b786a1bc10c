"""Lower bounds of the soft-impute criterion."""

from __future__ import annotations


def dual_value(loss: float, cross: float, alpha: float, norm: float) -> float:
    """Dual criterion at the best multiple of a residual.

    The dual of ``|X_O - M_O|^2 / 2 + alpha |M|_*`` is ``<Y, X> - |Y|^2 / 2`` over matrices Y that
    are zero where nothing is observed and have spectral norm at most alpha.

    Parameters
    ----------
    loss : float
        Sum of squared residuals.
    cross : float
        Product of the residual with the observed entries.
    alpha : float
    norm : float
        A bound of the spectral norm of the residual.
    """
    if loss <= 0.0:
        return 0.0
    c = cross / loss
    if norm > 0.0:
        c = min(c, alpha / norm)
    return c * cross - 0.5 * c * c * loss


def relative_gap(objective: float, dual: float) -> float:
    """Duality gap over the criterion; 0 where the criterion is."""
    return max(0.0, 1.0 - dual / objective) if objective > 0.0 else 0.0

"""Reports and figures: read results and transcripts, run nothing.

``write`` makes one self-contained HTML file of a run; each ``plot_*`` makes one figure of a result.
"""

from __future__ import annotations

from consilience.report.figures import (
    plot_class_profiles,
    plot_class_shares,
    plot_disclosure,
    plot_eigenvalues,
    plot_stability,
    plot_target_by_class,
    plot_votes,
    plot_weights,
)
from consilience.report.html import write

__all__ = [
    "plot_class_profiles",
    "plot_class_shares",
    "plot_disclosure",
    "plot_eigenvalues",
    "plot_stability",
    "plot_target_by_class",
    "plot_votes",
    "plot_weights",
    "write",
]

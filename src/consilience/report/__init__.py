"""Reports and figures: read results and transcripts, run nothing.

``Report`` is the page of a run in Python, and ``write`` makes one self-contained HTML file of it;
each ``plot_*`` makes one figure of a result.
The names are listed here and load on use: most figures stand in the wings, which import this room.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC: dict[str, str] = {
    "Report": "consilience.report.html",
    "methods_paragraph": "consilience.report.html",
    "plot_assistance_power": "consilience.assisted.report.figures_assisted",
    "plot_assistance_tests": "consilience.assisted.report.figures_assisted",
    "plot_assisted_calibration": "consilience.assisted.report.figures_assisted",
    "plot_assisted_coefficients": "consilience.assisted.report.figures_assisted",
    "plot_assisted_rounds": "consilience.assisted.report.figures_assisted",
    "plot_calibration": "consilience.regression.report.pooled_regression",
    "plot_candidates": "consilience.discriminant.report.figures_choice",
    "plot_class_profiles": "consilience.report.figures",
    "plot_class_shares": "consilience.clustering.report.figures_classes",
    "plot_contributions": "consilience.discriminant.report.figures_choice",
    "plot_curves": "consilience.describe.report.describe",
    "plot_dendrogram": "consilience.discriminant.report.figures",
    "plot_detectable": "consilience.collaborators.report.figures_meta",
    "plot_disclosure": "consilience.report.figures",
    "plot_differences": "consilience.describe.report.describe",
    "plot_dissimilarity": "consilience.collaborators.report.figures_meta",
    "plot_distributions": "consilience.describe.report.describe",
    "plot_eigenvalues": "consilience.clustering.report.figures_classes",
    "plot_entry_curve": "consilience.report.figures_selection",
    "plot_forest": "consilience.regression.report.pooled_regression",
    "plot_gain": "consilience.collaborators.report.figures_meta",
    "plot_held_out_loss": "consilience.collaborators.report.figures_meta",
    "plot_interactions": "consilience.discriminant.report.figures",
    "plot_item_profiles": "consilience.clustering.report.figures_sequences",
    "plot_latent_coefficients": "consilience.latent_regression.report.figures_latent",
    "plot_latent_held_out": "consilience.latent_regression.report.figures_latent",
    "plot_latent_members": "consilience.latent_regression.report.figures_latent",
    "plot_latent_releases": "consilience.latent_regression.report.figures_latent",
    "plot_latent_traces": "consilience.latent_regression.report.figures_latent",
    "plot_leave_one_out": "consilience.report.figures_selection",
    "plot_loadings": "consilience.report.figures_selection",
    "plot_merges": "consilience.collaborators.report.figures_meta",
    "plot_pairwise_tests": "consilience.collaborators.report.figures_meta",
    "plot_reference_comparison": "consilience.averaging.report.figures_reference",
    "plot_reference_contributions": "consilience.averaging.report.figures_reference",
    "plot_reference_influence": "consilience.averaging.report.figures_reference",
    "plot_reference_penalties": "consilience.averaging.report.figures_reference",
    "plot_reference_probes": "consilience.averaging.report.figures_reference",
    "plot_reference_rounds": "consilience.averaging.report.figures_reference",
    "plot_regression": "consilience.regression.report.pooled_regression",
    "plot_sequence_index": "consilience.clustering.report.figures_sequences",
    "plot_singular_values": "consilience.report.figures_selection",
    "plot_site_differences": "consilience.clustering.report.figures_sequences",
    "plot_spectrum": "consilience.collaborators.report.figures_meta",
    "plot_one_cloud": "consilience.clustering.report.figures_classes",
    "plot_stability": "consilience.clustering.report.figures_classes",
    "plot_state_distribution": "consilience.clustering.report.figures_sequences",
    "plot_target_by_class": "consilience.clustering.report.figures_classes",
    "plot_together": "consilience.collaborators.report.figures_meta",
    "plot_transitions": "consilience.clustering.report.figures_sequences",
    "plot_votes": "consilience.clustering.report.figures_classes",
    "plot_weights": "consilience.clustering.report.figures_classes",
    "write": "consilience.report.html",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'consilience.report' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

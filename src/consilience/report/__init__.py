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
from consilience.report.figures_assisted import (
    plot_assistance_power,
    plot_assistance_tests,
    plot_assisted_calibration,
    plot_assisted_coefficients,
    plot_assisted_rounds,
)
from consilience.report.figures_latent import plot_latent_coefficients, plot_latent_traces
from consilience.report.figures_latent_sites import (
    plot_latent_held_out,
    plot_latent_members,
    plot_latent_releases,
)
from consilience.report.figures_meta import (
    plot_dissimilarity,
    plot_merges,
    plot_pairwise_tests,
    plot_together,
)
from consilience.report.figures_meta_gain import (
    plot_detectable,
    plot_gain,
    plot_held_out_loss,
    plot_spectrum,
)
from consilience.report.figures_reference import (
    plot_reference_comparison,
    plot_reference_contributions,
    plot_reference_influence,
    plot_reference_penalties,
    plot_reference_probes,
    plot_reference_rounds,
)
from consilience.report.figures_selection import (
    plot_entry_curve,
    plot_leave_one_out,
    plot_loadings,
    plot_singular_values,
)
from consilience.report.figures_sequences import (
    plot_item_profiles,
    plot_sequence_index,
    plot_site_differences,
    plot_state_distribution,
    plot_transitions,
)
from consilience.report.figures_wide import plot_dendrogram, plot_interactions
from consilience.report.figures_wide_choice import plot_candidates, plot_contributions
from consilience.report.html import write

__all__ = [
    "plot_assistance_power",
    "plot_assistance_tests",
    "plot_assisted_calibration",
    "plot_assisted_coefficients",
    "plot_assisted_rounds",
    "plot_candidates",
    "plot_class_profiles",
    "plot_class_shares",
    "plot_contributions",
    "plot_dendrogram",
    "plot_detectable",
    "plot_disclosure",
    "plot_dissimilarity",
    "plot_eigenvalues",
    "plot_entry_curve",
    "plot_gain",
    "plot_held_out_loss",
    "plot_interactions",
    "plot_item_profiles",
    "plot_latent_coefficients",
    "plot_latent_held_out",
    "plot_latent_members",
    "plot_latent_releases",
    "plot_latent_traces",
    "plot_leave_one_out",
    "plot_loadings",
    "plot_merges",
    "plot_pairwise_tests",
    "plot_reference_comparison",
    "plot_reference_contributions",
    "plot_reference_influence",
    "plot_reference_penalties",
    "plot_reference_probes",
    "plot_reference_rounds",
    "plot_sequence_index",
    "plot_singular_values",
    "plot_site_differences",
    "plot_spectrum",
    "plot_stability",
    "plot_state_distribution",
    "plot_target_by_class",
    "plot_together",
    "plot_transitions",
    "plot_votes",
    "plot_weights",
    "write",
]

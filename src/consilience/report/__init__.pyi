from consilience.assisted.report.figures_assisted import (
    plot_assistance_power as plot_assistance_power,
)
from consilience.assisted.report.figures_assisted import (
    plot_assistance_tests as plot_assistance_tests,
)
from consilience.assisted.report.figures_assisted import (
    plot_assisted_calibration as plot_assisted_calibration,
)
from consilience.assisted.report.figures_assisted import (
    plot_assisted_coefficients as plot_assisted_coefficients,
)
from consilience.assisted.report.figures_assisted import (
    plot_assisted_rounds as plot_assisted_rounds,
)
from consilience.averaging.report.figures_reference import (
    plot_reference_comparison as plot_reference_comparison,
)
from consilience.averaging.report.figures_reference import (
    plot_reference_contributions as plot_reference_contributions,
)
from consilience.averaging.report.figures_reference import (
    plot_reference_influence as plot_reference_influence,
)
from consilience.averaging.report.figures_reference import (
    plot_reference_penalties as plot_reference_penalties,
)
from consilience.averaging.report.figures_reference import (
    plot_reference_probes as plot_reference_probes,
)
from consilience.averaging.report.figures_reference import (
    plot_reference_rounds as plot_reference_rounds,
)
from consilience.clustering.report.figures_classes import plot_class_shares as plot_class_shares
from consilience.clustering.report.figures_classes import plot_eigenvalues as plot_eigenvalues
from consilience.clustering.report.figures_classes import plot_one_cloud as plot_one_cloud
from consilience.clustering.report.figures_classes import plot_stability as plot_stability
from consilience.clustering.report.figures_classes import (
    plot_target_by_class as plot_target_by_class,
)
from consilience.clustering.report.figures_classes import plot_votes as plot_votes
from consilience.clustering.report.figures_classes import plot_weights as plot_weights
from consilience.clustering.report.figures_sequences import plot_item_profiles as plot_item_profiles
from consilience.clustering.report.figures_sequences import (
    plot_sequence_index as plot_sequence_index,
)
from consilience.clustering.report.figures_sequences import (
    plot_site_differences as plot_site_differences,
)
from consilience.clustering.report.figures_sequences import (
    plot_state_distribution as plot_state_distribution,
)
from consilience.clustering.report.figures_sequences import plot_transitions as plot_transitions
from consilience.collaborators.report.figures_meta import plot_detectable as plot_detectable
from consilience.collaborators.report.figures_meta import plot_dissimilarity as plot_dissimilarity
from consilience.collaborators.report.figures_meta import plot_gain as plot_gain
from consilience.collaborators.report.figures_meta import plot_held_out_loss as plot_held_out_loss
from consilience.collaborators.report.figures_meta import plot_merges as plot_merges
from consilience.collaborators.report.figures_meta import plot_pairwise_tests as plot_pairwise_tests
from consilience.collaborators.report.figures_meta import plot_spectrum as plot_spectrum
from consilience.collaborators.report.figures_meta import plot_together as plot_together
from consilience.describe.report.describe import plot_curves as plot_curves
from consilience.describe.report.describe import plot_differences as plot_differences
from consilience.describe.report.describe import plot_distributions as plot_distributions
from consilience.discriminant.report.figures import plot_dendrogram as plot_dendrogram
from consilience.discriminant.report.figures import plot_interactions as plot_interactions
from consilience.discriminant.report.figures_choice import plot_candidates as plot_candidates
from consilience.discriminant.report.figures_choice import plot_contributions as plot_contributions
from consilience.latent_regression.report.figures_latent import (
    plot_latent_coefficients as plot_latent_coefficients,
)
from consilience.latent_regression.report.figures_latent import (
    plot_latent_held_out as plot_latent_held_out,
)
from consilience.latent_regression.report.figures_latent import (
    plot_latent_members as plot_latent_members,
)
from consilience.latent_regression.report.figures_latent import (
    plot_latent_releases as plot_latent_releases,
)
from consilience.latent_regression.report.figures_latent import (
    plot_latent_traces as plot_latent_traces,
)
from consilience.regression.report.pooled_regression import plot_calibration as plot_calibration
from consilience.regression.report.pooled_regression import plot_forest as plot_forest
from consilience.regression.report.pooled_regression import plot_regression as plot_regression
from consilience.report.figures import plot_class_profiles as plot_class_profiles
from consilience.report.figures import plot_disclosure as plot_disclosure
from consilience.report.figures_selection import plot_entry_curve as plot_entry_curve
from consilience.report.figures_selection import plot_leave_one_out as plot_leave_one_out
from consilience.report.figures_selection import plot_loadings as plot_loadings
from consilience.report.figures_selection import plot_singular_values as plot_singular_values
from consilience.report.html import Report as Report
from consilience.report.html import methods_paragraph as methods_paragraph
from consilience.report.html import write as write

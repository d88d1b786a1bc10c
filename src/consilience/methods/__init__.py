"""Methods: whole exchanges, one file each, over phases that several of them share."""

BUILT_IN = {
    "assistance-test": "consilience.methods.assistance_test",
    "assisted-glm": "consilience.methods.assisted_glm",
    "cluster-count": "consilience.methods.one_table.cluster_count",
    "community-bayes": "consilience.methods.one_table.community_bayes",
    "ensemble-clustering": "consilience.methods.ensemble_clustering",
    "federated-community-bayes": "consilience.methods.federated_community_bayes",
    "federated-pca": "consilience.methods.federated_pca",
    "federated-sparse-qda": "consilience.methods.federated_sparse_qda",
    "latent-class-regression": "consilience.methods.latent_class_regression",
    "matrix-completion": "consilience.methods.one_table.matrix_completion",
    "meta-clustering": "consilience.methods.meta_clustering",
    "mean-and-sd": "consilience.methods.mean_and_sd",
    "sparse-qda": "consilience.methods.one_table.sparse_qda",
    "reference-averaging": "consilience.methods.reference_averaging",
}
"""Methods of this package by name. Other packages announce theirs by an entry point of the group
``consilience.methods``, whose value is the module that registers them."""

"""What methods are made of, and where those of this package are."""

BUILT_IN = {
    "assistance-test": "consilience.assisted.test",
    "assisted-glm": "consilience.assisted.glm",
    "cluster-count": "consilience.completion.one_table.cluster_count",
    "community-bayes": "consilience.discriminant.one_table.community_bayes",
    "contingency-table": "consilience.contingency.protocol",
    "describe": "consilience.describe.protocol",
    "ensemble-clustering": "consilience.clustering.protocol",
    "federated-community-bayes": "consilience.discriminant.federated_community_bayes",
    "federated-pca": "consilience.completion.federated_pca",
    "federated-sparse-qda": "consilience.discriminant.federated_sparse_qda",
    "latent-class-regression": "consilience.latent_regression.protocol",
    "matrix-completion": "consilience.completion.one_table.matrix_completion",
    "meta-clustering": "consilience.collaborators.protocol",
    "mean-and-sd": "consilience.protocol.mean_and_sd",
    "pooled-regression": "consilience.regression.protocol",
    "sparse-qda": "consilience.discriminant.one_table.sparse_qda",
    "reference-averaging": "consilience.averaging.protocol",
}
"""Methods of this package by name. Other packages announce theirs by an entry point of the group
``consilience.methods``, whose value is the module that registers them."""

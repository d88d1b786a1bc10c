"""Classification of wide tables: sparse quadratic discriminant analysis and community Bayes.

Paper: Le and Hastie, *Sparse quadratic discriminant analysis and community Bayes*
(arXiv 1407.4543). Public, for one table: `SparseQDA`, `CommunityBayesClassifier`; as studies of one
table: `SparseQDAStudy`, `CommunityBayesStudy`; over sites: `FederatedSparseQDA`,
`FederatedCommunityBayes`.
"""

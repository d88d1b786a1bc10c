"""Matrices with gaps: low-rank models, components and classes chosen by held-out entries.

Papers: Ya Le's Stanford thesis, chapter 3 (held-out entries); Mazumder, Hastie and Tibshirani (soft
impute); Tipping and Bishop (probabilistic components). Public: `SoftImpute`, `HardImpute`,
`OptSpace`, `ProbabilisticPCA`, `ObservedKMeans`, `KPOD`, `EMLift`, `MatrixImputer`, the searches
`RankCV`, `NuclearNormCV`, `ClusterCountCV`, and the studies `MatrixCompletionStudy`,
`ClusterCountStudy`, `FederatedPCA`.
"""

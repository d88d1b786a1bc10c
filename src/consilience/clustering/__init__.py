"""Subtypes across sites: mixtures of numbers, of categories and of sequences, joined in one shot.

Papers: Duan, Xiong, Liu, Liao and Cai, *Federated One-Shot Ensemble Clustering* (arXiv 2409.08396).
Public: `EnsembleClustering` (the study; its ladder is in ``clustering.protocol``),
`LatentClassAnalysis`, `MarkovMixture`.
"""

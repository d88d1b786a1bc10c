"""Regression in latent classes for agents, entities and their events.

Paper: Yang, Carette, Jimbo and Maruyama, *Federated Latent Class Regression for Hierarchical Data*
(arXiv 2206.10783). Public: `LatentClassRegression` (the study; its ladder is in
``latent_regression.protocol``), `LatentClassRegressor` (one table).
"""

"""Parties with other columns of the same people: is a partner of use, and a GLM on all columns.

Paper: Zhang, Yang and Ding, *Additive-effect assisted learning* (2025). Public: `AssistanceTest`
(stage 1, ladder in ``assisted.test``) and `AssistedGLM` (stage 2, ladder in ``assisted.glm``).
"""

"""Any estimator on data that are split: refits towards an average on reference rows.

Paper: Ya Le's Stanford thesis, chapter 1 (with T. Hastie and E. Dobriban). Public:
`ReferenceAveraging` (the study; its ladder is in ``averaging.protocol``),
`ReferenceAveragingRegressor` and `ReferenceAveragingClassifier` (one tall table).
"""

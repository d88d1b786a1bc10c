"""An estimator as a method: fitted to the table of one site, which keeps the model.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
fit: Fit                    ->  holds rows out, fits the others, judges the
  parameters, levels              held-out ones, keeps the predictor
                            <-  Fitted: rows by class, errors by rule, confusion,
                                  errors by candidate, scores         AGGREGATE
                                  figures of the candidates, what the
                                  model tells (pairs, groups)         MODEL
==============================  ==================================================

Each method of this kind is a module: ``sparse_qda``, ``community_bayes``. Methods that choose by
held-out entries of a matrix with gaps are others: ``matrix_completion``, ``cluster_count``, over
``entry_study``, which has their ladder. For several sites each has a method of its own.
"""

from __future__ import annotations

from consilience.discriminant.one_table.messages import Fit, Fitted
from consilience.discriminant.one_table.result import OneTableResult
from consilience.discriminant.one_table.study import LocalFit, OneTableStudy, fit_step
from consilience.protocol.one_table import Rows

__all__ = ["Fit", "Fitted", "LocalFit", "OneTableResult", "OneTableStudy", "Rows", "fit_step"]

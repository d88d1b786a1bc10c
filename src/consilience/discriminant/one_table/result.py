"""Result of a study of one table: how well the classes are told apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from consilience.arrays import FloatArray
from consilience.discriminant.one_table.messages import SCORES
from consilience.protocol.result import Result

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, kw_only=True)
class OneTableResult(Result):
    """What a site tells of a fit to its table. NaN: withheld by the rules of the site's policy.

    Attributes
    ----------
    site, target_name : str
    levels : tuple of str
        The K classes, as declared.
    feature_names : tuple of str
    n, n_held : int
        Rows that take part, and those of them that are held out.
    n_by_class : (K,) array
        Rows that take part.
    judged : tuple of str
        The m rules that held-out rows judge: the one that was fitted, and others beside it.
    errors : (m,) array
        Held-out rows that a rule gets wrong.
    confusion : (K, K) array
        Held-out rows by class and class predicted by the first rule.
    log_loss, brier : (m,) arrays
        Mean scores of held-out rows, the smaller the better (Brier: sum over classes); ``..._se``
        are their standard errors.
    log_loss_gain, brier_gain : (m,) arrays
        How much worse than the first each rule scores on the same rows, with ``..._gain_se``; NaN
        for the first.
    candidates : (a,) array
        What cross-validation chooses among; empty where there are more figures than rows.
    cv_errors : (a,) array
        Of the `cv_rows` rows that are not held out, those that each candidate gets wrong in
        cross-validation; empty where none was done.
    cv_se : (a,) array
        Standard errors of their shares.
    cv_rows : int
    chosen : int
        Place of the candidate that was fitted; -1 where it is not told.
    model_stays : str
        Why what the model tells stays at the site; empty where it is here.
    """

    site: str
    target_name: str
    levels: tuple[str, ...]
    feature_names: tuple[str, ...]
    n: int
    n_held: int
    n_by_class: FloatArray
    judged: tuple[str, ...]
    errors: FloatArray
    confusion: FloatArray
    log_loss: FloatArray
    log_loss_se: FloatArray
    log_loss_gain: FloatArray
    log_loss_gain_se: FloatArray
    brier: FloatArray
    brier_se: FloatArray
    brier_gain: FloatArray
    brier_gain_se: FloatArray
    candidates: FloatArray
    cv_errors: FloatArray
    cv_se: FloatArray
    cv_rows: int
    chosen: int
    model_stays: str

    @property
    def error_rates(self) -> FloatArray:
        """Share of held-out rows that each rule gets wrong; NaN where withheld or none are held."""
        return np.asarray(self.errors / self.n_held if self.n_held else self.errors * np.nan)

    @property
    def n_fitted(self) -> int:
        """Rows that are fitted."""
        return self.n - self.n_held

    def judged_sentence(self) -> str:
        """Say how the first rule did on held-out rows, and the others beside it."""
        if not self.n_held:
            return "No rows were held out, so nothing judges the fit anew."
        told = [i for i in range(len(self.judged)) if not np.isnan(self.errors[i])]
        few = [name for i, name in enumerate(self.judged) if i not in told]
        parts = [
            f"{self.judged[i]} gets {self.errors[i]:.0f} wrong ({self.error_rates[i]:.1%})"
            for i in told
        ]
        if few:
            parts.append(
                f"too few to be told are wrong by {', '.join(few)} (the site's own rules.csv has "
                "the numbers)"
            )
        sentence = f"Of {self.n_held} rows that were held out, {'; '.join(parts)}."
        if 0 not in told and not np.isnan(self.log_loss).all():
            pairs = zip(self.judged, self.log_loss, strict=True)
            losses = (f"{name} {loss:.2g}" for name, loss in pairs if not np.isnan(loss))
            sentence += f" Mean log losses: {', '.join(losses)}."
        return sentence

    def to_frame(self) -> pd.DataFrame:
        """Return one line per rule: errors and scores on held-out rows."""
        import pandas as pd

        columns = {"errors": self.errors, "error_rate": self.error_rates}
        for name in SCORES:
            columns |= {name: getattr(self, name), f"{name}_se": getattr(self, f"{name}_se")}
        return pd.DataFrame(columns, index=pd.Index(self.judged, name="rule"))

"""Simulated visits of patients on the wards of a few hospitals, for demonstrations.

How a patient's blood pressure goes with dose, salt and steps depends on the patient's kind, which
nobody observes. Wards see the kinds in different proportions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from consilience.datasets import check_least
from consilience.datasets.simulate_latent_classes import simulate_latent_classes

if TYPE_CHECKING:
    from pandas import DataFrame

HOSPITALS = ("aspen", "birch", "cedar", "elm")
KINDS = ("dose", "salt", "steps", "none")
"""What the pressure of a patient goes with, by kind."""
FEATURES = ("dose", "salt", "steps")
"""Milligrams a day, grams a day, thousands a day."""
TARGET = "pressure"
SLOPES = np.array([[-0.8, 0.4, -0.3], [-0.1, 3.0, -0.3], [-0.2, 0.4, -3.0], [0.0, 0.0, 0.0]])
"""mmHg for one unit more of each feature, by kind."""
AT_CENTRE = np.array([140.0, 143.0, 137.0, 150.0])
"""mmHg where every feature is at its mean, by kind."""
CENTRES = np.array([30.0, 9.0, 8.0])
SPREADS = np.array([6.0, 2.0, 1.8])
SHARES = (0.4, 0.25, 0.2, 0.15)


def simulate_wards(
    seed: int = 0,
    *,
    n_wards: int = 12,
    n_patients: float = 12.0,
    n_visits: float = 8.0,
    sigma: float = 5.0,
) -> dict[str, DataFrame]:
    """Simulate the visits at four hospitals.

    Parameters
    ----------
    seed : int
    n_wards : int
        Of each hospital.
    n_patients, n_visits : float
        Mean number of patients of a ward, and of visits of a patient.
    sigma : float
        Standard deviation of a visit around its patient's kind, in mmHg.

    Returns
    -------
    dict of str to pandas.DataFrame
        By hospital, one row a visit: ward, patient, dose, salt, steps, kind, pressure. The kind is
        what a study would like to know, and no study has.

    Raises
    ------
    ParameterError
        Fewer than one ward, or another number out of its range.
    """
    check_least(1, n_wards=n_wards)
    drawn = simulate_latent_classes(
        len(KINDS),
        rng=np.random.default_rng(seed),
        n_agents=n_wards * len(HOSPITALS),
        n_entities=n_patients,
        n_events=n_visits,
        n_features=len(FEATURES) + 1,
        sigma=sigma,
        beta=3.0,
        shares=SHARES,
    )
    events = drawn.events
    # what is left without the drawn coefficients: those here have units
    noise = events.y - drawn.expected(events)
    # rounded before the response follows from it: a table holds what was measured
    features = (CENTRES + SPREADS * events.x).round(1)
    slopes = SLOPES[events.label]
    pressure = AT_CENTRE[events.label] + ((features - CENTRES) * slopes).sum(axis=1) + noise
    table = events.to_frame()[["agent", "entity"]]
    ward = table["agent"].str[1:].astype(int)
    hospital = ward // n_wards
    letters = np.array([name[0].upper() for name in HOSPITALS])[hospital]
    table["ward"] = [f"{a}{i:02d}" for a, i in zip(letters, ward % n_wards + 1, strict=True)]
    # names that people would give, in place of the simulator's
    number = table["entity"].str.rpartition("-e")[2].astype(int) + 1
    table["patient"] = [f"{w}-{i:02d}" for w, i in zip(table["ward"], number, strict=True)]
    for j, name in enumerate(FEATURES):
        table[name] = features[:, j]
    table["kind"] = np.array(KINDS)[events.label]
    table[TARGET] = pressure.round(1)
    columns = ["ward", "patient", *FEATURES, "kind", TARGET]
    return {
        name: table.loc[hospital == h, columns].reset_index(drop=True)
        for h, name in enumerate(HOSPITALS)
    }

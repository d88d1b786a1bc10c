"""StepMix's side of the benchmark of latent class analysis, run by an interpreter that has it.

``python stepmix_fits.py IN.npz OUT.npz``: rows, responsibilities of the start, and settings in;
parameters, log likelihood, iterations and CPU seconds out. Needs nothing of this package.
"""

import sys
import time
import warnings

import numpy as np
from stepmix.stepmix import StepMix
from threadpoolctl import threadpool_limits


class FromResponsibilities(StepMix):
    """Starts from given responsibilities; otherwise StepMix as it is."""

    def _initialize_parameters(self, x, random_state):
        if self.given is None:
            super()._initialize_parameters(x, random_state)
            return
        self.log_resp_ = np.log(np.clip(self.given, 1e-15, 1 - 1e-15))
        self.weights_ = np.ones(self.n_components) / self.n_components
        self._initialize_parameters_measurement(x, random_state)


def fitted(x, k, measurement, given=None, **settings):
    model = FromResponsibilities(k, measurement=measurement, progress_bar=0, **settings)
    model.given = given
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x)
    return model, time.process_time() - begin


def main(source, target):
    given = np.load(source)
    x, start = given["x"], given["start"]
    k, measurement = start.shape[1], str(given["measurement"])
    fitted(x[:500], k, measurement, start[:500], max_iter=2)  # loads what is loaded on use
    steps, seconds = fitted(
        x, k, measurement, start, max_iter=int(given["steps"]), abs_tol=0.0, rel_tol=0.0
    )
    found = {
        "shares": steps.weights_,
        "levels": steps.get_parameters()["measurement"]["pis"],
        "log_likelihood": steps.score(x) * len(x),
        "seconds": seconds,
    }
    if int(given["starts"]):
        whole, seconds = fitted(
            x,
            k,
            measurement,
            n_init=int(given["starts"]),
            abs_tol=0.0,
            rel_tol=float(given["tol"]),
            max_iter=1000,
            random_state=0,
        )
        found |= {"fit_log_likelihood": whole.score(x) * len(x), "fit_seconds": seconds}
    np.savez(target, **found)


if __name__ == "__main__":
    with threadpool_limits(1):
        main(*sys.argv[1:])

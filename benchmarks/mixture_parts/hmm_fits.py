"""hmmlearn's side of the benchmark of Markov mixtures, run by an interpreter that has it.

``python hmm_fits.py IN.npz OUT.npz``: sequences and a start in; parameters, log likelihoods and CPU
seconds out. K chains over S states are one hidden Markov model with K S hidden states, no way from
one block of S to another, and emissions that are certain. Needs nothing of this package.
"""

import sys
import time

import numpy as np
from hmmlearn.hmm import CategoricalHMM
from threadpoolctl import threadpool_limits


def fitted(codes, lengths, initial, transition, shares, n_iter, implementation):
    k, s = initial.shape
    model = CategoricalHMM(
        k * s,
        n_features=s,
        params="st",
        init_params="",
        n_iter=n_iter,
        tol=-np.inf,
        implementation=implementation,
    )
    model.startprob_ = (shares[:, None] * initial).ravel()
    model.transmat_ = np.zeros((k * s, k * s))
    for c in range(k):
        model.transmat_[c * s : (c + 1) * s, c * s : (c + 1) * s] = transition[c]
    model.emissionprob_ = np.tile(np.eye(s), (k, 1))
    begin = time.process_time()
    model.fit(codes[:, None], lengths)
    seconds = time.process_time() - begin
    blocks = [model.transmat_[c * s : (c + 1) * s, c * s : (c + 1) * s] for c in range(k)]
    start = model.startprob_.reshape(k, s)
    return {
        "seconds": seconds,
        "history": np.array(list(model.monitor_.history)),
        "shares": start.sum(axis=1),
        "initial": start / start.sum(axis=1, keepdims=True),
        "transition": np.array(blocks),
    }


def main(source, target):
    given = dict(np.load(source))
    n_iter = int(given.pop("n_iter"))
    found = {}
    for implementation in ("log", "scaling"):
        answer = fitted(**given, n_iter=n_iter, implementation=implementation)
        found |= {f"{implementation}_{name}": value for name, value in answer.items()}
    np.savez(target, **found)


if __name__ == "__main__":
    with threadpool_limits(1):
        main(*sys.argv[1:])

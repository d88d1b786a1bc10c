"""Results of wide classification as runs would make them, with made-up figures."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import linkage

from consilience.discriminant.federated_community_bayes import FederatedCommunityBayesResult
from consilience.discriminant.federated_sparse_qda import FederatedSparseQDAResult
from consilience.discriminant.kernels.communities import cut
from consilience.discriminant.one_table.community_bayes import CommunityBayesStudyResult
from consilience.discriminant.one_table.sparse_qda import SparseQDAStudyResult
from consilience.engines.federation import Run
from consilience.engines.rundir import RunInfo
from consilience.wire.transcript import Line

NAMES = {
    SparseQDAStudyResult: "sparse-qda",
    CommunityBayesStudyResult: "community-bayes",
    FederatedSparseQDAResult: "federated-sparse-qda",
    FederatedCommunityBayesResult: "federated-community-bayes",
}
EMPTY = {
    "str": "",
    "int": 0,
    "float": 0.0,
    "bool": False,
    "FloatArray": np.empty(0),
    "IntArray": np.empty(0, dtype=np.int64),
}
STAYS = "its smallest class has fewer than twice as many rows as the model has parameters"


def filled(kind: type[Any], **known: Any) -> Any:
    """A result of a kind; what a report does not read is empty."""
    fields = [f for f in dataclasses.fields(kind) if f.name not in known]
    rest = {f.name: EMPTY.get(str(f.type), ()) for f in fields}
    return kind(**rest, **known)


def rules(names: tuple[str, ...], rates: tuple[float, ...], n: int) -> dict[str, Any]:
    """Fields on held-out rows; the first rule saves .2 of log loss for each 10% of rows."""
    share = np.array(rates)
    gain = 2.0 * (share - share[0])
    gain[0] = np.nan
    return {
        "judged": names,
        "errors": np.round(share * n),
        "log_loss": 2.0 * share + 0.05,
        "log_loss_se": np.full(len(names), 0.03),
        "log_loss_gain": gain,
        "log_loss_gain_se": np.where(np.isnan(gain), np.nan, 0.02),
    }


def classes(k: int, p: int, n: int) -> dict[str, Any]:
    return {
        "levels": tuple(f"kind {i}" for i in range(k)),
        "feature_names": tuple(f"x{j}" for j in range(p)),
        "target_name": "kind",
        "n_by_class": np.full(k, n // k),
    }


def linked(k: int, p: int, m: int, a: int, seed: int = 0) -> dict[str, Any]:
    """Fields on links: m pairs, a penalties."""
    rng = np.random.default_rng(seed)
    pairs = np.argwhere(np.triu(np.ones((p, p)), 1))
    pairs = pairs[rng.permutation(len(pairs))[:m]]
    partial = rng.uniform(-0.8, 0.8, (len(pairs), k))
    links = np.round(np.linspace(0, 1.5 * m, a)).astype(np.int64)
    chosen = int(np.argmin(np.abs(links - m)))
    links[chosen] = len(pairs)
    return {
        "candidates": np.geomspace(1.0, 0.01, a),
        "cv_errors": np.linspace(40, 20, a).round(),
        "chosen": chosen,
        "fixed": False,
        "alpha": float(np.geomspace(1.0, 0.01, a)[chosen]),
        "gap": 3e-10,
        "n_links": links,
        "largest_block": np.minimum(links + 1, p),
        "pairs": pairs,
        "strength": np.sort(rng.exponential(size=len(pairs)))[::-1],
        "precision": -partial,
        "partial": partial,
        "blocks": (np.unique(pairs),) if len(pairs) else (),
    }


QDA_RULES = ("sparse-qda", "naive Bayes", "QDA", "LDA with shrinkage")
QDA_RATES = (0.05, 0.15, 0.12, 0.11)
CB_RULES = ("community-bayes", "one community", "naive Bayes", "class frequencies")


def sparse_qda(k: int = 2, p: int = 8, m: int = 9, **changes: Any) -> SparseQDAStudyResult:
    """One table; the sparse rule is clearly better than the others."""
    held = 200
    confusion = np.full((k, k), 4.0)
    np.fill_diagonal(confusion, 90.0)
    made = {
        **classes(k, p, 1000),
        **rules(QDA_RULES, QDA_RATES, held),
        **linked(k, p, m, 12),
        "site": "clinic",
        "n": 1000,
        "n_held": held,
        "cv_rows": 800,
        "cv_se": np.full(12, 0.01),
        "confusion": confusion,
    }
    return filled(SparseQDAStudyResult, **{**made, **changes})


def over_sites(b: int, k: int, j: int, held: int) -> dict[str, Any]:
    return {
        "sites": tuple(f"s{i:03d}" for i in range(b)),
        "n_by_site": np.full((b, k), 100.0),
        "n_by_class": np.full(k, 100 * b),
        "site_held": np.full(b, held // b),
        "site_errors": np.linspace(0.04, 0.16, b * j).reshape(b, j),
    }


def federated_sparse_qda(
    k: int = 2, p: int = 8, m: int = 9, b: int = 3, **changes: Any
) -> FederatedSparseQDAResult:
    held = 50 * b
    made = {
        **classes(k, p, 0),
        **rules(QDA_RULES[:2], QDA_RATES[:2], held),
        **linked(k, p, m, 12),
        **over_sites(b, k, 2, held),
        "n_held": held,
        "used": np.ones((b, k), dtype=bool),
        "columns": np.arange(p),
        "choice": "sites",
        "cv_rows": np.full(b, 200),
        "screened": True,
        "n_questions": 2,
        "screened_blocks": (np.arange(p // 2),),
    }
    return filled(FederatedSparseQDAResult, **{**made, **changes})


def parts(p: int, n_communities: int) -> dict[str, Any]:
    tree = linkage(np.random.default_rng(0).normal(size=(p, 4)), "average") if p > 1 else []
    tree = np.asarray(tree, dtype=float).reshape(-1, 4)
    return {"tree": tree, "communities": cut(tree, n_communities)}


def community_bayes(
    k: int = 2, p: int = 12, n_communities: int = 3, **changes: Any
) -> CommunityBayesStudyResult:
    held, a = 200, min(p, 8)
    confusion = np.full((k, k), 4.0)
    np.fill_diagonal(confusion, 90.0)
    made = {
        **classes(k, p, 1000),
        **rules(CB_RULES, (0.06, 0.12, 0.2, 0.5), held),
        **parts(p, n_communities),
        "site": "clinic",
        "n": 1000,
        "n_held": held,
        "confusion": confusion,
        "n_communities": n_communities,
        "candidates": np.arange(1.0, a + 1),
        "cv_errors": np.linspace(80, 60, a).round(),
        "cv_rows": 800,
        "cv_se": np.full(a, 0.01),
        "cv_log_loss": np.linspace(0.4, 0.3, a),
        "chosen": min(n_communities, a) - 1,
        "evidence": np.linspace(0.5, 0.1, n_communities),
        "evidence_se": np.full(n_communities, 0.02),
    }
    return filled(CommunityBayesStudyResult, **{**made, **changes})


def federated_community_bayes(
    k: int = 2, p: int = 12, n_communities: int = 3, b: int = 3, **changes: Any
) -> FederatedCommunityBayesResult:
    held, rng = 60 * b, np.random.default_rng(0)
    found = parts(p, n_communities)
    lines = 1 if k == 2 else k
    similar = np.abs(rng.normal(size=(p, p)))
    made = {
        **classes(k, p, 0),
        **rules(("communities", "one community", "class frequencies"), (0.06, 0.12, 0.5), held),
        **over_sites(b, k, 3, held),
        **found,
        "error_rows": held,
        "n_fitted": np.full(b, 100 * k),
        "n_choosing": np.full(b, 50),
        "n_held": np.full(b, held // b),
        "how": "one-shot",
        "similarity": similar + similar.T,
        "ranks_told": np.ones((b, k), dtype=bool),
        "candidates": np.array([1, 2, 3, 6]),
        "candidate_loss": np.array([0.4, 0.35, 0.3, 0.31]),
        "candidate_gain": np.array([0.0, 0.05, 0.1, 0.09]),
        "candidate_gain_se": np.array([0.0, 0.02, 0.02, 0.03]),
        "cv_errors": np.full(4, np.nan),
        "chosen": 2,
        "slopes": tuple(rng.normal(size=(lines, len(c))) for c in found["communities"]),
        "community_rows": np.full(n_communities, 100 * k * b),
    }
    made.pop("site_held")
    return filled(FederatedCommunityBayesResult, **{**made, **changes})


def silent(result: Any) -> Any:
    """The same without held-out rows."""
    gone = np.full(len(result.judged), np.nan)
    held = 0 if np.ndim(result.n_held) == 0 else np.zeros_like(result.n_held)
    return dataclasses.replace(
        result,
        n_held=held,
        errors=gone,
        **{f"log_loss{end}": gone for end in ("", "_se", "_gain", "_gain_se")},
    )


def withheld(result: Any, rates: int) -> Any:
    """The same with the errors of the first rules withheld, and counts of rows."""
    errors = result.errors.copy()
    errors[:rates] = np.nan
    by_class = np.asarray(result.n_by_class, dtype=float).copy()
    by_class[0] = np.nan
    return dataclasses.replace(result, errors=errors, n_by_class=by_class)


NOTHING = {
    "pairs": np.empty((0, 2), dtype=np.int64),
    "strength": np.empty(0),
    "partial": np.empty((0, 2)),
    "blocks": (),
}
UNKNOWN = {
    "candidates": np.empty(0),
    "cv_errors": np.empty(0),
    "cv_se": np.empty(0),
    "chosen": -1,
}
CASES: dict[str, Any] = {
    "qda": sparse_qda,
    "qda-many-classes": lambda: sparse_qda(20, 30, 60),
    "qda-dense": lambda: sparse_qda(3, 64, 1500),
    "qda-naive": lambda: sparse_qda(**NOTHING, chosen=0),
    "qda-stays": lambda: sparse_qda(**NOTHING, model_stays=STAYS),
    "qda-untold": lambda: sparse_qda(
        **NOTHING, **UNKNOWN, n_links=np.empty(0), largest_block=np.empty(0), alpha=np.nan
    ),
    "qda-not-held-out": lambda: silent(sparse_qda()),
    "qda-withheld": lambda: withheld(sparse_qda(confusion=np.full((2, 2), np.nan)), 1),
    "qda-given": lambda: sparse_qda(
        fixed=True, candidates=np.array([0.1]), cv_errors=np.empty(0), cv_rows=0, chosen=0
    ),
    "qda-useless": lambda: sparse_qda(**rules(QDA_RULES, (0.5, 0.49, 0.5, 0.5), 200)),
    "qda-worse": lambda: sparse_qda(**rules(QDA_RULES, (0.2, 0.05, 0.2, 0.2), 200)),
    "qda-loose": lambda: sparse_qda(gap=1e-3),
    "qda-sites": federated_sparse_qda,
    "qda-sites-many": lambda: federated_sparse_qda(8, 40, 300, 40),
    "qda-sites-holdout": lambda: federated_sparse_qda(
        choice="holdout",
        screened=False,
        used=np.array([[True, True], [True, False], [True, True]]),
        remarks=("Site s001 told no class.",),
    ),
    "qda-sites-density": lambda: federated_sparse_qda(
        choice="likelihood",
        cv_errors=np.full(12, np.nan),
        cv_rows=np.empty(0),
        candidate_loss=np.linspace(40.0, 20.0, 12),
    ),
    "qda-sites-not-held-out": lambda: silent(federated_sparse_qda()),
    "cb": community_bayes,
    "cb-one": lambda: community_bayes(n_communities=1, n_separable=1),
    "cb-all": lambda: community_bayes(p=12, n_communities=12, chosen=-1),
    "cb-wide": lambda: community_bayes(20, 400, 60),
    "cb-one-feature": lambda: community_bayes(p=1, n_communities=1),
    "cb-stays": lambda: community_bayes(
        communities=(), tree=np.empty((0, 4)), evidence=np.empty(0), model_stays=STAYS
    ),
    "cb-no-help": lambda: community_bayes(**rules(CB_RULES, (0.06, 0.062, 0.2, 0.5), 200)),
    "cb-harm": lambda: community_bayes(**rules(CB_RULES, (0.1, 0.06, 0.2, 0.5), 200)),
    "cb-not-held-out": lambda: silent(community_bayes()),
    "cb-given": lambda: community_bayes(
        fixed=True,
        candidates=np.array([3.0]),
        cv_errors=np.empty(0),
        cv_log_loss=np.empty(0),
        cv_rows=0,
        chosen=0,
    ),
    "cb-sites": federated_community_bayes,
    "cb-sites-exact": lambda: federated_community_bayes(how="exact", rounds_run=6),
    "cb-sites-many": lambda: federated_community_bayes(5, 60, 7, 30),
    "cb-sites-gaps": lambda: federated_community_bayes(
        ranks_told=np.array([[True, True], [True, False], [True, True]]),
        candidate_loss=np.full(4, np.nan),
        candidate_gain=np.full(4, np.nan),
    ),
}


def run_of(
    result: Any,
    preset: str = "strict",
    transcript: tuple[Line, ...] = (),
    **parameters: Any,
) -> Run:
    """A run around a result."""
    sites = getattr(result, "sites", None) or (result.site,)
    info = RunInfo(
        run="r",
        name="study",
        study="hash",
        method=NAMES[type(result)],
        method_version=1,
        parameters=parameters,
        release="0",
        libraries={},
        seed=1,
        sites=tuple(sites),
        engine="local",
    )
    run = Run(info=info, result=result, transcript=transcript, notes=())
    return dataclasses.replace(run, presets=dict.fromkeys(sites, preset))

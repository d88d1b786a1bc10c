"""Methods and engines that are put to the test together: each joins by one entry."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from consilience.assisted.glm import AssistedGLM
from consilience.assisted.test import AssistanceTest
from consilience.averaging.protocol import ReferenceAveraging
from consilience.clustering.protocol import EnsembleClustering
from consilience.collaborators.protocol import MetaClustering
from consilience.completion.federated_pca import FederatedPCA
from consilience.completion.one_table.cluster_count import ClusterCountStudy
from consilience.completion.one_table.matrix_completion import MatrixCompletionStudy
from consilience.contingency.protocol import ContingencyTable
from consilience.describe.protocol import Describe
from consilience.discriminant.federated_community_bayes import FederatedCommunityBayes
from consilience.discriminant.federated_sparse_qda import FederatedSparseQDA
from consilience.discriminant.one_table.community_bayes import CommunityBayesStudy
from consilience.discriminant.one_table.sparse_qda import SparseQDAStudy
from consilience.engines.base import Engine
from consilience.engines.federation import Federation
from consilience.engines.folder import FolderEngine, watch
from consilience.engines.local import LocalEngine
from consilience.exceptions import RunError
from consilience.latent_regression.protocol import LatentClassRegression
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import Columns, Method, Preparation, SiteData
from consilience.regression.protocol import PooledRegression
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.testing.check_method import Oracle
from consilience.testing.fakes import (
    Asynchronous,
    ClassSums,
    Factory,
    federation_of,
    members,
    with_fixed_secrets,
    with_policy,
)
from consilience.testing.recalling import Record, Remembering, record_of
from consilience.wire.signing import SigningKey
from tests.engines.fake_link import fake_flower
from tests.granted import GRANTED

# --------------------------------------------------------------------------- methods


def _with_fixed_secrets(federation: Federation) -> Federation:
    """Give every site secrets that can be repeated."""
    for i, member in enumerate(members(federation).values()):
        with_fixed_secrets(member, i)
    return federation


def _rows(seed: int, n: int) -> np.ndarray:
    """Three classes in three columns."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0, 0.0], [5.0, 0.0, 2.0], [0.0, 6.0, -2.0]])
    return centres[np.arange(n) % 3] + rng.normal(size=(n, 3))


TABLES = {"ash": _rows(1, 60), "birch": _rows(2, 75), "cedar": _rows(3, 66)}
ROLES = {
    name: {
        "id": np.array([f"{name}-{i}" for i in range(len(x))]),
        "entity": np.array([f"{name}-e{i % 12}" for i in range(len(x))]),
    }
    for name, x in TABLES.items()
}


def plain() -> Federation:
    return federation_of(TABLES, policy=GRANTED, roles=ROLES)


def scaled() -> Federation:
    rules = Preparation(standardize="pooled")
    return federation_of(TABLES, policy=GRANTED, roles=ROLES, preparation=rules)


def secret() -> Federation:
    """Scaled, with sites whose secret draws can be repeated."""
    return _with_fixed_secrets(scaled())


def predicting() -> Federation:
    """A response that depends on the columns, in another way at cedar; secrets can be repeated."""
    slopes = {"ash": (1.0, -1.0, 0.5), "birch": (1.0, -1.0, 0.5), "cedar": (-1.0, 1.0, 0.5)}
    noise = np.random.default_rng(4).normal(size=100)
    roles = {
        name: {**ROLES[name], "target": x @ np.array(slopes[name]) + noise[: len(x)]}
        for name, x in TABLES.items()
    }
    plain_ones = members(federation_of(TABLES, policy=GRANTED, roles=roles))
    sites = [with_fixed_secrets(site, i) for i, site in enumerate(plain_ones.values())]
    columns = Columns(features=("x0", "x1", "x2"), target="y")
    return Federation(LocalEngine(sites), columns, Preparation())


def in_classes() -> Federation:
    """Events of twelve entities of three agents at each site; their slopes are of two kinds."""
    noise = np.random.default_rng(4).normal(size=100)
    roles = {}
    for name, x in TABLES.items():
        of = np.arange(len(x)) % 12
        slopes = np.where(of[:, None] % 2, (2.0, -1.0, 0.0), (-1.0, 1.0, 0.5))
        roles[name] = {
            "entity": ROLES[name]["entity"],
            "agent": np.array([f"{name}-{e % 3}" for e in of]),
            "target": (x * slopes).sum(axis=1) + noise[: len(x)],
        }
    columns = Columns(features=("x0", "x1", "x2"), target="y", agent="ward", entity="patient")
    made = federation_of(TABLES, policy=GRANTED, roles=roles)
    return dataclasses.replace(made, columns=columns)


def one_table() -> Federation:
    """One site, with a response of two levels that hangs on the first column."""
    x = TABLES["birch"]
    noise = np.random.default_rng(6).normal(size=len(x))
    kind = np.where(x[:, 0] + 3 * noise > 2, "b", "a")
    given = {"target": kind, "target_name": "kind", "levels": {"kind": ("a", "b")}}
    federation = federation_of(
        {"birch": x}, policy=GRANTED, roles={"birch": {**ROLES["birch"], **given}}
    )
    columns = Columns(features=("x0", "x1", "x2"), target="kind", levels={"kind": ("a", "b")})
    return dataclasses.replace(federation, columns=columns)


def with_gaps() -> Federation:
    """One site whose table lacks a tenth of its cells."""
    x = TABLES["birch"].copy()
    x[np.random.default_rng(7).random(x.shape) < 0.1] = np.nan
    rules = Preparation(missing="keep")
    return federation_of({"birch": x}, policy=GRANTED, roles=ROLES, preparation=rules)


def labelled() -> Federation:
    """Rows of two declared classes, enough to hold some out; the second has links of its own."""
    names = ("no", "yes")
    tables, roles = {}, {}
    for seed, (name, x) in enumerate(TABLES.items()):
        rows = _rows(10 + seed, 2 * len(x))
        second = np.arange(len(rows)) % 2 == 1
        tables[name] = rows + second[:, None] * (1.0 + 0.5 * rows[:, [1]])
        roles[name] = {
            "target": np.where(second, "yes", "no"),
            "target_name": "y",
            "levels": {"y": names},
            "id": np.array([f"{name}-{i}" for i in range(len(rows))]),
            "entity": np.array([f"{name}-e{i // 2}" for i in range(len(rows))]),
        }
    columns = Columns(features=("x0", "x1", "x2"), target="y", levels={"y": names})
    made = federation_of(tables, policy=GRANTED, roles=roles)
    return dataclasses.replace(made, columns=columns)


def labelled_by_partners() -> Federation:
    """The same rows at sites of partners who signed a contract."""
    return with_policy(labelled(), Policy(preset="consortium"))


def counting() -> Federation:
    """Counts over times of watching, of rows that stand for several, at sites of partners."""
    columns = Columns(features=("x0", "x1", "x2"), target="y", offset="log_years", weight="times")
    roles = {}
    for seed, (name, x) in enumerate(TABLES.items()):
        rng = np.random.default_rng(20 + seed)
        years = rng.normal(0, 0.5, len(x))
        mean = np.exp(0.5 + x @ np.array([0.1, -0.1, 0.05]) + years)
        of = {"target": "y", "offset": "log_years", "weight": "times"}
        roles[name] = {
            **ROLES[name],
            **{f"{role}_name": column for role, column in of.items()},
            "target": rng.poisson(rng.gamma(2, mean / 2)).astype(float),
            "offset": years,
            "weight": rng.integers(1, 20, len(x)).astype(float),
        }
    made = dataclasses.replace(federation_of(TABLES, roles=roles), columns=columns)
    return with_policy(made, Policy(preset="consortium"))


def watched() -> Federation:
    """How long people were watched, and whether an event ended it, at sites of partners."""
    tables, roles = {}, {}
    for seed, (name, x) in enumerate(TABLES.items()):
        rng = np.random.default_rng(40 + seed)
        until = rng.exponential(20 * np.exp(-x @ np.array([0.1, -0.1, 0.05])))
        seen = rng.exponential(40, len(x))
        months = np.ceil(np.minimum(until, seen))
        tables[name] = np.column_stack([x[:, :2], months, x[:, 2]])
        died = (until <= seen).astype(float)
        roles[name] = {**ROLES[name], "target": died, "target_name": "died"}
    made = federation_of(
        tables, names=("x0", "x1", "months", "x2"), policy=Policy(preset="consortium"), roles=roles
    )
    columns = Columns(features=("x0", "x1", "months", "x2"), target="died")
    return dataclasses.replace(made, columns=columns)


def over_columns(
    sites: Sequence[str] = ("ash", "birch", "cedar"), opens: Sequence[str] = ()
) -> Federation:
    """Sites with other columns of the same people, of which each lacks some; cedar asks."""
    rng = np.random.default_rng(9)
    n = 90
    x = rng.normal(size=(n, 9))
    response = x @ np.array([1.0, -1.0, 0, 0, 0, 0, 0, 0.5, 0]) + rng.normal(size=n)
    ids = np.array([f"person-{i}" for i in range(n)])
    tables, columns = {}, {}
    for k, site in enumerate(sites):
        own = rng.permutation(n)[: n - 3 * k]
        names = [f"{site}-{j}" for j in range(3)]
        tables[site] = {name: x[own, 3 * k + j] for j, name in enumerate(names)}
        tables[site] |= {"id": ids[own], "y": response[own]}
        asks: dict[str, Any] = {}
        if site == "cedar":
            asks = {"target": "y", "offset": "known"}
            # whoever has clusters keeps its columns
            asks |= {} if site in opens else {"cluster": "pair"}
        tables[site] |= {"pair": own // 2, "known": 0.1 * own} if asks else {}
        columns[site] = Columns(features=tuple(names), id="id", **asks)
    signed = Policy(preset="consortium", share_response=True)
    federation = Federation.local(
        tables,
        columns=columns,
        policy={
            site: dataclasses.replace(signed, max_revealed_rank="full") if site in opens else signed
            for site in sites
        },
        partner_key=bytes(range(32)),
        at="third-party",
    )
    return _with_fixed_secrets(federation)


def one_opens() -> Federation:
    """Of two partners one opens its columns; the other takes turns."""
    return over_columns(opens=("ash",))


def asker_opens() -> Federation:
    """Two sites, of which the one that asks opens its columns."""
    return over_columns(sites=("birch", "cedar"), opens=("cedar",))


def of_sequences() -> Federation:
    """Sequences of two rhythms with gaps; secrets can be repeated."""
    rng = np.random.default_rng(14)
    roles, names = {}, tuple(f"t{j}" for j in range(9))
    for name, x in TABLES.items():
        quick = np.arange(len(x)) % 2 == 1
        moves = rng.random((len(x), 9)) < np.where(quick, 0.8, 0.15)[:, None]
        states = (moves.cumsum(axis=1) + rng.integers(2, size=(len(x), 1))) % 2
        states[rng.random(states.shape) < 0.1] = -1
        roles[name] = {
            **ROLES[name],
            "sequence": states.astype(np.int64),
            "sequence_names": names,
            "levels": {"t0": ("in", "out")},
        }
    tables = {name: np.empty((len(x), 0)) for name, x in TABLES.items()}
    rules = Preparation(missing="keep")
    made = federation_of(tables, policy=GRANTED, roles=roles, preparation=rules)
    columns = Columns(sequence=names, levels={"t0": ("in", "out")})
    return dataclasses.replace(_with_fixed_secrets(made), columns=columns)


def of_categories() -> Federation:
    """Answers of two kinds of people; secrets can be repeated."""
    rng = np.random.default_rng(15)
    names = tuple(f"q{j}" for j in range(4))
    tables = {}
    for name, x in TABLES.items():
        often = np.where(np.arange(len(x)) % 2 == 1, 0.85, 0.15)
        answers = np.where(rng.random((len(x), 4)) < often[:, None], "yes", "no")
        tables[name] = {**dict(zip(names, answers.T, strict=True)), **ROLES[name]}
    levels = {name: ("no", "yes") for name in names}
    made = Federation.local(
        tables,
        columns=Columns(features=names, id="id", entity="entity", levels=levels),
        preparation=Preparation(categorical="onehot"),
        policy=GRANTED,
    )
    return _with_fixed_secrets(made)


def of_two_categories() -> Federation:
    """Two categories at three sites, of which cedar has a cell of few rows."""
    rng = np.random.default_rng(16)
    levels = {"ward": ("a", "b", "c"), "cured": ("no", "yes")}
    tables = {}
    for name, n in (("ash", 180), ("birch", 240), ("cedar", 150)):
        ward = rng.choice(3, size=n, p=(0.3, 0.3, 0.4) if name != "cedar" else (0.1, 0.4, 0.5))
        cured = (rng.random(n) < 0.35 + 0.15 * (ward == 1)).astype(int)
        tables[name] = {"ward": np.array(levels["ward"])[ward]}
        tables[name] |= {"cured": np.array(levels["cured"])[cured]}
        tables[name]["id"] = tables[name]["entity"] = np.array([f"{name}-{i}" for i in range(n)])
    return Federation.local(
        tables,
        columns=Columns(features=tuple(levels), id="id", entity="entity", levels=levels),
        preparation=Preparation(categorical="onehot"),
        policy=GRANTED,
    )


def of_all_kinds() -> Federation:
    """Two numbers and two categories at three sites; many values are missing, at cedar few."""
    rng = np.random.default_rng(17)
    levels = {"ward": ("a", "b", "c"), "cured": ("no", "yes")}
    tables = {}
    for k, (name, n) in enumerate((("ash", 180), ("birch", 240), ("cedar", 150))):
        ward = rng.choice(3, size=n, p=(0.3, 0.3, 0.4))
        cured = (rng.random(n) < 0.35 + 0.15 * (ward == 1)).astype(int)
        score = rng.normal(50 + 3 * k, 8, n).round(1)
        score[rng.random(n) < (0.2 if name != "cedar" else 0.02)] = np.nan
        tables[name] = {"age": rng.normal(60 + k, 10, n), "score": score}
        tables[name] |= {"ward": np.array(levels["ward"])[ward]}
        tables[name] |= {"cured": np.array(levels["cured"])[cured]}
        tables[name]["id"] = tables[name]["entity"] = np.array([f"{name}-{i}" for i in range(n)])
    return Federation.local(
        tables,
        columns=Columns(
            features=("age", "score", *levels), id="id", entity="entity", levels=levels
        ),
        preparation=Preparation(categorical="onehot", missing="keep"),
        policy=GRANTED,
    )


def pooled_description(rows: Mapping[str, SiteData]) -> dict[str, Any]:
    """Moments by site; few missing values, as at the last one, count as the median."""
    found = []
    for data in rows.values():
        for x in data.features[:, :2].T:
            there = np.sort(x[~np.isnan(x)])
            if len(x) - len(there) < 10:
                there = np.append(there, [there[(len(there) - 1) // 2]] * (len(x) - len(there)))
            found.append((len(there), there.mean(), there.var() * len(there)))
    known, mean, square = np.array(found).reshape(3, 2, 3).transpose(2, 0, 1)
    return {"n": [180, 240, 150], "known": known, "mean": mean, "square": square}


def pooled_table(rows: Mapping[str, SiteData]) -> dict[str, Any]:
    """The table of the sites all of whose cells are large enough."""
    tables = [data.features[:, :3].T @ data.features[:, 3:] for data in rows.values()]
    told = [table for table in tables if table.min() >= 10]
    return {"table": np.sum(told, axis=0).astype(int)}


def sites_with_gaps() -> Federation:
    """Rows of which some cells are missing, on a common scale."""
    rng = np.random.default_rng(12)
    tables = {s: np.where(rng.random(x.shape) < 0.1, np.nan, x) for s, x in TABLES.items()}
    rules = Preparation(missing="keep", standardize="pooled")
    return federation_of(tables, policy=GRANTED, roles=ROLES, preparation=rules)


def pooled_components(rows: Mapping[str, SiteData]) -> dict[str, Any]:
    x = np.concatenate([data.features for data in rows.values()])
    values = np.linalg.eigvalsh(np.cov(x.T, bias=True))[::-1]
    return {"n_by_site": [60, 75, 66], "mean": x.mean(axis=0), "variances": values}


def pooled_least_squares(rows: Mapping[str, SiteData]) -> dict[str, Any]:
    x = np.concatenate([data.features for data in rows.values()])
    y = np.concatenate([np.asarray(data.target) for data in rows.values()])
    design = np.column_stack([np.ones(len(x)), x])
    estimate, squares = np.linalg.lstsq(design, y, rcond=None)[:2]
    scale = squares[0] / (len(x) - design.shape[1])
    error = np.sqrt(scale * np.diag(np.linalg.inv(design.T @ design)))
    return {"estimate": estimate, "error": error, "deviance": squares[0]}


def pooled_logistic(rows: Mapping[str, SiteData]) -> dict[str, Any]:
    x = np.concatenate([data.features for data in rows.values()])
    y = np.concatenate([data.target == "yes" for data in rows.values()]).astype(float)
    design = np.column_stack([np.ones(len(x)), x])
    beta = np.zeros(design.shape[1])
    for _ in range(30):
        mean = 1 / (1 + np.exp(-design @ beta))
        curvature = design.T @ (design * (mean * (1 - mean))[:, None])
        beta = beta + np.linalg.solve(curvature, design.T @ (y - mean))
    scores = design * (y - mean)[:, None]
    bread = np.linalg.inv(curvature)
    return {"estimate": beta, "error": np.sqrt(np.diag(bread @ scores.T @ scores @ bread))}


def stratified_hazards(rows: Mapping[str, SiteData]) -> dict[str, Any]:
    """A Cox regression, by Efron, with sites as strata: one risk set of ten after the other."""
    beta = np.zeros(3)
    for _ in range(12):
        score, curvature, meat = np.zeros(3), np.zeros((3, 3)), np.zeros((3, 3))
        for data in rows.values():
            x, time = np.delete(data.features, 2, axis=1), data.features[:, 2]
            died = (np.asarray(data.target) == 1) & (
                np.greater_equal.outer(time, time).sum(0) >= 10
            )
            risk = np.exp(x @ beta)
            residual = np.zeros_like(x)
            for t in np.unique(time[died]):
                now = died & (time == t)
                for gone in np.arange(now.sum()) / now.sum():
                    share = risk * (time >= t) * np.where(now, 1 - gone, 1)
                    share = share / share.sum()
                    apart = x - share @ x
                    curvature += apart.T @ (apart * share[:, None])
                    residual += apart * (now / now.sum() - share)[:, None]
            score += residual.sum(axis=0)
            meat += residual.T @ residual
        beta = beta + np.linalg.solve(curvature, score)
    bread = np.linalg.inv(curvature)
    return {"estimate": beta, "error": np.sqrt(np.diag(bread @ meat @ bread))}


def pooled_counts(rows: Mapping[str, SiteData]) -> dict[str, Any]:
    """A negative binomial regression of repeated rows, with alpha by Pearson's sum."""
    x = np.concatenate([data.features for data in rows.values()])
    y, offset, weight = (
        np.concatenate([np.asarray(getattr(data, role)) for data in rows.values()])
        for role in ("target", "offset", "weight")
    )
    design = np.column_stack([np.ones(len(x)), x])
    beta, low, high = np.zeros(design.shape[1]), 1e-4, 10.0
    for _ in range(50):
        alpha = (low + high) / 2
        for _ in range(12):
            mean = np.exp(design @ beta + offset)
            over = weight / (1 + alpha * mean)
            information = design.T @ (design * (over * mean)[:, None])
            beta = beta + np.linalg.solve(information, design.T @ (over * (y - mean)))
        large = (over * (y - mean) ** 2 / mean).sum() > weight.sum() - design.shape[1]
        low, high = (alpha, high) if large else (low, alpha)
    error = np.sqrt(np.diag(np.linalg.inv(information)))
    return {"estimate": beta, "error": error, "alpha": alpha}


def pooled_mean_and_sd(rows: Mapping[str, SiteData]) -> dict[str, Any]:
    x = np.concatenate([data.features for data in rows.values()])
    return {"n": len(x), "mean": x.mean(axis=0), "sd": x.std(axis=0, ddof=1)}


@dataclass(frozen=True)
class Case:
    """A method on a federation, with what the pooled rows give where the method is exact.

    ``factory`` keeps the undisturbed run: ask for the `record` and not for a run of your own.
    """

    method: Method
    factory: Factory
    oracle: Oracle | None = None
    asynchronous: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "factory", Remembering(self.factory))

    @property
    def record(self) -> Record:
        """The undisturbed run, made once in each process of a test run."""
        return record_of(self.method, self.factory)


CASES: dict[str, Case] = {
    "assistance-test": Case(AssistanceTest(family="normal", n_directions=2), over_columns),
    # One round of training: later ones are no different.
    "assisted-glm": Case(AssistedGLM(family="normal", response="share", n_rounds=1), over_columns),
    "assisted-glm where one opens": Case(
        AssistedGLM(family="normal", response="share", n_rounds=1), one_opens
    ),
    "assisted-glm where the asker opens": Case(
        AssistedGLM(family="normal", response="share"), asker_opens
    ),
    "mean-and-sd": Case(MeanAndSD(), plain, pooled_mean_and_sd),
    "mean-and-sd scaled": Case(MeanAndSD(), scaled),
    "class-sums": Case(ClassSums(edges=((0.0,), (2.0,))), plain),
    "asynchronous": Case(Asynchronous(turns=2), plain, asynchronous=True),
    "contingency-table": Case(ContingencyTable(), of_two_categories, pooled_table),
    "describe": Case(
        Describe(
            tables=(("ward", "cured"),),
            bins={"age": (50, 55, 60, 65, 70)},
            curves=(("age", "cured", "ward"),),
        ),
        of_all_kinds,
        pooled_description,
    ),
    "ensemble-clustering": Case(
        EnsembleClustering(n_clusters=3, n_init=2, stability_pairs=1), secret
    ),
    "ensemble-clustering by held-out entries": Case(
        EnsembleClustering(n_clusters="cv", max_clusters=4, n_init=2, n_folds=3, stability_pairs=0),
        secret,
    ),
    "ensemble-clustering of sequences": Case(
        EnsembleClustering(
            model="markov-mixture", n_clusters=2, n_init=2, max_clusters=2, stability_pairs=0
        ),
        of_sequences,
    ),
    "ensemble-clustering of categories": Case(
        EnsembleClustering(
            model="latent-class", n_clusters="vote", n_init=2, max_clusters=2, stability_pairs=0
        ),
        of_categories,
    ),
    # Few rows of few columns: what is chosen among is one community, two, or each column alone.
    "federated-community-bayes": Case(FederatedCommunityBayes(choosing=0.4, holdout=0.2), labelled),
    "federated-community-bayes exact": Case(
        FederatedCommunityBayes(n_communities=2, fit="exact", holdout=0.0),
        labelled_by_partners,
    ),
    "federated-pca": Case(FederatedPCA(n_splits=2), plain, pooled_components),
    "federated-pca with gaps": Case(FederatedPCA(rule="one-standard-error"), sites_with_gaps),
    "federated-sparse-qda": Case(FederatedSparseQDA(n_alphas=3), labelled),
    "federated-sparse-qda by blocks": Case(
        FederatedSparseQDA(alphas=(0.9, 0.5, 0.2), screening=True, choose="holdout"),
        labelled_by_partners,
    ),
    # Sites protect their records; both ways to begin, and sums of those who were there before.
    "latent-class-regression": Case(
        LatentClassRegression(n_classes=2, rounds=1, settle_rounds=0, average_rounds=1),
        in_classes,
    ),
    "latent-class-regression of some in each round": Case(
        LatentClassRegression(
            n_classes="auto",
            n_start=3,
            start="random",
            rounds=1,
            settle_rounds=1,
            average_rounds=1,
            participation=0.6,
            server_cache=True,
        ),
        in_classes,
    ),
    "meta-clustering": Case(
        MetaClustering(candidates=("linear",), gain_folds=2, stability_runs=1), predicting
    ),
    "meta-clustering by held-out loss": Case(
        MetaClustering(
            candidates=("decision-tree", "linear"),
            n_clusters="cv",
            prediction="pooled",
            gain_folds=2,
            stability_runs=0,
        ),
        predicting,
    ),
    "community-bayes": Case(CommunityBayesStudy(candidates=(1, 2), cv=3), one_table),
    "sparse-qda": Case(SparseQDAStudy(n_alphas=4, cv=3), one_table),
    "cluster-count": Case(ClusterCountStudy(n_clusters=(1, 2, 3), n_init=2, n_splits=3), with_gaps),
    "matrix-completion": Case(
        MatrixCompletionStudy(model="hard", grid=(0, 1, 2), n_splits=3), with_gaps
    ),
    "pooled-regression": Case(PooledRegression(), predicting, pooled_least_squares),
    "pooled-regression by rounds": Case(
        PooledRegression(family="binomial", errors="HC0", performance=True),
        labelled_by_partners,
        pooled_logistic,
    ),
    "pooled-regression of counts": Case(
        PooledRegression(family="negative-binomial", dispersion="moments", weights="frequency"),
        counting,
        pooled_counts,
    ),
    "pooled-regression of hazards": Case(
        PooledRegression(family="cox", time="months", errors="HC0", performance=True),
        watched,
        stratified_hazards,
    ),
    "pooled-regression one-shot": Case(
        PooledRegression(family="binomial", fit="one-shot", errors="cluster", site_effects=True),
        labelled,
    ),
    "reference-averaging": Case(
        ReferenceAveraging(estimator="ridge", penalties=(0.1, 10.0), max_rounds=2),
        predicting,
    ),
    "reference-averaging asynchronous": Case(
        ReferenceAveraging(
            estimator="lasso(alpha=0.01)", schedule="asynchronous", max_rounds=2, n_reference=20
        ),
        predicting,
        asynchronous=True,
    ),
}

# --------------------------------------------------------------------------- engines

COORDINATOR = SigningKey.generate()


def local(sites: Sequence[Site]) -> AbstractContextManager[Engine]:
    return nullcontext(LocalEngine(sites))


@contextmanager
def folder(sites: Sequence[Site]) -> Iterator[Engine]:
    """Every site watches the folder in a thread of its own; one with a failing disk gives up."""
    keys = {site.name: SigningKey.generate() for site in sites}
    stop = threading.Event()

    def serve(site: Site, shared: Path) -> None:
        with contextlib.suppress(RunError):
            watch(
                site,
                shared,
                key=keys[site.name],
                coordinators=[COORDINATOR.public],
                stop=stop,
                poll=0.02,
            )

    with tempfile.TemporaryDirectory() as shared:
        threads = [threading.Thread(target=serve, args=(site, Path(shared))) for site in sites]
        for thread in threads:
            thread.start()
        try:
            public = {name: key.public for name, key in keys.items()}
            yield FolderEngine(shared, list(keys), COORDINATOR, public, poll=0.02)
        finally:
            stop.set()
            for thread in threads:
                thread.join()


# The real SuperLink is in tests marked `flower`; here is what FlowerEngine and Desk do over one.
ENGINES = {"local": local, "folder": folder, "flower seam": fake_flower}

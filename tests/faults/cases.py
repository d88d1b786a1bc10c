"""Studies on which engines are compared and crashed: the toy method, and one that draws secrets.

A method is added to both kinds of test by a line in `CASES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

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
from consilience.exceptions import ProtocolError
from consilience.latent_regression.protocol import LatentClassRegression
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import (
    Ask,
    Columns,
    CoordinatorContext,
    Exchange,
    Method,
    Preparation,
    SiteContext,
    SiteData,
    State,
    register,
    step,
)
from consilience.protocol.result import Result
from consilience.regression.protocol import PooledRegression
from consilience.wire.message import Public, message
from consilience.wire.moment_facts import Coded

SITES = ("ash", "birch-2")
FEATURES = ("a", "b", "c")
ITEMS = tuple(f"q{j}" for j in range(6))
WATCHED = ("a", "b", "months")
STEPS = tuple(f"t{j}" for j in range(12))
ROLES = {"ash": "partner", "birch-2": "initiator"}
PARTNER_KEY = bytes(range(32))
Loader = Callable[..., SiteData]


@message("secret-draws/draw", version=1)
class Draw:
    """Draw numbers from the operating system's entropy."""


@message("secret-draws/drawn", version=1)
class Drawn:
    secret: np.ndarray = Public("4")
    public: np.ndarray = Public("4")


@message("secret-draws/recall", version=1)
class Recall:
    """Say again what was drawn."""


@step("draw")
def draw(message: Draw, data: SiteData, state: State, site: SiteContext) -> tuple[Drawn, State]:
    secret, public = site.secret_rng.normal(size=4), site.rng.normal(size=4)
    site.output("noise", np.full(data.n_rows, secret[0]))
    return Drawn(secret=secret, public=public), {"secret": secret, "public": public}


@step("recall")
def recall(message: Recall, data: SiteData, state: State, site: SiteContext) -> tuple[Drawn, State]:
    return Drawn(secret=state["secret"], public=state["public"]), state


@dataclass(frozen=True, eq=False)
class DrawsResult(Result):
    secret: np.ndarray
    public: np.ndarray


@register
@dataclass(frozen=True, kw_only=True)
class SecretDraws(Method):
    """Released random numbers: a number that was seen outside must never be drawn anew."""

    name: ClassVar[str] = "secret-draws"
    title: ClassVar[str] = "Are released random numbers drawn once?"
    steps = (draw, recall)
    absence: ClassVar[str] = "Sites that miss the first round are left out."
    leakage: ClassVar[str] = "Nothing of the data."
    Result = DrawsResult

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        first = ctx.require((yield Ask("draw", Draw())))
        second = ctx.require((yield Ask("recall", Recall(), to=tuple(first))), at_least=len(first))
        for site, reply in second.items():
            if not np.array_equal(reply.secret, first[site].secret):
                raise ProtocolError(f"site {site} drew anew what it had released")
        return DrawsResult(
            np.array([r.secret for r in first.values()]),
            np.array([r.public for r in first.values()]),
        )


@dataclass(frozen=True)
class Case:
    """A study whose result must not depend on the engine, or on crashes.

    ``draws_secrets``: result bytes differ between runs; that they hold what was released first is
    checked instead. ``varies``: names of what else in the transcript hangs on secret draws.
    ``seals``: what crosses has other bytes in each run, results have not, because sites keep what
    they once drew for their data. ``sites``: those that take part.
    """

    method: Callable[[], Method]
    columns: Columns = field(default_factory=lambda: Columns(features=FEATURES))
    preparation: Preparation = field(default_factory=Preparation)
    draws_secrets: bool = False
    varies: tuple[str, ...] = ()
    seals: bool = False
    sites: tuple[str, ...] = SITES

    @property
    def loose(self) -> tuple[str, ...]:
        """Columns of the transcript that differ between undisturbed runs."""
        return ("digest", *self.varies) if self.draws_secrets or self.seals else ()

    @property
    def settings(self) -> dict[str, Any]:
        """What a federation over columns is told besides."""
        if self.method().partition == "rows":
            return {}
        return {"partition": "columns", "roles": ROLES, "at": "third-party"}


CASES: dict[str, Case] = {
    "mean-and-sd": Case(MeanAndSD),
    "mean-and-sd, standardised": Case(MeanAndSD, preparation=Preparation(standardize="pooled")),
    "contingency-table": Case(
        ContingencyTable,
        columns=Columns(features=ITEMS[:2], levels=dict.fromkeys(ITEMS[:2], ("no", "yes"))),
        preparation=Preparation(categorical="onehot"),
    ),
    "describe": Case(Describe),
    "ensemble-clustering": Case(
        # Without stability pairs nothing is drawn from the secret streams.
        lambda: EnsembleClustering(n_clusters=2, n_init=2, stability_pairs=0)
    ),
    "ensemble-clustering by held-out entries": Case(
        lambda: EnsembleClustering(
            n_clusters="cv", max_clusters=3, n_folds=2, n_init=2, stability_pairs=0
        )
    ),
    "ensemble-clustering of sequences": Case(
        lambda: EnsembleClustering(
            model="markov-mixture", n_clusters=2, max_clusters=2, n_init=2, stability_pairs=0
        ),
        columns=Columns(sequence=STEPS, levels={STEPS[0]: ("in", "out")}),
        draws_secrets=True,
        # How many label tuples there are hangs on the resamples.
        varies=("shape", "bytes", "verdict"),
    ),
    "ensemble-clustering of categories": Case(
        lambda: EnsembleClustering(
            model="latent-class", n_clusters=2, max_clusters=2, n_init=2, stability_pairs=0
        ),
        columns=Columns(features=ITEMS, levels=dict.fromkeys(ITEMS, ("no", "yes"))),
        preparation=Preparation(categorical="onehot"),
        draws_secrets=True,
        varies=("shape", "bytes", "verdict"),
    ),
    "meta-clustering": Case(
        # Linear models on all rows: nothing depends on the secret streams.
        lambda: MetaClustering(candidates="linear", gain_folds=0, stability_runs=0),
        columns=Columns(features=FEATURES, target="y"),
    ),
    "pooled-regression": Case(
        lambda: PooledRegression(site_effects=True), columns=Columns(features=FEATURES, target="y")
    ),
    "pooled-regression of hazards": Case(
        lambda: PooledRegression(family="cox", time="months", performance=True),
        columns=Columns(features=WATCHED, target="y"),
    ),
    "reference-averaging": Case(
        lambda: ReferenceAveraging(estimator="ridge", max_rounds=1, n_reference=12),
        columns=Columns(features=FEATURES, target="y"),
    ),
    "latent-class-regression": Case(
        lambda: LatentClassRegression(
            n_classes=2, start="random", rounds=0, settle_rounds=0, average_rounds=1
        ),
        columns=Columns(features=FEATURES, target="y", agent="ward", entity="patient"),
    ),
    "community-bayes": Case(
        lambda: CommunityBayesStudy(n_communities=2),
        columns=Columns(features=FEATURES, target="y", levels={"y": ("no", "yes")}),
        sites=SITES[:1],
    ),
    "cluster-count": Case(
        lambda: ClusterCountStudy(n_clusters=(1, 2), n_init=2, n_splits=2),
        preparation=Preparation(missing="keep"),
        sites=SITES[:1],
    ),
    "matrix-completion": Case(
        lambda: MatrixCompletionStudy(model="hard", grid=(0, 1), n_splits=2),
        preparation=Preparation(missing="keep"),
        sites=SITES[:1],
    ),
    "sparse-qda": Case(
        lambda: SparseQDAStudy(alpha=0.1),
        columns=Columns(features=FEATURES, target="y", levels={"y": ("no", "yes")}),
        sites=SITES[:1],
    ),
    "federated-community-bayes": Case(
        lambda: FederatedCommunityBayes(n_communities=2),
        columns=Columns(features=FEATURES, target="y", levels={"y": ("no", "yes")}),
    ),
    "federated-pca": Case(lambda: FederatedPCA(n_splits=2)),
    "federated-sparse-qda": Case(
        lambda: FederatedSparseQDA(alpha=0.1, screening=True),
        columns=Columns(features=FEATURES, target="y", levels={"y": ("no", "yes")}),
    ),
    "secret-draws": Case(SecretDraws, draws_secrets=True),
    "assistance-test": Case(
        lambda: AssistanceTest(family="normal", n_directions=2),
        columns=Columns(id="id"),
        seals=True,
    ),
    "assisted-glm": Case(
        lambda: AssistedGLM(
            family="normal", response="share", n_rounds=1, interval="none", exchange="turns"
        ),
        columns=Columns(id="id"),
        seals=True,
    ),
    # Partners open their columns, as all policies here let all directions be known.
    "assisted-glm at once": Case(
        lambda: AssistedGLM(family="normal", interval="none"), columns=Columns(id="id"), seals=True
    ),
}


def loader(site: str) -> Loader:
    """Rows of a site: two normal columns in two groups, and one of zeros and ones.

    Over columns, row i of both sites is one person.
    """
    position = SITES.index(site)

    def load(columns: Columns, preparation: Preparation, partition: str = "rows") -> SiteData:
        n = 60 + 10 * position
        rng = np.random.default_rng(position)
        x = rng.normal(size=(n, 3)) + 4.0 * (rng.random(n) < 0.5)[:, None]
        x[:, 2] = rng.random(n) < 0.5
        y = x @ np.array([1.0, -0.5, 0.25]) + rng.normal(size=n)
        given: dict[str, Any] = {"n_read": n, "content_hash": f"case-{site}", "target": y}
        if columns.sequence:
            quick = np.arange(n) % 2 == 0
            moves = rng.random((n, len(STEPS))) < np.where(quick, 0.97, 0.05)[:, None]
            states = (moves.cumsum(axis=1) + np.arange(n)[:, None] // 2) % 2
            known = {"sequence": states, "sequence_names": STEPS, "levels": dict(columns.levels)}
            return SiteData(np.empty((n, 0)), (), np.arange(n), **given | known)
        if columns.features == ITEMS[:2]:
            said = np.arange(n)[:, None] // (1, 2) % 2 == 1
            coded = np.stack([~said, said], axis=2).reshape(n, -1).astype(float)
            names = tuple(f"{item}={level}" for item in ITEMS[:2] for level in ("no", "yes"))
            given |= {"levels": dict(columns.levels)}
            given["coded"] = (Coded((0, 1), True), Coded((2, 3), True))
            return SiteData(coded, names, np.arange(n), **given)
        if columns.features == ITEMS:
            often = np.where(np.arange(n) % 2 == 0, 0.85, 0.15)[:, None]
            said = rng.random((n, len(ITEMS))) < often
            coded = np.stack([~said, said], axis=2).reshape(n, -1).astype(float)
            names = tuple(f"{item}={level}" for item in ITEMS for level in ("no", "yes"))
            levels = {"levels": dict(columns.levels)}
            return SiteData(coded, names, np.arange(n), **given | levels)
        if columns.features == WATCHED:
            x[:, 2] = np.ceil(rng.exponential(20 * np.exp(-0.1 * x[:, 0])))
            given["target"] = (rng.random(n) < 0.6).astype(float)
            return SiteData(x, WATCHED, np.arange(n), **given)
        if columns.levels:
            second = x[:, 0] + rng.normal(size=n) > 2.0
            given |= {"target": np.where(second, "yes", "no"), "target_name": "y"}
            given["levels"] = dict(columns.levels)
        if columns.entity is not None:
            of = np.arange(n) % 12
            given["entity"] = np.array([f"patient-{e}" for e in of])
            given["agent"] = np.array([f"{site}-{e % 3}" for e in of])
        if partition == "columns":
            given["id"] = np.array([f"person-{i}" for i in range(n)])
            given["target"] = y if ROLES[site] == "initiator" else None
        return SiteData(x, FEATURES, np.arange(n), **given)

    return load

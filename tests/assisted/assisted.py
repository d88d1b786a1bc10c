"""Tables of several parties for tests of the assisted GLM, and what the pooled rows give."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from consilience.engines.federation import Federation, Run
from consilience.protocol.method import Columns
from consilience.sites.policy import Policy
from tests.reference import pooled_glm

FAMILIES = ("binomial", "normal", "poisson", "log-cosh", "pseudo-huber", "gamma", "tweedie")
SIGNED = Policy(
    preset="consortium", share_response=True, share_names=True, max_revealed_rank="full"
)
"""Policy of partners who signed a contract and let everything that the method needs be known."""


@dataclass(frozen=True)
class Parties:
    """Columns of the parties on the same people.

    Attributes
    ----------
    blocks : dict of site to (n, p) array
        The first site is the initiator; rows in the order of the ids.
    names : dict of site to tuple of str
    y : (n,) array
        NaN for new people.
    ids : (n,) str array
    weights : (n,) array or None
        Case weights, at the initiator.
    clusters : (n,) str array or None
        Clusters of the rows, at the initiator.
    offset : (n,) array or None
        Of the linear predictor, at the initiator.
    """

    blocks: dict[str, np.ndarray]
    names: dict[str, tuple[str, ...]]
    y: np.ndarray
    ids: np.ndarray
    weights: np.ndarray | None = None
    clusters: np.ndarray | None = None
    offset: np.ndarray | None = None
    more: dict[str, pd.DataFrame] = field(default_factory=dict)

    @property
    def initiator(self) -> str:
        return next(iter(self.blocks))

    @property
    def known(self) -> np.ndarray:
        return np.isfinite(self.y)

    def frames(self, seed: int = 5) -> dict[str, pd.DataFrame]:
        """Tables, each in an order of its own, with rows that nobody else has."""
        rng = np.random.default_rng(seed)
        found = {}
        for i, (site, x) in enumerate(self.blocks.items()):
            table = pd.DataFrame(x, columns=list(self.names[site]))
            table.insert(0, f"id_{site}", self.ids)
            if site == self.initiator:
                table["y"] = self.y
                if self.weights is not None:
                    table["w"] = self.weights
                if self.clusters is not None:
                    table["g"] = self.clusters
                if self.offset is not None:
                    table["o"] = self.offset
            strangers = table.iloc[: 7 + i].copy()
            strangers[f"id_{site}"] = [f"stranger-{site}-{k}" for k in range(7 + i)]
            both = pd.concat([table, strangers], ignore_index=True)
            found[site] = both.iloc[rng.permutation(len(both))].reset_index(drop=True)
        return found

    def columns(self, **extra: Any) -> dict[str, Columns]:
        """Roles at each site."""
        found = {}
        for site, names in self.names.items():
            given: dict[str, Any] = {"id": f"id_{site}", "features": names}
            if site == self.initiator:
                given["target"] = "y"
                given["weight"] = None if self.weights is None else "w"
                given["cluster"] = None if self.clusters is None else "g"
                given["offset"] = None if self.offset is None else "o"
            found[site] = Columns(**{**given, **extra.get(site, {})})
        return found

    def federation(self, policy: Any = SIGNED, **settings: Any) -> Federation:
        """Federation of these tables in memory."""
        return Federation.local(self.frames(), columns=self.columns(), policy=policy, **settings)

    def pooled(
        self, name: str, *, used: np.ndarray | None = None, y: np.ndarray | None = None, **more: Any
    ) -> pooled_glm.Pooled:
        """Textbook fit on all columns, on the rows with a response.

        Partners' columns are centred over all rows: that is what the reported intercept means.
        """
        y = np.where(self.known, self.y, 0.0) if y is None else y
        rows = self.known if used is None else used
        first, *others = self.blocks.values()
        blocks = [first, *(x - x.mean(axis=0) for x in others)]
        given = {"weights": self.weights, "cluster": self.clusters, "offset": self.offset, **more}
        return pooled_glm.fit(blocks, y, name, used=rows, **given)

    def place(self, site: str) -> slice:
        """Columns of a site in the pooled design, which has the constant first."""
        start = 1
        for name, x in self.blocks.items():
            if name == site:
                return slice(start, start + x.shape[1])
            start += x.shape[1]
        raise KeyError(site)

    def values(self, run: Run, site: str, name: str) -> np.ndarray:
        """Output of a site, in the order of the ids."""
        frame = self.frames()[site]
        output = run.site(site)
        ids = frame[f"id_{site}"].to_numpy()[output.rows]
        position = {one: i for i, one in enumerate(ids)}
        return np.asarray(output.values(name))[[position[one] for one in self.ids]]

    def of(self, rows: np.ndarray) -> Parties:
        """Some of the people."""
        single = ("y", "ids", "weights", "clusters", "offset")
        of = {k: v[rows] for k in single if (v := getattr(self, k)) is not None}
        return self.with_(blocks={s: x[rows] for s, x in self.blocks.items()}, **of)

    def with_(self, **changes: Any) -> Parties:
        return replace(self, **changes)


def check_tables(run: Run, them: Parties, pooled: pooled_glm.Pooled, rtol: float = 1e-6) -> int:
    """Compare the coefficients at every party with the pooled ones; return how many have errors.

    Where a coefficient is not identified, there must be no number.
    """
    checked = 0
    for site in them.blocks:
        place = them.place(site)
        columns = list(range(place.start, place.stop))
        if site == them.initiator:
            columns.insert(0, 0)
        table = run.site(site).to_frame("coefficients")
        assert len(table) == len(columns), site
        for j, line in zip(columns, table.itertuples(), strict=True):
            target = np.eye(len(pooled.coef))[j]
            if pooled.estimable(target):
                assert line.status == "identified", line
                np.testing.assert_allclose(line.estimate, pooled.coef[j], rtol=rtol, atol=1e-8)
                np.testing.assert_allclose(line.error, pooled.error(target), rtol=rtol)
                checked += 1
            else:
                assert line.status == "shared", line
                assert np.isnan(line.estimate) and np.isnan(line.error), line
    return checked


def draw_response(name: str, eta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A response whose mean is what the family's inverse link makes of eta."""
    if name == "binomial":
        return (rng.uniform(size=eta.size) < 1 / (1 + np.exp(-eta))).astype(float)
    if name == "poisson":
        return rng.poisson(np.exp(eta)).astype(float)
    if name == "gamma":
        return rng.gamma(2.0, np.exp(eta) / 2)
    if name == "tweedie":
        counts = rng.poisson(np.exp(eta / 2) * 2)
        return np.array([rng.gamma(1.0, 0.5, size=k).sum() for k in counts]) * np.exp(eta / 2)
    return eta + rng.standard_t(4, size=eta.size)


def parties(
    name: str = "binomial",
    *,
    n: int = 300,
    sizes: tuple[int, ...] = (3, 4),
    shared: int = 0,
    n_new: int = 12,
    seed: int = 0,
    effect: float = 1.0,
    weights: bool = False,
) -> Parties:
    """Correlated columns; each party has some of them, and `shared` ones are at a and b."""
    rng = np.random.default_rng([seed, n, *sizes])
    p = sum(sizes)
    common = rng.normal(size=(n, 1))
    x = 0.6 * common + 0.8 * rng.normal(size=(n, p))
    beta = effect * rng.uniform(-0.5, 0.5, size=p)
    eta = 0.3 + x @ beta
    y = draw_response(name, eta, rng)
    y[rng.permutation(n)[:n_new]] = np.nan
    blocks, names, start = {}, {}, 0
    for site, size in zip("abcdef", sizes, strict=False):
        blocks[site] = x[:, start : start + size]
        names[site] = tuple(f"{site}{j}" for j in range(size))
        start += size
    if shared:
        blocks["b"] = np.column_stack([blocks["b"], 2 * blocks["a"][:, :shared] + 1])
        names["b"] += tuple(f"both{j}" for j in range(shared))
    ids = np.array([f"person-{i:04d}" for i in range(n)])
    v = rng.choice([0.5, 1.0, 2.0], size=n) if weights else None
    return Parties(blocks, names, y, ids, v)

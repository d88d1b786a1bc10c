"""What speaks against a choice by held-out entries: tests of its assumptions on what a fit leaves.

Held-out entries choose well where noise is independent, of one variance and without outliers. Each
test says one sentence, with what can be done, where a departure is beyond chance and large.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.numerics.random import stream

_CHANCE = 1e-4  # departures that are rarer than this among tables without them
_RATIO = 1.5  # of the spreads of columns, the largest over the smallest
_ALONG = 0.1  # mean correlation of neighbours above that of any two
_TAILS = 2.0  # excess kurtosis: of t with 7 degrees of freedom
_ORDERS = 200  # random orders beside that of the table
_FEWEST = 10  # entries of a column from which its spread is told
_MOST_ROWS = 2000  # rows that a mixture is fitted to
_STARTS = 3
_FACTORS = 3
_DEGREES = (2.5, 3.0, 4.0, 5.0, 7.0, 10.0, 20.0, 50.0)  # of freedom of one class with long tails
_EM_STEPS = 200
_DRAWN = 99  # tables of long classes, than all of which classes that are there are tighter
_DRAWN_ROWS = 500  # rows of each


def unequal_spread(residual: FloatArray, leverage: FloatArray) -> str | None:
    """Columns whose noise has other variances than that of others, while they are not scaled.

    Parameters
    ----------
    residual : (n, p) array
        What a fit leaves; NaN is missing.
    leverage : (p,) array
        Share of a column's noise that the fit takes with it.

    Returns
    -------
    sentence : str or None
        Bartlett's statistic of the logarithms of variances, in units of their spread under the
        kurtosis of the residuals (Layard 1973).
    """
    from scipy.stats import chi2

    n = (~np.isnan(residual)).sum(axis=0)
    used = (n >= _FEWEST) & (leverage < 0.8)
    if used.sum() < 2:
        return None
    squares = np.nanmean(residual[:, used] ** 2, axis=0)
    if not (squares > 0).all():
        return None
    fourth = np.nanmean(residual[:, used] ** 4, axis=0) / squares**2
    logs = np.log(squares / (1.0 - leverage[used]))
    # a variance on so many degrees of freedom; 2 is what a normal has
    weight = n[used] * (1.0 - leverage[used]) / max(float(np.mean(fourth)) - 1.0, 2.0)
    apart = logs - np.average(logs, weights=weight)
    ratio = float(np.exp(0.5 * (logs.max() - logs.min())))
    if ratio < _RATIO or chi2.sf(float(weight @ apart**2), len(logs) - 1) > _CHANCE:
        return None
    return (
        f"what the fit leaves spreads unequally: {ratio:.1f} times as much in one column as in "
        'another, so that noisy columns rule the choice; compare with scale="columns"'
    )


HOW = {
    "columns": "cv=EntrywiseKFold(blocks=10)",
    "rows": "the same search of the transposed table with cv=EntrywiseKFold(blocks=10)",
}
"""Folds of stretches."""


def along_an_order(residual: FloatArray) -> str | None:
    """Neighbouring columns, or rows, that are correlated more than any two of them.

    Parameters
    ----------
    residual : (n, p) array
        NaN is missing.

    Returns
    -------
    sentence : str or None
        By the mean product of neighbours beside that in random orders.
    """
    z = np.nan_to_num(_in_units(residual))
    for what, table in (("columns", z), ("rows", z.T)):
        m = table.shape[1]
        if m < 5 or not table.size:
            continue
        rng = stream(0, "orders", what)
        orders = [np.arange(m), *(rng.permutation(m) for _ in range(_ORDERS))]
        size = float((table**2).sum()) / m
        # sums over neighbours, by order
        found = np.array([(table[:, o[1:]] * table[:, o[:-1]]).sum() for o in orders])
        found /= size * (m - 1)
        apart = found[0] - found[1:].mean()
        if abs(apart) > _ALONG and abs(apart) > 5.0 * found[1:].std():
            return (
                f"neighbouring {what} are still correlated in what the fit leaves (on average "
                f"{found[0]:.2f}, of any two {found[1:].mean():.2f}): noise that goes along an "
                "order is taken for components, and too many are chosen; difference or whiten "
                f"along the {what}, or hold out whole stretches: {HOW[what]}"
            )
    return None


def along_columns(x: FloatArray, most: int) -> bool:
    """Whether neighbouring columns are correlated, whatever number of components is taken off.

    Components that describe such noise leave nothing of it: it shows before they are taken.

    Parameters
    ----------
    x : (n, p) array
        Complete, columns of mean 0.
    most : int
        Components up to which it is looked at.
    """
    rng, p = stream(0, "orders", "columns"), x.shape[1]
    orders = np.array([np.arange(p), *(rng.permutation(p) for _ in range(_ORDERS))])
    u, values, axes = np.linalg.svd(x, full_matrices=False)
    for k in range(min(most, len(values) - 1) + 1):
        left = (u[:, k:] * values[k:]) @ axes[k:]
        size = np.sqrt((left**2).mean(axis=0))
        if not (size > 1e-12 * values[0]).all():
            return False
        together = left.T @ left / np.outer(size, size) / len(x)
        found = together[orders[:, 1:], orders[:, :-1]].mean(axis=1)
        apart = found[0] - found[1:].mean()
        if apart > _ALONG and apart > 5.0 * found[1:].std():
            return True
    return False


def heavy_tails(residual: FloatArray) -> str | None:
    """Outliers, which few entries decide the error by.

    Parameters
    ----------
    residual : (n, p) array
        NaN is missing.
    """
    z = _in_units(residual)
    m = int((~np.isnan(z)).sum())
    if m < 100:
        return None
    excess = float(np.nanmean(z**4)) - 3.0
    if excess < max(_TAILS, 5.0 * np.sqrt(24.0 / m)):
        return None
    return (
        f"what the fit leaves has heavy tails (excess kurtosis {excess:.1f}): few entries decide "
        "the errors; transform skewed columns, clip outliers, or take "
        'rule="one-standard-error"'
    )


def _in_units(residual: FloatArray) -> FloatArray:
    """Columns with something left, divided by their spread."""
    n = np.maximum((~np.isnan(residual)).sum(axis=0), 1)
    spread = np.sqrt(np.nansum(residual**2, axis=0) / n)
    return np.asarray(residual[:, spread > 0] / spread[spread > 0])


def correlated_classes(x: FloatArray, labels: IntArray, *, seed: int = 0) -> str | None:
    """Fewer classes with correlated columns that explain the table as well as the ones chosen.

    Parameters
    ----------
    x : (n, p) array
        NaN is missing: rows with a gap take no part.
    labels : (n,) array of int
        Chosen classes.
    seed : int
        Of the starts.

    Returns
    -------
    sentence : str or None
        By BIC: one class whose columns share up to three factors, one class of multivariate t,
        and normal mixtures of fewer classes with a covariance matrix for each or one in common,
        beside the chosen number of classes with variances by class and column, or of columns and of
        classes alone (Fraley and Raftery 2002). Without the t several round classes of different
        width imitate the tails of one. A mixture with a class of no more rows than columns does not
        count: its likelihood has no bound (Day 1969). Classes that lie along a line are explained
        by one long class in fewer numbers, though they are there. So nothing is said where k-means
        with some number of classes, up to the chosen one, leaves less within them than in all
        tables drawn from the fewer classes (Liu, Hayes, Nobel and Marron 2008, for more than two
        classes).
    """
    whole = ~np.isnan(x).any(axis=1)
    x, labels = x[whole], labels[whole]
    spread = x.std(axis=0)
    varies = spread > 0
    x = (x[:, varies] - x[:, varies].mean(axis=0)) / spread[varies]
    k, (n, p) = len(np.unique(labels)), x.shape
    if k < 2 or p < 2 or n < 5 * p:
        return None
    if n > _MOST_ROWS:
        some = stream(seed, "rows").choice(n, _MOST_ROWS, replace=False)
        x, labels, n = x[some], labels[some], _MOST_ROWS
    chosen = min(_bic(x, k, "diag", seed), _bic_as_k_means(x, labels, k, seed))
    tails = t_class(x)
    best, fewest, kind = min((_bic_of_factors(x), 1, "full"), (tails.bic, 1, "t"))
    for fewer in range(1, k):
        for form in ("full", "tied"):
            if form == "tied" and fewer == 1:
                continue
            if form == "full" and fewer * p * p > n * p:  # more numbers than the table bears
                continue
            found = _bic(x, fewer, form, seed)
            if found < best:
                best, fewest, kind = found, fewer, form
    if best >= chosen or _tighter(x, spread[varies], k, fewest, kind, seed):
        return None
    many = "one class" if fewest == 1 else f"{fewest} classes"
    many += " of long tails" if kind == "t" else ""
    return (
        f"{many} with correlated columns explain{'s' if fewest == 1 else ''} the table better "
        f"(BIC {best:.0f}) than {k} classes without (BIC {chosen:.0f}): k-means cuts one long "
        'class into several; compare with estimator="gaussian-mixture-full" and the gap statistic '
        "of compare(), or hold out blocks of columns that say the same together: "
        "cv=EntrywiseKFold(blocks=...)"
    )


def _tighter(x: FloatArray, unit: FloatArray, k: int, fewer: int, form: str, seed: int) -> bool:
    """Whether up to k classes are tighter than k-means makes them of fewer, normal ones."""
    from sklearn.cluster import KMeans
    from sklearn.mixture import GaussianMixture

    rng = stream(seed, "drawn")
    rows = x
    x = x[rng.permutation(len(x))[:_DRAWN_ROWS]]
    if form == "t":
        drawn = t_class(rows).drawn(_DRAWN * len(x), rng)
    else:
        model = GaussianMixture(fewer, covariance_type=form, n_init=_STARTS, random_state=seed)
        drawn = rng.permutation(model.fit(rows).sample(_DRAWN * len(x))[0])

    def within(table: FloatArray, classes: int) -> float:
        table = table * unit  # as k-means of the search sees it
        left = KMeans(classes, n_init=_STARTS, random_state=seed).fit(table).inertia_
        return float(left / ((table - table.mean(axis=0)) ** 2).sum())

    tighter = {classes: within(x, classes) for classes in range(fewer + 1, k + 1)}
    for table in drawn.reshape(_DRAWN, *x.shape):
        tighter = {c: least for c, least in tighter.items() if within(table, c) > least}
        if not tighter:
            return False
    return True


@dataclass(frozen=True, eq=False)
class TClass:
    """One class of multivariate t.

    Attributes
    ----------
    mean : (p,) array
    scale : (p, p) array
        Scatter matrix, not the covariance.
    degrees : float
        Of freedom.
    bic : float
    """

    mean: FloatArray
    scale: FloatArray
    degrees: float
    bic: float

    def drawn(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Rows of the class, (n, p)."""
        normal = rng.multivariate_normal(np.zeros(len(self.mean)), self.scale, n)
        return self.mean + normal * np.sqrt(self.degrees / rng.chisquare(self.degrees, (n, 1)))


def t_class(x: FloatArray) -> TClass:
    """Fit one class of multivariate t, degrees of freedom by likelihood out of a few.

    Parameters
    ----------
    x : (n, p) array
        More rows than columns.

    Notes
    -----
    EM with weights ``(nu + p) / (nu + d)`` of rows, d their squared distances, where the scatter
    matrix is divided by the sum of weights (Kent, Tyler and Vardi 1994, the same fixed point).
    """
    from scipy.special import gammaln

    n, p = x.shape
    found: list[TClass] = []
    mean, scale = x.mean(axis=0), np.cov(x.T, bias=True)
    for nu in sorted(_DEGREES, reverse=True):  # each from the one before, the normal first
        for _ in range(_EM_STEPS):
            off = x - mean
            distance = np.einsum("ij,ij->i", off, np.linalg.solve(scale, off.T).T)
            weight = (nu + p) / (nu + distance)
            last, mean = mean, weight @ x / weight.sum()
            off = x - mean
            scale = (weight * off.T) @ off / weight.sum()
            if np.abs(mean - last).max() < 1e-8 and abs(float(weight.mean()) - 1.0) < 1e-6:
                break
        off = x - mean
        distance = np.einsum("ij,ij->i", off, np.linalg.solve(scale, off.T).T)
        one = gammaln((nu + p) / 2) - gammaln(nu / 2) - 0.5 * p * np.log(nu * np.pi)
        one -= 0.5 * np.linalg.slogdet(scale)[1]
        score = n * one - 0.5 * (nu + p) * float(np.log1p(distance / nu).sum())
        size = p + p * (p + 1) // 2 + 1
        found.append(TClass(mean, scale, nu, -2.0 * score + size * float(np.log(n))))
    return min(found, key=lambda one: one.bic)


def _bic_of_factors(x: FloatArray) -> float:
    """Least BIC of one class whose columns have up to three factors in common."""
    from sklearn.decomposition import FactorAnalysis

    n, p = x.shape
    found = [np.inf]
    for factors in range(1, min(_FACTORS, (p - 1) // 2) + 1):
        size = p * (factors + 2) - factors * (factors - 1) // 2
        score = FactorAnalysis(factors, tol=1e-4).fit(x).score(x)
        found.append(-2.0 * n * float(score) + size * np.log(n))
    return min(found)


def _bic_as_k_means(x: FloatArray, labels: IntArray, k: int, seed: int) -> float:
    """BIC of round classes after each column was divided by its spread within the classes."""
    places = np.unique(labels, return_inverse=True)[1]
    counts = np.bincount(places, minlength=k)
    means = np.stack([np.bincount(places, weights=c, minlength=k) / counts for c in x.T], axis=1)
    within = np.sqrt(((x - means[places]) ** 2).mean(axis=0))
    if not (within > 0).all():
        return -np.inf
    n, p = x.shape
    scales = 2.0 * n * float(np.log(within).sum()) + p * np.log(n)
    return _bic(x / within, k, "spherical", seed) + scales


def _bic(x: FloatArray, k: int, form: str, seed: int) -> float:
    import warnings

    from sklearn.mixture import GaussianMixture

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GaussianMixture(k, covariance_type=form, n_init=_STARTS, random_state=seed).fit(x)
    if k > 1 and form != "tied" and model.weights_.min() * len(x) <= x.shape[1]:
        return np.inf
    return float(model.bic(x))

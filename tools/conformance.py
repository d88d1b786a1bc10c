"""Which test puts which promise of which method to the test.

A cell of the table names a test file that fulfils its rule in `PROOFS`: one that is called after
the method and uses its class, else one that uses its class, or says its name, or loops over a list
with it. An empty cell is open work. The search is by words: it finds that a test exists, not that
it is good.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.smallest_sites import SMALLEST, STUDIES

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Proof:
    """Where a promise is put to the test: files, and words that such a file holds."""

    column: str
    files: tuple[str, ...]
    words: tuple[str, ...]


_CHECKED = r"check_method\("
EXCHANGES = (
    *(f"tests/*/{room}/test_*.py" for room in ("protocol", "one_table", "glm", "test")),
    "tests/*/federated_*/test_*.py",
)
PROOFS = (
    Proof(
        "estimator",
        ("tests/*/estimators/test_*.py", "tests/*/selection/test_*.py", "tests/*/tall/test_*.py"),
        ("check_estimator|_with_checks",),
    ),
    Proof("command line", ("tests/cli/test_*.py",), (r'"run"',)),
    Proof("demo", ("tests/cli/test_*.py",), (r'"demo"',)),
    Proof("report", ("tests/report/test_*.py", "tests/*/report/test_*.py"), ("report",)),
    Proof(
        "resume",
        ("tests/exchange/test_*.py", "tests/faults/test_*.py"),
        (rf"resume=True|check_resume|{_CHECKED}",),
    ),
    Proof("absence", ("tests/exchange/test_*.py",), (rf"check_absence|{_CHECKED}",)),
    Proof(
        "attacks",
        ("tests/exchange/test_*.py", "tests/security/test_*.py"),
        ("attack|SUITE|" + _CHECKED,),
    ),
    Proof(
        "local engine",
        ("tests/exchange/test_*.py", "tests/protocol/test_*.py", *EXCHANGES),
        (r"run\(",),
    ),
    Proof(
        "folder engine", ("tests/exchange/test_*.py", "tests/engines/test_*.py"), ("FolderEngine",)
    ),
    Proof("flower engine", ("tests/flower/test_exchange.py",), ("test_same_bytes", "IN_ORDER")),
)
TWINS = {
    "community-bayes": "CommunityBayesClassifier",
    "cluster-count": "ClusterCountCV",
    "federated-community-bayes": "CommunityBayesClassifier",
    "federated-pca": "ProbabilisticPCA",
    "federated-sparse-qda": "SparseQDA",
    "latent-class-regression": "LatentClassRegressor",
    "matrix-completion": "SoftImpute",
    "sparse-qda": "SparseQDA",
}
"""Estimators of the same for one table, where their name does not begin with that of the method."""
NOT_PLANNED = {
    ("contingency-table", "estimator"): "not planned",
    ("describe", "estimator"): "not planned",
    ("mean-and-sd", "estimator"): "not planned",
    ("pooled-regression", "estimator"): "not planned",
}
CASES = ROOT / "tests" / "faults" / "cases.py"


def conformance() -> Iterator[str]:
    """Yield the lines of the conformance table."""
    from consilience.protocol import BUILT_IN
    from consilience.protocol.method import get_method

    columns = [proof.column for proof in PROOFS]
    yield f"| method | {' | '.join(columns)} | policy presets |"
    yield "|---" * (len(columns) + 2) + "|"
    for name in sorted(BUILT_IN):
        kind = get_method(name)
        cells = [
            NOT_PLANNED.get((name, proof.column)) or _cell(proof, name, kind.__name__)
            for proof in PROOFS
        ]
        anchor = re.sub(r"[^\w\- ]", "", SMALLEST.lower()).replace(" ", "-")
        presets = f"[table](#{anchor})" if name in STUDIES else ""
        yield f"| `{name}` | {' | '.join(cells)} | {presets} |"


def _cell(proof: Proof, name: str, kind: str) -> str:
    paths = [path for pattern in proof.files for path in sorted(ROOT.glob(pattern))]
    ranked = [(rank, path) for path in paths if (rank := _rank(proof, name, kind, path))]
    if not ranked:
        return ""
    path = min(ranked, key=lambda found: found[0])[1]
    return f"[{path.stem.removeprefix('test_')}]({path.relative_to(ROOT).as_posix()})"


def _rank(proof: Proof, name: str, kind: str, path: Path) -> int:
    """Return how nearly a file is about a method, 1 most; 0 where it is no proof."""
    # A method's twin for one table has its name with the kind of estimator.
    twin = TWINS.get(name, kind) if proof.column == "estimator" else kind
    by_class = re.compile(rf"\b{kind}(?:Regressor|Classifier)?\b|\b{twin}\b")
    by_name = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")

    def proves(text: str) -> bool:
        # The name of a file may be all that says what it puts to the test.
        return all(re.search(word, f"{path.stem}\n{text}") for word in proof.words)

    own = _own_text(path)
    if proves(own) and by_class.search(own):
        return 1 if _method_of(path) == name else 2
    # The name alone may be that of a rule in a result, or stand in what an error says.
    if proves(own) and by_name.search(own):
        return 3
    # Last, files that only loop over a list with the method in it.
    text = _text(path)
    return 4 if proves(text) and (by_class.search(text) or by_name.search(text)) else 0


def _method_of(path: Path) -> str:
    """Return the method that a file is called after: the longest name, none within another."""
    from consilience.protocol import BUILT_IN

    called = path.stem.replace("_", "-")
    names = [name for name in BUILT_IN if re.search(rf"(?<![^-]){re.escape(name)}(?![^-])", called)]
    return max(names, key=len, default="")


@cache
def _own_text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _text(path: Path) -> str:
    """Text of a test file, with the studies or demonstrations that it loops over."""
    text = _own_text(path)
    if re.search(r"\bCASES\b", text) and CASES.is_file():
        text += CASES.read_text(encoding="utf-8")
    if re.search(r"\bDEMOS\b", text):
        text += (ROOT / "src/consilience/cli/demos.toml").read_text(encoding="utf-8")
    return text

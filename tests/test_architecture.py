"""The rules of the house that no other tool checks.

Each rule is a function over text or paths, tried first on a small example that breaks it, then on
the repository.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "consilience"
MODULES = sorted(SRC.rglob("*.py"))
assert MODULES
ROOMS = sorted({path.parent for path in SRC.glob("*/*.py")})

MODULE_LINES = 700
FUNCTION_LINES = 100
README_LINES = 30
HEADINGS = (
    r"What lives here",
    r"Read this first",
    r"May import",
    r"Add one in \w+ steps?",
    r"Run its tests",
)
HEAVY = ("sklearn", "numba", "pandas", "matplotlib", "opendp", "skops", "flwr", "pyarrow")
PICKLING = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"}
TABLE_LIBRARIES = {"pandas", "pyarrow", "polars", "adbc_driver_manager"} | {
    f"adbc_driver_{name}" for name in ("postgresql", "sqlite")
}
# The rooms and modules that may speak of tables; elsewhere only methods named to_frame may.
TABLE_PLACES = (
    "sites/source",
    "sites/outputs",
    "datasets/",
    "averaging/tall/",
    "protocol/result",
    "numerics/row_units",
)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


@functools.cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """All nodes of a module; every rule walks over them."""
    return tuple(ast.walk(parsed(source)))


def faults(rule: Callable[[str], list[Any]], paths: Iterable[Path] = MODULES) -> dict[str, Any]:
    """What a rule finds, by module."""
    found = {name_of(path): rule(path.read_text(encoding="utf-8")) for path in paths}
    return {name: what for name, what in found.items() if what}


# --- size -----------------------------------------------------------------------------------


def docstring_lines(source: str) -> set[int]:
    """Lines of strings that stand alone as statements: docstrings and attribute notes."""
    return {
        line
        for node in nodes(source)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def code_lines(source: str) -> set[int]:
    """Numbers of the lines that hold code: no blank lines, comments or docstrings."""
    lines = enumerate(source.splitlines(), start=1)
    spoken = {n for n, line in lines if line.strip() and not line.lstrip().startswith("#")}
    for node in nodes(source):
        if isinstance(node, ast.JoinedStr | ast.Constant) and node.end_lineno is not None:
            spoken.update(range(node.lineno, node.end_lineno + 1))
    return spoken - docstring_lines(source)


def too_long(source: str) -> list[str]:
    """One sentence for each function body, and for the module, over its limit."""
    lines = code_lines(source)
    found = []
    if len(lines) > MODULE_LINES:
        found.append(f"the module has {len(lines)} code lines, at most {MODULE_LINES}")
    for node in nodes(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
            size = len(lines.intersection(body))
            if size > FUNCTION_LINES:
                found.append(f"{node.name} has {size} code lines, at most {FUNCTION_LINES}")
    return found


def test_code_lines_leave_out_comments_and_docstrings() -> None:
    source = (
        '"""Doc\nmore."""\n\n# comment\nx = (\n    1,\n)\n\n'
        'def f():\n    """Doc."""\n    return """a\nb"""\n'
    )
    assert code_lines(source) == {5, 6, 7, 9, 11, 12}


def test_too_long_sees_functions_and_modules() -> None:
    body = "".join(f"    x{i} = {i}\n" for i in range(FUNCTION_LINES))
    assert too_long(f"def f():\n{body}") == []
    assert len(too_long(f"def f():\n{body}    y = 1\n")) == 1
    assert len(too_long("x = 1\n" * (MODULE_LINES + 1))) == 1


def test_size() -> None:
    assert faults(too_long) == {}


# --- forbidden ways -------------------------------------------------------------------------


def imported(source: str) -> Iterator[tuple[str, ast.stmt]]:
    """Absolute names of imported modules with their statements."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module, node
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node


def unsafe_ways(source: str) -> list[str]:
    """Pickling in any form, and running text as code."""
    found = [
        f"line {node.lineno} imports {module}"
        for module, node in imported(source)
        if module.split(".")[0] in PICKLING or module in ("joblib.load", "joblib.dump")
    ]
    for node in nodes(source):
        if isinstance(node, ast.Name) and node.id in ("eval", "exec", "__import__"):
            found.append(f"line {node.lineno} uses {node.id}")
        elif isinstance(node, ast.Attribute):
            called = ast.unparse(node)
            if node.attr in ("read_pickle", "to_pickle", "allow_pickle") or called in (
                "joblib.load",
                "joblib.dump",
                "builtins.eval",
                "builtins.exec",
            ):
                found.append(f"line {node.lineno} uses {called}")
        elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "trusted"):
            constant = node.value.value if isinstance(node.value, ast.Constant) else None
            if constant is True or (node.arg == "allow_pickle" and constant is not False):
                found.append(f"line {node.value.lineno} passes {node.arg}")
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import loads",
        "def f():\n    import marshal",
        "from joblib import load",
        "import joblib\njoblib.dump(1, 'x')",
        "frame.to_pickle('x')",
        "eval('1')",
        "run = exec",
        "np.load(f, allow_pickle=True)",
        "skops.io.loads(b, trusted=True)",
    ],
)
def test_unsafe_ways_are_seen(source: str) -> None:
    assert len(unsafe_ways(source)) >= 1


def test_safe_ways_pass() -> None:
    source = (
        "import joblib\njoblib.Parallel(2)\nmodel.eval()\n"
        "np.load(f, allow_pickle=False)\nskops.io.loads(b, trusted=TYPES)\n"
    )
    assert unsafe_ways(source) == []


def test_no_unsafe_ways() -> None:
    assert faults(unsafe_ways) == {}


def assert_lines(source: str) -> list[int]:
    return [node.lineno for node in nodes(source) if isinstance(node, ast.Assert)]


def test_assert_lines_are_seen() -> None:
    assert assert_lines("def f(x):\n    assert x\n") == [2]


def test_errors_are_raised_not_asserted() -> None:
    assert faults(assert_lines) == {}


def table_imports(source: str) -> list[str]:
    """Imports of table libraries outside ``to_frame`` and outside type checking."""
    allowed: set[ast.AST] = set()
    for node in nodes(source):
        is_to_frame = isinstance(node, ast.FunctionDef) and node.name == "to_frame"
        is_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if is_to_frame or is_typing:
            allowed.update(ast.walk(node))
    return sorted(
        {
            f"line {node.lineno} imports {module.split('.')[0]}"
            for module, node in imported(source)
            if module.split(".")[0] in TABLE_LIBRARIES and node not in allowed
        }
    )


def test_table_imports_are_seen() -> None:
    assert table_imports("def f():\n    import pandas as pd\n") == ["line 2 imports pandas"]
    assert table_imports("def to_frame(self):\n    import pandas as pd\n") == []
    assert table_imports("if TYPE_CHECKING:\n    import pandas as pd\n") == []


def test_table_libraries_stay_in_their_places() -> None:
    elsewhere = [p for p in MODULES if not p.relative_to(SRC).as_posix().startswith(TABLE_PLACES)]
    assert faults(table_imports, elsewhere) == {}


# --- rooms ----------------------------------------------------------------------------------


def headings_missing(text: str) -> list[str]:
    """Headings of a room's README that are missing or out of order."""
    lines = [line.lstrip("# ").rstrip() for line in text.splitlines() if line.startswith("#")]
    missing, start = [], 0
    for heading in HEADINGS:
        places = [i for i in range(start, len(lines)) if re.fullmatch(heading, lines[i])]
        if places:
            start = places[0] + 1
        else:
            missing.append(heading)
    return missing


def named_paths(text: str) -> list[str]:
    """Words in backticks that look like paths of this repository; placeholders are left out."""
    found = []
    for quoted in re.findall(r"`+([^`]+)`+", text):
        for word in quoted.split():
            path = word.split("::")[0].strip(",;:()")
            if re.search(r"[<>{}$=]|^[-.]?/|^~|^\.venv", path):
                continue
            first, slash, _ = path.partition("/")
            in_tree = slash and any((base / first).is_dir() for base in (ROOT, SRC))
            if in_tree or re.search(r"\.(py|pyi|md)$", path):
                found.append(path)
    return found


def missing_paths(text: str, room: Path) -> list[str]:
    """Paths named in the text that exist neither in the room, the package nor the repository."""
    return [
        path
        for path in named_paths(text)
        if not any(next(base.glob(path.rstrip("/")), None) for base in (room, SRC, ROOT))
    ]


def test_headings_and_paths_are_seen() -> None:
    text = "# Room\n" + "".join(
        f"## {heading}\n"
        for heading in (
            "What lives here",
            "Read this first",
            "May import",
            "Add one in 3 steps",
            "Run its tests",
        )
    )
    assert headings_missing(text) == []
    assert headings_missing(text.replace("## May import\n", "")) == ["May import"]
    assert headings_missing("## Run its tests\n" + text.replace("## Run its tests\n", "")) == [
        "Run its tests"
    ]
    named = "`wire/codec.py` `pytest tests/test_none.py::test_a -q` `none.py` `methods/<name>.py`"
    assert named_paths(named) == ["wire/codec.py", "tests/test_none.py", "none.py"]
    assert missing_paths(named, SRC / "wire") == ["tests/test_none.py", "none.py"]


def test_there_are_rooms() -> None:
    assert SRC / "wire" in ROOMS


@pytest.mark.parametrize("room", ROOMS, ids=name_of)
def test_room_has_a_readme(room: Path) -> None:
    readme = room / "README.md"
    assert readme.is_file(), f"{name_of(room)} has no README.md"
    text = readme.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= README_LINES
    assert headings_missing(text) == []
    assert missing_paths(text, room) == []


# --- shop window ----------------------------------------------------------------------------


def in_new_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


def loaded_by(statement: str) -> set[str]:
    code = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    return {name.split(".")[0] for name in json.loads(in_new_process(code))}


def test_loaded_modules_are_seen() -> None:
    assert "joblib" in loaded_by("import joblib")


def test_import_loads_nothing_heavy() -> None:
    assert loaded_by("import consilience").intersection(HEAVY) == set()


def stub_names(source: str) -> dict[str, str]:
    """Public names of a stub with the modules that they come from."""
    found = {}
    for node in parsed(source).body:
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            module = f"consilience.{node.module}" if node.level else str(node.module)
            for alias in node.names:
                name = alias.asname or alias.name
                if not name.startswith("_"):
                    found[name] = module
    return found


def test_stub_names_are_seen() -> None:
    source = "from .report import write as write\nfrom consilience.a import B\n__version__: str\n"
    assert stub_names(source) == {"write": "consilience.report", "B": "consilience.a"}


@pytest.mark.parametrize("window", ["consilience", "consilience.report"])
def test_public_names_agree(window: str) -> None:
    package = importlib.import_module(window)
    served: dict[str, str] = package._PUBLIC
    stub = stub_names(Path(str(package.__file__)).with_suffix(".pyi").read_text(encoding="utf-8"))
    assert served == stub
    assert set(served) <= set(dir(package))
    for name, module in served.items():
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


# --- committed files ------------------------------------------------------------------------

# Written with character classes, so that this file does not match itself.
LEAKS = {
    "a package registry": re.compile(
        r"[p]ypi\.(?:org|python\.org)|[p]ythonhosted\.org|[n]pmjs\.(?:org|com)|[a]naconda\.org"
        r"|[c]rates\.io|--(?:extra-)?[i]ndex-url[ =]\S*:|--[f]ind-links[ =]\S*/"
    ),
    "an absolute local path": re.compile(
        r"(?<![\w.~/<>$})])/(?:[r]oot|[h]ome|[w]ork|[o]pt|[U]sers|[w]orkspace)/\w"
        r"|\b[f]ile:///\w|\b[C]:\\+[U]sers"
    ),
}


def leaks(text: str) -> list[str]:
    return [
        f"{what}: {match.group()}"
        for what, pattern in LEAKS.items()
        for match in pattern.finditer(text)
    ]


def committed_files() -> list[Path]:
    """Files under version control and new ones not ignored; all files of an unpacked archive."""
    if not (ROOT / ".git").exists():
        inside = [path for path in ROOT.rglob("*") if path.is_file()]
        unseen = {".venv", "__pycache__"}
        return [path for path in inside if not unseen.intersection(path.relative_to(ROOT).parts)]
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    names = sorted({name for name in listing.decode().split("\0") if name})
    return [ROOT / name for name in names if (ROOT / name).is_file()]


@pytest.mark.parametrize(
    "text",
    [
        "python" + "hosted" + ".org",
        "--index" + "-url h:",
        "open('/" + "home/someone/x.csv')",
        "file:" + "///srv/x",
        'root = "/' + 'work/main"',
    ],
)
def test_leaks_are_seen(text: str) -> None:
    assert len(leaks(text)) >= 1


def test_harmless_text_is_no_leak() -> None:
    assert leaks("see docs/home/page.md, src/work/x.py, https://example.org/work/x") == []


def test_committed_files_name_no_registry_and_no_local_path() -> None:
    files = committed_files()
    assert ROOT / "requirements.lock" in files
    found = {}
    for path in files:
        content = path.read_bytes()
        if b"\0" not in content:
            found[name_of(path)] = leaks(content.decode("utf-8", errors="replace"))
    assert {name: what for name, what in found.items() if what} == {}


def test_lock_is_hashed_and_complete() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=[a-z0-9])", lock.split("\n", 2)[2])
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    needed = re.search(r"^dependencies = \[(.*?)\]", project, re.DOTALL | re.MULTILINE)
    assert needed is not None
    locked = {entry.split("==")[0] for entry in entries}
    assert set(re.findall(r'"([a-z0-9-]+)', needed.group(1))) <= locked


def test_no_modules_import_one_another() -> None:
    """No cycles of imports, also inside rooms and between a package and its modules."""
    modules = {_name(path): _imports_at_run_time(path) for path in MODULES}
    place = {name: i for i, name in enumerate(modules)}
    arrows = [
        (place[a], place[b]) for a, found in modules.items() for b in found & set(place) - {a}
    ]
    joined = coo_array((np.ones(len(arrows)), np.array(arrows).T), shape=(len(place), len(place)))
    _, group = connected_components(joined, connection="strong")
    sizes = np.bincount(group)
    assert len(arrows) > 1000
    assert [name for name, g in zip(modules, group, strict=True) if sizes[g] > 1] == []


def _name(path: Path) -> str:
    return ".".join(path.relative_to(SRC.parent).with_suffix("").parts).removesuffix(".__init__")


def _imports_at_run_time(path: Path) -> set[str]:
    """Modules, and names of modules, that a file imports, but for TYPE_CHECKING."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    idle: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            idle.update(ast.walk(node))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in idle:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            # `from package import module` asks for the module, what else is asked for the package.
            inside = {name for name in names if _file_of(name)}
            found |= inside | ({str(node.module)} if names - inside else set())
    return found


def _file_of(name: str) -> bool:
    path = SRC.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()

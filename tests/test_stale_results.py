"""The hash that ties a replication's rows to their code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.stale_results import ReplicationError, code_hash, stale_rows, survey, table_hash


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("A = 1\n")
    (tmp_path / "src" / "b.py").write_text("B = 1\n")
    table = tmp_path / "replications" / "paper" / "table1"
    table.mkdir(parents=True)
    (table / "run.py").write_text("print('figures')\n")
    (table / "sources.txt").write_text("# what the figures rest on\nsrc/a.py  # kernel\n")
    return tmp_path


def write_result(root: Path) -> Path:
    table = root / "replications" / "paper" / "table1"
    stamp = table_hash(table, root)
    (table / "result.csv").write_text(f"n,value,code_hash\n1,0.5,{stamp}\n2,0.7,{stamp}\n")
    return table


def test_hash_ignores_order_and_line_ends(root: Path) -> None:
    first = code_hash(["src/a.py", "src/b.py"], root)
    assert first == code_hash(["src/b.py", "src/a.py", "src/a.py"], root)
    (root / "src" / "a.py").write_bytes(b"A = 1\r\n")
    assert first == code_hash(["src/a.py", "src/b.py"], root)


def test_code_that_moves_or_is_told_in_other_words_keeps_its_hash(root: Path) -> None:
    """Imports, comments, docstrings and names of array types compute nothing."""
    code = "def f(x: A) -> A:\n    return x + 1\n\n\nB = f(2)\n"
    told = (
        '"""What it is."""\n\nfrom src.b import g\n\nA = NDArray[float]\n# Why.\n'
        'def f(x: A) -> A:\n    """Say."""\n    return (x  +  1)\n\n\nB = f(2)\n"""Two."""\n'
    )
    (root / "src" / "a.py").write_text(code)
    before = code_hash(["src/a.py"], root)
    (root / "src" / "c.py").write_text(told)
    assert code_hash(["src/c.py"], root) == before
    (root / "src" / "a.py").write_text("B = f(2)\n")
    (root / "src" / "b.py").write_text("def f(x: A) -> A:\n    return x + 1\n")
    assert code_hash(["src/a.py", "src/b.py"], root) == before
    (root / "src" / "b.py").write_text("def f(x: A) -> A:\n    return x + 2\n")
    assert code_hash(["src/a.py", "src/b.py"], root) != before


@pytest.mark.parametrize("left", ["B = f(3)", "def f(x):\n    return -x", "class F:\n    a = 1"])
def test_hash_sees_code(root: Path, left: str) -> None:
    (root / "src" / "a.py").write_text("B = f(2)\ndef f(x):\n    return x\nclass F:\n    a = 2\n")
    before = code_hash(["src/a.py"], root)
    text = (root / "src" / "a.py").read_text()
    (root / "src" / "a.py").write_text(text + left + "\n")
    assert code_hash(["src/a.py"], root) != before


def test_names_of_modules_of_the_package_do_not_count(root: Path) -> None:
    code = "def load(name):\n    return find(f'{name}', 'consilience.%s', 'other.%s')\n"
    hashes = []
    for place, other in (("a.b", "a"), ("c.d.b", "a"), ("c.d.e", "a"), ("a.b", "c")):
        (root / "src" / "a.py").write_text(code % (place, other))
        hashes.append(code_hash(["src/a.py"], root))
    assert hashes[0] == hashes[1] and len(set(hashes)) == 3


def test_hash_sees_text_of_other_files(root: Path) -> None:
    (root / "src" / "a.R").write_text("x <- 1\n")
    before = code_hash(["src/a.R"], root)
    (root / "src" / "a.R").write_text("x <- 2\n")
    assert code_hash(["src/a.R"], root) != before
    (root / "src" / "a.py").write_text("def (\n")
    with pytest.raises(ReplicationError, match="cannot be parsed"):
        code_hash(["src/a.py"], root)


def test_rows_go_stale_with_their_sources_only(root: Path) -> None:
    table = write_result(root)
    (root / "src" / "b.py").write_text("B = 2\n")
    assert stale_rows(table, root) == (0, 2)
    (root / "src" / "a.py").write_text("A = 2\n")
    assert stale_rows(table, root) == (2, 2)
    stale, broken, total = survey(root)
    assert (len(stale), broken, total) == (1, [], 1)


def test_changed_run_script_is_stale(root: Path) -> None:
    table = write_result(root)
    (table / "run.py").write_text("print('other figures')\n")
    assert stale_rows(table, root) == (2, 2)


def test_folder_stands_for_its_modules(root: Path) -> None:
    table = root / "replications" / "paper" / "table1"
    (table / "sources.txt").write_text("src\n")
    before = table_hash(table, root)
    (root / "src" / "b.py").write_text("B = 2\n")
    assert table_hash(table, root) != before


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("sources.txt", "src/missing.py\n", "matches no file"),
        ("sources.txt", None, "no sources.txt"),
        ("result.csv", None, "no result.csv"),
        ("result.csv", "n,value\n1,0.5\n", "code_hash"),
    ],
)
def test_broken_folders_are_named(root: Path, file: str, text: str | None, message: str) -> None:
    table = write_result(root)
    if text is None:
        (table / file).unlink()
    else:
        (table / file).write_text(text)
    with pytest.raises(ReplicationError, match=message):
        stale_rows(table, root)
    assert len(survey(root)[1]) == 1

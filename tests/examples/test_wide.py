"""Spam, vowels and digits: what the pages of the examples say, from their own study files."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from consilience.engines.study_check import check_sites
from consilience.engines.study_run import method_of, read_site_files
from consilience.sites.study import Study
from examples.digits import compare as digits_compare
from examples.digits import make_tables as digits_tables
from examples.spam import compare as spam_compare
from examples.spam import make_tables as spam_tables
from examples.vowel import make_tables as vowel_tables
from examples.wide_peers import left_at_sites, table_of
from tests.examples.running import run_workspace

EXAMPLES = Path(__file__).parents[2] / "examples"
STUDIES = (
    ("spam", "study"),
    ("spam", "sites"),
    ("vowel", "study"),
    ("vowel", "mixed"),
    ("digits", "study"),
    ("digits", "sites"),
)


@pytest.fixture(scope="module")
def places(
    data_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The examples in a fresh place, with their tables."""
    found, esl = {}, data_dir("esl")
    writers = {
        "spam": spam_tables.write_tables,
        "vowel": vowel_tables.write_table,
        "digits": digits_tables.write_tables,
    }
    for name, write in writers.items():
        found[name] = tmp_path_factory.mktemp(name)
        for study in (EXAMPLES / name).glob("*.toml"):
            shutil.copy(study, found[name])
        shutil.copytree(EXAMPLES / name / "sites", found[name] / "sites")
        write(esl, found[name] / "tables")
    return found


def printed(name: str) -> dict[str, int]:
    """Wrong rows in the block of the page that shows what ``compare.py`` prints."""
    page = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    _, _, block = page.partition("wrong  share  error\n")
    lines = [re.split(r"\s{2,}", line.strip()) for line in block.partition("```")[0].splitlines()]
    return {line[0]: int(line[1]) for line in lines}


@pytest.mark.parametrize(("name", "study"), STUDIES)
def test_studies_can_run_on_their_tables(places: dict[str, Path], name: str, study: str) -> None:
    read = Study.load(places[name] / f"{study}.toml")
    files = read_site_files(read)
    assert tuple(files) == read.sites.names
    checks = check_sites(read, files, method_of(read))
    assert [check.error for check in checks] == [None] * len(files)
    preset = "strict" if study == "sites" else "simulation"
    assert {file.policy["preset"] for file in files.values()} == {preset}


def test_letters_are_split_once(data_dir: Callable[[str], Path]) -> None:
    letters = spam_tables.read_letters(data_dir("esl"))
    assert letters.shape == (4601, 58)
    assert letters["kind"].value_counts().to_dict() == {"mail": 2788, "spam": 1813}
    assert letters["make"].min() == pytest.approx(np.log(0.1), abs=1e-4)
    known, boxes, new = spam_tables.split(letters)
    rows = np.concatenate([known.index, new.index])
    assert np.array_equal(np.sort(rows), np.arange(4601)) and len(new) == 1601
    assert np.array_equal(np.concatenate([b.index for b in boxes.values()]), known.index)
    assert {len(box) for box in boxes.values()} == {1000}


def test_speakers_and_vowels(data_dir: Callable[[str], Path]) -> None:
    rows = vowel_tables.read_vowels(data_dir("esl"))
    assert rows.groupby("speaker").size().to_dict() == {f"s{i:02d}": 24 for i in range(1, 16)}
    assert (rows.groupby(["speaker", "vowel"]).size() == 6).all()
    assert set(rows["vowel"]) == set(vowel_tables.VOWELS.values())


def test_digits_are_means_of_squares(data_dir: Callable[[str], Path]) -> None:
    esl = data_dir("esl")
    known, new = (digits_tables.read_digits(esl / name) for name in digits_tables.SOURCES)
    assert known["digit"].value_counts().to_dict() == {"three": 658, "eight": 542}
    assert len(new) == 332
    source = pd.read_csv(esl / digits_tables.SOURCES[0])
    first = source[source["digit"].isin(digits_tables.DIGITS)].iloc[0, 1:].to_numpy(dtype=float)
    image = first.reshape(16, 16)
    assert known.iloc[0]["r2c5"] == pytest.approx(image[4:6, 10:12].mean(), abs=1e-5)
    offices = digits_tables.over_offices(known)
    rows = np.concatenate([office.index for office in offices.values()])
    assert np.array_equal(np.sort(rows), np.sort(known.index))


def test_vowels_of_new_speakers_and_of_known_ones(places: dict[str, Path]) -> None:
    """Counts of the page; the order of the rules turns round with the speakers."""
    page = (EXAMPLES / "vowel" / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| ([\w -]+?) \| (\d+)\D[^|]*\| (\d+)\D", page, re.MULTILINE)
    shown = {name: (int(new), int(mixed)) for name, new, mixed in lines}
    found = {
        name: run_workspace(places["vowel"], f"{name}.toml").result for name in ("study", "mixed")
    }
    for i, rule in enumerate(found["study"].judged):
        for at, name in enumerate(("study", "mixed")):
            assert found[name].errors[i] == pytest.approx(shown[rule][at], abs=3), (rule, name)
    sparse, _, qda, lda = found["study"].errors
    assert lda < sparse < qda
    sparse, _, qda, lda = found["mixed"].errors
    assert qda < sparse < lda


def test_spam_in_one_table_and_in_three_mailboxes(places: dict[str, Path]) -> None:
    """Wrong letters among 1,601, as the page shows them."""
    place = places["spam"]
    new = pd.read_csv(place / "tables" / "new.csv")
    run = run_workspace(place)
    table = spam_compare.compare(run, place / "homes", place / "tables")
    over = run_workspace(place, "sites.toml")
    said = left_at_sites(over, place / "homes", new)
    wrong = pd.concat([table, table_of(said, new["kind"])])["wrong"].to_dict()
    shown = printed("spam")
    assert set(shown) == set(wrong)
    for name, value in shown.items():
        assert wrong[name] == pytest.approx(value, abs=15), name
    # Of about 110 wrong letters the standard error is 10; which rows judge follows from digests.
    apart = wrong["federated-community-bayes, this run"] - wrong["logistic regression"]
    assert apart < 3 * np.sqrt(wrong["logistic regression"])
    few = [wrong[f"200 letters, {rule}"] for rule in ("communities, no penalty", "regression")]
    assert max(few) < 0.8 * wrong["200 letters, regression, no penalty"]
    page = " ".join((EXAMPLES / "spam" / "README.md").read_text(encoding="utf-8").split())
    assert "What comes out is sixteen communities" in page
    # Losses are rounded, by chances that follow from last digits, and hardly differ: 10 to 12 were
    # seen before columns were read without digits that few rows have, 16 since then.
    assert 14 <= over.result.n_communities <= 18
    assert "takes 56 words together and leaves one alone" in page
    assert sorted(len(community) for community in run.result.communities) == [1, 56]


def test_digits_in_one_table_and_at_three_offices(places: dict[str, Path]) -> None:
    """Wrong digits among 332, as the page shows them."""
    place = places["digits"]
    new = pd.read_csv(place / "tables" / "new.csv")
    run = run_workspace(place)
    table = digits_compare.compare(run, place / "homes", place / "tables")
    over = run_workspace(place, "sites.toml")
    assert over.result.choice == "likelihood"
    said = left_at_sites(over, place / "homes", new)
    wrong = pd.concat([table, table_of(said, new["digit"])])["wrong"].to_dict()
    shown = printed("digits")
    assert set(shown) == set(wrong)
    for name, value in shown.items():
        assert wrong[name] == pytest.approx(value, abs=3), name
    for name in ("sparse-qda, this run", "federated-sparse-qda, this run"):
        assert wrong[name] < 0.5 * wrong["naive Bayes"]
    page = " ".join((EXAMPLES / "digits" / "README.md").read_text(encoding="utf-8").split())
    assert "cross-validation keeps nine links of ten" in page
    pairs = len(run.result.feature_names) * (len(run.result.feature_names) - 1) // 2
    assert 0.85 < run.result.n_links[run.result.chosen] / pairs < 0.95

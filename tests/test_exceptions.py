"""Sentences of errors: names from elsewhere are not shown whole when they are endless."""

from __future__ import annotations

import pytest

from consilience.exceptions import (
    LONGEST_NAME,
    LONGEST_SENTENCE,
    ConsilienceError,
    ParameterError,
    shortened,
)

LONG = "".join(chr(97 + i % 26) for i in range(3000))
SENTENCE = "the site's own log says why: the steward's file names 'x', and it isn't there"


@pytest.mark.parametrize(
    "name",
    [LONG, f"'{LONG}'", f'"{LONG}"', "'" + "long name " * 300 + "'", f"/a/{LONG}/b", repr([LONG])],
    ids=["bare", "quoted", "doubly", "with blanks", "path", "in a list"],
)
def test_names_are_shortened_wherever_they_stand(name: str) -> None:
    text = f"the site's column {name} is not in the site's table: the steward's file names it"
    found = shortened(text)
    assert found.startswith("the site's column " + name[:60])
    assert found.endswith(name[-10:] + " is not in the site's table: the steward's file names it")
    assert "characters)..." in found
    assert len(found) < len(text) - len(name) + LONGEST_NAME
    assert shortened(found) == found


@pytest.mark.parametrize(
    "text",
    [
        SENTENCE,
        " ".join([SENTENCE] * 20),
        f"'{'n' * (LONGEST_NAME - 2)}' and {'m' * (LONGEST_NAME - 1)} stay " + "as they are " * 9,
        "",
    ],
    ids=["sentence", "many", "just short enough", "none"],
)
def test_what_people_write_stays_as_it_is(text: str) -> None:
    assert shortened(text) == text


def test_a_list_without_end_is_cut() -> None:
    found = shortened("no columns " + ", ".join(f"c{number}" for number in range(5000)))
    assert len(found) < LONGEST_SENTENCE
    assert found.startswith("no columns c0, c1,") and found.endswith("c4999")


def test_every_error_is_shortened_for_both_readers() -> None:
    error = ConsilienceError(f"no column {LONG!r}", public=f"no column {LONG!r} at the site")
    assert LONG not in str(error) and LONG not in error.public
    assert error.public.endswith("at the site")
    assert LONG not in str(ParameterError.of("alpha", "a number", LONG))

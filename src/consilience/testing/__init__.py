"""Checks for people who add a method or an engine of their own; the package's own use them too.

``check_method.check_method`` and ``check_engine.check_engine`` put every promise to the test, one
function per promise; ``attacks.SUITE`` holds the attacks; ``fakes`` has scripted engines, small
methods that misbehave on purpose, and sites with fixed secrets.
"""

from __future__ import annotations


class CheckFailed(AssertionError):
    """A method or an engine breaks a promise; the sentence says which, where and how."""


def expect(holds: bool, sentence: str) -> None:
    """Raise `CheckFailed` with a sentence unless something holds."""
    if not holds:
        raise CheckFailed(sentence)

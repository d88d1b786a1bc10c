"""Every error that Consilience raises on purpose.

::

    ConsilienceError                     exit code
    ├── StudyError                       2   a study file, a site file or a parameter is wrong
    │   └── ParameterError (ValueError)  2   one parameter: its allowed range, what was received
    ├── DataError (ValueError)           3   a table cannot be read, or does not fit the study
    ├── PrivacyError                     4   something may not leave a site
    │   ├── DisclosureError              4   the gate refused a message
    │   └── BudgetError                  4   epsilon, revealed rank or number of runs is used up
    ├── WireError                        5   bytes that are not a valid message
    │   └── SignatureError               5   bytes that are not signed by whom they should be
    ├── ProtocolError                    6   a method broke the contract of the exchange
    ├── RunError                         7   a run directory cannot be written, read or resumed
    │   └── DamageError                  7   a file that a site keeps is damaged
    ├── QuorumError                      8   too few sites answered
    ├── EngineError                      9   an engine cannot reach its sites
    └── MissingExtraError (ImportError)  10  an optional dependency is not installed

The command line ends with the exit code of the error; 0 is success, 1 an error nobody foresaw.

Two readers see an error: the person at the site where it happened, and everybody else. ``str(e)``
is for the first. ``e.public`` is the sentence that may leave a site: it names a column, a step or a
rule, never a value, a path or a count. Neither shows an endless name: names come from tables, files
and other parties, so every sentence is `shortened`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Self

LONGEST_NAME = 200
LONGEST_SENTENCE = 2000
_NAMES = re.compile(rf"""(?<!\w)'[^'\n]*'(?!\w)|(?<!\w)"[^"\n]*"(?!\w)|\S{{{LONGEST_NAME},}}""")


def shortened(text: str) -> str:
    """Return a text in which no name is longer than a reader can use, and its end if it is endless.

    A name is what stands between quotes, or has no blank in it.
    """
    if len(text) <= LONGEST_NAME:
        return text
    return _cut(_NAMES.sub(lambda found: _cut(found.group(), LONGEST_NAME), text), LONGEST_SENTENCE)


_STEERING = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def listed(names: Iterable[str], most: int = 8, *, counted: bool = True) -> str:
    """Names for a sentence; of many, the first, and how many more or that there are more."""
    names = list(names)
    more = len(names) - most
    rest = f" and {more} more" if counted else " and more"
    return ", ".join(names[:most]) + (rest if more > 0 else "")


def steerless(text: object, *, keep: str = "") -> str:
    """Return a text in which no character steers a terminal, or how a line is read.

    Parameters
    ----------
    text : object
    keep : str
        Such characters that stay, for instance ends of lines.
    """

    def shown(character: str) -> str:
        if character in keep or unicodedata.category(character) not in _STEERING:
            return character
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return "".join(map(shown, str(text)))


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    head, tail = (2 * most) // 5, most // 10
    return f"{text[:head]}...({len(text) - head - tail} characters)...{text[-tail:]}"


class ConsilienceError(Exception):
    """Base of all errors of this package.

    Parameters
    ----------
    message : str
        One sentence for the person where it happened: what, where, what to do.
    public : str, optional
        The sentence that other parties may read.
    """

    exit_code = 1
    default_public = "the site stopped with an error; its own log says why"

    def __init__(self, message: str, *, public: str | None = None) -> None:
        super().__init__(shortened(message))
        self.public = self.default_public if public is None else shortened(public)

    @classmethod
    def shared(cls, sentence: str) -> Self:
        """Build an error whose sentence other parties may read as it stands.

        Parameters
        ----------
        sentence : str
            It names a column, a step or a rule, never a value, a path or a count.

        Returns
        -------
        Self
            Of the class that was asked.
        """
        return cls(sentence, public=sentence)


class StudyError(ConsilienceError):
    """A study file, a site file or a combination of settings is wrong."""

    exit_code = 2
    default_public = "the site's settings do not fit the study; its own log says why"


class ParameterError(StudyError, ValueError):
    """One parameter is outside its allowed range."""

    @classmethod
    def of(cls, name: str, allowed: str, received: object) -> ParameterError:
        """Build the standard sentence: parameter, allowed range, received value."""
        return cls(f"{name} must be {allowed}, but {received!r} was given")


class DataError(ConsilienceError, ValueError):
    """A table cannot be read, or does not fit the study."""

    exit_code = 3
    default_public = "the site's table cannot be used as it is; the site's own log says why"


class PrivacyError(ConsilienceError):
    """Something may not leave a site."""

    exit_code = 4
    default_public = "the site's policy does not allow this"


class DisclosureError(PrivacyError):
    """The gate refused a message."""


class BudgetError(PrivacyError):
    """A budget that the site's steward has set is used up."""

    default_public = "a budget of the site is used up"


class WireError(ConsilienceError):
    """Bytes that are not a valid message."""

    exit_code = 5
    default_public = "the message could not be read"


class SignatureError(WireError):
    """Bytes that are not signed by the party that should have signed them."""

    default_public = "the message does not carry the signature of a trusted party"


class ProtocolError(ConsilienceError):
    """A method broke the contract of the exchange (an error in its code)."""

    exit_code = 6
    default_public = "the step broke the contract of the exchange; the site's own log says how"


class RunError(ConsilienceError):
    """A run directory cannot be written, read or resumed."""

    exit_code = 7
    default_public = "the site could not keep its record of the run; its own log says why"


class DamageError(RunError):
    """A file that a site keeps of one run, or of one data set, cannot be read as it was written.

    Whoever asks is refused, and the site goes on with what does not need the file.
    """

    default_public = (
        "what the site keeps of this run is damaged: its steward can restore it, or purge the run"
    )


class QuorumError(ConsilienceError):
    """Too few sites answered."""

    exit_code = 8


class EngineError(ConsilienceError):
    """An engine cannot reach its sites."""

    exit_code = 9


class MissingExtraError(ConsilienceError, ImportError):
    """An optional dependency is not installed.

    Parameters
    ----------
    extra : str
        Name of the extra that brings it.
    purpose : str
        What it is needed for.
    """

    exit_code = 10

    def __init__(self, extra: str, purpose: str) -> None:
        sentence = f"{purpose} needs an optional part: pip install 'consilience[{extra}]'"
        super().__init__(sentence, public=f"the site lacks the optional part {extra!r}")

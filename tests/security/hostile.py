"""A coordinator with questions of its own reads whatever comes."""

from __future__ import annotations

from typing import Any

import pytest

from consilience.engines import driver
from consilience.wire.codec import decode_message


def reads_all(patch: pytest.MonkeyPatch) -> None:
    """Have replies judged by nobody: what the sites' gates let leave is all that counts."""

    def read(data: bytes, request: object, known: Any, **settings: Any) -> Any:
        return decode_message(data)

    patch.setattr(driver, "decode_reply", read)

"""Fitted scikit-learn estimators as plain nests that cross the wire, and what they give away."""

from __future__ import annotations

from consilience.wire.estimators.types import MEMORISING, is_memorising

__all__ = ["MEMORISING", "is_memorising"]

"""Runs as pages see them: the wings' pages take the class from here and import no engine."""

from __future__ import annotations

from consilience.engines.federation import Run

__all__ = ["Run"]

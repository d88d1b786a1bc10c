"""Hands over to the package that is installed here; there is nothing else in this app."""

from consilience.engines.flower.stock import client, server

__all__ = ["client", "server"]

"""Reusable pieces of exchange, used by methods with ``yield from``."""

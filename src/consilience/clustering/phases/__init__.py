"""Pieces of exchange that methods of this wing share, used with ``yield from``."""

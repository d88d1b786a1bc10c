"""Noise of a stated price, and the budget that it is charged to."""

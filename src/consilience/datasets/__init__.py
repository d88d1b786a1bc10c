"""Simulated and loaded data."""

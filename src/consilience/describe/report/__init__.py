"""Pages of descriptions."""

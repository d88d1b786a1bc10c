"""Pages of contingency tables."""

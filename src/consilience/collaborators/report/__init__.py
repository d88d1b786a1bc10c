"""Pages of this wing's methods, and their figures."""

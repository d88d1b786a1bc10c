"""Matrices with gaps as studies of one table: their completion, and the number of clusters."""

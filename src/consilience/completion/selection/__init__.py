"""Folds of entries, and searches over rank, penalty and number of clusters."""

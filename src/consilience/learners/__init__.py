"""Learners by name: what a site fits, keeps and lends."""

"""Estimators and models on arrays: no federation, no engine."""

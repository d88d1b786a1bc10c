"""Estimators for one organisation's tall table, which is fitted split by split."""

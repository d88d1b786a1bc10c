"""Models on arrays, as scikit-learn has them: no federation, no engine."""

"""Pages and figures of pooled regressions."""

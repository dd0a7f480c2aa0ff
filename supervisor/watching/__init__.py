"""Events, logs and metrics for those who look."""

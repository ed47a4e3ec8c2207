"""Metrics: sums and counts of a phase, the history of a run, and which values of a metric are
better."""

"""Training: one run from its first step to its last, the steps of an epoch, and what an update
does."""

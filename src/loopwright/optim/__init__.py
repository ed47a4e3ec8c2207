"""Optimizers: building them, parameter groups, learning-rate schedules, and the weights that a run
starts with."""

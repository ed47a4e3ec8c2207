"""`compile="step"`: the training step as graphs.

`choice` decides whether a run uses them, `calls` takes a step by them, `graph` is what torch traces.
"""

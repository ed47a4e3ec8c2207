"""Other training libraries, each as its documentation writes it: one module each, in an environment
of its own.

A module has two contenders: `off`, with everything optional off, and `default`, as a new user runs
it. `DIFFERS` says why a contender's losses are not those of the hand-written loop, where they are
not.
"""

"""Guards against creep: counts per step, which do not depend on the machine or its load."""

"""Interfaces: the trainer's interfaces for users who think in other terms; translation only, the
work is the core's."""

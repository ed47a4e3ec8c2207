"""The arithmetic of machines that one does not have: memory, bytes on the wire and seconds of each
strategy."""

from .counting import Collective, Counted, counted_collectives, table_of
from .estimate import Comparison, Estimate, Range, compare, estimate
from .hardware import DEVICES, LINKS, Cluster, Device, Link
from .layout import OptimizerState
from .model import ModelShape, measure, transformer

__all__ = [
    "DEVICES",
    "LINKS",
    "Cluster",
    "Collective",
    "Comparison",
    "Counted",
    "Device",
    "Estimate",
    "Link",
    "ModelShape",
    "OptimizerState",
    "Range",
    "compare",
    "counted_collectives",
    "estimate",
    "measure",
    "table_of",
    "transformer",
]

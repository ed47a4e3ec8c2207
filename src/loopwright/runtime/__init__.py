"""The runtime of a process: device, precision, process group, collectives and failure detection."""

from .base import Runtime, resolve_runtime
from .dtensor import Mesh
from .signals import Signals

__all__ = ["Mesh", "Runtime", "Signals", "resolve_runtime"]

"""Where training happens: device, precision and, later, several processes."""

from .base import Runtime, resolve_runtime
from .dtensor import Mesh
from .signals import Signals

__all__ = ["Mesh", "Runtime", "Signals", "resolve_runtime"]

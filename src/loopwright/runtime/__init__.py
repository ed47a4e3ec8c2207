"""Where training happens: device, precision and, later, several processes."""

from .mesh import Mesh
from .signals import Signals
from .single import Runtime, resolve_runtime

__all__ = ["Mesh", "Runtime", "Signals", "resolve_runtime"]

"""Where training happens: device, precision and, later, several processes."""

from .signals import Signals
from .single import Runtime, resolve_runtime

__all__ = ["Runtime", "Signals", "resolve_runtime"]

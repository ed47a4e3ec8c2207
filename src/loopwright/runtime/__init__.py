"""Where training happens: device, precision and, later, several processes."""

from .single import Runtime, resolve_runtime

__all__ = ["Runtime", "resolve_runtime"]

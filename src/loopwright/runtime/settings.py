"""Settings of several processes that contradict each other are refused before the processes meet."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConfigurationError
from .dtensor import Mesh

STRATEGIES = ("ddp", "fsdp")


def check_settings(strategy: str | Mesh, precision: str, sharding: Sequence[str]) -> None:
    """Refuse settings that contradict each other; `sharding` lists the given settings of sharded models."""
    if not isinstance(strategy, Mesh) and strategy not in STRATEGIES:
        raise ConfigurationError(f"runtime={strategy!r}: use one of {', '.join(STRATEGIES)}, or a Mesh.")
    is_sharded = strategy.is_sharded if isinstance(strategy, Mesh) else strategy == "fsdp"
    if is_sharded and precision == "fp16":
        raise ConfigurationError(
            "precision='fp16' does not go with a sharded model: each process would scale by what it sees of the "
            "gradients. Use precision='bf16', or runtime='ddp'."
        )
    if precision != "fp32" and "param_dtype" in sharding:
        raise ConfigurationError(
            f"precision={precision!r} and param_dtype= are two ways to compute in lower precision: leave one out."
        )
    if sharding and not (strategy.shard > 1 if isinstance(strategy, Mesh) else is_sharded):
        raise ConfigurationError(
            f"{', '.join(sharding)}: only for a model that is sharded. Use runtime='fsdp' or a Mesh with shard > 1, or "
            "leave it out (with copies of the model precision='bf16' gives mixed precision, and parameters may be "
            "unused without a setting)."
        )

"""Settings of several processes that contradict each other are refused before the processes
meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from ..errors import ConfigurationError
from .dtensor import Mesh

STRATEGIES = ("ddp", "fsdp")


@dataclass(frozen=True, slots=True)
class Sharding:
    """The settings of a model that FSDP2 shards; torch's own hold where nothing is given."""

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    cpu_offload: bool = False
    reshard_after_forward: bool | int | None = None
    forward_prefetch: int | None = None
    backward_prefetch: int | None = None
    find_unused_parameters: bool = False

    def given(self) -> list[str]:
        """The names of the settings that were given."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]

    def check(self) -> None:
        """Refuse numbers of blocks that are none, and a backward pass that has nothing to
        gather."""
        for name in ("forward_prefetch", "backward_prefetch"):
            number = getattr(self, name)
            if number is not None and (
                isinstance(number, bool) or not isinstance(number, int) or number < 1
            ):
                raise ConfigurationError(
                    f"{name}={number!r}: use a number of blocks, 1 or more, or leave it out for "
                    "torch's own."
                )
        if self.reshard_after_forward is False and self.backward_prefetch is not None:
            raise ConfigurationError(
                "fsdp-settings",
                f"backward_prefetch={self.backward_prefetch} and reshard_after_forward=False "
                "contradict each other: parameters that are kept after the forward pass are not "
                "gathered again in the backward pass. Leave one of them out.",
            )

    def check_size(self, shard: int) -> None:
        """Refuse a number of ranks that does not divide the shards."""
        reshard = self.reshard_after_forward
        if reshard is None or isinstance(reshard, bool):
            return
        if not isinstance(reshard, int) or not 1 < reshard < shard or shard % reshard:
            raise ConfigurationError(
                "fsdp-settings",
                f"reshard_after_forward={reshard!r}: use True (free parameters after the forward "
                "pass), False (keep them), or a number of ranks to keep them among, above 1 and "
                f"below {shard}, that divides {shard}.",
            )

    def arguments(self, is_host: bool) -> dict[str, Any]:
        """The settings as `shard_module` takes them."""
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

        names = ("reshard_after_forward", "forward_prefetch", "backward_prefetch")
        given: dict[str, Any] = {
            name: getattr(self, name) for name in names if getattr(self, name) is not None
        }
        if self.param_dtype is not None or self.reduce_dtype is not None:
            given["mp_policy"] = MixedPrecisionPolicy(
                param_dtype=self.param_dtype, reduce_dtype=self.reduce_dtype
            )
        if self.cpu_offload:
            given["offload_policy"] = CPUOffloadPolicy(pin_memory=not is_host)
        return given


def check_settings(strategy: str | Mesh, precision: str, sharding: Sequence[str]) -> None:
    """Refuse settings that contradict each other; `sharding` lists the given settings of sharded
    models."""
    if not isinstance(strategy, Mesh) and strategy not in STRATEGIES:
        raise ConfigurationError(
            "unknown-runtime",
            f"runtime={strategy!r}: use one of {', '.join(STRATEGIES)}, or a Mesh.",
        )
    is_sharded = strategy.is_sharded if isinstance(strategy, Mesh) else strategy == "fsdp"
    if is_sharded and precision == "fp16":
        raise ConfigurationError(
            "fp16-sharded",
            "precision='fp16' does not work with a sharded model: each process would scale the "
            "loss by its own part of the gradients. Use precision='bf16', or runtime='ddp'.",
        )
    if precision != "fp32" and "param_dtype" in sharding:
        raise ConfigurationError(
            "given-twice",
            f"precision={precision!r} and param_dtype= are two ways to compute in lower "
            "precision: leave one out.",
        )
    if sharding and not (strategy.shard > 1 if isinstance(strategy, Mesh) else is_sharded):
        raise ConfigurationError(
            "not-sharded",
            f"{', '.join(sharding)}: only for a sharded model. Use runtime='fsdp' or a Mesh with "
            "shard > 1, or leave it out (with runtime='ddp', precision='bf16' gives mixed "
            "precision, and unused parameters need no setting).",
        )


def check_bucket_size(strategy: str | Mesh, bucket_mb: float | None) -> None:
    """Refuse a size that is none, or that is given where FSDP2 reduces the gradients."""
    if bucket_mb is None:
        return
    if isinstance(bucket_mb, bool) or not isinstance(bucket_mb, int | float) or not bucket_mb > 0:
        raise ConfigurationError(
            f"bucket_mb={bucket_mb!r}: use a size in MiB above 0, such as 25, which is also "
            "torch's."
        )
    if strategy == "fsdp" or (isinstance(strategy, Mesh) and strategy.shard > 1):
        raise ConfigurationError(
            "not-sharded",
            f"bucket_mb={bucket_mb!r}: only for runtime='ddp'. FSDP2 reduces the gradients of a "
            "sharded model block by block: leave it out.",
        )

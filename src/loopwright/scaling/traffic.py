"""The collectives of one update: their number, payload and place in the step, to the byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import torch

from ..runtime.buckets import MESSAGE_DTYPES, MESSAGE_SIZE, fill_buckets
from ..runtime.consensus import NUM_REQUESTS
from .counting import Collective
from .layout import Sizes, UpdateSettings, gathered_dtype, local_numel, padded_numel, reduced_dtype
from .model import ModelShape, by_block


def collectives_of(
    model: ModelShape, sizes: Sizes, training: UpdateSettings
) -> tuple[Collective, ...]:
    """Every collective that a rank takes part in during one update, equal ones together."""
    found = [*_of_layers(model, sizes, training), *_of_gradients(model, sizes, training)]
    found += [*_of_messages(model, sizes, training), *_of_clipping(model, sizes, training)]
    for size in model.buffers:
        found.append(Collective("broadcast", size, sizes.world, 1, "world", "update", "buffers"))
    return tuple(_merged(each for each in found if each.group > 1 and each.payload > 0))


def _merged(found: Iterator[Collective]) -> Iterator[Collective]:
    counts: Counter[Collective] = Counter()
    for each in found:
        counts[replace(each, count=1)] += each.count
    for each, count in counts.items():
        yield replace(each, count=count)


def _of_layers(model: ModelShape, sizes: Sizes, training: UpdateSettings) -> Iterator[Collective]:
    """Activations of layers that several ranks share, in every step."""
    if sizes.tensor > 1:
        samples = max(1, training.samples(sizes))
        for each in model.exchanges:
            payload = round(each.bytes_per_sample * samples)
            count = each.count * training.accumulate
            yield Collective(
                each.kind, payload, sizes.tensor, count, "tensor", each.phase, "activations"
            )


def _of_gradients(
    model: ModelShape, sizes: Sizes, training: UpdateSettings
) -> Iterator[Collective]:
    if sizes.shard > 1:
        yield from _of_shards(model, sizes, training)
    elif sizes.data > 1:
        for payload, _ in bucket_payloads(model, sizes.tensor, training.bucket_bytes):
            yield Collective("all-reduce", payload, sizes.data, 1, "data", "backward", "gradients")


@lru_cache(maxsize=256)
def bucket_payloads(model: ModelShape, tensor: int, max_bytes: int) -> tuple[tuple[int, bool], ...]:
    """The bytes of each gradient bucket, and whether it can hold a message; in the order in which
    they are sent."""
    params = {index: model.weights[index].to_meta() for index in model.gradient_order}
    weights = {id(param): model.weights[index] for index, param in params.items()}
    sizes = Sizes(tensor=tensor)
    found = []
    for bucket in fill_buckets(params.values(), max_bytes):
        own = sum(local_numel(weights[id(param)], sizes) for param in bucket)
        numbers = MESSAGE_SIZE + len(bucket) + own  # a message, who has a gradient, the gradients
        found.append((numbers * bucket[0].element_size(), bucket[0].dtype in MESSAGE_DTYPES))
    return tuple(found)


def _of_shards(model: ModelShape, sizes: Sizes, training: UpdateSettings) -> Iterator[Collective]:
    """What FSDP2 sends for each block, and for the rest of the model."""
    dtypes = (training.param_dtype, training.reduce_dtype)
    for (is_root, gathered, reduced), count in shard_payloads(
        model, sizes.shard, sizes.tensor, *dtypes
    ).items():
        reshards = (
            not is_root
            if training.reshard_after_forward is None
            else training.reshard_after_forward
        )
        gathers = count * training.accumulate
        yield Collective(
            "all-gather", gathered, sizes.shard, gathers, "shard", "forward", "parameters"
        )
        if reshards and reduced:
            keepers = training.num_keepers or sizes.shard
            yield Collective(
                "all-gather", gathered, keepers, gathers, "shard", "backward", "parameters"
            )
        yield Collective(
            "reduce-scatter", reduced, sizes.shard, count, "shard", "backward", "gradients"
        )
        part = reduced // sizes.shard
        yield Collective(
            "all-reduce", part, sizes.replicate, count, "replicate", "backward", "gradients"
        )


@lru_cache(maxsize=4096)
def shard_payloads(
    model: ModelShape,
    shard: int,
    tensor: int,
    param_dtype: torch.dtype | None,
    reduce_dtype: torch.dtype | None,
) -> dict[tuple[bool, int, int], int]:
    """How many modules there are of each kind: whether it is the outermost, bytes to gather, bytes
    to scatter."""
    sizes = Sizes(shard=shard, tensor=tensor)
    found: Counter[tuple[bool, int, int]] = Counter()
    for block, weights in by_block(model).items():
        own = [(weight, padded_numel(weight, sizes)) for weight in weights]
        gathered = sum(
            numel * gathered_dtype(weight, param_dtype).itemsize for weight, numel in own
        )
        reduced = [
            numel * reduced_dtype(weight, param_dtype, reduce_dtype).itemsize
            for weight, numel in own
            if weight.is_trained
        ]
        found[block is None, gathered, sum(reduced)] += 1
    return dict(found)


def _of_messages(model: ModelShape, sizes: Sizes, training: UpdateSettings) -> Iterator[Collective]:
    """What Loopwright itself sends: whether loss and gradients are finite on all ranks, and what a
    rank requests."""
    messages: list[int] = []
    is_in_bucket = sizes.replicate == sizes.world and any(
        fits for _, fits in bucket_payloads(model, sizes.tensor, training.bucket_bytes)
    )
    if not is_in_bucket:
        messages.append(MESSAGE_SIZE * (8 if training.is_host else 4))
    if sizes.replicate != sizes.world:  # ranks have different gradients
        messages.append(4)
    if not training.is_host:
        messages.append(8 * NUM_REQUESTS)
    for size in messages:
        yield Collective("all-reduce", size, sizes.world, 1, "world", "update", "messages")


def _of_clipping(model: ModelShape, sizes: Sizes, training: UpdateSettings) -> Iterator[Collective]:
    """The norms of all gradients of a mesh, reduced together along each axis that cuts them."""
    if not training.clips:
        return
    for is_placed, axes in ((False, ("shard",)), (True, ("shard", "tensor"))):
        size = _norm_bytes(model, is_placed, sizes.tensor > 1)
        for axis in axes:
            yield Collective("all-reduce", size, getattr(sizes, axis), 1, axis, "update", "norms")


@lru_cache(maxsize=64)
def _norm_bytes(model: ModelShape, is_placed: bool, is_cut: bool) -> int:
    """One number for each trained weight that the plan of tensor parallelism names, or for each
    other one."""
    trained = [weight for weight in model.weights if weight.is_trained]
    return sum(
        weight.dtype.itemsize for weight in trained if (weight.is_placed and is_cut) == is_placed
    )

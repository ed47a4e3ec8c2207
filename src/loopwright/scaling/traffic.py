"""The collectives of one update: their number, payload and place in the step, to the byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from ..runtime.buckets import MESSAGE_DTYPES, MESSAGE_SIZE, fill_buckets
from ..runtime.consensus import NUM_REQUESTS
from .counting import Collective
from .layout import Sizes, Training, local_numel, padded_numel
from .model import ModelShape, Weight, by_block


def collectives_of(model: ModelShape, sizes: Sizes, training: Training) -> tuple[Collective, ...]:
    """Every collective that a rank takes part in during one update, equal ones together."""
    found = [*_of_layers(model, sizes, training), *_of_gradients(model, sizes, training)]
    found += [*_of_messages(model, sizes, training), *_of_clipping(model, sizes, training)]
    found += [Collective("broadcast", size, sizes.world, axis="world", phase="update", what="buffers")
              for size in model.buffers]  # fmt: skip
    return tuple(_merged(each for each in found if each.group > 1 and each.payload > 0))


def _merged(found: Iterator[Collective]) -> Iterator[Collective]:
    counts: Counter[Collective] = Counter()
    for each in found:
        key = Collective(each.kind, each.payload, each.group, 1, each.axis, each.phase, each.what)
        counts[key] += each.count
    for key, count in counts.items():
        yield Collective(key.kind, key.payload, key.group, count, key.axis, key.phase, key.what)


def _of_layers(model: ModelShape, sizes: Sizes, training: Training) -> Iterator[Collective]:
    """Activations of layers that several ranks share, in every step."""
    if sizes.tensor > 1:
        samples = max(1, training.samples(sizes))
        for each in model.exchanges:
            payload = round(each.bytes_per_sample * samples)
            yield Collective(each.kind, payload, sizes.tensor, training.accumulate, "tensor", each.phase, "activations")


def _of_gradients(model: ModelShape, sizes: Sizes, training: Training) -> Iterator[Collective]:
    if sizes.shard > 1:
        for block, weights in by_block(model).items():
            yield from _of_shards(weights, sizes, training, is_root=block is None)
    elif sizes.data > 1:
        for payload, _ in bucket_payloads(model, sizes, training.bucket_bytes):
            yield Collective("all-reduce", payload, sizes.data, axis="data", phase="backward", what="gradients")


@lru_cache(maxsize=256)
def bucket_payloads(model: ModelShape, sizes: Sizes, max_bytes: int) -> tuple[tuple[int, bool], ...]:
    """The bytes of each gradient bucket, and whether it can hold a message; in the order in which they are sent."""
    params = {index: model.weights[index].to_meta() for index in model.gradient_order}
    weights = {id(param): model.weights[index] for index, param in params.items()}
    found = []
    for bucket in fill_buckets(params.values(), max_bytes):
        own = sum(local_numel(weights[id(param)], sizes) for param in bucket)
        numbers = MESSAGE_SIZE + len(bucket) + own  # a message, who has a gradient, the gradients
        found.append((numbers * bucket[0].element_size(), bucket[0].dtype in MESSAGE_DTYPES))
    return tuple(found)


def _of_shards(weights: list[Weight], sizes: Sizes, training: Training, *, is_root: bool) -> Iterator[Collective]:
    """What FSDP2 sends for a block, or for the rest of the model."""
    gathered = sum(padded_numel(weight, sizes) * training.gathered_dtype(weight).itemsize for weight in weights)
    trained = [weight for weight in weights if weight.is_trained]
    reduced = sum(padded_numel(weight, sizes) * training.reduced_dtype(weight).itemsize for weight in trained)
    reshards = not is_root if training.reshard_after_forward is None else training.reshard_after_forward
    for phase in ("forward", "backward") if reshards and trained else ("forward",):
        yield Collective("all-gather", gathered, sizes.shard, training.accumulate, "shard", phase, "parameters")
    yield Collective("reduce-scatter", reduced, sizes.shard, 1, "shard", "backward", "gradients")
    part = reduced // sizes.shard
    yield Collective("all-reduce", part, sizes.replicate, 1, "replicate", "backward", "gradients")


def _of_messages(model: ModelShape, sizes: Sizes, training: Training) -> Iterator[Collective]:
    """What Loopwright itself sends: whether the loss is finite on all ranks, and what a rank requests."""
    is_in_bucket = sizes.replicate == sizes.world and any(
        fits for _, fits in bucket_payloads(model, sizes, training.bucket_bytes)
    )
    if not is_in_bucket:
        size = MESSAGE_SIZE * (8 if training.is_host else 4)
        yield Collective("all-reduce", size, sizes.world, axis="world", phase="update", what="messages")
    if not training.is_host:
        yield Collective("all-reduce", 8 * NUM_REQUESTS, sizes.world, axis="world", phase="update", what="messages")


def _of_clipping(model: ModelShape, sizes: Sizes, training: Training) -> Iterator[Collective]:
    """The norms of all gradients of a mesh, reduced together along each axis that cuts them."""
    if not training.clips:
        return
    trained = [weight for weight in model.weights if weight.is_trained]
    placed = [weight for weight in trained if weight.is_placed and sizes.tensor > 1]
    others = [weight for weight in trained if not (weight.is_placed and sizes.tensor > 1)]
    for weights, axes in ((others, ("shard",)), (placed, ("shard", "tensor"))):
        for axis in axes:
            size = sum(weight.dtype.itemsize for weight in weights)
            yield Collective("all-reduce", size, sizes.group(axis)[0], axis=axis, phase="update", what="norms")

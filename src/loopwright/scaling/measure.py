"""A module as the arithmetic needs it: run once on the meta device, where nothing is computed and
nothing is kept."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from .._torch_compat import tree_leaves, tree_map
from .._torch_compat.distributed import storage_key
from ..errors import ConfigurationError, check_number
from ..runtime.batch_norm import own_buffers
from ..runtime.dry_run import fake_group
from ..runtime.dtensor import Mesh, local_tensor
from ..runtime.fsdp import blocks_of, parallelize_layers
from ..text import listed
from .counting import Collective, counted_collectives
from .model import Exchange, ModelShape, Weight, count_text


def measure(
    module: nn.Module,
    batch: Any,
    *,
    plan: Mapping[str, Any] | None = None,
    tensor: int = 2,
    tokens: int = 1,
    name: str | None = None,
) -> ModelShape:
    """The shape and cost of a module, from one forward and backward pass of a copy on the meta
    device.

    Operations are those that torch counts: matrix products, convolutions, attention. Activations
    are the tensors that autograd keeps, in the dtype that the module computes in here, without
    autocast.

    Args:
        module: The model, on any device; it is not changed.
        batch: Example inputs: a tensor, or a tuple or dict of arguments. Only shapes and dtypes
            matter; the first dimension counts samples.
        plan: How tensor parallelism cuts layers, as `Mesh(plan=)` takes it; without, the model is
            not cut.
        tensor: The number of ranks that share a layer when the plan is rehearsed.
        tokens: Tokens of one sample, for tokens per second.
        name: What the model is called in tables; its number of parameters by default.

    Returns:
        What `estimate` and `compare` take.

    Example:
        >>> import torch
        >>> from loopwright.scaling import measure
        >>> shape = measure(torch.nn.Linear(4, 2), torch.zeros(3, 4))
        >>> shape.num_parameters, shape.flops  # of one sample: two matrix products, 2 x 4 x 2 operations each
        (10, 32.0)
    """
    if not isinstance(module, nn.Module):
        raise ConfigurationError(
            "not-a-module",
            f"measure({type(module).__name__}): use a module; `transformer` takes numbers.",
        )
    if any(is_lazy(tensor) for tensor in [*module.parameters(), *module.buffers()]):
        raise ConfigurationError(
            "lazy-layers",
            "The model has lazy layers without a size: call it once with a batch, then measure it.",
        )
    args, kwargs = _arguments(batch)
    samples = _num_samples((args, kwargs))
    if plan is not None:
        check_number("measure(tensor", tensor, least=2, of="ranks that share a layer")
    own = _on_meta(module)
    order = _Order(own)
    with FlopCounterMode(display=False) as flops:
        saved, checkpointed = _run(own, args, kwargs)
    cut = _Rehearsal() if plan is None else _rehearse(module, plan, tensor, args, kwargs)
    inside = 0.0
    between = 0.0
    if plan is not None:
        inside, between = (
            (all_of - own) / (1 - 1 / tensor)
            for all_of, own in ((saved, cut.saved), (flops.get_total_flops(), cut.flops))
        )
    return ModelShape(
        name=name or count_text(sum(param.numel() for param in module.parameters())),
        weights=tuple(_weights(module, cut.dims)),
        buffers=_buffers(module),
        flops=flops.get_total_flops() / samples,
        cut_flops=(between + _flops_of(flops, own, cut.dims)) / samples,
        activations=saved / samples,
        cut_activations=inside / samples,
        checkpointed=checkpointed / samples,
        exchanges=tuple(_per_sample(cut.sent, samples)),
        tokens=tokens,
        order=order.positions,
    )


def shape_of(module: nn.Module, positions: Sequence[int] | None = None) -> ModelShape:
    """The parameters and buffers of a module without its cost, which says what is sent but for
    activations.

    `positions` are those of the trained parameters in the order of their gradients, -1 where not
    known.
    """
    trained = [index for index, param in enumerate(module.parameters()) if param.requires_grad]
    by_position = (
        sorted(zip(positions or (), trained, strict=False))
        if positions and min(positions) >= 0
        else ()
    )
    order = tuple(index for _, index in by_position)
    return ModelShape(
        "", tuple(_weights(module, {})), _buffers(module), 0.0, 0.0, 0.0, 0.0, 0.0, (), order=order
    )


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    batch = tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, batch)
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch) if isinstance(batch, list | tuple) else (batch,)), {}


def _num_samples(arguments: Any) -> int:
    sizes = [
        leaf.shape[0] for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor) and leaf.dim()
    ]
    if not sizes or not sizes[0]:
        raise ConfigurationError(
            "no-example-inputs",
            "measure(batch=...): pass example inputs of the model, tensors whose first dimension "
            "counts samples.",
        )
    return sizes[0]


def _on_meta(module: nn.Module) -> nn.Module:
    """A copy without memory; the tensors of a large model are not copied on the way."""
    memo: dict[int, Any] = {}
    for param in module.parameters():
        memo[id(param)] = nn.Parameter(
            torch.empty_like(param, device="meta"), requires_grad=param.requires_grad
        )
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(module, memo).train()


class _Order:
    """The positions of trained parameters in the order in which a backward pass completes their
    gradients."""

    def __init__(self, module: nn.Module) -> None:
        self._trained = [
            index for index, param in enumerate(module.parameters()) if param.requires_grad
        ]
        self._seen: dict[int, None] = {}
        for index, param in enumerate(module.parameters()):
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(partial(self._note, index))  # type: ignore[no-untyped-call]

    def _note(self, index: int, param: Tensor) -> None:
        self._seen.pop(index, None)  # a layer that is used twice is complete with the second time
        self._seen[index] = None

    @property
    def positions(self) -> tuple[int, ...]:
        """Parameters that the pass did not reach come last, backwards."""
        return (
            *self._seen,
            *(index for index in reversed(self._trained) if index not in self._seen),
        )


def _run(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """Run forward and backward; the bytes that autograd keeps, and those that it keeps if blocks
    are recomputed."""
    with _kept(module) as kept:
        loss = _forward(module, args, kwargs)
    loss.backward()  # type: ignore[no-untyped-call]
    return kept.total, kept.checkpointed


def _forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The sum of the module's outputs, which depends on all that they depend on."""
    try:
        outputs = module(*args, **kwargs)
    except Exception as error:
        raise ConfigurationError(
            "cannot-measure",
            "The model cannot be run with this batch on the meta device, where tensors have no "
            f"values ({type(error).__name__}: {error}). Pass the inputs as the model takes them, "
            "without targets. A model that looks at values cannot be measured: measure the part "
            "that does not, or use transformer(...).",
        ) from error
    leaves = [
        leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.requires_grad
    ]
    if not leaves:
        raise ConfigurationError(
            "nothing-to-measure", "The outputs of the model do not depend on trained parameters."
        )
    return torch.stack([leaf.sum() for leaf in leaves]).sum()


class _Kept:
    """Bytes that autograd keeps: outside of blocks, in each block, and the inputs of blocks."""

    def __init__(self) -> None:
        self.blocks: dict[int | None, int] = {None: 0}
        self.inputs = 0
        self.current: int | None = None

    @property
    def total(self) -> int:
        return sum(self.blocks.values())

    @property
    def checkpointed(self) -> int:
        inside = [size for block, size in self.blocks.items() if block is not None]
        return self.blocks[None] + self.inputs + max(inside, default=0)


@contextmanager
def _kept(module: nn.Module) -> Iterator[_Kept]:
    kept = _Kept()
    seen = {
        storage_key(local_tensor(tensor)) for tensor in [*module.parameters(), *module.buffers()]
    }
    handles = []

    def enter(index: int, args: Any) -> None:
        kept.current = index
        kept.blocks.setdefault(index, 0)
        kept.inputs += sum(leaf.nbytes for leaf in tree_leaves(args) if isinstance(leaf, Tensor))

    def leave() -> None:
        kept.current = None

    for index, block in enumerate(blocks_of(module)):
        handles.append(
            block.register_forward_pre_hook(lambda _, args, index=index: enter(index, args))
        )
        handles.append(block.register_forward_hook(lambda *_: leave()))

    def pack(tensor: Tensor) -> Tensor:
        local = local_tensor(tensor)
        if (key := storage_key(local)) not in seen:
            seen.add(key)
            kept.blocks[kept.current] += local.nbytes
        return tensor

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield kept
    finally:
        for handle in handles:
            handle.remove()


class _Rehearsal:
    """What a cut model does: the dimension of each weight that is cut, bytes kept, operations,
    collectives by phase.

    Operations of a layer that the plan names are those of the whole layer; between such layers they
    are the rank's own.
    """

    def __init__(self) -> None:
        self.dims: dict[str, int | None] = {}
        self.saved = 0
        self.flops = 0
        self.sent: list[tuple[str, Collective]] = []


def _rehearse(
    module: nn.Module, plan: Mapping[str, Any], tensor: int, args: Any, kwargs: Any
) -> _Rehearsal:
    """Run the module as rank 0 of a fake tensor-parallel group, and count its collectives."""
    if dist.is_initialized():
        raise ConfigurationError(
            "running-process-group",
            "measure(plan=...) simulates processes: call it where no process group is running.",
        )
    from torch.distributed.device_mesh import init_device_mesh

    found = _Rehearsal()
    with fake_group(tensor):
        own = _on_meta(module)
        device_mesh = init_device_mesh("cpu", (tensor,), mesh_dim_names=("tensor",))
        parallelize_layers(own, Mesh(tensor=tensor, plan=plan), device_mesh)
        for name, param in own.named_parameters():
            for placement in getattr(param, "placements", ()):
                found.dims[name] = getattr(placement, "dim", None)
        if not found.dims:
            raise ConfigurationError(
                "plan-without-layers",
                f"The plan splits no layer of the model: no layer matches {listed(plan) or 'it'}.",
            )
        with FlopCounterMode(display=False) as flops:
            with counted_collectives() as forward, _kept(own) as kept:
                loss = _forward(own, args, kwargs)
            with counted_collectives() as backward:
                loss.backward()  # type: ignore[no-untyped-call]
    found.flops = flops.get_total_flops()
    found.saved = kept.total
    phases = (("forward", forward), ("backward", backward))
    found.sent = [(phase, each) for phase, counted in phases for each in counted.collectives]
    return found


def _flops_of(flops: FlopCounterMode, module: nn.Module, dims: Mapping[str, int | None]) -> int:
    """The operations of the layers that have a cut weight."""
    layers = {name.rpartition(".")[0] for name, dim in dims.items() if dim is not None}
    counts = flops.get_flop_counts()
    return sum(sum(counts.get(f"{type(module).__name__}.{layer}", {}).values()) for layer in layers)


def _per_sample(sent: list[tuple[str, Collective]], samples: int) -> Iterator[Exchange]:
    for (phase, each), count in Counter(sent).items():
        if each.payload % samples:
            raise ConfigurationError(
                "fixed-collective",
                f"A collective of {each.payload} bytes in the {phase} pass of the plan does not "
                f"grow with the batch of {samples} samples, so it cannot be scaled to another "
                "batch size.",
            )
        yield Exchange(each.kind, each.payload // samples, phase, count)


def _weights(module: nn.Module, dims: Mapping[str, int | None]) -> Iterator[Weight]:
    blocks = {
        id(param): index
        for index, block in enumerate(blocks_of(module))
        for param in block.parameters()
    }
    for name, param in module.named_parameters():
        yield Weight(
            name,
            tuple(param.shape),
            param.dtype,
            param.requires_grad,
            blocks.get(id(param)),
            dims.get(name),
            name in dims,
        )


def _buffers(module: nn.Module) -> tuple[int, ...]:
    """Bytes of the buffers that are broadcast after an update, one number for each dtype."""
    sizes: dict[torch.dtype, int] = {}
    for buffer in own_buffers(module):
        sizes[buffer.dtype] = sizes.get(buffer.dtype, 0) + buffer.nbytes
    return tuple(sizes.values())

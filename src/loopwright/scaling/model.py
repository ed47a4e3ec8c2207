"""A model as the arithmetic needs it: its parameters one by one, and what one sample costs.

`transformer` makes it from a few numbers. `measure` makes it from a module, which it runs once on
the meta device, where nothing is computed and nothing is kept.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from .._torch_compat import tree_leaves, tree_map
from .._torch_compat.distributed import storage_key
from ..errors import ConfigurationError, check_number
from ..runtime.batch_norm import own_buffers
from ..runtime.dry_run import fake_group
from ..runtime.dtensor import Mesh, local_tensor
from ..runtime.fsdp import blocks_of, parallelize_layers
from .counting import Collective, counted_collectives

ROUND = 64  # a feed-forward width that is solved for is a multiple of it


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter: its shape and dtype, the repeated block it is in, and how tensor parallelism
    places it.

    `block` is None outside of the repeated blocks. `cut` is the dimension that tensor parallelism
    divides; a weight that the plan names and does not divide `is_placed` all the same.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    is_trained: bool = True
    block: int | None = None
    cut: int | None = None
    is_placed: bool = False


# compared and cached as the object that it is: it may have thousands of weights
@dataclass(frozen=True, eq=False)
class ModelShape:
    """A model and its cost: what `estimate` needs to know of it.

    Made by `measure` from a module, or by `transformer` from a few numbers. Activations are an
    estimate.

    Args:
        name: What it is called in tables.
        weights: The parameters.
        buffers: The bytes of the buffers that differ between ranks and are broadcast, one number
            for each dtype.
        flops: Operations of one sample in the forward and backward pass.
        cut_flops: The part of them that tensor parallelism divides.
        activations: Bytes of one sample that the forward pass keeps for the backward pass.
        cut_activations: The part of them that tensor parallelism divides.
        checkpointed: Bytes of one sample that are kept if blocks are recomputed, and those of one
            block.
        exchanges: The collectives of tensor parallelism, of one sample in one step.
        tokens: Tokens of one sample; 1 where samples are not counted in tokens.
        order: The trained weights, by position, in the order of their gradients; backwards if not
            known.

    Example:
        >>> from loopwright.scaling import transformer
        >>> model = transformer(layers=2, width=64, vocabulary=100, sequence=16)
        >>> f"{model.num_parameters:,}", len(model.weights)
        ('111,424', 15)
    """

    name: str
    weights: tuple[Weight, ...]
    buffers: tuple[int, ...] = ()
    flops: float = 0.0
    cut_flops: float = 0.0
    activations: float = 0.0
    cut_activations: float = 0.0
    checkpointed: float = 0.0
    exchanges: tuple[Collective, ...] = ()
    tokens: int = 1
    order: tuple[int, ...] = ()

    @cached_property
    def gradient_order(self) -> list[int]:
        """The trained weights, by position, in the order in which the backward pass gives them
        gradients; those that it does not reach come last."""
        backwards = reversed(range(len(self.weights)))
        order = dict.fromkeys([*self.order, *backwards])
        return [index for index in order if self.weights[index].is_trained]

    @cached_property
    def has_plan(self) -> bool:
        """Whether tensor parallelism cuts some of the weights."""
        return any(weight.cut is not None for weight in self.weights)

    @cached_property
    def num_parameters(self) -> int:
        return sum(prod(weight.shape) for weight in self.weights)


def transformer(
    layers: int,
    width: int,
    *,
    sequence: int,
    vocabulary: int = 32_000,
    hidden: int | None = None,
    parameters: float | None = None,
    compute_dtype: torch.dtype = torch.bfloat16,
    name: str | None = None,
) -> ModelShape:
    """A transformer for text from a few numbers: attention and two feed-forward layers in each
    block, without biases.

    The weights are fp32. Tensor parallelism cuts the layers of a block as `ColwiseParallel` (`qkv`,
    `up`) and `RowwiseParallel` (`out`, `down`) do; embedding, norms and head stay whole. Attention
    is taken to keep no scores for the backward pass.

    Args:
        layers: The number of blocks.
        width: The width of the residual stream.
        sequence: Tokens of one sample.
        vocabulary: The number of different tokens; embedding and head are two matrices.
        hidden: The width of the feed-forward layer; four times `width` by default.
        parameters: The total, where `hidden` is not given, which is solved for; a gated
            feed-forward layer counts so, too.
        compute_dtype: The dtype of activations.
        name: What it is called in tables; the number of parameters by default.

    Example:
        >>> from loopwright.scaling import transformer
        >>> transformer(32, 4096, sequence=4096, parameters=7e9).name
        '7.01B'
    """
    given = {"layers": layers, "width": width, "sequence": sequence, "vocabulary": vocabulary}
    for key, value in given.items():
        check_number(f"transformer({key}", value, least=1)
    if hidden is None:
        hidden = 4 * width
        if parameters is not None:
            hidden = _solve_hidden(layers, width, vocabulary, parameters)
    shapes = {
        "qkv": (3 * width, width),
        "out": (width, width),
        "up": (hidden, width),
        "down": (width, hidden),
    }
    weights = [Weight("embedding", (vocabulary, width))]
    for block in range(layers):
        for norm, first, second in (("norm1", "qkv", "out"), ("norm2", "up", "down")):
            weights.append(Weight(norm, (width,), block=block))
            weights.append(Weight(first, shapes[first], block=block, cut=0, is_placed=True))
            weights.append(Weight(second, shapes[second], block=block, cut=1, is_placed=True))
    weights.append(Weight("norm", (width,)))
    weights.append(Weight("head", (vocabulary, width)))
    size = compute_dtype.itemsize
    products = 6.0 * sum(prod(shape) for shape in shapes.values()) * sequence
    attention = 12.0 * width * sequence**2
    cut_flops = layers * (products + attention)
    # values that a block keeps of a token: cut, and not cut
    inside = 4 * width + 2 * hidden
    whole = 4 * width
    outside = vocabulary * (size + 4) + 2 * width * size  # logits, and their softmax in fp32
    reduced = Collective("all-reduce", sequence * width * size, 0, 2 * layers, "tensor")
    return ModelShape(
        name=name or count_text(sum(prod(weight.shape) for weight in weights)),
        weights=tuple(weights),
        flops=cut_flops + 6.0 * vocabulary * width * sequence,
        cut_flops=cut_flops,
        activations=sequence * float(layers * (inside + whole) * size + outside),
        cut_activations=sequence * float(layers * inside * size),
        checkpointed=sequence * float((layers * width + inside + whole) * size + outside),
        exchanges=tuple(replace(reduced, phase=phase) for phase in ("forward", "backward")),
        tokens=sequence,
    )


def _solve_hidden(layers: int, width: int, vocabulary: int, parameters: float) -> int:
    rest = parameters - 2 * vocabulary * width - 4 * layers * width**2 - (2 * layers + 1) * width
    hidden = round(rest / (2 * layers * width) / ROUND) * ROUND
    if not 0 < hidden <= 16 * width:
        usual = 12 * layers * width**2 + 2 * vocabulary * width
        raise ConfigurationError(
            "transformer-size",
            f"{layers} layers of width {width} with {vocabulary:,} tokens have about "
            f"{count_text(usual)} parameters, not {count_text(parameters)}: change the number of "
            "parameters, of layers, or the width.",
        )
    return hidden


def count_text(number: float) -> str:
    """7012345678 as "7.01B"."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            return f"{number / size:.3g}{unit}"
    return f"{number:g}"


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
    args, kwargs = _arguments(batch)
    own = _on_meta(module)
    order: list[int] = []
    for index, param in enumerate(own.parameters()):
        if param.requires_grad:
            param.register_post_accumulate_grad_hook(lambda _, index=index: order.append(index))  # type: ignore[no-untyped-call]
    whole = _Pass(own, args, kwargs)
    samples = next(
        leaf.shape[0] for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)
    )
    shape = ModelShape(
        name=name or count_text(sum(param.numel() for param in module.parameters())),
        weights=tuple(_weights(module, {})),
        buffers=_buffers(module),
        flops=whole.flops / samples,
        activations=whole.saved / samples,
        checkpointed=whole.checkpointed / samples,
        tokens=tokens,
        order=tuple(order),
    )
    if plan is None:
        return shape
    dims, part = _rehearse(module, plan, tensor, args, kwargs)
    # torch counts a layer that the plan names as a whole, and between such layers what a rank does
    layers = {name.rpartition(".")[0] for name, dim in dims.items() if dim is not None}
    named = sum(whole.flops_of(f"{type(own).__name__}.{layer}") for layer in layers)
    share = 1 - 1 / tensor
    return replace(
        shape,
        weights=tuple(_weights(module, dims)),
        cut_flops=((whole.flops - part.flops) / share + named) / samples,
        cut_activations=(whole.saved - part.saved) / share / samples,
        exchanges=tuple(
            replace(each, payload=each.payload // samples, group=0, count=count, axis="tensor")
            for each, count in Counter(part.sent).items()
        ),
    )


def shape_of(module: nn.Module, positions: Sequence[int] | None = None) -> ModelShape:
    """The parameters and buffers of a module without its cost, which says what is sent but for
    activations.

    `positions` are those of the trained parameters in the order of their gradients, -1 where not
    known.
    """
    order: list[int] = []
    if positions and min(positions) >= 0:
        trained = [index for index, param in enumerate(module.parameters()) if param.requires_grad]
        order = [index for _, index in sorted(zip(positions, trained, strict=True))]
    return ModelShape("", tuple(_weights(module, {})), _buffers(module), order=tuple(order))


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    batch = tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, batch)
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch) if isinstance(batch, list | tuple) else (batch,)), {}


def _on_meta(module: nn.Module) -> nn.Module:
    """A copy without memory; the tensors of a large model are not copied on the way."""
    memo: dict[int, Any] = {}
    for param in module.parameters():
        empty = torch.empty_like(param, device="meta")
        memo[id(param)] = nn.Parameter(empty, requires_grad=param.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(module, memo).train()


class _Pass:
    """A forward and backward pass: its operations, its collectives, and the bytes that autograd
    keeps: all of them, and those that it keeps if blocks are recomputed."""

    def __init__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._kept: Counter[int | None] = Counter()  # by block
        self._inputs = 0  # of blocks
        self._block: int | None = None
        own = [*module.parameters(), *module.buffers()]
        self._seen = {storage_key(local_tensor(tensor)) for tensor in own}
        handles = []
        for index, block in enumerate(blocks_of(module)):
            enter = lambda _, args, index=index: self._enter(index, args)  # noqa: E731
            handles.append(block.register_forward_pre_hook(enter))
            handles.append(block.register_forward_hook(self._leave))
        saving = torch.autograd.graph.saved_tensors_hooks(self._see, lambda tensor: tensor)
        with FlopCounterMode(display=False) as self._counter:
            with counted_collectives() as forward, saving:
                loss = _forward(module, args, kwargs)
            with counted_collectives() as backward:
                loss.backward()  # type: ignore[no-untyped-call]
        for handle in handles:
            handle.remove()
        self.sent = [replace(each, phase="forward") for each in forward.collectives]
        self.sent += [replace(each, phase="backward") for each in backward.collectives]
        self.flops = self._counter.get_total_flops()
        self.saved = self._kept.total()
        outside = self._kept.pop(None, 0)
        self.checkpointed = outside + self._inputs + max(self._kept.values(), default=0)

    def flops_of(self, layer: str) -> int:
        return sum(self._counter.get_flop_counts().get(layer, {}).values())

    def _enter(self, index: int, args: Any) -> None:
        self._block = index
        self._inputs += sum(leaf.nbytes for leaf in tree_leaves(args) if isinstance(leaf, Tensor))

    def _leave(self, *_: Any) -> None:
        self._block = None

    def _see(self, tensor: Tensor) -> Tensor:
        local = local_tensor(tensor)
        if (key := storage_key(local)) not in self._seen:
            self._seen.add(key)
            self._kept[self._block] += local.nbytes
        return tensor


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
    leaves = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
    return torch.stack([leaf.sum() for leaf in leaves if leaf.requires_grad]).sum()


def _rehearse(
    module: nn.Module, plan: Mapping[str, Any], tensor: int, args: Any, kwargs: Any
) -> tuple[dict[str, int | None], _Pass]:
    """Run the module as rank 0 of a fake tensor-parallel group: for each weight that the plan names
    the dimension that is cut, and what the rank did."""
    from torch.distributed.device_mesh import init_device_mesh

    with fake_group(tensor):
        own = _on_meta(module)
        device_mesh = init_device_mesh("cpu", (tensor,), mesh_dim_names=("tensor",))
        parallelize_layers(own, Mesh(tensor=tensor, plan=plan), device_mesh)
        dims = {}
        for name, param in own.named_parameters():
            for placement in getattr(param, "placements", ()):
                dims[name] = getattr(placement, "dim", None)
        return dims, _Pass(own, args, kwargs)


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
    sizes: Counter[torch.dtype] = Counter()
    for buffer in own_buffers(module):
        sizes[buffer.dtype] += buffer.nbytes
    return tuple(sizes.values())

"""A model as the arithmetic needs it: its parameters one by one, and what one sample costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from ..errors import ConfigurationError, check_number

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

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def to_meta(self) -> nn.Parameter:
        """A parameter like it, without memory."""
        tensor = torch.empty(self.shape, dtype=self.dtype, device="meta")
        return nn.Parameter(tensor, requires_grad=self.is_trained)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective of one sample's activations among the ranks that share a layer: how many there
    are in one step."""

    kind: str
    bytes_per_sample: int
    phase: str
    count: int = 1


@dataclass(
    frozen=True, eq=False
)  # compared and cached as the object that it is: it may have thousands of weights
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
    buffers: tuple[int, ...]
    flops: float
    cut_flops: float
    activations: float
    cut_activations: float
    checkpointed: float
    exchanges: tuple[Exchange, ...]
    tokens: int = 1
    order: tuple[int, ...] = ()

    @property
    def gradient_order(self) -> tuple[int, ...]:
        """The trained weights, by position, in the order in which the backward pass gives them
        gradients."""
        backwards = reversed(range(len(self.weights)))
        return self.order or tuple(index for index in backwards if self.weights[index].is_trained)

    @property
    def has_plan(self) -> bool:
        """Whether tensor parallelism cuts some of the weights."""
        return any(weight.cut is not None for weight in self.weights)

    @property
    def num_parameters(self) -> int:
        return sum(weight.numel for weight in self.weights)


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
        parameters: The total, in place of `hidden`, which is solved for; a gated feed-forward layer
            counts so, too.
        compute_dtype: The dtype of activations.
        name: What it is called in tables; the number of parameters by default.

    Example:
        >>> from loopwright.scaling import transformer
        >>> transformer(32, 4096, sequence=4096, parameters=7e9).name
        '7.01B'
    """
    given = {"layers": layers, "width": width, "sequence": sequence, "vocabulary": vocabulary}
    for key, value in (given | {"hidden": hidden, "parameters": parameters}).items():
        if value is not None:
            check_number(f"transformer({key}", value, above=0, is_whole=False)
    if hidden is not None and parameters is not None:
        raise ConfigurationError(
            "hidden-and-parameters",
            "transformer(hidden=, parameters=): one follows from the other; leave one out.",
        )
    hidden = hidden or (
        4 * width if parameters is None else _solve_hidden(layers, width, vocabulary, parameters)
    )
    shapes = {
        "qkv": (3 * width, width),
        "out": (width, width),
        "up": (hidden, width),
        "down": (width, hidden),
    }
    weights = [Weight("embedding", (vocabulary, width))]
    for block in range(layers):
        for norm, first, second in (("norm1", "qkv", "out"), ("norm2", "up", "down")):
            place = f"blocks.{block}."
            weights.append(Weight(place + norm, (width,), block=block))
            weights.append(Weight(place + first, shapes[first], block=block, cut=0, is_placed=True))
            weights.append(
                Weight(place + second, shapes[second], block=block, cut=1, is_placed=True)
            )
    weights += [Weight("norm", (width,)), Weight("head", (vocabulary, width))]
    size = compute_dtype.itemsize
    cut_flops = layers * (
        6.0 * sum(map(prod, shapes.values())) * sequence + 12.0 * width * sequence**2
    )
    # values that a block keeps of a token: cut, and not cut
    inside = 4 * width + 2 * hidden
    whole = 4 * width
    outside = vocabulary * (size + 4) + 2 * width * size  # logits, and their softmax in fp32
    reduced = sequence * width * size
    exchanges = [
        Exchange("all-reduce", reduced, phase, 2 * layers) for phase in ("forward", "backward")
    ]
    total = sum(weight.numel for weight in weights)
    return ModelShape(
        name=name or count_text(total),
        weights=tuple(weights),
        buffers=(),
        flops=cut_flops + 6.0 * vocabulary * width * sequence,
        cut_flops=cut_flops,
        activations=sequence * float(layers * (inside + whole) * size + outside),
        cut_activations=sequence * float(layers * inside * size),
        checkpointed=sequence * float((layers * width + inside + whole) * size + outside),
        exchanges=tuple(exchanges),
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
    """7012345678 as "7B"."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            return f"{number / size:.3g}{unit}"
    return f"{number:g}"


def by_block(model: ModelShape) -> Mapping[int | None, list[Weight]]:
    """The weights of each repeated block, and under None those outside."""
    groups: dict[int | None, list[Weight]] = {}
    for weight in model.weights:
        groups.setdefault(weight.block, []).append(weight)
    return groups

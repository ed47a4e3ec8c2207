"""Buckets: parameters whose gradients travel together, in one flat tensor with a message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._torch_compat import foreach_copy_
from ..errors import ConfigurationError
from .dtensor import local_tensor, mesh_of

MESSAGE_SIZE = 3  # numbers that are summed together with the gradients, see `consensus`
MESSAGE_DTYPES = (torch.float32, torch.float64)  # precise enough for the numbers of a message
# on a GPU, a larger bucket is allocated in every update, which takes no time there
KEPT_BYTES = 1 << 20
FIRST_BYTES = 1 << 20  # the first bucket is small, so that the first all-reduce begins early


class Sent(NamedTuple):
    """A collective of gradients: the number of its bucket, its size, and whether backward was still
    under way."""

    bucket: int
    num_bytes: int
    in_backward: bool


class Bucket:
    """Parameters of one dtype whose gradients are averaged in one all-reduce.

    The flat tensor holds a message, one number per parameter that says whether it has a gradient
    (read only by a rank that lacks one), and the gradients.
    """

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        self.params = params  # kept, so that no other parameter gets the id of one
        parts = [local_tensor(param) for param in params]
        self.dtype = parts[0].dtype
        self._all_present = torch.ones(len(params), dtype=self.dtype, device=parts[0].device)
        self._no_message = self._all_present.new_zeros(MESSAGE_SIZE)
        self._shapes = [part.shape for part in parts]
        num_bytes = sum(part.nbytes for part in parts)
        self._is_kept = num_bytes <= KEPT_BYTES or parts[0].device.type == "cpu"
        self._kept: tuple[Tensor, Tensor, list[Tensor]] | None = None
        self._packed: tuple[Tensor, Tensor, list[Tensor]] | None = None
        self._grads: list[Tensor | None] = []
        # of an all-reduce
        self.num_bytes = num_bytes + (MESSAGE_SIZE + len(params)) * self._all_present.element_size()

    @property
    def can_hold_message(self) -> bool:
        return self.dtype in MESSAGE_DTYPES

    def pack(self, message: Tensor | None = None) -> Tensor:
        """Copy the gradients and a message into the flat tensor, which is to be summed over all
        ranks."""
        self._grads = grads = [_gradient_part(param) for param in self.params]
        held = [grad for grad in grads if grad is not None]
        self._packed = flat, _, views = self._memory()
        message = self._no_message if message is None else message
        try:
            if len(held) == len(grads):
                foreach_copy_(views, [message, self._all_present, *held])
            else:
                flat.zero_()
                has = [grad is not None for grad in grads]
                present = torch.tensor(has, dtype=self.dtype, device=flat.device)
                foreach_copy_([*views[:2], *compress(views[2:], has)], [message, present, *held])
        except RuntimeError:
            _refuse_sparse(held)
            raise
        return flat

    def unpack(self, world: int, *, is_late: bool = False) -> Tensor:
        """Copy the averages to the gradients; the sum of all ranks' messages, to be read before the
        next `pack`.

        `is_late` says that other code has run since `pack` and may have given a parameter another
        tensor.
        """
        assert self._packed is not None
        (_, averaged, views) = self._packed
        self._packed = None
        grads = self._grads
        self._grads = []
        if is_late:
            grads = [_gradient_part(param) for param in self.params]
        averaged.div_(world)
        held = [grad for grad in grads if grad is not None]
        if len(held) == len(grads):
            foreach_copy_(held, views[2:])
        else:
            self._copy_out(grads, views[2:], views[1])
        return views[0]

    def drop(self) -> None:
        """Drop what was packed."""
        self._packed = None
        self._grads = []

    def _copy_out(
        self, grads: Sequence[Tensor | None], views: Sequence[Tensor], present: Tensor
    ) -> None:
        """Copy the averages to the gradients, including those that only other ranks had."""
        for param, grad, view, is_present in zip(self.params, grads, views, present, strict=True):
            if grad is not None:
                grad.copy_(view)
            elif is_present.item():
                param.grad = torch.zeros_like(param)
                local_tensor(param.grad).copy_(view)

    def _memory(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The flat tensor, its part with the gradients, and views: message, presence, each
        gradient."""
        if self._kept is not None:
            return self._kept
        start = MESSAGE_SIZE + len(self.params)
        sizes = [MESSAGE_SIZE, len(self.params), *(shape.numel() for shape in self._shapes)]
        flat = self._all_present.new_empty(sum(sizes))
        message, present, *cut = torch.split(flat, sizes)
        views = [message, present]
        for part, shape in zip(cut, self._shapes, strict=True):
            views.append(part.view(shape))
        memory = flat, flat[start:], views
        if self._is_kept:
            self._kept = memory
        return memory


def _refuse_sparse(grads: Iterable[Tensor]) -> None:
    for grad in grads:
        if grad.layout is not torch.strided:
            raise ConfigurationError(
                "sparse-gradient",
                f"The gradient of a parameter of shape {tuple(grad.shape)} is sparse, and several "
                "processes average dense gradients only: build the embedding with sparse=False.",
            ) from None


class BucketPlan:
    """The buckets of one set of parameters, and how far they are sent; there are none until the
    order is known."""

    def __init__(self, params: Sequence[nn.Parameter], max_bytes: int) -> None:
        self.params = params
        self.buckets: list[Bucket] = []
        self.works: list[Any] = []  # the all-reduces of the first buckets, in flight
        # how often each gradient was added to, in the order of the last times
        self.fired: dict[int, int] = {}
        self._max_bytes = max_bytes
        self._counts: dict[int, int] = {}  # how often each gradient is added to in a backward pass
        self._place: dict[int, int] = {}  # the bucket of each parameter
        self._left: dict[int, int] = {}  # of `_counts`, in the pass under way
        self._missing: list[int] = []  # the number of gradients that each bucket waits for
        num_bytes = sum(map(num_bytes_of, params))
        num_dtypes = len({param.dtype for param in params})
        is_one = num_dtypes <= 1 and num_bytes <= min(FIRST_BYTES, max_bytes)
        self.sent: Sequence[Sent] = ()  # the collectives of the latest pass
        if is_one and params:
            self._set_buckets([params])
        self.is_one = is_one  # one bucket at most
        self.is_early = not is_one  # whether buckets are sent during the backward pass

    def fill(self, order: Sequence[nn.Parameter], counts: dict[int, int]) -> None:
        """Make the buckets; their parameters get gradients in this order, and each one so often in
        a pass."""
        self._set_buckets(fill_buckets(order, self._max_bytes))
        for param in order:
            self._counts[id(param)] = max(counts.get(id(param), 1), 1)
        for number, bucket in enumerate(self.buckets):
            for param in bucket.params:
                self._place[id(param)] = number
        self.is_one = len(self.buckets) == 1
        self.is_early = self.is_early and not self.is_one

    def _set_buckets(self, groups: Sequence[Sequence[nn.Parameter]]) -> None:
        self.buckets = [Bucket(group) for group in groups]
        self.sent = [Sent(0, self.buckets[0].num_bytes, in_backward=False)]

    def start(self) -> None:
        """Begin a backward pass."""
        self.fired = {}
        self._left = dict(self._counts)
        self._missing = [len(bucket.params) for bucket in self.buckets]

    def count(self, param: nn.Parameter) -> bool:
        """Count a gradient that was added to. Returns whether it completes the next bucket, which
        is not the last."""
        key = id(param)
        if not self.buckets:
            self.fired[key] = self.fired.pop(key, 0) + 1
            return False
        left = self._left.get(key)
        if left is None:
            return False  # a parameter of another optimizer
        self._left[key] = left - 1
        if left > 1:
            return False
        place = self._place[key]
        if left == 1:
            self._missing[place] -= 1
            return not self._missing[place] and self.can_send()
        if place < len(self.works):
            raise _added_late(param)
        return False

    def can_send(self) -> bool:
        """Whether the next bucket is complete and not the last."""
        place = len(self.works)
        return place < len(self.buckets) - 1 and not self._missing[place]


def _added_late(param: nn.Parameter) -> RuntimeError:
    return RuntimeError(
        f"A parameter of shape {tuple(param.shape)} received more gradients after its gradient "
        "was sent to the other processes: its layer is used in several activation checkpoints "
        "with use_reentrant=True, and in this step more often than in the first. Use "
        "use_reentrant=False for these checkpoints."
    )


def fill_buckets(params: Iterable[nn.Parameter], max_bytes: int) -> list[list[nn.Parameter]]:
    """Parameters, in the order of their gradients, in groups of one dtype and a bounded size; the
    first one is small.

    A group ends with the parameter that fills it. The groups are in the order in which their last
    gradients come, but for the last one: a group that can hold a message, since a message is known
    only after the backward pass.
    """
    full: list[list[nn.Parameter]] = []
    ends: dict[int, int] = {}  # the place of a group's last parameter
    open_groups: dict[torch.dtype, list[nn.Parameter]] = {}
    sizes: dict[torch.dtype, int] = {}
    limits: dict[torch.dtype, int] = {}
    for place, param in enumerate(params):
        dtype = param.dtype
        group = open_groups.setdefault(dtype, [])
        group.append(param)
        ends[id(group)] = place
        sizes[dtype] = sizes.get(dtype, 0) + num_bytes_of(param)
        if sizes[dtype] >= limits.setdefault(dtype, min(FIRST_BYTES, max_bytes)):
            sizes[dtype] = 0
            limits[dtype] = max_bytes
            full.append(open_groups.pop(dtype))
    groups = sorted([*full, *open_groups.values()], key=lambda group: ends[id(group)])
    able = [group for group in groups if group[0].dtype in MESSAGE_DTYPES]
    if able:
        last = next(place for place, group in enumerate(groups) if group is able[-1])
        groups.append(groups.pop(last))
    return groups


def num_bytes_of(param: nn.Parameter) -> int:
    """The size of a whole parameter, which is the same on all ranks, also of one that is cut into
    parts."""
    return param.numel() * param.element_size()


def _gradient_part(param: nn.Parameter) -> Tensor | None:
    """This rank's part of a gradient, with the placements of its parameter."""
    grad: Any = param.grad
    if grad is None or type(grad) is Tensor or mesh_of(grad) is None:
        own: Tensor | None = grad.detach() if grad is not None and grad.requires_grad else grad
        return own
    placements = param.placements  # type: ignore[attr-defined]
    if grad.placements != placements:
        param.grad = grad = grad.redistribute(placements=placements)
    return local_tensor(grad)

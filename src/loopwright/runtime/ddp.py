"""Data parallelism: gradients averaged over ranks, in buckets that travel while the backward pass
computes the rest.

The states of a plan, which is the buckets of one set of parameters:

- idle: no collective is in flight. `start` leads to under way; `average` sends all buckets.
- under way: gradients become complete; the first buckets are sent as far as they are complete.
  `finish` leads to sent, after an exception to failed.
- sent: gradients are complete, not averaged; all buckets but the last are in flight. `average`
  leads to idle; `start`, for more gradients, drops what was sent.
- failed: gradients are of no use. `start` drops what was sent, and leads to under way.

All ranks send the buckets of a plan in the same order, in a group that nothing else uses; so it
does not matter that a gradient is ready early on one rank and late, or never, on another. The last
bucket waits for `average`, since it holds the message, which is known only then.

The first backward pass of a plan only records in which order gradients become ready, and how often
each one is added to; the buckets follow the order of rank 0, for the rest of the run and in one
that resumes it: the order decides how sums of three ranks and more are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .._torch_compat import has_several_gradient_hooks
from .buckets import BucketPlan, Sent

BUCKET_BYTES = 25 << 20  # as torch's DDP


class Averaging:
    """Averages gradients over the ranks of a group; one all-reduce per bucket.

    Args:
        group: the ranks; None for all of them.
        world: their number.
        max_bytes: the size of a bucket.
        gather: every rank's value of a host object.
        new_group: makes another group of the same ranks.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        world: int,
        *,
        max_bytes: int = BUCKET_BYTES,
        gather: Callable[[Any], list[Any]] = lambda value: [value],
        new_group: Callable[[], Any] = lambda: dist.group.WORLD,
    ) -> None:
        self.sent: Sequence[Sent] = ()  # the collectives of the latest `average`
        self.num_sent = 0  # collectives in `_own_group`
        self._group = group
        self._world = world
        self.max_bytes = max_bytes
        self._gather = gather
        self._new_group = new_group
        self._own_group: Any = None  # of plans with several buckets
        self._options = dist.AllreduceOptions()
        self._options.asyncOp = False
        self.in_background = dist.AllreduceOptions()
        self.in_background.asyncOp = True
        self._plans: dict[tuple[Any, ...], BucketPlan] = {}
        self._current: BucketPlan | None = None  # of the backward pass under way
        self._failed: BucketPlan | None = None  # of a backward pass that ended with an exception
        self._is_behind = False  # whether a complete bucket waits until the user's hooks have run
        self._hooks: dict[int, RemovableHandle] = {}
        # had gradients from an earlier pass of the window; may be frozen now
        self._earlier: set[nn.Parameter] = set()
        # in the order of gradients, by the parameter's id
        self._positions: dict[int, tuple[int, nn.Parameter]] = {}

    def clear(self) -> None:
        """Drop the buckets of all parameters seen so far; the order of their gradients stays."""
        for handle in self._hooks.values():
            handle.remove()
        self._hooks.clear()
        self._plans.clear()
        self._earlier.clear()
        self._current = None
        self._failed = None

    # A backward pass

    def expect(self, params: Sequence[nn.Parameter]) -> None:
        """Begin a backward pass that is not the last of its window: nothing is sent, but these are
        averaged later."""
        self._earlier.update([param for param in params if param.requires_grad])

    def start(self, params: Sequence[nn.Parameter]) -> None:
        """Begin the last backward pass of a window; `finish` ends it, and `average` follows for
        these parameters."""
        plan = self._plan(params)
        if not plan.is_early:
            return
        self._drop_failed()
        if plan.works:  # sent in an earlier pass, and now there is more to add
            self._abandon(plan)
            plan.is_early = False
            return
        plan.start()
        self._current = plan
        self._is_behind = False

    def finish(self, *, is_complete: bool = True) -> None:
        """End the backward pass: send the buckets that still lack gradients, but for the last."""
        plan = self._current
        self._current = None
        if plan is None:
            return
        if is_complete:
            self._send_rest(plan)
        else:
            self._failed = plan

    def _on_gradient(self, param: nn.Parameter) -> None:
        """The hook of every parameter: its gradient was added to."""
        plan = self._current
        if plan is None:
            return
        if self._is_behind:  # all hooks of an earlier parameter have run by now
            self._send_complete(plan)
        if plan.count(param):
            # a later one may change the gradient
            self._is_behind = has_several_gradient_hooks(param)
            if not self._is_behind:
                self._send_complete(plan)

    def _send_complete(self, plan: BucketPlan) -> None:
        self._is_behind = False
        while plan.can_send():
            self._send(plan, in_backward=True)

    def _send_rest(self, plan: BucketPlan) -> None:
        while len(plan.works) < len(plan.buckets) - 1:
            self._send(plan)

    def _send(
        self, plan: BucketPlan, message: Tensor | None = None, *, in_backward: bool = False
    ) -> None:
        """Start the all-reduce of the next bucket."""
        number = len(plan.works)
        bucket = plan.buckets[number]
        plan.works.append(self._own_group.allreduce([bucket.pack(message)], self.in_background))
        self.num_sent += 1
        plan.sent = [*(plan.sent if number else ()), Sent(number, bucket.num_bytes, in_backward)]

    def _drop_failed(self) -> None:
        """Drop what a pass has sent that failed on all ranks, and that the program has left
        behind."""
        failed = self._failed
        self._failed = None
        if failed is not None:
            self._abandon(failed)

    def _abandon(self, plan: BucketPlan) -> None:
        """Wait for what was sent, which all ranks do here, and drop it; `param.grad` is still that
        of this rank."""
        self._send_rest(plan)
        for work, bucket in zip(plan.works, plan.buckets, strict=False):
            work.wait()
            bucket.drop()
        plan.works = []

    # The end of a window

    def average(
        self, params: Sequence[nn.Parameter], message: Tensor | None = None
    ) -> Tensor | None:
        """Average the gradients, and sum a message in the same all-reduce; None where no bucket can
        hold a message.

        A parameter with a gradient on some ranks only counts as zero on the others; one without a
        gradient on any rank keeps none, as in a single process.
        """
        plan = self._plan(params)
        if not plan.buckets and plan.params:
            self._agree(plan)
        if not plan.buckets:
            return None
        message = message if plan.buckets[-1].can_hold_message else None
        summed = (
            self._average_one(plan, message)
            if plan.is_one
            else self._average_several(plan, message)
        )
        if self._earlier:
            self._earlier.difference_update(plan.params)
        self.sent = plan.sent
        return None if message is None else summed

    def _average_one(self, plan: BucketPlan, message: Tensor | None) -> Tensor:
        """One bucket is sent after the backward pass: there is nothing left to overlap with."""
        bucket = plan.buckets[0]
        # What `dist.all_reduce` comes to; the checks around it cost as much as a small model's
        # backward pass.
        group: Any = dist.group.WORLD if self._group is None else self._group
        work = group.allreduce([bucket.pack(message)], self._options)
        if work is not None:
            work.wait()
        return bucket.unpack(self._world)

    def _average_several(self, plan: BucketPlan, message: Tensor | None) -> Tensor | None:
        self._drop_failed()
        self._send_rest(plan)
        self._send(plan, message)
        works = plan.works
        plan.works = []
        summed = None
        for work, bucket in zip(works, plan.buckets, strict=True):
            work.wait()
            summed = bucket.unpack(self._world, is_late=True)
        return summed

    # Plans, and the order of gradients

    def _plan(self, params: Sequence[nn.Parameter]) -> BucketPlan:
        earlier = self._earlier
        own = [param for param in params if param.requires_grad or param in earlier]
        key = tuple([(id(param), param.dtype) for param in own])
        plan = self._plans.get(key)
        if plan is None:
            self._plans[key] = plan = BucketPlan(own, self.max_bytes)
            for param in plan.params if plan.is_early else ():
                if param.requires_grad and id(param) not in self._hooks:
                    # which torch has given no types
                    watch: Any = param.register_post_accumulate_grad_hook
                    self._hooks[id(param)] = watch(self._on_gradient)
        return plan

    def _agree(self, plan: BucketPlan) -> None:
        """Make the buckets of a plan, those of rank 0 on all ranks; and a new group, if ranks have
        sent more or less.

        Loaded positions are those of rank 0 too: buckets that differ would mix up gradients without
        an error.
        """
        places = {id(param): place for place, param in enumerate(plan.params)}
        seen = []
        for key, count in plan.fired.items():
            if key in places:
                seen.append((places[key], count))
        every = self._gather((self.num_sent, seen, self.order_of(plan.params)))
        if self._own_group is None or len({num_sent for num_sent, *_ in every}) > 1:
            self._own_group = self._new_group()
            self.num_sent = 0
        counts: dict[int, int] = {}
        for _, own, _ in every:
            for place, count in own:
                key = id(plan.params[place])
                counts[key] = max(counts.get(key, 1), count)
        _, first, order = every[0]
        self._set_positions(plan.params, order or [-1] * len(plan.params))
        self._remember([plan.params[place] for place, _ in first])
        self._remember(list(reversed(plan.params)))  # those that rank 0 does not use
        ordered = sorted(plan.params, key=lambda param: self._positions[id(param)][0])
        plan.fill(ordered, counts)

    def _remember(self, params: Sequence[nn.Parameter]) -> None:
        """Give positions to parameters that have none, after all others."""
        known = [position for position, _ in self._positions.values()]
        end = 1 + max(known, default=-1)
        for param in params:
            if id(param) not in self._positions:
                self._positions[id(param)] = (end, param)
                end += 1

    def order_of(self, params: Sequence[nn.Parameter]) -> list[int] | None:
        """The positions of these parameters in the order of gradients, -1 where not known; None if
        none is."""
        order = [self._positions.get(id(param), (-1, param))[0] for param in params]
        return order if any(position >= 0 for position in order) else None

    def set_order(self, params: Sequence[nn.Parameter], order: Sequence[int]) -> None:
        """Take up positions that were saved, between two updates; none if they are of more or fewer
        parameters."""
        self.clear()
        if len(order) == len(params):
            self._set_positions(params, order)

    def _set_positions(self, params: Sequence[nn.Parameter], order: Sequence[int]) -> None:
        for param, position in zip(params, order, strict=True):
            if position >= 0:
                self._positions[id(param)] = (position, param)
            else:
                self._positions.pop(id(param), None)

"""The phases of one optimizer's update, from a loss to changed weights, and what it needs besides
its optimizer: the accumulation window, the other ranks, the non-finite guard."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from .._torch_compat import foreach_div_, note_nonfinite, overflow_flags, supports_found_inf
from .._torch_compat.fast_paths import OptimizerStep, backward
from ..callback import Hook
from ..errors import ConfigurationError
from ..metrics.result import mistake_in_loss
from ..runtime.dtensor import clip_grad_norm
from .components import check_reached

if TYPE_CHECKING:
    from ..runtime.distributed import DistributedRuntime

# The states of an update, and the calls that lead from one to the next:
#
# state     gradients (`param.grad`)                     left by
# --------  -------------------------------------------  -----------------------------------------
# empty     none                                         `backward` -> partial
# partial   sums over the window's steps so far: scaled, `backward` -> partial
#           of this process only, not divided by counts  `complete` -> complete, or empty (skips)
# complete  equal to those of one big batch              `clip` -> complete; `step` -> stepped
# stepped   as the step used them                        `zero` -> empty
# skipped   not used: a loss was not finite, and the     `complete` -> empty
#           guard refused it (`is_skipped`)
#
# `complete` finds gradients and learning rates that are not finite, before clipping could hide
# them. `reset` leads from every state to empty. A guard that does not wait for the device
# (`defers_loss_check`) leaves the update in partial or complete and sets a flag, which `complete`,
# `step` or `check` acts on.


class UpdateGuard(Protocol):
    """Decides what a loss, gradient or learning rate that is not finite means; may raise."""

    @property
    def is_final(self) -> bool:
        """Whether no update may follow a refused one."""
        ...

    @property
    def is_immediate(self) -> bool:
        """Whether values must be checked at once, even if that waits for the device."""
        ...

    def refuse(self, what: str) -> None:
        """Handle a value that is not finite, before the optimizer step that would have used it."""

    def name_of(self, param: nn.Parameter) -> str:
        """Return the name of a parameter for a message."""
        ...


@dataclass(slots=True)
class Window:
    """The current step within its accumulation window."""

    divisor: float = 1.0  # of this step's loss
    is_last: bool = True  # whether the optimizer is stepped after this step
    size: int = 0  # samples of this step
    # whether gradients of the last step are averaged as they are, so that this may begin early
    overlaps: bool = True
    has_stepped: bool = False  # whether an optimizer has been stepped with the window's gradients
    # what is under way: a step, or the rest of its update, or neither
    stage: Literal["", "step", "update"] = ""
    total: int | None = None  # samples of an evaluation step on all processes, where they share it

    def share_of(self, loss: Tensor) -> Tensor:
        """The share of the window's loss that a step's mean loss is."""
        return loss if self.divisor == 1.0 else loss / self.divisor


@dataclass
class EpochCounts:
    """The updates of an epoch: those that changed weights, and those that were skipped."""

    stepped: int = 0
    skipped: int = 0


class OptimizerUpdate:
    """The updates of one optimizer.

    The phases of an update are public, so that an interface can call them one by one: `backward` in
    each step of the accumulation window; at the end of the window `complete`, `clip`, `step`,
    `schedule` and `zero`, which `finish` calls in this order.

    Args:
        name: what the trainer calls the optimizer.
        optimizer: the optimizer itself.
        scaler: the loss scaler of fp16 training.
        clip_norm: the largest total norm of the gradients.
        clip_value: the largest absolute value of a gradient.
        guard: decides about losses, gradients and learning rates that are not finite.
        reads_are_free: whether reading a number from a tensor does not wait for a device.
        peers: the other processes that train the same model.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> update = OptimizerUpdate("sgd", torch.optim.SGD([weight], lr=0.5), clip_norm=1.0)
    >>> update.refresh([weight])
    >>> update.backward((weight * torch.tensor([3.0, 4.0])).sum(), Window())
    >>> update.complete(), update.clip()
    (True, True)
    >>> update.step()
    >>> update.zero()
    >>> [round(value, 3) for value in weight.tolist()]
    [0.7, 0.6]
    """

    def __init__(
        self,
        name: str,
        optimizer: Optimizer,
        *,
        scaler: torch.amp.GradScaler | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        guard: UpdateGuard | None = None,
        reads_are_free: bool = True,
        peers: DistributedRuntime | None = None,
    ) -> None:
        self.name = name
        self.optimizer = optimizer
        self.scaler = scaler
        self._take_step = OptimizerStep(optimizer)
        self.clip_norm = clip_norm
        self.clip_value = clip_value
        self.guard = guard
        self.checks_losses = True  # before each backward pass, where reading them is free
        self.peers = peers
        self.schedulers: list[Any] = []
        self.epoch_schedulers: list[Any] = []  # which the trainer steps after epochs, unless
        self.is_paced_by_user = False  # the user's plain steps step them
        self.listeners: Sequence[Hook] = ()
        self.norm: Tensor | None = None  # before clipping
        self.num_updates = 0
        self.empty_steps = 0
        self.epoch = EpochCounts()
        self.calls = 0  # of `backward` by the trainer's `update`
        self.is_stepping = False
        self.is_joined = False  # whether the optimizer is being updated together with others
        self.params: list[nn.Parameter] = []
        # where the optimizer has lists, and lengths
        self.held: list[tuple[dict[str, Any], str, list[Any], int]] = []
        self.holds_all = False  # whether every trainable parameter belongs to the optimizer
        self.is_skipped = False
        self._is_fused_sgd = False
        self._count: Any = None  # items of the window so far
        # above 0: not finite; a number where reading one is free
        self._flag: Tensor | float | None = None
        self._reads_are_free = reads_are_free
        self._seen: Tensor | None = None
        # steps that a loss scaler left out on a device since the last log point
        self._overflows: Tensor | None = None
        self._found: Tensor | None = None  # the flag of gradients, where reading it is free
        self._on_device = (
            guard is not None
            and not guard.is_immediate
            and not reads_are_free
            and scaler is None
            and supports_found_inf(optimizer)
        )

    @property
    def title(self) -> str:
        """The optimizer as messages name it."""
        return f"optimizer {self.name!r}"

    @property
    def subject(self) -> str:
        """The optimizer and a verb, to begin a sentence."""
        return f"Optimizer {self.name!r} was"

    def refresh(self, trainable: Iterable[nn.Parameter]) -> None:
        """Read the optimizer's parameters again, after groups were added or layers frozen."""
        self.params = [p for group in self.optimizer.param_groups for p in group["params"]]
        owners = [
            (vars(self.optimizer), "param_groups"),
            *((group, "params") for group in self.optimizer.param_groups),
        ]
        self.held = [
            (owner, name, owner[name], len(owner[name])) for owner, name in owners if name in owner
        ]
        self._is_fused_sgd = type(self.optimizer) is SGD and any(
            g.get("fused") for g in self.optimizer.param_groups
        )
        own = {id(p) for p in self.params}
        self.holds_all = all(id(p) in own for p in trainable)

    def backward(
        self,
        loss: Tensor,
        window: Window,
        count: Any = None,
        retain_graph: bool | None = None,
    ) -> None:
        """Add the gradients of one step of the window, to this optimizer's parameters only.

        Args:
            loss: the mean over the step's batch, or with `count` the sum over that number of items.
            window: the step's position in its accumulation window.
            count: the number of items (tokens, say) that `loss` is a sum over.
            retain_graph: as in `torch.Tensor.backward`.
        """
        guard = self.guard
        if guard is not None:
            if self._on_device or self.peers is not None:
                self.flag_nonfinite(loss)
            elif self.checks_losses and not math.isfinite(
                loss.item() if loss.dim() == 0 else _only_number(loss)
            ):
                self.refuse(f"the loss of {self.title} is {loss.item()}")
                self.is_skipped = True
                return
        if count is not None:
            loss = self._share_of_sum(loss, count, window)
        elif window.divisor != 1.0:
            loss = window.share_of(loss)
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        run_backward(
            loss,
            self.params,
            is_last=window.is_last,
            holds_all=self.holds_all,
            peers=self.peers,
            flag=self._flag,
            retain_graph=retain_graph,
            overlaps=window.overlaps,
        )

    @property
    def defers_loss_check(self) -> bool:
        """Whether the guard checks losses at the end of the window, and not before each backward
        pass."""
        return self.guard is not None and (self._on_device or self.peers is not None)

    def _share_of_sum(self, loss: Tensor, count: Any, window: Window) -> Tensor:
        if (self._reads_are_free or not isinstance(count, Tensor)) and not count >= 0:
            raise ValueError(f"count={count}")
        if window.size == 0:  # this process has no sample: it computes with one of another process
            loss = loss * 0.0
            count = count * 0
        if window.is_last and window.divisor == 1.0 and self.peers is None:
            share: Tensor = loss / at_least_one(count)
            return share
        self._count = count if self._count is None else self._count + count
        return loss

    def finish(self, *, schedules: bool = True) -> bool:
        """End the window: `complete`, `clip`, `step`, `schedule` and `zero`; a skipped update only
        drops gradients. Returns whether the optimizer was stepped.

        With `schedules=False`, schedulers are left to the caller.
        """
        if not self.complete():
            return False
        self.start_step()
        is_stepped = self.clip()
        if is_stepped:
            self.step()
            if schedules:
                self.schedule()
        self.zero()
        return is_stepped

    def complete(self) -> bool:
        """Make the gradients those of one big batch: averaged over processes, unscaled, divided by
        counted items.

        Returns:
            False if the update has to be skipped, since a loss of the window, a gradient or a
            learning rate is not finite; the gradients are dropped.
        """
        if self.peers is not None and not self.is_skipped:
            self.average()
            if not self._on_device:
                self.is_skipped = not self.read_flag(" on at least one process")
        if self.is_skipped:
            self.reset()
            return False
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self._count is not None:
            self._divide_by_count()
        if self.guard is not None and not self.is_finite():
            self.reset()
            return False
        return True

    def is_finite(self) -> bool:
        """Whether learning rates and complete gradients are finite; if not, the guard refuses them.

        A device is not waited for: it sets the flag, which `step` and `check` act on. A loss scaler
        looks at gradients itself.
        """
        assert self.guard is not None
        for group in self.optimizer.param_groups:
            rate = group.get("lr", 0.0)
            if type(rate) is float and not -math.inf < rate < math.inf:
                self.refuse(f"the learning rate of {self.title} is {rate}")
                return False
        if self.scaler is not None:
            return True
        grads = [p.grad for p in self.params if p.grad is not None]
        if self._on_device:
            self._flag = self._note_gradients(grads, cast("Tensor | None", self._flag))
            return True
        if self.peers is None and self._found is not None:
            note_nonfinite(self._found, grads)
        else:
            self._found = self._note_gradients(grads, self._found)
        if not self._found.item():
            return True
        self._found = None
        bad = (
            p
            for p in self.params
            if p.grad is not None and self._note_gradients([p.grad], is_own=True).item()
        )
        param = next(bad, None)
        # else it is on another rank
        where = "" if param is None else f" of {self.guard.name_of(param)}"
        advice = "`torch.autograd.set_detect_anomaly(True)` names the operation"
        self.refuse(f"a gradient{where} is not finite ({self.title}; {advice})")
        return False

    def _note_gradients(
        self, grads: list[Tensor], flag: Tensor | None = None, *, is_own: bool = False
    ) -> Tensor:
        """Set a flag if a gradient is not finite, on any rank; with `is_own`, on this one."""
        if self.peers is not None:
            grads = self.peers.local_parts(grads)
        if flag is None:
            flag = torch.zeros((), device=grads[0].device if grads else None)
        note_nonfinite(flag, grads)
        return flag if self.peers is None or is_own else self.peers.share_flag(flag)

    def average(self) -> None:
        """Average the gradients over the processes, and take the maximum of their flags."""
        if self.peers is not None:
            self._flag = self.peers.sync_gradients(self.params, self._flag)

    def _divide_by_count(self) -> None:
        count = at_least_one(
            self._count if self.peers is None else self.peers.sum_count(self._count)
        )
        grads = [p.grad for p in self.params if p.grad is not None]
        if self.peers is not None:
            self.peers.divide(grads, count / self.peers.num_shares)
        elif grads:
            foreach_div_(grads, count)
        self._count = None

    def read_flag(self, where: str = "") -> bool:
        """Whether no loss was flagged as not finite; if one was, the guard refuses it. Reads the
        flag."""
        flag = self._flag
        self._flag = None
        if flag is None or self.guard is None or not float(flag):
            return True
        self.refuse(f"the loss of {self.title} is not finite{where}")
        return False

    def refuse(self, what: str) -> None:
        """Count an update that is skipped, and let the guard decide what its value that is not
        finite means."""
        assert self.guard is not None
        self.epoch.skipped += not self.is_skipped
        self.guard.refuse(what)

    def start_step(self) -> None:
        """Emit `on_optimizer_start` with complete, unclipped gradients; check them the first
        time."""
        if not self.num_updates and self.peers is None:
            check_reached(self.params, self.name)
        for listener in self.listeners:
            listener(self.name)

    def clip(self) -> bool:
        """Clip as configured; False if the norm is not finite and the step must not be taken."""
        if self.clip_value is not None:
            nn.utils.clip_grad_value_(self.params, self.clip_value)
        if self.clip_norm is None:
            return True
        clip = nn.utils.clip_grad_norm_ if self.peers is None else clip_grad_norm
        self.norm = clip(self.params, self.clip_norm)
        if self.guard is None or self.scaler is not None:
            return True
        if self._on_device:
            self.flag_nonfinite(self.norm)
        elif not math.isfinite(self.norm.item()):
            self.refuse(f"the gradient norm of {self.title} is {self.norm.item()}")
            return False
        return True

    def step(self) -> None:
        """Step the optimizer; a loss scaler, or a flag on the device, may skip the step."""
        self.is_stepping = True
        if self._is_fused_sgd and len(self.optimizer.state) < len(self.params):
            add_missing_momentum(self.optimizer)
        self.epoch.stepped += 1
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.note_overflow(self.scaler)
            self.scaler.update()
        elif self._flag is not None:
            self._step_unless_flagged()
        else:
            self._take_step()
        self.is_stepping = False
        self.num_updates += 1

    def note_overflow(self, scaler: torch.amp.GradScaler) -> None:
        """Count a step that the loss scaler left out, after it was stepped and before it is
        updated."""
        found = torch.stack(
            [flag.to(self.params[0].device) for flag in overflow_flags(scaler, self.optimizer)]
        ).amax()
        self._overflows = found if self._overflows is None else self._overflows + found
        if self._reads_are_free:
            self.count_overflows()

    def count_overflows(self) -> None:
        """Read how many steps the loss scaler has left out since the last call."""
        if self._overflows is not None:
            number = int(self._overflows.item())
            self.epoch.stepped -= number
            self.epoch.skipped += number
            self._overflows = None

    def schedule(self) -> None:
        """Step the schedulers that count updates."""
        for scheduler in self.schedulers:
            scheduler.step()

    def zero(self) -> None:
        """Drop the gradients."""
        for param in self.params:
            param.grad = None

    def reset(self) -> None:
        """Discard an incomplete window: its gradients, counts and flags."""
        self.zero()
        self._count = None
        self._flag = None
        self._seen = None
        self.is_skipped = False

    def flag_nonfinite(self, value: Tensor) -> None:
        """Set the flag if a value is not finite; on the device, unless reading the value is
        free."""
        if self._reads_are_free:
            self._flag = max(float(self._flag or 0), float(not math.isfinite(_only_number(value))))
            return
        bad = (~torch.isfinite(value.detach())).float().reshape(())
        self._flag = bad if self._flag is None else torch.maximum(cast(Tensor, self._flag), bad)

    def _step_unless_flagged(self) -> None:
        """Make the fused optimizer skip the step on the device, as it does for loss scaling,
        without a host sync."""
        optimizer: Any = self.optimizer
        optimizer.grad_scale = None
        optimizer.found_inf = self._flag
        self._take_step()
        del optimizer.grad_scale, optimizer.found_inf
        flag = cast(Tensor, self._flag)
        self._seen = flag if self._seen is None else torch.maximum(self._seen, flag)
        if self.guard is not None and not self.guard.is_final:
            self._flag = None

    def check(self, at_once: bool = False) -> None:
        """Read the flags that the device set since the last log point, and let the guard act on
        them.

        `at_once` reads the flag of the current window, before a step.
        """
        self.count_overflows()
        seen = self._flag if at_once else self._seen
        self._seen = None
        if seen is not None and self.guard is not None and float(seen):
            self.refuse(
                f"a loss, gradient or gradient norm of {self.title} since the last log point is "
                "not finite"
            )

    def state_dict(self) -> dict[str, Any]:
        self.count_overflows()
        state = {
            "updates": self.num_updates,
            "scaler": self.scaler.state_dict() if self.scaler else None,
        }
        state |= {"stepped": self.epoch.stepped, "skipped": self.epoch.skipped}
        if self.is_paced_by_user:
            state["is_paced_by_user"] = True
        order = None if self.peers is None else self.peers.averaging.order_of(self.params)
        return state if order is None else state | {"order": order}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_updates = state["updates"]
        self.epoch.stepped, self.epoch.skipped = state.get("stepped", 0), state.get("skipped", 0)
        self.is_paced_by_user = state.get("is_paced_by_user", False)
        if self.scaler is not None and state["scaler"] is not None:
            self.scaler.load_state_dict(state["scaler"])
        if self.peers is not None and state.get("order") is not None:
            self.peers.averaging.set_order(self.params, state["order"])


def run_backward(
    loss: Tensor,
    params: Sequence[nn.Parameter],
    *,
    is_last: bool,
    holds_all: bool,
    peers: DistributedRuntime | None,
    flag: Tensor | float | None = None,
    retain_graph: bool | None = None,
    overlaps: bool = True,
) -> None:
    """Run the backward pass of a loss that is scaled already, to these parameters only, together
    with the peers.

    Args:
        loss: what to differentiate.
        params: the parameters that get gradients.
        is_last: whether the accumulation window ends here.
        holds_all: whether `params` are all that can be trained, so that autograd needs no list of
            them.
        peers: the other processes that train the same model.
        flag: above 0 if a loss was not finite, for the peers to exchange with the gradients.
        retain_graph: as in `torch.Tensor.backward`.
        overlaps: whether the gradients of these very parameters are averaged next, so that this may
            begin now.
    """
    inputs: Any = None if holds_all else [p for p in params if p.requires_grad]
    is_complete = False
    if peers is not None:
        inputs = peers.prepare_backward(
            loss, params, inputs, is_last=is_last, flag=flag, overlaps=overlaps
        )
        peers.is_in_backward = True
    try:
        backward(loss, retain_graph, inputs)
        is_complete = True
    finally:
        if peers is not None:
            peers.is_in_backward = False
            peers.finish_backward(is_complete=is_complete)


def add_missing_momentum(optimizer: Optimizer) -> None:
    """Give parameters whose first gradient comes later than those of others, as of layers that were
    frozen, a buffer.

    The fused kernel of SGD fails if some parameters of a group have one and others not. Zeros are
    what it begins with.
    """
    for group in optimizer.param_groups:
        if not group.get("fused") or not group["momentum"] or group["dampening"]:
            continue
        used = [p for p in group["params"] if p.grad is not None]
        missing = [p for p in used if optimizer.state.get(p, {}).get("momentum_buffer") is None]
        for param in missing if len(missing) < len(used) else ():
            optimizer.state[param]["momentum_buffer"] = torch.zeros_like(param)


def at_least_one(count: Any) -> Any:
    """A number of items to divide by, also where there are none."""
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)


def _only_number(loss: Tensor) -> float:
    if loss.numel() != 1:
        raise ConfigurationError("loss-shape", f"The loss {mistake_in_loss(loss, None)}.")
    return loss.item()

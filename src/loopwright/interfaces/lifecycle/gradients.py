"""The gradients of the update under way, computed and used by the default stages or by plain
torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..._torch_compat import overflow_flags, version_of
from ..._torch_compat.fast_paths import ignore_updates
from ...errors import ConfigurationError
from ...training.update import OptimizerUpdate, Window

if TYPE_CHECKING:
    from ...runtime import Runtime
    from .run_config import TrainerRunConfig


class Gradients:
    """Keeps gradients right where a stage was replaced: averaged over processes and unscaled, once,
    before their use.

    They are complete after the `backward_step` of a window's last batch, and at the latest when the
    optimizer steps: hooks on the optimizer see to that for a plain `optimizer.step()`. A step
    inside `backward_step` is the update's.
    """

    def __init__(self, runtime: Runtime, update: OptimizerUpdate, window: Window) -> None:
        self.runtime = runtime
        self.update = update
        self.window = window
        self.was_skipped = False  # whether the loss scaler left out the last optimizer step
        self.has_stepped = False  # whether any optimizer step had gradients to go by
        self.reach_all = False  # whether other optimizers, which the user steps, need gradients too
        self._is_in_backward = False
        self._is_taken = False
        self._obstacle: str | None = None
        self._autocasts = runtime.precision != "fp32"
        self._plain = Window()
        self._is_complete = False
        self._is_scaled = False
        self._is_own_step = False
        self._has_trained = False
        self._kept: list[tuple[nn.Parameter, Tensor | None]] | None = None
        # gradients after a step of the first window
        self._left: list[tuple[nn.Parameter, Tensor, int]] = []
        self._no_autocast: AbstractContextManager[Any] | None = None
        self._needs_completion = (
            runtime.world > 1 or runtime.precision != "fp32" or update.defers_loss_check
        )
        self._handles: list[Any] = [
            update.optimizer.register_step_pre_hook(self._before_step),
            update.optimizer.register_step_post_hook(self._after_step),
        ]

    def close(self) -> None:
        """Take the hooks off the optimizer."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    # A step

    def open_step(self, is_stand_in: bool) -> None:
        """A batch is about to be trained on; what a stand-in for no samples adds will be
        dropped."""
        self._kept = None
        self._is_taken = False
        if is_stand_in:
            self._kept = [
                (p, None if p.grad is None else p.grad.clone()) for p in self.update.params
            ]

    def close_step(self) -> None:
        self._drop_stand_in()
        if not self.window.is_last and not self._has_trained:
            grads = ((param, param.grad) for param in self.update.params)
            self._left = [
                (param, grad, version_of(grad)) for param, grad in grads if grad is not None
            ]

    def _check_left(self, *, is_over: bool = False) -> None:
        """Refuse to lose the gradients of a window's earlier steps; `is_over` if the next backward
        pass is over."""
        left = self._left
        if any(
            param.grad is not grad or (not is_over and version_of(grad) != version)
            for param, grad, version in left
        ):
            raise ConfigurationError(
                "gradients-lost",
                "Gradients were changed by `zero_grad()` or clipping before their update was "
                "complete, which takes several batches with gradient_accumulation_steps: leave "
                "zeroing to `optimizer_zero_grad` and clipping to `optimizer_step` or "
                "`_clip_gradients`, which are called once per update.",
            )
        self._left = [] if is_over else left

    def _drop_stand_in(self) -> None:
        if self._kept is not None:
            for param, grad in self._kept:
                param.grad = grad
            self._kept = None

    # What the default stages do

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss that is this step's share of the update already."""
        if loss.dim() and loss.numel() != 1:
            raise ConfigurationError(
                "loss-not-a-number",
                f'The loss has shape {tuple(loss.shape)}: return one number as "loss" from '
                "`calculate_train_batch_loss`, such as `loss.mean()`.",
            )
        if not loss.requires_grad:
            raise ConfigurationError(
                "loss-without-gradients",
                'The "loss" of `calculate_train_batch_loss` has no gradients: it was detached, computed under '
                "`torch.no_grad()`, created from a number, or computed only from frozen layers. Return the loss as it "
                "was computed.",
            )
        self._check_left()
        self._left = []
        if self._is_complete:  # a second loss for gradients that are averaged and unscaled already
            self._run_exactly(loss.backward)
            self.update.average()
            return
        self.update.holds_all = self.update.holds_all or self.reach_all
        self._plain.is_last = self.window.is_last
        self._plain.size = self.window.size
        # gradients of a stand-in are dropped before they are averaged
        self._plain.overlaps = self._kept is None
        self._run_exactly(self.update.backward, loss, self._plain)
        self._is_scaled = self.update.scaler is not None
        if self.window.is_last:
            self.complete()

    def complete(self) -> None:
        """Average the gradients over all processes and take the loss scale out of them, once an
        update."""
        if self._is_complete or self._is_taken:
            return
        self._drop_stand_in()
        if self.update.scaler is not None and not self._is_scaled:
            raise ConfigurationError(
                "unscaled-loss",
                "mixed_precision='fp16' needs scaled losses, but the gradients were computed by "
                "`loss.backward()`: call `super().backward_step(loss)` (or "
                "`self.backward_step(loss)`), or use mixed_precision='bf16', which needs no "
                "scaling.",
            )
        self.update.complete()
        self._is_complete = True
        if not self._has_trained and all(param.grad is None for param in self.update.params):
            raise ConfigurationError(
                "no-gradients",
                "There are no gradients to update the weights with: `backward_step` computed none "
                "for the parameters of the optimizer. Call `loss.backward()` or "
                "`super().backward_step(loss)` in it, with a loss of the trainer's model.",
            )
        self._has_trained = True

    def clip(self) -> None:
        self.complete()
        self.update.clip()

    def step(self) -> None:
        if self._is_taken:
            return
        self.complete()
        self._note_gradients()
        scaler = self.update.scaler
        scale = None if scaler is None else scaler.get_scale()
        self._is_own_step = True
        try:
            self._run_exactly(self.update.step)
        finally:
            self._is_own_step = False
        self.was_skipped = scaler is not None and scale is not None and scaler.get_scale() < scale
        self._forget()

    def zero(self) -> None:
        self.update.zero()
        self._forget()

    def note(self, loss: Tensor) -> None:
        """Let the guard know of a loss whose backward pass is not the default one."""
        if self.update.defers_loss_check:
            self.update.flag_nonfinite(loss)

    def _forget(self) -> None:
        self._is_complete = False
        self._is_scaled = False

    def _run_exactly(self, function: Callable[..., None], *args: Any) -> None:
        """Backward passes and optimizer steps are outside of autocast."""
        if not self._autocasts:
            function(*args)
            return
        with self.runtime.no_autocast or nullcontext():
            function(*args)
        torch.clear_autocast_cache()  # it holds weights as they were before the step

    # `optimizer.step()` called by the user

    @contextmanager
    def own_backward(self, config: TrainerRunConfig) -> Iterator[None]:
        """A `backward_step` of the user's; a step in it is that of the update, unless there is an
        obstacle to it."""
        self._is_in_backward = True
        self._obstacle = _step_obstacle(config)
        self._check_left()
        try:
            yield
            self._check_left(is_over=True)
        finally:
            self._is_in_backward = False

    def _check_place(self) -> None:
        """Refuse a step in `backward_step` that would be a wrong one, and a second one after it."""
        if self._is_in_backward and self._obstacle is not None:
            raise ConfigurationError(
                "step-in-backward",
                f"`backward_step` called `optimizer.step()`, which {self._obstacle}: leave only "
                "`loss.backward()` in `backward_step` and move the step to `optimizer_step`.",
            )
        if self._is_taken and not self._is_in_backward:
            raise ConfigurationError(
                "stepped-twice",
                "`backward_step` called `optimizer.step()`, which is called again in the same "
                "update: leave only `loss.backward()` in `backward_step` and keep the step in "
                "`optimizer_step`.",
            )

    def _note_gradients(self) -> None:
        self.has_stepped = self.has_stepped or any(
            param.grad is not None for param in self.update.params
        )

    @ignore_updates
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._is_own_step:
            return
        self._check_place()
        self._note_gradients()
        if not self._needs_completion:
            if (
                self.update.guard is not None
                and not self._is_complete
                and len(args) < 2
                and not kwargs
            ):
                self.update.is_finite()  # the gradients of a closure do not exist yet
            return
        # several steps in `backward_step`, each of own gradients
        is_taken = self._is_taken
        self._is_taken = False
        self.complete()
        self._is_taken = is_taken
        self.update.check(at_once=True)
        self.was_skipped = self._overflowed(optimizer)
        if self.was_skipped:
            self.update.zero()  # an optimizer leaves parameters without gradients alone
        self._no_autocast = self.runtime.no_autocast
        if self._no_autocast is not None:
            self._no_autocast.__enter__()

    @ignore_updates
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._is_own_step:
            return
        self._note_gradients()  # those of a closure
        self._is_taken = self._is_in_backward
        self.update.epoch.skipped += self.was_skipped
        self.update.epoch.stepped += not self.was_skipped
        if not self._needs_completion:
            return
        if self._no_autocast is not None:
            self._no_autocast.__exit__(None, None, None)
            torch.clear_autocast_cache()
        if self.update.scaler is not None:
            self.update.scaler.update()
        self._forget()

    def _overflowed(self, optimizer: Optimizer) -> bool:
        """Whether the loss scaler saw a gradient that is not finite when it took the scale out;
        clipping hides that."""
        scaler = self.update.scaler
        return scaler is not None and any(flag.item() for flag in overflow_flags(scaler, optimizer))


def _step_obstacle(config: TrainerRunConfig) -> str | None:
    """Why `backward_step` cannot step the optimizer itself in this run, or None."""
    if (count := config.gradient_accumulation_steps) > 1:
        return (
            f"would happen after every batch, not after every {count} batches as "
            f"gradient_accumulation_steps={count} requires"
        )
    if config.gradient_clip_value is not None:
        return (
            f"would skip the clipping that gradient_clip_value={config.gradient_clip_value} "
            "requires"
        )
    return None

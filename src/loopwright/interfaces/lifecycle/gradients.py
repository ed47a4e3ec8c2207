"""The gradients of the update under way, as the stages of a step compute and use them, and whether
they change any weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..._torch_compat import version_of
from ...errors import ConfigurationError
from ...training.components import check_reached
from ...training.own_steps import OwnSteps
from ...training.update import OptimizerUpdate, Window

if TYPE_CHECKING:
    from ...training.run import TrainingRun
    from .core import LifecycleCore


class StageGradients:
    """Keeps gradients right where a stage was replaced: averaged over processes and unscaled, once,
    before their use.

    They are complete after the `backward_step` of a window's last batch, and at the latest when the
    optimizer steps: `OwnSteps` sees to that for a plain `optimizer.step()`, wherever the user
    writes it. Losses are divided before `backward_step`.
    """

    def __init__(self, run: TrainingRun, update: OptimizerUpdate) -> None:
        self.run = run
        self.update = update
        self.was_skipped = False  # whether the loss scaler left out the last optimizer step
        self.is_taken = False  # whether `backward_step` has stepped the optimizer
        self.has_others = False  # whether optimizers that the user steps need gradients too
        self._autocasts = run.runtime.precision != "fp32"
        self._is_in_backward = False
        self._scale = 0.0  # of losses, before a step
        # gradients before a batch that only stands in for no samples
        self._kept: list[tuple[nn.Parameter, Tensor | None]] | None = None
        # gradients after a batch, and their versions, to which the next batch has to add
        self._left: list[tuple[nn.Parameter, Tensor, int]] = []
        self._own = OwnSteps(run, self._before_step, self._after_step, has_stages=True)
        self._own.__enter__()

    def close(self) -> None:
        """Leave the optimizer's steps alone; a step under way is dropped."""
        self._own.__exit__(StopIteration)

    # What the default stages do

    def compute(self, loss: Tensor) -> None:
        """Add the gradients of a loss that is this step's share of the update already."""
        update = self.update
        window = self.run.window
        self._check_window()
        self._left = []
        if update.name in self._own.completed:  # a second loss: they are averaged already
            self._run_exactly(loss.backward)
            update.average()
            return
        update.holds_all = update.holds_all or self.has_others
        # gradients of a stand-in are dropped before they are averaged
        overlaps = self._kept is None
        share = Window(is_last=window.is_last, size=window.size, overlaps=overlaps)
        self._run_exactly(update.backward, loss, share)
        self._own.partial.add(update.name)
        if window.is_last:
            self.complete()

    def complete(self) -> None:
        """Average the gradients over all processes and take the loss scale out of them, once an
        update."""
        update = self.update
        own = self._own
        if update.name in own.completed or self.is_taken:
            return
        if self._kept is not None:
            self._drop_stand_in()
        if update.scaler is not None and update.name not in own.partial:
            raise ConfigurationError(
                "unscaled-loss",
                "mixed_precision='fp16' needs scaled losses, but the gradients were computed by "
                "`loss.backward()`: call `super().backward_step(loss)` (or "
                "`self.backward_step(loss)`), or use mixed_precision='bf16', which needs no "
                "scaling.",
            )
        update.complete()
        own.partial.discard(update.name)
        own.completed.add(update.name)
        if not update.num_updates:
            check_reached(update.params, update.name)

    def clip(self) -> None:
        """Clip the complete gradients by the value of the run config."""
        self.complete()
        self.update.clip()

    def step(self) -> None:
        """Step the optimizer, unless `backward_step` has done so."""
        if self.is_taken:
            return
        self.complete()
        self._before_step(self.update)
        self._run_exactly(self.update.step)
        self._after_step(self.update)

    def drop(self) -> None:
        """Zero the gradients after an update."""
        self.update.zero()
        self._own.partial.discard(self.update.name)
        self._own.completed.discard(self.update.name)

    def _run_exactly(self, function: Callable[..., Any], *args: Any) -> None:
        """Backward passes and optimizer steps are outside of autocast."""
        if not self._autocasts:
            function(*args)
            return
        with self.run.runtime.no_autocast or nullcontext():
            function(*args)
        torch.clear_autocast_cache()  # it holds weights as they were before the step

    # What the user does

    @contextmanager
    def own_backward(self, loss: Tensor) -> Iterator[None]:
        """A `backward_step` of the user's; a plain step in it is that of the update."""
        if self.update.defers_loss_check:
            self.update.flag_nonfinite(loss)
        self._check_window()
        self._is_in_backward = True
        try:
            yield
            self._check_window(is_over=True)
        finally:
            self._is_in_backward = False

    def _before_step(self, update: OptimizerUpdate) -> None:
        """Prepare a step of the optimizer, the default one or a plain one of the user's."""
        if update is self.update:
            if self._kept is not None:
                self._drop_stand_in()
            self._scale = 0.0 if update.scaler is None else update.scaler.get_scale()

    def _after_step(self, update: OptimizerUpdate) -> None:
        if update is self.update:
            scaler = update.scaler
            self.was_skipped = scaler is not None and scaler.get_scale() < self._scale
            self.is_taken = self._is_in_backward
            self._own.completed.discard(update.name)

    # A batch

    def open_batch(self) -> None:
        """A batch is about to be trained on; what a stand-in for no samples adds is dropped."""
        self.is_taken = False
        self._kept = None
        if self.run.window.size == 0:
            params = self.update.params
            self._kept = [(p, None if p.grad is None else p.grad.clone()) for p in params]

    def close_batch(self) -> None:
        if self._kept is not None:
            self._drop_stand_in()
        self._own.end_step()
        # the first window is enough to see how a program is written
        if not self.run.window.is_last and not self.update.num_updates:
            grads = ((param, param.grad) for param in self.update.params)
            self._left = [(p, grad, version_of(grad)) for p, grad in grads if grad is not None]

    def _drop_stand_in(self) -> None:
        for param, grad in self._kept or ():
            param.grad = grad
        self._kept = None

    def _check_window(self, *, is_over: bool = False) -> None:
        """Refuse to lose the gradients of a window's earlier batches; `is_over` if the next
        backward pass is over, which has added to them."""
        if any(
            param.grad is not grad or (not is_over and version_of(grad) != version)
            for param, grad, version in self._left
        ):
            raise ConfigurationError(
                "gradients-lost",
                "Gradients were changed by `zero_grad()` or clipping before their update was "
                "complete, which takes several batches with gradient_accumulation_steps: leave "
                "zeroing to `optimizer_zero_grad` and clipping to `optimizer_step` or "
                "`_clip_gradients`, which are called once per update.",
            )
        if is_over:
            self._left = []


class WeightsWatch:
    """Looks at the optimizer's parameters from here on: whether a step with gradients, or anybody
    else, changes one."""

    def __init__(self, core: LifecycleCore) -> None:
        self.core = core
        self._num_updates = core.progress.update
        self._num_steps = self._steps_with_gradients()
        self._versions = self._current_versions()

    def check(self, method: str, remedy: str) -> None:
        """Refuse default epochs without a single step; of a method of the user's own, which may
        mean it, say so."""
        core = self.core
        trainer = core.interface
        has_stepped = self._steps_with_gradients() != self._num_steps
        if has_stepped or self._current_versions() != self._versions:
            return
        num_updates = core.progress.update - self._num_updates
        if num_updates and not trainer._overrides("_run_train_epoch"):
            raise ConfigurationError(
                "nothing-trained",
                f"Nothing was trained: in {num_updates} updates, no optimizer step had gradients, "
                "so the weights have not changed. Call `self.optimizer.step()` in "
                "`optimizer_step` and `self.optimizer_step()` in `_update_weights` if you replace "
                "them, and zero the gradients after that step, as `optimizer_zero_grad` does, not "
                "before it.",
            )
        if trainer._overrides(method) and trainer.run_config.num_epochs:
            trainer.print(
                f"`{method}` trained nothing: it ended without an optimizer step that had "
                f"gradients, so the weights have not changed. To train, {remedy} in it, or remove "
                f"`{method}`."
            )

    def _steps_with_gradients(self) -> int:
        update = self.core.optimizer_update
        return update.num_updates - update.empty_steps + update.epoch.skipped

    def _current_versions(self) -> list[tuple[int, int]]:
        params = self.core.optimizer_update.params
        return [(id(param), version_of(param)) for param in params]

"""What a step of a run works on: batches that are steps, the gradients of the update under way, and
`gather`, also where a process has no sample to gather."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..._torch_compat import version_of
from ...data.open import Stream
from ...data.sharding import ShardedBatches
from ...errors import ConfigurationError
from ...runtime import Runtime
from ...training.components import check_reached
from ...training.own_steps import OwnSteps
from ...training.update import OptimizerUpdate, Window
from ...trees import map_leaves

if TYPE_CHECKING:
    from ...training.run import TrainingRun
    from .core import LifecycleCore

# what a process did, as the others are told of it
GATHER = "called gather"
FIRST = "called gather for the first time in an evaluation step"
OVER = "went through an evaluation step without calling gather"
WAITING = "had no sample in an evaluation step"
END = "reached the end of the evaluation"


class PreparedLoader:
    """Another loader's batches, on the device, in the order that the seed and the epoch say.

    Each batch that is taken from a training loader is a step of the run. Batches of an evaluation
    loader come in eval mode and without gradients until they are through. All other attributes are
    the other loader's.
    """

    def __init__(self, core: LifecycleCore, loader: Any, is_training: bool) -> None:
        self.core = core
        self.loader = loader
        self.is_training = is_training
        self.opened: Stream | None = None

    def stream(self) -> Stream:
        """The stream over the batches, opened at its first use and adapted by the callbacks."""
        if self.opened is None:
            self.opened = self.core._open(self.loader, None, shuffle=self.is_training)
        stream = self.opened
        for callback in self.core.interface.callback_handler.callbacks:
            stream = callback.adapt_stream(
                stream, is_training=self.is_training, is_intermediate=self.core.is_intermediate
            )
        return stream

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()
        self.opened = None

    def __iter__(self) -> Iterator[Any]:
        core = self.core
        return core.training_batches(self) if self.is_training else core.evaluation_batches(self)

    def __len__(self) -> int:
        length = self.stream().num_batches
        if length is None:
            raise TypeError(
                f"{type(self.loader).__name__} over data without a length has no length."
            )
        return length

    def __getattr__(self, name: str) -> Any:
        if name in ("core", "loader"):
            raise AttributeError(name)  # before `__init__`, as when it is copied
        return getattr(self.loader, name)


class StageGradients:
    """Keeps gradients right where a stage was replaced: averaged over processes and unscaled, once,
    before their use.

    They are complete after the `backward_step` of a window's last batch, and at the latest when the
    optimizer steps: `OwnSteps` sees to that for a plain `optimizer.step()`, wherever the user
    writes it. Losses are divided before `backward_step`.
    """

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        self.update = run.updates.by_name["optimizer"]
        self.was_skipped = False  # whether the loss scaler left out the last optimizer step
        self.is_taken = False  # whether `backward_step` has stepped the optimizer
        self._is_in_backward = False
        self._scale = 0.0  # of losses, before a step
        # gradients before a batch that only stands in for no samples
        self._kept: list[tuple[nn.Parameter, Tensor | None]] = []
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
        # optimizers that the user steps need gradients too
        update.holds_all = update.holds_all or len(self.run.components.optimizers) > 1
        # gradients of a stand-in are dropped before they are averaged
        share = Window(is_last=window.is_last, size=window.size, overlaps=not self._kept)
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
        if self.run.runtime.precision == "fp32":
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
        self.update = self.run.updates.by_name["optimizer"]  # it may have been replaced
        self.is_taken = False
        self._kept = []
        if self.run.window.size == 0:
            params = self.update.params
            self._kept = [(p, None if p.grad is None else p.grad.clone()) for p in params]

    def close_batch(self) -> None:
        self._drop_stand_in()
        self._own.end_step()
        # the first window is enough to see how a program is written
        if not self.run.window.is_last and not self.update.num_updates:
            grads = ((param, param.grad) for param in self.update.params)
            self._left = [(p, grad, version_of(grad)) for p, grad in grads if grad is not None]

    def _drop_stand_in(self) -> None:
        for param, grad in self._kept:
            param.grad = grad
        self._kept = []

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


class Gathering:
    """`gather` with a message before it that names each process's call, so that a mistake is an
    error and no deadlock.

    In the last round of an evaluation there may be fewer samples than processes. A process without
    one takes the step with a sample of another if, and only if, the others gather in it; its own
    rows are left out of the result.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.is_stand_in = False
        self._is_uneven = False

    def gather(self, value: Any, padding_value: float | None = None) -> Any:
        """The rows of all processes, in tensors and containers of them; of one process, the value
        itself."""
        if self.runtime.world == 1:
            return value
        if self._is_uneven and not self.is_stand_in:
            self._say(FIRST)
            self._is_uneven = False
        kinds = map_leaves(lambda leaf: type(leaf).__name__, value)
        self._say(f"{GATHER} with {kinds}")
        return map_leaves(lambda tensor: self._rows(tensor, padding_value), value)

    def _rows(self, tensor: Tensor, padding_value: float | None) -> Tensor:
        rows = tensor if tensor.dim() else tensor.reshape(1)
        return self.runtime.gather(rows[:0] if self.is_stand_in else rows, padding_value)

    # Rounds of an evaluation

    def begin_round(self, stream: Any, size: int, total: int | None) -> None:
        """Find out whether some process has no sample of this round; all of them know."""
        self._is_uneven = False
        if total is None or self.runtime.world == 1:
            return
        while stream is not None and not isinstance(stream, ShardedBatches):
            stream = getattr(stream, "_stream", None)
        if total < self.runtime.num_shares:
            self._is_uneven = True
        elif stream is not None:
            # ready batches are dealt out whole: how many there are says nothing of samples
            self._is_uneven = 0 in self.runtime.gather_objects(size)

    def end_round(self) -> None:
        """End an evaluation step on a sample of this process's own."""
        if self._is_uneven:
            self._say(OVER)
        self._is_uneven = False

    def is_needed(self) -> bool:
        """Whether a process without a sample has to take the step, since the others gather in
        it."""
        self._is_uneven = False
        return FIRST in self._say(WAITING)

    def end(self) -> None:
        """End the evaluation on this process; all other processes must have reached its end too."""
        if self.runtime.world > 1:
            self._say(END)

    def _say(self, kind: str) -> list[str]:
        """Exchange what each process does; all of them raise where they took different paths."""
        kinds = self.runtime.gather_objects(kind)
        others = set(kinds) - {WAITING}
        if len(others) < 2 and (others <= {FIRST, OVER} or WAITING not in kinds):
            return kinds
        paths = ", ".join(f"process {rank} {kind}" for rank, kind in enumerate(kinds))
        raise ConfigurationError(
            "gather-on-some-processes",
            f"The processes took different paths: {paths}. `gather` waits for all processes: call "
            "it on every process, equally often, in the same order and with the same kinds of "
            "values, and not under a condition such as `if self.run_config.is_world_process_zero`.",
        )

"""The core trainer behind the simple door: it asks the door for every part that a user may have overridden."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, SupportsFloat

import torch
from torch import nn

from .. import loop
from ..building import Interval
from ..callbacks.nonfinite import NonFiniteGuard
from ..components import evaluating, start_training_mode
from ..data.seeding import preserved_rng, set_rng_state
from ..errors import ConfigurationError, Interrupted
from ..optimization import Lane
from ..progress import Limits
from ..resuming import Mark
from ..trainer import Trainer as CoreTrainer
from ._simple_config import Settings

if TYPE_CHECKING:
    from ..data.stream import Stream
    from .simple import Trainer

EpochFunction = Callable[[int], Mapping[str, float]]
EpochListener = Callable[[int, dict[str, float]], None]


class Engine(CoreTrainer):
    """Maps the core's names onto the door's; batches reach the door's steps as the loader gave them."""

    update_call = "super().train_step(batch)"
    without_place = "Training"

    def __init__(
        self,
        door: Trainer,
        *,
        model: nn.Module,
        optimizer: Any,
        loss_fn: Any,
        settings: Settings,
        device: torch.device | str | None,
        scheduler: Any,
    ) -> None:
        guard = NonFiniteGuard()
        super().__init__(
            model,
            _default_optimizer(settings.weight_decay) if optimizer is None else optimizer,
            loss_fn,
            scheduler=scheduler,
            callbacks=[guard],
            accumulate=settings.gradient_accumulation_steps or 1,
            clip_norm=settings.max_grad_norm,
            runtime=device,
            seed=None,
        )
        guard.on_train_start(self)  # single steps are guarded as well, and they come without a `train` call
        self.door = door
        self.best_model_mode = settings.best_model_mode
        self._per_batch = settings.scheduler_step_per_batch
        self._epoch: EpochFunction | None = None
        self._end_epoch: EpochListener | None = None
        self._save: Callable[[], None] | None = None
        self._eval_data: Any = None

    # What the door's user may have overridden

    def prepare_batch(self, batch: Any) -> Any:
        return batch

    def split_batch(self, batch: Any) -> tuple[Any, Any]:
        return self.door._prepare_batch(batch)

    def forward(self, inputs: Any) -> Any:
        return self.door._forward_pass(inputs)

    def compute_loss(self, outputs: Any, targets: Any) -> Any:
        return self.door._compute_loss(outputs, targets)

    def train_step(self, batch: Any) -> Any:
        """The door's own step without reading its loss from the device, or what a subclass made of it."""
        return self.door.train_step(batch) if self.door._overrides("train_step") else self.learn(batch)

    @property
    def has_default_step(self) -> bool:
        return not self.door._overrides("train_step")

    def check_own_step(self, lane: Lane) -> None:
        """A step of the user's own clips as it likes; what it cannot do is accumulate."""
        if self.accumulate > 1:
            raise ConfigurationError(
                "train_step called optimizer.step() itself, after every batch, and "
                f"training.gradient_accumulation_steps is {self.accumulate}: call super().train_step(batch) in it, or "
                "leave out that setting."
            )

    def eval_step(self, batch: Any) -> Any:
        return self.door.eval_step(batch) if self.door._overrides("eval_step") else self.measure(batch)

    def learn(self, batch: Any) -> Any:
        """The step as the core takes it, from the door's parts."""
        return super().train_step(batch)

    def measure(self, batch: Any) -> Any:
        """The evaluation of a batch as the core does it, from the door's parts."""
        return super().eval_step(batch)

    # Components

    def configure_optimizers(self) -> None:
        super().configure_optimizers()
        if self._per_batch is None:
            return
        for name, schedule in self.schedules.items():
            if schedule.every is not None:
                continue
            if schedule.watches and self._per_batch:
                raise ConfigurationError(
                    "ReduceLROnPlateau watches a metric of whole epochs and cannot be stepped after each batch: set "
                    "training.scheduler_step_per_batch to False, or use another scheduler."
                )
            interval: Interval = "update" if self._per_batch else "epoch"
            self.schedules[name] = replace(schedule, every=interval)

    def ready_for_step(self) -> None:
        """What a single step needs, outside of `train` as well as inside."""
        if not self.optimization.lanes:
            self.setup_training()
        self.adopt_replaced()
        self.optimization.refresh(self.modules.values())
        start_training_mode(self.modules.values(), self.optimizers.values())

    def continue_from(self, state: Mapping[str, Any]) -> None:
        """Go on exactly from a checkpoint, inside its epoch too; not while training, whose own count decides."""
        from ..checkpoint.capture import load_meter, note_steps, own_rng

        self.progress.load_state_dict(state["progress"])
        self.history.load_state_dict(state["history"])
        load_meter(self, state["meter"])
        note_steps(self, self.progress.update)
        self.num_calls = self.progress.call
        self.stop_reason = state["stop_reason"]
        self.fingerprint = state.get("fingerprint")  # the run that goes on is the one that was saved
        self.mark = Mark(state["data"], own_rng(state["rng"], self), state["lanes"], state.get("eval_data"))
        set_rng_state(self.mark.rng)

    def single_eval_mode(self) -> AbstractContextManager[None]:
        """Eval mode for one batch; inside an evaluation of the loop, which already has it, nothing."""
        return nullcontext() if self._phases else self.eval_mode()

    # Epochs

    @property
    def is_running(self) -> bool:
        return self._epoch is not None

    def run_epochs(
        self,
        data: Any,
        num_epochs: int,
        epoch: EpochFunction,
        end_epoch: EpochListener,
        save: Callable[[], None] | None = None,
    ) -> None:
        """Call `epoch` for each epoch (from 0) inside one `train` call, and then `end_epoch` with what it returned.

        An epoch that an exception cut short starts over in the next call. `save` is called after an update, when a
        signal asked for it.
        """
        if self.is_running:
            raise ConfigurationError("train() was called while this trainer is training: call it after that has ended.")
        self._epoch, self._end_epoch, self._save = epoch, end_epoch, save
        try:
            self.train(data, num_epochs)
        finally:
            self._epoch = self._end_epoch = self._save = None
            self.progress.epoch_step = self.progress.epoch_sample = 0
            self.progress.is_exhausted = False

    def run_epoch(self, stream: Stream, until: Limits) -> None:
        """One epoch of the clock, whatever a subclass does in it: its own loop, one pass over the data, or two."""
        assert self._epoch is not None
        assert self._end_epoch is not None
        start, number = self.progress.epoch, self.progress.epoch - self.progress.call_epoch
        metrics = as_numbers(self._epoch(number), "train_epoch")
        self.progress.epoch = start
        self.progress.next_epoch()
        loss = {"loss": metrics["train_loss"]} if "train_loss" in metrics else {}
        super().schedule_epoch(metrics | loss)
        self._end_epoch(number, metrics)
        self.progress.epoch = start + 1  # a callback may have trained, too

    def schedule_epoch(self, row: Mapping[str, float]) -> None:
        """Nothing yet: the door's `train_epoch` may still add metrics, or pass over the data again."""

    def pass_over(self, data: Any, eval_data: Any) -> dict[str, float]:
        """Train on all batches of the data once, then evaluate; the metrics under the door's names."""
        is_own = data is self.train_data and self.train_stream is not None
        stream = self.train_stream if is_own else self.open(data, None, shuffle=True)
        assert stream is not None
        self._eval_data = eval_data
        try:
            loop.train_epoch(self, stream, Limits())
        finally:
            self._eval_data = None
            if not is_own:
                stream.close()
        if self.is_interrupted:  # there are no metrics that a subclass could go on with
            if self._save is not None:
                self._save()
            raise Interrupted(self.signals.exit_code)
        row = self.history.epochs[-1]
        return {name if name.startswith("eval_") else f"train_{name}": value for name, value in row.items()}

    def on_update_end(self) -> None:
        if self.signals.take_save() and self._save is not None:
            self._save()

    def on_train_epoch_end(self) -> None:
        """Evaluate through the door, so that a subclass's `evaluate` counts; it may leave modes and seeds changed."""
        if self._eval_data is None:
            return
        with evaluating(self.modules.values(), ()), preserved_rng():
            metrics = as_numbers(self.door.evaluate(self._eval_data), "evaluate")
        self.log({f"eval_{name}": value for name, value in metrics.items()})

    def names_of_one_batch(self, data: Any) -> set[str]:
        """The metrics that an evaluation of this data will have, found out with its first batch."""
        stream = self.open(data, None, shuffle=False)
        try:
            stream.begin(0)
            before = stream.state_dict() if stream.spans_epochs else None
            batches = [batch.value for batch in stream.take(1)]
            if before is not None:
                stream.load_state_dict(before)
        finally:
            stream.close()
        return set(self.evaluate(batches))


def as_numbers(returned: Any, method: str) -> dict[str, float]:
    """The metrics that an overridden method returned, as floats."""
    if isinstance(returned, Mapping) and all(isinstance(value, SupportsFloat) for value in returned.values()):
        return {name: float(value) for name, value in returned.items()}
    shown = type(returned).__name__
    if isinstance(returned, Mapping):
        shown = ", ".join(f"{name}: {type(value).__name__}" for name, value in returned.items())
    raise ConfigurationError(f"{method} returned {shown}; expected a dict of metrics, each of them a number.")


def _default_optimizer(weight_decay: float | None) -> Callable[..., torch.optim.Optimizer]:
    if weight_decay is None:
        return torch.optim.AdamW
    return partial(torch.optim.AdamW, weight_decay=weight_decay)

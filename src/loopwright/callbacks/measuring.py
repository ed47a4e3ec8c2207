"""Callbacks that log what training does and what it costs: rates, norms, speed, time, memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from time import perf_counter
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from ..callback import Callback
from .interval import AtIntervals, Every, Periodic
from .progress import TimeLeft, done_of

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..data.open import Stream
    from ..metrics.result import StepResult

MEGABYTE = 1 << 20


class LearningRateLog(AtIntervals):
    """Logs the learning rate that each step was taken with, and the last one of every epoch.

    It is called `lr`, or `lr/<optimizer>/<group>` where there is more than one. With an interval,
    only the steps that end one are logged, or only the epochs.

    Args:
        every_n_epochs: Log the rate of every n-th epoch only, and of no step.
        every_n_updates: Log the step of every n-th update only.
        every_n_samples: Log the step that completes n more samples only.

    >>> import torch, loopwright
    >>> from loopwright.callbacks import LearningRateLog
    >>> data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = loopwright.Trainer(
    ...     model, optimizer, torch.nn.functional.mse_loss, callbacks=[LearningRateLog()], progress="silent"
    ... )
    >>> history = trainer.train(data, num_epochs=2, batch_size=4)
    >>> list(history.steps["lr"]), history["lr"]
    ([0.1, 0.1, 0.1, 0.1], [0.1, 0.1])
    """

    def __init__(self, **every: Unpack[Every]) -> None:
        super().__init__(**every)
        by_update = ("on_update_end", "on_rewind") if self.interval.unit == "epoch" else ()
        has_interval = any(n is not None for n in every.values())
        self.ignored_events = ("on_train_step_end", *by_update) if has_interval else by_update
        self._rates: dict[str, float | Tensor] = {}

    def on_update_end(self, trainer: Trainer) -> None:
        if self.interval.is_due_after_update(trainer.progress):
            trainer.log_step(self._rates)

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        """Before the step, because afterwards schedulers have moved on to the next rate."""
        self._rates = learning_rates(trainer)

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: Any) -> None:
        trainer.log_step(self._rates)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        interval = self.interval
        if interval.unit != "epoch" or interval.is_due_after_epoch(trainer.progress.epoch + 1):
            trainer.log(self._rates)

    def state_dict(self) -> dict[str, Any]:
        return {"rates": dict(self._rates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rates = dict(state["rates"])


def learning_rates(trainer: Trainer) -> dict[str, float | Tensor]:
    """The learning rate of every parameter group of every optimizer, by name."""
    rates: dict[str, float | Tensor] = {}
    for name, optimizer in trainer.optimizers.items():
        for number, group in enumerate(optimizer.param_groups):
            rate = group.get("lr")
            if rate is None:
                continue
            # a tensor is changed in place by the next step of its scheduler
            copied = rate.detach().clone() if isinstance(rate, Tensor) else rate
            rates[f"lr/{name}/{number}"] = copied
    return {"lr": next(iter(rates.values()))} if len(rates) == 1 else rates


class GradientNormLog(Callback):
    """Logs the norm of each optimizer's gradients, before clipping, at the step that ends in its
    update.

    It is called `grad_norm`, or `grad_norm/<optimizer>` where there are several; the epoch's row
    has the mean. Where `clip_norm` computes the norm anyway, that one is used. No host sync is
    needed.

    >>> import torch, loopwright
    >>> from loopwright.callbacks import GradientNormLog
    >>> data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = loopwright.Trainer(
    ...     model, optimizer, torch.nn.functional.mse_loss, callbacks=[GradientNormLog()], progress="silent"
    ... )
    >>> history = trainer.train(data, num_epochs=1, batch_size=4)
    >>> len(history.steps["grad_norm"]), history.last("grad_norm") > 0
    (2, True)
    """

    def __init__(self) -> None:
        self._norms: dict[str, Tensor | None] = {}

    def metric_names(self, known: set[str]) -> set[str]:
        return {"grad_norm"}

    def on_optimizer_start(self, trainer: Trainer, optimizer: str) -> None:
        update = trainer.run.updates.by_name[optimizer]
        if update.clip_norm is not None and update.clip_value is None and not update.is_joined:
            self._norms[optimizer] = None
            return
        grads = [param.grad for param in update.params if param.grad is not None]
        self._norms[optimizer] = torch.nn.utils.get_total_norm(grads)

    def on_update_end(self, trainer: Trainer) -> None:
        updates = trainer.run.updates.by_name
        norms = self._norms
        self._norms = {}
        for name, norm in norms.items():
            label = "grad_norm" if len(updates) == 1 else f"grad_norm/{name}"
            trainer.log_step({label: updates[name].norm if norm is None else norm})

    def on_rewind(self, trainer: Trainer) -> None:
        self._norms = {}


class Throughput(Callback):
    """Adds `samples_per_second` and `steps_per_second` of the training part of each epoch to its
    row.

    The time of evaluations is left out. Both are measured on the clock, so the metrics of two runs
    are no longer identical where this is used.

    >>> import torch, loopwright
    >>> from loopwright.callbacks import Throughput
    >>> data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = loopwright.Trainer(
    ...     model, optimizer, torch.nn.functional.mse_loss, callbacks=[Throughput()], progress="silent"
    ... )
    >>> history = trainer.train(data, num_epochs=1, batch_size=4)
    >>> history.last("samples_per_second") > history.last("steps_per_second")
    True
    """

    def __init__(self) -> None:
        self._began: dict[str, float] = {"sample": 0, "step": 0, "seconds": 0.0}

    def metric_names(self, known: set[str]) -> set[str]:
        return {"samples_per_second", "steps_per_second"}

    def on_epoch_start(self, trainer: Trainer) -> None:
        progress = trainer.progress
        self._began = {
            "sample": progress.sample,
            "step": progress.step,
            "seconds": progress.seconds,
        }

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        progress = trainer.progress
        seconds = progress.seconds - self._began["seconds"]
        if seconds > 0:
            samples = progress.sample - self._began["sample"]
            steps = progress.step - self._began["step"]
            trainer.log(
                {"samples_per_second": samples / seconds, "steps_per_second": steps / seconds}
            )

    def state_dict(self) -> dict[str, Any]:
        return {"began": dict(self._began)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._began = dict(state["began"])


class TrainTime(Periodic):
    """Logs how many seconds went into data, forward pass, backward pass and optimizer update since
    the last time.

    The metrics are `data_seconds`, `forward_seconds`, `backward_seconds` and `update_seconds`.
    Waiting for data includes moving it to the device and whatever callbacks do between two steps.
    On CUDA, each boundary waits for the device, so that each part has its own time.
    The metrics of two runs are no longer identical where this is used.

    Args:
        every_n_epochs: Log after every n-th epoch.
        every_n_updates: Log after every n-th update.
        every_n_samples: Log after the update that completes n more samples.

    >>> import torch, loopwright
    >>> from loopwright.callbacks import TrainTime
    >>> data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = loopwright.Trainer(
    ...     model, optimizer, torch.nn.functional.mse_loss, callbacks=[TrainTime(every_n_epochs=1)], progress="silent"
    ... )
    >>> trainer.train(data, num_epochs=1, batch_size=4).last("forward_seconds") > 0
    True
    """

    def __init__(self, **every: Unpack[Every]) -> None:
        super().__init__(**every)
        self._seconds: dict[str, float] = dict.fromkeys(
            ("data", "forward", "backward", "update"), 0.0
        )
        self._last = 0.0
        self._waits = False
        self._wrapped: list[Any] = []
        self._on_joint: list[Callable[[Any], None]] = []

    def metric_names(self, known: set[str]) -> set[str]:
        return {f"{part}_seconds" for part in self._seconds}

    def on_train_start(self, trainer: Trainer) -> None:
        super().on_train_start(trainer)
        self._waits = trainer.runtime.device.type == "cuda"
        for update in trainer.run.updates.every():
            self._wrap(update)
        self._on_joint = trainer.run.updates.on_joint
        self._on_joint.append(self._wrap)
        self._mark(None)

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        self._mark("data")

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: Any) -> None:
        self._mark("forward")

    def on_eval_start(self, trainer: Trainer, data: Stream) -> None:
        self._mark("data")

    def on_eval_end(self, trainer: Trainer, data: Stream) -> None:
        """What an evaluation took belongs to no part of training."""
        self._mark(None)

    def on_loop_end(self, trainer: Trainer) -> None:
        self._unwrap()

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        self._unwrap()

    def measure(self, trainer: Trainer) -> Mapping[str, float]:
        measured = {f"{part}_seconds": seconds for part, seconds in self._seconds.items()}
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        return measured

    def _mark(self, part: str | None) -> None:
        """The time since the last mark belongs to this part."""
        if self._waits:
            torch.cuda.synchronize()
        now = perf_counter()
        if part is not None:
            self._seconds[part] += now - self._last
        self._last = now

    def _wrap(self, update: Any) -> None:
        """Note when backward passes and updates begin and end: no event tells of it, since nobody
        else needs it."""
        vars(update).update(
            backward=self._timed(update.backward, "backward"),
            finish=self._timed(update.finish, "update"),
        )
        self._wrapped.append(update)

    def _timed(self, function: Callable[..., None], part: str) -> Callable[..., None]:
        def timed(*args: Any, **kwargs: Any) -> None:
            self._mark("forward")
            function(*args, **kwargs)
            self._mark(part)

        return timed

    def _unwrap(self) -> None:
        for update in self._wrapped:
            vars(update).pop("backward", None)
            vars(update).pop("finish", None)
        self._wrapped = []
        if self._wrap in self._on_joint:
            self._on_joint.remove(self._wrap)


class PeakMemory(Periodic):
    """Logs the most memory that was in use so far, in megabytes, as `peak_memory_mb`.

    On CUDA that is the memory that torch had allocated on the device, elsewhere the resident memory
    of the process.

    Args:
        every_n_epochs: Log after every n-th epoch.
        every_n_updates: Log after every n-th update.
        every_n_samples: Log after the update that completes n more samples.

    >>> import torch, loopwright
    >>> from loopwright.callbacks import PeakMemory
    >>> data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = loopwright.Trainer(
    ...     model, optimizer, torch.nn.functional.mse_loss, callbacks=[PeakMemory(every_n_epochs=1)], progress="silent"
    ... )
    >>> trainer.train(data, num_epochs=1, batch_size=4).last("peak_memory_mb") > 0
    True
    """

    def metric_names(self, known: set[str]) -> set[str]:
        return {"peak_memory_mb"}

    def measure(self, trainer: Trainer) -> Mapping[str, float]:
        device = trainer.runtime.device
        if device.type == "cuda":
            return {"peak_memory_mb": torch.cuda.max_memory_allocated(device) / MEGABYTE}
        return {"peak_memory_mb": process_peak() / MEGABYTE}


def process_peak() -> int:
    """The largest resident memory of this process so far, in bytes."""
    import resource  # not on every system

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


class ProgressLine(Periodic):
    """Prints the epoch, update and sample that a run is at, its speed, and an estimate of the time
    that is left.

    Epochs are counted from 1, as in the progress bar. The time that is left is estimated from the
    limit that will be reached first and the time of this `train` call so far in this process, with
    its evaluations; the speed does not include them.

    Args:
        every_n_epochs: Print after every n-th epoch.
        every_n_updates: Print after every n-th update.
        every_n_samples: Print after the update that completes n more samples.

    >>> from loopwright.callbacks import ProgressLine
    >>> ProgressLine(every_n_updates=100).interval.unit
    'update'
    """

    _left: TimeLeft

    def on_train_start(self, trainer: Trainer) -> None:
        super().on_train_start(trainer)
        self._left = TimeLeft(trainer)

    def fire(self, trainer: Trainer) -> None:
        progress = trainer.progress
        until = trainer.run.call.limits
        counts = {
            f"epoch {progress.epoch + 1}": until.epochs,
            f"update {progress.update}": until.updates,
            f"sample {progress.sample}": until.samples,
        }
        parts = [now if limit is None else f"{now}/{limit}" for now, limit in counts.items()]
        seconds = progress.seconds - progress.call_seconds
        updates = progress.update - progress.call_update
        if seconds > 0 and updates:
            parts.append(f"{updates / seconds:.3g} updates/s")
        done = done_of(trainer)
        left = self._left.of_run(trainer)
        if done is not None and left is not None:
            parts.append(f"{done:.1%} done, {timedelta(seconds=round(left))} to go")
        trainer.run.say("  ".join(parts))


class AdditionalOutputs(Periodic):
    """Records `StepResult.outputs` of the last step of an interval: by name if it is a dict, else
    as "outputs".

    Single numbers are logged under their names. Other tensors are written to
    `artifacts/outputs/update-<n>.safetensors` of the run directory; the attribute `latest` has the
    last ones. With several processes, numbers are averaged, weighted by samples, and tensors are
    concatenated.

    Args:
        keys: The names to record; all by default.
        every_n_epochs: The interval in epochs. Give one interval.
        every_n_updates: The interval in updates.
        every_n_samples: The interval in samples.

    >>> from loopwright.callbacks import AdditionalOutputs
    >>> callback = AdditionalOutputs(["logits"], every_n_updates=100)
    """

    def __init__(self, keys: Sequence[str] | None = None, **every: Unpack[Every]) -> None:
        super().__init__(**every)
        self.keys = None if keys is None else tuple(keys)
        self.latest: dict[str, Tensor] = {}
        self._result: StepResult | None = None
        self._size = 0

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        self._result = result if trainer.run.window.is_last else None
        self._size = trainer.run.window.size

    def on_update_end(self, trainer: Trainer) -> None:
        super().on_update_end(trainer)
        self._result = None  # frees the memory before the next forward pass

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        super().on_train_epoch_end(trainer)
        self._result = None

    def measure(self, trainer: Trainer) -> Mapping[str, float]:
        """Return the single numbers; write the other tensors."""
        own = {} if self._result is None else self._chosen(self._result.outputs)
        each = trainer.runtime.gather_each((self._size, own))
        each = [(size, found) for size, found in each if size > 0]  # a rank may have no samples
        numbers: dict[str, float] = {}
        latest: dict[str, Tensor] = {}
        for name in dict.fromkeys(name for _, found in each for name in found):
            parts = [(size, found[name]) for size, found in each if name in found]
            values = [value for _, value in parts]
            if all(value.dim() == 0 for value in values):
                total = sum(size * value.item() for size, value in parts)
                numbers[name] = total / sum(size for size, _ in parts)
            elif all(value.shape[1:] == values[0].shape[1:] for value in values):
                latest[name] = torch.cat(values)
            else:  # one sample per row nowhere
                latest |= {f"{name}.{rank}": value for rank, value in enumerate(values)}
        if numbers or latest:
            self.latest = latest
        if latest and trainer.run.files.directory is not None and trainer.runtime.is_main:
            from ..checkpoint import save_weights, update_name

            folder = trainer.run.files.directory.artifacts / "outputs"
            folder.mkdir(exist_ok=True)
            save_weights(folder / f"{update_name(trainer.progress.update)}.safetensors", latest)
        return numbers

    def _chosen(self, outputs: Any) -> dict[str, Tensor]:
        named = outputs if isinstance(outputs, Mapping) else {"outputs": outputs}
        chosen = {}
        for name, value in named.items():
            if self.keys is not None and name not in self.keys:
                continue
            if isinstance(value, int | float):
                chosen[str(name)] = torch.tensor(value, dtype=torch.float64)
            elif isinstance(value, Tensor):
                chosen[str(name)] = value.detach().cpu().clone()
        return chosen

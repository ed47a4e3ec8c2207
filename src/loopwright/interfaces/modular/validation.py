"""What steps of a modular trainer return: checked, without graphs, and with the metrics of outputs
and targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from ...errors import ConfigurationError
from ...metrics.meter import ComputedMetric, Meter
from ...metrics.result import StepResult
from ...training.evaluate import evaluate, measuring
from .components import without_padding

if TYPE_CHECKING:
    from ...data.open import Stream
    from .engine import Engine
    from .trainer import DreamTrainer


def is_named(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether it is a mapping: of a dict, which most steps return, without an abstract class."""
    return type(value) is dict or isinstance(value, Mapping)


def measured_in(interface: DreamTrainer, returned: Any) -> Any:
    """What a step returned, with the metrics of its outputs and targets in place of those."""
    if not is_named(returned) or not {"outputs", "targets"} <= returned.keys():
        return returned
    rest = {name: value for name, value in returned.items() if name not in ("outputs", "targets")}
    with torch.no_grad():
        computed = interface.compute_metrics(returned["outputs"], returned["targets"])
    if not isinstance(computed, Mapping):
        raise ConfigurationError(
            f"compute_metrics returned {type(computed).__name__}: return a dict of named values, "
            "such as {'accuracy': accuracy}."
        )
    return {**rest, **computed}


def check_returned(returned: Any, step: str) -> None:
    """Refuse what a step returns and no metric can be made of."""
    if not (
        returned is None
        or is_named(returned)
        or isinstance(returned, int | float | Tensor | StepResult)
    ):
        raise ConfigurationError(
            f"`{step}` returned a {type(returned).__name__}: return the loss, a dict of named "
            "values such as {'loss': loss, 'accuracy': accuracy}, or nothing."
        )
    values = returned if is_named(returned) else {}
    for name, value in values.items():
        if isinstance(value, Tensor):
            kind = None if value.numel() == 1 else f"tensor of shape {tuple(value.shape)}"
        else:
            kind = (
                None
                if isinstance(value, int | float | ComputedMetric | None)
                else type(value).__name__
            )
        if kind is not None:
            raise ConfigurationError(
                f"`{step}` returned {name!r}, a {kind}: reduce it to one number, such as its "
                "mean, or leave it out. Only 'outputs' and 'targets', returned together for "
                "`compute_metrics`, may have more values."
            )


def without_graph(returned: Any) -> Any:
    """What a step returned, as callbacks see it: without what only a backward pass needs."""
    if isinstance(returned, Tensor):
        return returned.detach()
    if is_named(returned):
        return {
            name: value.detach() if isinstance(value, Tensor) else value
            for name, value in returned.items()
        }
    return returned


Metrics = dict[str, float]


class Validation:
    """The validation data and what is done with it; `done_at` is the update of the last one."""

    def __init__(self, trainer: Engine) -> None:
        self.trainer = trainer
        self.done_at = 0
        self.defers_signals = False
        self.index = 0
        self._num_samples = 0  # that a loop of the user's own has seen
        self._stream: Stream | None = None

    @property
    def stream(self) -> Stream:
        loader = self.trainer.loaders[1]
        if loader is None:
            raise ConfigurationError(
                "There is no validation data: return a second loader from configure_dataloaders."
            )
        if self._stream is None:
            data = without_padding(loader, self.trainer.runtime.num_shares)
            self._stream = self.trainer._open(data, None, shuffle=False)
        return self._stream

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def run(self) -> Metrics:
        """A validation as the core runs it."""
        with self.trainer.step_set_aside():
            measured = evaluate(self.trainer.run, self.stream)
        return self.note(measured) if measured else {}

    def run_by(self, call: Callable[[], Any]) -> Any:
        """A validation loop of the user's own; what it logs is averaged over all samples, what it
        returns is kept."""
        trainer = self.trainer
        meter = Meter()
        with trainer.step_set_aside(), self.deferring_signals(), measuring(trainer.run, meter):
            trainer.events.emit("on_validation_start")
            self._num_samples = 0
            returned = call()
            self._add(meter, returned)
            measured = meter.compute(
                trainer.runtime.sum_table, gather=trainer.runtime.gather_samples
            )
        self.note(measured)
        return returned

    def _add(self, meter: Meter, returned: Any) -> None:
        """What a loop returned, as the mean over the samples that it saw, on all processes; without
        any, over those."""
        check_returned(returned, "validation_loop")
        total = sum(self.trainer.runtime.gather_each(self._num_samples))
        size = self._num_samples if total else 1
        if returned is not None and size:
            meter.add(StepResult.of(returned, size))

    def note(self, measured: Mapping[str, float]) -> Metrics:
        """Put what a validation measured into the epoch's row and, inside an epoch, beside the
        step."""
        trainer = self.trainer
        self.done_at = trainer.progress.update
        row = _named(measured, self._begins())
        trainer.log(row)
        if trainer.run.meter.num_pending:
            trainer.log_step(row)
        trainer.events.emit("on_validation_end", row)
        return row

    def _begins(self) -> tuple[str, ...]:
        """How names of a validation's metrics begin: also after the prefix of averages that were
        validated, too."""
        from ...callbacks.ema import EMA

        averages = [
            average
            for c in self.trainer.run.callbacks
            if isinstance(c, EMA)
            for average in c.decays
        ]
        return (
            "val_",
            "val/",
            *(f"{average}_val{separator}" for average in averages for separator in "_/"),
        )

    def step(self, batch: Any) -> StepResult:
        """One batch, for the core."""
        trainer = self.trainer
        index = self.index
        self.index += 1
        trainer.events.emit("on_validation_batch_start", batch, index)
        trainer.open_step()
        trainer.interface.validation_step(batch, index)
        result = trainer.close_step(trainer.run.window.size, is_returned=True)
        trainer.events.emit("on_validation_batch_end", trainer.outputs, batch, index)
        return result

    def batches(self) -> Iterator[Any]:
        """Batches for a validation loop of the user's own; a process skips batches of which it has
        no sample.

        The core's `evaluate` computes its steps by `eval_step`; here the user's loop computes and
        logs.
        """
        trainer = self.trainer
        stream = self.stream
        stream.begin(0)
        for index, (value, size, total) in enumerate(stream):
            if size == 0 and total is not None and not trainer.runtime.forwards_together:
                continue
            trainer.run.window.size = size
            self._num_samples += size
            batch = trainer.prepare_batch(value)
            trainer.events.emit("on_validation_batch_start", batch, index)
            yield batch
            trainer.events.emit("on_validation_batch_end", trainer.outputs, batch, index)
        trainer.run.window.size = self._num_samples  # of what is logged after the batches

    @contextmanager
    def deferring_signals(self) -> Iterator[None]:
        """A validation that a resumed run would not do again is finished before a signal is
        obeyed."""
        before = self.defers_signals
        self.defers_signals = True
        try:
            yield
        finally:
            self.defers_signals = before


def _named(measured: Mapping[str, float], begins: tuple[str, ...]) -> Metrics:
    """Metrics of a validation under names that begin with val_ or val/, so that none is taken for
    one of training."""
    row: Metrics = {}
    for name, value in measured.items():
        new = name if name.startswith(begins) else f"val_{name}"
        if new in row:
            raise ConfigurationError(
                f"A validation measured {new.removeprefix('val_')!r} and {new!r}, which have the "
                "same name in the history, where metrics of a validation begin with val_. Remove "
                "or rename one of them."
            )
        row[new] = value
    return row

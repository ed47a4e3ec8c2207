"""Fewer batches than there are, and evaluations inside a training epoch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from ....data.stream import LimitedStream
from ....errors import ConfigurationError
from .events import TrainerCallback

if TYPE_CHECKING:
    from ....data.open import Stream
    from ..trainer import Trainer


class LimitBatchesCallback(TrainerCallback):
    """Uses the first batches of every epoch only, in training and in evaluation, to try a program
    out.

    Every trainer gets one when the environment variable PT_ACC_LIMIT_BATCHES is set to a number.
    """

    ENVIRONMENT: ClassVar[str] = "PT_ACC_LIMIT_BATCHES"

    def __init__(self, num_batches: int) -> None:
        self.num_batches = _checked("LimitBatchesCallback", num_batches)

    @classmethod
    def from_environment(cls) -> LimitBatchesCallback:
        given = os.environ[cls.ENVIRONMENT]
        if not given.isdecimal():
            raise ConfigurationError(
                f"{cls.ENVIRONMENT}={given!r}: set it to a number of batches, or unset it."
            )
        return cls(int(given))

    def adapt_stream(self, stream: Stream, *, is_training: bool, is_intermediate: bool) -> Stream:
        return LimitedStream(stream, self.num_batches)


class LimitEvalStepsCallback(TrainerCallback):
    """Uses the first batches of evaluations only; by default only in evaluations inside training
    epochs."""

    def __init__(self, num_eval_steps: int, limit_intermediate_only: bool = True) -> None:
        self.num_eval_steps = _checked("LimitEvalStepsCallback", num_eval_steps)
        self.limit_intermediate_only = limit_intermediate_only

    def adapt_stream(self, stream: Stream, *, is_training: bool, is_intermediate: bool) -> Stream:
        if is_training or (self.limit_intermediate_only and not is_intermediate):
            return stream
        return LimitedStream(stream, self.num_eval_steps)


class StepBasedEvaluationCallback(TrainerCallback):
    """Evaluates after every `eval_every_n_steps` training steps; the loss is recorded as
    `intermediate_eval_loss`.

    Training goes on as if nothing had happened: modes and random numbers are what they were.
    """

    def __init__(self, eval_every_n_steps: int) -> None:
        self.eval_every_n_steps = _checked("StepBasedEvaluationCallback", eval_every_n_steps)

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        if trainer.eval_dataset is None:
            raise ConfigurationError(
                "StepBasedEvaluationCallback has nothing to evaluate: pass `eval_dataset=`."
            )

    def on_train_step_end(
        self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any
    ) -> None:
        core = trainer._core
        if (core.progress.step + 1) % self.eval_every_n_steps == 0:
            with core.intermediate():
                trainer._run_eval_epoch(trainer._eval_dataloader)


def _checked(owner: str, number: int) -> int:
    if not isinstance(number, int) or number < 1:
        raise ConfigurationError(f"{owner}({number!r}): use a whole number, 1 or more.")
    return number


class MoveModulesToDeviceCallback(TrainerCallback):
    """Moves every module that is an attribute of the trainer, such as a metric, to its device."""

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self._move(trainer)

    def on_evaluation_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self._move(trainer)

    def _move(self, trainer: Trainer) -> None:
        for name, value in vars(trainer).items():
            # the trainer itself moves its model
            if isinstance(value, nn.Module) and name != "model":
                value.to(trainer.device)


class ConvertSyncBatchNormCallback(TrainerCallback):
    """Makes the model's batch norms compute their statistics over all processes, where there are
    several."""

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        from ....runtime.batch_norm import convert
        from ....runtime.distributed import DistributedRuntime

        if isinstance(trainer._runtime, DistributedRuntime):
            convert(trainer.get_model(keep_torch_compile=False), trainer._runtime.part)


SyncBatchNormCallback = ConvertSyncBatchNormCallback

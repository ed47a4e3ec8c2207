"""Getting modules ready for the device, or devices, that they are used on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from .events import TrainerCallback

if TYPE_CHECKING:
    from ..trainer import Trainer


class MoveModulesToDeviceCallback(TrainerCallback):
    """Moves every module that is an attribute of the trainer, such as a metric, to its device."""

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self._move(trainer)

    def on_evaluation_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self._move(trainer)

    def _move(self, trainer: Trainer) -> None:
        for name, value in vars(trainer).items():
            if isinstance(value, nn.Module) and name != "model":  # the trainer itself moves its model
                value.to(trainer.device)


class ConvertSyncBatchNormCallback(TrainerCallback):
    """Makes the model's batch norms compute their statistics over all processes, where there are several."""

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        from ....runtime.ddp import convert
        from ....runtime.distributed import DistributedRuntime

        if isinstance(trainer._runtime, DistributedRuntime):
            convert(trainer.get_model(keep_torch_compile=False), trainer._runtime.part)


SyncBatchNormCallback = ConvertSyncBatchNormCallback

"""Callbacks of the lifecycle interface: their base class, and the callbacks that ship."""

from .averaging import ModelEma, ModelEmaCallback, WSDCheckpointCallback
from .events import (
    CallbackNotFoundError,
    SaveTrainingStateCallback,
    StopTrainingError,
    TrainerCallback,
)
from .handler import CallbackHandler, CallbackLike
from .limiting import (
    ConvertSyncBatchNormCallback,
    LimitBatchesCallback,
    LimitEvalStepsCallback,
    MoveModulesToDeviceCallback,
    StepBasedEvaluationCallback,
    SyncBatchNormCallback,
)
from .recording import RecordRunCallback
from .reporting import (
    LogMetricsCallback,
    PrintMetricsCallback,
    PrintProgressCallback,
    ProgressBarCallback,
)
from .watching import EarlyStoppingCallback, SaveBestModelCallback, TerminateOnNaNCallback

__all__ = [
    "CallbackHandler",
    "CallbackLike",
    "CallbackNotFoundError",
    "ConvertSyncBatchNormCallback",
    "EarlyStoppingCallback",
    "LimitBatchesCallback",
    "LimitEvalStepsCallback",
    "LogMetricsCallback",
    "ModelEma",
    "ModelEmaCallback",
    "MoveModulesToDeviceCallback",
    "PrintMetricsCallback",
    "PrintProgressCallback",
    "ProgressBarCallback",
    "RecordRunCallback",
    "SaveBestModelCallback",
    "SaveTrainingStateCallback",
    "StepBasedEvaluationCallback",
    "StopTrainingError",
    "SyncBatchNormCallback",
    "TerminateOnNaNCallback",
    "TrainerCallback",
    "WSDCheckpointCallback",
    "get_default_callbacks",
]


def get_default_callbacks(progress_bar: bool = True) -> tuple[type[TrainerCallback], ...]:
    """The callbacks that a trainer has unless it is given others, with or without the progress
    bar."""
    bar = (ProgressBarCallback,) if progress_bar else ()
    return (
        MoveModulesToDeviceCallback,
        TerminateOnNaNCallback,
        PrintProgressCallback,
        *bar,
        LogMetricsCallback,
    )

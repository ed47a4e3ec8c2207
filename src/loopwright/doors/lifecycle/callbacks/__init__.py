"""Callbacks of the lifecycle door: the events, and those that ship."""

from .averaging import ModelEma, ModelEmaCallback
from .devices import ConvertSyncBatchNormCallback, MoveModulesToDeviceCallback, SyncBatchNormCallback
from .events import CallbackHandler, CallbackNotFoundError, StopTrainingError, TrainerCallback
from .limiting import LimitBatchesCallback, LimitEvalStepsCallback, StepBasedEvaluationCallback
from .reporting import LogMetricsCallback, PrintMetricsCallback, PrintProgressCallback, ProgressBarCallback
from .states import SaveTrainingStateCallback
from .watching import EarlyStoppingCallback, SaveBestModelCallback, TerminateOnNaNCallback

__all__ = [
    "CallbackHandler",
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
    "SaveBestModelCallback",
    "SaveTrainingStateCallback",
    "StepBasedEvaluationCallback",
    "StopTrainingError",
    "SyncBatchNormCallback",
    "TerminateOnNaNCallback",
    "TrainerCallback",
]

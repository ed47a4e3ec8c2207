"""The lifecycle interface (document 002): `Trainer` with named stages, callbacks, a run history and
placeholders."""

from .callbacks import (
    CallbackHandler,
    CallbackNotFoundError,
    ConvertSyncBatchNormCallback,
    EarlyStoppingCallback,
    LimitBatchesCallback,
    LimitEvalStepsCallback,
    LogMetricsCallback,
    ModelEma,
    ModelEmaCallback,
    MoveModulesToDeviceCallback,
    PrintMetricsCallback,
    PrintProgressCallback,
    ProgressBarCallback,
    RecordRunCallback,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    StopTrainingError,
    SyncBatchNormCallback,
    TerminateOnNaNCallback,
    TrainerCallback,
    WSDCheckpointCallback,
    get_default_callbacks,
)
from .finetuning import ModelFreezer
from .placeholders import TrainerPlaceHolderValues, TrainerPlaceholderValues
from .run_config import TrainerRunConfig
from .schedulers import CosineLrScheduler, SchedulerBase, StatefulSchedulerBase, WSDLrScheduler
from .tracking import InMemoryRunHistory, LossTracker, RunHistory
from .trainer import DEFAULT_CALLBACKS, Trainer, TrainerWithTimmScheduler

__all__ = [
    "DEFAULT_CALLBACKS",
    "CallbackHandler",
    "CallbackNotFoundError",
    "ConvertSyncBatchNormCallback",
    "CosineLrScheduler",
    "EarlyStoppingCallback",
    "InMemoryRunHistory",
    "LimitBatchesCallback",
    "LimitEvalStepsCallback",
    "LogMetricsCallback",
    "LossTracker",
    "ModelEma",
    "ModelEmaCallback",
    "ModelFreezer",
    "MoveModulesToDeviceCallback",
    "PrintMetricsCallback",
    "PrintProgressCallback",
    "ProgressBarCallback",
    "RecordRunCallback",
    "RunHistory",
    "SaveBestModelCallback",
    "SaveTrainingStateCallback",
    "SchedulerBase",
    "StatefulSchedulerBase",
    "StepBasedEvaluationCallback",
    "StopTrainingError",
    "SyncBatchNormCallback",
    "TerminateOnNaNCallback",
    "Trainer",
    "TrainerCallback",
    "TrainerPlaceHolderValues",
    "TrainerPlaceholderValues",
    "TrainerRunConfig",
    "TrainerWithTimmScheduler",
    "WSDCheckpointCallback",
    "WSDLrScheduler",
    "get_default_callbacks",
]

"""The lifecycle door (document 002): `Trainer` with named stages, callbacks, a run history and placeholders."""

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
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    StopTrainingError,
    SyncBatchNormCallback,
    TerminateOnNaNCallback,
    TrainerCallback,
)
from .finetuning import ModelFreezer
from .placeholders import TrainerPlaceholderValues
from .run_config import TrainerRunConfig
from .schedulers import (
    CosineLrScheduler,
    SchedulerBase,
    StatefulSchedulerBase,
    TrainerWithTimmScheduler,
    WSDLrScheduler,
)
from .tracking import InMemoryRunHistory, RunHistory
from .trainer import DEFAULT_CALLBACKS, Trainer

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
    "ModelEma",
    "ModelEmaCallback",
    "ModelFreezer",
    "MoveModulesToDeviceCallback",
    "PrintMetricsCallback",
    "PrintProgressCallback",
    "ProgressBarCallback",
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
    "TrainerPlaceholderValues",
    "TrainerRunConfig",
    "TrainerWithTimmScheduler",
    "WSDLrScheduler",
]

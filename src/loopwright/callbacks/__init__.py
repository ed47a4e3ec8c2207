"""Callbacks that ship; each imports what it needs only when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from ..optim.groups import GroupedOptimizer
    from ..profiling.profile import Profile
    from .best import BestCheckpoint, BestMetric, BestModel
    from .checkpoints import Checkpoints
    from .ema import EMA
    from .freezing import Freeze
    from .interval import Interval, Periodic, Watching
    from .losses import OfflineLoss, OnlineLoss
    from .measuring import (
        AdditionalOutputs,
        GradientNormLog,
        LearningRateLog,
        PeakMemory,
        ProgressLine,
        Throughput,
        TrainTime,
    )
    from .metrics import TorchMetrics
    from .nonfinite import NonFiniteGuard
    from .progress import ProgressDisplay
    from .recorder import RunRecorder
    from .rewind import Rewind
    from .scheduling import ScheduleLearningRate, ScheduleWeightDecay
    from .stopping import EarlyStopping, FixedEarlyStopping, LimitBatches
    from .summary import DatasetStatistics, ParameterCount

_HOMES = {
    "AdditionalOutputs": "measuring",
    "BestCheckpoint": "best",
    "BestMetric": "best",
    "BestModel": "best",
    "Checkpoints": "checkpoints",
    "DatasetStatistics": "summary",
    "EMA": "ema",
    "EarlyStopping": "stopping",
    "FixedEarlyStopping": "stopping",
    "Freeze": "freezing",
    "GradientNormLog": "measuring",
    "GroupedOptimizer": ".optim.groups",
    "Interval": "interval",
    "LearningRateLog": "measuring",
    "LimitBatches": "stopping",
    "NonFiniteGuard": "nonfinite",
    "OfflineLoss": "losses",
    "OnlineLoss": "losses",
    "ParameterCount": "summary",
    "PeakMemory": "measuring",
    "Periodic": "interval",
    "Profile": ".profiling.profile",
    "ProgressDisplay": "progress",
    "ProgressLine": "measuring",
    "Rewind": "rewind",
    "RunRecorder": "recorder",
    "ScheduleLearningRate": "scheduling",
    "ScheduleWeightDecay": "scheduling",
    "Throughput": "measuring",
    "TorchMetrics": "metrics",
    "TrainTime": "measuring",
    "Watching": "interval",
}

__all__ = [
    "EMA",
    "AdditionalOutputs",
    "BestCheckpoint",
    "BestMetric",
    "BestModel",
    "Checkpoints",
    "DatasetStatistics",
    "EarlyStopping",
    "FixedEarlyStopping",
    "Freeze",
    "GradientNormLog",
    "GroupedOptimizer",
    "Interval",
    "LearningRateLog",
    "LimitBatches",
    "NonFiniteGuard",
    "OfflineLoss",
    "OnlineLoss",
    "ParameterCount",
    "PeakMemory",
    "Periodic",
    "Profile",
    "ProgressDisplay",
    "ProgressLine",
    "Rewind",
    "RunRecorder",
    "ScheduleLearningRate",
    "ScheduleWeightDecay",
    "Throughput",
    "TorchMetrics",
    "TrainTime",
    "Watching",
]

if not TYPE_CHECKING:  # for a type checker, every misspelt name would be there
    __getattr__, __dir__ = lazily(__name__, _HOMES)

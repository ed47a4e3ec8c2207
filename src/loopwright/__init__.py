"""Loopwright trains PyTorch models: exact resume after any interruption, in a loop as fast as a
hand-written one."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import fcntl as _fcntl  # noqa: F401  (locks of files, which every POSIX system has)
except ImportError:
    raise ImportError(
        "Loopwright needs the file locks and signals of Linux or macOS, and this system has none "
        "(no module `fcntl`). On Windows, run it in WSL, the Windows Subsystem for Linux."
    ) from None

from ._lazy import lazily
from ._version import __version__

if TYPE_CHECKING:
    from .callback import Callback
    from .data.random import seed_everything
    from .errors import (
        CheckpointError,
        ConfigurationError,
        DataError,
        Interrupted,
        LoopwrightError,
        MissingExtraError,
        NonFiniteLossError,
    )
    from .metrics.history import History
    from .metrics.progress import Progress
    from .metrics.result import StepResult
    from .metrics.rows import StepRow
    from .optim.build import Schedule
    from .run.best import load_weights
    from .run.frames import runs
    from .runtime import Mesh, Runtime
    from .runtime.distributed import DistributedRuntime
    from .runtime.launch import launch
    from .trainer import Trainer

__all__ = [
    "Callback",
    "CheckpointError",
    "ConfigurationError",
    "DataError",
    "DistributedRuntime",
    "History",
    "Interrupted",
    "LoopwrightError",
    "Mesh",
    "MissingExtraError",
    "NonFiniteLossError",
    "Progress",
    "Runtime",
    "Schedule",
    "StepResult",
    "StepRow",
    "Trainer",
    "__version__",
    "launch",
    "load_weights",
    "runs",
    "seed_everything",
]

_HOMES = {
    "Callback": "callback",
    "CheckpointError": "errors",
    "ConfigurationError": "errors",
    "DataError": "errors",
    "DistributedRuntime": "runtime.distributed",
    "History": "metrics.history",
    "Interrupted": "errors",
    "LoopwrightError": "errors",
    "Mesh": "runtime",
    "MissingExtraError": "errors",
    "NonFiniteLossError": "errors",
    "Progress": "metrics.progress",
    "Runtime": "runtime",
    "Schedule": "optim.build",
    "StepResult": "metrics.result",
    "StepRow": "metrics.rows",
    "Trainer": "trainer",
    "launch": "runtime.launch",
    "seed_everything": "data.random",
    "load_weights": "run.best",
    "runs": "run.frames",
}

_PACKAGES = {
    "callbacks",
    "interfaces",
    "initializers",
    "losses",
    "metrics",
    "schedules",
    "trackers",
    "tuning",
}

if not TYPE_CHECKING:  # for a type checker, every misspelt name would be there
    __getattr__, __dir__ = lazily(__name__, _HOMES, _PACKAGES)

"""What torch's own profiler records of a few steps: a trace of every operator, and the memory that
each one needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .._torch_compat import dump_memory_snapshot, record_memory
from ..callbacks.measuring import process_peak

NUM_STEPS = 3
NUM_OPERATORS = 10


class Recording:
    """Records a few steps for a trace file, and for the memory of operators or (on CUDA) a memory
    snapshot.

    Args:
        device: The device of the run.
        trace: The file of the chrome trace; None for no trace.
        memory: Whether to record memory.
        snapshot: The file of the memory snapshot, which CUDA has; None without a place for it.
    """

    def __init__(
        self, device: torch.device, trace: Path | None, memory: bool, snapshot: Path | None
    ) -> None:
        self._is_cuda = device.type == "cuda"
        self.trace = trace
        self.memory = memory
        self.snapshot = snapshot if self._is_cuda else None
        self.operators: tuple[dict[str, Any], ...] = ()  # that allocated the most
        self._profiler: Any = None

    def start(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        if self.memory and self.snapshot is not None:
            record_memory(True)
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._is_cuda else [])]
        self._profiler = profile(activities=kinds, profile_memory=self.memory)
        self._profiler.start()

    def stop(self) -> None:
        """End the recording and write its files."""
        if self._profiler is None:
            return
        profiler = self._profiler
        self._profiler = None
        profiler.stop()
        if self.trace is not None:
            self.trace.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(self.trace))
        if self.memory:
            self.operators = _largest(profiler.key_averages())
            if self.snapshot is not None:
                dump_memory_snapshot(str(self.snapshot))
                record_memory(False)

    @property
    def files(self) -> dict[str, Path]:
        """The files that were asked for, by what they are."""
        found = {"trace": self.trace, "memory snapshot": self.snapshot if self.memory else None}
        return {name: path for name, path in found.items() if path is not None and path.exists()}


def _largest(events: Any) -> tuple[dict[str, Any], ...]:
    """The operators that allocated the most, with the bytes of all their calls."""
    found = [
        (event.self_cpu_memory_usage + event.self_device_memory_usage, event) for event in events
    ]
    found = sorted(((size, event) for size, event in found if size > 0), key=lambda pair: -pair[0])
    return tuple(
        {"name": e.key, "bytes": size, "calls": e.count} for size, e in found[:NUM_OPERATORS]
    )


def peaks(device: torch.device) -> dict[str, int]:
    """The most memory in use so far, in bytes: of the process, and on CUDA what torch had allocated
    on the device."""
    found = {"process": process_peak()}
    return found | (
        {"device": torch.cuda.max_memory_allocated(device)} if device.type == "cuda" else {}
    )

"""Saving and loading: a checkpoint put into fresh objects and compared, and a run resumed in its middle."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..callback import Callback
from ..callbacks import BestCheckpoint, BestModel, Checkpoints, PeakMemory, Throughput, TrainTime
from ..checkpoint import snapshot
from ..checkpoint.compare import compare_trees
from ..debug.resume_check import check_resume
from ..training.state import capture
from .check_findings import Findings, culprit, key_of_callback
from .check_tiny import Factory

if TYPE_CHECKING:
    from ..doors.configured.engine import Engine

MAX_LISTED = 5


def check_saving(findings: Findings, factory: Factory, engine: Engine, dropped: set[int], folder: Path) -> int | None:
    """Save, load into fresh objects, compare bit for bit; the size of the checkpoint, None where it cannot be."""
    path = folder / "checkpoint"
    with findings.collecting("model", "the state cannot be saved") as saved:
        engine.save(path)
    if not saved:
        return None
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    callbacks = factory.build().run.callbacks
    for _ in range(len(callbacks) + 1):
        fresh = factory.build_tiny(dropped)
        places = [number for number in range(len(callbacks)) if number not in dropped]
        own = fresh.run.callbacks[1:]
        try:
            fresh.load(path)
        except Exception as error:
            at = culprit(error, own)
            if at is None:
                findings.failed("model", "what was saved cannot be loaded into fresh objects", error)
                return None
            dropped.add(places[at])
            key = key_of_callback(findings.config, callbacks, places[at])
            findings.failed(key, f"{type(own[at]).__name__} cannot take back its state", error)
            continue
        _compare(findings, engine, fresh)
        findings.checked.append("saving and loading")
        return size
    return None


def _compare(findings: Findings, engine: Engine, fresh: Engine) -> None:
    first, second = snapshot(capture(engine.run)), snapshot(capture(fresh.run))
    known = first["callbacks"].keys() & second["callbacks"].keys()
    for state in (first, second):
        state["callbacks"] = {name: state["callbacks"][name] for name in sorted(known)}
        state["rng"] = None  # of the process, which went on
    found = compare_trees(first, second)
    if found:
        lines = [f"  - {d.path.replace('/', '.')}: {d.what}" for d in found[:MAX_LISTED]]
        more = [f"  - and {len(found) - MAX_LISTED} more"] if len(found) > MAX_LISTED else []
        findings.mistake(
            "trainer", "\n".join(["the state that was loaded is not the one that was saved:", *lines, *more])
        )


def check_resuming(
    findings: Findings, factory: Factory, dropped: Collection[int], folder: Path, num_updates: int
) -> None:
    """A run in one piece against one that is saved and loaded in its middle."""
    made: list[Any] = []
    callbacks = factory.build_tiny(dropped).callbacks
    place = folder / "resumed" if _may_write(callbacks) else None

    def data() -> Any:
        engine = factory.build_tiny(dropped, run_dir=place)
        engine.config.num_workers = 0  # the order and the values are the same with any number
        made.append(engine)
        return engine.training_data()

    with findings.collecting("trainer", "a resumed run fails"):
        report = check_resume(made.pop, data, num_updates=num_updates, ignore=_clocks(callbacks))
        if report.ok:
            findings.checked.append("resuming")
        else:
            findings.mistake("trainer", str(report))


def _clocks(callbacks: Sequence[Callback]) -> list[str]:
    """What callbacks measure that is never the same twice, as patterns of paths."""
    found = [callback for callback in callbacks if isinstance(callback, TrainTime | Throughput | PeakMemory)]
    names = {name for callback in found for name in callback.metric_names(set())}
    return [*(f"*{name}*" for name in names), *(f"callbacks.{type(callback).__name__}*" for callback in found)]


def _may_write(callbacks: Sequence[Callback]) -> bool:
    """Whether somebody may need a run directory; without one the comparison takes half the time."""
    others = (c for c in callbacks if not type(c).__module__.startswith("loopwright."))
    return any(isinstance(c, Checkpoints | BestModel | BestCheckpoint) for c in callbacks) or any(True for _ in others)

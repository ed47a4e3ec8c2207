"""A trainer as a notebook shows it: its components, where its run is, and the epochs so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..metrics.html import facts_html, history_html
from ..metrics.progress import counted
from .resume import device_text, size_text

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from .run import TrainingRun


def trainer_html(trainer: object, run: TrainingRun) -> str:
    """Return the table of a trainer's parts, and that of its epochs where there are any."""
    components = run.components
    progress = run.progress
    facts = {"trainer": type(trainer).__name__}
    if components.models:
        named = [
            _labelled(name, "model", type(model).__name__)
            for name, model in components.models.items()
        ]
        facts["models" if len(named) > 1 else "model"] = f"{', '.join(named)} ({size_text(run)})"
    if components.optimizers:
        facts["optimizer"] = ", ".join(
            _optimizer_text(*item) for item in components.optimizers.items()
        )
    facts["device"] = device_text(run)
    if run.run_dir is not None:
        facts["run directory"] = str(run.run_dir)
    facts["progress"] = f"{counted(progress.epoch, 'epoch')}, {counted(progress.update, 'update')}"
    if run.stop_reason is not None:
        facts["stopped"] = run.stop_reason
    return facts_html(facts) + (
        history_html(run.history.epochs, run.history.names) if run.history.epochs else ""
    )


def _optimizer_text(name: str, optimizer: Optimizer) -> str:
    rates = dict.fromkeys(
        f"{float(group['lr']):g}" for group in optimizer.param_groups if "lr" in group
    )
    label = _labelled(name, "optimizer", type(optimizer).__name__)
    return f"{label} (lr {', '.join(rates)})" if rates else label


def _labelled(name: str, usual: str, kind: str) -> str:
    return kind if name == usual else f"{name}: {kind}"

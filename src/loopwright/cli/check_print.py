"""How `loopwright check CONFIG` prints what it found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..training.progress import counted
from .output import RED, print_json, printable, size_text, styled
from .run_text import time_text

if TYPE_CHECKING:
    from ..config import Problem
    from .check_measures import Measures


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check found, what it looked at, and what the run will need."""

    config: str
    mistakes: tuple[Problem, ...]
    notes: tuple[Problem, ...] = ()
    checked: tuple[str, ...] = ()
    measures: Measures | None = None
    checkpoint_bytes: int | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "config": self.config,
            "ok": not self.mistakes,
            "mistakes": [_as_dict(problem) for problem in self.mistakes],
            "notes": [_as_dict(problem) for problem in self.notes],
            "checked": list(self.checked),
            "measures": None if self.measures is None else self.measures.to_dict(),
            "checkpoint_bytes": self.checkpoint_bytes,
            "check_seconds": self.seconds,
        }


def _as_dict(problem: Problem) -> dict[str, Any]:
    return {"file": problem.file, "line": problem.line, "key": problem.key, "message": problem.message}


def print_outcome(outcome: Outcome, *, as_json: bool) -> None:
    """All of it, mistakes last, where they are seen."""
    if as_json:
        print_json(outcome.to_dict())
        return
    if outcome.checked:
        print(printable(f"checked     {', '.join(outcome.checked)} ({outcome.seconds:.1f} s)"))
    for name, text in _facts(outcome).items():
        print(f"{name:<11} {text}")
    for note in outcome.notes:
        print(printable(f"note: {note}", keep="\n"))
    if not outcome.mistakes:
        print(printable(f"No mistakes found in {outcome.config}: nothing keeps it from being trained."))
        return
    count = "1 mistake" if len(outcome.mistakes) == 1 else f"{len(outcome.mistakes)} mistakes"
    print()
    print(styled(printable(f"{count} in {outcome.config}:"), RED))
    for mistake in outcome.mistakes:
        print(styled(printable(str(mistake), keep="\n"), RED))


def _facts(outcome: Outcome) -> dict[str, str]:
    facts: dict[str, str] = {}
    measures = outcome.measures
    if measures is not None:
        frozen = measures.parameters - measures.trained
        kept = "" if measures.step_bytes is None else f", and {size_text(measures.step_bytes)} for a batch"
        facts["parameters"] = f"{measures.parameters:,}" + (f", of which {frozen:,} are frozen" if frozen else "")
        facts["memory"] = f"{size_text(measures.weight_bytes)} for weights, gradients and the optimizer{kept}"
        facts["step"] = _step_text(measures)
        facts["run"] = _run_text(measures)
    if outcome.checkpoint_bytes is not None:
        facts["checkpoint"] = size_text(outcome.checkpoint_bytes)
    return facts


def _step_text(measures: Measures) -> str:
    if measures.step_seconds is None:
        return "not measured"
    how = "measured" if measures.is_measured else "estimated from smaller batches"
    return f"{1000 * measures.step_seconds:.3g} ms for a batch of {measures.batch_size} ({how})"


def _run_text(measures: Measures) -> str:
    if measures.updates is None:
        return "of a length that is not known"
    steps = "" if measures.accumulate == 1 else f" of {measures.accumulate} batches"
    epochs = "" if measures.epochs is None else f", {counted(measures.epochs, 'epoch')}"
    duration = "" if measures.seconds is None else f": about {time_text(measures.seconds)} without evaluations"
    return f"{counted(round(measures.updates), 'update')}{steps}{epochs}{duration}"

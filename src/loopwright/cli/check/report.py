"""What `loopwright check CONFIG` finds: mistakes and notes, each with its place in the config and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from ...config import Config, Problem
from ...training.progress import counted
from ..exits import described
from ..output import RED, print_json, print_table, printable, size_text, styled, time_text

if TYPE_CHECKING:
    from ...callback import Callback
    from ...runtime.dtensor import Mesh
    from .dry_run import Report
    from .probe import Measures


BUILT = re.compile(r"raised while (\S+) \(kind: .*\) was built")
WATCHES = "{} watches {!r}"
ADVICE = {  # what the words of an error are about, and what to do
    r"same device|device meta|meta tensor|on device|cuda:\d.*cpu": (
        "Tensors are on different devices: make new ones where the inputs are (torch.zeros(..., device=x.device)), or "
        "keep them as buffers with register_buffer, which move with the model."
    ),
    r"cannot be multiplied|size mismatch|must match the size|tensors must match|invalid for input": (
        "The sizes of the data and of the layers do not go together: compare the shapes with the model's arguments."
    ),
    r"does not require grad|has no graph": (
        "The loss is not computed from trained weights: look for detach(), item(), numpy() or no_grad() on the way to "
        "it, and for frozen layers."
    ),
    r"scalar outputs|shape \(.*\): reduce": "The loss is not one number: reduce it, as with .mean().",
    r"scalar type Long|expected .*Long|index tensor|dtype|doesn't match the desired type|must have the same type": (
        "Numbers are of the wrong type: class indices are whole numbers (torch.long), inputs and targets of a "
        "regression float32."
    ),
}


@dataclass(slots=True)
class Findings:
    """Everything that was found so far; a mistake that was found before is not listed twice."""

    config: Config
    mistakes: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    errors: set[str] = field(default_factory=set)

    def mistake(self, key: str, message: str) -> None:
        problem = self.config.problem(key, message)
        if problem not in self.mistakes:
            self.mistakes.append(problem)

    def note(self, key: str, message: str) -> None:
        problem = self.config.problem(key, message)
        if problem not in self.notes:
            self.notes.append(problem)

    def failed(self, key: str, doing: str, error: BaseException) -> None:
        """An error of the user's code, or of ours about it."""
        lines = described(error)
        if lines[0] in self.errors:
            return
        self.errors.add(lines[0])
        place = next((match[1] for line in lines if (match := BUILT.search(line))), key)
        is_known = f"{type(error).__name__}: "
        head = str(error) if type(error).__module__.startswith("loopwright.") else lines[0].removesuffix(is_known)
        advice = next((text for words, text in ADVICE.items() if re.search(words, str(error))), None)
        told = [line for line in lines[1:] if not line.startswith("raised ")]
        self.mistake(place, "\n".join([f"{doing}: {head}", *told, *([] if advice is None else [f"-> {advice}"])]))

    @contextmanager
    def collecting(self, key: str, doing: str) -> Iterator[list[bool]]:
        """Turn what is raised inside into a mistake; the list that is given is not empty if nothing was."""
        succeeded: list[bool] = []
        try:
            yield succeeded
        except Exception as error:
            self.failed(key, doing, error)
        else:
            succeeded.append(True)


def culprit(error: BaseException, callbacks: Sequence[Callback]) -> int | None:
    """Which of the callbacks an error came from: the outermost whose method was running, or the one it names."""
    trace = error.__traceback__
    while trace is not None:
        owner: Any = trace.tb_frame.f_locals.get("self")
        for number, callback in enumerate(callbacks):
            if callback is owner:
                return number
        trace = trace.tb_next
    for number, callback in enumerate(callbacks):
        if any(WATCHES.format(type(callback).__name__, name) in str(error) for name in callback.required_metrics()):
            return number
    return None


def key_of_callback(config: Config, callbacks: Sequence[Callback], number: int) -> str:
    """Where in the config a callback stands, given all that the trainer was built with."""
    first = 0 if config.get("trainer.initializer") is None else 1
    listed = len(config.get("trainer.callbacks") or [])
    if number < first:
        return "trainer.initializer"
    if number < first + listed:
        return f"trainer.callbacks.{number - first}"
    is_last = number == len(callbacks) - 1
    return "initializer" if is_last and config.get("initializer") is not None else "trainer"


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


MAX_ROWS = 40
MAX_PICTURE = 64
MAX_RUNS = 8


def print_report(report: Report, world: int, *, is_full: bool) -> None:
    """Everything that is known, then notes, then mistakes."""
    if report.mesh is not None:
        _print_mesh(report.mesh, report.precision)
    if report.split is not None:
        _print_split(report)
    if report.parameters:
        _print_parameters(report, world, is_full=is_full)
    if report.memory:
        _print_memory(report, is_full=is_full)
    for note in report.notes:
        print(printable(f"note: {note}"))
    for mistake in report.mistakes:
        print(styled(printable(f"mistake: {mistake}", keep="\n"), RED))


def _print_mesh(mesh: Mesh, precision: str) -> None:
    sizes = (mesh.replicate, mesh.shard, mesh.tensor)
    count = f"{mesh.size} process{'' if mesh.size == 1 else 'es'}"
    print(f"{count}, {precision}: Mesh(replicate={sizes[0]}, shard={sizes[1]}, tensor={sizes[2]})")
    if mesh.size <= MAX_PICTURE and sum(size > 1 for size in sizes) > 1:
        _print_ranks(mesh)
    print()


def _print_ranks(mesh: Mesh) -> None:
    """The ranks as a picture: a row for each copy, in it the shards, in those the parts of layers."""
    width = len(str(mesh.size - 1))
    for copy in range(mesh.replicate):
        groups = []
        for shard in range(mesh.shard):
            first = (copy * mesh.shard + shard) * mesh.tensor
            groups.append("[" + " ".join(f"{rank:{width}d}" for rank in range(first, first + mesh.tensor)) + "]")
        print(f"  copy {copy}: {' '.join(groups)}")


def _print_split(report: Report) -> None:
    split = report.split
    assert split is not None
    few, many = min(split.sizes), max(split.sizes)
    each = counted(few, "sample") if few == many else f"{few} or {many} samples"
    shares = len(split.sizes)
    if split.how == "cut":
        print(f"A batch of {split.total} samples: {each} for each of {shares} processes that work on different ones")
    else:
        what = "takes a ready batch" if split.how == "ready batches" else "has data of its own, with batches"
        print(f"Each of {shares} processes {what} of {each}: {split.total} in a step")
    if report.mesh is not None and report.mesh.tensor > 1:
        print(f"(the {report.mesh.tensor} processes that hold parts of the same layers see the same samples)")
    if split.num_batches is not None:
        updates = -(-split.num_batches // report.accumulate)
        print(f"An epoch: {counted(split.num_batches, 'step')}, {counted(updates, 'update')}")
    print()


def _print_parameters(report: Report, world: int, *, is_full: bool) -> None:
    ranks = range(world) if is_full else sorted({0, 1, world - 1})
    shown = report.parameters if is_full else report.parameters[:MAX_ROWS]
    rows = [
        [
            held.name + ("" if held.is_trained else " (frozen)"),
            _shape(held.shape),
            held.dtype,
            held.placement,
            *(_shape(held.local_shapes[rank]) for rank in ranks),
        ]
        for held in shown
    ]
    print_table(["PARAMETER", "SHAPE", "DTYPE", "PLACEMENT", *(f"RANK {rank}" for rank in ranks)], rows)
    left = report.parameters[len(shown) :]
    if left:
        print(f"and {len(left)} more with {sum(prod(held.shape) for held in left):,} values (--all lists them)")
    print()


def _shape(shape: Sequence[int]) -> str:
    return "-" if 0 in shape else " x ".join(map(str, shape)) or "1"


def _print_memory(report: Report, *, is_full: bool) -> None:
    """Bytes of each process; those with the same share a row."""
    alike: dict[object, list[int]] = {}
    for rank, memory in enumerate(report.memory):
        alike.setdefault((rank if is_full else 0, memory), []).append(rank)
    parts = ("parameters", "buffers", *(("gradients", "optimizer", "total") if report.has_stepped else ()))
    rows = [
        [_ranks_text(ranks), *(size_text(getattr(report.memory[ranks[0]], part)) for part in parts)]
        for ranks in alike.values()
    ]
    print_table(["RANK", *(part.upper() for part in parts)], rows, right="12345")
    missing = [] if report.has_stepped else ["gradients", "optimizer state"]
    missing.append("activations")
    if report.mesh is not None and report.mesh.shard > 1:
        missing.append("the whole parameters of the block that computes")
    print(f"Not counted: {', '.join(missing)}.\n")


def _ranks_text(ranks: Sequence[int]) -> str:
    """0, 1, 2, 6 as "0-2, 6"; a long list is cut."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join(texts[:MAX_RUNS]) + (", ..." if len(texts) > MAX_RUNS else "")

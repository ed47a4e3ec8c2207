"""The report of a profile: parts, shares and details, as a table, as a dict, as the file
`profile.json`, and as sentences: what stands out, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import ceil
from typing import Any

from ..run.files import PROFILE_VERSION
from ..text import counted, duration, size
from .clock import (
    BACKWARD,
    CALLBACKS,
    CHECKPOINTS,
    COMMUNICATION,
    DATA,
    EVALUATION,
    FORWARD,
    LOGGING,
    OF_A_STEP,
    OPTIMIZER,
    OTHER,
    PARTS,
    TRAIN_STEP,
    TRANSFER,
    divided,
)

NANOSECONDS = 1_000_000_000
DETAILED = (CALLBACKS, LOGGING, EVALUATION, CHECKPOINTS, OTHER)
SHOWN_SHARE = 0.005  # a detail of a smaller share has no line of its own
LIMITS = {  # the share from which on a part stands out
    DATA: 0.25,
    TRANSFER: 0.2,
    TRAIN_STEP: 0.3,
    OPTIMIZER: 0.5,
    COMMUNICATION: 0.25,
    CALLBACKS: 0.15,
    LOGGING: 0.15,
    EVALUATION: 0.4,
    CHECKPOINTS: 0.1,
    OTHER: 0.3,
}
COMPUTING = (FORWARD, BACKWARD, OPTIMIZER)
HEALTHY = 0.8
SHORT_STEP = 1_000_000  # nanoseconds; below, calls of torch cost as much as what they compute
BRIEF = 2_000_000_000  # nanoseconds
BRIEF_SENTENCE = (
    "The measured time is short, so work that a run does only once, at its start and end, has a "
    "larger share than in a long run."
)


@dataclass(frozen=True)
class Report:
    """What a profile measured.

    Args:
        nanoseconds: The time of each part; a key such as "callbacks/EMA/on_update_end" is a detail
            of a part.
        num_steps: The steps in that time.
        num_samples: The samples in these steps.
        last_step: The number of the last of them in the run, which may have gone on without a
            profile.
        warmup_steps: The steps before, which are not in it.
        warmup_seconds: The time of the run before it: of the start, the steps of the warm-up and
            those of the trace.
        device: The device that the run trained on.
        num_workers: The workers of the training data's loader; None where the data is no loader.
        num_cores: The cores that this process may use.
        world: The number of processes of the run; the report is about the first one.
        sampled_every: On an accelerator, every n-th step was synchronised; None where all steps
            were measured.
        memory: Peaks in bytes, "process" and "device"; and with `memory=True` what needed the most.
        files: The names of a trace and a memory snapshot, in the run directory.

    Example:
        >>> from loopwright.profiling import Report
        >>> report = Report({"data": 620_000_000, "forward": 380_000_000}, num_steps=10)
        >>> report.verdict
        '62 % of the time is waiting for data: pass a DataLoader with num_workers=2.'
        >>> report.shares["forward"], report.seconds
        (0.38, 1.0)
    """

    nanoseconds: Mapping[str, int]
    num_steps: int = 0
    num_samples: int = 0
    last_step: int = 0
    warmup_steps: int = 0
    warmup_seconds: float = 0.0
    device: str = "cpu"
    num_workers: int | None = None
    num_cores: int | None = None
    world: int = 1
    sampled_every: int | None = None
    memory: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def parts(self) -> dict[str, int]:
        """The nanoseconds of each part, in the order of a step, without parts that took none; they
        add up to all."""
        totals = dict.fromkeys(PARTS, 0)
        for key, spent in self._spent.items():
            part = key.partition("/")[0]
            totals[part] = totals.get(part, 0) + spent
        return {part: spent for part, spent in totals.items() if spent}

    @cached_property
    def _spent(self) -> dict[str, int]:
        return divided(self.nanoseconds)

    @property
    def total(self) -> int:
        """The wall time of the profile, in nanoseconds."""
        return sum(self.nanoseconds.values())

    @property
    def seconds(self) -> float:
        """The wall time of the profile."""
        return self.total / NANOSECONDS

    @property
    def shares(self) -> dict[str, float]:
        """The share of each part in the wall time, from 0 to 1."""
        return {part: spent / self.total for part, spent in self.parts.items()}

    def details(self, part: str) -> dict[str, int]:
        """The nanoseconds of the callbacks of a part, or of the parts of an evaluation; the largest
        first."""
        found: dict[str, int] = {}
        for key, spent in self._spent.items():
            of, _, rest = key.partition("/")
            if of == part and rest and spent:
                name = rest.partition("/")[0]
                found[name] = found.get(name, 0) + spent
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def events_of(self, callback: str) -> dict[str, int]:
        """The nanoseconds of each event of a callback; the largest first."""
        keys = (key.split("/") for key, spent in self._spent.items() if spent)
        found = {
            key[2]: self._spent["/".join(key)]
            for key in keys
            if len(key) == 3 and key[1] == callback
        }
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @cached_property
    def findings(self) -> list[str]:
        """What stands out, the largest first, each with what to do; one sentence if nothing
        does."""
        return find(self)

    @property
    def verdict(self) -> str:
        """The first of the findings."""
        return self.findings[0]

    # As text

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The lines of the table, with the verdict below."""
        yield self._title()
        rows = list(self._rows())
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        for name, *numbers in rows:
            aligned = (text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True))
            yield f"  {name.ljust(widths[0])}  {'  '.join(aligned)}".rstrip()
        yield from self._memory_lines()
        yield from self.findings
        for what, name in self.files.items():
            yield f"The {what} is in {name}."

    def _title(self) -> str:
        steps = "step" if self.num_steps == 1 else "steps"
        text = f"Where the time went: {self.num_steps:,} {steps} in "
        text += duration(self.seconds)
        if self.warmup_steps:
            text += f", after {self.warmup_steps} of warm-up"
        return f"{text}; rank 0 of {self.world} processes" if self.world > 1 else text

    def _rows(self) -> Iterator[tuple[str, str, str, str]]:
        yield "part", "share", "total", "per step" if self.num_steps else ""
        for part, all_spent in self.parts.items():
            yield self._row(part, all_spent)
            for name, spent in self.details(part).items() if part in DETAILED else ():
                if spent >= SHOWN_SHARE * self.total:
                    yield self._row(f"  {name}", spent)
        yield self._row("all", self.total)

    def _row(self, name: str, spent: int) -> tuple[str, str, str, str]:
        seconds = spent / NANOSECONDS
        per_step = duration(seconds / self.num_steps) if self.num_steps else ""
        share = 100 * spent / (self.total or 1)
        return name, f"{share:.1f} %", duration(seconds), per_step

    def _memory_lines(self) -> Iterator[str]:
        peaks = {"process": "the process", "device": str(self.device)}
        texts = [
            f"{size(self.memory[key])} ({name})"
            for key, name in peaks.items()
            if self.memory.get(key)
        ]
        if texts:
            yield f"Peak memory: {', '.join(texts)}"
        if operators := self.memory.get("operators"):
            largest = (
                f"{one['name']} {size(one['bytes'])} in {one['calls']} calls"
                for one in operators[:3]
            )
            yield f"Most memory allocated in the recorded steps: {', '.join(largest)}"

    # As data

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON, as in `profile.json`."""
        values = {key: value for key, value in asdict(self).items() if key != "nanoseconds"}
        steps = self.num_steps
        parts = [
            {
                "name": part,
                "seconds": spent / NANOSECONDS,
                "share": self.shares[part],
                "per_step": spent / NANOSECONDS / steps if steps else None,
                "details": {
                    name: part_of / NANOSECONDS for name, part_of in self.details(part).items()
                },
            }
            for part, spent in self.parts.items()
        ]
        found = {
            "seconds": self.seconds,
            "verdict": self.verdict,
            "findings": self.findings,
            "parts": parts,
        }
        return {
            "version": PROFILE_VERSION,
            **found,
            **values,
            "nanoseconds": dict(self.nanoseconds),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Report:
        """The report that `as_dict` gave."""
        names = cls.__dataclass_fields__
        return cls(**{name: value for name, value in values.items() if name in names})


# Sentences


def find(report: Report) -> list[str]:
    """The sentences of a report, the largest share first; never none."""
    if not report.total:
        return ["Nothing was measured."]
    found = [sentence for _, sentence in sorted(_outstanding(report), reverse=True)] or [
        _calm(report)
    ]
    return [*found, *([BRIEF_SENTENCE] if report.total < BRIEF else [])]


def _calm(report: Report) -> str:
    """The sentence of a report in which nothing stands out."""
    computing = sum(report.shares.get(part, 0.0) for part in COMPUTING)
    text = f"{percent(computing)} of the time is forward, backward and optimizer"
    if computing >= HEALTHY:
        return f"Healthy: {text}."
    largest = max(
        (part for part in report.parts if part not in COMPUTING), key=report.parts.__getitem__
    )
    return (
        f"Nothing stands out: {text}; the largest other part is {largest}, "
        f"{percent(report.shares[largest])}."
    )


def _outstanding(report: Report) -> Iterator[tuple[float, str]]:
    """The parts above their limits, by share."""
    is_short = _is_short(report)
    if is_short is not None:
        yield is_short
    for part, share in report.shares.items():
        is_overhead = is_short is not None and part in (TRAIN_STEP, OPTIMIZER, OTHER)
        if share >= LIMITS.get(part, 2.0) and not is_overhead:
            yield share, _sentence(report, part, share)


def _is_short(report: Report) -> tuple[float, str] | None:
    """Whether a step's own work is so short that it is mostly the cost of calling torch."""
    own = sum(
        report.parts.get(part, 0) for part in (*OF_A_STEP, OTHER) if part not in (DATA, TRANSFER)
    )
    if not report.num_steps or own / report.num_steps >= SHORT_STEP:
        return None
    share = own / report.total
    if share < 0.5:
        return None
    size = f" of {report.num_samples / report.num_steps:.0f} samples" if report.num_samples else ""
    return share, (
        f"Batches are tiny: a step{size} takes {duration(own / report.num_steps / NANOSECONDS)}, most of which "
        "is the overhead of calling Python and torch, not arithmetic: try a larger batch, or "
        "compile the model (Runtime(compile='model'))."
    )


SENTENCES = {  # what to do about a part that stands out, after its share of the time
    TRAIN_STEP: "code of the training step outside of the models: losses, metrics, reading numbers "
    "(`.item()`), printing. If a value is not needed in every step, compute it in `on_log` or in "
    "the evaluation",
    OPTIMIZER: "the optimizer: use its fused=True, or update less often with larger batches "
    "(`accumulate`)",
    COMMUNICATION: "waiting for the other processes: compute more between two updates "
    "(`accumulate`, larger batches), and check whether one process is slower than the others",
    OTHER: "in none of these parts: your own code between the steps, or your own loop that reads "
    "data from a loader. Profile(trace=True) writes a trace that shows it",
}


def _sentence(report: Report, part: str, share: float) -> str:
    """What stands out, and what to do about it."""
    if part == CALLBACKS:
        return _of_callbacks(report, share)
    if part == EVALUATION:
        return _of_evaluation(report, share)
    most = next((f", most of it in {name}" for name in report.details(part)), "")
    if part == LOGGING:
        return f"Logging takes {percent(share)} of the time{most}: log fewer values, or less often."
    if part == CHECKPOINTS:
        is_ours = "Checkpoints" in report.details(part)
        how = " (Checkpoints(every_epochs=None, every_minutes=10))" if is_ours else ""
        return (
            f"Checkpoints block training for {percent(share)} of the time{most}: save less "
            f"often{how}."
        )
    what = SENTENCES.get(part)
    if part == DATA:
        what = f"waiting for data: {_more_workers(report, share)}"
    elif part == TRANSFER and report.device.startswith("cpu"):
        what = (
            "`prepare_batch`. On the CPU there is nothing to move, so this is your own code: do "
            "this work in the data set, where workers can do it in parallel"
        )
    elif part == TRANSFER:
        what = (
            f"moving batches to {report.device}: use a DataLoader with pin_memory=True, and send "
            "less data (integers instead of floats, images before they are scaled)"
        )
    return f"{percent(share)} of the time is {what}."


def _more_workers(report: Report, share: float) -> str:
    """What to do about data: as many workers as would keep up, if there are cores for them."""
    cores = report.num_cores
    workers = report.num_workers or 0
    busy = max(1.0 - share, 0.01)
    needed = ceil(workers / busy) if workers else ceil(share / busy)
    cheaper = "make the data set's __getitem__ cheaper (decode once, cache, smaller files)"
    if cores is not None and (cores == 1 or workers >= cores):
        who = f"{workers} workers" if workers else "this process"
        return f"{who} on {counted(cores, 'core')} cannot go faster: {cheaper}"
    wanted = max(needed, workers + 1)
    if cores is not None:
        wanted = min(wanted, cores)
    how = "try" if report.num_workers is not None else "pass a DataLoader with"
    return f"{how} num_workers={wanted}" + (f", and {cheaper}" if needed > wanted else "")


def _of_callbacks(report: Report, share: float) -> str:
    name, spent = next(iter(report.details(CALLBACKS).items()), ("?", 0))
    own = percent(spent / report.total)
    if spent / report.total < share / 2:
        return (
            f"Callbacks take {percent(share)} of the time, {name} most of all ({own}): call them "
            "less often, or remove some."
        )
    where = next((f" in `{event}`" for event in report.events_of(name)), "")
    return (
        f"Callback {name} takes {own} of the time{where}: do it less often (every n updates, or in "
        "`on_log` or `on_epoch_end`)."
    )


def _of_evaluation(report: Report, share: float) -> str:
    part, spent = next(iter(report.details(EVALUATION).items()), (OTHER, 0))
    of_it = spent / report.parts[EVALUATION]
    more = ""
    if part == DATA and of_it >= 0.5:
        more = f", {percent(of_it)} of it waiting for data (num_workers=)"
    return (
        f"Evaluation takes {percent(share)} of the run{more}: evaluate less often (longer "
        "epochs), on fewer samples, or in larger batches."
    )


def percent(share: float) -> str:
    """A share as a whole number of percent."""
    return f"{100 * share:.0f} %"

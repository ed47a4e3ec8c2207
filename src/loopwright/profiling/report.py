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
    OPTIMIZER,
    OTHER,
    PARTS,
    TRAIN_STEP,
)

NANOSECONDS = 1_000_000_000
DETAILED = (CALLBACKS, LOGGING, EVALUATION, CHECKPOINTS, OTHER)
SHOWN_SHARE = 0.005  # a detail of a smaller share has no line of its own
# the share from which on a part stands out, what it is, and what to do about it
ADVICE = {
    DATA: (0.25, "waiting for data: {workers}"),
    TRAIN_STEP: (
        0.3,
        "code of the training step outside of the models: losses, metrics, reading numbers "
        "(`.item()`), printing. If a value is not needed in every step, compute it in `on_log` or "
        "in the evaluation",
    ),
    COMMUNICATION: (
        0.25,
        "waiting for the other processes: compute more between two updates (`accumulate`, larger "
        "batches), and check whether one process is slower than the others",
    ),
    CALLBACKS: (
        0.15,
        "callbacks{most}: call them less often (every n updates, or in `on_log` or "
        "`on_epoch_end`), or remove some",
    ),
    LOGGING: (0.15, "logging{most}: log fewer values, or less often"),
    EVALUATION: (
        0.4,
        "evaluation{most}: evaluate less often (longer epochs), on fewer samples, or in larger "
        "batches",
    ),
    CHECKPOINTS: (
        0.1,
        "blocked by checkpoints{most}: save less often (Checkpoints(every_epochs=None, "
        "every_minutes=10))",
    ),
}
COMPUTING = (FORWARD, BACKWARD, OPTIMIZER)
HEALTHY = 0.8


@dataclass(frozen=True)
class Report:
    """What a profile measured.

    Args:
        nanoseconds: The time of each part; a key such as "callbacks/EMA/on_update_end" is a detail
            of a part.
        num_steps: The steps in that time.
        last_step: The number of the last of them in the run, which may have gone on without a
            profile.
        warmup_steps: The steps before, which are not in it.
        num_workers: The workers of the training data's loader; None where the data is no loader.
        num_cores: The cores that this process may use.
        world: The number of processes of the run; the report is about the first one.
        memory: Peaks in bytes, "process" and "device".

    Example:
        >>> from loopwright.profiling import Report
        >>> report = Report({"data": 620_000_000, "forward": 380_000_000}, num_cores=8)
        >>> report.verdict
        '62 % of the time is waiting for data: pass a DataLoader with num_workers=2.'
        >>> report.shares["forward"], report.seconds
        (0.38, 1.0)
    """

    nanoseconds: Mapping[str, int]
    num_steps: int = 0
    last_step: int = 0
    warmup_steps: int = 0
    num_workers: int | None = None
    num_cores: int | None = None
    world: int = 1
    memory: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def parts(self) -> dict[str, int]:
        """The nanoseconds of each part, in the order of a step, without parts that took none; they
        add up to all."""
        totals = dict.fromkeys(PARTS, 0)
        for key, spent in self.nanoseconds.items():
            part = key.partition("/")[0]
            totals[part] = totals.get(part, 0) + spent
        return {part: spent for part, spent in totals.items() if spent}

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
        for key, spent in self.nanoseconds.items():
            of, *rest = key.split("/")
            if of == part and rest and spent:
                found[rest[0]] = found.get(rest[0], 0) + spent
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @cached_property
    def findings(self) -> list[str]:
        """What stands out, the largest first, each with what to do; one sentence if nothing
        does."""
        if not self.total:
            return ["Nothing was measured."]
        found = sorted(_outstanding(self), reverse=True)
        return [sentence for _, sentence in found] or [_calm(self)]

    @property
    def verdict(self) -> str:
        """The first of the findings."""
        return self.findings[0]

    # As text

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The lines of the table, with the verdict below."""
        steps = "step" if self.num_steps == 1 else "steps"
        title = f"Where the time went: {self.num_steps:,} {steps} in {duration(self.seconds)}"
        if self.warmup_steps:
            title += f", after {self.warmup_steps} of warm-up"
        yield f"{title}; rank 0 of {self.world} processes" if self.world > 1 else title
        rows = list(self._rows())
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for name, *numbers in rows:
            aligned = map(str.rjust, numbers, widths[1:])
            yield f"  {name.ljust(widths[0])}  {'  '.join(aligned)}".rstrip()
        names = [name for name in ("process", "device") if name in self.memory]
        if names:
            peaks = [f"{size(self.memory[name])} (the {name})" for name in names]
            yield f"Peak memory: {', '.join(peaks)}"
        yield from self.findings

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

    # As data

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON, as in `profile.json`."""
        parts = []
        for part, spent in self.parts.items():
            seconds = spent / NANOSECONDS
            details = {name: own / NANOSECONDS for name, own in self.details(part).items()}
            parts.append(
                {
                    "name": part,
                    "seconds": seconds,
                    "share": self.shares[part],
                    "per_step": seconds / self.num_steps if self.num_steps else None,
                    "details": details,
                }
            )
        return {
            "version": PROFILE_VERSION,
            "seconds": self.seconds,
            "verdict": self.verdict,
            "findings": self.findings,
            "parts": parts,
            **asdict(self),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Report:
        """The report that `as_dict` gave."""
        names = cls.__dataclass_fields__
        return cls(**{name: value for name, value in values.items() if name in names})


# Sentences


def _calm(report: Report) -> str:
    """The sentence of a report in which nothing stands out."""
    computing = sum(report.shares.get(part, 0.0) for part in COMPUTING)
    text = f"{percent(computing)} of the time is forward, backward and optimizer"
    if computing >= HEALTHY:
        return f"Healthy: {text}."
    others = {part: share for part, share in report.shares.items() if part not in COMPUTING}
    largest = max(others, key=others.__getitem__)
    return (
        f"Nothing stands out: {text}; the largest other part is {largest}, "
        f"{percent(others[largest])}."
    )


def _outstanding(report: Report) -> Iterator[tuple[float, str]]:
    """The parts above their limits, each with its share and what to do."""
    for part, (limit, advice) in ADVICE.items():
        share = report.shares.get(part, 0.0)
        if share < limit:
            continue
        details = list(report.details(part))
        most = f", most of it {details[0]}" if details else ""
        text = advice.format(most=most, workers=_more_workers(report, share))
        yield share, f"{percent(share)} of the time is {text}."


def _more_workers(report: Report, share: float) -> str:
    """What to do about data: as many workers as would keep up, if there are cores for them."""
    workers = report.num_workers or 0
    cores = report.num_cores or 1
    if cores == 1 or workers >= cores:
        who = f"{workers} workers" if workers else "this process"
        return (
            f"{who} on {counted(cores, 'core')} cannot go faster: make the data set's "
            "__getitem__ cheaper (decode once, cache, smaller files)"
        )
    needed = ceil(max(workers, share) / max(1.0 - share, 0.01))
    wanted = min(max(needed, workers + 1), cores)
    how = "try" if report.num_workers is not None else "pass a DataLoader with"
    return f"{how} num_workers={wanted}"


def percent(share: float) -> str:
    """A share as a whole number of percent."""
    return f"{100 * share:.0f} %"

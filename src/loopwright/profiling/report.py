"""The report of a profile: parts, shares and details, as a table, as a dict, and as the file
`profile.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from ..run.profile_file import VERSION
from .clock import CALLBACKS, CHECKPOINTS, EVALUATION, LOGGING, OTHER, PARTS, divided

NANOSECONDS = 1_000_000_000
DETAILED = (CALLBACKS, LOGGING, EVALUATION, CHECKPOINTS, OTHER)
SHOWN_SHARE = 0.005  # a detail of a smaller share has no line of its own


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
        from .verdict import findings

        return findings(self)

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
        text = (
            f"Where the time went: {self.num_steps:,} step{'' if self.num_steps == 1 else 's'} in "
        )
        text += duration(self.total)
        if self.warmup_steps:
            text += f", after {self.warmup_steps} of warm-up"
        return f"{text}; rank 0 of {self.world} processes" if self.world > 1 else text

    def _rows(self) -> Iterator[tuple[str, str, str, str]]:
        yield "part", "share", "total", "per step" if self.num_steps else ""
        for part, tenths in _rounded(self.parts).items():
            yield self._row(part, self.parts[part], f"{tenths / 10:.1f} %")
            for name, spent in self.details(part).items() if part in DETAILED else ():
                if spent >= SHOWN_SHARE * self.total:
                    # never more than the part, which may be rounded
                    share = min(1000 * spent / self.total, tenths)
                    yield self._row(f"  {name}", spent, f"{share / 10:.1f} %")
        yield self._row("all", self.total, "100.0 %")

    def _row(self, name: str, spent: int, share: str) -> tuple[str, str, str, str]:
        return (
            name,
            share,
            duration(spent),
            duration(spent // self.num_steps) if self.num_steps else "",
        )

    def _memory_lines(self) -> Iterator[str]:
        peaks = {"process": "the process", "device": str(self.device)}
        texts = [
            f"{size_text(self.memory[key])} ({name})"
            for key, name in peaks.items()
            if self.memory.get(key)
        ]
        if texts:
            yield f"Peak memory: {', '.join(texts)}"
        if operators := self.memory.get("operators"):
            largest = (
                f"{one['name']} {size_text(one['bytes'])} in {one['calls']} calls"
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
        return {"version": VERSION, **found, **values, "nanoseconds": dict(self.nanoseconds)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Report:
        """The report that `as_dict` gave."""
        names = cls.__dataclass_fields__
        return cls(**{name: value for name, value in values.items() if name in names})


def duration(nanoseconds: float) -> str:
    """A time with three digits and the unit that fits."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size * 0.9995:
            value = nanoseconds / size
            return f"{value:,.0f} {unit}" if value >= 999.5 else f"{value:.3g} {unit}"
    return f"{nanoseconds:.0f} ns"


def size_text(size: float) -> str:
    """A number of bytes in kB or MB."""
    return f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"


def _rounded(parts: Mapping[str, int]) -> dict[str, int]:
    """The shares of parts in tenths of a percent, rounded so that they add up to 1000."""
    total = sum(parts.values()) or 1
    exact = {part: 1000 * spent / total for part, spent in parts.items()}
    result = {part: int(share) for part, share in exact.items()}
    missing = 1000 - sum(result.values()) if parts else 0
    for part in sorted(exact, key=lambda part: result[part] - exact[part])[:missing]:
        result[part] += 1
    return result

"""The report of `loopwright check`: facts, notes and mistakes, rendered as text or as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ...config import Config, Problem
from ...data.stream import Batch, Stream, StreamWrapper
from ...text import counted
from ..output import FOUND, OK, RED, described, print_json, printable, say, styled

BUILT = re.compile(r"raised while (\S+) \(kind: .*\) was built")


@dataclass(slots=True)
class CheckReport:
    """Everything that a check of a run file or program found; a problem is listed once."""

    kind: Literal["config", "program"]
    path: str
    config: Config | None = None  # where it could be read: problems then have a line
    facts: dict[str, Any] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)  # the facts as lines, ready to be printed
    notes: list[Problem] = field(default_factory=list)
    mistakes: list[Problem] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    _errors: set[str] = field(default_factory=set)

    def mistake(self, key: str, message: str) -> None:
        """Report something that keeps the run from being trained as intended."""
        self._add(self.mistakes, key, message)

    def note(self, key: str, message: str) -> None:
        """Report something that may be intended."""
        self._add(self.notes, key, message)

    def _add(self, problems: list[Problem], key: str, message: str) -> None:
        problem = Problem(self.path, None, key, message)
        if self.config is not None:
            problem = self.config.problem(key, message)
        if problem not in problems:
            problems.append(problem)

    def failed(self, key: str, doing: str, error: BaseException) -> None:
        """Report an error that the user's code raised, or that was raised about it."""
        head, *details = described(error)
        if head in self._errors:
            return
        self._errors.add(head)
        if type(error).__module__.startswith("loopwright."):
            head = str(error)
        place = next((match[1] for line in details if (match := BUILT.search(line))), key)
        details = [line for line in details if not line.startswith("raised ")]
        self.mistake(place, "\n".join([f"{doing}: {head}", *details]))

    @contextmanager
    def collecting(self, key: str, doing: str) -> Iterator[list[bool]]:
        """Turn an exception into a mistake; the yielded list is filled if there was none."""
        succeeded: list[bool] = []
        try:
            yield succeeded
        except Exception as error:
            self.failed(key, doing, error)
        else:
            succeeded.append(True)

    def print(self, *, as_json: bool) -> int:
        """Print the report and return the exit code; in text, mistakes come last, where they are
        seen."""
        if as_json:
            problems = {"mistakes": self.mistakes, "notes": self.notes}
            tables = {name: list(map(asdict, some)) for name, some in problems.items()}
            print_json({self.kind: self.path, "ok": not self.mistakes, **tables, **self.facts})
        else:
            self._print_text()
        return FOUND if self.mistakes else OK

    def _print_text(self) -> None:
        for line in self.text:
            print(line)
        for note in self.notes:
            print(self._line(note, "note: "))
        if self.kind == "config" and not self.mistakes:
            say(f"No mistakes found in {self.path}: it is ready to train.")
        elif self.kind == "config":
            how_many = counted(len(self.mistakes), "mistake")
            print("\n" + styled(printable(f"{how_many} in {self.path}:"), RED))
        for mistake in self.mistakes:
            print(styled(self._line(mistake, "" if self.kind == "config" else "mistake: "), RED))

    def _line(self, problem: Problem, head: str) -> str:
        text = problem.message if self.kind == "program" else str(problem)
        return printable(f"{head}{text}", keep="\n")


class FewSamples(StreamWrapper):
    """A stream with at most `max_samples` in a batch; order and sharding stay the same."""

    def __init__(self, stream: Stream, max_samples: int) -> None:
        self._max_samples = max_samples
        super().__init__(stream)

    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        few = self._max_samples if max_samples is None else min(max_samples, self._max_samples)
        # a window keeps all its steps
        return [batch for _ in range(count) for batch in self._stream.take(1, few)]

    def _update_sizes(self) -> None:
        super()._update_sizes()
        if self.num_samples is not None and self.num_batches is not None:
            self.num_batches = -(-self.num_samples // self._max_samples)

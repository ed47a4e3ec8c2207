"""The report of `loopwright check`: facts, notes and mistakes, rendered as text or as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ...callback import Callback
from ...config import Config, Problem
from ...text import counted
from ..exits import described
from ..output import RED, print_json, printable, styled

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
        """CheckReport something that keeps the run from being trained as intended."""
        self._add(self.mistakes, key, message)

    def note(self, key: str, message: str) -> None:
        """CheckReport something that may be intended."""
        self._add(self.notes, key, message)

    def _add(self, problems: list[Problem], key: str, message: str) -> None:
        problem = (
            Problem(self.path, None, key, message)
            if self.config is None
            else self.config.problem(key, message)
        )
        if problem not in problems:
            problems.append(problem)

    def key_of_callback(self, callbacks: Sequence[Callback], number: int) -> str:
        """The key of a callback in the config, by its position among all those of the trainer."""
        config = self.config
        assert config is not None
        first = 0 if config.get("trainer.initializer") is None else 1
        listed = len(config.get("trainer.callbacks") or [])
        if number < first:
            return "trainer.initializer"
        if number < first + listed:
            return f"trainer.callbacks.{number - first}"
        is_last = number == len(callbacks) - 1
        return "initializer" if is_last and config.get("initializer") is not None else "trainer"

    def fact(self, name: str, value: Any, *lines: str) -> None:
        """Add a fact, to be shown after the ones before it."""
        self.facts[name] = value
        self.text += lines

    def failed(self, key: str, doing: str, error: BaseException) -> None:
        """CheckReport an error that the user's code raised, or that was raised about it."""
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

    def print(self, *, as_json: bool) -> None:
        """Print the report; in text, mistakes come last, where they are seen."""
        if as_json:
            mistakes = list(map(asdict, self.mistakes))
            notes = list(map(asdict, self.notes))
            head = {self.kind: self.path, "ok": not mistakes}
            print_json({**head, "mistakes": mistakes, "notes": notes, **self.facts})
            return
        for line in self.text:
            print(line)
        for note in self.notes:
            print(self._line(note, "note: "))
        if self.kind == "config":
            how_many = counted(len(self.mistakes), "mistake")
            well = f"No mistakes found in {self.path}: it is ready to train."
            bad = styled(printable(f"{how_many} in {self.path}:"), RED)
            print(f"\n{bad}" if self.mistakes else printable(well))
        for mistake in self.mistakes:
            print(styled(self._line(mistake, "" if self.kind == "config" else "mistake: "), RED))

    def _line(self, problem: Problem, head: str) -> str:
        text = problem.message if self.kind == "program" else str(problem)
        return printable(f"{head}{text}", keep="\n")

"""The report of `loopwright check`: facts, notes and mistakes in one structure, rendered as text or
as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ...config import Config, Problem
from ..exits import described
from ..output import RED, print_json, printable, styled

if TYPE_CHECKING:
    from ...callback import Callback


BUILT = re.compile(r"raised while (\S+) \(kind: .*\) was built")
WATCHES = "{} watches {!r}"
ADVICE = {  # a pattern in the message of an error, and what to do about it
    r"same device|device meta|meta tensor|on device|cuda:\d.*cpu": (
        "Tensors are on different devices: make new ones where the inputs are (torch.zeros(..., "
        "device=x.device)), or keep them as buffers with register_buffer, which move with the "
        "model."
    ),
    r"cannot be multiplied|size mismatch|must match the size|tensors must match|invalid for input": (
        "The sizes of the data and of the layers do not match: compare the shapes with the "
        "arguments of the model."
    ),
    r"does not require grad|has no graph": (
        "The loss is not computed from trained weights: look for detach(), item(), numpy() or "
        "no_grad() on the way to it, and for frozen layers."
    ),
    r"scalar outputs|shape \(.*\): reduce": "The loss is not one number: reduce it, as with .mean().",
    r"scalar type Long|expected .*Long|index tensor|dtype|doesn't match the desired type|must have the same type": (
        "Numbers are of the wrong type: class indices are whole numbers (torch.long), inputs and "
        "targets of a regression float32."
    ),
}


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact that a check established: its name and value in JSON, and the lines of text that show
    it."""

    name: str
    value: Any
    lines: tuple[str, ...] = ()  # ready to be printed


@dataclass(slots=True)
class Report:
    """Everything that a check of a run file or program found; a problem that is known already is
    not listed twice."""

    kind: Literal["config", "program"]
    path: str
    facts: list[Fact] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    mistakes: list[Problem] = field(default_factory=list)

    def problem(self, key: str, message: str) -> Problem:
        """A problem and its place; of a program the place is the file."""
        return Problem(self.path, None, key, message)

    def mistake(self, key: str, message: str) -> None:
        """Report something that keeps the run from being trained, or from being trained as
        intended."""
        problem = self.problem(key, message)
        if problem not in self.mistakes:
            self.mistakes.append(problem)

    def note(self, key: str, message: str) -> None:
        """Report something that may be intended."""
        problem = self.problem(key, message)
        if problem not in self.notes:
            self.notes.append(problem)

    def fact(self, name: str, value: Any, *lines: str) -> None:
        """Add a fact, to be shown after the ones before it."""
        self.facts.append(Fact(name, value, lines))

    def to_json(self) -> dict[str, Any]:
        return {
            self.kind: self.path,
            "ok": not self.mistakes,
            "mistakes": list(map(asdict, self.mistakes)),
            "notes": list(map(asdict, self.notes)),
            **{fact.name: fact.value for fact in self.facts},
        }

    def lines(self) -> Iterator[str]:
        """The report as text; mistakes come last, where they are seen."""
        yield from (line for fact in self.facts for line in fact.lines)
        texts = [self._text(note) for note in self.notes]
        yield from (printable(f"note: {text}", keep="\n") for text in texts)
        mistakes = [printable(self._text(mistake), keep="\n") for mistake in self.mistakes]
        if self.kind == "program":
            yield from (styled(f"mistake: {text}", RED) for text in mistakes)
        elif mistakes:
            count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
            yield from (
                "",
                *(styled(text, RED) for text in (printable(f"{count} in {self.path}:"), *mistakes)),
            )
        else:
            yield printable(f"No mistakes found in {self.path}: it is ready to train.")

    def _text(self, problem: Problem) -> str:
        return problem.message if self.kind == "program" else str(problem)


@dataclass(slots=True)
class ConfigReport(Report):
    """A report whose problems have a place in the config, and that takes exceptions as mistakes."""

    config: Config = field(kw_only=True)
    checked: list[str] = field(default_factory=list)
    errors: set[str] = field(default_factory=set)

    def problem(self, key: str, message: str) -> Problem:
        return self.config.problem(key, message)

    def failed(self, key: str, doing: str, error: BaseException) -> None:
        """Report an error that the user's code raised, or that was raised about it."""
        lines = described(error)
        if lines[0] in self.errors:
            return
        self.errors.add(lines[0])
        place = next((match[1] for line in lines if (match := BUILT.search(line))), key)
        is_known = f"{type(error).__name__}: "
        head = (
            str(error)
            if type(error).__module__.startswith("loopwright.")
            else lines[0].removesuffix(is_known)
        )
        advice = next(
            (text for words, text in ADVICE.items() if re.search(words, str(error))), None
        )
        details = [line for line in lines[1:] if not line.startswith("raised ")]
        self.mistake(
            place,
            "\n".join(
                [f"{doing}: {head}", *details, *([] if advice is None else [f"-> {advice}"])]
            ),
        )

    @contextmanager
    def collecting(self, key: str, doing: str) -> Iterator[list[bool]]:
        """Turn an exception raised inside into a mistake; the yielded list is filled if there was
        none."""
        succeeded: list[bool] = []
        try:
            yield succeeded
        except Exception as error:
            self.failed(key, doing, error)
        else:
            succeeded.append(True)


def print_report(report: Report, *, as_json: bool) -> None:
    """Print a report as text or as JSON."""
    if as_json:
        print_json(report.to_json())
        return
    for line in report.lines():
        print(line)


def culprit(error: BaseException, callbacks: Sequence[Callback]) -> int | None:
    """The position of the callback that raised an error or its cause: the outermost on the stack,
    or one it names."""
    for trace in (
        error.__traceback__,
        None if error.__cause__ is None else error.__cause__.__traceback__,
    ):
        while trace is not None:
            owner: Any = trace.tb_frame.f_locals.get("self")
            for number, callback in enumerate(callbacks):
                if callback is owner:
                    return number
            trace = trace.tb_next
    for number, callback in enumerate(callbacks):
        if any(
            WATCHES.format(type(callback).__name__, name) in str(error)
            for name in callback.required_metrics()
        ):
            return number
    return None


def key_of_callback(config: Config, callbacks: Sequence[Callback], number: int) -> str:
    """The key of a callback in the config, by its position among all callbacks of the trainer."""
    first = 0 if config.get("trainer.initializer") is None else 1
    listed = len(config.get("trainer.callbacks") or [])
    if number < first:
        return "trainer.initializer"
    if number < first + listed:
        return f"trainer.callbacks.{number - first}"
    is_last = number == len(callbacks) - 1
    return "initializer" if is_last and config.get("initializer") is not None else "trainer"

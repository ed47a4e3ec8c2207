"""What `loopwright check CONFIG` finds: mistakes and notes, each with its place in the config and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..config import Config, Problem
from .failing import described

if TYPE_CHECKING:
    from ..callback import Callback

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

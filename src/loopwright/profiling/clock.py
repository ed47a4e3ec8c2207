"""The clock of a profile: every nanosecond between its start and its stop belongs to exactly one
part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns as now

# The parts of a run's time, in the order in which they are shown. A key below a part
# ("callbacks/EMA/on_update_end") is a detail of it.
DATA = "data"
TRANSFER = "transfer"
FORWARD = "forward"
TRAIN_STEP = "train_step"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
COMMUNICATION = "communication"
CALLBACKS = "callbacks"
LOGGING = "logging"
EVALUATION = "evaluation"
CHECKPOINTS = "checkpoints"
OTHER = "other"
PARTS = (
    *(DATA, TRANSFER, FORWARD, TRAIN_STEP, BACKWARD, OPTIMIZER, COMMUNICATION),
    *(CALLBACKS, LOGGING, EVALUATION, CHECKPOINTS, OTHER),
)
OF_AN_EVALUATION = (DATA, TRANSFER, FORWARD, COMMUNICATION)


class Clock:
    """Adds up the time of parts that may be nested: a part inside another one is not counted in the
    outer one.

    Args:
        sync: Waits for the accelerator, at each change of parts, since the host runs ahead of it;
            None on the CPU.
    """

    def __init__(self, sync: Callable[[], None] | None = None) -> None:
        self.spent: defaultdict[str, int] = defaultdict(int)
        self.num_steps = 0
        self._sync = sync
        self._is_evaluating = False
        self._stack = [OTHER]
        self._body: int | None = None  # the depth below the step under way
        self._last = 0

    def start(self) -> None:
        """Begin, or go on, with the part that no other covers."""
        self._stack = [OTHER]
        self._body = None
        self._last = now()

    def restart(self) -> None:
        """Forget what was counted so far; the parts under way go on."""
        self.charge()
        self.num_steps = 0
        self.spent.clear()

    def enter(self, part: str) -> int:
        """Begin a part; returns the depth, above 0, that `leave` goes back to."""
        self.charge()
        if self._is_evaluating and part in OF_AN_EVALUATION:
            part = f"{EVALUATION}/{part}"
        self._stack.append(part)
        return len(self._stack) - 1

    def leave(self, depth: int) -> None:
        """End the part that was entered at a depth, and whatever an exception has left open
        inside."""
        self.charge()
        del self._stack[depth:]

    def begin_step(self, part: str = TRAIN_STEP) -> None:
        """Begin the body of a step, which ends with `end_step`; one that an exception left is
        over."""
        if self._body is not None:
            self.leave(self._body)
        self._body = self.enter(part)

    def end_step(self) -> None:
        """End the body of a step, and count it."""
        if self._body is not None:
            self.leave(self._body)
        self._body = None
        self.num_steps += 1

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """An evaluation: what it takes by data, transfer and forward passes are details of it."""
        depth = self.enter(EVALUATION)
        self._is_evaluating = True
        try:
            yield
        finally:
            self.leave(depth)
            self._is_evaluating = False

    def charge(self) -> None:
        """Count the time up to now for the part under way."""
        if self._sync is not None:
            self._sync()
        moment = now()
        self.spent[self._stack[-1]] += moment - self._last
        self._last = moment

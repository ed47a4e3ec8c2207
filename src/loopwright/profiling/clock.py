"""The clock of a profile: every nanosecond between its start and its stop belongs to exactly one
part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter_ns as now

# The parts of a run's time, in the order in which they are shown. A key below a part
# ("callbacks/EMA/on_update_end")
# is a detail of it.
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
OF_A_STEP = (DATA, TRANSFER, FORWARD, TRAIN_STEP, BACKWARD, OPTIMIZER)
GAP = "between train calls"
UNSAMPLED = "unsampled"  # parts of steps that were not synchronised with the accelerator

_MEASURED: Mapping[str, str] = {}
_POOLED: Mapping[str, str] = dict.fromkeys(OF_A_STEP, UNSAMPLED)
_IN_EVALUATION = {part: f"{EVALUATION}/{part}" for part in (DATA, TRANSFER, FORWARD, COMMUNICATION)}


class Clock:
    """Adds up the time of parts that may be nested: a part inside another one is not counted in the
    outer one.

    On an accelerator the host runs ahead of the device, so that its times say nothing. There every
    n-th step is synchronised at each change of parts, and the parts of a step are only measured in
    these; the time of the other steps is divided in the same proportion.

    Args:
        sync: Waits for the accelerator; None on the CPU, where every step is measured.
        every: Synchronise every n-th step.
    """

    def __init__(self, sync: Callable[[], None] | None = None, every: int = 10) -> None:
        self.spent: defaultdict[str, int] = defaultdict(int)
        self.num_steps = 0
        self.nanoseconds = 0  # from each start to its stop
        self._sync = sync
        self._every = every
        self._syncs = False  # whether the step under way is synchronised
        self._keys = _MEASURED
        self._stack = [OTHER]
        self._body: int | None = None  # the depth below the step under way
        self._started = 0
        self._last = 0
        self._count = 0

    def start(self, *, after_gap: bool = False) -> None:
        """Begin, or go on, with the part that no other covers; `after_gap` counts the time since
        the last stop."""
        if after_gap and self._last:
            self._stack = [f"{OTHER}/{GAP}"]
            self._charge()
        else:
            self._started = self._last = now()
        self._stack = [OTHER]
        self._body = None
        self._keys = _MEASURED if self._sync is None else _POOLED
        self._syncs = False

    def stop(self) -> None:
        """Count the time up to now."""
        self._charge()
        self.nanoseconds += self._last - self._started
        self._started = self._last

    def restart(self) -> int:
        """Forget what was counted so far, and return its nanoseconds; the parts under way go on."""
        self.stop()
        before = self.nanoseconds
        self.nanoseconds = 0
        self.num_steps = 0
        # the second step from now on is synchronised, so that short profiles have one
        self._count = -1
        self.spent.clear()
        return before

    def enter(self, part: str) -> int:
        """Begin a part; returns the depth, above 0, that `leave` goes back to."""
        if self._syncs and self._sync is not None:
            self._sync()
        stack = self._stack
        moment = now()
        self.spent[stack[-1]] += moment - self._last
        self._last = moment
        stack.append(self._keys.get(part, part))
        return len(stack) - 1

    def leave(self, depth: int) -> None:
        """End the part that was entered at a depth, and whatever an exception has left open
        inside."""
        if self._syncs and self._sync is not None:
            self._sync()
        stack = self._stack
        moment = now()
        self.spent[stack[-1]] += moment - self._last
        self._last = moment
        del stack[depth:]

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
        if self._sync is not None:
            self._count += 1
            is_next = self._count % self._every == 0
            if is_next:
                self.settle()
            self._syncs = is_next
            self._keys = _MEASURED if is_next else _POOLED

    def settle(self) -> None:
        """Before a part that reads from the accelerator: waiting for its steps belongs to the
        steps."""
        if self._sync is not None and not self._syncs:
            depth = self.enter(UNSAMPLED)
            self._sync()
            self.leave(depth)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """An evaluation: what it takes by data, transfer and forward passes are details of it."""
        self.settle()
        before = self._keys, self._syncs
        depth = self.enter(EVALUATION)
        self._keys = _IN_EVALUATION
        self._syncs = False
        try:
            yield
        finally:
            self.leave(depth)
            self._keys, self._syncs = before

    def _charge(self) -> None:
        moment = now()
        self.spent[self._stack[-1]] += moment - self._last
        self._last = moment


def divided(spent: Mapping[str, int]) -> dict[str, int]:
    """Divide the time of unsampled steps over the parts of a step, as the sampled steps have it;
    sums are kept."""
    result = dict(spent)
    pool = result.pop(UNSAMPLED, 0)
    total = sum(result.get(part, 0) for part in OF_A_STEP)
    if not total:  # no step was sampled
        return {**result, FORWARD: pool} if pool else result
    left = pool
    largest = max(OF_A_STEP, key=lambda part: result.get(part, 0))
    for part in OF_A_STEP:
        if part in result:
            share = pool * result[part] // total
            result[part] += share
            left -= share
    result[largest] += left
    return result

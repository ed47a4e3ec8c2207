"""The stream over a map-style data set: an order we know, batches addressed by position."""

from collections.abc import Iterator
from typing import Any

from ..errors import DataError
from .feeds import Feed
from .fetching import Request
from .interface import Batch, Stateful, Stream
from .plan import Plan, Planner, spans_from


class Place:
    """Epoch and position in an indexed data set, and the plan they refer to."""

    def __init__(self, planner: Planner, seed: int) -> None:
        self.planner = planner
        self.seed = seed
        self.epoch = 0
        self.position = 0
        self._plan: Plan | None = None
        self._sampler_state: dict[str, Any] | None = None

    @property
    def plan(self) -> Plan:
        """The current epoch's batches, drawn when they are first needed."""
        if self._plan is None:
            sampler = self.planner.order.sampler
            if isinstance(sampler, Stateful):
                self._sampler_state = sampler.state_dict()
            self._plan = self.planner.plan(self.epoch)
        return self._plan

    def move(self, epoch: int, position: int = 0) -> None:
        if epoch != self.epoch or position == 0:
            self._plan = None
        self.epoch, self.position = epoch, position

    def state_dict(self) -> dict[str, Any]:
        """Enough to come back here, and to notice that the data is not the same any more."""
        num_samples = self.plan.num_samples
        state = {
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.seed,
            "num_samples": num_samples,
        }
        if self._sampler_state is not None:
            state["sampler"] = self._sampler_state
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        sampler = self.planner.order.sampler
        if "sampler" in state and isinstance(sampler, Stateful):
            sampler.load_state_dict(state["sampler"])
        self._plan = None
        self.move(state["epoch"], state["position"])
        if self.position:
            self._check_same_data(state)

    def check_resumable(self) -> None:
        if name := self.planner.order.hidden_state():
            raise DataError(
                f"A run with {name} cannot be resumed exactly: its order may depend on state that is not "
                "saved. Give it `set_epoch(epoch)` and make its order a function of the epoch, or `state_dict` "
                "and `load_state_dict`, or use shuffle=True."
            )

    def _check_same_data(self, state: dict[str, Any]) -> None:
        if state["seed"] != self.seed:
            raise DataError(
                f"The position to continue from was saved with seed {state['seed']}, but the seed is now "
                f"{self.seed}, which gives another order: use seed={state['seed']}, or start a new run."
            )
        if state["num_samples"] != self.plan.num_samples:
            raise DataError(
                f"The position to continue from was saved in an epoch of {state['num_samples']} samples, but "
                f"the data now gives {self.plan.num_samples}: resume with the same data, or start a new run."
            )


class IndexedStream(Stream):
    """Batches of a map-style data set, fetched in this process or by workers."""

    def __init__(self, place: Place, feed: Feed, in_order: bool = True) -> None:
        self._place = place
        self._feed = feed
        self._in_order = in_order
        self._started = False
        self.num_batches, self.num_samples = place.planner.sizes()

    def begin(self, epoch: int) -> None:
        self._place.move(epoch)
        self._start()

    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        if not self._started:
            self._start()
        batches: list[Batch] = []
        position, left = self._place.position, max_samples
        while len(batches) < count and (left is None or left > 0):
            start, stop = self._place.plan.span(position)
            if start == stop:
                break
            if left is not None and not self._place.planner.single and stop - start > left:
                self._feed.start(self._requests(position, left))
            batch = self._feed.next()
            position += 1 if self._place.planner.single else batch.size
            left = None if left is None else left - batch.size
            batches.append(batch)
        self._place.position = position  # only now: a batch that was not given out is not consumed
        return batches

    def state_dict(self) -> dict[str, Any]:
        return self._place.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._place.load_state_dict(state)
        self._start()

    def check_resumable(self) -> None:
        self._place.check_resumable()
        if not self._in_order:
            raise DataError(
                "A run whose DataLoader has in_order=False cannot be resumed exactly: which batches were given "
                "out is not known. Leave in_order at True."
            )

    def close(self) -> None:
        self._feed.close()
        self._started = False

    def _start(self) -> None:
        plan = self._place.plan
        self.num_batches = plan.num_batches
        self.num_samples = None if self._place.planner.single else plan.num_samples
        self._feed.start(self._requests(self._place.position))
        self._started = True

    def _requests(self, position: int, limit: int | None = None) -> Iterator[Request]:
        plan, epoch = self._place.plan, self._place.epoch
        for start, stop in spans_from(plan, position, limit):
            yield Request(epoch, plan.indices(start, stop))

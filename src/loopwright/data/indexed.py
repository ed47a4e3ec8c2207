"""The stream over a map-style data set: an order that we know, batches addressed by position."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from ..errors import DataError
from .feeds import Feed
from .fetching import Request
from .interface import Batch, Stateful, Stream, check_kind
from .plan import Plan, Planner, spans_from
from .sharding import Shard

_KIND = "a map-style data set"


class Place:
    """Epoch and position in an indexed data set, and the plan of batches they refer to."""

    def __init__(self, planner: Planner, seed: int, shard: Shard | None = None) -> None:
        self.planner = planner
        self.shard = shard
        self.epoch = 0
        self.position = 0
        self._seed = seed
        self._plan: Plan | None = None
        self._sampler_state: dict[str, Any] | None = None

    @property
    def plan(self) -> Plan:
        """The batches of the current epoch, drawn when they are first needed."""
        if self._plan is None:
            sampler = self.planner.order.sampler
            if isinstance(sampler, Stateful):  # as it was before this epoch was drawn
                self._sampler_state = deepcopy(sampler.state_dict())
            self._plan = self.planner.plan(self.epoch)
        return self._plan

    def move(self, epoch: int, position: int = 0) -> None:
        self.epoch, self.position, self._plan = epoch, position, None

    @property
    def spans_epochs(self) -> bool:
        """Whether the order of an epoch may depend on those before it, through a sampler with state of its own."""
        return isinstance(self.planner.order.sampler, Stateful)

    def state_dict(self) -> dict[str, Any]:
        """Enough to come back here, and to notice that the data is not the same any more.

        A sampler with state is saved twice: as it was before this epoch was drawn, if it was, and as it is now, since
        it has drawn this epoch, and its user may have changed it on the way.
        """
        sampler = self.planner.order.sampler
        now = deepcopy(sampler.state_dict()) if isinstance(sampler, Stateful) else None
        is_drawn = self._plan is not None or now is None
        state = {"kind": _KIND, "epoch": self.epoch, "position": self.position, "seed": self._seed}
        state["num_samples"] = self.plan.num_samples if is_drawn else None
        return state | {"sampler": self._sampler_state if is_drawn else None, "sampler_now": now}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_kind(state, _KIND)
        self.move(state["epoch"], state["position"])
        sampler = self.planner.order.sampler
        if isinstance(sampler, Stateful):
            self._load_sampler(sampler, state)
        if self.position:
            self._check_same_order(state)

    def _load_sampler(self, sampler: Stateful, state: dict[str, Any]) -> None:
        if state["sampler"] is not None:
            sampler.load_state_dict(deepcopy(state["sampler"]))
            self._sampler_state, self._plan = state["sampler"], self.planner.plan(self.epoch)
        if state.get("sampler_now") is not None:  # runs of earlier versions do not have it
            sampler.load_state_dict(deepcopy(state["sampler_now"]))

    def check_resumable(self) -> None:
        if name := self.planner.order.hidden_state():
            raise DataError(
                f"A run with {name} cannot be resumed exactly: its order may depend on state that is not "
                "saved. Give it `set_epoch(epoch)` and make its order a function of the epoch, or `state_dict` "
                "and `load_state_dict`, or use shuffle=True."
            )

    def _check_same_order(self, state: dict[str, Any]) -> None:
        if state["seed"] != self._seed:
            raise DataError(
                f"The position to continue from was saved with seed {state['seed']}, but the seed is now "
                f"{self._seed}, which gives another order: use seed={state['seed']}, or start a new run."
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
        self._is_started = False
        self.is_shared = place.shard is not None
        self.num_batches, self.num_samples = place.planner.sizes()

    def begin(self, epoch: int) -> None:
        self._place.move(epoch)
        self._start()

    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        if not self._is_started:
            self._start()
        batches: list[Batch] = []
        position, left = self._place.position, max_samples
        while len(batches) < count and (left is None or left > 0):
            batch = self._next(position, left)
            if batch is None:
                break
            batches.append(batch)
            total = batch.size if batch.total is None else batch.total
            position += 1 if self._place.planner.single else total
            left = None if left is None else left - total
        self._place.position = position  # only now: a batch that was not given out is not consumed
        return batches

    def state_dict(self) -> dict[str, Any]:
        return self._place.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._place.load_state_dict(state)
        if state["num_samples"] is None:  # no epoch was drawn yet, which a sampler would notice
            self._is_started = False
        else:
            self._start()

    @property
    def spans_epochs(self) -> bool:
        return self._place.spans_epochs

    def check_resumable(self) -> None:
        self._place.check_resumable()
        if not self._in_order:
            raise DataError(
                "A run whose DataLoader has in_order=False cannot be resumed exactly: which batches were given "
                "out is not known. Leave in_order at True."
            )

    def describe(self) -> dict[str, Any]:
        return self._feed.fetcher.describe() | self._place.planner.describe()

    def peek(self) -> list[Any] | None:
        from .peeking import peek_samples

        return peek_samples(self._feed.fetcher)

    def close(self) -> None:
        self._feed.close()
        self._is_started = False

    def _start(self) -> None:
        plan = self._place.plan
        self.num_batches = plan.num_batches
        self.num_samples = None if self._place.planner.single else plan.num_samples
        self._feed.start(self._place.epoch, self._requests(self._place.position))
        self._is_started = True

    def _next(self, position: int, limit: int | None) -> Batch | None:
        start, stop = self._place.plan.span(position)
        if start == stop:  # nothing more to ask for: workers of this epoch end
            self._feed.start(self._place.epoch, iter(()))
            return None
        if limit is not None and stop - start > limit:  # a shorter batch than the one asked for
            self._feed.start(self._place.epoch, self._requests(position, limit))
        batch = self._feed.next()
        if (shard := self._place.shard) is None:
            return batch
        total = min(stop - start, stop - start if limit is None else limit)
        return Batch(batch.value, shard.size(total), total)

    def _requests(self, position: int, limit: int | None = None) -> Iterator[Request]:
        plan, epoch, shard = self._place.plan, self._place.epoch, self._place.shard
        for start, stop in spans_from(plan, position, limit):
            if shard is not None:
                start, stop = shard.part(start, stop)
            yield Request(epoch, plan.indices(start, stop))

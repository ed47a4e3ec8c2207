"""A run made tiny: a few samples in a batch, two updates in an epoch, and every interval at each update or epoch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..callback import Callback
from ..callbacks.interval import Periodic, Watching
from ..data.stream import Batch, Stream, StreamAround

if TYPE_CHECKING:
    from ..doors.configured.engine import Engine
    from ..doors.configured.experiment import Experiment

UPDATES = 2  # in an epoch
SAMPLES = 4  # in a batch
WINDOW = 2  # batches in an update that accumulates
EVAL_BATCHES = 2


class TinyStream(StreamAround):
    """The first few samples of the first few batches of every epoch."""

    def __init__(self, stream: Stream, num_batches: int, num_samples: int) -> None:
        self._limit, self._few = num_batches, num_samples
        self._taken = 0
        super().__init__(stream)

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self._taken = 0

    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        batches: list[Batch] = []
        while len(batches) < min(count, self._limit) and self._taken < self._limit:
            left = self._few if max_samples is None else min(max_samples - sum(b.size for b in batches), self._few)
            found = self._stream.take(1, left) if left > 0 else []
            if not found:
                break
            batches += found
            self._taken += 1
        return batches

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self._taken, "stream": self._stream.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state["stream"])
        self._taken = state["taken"]

    def _measure(self) -> None:
        """The length of an epoch, where that of the whole one is known."""
        samples, batches = self._stream.num_samples, self._stream.num_batches
        if not samples or not batches:
            self.num_batches, self.num_samples = batches, samples
            return
        self.num_batches = min(self._limit, -(-samples // self._few))
        self.num_samples = min(self._limit * self._few, samples)


class Tiny(Callback):
    """Makes every stream of a trainer tiny."""

    precedence = -2

    def __init__(self, num_batches: int, num_samples: int) -> None:
        self._num_batches, self._num_samples = num_batches, num_samples

    def adapt_stream(self, stream: Stream, *, is_training: bool) -> Stream:
        return TinyStream(stream, self._num_batches if is_training else EVAL_BATCHES, self._num_samples)


class Factory:
    """Makes engines for tiny runs, each with fresh objects.

    Data sets are shared where building them takes long. `num_workers` is what the config says, one at most.
    """

    def __init__(self, experiment: Experiment, datasets: Mapping[str, Any], *, shares_data: bool) -> None:
        self.experiment = experiment
        self._datasets, self._shares_data = datasets, shares_data

    def build(self) -> Engine:
        """The engine as it would train."""
        datasets = self._datasets
        if not self._shares_data:
            datasets = {key: self.experiment.build_dataset(str(key)) for key in datasets}
        engine = self.experiment.build_trainer(datasets).engine
        engine.run.progress_style = "silent"
        engine.config.num_workers = min(engine.config.num_workers, 1)
        return engine

    def build_tiny(
        self, dropped: Collection[int] = (), added: Collection[Callback] = (), run_dir: Path | None = None
    ) -> Engine:
        """An engine for a tiny run, without the callbacks at these places."""
        engine = self.build()
        engine.run_dir = run_dir
        engine.accumulate = min(engine.accumulate, WINDOW)
        own = [callback for number, callback in enumerate(engine.run.callbacks) if number not in dropped]
        for callback in own:
            if isinstance(callback, Periodic | Watching):
                callback.interval.n = 1
        tiny = Tiny(UPDATES * engine.accumulate, min(SAMPLES, engine.config.batch_size))
        engine.callbacks = [tiny, *own, *added]
        engine.run.bind(engine.callbacks)
        return engine

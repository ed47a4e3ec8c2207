"""Losses on data sets by name, and running means of the training loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from ..errors import ConfigurationError
from ..metrics.meter import Meter
from ..text import nearest
from .interval import Every, Periodic

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..data.open import Stream
    from ..metrics.result import StepResult
    from ..runtime import Runtime

FLUSH_STEPS = 512  # losses that wait on the device for the next reading, at most


class OfflineLoss(Periodic):
    """Evaluates a data set by its name and logs the metrics of `eval_step`.

    `OfflineLoss("test", every_n_updates=100)` logs `test_loss`, and the other metrics as
    `test_<name>`. Every sample is used once, in eval mode, and training goes on as if nothing had
    been evaluated.

    Args:
        dataset_key: The data is `datasets[dataset_key]`, or `trainer.datasets[dataset_key]`.
            "eval" also names the `eval_data` of `train`, and "train" its training data.
        every_n_epochs: Evaluate after every n-th epoch.
        every_n_updates: Evaluate after every n-th update.
        every_n_samples: Evaluate after the update that completes n more samples.
        batch_size: Samples per batch, for a data set; a loader has its own batch size.
        datasets: Data by name, beside `trainer.datasets`.

    >>> import torch, loopwright
    >>> from loopwright.callbacks import OfflineLoss
    >>> data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> test = OfflineLoss("test", datasets={"test": data})
    >>> trainer = loopwright.Trainer(
    ...     model, optimizer, torch.nn.functional.mse_loss, callbacks=[test], progress="silent"
    ... )
    >>> sorted(trainer.train(data, num_epochs=1, batch_size=4))
    ['loss', 'test_loss']
    """

    def __init__(
        self,
        dataset_key: str = "eval",
        *,
        batch_size: int | None = None,
        datasets: Mapping[str, Any] | None = None,
        **every: Unpack[Every],
    ) -> None:
        super().__init__(**every)
        self.dataset_key = dataset_key
        self.batch_size = batch_size
        self.datasets = datasets
        self._stream: Stream | None = None
        self._position: dict[str, Any] | None = None

    def measure(self, trainer: Trainer) -> Mapping[str, float]:
        measured = trainer.evaluate(self._open(trainer))
        return {f"{self.dataset_key}_{name}": value for name, value in measured.items()}

    def eval_streams(self, trainer: Trainer) -> Mapping[str, Stream]:
        return {self.dataset_key: self._open(trainer)}

    def on_train_start(self, trainer: Trainer) -> None:
        super().on_train_start(trainer)
        self._open(trainer)  # a key that is not there is found now

    def on_loop_end(self, trainer: Trainer) -> None:
        self._close()

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """The position, in data that goes on from one evaluation to the next."""
        if self._stream is not None and self._stream.spans_epochs:
            self._position = self._stream.state_dict()
        return {"position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._position = state["position"]
        if self._stream is not None and self._position is not None:
            self._stream.load_state_dict(self._position)

    def _open(self, trainer: Trainer) -> Stream:
        if self.dataset_key != "train":
            trainer.run.metrics.directions.eval_keys.add(self.dataset_key)
        if self._stream is None:
            data = named_data(trainer, self.dataset_key, type(self).__name__, self.datasets)
            if data is None:
                assert trainer.run.data.eval_stream is not None
                return trainer.run.data.eval_stream
            self._stream = trainer._open(data, self.batch_size, shuffle=False)
            if self._position is not None:
                self._stream.load_state_dict(self._position)
        return self._stream

    def _close(self) -> None:
        if self._stream is not None:
            self.state_dict()
            self._stream.close()
            self._stream = None


def named_data(
    trainer: Trainer, key: str, owner: str, datasets: Mapping[str, Any] | None = None
) -> Any:
    """The data that a callback names; None for the stream of the run's own evaluation."""
    known = dict(trainer.datasets) | dict(datasets or {})
    if key in known:
        return known[key]
    if key == "eval" and trainer.run.data.eval_stream is not None:
        return None
    if key == "train" and trainer.run.data.given is not None:
        # reading it twice must be possible
        trainer._open(trainer.run.data.given, None, shuffle=False).check_resumable()
        return trainer.run.data.given
    raise ConfigurationError(
        "unknown-data-set",
        f"{owner}(dataset_key={key!r}): there is no data set with that name; "
        f"{nearest(key, known)} Name data sets with `trainer.datasets = {{{key!r}: data}}`, or "
        "pass `datasets=` here.",
    )


class OnlineLoss(Periodic):
    """Logs the mean of the training losses since the last time, as `online_loss`, and of the steps'
    other metrics.

    There is no host sync in between: losses stay on the device until they are logged, or 512 of
    them are pending.

    Args:
        every_n_epochs: Log after every n-th epoch.
        every_n_updates: Log after every n-th update.
        every_n_samples: Log after the update that completes n more samples.

    >>> import torch, loopwright
    >>> from loopwright.callbacks import OnlineLoss
    >>> data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = loopwright.Trainer(
    ...     model, optimizer, torch.nn.functional.mse_loss, callbacks=[OnlineLoss(every_n_updates=1)], progress="silent"
    ... )
    >>> history = trainer.train(data, num_epochs=1, batch_size=4)
    >>> history.steps["online_loss"].values == history.steps["loss"].values
    True
    """

    def __init__(self, **every: Unpack[Every]) -> None:
        super().__init__(**every)
        self._meter = Meter()
        self._runtime: Runtime | None = None
        self._loaded: list[Mapping[str, Any]] = []

    def metric_names(self, known: set[str]) -> set[str]:
        names = {name for name in known if not name.startswith("eval_")}
        return {f"online_{name}" for name in {"loss", *names}}

    def on_train_start(self, trainer: Trainer) -> None:
        super().on_train_start(trainer)
        self._runtime = trainer.runtime
        self._meter.ignores_nonfinite = trainer.run.skips_nonfinite
        loaded = self._loaded
        self._loaded = []
        if loaded:
            self._take(loaded)

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        if trainer.run.window.size:  # else a process that had no sample of this batch
            self._meter.add(result)
        if self._meter.num_pending >= FLUSH_STEPS:
            self._meter.flush()

    def measure(self, trainer: Trainer) -> Mapping[str, float]:
        """The means; none, where no step was taken since the last time, as when the end of an epoch
        is repeated."""
        # metrics go on measuring the epoch
        means = self._meter.compute(trainer.runtime.sum_table, is_final=False)
        self._meter = Meter(ignores_nonfinite=trainer.run.skips_nonfinite)
        return {f"online_{name}": value for name, value in means.items()}

    def state_dict(self) -> dict[str, Any]:
        self._meter.flush()
        state = self._meter.state_dict()
        gather = None if self._runtime is None else self._runtime.gather_samples
        return {"processes": [state] if gather is None else gather(state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the sums now or, if the rank of this process is not known yet, when training
        starts."""
        if self._runtime is None:
            self._loaded = state["processes"]
        else:
            self._take(state["processes"])

    def _take(self, states: list[Mapping[str, Any]]) -> None:
        """Load the sums of this process; on another number of processes, rank 0 loads the sums of
        all."""
        assert self._runtime is not None
        rank = self._runtime.sample_rank
        ignores = self._meter.ignores_nonfinite
        self._meter = Meter(ignores_nonfinite=ignores)
        if len(states) == self._runtime.num_shares:
            states = [states[rank]]
        elif rank != 0:
            states = []
        for state in states:
            self._meter.add_state_dict(state)

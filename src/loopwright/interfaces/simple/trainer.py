"""The simple trainer: its constructor, its methods, and which of them a user replaces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...data.open import batch_size_of
from ...errors import ConfigurationError
from ...metrics.meter import Meter
from ...metrics.result import StepResult
from ...training.run import TrainingRun
from ...training.supervised import TARGET_NAMES, call_model, describe, loss_of, split_supervised
from .._shared import LoggingTrainer, check_method_names, is_overridden, tracked
from .checkpoints import load, pretrained_files, say_unsaved
from .checks import (
    as_device,
    check_callbacks,
    check_data,
    check_epochs,
    check_loss,
    check_model,
    takes,
)
from .engine import Engine
from .kept_models import EpochCallback, EpochEnds, check_metric, check_plateau
from .parts import Assignable

if TYPE_CHECKING:
    from ...trackers import Track


class Trainer(Assignable, LoggingTrainer):
    """Trains a model in steps, epochs or whole runs. A method that you override is used wherever
    the trainer needs it.

    Args:
        model: The module to train.
        optimizer: A torch optimizer, or a function of the parameters that makes one; None for
            AdamW.
        loss_fn: A function or module of (outputs, targets); None where the model returns its loss.
        config: A mapping or an object whose section `training` holds the settings.
        device: Where to train. Default: CUDA if there is a GPU, else MPS, else the CPU.
        scheduler: A torch scheduler, or a function of the optimizer that makes one.

    Example:
        >>> import torch
        >>> from loopwright.interfaces.simple import Trainer
        >>> x, model = torch.ones(8, 2), torch.nn.Linear(2, 1)
        >>> loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :1]), batch_size=4)
        >>> trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss())
        >>> list(trainer.train_step(next(iter(loader))))
        ['loss']
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        loss_fn: Callable[..., Any] | None,
        config: Any = None,
        device: torch.device | str | None = None,
        scheduler: Any = None,
    ) -> None:
        check_method_names(self)
        check_model(model)
        check_loss(loss_fn)
        self._best: dict[tuple[Path, str], float] = {}
        self._loaded: dict[str, Any] | None = None  # what the next `train` goes on from
        self._ends: EpochEnds | None = None
        self._engine = Engine(
            self,
            model=model,
            optimizer=optimizer,
            loss_fn=loss_fn,
            config=config,
            device=as_device(device),
            scheduler=scheduler,
        )
        self._engine.setup()
        self._check_early()

    # Steps

    def train_step(self, batch: Any) -> dict[str, float]:
        """Train on one batch: forward, backward and one optimizer step. Returns the loss and other
        metrics as numbers.

        Gradients that were there before, of a backward() of your own, do not go into it.
        """
        engine = self._engine
        if engine.accumulate > 1 and not engine.is_passing:
            raise ConfigurationError(
                f"training.gradient_accumulation_steps is {engine.accumulate}, but train_step was "
                "called outside of train, where each batch is an update: remove that setting, or "
                "use train or super().train_epoch."
            )
        engine.ready_for_step()
        engine.run.window.size = batch_size_of(batch)
        return _numbers(engine.learn_apart(batch))

    def eval_step(self, batch: Any) -> dict[str, float]:
        """Measure one batch in eval mode without gradients. Returns the loss and other metrics as
        numbers."""
        self._engine.run.window.size = batch_size_of(batch)
        with self._engine.single_eval_mode(), torch.no_grad():
            return _numbers(self._engine.measure(batch))

    # Epochs

    def train_epoch(
        self,
        train_dataloader: Iterable[Any],
        eval_dataloader: Iterable[Any] | None = None,
        epoch: int = 0,
    ) -> dict[str, float]:
        """Train on all batches once, then evaluate if there is an `eval_dataloader`. Returns the
        metrics of both.

        `epoch` is the number that is shown; the order of a shuffling loader follows the trainer's
        own count.
        """
        engine = self._engine
        if engine.is_running:
            return engine.pass_over(train_dataloader, eval_dataloader)
        check_data(train_dataloader, "train_dataloader")
        check_plateau(engine, "eval_loss", "min", " in train_epoch")
        engine.check_stepped_once()
        ends: list[dict[str, float]] = []
        engine.shown_epoch = epoch
        engine.watched = None
        try:
            engine.run_epochs(
                train_dataloader,
                1,
                lambda _: engine.pass_over(train_dataloader, eval_dataloader),
                lambda _, metrics: ends.append(metrics),
            )
        finally:
            engine.shown_epoch = None
        engine.note_stepped()
        return ends[0]

    def evaluate(self, dataloader: Iterable[Any]) -> dict[str, float]:
        """Evaluate a loader: the means over all samples of what `eval_step` returns. Modes stay as
        they were."""
        check_data(dataloader, "dataloader")
        return self._engine.evaluate(dataloader)

    def train(
        self,
        train_dataloader: Iterable[Any],
        num_epochs: int,
        eval_dataloader: Iterable[Any] | None = None,
        save_dir: str | Path | None = None,
        save_freq: int = 1,
        best_model_metric: str | None = "eval_loss",
        early_stopping_patience: int | None = None,
        callbacks: Iterable[EpochCallback | Track] | None = None,
    ) -> dict[str, list[float]]:
        """Train for `num_epochs` epochs and return the history: for each metric a list with one
        value per epoch.

        A second call trains on from the weights that the first one left. After `load_checkpoint`
        the run that wrote the checkpoint continues exactly: epochs are counted from there, and
        early stopping and the best model know what came before.

        Args:
            train_dataloader: Batches to train on.
            num_epochs: How many epochs to train; after `load_checkpoint`, how many more.
            eval_dataloader: Batches to evaluate after each epoch.
            save_dir: The folder of checkpoints and of the record that `loopwright runs`, `show` and
                `ui` read. SIGTERM, SIGINT and SIGUSR1 write `checkpoint_latest` there, inside an
                epoch too.
            save_freq: Write `checkpoint_epoch_<n>` every so many epochs.
            best_model_metric: The metric that decides what `best_model` is, when training stops
                early and what `ReduceLROnPlateau` watches. Without an evaluation, "eval_loss" means
                the training loss.
            early_stopping_patience: Stop after this number of epochs without an improvement.
                Default: never.
            callbacks: Functions `callback(trainer, epoch, metrics)`, called after each epoch, and
                trackers of `loopwright.trackers`.
        """
        check_data(train_dataloader, "train_dataloader")
        check_epochs(num_epochs)
        if eval_dataloader is not None:
            check_data(eval_dataloader, "eval_dataloader")
        check_callbacks(callbacks)
        self._engine.note_stepped()
        ends = EpochEnds(
            self,
            save_dir=save_dir,
            save_freq=save_freq,
            metric=best_model_metric,
            patience=early_stopping_patience,
            callbacks=callbacks or (),
        )
        if ends.watches_metric:
            check_metric(self, best_model_metric, eval_dataloader)
        ends.begin(self._loaded)
        self._ends = ends
        self._loaded = None
        self._engine.record_in(save_dir)
        ends.catch_up()
        if ends.has_stopped:
            self._engine.run.say(
                "Nothing to train: the loaded run was ended by early stopping; raise its patience "
                "to continue."
            )
        else:
            with tracked(self._engine.run, ends.trackers):
                self._engine.run_epochs(
                    train_dataloader,
                    num_epochs,
                    lambda epoch: self.train_epoch(
                        train_dataloader, eval_dataloader, epoch + ends.num_earlier
                    ),
                    ends,
                    ends.save_now,
                )
        return ends.history()

    # Files

    def load_checkpoint(
        self, path: str | Path, load_optimizer: bool = True, load_scheduler: bool = True
    ) -> dict[str, Any]:
        """Load a checkpoint of this trainer, or any `.pt` or `.safetensors` file, and return its
        content as a dict.

        Parts that the file does not have stay as they are. With the optimizer of one of this
        trainer's checkpoints, everything else continues too: the order of shuffling loaders, random
        numbers, early stopping. The dict also has `num_epochs`, the number of complete epochs, and
        `history`, as `train` returns it.
        """
        content, going_on = load(
            self._engine, path, optimizer=load_optimizer, scheduler=load_scheduler
        )
        self._loaded = going_on or self._loaded
        self._engine.note_stepped()
        return content

    def export(self, path: str | Path) -> None:
        """Write the model's weights to one file: `.safetensors`, or `.pt` for `torch.load`."""
        self._engine.export(path)

    def _save_checkpoint(self, path: str, epoch: int, metric_value: float | None = None) -> None:
        """Write the whole state to a checkpoint directory, which appears complete or not at all.

        `model.safetensors` in it has the weights under the names of the state dict. A model that
        has `save_pretrained` can be loaded from it with `from_pretrained`.
        """
        from ...training.state import capture, write_together

        say_unsaved(self, self._engine)
        noted = {"epoch": epoch, "metric_value": metric_value}
        run = {} if self._ends is None else self._ends.state_dict()
        tree = capture(self._engine.run) | {"simple": noted | {"run": run}}
        write_together(
            self._engine.run,
            path,
            tree,
            self._engine.run.checkpoint_meta(),
            beside=pretrained_files(self.model),
        )

    @property
    def _logged_run(self) -> TrainingRun:
        return self._engine.run

    # The parts of a step

    def _prepare_batch(self, batch: Any) -> tuple[Any, Any]:
        """Move a batch to the device and split it: (inputs, targets). Targets are None for a tensor
        or a dict.

        With a loss function, the entry of a dict that is named like targets is the targets as well,
        and the model gets it only if it takes it.
        """
        batch = self._engine.runtime.move(batch)
        if not isinstance(batch, Mapping) or self.loss_fn is None:
            return split_supervised(batch, has_loss_fn=False)
        name = next((name for name in TARGET_NAMES if name in batch), None)
        if name is None:
            return batch, None
        taken = self._engine.model_keywords
        is_taken = taken is None or name in taken
        inputs = batch if is_taken else {key: value for key, value in batch.items() if key != name}
        return inputs, batch[name]

    def _forward_pass(self, inputs: Any) -> Any:
        """Call the model and return its outputs. A dict of inputs is passed as keyword
        arguments."""
        try:
            return call_model(self.model, inputs, split="_prepare_batch", forward="_forward_pass")
        except TypeError as error:
            if not isinstance(inputs, tuple) or takes(self.model, len(inputs)):
                raise
            raise ConfigurationError(
                f"The model does not take {len(inputs)} inputs ({describe(inputs)}). If a batch "
                "has more than two parts, the last part is the targets and all others are "
                "inputs: override `_prepare_batch` to return (inputs, targets)."
            ) from error

    def _compute_loss(self, outputs: Any, targets: Any) -> Any:
        """Return the loss: that of the outputs, as Hugging Face models have it, or
        `loss_fn(outputs, targets)`.

        It is a tensor with one value, a dict of named losses, which are summed, or a pair of a sum
        and a count.
        """
        loss_fn = self.loss_fn
        if targets is not None or loss_fn is None or not self._engine.loss_takes_targets:
            return loss_of(outputs, targets, loss_fn, override="_compute_loss")
        try:
            return loss_of(
                outputs, None, lambda outputs: loss_fn(outputs, None), override="_compute_loss"
            )
        except (TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"The batch has no targets, and loss_fn(outputs, None) failed ({error}): return "
                "(inputs, targets) from the loader, or override `_prepare_batch` to return them."
            ) from error

    def _overrides(self, name: str) -> bool:
        """Whether a subclass, or an assignment to this object, replaced a method of `Trainer`."""
        return is_overridden(self, name, Trainer)


def _numbers(result: StepResult) -> dict[str, float]:
    meter = Meter()
    meter.add(result)
    return dict(meter.flush()[0])

"""The simple trainer: its constructor, its components, its methods, and which of them a user
replaces."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from ...callback import has_users_state
from ...data.open import batch_size_of
from ...errors import CheckpointError, ConfigurationError, check_number
from ...metrics.meter import Meter
from ...metrics.result import StepResult
from ...runtime.base import checked_device
from ...trainer import Trainer as CoreTrainer
from ...training.callback_schedulers import unsaved_texts
from ...training.supervised import TARGET_NAMES, call_model, loss_of, split_supervised
from .._shared import LoggingTrainer, is_overridden, tracked
from .core import NAMES, SimpleCore
from .epoch_ends import EpochCallback, EpochEnds, as_lists

if TYPE_CHECKING:
    from ...trackers import Track


class Trainer(LoggingTrainer):
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

    _init_arguments = "model, optimizer, loss_fn"

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        loss_fn: Callable[..., Any] | None,
        config: Any = None,
        device: torch.device | str | None = None,
        scheduler: Any = None,
    ) -> None:
        NAMES.check_trainer(self)
        self._best: dict[tuple[Path, str], float] = {}
        self._loaded: dict[str, Any] | None = None  # what the next `train` goes on from
        self._ends: EpochEnds | None = None
        self._core = SimpleCore(
            self,
            model=model,
            optimizer=optimizer,
            loss_fn=loss_fn,
            config=config,
            device=as_device(device),
            scheduler=scheduler,
        )
        self._core.setup()

    # The components, which a subclass may assign at any time; they count from the next step on

    @property
    def model(self) -> nn.Module:
        """The model. Assign another one together with an optimizer of its parameters."""
        return self._core.model

    @model.setter
    def model(self, model: nn.Module) -> None:
        self._core.model = model
        self._core.runtime.place(model)

    @property
    def optimizer(self) -> Optimizer | None:
        """The torch optimizer, also if you gave a factory or nothing; None while the whole model is
        frozen."""
        return self._core.optimizers.get("optimizer")

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer) -> None:
        self._core.set_optimizer(optimizer)

    @property
    def scheduler(self) -> Any:
        """The scheduler, or None. One that you assign is stepped like one given to the
        constructor."""
        schedule = self._core.schedules.get("scheduler")
        return None if schedule is None else schedule.scheduler

    @scheduler.setter
    def scheduler(self, scheduler: Any) -> None:
        self._core.set_scheduler(scheduler)

    @property
    def device(self) -> torch.device:
        """The device of the model and the batches. Assigning another one moves the model there."""
        return self._core.runtime.device

    @device.setter
    def device(self, device: torch.device | str) -> None:
        self._core.set_device(as_device(device))

    @property
    def loss_fn(self) -> Callable[..., Any] | None:
        """The loss function of (outputs, targets), or None if the model's outputs have a loss."""
        loss_fn: Callable[..., Any] | None = self._core.loss_fn
        return loss_fn

    @loss_fn.setter
    def loss_fn(self, loss_fn: Callable[..., Any] | None) -> None:
        self._core.loss_fn = loss_fn
        if isinstance(loss_fn, nn.Module):
            self._core.runtime.place(loss_fn)

    @property
    def config(self) -> Any:
        """The config as you gave it. Settings are read once: assign a config to have them read
        again."""
        return self._core.config

    @config.setter
    def config(self, config: Any) -> None:
        self._core.use(config)

    # Steps

    def train_step(self, batch: Any) -> dict[str, float]:
        """Train on one batch: forward, backward and one optimizer step. Returns the loss and other
        metrics as numbers.

        Gradients that were there before, of a backward() of your own, do not go into it.
        """
        core = self._core
        if core.accumulate > 1 and not core.is_passing:
            raise ConfigurationError(
                "single-step-accumulating",
                f"training.gradient_accumulation_steps is {core.accumulate}, but train_step was "
                "called outside of train, where each batch is an update: remove that setting, or "
                "use train or super().train_epoch.",
            )
        core.ready_for_step()
        core.run.window.size = batch_size_of(batch)
        return _numbers(core.train_step_for_user(batch))

    def eval_step(self, batch: Any) -> dict[str, float]:
        """Measure one batch in eval mode without gradients. Returns the loss and other metrics as
        numbers."""
        core = self._core
        core.run.window.size = batch_size_of(batch)
        # an evaluation of the loop has eval mode already
        mode = nullcontext() if core.run.metrics.phases else core._eval_mode()
        with mode, torch.no_grad():
            return _numbers(CoreTrainer.eval_step(core, batch))

    # Epochs

    def train_epoch(
        self,
        train_dataloader: Iterable[Any],
        eval_dataloader: Iterable[Any] | None = None,
        epoch: int = 0,
    ) -> dict[str, float]:
        """Train on all batches once, then evaluate if there is an `eval_dataloader`. Returns the
        metrics of both.

        `epoch` is for a `train_epoch` of your own: what is shown, and the order of a shuffling
        loader, follow the trainer's own count.
        """
        core = self._core
        if core.is_running:
            return core.pass_over(train_dataloader, eval_dataloader)
        check_data(train_dataloader, "train_dataloader")
        core.check_stepped_once()
        ends: list[dict[str, float]] = []
        core.watched = None
        core._plateau_metric = "eval_loss"
        core.run_epochs(
            train_dataloader,
            1,
            lambda _: core.pass_over(train_dataloader, eval_dataloader),
            lambda _, metrics: ends.append(metrics),
        )
        core.note_stepped()
        return ends[0]

    def evaluate(self, dataloader: Iterable[Any]) -> dict[str, float]:
        """Evaluate a loader: the means over all samples of what `eval_step` returns. Modes stay as
        they were."""
        check_data(dataloader, "dataloader")
        return self._core.evaluate(dataloader)

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
        check_number("num_epochs", num_epochs, least=0)
        if eval_dataloader is not None:
            check_data(eval_dataloader, "eval_dataloader")
        self._core.note_stepped()
        ends = EpochEnds(
            self,
            save_dir=save_dir,
            save_freq=save_freq,
            metric=best_model_metric,
            patience=early_stopping_patience,
            callbacks=callbacks or (),
        )
        ends.begin(eval_dataloader, self._loaded)
        self._ends = ends
        self._loaded = None
        self._core.record_in(save_dir)
        ends.catch_up()
        if ends.has_stopped:
            self._core.run.say(
                "Nothing to train: the loaded run was ended by early stopping; raise its patience "
                "to continue."
            )
        else:
            with tracked(self._core.run, ends.trackers):
                self._core.run_epochs(
                    train_dataloader,
                    num_epochs,
                    lambda epoch: self.train_epoch(
                        train_dataloader, eval_dataloader, epoch + len(ends.earlier)
                    ),
                    ends,
                    ends.save_now,
                )
        return as_lists(ends.rows)

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
        from ...checkpoint.migrations import complete_state
        from ...checkpoint.weights import read_parts
        from ...training.restore import compare_run, continue_position, load_parts, refuse

        core = self._core
        parts = read_parts(path)
        goes_on = load_optimizer and "progress" in parts.rest and not core.is_running
        is_ours = parts.path.is_dir()
        noted = dict(parts.rest.get("simple", {}) if is_ours else parts.rest)
        run = (noted.pop("run", None) if is_ours else None) or {}  # of the epochs so far
        state = complete_state(parts.tree, str(path)) if goes_on else {}
        refuse(str(path), compare_run(core.run, state) if goes_on else [])
        try:
            load_parts(
                core.run,
                parts,
                optimizers=load_optimizer,
                schedules=load_scheduler,
                own_state=goes_on,
            )
        except CheckpointError as error:
            error.add_note("load_checkpoint(path, load_optimizer=False) loads only the weights.")
            raise
        if goes_on:
            continue_position(core.run, state)
            self._loaded = run or self._loaded
        core.note_stepped()
        rows = run.get("rows", [])
        return {
            "model_state_dict": parts.models["model"],
            "optimizer_state_dict": parts.optimizers.get("optimizer"),
            "scheduler_state_dict": parts.schedules.get("scheduler"),
            "epoch": None,
            "metric_value": None,
            "num_epochs": len(rows),
            "history": as_lists(rows),
        } | noted

    def _save_checkpoint(self, path: str, epoch: int, metric_value: float | None = None) -> None:
        """Write the whole state to a checkpoint directory, which appears complete or not at all.

        `model.safetensors` in it has the weights under the names of the state dict. A model of
        transformers can be loaded from it with `from_pretrained`.
        """
        from ...training.state import capture, write_together

        self._say_unsaved()
        noted = {"epoch": epoch, "metric_value": metric_value}
        run = {} if self._ends is None else self._ends.state_dict()
        tree = capture(self._core.run) | {"simple": noted | {"run": run}}
        write_together(
            self._core.run,
            path,
            tree,
            self._core.run.checkpoint_meta(),
            beside=pretrained_files(self.model),
        )

    def _say_unsaved(self) -> None:
        """Say once which attributes of a subclass change in training and are not in its
        checkpoints."""
        core = self._core
        if core.has_said_unsaved or has_users_state(self):
            return
        core.has_said_unsaved = True
        for text in unsaved_texts(self, core._components, (Optimizer, LRScheduler)):
            core.run.say(text)

    # The parts of a step

    def _prepare_batch(self, batch: Any) -> tuple[Any, Any]:
        """Move a batch to the device and split it: (inputs, targets). Targets are None for a tensor
        or a dict.

        With a loss function, the entry of a dict that is named like targets is the targets as well,
        and the model gets it only if it takes it.
        """
        batch = self._core.runtime.move(batch)
        if not isinstance(batch, Mapping) or self.loss_fn is None:
            return split_supervised(batch, has_loss_fn=False)
        name = next((name for name in TARGET_NAMES if name in batch), None)
        if name is None:
            return batch, None
        parameters = inspect.signature(self.model.forward).parameters
        takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        if takes_any or name in parameters:
            return batch, batch[name]
        return {key: value for key, value in batch.items() if key != name}, batch[name]

    def _forward_pass(self, inputs: Any) -> Any:
        """Call the model and return its outputs. A dict of inputs is passed as keyword
        arguments."""
        return call_model(self.model, inputs, split="_prepare_batch", forward="_forward_pass")

    def _compute_loss(self, outputs: Any, targets: Any) -> Any:
        """Return the loss: that of the outputs, as Hugging Face models have it, or
        `loss_fn(outputs, targets)`.

        It is a tensor with one value, a dict of named losses, which are summed, or a pair of a sum
        and a count.
        """
        loss_fn = self.loss_fn
        if targets is None and loss_fn is not None and _takes_two(loss_fn):
            return loss_of(
                outputs, None, lambda outputs: loss_fn(outputs, None), override="_compute_loss"
            )
        return loss_of(outputs, targets, loss_fn, override="_compute_loss")

    def _overrides(self, name: str) -> bool:
        """Whether a subclass, or an assignment to this object, replaced a method of `Trainer`."""
        return is_overridden(self, name, Trainer)


def _numbers(result: StepResult) -> dict[str, float]:
    meter = Meter()
    meter.add(result)
    return dict(meter.flush()[0])


def _takes_two(loss_fn: Callable[..., Any]) -> bool:
    """Whether a loss function can be called with outputs and targets."""
    function = loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True


def as_device(given: Any) -> torch.device | None:
    """The device, where it is one that is there; None for the best there is, as for "auto"."""
    return None if given in (None, "auto") else checked_device(given)


def check_data(data: Any, name: str) -> None:
    """Refuse data that gives no batches: samples, or a single batch."""
    has_samples = isinstance(data, Dataset) or hasattr(type(data), "__getitems__")
    if has_samples or isinstance(data, (Tensor, Mapping, str)) or not isinstance(data, Iterable):
        raise ConfigurationError(
            "no-loader",
            f"{name} is a {type(data).__name__}, which does not return batches: pass a DataLoader, "
            "such as DataLoader(dataset, batch_size=32).",
        )


def pretrained_files(model: nn.Module) -> dict[str, bytes]:
    """The files that `from_pretrained` of transformers needs beside the weights."""
    with TemporaryDirectory() as folder:
        for name in ("config", "generation_config"):
            part: Any = getattr(model, name, None)
            if callable(getattr(part, "save_pretrained", None)):
                part.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}

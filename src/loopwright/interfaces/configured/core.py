"""The core trainer behind a configured one: it asks the interface for every part that a user may
have overridden."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ...callback import Callback, FunctionCallback
from ...callbacks.losses import OnlineLoss
from ...callbacks.measuring import ProgressLine
from ...callbacks.nonfinite import NonFiniteGuard
from ...data.open import as_dataset, is_samples
from ...errors import ConfigurationError
from ...metrics.history import History
from ...metrics.progress import Progress
from ...metrics.result import StepResult
from ...optim.build import build_schedule, named
from ...run.experiment import describe_dataset
from ...runtime import Runtime
from ...runtime.base import is_launched
from ...text import nearest
from ...training.own_steps import StepSchedulers, scheduler_position
from ...training.program import Changes, Display, MessageNames
from ...training.supervised import call_model, describe
from ...training.update import OptimizerUpdate
from ...training.updates import OptimizerChoice, listed
from .._shared import InterfaceCore, InterfaceNames, other_optimizers
from .config import BaseTrainerConfig

if TYPE_CHECKING:
    from ...data.open import Stream
    from .trainer import BaseTrainer

PACKAGE = __name__.partition(".")[0]
DEFAULT_OPTIMIZER = partial(torch.optim.AdamW, lr=1e-3)
EVERY = ("every_n_epochs", "every_n_updates", "every_n_samples")


NAMES = InterfaceNames(
    interface="configured",
    messages=MessageNames(
        accumulate="max_batch_size",
        clip="call it in `on_optimizer_start(self, trainer, optimizer)` of a callback, where "
        "gradients are complete",
        nonfinite=(
            "Lower the learning rate (`lr` of the optimizer) or look for bad samples; "
            "`skip_nan_loss: true` skips such updates."
        ),
        takes_count=False,
    ),
    step_methods=("train_step", "loss_compute", "_split_batch"),
    methods={
        "loss_compute": ("forward_output=", "targets="),
        "train_step": ("batch", "model"),
        "eval_step": ("batch", "model"),
        "predict_step": ("batch", "model"),
        "_split_batch": ("batch",),
    },
    methods_elsewhere={
        "compute_loss": "loss_compute",
        "test_step": "eval_step",
        "prediction_step": "predict_step",
    },
    events_elsewhere={
        "before_training": "on_train_start",
        "after_training": "on_train_end",
        "after_epoch": "on_epoch_end",
        "after_update": "on_update_end",
        "track_after_accumulation_step": "on_train_step_end",
        "track_after_update_step": "on_update_end",
        "periodic_callback": "write `measure`, in a subclass of loopwright.callbacks.Periodic",
    },
)


@runtime_checkable
class Collating(Protocol):
    """A data set that says itself how its samples become a batch."""

    def collate_fn(self, samples: list[Any]) -> Any: ...


class ConfiguredCore(InterfaceCore):
    """Maps the core's names onto the interface's. `datasets` is what callbacks find data sets in,
    by their keys."""

    names = NAMES

    def __init__(
        self,
        interface: BaseTrainer,
        *,
        model: nn.Module | Mapping[str, nn.Module],
        datasets: Mapping[str, Any],
        optimizer: Any,
        scheduler: Any,
        callbacks: Iterable[Any],
        seed: int | Literal["auto"] | None,
        run_dir: str | Path | None,
        runtime: Any,
        progress: Display,
    ) -> None:
        config = interface.config
        # callbacks are bound to it in what follows
        self.interface: BaseTrainer = interface
        super().__init__(
            model,
            DEFAULT_OPTIMIZER if optimizer is None else optimizer,
            scheduler=scheduler,
            callbacks=[*callbacks, *_settings_as_callbacks(config)],
            accumulate=config.accumulate,
            precision=config.core_precision,
            compile="step" if config.use_torch_compile == "step" else None,
            runtime=_runtime_of(config, runtime),
            seed=seed,
            run_dir=run_dir,
            progress=progress,
        )
        for callback in self.callbacks:
            NAMES.check_callback(callback)
        self.config = config
        self._is_several = isinstance(model, Mapping)
        self.own_scheduling = OwnScheduling(self)
        self._has_looked = False
        self.datasets = dict(datasets)
        self.settings: Mapping[str, Any] = {}  # of the run's config, where there is one

    # What the interface's user may have overridden

    def split_batch(self, batch: Any) -> tuple[Any, Any]:
        return self.interface._split_batch(batch)

    def forward(self, inputs: Any) -> Any:
        return call_model(self.model, inputs, split="_split_batch", forward="train_step")

    def compute_loss(self, outputs: Any, targets: Any) -> Any:
        """The metrics of the default step; the names of metrics are found out with it before the
        first step."""
        result = result_of(self.interface.loss_compute(forward_output=outputs, targets=targets))
        return step_result_of(result, self.run.window.size)

    @property
    def _has_default_step(self) -> bool:
        return not self.interface.overrides("train_step")

    @property
    def _has_default_update(self) -> bool:
        return self._has_default_step

    def train_step(self, batch: Any) -> StepResult:
        """The interface's step; schedulers that a step of the user's own steps are left to it."""
        if self._has_default_step or not self.schedules:
            return self._take_step(batch)
        with self.own_scheduling.around_step():
            return self._take_step(batch)

    def _take_step(self, batch: Any) -> StepResult:
        """The interface's step, and the update with its total loss unless the step made updates
        itself."""
        before = self.run.updates.calls
        # whether a window begins, in a step that is not looked at yet
        is_fresh = not (self._has_looked or self._has_default_step or self._has_gradients)
        returned = self.interface.train_step(batch, self.interface_model)
        result = step_result_of(returned, self.run.window.size)
        if self.run.updates.calls == before:
            if is_fresh and self._has_gradients:
                # a backward pass for this once, and only where a step called backward()
                self._has_looked = True
                refuse_doubled(returned.total_loss, self.run.updates.by_name.values())
            self.update(
                returned.total_loss, self.run.updates.all_names if self._has_default_step else None
            )
        return result

    @property
    def _has_gradients(self) -> bool:
        return any(
            param.grad is not None
            for update in self.run.updates.by_name.values()
            for param in update.params
        )

    def eval_step(self, batch: Any) -> StepResult:
        try:
            returned = self.interface.eval_step(batch, self.interface_model)
        except RuntimeError as error:
            if "does not require grad" in str(error):  # of backward()
                self._check_update(None)
            raise
        name = "eval_step" if self.interface.overrides("eval_step") else "train_step"
        return step_result_of(returned, self.run.window.size, name)

    def _check_update(self, loss: Any, count: Any = None) -> None:
        try:
            super()._check_update(loss, count)
        except ConfigurationError as error:
            if self.run.metrics.is_evaluating and not self.interface.overrides("eval_step"):
                error.add_note(
                    "An evaluation uses `train_step` if there is no `eval_step`: override "
                    "`eval_step(self, batch, model)`, which returns a TrainerResult and does not "
                    "update."
                )
            raise

    @property
    def can_predict(self) -> bool:
        """Whether it is known what a prediction is; of several models, only the user can say."""
        return not self._is_several or self.interface.overrides("predict_step")

    def predict_step(self, batch: Any) -> Any:
        return self.interface.predict_step(batch, self.interface_model)

    def update(self, loss: Tensor, optimizer: OptimizerChoice = None, **options: Any) -> None:
        if not self.own_scheduling.is_in_step:
            super().update(loss, optimizer, **options)
            return
        with self.own_scheduling.around_update(optimizer):
            super().update(loss, optimizer, **options)

    def _schedule_epoch(self, row: Mapping[str, float]) -> None:
        """Step the schedulers that count epochs, except schedulers that the user's step has
        stepped."""
        for name, schedule in self.schedules.items():
            if schedule.interval == "epoch" and name not in self.own_scheduling.of_epochs:
                schedule.step(row)

    # Models and callbacks

    @property
    def interface_model(self) -> Any:
        """What the interface's steps are given as the model: it, or a dict where there are
        several."""
        if not self._is_several:
            return self.model
        return {name: self.modules.get(name, model) for name, model in self._given["model"].items()}

    @property
    def named_models(self) -> dict[str, nn.Module]:
        return self.models or named(self._given["model"], "model")

    def replace_given(self, name: str, value: Any) -> None:
        """A model, optimizer or scheduler that the user assigns to the interface, before training
        or after."""
        if name == "model":
            self.interface._check_several(value)
            self._is_several = isinstance(value, Mapping)
        if not self._components.are_built:
            self._given[name] = value
        if name == "model" or (self._components.are_built and name == "optimizer"):
            setattr(self, name, value)  # the core looks for what was replaced
        elif self._components.are_built:
            only = self._components.only_optimizer
            self._components.schedules = {
                key: build_schedule(given, only) for key, given in named(value, name).items()
            }

    def _setup_training(self) -> None:
        super()._setup_training()
        if self.run.call.number == 0:
            for name, reason in self.config.without_effect.items():
                self.run.say(f"trainer.{name} has no effect: {reason}.")
        for name, module in vars(self.interface).items():
            if isinstance(module, nn.Module):
                self._take_along(name, module)

    def _take_along(self, name: str, module: nn.Module) -> None:
        """Move a module that is an attribute of the interface, a loss with weights perhaps, to
        where the model computes."""
        owned = {id(p) for model in self.modules.values() for p in model.parameters()}
        self.runtime.place(module)
        count = sum(p.requires_grad and id(p) not in owned for p in module.parameters())
        if count:
            self.run.say(
                f"{type(self.interface).__name__}.{name} has {count} parameters that no optimizer "
                "trains, because it is not part of a model. To train it, describe it under "
                "`model` as another model; otherwise freeze it with `requires_grad_(False)`."
            )

    def _trainer_given_to(self, callback: Callback) -> Any:
        """The user's trainer for callbacks that the user wrote, the core's for callbacks of the
        library."""
        is_own = (
            isinstance(callback, FunctionCallback)
            or type(callback).__module__.partition(".")[0] != PACKAGE
        )
        return self.interface if is_own else self

    def on_train_start(self) -> None:
        """Without `save_on_sigint`, Ctrl-C ends the program as it ends any other."""
        if not self.config.save_on_sigint:
            self.run.stopping.signals.release_interrupt()

    def _describe_more(self) -> dict[str, Any]:
        """The settings of the config, and the data sets that are not trained on."""
        described = {f"config.{key}": value for key, value in self.settings.items()}
        for key, dataset in self.datasets.items():
            if key != "train":
                found = describe_dataset(dataset)
                described |= {
                    f"datasets.{key}.length": found["length"],
                    f"datasets.{key}.data.samples": found["fingerprint"],
                }
        return described

    def add_callback(self, callback: Callback) -> None:
        """One more, before training."""
        self.run.bind([*self.run.callbacks, callback])

    # Running

    def run_to_limit(self, resume: bool | str | Path, changes: Changes) -> History:
        """Train until the clock shows the limit; a call after that has nothing to do."""
        self._refuse_other_optimizers()
        data = self.training_data()
        config = self.config
        if self.run.call.number == 0 and config.start_at_epoch:
            self._start_late(data)
        epochs, updates, samples = (
            None if limit is None else max(limit - now, 0)
            for limit, now in (
                (config.max_epochs, self.progress.epoch),
                (config.max_updates, self.progress.update),
                (config.max_samples, self.progress.sample),
            )
        )
        if self.run.call.number and 0 in (epochs, updates, samples):
            return self.history
        return self.train(
            data, epochs, num_updates=updates, num_samples=samples, resume=resume, changes=changes
        )

    def _refuse_other_optimizers(self) -> None:
        """Refuse an optimizer that a subclass has made by itself: no update gives it gradients, no
        checkpoint has it."""
        self.setup()
        for name in other_optimizers(self.interface, self.optimizers.values()):
            every = ", ".join(f"{known!r}: ..." for known in (*self.optimizers, name))
            raise ConfigurationError(
                "optimizer-beside-others",
                f"{type(self.interface).__name__} made the optimizer self.{name} itself, beside "
                f"{', '.join(self.optimizers)}: checkpoints would not contain it, and "
                "`self.update(loss)` would compute no gradients for it. Pass all optimizers to "
                f"the constructor, as optimizer={{{every}}}, and call `self.update(loss, "
                f"{name!r})` in `train_step`.",
            )

    def training_data(self) -> Any:
        """The data set `train`, in a loader where workers read it."""
        data = as_dataset(self.dataset("train"))
        num_workers = self.config.num_workers
        if not is_samples(data, self.config.batch_size) or not num_workers:
            return data
        return self._loader(
            data, shuffle=not isinstance(data, IterableDataset), num_workers=num_workers
        )

    def dataset(self, key: Any) -> Any:
        """A data set by its key; data that is given instead of a key, as it is."""
        if not isinstance(key, str):
            return key
        if key not in self.datasets:
            raise ConfigurationError(
                "no-such-data-set",
                f"There is no data set {key!r} under `datasets`; {nearest(key, self.datasets)}",
            )
        return self.datasets[key]

    def _open(self, data: Any, batch_size: int | None, *, shuffle: bool) -> Stream:
        """Samples are put into batches of the configured size, also where a callback evaluates
        them."""
        data = as_dataset(data)
        if (
            isinstance(data, Dataset)
            and not isinstance(data, IterableDataset)
            and isinstance(data, Collating)
        ):
            data = self._loader(data, shuffle=shuffle, batch_size=batch_size)
            batch_size = None
        elif is_samples(data, self.config.batch_size):
            batch_size = batch_size or self.config.batch_size
        return super()._open(data, batch_size, shuffle=shuffle)

    def _loader(
        self,
        data: Dataset[Any],
        *,
        shuffle: bool,
        batch_size: int | None = None,
        num_workers: int = 0,
    ) -> DataLoader[Any]:
        collate = data.collate_fn if isinstance(data, Collating) else None
        size = batch_size or self.config.batch_size
        return DataLoader(data, size, shuffle=shuffle, num_workers=num_workers, collate_fn=collate)

    def _start_late(self, data: Any) -> None:
        """Set the clock to where `start_at_epoch` epochs would have left it; earlier rows of the
        history are empty."""
        stream = self._open(data, None, shuffle=True)
        num_batches = stream.num_batches
        num_samples = stream.num_samples
        stream.close()
        if num_batches is None or num_samples is None:
            raise ConfigurationError(
                "epoch-without-length",
                f"start_at_epoch={self.config.start_at_epoch} needs the length of an epoch: use "
                "training data with a length, or leave start_at_epoch out.",
            )
        epochs = self.config.start_at_epoch
        updates = -(-num_batches // self.accumulate)
        earlier = Progress(epoch=epochs, update=epochs * updates, sample=epochs * num_samples)
        self.run.start_after(earlier, [{} for _ in range(epochs)])


class OwnScheduling(StepSchedulers):
    """Leaves the schedulers of updates, and of epochs, to a step of the user's own that steps
    them."""

    def __init__(self, core: ConfiguredCore) -> None:
        super().__init__()
        self.core = core
        self.of_epochs: set[str] = set()  # schedulers that count epochs and that a step has stepped
        self.is_in_step = False  # whether a step of the user's own is under way

    @contextmanager
    def around_step(self) -> Iterator[None]:
        """A step of the user's own, and the update with its total loss."""
        epochs = self._positions_of_epochs()
        self.reset()
        self.begin_step(self.core.run.updates.by_name.values())
        self.is_in_step = True
        try:
            yield
            self.follow_all()
        finally:
            self.is_in_step = False
        after = self._positions_of_epochs()
        self.of_epochs |= {
            name for name, position in epochs.items() if after.get(name, position) != position
        }

    @contextmanager
    def around_update(self, optimizer: OptimizerChoice) -> Iterator[None]:
        """An update, which leaves the schedulers of its optimizers to this."""
        before = [
            (update, update.schedulers, update.num_updates) for update in self._scheduled(optimizer)
        ]
        for update, _, _ in before:
            if update.name in self.due:
                self.follow(update)
            update.schedulers = []
        try:
            yield
        finally:
            for update, schedulers, _ in before:
                update.schedulers = schedulers
        self.due |= {
            update.name: update
            for update, _, num_updates in before
            if update.num_updates != num_updates
        }

    def _scheduled(self, optimizer: OptimizerChoice) -> list[OptimizerUpdate]:
        """The updates with schedulers, among those of the optimizers given; one that is not there
        is found later."""
        named = listed(optimizer)
        return [
            update
            for update in self.core.run.updates.by_name.values()
            if update.schedulers
            and any(one in (None, update.name) or one is update.optimizer for one in named)
        ]

    def _positions_of_epochs(self) -> Mapping[str, Any]:
        schedules = self.core.schedules.items()
        return {
            name: scheduler_position(s.scheduler) for name, s in schedules if s.interval == "epoch"
        }


class UnusedParameters(Callback):
    """Says which parameters the first update leaves without a gradient."""

    def __init__(self) -> None:
        self._is_done = False

    def on_optimizer_start(self, trainer: Any, optimizer: str) -> None:
        if self._is_done:
            return
        self._is_done = True
        named = [item for module in trainer.models.values() for item in module.named_parameters()]
        unused = [name for name, param in named if param.requires_grad and param.grad is None]
        if unused:
            trainer.run.say(
                f"Parameters without a gradient in the first update: {', '.join(unused)}."
            )


def _settings_as_callbacks(config: BaseTrainerConfig) -> list[Callback]:
    callbacks: list[Callback] = []
    if config.skip_nan_loss:
        callbacks.append(NonFiniteGuard("skip", max_skips=config.skip_nan_loss_max_count))
    if config.find_unused_params:
        callbacks.append(UnusedParameters())
    for kind, what in ((ProgressLine, "log"), (OnlineLoss, "track")):
        if any((every := {name: getattr(config, f"{what}_{name}") for name in EVERY}).values()):
            callbacks.append(kind(**every))
    return callbacks


def _runtime_of(config: BaseTrainerConfig, given: Any) -> Any:
    """What the core is to run on: as given, unless there are settings that only a runtime of our
    own can have."""
    # copies of a model may differ in what they use
    finds_unused = config.find_unused_params and given == "fsdp"
    if isinstance(given, Runtime) or not (config.core_compile or finds_unused):
        return given
    options: dict[str, Any] = {"precision": config.core_precision, "compile": config.core_compile}
    if not is_launched():
        return Runtime(None if given in ("ddp", "fsdp") else given, **options)
    from ...runtime.distributed import DistributedRuntime

    return DistributedRuntime(given or "ddp", find_unused_parameters=finds_unused, **options)


def refuse_doubled(loss: Any, updates: Iterable[OptimizerUpdate]) -> None:
    """Raise where the gradients that a step left are those of its total loss, which would be added
    once more."""
    params = [param for update in updates for param in update.params if param.grad is not None]
    try:
        grads = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
    except (RuntimeError, TypeError, AttributeError):
        return  # the update will fail as well, and say why; or the model allows no such look
    if all(_is_about(grad, param.grad) for grad, param in zip(grads, params, strict=True)):
        raise ConfigurationError(
            "backward-twice",
            "The total_loss that `train_step` returned has already been through backward(). Remove "
            "backward(), because the trainer calls it with the total_loss, or call "
            "`self.update(loss)` instead.",
        )


def _is_about(grad: Tensor | None, other: Any) -> bool:
    """Whether two gradients are the same but for rounding."""
    return grad is not None and bool((grad - other).norm() <= 1e-4 * other.norm())


# From what `loss_compute` returned to what the core calls a step's result

_ACCEPTED = (
    "a dict of named losses, a tensor, a list or tuple of tensors, or any of these together with "
    "a dict of additional outputs: (losses, additional_outputs)"
)


@dataclass(frozen=True, slots=True)
class TrainerResult:
    """What a step returns.

    Args:
        total_loss: The loss to optimise.
        losses_to_log: Named losses, each logged under its name.
        additional_outputs: Anything else that callbacks need, such as logits; they find it in
            `result.outputs`.
    """

    total_loss: Tensor
    losses_to_log: Mapping[str, Tensor] | None = None
    additional_outputs: Mapping[str, Any] | None = None


def result_of(returned: Any) -> TrainerResult:
    """Normalise what `loss_compute` returned; the total is the sum of the losses."""
    losses, additional = split_additional(returned)
    if losses is None or (isinstance(losses, (Mapping, list, tuple)) and not losses):
        raise ConfigurationError(
            "no-losses",
            "No losses computed: loss_compute returned nothing to optimise. Check that it returns "
            "its losses, and that the keys it uses are in the model's outputs and in "
            "target_properties.",
        )
    named = name_losses(losses)
    total, *others = named.values()
    for loss in others:
        total = total + loss
    return TrainerResult(total, named, additional)


def split_additional(returned: Any) -> tuple[Any, Mapping[str, Any] | None]:
    """(losses, additional outputs): of a pair, the second is no loss if it is a dict or None."""
    if isinstance(returned, tuple) and len(returned) == 2:
        losses, additional = returned
        if additional is None or isinstance(additional, Mapping):
            return losses, additional
    return returned, None


def name_losses(losses: Any) -> dict[str, Tensor]:
    """Every loss under a name: its own, `loss`, or `loss_0`, `loss_1` and so on."""
    if isinstance(losses, Tensor):
        return {"loss": losses}
    if isinstance(losses, (list, tuple)):
        losses = {f"loss_{number}": loss for number, loss in enumerate(losses)}
    given = losses if isinstance(losses, Mapping) else {"loss": losses}
    for name, loss in given.items():
        if not isinstance(loss, Tensor):
            raise ConfigurationError(
                "loss-no-tensor",
                f"loss_compute returned {describe(loss)} as the loss {name!r}; expected "
                f"{_ACCEPTED}. A loss is a tensor with a graph, without `.item()`; put other "
                f"values into the additional outputs: return (losses, {{{name!r}: ...}}).",
            )
    return dict(losses)


def step_result_of(result: Any, size: int, step: str = "train_step") -> StepResult:
    """A `TrainerResult` as the core has it: the total is the `loss`, and each loss a metric of its
    own."""
    if not isinstance(result, TrainerResult):
        raise ConfigurationError(
            "no-trainer-result",
            f"{step} returned {describe(result)}; expected a TrainerResult: return "
            "TrainerResult(total_loss=loss), with losses_to_log and additional_outputs if you "
            "have any.",
        )
    metrics = dict(_metrics(result.total_loss, (result.losses_to_log or {}).items()))
    return StepResult(
        result.total_loss, size, metrics, None, result.additional_outputs, tuple(metrics)
    )


def _metrics(total: Tensor, losses: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Any]]:
    """`loss` is the total; one of several losses that is called so as well goes by `loss/loss`."""
    for name, loss in losses:
        if name != "loss":
            yield name, loss
        elif loss is not total:
            yield "loss/loss", loss

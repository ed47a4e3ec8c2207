"""The core trainer behind a configured one: it asks the interface for every part that a user may
have overridden."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from ...callback import Callback, FunctionCallback
from ...callbacks.losses import OnlineLoss
from ...callbacks.measuring import ProgressLine
from ...callbacks.nonfinite import NonFiniteGuard
from ...data.fetch import Fetcher, peek_samples
from ...data.open import as_dataset, is_samples
from ...errors import ConfigurationError
from ...metrics.progress import Progress
from ...metrics.result import StepResult
from ...optim.build import named
from ...runtime import resolve_runtime
from ...text import nearest
from ...training.fingerprint import hash_samples
from ...training.program import Display, MessageNames
from ...training.supervised import call_model, describe
from .._shared import InterfaceCore, InterfaceNames, other_optimizers

if TYPE_CHECKING:
    from ...data.open import Stream
    from .trainer import BaseTrainer, BaseTrainerConfig

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
    _leaves_schedules = False

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
            compile="model"
            if config.use_torch_compile is True
            else config.use_torch_compile or None,
            runtime=_runtime_of(config, runtime),
            seed=seed,
            run_dir=run_dir,
            progress=progress,
        )
        for callback in self.callbacks:
            NAMES.check_callback(callback)
        self.config = config
        self._is_several = isinstance(model, Mapping)
        self._has_looked = False  # whether a step of the user's own calls backward()
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

    def train_step(self, batch: Any) -> StepResult:
        """The interface's step, and the update with its total loss unless the step made updates
        itself."""
        before = self.run.updates.calls
        is_first = not self._has_looked
        self._has_looked = True
        returned = self.interface.train_step(batch, self.interface_model)
        result = step_result_of(returned, self.run.window.size)
        if self.run.updates.calls == before:
            if is_first and not self._has_default_step:
                self._refuse_gradients()
            self.update(
                returned.total_loss, self.run.updates.all_names if self._has_default_step else None
            )
        return result

    def _refuse_gradients(self) -> None:
        """Raise where the first step left gradients, to which those of its total loss would be
        added."""
        updates = self.run.updates.by_name.values()
        if any(param.grad is not None for update in updates for param in update.params):
            raise ConfigurationError(
                "backward-twice",
                "`train_step` called backward() and stepped no optimizer. Remove backward(), "
                "because the trainer calls it with the total_loss, or call `self.update(loss)` "
                "instead.",
            )

    def eval_step(self, batch: Any) -> StepResult:
        has_own = self.interface.overrides("eval_step")
        try:
            returned = self.interface.eval_step(batch, self.interface_model)
        except (ConfigurationError, RuntimeError) as error:
            if not has_own and not self._has_default_step:
                error.add_note(
                    "An evaluation uses `train_step` if there is no `eval_step`: override "
                    "`eval_step(self, batch, model)`, which returns a TrainerResult and does not "
                    "update."
                )
            raise
        name = "eval_step" if has_own else "train_step"
        return step_result_of(returned, self.run.window.size, name)

    @property
    def can_predict(self) -> bool:
        """Whether it is known what a prediction is; of several models, only the user can say."""
        return not self._is_several or self.interface.overrides("predict_step")

    def predict_step(self, batch: Any) -> Any:
        return self.interface.predict_step(batch, self.interface_model)

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

    def _setup_training(self) -> None:
        super()._setup_training()
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

    def refuse_other_optimizers(self) -> None:
        """Refuse an optimizer that a subclass has made by itself: no update gives it gradients, no
        checkpoint has it."""
        self.setup()
        for name in other_optimizers(self.interface, self.optimizers.values()):
            raise ConfigurationError(
                "optimizer-beside-others",
                f"{type(self.interface).__name__} made the optimizer self.{name} itself, beside "
                f"{', '.join(self.optimizers)}: checkpoints would not contain it, and "
                "`self.update(loss)` would compute no gradients for it. Pass all optimizers to "
                "the constructor by name, as optimizer={...}, and call "
                f"`self.update(loss, {name!r})` in `train_step`.",
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
        if isinstance(key, str) and key not in self.datasets:
            raise ConfigurationError(
                "no-such-data-set",
                f"There is no data set {key!r} under `datasets`; {nearest(key, self.datasets)}",
            )
        return self.datasets[key] if isinstance(key, str) else key

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

    def start_late(self, data: Any, epochs: int) -> None:
        """Set the clock to where so many epochs would have left it; earlier rows of the history are
        empty."""
        stream = self._open(data, None, shuffle=True)
        num_batches = stream.num_batches
        num_samples = stream.num_samples
        stream.close()
        if num_batches is None or num_samples is None:
            raise ConfigurationError(
                "epoch-without-length",
                f"start_at_epoch={epochs} needs the length of an epoch: use "
                "training data with a length, or leave start_at_epoch out.",
            )
        updates = -(-num_batches // self.accumulate)
        earlier = Progress(epoch=epochs, update=epochs * updates, sample=epochs * num_samples)
        self.run.start_after(earlier, [{} for _ in range(epochs)])


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
    """What the core is to run on: as given; FSDP2 is told where copies may differ in what they
    use."""
    if not (config.find_unused_params and given == "fsdp"):
        return given
    return resolve_runtime(
        "fsdp",
        config.core_precision,
        compile="model" if config.use_torch_compile is True else None,
        find_unused_parameters=True,
    )


# From what `loss_compute` returned to what the core calls a step's result


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
    """Normalise what `loss_compute` returned; the total is the sum of the losses.

    Of a pair, the second is no loss if it is a dict or None: the additional outputs.
    """
    losses = returned
    additional = None
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    if is_pair and isinstance(returned[1], (Mapping, NoneType)):
        losses, additional = returned
    if isinstance(losses, (list, tuple)):
        losses = {f"loss_{number}": loss for number, loss in enumerate(losses)}
    elif losses is None:
        losses = {}
    elif not isinstance(losses, Mapping):
        losses = {"loss": losses}
    if not losses:
        raise ConfigurationError(
            "no-losses",
            "No losses computed: loss_compute returned nothing to optimise. Check that it returns "
            "its losses, and that the keys it uses are in the model's outputs and in "
            "target_properties.",
        )
    for name, loss in losses.items():
        if not isinstance(loss, Tensor):
            raise ConfigurationError(
                "loss-no-tensor",
                f"loss_compute returned {describe(loss)} as the loss {name!r}; expected a dict of "
                "named losses, a tensor, a list or tuple of tensors, or any of these together with "
                "a dict of additional outputs: (losses, additional_outputs). A loss is a tensor "
                "with a graph, without `.item()`.",
            )
    total, *others = losses.values()
    for loss in others:
        total = total + loss
    return TrainerResult(total, dict(losses), additional)


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
    metrics = dict(result.losses_to_log or {})
    if metrics.get("loss") is not None:  # `loss` is the total; a part of it has another name
        own = metrics.pop("loss")
        if own is not result.total_loss:
            metrics["loss/loss"] = own
    return StepResult(
        result.total_loss, size, metrics, None, result.additional_outputs, tuple(metrics)
    )


def describe_dataset(dataset: Any) -> dict[str, Any]:
    """Samples are read as with a fixed seed, and nothing that is random afterwards is another for
    it."""
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        return {"kind": kind, "length": None, "fingerprint": None}
    samples = peek_samples(Fetcher(dataset, default_collate, 0))
    return {"kind": kind, "length": len(dataset), "fingerprint": hash_samples(samples)}

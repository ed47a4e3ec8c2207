"""The components of a run: the model, the optimizer and the loaders that the interface has now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...callbacks.nonfinite import NonFiniteGuard
from ...data.open import Stream, open_stream
from ...errors import ConfigurationError
from ...optim.build import Schedule
from ...runtime import Runtime
from ...runtime.modes import start_training_mode
from ...trainer import Trainer as CoreTrainer
from ...training.assembly import build_update
from ...training.components import check_owners
from ...training.fingerprint import describe_object, describe_program
from ...training.update import Guard, OptimizerUpdate
from .._shared import other_optimizers
from .gradients import Gradients
from .loaders import Gathering, inner_of

if TYPE_CHECKING:
    from .run_config import TrainerRunConfig
    from .trainer import Trainer


class Components(CoreTrainer):
    """A core trainer whose components are the interface's attributes, looked at again whenever they
    may have changed."""

    def __init__(self, interface: Trainer, runtime: Runtime, *, trains: bool = False) -> None:
        super().__init__(
            callbacks=[NonFiniteGuard("off")],  # stopping on NaN is a callback of the interface
            runtime=runtime,
            seed=None,
            progress="silent",
        )
        self.interface = interface
        self.trains = trains
        self.order_seed = torch.initial_seed()
        self.gathering = Gathering(runtime)
        self.is_intermediate = False
        self._is_ready = False
        self._gradients: Gradients | None = None
        self._streams: dict[int, tuple[Any, Stream]] = {}

    def prepare(self) -> None:
        """Everything that a run needs before its first batch, once."""
        if self._is_ready:
            return
        self.setup()
        if self.trains:
            self._check_optimizer()
            self._setup_training()
            self.run.updates.reset()
            self._rebuild_update(self._find_guard())
        self._is_ready = True

    def describe(self) -> None:
        """Describe the program, for the record of the run."""
        assert self.run.train_stream is not None
        described = describe_program(self.run, self.run.train_stream, looks_at_samples=False)
        self.run.identify(described | describe_object("loss", self.interface.loss_func))

    @property
    def _has_default_step(self) -> bool:
        """Never: a step is the interface's stages."""
        return False

    def configure_models(self) -> None:
        """The model, and whatever else on the interface is trained, such as a loss function with
        parameters."""
        self._components.models = self._current_models()

    def configure_optimizers(self) -> None:
        self.optimizers.update(self._current_optimizers())

    def use_config(self, config: TrainerRunConfig) -> None:
        """Use the settings of the run's config, which a method of the user's may have made."""
        self.accumulate = config.gradient_accumulation_steps
        self.clip_value = self.optimizer_update.clip_value = config.gradient_clip_value

    def use_scheduler(self, scheduler: Any) -> None:
        """Make a scheduler part of the state of the run; the interface's `scheduler_step` is what
        steps it."""
        self._components.schedules = (
            {} if scheduler is None else {"scheduler": Schedule(scheduler, every="update")}
        )

    def _find_guard(self) -> Guard | None:
        """The callback that refuses losses, gradients and learning rates that are not finite."""
        from .callbacks import TerminateOnNaNCallback

        callbacks = self.interface.callback_handler.callbacks
        return next((c for c in callbacks if isinstance(c, TerminateOnNaNCallback)), None)

    @property
    def gradients(self) -> Gradients:
        if self.run.phases:
            raise ConfigurationError(
                "`backward_step`, `optimizer_step` and `optimizer_zero_grad` are for training: in "
                "an evaluation they would train on the evaluation data. Remove them from "
                "`calculate_eval_batch_loss` and the other evaluation stages."
            )
        if self._gradients is None:
            raise ConfigurationError(
                "There are no gradients outside of `train`: call this method in a training stage."
            )
        return self._gradients

    @property
    def optimizer_update(self) -> OptimizerUpdate:
        return self.run.updates.by_name["optimizer"]

    def _adopt_replaced(self) -> None:
        """Go on with the model and the optimizer that the interface has now, where one was put in
        another's place."""
        models = self._current_models()
        # perhaps put in for an evaluation alone, such as an average of the weights
        if self.run.phases:
            if models["model"] is not self.modules.get("model"):
                self.runtime.place(models["model"])
                models["model"].eval()
            return
        known = {name: self.modules.get(name) for name in models}
        if any(module is not known[name] for name, module in models.items()):
            for module in models.values():
                self.runtime.place(module)
            self._components.models, self._components.modules = models, dict(models)
        optimizer = self.interface.optimizer
        if not self.trains or optimizer is None:
            return
        if self._gradients is not None:
            self._gradients.reach_all = len(self._current_optimizers()) > 1
        is_new = optimizer is not self.optimizers["optimizer"]
        if is_new or models != known:
            self._check_optimizer()
            start_training_mode(self.modules.values(), [optimizer])
        if is_new:
            self.optimizers["optimizer"] = optimizer
            self._rebuild_update(self.optimizer_update.guard)

    def _current_optimizers(self) -> dict[str, Optimizer]:
        """The optimizer, and those that a subclass has beside it and steps by itself."""
        main = self.interface.optimizer
        return ({} if main is None else {"optimizer": main}) | other_optimizers(
            self.interface, [main]
        )

    def _current_models(self) -> dict[str, nn.Module]:
        groups = [
            group
            for optimizer in self._current_optimizers().values()
            for group in optimizer.param_groups
        ]
        trained = {id(param) for group in groups for param in group["params"]}
        models = {"model": self.interface.get_model(keep_torch_compile=False)}
        for name, value in vars(self.interface).items():
            if (
                isinstance(value, nn.Module)
                and name != "model"
                and any(id(p) in trained for p in value.parameters())
            ):
                models[name] = value
        return models

    def _check_optimizer(self) -> None:
        """Refuse to train what the optimizer does not hold, or without one, in the words of this
        interface."""
        interface = self.interface
        if interface.optimizer is None:
            raise ConfigurationError(
                "Trainer has no optimizer: pass `optimizer=`, or use `evaluate`."
            )
        others = list(self._current_optimizers())[1:]
        if others and (self.runtime.world > 1 or self.runtime.precision == "fp16"):
            where = (
                "on several processes" if self.runtime.world > 1 else "with mixed_precision='fp16'"
            )
            raise ConfigurationError(
                f"{type(interface).__name__} has a further optimizer, self.{others[0]}, which "
                f"cannot be stepped {where}: only the gradients of self.optimizer are averaged "
                "and unscaled. Give its parameters to self.optimizer, as a parameter group, or "
                "use loopwright.interfaces.modular."
            )
        try:
            check_owners(self._current_models(), {"optimizer": interface.optimizer})
        except ConfigurationError:
            raise ConfigurationError(
                "The optimizer holds parameters that do not belong to the model, so training "
                "would not change the model: create it with `model.parameters()` of the trainer's "
                "model. If you replace `trainer.model`, replace `trainer.optimizer` too."
            ) from None

    def _rebuild_update(self, guard: Guard | None) -> None:
        update = build_update(self, "optimizer", self.optimizers["optimizer"], guard)
        update.checks_losses = False  # the callback has looked at the loss before `backward_step`
        self.run.updates.replace(update)
        self.run.updates.refresh(self.modules.values())
        self.drop_gradients()
        self._gradients = Gradients(self.runtime, update, self.run.window)

    def drop_gradients(self) -> None:
        """Take what watches over the optimizer's steps off it."""
        if self._gradients is not None:
            self._gradients.close()
            self._gradients = None

    # Data

    def _open(self, data: Any, batch_size: int | None, *, shuffle: bool) -> Stream:
        """Batch sizes are those of each process, as the document has them."""
        shard = self.runtime.shard
        shard = None if shard is None else replace(shard, is_per_process=True)
        seed = self.runtime.broadcast_object(self.order_seed)
        return open_stream(data, batch_size=batch_size, seed=seed, shuffle=shuffle, shard=shard)

    def _stream_of(self, loader: Any, *, is_training: bool) -> Stream:
        inner = inner_of(loader)
        return self.stream(loader if inner is None else inner.loader, is_training=is_training)

    def stream(self, loader: Any, *, is_training: bool) -> Stream:
        """The stream over a loader, opened at its first use and adapted by the callbacks."""
        if id(loader) not in self._streams:
            self._streams[id(loader)] = (loader, self._open(loader, None, shuffle=is_training))
        stream = self._streams[id(loader)][1]
        for callback in self.interface.callback_handler.callbacks:
            stream = callback.adapt_stream(
                stream, is_training=is_training, is_intermediate=self.is_intermediate
            )
        return stream

    def close_stream(self, loader: Any) -> None:
        inner = inner_of(loader)
        opened = self._streams.pop(id(loader if inner is None else inner.loader), None)
        if opened is not None:
            opened[1].close()

    def close_streams(self) -> None:
        for _, stream in self._streams.values():
            stream.close()
        self._streams = {}

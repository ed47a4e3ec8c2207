"""Mistakes in what a user gives or returns, found where they are made and named in the words of
this interface."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..._torch_compat import version_of
from ...errors import ConfigurationError
from ...training.components import check_accumulation, check_clipping

if TYPE_CHECKING:
    from .trainer import Trainer


LIMITS = ("num_epochs", "max_num_train_steps", "gradient_accumulation_steps", "gradient_clip_value")


def check_components(model: Any, loss_func: Any, optimizer: Any) -> None:
    """Refuse components in each other's place, and classes where objects are meant."""
    expected = "the order is Trainer(model, loss_func, optimizer)"
    for name, value in (("model", model), ("loss_func", loss_func), ("optimizer", optimizer)):
        if name != "optimizer" and isinstance(value, Optimizer):
            raise ConfigurationError(
                f"{name} is an optimizer ({type(value).__name__}): {expected}."
            )
        if isinstance(value, type):
            made = (
                f"{value.__name__}({'model.parameters(), lr=0.01' if name == 'optimizer' else ''})"
            )
            raise ConfigurationError(
                f"{name} is the class {value.__name__}: pass an instance, as in `{made}`."
            )
    if isinstance(optimizer, partial | FunctionType):
        raise ConfigurationError(
            "optimizer is a function: pass the optimizer itself, as in `SGD(model.parameters(), "
            "lr=0.01)`."
        )
    if isinstance(optimizer, nn.Module):
        raise ConfigurationError(
            f"optimizer is a {type(optimizer).__name__}, which is a module: {expected}."
        )


def check_limits(
    num_epochs: Any,
    max_num_train_steps: Any,
    gradient_accumulation_steps: Any,
    gradient_clip_value: Any,
) -> None:
    """Refuse numbers that no run can have, whether `train` or a run config of the user's has
    them."""
    for name, value in (("num_epochs", num_epochs), ("max_num_train_steps", max_num_train_steps)):
        is_missing = value is None and name == "max_num_train_steps"
        if not is_missing and (not isinstance(value, int) or value < 0):
            raise ConfigurationError(f"{name}={value!r}: use a whole number, 0 or more.")
    check_accumulation(gradient_accumulation_steps, "gradient_accumulation_steps")
    check_clipping("gradient_clip_value", gradient_clip_value)


def check_start(trainer: object, per_device_batch_size: Any) -> None:
    """Refuse what neither `train` nor `evaluate` can begin with."""
    if "_core" not in vars(trainer):
        raise ConfigurationError(
            f"{type(trainer).__name__}.__init__ did not initialise the trainer: call "
            "`super().__init__(model, loss_func, optimizer)` in it."
        )
    size = per_device_batch_size
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigurationError(
            f"per_device_batch_size={size!r}: use a number of samples, 1 or more."
        )


def check_scheduler(trainer: Trainer, scheduler: Any) -> None:
    """Refuse what `create_scheduler` returned if no learning rate of this run would follow it."""
    if scheduler is None:
        if trainer.create_scheduler_fn is not None:
            raise ConfigurationError(
                "`create_scheduler` returned None, so the create_scheduler_fn of `train` would "
                "not be used: end it with `return scheduler`, or leave out create_scheduler_fn "
                "for a run without a scheduler."
            )
        return
    if isinstance(scheduler, type):
        raise ConfigurationError(
            f"The scheduler of this run is the class {scheduler.__name__}: create one with the "
            f"optimizer, as in `return {scheduler.__name__}(self.optimizer, ...)` in "
            "`create_scheduler`."
        )
    if not trainer._overrides("scheduler_step") and not callable(getattr(scheduler, "step", None)):
        raise ConfigurationError(
            f"The scheduler of this run is a {type(scheduler).__name__}, which has no `step()`: "
            "return a scheduler from `create_scheduler`, or override `scheduler_step`."
        )
    target = getattr(scheduler, "optimizer", None)
    if isinstance(target, Optimizer) and target is not trainer.optimizer:
        raise ConfigurationError(
            "The scheduler belongs to an optimizer that this trainer does not have, so it would "
            "have no effect: create it with `self.optimizer` in `create_scheduler`, or with the "
            "argument of create_scheduler_fn."
        )


def step_obstacle(config: Any) -> str | None:
    """Why `backward_step` cannot step the optimizer itself in this run, or None."""
    if (count := config.gradient_accumulation_steps) > 1:
        return (
            f"would happen after every batch, not after every {count} batches as "
            f"gradient_accumulation_steps={count} requires"
        )
    if config.gradient_clip_value is not None:
        return (
            f"would skip the clipping that gradient_clip_value={config.gradient_clip_value} "
            "requires"
        )
    return None


def checked_loader(loader: Any, method: str) -> Any:
    if loader is None:
        raise ConfigurationError(
            f"`{method}` returned None: return a DataLoader, or another iterable of batches."
        )
    return loader


def checked_config(config: Any) -> Any:
    """A run config of the user's, with everything in it that a run goes by."""
    missing = [name for name in LIMITS if not hasattr(config, name)]
    if missing:
        raise ConfigurationError(
            f"`_create_run_config` returned {_kind(config)} without {', '.join(missing)}: return "
            "a TrainerRunConfig, such as "
            "`dataclasses.replace(super()._create_run_config(**kwargs), num_epochs=1)`."
        )
    check_limits(*(getattr(config, name) for name in LIMITS))
    return config


def checked_output(output: Any, method: str) -> Mapping[str, Any]:
    """What a `calculate_..._batch_loss` returned, if it is what the rest of a step needs."""
    expected = 'return {"loss": loss, "model_outputs": outputs, "batch_size": len(targets)}'
    if not isinstance(output, dict) and not isinstance(output, Mapping):
        raise ConfigurationError(f"`{method}` returned {_kind(output)}: {expected}.")
    if "loss" not in output:
        raise ConfigurationError(
            f'`{method}` returned no "loss", only {", ".join(map(repr, output))}: {expected}.'
        )
    if not isinstance(output["loss"], Tensor):
        raise ConfigurationError(
            f'`{method}` returned {_kind(output["loss"])} as "loss": return a tensor.'
        )
    size = output.get("batch_size", 0)
    if not isinstance(size, int | Tensor):
        raise ConfigurationError(
            f'`{method}` returned {_kind(size)} as "batch_size": return a number of samples.'
        )
    return output


def call_by_name(method: Callable[..., Any], **arguments: Any) -> Any:
    """Call a method of the user's with its arguments by name, as overrides of the published system
    expect them."""
    try:
        inspect.signature(method).bind(**arguments)
    except TypeError as error:
        name = getattr(method, "__name__", "the method")
        raise ConfigurationError(
            f"`{name}` does not take the arguments it is called with ({error}): define it as "
            f"`def {name}(self, {', '.join(arguments)})`."
        ) from None
    return method(**arguments)


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


class WeightsWatch:
    """Looks at the optimizer's parameters from here on: whether a step with gradients, or anybody
    else, changes one."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._updates = trainer._core.progress.update
        self._versions = self._current_versions()

    def check(self, method: str) -> None:
        """Refuse default epochs without a single step; of a method of the user's own, which may
        mean it, say so."""
        if self.has_trained:
            return
        trainer = self.trainer
        if self.num_updates and not trainer._overrides("_run_train_epoch"):
            raise self._untrained_updates()
        if trainer._overrides(method) and trainer.run_config.num_epochs:
            what = (
                "take batches from `train_dl` and call `self.optimizer.step()` after "
                "`loss.backward()`"
            )
            what = (
                what
                if method == "_run_train_epoch"
                else "call `self._run_train_epoch(self._train_dataloader)`"
            )
            trainer.print(
                f"`{method}` trained nothing: it ended without an optimizer step that had "
                f"gradients, so the weights have not changed. To train, {what} in it, or remove "
                f"`{method}`."
            )

    @property
    def num_updates(self) -> int:
        return self.trainer._core.progress.update - self._updates

    @property
    def has_trained(self) -> bool:
        return (
            self.trainer._core.gradients.has_stepped or self._current_versions() != self._versions
        )

    def _current_versions(self) -> list[tuple[int, int]]:
        return [
            (id(param), version_of(param)) for param in self.trainer._core.optimizer_update.params
        ]

    def _untrained_updates(self) -> ConfigurationError:
        is_step = self.trainer._overrides("optimizer_step")
        name = "optimizer_step" if is_step else "_update_weights"
        call = "self.optimizer.step()" if is_step else "self.optimizer_step()"
        return ConfigurationError(
            f"Nothing was trained: in {self.num_updates} updates, `{name}` took no optimizer step "
            f"that had gradients, so the weights have not changed. Call `{call}` or "
            f"`super().{name}()` in it, and zero the gradients after that step, as "
            "`optimizer_zero_grad` does, not before it."
        )


def refuse_second_backward(error: RuntimeError, num_steps: int) -> None:
    """Raise where a stage or a callback before `backward_step` has called `loss.backward()`.

    After the first step, a part of the graph may be of an earlier step, such as a hidden state.
    """
    if "a second time" in str(error) and num_steps == 0:
        raise ConfigurationError(
            "The loss has been through backward() before `backward_step`, which calls it: remove "
            "`loss.backward()` from `calculate_train_batch_loss`, and from `on_train_step_end` of "
            "callbacks, which comes before it."
        ) from error

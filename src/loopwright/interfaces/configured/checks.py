"""What a configured trainer refuses, in the words of its user: config keys and the methods of
`BaseTrainer`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...callback import TrainerHooks, hook_names
from ...errors import ConfigurationError
from ...metrics.result import mistake_in_loss
from ...text import nearest
from ...training.program import Words
from ...training.supervised import describe
from ...training.updates import listed
from .._shared import InterfaceNames, other_optimizers
from .config import BaseTrainerConfig

if TYPE_CHECKING:
    from ...training.update import OptimizerUpdate
    from .trainer import BaseTrainer


class UpdateInEvaluationError(ConfigurationError):
    """A step updates weights, and was used to evaluate."""


NAMES = InterfaceNames(
    interface="configured",
    messages=Words(
        accumulate="max_batch_size",
        clip="call it in `on_optimizer_start(self, trainer, optimizer)` of a callback, where "
        "gradients are complete",
        nonfinite=(
            "Lower the learning rate (`lr` of the optimizer) or look for bad samples; "
            "`skip_nan_loss: true` skips such updates."
        ),
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


def check_methods(interface: BaseTrainer) -> None:
    """Refuse methods that would never be called, or not with the arguments they take."""
    kind = type(interface)
    NAMES.check_trainer(interface)
    for name in hook_names(TrainerHooks):
        if callable(getattr(kind, name, None)):
            raise ConfigurationError(
                f"{kind.__name__}.{name} would never be called: events belong to callbacks. Put "
                "it into a subclass of loopwright.Callback, with `trainer` as its first "
                "argument, and list that class under `callbacks`."
            )


def checked_config(interface: BaseTrainer, config: Any) -> BaseTrainerConfig:
    """Refuse what could not take a single step."""
    name = type(interface).__name__
    if not isinstance(config, BaseTrainerConfig):
        raise ConfigurationError(
            f"{name} was given {describe(config)} as its config: pass a BaseTrainerConfig, such as "
            "BaseTrainerConfig(max_epochs=1, ...)."
        )
    if interface.overrides("train_step"):
        return config
    if not interface.overrides("loss_compute"):
        raise ConfigurationError(
            f"{name} computes no loss: override `loss_compute`, or the whole `train_step`."
        )
    if not config.forward_properties and not interface.overrides("_split_batch"):
        raise ConfigurationError(
            f"{name} has no forward_properties: list the keys of a batch to pass to the model, or "
            "override `_split_batch`."
        )
    return config


def check_models(interface: BaseTrainer, model: Any) -> None:
    """Refuse what is no model, and several where nothing says what to do with them."""
    several = isinstance(model, Mapping)
    for name, module in model.items() if several else [("model", model)]:
        if not isinstance(module, nn.Module):
            called = ": call it, as in Net()" if isinstance(module, type) else ""
            kind = f"the class {module.__name__}" if isinstance(module, type) else describe(module)
            where = f"model[{name!r}]" if several else "model"
            raise ConfigurationError(
                f"{where} is {kind}; expected a torch.nn.Module{called or '.'}{'.' * bool(called)}"
            )
    if several and not interface.overrides("train_step"):
        raise ConfigurationError(
            f"{type(interface).__name__} has several models ({', '.join(model)}), but the default "
            "`train_step` calls only one: override `train_step(self, batch, model)`, where "
            "`model` is the dict of them, and call `self.update(loss, name)` for each optimizer."
        )


def refuse_unknown_optimizers(interface: BaseTrainer) -> None:
    """Raise for an optimizer that a subclass has made by itself: no update gives it gradients, no
    checkpoint has it."""
    engine = interface._engine
    engine.setup()
    for name in other_optimizers(interface, engine.optimizers.values()):
        every = ", ".join(f"{known!r}: ..." for known in (*engine.optimizers, name))
        raise ConfigurationError(
            f"{type(interface).__name__} made the optimizer self.{name} itself, beside "
            f"{', '.join(engine.optimizers)}: checkpoints would not contain it, and "
            "`self.update(loss)` would compute no gradients for it. Pass all optimizers to the "
            f"constructor, as optimizer={{{every}}}, and call `self.update(loss, {name!r})` in "
            "`train_step`."
        )


def refuse_loss(loss: Any, interface: BaseTrainer, *, is_total: bool) -> None:
    """Raise where an update failed because of its loss; `is_total` if that is what the step
    returned."""
    if not is_total:
        what = "The loss given to `self.update`"
    elif interface.overrides("train_step"):
        what = "The total_loss that `train_step` returned"
    else:
        what = "The sum of the losses that `loss_compute` returned"
    if (mistake := loss_mistake(loss)) is not None:
        own = (
            " If your `train_step` makes its own updates, call `self.update(loss)` for each "
            "of them."
        )
        raise ConfigurationError(
            f"{what} {mistake}.{own if interface.overrides('train_step') else ''}"
        ) from None
    if "second time" in str(sys.exception()):
        raise _passed_before(what) from None


def refuse_doubled(loss: Any, updates: Iterable[OptimizerUpdate]) -> None:
    """Raise where the gradients that a step left are those of its total loss, which would be added
    once more."""
    params = [param for update in updates for param in update.params if param.grad is not None]
    try:
        grads = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
    except (RuntimeError, TypeError, AttributeError):
        return  # the update will fail as well, and say why; or the model allows no such look
    if all(_is_about(grad, param.grad) for grad, param in zip(grads, params, strict=True)):
        raise _passed_before("The total_loss that `train_step` returned")


def _is_about(grad: Tensor | None, other: Any) -> bool:
    """Whether two gradients are the same but for rounding."""
    return grad is not None and bool((grad - other).norm() <= 1e-4 * other.norm())


def _passed_before(what: str) -> ConfigurationError:
    """A step called backward() itself, and the trainer's own would add the same gradients once
    more."""
    return ConfigurationError(
        f"{what} has already been through backward(). Remove backward(), because the trainer "
        "calls it with the total_loss, or call `self.update(loss)` instead."
    )


def loss_mistake(loss: Any) -> str | None:
    """What is wrong with a loss that could not be trained, in this interface's words; None if
    nothing is."""
    if isinstance(loss, Tensor) and loss.numel() != 1 and not loss.is_complex():
        return f"has shape {tuple(loss.shape)}: reduce it to one number, such as `loss.mean()`"
    return mistake_in_loss(loss, None)


def check_optimizer_name(given: Any, optimizers: Mapping[str, Optimizer]) -> None:
    """Refuse an update that does not say which optimizers it is for, or names one that is not
    there."""
    if given is None:
        raise ConfigurationError(
            f"There are several optimizers ({', '.join(optimizers)}), so an update must name one: call "
            f'`self.update(loss, "{next(iter(optimizers))}")` in `train_step`, once for each optimizer, or '
            f"`self.update(loss, {list(optimizers)})` if they share a loss."
        )
    for name in listed(given):
        if isinstance(name, str) and name not in optimizers:
            raise ConfigurationError(
                f"self.update(loss, {given!r}): there is no optimizer {name!r}; "
                f"{nearest(name, optimizers)}"
            )


def refuse_in_evaluation(what: str, interface: BaseTrainer) -> NoReturn:
    """Raise for something that would train on the data of an evaluation."""
    if interface.overrides("eval_step"):
        advice = "remove it from `eval_step`, which must not update"
    else:
        advice = (
            "an evaluation uses `train_step` if there is no `eval_step`: override "
            "`eval_step(self, batch, model)`, which returns a TrainerResult and does not update"
        )
    raise UpdateInEvaluationError(
        f"{type(interface).__name__} {what} during an evaluation and would train on the "
        f"evaluation data; {advice}."
    )


def refuse_backward(error: RuntimeError, name: str) -> None:
    """Raise where a step of an evaluation called backward(), which has no gradients."""
    if "does not require grad" in str(error):
        raise UpdateInEvaluationError(
            f"`{name}` called backward() in an evaluation, where there are no gradients: override "
            "`eval_step(self, batch, model)`, which returns a TrainerResult and does not update, "
            "and call `self.update(loss)` in `train_step`."
        ) from error

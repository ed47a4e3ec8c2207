"""The hooks of an epoch and the optimizer steps in them: checks of losses, gradients, steps and
arguments."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..._torch_compat import are_finite
from ...callbacks import nonfinite
from ...errors import ConfigurationError, NonFiniteLossError
from ...training.step_checks import watch_own_steps
from .._shared import is_overridden

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from ...training.update import OptimizerUpdate
    from ...training.updates import Updates


logger = logging.getLogger("loopwright")


class NonFiniteGuard(nonfinite.NonFiniteGuard):
    """Refuses updates whose loss is not finite, in the words of this interface."""

    def refuse(self, what: str) -> None:
        assert self._trainer is not None
        progress = self._trainer.progress
        raise NonFiniteLossError(
            f"{what[0].upper()}{what[1:]} in batch {progress.epoch_step} of epoch "
            f"{progress.epoch + 1} (batches count from 0); that step was not taken. Lower the "
            "learning rate (train.generator.learning_rate.initial, and the discriminator's) or "
            "the weights of the losses (train.loss), or look for bad images in "
            "dataloader.dataroot."
        )


class OwnSteps:
    """Sees the steps of the interface's optimizers that `update` does not take.

    On one process they are as good as an update and count as one. On several each process would
    take one by its own part of the batch, so they are refused.
    """

    def __init__(self, *, is_shared: bool) -> None:
        self.is_shared = is_shared
        self.num_steps = 0
        self.num_own = 0
        self.has_loss = False  # whether train_step returned one in this epoch
        self._handles: list[RemovableHandle] = []
        self._has_warned = False

    def watch(self, updates: Updates) -> None:
        """Watch the steps of these optimizers, and of no others."""
        for handle in self._handles:
            handle.remove()
        after = partial(self._after, updates)
        self._handles = [
            handle
            for update in updates.by_name.values()
            for handle in watch_own_steps(update, self._before, after)
        ]

    def start_epoch(self) -> None:
        self.num_steps = 0
        self.num_own = 0
        self.has_loss = False

    def end_epoch(
        self, epoch: int | None, models: Mapping[str, nn.Module], optimizers: Iterable[str]
    ) -> None:
        """Look at an epoch's steps: weights that are not finite are an error, an epoch without a
        step is a warning."""
        names = ", ".join(optimizers)
        if names and not self.num_steps and self.has_loss:
            raise ConfigurationError(
                f"Epoch {epoch} trained nothing: train_step returned a loss, but none of the "
                f"optimizers ({names}) took a step. A returned value is only logged: call "
                "self.update(loss, self.<optimizer>) in it."
            )
        if names and not self.num_steps and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "Epoch %s trained nothing: none of the optimizers (%s) took a step. In train_step "
                "call self.update(loss, self.<optimizer>) for each, or your own backward() and "
                "step().",
                *(epoch, names),
            )
        if self.num_own:
            check_weights(models, epoch)

    def _before(self, update: OptimizerUpdate) -> None:
        if self.is_shared:
            raise ConfigurationError(
                f"{type(update.optimizer).__name__}.step() was called with several processes, so "
                "each process would use only the gradients of its own part of the batch: call "
                "self.update(loss, optimizer), which runs backward and steps on all processes "
                "together, or train with one process."
            )

    def _after(self, updates: Updates, update: OptimizerUpdate) -> None:
        self.num_steps += 1
        self.num_own += 1
        updates.note_own_step(update)
        torch.clear_autocast_cache()  # it holds weights as they were before the step


def check_weights(models: Mapping[str, nn.Module], epoch: int | None) -> None:
    """Refuse to go on with weights that are not finite, which `update` never lets happen."""
    for name, model in models.items():
        if not are_finite(p for p in model.parameters() if p.is_floating_point()):
            raise NonFiniteLossError(
                f"The weights of {name} are not finite after epoch {epoch}: your own code stepped "
                "with a loss that is NaN or infinite. Call self.update(loss, optimizer), which "
                "refuses such a step, or lower the learning rate; then continue from the last "
                "saved epoch."
            )


def check_loss(loss: Any) -> None:
    """Refuse a value that has no gradients to train with."""
    if not isinstance(loss, Tensor):
        raise ConfigurationError(
            f"The loss given to update is {loss!r}, of type {type(loss).__name__}; expected a "
            "tensor of one number: compute_loss_xy returns one; .item() turns it into a plain "
            "number without a gradient."
        )
    if loss.numel() != 1:
        raise ConfigurationError(
            f"The loss given to update has shape {tuple(loss.shape)}; expected one number: write "
            "loss.mean()."
        )
    if not loss.requires_grad:
        raise ConfigurationError(
            "The loss given to update has no graph, so no gradients: it was detached, created "
            "from numbers, or computed under torch.no_grad(). Compute it from the network's "
            "output."
        )


def check_gradients(params: Iterable[nn.Parameter], name: str) -> None:
    """Refuse to add a loss's gradients to those of another one, which a backward pass of the user's
    own left."""
    if any(param.grad is not None for param in params):
        raise ConfigurationError(
            f"The parameters of {name} have gradients that do not come from update: your own "
            "backward() reached them, for example the backward pass of the generator's loss "
            f"through the discriminator. Call self.{name}.zero_grad() before self.update(loss, "
            f"self.{name}). If you want both gradients, pass update the sum of the losses."
        )


def optimizer_name(optimizers: Mapping[str, Optimizer], given: Any) -> str:
    """The name under which the interface has an optimizer."""
    for name, optimizer in optimizers.items():
        if optimizer is given or name == given:
            return name
    there = ", ".join(f"self.{name}" for name in optimizers) or "none"
    shown = type(given).__name__ if isinstance(given, Optimizer) else repr(given)
    raise ConfigurationError(
        f"update was given {shown}, which is not one of this trainer's optimizers ({there}): "
        "assign it to self first, as in self.opt = self.build_optimizer(self.net), and call "
        "self.update(loss, self.opt)."
    )


HOOKS = ("on_epoch_start", "train_step", "on_epoch_end")
LOOPS = ("_train_paired_core", "trainer_core")  # of the published program
ARGUMENTS = ("x", "y", "idx")  # of train_step


@dataclass(frozen=True, slots=True)
class EpochHooks:
    """What happens in one epoch: the three functions, and the keywords for each of them."""

    start: Callable[..., Any]
    step: Callable[..., Any]
    end: Callable[..., Any]
    keywords: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def checked_keywords(given: Any) -> Mapping[str, Mapping[str, Any]]:
    example = "callback_kwargs={'on_epoch_start': {'print_train_start': True}}"
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"callback_kwargs is {given!r}; expected a dict of keywords for each hook, as in "
            f"{example}."
        )
    for name, keywords in given.items():
        if name not in HOOKS or not isinstance(keywords, Mapping):
            near = difflib.get_close_matches(str(name), HOOKS, n=1, cutoff=0.7)
            hint = f" Did you mean {near[0]!r}?" if near and name not in HOOKS else ""
            raise ConfigurationError(
                f"callback_kwargs has {name!r}: {keywords!r}; expected a dict of keywords under "
                f"{', '.join(HOOKS)}, as in {example}.{hint}"
            )
    return given


def check_epoch(epoch: Any) -> None:
    if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
        raise ConfigurationError(
            f"train_paired was given epoch={epoch!r}; expected a whole number from 0, as in `for "
            "epoch in range(10): trainer.train_paired(epoch)`."
        )


def hooks_of(
    interface: object,
    base: type,
    given: Mapping[str, Callable[..., Any] | None],
    keywords: Mapping[str, Mapping[str, Any]],
) -> EpochHooks:
    """The hooks of an epoch: the functions that were given, otherwise the methods, which a subclass
    must have."""
    for name in LOOPS:
        if hasattr(interface, name):
            raise ConfigurationError(
                f"{type(interface).__name__}.{name} would never be called: the loop over the "
                "batches is the trainer's own, so that a run can be continued inside an epoch. "
                "Override train_step(self, x, y, idx, **kwargs), or assign another "
                "self.train_loader."
            )
    for name, hook in given.items():
        if hook is None and not is_overridden(interface, name, base):
            raise NotImplementedError(
                f"{type(interface).__name__} must override {name}, or pass it to train_paired."
            )
    start, step, end = (
        getattr(interface, name) if hook is None else hook for name, hook in given.items()
    )
    hooks = EpochHooks(start, step, end, keywords)
    check_hooks(hooks)
    return hooks


def check_hooks(hooks: EpochHooks) -> None:
    """Refuse hooks that cannot be called as they will be, before the first of them is."""
    for name, hook in zip(HOOKS, (hooks.start, hooks.step, hooks.end), strict=True):
        if not callable(hook):
            raise ConfigurationError(
                f"train_paired was given {name}={hook!r}; expected a function, or None to use the "
                "method. If you called the function by mistake, remove the brackets."
            )
        keywords = hooks.keywords.get(name, {})
        try:
            signature = inspect.signature(hook)
        except (TypeError, ValueError):  # of something built in
            continue
        try:
            signature.bind(*(ARGUMENTS if name == "train_step" else ()), **keywords)
        except TypeError as error:
            called = ", ".join(
                [*(ARGUMENTS if name == "train_step" else ()), *(f"{key}=..." for key in keywords)]
            )
            # a function that is passed gets no trainer
            own = ["self"] if inspect.ismethod(hook) else []
            shown = ", ".join([*own, *(ARGUMENTS if name == "train_step" else ()), "**kwargs"])
            given = ", ".join(signature.parameters)
            raise ConfigurationError(
                f"{name}({given}) cannot be called as {name}({called}): {error}. Write `def "
                f"{name}({shown})`."
            ) from None

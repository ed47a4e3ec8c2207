"""What is looked at when a network is trained: the loss, the gradients there are already, and who takes the step."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...callbacks import nonfinite
from ...errors import ConfigurationError, NonFiniteLossError
from ...training.step_checks import watch_own_steps

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from ...training.update import OptimizerUpdate

logger = logging.getLogger("loopwright")


class NonFiniteGuard(nonfinite.NonFiniteGuard):
    """Refuses updates whose loss is not finite, in the words of this door."""

    def refuse(self, what: str) -> None:
        assert self._trainer is not None
        progress = self._trainer.progress
        raise NonFiniteLossError(
            f"{what[0].upper()}{what[1:]} in batch {progress.epoch_step} of epoch {progress.epoch + 1} (batches count "
            "from 0); that step was not taken. Lower the learning rate (train.generator.learning_rate.initial, and the "
            "discriminator's) or the weights of the losses (train.loss), or look for bad images in dataloader.dataroot."
        )


class OwnSteps:
    """Sees the steps of the door's optimizers that `update` does not take.

    On one process they are as good as an update and count as one. On several each process would take one by its own
    part of the batch, so they are refused.
    """

    def __init__(self, *, is_shared: bool) -> None:
        self.is_shared = is_shared
        self.num_steps = self.num_own = 0  # in this epoch
        self.has_loss = False  # whether train_step returned one in this epoch
        self._handles: list[RemovableHandle] = []
        self._has_spoken = False

    def watch(self, updates: Iterable[OptimizerUpdate]) -> None:
        """Look at the steps of these optimizers, and of no others."""
        for handle in self._handles:
            handle.remove()
        self._handles = [handle for update in updates for handle in watch_own_steps(update, self._before, self._after)]

    def start_epoch(self) -> None:
        self.num_steps = self.num_own = 0
        self.has_loss = False

    def end_epoch(self, epoch: int | None, models: Mapping[str, nn.Module], optimizers: Iterable[str]) -> None:
        """Look at an epoch's steps: weights that they spoilt are an error, and an epoch without any is spoken of."""
        names = ", ".join(optimizers)
        if names and not self.num_steps and self.has_loss:
            raise ConfigurationError(
                f"Epoch {epoch} trained nothing: train_step returned a loss, and none of the optimizers ({names}) took "
                "a step. What train_step returns is only recorded: call self.update(loss, self.<optimizer>) in it."
            )
        if names and not self.num_steps and not self._has_spoken:
            self._has_spoken = True
            logger.warning(
                "Epoch %s trained nothing: none of the optimizers (%s) took a step. In train_step call "
                "self.update(loss, self.<optimizer>) for each, or backward and step of your own.",
                *(epoch, names),
            )
        if self.num_own:
            check_weights(models, epoch)

    def _before(self, update: OptimizerUpdate) -> None:
        if self.is_shared:
            raise ConfigurationError(
                f"{type(update.optimizer).__name__}.step() was called on one of several processes, which would take it "
                "with the gradients of its own part of the batch: call self.update(loss, optimizer), which is backward "
                "and the step on all of them together, or train with one process."
            )

    def _after(self, update: OptimizerUpdate) -> None:
        self.num_steps += 1
        self.num_own += 1
        update.num_updates += 1
        torch.clear_autocast_cache()  # it holds weights as they were before the step


def check_weights(models: Mapping[str, nn.Module], epoch: int | None) -> None:
    """Refuse to go on with weights that are not finite, which `update` never lets happen."""
    for name, model in models.items():
        states = [p.detach().isfinite().all() for p in model.parameters() if p.is_floating_point()]
        if states and not torch.stack(states).all():
            raise NonFiniteLossError(
                f"The weights of {name} are not finite after epoch {epoch}: a step of your own was taken with a loss "
                "that is NaN or infinite. Call self.update(loss, optimizer), which refuses such a step before it is "
                "taken, or lower the learning rate; then go on from the last epoch that was saved."
            )


def check_loss(loss: Any) -> None:
    """Refuse what nothing can be learnt from."""
    if not isinstance(loss, Tensor):
        raise ConfigurationError(
            f"The loss given to update is {loss!r}, of type {type(loss).__name__}; expected a tensor of one "
            "number: compute_loss_xy returns one, and .item() makes it a number that nothing can be learnt from."
        )
    if loss.numel() != 1:
        raise ConfigurationError(
            f"The loss given to update has shape {tuple(loss.shape)}; expected one number: write loss.mean()."
        )
    if not loss.requires_grad:
        raise ConfigurationError(
            "The loss given to update has no graph, so no gradients: it was detached, made of numbers, or "
            "computed under torch.no_grad(). Compute it from the network's output."
        )


def check_gradients(params: Iterable[nn.Parameter], name: str) -> None:
    """Refuse to add a loss's gradients to those of another one, which a backward pass of the user's own left."""
    if any(param.grad is not None for param in params):
        raise ConfigurationError(
            f"The parameters of {name} have gradients that no update made: a backward() of your own reached them, such "
            f"as that of a generator's loss through the discriminator. Call self.{name}.zero_grad() before "
            f"self.update(loss, self.{name}), or, if both are meant, give update the sum of the losses."
        )


def optimizer_name(optimizers: Mapping[str, Optimizer], given: Any) -> str:
    """The name under which the door has an optimizer."""
    for name, optimizer in optimizers.items():
        if optimizer is given or name == given:
            return name
    there = ", ".join(f"self.{name}" for name in optimizers) or "none"
    shown = type(given).__name__ if isinstance(given, Optimizer) else repr(given)
    raise ConfigurationError(
        f"update was given {shown}, which is none of this trainer's optimizers (there is: {there}): assign it to self "
        "first, as in self.opt = self.build_optimizer(self.net), and call self.update(loss, self.opt)."
    )

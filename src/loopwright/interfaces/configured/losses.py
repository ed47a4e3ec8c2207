"""From what `loss_compute` returned to a `TrainerResult`, and from that to what the core calls a
step's result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...errors import ConfigurationError
from ...metrics.result import StepResult
from ...training.step_checks import scheduler_position
from ...training.supervised import describe
from ...training.update import OptimizerUpdate
from ...training.updates import OptimizerChoice, listed
from .._shared import StepSchedulers

if TYPE_CHECKING:
    from .engine import Engine


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
            "No losses computed: loss_compute returned nothing to optimise. Check that it returns "
            "its losses, and that the keys it uses are in the model's outputs and in "
            "target_properties."
        )
    named = name_losses(losses)
    total, *others = named.values()
    for loss in others:
        total = total + loss
    return TrainerResult(total, named, additional)


def split_additional(returned: Any) -> tuple[Any, Mapping[str, Any] | None]:
    """(losses, additional outputs): of a pair, the second is no loss if it is a dict or None."""
    if isinstance(returned, tuple) and len(returned) == 2 and not isinstance(returned[1], Tensor):
        losses, additional = returned
        if additional is not None and not isinstance(additional, Mapping):
            raise ConfigurationError(
                f"loss_compute returned a pair whose second part is {shown(additional)}; expected "
                f"{_ACCEPTED}."
            )
        return losses, additional
    return returned, None


def name_losses(losses: Any) -> dict[str, Tensor]:
    """Every loss under a name: its own, `loss`, or `loss_0`, `loss_1` and so on."""
    if isinstance(losses, Tensor):
        return {"loss": losses}
    if isinstance(losses, (list, tuple)):
        losses = {f"loss_{number}": loss for number, loss in enumerate(losses)}
    if not isinstance(losses, Mapping):
        advice = (
            " Return the tensor itself, without `.item()` or `float()`."
            if isinstance(losses, float)
            else ""
        )
        raise ConfigurationError(
            f"loss_compute returned {shown(losses)}; expected {_ACCEPTED}.{advice}"
        )
    for name, loss in losses.items():
        if not isinstance(loss, Tensor):
            raise ConfigurationError(
                f"loss_compute returned {shown(loss)} as the loss {name!r}; every loss must be a "
                "tensor, so that it has a gradient. Put numbers and other values into the "
                f"additional outputs: return (losses, {{{name!r}: ...}})."
            )
    return dict(losses)


def step_result_of(result: Any, size: int, step: str = "train_step") -> StepResult:
    """A `TrainerResult` as the core has it: the total is the `loss`, and each loss a metric of its
    own."""
    if not isinstance(result, TrainerResult):
        raise ConfigurationError(
            f"{step} returned {shown(result)}; expected a TrainerResult: return "
            "TrainerResult(total_loss=loss), with losses_to_log and additional_outputs if you "
            "have any."
        )
    metrics = dict(_metrics(result.total_loss, (result.losses_to_log or {}).items()))
    return StepResult(
        result.total_loss, size, metrics, None, result.additional_outputs, tuple(metrics)
    )


def shown(value: Any) -> str:
    """What a user returned, for a message."""
    if value is None or isinstance(value, (int, float)):
        return "None" if value is None else f"the number {value:g}"
    return describe(value)


def _metrics(total: Tensor, losses: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Any]]:
    """`loss` is the total; one of several losses that is called so as well goes by `loss/loss`."""
    for name, loss in losses:
        if name != "loss":
            yield name, loss
        elif loss is not total:
            yield "loss/loss", loss


class OwnScheduling(StepSchedulers):
    """Leaves the schedulers of updates, and of epochs, to a step of the user's own that steps
    them."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine
        self.of_epochs: set[str] = set()  # schedulers that count epochs and that a step has stepped
        self._is_in_step = False

    @contextmanager
    def around_step(self) -> Iterator[None]:
        """A step of the user's own, and the update with its total loss."""
        epochs = self._positions_of_epochs()
        self.reset()
        self.begin_step(self.engine.run.updates.by_name.values())
        self._is_in_step = True
        try:
            yield
            self.follow_all()
        finally:
            self._is_in_step = False
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
        updates = self.engine.run.updates.by_name.values() if self._is_in_step else ()
        return [
            u
            for u in updates
            if u.schedulers and any(n in (None, u.name) or n is u.optimizer for n in named)
        ]

    def _positions_of_epochs(self) -> Mapping[str, Any]:
        schedules = self.engine.schedules.items()
        return {
            name: scheduler_position(s.scheduler) for name, s in schedules if s.interval == "epoch"
        }

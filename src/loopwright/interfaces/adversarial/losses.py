"""Losses by name: computed, weighted, remembered and logged in one place; and the schedules by
which their weights, and learning rates, change from epoch to epoch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...errors import ConfigurationError
from ...text import nearest

FILE_NAME = "loss_log.jsonl"
MAX_PENDING = 512
NEVER = 1_000_000_000
Query: TypeAlias = Sequence[str] | None
ScheduleFunction: TypeAlias = "Callable[..., float]"

# Schedules


@dataclass(frozen=True, slots=True)
class EpochSchedule:
    """A value that goes from `initial_value` at `start_epoch` to `target_value` at `end_epoch`.

    Epochs are counted from 1, as in `Trainer.current_epoch`. `schedule` is "linear", "cosine",
    "exponential", "step" (all at once, half way), or a function of the schedule and the epoch. The
    value is a pure function of the epoch, so there is nothing to save and nothing that two losses
    could share by mistake. Without an `end_epoch` the target is never reached.
    """

    schedule: str | ScheduleFunction = "linear"
    start_epoch: int = 0
    end_epoch: int = NEVER
    initial_value: float = 1.0
    target_value: float = 1.0

    def __post_init__(self) -> None:
        if not callable(self.schedule) and self.schedule not in CURVES:
            raise ConfigurationError(
                "unknown-schedule",
                f"Schedule({self.schedule!r}) is neither a curve nor a function of the schedule "
                f"and the epoch; {nearest(self.schedule, CURVES)}",
            )

    def value(self, epoch: int, **weight_kwargs: Any) -> float:
        """Return the value in an epoch; `weight_kwargs` are keywords for a schedule that is a
        function."""
        if callable(self.schedule):
            return float(self.schedule(self, epoch, **weight_kwargs))
        if epoch <= self.start_epoch:
            return self.initial_value
        if epoch >= self.end_epoch:
            return self.target_value
        done = (epoch - self.start_epoch) / (self.end_epoch - self.start_epoch)
        curve = CURVES[self.schedule]
        return curve(self.initial_value, self.target_value, done, **weight_kwargs)


def _exponential(first: float, last: float, done: float, epsilon: float = 1e-9) -> float:
    """A constant factor from epoch to epoch; a 0 at one end is a very small number on the way."""
    sign = math.copysign(1.0, first or last)
    first = first or sign * epsilon
    last = last or sign * epsilon
    return first * math.pow(last / first, done)


CURVES: dict[str, ScheduleFunction] = {
    "linear": lambda first, last, done: first + (last - first) * done,
    "cosine": lambda first, last, done: last + (first - last) * (1 + math.cos(math.pi * done)) / 2,
    "exponential": _exponential,
    "step": lambda first, last, done: first if done < 0.5 else last,
}


class Scheduler:
    """A schedule as a factor of its largest value, for torch's `LambdaLR`, which counts epochs from
    0."""

    def __init__(self, schedule: EpochSchedule) -> None:
        self.schedule = schedule
        self.max_value = max(schedule.initial_value, schedule.target_value)

    def eval_schedule(self, timestep: int) -> float:
        """Return the factor in an epoch, from 0; 1 is the largest."""
        return self.schedule.value(timestep + 1) / self.max_value if self.max_value else 0.0


class TorchScheduler(LRScheduler):
    """Multiplies an optimizer's learning rates by a schedule, as a factor of its largest value.

    Stepped once an epoch; what it saves is how many there were, so it goes on where it stopped.
    """

    def __init__(self, optimizer: Optimizer, schedule: EpochSchedule | None = None) -> None:
        self.schedule = schedule or EpochSchedule()
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        """Return the learning rate of each group in the next epoch."""
        factor = Scheduler(self.schedule).eval_schedule(self.last_epoch)
        return [float(rate) * factor for rate in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch, also where a scaler skipped every step of the optimizer."""
        self._step_count += 1
        self.go_to(self.last_epoch + 1)

    def go_to(self, epoch: int) -> None:
        """Set the rates of the epoch after this number of epochs."""
        self.last_epoch = epoch
        self._last_lr = self.get_lr()
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        return {key: value for key, value in super().state_dict().items() if key != "schedule"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # earlier versions saved more
        own = self.state_dict()
        super().load_state_dict({key: state_dict[key] for key in own if key in state_dict})


class ScheduledRate(TorchScheduler):
    """Sets an optimizer's learning rate to the schedule's value for the epoch that comes next."""

    def get_lr(self) -> list[Any]:
        return [self.schedule.value(self.last_epoch + 1) for _ in self.optimizer.param_groups]


# The log


def read_loss_log(directory: str | Path) -> dict[str, dict[str, list[float]]]:
    """All of an experiment's log: {"G_L1": {"losses": [...], "weights": [...]}, ...}."""
    result: dict[str, dict[str, list[float]]] = {}
    for text in (Path(directory) / FILE_NAME).read_text().splitlines():
        line = json.loads(text)
        for name, losses in line["losses"].items():
            kept = result.setdefault(name, {"losses": [], "weights": []})
            kept["losses"] += losses
            kept["weights"] += line["weights"][name]
    return result


@dataclass(slots=True)
class LMHistory:
    """The values of a loss, as they were optimised, and the weights in them."""

    losses: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


@dataclass(slots=True)
class LMLoss:
    """A loss: a module of two tensors, and a weight or a schedule of one."""

    name: str
    function: nn.Module
    loss_weight: float = 1.0
    schedule: EpochSchedule | None = None
    tags: list[str] = field(default_factory=list)
    last_loss_map: Tensor | None = None
    history: LMHistory = field(default_factory=LMHistory)

    def weight(self, epoch: int, **weight_kwargs: Any) -> float:
        """Return the value of the schedule in an epoch; without one, `loss_weight`."""
        if self.schedule is None or self.schedule == EpochSchedule():
            return self.loss_weight
        return self.schedule.value(epoch, **weight_kwargs)


class LossManager:
    """Computes registered losses and keeps their values.

    `epoch` is the one under way, counted from 1; schedules of weights go by it. With
    `enable_logging`, values are kept and added to `loss_log.jsonl` in the experiment's directory by
    `update_loss_log`, or when `history_buffer_size` of them have come together; without it, only
    the last of each is kept. Each line of the log has an epoch and, by name, the losses and the
    weights in them. `log_position` is where the next line goes; a run that is continued from an
    earlier state sets it back, and what came after that state is replaced when it writes.

    Where several processes train (`is_shared`), values of the first one's part of a batch are what
    it prints, while histories and the log get the means over whole batches, as they become known at
    the loop's log points. Only one of the processes prints (`is_quiet`).
    """

    def __init__(
        self,
        config: Any = None,
        experiment_dir: str | Path | None = None,
        enable_logging: bool = True,
        history_buffer_size: int = 50_000,
    ) -> None:
        self.config = config
        self.enable_logging = enable_logging
        self.history_buffer_size = history_buffer_size
        self.log_path: Path | None = None
        self.log_position = 0
        if experiment_dir is not None:
            self.log_path = Path(experiment_dir) / FILE_NAME
            self.log_position = self.log_path.stat().st_size if self.log_path.is_file() else 0
        self.loss_fns: dict[str, LMLoss] = {}
        self.device: torch.device | str | None = None  # where losses that are registered are put
        self.epoch = 1
        self.is_shared = False
        self.is_quiet = False
        self.measured: dict[str, Tensor] = {}  # in the step under way, still on the device
        self._pending: list[tuple[LMLoss, Tensor, float]] = []

    # Registering

    def init_from_spec(
        self, spec: Callable[..., Mapping[str, LMLoss]] | None, *args: Any, **kwargs: Any
    ) -> None:
        """Replace all losses by those that `spec`, a function, returns by name."""
        self.loss_fns = {} if spec is None else dict(spec(*args, **kwargs))

    def register_loss_fn(
        self,
        loss_name: str,
        loss_fn: nn.Module,
        loss_weight: float = 1.0,
        schedule: EpochSchedule | None = None,
        tags: Sequence[str] | None = None,
    ) -> None:
        """Register a loss under a new name, with a weight or a schedule of it, and tags."""
        if loss_name in self.loss_fns:
            raise ConfigurationError(
                "loss-registered",
                f"A loss {loss_name!r} is already registered: choose another name.",
            )
        function = loss_fn.to(self.device) if isinstance(loss_fn, nn.Module) else loss_fn
        names = [tags] if isinstance(tags, str) else list(tags or ())
        self.loss_fns[loss_name] = LMLoss(loss_name, function, loss_weight, schedule, names)

    # Computing

    def compute_loss_xy(
        self,
        loss_name: str,
        x: Tensor,
        y: Tensor,
        epoch: int | None = None,
        loss_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Tensor:
        """Return a loss of two tensors, times its weight in an epoch, by default the one under way.

        `loss_kwargs` is `{"weight_kwargs": {...}}`, keywords for the function that is the schedule of
        the weight.
        """
        loss = self.loss_fns[loss_name]
        options = (loss_kwargs or {}).get("weight_kwargs", {})
        weight = loss.weight(self.epoch if epoch is None else epoch, **options)
        result: Tensor = loss.function(x, y) * weight
        kept = result.detach().clone()  # the result may be added to in place
        value = kept.mean() if kept.dim() else kept
        loss.last_loss_map = kept
        self.measured[loss_name] = value
        if not self.is_shared:
            self._pending.append((loss, value, weight))
            if len(self._pending) >= MAX_PENDING:
                self._settle()
        return result

    def keep(self, values: Mapping[str, float]) -> None:
        """Add the values of a batch of all processes to the histories."""
        for name in values.keys() & self.loss_fns.keys():
            loss = self.loss_fns[name]
            self._add(loss, values[name], loss.weight(self.epoch))

    def _settle(self) -> None:
        """Read pending values from the device into the histories, all of them at once."""
        if not self._pending:
            return
        pending = self._pending
        self._pending = []
        values = torch.stack([value for _, value, _ in pending]).tolist()
        for (loss, _, weight), value in zip(pending, values, strict=True):
            self._add(loss, value, weight)

    def _add(self, loss: LMLoss, value: float, weight: float) -> None:
        if not self.enable_logging:
            loss.history = LMHistory()
        loss.history.losses.append(value)
        loss.history.weights.append(weight)
        if len(loss.history.losses) >= self.history_buffer_size:
            self.update_loss_log()

    # Asking

    def get_registered_losses(self, query: Query = None, strip: bool = True) -> dict[str, LMLoss]:
        """Return the losses by name, all or those with one of the tags; without their histories if
        `strip`."""
        self._settle()
        found = self._found(query)
        if strip:
            found = {name: replace(loss, history=LMHistory()) for name, loss in found.items()}
        return found

    def get_loss_values(self, query: Query = None, precision: int | None = 2) -> dict[str, float]:
        """Return the last value of each loss, all or those with one of the tags."""
        tensors = self.get_loss_tensors(query)
        values = {name: tensor.float().mean().item() for name, tensor in tensors.items()}
        return _rounded(values, precision)

    def get_loss_tensors(self, query: Query = None) -> dict[str, Tensor]:
        """Return the last tensor of each loss, times its weight; zero before the first."""
        return {
            name: torch.zeros(()) if loss.last_loss_map is None else loss.last_loss_map
            for name, loss in self._found(query).items()
        }

    def get_loss_weights(self, query: Query = None, precision: int | None = 2) -> dict[str, float]:
        """Return the weight of each loss in this epoch."""
        weights = {name: loss.weight(self.epoch) for name, loss in self._found(query).items()}
        return _rounded(weights, precision)

    def _found(self, query: Query) -> dict[str, LMLoss]:
        if query is None:
            return dict(self.loss_fns)
        return {n: loss for n, loss in self.loss_fns.items() if set(query) & set(loss.tags)}

    # Printing

    def print_losses(
        self,
        epoch: int,
        iter: int,  # noqa: A002  (its published name)
        precision: int = 2,
    ) -> None:
        """Print the last values."""
        values = self.get_loss_values(precision=precision)
        self._print(f"(epoch: {epoch}, iters: {iter}) Loss", values)

    def print_weights(self, precision: int = 2) -> None:
        """Print the weights of this epoch."""
        self._print("Loss weights", self.get_loss_weights(precision=precision))

    def _print(self, title: str, values: Mapping[str, float]) -> None:
        if not self.is_quiet:
            row = " ".join(f"{name}: {value}" for name, value in values.items())
            print(f"{title}: {row}", flush=True)

    def update_loss_log(self, silent: bool = True) -> None:
        """Write the losses since the last call to the log; unless `silent`, say so."""
        if not silent and not self.is_quiet:
            print("Loss log updated", flush=True)
        self._settle()
        histories = {n: loss.history for n, loss in self.loss_fns.items() if loss.history.losses}
        if self.log_path is None or not self.enable_logging or not histories:
            return
        entry = {
            "epoch": self.epoch,
            "losses": {name: history.losses for name, history in histories.items()},
            "weights": {name: history.weights for name, history in histories.items()},
        }
        self.log_path.touch()
        with self.log_path.open("r+b") as file:
            end = file.seek(0, 2)
            file.seek(min(self.log_position, end))  # the file may have been removed or shortened
            file.write(json.dumps(entry).encode() + b"\n")
            file.truncate()
            self.log_position = file.tell()
        for loss in self.loss_fns.values():
            loss.history = LMHistory()

    # For a run that goes on

    def state_dict(self) -> dict[str, Any]:
        """Return the end of the log, and the values that are not in it yet."""
        self._settle()
        kept = {name: asdict(loss.history) for name, loss in self.loss_fns.items()}
        return {"log": None if self.log_path is None else self.log_position, "kept": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; later entries of the log are removed."""
        self._pending = []
        for name, loss in self.loss_fns.items():
            kept = state["kept"].get(name, {})
            loss.history = LMHistory(list(kept.get("losses", ())), list(kept.get("weights", ())))
        if state["log"] is not None:
            self.log_position = state["log"]


def _rounded(values: dict[str, float], precision: int | None) -> dict[str, float]:
    if precision is None:
        return values
    return {name: round(value, precision) for name, value in values.items()}

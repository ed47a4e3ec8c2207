"""Losses by name: computed, weighted, remembered and logged in one place."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import nan
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import ConfigurationError
from ...metrics.meter import AddUp
from ...text import nearest
from .scheduling import Schedule

FILE_NAME = "loss_log.jsonl"


class LossLog:
    """`loss_log.jsonl`: each line has an epoch and, by name, the losses and the weights in them.

    `position` is where the next line goes; a run that is continued from an earlier state sets it
    back, and what came after that state is replaced when it writes.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self.position = self.path.stat().st_size if self.path.is_file() else 0

    def append(self, epoch: int, histories: Mapping[str, LMHistory]) -> None:
        losses = {name: history.losses for name, history in histories.items() if history.losses}
        if not losses:
            return
        weights = {name: histories[name].weights for name in losses}
        line = json.dumps({"epoch": epoch, "losses": losses, "weights": weights}).encode() + b"\n"
        self.path.touch()
        with self.path.open("r+b") as file:
            file.seek(0, 2)
            # the file may have been removed or shortened
            self.position = min(self.position, file.tell())
            file.seek(self.position)
            file.write(line)
            file.truncate()
        self.position += len(line)


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


Query = Sequence[str] | None
MAX_PENDING = 512


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
    schedule: Schedule | None = None
    tags: list[str] = field(default_factory=list)
    last_loss_map: Tensor | None = None
    history: LMHistory = field(default_factory=LMHistory)

    def weight(self, epoch: int, **weight_kwargs: Any) -> float:
        """Return the value of the schedule in an epoch; without one, `loss_weight`."""
        if self.schedule is None or self.schedule == Schedule():
            return self.loss_weight
        return self.schedule.value(epoch, **weight_kwargs)


class LossManager:
    """Computes registered losses and keeps their values.

    `epoch` is the one under way, counted from 1; schedules of weights go by it. With
    `enable_logging`, values are kept and added to `loss_log.jsonl` in the experiment's directory by
    `update_loss_log`, or when `history_buffer_size` of them have come together; without it, only
    the last of each is kept.

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
        self.log = None if experiment_dir is None else LossLog(Path(experiment_dir))
        self.loss_fns: dict[str, LMLoss] = {}
        self.device: torch.device | str | None = None  # where losses that are registered are put
        self.epoch = 1
        self.is_shared = False
        self.is_quiet = False
        self._step: dict[str, Tensor] = {}
        self._size = 1  # samples of the batch, or of this process's part of it
        self._pending: list[tuple[LMLoss, Tensor, float, int]] = []

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
        schedule: Schedule | None = None,
        tags: Sequence[str] | None = None,
    ) -> None:
        """Register a loss under a new name, with a weight or a schedule of it, and tags."""
        if loss_name in self.loss_fns:
            raise ConfigurationError(
                "loss-registered",
                f"A loss {loss_name!r} is already registered: choose another name.",
            )
        if isinstance(loss_fn, type):
            raise ConfigurationError(
                "loss-class",
                f"The loss {loss_name!r} is the class {loss_fn.__name__}: pass an object of it.",
            )
        function = loss_fn.to(self.device) if isinstance(loss_fn, nn.Module) else loss_fn
        self.loss_fns[loss_name] = LMLoss(
            loss_name,
            function,
            loss_weight,
            schedule,
            [tags] if isinstance(tags, str) else list(tags or ()),
        )

    # Computing

    def compute_loss_xy(
        self,
        loss_name: str,
        x: Tensor,
        y: Tensor,
        epoch: int | None = None,
        loss_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Tensor:
        """Return the loss of two tensors, times its weight in `epoch`. Default: the current epoch.

        `loss_kwargs` may have "weight_kwargs", keywords for the function that is the schedule of
        the weight.
        """
        loss = self._loss(loss_name)
        keywords = dict(loss_kwargs or {})
        options = keywords.pop("weight_kwargs", {})
        if keywords:
            raise ConfigurationError(
                "unknown-loss-kwargs",
                f"loss_kwargs has {', '.join(map(repr, keywords))}; pass {{'weight_kwargs': "
                "{...}}, keywords for the schedule of the weight.",
            )
        weight = loss.weight(self.epoch if epoch is None else epoch, **options)
        result: Tensor = loss.function(x, y) * weight
        detached = result.detach()
        value = detached.mean()
        # the result may be added to in place
        loss.last_loss_map = detached.clone() if detached.dim() else value
        self._step[loss_name] = value
        self._pending.append((loss, value, weight, self._size))
        if len(self._pending) >= MAX_PENDING:
            self._settle()
        return result

    def start_step(self, size: int = 1) -> None:
        """Begin a batch of `size` samples."""
        self._step = {}
        self._size = size

    def end_step(self) -> dict[str, Tensor]:
        """Return the losses since `start_step`, still on the device."""
        self._size = 1
        return dict(self._step)

    def _loss(self, name: str) -> LMLoss:
        if name not in self.loss_fns:
            raise ConfigurationError(
                "unknown-loss",
                f"There is no loss {name!r}; {nearest(name, self.loss_fns)} Call "
                f"register_loss_fn({name!r}, ...) or init_from_spec first.",
            )
        return self.loss_fns[name]

    def _settle(self) -> None:
        """Read pending values from the device into the histories; shared ones wait for
        `settle_together`."""
        if not self.is_shared:
            self._keep(self._read())

    def settle_together(self, add_up: AddUp) -> None:
        """Keep the means over all processes, which all call this; `add_up` adds sums and counts."""
        table = {
            str(at): (value * size if size else 0.0, float(size))
            for at, (value, (*_, size)) in enumerate(zip(self._read(), self._pending, strict=True))
        }
        total = add_up(table)
        self._keep([total[at][0] / total[at][1] if total[at][1] else nan for at in table])

    def _read(self) -> list[float]:
        """The pending values, all of them at once."""
        values = [value for _, value, *_ in self._pending]
        return torch.stack(values).tolist() if values else []

    def _keep(self, values: list[float]) -> None:
        pending = self._pending
        self._pending = []
        for (loss, _, weight, _), value in zip(pending, values, strict=True):
            history = loss.history
            if not self.enable_logging:
                history.losses.clear()
                history.weights.clear()
            history.losses.append(value)
            history.weights.append(weight)
        if any(
            len(loss.history.losses) >= self.history_buffer_size for loss in self.loss_fns.values()
        ):
            self._dump()

    # Asking

    def get_registered_losses(self, query: Query = None, strip: bool = True) -> dict[str, LMLoss]:
        """Return the losses by name, all or those with one of the tags; without their histories if
        `strip`."""
        self._settle()
        found = self._found(query)
        if not strip:
            return found
        return {name: replace(loss, history=LMHistory()) for name, loss in found.items()}

    def get_loss_values(self, query: Query = None, precision: int | None = 2) -> dict[str, float]:
        """Return the last value of each loss, all or those with one of the tags."""
        last = {name: loss.last_loss_map for name, loss in self._found(query).items()}
        return {
            name: _rounded(0.0 if value is None else value.float().mean().item(), precision)
            for name, value in last.items()
        }

    def get_loss_tensors(self, query: Query = None) -> dict[str, Tensor]:
        """Return the last tensor of each loss, times its weight; zero before the first."""
        return {
            name: torch.zeros(()) if loss.last_loss_map is None else loss.last_loss_map
            for name, loss in self._found(query).items()
        }

    def get_loss_weights(self, query: Query = None, precision: int | None = 2) -> dict[str, float]:
        """Return the weight of each loss in this epoch."""
        return {
            name: _rounded(loss.weight(self.epoch), precision)
            for name, loss in self._found(query).items()
        }

    def _found(self, query: Query) -> dict[str, LMLoss]:
        return {
            n: loss
            for n, loss in self.loss_fns.items()
            if query is None or set(query) & set(loss.tags)
        }

    # Printing

    def print_losses(
        self,
        epoch: int,
        iter: int,  # noqa: A002  (its published name)
        precision: int = 2,
        capture: bool = False,
    ) -> str | None:
        """Print the last values; with `capture`, return the line instead."""
        values = self.get_loss_values(precision=precision)
        return self._print(f"(epoch: {epoch}, iters: {iter}) Loss: {_in_a_row(values)}", capture)

    def print_weights(self, precision: int = 2, capture: bool = False) -> str | None:
        """Print the weights of this epoch; with `capture`, return the line instead."""
        weights = self.get_loss_weights(precision=precision)
        return self._print(f"Loss weights: {_in_a_row(weights)}", capture)

    def update_loss_log(self, silent: bool = True, capture: bool = False) -> str | None:
        """Write the losses since the last call to the log; unless `silent`, print how long that
        took."""
        started = perf_counter()
        self._settle()
        self._dump()
        if silent:
            return None
        return self._print(f"Loss log updated in {perf_counter() - started:.3f} s", capture)

    def _print(self, line: str, capture: bool) -> str | None:
        if capture:
            return line
        if not self.is_quiet:
            print(line, flush=True)
        return None

    def _dump(self) -> None:
        if self.log is None or not self.enable_logging:
            return
        self.log.append(self.epoch, {name: loss.history for name, loss in self.loss_fns.items()})
        for loss in self.loss_fns.values():
            loss.history = LMHistory()

    # For a run that goes on

    def state_dict(self) -> dict[str, Any]:
        """Return the end of the log, and the values that are not in it yet."""
        self._settle()
        kept = {name: asdict(loss.history) for name, loss in self.loss_fns.items()}
        return {"log": None if self.log is None else self.log.position, "kept": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; later entries of the log are removed."""
        self._pending = []
        for name, loss in self.loss_fns.items():
            kept = state["kept"].get(name, {})
            loss.history = LMHistory(list(kept.get("losses", ())), list(kept.get("weights", ())))
        if self.log is not None and state["log"] is not None:
            self.log.position = state["log"]


def _rounded(value: float, precision: int | None) -> float:
    return value if precision is None else round(value, precision)


def _in_a_row(values: Mapping[str, float]) -> str:
    return " ".join(f"{name}: {value}" for name, value in values.items())

"""Exponential moving averages of the weights: kept beside the model, evaluated and saved under
their own names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._torch_compat import foreach_lerp_
from ..callback import Callback
from ..errors import ConfigurationError
from ..runtime.dtensor import group_by_mesh
from ..text import listed

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..data.open import Stream

LOW_PRECISION = (torch.float16, torch.bfloat16)


class EMA(Callback):
    """Exponential moving averages of the weights.

    After every update, `average = decay * average + (1 - decay) * weights`. Buffers, such as the
    statistics of batch norm, are copied, not averaged. `with ema.weights(trainer): ...` runs code
    with the averages in place of the weights, for example `trainer.export(path)`; with several
    decays, `ema.weights(trainer, decay=0.99)`.

    Args:
        decay: A number from 0 to 1 (exclusive), or several; several averages are called `ema_0.99`
            and so on.
        model: The name of one of the trainer's models; all by default.
        warmup: Whether the first updates weigh more: after n updates the decay is at most (1 + n) /
            (10 + n).
        evaluate: Whether to repeat every evaluation with the averages; its metrics are called
            `ema_loss` and so on.
        name: The prefix of these metrics; for several EMA callbacks in one run.

    >>> import torch
    >>> from loopwright import Trainer
    >>> from loopwright.callbacks import EMA
    >>> model, ema = torch.nn.Linear(2, 1), EMA(0.9)
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = Trainer(model, sgd, torch.nn.MSELoss(), callbacks=[ema], progress="silent")
    >>> data = torch.ones(4, 2), torch.ones(4, 1)
    >>> _ = trainer.train(data, num_updates=1)
    >>> with ema.weights(trainer):
    ...     outputs = model(data[0])
    """

    evaluates_again = True

    def __init__(
        self,
        decay: float | Sequence[float] = 0.999,
        *,
        model: str | None = None,
        warmup: bool = False,
        evaluate: bool = True,
        name: str = "ema",
    ) -> None:
        decays = list(decay) if isinstance(decay, Sequence) else [decay]
        are_different = len(set(decays)) == len(decays)
        if not decays or not are_different or not all(0 <= number < 1 for number in decays):
            raise ConfigurationError(
                "ema-decay",
                f"EMA(decay={decay!r}): use a number from 0 to 1, such as 0.999, or a list of "
                "such numbers.",
            )
        self.decay = decay
        # by the names of the averages
        self.decays = {name: decays[0]}
        if len(decays) > 1:
            self.decays = {f"{name}_{number:g}": number for number in decays}
        self.model = model
        self.warmup = warmup
        self.evaluate = evaluate
        self.num_updates = 0
        self.is_in_place = False
        self._averages: dict[str, dict[str, Average]] = {}  # by the average's and the model's name
        self._loaded: Mapping[str, Mapping[str, Any]] = {}

    @property
    def state(self) -> dict[str, dict[str, Tensor]]:
        """The averaged state dict of each model, of the first decay; the tensors change with every
        update."""
        return self.states[next(iter(self.decays))]

    @property
    def states(self) -> dict[str, dict[str, dict[str, Tensor]]]:
        """The averaged state dicts by the name of the average and the name of the model."""
        states = {}
        for average in self.decays:
            own = self._averages.get(average)
            if own is not None:
                states[average] = {name: each.state_dict() for name, each in own.items()}
            else:
                states[average] = dict(self._loaded.get(average, {}))
        return states

    @contextmanager
    def weights(self, trainer: Trainer, *, decay: float | None = None) -> Iterator[None]:
        """Context with the averages in place of the models' weights, which are restored
        afterwards."""
        if decay is None and len(self.decays) == 1:
            (decay,) = self.decays.values()
        found = [name for name, number in self.decays.items() if number == decay]
        if not found:
            raise ConfigurationError(
                "unknown-decay",
                f"EMA.weights(decay={decay}): choose one of {listed(self.decays.values())}.",
            )
        with self._in_place(trainer, found[0]):
            yield

    @contextmanager
    def _in_place(self, trainer: Trainer, name: str) -> Iterator[None]:
        self._prepare(trainer)
        kept: list[tuple[Tensor, Tensor]] = []
        for average in self._averages[name].values():
            kept += average.put_in_place()
        was_in_place = self.is_in_place
        self.is_in_place = True
        try:
            yield
        finally:
            self.is_in_place = was_in_place
            with torch.no_grad():
                for target, value in kept:
                    target.copy_(value)

    def metric_names(self, known: set[str]) -> set[str]:
        if not self.evaluate:
            return set()
        names = [name.removeprefix("eval_") for name in known if name.startswith("eval_")]
        return {f"eval_{average}_{name}" for average in self.decays for name in names}

    def on_train_start(self, trainer: Trainer) -> None:
        from .best import ModelKeeper

        starts = tuple(f"eval_{name}_" for name in self.decays)
        for other in trainer.run.callbacks:
            if isinstance(other, EMA) and other is not self and other.decays.keys() & self.decays:
                raise ConfigurationError(
                    "two-averages",
                    f"Two EMA callbacks have averages of one name, {listed(self.decays)}: give "
                    f"each its own, as in EMA({self.decay}, name='ema_slow').",
                )
            if isinstance(other, ModelKeeper) and other.metric.startswith(starts):
                trainer.run.say(
                    f"{type(other).__name__} keeps the model's own weights, but compares them by "
                    f"{other.metric!r}, which is measured with the averaged weights. To save the "
                    "averaged weights, use `with ema.weights(trainer): trainer.export(path)`."
                )
        self.on_rewind(trainer)

    def on_rewind(self, trainer: Trainer) -> None:
        """Use the model's own buffers from now on, also in an evaluation before the next update."""
        self._prepare(trainer)
        for average in self._all():
            average.buffers = {}

    def on_loop_end(self, trainer: Trainer) -> None:
        for average in self._all():
            buffers = average.model.named_buffers()
            average.buffers = {name: buffer.detach().clone() for name, buffer in buffers}

    def on_update_end(self, trainer: Trainer) -> None:
        self.num_updates += 1
        for name, decay in self.decays.items():
            if self.warmup:
                decay = min(decay, (1 + self.num_updates) / (10 + self.num_updates))
            for average in self._averages[name].values():
                move_averages(average.groups, 1 - decay)
                average.buffers = {}

    def on_eval_end(self, trainer: Trainer, data: Stream) -> None:
        """Evaluate the averages, unless this evaluation is one of averages."""
        averages = [other for other in trainer.run.callbacks if isinstance(other, EMA)]
        exists = bool(self._averages or self._loaded)
        if not self.evaluate or not exists or any(other.is_in_place for other in averages):
            return
        for average in self.decays:
            with self._in_place(trainer, average):
                measured = trainer.evaluate(data)
            trainer.log({f"{average}_{name}": value for name, value in measured.items()})

    def state_dict(self) -> dict[str, Any]:
        return {"num_updates": self.num_updates, "models": self.states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load into the averages; before the models are known, keep the state for later."""
        self.num_updates = state["num_updates"]
        self._loaded = dict(state["models"])
        if self._averages:
            self._load_kept()

    def _prepare(self, trainer: Trainer) -> None:
        """Create the averages of this trainer's models, from the loaded state or from the current
        weights."""
        models = trainer.models
        if self.model is not None:
            models = {self.model: models[self.model]}
        known = {id(average.model) for average in self._all()}
        if not all(id(model) in known for model in models.values()):
            for name in self.decays:
                self._averages[name] = {key: Average(model) for key, model in models.items()}
            self._load_kept()

    def _all(self) -> Iterator[Average]:
        for averages in self._averages.values():
            yield from averages.values()

    def _load_kept(self) -> None:
        """Load the kept state; an average that it does not contain begins with the current
        weights."""
        for name, averages in self._averages.items():
            saved = self._loaded.get(name, {})
            for key in averages.keys() & saved.keys():
                averages[key].load_state_dict(saved[key])
        self._loaded = {}


# parameters and their averages that one fused kernel takes
Groups = list[tuple[list[Tensor], list[Tensor]]]


def averaged_parameters(model: nn.Module) -> list[Tensor]:
    """The parameters of a model that are averaged: floating-point and complex ones."""
    return [
        param for param in model.parameters() if param.is_floating_point() or param.is_complex()
    ]


def paired_groups(params: Sequence[Tensor], averages: Sequence[Tensor]) -> Groups:
    """Parameters with their averages, those of one device mesh together."""
    return list(zip(group_by_mesh(params), group_by_mesh(averages), strict=True))


@torch.no_grad()
def move_averages(groups: Groups, weight: float) -> None:
    """Move averages towards the parameters by this fraction of the distance; every average of
    weights is made here."""
    for params, averages in groups:
        current = [
            param if param.dtype == average.dtype else param.to(average.dtype)
            for param, average in zip(params, averages, strict=True)
        ]
        foreach_lerp_(averages, current, weight)


class Average:
    """The averaged parameters of one model.

    During training the model's own buffers are used. They are copied at the end, since other
    weights may be loaded into the model afterwards.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.buffers: dict[str, Tensor] = {}
        self._params = averaged_parameters(model)
        self._averages = [_for_averaging(param) for param in self._params]
        self.groups = paired_groups(self._params, self._averages)

    @torch.no_grad()
    def put_in_place(self) -> list[tuple[Tensor, Tensor]]:
        """Overwrite the model's tensors; return pairs of tensor and previous value."""
        own = dict(self.model.named_buffers())
        targets = [*self._params, *(own[name] for name in self.buffers)]
        kept = [(target, target.detach().clone()) for target in targets]
        for target, value in zip(targets, [*self._averages, *self.buffers.values()], strict=True):
            target.copy_(value)  # one by one: sharded parameters support no foreach copy
        return kept

    def state_dict(self) -> dict[str, Any]:
        """Return the model's state dict with the averages as values."""
        averages = self._by_param()
        result: dict[str, Any] = {}
        for name, value in self.model.state_dict(keep_vars=True).items():
            own = self.buffers.get(name, averages.get(id(value), value))
            result[name] = own.detach() if isinstance(own, Tensor) else own
        return result

    @torch.no_grad()
    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        from ..checkpoint import restore_into

        averages = self._by_param()
        buffers = dict(self.model.named_buffers())
        for key, value in self.model.state_dict(keep_vars=True).items():
            if id(value) in averages:
                restore_into(averages[id(value)], saved[key])
            elif key in buffers:
                self.buffers[key] = saved[key].to(value.device)

    def _by_param(self) -> dict[int, Tensor]:
        pairs = zip(self._params, self._averages, strict=True)
        return {id(param): average for param, average in pairs}


def _for_averaging(param: Tensor) -> Tensor:
    """Return a copy of the parameter, in float32 if its precision is too low for small steps."""
    dtype = torch.float32 if param.dtype in LOW_PRECISION else param.dtype
    return param.detach().to(dtype, copy=True)

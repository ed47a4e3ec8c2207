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
from ..errors import CheckpointError, ConfigurationError, DataError
from ..runtime.dtensor import group_by_mesh
from ..text import listed, nearest

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
        self.decays = {
            name if len(decays) == 1 else f"{name}_{number:g}": number for number in decays
        }
        self.model = model
        self.warmup = warmup
        self.evaluate = evaluate
        self.prefix = name
        self.num_updates = 0
        self.is_in_place = False
        self._averages: dict[str, dict[str, Average]] = {}  # by prefix and model
        self._loaded: Mapping[str, Mapping[str, Any]] = {}

    @property
    def state(self) -> dict[str, dict[str, Tensor]]:
        """The averaged state dict of each model, of the first decay; the tensors change with every
        update."""
        return self.states[next(iter(self.decays))]

    @property
    def states(self) -> dict[str, dict[str, dict[str, Tensor]]]:
        """The averaged state dicts by the name of the average and the name of the model."""
        if self._averages:
            return {
                p: {name: a.state_dict() for name, a in own.items()}
                for p, own in self._averages.items()
            }
        return {
            p: {name: dict(state) for name, state in self._loaded.get(p, {}).items()}
            for p in self.decays
        }

    @contextmanager
    def weights(self, trainer: Trainer, *, decay: float | None = None) -> Iterator[None]:
        """Context with the averages in place of the models' weights, which are restored
        afterwards."""
        with self._in_place(trainer, self._prefix_of(decay)):
            yield

    def _prefix_of(self, decay: float | None) -> str:
        if decay is None and len(self.decays) == 1:
            return self.prefix
        found = [prefix for prefix, number in self.decays.items() if number == decay]
        if not found:
            raise ConfigurationError(
                "unknown-decay",
                f"EMA.weights(decay={decay}): choose one of {listed(self.decays.values())}.",
            )
        return found[0]

    @contextmanager
    def _in_place(self, trainer: Trainer, prefix: str) -> Iterator[None]:
        self._prepare(trainer)
        kept = [
            pair for average in self._averages[prefix].values() for pair in average.put_in_place()
        ]
        was_in_place = self.is_in_place
        self.is_in_place = True
        try:
            yield
        finally:
            self.is_in_place = was_in_place
            _put_back(kept)

    def metric_names(self, known: set[str]) -> set[str]:
        if not self.evaluate:
            return set()
        names = [name.removeprefix("eval_") for name in known if name.startswith("eval_")]
        return {f"eval_{prefix}_{name}" for prefix in self.decays for name in names}

    def on_train_start(self, trainer: Trainer) -> None:
        averages = [other for other in trainer.run.callbacks if isinstance(other, EMA)]
        for other in averages:
            if other is not self and other.decays.keys() & self.decays.keys():
                raise ConfigurationError(
                    "two-averages",
                    f"Two EMA callbacks are both named {self.prefix!r}: give each its own, as in "
                    f"EMA({self.decay}, name='ema_slow').",
                )
        self._warn_of_kept(trainer)
        self._prepare(trainer)
        self._follow_buffers()

    def _warn_of_kept(self, trainer: Trainer) -> None:
        """Print a line if a callback keeps models by a metric of the averages: it keeps the model's
        own weights."""
        from .best import ModelKeeper

        starts = tuple(f"eval_{prefix}_" for prefix in self.decays)
        for other in trainer.run.callbacks:
            if isinstance(other, ModelKeeper) and other.metric.startswith(starts):
                trainer.run.say(
                    f"{type(other).__name__} keeps the model's own weights, but compares them by "
                    f"{other.metric!r}, which is measured with the averaged weights. To save the "
                    "averaged weights, use `with ema.weights(trainer): trainer.export(path)`."
                )

    def on_loop_end(self, trainer: Trainer) -> None:
        for average in self._all():
            average.keep_buffers()

    def on_update_end(self, trainer: Trainer) -> None:
        self.num_updates += 1
        for prefix, decay in self.decays.items():
            if self.warmup:
                decay = min(decay, (1 + self.num_updates) / (10 + self.num_updates))
            for average in self._averages[prefix].values():
                average.update(1 - decay)

    def on_rewind(self, trainer: Trainer) -> None:
        self._prepare(trainer)
        self._follow_buffers()

    def _follow_buffers(self) -> None:
        """Use the model's own buffers from now on, also in an evaluation before the next update."""
        for average in self._all():
            average.buffers = {}

    def on_eval_end(self, trainer: Trainer, data: Stream) -> None:
        if not self.evaluate or not (self._averages or self._loaded) or _is_averaged(trainer):
            return
        for prefix in self.decays:
            self._evaluate(trainer, data, prefix)

    def _evaluate(self, trainer: Trainer, data: Stream, prefix: str) -> None:
        try:
            with self._in_place(trainer, prefix):
                measured = trainer.evaluate(data)
        except DataError as error:
            error.add_note(
                "EMA evaluates the same data a second time: pass a data set, a loader or a list "
                "instead of an iterator, which can be used only once, or pass EMA(evaluate=False)."
            )
            raise
        trainer.log({f"{prefix}_{name}": value for name, value in measured.items()})

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
        models = self._models_of(trainer)
        known = self._averages.get(next(iter(self.decays)), {})
        if any(
            name not in known or known[name].model is not model for name, model in models.items()
        ):
            self._averages = {
                p: {name: Average(model) for name, model in models.items()} for p in self.decays
            }
            self._load_kept()

    def _all(self) -> Iterator[Average]:
        for averages in self._averages.values():
            yield from averages.values()

    def _load_kept(self) -> None:
        """Load the kept state; an average that it does not contain begins with the current
        weights."""
        for prefix, models in self._loaded.items():
            for name, saved in models.items():
                if name in self._averages.get(prefix, {}):
                    self._averages[prefix][name].load_state_dict(saved, name)
        self._loaded = {}

    def _models_of(self, trainer: Trainer) -> dict[str, nn.Module]:
        if self.model is None:
            return trainer.models
        if self.model not in trainer.models:
            raise ConfigurationError(
                "unknown-model",
                f"EMA(model={self.model!r}): the trainer has no such model; "
                f"{nearest(self.model, trainer.models)}",
            )
        return {self.model: trainer.models[self.model]}


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

    During training the model's own buffers are used; `keep_buffers` copies them at the end, since
    other weights may be loaded into the model afterwards.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.buffers: dict[str, Tensor] = {}
        self._params = averaged_parameters(model)
        self._averages = [_for_averaging(param) for param in self._params]
        self._groups = paired_groups(self._params, self._averages)

    def update(self, weight: float) -> None:
        """Move the averages towards the weights by this fraction of the distance."""
        move_averages(self._groups, weight)
        self.buffers = {}

    def keep_buffers(self) -> None:
        self.buffers = {
            name: buffer.detach().clone() for name, buffer in self.model.named_buffers()
        }

    @torch.no_grad()
    def put_in_place(self) -> list[tuple[Tensor, Tensor]]:
        """Overwrite the model's tensors; return pairs of tensor and previous value, for
        `_put_back`."""
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
    def load_state_dict(self, saved: Mapping[str, Tensor], name: str) -> None:
        from ..checkpoint import restore_into

        averages = self._by_param()
        buffers = dict(self.model.named_buffers())
        for key, value in self.model.state_dict(keep_vars=True).items():
            if key not in saved:
                raise CheckpointError(
                    "averages-of-another-model",
                    f"The averages of {name!r} have no {key}: they belong to another model.",
                )
            if id(value) in averages:
                restore_into(averages[id(value)], saved[key])
            elif key in buffers:
                self.buffers[key] = saved[key].to(value.device)

    def _by_param(self) -> dict[int, Tensor]:
        return {
            id(param): average for param, average in zip(self._params, self._averages, strict=True)
        }


def _for_averaging(param: Tensor) -> Tensor:
    """Return a copy of the parameter, in float32 if its precision is too low for small steps."""
    return param.detach().to(
        torch.float32 if param.dtype in LOW_PRECISION else param.dtype, copy=True
    )


@torch.no_grad()
def _put_back(kept: list[tuple[Tensor, Tensor]]) -> None:
    for target, value in kept:
        target.copy_(value)


def _is_averaged(trainer: Trainer) -> bool:
    """Whether averages are in place already, so that the current evaluation is one of averages."""
    return any(
        isinstance(callback, EMA) and callback.is_in_place for callback in trainer.run.callbacks
    )

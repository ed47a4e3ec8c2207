"""The modules, optimizers and schedules of a trainer: found on the trainer, and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from math import inf, isnan
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ..callback import TrainerHooks, check_hooks
from ..errors import ConfigurationError, check_number
from ..trees import as_json

if TYPE_CHECKING:
    from ..checkpoint.policy import FiniteCheck
    from ..optim.build import Schedule
    from ..run.manifest import RunFacts

T = TypeVar("T")


class Components:
    """The models, optimizers and schedules of a trainer, by name; `training.assembly` fills it.

    `modules` has everything that is an `nn.Module`, losses and metrics too; `models` those of them
    that have a state.
    """

    def __init__(self) -> None:
        self.models: dict[str, nn.Module] = {}
        self.modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.schedules: dict[str, Schedule] = {}
        self.structure: dict[str, Any] = {}  # of the models, before they are wrapped
        self.are_built = False
        # parameters that replaced others, by the ids of the replaced ones
        self.replaced: dict[int, nn.Parameter] = {}
        self.known_optimizers: dict[str, Optimizer] = {}  # at the last comparison
        self.trained: dict[str, Any] = {}  # the components of the current `train` call
        self.finite: FiniteCheck | None = None  # looks at what is saved of a run with a directory

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of all modules that require gradients, each once."""
        params = (param for module in self.modules.values() for param in module.parameters())
        yield from {param: None for param in params if param.requires_grad}

    def parameter_orders(self) -> dict[str, list[int]]:
        """Return the places of each optimizer's parameters among those of all models, -1 where they
        are of none."""
        params = [param for module in self.modules.values() for param in module.parameters()]
        places = {id(param): place for place, param in enumerate(params)}
        return {
            name: [places.get(id(param), -1) for param in params_of(optimizer)]
            for name, optimizer in self.optimizers.items()
        }

    def count_parameters(self) -> dict[str, int]:
        """Count the parameters of all modules, each once, and the trainable ones; lazy ones are
        left out."""
        every = {param for module in self.modules.values() for param in module.parameters()}
        params = [param for param in every if not is_lazy(param)]
        trainable = sum(param.numel() for param in params if param.requires_grad)
        return {"total": sum(param.numel() for param in params), "trainable": trainable}

    def without_schedules(self) -> Components:
        """Return the same components without schedules, for a fresh run."""
        own = copy(self)
        own.schedules = {}
        return own

    @property
    def only_optimizer(self) -> Optimizer | None:
        """The optimizer, where there is exactly one."""
        return next(iter(self.optimizers.values())) if len(self.optimizers) == 1 else None


def found_on(
    owner: object, kind: type[T] | tuple[type[T], ...], known: Mapping[str, T]
) -> dict[str, T]:
    """Return `known` and all other attributes of the owner of that class, by name."""
    result = dict(known)
    seen = {id(value) for value in known.values()}
    for name, value in vars(owner).items():
        if isinstance(value, kind) and id(value) not in seen:
            result[name] = value
            seen.add(id(value))
    return result


def replaced_in(
    owner: object,
    known: Mapping[str, T],
    entries: Mapping[str, Any],
    kind: type[T] | tuple[type[T], ...],
) -> dict[str, T]:
    """Return the objects that have replaced those in `known`, as attributes or entries of the same
    names."""
    return {
        name: value
        for name, old in known.items()
        for value in (entries.get(name), vars(owner).get(name))
        if isinstance(value, kind) and value is not old
    }


def is_trained(module: nn.Module) -> bool:
    return any(param.requires_grad for param in module.parameters())


def swap_parameters(optimizer: Optimizer, replaced: Mapping[int, nn.Parameter]) -> None:
    """Give an optimizer that was made before a model was sharded the sharded parameters."""
    if not replaced:
        return
    for group in optimizer.param_groups:
        group["params"] = [replaced.get(id(param), param) for param in group["params"]]


def params_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters of an optimizer, group by group."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def check_trainable(components: Components) -> None:
    """Refuse to train models or optimizers without a parameter that requires gradients."""
    modules = components.modules
    if not any(map(is_trained, modules.values())):
        raise ConfigurationError(
            "no-trainable-model",
            f"Nothing to train: none of the models ({', '.join(modules) or 'there is none'}) has "
            "a parameter with requires_grad=True. Unfreeze some, pass a model that has some, or "
            "use `evaluate`.",
        )
    optimizers = components.optimizers
    held = [param for optimizer in optimizers.values() for param in params_of(optimizer)]
    if held and not any(param.requires_grad for param in held):
        raise ConfigurationError(
            "all-parameters-frozen",
            f"Nothing to train: all {len(held)} parameters of the optimizers "
            f"({', '.join(optimizers)}) are frozen (requires_grad=False). Unfreeze some of them, "
            "or give the optimizer parameters that are not frozen.",
        )


def check_class(trainer: object, base: type) -> None:
    """Refuse hooks of a subclass that would never be called, and methods of other frameworks."""
    check_hooks(trainer, TrainerHooks, allow_other=True)
    if type(trainer) is not base:
        from .._overrides import check_subclass

        check_subclass(trainer, base)


def check_settings(accumulate: int, clip_norm: float | None, clip_value: float | None) -> None:
    """Refuse numbers that cannot be meant."""
    check_number("accumulate", accumulate, least=1, of="batches per update")
    check_clipping("clip_norm", clip_norm)
    check_clipping("clip_value", clip_value)


def check_clipping(name: str, value: Any) -> None:
    """Refuse a clipping limit that is not a positive number."""
    if value is not None and value != inf:
        check_number(name, value, above=0, is_whole=False, otherwise="None for no clipping")


def check_optimizers(components: Components, *, accumulates: bool) -> None:
    """Refuse optimizers that would train the wrong thing, or the wrong way.

    Learning rates that are negative or not finite, and options that are NaN, some of which torch
    accepts; parameters of none of the models; and, with accumulation, a parameter of two
    optimizers, since its `grad` holds one sum only.
    """
    names = {
        param: f"{model}.{name}"
        for model, module in components.modules.items()
        for name, param in module.named_parameters()
    }
    owners: dict[nn.Parameter, str] = {}
    for name, optimizer in components.optimizers.items():
        for group in optimizer.param_groups:
            _check_options(name, group)
        params = params_of(optimizer)
        strangers = [param for param in params if param not in names]
        if strangers:
            raise ConfigurationError(
                "foreign-parameters",
                f"Optimizer {name!r} holds {len(strangers)} of {len(params)} parameters that "
                f"belong to none of the models ({', '.join(components.modules)}): build it from "
                "the parameters of the model that the trainer has, or pass it as a factory such as "
                "`partial(torch.optim.Adam, lr=1e-3)`. After `trainer.model = ...` assign an "
                f"optimizer of the new model too: `trainer.{name} = ...`.",
            )
        for param in params if accumulates else ():
            other = owners.setdefault(param, name)
            if other != name:
                raise ConfigurationError(
                    "shared-parameter",
                    f"The parameter {names[param]!r} belongs to two optimizers, {other!r} and "
                    f"{name!r}. With gradient accumulation, gradients of one loss would be added "
                    "to those of the other. Give the parameter to only one of them, or do not "
                    "accumulate.",
                )


def _check_options(name: str, group: Mapping[str, Any]) -> None:
    for key, value in group.items():
        is_nan = isinstance(value, float) and isnan(value)
        # None is the rate of an optimizer that chooses its own, as Adafactor of transformers
        if is_nan or (key == "lr" and not 0 <= float(value or 0.0) < inf):
            raise ConfigurationError(
                "optimizer-option",
                f"Optimizer {name!r} has {key}={float(value)}: use a finite number; a learning "
                "rate is 0 or more.",
            )


def check_reached(params: Sequence[nn.Parameter], name: str) -> None:
    """Refuse the first step of an optimizer if none of its parameters has a gradient."""
    if any(p.requires_grad for p in params) and all(p.grad is None for p in params):
        raise ConfigurationError(
            "no-gradient",
            f"Optimizer {name!r} cannot be updated: none of its {len(params)} parameters has a "
            "gradient, because the loss does not depend on them. Is this the loss of another "
            "optimizer, was something detached, or does the forward pass use another model?",
        )


def check_default_model(trainer: object, models: Mapping[str, nn.Module]) -> None:
    """Refuse the default step without a model named `model`."""
    if not hasattr(trainer, "model"):
        raise ConfigurationError(
            "no-model",
            "The default `train_step` and `eval_step` use `self.model`, and the trainer's models "
            f"are: {', '.join(models) or 'none'}. Pass `model=`, assign it in `configure_models`, "
            "or override the steps or `forward`.",
        )


def check_default_optimizers(
    model: nn.Module, loss_fn: Any, optimizers: Mapping[str, Optimizer]
) -> None:
    """Refuse optimizers that the loss of the default step cannot train, since it is computed by
    other models."""
    reached = set(model.parameters())
    if isinstance(loss_fn, nn.Module):
        reached.update(loss_fn.parameters())
    for name, optimizer in optimizers.items():
        if reached.isdisjoint(params_of(optimizer)):
            raise ConfigurationError(
                "optimizer-not-reached",
                "The default `train_step` updates all optimizers with the loss of `self.model`, "
                f"but optimizer {name!r} holds none of its parameters. Override `train_step` and "
                f"pass the optimizer for each loss (`self.update(loss, {name!r})`; for a shared "
                f"loss `self.update(loss, {list(optimizers)})`). Or override `forward` if the "
                "loss depends on the other models too.",
            )


def check_reduction(loss_fn: Any, accumulate: int, num_processes: int) -> None:
    """Refuse a loss with reduction "sum" if losses of several parts of a batch are averaged."""
    is_sum = isinstance(loss_fn, nn.Module) and getattr(loss_fn, "reduction", None) == "sum"
    if is_sum and (accumulate > 1 or num_processes > 1):
        raise ConfigurationError(
            "summed-loss",
            f'{type(loss_fn).__name__}(reduction="sum") with accumulate={accumulate} and '
            f"{num_processes} processes: the losses of the parts of a batch are averaged, so the "
            'result would not be the loss of the whole batch. Use reduction="mean", or override '
            "`compute_loss` and return (sum, count).",
        )


def check_label(name: Any, tags: Any, config: Any) -> RunFacts:
    """Return what the user says of a run to find it by, in the form of the manifest, without what
    is not given."""
    label: RunFacts = {}
    if name is not None:
        label["name"] = str(name)
    if tags:
        label["tags"] = [tags] if isinstance(tags, str) else [str(tag) for tag in tags]
    if config is not None:
        if not isinstance(config, Mapping):
            raise ConfigurationError(
                "run-config",
                f"config is of type {type(config).__name__}: pass a dict with the values to "
                "record, such as `config=vars(args)` or `config=dataclasses.asdict(settings)`.",
            )
        label["config"] = as_json(config)
    return label

"""The modules, optimizers and schedules of a trainer: found on the trainer, and checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from math import inf, isnan
from pathlib import Path
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
        return trainable_parameters(self.modules.values())

    def parameter_orders(self) -> dict[str, list[int]]:
        """Return the places of each optimizer's parameters among those of all models, -1 where they
        are of none."""
        params = [param for module in self.modules.values() for param in module.parameters()]
        places = {id(param): place for place, param in enumerate(params)}
        return {
            name: [
                places.get(id(param), -1)
                for group in optimizer.param_groups
                for param in group["params"]
            ]
            for name, optimizer in self.optimizers.items()
        }

    def count_parameters(self) -> dict[str, int]:
        """Count the parameters of all modules, each once, and the trainable ones; lazy ones are
        left out."""
        params = {
            id(p): p
            for module in self.modules.values()
            for p in module.parameters()
            if not is_lazy(p)
        }
        trainable = sum(p.numel() for p in params.values() if p.requires_grad)
        return {"total": sum(p.numel() for p in params.values()), "trainable": trainable}

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


def check_trainable(modules: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer]) -> None:
    """Refuse to train models or optimizers without a parameter that requires gradients."""
    if not any(p.requires_grad for module in modules.values() for p in module.parameters()):
        raise ConfigurationError(
            "no-trainable-model",
            f"Nothing to train: none of the models ({', '.join(modules) or 'there is none'}) has "
            "a parameter with requires_grad=True. Unfreeze some, pass a model that has some, or "
            "use `evaluate`.",
        )
    held = [
        p
        for optimizer in optimizers.values()
        for group in optimizer.param_groups
        for p in group["params"]
    ]
    if held and not any(p.requires_grad for p in held):
        raise ConfigurationError(
            "all-parameters-frozen",
            f"Nothing to train: all {len(held)} parameters of the optimizers "
            f"({', '.join(optimizers)}) are frozen (requires_grad=False). Unfreeze some of them, "
            "or give the optimizer parameters that are not frozen.",
        )


def check_accumulation(number: Any, name: str = "accumulate") -> None:
    check_number(name, number, least=1, of="batches per update")


def check_class(trainer: object, base: type) -> None:
    """Refuse hooks of a subclass that would never be called, and methods of other frameworks."""
    check_hooks(trainer, TrainerHooks, allow_other=True)
    if type(trainer) is not base:
        from .._overrides import check_subclass

        check_subclass(trainer, base)


def check_settings(accumulate: int, clip_norm: float | None, clip_value: float | None) -> None:
    """Refuse numbers that cannot be meant."""
    check_accumulation(accumulate)
    check_clipping("clip_norm", clip_norm)
    check_clipping("clip_value", clip_value)


def check_clipping(name: str, value: Any) -> None:
    """Refuse a clipping limit that is not a positive number."""
    if value is not None and value != inf:
        check_number(name, value, above=0, is_whole=False, otherwise="None for no clipping")


def check_options(optimizers: Mapping[str, Optimizer]) -> None:
    """Refuse learning rates that are negative or not finite, and options that are NaN; torch
    accepts some of them."""
    for name, optimizer in optimizers.items():
        for group in optimizer.param_groups:
            wrong = [
                key for key, value in group.items() if isinstance(value, float) and isnan(value)
            ]
            rate = float(group.get("lr") or 0.0)
            if wrong or not 0 <= rate < inf:
                key = wrong[0] if wrong else "lr"
                raise ConfigurationError(
                    "optimizer-option",
                    f"Optimizer {name!r} has {key}={float(group[key])}: use a finite number"
                    f"{', 0 or more' if key == 'lr' else ''}.",
                )


def check_shared(modules: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer]) -> None:
    """Refuse a parameter of two optimizers with accumulation: its `grad` holds one sum only."""
    named = [
        (p, f"{name}.{key}")
        for name, module in modules.items()
        for key, p in module.named_parameters()
    ]
    names = {id(p): name for p, name in reversed(named)}
    owners: dict[int, str] = {}
    for name, optimizer in optimizers.items():
        for param in {
            id(p): p for group in optimizer.param_groups for p in group["params"]
        }.values():
            other = owners.setdefault(id(param), name)
            if other != name:
                raise ConfigurationError(
                    "shared-parameter",
                    f"The parameter {names.get(id(param))!r} belongs to two optimizers, {other!r} "
                    f"and {name!r}. With gradient accumulation, gradients of one loss would be "
                    "added to those of the other. Give the parameter to only one of them, or do "
                    "not accumulate.",
                )


def check_owners(modules: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer]) -> None:
    """Refuse an optimizer whose parameters belong to none of the models."""
    owned = {id(p) for module in modules.values() for p in module.parameters()}
    for name, optimizer in optimizers.items():
        params = [p for group in optimizer.param_groups for p in group["params"]]
        strangers = sum(id(p) not in owned for p in params)
        if strangers:
            raise ConfigurationError(
                "foreign-parameters",
                f"Optimizer {name!r} holds {strangers} of {len(params)} parameters that belong to "
                f"none of the models ({', '.join(modules)}): build it from the parameters of the "
                "model that the trainer has, or pass it as a factory such as "
                "`partial(torch.optim.Adam, lr=1e-3)`. After `trainer.model = ...` assign an "
                f"optimizer of the new model too: `trainer.{name} = ...`.",
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
    if hasattr(trainer, "model"):
        return
    if not models:
        raise ConfigurationError(
            "no-model", "Trainer has no model: pass `model=` or override `configure_models`."
        )
    raise ConfigurationError(
        "no-default-model",
        "The default `train_step` and `eval_step` use `self.model`, but the models are "
        f"{', '.join(models)}: override `train_step` and `eval_step`, or `forward`.",
    )


def check_default_optimizers(
    model: nn.Module, loss_fn: Any, optimizers: Mapping[str, Optimizer]
) -> None:
    """Refuse optimizers that the loss of the default step cannot train, since it is computed by
    other models."""
    used = [model, *([loss_fn] if isinstance(loss_fn, nn.Module) else [])]
    reached = {id(p) for module in used for p in module.parameters()}
    for name, optimizer in optimizers.items():
        if not any(id(p) in reached for group in optimizer.param_groups for p in group["params"]):
            raise ConfigurationError(
                "optimizer-not-reached",
                "The default `train_step` updates all optimizers with the loss of `self.model`, "
                f"but optimizer {name!r} holds none of its parameters. Override `train_step` and "
                f"pass the optimizer for each loss (`self.update(loss, {name!r})`; for a shared "
                f"loss `self.update(loss, {list(optimizers)})`). Or override `forward` if the "
                "loss depends on the other models too.",
            )


def checked_directory(run_dir: str | Path | None) -> Path | None:
    """Return the run directory, if there is one, as a path; refuse a URL."""
    from ..checkpoint.manifest import local_path

    return None if run_dir is None else local_path(run_dir, "run_dir")


def trainable_parameters(modules: Iterable[nn.Module]) -> Iterator[nn.Parameter]:
    """Yield the parameters of modules that require gradients, each once."""
    seen: set[int] = set()
    for module in modules:
        for param in module.parameters():
            if param.requires_grad and id(param) not in seen:
                seen.add(id(param))
                yield param


def check_reduction(loss_fn: Any, accumulate: int, num_processes: int) -> None:
    """Refuse a loss with reduction "sum" if losses of several parts of a batch are averaged."""
    if isinstance(loss_fn, nn.Module) and getattr(loss_fn, "reduction", None) == "sum":
        parts = f"accumulate={accumulate}" if accumulate > 1 else f"{num_processes} processes"
        if accumulate > 1 or num_processes > 1:
            raise ConfigurationError(
                "summed-loss",
                f'{type(loss_fn).__name__}(reduction="sum") with {parts}: the losses of the parts of a batch are '
                'averaged, so the result would not be the loss of the whole batch. Use reduction="mean", or override '
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

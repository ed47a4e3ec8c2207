"""The updates of all optimizers of a trainer, for a loss of one optimizer or of several together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._torch_compat import supports_found_inf
from .._torch_compat.fast_paths import OptimizerStep
from ..errors import ConfigurationError
from .update import OptimizerUpdate, Window, add_missing_momentum

HYPERPARAMETERS = ("lr", "weight_decay", "momentum", "betas")
OneOptimizer = Optimizer | str  # itself, or its name
OptimizerChoice = OneOptimizer | Iterable[OneOptimizer] | None


def listed(optimizer: OptimizerChoice) -> list[Any]:
    """Return the optimizers of a choice as a list."""
    is_several = isinstance(optimizer, Iterable) and not isinstance(optimizer, str)
    return list(cast("Iterable[OneOptimizer]", optimizer)) if is_several else [optimizer]


class JointUpdate(OptimizerUpdate):
    """One update of several optimizers for one loss: one backward pass, to the parameters of all of
    them.

    Loss scaling, the guard and clipping see the gradients as one: one scale, which is the first
    optimizer's, one total norm, and if a value is not finite none of the optimizers is stepped.
    Counts, schedulers, events and what is saved belong to the single optimizers.
    """

    def __init__(self, members: Sequence[OptimizerUpdate]) -> None:
        first = members[0]
        self.members = members
        self._several = _SeveralOptimizers([member.optimizer for member in members])
        super().__init__(
            ", ".join(member.name for member in members),
            cast(Optimizer, self._several),
            scaler=first.scaler,
            guard=first.guard,
            reads_are_free=first._reads_are_free,
            peers=first.peers,
        )
        self.epoch = first.epoch

    @property
    def title(self) -> str:
        return f"the optimizers {', '.join(repr(member.name) for member in self.members)}"

    @property
    def subject(self) -> str:
        return f"T{self.title[1:]} were together"

    def refresh(self, trainable: Iterable[nn.Parameter]) -> None:
        """Read the parameters of all optimizers again, in the order of the models.

        It is the order of `model.parameters()`, so that the total norm is the hand-written loop's
        to the last bit.
        """
        held = {id(p): p for member in self.members for p in member.params}
        if (num_shared := sum(len(member.params) for member in self.members) - len(held)) > 0:
            raise ConfigurationError(
                "shared-parameters",
                f"update(loss) is called for {self.title}, but {num_shared} of their {len(held)} "
                "parameters belong to more than one of them and would be updated twice. Give "
                "each parameter to only one optimizer; a factory receives all parameters and can "
                "choose: `lambda params: Muon([p for p in params if p.ndim == 2])`.",
            )
        trained = {id(p): p for p in trainable}
        self.holds_all = trained.keys() <= held.keys()
        self.params = list(({key: p for key, p in trained.items() if key in held} | held).values())
        self._several.param_groups = [{"params": self.params}]
        self.held = [entry for member in self.members for entry in member.held]

    def backward(
        self, loss: Tensor, window: Window, count: Any = None, retain_graph: bool | None = None
    ) -> None:
        first = self.members[0]
        self.guard = first.guard
        self.scaler = first.scaler
        self.clip_norm = first.clip_norm
        self.clip_value = first.clip_value
        for member in self.members:
            member.calls += 1
        super().backward(loss, window, count, retain_graph)

    def start_step(self) -> None:
        for member in self.members:
            member.is_joined = True
            member.start_step()
            member.is_joined = False

    def step(self) -> None:
        for member in self.members:
            member.is_stepping = True
            if member._is_fused_sgd and len(member.optimizer.state) < len(member.params):
                add_missing_momentum(member.optimizer)
        super().step()
        for member in self.members:
            member.is_stepping = False
            member.num_updates += 1

    def schedule(self) -> None:
        for member in self.members:
            member.schedule()


class _SeveralOptimizers:
    """Several optimizers as `GradScaler` and an update see one: its parameters, and a step."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.param_groups: list[dict[str, Any]] = []
        self._optimizers = [(optimizer, OptimizerStep(optimizer)) for optimizer in optimizers]
        self._step_supports_amp_scaling = all(supports_found_inf(o) for o in optimizers)

    def step(self) -> None:
        given = {
            name: value for name, value in vars(self).items() if name in ("grad_scale", "found_inf")
        }
        for optimizer, take_step in self._optimizers:
            # a fused optimizer reads them to skip a step on the device
            vars(optimizer).update(given)
            take_step()
            for name in given:
                delattr(optimizer, name)


class Updates:
    """The updates of all optimizers, by name, and the accumulation window that all of them are in.

    Args:
        updates: one for each optimizer, under its name.
        window: the current step within its accumulation window.
        no_autocast: switches autocast off for backward passes and steps.
    """

    def __init__(
        self,
        updates: Mapping[str, OptimizerUpdate],
        window: Window,
        no_autocast: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.by_name = dict(updates)
        self.window = window
        self.calls = 0
        self.holds_all = False  # whether every trainable parameter has an optimizer
        # called with each joint update, when it is made
        self.on_joint: list[Callable[[OptimizerUpdate], None]] = []
        self._joint: dict[tuple[str, ...], JointUpdate] = {}
        self._trainable: list[nn.Parameter] = []
        self._modules: list[nn.Module] = []
        self._no_autocast = no_autocast
        self._find_only()

    def _find_only(self) -> None:
        self._only = next(iter(self.by_name.values())) if len(self.by_name) == 1 else None
        # the argument of `update` for a loss of all optimizers; None for a single one
        self.all_names = tuple(self.by_name) if len(self.by_name) > 1 else None

    def every(self) -> list[OptimizerUpdate]:
        """The update of each optimizer, and the joint updates made so far."""
        return [*self.by_name.values(), *self._joint.values()]

    def update(
        self,
        loss: Tensor,
        optimizer: OptimizerChoice = None,
        *,
        count: Any = None,
        retain_graph: bool | None = None,
    ) -> None:
        """Run the backward pass of a loss and, in the window's last step, the rest of the update.

        Args:
            loss: the mean over the batch, or with `count` a sum.
            optimizer: the optimizer, its name, or several of them, which are updated together.
            count: the number of items that `loss` is a sum over.
            retain_graph: as in `torch.Tensor.backward`.
        """
        update = self._only if optimizer is None else self.find(optimizer)
        if update is None:
            raise self._unclear()
        self.calls += 1
        update.calls += 1
        # as `follow_groups`, without a call in each step
        for (
            owner,
            name,
            value,
            length,
        ) in update.held:
            if owner[name] is not value or len(value) != length:
                self.refresh(self._modules)
                break
        if self._no_autocast is None:
            self.run_phases(update, loss, count, retain_graph)
            return
        with self._no_autocast:  # also around the step: some optimizers multiply matrices
            self.run_phases(update, loss, count, retain_graph)
        if self.window.is_last:
            torch.clear_autocast_cache()  # it holds weights as they were before the step

    def run_phases(
        self, update: OptimizerUpdate, loss: Tensor, count: Any, retain_graph: bool | None
    ) -> None:
        """Run the backward pass and, in the window's last step, the phases after it.

        `OwnSteps` replaces it where a program has plain steps besides.
        """
        window = self.window
        update.backward(loss, window, count, retain_graph)
        if window.is_last:
            update.finish()
            window.has_stepped = True

    def _unclear(self) -> ConfigurationError:
        if not self.by_name:
            return ConfigurationError(
                "update-outside-training",
                "update(loss) was called outside of training: call it in `train_step`.",
            )
        names = list(self.by_name)
        return ConfigurationError(
            "which-optimizer",
            f"update(loss) is ambiguous: there are the optimizers {', '.join(names)}. Name one: "
            f"update(loss, {names[0]!r}); for a loss that several optimizers share: update(loss, "
            f"{names}).",
        )

    def replace(self, update: OptimizerUpdate) -> None:
        """Replace the update of that name."""
        self.by_name[update.name] = update
        for joint in self._joint.values():
            joint.reset()
        self._joint.clear()
        self._find_only()

    def find(self, optimizer: OneOptimizer | Iterable[OneOptimizer]) -> OptimizerUpdate:
        """The update of an optimizer, given itself or by name; of several, their joint update."""
        if not isinstance(optimizer, Iterable) or isinstance(optimizer, str):
            return self._find_one(optimizer)
        members = [self._find_one(one) for one in optimizer]
        if isinstance(optimizer, set | frozenset):  # whose order is another in each process
            members.sort(key=list(self.by_name.values()).index)
        if len(members) == 1:
            return members[0]
        names = tuple([member.name for member in members])
        if names not in self._joint:
            joint = JointUpdate(members)
            joint.refresh(self._trainable)
            self._joint[names] = joint
            for function in self.on_joint:
                function(joint)
        return self._joint[names]

    def _find_one(self, optimizer: OneOptimizer) -> OptimizerUpdate:
        if isinstance(optimizer, str) and optimizer in self.by_name:
            return self.by_name[optimizer]
        for update in self.by_name.values():
            if update.optimizer is optimizer:
                return update
        raise ConfigurationError(
            "unknown-optimizer",
            f"{optimizer!r} is not one of this trainer's optimizers ({', '.join(self.by_name)}): "
            "assign it to self in configure_optimizers, or pass it to the constructor.",
        )

    def refresh(self, modules: Iterable[nn.Module]) -> None:
        """Read again which parameters require gradients; call it after freezing or unfreezing."""
        self._modules = list(modules)
        self._trainable = [
            p for module in self._modules for p in module.parameters() if p.requires_grad
        ]
        for update in self.every():
            update.refresh(self._trainable)
        own = {id(param) for update in self.by_name.values() for param in update.params}
        self.holds_all = all(id(param) in own for param in self._trainable)

    def follow_groups(self, update: OptimizerUpdate) -> None:
        """Read parameters again where a callback has added or removed some, or a group of them, in
        mid-epoch."""
        if any(
            owner[name] is not value or len(value) != length
            for owner, name, value, length in update.held
        ):
            self.refresh(self._modules)

    def start_epoch(self) -> None:
        """Count stepped and skipped updates from here."""
        for update in self.by_name.values():
            update.epoch.stepped = 0
            update.epoch.skipped = 0

    @property
    def num_skipped(self) -> int:
        """The updates of this epoch so far that were skipped."""
        return sum(update.epoch.skipped for update in self.by_name.values())

    def check(self) -> None:
        """Make the guard act on the flags that the device set since the last log point."""
        for update in self.every():
            update.check()

    def reset(self) -> None:
        """Discard an incomplete window."""
        for update in self.every():
            update.reset()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, update in self.by_name.items():
            if name in state:
                update.load_state_dict(state[name])

    def settings(self, modules: Mapping[str, nn.Module]) -> dict[str, object]:
        """The hyperparameters of all optimizers, and which of their parameters are trained."""
        names = {
            id(param): f"{of}.{name}"
            for of, module in modules.items()
            for name, param in module.named_parameters()
        }
        found: dict[str, object] = {}
        for update in self.by_name.values():
            for at, group in enumerate(update.optimizer.param_groups):
                where = f"{update.title}, group {at}" if at else update.title
                for name in HYPERPARAMETERS:
                    value = group.get(name)
                    value = value.tolist() if isinstance(value, Tensor) else value
                    found[f"`{name}` of {where}"] = value
            for at, param in enumerate(update.params):
                name = names.get(id(param), f"parameter {at} of {update.title}")
                found[f"`requires_grad` of {name}"] = param.requires_grad
        return found

"""Settings that must be the same on all processes while they train: learning rates and the like,
and frozen layers.

They are compared when an epoch begins and at log points, in the collective that sums the metrics
there. A checkpoint is a log point, so none has weights that differ between processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from torch import Tensor

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from ..metrics.progress import Progress
    from ..runtime import Runtime
    from .components import Components
    from .updates import Updates

HYPERPARAMETERS = ("lr", "weight_decay", "momentum", "betas")
# begins the name in a table of metrics that has a digest; those of metrics begin with a number
KEY = "settings "
Table = Mapping[str, tuple[float, float]]


def sum_and_compare(
    table: Table, runtime: Runtime, updates: Updates, components: Components, progress: Progress
) -> dict[str, tuple[float, float]]:
    """Sum a table of metrics over all processes; raise on all of them if their settings differ."""
    total = runtime.sum_table(
        {**table, f"{KEY}{crc32(repr(list(_values(updates))).encode())}": (1.0, 1.0)}
    )
    digests = [name for name in total if name.startswith(KEY)]
    for name in digests:
        del total[name]
    if len(digests) > 1:
        raise _difference(runtime.gather_objects(_named(updates, components)), progress.update)
    return total


def _values(updates: Updates) -> Iterator[object]:
    """Yield the settings of each optimizer, without names."""
    for update in updates.by_name.values():
        for group in update.optimizer.param_groups:
            yield [_number(group[name]) for name in HYPERPARAMETERS if name in group]
        yield bytes([param.requires_grad for param in update.params])


def _named(updates: Updates, components: Components) -> dict[str, object]:
    names = {
        id(p): f"{of}.{name}"
        for of, m in components.modules.items()
        for name, p in m.named_parameters()
    }
    found: dict[str, object] = {}
    for update in updates.by_name.values():
        for at, group in enumerate(update.optimizer.param_groups):
            where = f"of {update.title}" + f", group {at}" * (
                len(update.optimizer.param_groups) > 1
            )
            found |= {
                f"`{name}` {where}": _number(group[name])
                for name in HYPERPARAMETERS
                if name in group
            }
        for at, param in enumerate(update.params):
            name = names.get(id(param), f"parameter {at} of {update.title}")
            found[f"`requires_grad` of {name}"] = param.requires_grad
    return found


def _number(value: object) -> object:
    return value.tolist() if isinstance(value, Tensor) else value


def _difference(every: Sequence[Mapping[str, object]], number: int) -> ConfigurationError:
    names = dict.fromkeys(name for named in every for name in named)
    texts = [
        f"{name} is "
        f"{', '.join(f'{named.get(name)} on rank {rank}' for rank, named in enumerate(every[:4]))}"
        for name in names
        if any(named.get(name) != every[0].get(name) for named in every)
    ]
    shown = "; ".join([*texts[:3], *([f"and {len(texts) - 3} more"] if len(texts) > 3 else [])])
    return ConfigurationError(
        f"The processes train with different settings, so their weights would differ: {shown} "
        f"(after update {number}). Change settings on every process in the same way: not under a "
        "condition on the rank, nor on a loss or metric of one process."
    )

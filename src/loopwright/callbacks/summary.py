"""A model as a table: its parts, and how many of their parameters are trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import nn
from torch.nn.parameter import is_lazy

from ..errors import ConfigurationError
from ..hooks import Callback

if TYPE_CHECKING:
    from ..trainer import Trainer

Row = tuple[str, str, str, str]
HEADER: Row = ("module", "type", "parameters", "trainable")


class ModelSummary(Callback):
    """Prints a table of every model when training starts, its modules down to `max_depth`."""

    def __init__(self, max_depth: int = 1) -> None:
        _check_depth(max_depth)
        self.max_depth = max_depth

    def on_train_start(self, trainer: Trainer) -> None:
        for name, model in trainer.models.items():
            trainer.say(summarize(model, self.max_depth, name=name))


def summarize(model: nn.Module, max_depth: int = 1, *, name: str = "model") -> str:
    """A table of the modules down to a depth (0 is the model alone) with their numbers of parameters.

    A parameter that several modules share counts once in whatever contains them all. A `+` marks modules with
    parameters whose size is known only after the first batch.
    """
    _check_depth(max_depth)
    rows = [HEADER, *_rows(model, name, max_depth)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [_line(row, widths) for row in rows]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def _rows(module: nn.Module, name: str, max_depth: int, depth: int = 0) -> Iterator[Row]:
    total, trainable = count_parameters(module)
    more = "+" if any(is_lazy(param) for param in module.parameters()) else ""
    yield f"{'  ' * depth}{name}", type(module).__name__, f"{total:,}{more}", f"{trainable:,}{more}"
    if depth < max_depth:
        for child_name, child in module.named_children():
            yield from _rows(child, child_name, max_depth, depth + 1)


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """How many numbers a module's parameters have, each counted once: all of them, and those that are trained."""
    params = [param for param in module.parameters() if not is_lazy(param)]
    return sum(p.numel() for p in params), sum(p.numel() for p in params if p.requires_grad)


def _line(row: Row, widths: list[int]) -> str:
    name, kind, total, trainable = row
    cells = (name.ljust(widths[0]), kind.ljust(widths[1]), total.rjust(widths[2]), trainable.rjust(widths[3]))
    return "  ".join(cells)


def _check_depth(max_depth: int) -> None:
    if not isinstance(max_depth, int) or max_depth < 0:
        raise ConfigurationError(f"max_depth={max_depth!r}: use 0 for the model alone, 1 for its parts, and so on.")

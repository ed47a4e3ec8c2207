"""What an update needs besides its optimizer: its accumulation window, the other ranks, and the
non-finite guard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor, nn


class Guard(Protocol):
    """Decides what a loss, gradient or learning rate that is not finite means; may raise."""

    @property
    def is_final(self) -> bool:
        """Whether no update may follow a refused one."""
        ...

    @property
    def is_immediate(self) -> bool:
        """Whether values must be checked at once, even if that waits for the device."""
        ...

    def refuse(self, what: str) -> None:
        """Handle a value that is not finite, before the optimizer step that would have used it."""

    def name_of(self, param: nn.Parameter) -> str:
        """Return the name of a parameter for a message."""
        ...


class Peers(Protocol):
    """The part of the runtime that an update needs: collectives of the data-parallel group, and
    clipping."""

    num_shares: int  # the number of processes that work on different samples

    def prepare_backward(
        self,
        loss: Tensor,
        params: Sequence[nn.Parameter],
        inputs: Sequence[Tensor] | None,
        *,
        is_last: bool,
        flag: Tensor | float | None = None,
        overlaps: bool = True,
    ) -> Sequence[Tensor] | None:
        """Prepare a backward pass; return `inputs` as tensors of the graph. `sync_gradients`
        reduces `flag`.

        `overlaps` says that `sync_gradients` follows for the same parameters, so that averaging may
        begin in the pass.
        """

    def finish_backward(self, *, is_complete: bool) -> None:
        """End a backward pass; not `is_complete` after an exception."""

    def sync_gradients(
        self, params: Sequence[nn.Parameter], flag: Tensor | float | None = None
    ) -> Tensor | float | None:
        """Average the gradients over all ranks, unless FSDP2 has done so; return the maximum of the
        ranks' flags."""

    def local_parts(self, grads: Sequence[Tensor]) -> list[Tensor]:
        """Return this rank's parts of gradients, which may be sharded."""
        ...

    def share_flag(self, flag: Tensor) -> Tensor:
        """Return the largest flag of the ranks, where they have different gradients."""
        ...

    def gradient_order(self, params: Sequence[nn.Parameter]) -> list[int] | None:
        """Return positions of the parameters in the order in which gradients are averaged; None
        where there is none."""

    def set_gradient_order(self, params: Sequence[nn.Parameter], order: Sequence[int]) -> None:
        """Average in the order of a saved run."""

    def divide(self, grads: Sequence[Tensor], divisor: Tensor) -> None:
        """Divide gradients, which may be sharded."""

    def clip_norm(self, params: Sequence[nn.Parameter], max_norm: float) -> Tensor:
        """Clip the gradients by their total norm, and return it."""
        ...

    def sum_count(self, count: Any) -> Any:
        """Return the sum of the counts of all processes."""


@dataclass(slots=True)
class Window:
    """The current step within its accumulation window."""

    divisor: float = 1.0  # of this step's loss
    is_last: bool = True  # whether the optimizer is stepped after this step
    size: int = 0  # samples of this step
    # whether gradients of the last step are averaged as they are, so that this may begin early
    overlaps: bool = True
    has_stepped: bool = False  # whether an optimizer has been stepped with the window's gradients
    stage: Literal["", "step", "update"] = (
        ""  # what is under way: a step, or the rest of its update, or neither
    )
    total: int | None = None  # samples of an evaluation step on all processes, where they share it

    def share_of(self, loss: Tensor) -> Tensor:
        """The share of the window's loss that a step's mean loss is."""
        return loss if self.divisor == 1.0 else loss / self.divisor

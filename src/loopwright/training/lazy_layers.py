"""Models with layers whose sizes are not known before the first batch (`LazyLinear`,
`LazyBatchNorm1d`)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..data.containers import map_tensors
from ..errors import ConfigurationError
from .required_metrics import peek

if TYPE_CHECKING:
    from ..training.run import TrainingRun


def uninitialized(modules: Mapping[str, nn.Module]) -> list[str]:
    """Names of the parameters and buffers that have no size yet."""
    tensors = chain.from_iterable(
        chain(module.named_parameters(name), module.named_buffers(name))
        for name, module in modules.items()
    )
    return [name for name, tensor in tensors if is_lazy(tensor)]


def refuse(names: list[str], reason: str) -> ConfigurationError:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ConfigurationError(
        f"{', '.join(names[:3])}{more} have no size before the first batch (as LazyLinear layers "
        f"do), but {reason}. Call the model once before training, as in `model(torch.zeros(2, "
        "10))`, or give its layers their sizes."
    )


def materialise(run: TrainingRun) -> None:
    """Give every lazy layer its size before the first step, with a batch that is trained on later.

    Callbacks, and a checkpoint before the first step, need all parameters. A resumed run has them
    already.
    """
    if not (names := uninitialized(run.components.modules)):
        return
    batches = peek(run)
    if not batches:
        raise refuse(names, "a batch of the training data cannot be read without consuming it")
    try:
        with run.program._eval_mode(), run.media.muted(), torch.no_grad(), run.runtime.autocast:
            run.window.size = batches[0].size
            own = map_tensors(Tensor.clone, batches[0].value)  # a step may write into it
            run.program.eval_step(run.program.prepare_batch(own))
    except Exception as error:
        raise refuse(
            names, f"`eval_step` failed on the first one ({type(error).__name__}: {error})"
        ) from error
    if names := uninitialized(run.components.modules):
        raise refuse(names, "`eval_step` does not use them")

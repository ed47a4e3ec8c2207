"""The default step for supervised training: batches of inputs and targets, one model, one loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor, nn

from .._torch_compat import watch_operators
from ..errors import ConfigurationError
from ..metrics.result import StepResult

if TYPE_CHECKING:
    from .program import Program

TARGET_NAMES = ("labels", "label", "targets", "target", "y")
ERRORS = (TypeError, RuntimeError, ValueError, IndexError)


def split_supervised(batch: Any, has_loss_fn: bool) -> tuple[Any, Any]:
    """Return (inputs, targets): a pair is used as it is, a longer tuple ends in the targets, a
    tensor has none.

    Of a mapping, the entry named like a target is one when there is a loss function to take it;
    without a loss function the model computes its loss itself and gets every entry.
    """
    if isinstance(batch, (list, tuple)):
        if len(batch) == 2:
            return batch[0], batch[1]
        return (batch[0], None) if len(batch) == 1 else (tuple(batch[:-1]), batch[-1])
    if isinstance(batch, Mapping) and has_loss_fn:
        for name in TARGET_NAMES:
            if name in batch:
                return {key: value for key, value in batch.items() if key != name}, batch[name]
    return batch, None


def measure_supervised(program: Program, batch: Any) -> StepResult:
    """Return the result of the default step for a batch, without training on it."""
    pair = program.split_batch(batch)
    inputs, targets = pair if type(pair) is tuple and len(pair) == 2 else checked_pair(pair)
    outputs = program.forward(inputs)
    loss = program.compute_loss(outputs, targets)
    return StepResult.of_loss(loss, program.run.window.size, outputs)


def checked_pair(returned: Any, method: str = "split_batch") -> tuple[Any, Any]:
    """The pair that an overridden method returned; anything else, also a tensor of two rows, is
    refused."""
    if isinstance(returned, (tuple, list)) and len(returned) == 2:
        return returned[0], returned[1]
    raise ConfigurationError(
        "not-a-pair",
        f"`{method}` returned {describe(returned)}; it must return two values: (inputs, "
        "targets), or (inputs, None) if there are no targets.",
    )


def call_model(
    model: nn.Module, inputs: Any, *, split: str = "split_batch", forward: str = "forward"
) -> Any:
    """Call the model with the inputs; an error says how it was called, and which methods decide
    that."""
    try:
        if isinstance(inputs, Tensor):
            return model(inputs)
        if isinstance(inputs, Mapping):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    except ERRORS as error:
        if "more than 1 value per channel" in str(error):
            error.add_note(
                "This batch has a single sample, and batch norm cannot compute statistics from "
                "one sample: use another `batch_size`, or a DataLoader with `drop_last=True`."
            )
        elif not isinstance(error, torch.OutOfMemoryError):
            names = (
                f" The entries of a dict are passed by their names: {', '.join(map(str, inputs))}. "
                f"Name them as in the model's `forward`; the target is the entry named "
                f"{', '.join(TARGET_NAMES[:-1])} or {TARGET_NAMES[-1]}."
                if isinstance(inputs, Mapping)
                else ""
            )
            error.add_note(
                f"The model was called with {describe(inputs)}. If that is not what it takes, "
                f"override `{split}` (which part of a batch is input) or `{forward}` (how the "
                f"model is called).{names}"
            )
        raise


def loss_of(
    outputs: Any,
    targets: Any,
    loss_fn: Callable[..., Any] | None,
    *,
    override: str = "compute_loss",
) -> Any:
    """The loss in the outputs, as Hugging Face models return it, or that of the loss function."""
    own = None if type(outputs) is Tensor else _own_loss(outputs)
    if own is not None:
        return own
    if loss_fn is None:
        raise ConfigurationError(
            "no-loss",
            f"There is no loss: `loss_fn` is None and the model's output ({describe(outputs)}) "
            "has no `.loss`. Pass `loss_fn=`, return the loss from the model, or override "
            f"`{override}`.",
        )
    try:
        is_plain = type(targets) is Tensor and type(outputs) is Tensor
        if is_plain and targets.dim() + outputs.dim() == 3:
            return call_loss(loss_fn, outputs, targets)
        return loss_fn(outputs) if targets is None else loss_fn(outputs, targets)
    except ConfigurationError:
        raise
    except ERRORS as error:
        if isinstance(error, TypeError) and _is_of_call(error):
            how = "(outputs), because the batches have no targets"
            raise ConfigurationError(
                "loss-arguments",
                f"The loss was called with {how if targets is None else '(outputs, targets)'}, but "
                f"it does not take these arguments: {error}. Pass data of inputs and targets, such "
                "as `(x, y)`, a function that takes these arguments, or override "
                f"`{override}`.",
            ) from error
        if not isinstance(error, torch.OutOfMemoryError):
            error.add_note(
                f"The loss was called with {describe(outputs)} as outputs and {describe(targets)} "
                "as targets."
            )
        raise


_CALLED: dict[int, ref[Any]] = {}  # loss functions whose operators `call_loss` has looked at


def _is_of_call(error: BaseException) -> bool:
    """Whether the call of a loss itself failed, and not a line in it."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code in (loss_of.__code__, call_loss.__code__):
        frame = frame.tb_next
    return frame is None


def call_loss(loss_fn: Callable[..., Any], outputs: Any, targets: Any) -> Any:
    """Call a loss, which must not combine outputs (n, 1) with targets (n,), or the reverse, to (n,
    n).

    Broadcasting does so in `(outputs - targets) ** 2`: every output is compared with every target.
    Operators of a loss function are looked at in its first call with such shapes.
    """
    is_column = (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and outputs.numel() == targets.numel() > 1
        and {outputs.dim(), targets.dim()} == {1, 2}
    )
    known = _CALLED.get(id(loss_fn))
    if not is_column or (known is not None and known() is loss_fn) or torch.compiler.is_compiling():
        return loss_fn(outputs, targets)
    size = outputs.numel()

    def look(arguments: tuple[Any, ...], result: Any) -> None:
        is_square = isinstance(result, Tensor) and result.shape == (size, size)
        if is_square and any(
            isinstance(value, Tensor) and value.shape == (size,) for value in arguments
        ):
            raise ConfigurationError(
                "broadcast-loss",
                f"The outputs have shape {tuple(outputs.shape)} and the targets "
                f"{tuple(targets.shape)}, and the loss combines them to ({size}, {size}): every "
                "output with every target. Give both the same shape: "
                f"{'`targets.unsqueeze(1)`' if targets.dim() == 1 else '`outputs.unsqueeze(1)`'} "
                "in the data or in the loss. If all pairs are meant, write so: `targets[None]`.",
            )

    with watch_operators(look):
        loss = loss_fn(outputs, targets)
    # some callables cannot be referred to weakly: these are looked at in every call
    with suppress(TypeError):
        key = id(loss_fn)
        _CALLED[key] = ref(loss_fn, lambda _: _CALLED.pop(key, None))
    return loss


def loss_text(loss_fn: Any, model: nn.Module | None, *, has_own_step: bool) -> str:
    """A sentence for the first line of a run about a step or loss that its user does not expect;
    mostly none.

    Args:
        loss_fn: The loss.
        model: The model whose outputs it gets.
        has_own_step: Whether the user wrote the step, which may call methods of the model.
    """
    for method in ("training_step", "train_step", "configure_optimizers"):
        if not has_own_step and callable(getattr(model, method, None)):
            return (
                f" {type(model).__name__}.{method} is not called, because it is a method of the "
                "model: move it into a subclass of Trainer."
            )
    while isinstance(model, nn.Sequential) and len(model):
        model = model[-1]
    applied_twice = ((nn.CrossEntropyLoss, nn.Softmax), (nn.BCEWithLogitsLoss, nn.Sigmoid))
    if (type(loss_fn), type(model)) in applied_twice:
        return (
            f" The model ends with {type(model).__name__}, and {type(loss_fn).__name__} applies "
            "one itself: remove it from the model."
        )
    return ""


def _own_loss(outputs: Any) -> Any:
    loss = getattr(outputs, "loss", None)
    if loss is None and isinstance(outputs, Mapping):
        loss = outputs.get("loss")
    return loss


def describe(value: Any) -> str:
    """Describe a nested value in short: types and shapes."""
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return (
            f"{'an' if dtype.startswith('int') else 'a'} {dtype} tensor of shape "
            f"{tuple(value.shape)}"
        )
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{key}: {describe(item)}" for key, item in list(value.items())[:8])
            + "}"
        )
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of ({', '.join(describe(item) for item in value[:8])})"
    return f"a {type(value).__name__}"


def stack_outputs(batches: list[Any]) -> Any:
    """Concatenate the outputs of all batches: tensors, and dicts or tuples of them; anything else
    stays a list.

    In a mapping, such as the output of a Hugging Face model, a number per batch (its loss) becomes
    a tensor of them.
    """
    if not batches:
        return batches
    first = batches[0]
    if _can_join(batches):
        return torch.cat(batches)
    if isinstance(first, Mapping):
        columns: dict[Any, Any] = {}
        for key in first:
            values = [batch[key] for batch in batches]
            if _can_join(values):
                columns[key] = torch.cat(values)
            elif all(isinstance(value, Tensor) and value.dim() == 0 for value in values):
                columns[key] = torch.stack(values)
        return columns if len(columns) == len(first) else batches
    if type(first) in (list, tuple) and all(map(_can_join, zip(*batches, strict=True))):
        return type(first)(torch.cat(parts) for parts in zip(*batches, strict=True))
    return batches


def _can_join(parts: Sequence[Any]) -> bool:
    """Whether these are tensors that differ in their first dimension at most, which is samples."""
    return all(
        isinstance(part, Tensor) and part.dim() > 0 and part.shape[1:] == parts[0].shape[1:]
        for part in parts
    )

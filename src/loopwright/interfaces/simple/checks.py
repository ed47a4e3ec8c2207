"""Errors for arguments and returned values that the simple interface cannot use, in the words of
its document."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from ...errors import ConfigurationError
from ...metrics.result import StepResult
from ...optim.build import check_given
from ...runtime.base import checked_device
from ...training.supervised import describe

TRAIN_ORDER = "The order is train(train_dataloader, num_epochs, eval_dataloader)"


def check_model(model: Any, verb: str = "pass") -> None:
    if isinstance(model, type):
        raise ConfigurationError(
            f"model is the class {model.__name__}: {verb} an instance, such as {made(model)}."
        )
    if not isinstance(model, nn.Module):
        raise ConfigurationError(f"model is a {type(model).__name__}: {verb} a torch.nn.Module.")


def check_loss(loss_fn: Any) -> None:
    check_given(None, None, loss_fn, run_dir=None, seed=None)
    if loss_fn is not None and not takes(loss_fn, 2) and not takes(loss_fn, 1):
        raise ConfigurationError(
            f"loss_fn ({_name(loss_fn)}) cannot be called as loss_fn(outputs, targets): set its "
            "other arguments with functools.partial, or override `_compute_loss`."
        )


def as_device(given: Any) -> torch.device | None:
    """The device, where it is one that is there; None for the best there is, which "auto" means as
    well."""
    return None if given is None or given == "auto" else checked_device(given)


def check_data(data: Any, name: str) -> None:
    """Refuse data that gives no batches: samples, or a single batch."""
    if isinstance(data, Dataset) or hasattr(type(data), "__getitems__"):
        raise ConfigurationError(
            f"{name} is a {type(data).__name__}, which returns samples, not batches: pass "
            "DataLoader(dataset, "
            f"batch_size=32{'' if name == 'eval_dataloader' else ', shuffle=True'})."
        )
    if isinstance(data, (Tensor, Mapping, str)) or not isinstance(data, Iterable):
        shown = describe(data) if isinstance(data, Tensor) else repr(data)
        raise ConfigurationError(
            f"{name} is {shown}: pass a DataLoader, such as DataLoader(TensorDataset(inputs, "
            f"targets), batch_size=32). {TRAIN_ORDER}."
        )


def check_epochs(num_epochs: Any) -> None:
    if type(num_epochs) is not int or num_epochs < 0:
        shown = (
            repr(num_epochs)
            if isinstance(num_epochs, (int, float, str))
            else f"a {type(num_epochs).__name__}"
        )
        raise ConfigurationError(
            f"num_epochs={shown}: use a whole number of epochs, 0 or more. {TRAIN_ORDER}."
        )


def check_callbacks(callbacks: Any) -> None:
    if callbacks is not None and (callable(callbacks) or isinstance(callbacks, (str, Mapping))):
        raise ConfigurationError(
            f"callbacks is {_name(callbacks)}, not a list: pass a list of functions of (trainer, "
            f"epoch, metrics), as in callbacks=[{_name(callbacks)}]."
        )


def as_pair(prepared: Any) -> tuple[Any, Any]:
    """What `_prepare_batch` returned, if it is inputs and targets; a tensor of two rows is not."""
    if isinstance(prepared, (tuple, list)) and len(prepared) == 2:
        return prepared[0], prepared[1]
    shown = "None" if prepared is None else describe(prepared)
    raise ConfigurationError(
        f"`_prepare_batch` returned {shown}; expected the pair (inputs, targets), such as `return "
        "inputs, targets`, or `return inputs, None` if there are no targets."
    )


def check_outputs(outputs: Any) -> None:
    if outputs is None:
        raise ConfigurationError(
            "The outputs are None: return them from the model's `forward`, or from "
            "`_forward_pass` if you override it."
        )


def check_loss_value(loss: Any, is_own: bool) -> None:
    """Refuse a value that is no loss, before its backward pass."""
    source = "`_compute_loss`" if is_own else "loss_fn"
    if loss is None:
        raise ConfigurationError(
            f"{source} returned None: return the loss, a tensor of one number."
        )
    if isinstance(loss, Tensor) and loss.numel() != 1:
        raise ConfigurationError(
            f"{source} returned a loss of shape {tuple(loss.shape)}: reduce it to one number, "
            "such as loss.mean() (torch's losses do this with reduction='mean')."
        )


def check_step_result(returned: Any, method: str) -> None:
    """Refuse a returned value that cannot be averaged over an epoch."""
    expected = (
        "expected a dict with 'loss' and any other metrics, such as `return {\"loss\": "
        "loss.item()}`"
    )
    if not isinstance(returned, (Mapping, Tensor, int, float, StepResult)):
        shown = "None" if returned is None else describe(returned)
        raise ConfigurationError(f"`{method}` returned {shown}; {expected}.")
    for name, value in returned.items() if isinstance(returned, Mapping) else ():
        if (
            value is None
            or isinstance(value, (str, list, tuple))
            or (isinstance(value, Tensor) and value.numel() != 1)
        ):
            shown = repr(value) if value is None or isinstance(value, str) else describe(value)
            raise ConfigurationError(
                f"`{method}` returned {shown} as {name!r}; each metric must be one number, such as "
                "`loss.mean().item()`."
            )


def unprefixed(metrics: Any, prefix: str) -> Any:
    """Metrics without the prefix that their names get in the history, where a method has written it
    already."""
    if not isinstance(metrics, Mapping):
        return metrics
    return {
        name if name.removeprefix(prefix) in metrics else name.removeprefix(prefix): metrics[name]
        for name in metrics
    }


def as_numbers(returned: Any, method: str) -> dict[str, float]:
    """The metrics that an overridden method returned, as floats."""
    if isinstance(returned, Mapping) and all(
        isinstance(value, SupportsFloat) for value in returned.values()
    ):
        return {name: float(value) for name, value in returned.items()}
    shown = "None" if returned is None else type(returned).__name__
    if isinstance(returned, Mapping):
        shown = ", ".join(f"{name}: {type(value).__name__}" for name, value in returned.items())
    example = '{"train_loss": 0.5}' if method == "train_epoch" else '{"loss": 0.5, "accuracy": 0.9}'
    raise ConfigurationError(
        f"`{method}` returned {shown}; expected a dict of metrics that are numbers, such as "
        f"{example}."
    )


def takes(function: Callable[..., Any] | None, num_arguments: int) -> bool:
    """Whether a function can be called with this number of arguments; True where its signature is
    unknown."""
    if function is None:
        return False
    try:
        signature = inspect.signature(
            function.forward if isinstance(function, nn.Module) else function
        )
    except ValueError:
        return True
    try:
        signature.bind(*range(num_arguments))
    except TypeError:
        return False
    return True


def keywords_of(model: nn.Module) -> set[str] | None:
    """Names of the arguments that a model takes; None where it takes any."""
    parameters = inspect.signature(model.forward).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name for parameter in parameters}


def made(kind: type) -> str:
    """How an object of a class is written, with or without arguments."""
    return f"{kind.__name__}()" if takes(kind, 0) else f"{kind.__name__}(...)"


def _name(given: Any) -> str:
    return getattr(given, "__name__", type(given).__name__)

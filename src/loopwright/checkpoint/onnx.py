"""A module as an ONNX file, put in place only after onnxruntime has run it and its outputs have
been compared."""

from __future__ import annotations

import inspect
import logging
import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._torch_compat import tree_leaves, tree_map
from ..errors import ConfigurationError, LoopwrightError, MissingExtraError
from ..runtime.modes import evaluating
from ..trees import named_leaves

TOLERANCE = 1e-4  # of the largest output: kernels of two libraries round differently


class ExportError(LoopwrightError):
    """An exported network does not compute what it should."""


@dataclass(frozen=True, slots=True)
class OnnxReport:
    """What was written, and how far its outputs are from torch's."""

    size: int
    batch_size: int
    max_difference: float
    largest: float  # absolute value in torch's outputs
    is_dynamic: bool
    why_fixed: str = ""

    @property
    def is_close(self) -> bool:
        return self.max_difference <= TOLERANCE * max(self.largest, 1.0)


def check_onnx_packages() -> None:
    """Refuse before anything is built if a package is missing."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "missing-extra",
            f"Export to ONNX needs {error.name}: pip install 'loopwright[onnx]'. (safetensors "
            "needs no extra package.)",
        ) from error


def export_module(
    module: nn.Module,
    inputs: Any,
    path: str | os.PathLike[str],
    *,
    opset: int | None = None,
    names: tuple[Sequence[str] | None, Sequence[str] | None] | None = None,
    tolerance: float | None = None,
) -> OnnxReport:
    """Write a module in eval mode as ONNX; `inputs` is a batch: a tensor, a tuple of arguments or a
    dict by keyword.

    `names` are those of inputs and outputs in the file; without them, outputs that a model gives by
    name keep it. One whose outputs differ by more than `tolerance` is an error.
    """
    check_onnx_packages()
    path = Path(path)
    call = as_call(inputs)
    folder_beside = tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".onnx-")
    with folder_beside as folder, _quiet(), evaluating([module], ()):
        names = names or (None, _output_names(module, call))
        staging = Path(folder) / path.name
        why_fixed = ""
        try:
            _program(module, call, opset, names, is_dynamic=True).save(staging)
        # whatever the exporter makes of a model that needs its shapes to be numbers
        except Exception as error:
            why_fixed = _cause(error)
            try:
                _program(module, call, opset, names, is_dynamic=False).save(staging)
            except Exception as second:
                raise ConfigurationError(
                    "onnx-export-failed", f"This model cannot be exported to ONNX: {_cause(second)}"
                ) from second
        difference, largest = _compare(module, staging, call, is_dynamic=not why_fixed)
        if tolerance is not None and not difference <= tolerance:
            raise ExportError(
                "onnx-outputs-differ",
                f"The outputs of the ONNX export to {path} differ from those of torch by "
                f"{difference:.3g}, more than {tolerance:g}; no file was written. Try another "
                "ONNX opset version, or raise `tolerance`.",
            )
        # the weights of a very large model are a file of their own
        files = sorted(Path(folder).iterdir())
        size = sum(file.stat().st_size for file in files)
        for file in files:
            file.replace(path.with_name(file.name))
    return OnnxReport(size, batch_size_of(call), difference, largest, not why_fixed, why_fixed)


Call = tuple[tuple[Any, ...], dict[str, Any]]  # arguments and keywords


def as_call(inputs: Any) -> Call:
    """Arguments and keywords, as the trainer calls a model with a batch's inputs."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def batch_size_of(call: Call) -> int:
    """The length of the first tensor."""
    return next((len(tensor) for tensor in _tensors(call) if tensor.dim()), 0)


def _output_names(module: nn.Module, call: Call) -> list[str] | None:
    """The keys of a dict that the model gives, nested ones with dots between; None if it gives
    something else."""
    args, kwargs = call
    try:
        with torch.no_grad():
            outputs = module(*args, **kwargs)
    except Exception:  # the export meets it too, and reports it
        return None
    if not isinstance(outputs, Mapping):
        return None
    taken = {*kwargs, *inspect.signature(module.forward).parameters}  # a graph has each name once
    names = [name for name, leaf in named_leaves(outputs) if isinstance(leaf, Tensor)]
    return [f"{name}_out" if name in taken else name for name in names]


def _program(
    module: nn.Module,
    call: Call,
    opset: int | None,
    names: tuple[Sequence[str] | None, Sequence[str] | None],
    *,
    is_dynamic: bool,
) -> Any:
    args, kwargs = call
    size = batch_size_of(call)

    def shape_of(leaf: Any) -> Any:
        return {0: torch.export.Dim.DYNAMIC} if _is_batch(leaf, size) else None

    ins, outs = (None if part is None else list(part) for part in names)
    return torch.onnx.export(
        module,
        args,
        kwargs=kwargs,
        dynamo=True,
        verbose=False,
        opset_version=opset,
        input_names=ins,
        output_names=outs,
        dynamic_shapes=tree_map(shape_of, kwargs or args) if is_dynamic else None,
    )


def _is_batch(leaf: Any, size: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == size


def _compare(module: nn.Module, path: Path, call: Call, *, is_dynamic: bool) -> tuple[float, float]:
    """The largest difference between both outputs, and the largest output; on a smaller batch too
    if that may be."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    size = batch_size_of(call)
    difference = 0.0
    largest = 0.0
    for length in {size, max(size - 1, 1)} if is_dynamic else {size}:

        def cut(leaf: Any, length: int = length) -> Any:
            return leaf[:length] if _is_batch(leaf, size) else leaf

        args, kwargs = tree_map(cut, call)
        with torch.no_grad():
            expected = [tensor.cpu() for tensor in _tensors(module(*args, **kwargs))]
        fed = [tensor.cpu().numpy() for tensor in _tensors((args, kwargs))]
        if len(names) != len(fed):
            raise ConfigurationError(
                "onnx-unused-input",
                f"The ONNX file takes {len(names)} inputs, the model {len(fed)}: one is not used.",
            )
        outputs = session.run(None, dict(zip(names, fed, strict=True)))
        for own, other in zip(expected, map(torch.as_tensor, outputs), strict=True):
            difference = max(difference, _distance(own, other))
            largest = max(largest, float(own.double().abs().max()) if own.numel() else 0.0)
    return difference, largest


def _distance(own: Tensor, other: Tensor) -> float:
    if own.shape != other.shape:
        raise ConfigurationError(
            "onnx-outputs-differ",
            f"The ONNX output has shape {list(other.shape)}, torch's {list(own.shape)}.",
        )
    apart = (own.double() - other.double()).abs()
    apart[own == other] = 0.0  # infinities
    apart[own.isnan() & other.isnan()] = 0.0
    return float(apart.nan_to_num(nan=math.inf).max()) if own.numel() else 0.0


def _cause(error: BaseException) -> str:
    """What was wrong with the model, from under the exporter's advice to its developers."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3])[:300] or type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notes to its own developers."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)

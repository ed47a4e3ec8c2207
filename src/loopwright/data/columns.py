"""Data sets of the rows of tensors and arrays in memory, and advice for data of unsupported
types."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, StackDataset, TensorDataset

from ..errors import DataError

_DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)
# an attribute of tensors in such memory: torch would write there, and the process would end
_READ_ONLY = "_is_read_only"


class NamedColumns(Dataset[dict[str, Tensor]]):
    """A data set of the rows of named tensors of equal length; a sample is a dict."""

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.columns.items()}


def from_columns(data: Any) -> Any:
    """Return a data set of the rows of a tensor, or of a tuple or dict of tensors; any other tuple
    unchanged."""
    if not isinstance(data, tuple | Mapping):
        return TensorDataset(*_columns({"": data}).values())
    is_named = isinstance(data, Mapping)
    named = dict(data) if is_named else {f"entry {n}": part for n, part in enumerate(data)}
    parts: list[Any] = list(named.values())
    if _has_lists(parts):
        columns_and_lists: dict[str, Any] = {
            name: part if isinstance(part, list) else _tensor(part) for name, part in named.items()
        }
        if is_named:
            return StackDataset(**columns_and_lists)
        return StackDataset(*columns_and_lists.values())
    if parts and all(map(_is_column, parts)):
        columns = _columns(named)
        return NamedColumns(columns) if is_named else TensorDataset(*columns.values())
    looks_like_columns = any(
        _is_column(part) or is_frame(part) or isinstance(part, Dataset | DataLoader)
        for part in parts
    )
    if is_named or looks_like_columns:
        raise DataError(
            "not-columns",
            f"Data is a {type(data).__name__} of {_kinds(parts)}: a tuple or a dict is one data "
            "set of tensors or arrays with one row per sample, such as `(x, y)`; write several "
            "inputs as `(x1, x2, y)`. Make columns of a data frame with `frame.to_numpy("
            "'float32')`, pass evaluation data as `eval_data=`, and batches as a list.",
        )
    return data


def check_list(data: list[Any]) -> None:
    """Raise a `DataError` for a list that contains columns or samples; a list is expected to
    contain batches."""
    first = data[0] if data else None
    parts = data[:8]
    is_columns = isinstance(first, np.ndarray)
    if 1 < len(data) <= 3 and all(_is_column(part) and part.ndim for part in parts):
        rows = {(part.dtype, part.shape[1:]) for part in parts}
        is_columns = len(rows) > 1
    is_sample = False
    if isinstance(first, tuple | list):
        parts = list(first)
        is_sample = any(map(_is_single, parts)) and any(
            isinstance(part, Tensor) and part.ndim for part in parts
        )
    if is_columns or is_sample:
        raise DataError(
            "list-is-batches",
            f"Data is a list, which means a list of batches, and its entries look like "
            f"{'a sample' if is_sample else 'columns'}: {_kinds(parts)}. Pass inputs and targets "
            "as a tuple, `(x, y)`, and samples with `batch_size=`.",
        )


def refuse(data: Any) -> None:
    """Raise a `DataError` with the type of an object that is no data, and what to pass instead."""
    hint = (
        "pass a Dataset, a DataLoader, inputs and targets as `(x, y)`, or a list or another "
        "iterable of batches"
    )
    if is_frame(data):
        hint = (
            "choose the columns for inputs and targets, as in `(frame[['a', 'b']].to_numpy("
            "'float32'), frame['y'].to_numpy())`"
        )
    raise DataError(
        "not-iterable",
        f"Data of the type {type(data).__name__} cannot be iterated in batches: {hint}.",
    )


def _columns(named: Mapping[str, Any]) -> dict[str, Tensor]:
    tensors = {name: _tensor(part) for name, part in named.items()}
    lengths = {name: len(tensor) for name, tensor in tensors.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            "different-lengths",
            f"Data is columns of different lengths ({lengths}): each needs one row per sample. If "
            "they are separate batches, pass a list.",
        )
    return tensors


def _tensor(column: Any) -> Tensor:
    if isinstance(column, Tensor):
        return column
    # a mapped one stays in its file: only the rows of a batch are read
    if not is_mapped_array(column):
        column = np.ascontiguousarray(column)
        column = column.astype(column.dtype.newbyteorder("="), copy=False)
    return as_tensor(column)


def is_mapped_array(array: Any) -> bool:
    """Whether the memory of an array is that of a file."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return isinstance(array, mmap.mmap)


def as_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """Return a tensor in the memory of an array, which may be read-only: batches are copies."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(array)
    if not array.flags.writeable:
        setattr(tensor, _READ_ONLY, True)
    return tensor


def is_read_only(data: Any) -> bool:
    """Whether samples of a data set of `from_columns` are in memory that must not be written, such
    as a mapped file."""
    if isinstance(data, TensorDataset):
        return any(map(is_read_only, data.tensors))
    if isinstance(data, StackDataset):
        return any(map(is_read_only, stacked(data)))
    if isinstance(data, NamedColumns):
        return any(map(is_read_only, data.columns.values()))
    return isinstance(data, Tensor) and hasattr(data, _READ_ONLY)


def stacked(dataset: StackDataset[Any]) -> list[Any]:
    """Return the data sets in a `StackDataset`."""
    datasets: Any = dataset.datasets
    return list(datasets.values() if isinstance(datasets, dict) else datasets)


def as_indices(values: Any) -> Tensor:
    """Return indices of samples as a tensor of int64; a mask and fractions are refused, which would
    be read as other indices."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
        values = values.astype(np.int64)  # also of a reversed array, which torch does not take
    indices = torch.as_tensor(values)
    is_mask = indices.dtype is torch.bool
    if len(indices) and (is_mask or indices.dtype.is_floating_point):
        raise DataError(
            "indices-not-integers",
            f"A Subset or a sampler has indices of samples of {indices.dtype}: pass integers, such "
            "as the positions of True in a mask, `torch.as_tensor(mask).nonzero().flatten()`.",
        )
    return indices.to(torch.int64)


def not_negative(order: Any, length: int) -> Tensor:
    """Return indices that count from the start."""
    indices = as_indices(order)
    if len(indices) and indices.min() < 0:
        indices = torch.where(indices < 0, indices + length, indices)
    return indices


def is_plain_tensor(tensor: Tensor) -> bool:
    """Whether selected rows of a tensor are what stacked rows are."""
    if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    if tensor.dtype not in _DTYPES or tensor.requires_grad or tensor.is_conj() or tensor.is_neg():
        return False
    # stacked rows keep an unusual memory format, indexed rows do not
    return tensor.shape[0] == 0 or tensor.select(0, 0).is_contiguous()


def _has_lists(parts: Any) -> bool:
    """Whether these are columns of equal length, some of them lists and some tensors or arrays."""
    if not all(_is_column(part) or isinstance(part, list) for part in parts):
        return False
    columns = [part for part in parts if _is_column(part)]
    is_mixed = 0 < len(columns) < len(parts) and all(part.ndim for part in columns)
    return is_mixed and len(set(map(len, parts))) == 1


def _is_column(part: Any) -> bool:
    return isinstance(part, (Tensor, np.ndarray))


def _is_single(part: Any) -> bool:
    """Whether it is a single value, such as the target of a sample."""
    return isinstance(part, (int, float, str)) or (isinstance(part, Tensor) and part.ndim == 0)


def _kinds(parts: list[Any]) -> str:
    return ", ".join(type(part).__name__ for part in parts)


def is_frame(data: Any) -> bool:
    """Whether it is a data frame of pandas or polars, which does not say which columns are inputs
    and targets."""
    return type(data).__module__.partition(".")[0] in ("pandas", "polars")

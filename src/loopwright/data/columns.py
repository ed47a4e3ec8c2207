"""Data sets of the rows of tensors and arrays in memory, and advice for data of unsupported
types."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, StackDataset, TensorDataset, default_collate

from ..errors import DataError

ACCEPTED = (
    "pass a Dataset, a DataLoader, inputs and targets as `(x, y)`, or a list or another "
    "iterable of batches"
)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COMPLEX = (torch.complex64, torch.complex128)
_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_DTYPES = frozenset(_FLOATS + _COMPLEX + _INTEGERS)
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


class BatchTransform(Dataset[Any]):
    """Data whose batches go through a function: `transform(batch)` gets a whole batch and returns
    the new one.

    One call for each batch, in place of one for each sample. The random numbers that it draws (from
    torch, numpy or `random`) depend on the seed, the epoch and the first index of the batch; a
    resumed run draws the same.

    Args:
        data: Tensors or arrays, alone, as a tuple or as a dict, or a data set with indices.
        transform: Gets a batch as the model would get it without this class, and returns the batch
            for the model.

    >>> import torch
    >>> from loopwright.data import BatchTransform, open_stream
    >>> data = BatchTransform((torch.arange(4.0)[:, None], torch.zeros(4)), lambda batch: [batch[0] * 10, batch[1]])
    >>> open_stream(data, batch_size=2, seed=0, shuffle=False).take(1)[0].value[0].tolist()
    [[0.0], [10.0]]
    """

    def __init__(self, data: Any, transform: Callable[[Any], Any]) -> None:
        is_columns = isinstance(data, (Tensor, np.ndarray, tuple, Mapping)) and not isinstance(
            data, Dataset
        )
        self.data: Any = from_columns(data) if is_columns else data
        if not hasattr(self.data, "__getitem__") or not hasattr(self.data, "__len__"):
            raise DataError(
                "samples-without-index",
                f"BatchTransform was given a {type(data).__name__}, whose samples have no index: "
                "pass tensors, arrays or a data set with `__getitem__` and `__len__`. To use a "
                "DataLoader, put it around the transform: `DataLoader(BatchTransform(...))`.",
            )
        self.transform = transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        """Return one sample: the only one of a batch of one."""
        return _first(self.transform(default_collate([self.data[index]])))


def _first(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: _first(part) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return tuple(map(_first, batch))
    return batch[0]


def from_columns(data: Any) -> Any:
    """Return a data set of the rows of a tensor, or of a tuple or dict of tensors; any other tuple
    unchanged."""
    if isinstance(data, Mapping):
        if _has_lists(list(data.values())):
            return StackDataset(**dict(zip(data, _stacked(data.values()), strict=True)))
        _check_names(data)
        return NamedColumns(
            dict(zip(data, _columns(data.values(), "a dict", list(data)), strict=True))
        )
    if not isinstance(data, tuple):
        if data.ndim == 1:
            raise DataError(
                "one-dimension",
                f"Data is a {type(data).__name__} of one dimension, whose rows are single "
                "numbers: for one sample write `x[None]`, for samples of one number each `x[:, "
                "None]`, for inputs and targets `(x, y)`.",
            )
        return TensorDataset(*_columns([data], f"a {type(data).__name__}", [""]))
    if any(isinstance(part, (Dataset, DataLoader)) for part in data):
        raise DataError(
            "train-and-eval-in-one",
            f"Data is a tuple of {_kinds(data)}: pass the training data alone, and the evaluation "
            "data as `eval_data=`.",
        )
    if data and all(_is_column(part) for part in data):
        return TensorDataset(*_columns(data, "a tuple", [f"entry {n}" for n in range(len(data))]))
    if _has_lists(data):
        return StackDataset(*_stacked(data))
    if any(_is_column(part) or is_frame(part) for part in data):
        raise DataError(
            "tuple-of-no-arrays",
            f"Data is a tuple of {_kinds(data)}: for inputs and targets, make all of them tensors "
            "or arrays with one row per sample, such as `frame.to_numpy('float32')`. Write several "
            "inputs as `(x1, x2, y)`; for batches, pass a list.",
        )
    return data


def check_list(data: list[Any]) -> None:
    """Raise a `DataError` for a list that contains columns or samples; a list is expected to
    contain batches."""
    if not data:
        return
    first = data[0]
    is_column = all(isinstance(part, (Tensor, np.ndarray)) and part.ndim for part in data[:8])
    if isinstance(first, np.ndarray) or (
        is_column and len(data) <= 3 and len({_row_of(part) for part in data}) > 1
    ):
        raise DataError(
            "list-is-batches",
            f"Data is a list of {_kinds(data[:8])}, and a list means a list of batches: for "
            "inputs and targets pass a tuple, `(x, y)`.",
        )
    is_sample = isinstance(first, (tuple, list)) and any(map(_is_single, first))
    if is_sample and any(isinstance(part, Tensor) and part.ndim for part in first):
        raise DataError(
            "list-is-batches",
            "Data is a list, which means a list of batches, but its first entry is a "
            f"{type(first).__name__} of {_kinds(first)}, which looks like a sample: pass "
            "`batch_size=` to combine samples into batches.",
        )


def refuse(data: Any) -> None:
    """Raise a `DataError` with the type of an object that is no data, and what to pass instead."""
    hint = ACCEPTED
    if is_frame(data):
        hint = (
            "choose the columns for inputs and targets, as in `(torch.tensor(frame[['a', "
            "'b']].to_numpy(), dtype=torch.float32), torch.tensor(frame['y'].to_numpy()))`"
        )
    raise DataError(
        "not-iterable",
        f"Data of the type {type(data).__name__} cannot be iterated in batches: {hint}.",
    )


def _check_names(data: Mapping[Any, Any]) -> None:
    others = {name: type(part).__name__ for name, part in data.items() if not _is_column(part)}
    if not data or others:
        names = ", ".join(f"{name!r}: {kind}" for name, kind in others.items()) or "nothing"
        raise DataError(
            "dict-of-data-sets",
            f"Data is a dict of {names}. A dict is one data set of tensors, with one row per "
            "sample. If these are several data sets, pass one of them, and evaluate the others "
            "with `callbacks=[loopwright.callbacks.OfflineLoss('test', datasets={'test': "
            "data})]`.",
        )


def _columns(parts: Any, what: str, names: list[str]) -> list[Tensor]:
    tensors = [
        part if isinstance(part, Tensor) else _tensor(part, name)
        for part, name in zip(parts, names, strict=True)
    ]
    if any(tensor.dim() == 0 for tensor in tensors):
        raise DataError(
            "no-sample-dimension",
            f"Data is {what} with a tensor that has no dimensions: the first dimension must count "
            "the samples.",
        )
    if len({len(tensor) for tensor in tensors}) > 1:
        lengths = ", ".join(
            f"{name}: {len(tensor)}" for name, tensor in zip(names, tensors, strict=True)
        )
        raise DataError(
            "different-lengths",
            f"Data is {what} of tensors of different lengths ({lengths}): each needs one row per "
            "sample. If they are separate batches, pass a list.",
        )
    return tensors


def _tensor(array: Any, name: str) -> Tensor:
    what = f"The array {name or 'given as data'}"
    if is_mapped_array(array):  # stays in its file: only the rows of a batch are read
        if not array.dtype.isnative or any(stride < 0 for stride in array.strides):
            raise DataError(
                "array-layout",
                f"{what} is memory-mapped, of {array.dtype} and strides {array.strides}, which "
                "torch cannot read in place: copy it into memory with `np.array(...)`, in this "
                "machine's byte order, or pass a data set that converts each sample.",
            )
    else:
        array = np.ascontiguousarray(array)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
    try:
        return as_tensor(array)
    except TypeError as error:
        raise DataError(
            "array-dtype", f"{what} is of {array.dtype}, a dtype that torch does not have: {error}"
        ) from None


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
        datasets: Any = data.datasets
        return any(map(is_read_only, datasets.values() if isinstance(datasets, dict) else datasets))
    if isinstance(data, NamedColumns):
        return any(map(is_read_only, data.columns.values()))
    return isinstance(data, Tensor) and hasattr(data, _READ_ONLY)


def as_indices(values: Any) -> Tensor:
    """Return indices of samples as a tensor of int64.

    Raises:
        DataError: for a mask, whose entries would be read as the indices 0 and 1, and for
            fractions.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
        values = values.astype(np.int64)  # also of a reversed array, which torch does not take
    indices = torch.as_tensor(values)
    if len(indices) and indices.dtype is torch.bool:
        raise DataError(
            "mask-as-indices",
            "A Subset or a sampler has a mask of True and False, where indices of samples are "
            "expected: pass the positions of True, such as "
            "`torch.as_tensor(mask).nonzero().flatten()`.",
        )
    if len(indices) and indices.dtype.is_floating_point:
        raise DataError(
            "indices-not-integers",
            f"A Subset or a sampler has indices of samples of {indices.dtype}: pass integers.",
        )
    return indices.to(torch.int64)


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


def _stacked(parts: Any) -> list[Any]:
    """Return the columns with arrays as tensors."""
    return [_tensor(part, "") if isinstance(part, np.ndarray) else part for part in parts]


def _is_column(part: Any) -> bool:
    return isinstance(part, (Tensor, np.ndarray))


def _is_single(part: Any) -> bool:
    """Whether it is a single value, such as the target of a sample."""
    return isinstance(part, (int, float, str)) or (isinstance(part, Tensor) and part.ndim == 0)


def _row_of(part: Any) -> tuple[Any, ...]:
    return (str(part.dtype), tuple(part.shape[1:]))


def _kinds(parts: Any) -> str:
    return "(" + ", ".join(type(part).__name__ for part in parts) + ")"


def is_frame(data: Any) -> bool:
    """Whether it is a data frame of pandas or polars, which does not say which columns are inputs
    and targets."""
    return type(data).__module__.partition(".")[0] in ("pandas", "polars")

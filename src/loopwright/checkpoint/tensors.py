"""The tensors of a state: which of them can be saved, and their files, written straight from
memory, hashed on the way, tied ones stored once."""

from __future__ import annotations

import json
import os
from _thread import allocate_lock, start_new_thread
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from .._torch_compat import set_state_dict_metadata, state_dict_metadata
from ..errors import CheckpointError
from .atomic import FileRecord, HashingFile
from .layout import (
    TIED,
    Box,
    Json,
    StoredShard,
    TensorLayout,
    read_header,
    read_layouts,
    whole,
)

# nested dict, list, tuple; what it admits is decided by the encoder, not by types
Tree: TypeAlias = Any

ATOMS = frozenset({type(None), bool, int, float, str, bytes, complex})

TensorKey: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]


def tensor_key(tensor: Tensor) -> TensorKey | None:
    """What two tensors have in common when they are one (tied weights); None where nothing is
    shared."""
    if tensor.numel() == 0:
        return None
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)


def plain_tensor(tensor: Tensor, path: str) -> Tensor:
    """The tensor without its graph, after refusing a tensor that is not one dense block of
    memory."""
    if is_lazy(tensor):
        raise refusal(path, tensor, "run one batch through the lazy module before saving")
    is_wrapper = hasattr(type(tensor), "__tensor_flatten__")
    if is_wrapper or tensor.layout is not torch.strided or tensor.is_quantized:
        what = f"a {tensor.layout} tensor of {tensor.dtype}"
        raise refusal(path, tensor, "return a plain, dense tensor", what)
    if tensor.is_meta:
        raise refusal(path, tensor, "materialise it first", "a tensor on the meta device")
    return tensor.detach()


def refusal(path: str, value: object, remedy: str, what: str | None = None) -> CheckpointError:
    """The error for a value that cannot be saved, naming where it is and what to return instead."""
    kind = what or f"an object of type {type(value).__module__}.{type(value).__qualname__}"
    return CheckpointError(
        "cannot-be-saved",
        f"The state at {path or 'the top'!r} is {kind}, which cannot be saved: {remedy}.",
    )


def escape(component: str) -> str:
    """One component of a path, so that joining with "/" is never ambiguous and always valid
    UTF-8."""
    if component.isascii() and "%" not in component and "/" not in component:
        return component
    text = component.encode("utf-8", "replace").decode()
    return text.replace("%", "%25").replace("/", "%2F")


def unescape(component: str) -> str:
    """The inverse of `escape`."""
    return component.replace("%2F", "/").replace("%25", "%")


def join_path(path: str, key: object) -> str:
    """The path of an entry below a path."""
    return f"{path}/{escape(str(key))}" if path else escape(str(key))


def map_tree(function: Callable[[Tree], Tree], tree: Tree) -> Tree:
    """The same containers with a function applied to each value in them."""
    kind = type(tree)
    if kind is list:
        if {*map(type, tree)} <= ATOMS:
            return tree.copy()
        return [map_tree(function, item) for item in tree]
    if kind is tuple or kind is torch.Size:
        return tuple([map_tree(function, item) for item in tree])
    if kind is Counter:
        return tree.copy()
    if not isinstance(tree, dict):
        return function(tree)
    mapped = {key: map_tree(function, item) for key, item in tree.items()}
    if kind is not OrderedDict:
        return mapped
    ordered = OrderedDict(mapped)
    if (metadata := state_dict_metadata(tree)) is not None:
        set_state_dict_metadata(ordered, map_tree(function, metadata))
    return ordered


T = TypeVar("T")
ALIGNMENT = 8

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
}


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> FileRecord:
    """A new safetensors file; a tensor that occurs twice is written once and noted in the
    metadata."""
    unique, tied = split_tied(tensors)
    texts = {**(metadata or {}), **({TIED: json.dumps(tied)} if tied else {})}
    # Widest first, as the format's own writer does, so that every tensor stays aligned.
    names = sorted(unique, key=lambda name: (-unique[name].itemsize, name))
    with HashingFile(path) as file:
        file.write(_header_text(names, unique, texts))
        for name in names:
            file.write(_bytes_of(unique[name]))
    return file.record()


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file in memory of their own, tied ones as one tensor under two
    names."""
    return read_all(dict(stored_tensors(path.parent, path.name, StoredFiles(path.parent))))


def _read_without_signals(read: Callable[[], T]) -> T:
    """Return what a function reads from a file, called in a thread: signal handlers run in the main
    thread only.

    Below safetensors' reader, torch drops the exception that a handler raises (of Ctrl-C, for one)
    and fails with an error of its own, so that a good file would be taken for a damaged one. The
    thread is a plain one, since a handler may also raise in the middle of `threading.Thread.start`,
    which then fails with an error of its own, too.
    """
    outcome: list[tuple[T | None, Exception | None]] = []
    is_over = allocate_lock()

    def run() -> None:
        try:
            outcome.append((read(), None))
        except Exception as error:
            outcome.append((None, error))
        finally:
            is_over.release()

    is_over.acquire()
    start_new_thread(run, ())
    try:
        is_over.acquire()
    except BaseException:  # of a handler, maybe after the lock was taken
        while not outcome:  # a thread must not be left in the reader when the program ends
            is_over.acquire(timeout=0.01)
        raise
    result, error = outcome[0]
    if error is not None:
        raise error
    return cast(T, result)


def open_tensors(path: Path) -> Any:
    """The file as safetensors maps it; its reader takes only paths that are UTF-8, which not every
    path is."""
    from safetensors import safe_open

    with suppress(UnicodeEncodeError):
        os.fspath(path).encode()
        return safe_open(path, framework="pt", device="cpu")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return safe_open(f"/dev/fd/{descriptor}", framework="pt", device="cpu")
    finally:
        os.close(descriptor)


def split_tied(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors that are one memory each, and the names of the others with those they stand
    for."""
    first: dict[TensorKey, str] = {}
    unique: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    for name, tensor in tensors.items():
        key = tensor_key(tensor)
        kept = name if key is None else first.setdefault(key, name)
        if kept == name:
            unique[name] = tensor
        else:
            tied[name] = kept
    return unique, tied


def _header_text(
    names: list[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> bytes:
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.nbytes
        entries[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: Tensor) -> memoryview:
    """The tensor's own memory where it is contiguous on the host, otherwise that of one copy."""
    if tensor.numel() == 0:
        return memoryview(b"")
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


# of the file format from its beginning; others are stored as one of these
NATIVE = set(DTYPES) - {torch.complex64, torch.uint16, torch.uint32, torch.uint64}
CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


DTYPE_NAMES = {name: dtype for dtype, name in DTYPES.items()}


def stored_form(tensor: Tensor) -> tuple[Tensor, dict[str, Json]]:
    """The tensor in a type that the file format has, and what to note where that is not its own."""
    if tensor.dtype in NATIVE:
        return tensor.resolve_neg(), {}
    name: dict[str, Json] = {"as": str(tensor.dtype).removeprefix("torch.")}
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj().resolve_neg()), name
    return tensor.view(CARRIERS[tensor.itemsize]), name


def numbers_tensor(values: list[Tree]) -> Tensor | None:
    """The list as one tensor, where all of it is floats or all of it small ints."""
    kinds = set(map(type, values))
    if kinds == {float}:
        return torch.frombuffer(array("d", values), dtype=torch.float64).clone()
    with suppress(OverflowError):
        if kinds == {int}:
            return torch.frombuffer(array("q", values), dtype=torch.int64).clone()
    return None


class StoredFiles:
    """The safetensors files of one checkpoint, mapped when first needed and then kept open."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open: dict[str, Any] = {}

    def read(self, shard: StoredShard, region: Box | None = None) -> Tensor:
        """A region of one entry, or all, mapped: to be copied, since it changes if the file does."""
        path = self.directory / shard.file
        try:
            if shard.file not in self._open:
                self._open[shard.file] = open_tensors(path)
            file = self._open[shard.file]
            if region is None:
                return file.get_tensor(shard.name)  # type: ignore[no-any-return]
            return file.get_slice(shard.name)[region.slices]  # type: ignore[no-any-return]
        except Exception as error:  # the reader has no common error type, and the file is untrusted
            raise CheckpointError(
                "not-safetensors", f"{path} cannot be read as safetensors: {error}"
            ) from error


class StoredTensor:
    """A tensor in a checkpoint, of which only the description was read so far (see
    `read_checkpoint(lazy=True)`).

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import torch
        >>> from loopwright.checkpoint import read_checkpoint, write_checkpoint
        >>> with TemporaryDirectory() as folder:
        ...     write_checkpoint(f"{folder}/first", {"weight": torch.arange(6).reshape(2, 3)})
        ...     stored = read_checkpoint(f"{folder}/first", lazy=True).tree["weight"]
        ...     stored.shape, stored.read_box([0, 1], [2, 1]).tolist()
        (torch.Size([2, 3]), [[1], [4]])
    """

    def __init__(
        self, files: StoredFiles, layout: TensorLayout, dtype: torch.dtype | None = None
    ) -> None:
        if layout.dtype not in DTYPE_NAMES:
            raise CheckpointError(
                "unknown-tensor-type",
                f"The checkpoint holds a tensor of type {layout.dtype!r:.40}, which this version "
                "cannot read.",
            )
        self.layout = layout
        self.stored_dtype = DTYPE_NAMES[layout.dtype]
        self.dtype = dtype or self.stored_dtype
        self.files = files

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.layout.shape[:-1] if self._is_pairs else self.layout.shape)

    @property
    def _is_pairs(self) -> bool:
        """Whether complex numbers are stored as pairs of real ones."""
        return self.dtype.is_complex and not self.stored_dtype.is_complex

    def read(self) -> Tensor:
        """All of it, in memory of its own."""
        return _read_without_signals(self.copied)

    def read_box(self, offsets: Iterable[int], shape: Iterable[int]) -> Tensor:
        """A region of it, in memory of its own; only the shards that overlap it are touched."""
        box = Box(tuple(offsets), tuple(shape))
        if not box.fits(tuple(self.shape)):
            raise CheckpointError(
                "region-outside-tensor",
                f"The region at {list(box.offsets)} of {list(box.shape)} is not inside a tensor "
                f"of {list(self.shape)}.",
            )
        return _read_without_signals(partial(self.copied, box))

    def copied(self, box: Box | None = None) -> Tensor:
        """A region of it, or all, where no signal handler runs."""
        shards = self.layout.shards
        if box is None and len(shards) == 1:  # as most are: without the arithmetic of regions
            values = self.files.read(shards[0]).clone()
        else:
            box = box or whole(tuple(self.shape))
            if self._is_pairs:
                box = Box((*box.offsets, 0), (*box.shape, 2))
            values = torch.empty(box.shape, dtype=self.stored_dtype)
            for shard in shards:
                if (shared := shard.box.overlap(box)) is not None:
                    target = values[shared.relative_to(box.offsets).slices]
                    target.copy_(self.files.read(shard, shared.relative_to(shard.box.offsets)))
        if self.dtype == self.stored_dtype:
            return values
        return torch.view_as_complex(values) if self._is_pairs else values.view(self.dtype)

    def __repr__(self) -> str:
        return f"StoredTensor({list(self.shape)}, {self.dtype}, shards={len(self.layout.shards)})"


def stored_tensors(
    directory: Path, file: str, files: StoredFiles
) -> Iterator[tuple[str, StoredTensor]]:
    """The tensors of a file that holds them whole."""
    for info in read_header(directory / file):
        shard = StoredShard(file, info.tied_to or info.name, whole(info.shape))
        yield info.name, StoredTensor(files, TensorLayout(info.dtype, info.shape, (shard,)))


def stored_shards(
    directory: Path, records: Iterable[str], files: StoredFiles
) -> dict[str, StoredTensor]:
    """The tensors of a checkpoint that several processes wrote shard by shard."""
    layouts = read_layouts(directory, records)
    return {name: StoredTensor(files, layout) for name, layout in layouts.items()}


def read_all(stored: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
    """Tensors in memory, put together; tied ones, whose shards are the same, as one tensor."""

    def read() -> dict[str, Tensor]:
        tensors = {}
        known: dict[TensorLayout, Tensor] = {}
        for name, tensor in stored.items():
            if tensor.layout not in known or 0 in tensor.shape:
                known[tensor.layout] = tensor.copied()
            tensors[name] = known[tensor.layout]
        return tensors

    return _read_without_signals(read)

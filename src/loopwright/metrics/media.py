"""What a run logs besides numbers: images, histograms, texts and tables, and how they are made of
tensors, arrays, pictures and frames."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ConfigurationError, check_number
from ..text import kind_of, listed

MediaKind: TypeAlias = Literal["image", "histogram", "text", "table"]
Cell: TypeAlias = float | int | str | bool | None
Range = tuple[float, float]
CHANNELS = (1, 3, 4)
TOLERANCE = 1e-3  # of floats that should be from 0 to 1, as resampling leaves them
ACCEPTED = (
    "an image is a tensor or array of shape (C, H, W), (H, W) or (H, W, C) with 1, 3 or 4 "
    "channels, of uint8 or of floats from 0 to 1, or a PIL image"
)


@dataclass(frozen=True, slots=True)
class Images:
    """One or several images of one name and step, as PNG files, each with a caption that may be
    empty."""

    files: tuple[bytes, ...]
    captions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of values between edges; there is one edge more than there are counts."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under named columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Media:
    """An item that `trainer.log_image` and its siblings log, and where it belongs in the run.

    `on_media` of callbacks gets it; the recorder and the trackers write it.
    """

    name: str
    content: Images | Histogram | Table | str
    update: int
    step: int
    epoch: int
    samples: int
    seconds: float  # of training
    wall: float  # seconds since 1970
    position: int = 0  # of its first image among the items of this name and step

    @property
    def kind(self) -> MediaKind:
        """The kind of the content."""
        if isinstance(self.content, str):
            return "text"
        kinds: dict[type, MediaKind] = {Images: "image", Histogram: "histogram", Table: "table"}
        return kinds[type(self.content)]


# Images


def read_image(call: str, value: Any, value_range: Range | None) -> tuple[NDArray[np.uint8], int]:
    """Return an image as bytes of shape (H, W) or (H, W, C), and how many of its values are NaN or
    infinite.

    Args:
        call: The user's call, for errors.
        value: The image, of one of the accepted kinds.
        value_range: The values that become black and white; values outside are cut off. Default: 0
            and 1 for floats.
    """
    if type(value).__module__.startswith("PIL."):
        value = _read_pillow(value)
    elif isinstance(value, (list, tuple)) or not isinstance(value, (Tensor, np.ndarray)):
        raise _no_image(call, value)
    return _as_bytes(call, _channels_last(call, value), value_range)


def read_images(
    call: str, value: Any, value_range: Range | None
) -> tuple[list[NDArray[np.uint8]], list[str], int]:
    """Return the images of a batch, a list or a mapping from captions to images, their captions,
    and as above."""
    captions: list[str] = []
    if isinstance(value, Mapping):
        captions = [str(key) for key in value]
        value = list(value.values())
    if isinstance(value, (Tensor, np.ndarray)):
        value = _split_batch(call, value)
    elif not _is_sequence(value) or type(value).__module__.startswith("PIL."):
        raise _no_batch(call, value)
    read = [read_image(f"{call}, image {at}", image, value_range) for at, image in enumerate(value)]
    if not read:
        raise _no_batch(call, value)
    return [pixels for pixels, _ in read], captions, sum(bad for _, bad in read)


def check_range(call: str, value_range: Any) -> Range | None:
    """Return the range of values that was given, as two numbers, or None."""
    if value_range is None:
        return None
    try:
        low, high = (float(bound) for bound in value_range)
    except (TypeError, ValueError):
        low = high = 0.0
    if not -np.inf < low < high < np.inf:
        raise ConfigurationError(
            "value-range",
            f"{call}: value_range={value_range!r}: pass the values that become black and white, "
            "such as (-1, 1).",
        )
    return low, high


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode an image of shape (H, W) or (H, W, C) as a PNG file.

    Each row is stored as its difference from the row above (filter 2), which halves most files.
    """
    height, width = pixels.shape[:2]
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    rows = pixels.reshape(height, width * channels)
    filtered = np.full((height, 1 + width * channels), 2, dtype=np.uint8)
    filtered[0, 1:] = rows[0]
    filtered[1:, 1:] = rows[1:] - rows[:-1]
    color = {1: 0, 3: 2, 4: 6}[channels]  # gray, RGB, RGBA
    header = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def as_images(pixels: Sequence[NDArray[np.uint8]], captions: Sequence[str]) -> Images:
    """Return images with their captions, encoded."""
    return Images(tuple(map(encode_png, pixels)), tuple(captions))


def check_captions(call: str, captions: Any, count: int) -> list[str]:
    """Return a caption for each image; empty ones where none were given."""
    if captions is None:
        return [""] * count
    texts = [str(caption) for caption in captions] if _is_sequence(captions) else []
    if len(texts) != count:
        raise ConfigurationError(
            "captions",
            f"{call}: captions={captions!r:.60} for {count} images: pass a list with one string "
            "per image.",
        )
    return texts


def draw_figure(call: str, figure: Any) -> bytes:
    """Return a figure of matplotlib, or the figure of axes, as a PNG file."""
    owner = figure if hasattr(figure, "savefig") else getattr(figure, "figure", None)
    if owner is None or not hasattr(owner, "savefig"):
        raise ConfigurationError(
            "not-a-figure",
            f"{call}: {kind_of(figure)} is not a figure: pass a matplotlib figure or its axes; for "
            "other pictures use log_image.",
        )
    file = BytesIO()
    owner.savefig(file, format="png")
    return file.getvalue()


def _read_pillow(image: Any) -> Any:
    if image.mode in ("I", "F", "I;16", "L", "RGB", "RGBA"):
        return np.asarray(image)
    if image.mode == "1":
        return np.asarray(image.convert("L"))
    has_alpha = "transparency" in image.info or image.mode in ("LA", "La", "PA", "RGBa")
    return np.asarray(image.convert("RGBA" if has_alpha else "RGB"))


def _channels_last(call: str, value: Tensor | NDArray[Any]) -> NDArray[Any]:
    """Return the values as an array of shape (H, W) or (H, W, C), on the host."""
    shape = tuple(value.shape)
    if len(shape) not in (2, 3) or 0 in shape:
        raise _no_image(call, value)
    array = as_array(call, value)
    if len(shape) == 2:
        return array
    is_first = shape[0] in CHANNELS
    is_last = shape[2] in CHANNELS
    if is_first and (isinstance(value, Tensor) or not is_last):  # of both, each library's own order
        array = np.moveaxis(array, 0, -1)
    elif not is_last:
        raise _no_image(call, value)
    return array[:, :, 0] if array.shape[2] == 1 else array


def _as_bytes(
    call: str, array: NDArray[Any], value_range: Range | None
) -> tuple[NDArray[np.uint8], int]:
    if array.dtype == np.uint8 and value_range is None:
        return np.ascontiguousarray(array), 0
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255), 0
    values = array.astype(np.float64)
    finite = np.isfinite(values)
    bad = int(values.size - np.count_nonzero(finite))
    is_whole = np.issubdtype(array.dtype, np.integer)
    if value_range is None:
        value_range = (0.0, 255.0) if is_whole else (0.0, 1.0)
        _check_values(call, values[finite], value_range[1], is_whole=is_whole)
    low, high = value_range
    values[~finite] = low
    scaled = np.clip((values - low) / (high - low), 0.0, 1.0) * 255.0
    return np.round(scaled).astype(np.uint8), bad


def _check_values(call: str, values: NDArray[np.float64], high: float, *, is_whole: bool) -> None:
    if not values.size:
        return
    least = values.min()
    most = values.max()
    if least >= -TOLERANCE and most <= high + TOLERANCE:
        return
    kind = "whole numbers from 0 to 255" if is_whole else "floats from 0 to 1"
    bounds = (least, most)
    for usual in ((0, 255), (-1, 1)):
        if least >= usual[0] - TOLERANCE and most <= usual[1] + TOLERANCE:
            bounds = usual
    raise ConfigurationError(
        "image-values",
        f"{call}: the values are from {least:.4g} to {most:.4g}, but an image has {kind}: pass "
        f"value_range=({bounds[0]:.4g}, {bounds[1]:.4g}), the values that become black and white; "
        "values outside are clipped.",
    )


def _split_batch(call: str, value: Tensor | NDArray[Any]) -> Any:
    shape = tuple(value.shape)
    may_be_one = len(shape) == 3 and (shape[0] in CHANNELS or shape[2] in CHANNELS)
    if len(shape) not in (3, 4) or may_be_one:
        raise _no_batch(call, value)
    return value


def _no_image(call: str, value: Any) -> ConfigurationError:
    return ConfigurationError(
        "not-an-image",
        f"{call}: {kind_of(value)} is not an image; {ACCEPTED}. Several images go to log_images, "
        "figures to log_figure; read files with `PIL.Image.open(path)`.",
    )


def _no_batch(call: str, value: Any) -> ConfigurationError:
    return ConfigurationError(
        "not-a-batch-of-images",
        f"{call}: {kind_of(value)} is not a batch of images: pass (N, C, H, W), (N, H, W, C), "
        "(N, H, W) or a list. One image goes to log_image; a few gray images are "
        "`images[:, None]`.",
    )


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


# Histograms


def count_values(call: str, values: Any, bins: Any) -> tuple[Histogram, int, int]:
    """Return the histogram of all values, how many there are, and how many of them are NaN or
    infinite.

    Those are not counted in any bin. Without any other value the histogram is of zero to one, and
    empty.
    """
    check_number(f"{call}: bins", bins, least=1, most=10_000)
    flat = as_array(call, values).ravel().astype(np.float64)
    if not flat.size:
        raise _no_histogram(call, f"{kind_of(values)} has no values")
    finite = flat[np.isfinite(flat)]
    if not finite.size:
        return Histogram((0.0, 1.0), (0,)), flat.size, flat.size
    edges = _edges(float(finite.min()), float(finite.max()), bins)
    counts, _ = np.histogram(finite, edges)
    histogram = Histogram(tuple(edges.tolist()), tuple(counts.tolist()))
    return histogram, flat.size, flat.size - finite.size


def _edges(low: float, high: float, bins: int) -> NDArray[np.float64]:
    if low == high:
        width = max(0.5, abs(low) * 1e-3)
        low = max(low - width, -np.finfo(float).max)
        high = min(high + width, np.finfo(float).max)
    # by halves, since high - low may overflow
    edges = 2.0 * np.linspace(low / 2, high / 2, bins + 1)
    edges[0] = low
    edges[-1] = high
    return np.asarray(np.maximum.accumulate(edges))


def read_counts(call: str, edges: Any, counts: Any) -> Histogram:
    """Return a histogram that was counted elsewhere."""
    if edges is None or counts is None:
        raise _no_histogram(call, "one of edges= and counts= is missing")
    bounds = as_array(call, edges).astype(np.float64).ravel()
    numbers = as_array(call, counts).astype(np.float64).ravel()
    if len(bounds) != len(numbers) + 1 or not len(numbers):
        raise _no_histogram(call, f"there are {len(bounds)} edges and {len(numbers)} counts")
    if not np.isfinite(bounds).all() or not (np.diff(bounds) > 0).all():
        raise _no_histogram(call, "the edges are not finite and increasing")
    if not ((numbers >= 0) & (numbers == np.round(numbers)) & np.isfinite(numbers)).all():
        raise _no_histogram(call, "the counts are not whole numbers, 0 or more")
    return Histogram(tuple(bounds.tolist()), tuple(int(number) for number in numbers))


def _no_histogram(call: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        "not-a-histogram",
        f"{call}: {what}: pass the values, or both edges= and counts=, one more edge than counts, "
        "as from `np.histogram`.",
    )


# Tables


def read_table(call: str, value: Any, columns: Any) -> Table:
    """Return a table of rows under columns, a list or a mapping by columns, or a frame of pandas or
    polars."""
    if columns is not None and not _is_sequence(columns):
        raise _no_table(call, f"columns={columns!r:.60} is not a list of names")
    names = None if columns is None else [str(name) for name in columns]
    is_frame = type(value).__module__.partition(".")[0] in ("pandas", "polars")
    if is_frame and hasattr(value, "columns"):
        value = {str(name): value[name].to_list() for name in value.columns}
    if isinstance(value, Mapping):
        return _by_column(call, value, names)
    if isinstance(value, (Tensor, np.ndarray)) and value.ndim == 2:
        value = as_array(call, value).tolist()
    if not _is_sequence(value) or isinstance(value, Tensor):
        raise _no_table(call, f"{kind_of(value)} is not a table")
    return _by_row(call, list(value), names)


def _no_table(call: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        "not-a-table",
        f"{call}: {what}; pass a list of dicts, a dict of columns, rows with columns=[...], or a "
        "pandas or polars data frame. For a string use log_text.",
    )


def _by_column(call: str, value: Mapping[Any, Any], names: list[str] | None) -> Table:
    if not all(map(_is_sequence, value.values())):
        raise _no_table(call, "the dict has not one list per column: for one row pass [{...}]")
    held = {str(name): list(cells) for name, cells in value.items()}
    if len({len(cells) for cells in held.values()}) > 1:
        lengths = ", ".join(f"{name} {len(cells)}" for name, cells in held.items())
        raise _no_table(call, f"the columns have different lengths ({lengths})")
    chosen = names or list(held)
    for name in chosen:
        if name not in held:
            raise _no_table(call, f"there is no column {name!r}, only {listed(held)}")
    return _checked_table(call, chosen, list(zip(*(held[name] for name in chosen), strict=True)))


def _by_row(call: str, rows: list[Any], names: list[str] | None) -> Table:
    if rows and all(isinstance(row, Mapping) for row in rows):
        texts = [{str(key): cell for key, cell in row.items()} for row in rows]
        names = names or list(dict.fromkeys(key for row in texts for key in row))
        cells = [tuple(row.get(name) for name in names) for row in texts]
        return _checked_table(call, names, cells)
    if names is None:
        raise _no_table(call, "the rows have no column names")
    for row in rows:
        if isinstance(row, Mapping) or not _is_sequence(row):
            raise _no_table(call, f"{kind_of(row)} is not a row")
    return _checked_table(call, names, [tuple(row) for row in rows])


def _checked_table(call: str, names: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Table:
    columns = tuple(str(name) for name in names)
    if not columns or len(set(columns)) < len(columns):
        raise _no_table(call, f"the columns {list(columns)} must be some, each of its own name")
    cells = []
    for at, row in enumerate(rows):
        if len(row) != len(columns):
            raise _no_table(
                call, f"row {at} has {len(row)} values, but there are {len(columns)} columns"
            )
        cells.append(tuple(map(_cell, row)))
    return Table(columns, tuple(cells))


def _cell(value: Any) -> Cell:
    is_scalar = isinstance(value, np.generic) or (isinstance(value, Tensor) and value.numel() == 1)
    cell: Any = value.item() if is_scalar else value
    return cell if cell is None or type(cell) in (str, int, float, bool) else str(cell)


# Any of them


def as_array(call: str, value: Any) -> NDArray[Any]:
    """Return real numbers as an array on the host."""
    if type(value).__name__ == "DTensor":
        raise ConfigurationError(
            "sharded-media",
            f"{call}: the tensor is sharded, but only the first process logs: call "
            "`.full_tensor()` on all processes and log the result.",
        )
    if isinstance(value, Tensor):
        tensor = value.detach()
        tensor = tensor.to_dense() if tensor.is_sparse else tensor
        tensor = tensor.dequantize() if tensor.is_quantized else tensor
        if tensor.is_floating_point() and tensor.element_size() < 4:
            tensor = tensor.float()
        value = tensor.cpu().resolve_conj().numpy()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise ConfigurationError(
            "not-real-numbers",
            f"{call}: {kind_of(value)} does not contain real numbers: pass a tensor or array.",
        )
    return array

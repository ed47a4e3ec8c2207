"""What users log besides numbers, turned into `Images`, `Histogram` and `Table`: tensors, arrays,
pictures, frames."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ConfigurationError
from .media import Cell, Histogram, Images, Table

Range = tuple[float, float]
CHANNELS = (1, 3, 4)
TOLERANCE = 1e-3  # of floats that should be from 0 to 1, as resampling leaves them
ACCEPTED = (
    "an image is a tensor or array of shape (C, H, W), (H, W) or (H, W, C) with 1, 3 or 4 "
    "channels, of uint8 or of floats from 0 to 1, or a PIL image"
)


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
        raise ConfigurationError(
            f"{call}: {_kind(value)} is not an image{_instead_of_image(value)}; {ACCEPTED}."
        )
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
    elif (
        isinstance(value, str)
        or type(value).__module__.startswith("PIL.")
        or not isinstance(value, Iterable)
    ):
        raise ConfigurationError(
            f"{call}: {_kind(value)} is not several images: pass a batch (N, C, H, W) or a list, "
            "or use log_image."
        )
    read = [read_image(f"{call}, image {at}", image, value_range) for at, image in enumerate(value)]
    if not read:
        raise ConfigurationError(f"{call}: it contains no image.")
    return [pixels for pixels, _ in read], captions, sum(bad for _, bad in read)


def check_range(call: str, value_range: Any) -> Range | None:
    """Return the range of values that was given, as two numbers, or None."""
    if value_range is None:
        return None
    try:
        low, high = (float(bound) for bound in value_range)
    except (TypeError, ValueError):
        low = 0.0
        high = 0.0
    if not -np.inf < low < high < np.inf:
        raise ConfigurationError(
            f"{call}: value_range={value_range!r}: pass the values that become black and white, "
            "such as (-1, 1)."
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
    if isinstance(captions, str) or not isinstance(captions, Iterable):
        raise ConfigurationError(
            f"{call}: captions={captions!r:.60}: pass a list with one string per image."
        )
    texts = [str(caption) for caption in captions]
    if len(texts) != count:
        raise ConfigurationError(
            f"{call}: there are {count} images and {len(texts)} captions: pass one caption per "
            "image."
        )
    return texts


def draw_figure(call: str, figure: Any) -> bytes:
    """Return a figure of matplotlib, or the figure of axes, as a PNG file."""
    owner = figure if hasattr(figure, "savefig") else getattr(figure, "figure", None)
    if owner is None or not hasattr(owner, "savefig"):
        hint = (
            "use log_image"
            if isinstance(figure, (Tensor, np.ndarray))
            else ("for pictures of other libraries use log_image")
        )
        raise ConfigurationError(
            f"{call}: {_kind(figure)} is not a figure: pass a matplotlib figure or its axes; "
            f"{hint}."
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
        raise ConfigurationError(f"{call}: {_kind(value)}{_instead_of_shape(shape)}; {ACCEPTED}.")
    array = as_array(call, value)
    if len(shape) == 2:
        return array
    is_first = shape[0] in CHANNELS
    is_last = shape[2] in CHANNELS
    if is_first and (isinstance(value, Tensor) or not is_last):  # of both, each library's own order
        array = np.moveaxis(array, 0, -1)
    elif not is_last:
        raise ConfigurationError(f"{call}: {_kind(value)}{_instead_of_shape(shape)}; {ACCEPTED}.")
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
    bounds = (
        (-1, 1)
        if least >= -1 - TOLERANCE and most <= 1 + TOLERANCE
        else (round(least, 3), round(most, 3))
    )
    bounds = (0, 255) if least >= 0 and 1 < most <= 255 else bounds
    raise ConfigurationError(
        f"{call}: the values are from {least:.4g} to {most:.4g}, but an image has {kind}: pass "
        f"value_range=({bounds[0]:g}, {bounds[1]:g}), the values that become black and white; "
        "values outside are clipped."
    )


def _split_batch(call: str, value: Tensor | NDArray[Any]) -> Any:
    shape = tuple(value.shape)
    if len(shape) == 3 and (shape[0] in CHANNELS or shape[2] in CHANNELS):
        raise ConfigurationError(
            f"{call}: {_kind(value)} may be one image: use log_image for it, or {shape[0]} gray "
            "images: pass `images[:, None]` for them."
        )
    if len(shape) not in (3, 4):
        raise ConfigurationError(
            f"{call}: {_kind(value)} is not a batch of images: pass (N, C, H, W), (N, H, W, C), "
            f"(N, H, W) or a list{'' if len(shape) != 2 else '; for one image use log_image'}."
        )
    return value


def _instead_of_image(value: Any) -> str:
    if hasattr(value, "savefig"):
        return ", use log_figure"
    if (
        isinstance(value, str)
        or type(value).__module__ == "pathlib"
        or hasattr(value, "__fspath__")
    ):
        return ", read the file: `PIL.Image.open(path)`"
    return ": use log_images for several" if isinstance(value, (list, tuple)) else ""


def _instead_of_shape(shape: tuple[int, ...]) -> str:
    if 0 in shape:
        return " has no values"
    if len(shape) == 4:
        return " is a batch: use log_images, or take one image, `images[0]`"
    if len(shape) == 3:
        first = shape[0]
        last = shape[2]
        return (
            f" has {first} or {last} channels: log `x[0]` or `x[:3]`, or {first} gray images "
            "with log_images"
        )
    return f" has {len(shape)} dimension{'' if len(shape) == 1 else 's'}"


# Histograms


def count_values(call: str, values: Any, bins: Any) -> tuple[Histogram, int, int]:
    """Return the histogram of all values, how many there are, and how many of them are NaN or
    infinite.

    Those are not counted in any bin. Without any other value the histogram is of zero to one, and
    empty.
    """
    if type(bins) is not int or not 1 <= bins <= 10_000:
        raise ConfigurationError(f"{call}: bins={bins!r}: use a whole number from 1 to 10000.")
    flat = as_array(call, values).ravel()
    if not flat.size:
        raise ConfigurationError(f"{call}: {_kind(values)} has no values.")
    flat = flat.astype(np.float64)
    finite = flat[np.isfinite(flat)]
    if not finite.size:
        return Histogram((0.0, 1.0), (0,)), flat.size, flat.size
    edges = _edges(float(finite.min()), float(finite.max()), bins)
    counts, _ = np.histogram(finite, edges)
    return (
        Histogram(tuple(edges.tolist()), tuple(counts.tolist())),
        flat.size,
        flat.size - finite.size,
    )


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
        raise ConfigurationError(
            f"{call}: pass the values, or both edges= and counts=, as from `np.histogram`."
        )
    bounds = as_array(call, edges).astype(np.float64).ravel()
    numbers = as_array(call, counts).astype(np.float64).ravel()
    if len(bounds) != len(numbers) + 1 or not len(numbers):
        raise ConfigurationError(
            f"{call}: there are {len(bounds)} edges and {len(numbers)} counts: there must be one "
            "more edge than counts."
        )
    if not np.isfinite(bounds).all() or not (np.diff(bounds) > 0).all():
        raise ConfigurationError(f"{call}: the edges must be finite and increasing.")
    if (
        not np.isfinite(numbers).all()
        or (numbers < 0).any()
        or (numbers != np.round(numbers)).any()
    ):
        raise ConfigurationError(f"{call}: the counts must be whole numbers, 0 or more.")
    return Histogram(tuple(bounds.tolist()), tuple(int(number) for number in numbers))


# Tables


def read_table(call: str, value: Any, columns: Any) -> Table:
    """Return a table of rows under columns, a list or a mapping by columns, or a frame of pandas or
    polars."""
    if columns is not None and (isinstance(columns, str) or not isinstance(columns, Iterable)):
        raise ConfigurationError(f"{call}: columns={columns!r:.60}: pass a list of names.")
    names = None if columns is None else [str(name) for name in columns]
    if type(value).__module__.partition(".")[0] in ("pandas", "polars") and hasattr(
        value, "columns"
    ):
        value = {str(name): value[name].to_list() for name in value.columns}
    if isinstance(value, Mapping):
        return _by_column(call, value, names)
    if isinstance(value, (Tensor, np.ndarray)) and value.ndim == 2:
        value = as_array(call, value).tolist()
    if isinstance(value, str) or not isinstance(value, Iterable) or isinstance(value, Tensor):
        raise ConfigurationError(f"{call}: {_kind(value)} is not a table; {TABLES}")
    return _by_row(call, list(value), names)


TABLES = (
    "pass a list of dicts, a dict of columns, rows with columns=[...], or a pandas or polars data "
    "frame. For a string use log_text."
)


def _by_column(call: str, value: Mapping[Any, Any], names: list[str] | None) -> Table:
    if not all(
        isinstance(cells, Iterable) and not isinstance(cells, str) for cells in value.values()
    ):
        raise ConfigurationError(
            f"{call}: a dict must have one list per column: for one row pass a list that contains "
            "the dict, [{...}]."
        )
    held = {str(name): list(cells) for name, cells in value.items()}
    if len({len(cells) for cells in held.values()}) > 1:
        lengths = ", ".join(f"{name} {len(cells)}" for name, cells in held.items())
        raise ConfigurationError(f"{call}: the columns have different lengths ({lengths}).")
    chosen = names or list(held)
    if unknown := [name for name in chosen if name not in held]:
        raise ConfigurationError(
            f"{call}: there is no column {unknown[0]!r}; available: {', '.join(held)}."
        )
    return _checked_table(call, chosen, list(zip(*(held[name] for name in chosen), strict=True)))


def _by_row(call: str, rows: list[Any], names: list[str] | None) -> Table:
    if rows and all(isinstance(row, Mapping) for row in rows):
        texts = [{str(key): cell for key, cell in row.items()} for row in rows]
        names = names or list(dict.fromkeys(key for row in texts for key in row))
        return _checked_table(
            call, names, [tuple(row.get(name) for name in names) for row in texts]
        )
    if names is None:
        raise ConfigurationError(f"{call}: the rows have no column names; {TABLES}")
    if wrong := [
        row for row in rows if isinstance(row, (str, Mapping)) or not isinstance(row, Iterable)
    ]:
        raise ConfigurationError(
            f"{call}: {_kind(wrong[0])} is not a row: a row has one value per column."
        )
    return _checked_table(call, names, [tuple(row) for row in rows])


def _checked_table(call: str, names: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Table:
    columns = tuple(str(name) for name in names)
    if not columns:
        raise ConfigurationError(f"{call}: the table has no columns.")
    if len(set(columns)) < len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise ConfigurationError(
            f"{call}: there are two columns {twice!r}: give each column its own name."
        )
    cells = []
    for at, row in enumerate(rows):
        if len(row) != len(columns):
            raise ConfigurationError(
                f"{call}: row {at} has {len(row)} values, but there are {len(columns)} columns."
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
            f"{call}: the tensor is sharded, but only the first process logs: call "
            "`.full_tensor()` on all processes and log the result."
        )
    if isinstance(value, Tensor):
        tensor = value.detach()
        tensor = tensor.to_dense() if tensor.is_sparse else tensor
        tensor = (
            tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor
        )
        value = (
            tensor.cpu().resolve_conj().numpy()
            if not tensor.is_quantized
            else tensor.dequantize().cpu().numpy()
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise ConfigurationError(
            f"{call}: {_kind(value)} does not contain real numbers: pass a tensor or array."
        )
    return array


def _kind(value: Any) -> str:
    """A value in words, for errors."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and {value.dtype}"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"

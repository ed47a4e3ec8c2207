"""What a run logs besides numbers: images, histograms, texts and tables, and how they are made of
tensors, arrays, pictures and frames."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ConfigurationError, check_number
from ..text import kind_of

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
        value_range: The values that become black and white; values outside are cut off, and NaN and
            infinite ones are black. Default: 0 and 1 for floats.
    """
    if _is_picture(value):
        plain = ("1", "I", "F", "I;16", "L", "RGB", "RGBA")
        value = np.asarray(value if value.mode in plain else value.convert("RGBA"))
    shape = tuple(value.shape) if isinstance(value, Tensor | np.ndarray) else ()
    is_first = len(shape) == 3 and shape[0] in CHANNELS
    is_last = len(shape) == 3 and shape[2] in CHANNELS
    if 0 in shape or not (is_first or is_last or len(shape) == 2):
        raise ConfigurationError(
            "not-an-image",
            f"{call}: {kind_of(value)} is not an image; {ACCEPTED}. Several images go to "
            "log_images, figures to log_figure; read files with `PIL.Image.open(path)`.",
        )
    array = as_array(call, value)
    if is_first and (isinstance(value, Tensor) or not is_last):  # of both, each library's own order
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    return _as_bytes(call, array, value_range)


def _as_bytes(
    call: str, array: NDArray[Any], value_range: Range | None
) -> tuple[NDArray[np.uint8], int]:
    if array.dtype == np.uint8 and value_range is None:
        return np.ascontiguousarray(array), 0
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255), 0
    values = array.astype(np.float64)
    finite = np.isfinite(values)
    if value_range is None:
        value_range = (0.0, 255.0 if array.dtype.kind in "iu" else 1.0)
        least = values[finite].min(initial=0.0)
        most = values[finite].max(initial=0.0)
        if least < -TOLERANCE or most > value_range[1] + TOLERANCE:
            raise ConfigurationError(
                "image-values",
                f"{call}: the values are from {least:.4g} to {most:.4g}, but an image has floats "
                "from 0 to 1 or whole numbers from 0 to 255: pass value_range=(-1, 1) or other "
                "values that become black and white; values outside are clipped.",
            )
    low, high = value_range
    if not -np.inf < low < high < np.inf:
        raise ConfigurationError(
            "value-range",
            f"{call}: value_range={value_range!r}: pass the values that become black and white, "
            "such as (-1, 1).",
        )
    values[~finite] = low
    scaled = np.clip((values - low) / (high - low), 0.0, 1.0) * 255.0
    return np.round(scaled).astype(np.uint8), int(np.count_nonzero(~finite))


def read_images(
    call: str, value: Any, captions: Any, value_range: Range | None
) -> tuple[Images, int]:
    """Return the images of a batch, a list or a mapping from captions to images, with a caption for
    each, empty where none was given; and as above."""
    if isinstance(value, Mapping):
        captions = list(value) if captions is None else captions
        value = list(value.values())
    images = []
    if isinstance(value, Tensor | np.ndarray):
        # of three dimensions, the outer ones may be those of channels
        ends = {value.shape[0], value.shape[-1]} if value.ndim == 3 else set()
        if value.ndim == 4 or (value.ndim == 3 and not ends & set(CHANNELS)):
            images = list(value)
    elif _is_sequence(value) and not _is_picture(value):
        images = list(value)
    if not images:
        raise ConfigurationError(
            "not-a-batch-of-images",
            f"{call}: {kind_of(value)} is not a batch of images: pass (N, C, H, W), (N, H, W, C), "
            "(N, H, W) or a list. One image goes to log_image; a few gray images are "
            "`images[:, None]`.",
        )
    texts = [""] * len(images) if captions is None else [str(caption) for caption in captions]
    if isinstance(captions, str) or len(texts) != len(images):
        raise ConfigurationError(
            "captions",
            f"{call}: captions={captions!r:.60} for {len(images)} images: pass a list with one "
            "string per image.",
        )
    read = [
        read_image(f"{call}, image {at}", image, value_range) for at, image in enumerate(images)
    ]
    files = tuple(encode_png(pixels) for pixels, _ in read)
    return Images(files, tuple(texts)), sum(bad for _, bad in read)


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


def draw_figure(figure: Any) -> bytes:
    """Return a figure of matplotlib as a PNG file."""
    file = BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _is_picture(value: Any) -> bool:
    """Whether a value is an image of PIL, which need not be installed."""
    return type(value).__module__.startswith("PIL.")


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


# Histograms


def count_values(call: str, values: Any, bins: Any) -> tuple[Histogram, int]:
    """Return the histogram of all values that are not NaN or infinite, and how many others there
    are; without any, it is of zero to one, and empty."""
    check_number(f"{call}: bins", bins, least=1, most=10_000)
    flat = as_array(call, values).ravel().astype(np.float64)
    finite = flat[np.isfinite(flat)]
    bad = flat.size - finite.size
    if not finite.size:
        return Histogram((0.0, 1.0), (0,)), bad
    low = finite.min()
    high = finite.max()
    if high - low <= max(abs(low) * 1e-9, 1e-300):  # too close for bins between them
        width = max(0.5, abs(low) * 1e-3)
        low -= width
        high += width
    counts, edges = np.histogram(finite, bins, (low, high))
    return Histogram(tuple(edges.tolist()), tuple(counts.tolist())), bad


# Tables


def read_table(call: str, value: Any, columns: Any) -> Table:
    """Return a table of rows under columns, or of a list or a mapping by columns."""
    names = None if columns is None else [str(name) for name in columns]
    rows: list[Any] = []
    if isinstance(value, Mapping):
        names = names or [str(name) for name in value]
        try:
            rows = list(zip(*(value[name] for name in names), strict=True))
        except (KeyError, TypeError, ValueError) as error:
            raise _no_table(call, f"not one list of one length per column ({error!r})") from error
    elif _is_sequence(value):
        rows = value.tolist() if isinstance(value, Tensor | np.ndarray) else list(value)
        if rows and all(isinstance(row, Mapping) for row in rows):
            names = names or list(dict.fromkeys(name for row in rows for name in row))
            rows = [[row.get(name) for name in names] for row in rows]
    if not names or isinstance(columns, str) or len(set(names)) < len(names):
        raise _no_table(call, f"{kind_of(value)} with columns={columns!r:.60}")
    for at, row in enumerate(rows):
        if not _is_sequence(row) or len(row) != len(names):
            raise _no_table(call, f"row {at} has not a value for each of {len(names)} columns")
    return Table(tuple(names), tuple(tuple(map(_cell, row)) for row in rows))


def _no_table(call: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        "not-a-table",
        f"{call}: no table: {what}; pass a list of dicts, a dict of columns, or rows with "
        "columns=[...]. A data frame of pandas is `frame.to_dict('list')`.",
    )


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
        if tensor.is_floating_point() and tensor.element_size() < 4:  # numpy has no bfloat16
            tensor = tensor.float()
        value = tensor.cpu().numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ConfigurationError(
            "not-real-numbers",
            f"{call}: {kind_of(value)} does not contain real numbers: pass a tensor or array.",
        )
    return array

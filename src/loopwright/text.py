"""Numbers, times, sizes and lists of names as messages, tables and pages show them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

SHORT_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
LONG_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
SIZES = ("B", "kB", "MB", "GB", "TB", "PB")


def duration(seconds: float) -> str:
    """A time with its unit: three digits below a minute, then the two largest units.

    >>> duration(4.2e-5), duration(0.25), duration(7), duration(252), duration(7200)
    ('42 µs', '250 ms', '7 s', '4 min 12 s', '2 h')
    """
    if seconds < 59.95:
        for unit, size in SHORT_UNITS:
            if seconds >= size * 0.9995:
                return f"{seconds / size:.3g} {unit}"
        return "0 s"
    rest = round(seconds)
    parts: list[str] = []
    for unit, length in LONG_UNITS:
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def clock(seconds: float) -> str:
    """Whole seconds as on a clock.

    >>> clock(42.4), clock(3723), clock(180000)
    ('0:42', '1:02:03', '2 d 2:00:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}:{rest:02d}"
    days, hours = divmod(hours, 24)
    return (f"{days} d " if days else "") + f"{hours}:{minutes:02d}:{rest:02d}"


def age(seconds: float) -> str:
    """How long ago something was, in its largest unit; the clocks of machines may differ.

    >>> age(90), age(-3)
    ('1 min', '0 s')
    """
    for unit, length in LONG_UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return "0 s"


def size(num_bytes: float) -> str:
    """A number of bytes with its unit.

    >>> size(512), size(1234567)
    ('512 B', '1.23 MB')
    """
    value = float(num_bytes)
    unit = 0
    while value >= 999.5 and unit < len(SIZES) - 1:
        value /= 1000
        unit += 1
    return f"{num_bytes:.0f} B" if unit == 0 else f"{value:.3g} {SIZES[unit]}"


def number(value: float) -> str:
    """A metric with four digits; a large whole number with all of them.

    >>> number(0.25), number(1.0), number(16384.0), number(0.0000125)
    ('0.2500', '1.000', '16384', '1.250e-05')
    """
    is_whole = 1e3 <= abs(value) < 1e8 and value == int(value)
    return f"{value:.0f}" if is_whole else f"{value:#.4g}".rstrip(".")


def counted(count: float, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "epoch"), counted(2, "epoch")
    ('1 epoch', '2 epochs')
    """
    shown = count if isinstance(count, int) else f"{count:.4g}"
    return f"{shown} {noun}" if count == 1 else f"{shown} {noun}s"


def kind_of(value: object) -> str:
    """What a value is, for messages; of tensors and arrays, their shape.

    >>> kind_of(3), kind_of("a"), kind_of(None)
    ('an int', 'a str', 'a NoneType')
    """
    name = {"Tensor": "tensor", "ndarray": "array"}.get(type(value).__name__, type(value).__name__)
    article = "an" if name[:1].lower() in "aeiou" else "a"
    shape = getattr(value, "shape", None)
    return f"{article} {name}" + (f" of shape {tuple(shape)}" if isinstance(shape, tuple) else "")


def listed(names: Iterable[object], most: int = 20) -> str:
    """Names in a row; of very many, the first ones.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    texts = [str(name) for name in names]
    left = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {left} more" if left > 0 else "")


def lines_of(texts: Sequence[str], most: int = 20) -> str:
    """Texts as a list in a message, one line each; of many, only the first ones.

    >>> lines_of(["lr: 0.1 -> 0.2", "seed: 0 -> 1"], most=1)
    '\\n  - lr: 0.1 -> 0.2\\n  - and 1 more'
    """
    lines = [f"\n  - {text}" for text in texts[:most]]
    if len(texts) > most:
        lines.append(f"\n  - and {len(texts) - most} more")
    return "".join(lines)


def near_names(name: object, known: Iterable[object], *, cutoff: float = 0.5) -> list[str]:
    """Up to three of the known names that look most like this one, whatever their case."""
    lowered = {str(other).lower(): str(other) for other in known}
    wanted = str(name).lower()
    found = difflib.get_close_matches(wanted, list(lowered), n=3, cutoff=cutoff)
    ratios = {other: difflib.SequenceMatcher(None, wanted, other).ratio() for other in found}
    return [lowered[other] for other in found if ratios[other] > max(ratios.values()) - 0.1]


def nearest(name: object, known: Iterable[object], *, cutoff: float = 0.5) -> str:
    """The end of a message about an unknown name: the nearest known names, or else all of them.

    Args:
        name: The unknown name.
        known: The names that exist.
        cutoff: How similar a name must be, from 0 (anything) to 1 (equal).

    >>> nearest("widht", ["width", "depth"])
    'did you mean width?'
    >>> nearest("seed", ["width", "depth"])
    'available: depth, width.'
    """
    names = sorted({str(other) for other in known})
    near = near_names(name, names, cutoff=cutoff)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"available: {listed(names)}." if names else "there are none here."

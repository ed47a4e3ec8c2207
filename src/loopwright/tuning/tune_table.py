"""The result of `tune`: a row for each setting that was tried, what is worth it, and the lines of
code to change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import sqrt
from statistics import median
from typing import Any, Literal

LEAST_GAIN = 0.03  # of the speed: less is not worth a line of code, nor can it be told from noise
NORMAL = 1.4826  # a standard deviation, in median absolute deviations of a normal distribution

Verdict = Literal["faster", "slower", "no difference", "failed"]
WORTH_IT: dict[str, str] = {
    "faster": "yes",
    "slower": "no, slower",
    "no difference": "no difference",
    "failed": "-",
}
CHANGES_NUMBERS = ("batch_size", "precision")
TO_THE_BIT = ("workers", "pin_memory")  # the others change numbers by rounding only
WORDS = {
    "batch_size": "batch size",
    "channels_last": "channels-last",
    "fused": "fused optimizer",
    "pin_memory": "pinned memory",
}
HEADER = ("tried", "samples/s", "ratio", "worth it", "")


@dataclass(frozen=True, slots=True)
class TuningRow:
    """One try: some settings beside the present ones.

    Args:
        settings: The values that differ from the present ones, by name.
        samples_per_second: The speed; None where the settings do not work.
        ratio: The speed divided by that of the present settings, measured in turns; the median of
            these.
        spread: Twice the standard error of the ratio: a difference up to it may be chance.
        verdict: "faster", "slower", "no difference", or "failed".
        note: Why it failed, or what else is to be known.

    >>> from loopwright.tuning import TuningRow
    >>> TuningRow({"threads": 2}, 1800.0, 1.8, 0.02, "faster").label
    '2 threads'
    """

    settings: Mapping[str, Any]
    samples_per_second: float | None = None
    ratio: float | None = None
    spread: float | None = None
    verdict: Verdict = "failed"
    note: str = ""

    @property
    def label(self) -> str:
        """The settings in words; of several, how many they are."""
        return self.words if len(self.settings) == 1 else f"these {len(self.settings)} together:"

    @property
    def words(self) -> str:
        """All the settings in words."""
        return ", ".join(label_of(name, value) for name, value in self.settings.items())

    @property
    def changes_numbers(self) -> bool:
        """Whether training with these settings gives other results, by more than rounding."""
        return any(name in CHANGES_NUMBERS for name in self.settings)

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """The row of the table."""
        speed = "-" if self.samples_per_second is None else f"{self.samples_per_second:,.0f}"
        ratio = "-" if self.ratio is None else f"{self.ratio:.2f} ± {self.spread:.2f}"
        words = self.words if len(self.settings) > 1 else ""
        note = "; ".join(filter(None, (words, self.note)))
        return self.label, speed, ratio, WORTH_IT[self.verdict], note


def label_of(name: str, value: Any) -> str:
    """A setting in words: "2 workers"."""
    if name in ("workers", "threads"):
        return f"{value} {name[:-1] if value == 1 else name}"
    if name == "batch_size":
        return "batches as they are" if value is None else f"batch size {value}"
    if name == "compile":
        return "not compiled" if value is None else f'compile="{value}"'
    return str(value) if name == "precision" else f"{'' if value else 'no '}{WORDS[name]}"


def effect_of(settings: Iterable[str]) -> str:
    """Whether settings change the numbers of training, in words."""
    if any(name in CHANGES_NUMBERS for name in settings):
        return "changes the numbers"
    is_same = all(name in TO_THE_BIT for name in settings)
    return "same numbers" if is_same else "same numbers, to rounding"


def judged(
    settings: Mapping[str, Any],
    pairs: Sequence[tuple[float, float]],
    noise: float = 0.0,
    note: str = "",
) -> TuningRow:
    """The row of settings whose speed was measured in turns with the present ones: pairs of
    (present, tried).

    `noise` is the smallest spread that is believed, which is how much the present settings differ
    from themselves.
    """
    ratios = [tried / present for present, tried in pairs]
    ratio = median(ratios)
    spread = max(spread_of(ratios), noise * ratio)
    threshold = max(spread, LEAST_GAIN)
    verdict: Verdict = "no difference"
    if abs(ratio - 1) > threshold:
        verdict = "faster" if ratio > 1 else "slower"
    return TuningRow(settings, median(tried for _, tried in pairs), ratio, spread, verdict, note)


def spread_of(ratios: Sequence[float]) -> float:
    """Twice the standard error of the median of some ratios, estimated so that a single outlier
    does not count."""
    middle = median(ratios)
    return 2 * NORMAL * median(abs(ratio - middle) for ratio in ratios) / sqrt(len(ratios))


def chosen(rows: Iterable[TuningRow]) -> TuningRow | None:
    """The row to take: the fastest, or one about as fast that changes less."""
    faster = [row for row in rows if row.verdict == "faster"]
    best = max((row.ratio or 0.0 for row in faster), default=0.0)
    as_fast = [
        row for row in faster if (row.ratio or 0.0) >= best - max(LEAST_GAIN, row.spread or 0.0)
    ]
    return min(as_fast, key=_cost, default=None)


def _cost(row: TuningRow) -> tuple[bool, int, int, float]:
    """Of settings that are about as fast: numbers that change, lines to change, the size of the
    batch."""
    return (
        row.changes_numbers,
        len(row.settings),
        row.settings.get("batch_size") or 0,
        -(row.ratio or 0.0),
    )


@dataclass(frozen=True, slots=True)
class Named:
    """What the lines to change name: the class of the trainer, its models and optimizers, and the
    data."""

    trainer: str = "Trainer"
    models: Sequence[str] = ("model",)
    optimizers: Mapping[str, str] = field(default_factory=lambda: {"optimizer": "Adam"})
    is_loader: bool = False
    batch_size: int | None = None


def lines_for(settings: Mapping[str, Any], named: Named) -> list[str]:
    """The lines of code to change for some settings; `...` stands for what is there already."""
    lines = []
    if "threads" in settings:
        lines.append(f"torch.set_num_threads({settings['threads']})")
    if "channels_last" in settings:
        lines += [f"{name}.to(memory_format=torch.channels_last)" for name in named.models]
    if "fused" in settings:
        for name, kind in named.optimizers.items():
            lines.append(f"{name} = torch.optim.{kind}(..., fused=True)")
    if given := _arguments(settings, {"compile": "compile", "precision": "precision"}):
        lines.append(f"trainer = {named.trainer}(..., {given})")
    of_loader = {"workers": "num_workers", "pin_memory": "pin_memory"}
    given = _arguments(settings, of_loader)
    size = _arguments(settings, {"batch_size": "batch_size"})
    if named.is_loader and (size or given):
        lines.append(f"loader = DataLoader(..., {', '.join(filter(None, (size, given)))})")
    elif given:
        size = settings.get("batch_size", named.batch_size)
        lines.append(f"loader = DataLoader(data, {size}, shuffle=True, {given})")
        lines.append("trainer.train(loader, ...)")
    elif size:
        lines.append(f"trainer.train(..., {size})")
    return lines


def _arguments(settings: Mapping[str, Any], keywords: Mapping[str, str]) -> str:
    """Settings as arguments of a call: `precision="bf16"`."""
    given = {keyword: settings[name] for name, keyword in keywords.items() if name in settings}
    return ", ".join(
        f'{keyword}="{value}"' if isinstance(value, str) else f"{keyword}={value}"
        for keyword, value in given.items()
    )


@dataclass(frozen=True, slots=True, repr=False)
class Tuning:
    """The result of `Trainer.tune`; printed, it is a table and the lines to change.

    Args:
        present: The present settings, by name.
        samples_per_second: Their speed.
        rows: What was tried, in the order of trying.
        not_tried: The settings that were not tried, each with the reason.
        is_complete: Whether everything was tried; False where Ctrl-C or the time ended it.
        named: What the lines to change name.

    >>> from loopwright.tuning import Tuning, TuningRow
    >>> rows = (TuningRow({"batch_size": 64}, 1900.0, 1.9, 0.1, "faster"),)
    >>> tuning = Tuning({"batch_size": 32}, 1000.0, rows)
    >>> tuning.suggestion, tuning.lines
    ({'batch_size': 64}, ['trainer.train(..., batch_size=64)'])
    """

    present: Mapping[str, Any]
    samples_per_second: float | None
    rows: Sequence[TuningRow]
    not_tried: Mapping[str, str] = field(default_factory=dict)
    is_complete: bool = True
    named: Named = field(default_factory=Named)

    @property
    def best(self) -> TuningRow | None:
        """The row to take: the fastest, or one as fast that changes less; None where nothing is
        faster."""
        return chosen(self.rows)

    @property
    def best_of_same_numbers(self) -> TuningRow | None:
        """The row to take of those after which training gives the same results, up to rounding."""
        return chosen(row for row in self.rows if not row.changes_numbers)

    @property
    def suggestion(self) -> dict[str, Any]:
        """The settings that are worth changing, with their values; empty where the present ones are
        as fast."""
        return {} if self.best is None else dict(self.best.settings)

    @property
    def lines(self) -> list[str]:
        """The lines of code to change; `...` stands for what is there already."""
        return lines_for(self.suggestion, self.named)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        return {
            "present": dict(self.present),
            "samples_per_second": self.samples_per_second,
            "suggestion": self.suggestion,
            "lines": self.lines,
            "is_complete": self.is_complete,
            "not_tried": dict(self.not_tried),
            "rows": [asdict(row) for row in self.rows],
        }

    def __repr__(self) -> str:
        """A short form; `str(tuning)` is the table."""
        return f"Tuning({len(self.rows)} tried, suggestion={self.suggestion})"

    def __str__(self) -> str:
        cells = [HEADER, present_cells(self.samples_per_second), *(row.cells for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join([*(aligned(row, widths) for row in cells), "", *summary_of(self)])


def aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """A line of the table: the numbers to the right, the words to the left."""
    label, speed, ratio, worth, note = cells
    numbers = f"{speed:>{widths[1]}}  {ratio:>{widths[2]}}"
    return f"{label:<{widths[0]}}  {numbers}  {worth:<{widths[3]}}  {note}".rstrip()


def present_cells(speed: float | None) -> tuple[str, str, str, str, str]:
    """The first row of the table."""
    return "current settings", "-" if speed is None else f"{speed:,.0f}", "1", "", ""


def summary_of(
    tuning: Tuning, lines_of: Callable[[Mapping[str, Any]], list[str]] | None = None
) -> list[str]:
    """What is worth it, the lines to change, and what was not tried; `lines_of` returns the lines
    for settings."""
    words = [label_of(name, value) for name, value in tuning.present.items() if value is not False]
    lines = [f"Current settings: {', '.join(words)}."]
    lines += [
        f"Not tried: {WORDS.get(name, name)}, because {reason}."
        for name, reason in tuning.not_tried.items()
    ]
    if not tuning.is_complete:
        lines.append("Stopped early; these are the results so far.")
    best = tuning.best
    same = tuning.best_of_same_numbers
    if best is None:
        return [*lines, "Nothing is worth changing: no setting was faster by more than the noise."]
    start = "Worth changing"
    for row, effect in ((same, "; the numbers stay the same, up to rounding:"), (best, None)):
        if row is None or (effect is None and row is same):
            continue
        speed = f"{row.ratio:.2f} ± {row.spread:.2f} times as fast"
        lines.append(f"{start}, {speed}{effect or ', but the numbers change:'}")
        found = lines_for(row.settings, tuning.named)
        if lines_of is not None:
            found = lines_of(row.settings)
        lines += [f"    {line}" for line in found]
        start = "Faster still"
    if best is not same:
        if "batch_size" in best.settings:
            lines.append("Larger batches may need another learning rate.")
        lines.append("Compare the losses of a run before you adopt this.")
    return lines

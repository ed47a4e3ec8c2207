"""A run as everything that looks at runs sees it: state, progress, settings, metrics, checkpoints.

Nothing here writes or imports torch.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from ..checkpoint.inspect import CheckpointInfo, list_checkpoints
from ..checkpoint.layout import read_json
from ..errors import CheckpointError, ConfigurationError
from ..metrics.best import Mode, direction_of, first_best, headline
from ..text import counted
from .changes import UNKNOWN, flatten
from .directory import CONFIG, LOCK, MANIFEST, METRICS, is_locked, lock_host, not_a_run
from .files import read_config, read_profile
from .metrics_view import BestValue, Columns, Event, MetricsView, Point

T = TypeVar("T")
RunState: TypeAlias = Literal[
    "running", "crashed", "finished", "stopped", "interrupted", "failed", "unreadable"
]
STATES: tuple[RunState, ...] = get_args(RunState)
COUNTS = ("epoch", "step", "update", "sample")
FRESH_SECONDS = 600.0  # a run on another machine that wrote so recently is taken to be alive
HIDDEN_ENDINGS = (".code", ".samples", ".num_params", ".num_trainable", ".every", ".metric")
MAX_VALUE = 200  # characters of a text; longer ones are code or data and not settings


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run got, and the limit that ends it; None where it is not known."""

    epoch: int | None = None
    step: int | None = None
    update: int | None = None
    sample: int | None = None
    seconds: float | None = None
    limit: tuple[str, int] | None = None  # ("epoch", 10)
    # totals that the limit amounts to, and `first_epoch`
    planned: Mapping[str, int] = field(default_factory=dict)

    @property
    def fraction(self) -> float | None:
        """The completed fraction of the run, from 0 to 1; of epochs, with the part of the epoch
        under way."""
        if self.limit is None:
            return None
        unit, last = self.limit
        updates = _part(self.update, self.planned.get("update"))
        if unit != "epoch" or updates is None:
            return _part(getattr(self, unit), last)
        if self.epoch is None:
            return updates
        first = self.planned.get("first_epoch", 0)
        least = _part(self.epoch - first, last - first) or 0.0
        most = _part(self.epoch + 1 - first, last - first) or 1.0
        return min(max(updates, least), most)

    def __str__(self) -> str:
        """ "3 of 10 epochs, 30%", or "3 epochs, 15 updates" where no limit is known."""
        if self.limit is not None and self.fraction is not None:
            unit, limit = self.limit
            return f"{getattr(self, unit) or 0} of {counted(limit, unit)}, {self.fraction:.0%}"
        texts = []
        if self.epoch is not None:
            texts.append(counted(self.epoch, "epoch"))
        if self.update is not None:
            texts.append(counted(self.update, "update"))
        return ", ".join(texts) or "-"


def _part(done: float | None, total: float | None) -> float | None:
    if done is None or total is None:
        return None
    return min(done / total, 1.0) if total > 0 else 1.0


class Run:
    """A recorded run, read only: state, progress, settings, metrics and checkpoints.

    Each part is read at its first use and then kept; make another `Run` to see later changes. Torch
    is not imported.

    Args:
        path: The run directory; an error where it holds no `run.json`.

    Example:
        >>> import tempfile
        >>> from loopwright.run import MetricsStore, Run, RunManifest, StepRow
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     RunManifest.collect(name="first").changed(state="finished").write(f"{folder}/run.json")
        ...     store = MetricsStore(f"{folder}/metrics.sqlite")
        ...     store.add_steps([StepRow(update=1, step=1, epoch=0, samples=8, seconds=0.1, values={"loss": 0.5})])
        ...     store.add_epoch(1, 1, {"loss": 0.5, "eval_loss": 0.25})
        ...     store.close()
        ...     run = Run(folder)
        ...     run.name, run.state, run.names, run.metrics("loss")["value"], run.best().value
        ('first', 'finished', ['eval_loss', 'loss'], [0.5], 0.25)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self.problems: list[str] = []  # what of the run cannot be read, and why
        self.manifest: Mapping[str, Any] = self._read_manifest()
        # all that the run has logged: `run.metrics("loss")` has every value of a metric
        self.metrics = MetricsView(self.path / METRICS)
        self.id = str(self.manifest.get("id") or self.path.name)
        self.reason = self._text("reason")  # why it ended
        self.device = self._text("device")
        self.interface = self._text("door")  # whose trainer it was, or "native"

    # What it is

    @cached_property
    def name(self) -> str:
        """The name of the run: from its manifest, its config, or its folder."""
        named = self.manifest.get("name") or (self.config_file or {}).get("name")
        if isinstance(named, str) and named:
            return named
        is_in_folder_of_its_name = self.path.name == self.manifest.get("id")
        return self.path.parent.name if is_in_folder_of_its_name else self.path.name

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """The tags of the run; of a mapping, `key=value`."""
        return tuple(as_tags(self.manifest.get("tags") or (self.config_file or {}).get("tags")))

    @property
    def command(self) -> str | None:
        """The command line that started the run."""
        command = self.manifest.get("command")
        if isinstance(command, list):
            return shlex.join(map(str, command)) or None
        return self._text("command")

    @property
    def changes(self) -> list[str]:
        """Changes that the program made in the middle of the run: "at update 96: optimizer.lr 0.01
        -> 0.003"."""
        texts = []
        for change in self.manifest.get("changes", []):
            values = [f"{key} {old} -> {new}" for key, (old, new) in change["values"].items()]
            texts.append(f"at update {change['update']}: {', '.join(values)}")
        return texts

    @cached_property
    def config_file(self) -> dict[str, Any] | None:
        """The resolved config that the run was started from; None for a run that a program
        started."""
        return self._tried(lambda: read_config(self.path / CONFIG), None)

    @property
    def config(self) -> dict[str, Any]:
        """The config of the run: of its file, or as its trainer was given it; empty without one."""
        return self.config_file or self.manifest.get("config", {})

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What the run was given, under dotted names, whatever the interface: its config, and the
        program's own settings."""
        return settings_of(self.manifest, self.config_file)

    @cached_property
    def profile(self) -> dict[str, Any] | None:
        """Where the time went, as `Profile` wrote it (docs/profile.md); None without, or where it
        cannot be read."""
        return self._tried(lambda: read_profile(self.path), None)

    def checkpoints(self) -> list[CheckpointInfo]:
        """The resume points of the run and then its kept models, each from old to new."""
        return list_checkpoints(self.path)

    # How it stands

    @cached_property
    def state(self) -> RunState:
        """running, finished, stopped, interrupted, failed or unreadable; crashed where the manifest
        says "running" and no process holds the lock."""
        noted: RunState = self.manifest.get("state", "unreadable")
        return "crashed" if noted == "running" and not self._is_alive() else noted

    @cached_property
    def started(self) -> datetime | None:
        """When the run was first started."""
        return _moment(self.manifest.get("created"))

    @cached_property
    def ended(self) -> datetime | None:
        """When the run ended; of a crashed run, when it wrote last."""
        if self.state == "running":
            return None
        if self.state == "crashed":
            return datetime.fromtimestamp(self.last_write, UTC)
        return _moment(self.manifest.get("updated"))

    @property
    def last_write(self) -> float:
        """When the run wrote last, in seconds of the file system's clock."""
        names = (MANIFEST, METRICS, f"{METRICS}-wal", "checkpoints")
        return max((_modified(self.path / name) for name in names), default=0.0)

    @property
    def age(self) -> float | None:
        """Seconds since the run was started."""
        return None if self.started is None else time.time() - self.started.timestamp()

    @cached_property
    def progress(self) -> RunProgress:
        """The progress in the manifest of an ended run; before that, the progress that metrics and
        checkpoints show."""
        counts: Mapping[str, Any] = self.manifest.get("progress", {})
        if self.state in ("running", "crashed"):
            counts = self._seen_counts() or counts
        whole = {name: int(counts[name]) for name in COUNTS if counts.get(name) is not None}
        planned = dict(self.manifest.get("planned", {}))
        limit = planned.pop("limit", None)
        return RunProgress(
            **whole,
            seconds=counts.get("seconds"),
            limit=None if limit is None else (limit[0], limit[1]),
            planned=planned,
        )

    @property
    def seconds(self) -> float | None:
        """How long the run trained; of a run without an end, up to its last log point."""
        if self.state not in ("running", "crashed"):
            return self.progress.seconds
        # the time since the start would count that between a crash and a resume
        place = self._tried(self.metrics.last_place, None)
        return None if place is None else place["seconds"]

    @property
    def eta(self) -> float | None:
        """Seconds until the end of a run that is going on, evaluations included, at the rate since
        this process began; None if not known."""
        fraction = self.progress.fraction
        starts = [event for event in self.happened if event.kind in ("started", "resumed")]
        if self.state != "running" or fraction is None or not starts:
            return None
        start = starts[-1]
        before = _part(start.update, self.progress.planned.get("update")) or 0.0
        if start.wall is None or fraction <= before:
            return None
        rate = (fraction - before) / (time.time() - start.wall)
        return max((1.0 - fraction) / rate, 0.0)

    # What it measured

    @property
    def names(self) -> list[str]:
        """The names of all metrics, sorted."""
        return self.metrics.names()

    @cached_property
    def step_names(self) -> list[str]:
        """The names of the metrics of steps; empty where they cannot be read, see `problems`."""
        return self._tried(lambda: self.metrics.names_of("step"), [])

    @cached_property
    def epoch_names(self) -> list[str]:
        """The names of the metrics of epochs; empty where they cannot be read, see `problems`."""
        return self._tried(lambda: self.metrics.names_of("epoch"), [])

    @cached_property
    def last(self) -> dict[str, float]:
        """The newest value of every metric; empty where they cannot be read, see `problems`."""
        return self._tried(self.metrics.latest, {})

    @property
    def happened(self) -> list[Event]:
        """All events of the run; none where they cannot be read, see `problems`."""
        return self._tried(self.metrics.events, [])

    @property
    def events(self) -> Columns:
        """Everything that happened in the run, such as checkpoints, in the columns kind, text,
        step, wall and more."""
        events = self.metrics.events()
        names = ("kind", "text", "step", "update", "epoch", "samples", "seconds", "wall", "detail")
        return Columns({name: [getattr(event, name) for event in events] for name in names})

    def best(self, name: str | None = None, mode: Mode | None = None) -> BestValue | None:
        """The best value of a metric of epochs, with its epoch; None where there is none.

        Args:
            name: The metric; by default the one that the run's best model was chosen by, or else
                its evaluation loss.
            mode: "min" or "max"; by default what the run noted or the metric's name says.
        """
        name = name or self.main_metric
        if name is None:
            return None
        if name not in self.epoch_names:
            raise self.metrics.missing(name, "epoch")
        mode = mode or self.mode_of(name)
        if mode is None:
            raise ConfigurationError(
                "no-best-direction",
                f"It is not known whether smaller or larger values of {name!r} are better: pass "
                "mode='min' or mode='max'.",
            )
        return self.best_of(name, mode)

    def best_of(self, name: str, mode: Mode | None = None) -> BestValue | None:
        """The best value of an epoch metric; None without values, or where its mode is not
        known."""
        mode = mode or self.mode_of(name)
        if mode is None or not self.epoch_names:
            return None
        best = first_best(self.metrics.epochs(name), lambda point: point.value, mode)
        return None if best is None else BestValue(name, best.value, best.at, mode)

    def last_of(self, name: str) -> Point | None:
        """The value of an epoch metric in the last epoch that measured it."""
        points = self.metrics.epochs(name) if self.epoch_names else []
        return points[-1] if points else None

    def headline(self, name: str | None = None, mode: Mode | None = None) -> BestValue | None:
        """The best value of a metric, by default the main one; the last value, without a mode,
        where it is not known which is better."""
        name = name or self.main_metric
        if name is None:
            return None
        if mode is not None or self.mode_of(name) is not None:
            return self.best_of(name, mode)
        last = self.last_of(name)
        return None if last is None else BestValue(name, last.value, last.at, None)

    @cached_property
    def metric_modes(self) -> dict[str, Mode]:
        """For each metric, "min" or "max" as the run noted it."""
        noted = self.manifest.get("metric_modes", {})
        return {name: mode for name, mode in noted.items() if mode in ("min", "max")}

    def mode_of(self, name: str) -> Mode | None:
        """Which values of a metric are better: as the run noted it, as models were kept by it, or
        as its name says."""
        return self.metric_modes.get(name) or self._kept_by.get(name) or direction_of(name)

    @property
    def main_metric(self) -> str | None:
        """The metric that stands for the run: one that models were kept by if there is one, else
        any of its epochs.

        Of several it is one of an evaluation, a loss before others (see `headline`); of equal ones,
        that of the callback that comes first.
        """
        measured = dict.fromkeys((*self.manifest.get("watched", []), *self.epoch_names))
        names = [name for name in measured if name in self.epoch_names]
        kept_by = [name for name in names if name in self._kept_by]
        return headline(kept_by or names, self.eval_keys)

    @property
    def eval_keys(self) -> list[str]:
        """The prefixes of metrics that callbacks measured on data of their own."""
        return list(self.manifest.get("eval_keys", []))

    # As data

    def as_json(self, metric: str | None = None, mode: Mode | None = None) -> dict[str, Any]:
        """The run as commands print it and the page shows it; times are in ISO format.

        Args:
            metric: The metric of the entry `metric`; by default the main one.
            mode: Which values of that metric are better.
        """
        progress = self.progress
        main = self.headline(metric, mode)
        shown = metric or self.main_metric
        values = [self.best_of(name, mode if name == shown else None) for name in self.epoch_names]
        return {
            "path": str(self.path),
            "id": self.id,
            "name": self.name,
            "state": self.state,
            "reason": self.reason,
            "tags": list(self.tags),
            "device": self.device,
            "interface": self.interface,
            "progress": {
                **{count: getattr(progress, count) for count in COUNTS},
                "limit": None if progress.limit is None else dict([progress.limit]),
                "fraction": progress.fraction,
            },
            "metric": None if main is None else asdict(main),
            "best": {
                best.name: {"value": best.value, "epoch": best.epoch, "mode": best.mode}
                for best in values
                if best is not None
            },
            "started": None if self.started is None else self.started.isoformat(),
            "ended": None if self.ended is None else self.ended.isoformat(),
            "seconds": self.seconds,
            "seconds_left": self.eta,
            "age_seconds": self.age,
            "problems": list(self.problems),
        }

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, name={self.name!r}, state={self.state!r})"

    # Reading

    def _read_manifest(self) -> Mapping[str, Any]:
        path = self.path / MANIFEST
        try:
            content = read_json(path)
        except FileNotFoundError:
            raise not_a_run(self.path) from None
        except (CheckpointError, OSError) as error:
            self.problems.append(str(error))
            return {}
        if not isinstance(content, dict):
            self.problems.append(f"{path} is not a run's manifest.")
            return {}
        entries: dict[str, Any] = {"state": "missing", **content}
        known = {key: value for key, value in entries.items() if value is not None}
        odd = [key for key in ENTRIES if key in known and not ENTRIES[key](known[key])]
        if odd:
            self.problems.append(f"{path} has other values than a run writes: {', '.join(odd)}.")
        return {key: value for key, value in known.items() if key not in odd}

    def _tried(self, read: Callable[[], T], nothing: T) -> T:
        """What is read; where that fails, `nothing`, and `problems` says why."""
        try:
            return read()
        except (CheckpointError, OSError) as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))
            return nothing

    def _text(self, entry: str) -> str | None:
        noted = self.manifest.get(entry)
        return None if noted is None else str(noted)

    @cached_property
    def _kept_by(self) -> dict[str, Mode | None]:
        """The metrics that models were kept by, and which values of each are better."""
        kept = [info for info in self.checkpoints() if info.kind == "kept"]
        return {info.metric[0]: info.mode for info in kept if info.metric}

    def _is_alive(self) -> bool:
        lock = self.path / LOCK
        is_held = is_locked(lock)
        if is_held:
            return True
        is_elsewhere = lock_host(lock) not in (None, os.uname().nodename)
        # not every file system shares locks
        is_fresh = time.time() - self.last_write < FRESH_SECONDS
        return is_fresh and (is_held is None or is_elsewhere)

    def _seen_counts(self) -> dict[str, float]:
        """The counts of a run whose manifest has no end."""
        found: list[Mapping[str, Any]] = [info.meta for info in self.checkpoints()]
        if self.epoch_names and (epoch := self.metrics.last_epoch()):
            found.append({"epoch": epoch.at, "update": epoch.update})
        if last := self._tried(self.metrics.last_step, None):
            found.append({"step": last[0], "update": last[1]})
        seen: dict[str, float] = {}
        for counts in found:
            for name in COUNTS:
                count = counts.get(name)
                if isinstance(count, int | float):
                    seen[name] = max(count, seen.get(name, count))
        return seen


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _are_counts(value: object) -> bool:
    return isinstance(value, dict) and all(
        type(count) in (int, float, NoneType) for count in value.values()
    )


def _is_plan(value: object) -> bool:
    match value:
        case {"limit": [str(unit), int() | float()], **counts}:
            return unit in (*COUNTS, "seconds") and _are_counts(counts)
    return _are_counts(value)


def _are_changes(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_change, value))


def _is_change(value: object) -> bool:
    match value:
        case {"update": _, "values": dict() as values}:
            return all(isinstance(pair, list) and len(pair) == 2 for pair in values.values())
    return False


DICTS = (
    *("fingerprint", "arguments", "config", "data", "metric_modes"),
    *("num_parameters", "compiled", "packages", "hardware"),
)
# the entries of the manifest that are looked into, and what they must be: anybody may have written it
ENTRIES: dict[str, Callable[[object], bool]] = {
    "state": lambda value: value in STATES and value not in ("crashed", "unreadable"),
    "progress": _are_counts,
    "planned": _is_plan,
    "changes": _are_changes,
    **dict.fromkeys(("eval_keys", "watched"), _are_texts),
    **dict.fromkeys(DICTS, lambda value: isinstance(value, dict)),
}


def as_tags(given: object) -> list[str]:
    """Tags as a config gives them: a text, a list, or a mapping, of which each is `key=value`."""
    if isinstance(given, Mapping):
        return [f"{key}={value}" for key, value in given.items()]
    if isinstance(given, list | tuple):
        return [str(tag) for tag in given]
    return [] if given is None else [str(given)]


def find_runs(root: str | os.PathLike[str]) -> list[Path]:
    """The run directories in a folder and its subfolders, sorted; the folders inside a run are not
    searched.

    Args:
        root: The folder, such as "runs".

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from loopwright.run import RunManifest, find_runs
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     (Path(folder) / "a").mkdir()
        ...     RunManifest.collect().write(f"{folder}/a/run.json")
        ...     [path.name for path in find_runs(folder)]
        ['a']
    """
    return sorted(_walk(Path(root).absolute(), set()))


def newest_first(root: str | os.PathLike[str]) -> list[Run]:
    """The runs below a folder, the newest first; none where there is no such folder."""

    def age(run: Run) -> tuple[float, str]:
        return 0.0 if run.started is None else run.started.timestamp(), str(run.path)

    return sorted(map(Run, find_runs(root)), key=age, reverse=True)


def _walk(folder: Path, seen: set[str]) -> Iterator[Path]:
    real = os.path.realpath(folder)
    if real in seen:  # links may lead in circles
        return
    seen.add(real)
    if (folder / MANIFEST).is_file():
        yield folder
        return
    try:
        inside = [
            entry.path
            for entry in os.scandir(folder)
            if entry.is_dir() and not entry.name.startswith(".")
        ]
    except (PermissionError, FileNotFoundError):  # others' folders, and those removed while we look
        return
    for path in sorted(inside):
        yield from _walk(Path(path), seen)


def settings_of(manifest: Mapping[str, Any], config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings of a run under dotted names.

    A run of a config has the entries of that. Any other has the arguments of its trainer,
    optimizers and schedules with their options, batch sizes and limits, and what the user recorded
    as `config=`; an entry of that with the name of an argument and another value is called
    `config.<name>`.
    """
    if config is not None:
        settings = {key: value for key, value in flatten(config).items() if _is_short(value)}
        return settings | compile_choice(manifest)
    settings = _program_settings(manifest)
    for key, value in flatten(manifest.get("config", {})).items():
        is_other = key in settings and settings[key] != value
        settings[f"config.{key}" if is_other else key] = value
    return settings | compile_choice(manifest)


def compile_choice(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the steps of a run with `compile="step"` were compiled, which changes the last bits
    of its results."""
    choice = manifest.get("compiled", {}).get("choice")
    return {"compile.choice": choice} if choice else {}


def _program_settings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    found = {**manifest.get("fingerprint", {}), **manifest.get("arguments", {})}
    interface = {key for key in found if key.startswith("config.")}
    if interface:  # an interface's own settings say it all, in the user's words
        own = {key.removeprefix("config."): found[key] for key in found if key in interface}
        found = own | {key: found[key] for key in ("device", "num_processes") if key in found}
    limit = manifest.get("planned", {}).get("limit")
    if limit is not None:
        unit, number = limit
        found[f"max_{unit.removesuffix('s')}s"] = number
    size = manifest.get("num_parameters", {})
    if "total" in size:
        found["num_parameters"] = size["total"]
    return {key: value for key, value in found.items() if _is_setting(key, value)}


def _is_setting(key: str, value: object) -> bool:
    """Whether an entry of a program's description is a setting, rather than code, data or sizes."""
    if key == "torch" or key.endswith(HIDDEN_ENDINGS) or not _is_short(value):
        return False
    is_layer = key.startswith("model.") and ("(" in str(value) or isinstance(value, list))
    is_code = isinstance(value, str) and (value == UNKNOWN or "(Python " in value)
    return not is_layer and not is_code


def _is_short(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_VALUE
    return value is None or isinstance(value, (bool, int, float, list))


def _moment(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0

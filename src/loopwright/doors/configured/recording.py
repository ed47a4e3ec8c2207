"""What a run directory says about a run besides metrics and checkpoints: its config, code, manifest and log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...callback import Callback
from ...checkpoint.atomic import staged_file, write_bytes
from ...checkpoint.manifest import local_path
from ...config import Config
from ...config.tree import Node
from ...errors import ConfigurationError
from ...run import RunDirectory, RunManifest, update_manifest
from ...run.changes import Change, find_changes, flatten, listed
from ...run.manifest import uncommitted_diff
from ...run.reading import RunView
from ...trainer import Trainer
from ...training.resume import shown
from .config import UNITS

ROOT = "runs"

CHANGEABLE = {"name", "output_path", "resume", "tags", "vars", "sweep", "trainer.num_workers", "trainer.save_on_sigint"}
CHANGEABLE |= {f"trainer.max_{unit}" for unit in UNITS}
CHANGEABLE |= {f"trainer.{what}_every_n_{unit}" for what in ("log", "track") for unit in UNITS}


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a run goes, what it goes on from besides what is there, and what to say about it."""

    path: Path
    is_new: bool
    resume: str | Path = "auto"
    remark: str | None = None


def choose(
    output_path: str | None,
    name: str,
    run_id: str,
    resume: bool | str | Path,
    config: Mapping[str, Any],
    *,
    accept: str | None,
) -> Destination:
    """The directory for this config. A run that another process writes is never continued.

    Nor is one of another config, unless `accept`, which is what the way to do so is called, is None.
    """
    home = local_path(output_path, "output_path") if output_path is not None else Path(ROOT) / name / run_id
    if resume is False:
        return Destination(home, is_new=True)
    if resume not in ("auto", True):
        return _named(Path(str(resume)), home)
    remark = None
    for run in map(RunView, _runs_like(home) if output_path is not None else _runs_in(home.parent)):
        is_over = run.state in ("finished", "stopped")
        if run.state in ("running", "unreadable") or (is_over and output_path is None):
            continue
        changed = differences(run.config or {}, config)
        if not changed or accept is None:
            return Destination(run.path, is_new=False)
        remark = remark or (
            f"{shown(run.path)} was started with another config:{listed(changed)}\nThis is a new run; to go on with "
            f"that one and the new values, pass {accept}."
        )
    return Destination(home, is_new=True, remark=remark)


def _runs_in(folder: Path) -> list[Path]:
    """The runs of one name, newest first."""
    return sorted((path.parent for path in folder.glob("*/run.json")), reverse=True)


def _runs_like(home: Path) -> list[Path]:
    """The run in a directory, and those that had to go beside it, newest first."""
    numbered = [
        (int(path.name[len(home.name) + 1 :]), path)
        for path in home.parent.glob(f"{home.name}-[0-9]*")
        if path.name[len(home.name) + 1 :].isdecimal()
    ]
    paths = [*(path for _, path in sorted(numbered, reverse=True)), home]
    return [path for path in paths if (path / "run.json").is_file()]


def _named(path: Path, home: Path) -> Destination:
    """The run or checkpoint that somebody asked to go on from."""
    if (path / "run.json").is_file():
        return Destination(path, is_new=False)
    if not path.exists():
        raise ConfigurationError(
            f"resume: {str(path)!r} does not exist: name a run directory or a checkpoint, or use 'auto' or false."
        )
    return Destination(home, is_new=True, resume=path, remark=f"Going on from {shown(path)} in a run of its own.")


def differences(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """The settings that make two configs different runs; how long and what it is called do not."""
    return find_changes(settings_of(earlier), settings_of(now), lambda before, after: before == after)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a config makes the run what it is, as dotted keys with their scalars."""
    return {key: value for key, value in flatten(config).items() if not is_changeable(key)}


def is_changeable(key: str) -> bool:
    parts = key.split(".")
    return any(".".join(parts[:count]) in CHANGEABLE for count in range(1, len(parts) + 1))


def own_modules(folder: Path) -> dict[Path, Path]:
    """Files of the loaded modules that were imported from a folder, by their paths below it."""
    folder = folder.resolve()
    found: dict[Path, Path] = {}
    beside = {path.stem for path in folder.glob("*")}  # looking closely at thousands of modules takes a while
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] not in beside or file is None or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        if path.is_relative_to(folder) and path.relative_to(folder).with_suffix("").parts in _places(name):
            found[path.relative_to(folder)] = path
    return found


def _places(name: str) -> tuple[tuple[str, ...], ...]:
    """Where the file of a module is below the folder it is imported from."""
    parts = tuple(name.split("."))
    return parts, (*parts, "__init__")


def check_modules(folder: Path, destination: Path) -> None:
    """Refuse a directory for a new run in which files of the user's stand where modules would be copied to."""
    for below, path in own_modules(folder).items():
        target = destination / below
        if target.is_file() and path != target.resolve() and target.read_bytes() != path.read_bytes():
            raise ConfigurationError(
                f"{target} is another file than the module {below} that belongs to this run, and would be written "
                "over: choose another `output_path`."
            )


def copy_modules(folder: Path, destination: Path) -> list[str]:
    """Copy them; the names of files that were there already and have changed since."""
    changed = []
    for below, path in own_modules(folder).items():
        target, content = destination / below, path.read_bytes()
        if path == target.resolve():
            continue
        if target.is_file():
            if target.read_bytes() == content:
                continue
            changed.append(str(below))
        target.parent.mkdir(parents=True, exist_ok=True)
        with staged_file(target) as staging:
            write_bytes(staging, content)
    return changed


logger = logging.getLogger("loopwright.run")


class RunLog(Callback):
    """Tells the log of a run where it is; the log is open for as long as `train` takes.

    `record` brings a run that goes on up to date, once it is known to go on, and says what is not as it was.
    """

    def __init__(self) -> None:
        self.record: Callable[[], list[str]] | None = None

    def on_train_start(self, trainer: Trainer) -> None:
        record, self.record = self.record, None
        for remark in record() if record is not None else ():
            trainer.say(remark)
        progress = trainer.progress
        logger.info("Training from epoch %d, update %d, sample %d.", progress.epoch, progress.update, progress.sample)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        values = "  ".join(f"{name} {value:.6g}" for name, value in metrics.items())
        logger.info("Epoch %d, update %d: %s", trainer.progress.epoch, trainer.progress.update, values)

    def on_train_end(self, trainer: Trainer) -> None:
        reason = trainer.stop_reason or "the limit is reached"
        logger.info("Ended after epoch %d, update %d: %s.", trainer.progress.epoch, trainer.progress.update, reason)

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        where = f"epoch {trainer.progress.epoch}, update {trainer.progress.update}"
        if isinstance(error, Exception):
            logger.error("Failed after %s.", where, exc_info=error)
        else:
            logger.warning("Interrupted after %s: %r.", where, error)


def config_text(config: Config, name: str) -> str:
    """The resolved config as it is written: a file that runs, with its name in it and its modules beside it."""
    root = config.root
    entries = {key: child for key, child in root.value.items() if key != "modules"}
    if entries.get("name") is None or entries["name"].value is None:
        entries = {"name": Node(name, root.file, None)} | {k: v for k, v in entries.items() if k != "name"}
    return Config(Node(entries, root.file, root.line), config.folder).to_yaml()


def record_start(run: RunDirectory, config: Config, text: str, manifest: RunManifest) -> None:
    """Write down what a new run is, before anything of it happens."""
    check_modules(config.folder, run.path)
    write_text(run.config_path, text)
    copy_modules(config.folder, run.path)
    diff = uncommitted_diff(config.folder)
    if diff:
        with staged_file(run.diff_path) as staging:
            write_bytes(staging, diff)
    manifest.write(run.manifest_path)


def record_continuation(run: RunDirectory, config: Config, text: str) -> list[str]:
    """Bring config and code up to date; what is not as it was when the run began, in words."""
    changed = copy_modules(config.folder, run.path)
    write_text(run.config_path, text)
    return [f"The code has changed since the run began: {', '.join(changed)}."] if changed else []


@contextmanager
def noting_failure(run: RunDirectory) -> Iterator[None]:
    """Write down what ended a run before its first step, when no callback had heard of it yet."""
    try:
        yield
    except Exception as error:
        if RunManifest.read(run.manifest_path).state == "running":
            update_manifest(run.manifest_path, state="failed", reason=f"{type(error).__name__}: {error}")
            logger.error("Failed before the first step.", exc_info=error)
        raise


def write_text(path: Path, text: str) -> None:
    with staged_file(path) as staging:
        write_bytes(staging, text.encode())

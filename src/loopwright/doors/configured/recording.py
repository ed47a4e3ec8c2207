"""What a run directory says about a run besides metrics and checkpoints: its config, code, manifest and log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ...callback import Callback
from ...checkpoint.atomic import staged_file, write_bytes
from ...config import Config
from ...config.tree import Node
from ...run import RunDirectory, RunManifest, update_manifest
from ...run.manifest import uncommitted_diff
from ...trainer import Trainer
from .code import check_modules, copy_modules

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

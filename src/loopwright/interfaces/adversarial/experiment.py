"""The directory of an experiment, `{output_directory}/{name}_v{version}`: which one is used, what
in it a run can continue from, and the record of the epochs as one run."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import nn
from torch.optim import Optimizer

from ...callbacks.checkpoints import Checkpoints
from ...callbacks.recorder import RunRecorder
from ...checkpoint import read_checkpoint
from ...checkpoint.inspect import CheckpointInfo, look_into
from ...checkpoint.manifest import VersionError, local_path
from ...checkpoint.migrations import entry_at
from ...checkpoint.weights import load_optimizer, read_parts
from ...errors import CheckpointError, ConfigurationError
from ...metrics.progress import Progress
from ...run import RunDirectory, RunManifest, update_manifest
from ...run.metrics_view import MetricsView
from ...training.restore import compare_groups, compare_model, refuse
from .config import AdversarialConfig, Saving

if TYPE_CHECKING:
    from ...run.manifest import State
    from ...trainer import Trainer as CoreTrainer

logger = logging.getLogger("loopwright")

EPOCHS = "epochs"
# what the document calls networks, and their names on the trainer
KINDS = {"G": "gen", "D": "disc"}


def directory_of(config: AdversarialConfig, version: int | None = None) -> Path:
    common = config.common
    folder = local_path(common.output_directory, "common.output_directory")
    return folder / f"{common.experiment_name}_v{version or common.experiment_version}"


def choose_directory(config: AdversarialConfig) -> tuple[int, bool]:
    """The version of the experiment that a config asks for, with a directory, and whether the run
    in it is to be continued."""
    choice = config.train.load.continue_train
    first = config.common.experiment_version
    wanted = directory_of(config)
    if choice and wanted.is_dir():
        has_state = bool(_resumable(wanted)) or any(wanted.glob("epoch*_net*"))
        return first, choice is True or has_state
    if choice is True:
        raise ConfigurationError(
            "no-experiment",
            f"train.load.continue_train is true, but there is no experiment {wanted}. Set "
            "common.experiment_version, or continue_train to false.",
        )
    for version in count(first):
        try:
            directory_of(config, version).mkdir(parents=True)
            break
        except FileExistsError:
            if not config.save.auto_increment_version:
                raise ConfigurationError(
                    "experiment-exists",
                    f"The experiment {wanted} already exists: set save.auto_increment_version to "
                    "true for the next version, train.load.continue_train to true to continue it, "
                    "or choose another name.",
                ) from None
    return version, False


# Saved states


def find_state(directory: Path, epoch: int | str) -> Path | None:
    """The complete state after an epoch, or the "latest" that is sound; None where there is
    none."""
    if epoch != "latest":
        path = directory / EPOCHS / f"epoch{epoch}"
        return path if path.is_dir() else None
    for entry in reversed(_resumable(directory)):
        try:
            read_checkpoint(entry.path, lazy=True)
            return entry.path
        except VersionError:  # sound, and going back to an older one would undo what it holds
            raise
        except CheckpointError as error:
            logger.warning("Checkpoint %s is skipped: %s", entry.path, error)
    return None


def _resumable(directory: Path) -> list[CheckpointInfo]:
    """Saved epochs and resume points, in the order they were written: going back to an epoch makes
    it the newest."""
    entries = [*look_into(directory / EPOCHS), *look_into(directory / "checkpoints")]
    own = [entry for entry in entries if entry.manifest is not None and not entry.is_copy]
    return sorted(own, key=lambda entry: entry.order[1])


def epochs_behind(path: Path, tree: Mapping[str, Any]) -> int:
    """The number of epochs that a complete state has behind it; the one it is inside of does not
    count."""
    source = str(path)
    epoch: int = entry_at(tree, ("callbacks", "InterfaceState", "epoch"), source) or 0
    return max(epoch - 1, 0) if entry_at(tree, ("progress", "epoch_step"), source) else epoch


def nothing_saved(directory: Path, what: str, epoch: int | str) -> CheckpointError:
    """The error about a state that is not there."""
    return CheckpointError(
        "no-saved-epoch",
        f"{directory} has no {what} of epoch {epoch}: set train.load.load_epoch (or load_epoch=) to "
        "an epoch that was saved, or to 'latest'.",
    )


def load_network(
    directory: Path,
    epoch: int | str,
    kind: str,
    network: nn.Module,
    optimizer: Optimizer | None = None,
    names: Sequence[str] = (),
) -> int:
    """Load a network, and its optimizer if one is given; the epoch they are of.

    Looked for in `epoch{n}_net{kind}`, in the complete states, which come first for the "latest"
    epoch, and in a `.pth.tar` of the program that the document describes. `names` are further names
    that the network may have in a complete state. Either all of it fits, or nothing is changed.
    """
    number = _newest(directory, kind) if epoch == "latest" else int(epoch)
    exported = directory / f"epoch{number}_net{kind}"
    if not exported.exists():
        exported = exported.with_name(f"{exported.name}.pth.tar")
    whole = None if epoch != "latest" and exported.is_dir() else find_state(directory, epoch)
    tree = {} if whole is None else read_checkpoint(whole).tree
    name = next(
        (name for name in (KINDS.get(kind, kind), *names) if name in tree.get("models", ())), None
    )
    if whole is not None and name is not None:
        source = whole
        number = epochs_behind(whole, tree)
        weights = tree["models"][name]
        # the optimizer that is named after the network, as opt_gen is after gen
        own = [state for key, state in tree["optimizers"].items() if name in key.split("_")]
        state = own[0] if len(own) == 1 else None
    elif exported.exists():
        source = exported
        parts = read_parts(exported)
        is_ours = exported.is_dir()
        weights = parts.models[kind if is_ours else "model"]
        state = parts.optimizers.get(kind if is_ours else "optimizer")
    else:
        raise nothing_saved(directory, f"network {kind!r}", epoch)
    problems = compare_model(network, weights)
    if optimizer is not None and state is not None:
        problems += compare_groups(optimizer, state)
    refuse(str(source), problems)
    network.load_state_dict(weights)
    if optimizer is not None and state is not None:
        load_optimizer(optimizer, state)
    return number or 0


def _newest(directory: Path, kind: str) -> int | None:
    found = [path.name.removesuffix(".pth.tar") for path in directory.glob(f"epoch*_net{kind}*")]
    numbers = [name.removeprefix("epoch").removesuffix(f"_net{kind}") for name in found]
    return max((int(number) for number in numbers if number.isdigit()), default=None)


# The experiment as one run


class ExperimentRun(RunDirectory):
    """The directory of an experiment: this process's alone from the first epoch until the program
    ends.

    Another trainer in the same program may go on with the experiment, which ends it for the one
    before.
    """

    _open: ClassVar[dict[Path, ExperimentRun]] = {}  # of this process, by the real path

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._is_busy = False
        self._key = self.path.resolve()
        earlier = self._open.get(self._key)
        if earlier is not None and not earlier._is_busy:
            earlier.finish()

    def lock(self) -> Self:
        super().lock()
        self._is_busy = True
        if self._open.get(self._key) is not self:
            self._open[self._key] = self
            atexit.register(self._finish_at_exit)
        return self

    def unlock(self) -> None:
        """Note that an epoch is over; the lock is held until the end of the experiment."""
        self._is_busy = False

    def finish(self, state: State = "finished", reason: str | None = None) -> None:
        """Note how the experiment ended, unless that was noted when it happened, and release the
        lock."""
        is_own = self.is_locked  # not in a fork of the process that trains
        if is_own and self.has_run and RunManifest.read(self.manifest_path).state == "running":
            update_manifest(self.manifest_path, state=state, reason=reason)
        super().unlock()
        atexit.unregister(self._finish_at_exit)
        if self._open.get(self._key) is self:
            del self._open[self._key]

    def _finish_at_exit(self) -> None:
        """Finish; an exception that ends the program, between two epochs, is the reason."""
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        if error is None:
            self.finish()
        elif isinstance(error, KeyboardInterrupt):
            self.finish("interrupted", "SIGINT")
        else:
            self.finish("failed", f"{type(error).__name__}: {error}")


def recorded_progress(directory: RunDirectory) -> Progress | None:
    """How far the record of an experiment goes; None where nothing was recorded."""
    if not directory.metrics_path.exists():
        return None
    view = MetricsView(directory.metrics_path)
    place = view.last_place()
    epoch = view.last_epoch()
    if place is None:
        return None
    return Progress(
        epoch=0 if epoch is None else epoch.at,
        step=place["step"],
        update=place["update"],
        sample=place["samples"],
        seconds=place["seconds"],
    )


class EpochRecorder(RunRecorder):
    """Records epochs as the core records runs; that one is over does not end the experiment."""

    spans_calls = True

    def _close(
        self,
        trainer: CoreTrainer,
        state: State,
        reason: str | None,
        error: BaseException | None = None,
    ) -> None:
        super()._close(trainer, "running" if state == "finished" else state, reason, error)


class ResumePoints(Checkpoints):
    """Resume points inside epochs; the end of an epoch writes one only if a signal is why it
    ended."""

    def __init__(self, settings: Saving) -> None:
        super().__init__(settings.resume_updates, None, settings.resume_minutes)

    def on_loop_end(self, trainer: CoreTrainer) -> None:
        if trainer.run.is_interrupted:
            super().on_loop_end(trainer)
        elif self._store is not None:
            self._store.writer.wait()

"""The directory of an experiment: `{output_directory}/{name}_v{version}`, and what of it can be
gone on from."""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torch import nn
from torch.optim import Optimizer

from ...callbacks.checkpoints import Checkpoints
from ...callbacks.recorder import RunRecorder
from ...checkpoint import Checkpoint, read_checkpoint
from ...checkpoint.inspect import CheckpointInfo, look_into
from ...checkpoint.manifest import VersionError, local_path
from ...checkpoint.migrations import entry_at
from ...checkpoint.weights import load_optimizer, read_parts, write_parts
from ...errors import CheckpointError, ConfigurationError
from ...metrics.progress import Progress
from ...run import MetricsStore, RunDirectory, RunManifest, update_manifest
from ...training.restore import compare_groups, compare_model, listed
from .config import Config, Saving

if TYPE_CHECKING:
    from ...run.manifest import State
    from ...trainer import Trainer as CoreTrainer
    from ...training.run import TrainingRun


logger = logging.getLogger("loopwright")

EPOCHS = "epochs"


def choose_directory(config: Config) -> tuple[Path, bool]:
    """The directory that a config asks for, and whether the run in it is to be continued.

    A new experiment gets a directory of its own, and the config's version becomes that of the
    directory.
    """
    common = config.common
    choice = config.train.load.continue_train
    wanted = directory_of(config)
    if choice is True and not wanted.is_dir():
        there = ", ".join(f"v{number}" for number in versions(config)) or "none"
        raise ConfigurationError(
            "no-experiment",
            f"train.load.continue_train is true, but there is no experiment {wanted}; existing "
            f"versions: {there}. Set common.experiment_version, or continue_train to false.",
        )
    if choice and wanted.is_dir():
        return wanted, choice is True or bool(_resumable(wanted)) or any(wanted.glob("epoch*_net*"))
    if choice == "auto" or not config.save.auto_increment_version:
        if wanted.exists():
            raise ConfigurationError(
                "experiment-exists",
                f"The experiment {wanted} already exists: set save.auto_increment_version to true "
                "for the next version, train.load.continue_train to true to continue it, or choose "
                "another name.",
            )
        wanted.mkdir(parents=True)
        return wanted, False
    while True:  # another process may take the number first
        try:
            directory_of(config).mkdir(parents=True)
            return directory_of(config), False
        except FileExistsError:
            common.experiment_version = max(versions(config)) + 1


def discard_unused(directory: Path) -> None:
    """Remove the directory of an experiment that never began: a first copy of its config, and empty
    folders."""
    content = list(directory.iterdir())
    folders = [path for path in content if path.is_dir()]
    files = {path.name for path in content if not path.is_dir()}
    if files <= {"train1_config.json"} and not any(any(folder.iterdir()) for folder in folders):
        for folder in folders:
            folder.rmdir()
        (directory / "train1_config.json").unlink(missing_ok=True)
        directory.rmdir()


def directory_of(config: Config) -> Path:
    common = config.common
    return (
        local_path(common.output_directory, "common.output_directory")
        / f"{common.experiment_name}_v{common.experiment_version}"
    )


def versions(config: Config) -> list[int]:
    """The numbers of the versions that there are, as numbers: 10 comes after 9."""
    name = re.compile(re.escape(config.common.experiment_name) + r"_v(\d+)")
    folder = Path(config.common.output_directory)
    found = (name.fullmatch(path.name) for path in (folder.iterdir() if folder.is_dir() else ()))
    return sorted(int(match[1]) for match in found if match)


def epoch_path(directory: Path, epoch: int) -> Path:
    """Where the complete state after an epoch is kept."""
    return directory / EPOCHS / f"epoch{epoch}"


def read_state(directory: Path, epoch: int | str) -> Checkpoint | None:
    """The complete state after an epoch, or the "latest" that is sound; None where there is
    none."""
    if epoch != "latest":
        path = epoch_path(directory, int(epoch))
        return read_checkpoint(path) if path.is_dir() else None
    for entry in reversed(_resumable(directory)):
        try:
            return read_checkpoint(entry.path)
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


def epochs_behind(tree: Mapping[str, Any], source: str) -> int:
    """The number of epochs that a complete state has behind it; the one it is inside of does not
    count."""
    epoch: int = entry_at(tree, ("callbacks", "InterfaceState", "epoch"), source) or 0
    return max(epoch - 1, 0) if entry_at(tree, ("progress", "epoch_step"), source) else epoch


def saved_epochs(directory: Path) -> list[int]:
    """Numbers of the epochs whose complete state is kept."""
    there = (entry for entry in look_into(directory / EPOCHS) if entry.manifest is not None)
    found = (re.fullmatch(r"epoch(\d+)", entry.name) for entry in there)
    return sorted(int(match[1]) for match in found if match)


# what the document calls networks, and their names on the trainer
KINDS = {
    "G": "gen",
    "D": "disc",
}


def save_network(
    path: Path, network: nn.Module, optimizer: Optimizer | None, kind: str, epoch: int
) -> None:
    """Write a network, and its optimizer if one is given, under the document's name of it."""
    write_parts(
        path, {kind: network}, {} if optimizer is None else {kind: optimizer}, meta={"epoch": epoch}
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

    Looked for in `epoch{n}_net{kind}`, in the complete states, and in a `.pth.tar` of the program
    that the document describes. `names` are further names that the network may have in a complete
    state.
    """
    number, weights, state, source = _find(directory, epoch, kind, [KINDS.get(kind, kind), *names])
    problems = [f"{kind}: {problem}" for problem in compare_model(network, weights)]
    if optimizer is not None and state is not None:
        problems += [
            f"optimizer of {kind}: {problem}" for problem in compare_groups(optimizer, state)
        ]
    if problems:
        raise CheckpointError(
            "network-mismatch",
            f"{source} does not match this network; nothing was loaded:{listed(problems)}\n"
            "Build the network with the settings in train1_config.json of the run that wrote the "
            f"checkpoint, or pass load_checkpoint the network that was saved as {kind!r}.",
        )
    network.load_state_dict(weights)
    if optimizer is not None and state is not None:
        load_optimizer(optimizer, state)
    return number


def _find(
    directory: Path, epoch: int | str, kind: str, names: Sequence[str]
) -> tuple[int, Any, Any, Path]:
    """The epoch, the weights, the optimizer's state or None, and where they were found."""
    number = _newest(directory, kind) if epoch == "latest" else int(epoch)
    exported = directory / f"epoch{number}_net{kind}"
    if epoch != "latest" and exported.is_dir():
        return int(epoch), *_read_network(exported, kind), exported
    whole = read_state(directory, epoch)
    models = {} if whole is None else entry_at(whole.tree, ("models",), str(whole.path))
    name = next((name for name in names if name in models), None)
    if whole is not None and name is not None:
        return (
            epochs_behind(whole.tree, str(whole.path)),
            models[name],
            _optimizer_of(whole.tree, name),
            whole.path,
        )
    if number is not None and exported.is_dir():
        return number, *_read_network(exported, kind), exported
    foreign = exported.with_name(f"{exported.name}.pth.tar")
    if number is not None and foreign.is_file():
        return number, *_read_network(foreign, kind), foreign
    there = sorted({path.name.split(".")[0] for path in directory.glob(f"epoch*_net{kind}*")})
    there += [f"epoch{saved}" for saved in saved_epochs(directory)]
    raise CheckpointError(
        "no-saved-network",
        f"{directory} has no network {kind!r} of epoch {epoch}; saved epochs: "
        f"{', '.join(there) or 'none'}. Set train.load.load_epoch (or load_epoch=) to one of them.",
    )


def _read_network(path: Path, kind: str) -> tuple[Any, Any]:
    """The weights and the optimizer's state, or None, from a directory of `save_network` or a
    `.pth.tar`."""
    parts = read_parts(path)
    model, optimizer = (kind, kind) if path.is_dir() else ("model", "optimizer")
    return entry_at(parts.tree, ("models", model), str(path)), parts.optimizers.get(optimizer)


def _optimizer_of(tree: Mapping[str, Any], name: str) -> Any:
    """The state of the optimizer that is named after a network, as opt_gen is after gen."""
    optimizers = tree.get("optimizers", {})
    found = [key for key in optimizers if name in key.split("_")]
    return optimizers[found[0]] if len(found) == 1 else None


def _newest(directory: Path, kind: str) -> int | None:
    found = (
        re.fullmatch(rf"epoch(\d+)_net{re.escape(kind)}(?:\.pth\.tar)?", p.name)
        for p in directory.glob("epoch*")
    )
    return max((int(match[1]) for match in found if match), default=None)


_open: dict[Path, ExperimentRun] = {}  # by the real path, of which there is one


class ExperimentRun(RunDirectory):
    """The directory of an experiment: this process's alone from the first epoch until the program
    ends.

    Another trainer in the same program may go on with the experiment, which ends it for the one
    before.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._is_busy = False
        self._key = self.path.resolve()
        earlier = _open.get(self._key)
        if earlier is not None and not earlier._is_busy:
            earlier.finish()

    def lock(self) -> Self:
        super().lock()
        self._is_busy = True
        if _open.get(self._key) is not self:
            _open[self._key] = self
            atexit.register(self._finish_at_exit)
        return self

    def unlock(self) -> None:
        """Note that an epoch is over; the lock is held until the end of the experiment."""
        self._is_busy = False

    def finish(self, state: State = "finished", reason: str | None = None) -> None:
        """Note how the experiment ended, unless that was noted when it happened, and release the
        lock."""
        is_own = self._lock.is_held  # not in a fork of the process that trains
        if is_own and self.has_run and RunManifest.read(self.manifest_path).state == "running":
            self._note_end(
                update_manifest(self.manifest_path, state=state, reason=reason), state, reason
            )
        super().unlock()
        atexit.unregister(self._finish_at_exit)
        if _open.get(self._key) is self:
            del _open[self._key]

    def _note_end(self, manifest: RunManifest, state: State, reason: str | None) -> None:
        """Add the end to the events of the experiment."""
        if not self.metrics_path.exists():
            return
        at = manifest.progress or {}
        update, step, epoch, samples = (
            int(at.get(name, 0)) for name in ("update", "step", "epoch", "sample")
        )
        store = MetricsStore(self.metrics_path)
        place = (update, step, epoch, samples, float(at.get("seconds", 0.0)))
        store.add_event("signal" if state == "interrupted" else state, reason or "", place=place)
        store.close()

    def _finish_at_exit(self) -> None:
        # what ends the program, if anything
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        try:
            if error is None:
                self.finish()
            elif isinstance(error, KeyboardInterrupt):
                self.finish("interrupted", "SIGINT")
            else:
                self.finish("failed", f"{type(error).__name__}: {error}")
        except (CheckpointError, OSError) as problem:
            logger.warning(
                "The end of the experiment in %s could not be recorded: %s", self.path, problem
            )


@dataclass(frozen=True, slots=True)
class Recorded:
    """The record of an experiment: how far it went, and its metrics: of steps by name, of epochs by
    epoch."""

    progress: Progress
    steps: Mapping[str, Sequence[tuple[int, float]]]
    epochs: Mapping[int, Mapping[str, float]]

    def give_to(self, run: TrainingRun) -> None:
        """Let a run that has not begun count on from the end of the record."""
        run.start_after(
            self.progress, [self.epochs.get(epoch + 1, {}) for epoch in range(self.progress.epoch)]
        )
        for name, points in self.steps.items():
            run.history.add_points(name, points)


def read_recorded(run: RunDirectory) -> Recorded | None:
    """What was recorded of an experiment; None where nothing was."""
    if not run.metrics_path.exists():
        return None
    store = MetricsStore(run.metrics_path, read_only=True)
    try:
        step_rows = store.steps()
        epoch_rows = store.epochs()
    finally:
        store.close()
    steps: dict[str, list[tuple[int, float]]] = {}
    epochs: dict[int, dict[str, float]] = {}
    for _, step, name, value in step_rows:
        steps.setdefault(name, []).append((step, value))
    for epoch, _, name, value in epoch_rows:
        epochs.setdefault(epoch, {})[name] = value
    last = max((row[1] for row in step_rows), default=0)
    update = max((row[0] for row in step_rows), default=last)
    counted = RunManifest.read(run.manifest_path).progress if run.has_run else {}
    sample = int(counted.get("sample", 0))
    seconds = float(counted.get("seconds", 0.0))
    epoch = max(epochs, default=0)
    progress = Progress(epoch=epoch, step=last, update=update, sample=sample, seconds=seconds)
    return Recorded(progress, steps, epochs)


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
            self._store.wait()

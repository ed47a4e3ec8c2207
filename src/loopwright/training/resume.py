"""Find the run that a `train` call belongs to, and restore the checkpoint that it continues
from."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint, CheckpointStore
    from ..data.open import Stream
    from ..run.changes import Change
    from .restore import Restore
    from .run import TrainingRun


class Origin(NamedTuple):
    """The request of a `train` call: resume the newest checkpoint, a given one, or none; and accept
    changes or not."""

    path: Path | None = None
    is_fresh: bool = False
    accepts_changes: bool = False

    @classmethod
    def checked(cls, resume: bool | str | Path, changes: str) -> Origin:
        """The arguments of `train`."""
        if changes not in ("refuse", "accept"):
            raise ConfigurationError(
                "unknown-changes", f"changes={changes!r}: use 'refuse' or 'accept'."
            )
        path = None if isinstance(resume, bool) or resume == "auto" else Path(resume)
        return cls(path, resume is False, changes == "accept")


class Resumed(NamedTuple):
    """The checkpoint that a run continues from, the time it was written, and whether the program
    has changed since."""

    path: Path
    created: datetime
    is_changed: bool = False


def restore_run(run: TrainingRun, stream: Stream, origin: Origin) -> Resumed | None:
    """Open the run directory and restore the newest valid checkpoint, or the given one.

    A fresh start opens a directory of its own beside one that already holds a run.
    """
    is_later = run.call.number > 1 and origin.path is None
    _identify(run, stream, is_later=is_later)
    if is_later:
        if run.files.directory is not None and run.runtime.is_main:
            run.files.directory.lock()
        return None
    if run.files.run_dir is not None:
        stream.check_resumable()
        _open_directory(run, is_fresh=origin.is_fresh)
    if origin.path is None and (origin.is_fresh or run.files.directory is None):
        return None
    return _load(run, origin)


def _identify(run: TrainingRun, stream: Stream, *, is_later: bool) -> None:
    """Compute the fingerprint of the run; ranks compare theirs in every call, before any collective
    could deadlock."""
    is_shared = run.runtime.world > 1
    is_known = is_later and run.files.fingerprint is not None
    if is_known and not is_shared:
        return
    from .fingerprint import check_ranks, describe_program

    description = describe_program(
        run, stream, looks_at_samples=run.files.run_dir is not None or is_shared
    )
    check_ranks(run, description)
    if not is_known:
        run.files.fingerprint = description


def _open_directory(run: TrainingRun, *, is_fresh: bool) -> None:
    from ..run import RunDirectory

    files = run.files
    assert files.run_dir is not None
    if not run.runtime.is_main:
        files.directory = RunDirectory(run.runtime.broadcast_object(None))
    elif is_fresh:
        files.directory = RunDirectory.fresh(files.run_dir)
    else:
        files.directory = RunDirectory(files.run_dir).lock()
    path = files.directory.path
    if run.runtime.is_main:
        run.runtime.broadcast_object(path)
    if path != files.run_dir.absolute():
        run.say(f"{files.run_dir} already contains a run; the new run is in {path}.")
        files.run_dir = path


def _load(run: TrainingRun, origin: Origin) -> Resumed | None:
    """Restore a given checkpoint, or the newest of the run; discard checkpoints of later updates,
    and damaged ones."""
    directory = run.files.directory
    if origin.path is None:
        # a new run does not import the modules that read checkpoints
        assert directory is not None
        has_any = run.runtime.is_main and any(directory.checkpoints.iterdir())
        if not run.runtime.broadcast_object(has_any):
            return None
    from ..checkpoint import CheckpointStore, read_checkpoint
    from ..checkpoint.manifest import read_manifest

    store = None if directory is None else CheckpointStore(directory.checkpoints)
    if origin.path is None:
        checkpoint = _find_newest(run, store)
    elif origin.path.exists():
        checkpoint = read_checkpoint(origin.path, lazy=run.runtime.world > 1)
    else:
        raise ConfigurationError(
            "no-checkpoint-there",
            f"resume={str(origin.path)!r} does not exist: pass a checkpoint directory, 'auto' to "
            "continue the run in `run_dir`, or False to start over.",
        )
    if checkpoint is None:
        return None
    is_changed = restore_checkpoint(run, checkpoint, origin)
    run.runtime.barrier("resuming")
    if store is not None and run.runtime.is_main:
        store.discard(after_update=run.progress.update)
        store.discard_damaged()
    created = datetime.fromisoformat(read_manifest(checkpoint.path).created)
    return Resumed(checkpoint.path, created, is_changed)


def _find_newest(run: TrainingRun, store: CheckpointStore | None) -> Checkpoint | None:
    """Return the newest valid checkpoint of the run, as rank 0 finds it."""
    from ..checkpoint import read_checkpoint

    assert store is not None
    check = run.components.finite
    newest = store.newest(lazy=run.runtime.world > 1, check=check) if run.runtime.is_main else None
    found = run.runtime.broadcast_object(None if newest is None else newest.path)
    return None if found is None else newest or read_checkpoint(found, verify=False, lazy=True)


def restore_checkpoint(run: TrainingRun, checkpoint: Checkpoint, origin: Origin) -> bool:
    """Restore a checkpoint of the same program, or of a changed one if accepted; return whether it
    has changed."""
    from .restore import Restore

    found = Restore(run, checkpoint.tree, str(checkpoint.path))
    changed = _compare(run, found, origin)
    if not changed:
        found.load()
        return False
    from .accept_changes import NewValues

    values = NewValues(run, found.tree, changed)
    found.load(values.kept)
    values.apply()
    return True


def continue_from(run: TrainingRun, checkpoint: Checkpoint, *, accepts_changes: bool) -> None:
    """Restore a checkpoint between two `train` calls: the next one continues there, with its random
    generators."""
    restore_checkpoint(run, checkpoint, Origin(checkpoint.path, accepts_changes=accepts_changes))
    assert run.files.pending is not None
    run.files.pending.restore_rng(run)
    progress = run.progress
    is_inside_call = progress.in_epoch and not progress.call_finished
    run.call.number = progress.call - 1 if is_inside_call else progress.call


def _compare(run: TrainingRun, found: Restore, origin: Origin) -> dict[str, Change]:
    """Return the changes of the program since a checkpoint was written, by key; raise unless they
    are accepted.

    What was accepted earlier is in the run's record already, and is not refused again.
    """
    from ..run.changes import listed, program_changes, refusal

    now = run.files.fingerprint
    saved = found.tree["fingerprint"]
    recorded = (_recorded_program(run) if origin.path is None else None) or saved
    if now is None or not isinstance(recorded, dict):
        run.say(
            f"{found.source} does not record the program that wrote it, so it was not checked "
            "whether model, optimizer, loss and data are the same."
        )
        return {}
    run.files.accepted = program_changes(recorded, now)
    if run.files.accepted and not origin.accepts_changes:
        what = found.source if origin.path is not None else f"the run in {run.files.run_dir}"
        words = run.message_names
        accept = words.accept_changes if _weights_fit(run, found.tree["models"]) else None
        raise ConfigurationError(
            "program-changed",
            refusal(what, run.files.accepted, start_over=words.start_over, accept=accept),
        )
    if run.files.accepted:
        run.say(f"Continuing with changes:{listed(run.files.accepted)}")
    return {change.key: change for change in program_changes(saved or recorded, now)}


def _recorded_program(run: TrainingRun) -> Any:
    """Return the fingerprint in the manifest of the run directory, as rank 0 reads it."""
    from ..run import RunManifest
    from ..run.directory import MANIFEST

    path = Path(run.files.run_dir or "") / MANIFEST
    is_there = run.runtime.is_main and path.is_file()
    return run.runtime.broadcast_object(RunManifest.read(path).fingerprint if is_there else None)


def _weights_fit(run: TrainingRun, saved: dict[str, Any]) -> bool:
    from .restore import compare_model

    models = run.components.models
    return set(saved) == set(models) and not any(
        compare_model(model, saved[name]) for name, model in models.items()
    )

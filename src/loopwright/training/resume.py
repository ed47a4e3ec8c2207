"""Find the run that a `train` call belongs to, and restore the checkpoint that it continues
from."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ConfigurationError
from ..runtime import dry_run

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
    if dry_run.current is not None or (
        is_later and not is_shared and run.files.fingerprint is not None
    ):
        return
    from .fingerprint import check_ranks, describe_program

    description = describe_program(
        run, stream, looks_at_samples=run.files.run_dir is not None or is_shared
    )
    check_ranks(run, description)
    if not is_later or run.files.fingerprint is None:
        run.files.fingerprint = description


def _open_directory(run: TrainingRun, *, is_fresh: bool) -> None:
    from ..run import RunDirectory

    assert run.files.run_dir is not None
    if not run.runtime.is_main:
        run.files.directory = RunDirectory(run.runtime.broadcast_object(None))
        run.files.run_dir = run.files.directory.path
        return
    run.files.directory = (
        RunDirectory.fresh(run.files.run_dir)
        if is_fresh
        else RunDirectory(run.files.run_dir).lock()
    )
    run.runtime.broadcast_object(run.files.directory.path)
    if is_fresh and run.files.directory.path != run.files.run_dir.absolute():
        run.say(
            f"{run.files.run_dir} already contains a run; the new run is in {run.files.directory.path}."
        )
        run.files.run_dir = run.files.directory.path


def _load(run: TrainingRun, origin: Origin) -> Resumed | None:
    """Restore a given checkpoint, or the newest of the run; discard checkpoints of later updates,
    and damaged ones."""
    if origin.path is None and not _finds_any(run):
        return None
    from ..checkpoint import CheckpointStore
    from ..checkpoint.manifest import read_manifest

    store = (
        CheckpointStore(run.files.directory.checkpoints)
        if run.files.directory is not None
        else None
    )
    checkpoint = _find_newest(run, store) if origin.path is None else _read_named(run, origin.path)
    if checkpoint is None:
        return None
    is_changed = restore_checkpoint(run, checkpoint, origin)
    run.runtime.barrier("resuming")
    if store is not None and run.runtime.is_main:
        store.discard(after_update=run.progress.update)
        store.discard_damaged()
    created = datetime.fromisoformat(read_manifest(checkpoint.path).created)
    return Resumed(checkpoint.path, created, is_changed)


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
    values.apply(run)
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


def _find_newest(run: TrainingRun, store: CheckpointStore | None) -> Checkpoint | None:
    """Return the newest valid checkpoint of the run, as rank 0 finds it."""
    from ..checkpoint import read_checkpoint

    assert store is not None
    check = run.components.finite
    newest = store.newest(lazy=run.runtime.world > 1, check=check) if run.runtime.is_main else None
    found = run.runtime.broadcast_object(None if newest is None else newest.path)
    return None if found is None else newest or read_checkpoint(found, verify=False, lazy=True)


def _read_named(run: TrainingRun, path: Path) -> Checkpoint:
    from ..checkpoint import read_checkpoint

    if not path.exists():
        raise ConfigurationError(
            "no-checkpoint-there",
            f"resume={str(path)!r} does not exist: pass a checkpoint directory, 'auto' to "
            "continue the run in `run_dir`, or False to start over.",
        )
    return read_checkpoint(path, lazy=run.runtime.world > 1)


def _finds_any(run: TrainingRun) -> bool:
    """Whether there is a checkpoint to resume from; a new run does not import the modules that read
    checkpoints."""
    assert run.files.directory is not None
    found = run.runtime.is_main and any(run.files.directory.checkpoints.iterdir())
    return bool(run.runtime.broadcast_object(found))


# Changes of the program


def _compare(run: TrainingRun, found: Restore, origin: Origin) -> dict[str, Change]:
    """Return the changes of the program since a checkpoint was written, by key; raise unless they
    are accepted.

    What was accepted earlier is in the run's record already, and is not refused again.
    """
    from ..run.changes import listed, program_changes, refusal

    now = run.files.fingerprint
    saved = found.tree["fingerprint"]
    saved = saved if isinstance(saved, dict) else None
    (recorded,) = (_recorded(run, "fingerprint") if origin.path is None else None) or [None]
    recorded = recorded or saved
    if now is None or recorded is None:
        run.say(
            f"{found.source} does not record the program that wrote it, so it was not checked "
            "whether model, optimizer, loss and data are the same."
        )
        return {}
    run.files.accepted = program_changes(recorded, now)
    if run.files.accepted and not origin.accepts_changes:
        what = found.source if origin.path is not None else f"the run in {run.files.run_dir}"
        accept = (
            run.message_names.accept_changes if _weights_fit(run, found.tree["models"]) else None
        )
        raise ConfigurationError(
            "program-changed",
            refusal(
                what, run.files.accepted, start_over=run.message_names.start_over, accept=accept
            ),
        )
    if run.files.accepted:
        run.say(f"Continuing with changes:{listed(run.files.accepted)}")
    return {change.key: change for change in program_changes(saved or recorded, now)}


def _recorded(run: TrainingRun, *names: str) -> list[Any] | None:
    """Return entries of the manifest in the run directory, as rank 0 reads them."""
    from ..run import RunManifest
    from ..run.directory import MANIFEST

    path = Path(run.files.run_dir or "") / MANIFEST
    found = None
    if run.runtime.is_main and path.is_file():
        manifest = RunManifest.read(path)
        found = [getattr(manifest, name) for name in names]
    recorded: list[Any] | None = run.runtime.broadcast_object(found)
    return recorded


def _weights_fit(run: TrainingRun, saved: Mapping[str, Any]) -> bool:
    from .state_mismatch import compare_model

    return set(saved) == set(run.components.models) and not any(
        compare_model(model, saved[name]) for name, model in run.components.models.items()
    )


def keep_recorded_seed(run: TrainingRun, origin: Origin) -> None:
    """Let a run of a version in which `seed_everything` did not count for a trainer continue with
    the seed it has."""
    seed = run.program._seed
    is_new = origin.is_fresh or origin.path is not None or run.files.run_dir is None
    if run.call.number or is_new or seed.source != "seed_everything":
        return
    recorded, source = _recorded(run, "seed", "seed_source") or (seed.value, seed.source)
    if source is None and recorded != seed.value:
        run.program.seed = recorded
        run.say(
            f"The run in {run.files.run_dir} began with seed {recorded}, in a version in which "
            "`seed_everything` did not count for a trainer without `seed=`: it continues with "
            f"this seed, and not with {seed.value}."
        )

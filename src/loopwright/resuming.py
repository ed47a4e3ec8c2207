"""Which run a `train` call belongs to, and the checkpoint it goes on from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .data.seeding import set_rng_state
from .errors import CheckpointError, ConfigurationError, LoopwrightError

if TYPE_CHECKING:
    from .data.stream import Stream
    from .trainer import Trainer


@dataclass(frozen=True, slots=True)
class Mark:
    """What of a checkpoint has to wait for the `train` call that goes on from it, which has the data and the lanes."""

    data: dict[str, Any] | None
    rng: dict[str, Any]
    lanes: dict[str, Any]
    eval_data: dict[str, Any] | None = None

    def enter(self, stream: Stream, eval_stream: Stream | None = None) -> None:
        if self.data is not None:
            seek(stream, self.data)
        if self.eval_data is not None and eval_stream is not None:
            seek(eval_stream, self.eval_data)
        set_rng_state(self.rng)


def seek(stream: Stream, state: dict[str, Any]) -> None:
    """Take up a saved position in the data."""
    try:
        stream.load_state_dict(state)
    except LoopwrightError:
        raise
    except Exception as error:  # a saved state is not ours to trust, nor is a user's own load_state_dict
        raise CheckpointError(
            f"The position in the data that the checkpoint holds cannot be used ({type(error).__name__}: {error}): use "
            "another checkpoint, or start a new run."
        ) from error


def restore_run(trainer: Trainer, stream: Stream, resume: bool | str | Path) -> None:
    """Open the run directory and take the newest sound checkpoint, or the one that `resume` names.

    `resume=False` opens a directory of its own beside one that already holds a run.
    """
    is_path = not isinstance(resume, bool) and resume != "auto"
    if trainer.num_calls > 1 and not is_path:
        if trainer.run is not None and trainer.runtime.is_main:
            trainer.run.lock()
        return
    if trainer.run_dir is not None:
        stream.check_resumable()
        _open_directory(trainer, is_fresh=resume is False)
    if is_path:
        _load(trainer, Path(str(resume)))
    elif resume is not False and trainer.run is not None:
        _load(trainer, None)


def _open_directory(trainer: Trainer, *, is_fresh: bool) -> None:
    from .run import RunDirectory

    assert trainer.run_dir is not None
    if not trainer.runtime.is_main:
        trainer.run = RunDirectory(trainer.runtime.broadcast_object(None))
        trainer.run_dir = trainer.run.path
        return
    trainer.run = RunDirectory.fresh(trainer.run_dir) if is_fresh else RunDirectory(trainer.run_dir).lock()
    trainer.runtime.broadcast_object(trainer.run.path)
    if is_fresh and trainer.run.path != trainer.run_dir.absolute():
        trainer.say(f"{trainer.run_dir} holds a run already; this one goes to {trainer.run.path}.")
        trainer.run_dir = trainer.run.path


def _load(trainer: Trainer, path: Path | None) -> None:
    """Restore from a checkpoint directory, or from the newest of the run if None; drop what came after it."""
    if path is None and not _finds_any(trainer):
        return
    from .checkpoint import CheckpointStore, read_checkpoint
    from .checkpoint.capture import restore

    store = CheckpointStore(trainer.run.checkpoints) if trainer.run is not None else None
    is_shared = trainer.runtime.world > 1
    if path is None:
        assert store is not None
        newest = store.newest(lazy=is_shared) if trainer.runtime.is_main else None
        found = trainer.runtime.broadcast_object(None if newest is None else newest.path)
        if found is None:
            return
        checkpoint = newest or read_checkpoint(found, verify=False, lazy=True)
    else:
        if not path.exists():
            raise ConfigurationError(
                f"resume={str(path)!r} does not exist: pass a checkpoint directory, 'auto' to continue the run in "
                "`run_dir`, or False to start over."
            )
        checkpoint = read_checkpoint(path, lazy=is_shared)
    restore(trainer, checkpoint.tree, str(checkpoint.path))
    trainer.runtime.barrier("resuming")
    if store is not None and trainer.runtime.is_main:
        store.discard(after_update=trainer.progress.update)
        store.discard_damaged()


def _finds_any(trainer: Trainer) -> bool:
    """Whether there is something to resume from; a new run does without what reads checkpoints."""
    assert trainer.run is not None
    found = trainer.runtime.is_main and any(trainer.run.checkpoints.iterdir())
    return bool(trainer.runtime.broadcast_object(found))

"""Which run a `train` call belongs to, and the checkpoint it goes on from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.nn.parameter import is_lazy

from ..data.random import set_rng_state
from ..errors import CheckpointError, ConfigurationError, LoopwrightError
from ..optim.build import CurveSchedule
from ..runtime import dry_run

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint, CheckpointStore
    from ..data.open import Stream
    from ..run.changes import Change
    from ..trainer import Trainer


@dataclass(frozen=True, slots=True)
class Mark:
    """What of a checkpoint has to wait for the `train` call that goes on from it, which has the data and the lanes."""

    data: dict[str, Any] | None
    rng: dict[str, Any]
    lanes: dict[str, Any]
    eval_data: dict[str, Any] | None = None
    fingerprint: dict[str, Any] | None = None

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


@dataclass(frozen=True, slots=True)
class Kept:
    """Optimizers and schedules, by name, that a restore leaves as the program made them."""

    optimizers: frozenset[str] = frozenset()
    schedules: frozenset[str] = frozenset()


NOTHING_KEPT = Kept()


@dataclass(frozen=True, slots=True)
class Origin:
    """What a `train` call goes on from: the newest of its run, a checkpoint, or nothing; and if that was another."""

    path: Path | None = None
    is_fresh: bool = False
    accepts_changes: bool = False

    @classmethod
    def checked(cls, resume: bool | str | Path, changes: str) -> Origin:
        """The arguments of `train`."""
        if changes not in ("refuse", "accept"):
            raise ConfigurationError(
                f"changes={changes!r}: use 'refuse', or 'accept' to go on with a run although the program has changed."
            )
        path = None if isinstance(resume, bool) or resume == "auto" else Path(resume)
        return cls(path, resume is False, changes == "accept")


@dataclass(frozen=True, slots=True)
class Resumed:
    """The checkpoint that a run goes on from, when it was written, and whether the program was another one then."""

    path: Path
    created: datetime
    is_changed: bool = False


def restore_run(trainer: Trainer, stream: Stream, origin: Origin) -> Resumed | None:
    """Open the run directory and take the newest sound checkpoint, or the one that was named.

    A fresh start opens a directory of its own beside one that already holds a run.
    """
    is_later = trainer.num_calls > 1 and origin.path is None
    _identify(trainer, stream, is_later=is_later)
    if is_later:
        if trainer.run is not None and trainer.runtime.is_main:
            trainer.run.lock()
        return None
    if trainer.run_dir is not None:
        stream.check_resumable()
        _open_directory(trainer, is_fresh=origin.is_fresh)
    if origin.path is None and (origin.is_fresh or trainer.run is None):
        return None
    return _load(trainer, origin)


def _identify(trainer: Trainer, stream: Stream, *, is_later: bool) -> None:
    """Note what this run is; several processes compare it in every call, before any waits for another."""
    is_shared = trainer.runtime.world > 1
    if dry_run.current is not None or (is_later and not is_shared and trainer.fingerprint is not None):
        return
    from .fingerprint import check_ranks, describe_program

    description = describe_program(trainer, stream, looks_at_samples=trainer.run_dir is not None or is_shared)
    check_ranks(trainer, description)
    if not is_later or trainer.fingerprint is None:
        trainer.fingerprint = description


def _open_directory(trainer: Trainer, *, is_fresh: bool) -> None:
    from ..run import RunDirectory

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


def _load(trainer: Trainer, origin: Origin) -> Resumed | None:
    """Restore from a checkpoint directory, or from the newest of the run; drop what came after it."""
    if origin.path is None and not _finds_any(trainer):
        return None
    from ..checkpoint import CheckpointStore
    from ..checkpoint.manifest import read_manifest

    store = CheckpointStore(trainer.run.checkpoints) if trainer.run is not None else None
    checkpoint = _find_newest(trainer, store) if origin.path is None else _read_named(trainer, origin.path)
    if checkpoint is None:
        return None
    is_changed = take_up(trainer, checkpoint, origin)
    trainer.runtime.barrier("resuming")
    if store is not None and trainer.runtime.is_main:
        store.discard(after_update=trainer.progress.update)
        store.discard_damaged()
    created = datetime.fromisoformat(read_manifest(checkpoint.path).created)
    return Resumed(checkpoint.path, created, is_changed)


def take_up(trainer: Trainer, checkpoint: Checkpoint, origin: Origin) -> bool:
    """Restore a checkpoint of the same program, or of another one where that is accepted; whether it was another."""
    from ..checkpoint.migrations import complete_state
    from ..checkpoint.state import restore

    checkpoint = replace(checkpoint, tree=complete_state(checkpoint.tree, str(checkpoint.path)))
    changed = _compare(trainer, checkpoint, origin)
    if not changed:
        restore(trainer, checkpoint.tree, str(checkpoint.path))
        return False
    from .accept_changes import NewValues

    values = NewValues(trainer, checkpoint.tree, changed)
    restore(trainer, checkpoint.tree, str(checkpoint.path), kept=values.kept)
    values.apply(trainer)
    return True


def _find_newest(trainer: Trainer, store: CheckpointStore | None) -> Checkpoint | None:
    """The newest sound checkpoint of the run, which the first process chooses for all."""
    from ..checkpoint import read_checkpoint

    assert store is not None
    newest = store.newest(lazy=trainer.runtime.world > 1) if trainer.runtime.is_main else None
    found = trainer.runtime.broadcast_object(None if newest is None else newest.path)
    return None if found is None else newest or read_checkpoint(found, verify=False, lazy=True)


def _read_named(trainer: Trainer, path: Path) -> Checkpoint:
    from ..checkpoint import read_checkpoint

    if not path.exists():
        raise ConfigurationError(
            f"resume={str(path)!r} does not exist: pass a checkpoint directory, 'auto' to continue the run in "
            "`run_dir`, or False to start over."
        )
    return read_checkpoint(path, lazy=trainer.runtime.world > 1)


def _finds_any(trainer: Trainer) -> bool:
    """Whether there is something to resume from; a new run does without what reads checkpoints."""
    assert trainer.run is not None
    found = trainer.runtime.is_main and any(trainer.run.checkpoints.iterdir())
    return bool(trainer.runtime.broadcast_object(found))


# Whether it is still the same program


def _compare(trainer: Trainer, checkpoint: Checkpoint, origin: Origin) -> dict[str, Change]:
    """In what the program differs from the one that wrote a checkpoint, by key; refused unless that is accepted.

    What was accepted earlier is in the run's record already, and is not refused again.
    """
    from ..run.changes import listed, program_changes, refusal

    now, saved = trainer.fingerprint, checkpoint.tree.get("fingerprint")
    saved = saved if isinstance(saved, dict) else None
    recorded = (_recorded(trainer) if origin.path is None else None) or saved
    if now is None or recorded is None:
        trainer.say(
            f"{checkpoint.path} does not say what program wrote it: whether model, optimizer, loss and data are the "
            "same was not compared."
        )
        return {}
    trainer.accepted = program_changes(recorded, now)
    if trainer.accepted and not origin.accepts_changes:
        what = str(checkpoint.path) if origin.path is not None else f"the run in {trainer.run_dir}"
        accept = trainer.accept_changes if _weights_fit(trainer, checkpoint) else None
        raise ConfigurationError(refusal(what, trainer.accepted, start_over=trainer.start_over, accept=accept))
    if trainer.accepted:
        trainer.say(f"Going on with changes:{listed(trainer.accepted)}")
    return {change.key: change for change in program_changes(saved or recorded, now)}


def _recorded(trainer: Trainer) -> dict[str, Any] | None:
    """What the run directory says that the run is; the first process reads it for all."""
    from ..run import RunManifest

    assert trainer.run is not None
    found = None
    if trainer.runtime.is_main and trainer.run.has_run:
        found = RunManifest.read(trainer.run.manifest_path).fingerprint or None
    recorded: dict[str, Any] | None = trainer.runtime.broadcast_object(found)
    return recorded


def _weights_fit(trainer: Trainer, checkpoint: Checkpoint) -> bool:
    from ..checkpoint.fitting import compare_model

    saved = checkpoint.tree["models"]
    return set(saved) == set(trainer.models) and not any(
        compare_model(model, saved[name]) for name, model in trainer.models.items()
    )


# What is said at the start


def starting_line(trainer: Trainer, resumed: Resumed | None) -> str:
    """What is trained, where, and from which point on."""
    facts = [_device_text(trainer), _size_text(trainer), *_schedule_texts(trainer)]
    return f"{_place_text(trainer, resumed)}: {', '.join(facts)}.{_untrained_text(trainer)}"


def _place_text(trainer: Trainer, resumed: Resumed | None) -> str:
    place = None if trainer.run_dir is None else shown(trainer.run_dir)
    if resumed is None:
        return trainer.without_place if place is None else f"New run in {place}"
    progress = trainer.progress
    at = f"at epoch {progress.epoch + 1}, update {progress.update} ({age_text(resumed.created)})"
    if trainer.run is not None and trainer.run.checkpoints in resumed.path.parents:
        return f"Resuming {place} {at}"
    return f"Resuming {shown(resumed.path)} {at}" + ("" if place is None else f", new run in {place}")


def _device_text(trainer: Trainer) -> str:
    runtime = trainer.runtime
    return str(runtime.device) + (f" on {runtime.world} processes" if runtime.world > 1 else "")


def _size_text(trainer: Trainer) -> str:
    params = {id(p): p for module in trainer.modules.values() for p in module.parameters() if not is_lazy(p)}
    total = sum(p.numel() for p in params.values())
    trained = sum(p.numel() for p in params.values() if p.requires_grad)
    return f"{total:,} parameters" + (f" ({trained:,} trainable)" if trained != total else "")


def _schedule_texts(trainer: Trainer) -> Iterator[str]:
    """How often each scheduler is stepped, where the program left that to its kind."""
    for schedule in trainer.schedules.values():
        if schedule.every is None and not isinstance(schedule.scheduler, CurveSchedule):
            yield f"{type(schedule.scheduler).__name__} stepped once an {schedule.interval}"


def _untrained_text(trainer: Trainer) -> str:
    """A word about parameters that could be trained and that no optimizer has."""
    own = {id(p) for optimizer in trainer.optimizers.values() for g in optimizer.param_groups for p in g["params"]}
    named = ((f"{name}.{key}", p) for name, m in trainer.modules.items() for key, p in m.named_parameters())
    left = [name for name, param in named if param.requires_grad and id(param) not in own]
    if not left or not own:
        return ""
    more = f" and {len(left) - 3} more" if len(left) > 3 else ""
    return (
        f" No optimizer has {', '.join(left[:3])}{more}, which stay as they are: give them to an optimizer, or "
        "freeze them with requires_grad_(False)."
    )


def age_text(moment: datetime) -> str:
    """How long ago a moment was, in its largest unit."""
    seconds = max((datetime.now(UTC) - moment).total_seconds(), 0)
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return f"{int(seconds)} seconds ago"


def shown(path: Path) -> Path:
    """A path for a person: from here, where it is below."""
    here, path = Path.cwd(), path.absolute()
    return path.relative_to(here) if path.is_relative_to(here) else path

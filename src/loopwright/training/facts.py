"""What a run notes of itself when training starts: its name, config, arguments, size, and how far it is to go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from .media_log import as_plain

if TYPE_CHECKING:
    from ..metrics.progress import Limits, Progress
    from ..run.manifest import RunFacts
    from .run import TrainingRun


@dataclass(frozen=True, slots=True)
class Label:
    """What the user says of a run, to find it by: nothing of it changes the training."""

    name: str | None = None
    tags: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def checked(cls, name: Any, tags: Any, config: Any) -> Label:
        """Check the arguments of a trainer."""
        if name is not None and (not isinstance(name, str) or not name.strip()):
            raise ConfigurationError(f"name={name!r:.60}: use a text, the name of the run.")
        if tags is None or isinstance(tags, str):
            tags = () if tags is None else (tags,)
        tags = list(tags) if isinstance(tags, Iterable) and not isinstance(tags, Mapping) else [tags]
        if not all(isinstance(tag, str) for tag in tags):
            raise ConfigurationError(f"tags={tags!r:.60}: use a list of texts, such as ['baseline', 'small'].")
        if config is not None and not isinstance(config, Mapping):
            raise ConfigurationError(
                f"config is a {type(config).__name__}: pass a dict of what you want to find again, such as "
                "`config=vars(args)` or `config=dataclasses.asdict(settings)`."
            )
        return cls(name, tuple(tags), as_plain(config or {}))


def collect_facts(run: TrainingRun) -> RunFacts:
    """Return the entries of the manifest that describe a run whose data is open and whose limits are set."""
    label, facts = run.program._label, {}
    given = {"name": label.name, "tags": list(label.tags), "config": label.config}
    facts = {key: value for key, value in given.items() if value}
    return facts | {  # type: ignore[return-value]
        "door": run.program._door,
        "arguments": describe_arguments(run),
        "num_parameters": run.components.count_parameters(),
        "planned": planned_totals(run),
    }


def describe_arguments(run: TrainingRun) -> dict[str, Any]:
    """Describe the arguments of the trainer that are no part of the fingerprint: they may change in a resumed run."""
    from .fingerprint import describe_object

    flat: dict[str, Any] = {"device": str(run.runtime.device), "num_processes": run.runtime.world}
    for callback in run.program.callbacks:
        described = describe_object(f"callbacks.{type(callback).__name__}", callback)
        flat |= {key: value for key, value in described.items() if isinstance(value, (str, int, float, type(None)))}
    if run.eval_stream is not None and "batch_size" in (about := run.eval_stream.describe()):
        flat["eval_batch_size"] = about["batch_size"]
    return {key: as_plain(value) for key, value in flat.items()}


def planned_totals(run: TrainingRun) -> dict[str, Any]:
    """Return the limit that ends training first, as far as that is known, and the totals that it amounts to.

    The totals are exact where the length of an epoch is known, except that of steps cut by a limit of samples.
    """
    epoch = _Epoch.of(run)
    ends = [_end(epoch, run.progress, run.limits, unit) for unit in ("epochs", "updates", "samples")]
    known = [end for end in ends if end is not None]
    planned: dict[str, Any] = min(known, key=lambda end: end.get("update", 0)) if known else {}
    if run.limits.seconds is not None:
        planned["seconds"] = run.limits.seconds
        planned.setdefault("limit", ["seconds", run.limits.seconds])
    return planned


@dataclass(frozen=True, slots=True)
class _Epoch:
    """How long an epoch is; None where that is not known."""

    steps: int | None
    samples: int | None
    accumulate: int

    @classmethod
    def of(cls, run: TrainingRun) -> _Epoch:
        stream = run.train_stream
        steps, samples = (None, None) if stream is None else (stream.num_batches, stream.num_samples)
        return cls(steps or None, samples or None, run.program.accumulate)

    def updates(self, steps: int) -> int:
        return ceil(steps / self.accumulate)


def _end(epoch: _Epoch, now: Progress, limits: Limits, unit: str) -> dict[str, Any] | None:
    limit = getattr(limits, unit)
    if limit is None:
        return None
    name = unit.removesuffix("s")
    end: dict[str, Any] = {"limit": [name, limit], name: limit}
    if epoch.steps is None:
        return end
    done = epoch.updates(now.epoch_step)  # of this epoch
    per_epoch = epoch.updates(epoch.steps)
    size = None if epoch.samples is None else epoch.samples / epoch.steps
    if unit == "epochs":
        whole, rest = max(limit - now.epoch, 0), 0
    elif unit == "updates":
        whole, left = divmod(max(limit - now.update, 0) + done, per_epoch)
        rest = min(left * epoch.accumulate, epoch.steps)
    elif epoch.samples is not None and size is not None:
        whole, left = divmod(max(limit - now.sample, 0) + now.epoch_sample, epoch.samples)
        rest = ceil(left / size)
    else:
        return end
    steps = whole * epoch.steps + rest
    end["step"] = max(now.step - now.epoch_step + steps, now.step)
    end["update"] = max(now.update - done + whole * per_epoch + epoch.updates(rest), now.update)
    end["epoch"] = now.epoch + whole + (rest > 0)
    if size is not None:
        samples = whole * (epoch.samples or 0) + min(ceil(rest * size), epoch.samples or 0)
        end["sample"] = max(now.sample - now.epoch_sample + samples, now.sample)
    return end | {name: limit}

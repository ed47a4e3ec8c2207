"""Tiny runs of a config: its steps alone, then with all callbacks, then saved, loaded and
resumed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...callback import Callback
from ...callbacks import BestCheckpoint, BestModel, Checkpoints, PeakMemory, Throughput, TrainTime
from ...callbacks.freezing import Freeze
from ...callbacks.nonfinite import NonFiniteGuard
from ...checkpoint import snapshot
from ...checkpoint.compare import compare_trees
from ...debug.resume_check import check_resume
from ...initializers import Initializer
from ...run.reading import RunView
from ...text import near_names
from ...training.state import capture
from ..output import strict_json
from .probe import SAMPLES, Factory, Probe, SavesEach, Tiny, UnsavableStateError, repeated_loss
from .report import ConfigReport, culprit, key_of_callback

if TYPE_CHECKING:
    from ...interfaces.configured.engine import Engine


# without them, training would compute something else
ESSENTIAL = (
    Initializer,
    Freeze,
    NonFiniteGuard,
)
MAX_LISTED = 5


def check_steps(report: ConfigReport, factory: Factory) -> bool:
    """Train, evaluate and predict without callbacks; return whether training works."""
    probe = Probe()
    with report.collecting("trainer", "a small test run cannot be built") as built:
        callbacks = factory.build().run.callbacks
        extra = {i for i, callback in enumerate(callbacks) if not isinstance(callback, ESSENTIAL)}
        engine = factory.build_tiny(extra, [probe])
    if not built:
        return False
    kept = [number for number in range(len(callbacks)) if number not in extra]
    own = engine.callbacks[1 : len(kept) + 1]
    try:
        engine.train(engine.training_data(), 1, resume=False)
    except Exception as error:
        at = culprit(error, own)
        key = "trainer" if at is None else key_of_callback(report.config, callbacks, kept[at])
        report.failed(
            key, "a training step fails" if at is None else f"{type(own[at]).__name__} fails", error
        )
        return False
    report.checked.append("training steps")
    _judge(report, probe, has_schedule=bool(engine.schedules))
    if not _check_evaluation(report, engine, probe):
        return True
    with report.collecting("trainer", "a batch cannot be evaluated twice"):
        _check_inputs(report, engine, probe)
    return True


def _judge(report: ConfigReport, probe: Probe, *, has_schedule: bool) -> None:
    """Check losses, weights and gradients of the first updates; a schedule may begin with a rate of
    0."""
    if probe.nonfinite is not None:
        report.mistake(
            "trainer", f"{probe.nonfinite}.\n-> Look at the data, the loss and the learning rate."
        )
    elif not probe.is_finite:
        report.mistake(
            "model", "weights are not finite after the first updates.\n-> Lower the learning rate."
        )
    elif not probe.has_learned and (probe.largest_rate > 0 or not has_schedule):
        report.mistake(
            "model",
            "no weight has changed after the first updates.\n-> Is the learning rate 0, or the "
            "loss constant?",
        )
    if probe.without_gradient and probe.has_learned:
        names = probe.without_gradient
        listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        report.note("model", f"no gradient reaches {listed}. Is that intended?")


def _check_evaluation(report: ConfigReport, engine: Engine, probe: Probe) -> bool:
    """Evaluate and predict on every data set; return whether there is a step that evaluates."""
    measured: dict[str, float] | None = {}
    for key, dataset in engine.datasets.items():
        place = f"datasets.{key}"
        with report.collecting(place, f"data set {key!r} cannot be evaluated") as evaluated:
            measured = _evaluated(report, engine, dataset, place)
        if not evaluated:
            continue
        missing = sorted(probe.names - measured.keys()) if measured is not None else []
        if missing and measured is not None:
            report.mistake(
                "model",
                f"evaluation measures {', '.join(sorted(measured))}, but not {', '.join(missing)} "
                "as training does.\n-> Return the same outputs and losses in eval mode as in "
                "train mode.",
            )
        if engine.can_predict:
            with report.collecting(place, f"the outputs for data set {key!r} cannot be computed"):
                engine.predict(dataset)
        did = [
            *(["evaluation"] if measured is not None else []),
            *(["prediction"] if engine.can_predict else []),
        ]
        if did:
            report.checked.append(f"{' and '.join(did)} on {key}")
    return measured is not None


def _evaluated(
    report: ConfigReport, engine: Engine, dataset: Any, place: str
) -> dict[str, float] | None:
    """The metrics on a data set; None, with a note, where the trainer has no step for
    evaluation."""
    from ...interfaces.configured.checks import UpdateInEvaluationError

    try:
        return engine.evaluate(dataset)
    except UpdateInEvaluationError as error:
        report.note(
            place,
            f"this data set cannot be evaluated, which is fine if nothing evaluates it. {error}",
        )
        return None


def _check_inputs(report: ConfigReport, engine: Engine, probe: Probe) -> None:
    """Check that evaluating a batch twice gives the same loss, and that steps do not change their
    batch."""
    stream = engine._open(engine.datasets["train"], None, shuffle=False)
    stream.begin(0)
    batches = stream.take(1, SAMPLES)
    stream.close()
    if not batches:
        return
    engine.run.window.size = batches[0].size
    first, second = repeated_loss(engine, engine.prepare_batch(batches[0].value))
    if first != second and first == first:
        what = f" ({', '.join(probe.changed_inputs)})" if probe.changed_inputs else ""
        report.mistake(
            "model",
            f"the same batch evaluated twice gives different losses, {first:.6g} and "
            f"{second:.6g}.\n-> The model or the loss changes its inputs in place{what}, is "
            "random in eval mode, or depends on the number of calls: work on copies.",
        )
    elif probe.changed_inputs:
        report.note(
            "model",
            f"a step changes its batch in place: {', '.join(probe.changed_inputs)}. Callbacks see "
            "it changed.",
        )


def check_callbacks(
    report: ConfigReport, factory: Factory, folder: Path
) -> tuple[set[int], Engine | None]:
    """Train two tiny epochs with all callbacks; a callback that fails is reported and left out of
    the next try.

    Returns the positions of failing callbacks, and the engine that trained.
    """
    callbacks = factory.build().run.callbacks
    dropped: set[int] = set()
    for attempt in range(len(callbacks) + 1):
        engine = factory.build_tiny(
            dropped, [SavesEach(folder / f"states-{attempt}")], folder / f"run-{attempt}"
        )
        own = [c for c in engine.run.callbacks if not isinstance(c, Tiny | SavesEach)]
        places = [number for number in range(len(callbacks)) if number not in dropped]
        try:
            engine.train(engine.training_data(), 2, resume=False)
        except Exception as error:
            at = (
                own.index(error.owner)
                if isinstance(error, UnsavableStateError) and error.owner in own
                else None
            )
            at = culprit(error, own[: len(places)]) if at is None else at
            if at is None or at >= len(places):
                report.failed("trainer", "a small test run with all callbacks fails", error)
                return dropped, None
            dropped.add(places[at])
            key = key_of_callback(report.config, callbacks, places[at])
            report.failed(key, f"{type(callbacks[places[at]]).__name__} fails", error)
            continue
        _check_watched(
            report,
            engine,
            own[: len(places)],
            [key_of_callback(report.config, callbacks, n) for n in places],
        )
        _check_record(report, engine)
        report.checked.append(_callbacks_text(len(places)))
        return dropped, engine
    return dropped, None


def _callbacks_text(count: int) -> str:
    return "1 callback" if count == 1 else f"{count} callbacks"


def _check_watched(
    report: ConfigReport, engine: Engine, callbacks: list[Callback], keys: list[str]
) -> None:
    """Check that every metric that a callback watches was measured."""
    measured = {*engine.history.names, *engine.history.steps}
    for key, callback in zip(keys, callbacks, strict=True):
        for name in sorted(callback.required_metrics() - measured):
            near = near_names(name, sorted(measured))
            hint = f" Did you mean {near[0]!r}?" if near else ""
            report.mistake(
                key,
                f"{type(callback).__name__} watches {name!r}, which this run does not measure; it "
                f"measures: {', '.join(sorted(measured))}.{hint}",
            )


def _check_record(report: ConfigReport, engine: Engine) -> None:
    """Check that the metrics of the run can be read back."""
    assert engine.run.directory is not None
    with report.collecting("trainer", "the metrics of the run cannot be read back"):
        import json

        run = RunView(engine.run.directory.path)
        names = run.metrics.names()
        json.dumps(
            strict_json(
                {name: [point.value for point in run.metrics.steps(name)] for name in names}
            )
        )
        if not names:
            report.mistake("trainer", "the run wrote no metrics.")
        report.checked.append(f"{len(names)} metrics")


def check_saving(
    report: ConfigReport, factory: Factory, engine: Engine, dropped: set[int], folder: Path
) -> int | None:
    """Save, load into fresh objects and compare bit for bit; return the checkpoint's bytes, None on
    failure."""
    path = folder / "checkpoint"
    with report.collecting("model", "the state cannot be saved") as saved:
        engine.save(path)
    if not saved:
        return None
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    callbacks = factory.build().run.callbacks
    for _ in range(len(callbacks) + 1):
        fresh = factory.build_tiny(dropped)
        places = [number for number in range(len(callbacks)) if number not in dropped]
        own = fresh.run.callbacks[1:]
        try:
            fresh.load(path)
        except Exception as error:
            at = culprit(error, own)
            if at is None:
                report.failed("model", "the saved state cannot be loaded into new objects", error)
                return None
            dropped.add(places[at])
            key = key_of_callback(report.config, callbacks, places[at])
            report.failed(key, f"{type(own[at]).__name__} cannot load its state", error)
            continue
        _compare(report, engine, fresh)
        report.checked.append("saving and loading")
        return size
    return None


def _compare(report: ConfigReport, engine: Engine, fresh: Engine) -> None:
    first = snapshot(capture(engine.run))
    second = snapshot(capture(fresh.run))
    known = first["callbacks"].keys() & second["callbacks"].keys()
    for state in (first, second):
        for part in ("callbacks", "callback_versions"):
            state[part] = {name: state[part][name] for name in sorted(known)}
        state["rng"] = None  # the process has drawn random numbers since
    found = compare_trees(first, second)
    if found:
        lines = [f"  - {d.path.replace('/', '.')}: {d.what}" for d in found[:MAX_LISTED]]
        more = [f"  - and {len(found) - MAX_LISTED} more"] if len(found) > MAX_LISTED else []
        report.mistake(
            "trainer", "\n".join(["the loaded state differs from the saved one:", *lines, *more])
        )


def check_resuming(
    report: ConfigReport, factory: Factory, dropped: Collection[int], folder: Path, num_updates: int
) -> None:
    """Compare an uninterrupted run with one that is saved and resumed in the middle."""
    made: list[Any] = []
    callbacks = factory.build_tiny(dropped).callbacks
    place = folder / "resumed" if _may_write(callbacks) else None

    def data() -> Any:
        engine = factory.build_tiny(dropped, run_dir=place)
        engine.config.num_workers = 0  # the order and the values are the same with any number
        made.append(engine)
        return engine.training_data()

    with report.collecting("trainer", "a resumed run fails"):
        resumed = check_resume(made.pop, data, num_updates=num_updates, ignore=_clocks(callbacks))
        if resumed.ok:
            report.checked.append("resuming")
        else:
            report.mistake("trainer", str(resumed))


def _clocks(callbacks: Sequence[Callback]) -> list[str]:
    """Patterns of state paths that depend on time or memory, and are never the same twice."""
    found = [
        callback
        for callback in callbacks
        if isinstance(callback, TrainTime | Throughput | PeakMemory)
    ]
    names = {name for callback in found for name in callback.metric_names(set())}
    return [
        *(f"*{name}*" for name in names),
        *(f"callbacks.{type(callback).__name__}*" for callback in found),
    ]


def _may_write(callbacks: Sequence[Callback]) -> bool:
    """Whether a callback may need a run directory; without one the comparison takes half the
    time."""
    others = (c for c in callbacks if not type(c).__module__.startswith("loopwright."))
    return any(isinstance(c, Checkpoints | BestModel | BestCheckpoint) for c in callbacks) or any(
        True for _ in others
    )

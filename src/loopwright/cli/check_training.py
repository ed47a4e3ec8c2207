"""Tiny runs of a config: its steps alone, then with everything that observes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..callback import Callback
from ..callbacks.freezing import Freeze
from ..callbacks.nonfinite import NonFiniteGuard
from ..config.tree import near_names
from ..initializers import Initializer
from ..run.reading import RunView
from .check_findings import Findings, culprit, key_of_callback
from .check_probe import Probe, SavesEach, UnsavableStateError, repeated_loss
from .check_tiny import SAMPLES, Factory
from .output import strict_json

if TYPE_CHECKING:
    from ..doors.configured.engine import Engine

ESSENTIAL = (Initializer, Freeze, NonFiniteGuard)  # without them, it would be another training


def check_steps(findings: Findings, factory: Factory) -> bool:
    """Updates, evaluations and predictions without callbacks; whether training works."""
    probe = Probe()
    with findings.collecting("trainer", "a tiny run cannot be put together") as built:
        callbacks = factory.build().active_callbacks
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
        key = "trainer" if at is None else key_of_callback(findings.config, callbacks, kept[at])
        findings.failed(key, "a training step fails" if at is None else f"{type(own[at]).__name__} fails", error)
        return False
    findings.checked.append("training steps")
    _judge(findings, probe, has_schedule=bool(engine.schedules))
    if not _check_evaluation(findings, engine, probe):
        return True
    with findings.collecting("trainer", "a batch cannot be evaluated twice"):
        _check_inputs(findings, engine, probe)
    return True


def _judge(findings: Findings, probe: Probe, *, has_schedule: bool) -> None:
    """What the first updates show; a schedule may begin with a rate of 0."""
    if probe.nonfinite is not None:
        findings.mistake("trainer", f"{probe.nonfinite}.\n-> Look at the data, the loss and the learning rate.")
    elif not probe.is_finite:
        findings.mistake("model", "weights are not finite after the first updates.\n-> Lower the learning rate.")
    elif not probe.has_learned and (probe.largest_rate > 0 or not has_schedule):
        findings.mistake(
            "model", "no weight has changed after the first updates.\n-> Is the learning rate 0, or the loss constant?"
        )
    if probe.without_gradient and probe.has_learned:
        names = probe.without_gradient
        listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        findings.note("model", f"no gradient reaches {listed}. That is allowed, if it is meant.")


def _check_evaluation(findings: Findings, engine: Engine, probe: Probe) -> bool:
    """Every data set in eval mode, and the outputs for it; whether there is a step that evaluates."""
    measured: dict[str, float] | None = {}
    for key, dataset in engine.datasets.items():
        place = f"datasets.{key}"
        with findings.collecting(place, f"data set {key!r} cannot be evaluated") as evaluated:
            measured = _evaluated(findings, engine, dataset, place)
        if not evaluated:
            continue
        missing = sorted(probe.names - measured.keys()) if measured is not None else []
        if missing and measured is not None:
            findings.mistake(
                "model",
                f"an evaluation measures {', '.join(sorted(measured))}, and not {', '.join(missing)} as training does."
                "\n-> Let the model and the loss give the same in eval mode as in train mode.",
            )
        if engine.can_predict:
            with findings.collecting(place, f"the outputs for data set {key!r} cannot be computed"):
                engine.predict(dataset)
        did = [*(["evaluation"] if measured is not None else []), *(["prediction"] if engine.can_predict else [])]
        if did:
            findings.checked.append(f"{' and '.join(did)} on {key}")
    return measured is not None


def _evaluated(findings: Findings, engine: Engine, dataset: Any, place: str) -> dict[str, float] | None:
    """What is measured on a data set; None, with a note, where there is no step that only measures."""
    from ..doors.configured.checks import UpdateInEvaluationError

    try:
        return engine.evaluate(dataset)
    except UpdateInEvaluationError as error:
        findings.note(place, f"this cannot be evaluated. That is allowed, if nothing does. {error}")
        return None


def _check_inputs(findings: Findings, engine: Engine, probe: Probe) -> None:
    """Whether a step changes its batch, and with that what the next one gives for it."""
    stream = engine.open(engine.datasets["train"], None, shuffle=False)
    stream.begin(0)
    batches = stream.take(1, SAMPLES)
    stream.close()
    if not batches:
        return
    engine.window.size = batches[0].size
    first, second = repeated_loss(engine, engine.prepare_batch(batches[0].value))
    if first != second and first == first:
        what = f" ({', '.join(probe.changed_inputs)})" if probe.changed_inputs else ""
        findings.mistake(
            "model",
            f"the same batch evaluated twice gives the losses {first:.6g} and {second:.6g}.\n-> The model or the loss "
            f"changes its inputs in place{what}, draws where it should not in eval mode, or counts calls: work on "
            "copies.",
        )
    elif probe.changed_inputs:
        findings.note(
            "model", f"a step changes its batch in place: {', '.join(probe.changed_inputs)}. Callbacks see it changed."
        )


def check_callbacks(findings: Findings, factory: Factory, folder: Path) -> tuple[set[int], Engine | None]:
    """Two tiny epochs with all callbacks; each that fails is reported and left out, and the others tried again.

    Returns the places of those that fail, and the engine that went through.
    """
    callbacks = factory.build().active_callbacks
    dropped: set[int] = set()
    for attempt in range(len(callbacks) + 1):
        engine = factory.build_tiny(dropped, [SavesEach(folder / f"states-{attempt}")], folder / f"run-{attempt}")
        own = [c for c in engine.active_callbacks if type(c).__module__ != Factory.__module__]
        places = [number for number in range(len(callbacks)) if number not in dropped]
        try:
            engine.train(engine.training_data(), 2, resume=False)
        except Exception as error:
            at = own.index(error.owner) if isinstance(error, UnsavableStateError) and error.owner in own else None
            at = culprit(error, own[: len(places)]) if at is None else at
            if at is None or at >= len(places):
                findings.failed("trainer", "a tiny run with all callbacks fails", error)
                return dropped, None
            dropped.add(places[at])
            key = key_of_callback(findings.config, callbacks, places[at])
            findings.failed(key, f"{type(callbacks[places[at]]).__name__} fails", error)
            continue
        _check_watched(
            findings, engine, own[: len(places)], [key_of_callback(findings.config, callbacks, n) for n in places]
        )
        _check_record(findings, engine)
        findings.checked.append(_callbacks_text(len(places)))
        return dropped, engine
    return dropped, None


def _callbacks_text(count: int) -> str:
    return "1 callback" if count == 1 else f"{count} callbacks"


def _check_watched(findings: Findings, engine: Engine, callbacks: list[Callback], keys: list[str]) -> None:
    """Metrics that somebody waits for and nobody has measured by now."""
    measured = {*engine.history.names, *engine.history.steps}
    for key, callback in zip(keys, callbacks, strict=True):
        for name in sorted(callback.required_metrics() - measured):
            near = near_names(name, sorted(measured))
            hint = f" Did you mean {near[0]!r}?" if near else ""
            findings.mistake(
                key,
                f"{type(callback).__name__} watches {name!r}, which this run does not measure; there is: "
                f"{', '.join(sorted(measured))}.{hint}",
            )


def _check_record(findings: Findings, engine: Engine) -> None:
    """What the run wrote down can be read back."""
    assert engine.run is not None
    with findings.collecting("trainer", "the metrics of the run cannot be read back"):
        import json

        run = RunView(engine.run.path)
        names = run.metrics.names()
        json.dumps(strict_json({name: [point.value for point in run.metrics.steps(name)] for name in names}))
        if not names:
            findings.mistake("trainer", "the run wrote no metrics.")
        findings.checked.append(f"{len(names)} metrics")

"""The collectives of an update in a dry run, beside those that `loopwright.scaling` estimates for
it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from ...metrics.progress import counted as counted_text
from ...runtime.dtensor import Mesh
from ...scaling.counting import Collective, Counted, counted_collectives, table_of
from ...scaling.layout import Sizes, Training
from ...scaling.measure import shape_of
from ...scaling.traffic import collectives_of
from ..output import size_text

if TYPE_CHECKING:
    from ...training.update import OptimizerUpdate


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a rank took part in during one update, and the estimate; without one, the reason."""

    counted: Sequence[Collective]
    estimated: Sequence[Collective] | None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Kind, bytes, ranks and number of the collectives."""
        estimated = None if self.estimated is None else _rows(self.estimated)
        return {"counted": _rows(self.counted), "estimated": estimated}

    def lines(self) -> Iterator[str]:
        """One line for what was counted, one for the estimate."""
        yield f"Counted in an update, on each process: {_text(self.counted)}"
        if self.estimated is None:
            yield f"Not estimated by loopwright.scaling: {self.reason}"
        elif table_of(self.counted) == table_of(self.estimated):
            yield "Estimated by loopwright.scaling: the same collectives, to the byte"
        else:
            yield f"Estimated by loopwright.scaling: {_text(self.estimated)}"


def _rows(collectives: Iterable[Collective]) -> list[dict[str, Any]]:
    names = ("kind", "bytes", "processes", "count")
    return [
        dict(zip(names, (*key, count), strict=True)) for key, count in table_of(collectives).items()
    ]


def _text(collectives: Sequence[Collective]) -> str:
    """How many there are of each kind, their bytes, and the bytes that the process sends."""
    kinds: dict[str, list[int]] = {}
    for (kind, payload, _), count in table_of(collectives).items():
        found = kinds.setdefault(kind, [0, 0])
        found[0] += count
        found[1] += count * payload
    parts = [
        f"{counted_text(count, kind)} of {size_text(payload)}"
        for kind, (count, payload) in kinds.items()
    ]
    sent = sum(each.wire for each in collectives)
    return f"{', '.join(parts)}; {size_text(round(sent))} sent" if parts else "no collective"


class UpdateCount:
    """Counts the collectives between `start` and `stop`."""

    def __init__(self) -> None:
        self._counting = ExitStack()
        self._counted: Counted | None = None

    def start(self) -> None:
        if self._counted is None:
            self._counted = self._counting.enter_context(counted_collectives())

    def stop(self) -> Sequence[Collective]:
        self._counting.close()
        return self._counted.collectives if self._counted is not None else ()


def estimated_traffic(
    models: Sequence[nn.Module], updates: Sequence[OptimizerUpdate], runtime: Any, accumulate: int
) -> tuple[Sequence[Collective] | None, str]:
    """The estimate for models that have taken their first update; without one, the reason."""
    mesh = runtime.mesh
    reason = _reason(models, updates, mesh)
    if reason:
        return None, reason
    (model,) = models
    (update,) = updates
    params = [param for param in model.parameters() if param.requires_grad]
    training = Training(
        batch=accumulate,  # samples make no difference to what is sent here
        accumulate=accumulate,
        param_dtype=runtime.sharding.param_dtype,
        reduce_dtype=runtime.sharding.reduce_dtype,
        reshard_after_forward=runtime.sharding.reshard_after_forward,
        clips=update.clip_norm is not None,
        is_host=runtime.is_host,
        bucket_bytes=runtime.averaging.max_bytes,
    )
    shape = shape_of(model, runtime.gradient_order(params))
    return collectives_of(shape, Sizes(mesh.replicate, mesh.shard), training), ""


def _reason(models: Sequence[nn.Module], updates: Sequence[OptimizerUpdate], mesh: Mesh) -> str:
    """Why there is no estimate; empty where there is one."""
    if mesh.tensor > 1:
        return "activations travel too, which `measure(module, batch, plan=...)` has to see"
    if len(models) != 1 or len(updates) != 1:
        return "it is for one model with one optimizer"
    trained = {id(param) for param in models[0].parameters() if param.requires_grad}
    if trained != {id(param) for param in updates[0].params if param.requires_grad}:
        return "the optimizer does not have the parameters of the model that are trained"
    return ""

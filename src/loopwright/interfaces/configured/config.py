"""The settings of a configured trainer, as they stand under `trainer:` in a run file."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator

from ...callback import Callback
from ...config.kinds import Place
from ...initializers import Initializer
from ...training import program

CALLBACK = Place("callback", Callback, description="Observes the run.")
INITIALIZER = Place(
    "initializer",
    Initializer,
    short={"FromCheckpoint": "loopwright.initializers.FromCheckpoint"},
    description="Where the first weights come from. Default: the model itself.",
)
Count = Annotated[StrictInt, Field(ge=0)]
Positive = Annotated[StrictInt, Field(ge=1)]
Precision = Literal["fp32", "bf16", "fp16", "float32", "bfloat16", "float16"]

UNITS = ("epochs", "updates", "samples")
LIMITS = tuple(f"max_{unit}" for unit in UNITS)
PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
WITHOUT_EFFECT = {
    "static_graph": "Loopwright averages gradients without it",
    "add_default_callbacks": "callbacks are those under `callbacks`, the progress display and the run directory",
    "add_trainer_callbacks": "a trainer class has no callbacks",
}
# the default
MAY_BE_NULL = (
    "callbacks",
    "forward_properties",
    "target_properties",
    "start_at_epoch",
    *WITHOUT_EFFECT,
)


class BaseTrainerConfig(BaseModel):
    """The settings of every configured trainer; a subclass adds fields of its own. Unknown keys are
    refused."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    kind: str | None = Field(
        default=None,
        description="The trainer class, as an import path; its annotation of `trainer_config` decides "
        "its settings.",
    )
    max_epochs: Count | None = Field(
        default=None,
        description="How long to train, in epochs. Give exactly one of the three limits.",
    )
    max_updates: Count | None = Field(
        default=None, description="How long to train, in updates of the weights."
    )
    max_samples: Count | None = Field(
        default=None, description="How long to train, in samples; training ends exactly there."
    )
    effective_batch_size: Positive = Field(
        default=32, description="Samples in one update, over all processes."
    )
    max_batch_size: Positive | None = Field(
        default=None,
        description="Samples that go through the model at once. A larger update is several equal "
        "batches.",
    )
    num_workers: Count = Field(
        default=0, description="Worker processes that read the training data."
    )
    precision: Precision = Field(default="fp32", description="The precision of the forward pass.")
    callbacks: list[Annotated[Any, CALLBACK]] = Field(
        default_factory=list, description="Callbacks of `loopwright.callbacks`, or your own."
    )
    initializer: Annotated[Any, INITIALIZER] = Field(
        default=None,
        description="First weights from an earlier run: `{kind: FromCheckpoint, path: ...}`.",
    )
    start_at_epoch: Count = Field(
        default=0,
        description="Count as if this number of epochs were done; their data is not read.",
    )
    forward_properties: list[str] = Field(
        default_factory=list,
        description="Keys of a batch that are passed to the model, as keyword arguments.",
    )
    target_properties: list[str] = Field(
        default_factory=list, description="Keys of a batch that `loss_compute` gets."
    )
    log_every_n_epochs: Positive | None = Field(
        default=None, description="Print progress and remaining time every n epochs."
    )
    log_every_n_updates: Positive | None = Field(
        default=None, description="The same every n updates; at most one of the three."
    )
    log_every_n_samples: Positive | None = Field(
        default=None, description="The same every n samples."
    )
    track_every_n_epochs: Positive | None = Field(
        default=None, description="Record the mean losses as `online_loss` every n epochs."
    )
    track_every_n_updates: Positive | None = Field(
        default=None, description="The same every n updates; at most one of the three."
    )
    track_every_n_samples: Positive | None = Field(
        default=None, description="The same every n samples."
    )
    skip_nan_loss: StrictBool = Field(
        default=False, description="Skip updates whose loss is not finite, instead of an error."
    )
    skip_nan_loss_max_count: Count = Field(
        default=100, description="How many updates a run may skip before it is an error."
    )
    use_torch_compile: StrictBool | Literal["step"] = Field(
        default=False,
        description="Compile the model with torch.compile; with `step` the whole training step as one "
        "graph.",
    )
    find_unused_params: StrictBool = Field(
        default=False, description="List the parameters without a gradient in the first update."
    )
    save_on_sigint: StrictBool = Field(
        default=True, description="On Ctrl-C, finish the update and save; false ends at once."
    )

    disable_gradient_accumulation: StrictBool = Field(
        default=False,
        description="Refuse a `max_batch_size` that makes several batches of an update.",
    )
    static_graph: StrictBool = Field(
        default=False, description="Accepted, without an effect; a line says so."
    )
    add_default_callbacks: StrictBool = Field(
        default=True, description="Accepted, without an effect; a line says so."
    )
    add_trainer_callbacks: StrictBool = Field(
        default=True, description="Accepted, without an effect; a line says so."
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default(cls, settings: Any) -> Any:
        if not isinstance(settings, dict):
            return settings
        return {
            name: value
            for name, value in settings.items()
            if value is not None or name not in MAY_BE_NULL
        }

    @model_validator(mode="after")
    def _has_one_limit(self) -> Self:
        given = [name for name in LIMITS if getattr(self, name) is not None]
        if len(given) != 1:
            found = "none of them" if not given else " and ".join(given)
            raise ValueError(
                f"exactly one of {', '.join(LIMITS)} must set how long to train; found {found}"
            )
        return self

    @model_validator(mode="after")
    def _has_one_interval_each(self) -> Self:
        for what in ("log", "track"):
            given = [
                name for name in type(self).model_fields if name.startswith(f"{what}_every_n_")
            ]
            given = [name for name in given if getattr(self, name) is not None]
            if len(given) > 1:
                raise ValueError(f"one of {' and '.join(given)} at most")
        return self

    @model_validator(mode="after")
    def _accumulates_only_if_it_may(self) -> Self:
        if self.disable_gradient_accumulation and self.accumulate > 1:
            raise ValueError(
                "disable_gradient_accumulation, and an update of "
                f"effective_batch_size={self.effective_batch_size} is {self.accumulate} batches "
                f"with max_batch_size={self.max_batch_size}: leave one of them out"
            )
        return self

    @property
    def without_effect(self) -> dict[str, str]:
        """Settings that are given and change nothing here, each with the reason."""
        given = self.model_fields_set & WITHOUT_EFFECT.keys()
        return {name: WITHOUT_EFFECT[name] for name in WITHOUT_EFFECT if name in given}

    @property
    def accumulate(self) -> int:
        """Batches in an update: as few as `max_batch_size` allows, and all of one size."""
        largest = min(self.max_batch_size or self.effective_batch_size, self.effective_batch_size)
        return next(
            count
            for count in range(
                -(-self.effective_batch_size // largest), self.effective_batch_size + 1
            )
            if self.effective_batch_size % count == 0
        )

    @property
    def batch_size(self) -> int:
        """Samples that go through the model at once, on all processes together."""
        return self.effective_batch_size // self.accumulate

    @property
    def core_compile(self) -> Literal["model"] | None:
        """What the runtime compiles; a whole step is the trainer's task."""
        return "model" if self.use_torch_compile is True else None

    @property
    def core_precision(self) -> program.Precision:
        return cast("program.Precision", PRECISIONS.get(self.precision, self.precision))

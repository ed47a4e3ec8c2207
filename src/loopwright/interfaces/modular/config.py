"""The settings of a modular trainer."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self

import torch

from ...errors import ConfigurationError, check_number
from ...optim.build import Interval
from ...runtime import Mesh, Runtime, resolve_runtime

_is_saving: ContextVar[bool] = ContextVar("is_saving", default=False)


@dataclass(kw_only=True)
class DreamTrainerConfig:
    """Every setting has a default; for fields of your own make a subclass that is a dataclass, too.

    Args:
        n_epochs: Epochs to train, counted from the beginning of the run, also after a checkpoint
            was loaded.
        max_steps: Updates to train; the smaller of the two limits ends the run.
        learning_rate: For your `configure_optimizers`.
        weight_decay: For your `configure_optimizers`.
        train_batch_size: For your `configure_dataloaders`.
        val_batch_size: For your `configure_dataloaders`.
        num_workers: For your `configure_dataloaders`.
        gradient_clip_val: Clip the gradients of each optimizer to this norm.
        gradient_accumulation_steps: Batches in an update.
        scheduler_interval: Step schedulers every "epoch" or "update". None: every epoch;
            `OneCycleLR` and `CyclicLR` every update, as torch documents them.
        val_every_n_steps: Validate every n updates instead of after each epoch.
        precision: "fp32", "bf16" or "fp16".
        compile_model: Compile the models with `torch.compile`.
        activation_checkpointing: Compute activations again in the backward pass instead of storing
            them.
        strategy: How a model is placed on several processes: "single", "ddp" (copies), "fsdp"
            (shards), or a `Mesh`, as in `Mesh(replicate=2, shard=8)` for copies of shards. "auto" is
            DDP under torchrun and one device elsewhere.
        sync_batch_norm: Compute batch norm over all processes.
        cpu_offload: With shards, keep parameters in host memory.
        find_unused_parameters: With shards, allow processes to use different parameters in a step.
        device: Such as "cuda:1". None: the best there is.
        seed: The seed of weights, order and random numbers. Default: that of the last
            `seed_everything`, else 0. None: another one in every run.
        callbacks: Callbacks of this module or of `loopwright.callbacks`, trackers, or functions of
            (trainer, metrics).
        run_dir: The folder of metrics and checkpoints. Start the program again to continue the run
            in it.
        resume: "auto" continues an unfinished run in `run_dir`, False starts anew, a path is a
            checkpoint to continue.
        changes: If the program differs from the one that began the run: "refuse", or "accept" the
            new values.
        checkpoint_every_n_steps: Write a checkpoint to continue from every n updates, too. For
            other rules pass `loopwright.callbacks.Checkpoints(...)` in `callbacks`.
        monitor: The metric of the best model, and that `ReduceLROnPlateau` watches. None:
            "val_loss".
        monitor_mode: Whether "min" or "max" values of it are better. "auto" goes by its name.
        save_dir: Call `save_checkpoint` with `<save_dir>/epoch_<n>`.
        save_every_n_epochs: How often to do so.
        progress: "bar", "lines" or "silent". "auto": a bar on a terminal, lines elsewhere.
    """

    n_epochs: int = 1
    max_steps: int | None = None
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    train_batch_size: int = 32
    val_batch_size: int = 32
    num_workers: int = 0
    gradient_clip_val: float | None = None
    gradient_accumulation_steps: int = 1
    scheduler_interval: Interval | None = None
    val_every_n_steps: int | None = None
    precision: str = "fp32"
    compile_model: bool = False
    activation_checkpointing: bool = False
    strategy: str | Mesh = "auto"
    sync_batch_norm: bool = False
    cpu_offload: bool = False
    find_unused_parameters: bool = False
    device: str | torch.device | None = None
    seed: int | Literal["auto"] | None = "auto"
    callbacks: Sequence[Any] = ()
    run_dir: str | Path | None = None
    resume: bool | str | Path = "auto"
    changes: Literal["refuse", "accept"] = "refuse"
    checkpoint_every_n_steps: int | None = None
    monitor: str | None = None
    monitor_mode: Literal["auto", "min", "max"] = "auto"
    save_dir: str | Path | None = None
    save_every_n_epochs: int = 1
    progress: str = "auto"

    def __new__(cls, *args: Any, **fields: Any) -> Self:
        """Refuse subclasses whose fields would be ignored, with what to write instead."""
        check_fields(cls)
        return super().__new__(cls)

    def __getstate__(self) -> dict[str, Any]:
        """All settings; in a checkpoint without the callbacks, which are no settings and cannot be
        loaded safely."""
        return vars(self) | ({"callbacks": ()} if _is_saving.get() else {})


def check_fields(kind: type[DreamTrainerConfig]) -> None:
    """Refuse fields of a subclass that dataclasses do not see, so that they would be ignored."""
    known = {field.name for field in fields(DreamTrainerConfig)}
    for part in kind.__mro__[: kind.__mro__.index(DreamTrainerConfig)]:
        annotated = inspect.get_annotations(part)
        ignored = [name for name in vars(part) if name in known and name not in annotated]
        if "__dataclass_fields__" not in vars(part):
            ignored += annotated
        if ignored:
            raise ConfigurationError(
                "config-no-dataclass",
                f"{part.__name__}: {', '.join(ignored)} would be ignored. Write "
                "@dataclass(kw_only=True) above the class, and a type at each field, as in "
                f"`{ignored[0]}: float = 0.1`.",
            )


@contextmanager
def without_callbacks() -> Iterator[None]:
    """Configs that are pickled here go into a checkpoint, without their callbacks."""
    token = _is_saving.set(True)
    try:
        yield
    finally:
        _is_saving.reset(token)


def allow_loading(config: DreamTrainerConfig) -> None:
    """Let `torch.load` read a config from a checkpoint that the user wrote with `torch.save`."""
    kinds = {type(getattr(config, field.name)) for field in fields(config)}
    own = [kind for kind in kinds if kind.__module__.partition(".")[0] not in ("builtins", "torch")]
    torch.serialization.add_safe_globals([type(config), *own])


# the least number of each; torch and the core check the others before the first step
COUNTS = {"n_epochs": 0, "save_every_n_epochs": 1}
OPTIONAL_COUNTS = {"max_steps": 0, "val_every_n_steps": 1}


def check_config(config: DreamTrainerConfig) -> None:
    """Refuse what the core would not look at before the first step."""
    if not isinstance(config, DreamTrainerConfig):
        raise ConfigurationError(
            "no-modular-config",
            f"config is a {type(config).__name__}: pass a DreamTrainerConfig, or a dataclass that "
            "inherits from it.",
        )
    choices: dict[str, tuple[Any, ...]] = {"scheduler_interval": (None, "epoch", "update")}
    if not isinstance(config.strategy, Mesh):
        choices["strategy"] = ("auto", "single", "ddp", "fsdp")
    for name, known in choices.items():
        if getattr(config, name) not in known:
            raise ConfigurationError(
                "unknown-choice",
                f"{name}={getattr(config, name)!r}: use one of {', '.join(map(repr, known))}.",
            )
    for name, least in COUNTS.items():
        check_number(name, getattr(config, name), least=least)
    for name, least in OPTIONAL_COUNTS.items():
        if getattr(config, name) is not None:
            check_number(name, getattr(config, name), least=least, otherwise="None")
    if config.seed not in (None, "auto"):
        check_number("seed", config.seed, otherwise="None for different weights in each run")


def build_runtime(config: DreamTrainerConfig) -> Runtime:
    """The device, or the processes, that the settings ask for."""
    compiled = "model" if config.compile_model else None
    if config.strategy == "single":
        return Runtime(
            config.device,
            config.precision,
            activation_checkpointing=config.activation_checkpointing,
            compile=compiled,
        )
    return resolve_runtime(
        "ddp" if config.strategy == "auto" else config.strategy,
        config.precision,
        config.device,
        compiled,
        activation_checkpointing=config.activation_checkpointing,
        sync_batch_norm=config.sync_batch_norm,
        cpu_offload=config.cpu_offload,
        find_unused_parameters=config.find_unused_parameters,
    )

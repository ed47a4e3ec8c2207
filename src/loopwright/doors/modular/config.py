"""The settings of a modular trainer, with presets for one device and for several processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch

from ...building import Interval
from ...errors import ConfigurationError
from ...runtime import Mesh, Runtime

_is_saving: ContextVar[bool] = ContextVar("is_saving", default=False)

STRATEGIES = ("auto", "single", "ddp", "fsdp", "hsdp")


@dataclass(kw_only=True)
class DreamTrainerConfig:
    """Every setting has a default; make a subclass, a dataclass too, for fields of your own.

    `train_batch_size`, `val_batch_size`, `num_workers`, `learning_rate` and `weight_decay` are for your `configure_*`.
    `n_epochs` counts from the beginning of the run, also where a checkpoint was loaded; `max_steps` counts updates.
    Without `val_every_n_steps` there is a validation after every epoch, with it after every so many updates instead.

    `scheduler_interval` None steps schedulers once an epoch (OneCycleLR and CyclicLR after every update, as torch
    documents them). `strategy` "auto" is DDP where several processes were started and one device elsewhere; "hsdp"
    shards the model over `num_shards` processes (None: those of one host) and copies that over the others.

    With `run_dir`, metrics and resume points go there, and the same program goes on where an earlier one was killed
    (`resume` and `changes` as in `loopwright.Trainer.train`); the best model by `monitor` is kept there, too. With
    `save_dir`, `save_checkpoint` is called with `<save_dir>/epoch_<n>` after every `save_every_n_epochs` epochs.
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
    num_shards: int | None = None
    sync_batch_norm: bool = False
    cpu_offload: bool = False
    find_unused_parameters: bool = False
    device: str | torch.device | None = None
    seed: int | None = 0
    callbacks: Sequence[Any] = ()
    run_dir: str | Path | None = None
    resume: bool | str | Path = "auto"
    changes: Literal["refuse", "accept"] = "refuse"
    checkpoint_every_n_steps: int | None = None
    checkpoint_every_n_epochs: int | Literal["auto"] | None = "auto"
    checkpoint_every_n_minutes: float | None = 5.0
    keep_checkpoints: int = 2
    monitor: str | None = None
    monitor_mode: Literal["auto", "min", "max"] = "auto"
    keep_best: int = 1
    save_dir: str | Path | None = None
    save_every_n_epochs: int = 1
    progress: str = "auto"

    def __getstate__(self) -> dict[str, Any]:
        """All settings; in a checkpoint without the callbacks, which are no settings and cannot be loaded safely."""
        return vars(self) | ({"callbacks": ()} if _is_saving.get() else {})

    @classmethod
    def single_device(cls, **fields: Any) -> Self:
        """One process on one device, whatever else was started."""
        return cls(**{"strategy": "single", **fields})

    @classmethod
    def ddp(cls, **fields: Any) -> Self:
        """A copy of every model on each process."""
        return cls(**{"strategy": "ddp", **fields})

    @classmethod
    def fsdp(cls, **fields: Any) -> Self:
        """A shard of every model on each process (FSDP2)."""
        return cls(**{"strategy": "fsdp", **fields})

    @classmethod
    def hsdp(cls, **fields: Any) -> Self:
        """Shards over `num_shards` processes, and copies of that over the others."""
        return cls(**{"strategy": "hsdp", **fields})


@contextmanager
def saving() -> Iterator[None]:
    """Configs that are pickled here go into a checkpoint."""
    token = _is_saving.set(True)
    try:
        yield
    finally:
        _is_saving.reset(token)


def check_config(config: DreamTrainerConfig) -> None:
    """Refuse what the core would not look at before the first step."""
    if not isinstance(config, DreamTrainerConfig):
        raise ConfigurationError(
            f"config is a {type(config).__name__}: pass a DreamTrainerConfig, or a dataclass that inherits from it."
        )
    if not isinstance(config.strategy, Mesh) and config.strategy not in STRATEGIES:
        raise ConfigurationError(f"strategy={config.strategy!r}: use one of {', '.join(STRATEGIES)}, or a Mesh.")
    if config.scheduler_interval not in (None, "epoch", "update"):
        raise ConfigurationError(f"scheduler_interval={config.scheduler_interval!r}: use 'epoch', 'update' or None.")
    counts = ("n_epochs", "max_steps", "val_every_n_steps", "save_every_n_epochs", "keep_best", "keep_checkpoints")
    for name in counts:
        value, least = getattr(config, name), 0 if name in ("n_epochs", "max_steps") else 1
        is_unset = value is None and name in ("max_steps", "val_every_n_steps")
        if not is_unset and (not isinstance(value, int) or value < least):
            raise ConfigurationError(f"{name}={value!r}: use a whole number, {least} or more.")


def build_runtime(config: DreamTrainerConfig) -> Runtime:
    """The device, or the processes, that the settings ask for."""
    from ...runtime.single import is_launched

    options: dict[str, Any] = {
        "precision": config.precision,
        "activation_checkpointing": config.activation_checkpointing,
        "compile": "model" if config.compile_model else None,
    }
    if config.strategy == "single" or not is_launched():
        if isinstance(config.strategy, Mesh):
            config.strategy.check(1)
        return Runtime(config.device, **options)
    from ...runtime.distributed import DistributedRuntime

    return DistributedRuntime(
        _arranged(config),
        device=config.device,
        sync_batch_norm=config.sync_batch_norm,
        cpu_offload=config.cpu_offload,
        find_unused_parameters=config.find_unused_parameters,
        **options,
    )


def _arranged(config: DreamTrainerConfig) -> str | Mesh:
    """The strategy as the runtime takes it; for "hsdp" that depends on how many processes there are."""
    from ...runtime.environment import Launch

    if config.strategy != "hsdp":
        return "ddp" if config.strategy == "auto" else config.strategy
    launch = Launch.from_environment()
    assert launch is not None  # there are several processes
    num_shards = config.num_shards or launch.local_world
    if launch.world % num_shards:
        raise ConfigurationError(
            f"num_shards={num_shards} does not divide the {launch.world} processes: start a multiple of it, or "
            "change num_shards."
        )
    return Mesh(replicate=launch.world // num_shards, shard=num_shards)

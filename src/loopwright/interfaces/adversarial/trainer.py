"""The base of trainers for pairs of images: a subclass says in three hooks what an epoch is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from ...checkpoint import read_checkpoint
from ...checkpoint.weights import write_parts
from ...data.order import permutation
from ...data.random import preserved_rng, seed_generators
from ...errors import ConfigurationError, check_arguments
from ...runtime.modes import evaluating
from ...text import nearest
from .._shared import LoggingTrainer, is_overridden, on_first_process
from .config import AdversarialConfig, ConfigManager, ConfigSource
from .core import NAMES, AdversarialCore, checked_trackers, losses_of
from .experiment import (
    EPOCHS,
    choose_directory,
    directory_of,
    find_state,
    load_network,
    nothing_saved,
)
from .images import LiveView, PairedDataset, write_triplet
from .losses import LossManager

if TYPE_CHECKING:
    from ...trackers import Track


# the functions of an epoch, with the arguments that they get besides keywords of the user's
HOOKS = {"on_epoch_start": (), "train_step": ("x", "y", "idx"), "on_epoch_end": ()}


class Trainer(LoggingTrainer):
    """Trains on pairs of images, one epoch per call. Override `on_epoch_start`, `train_step` and
    `on_epoch_end`.

    Networks, optimizers and schedulers that a subclass assigns to self are saved and restored under
    those names.

    Args:
        config: A JSON or YAML file, a dict, a `Config`, a `ConfigManager`, or None for the
            defaults.
        quicksetup: Whether to create the experiment's directory with a copy of the config, and a
            `LossManager`.
        log_losses: Whether to write the losses to `loss_log.jsonl` in that directory.
        callbacks: Trackers of `loopwright.trackers`, which follow the experiment until `finish` or
            the program's end.
    """

    config_type: ClassVar[type[AdversarialConfig]] = AdversarialConfig
    loss_manager: LossManager  # from `init_loss_manager` on
    experiment_dir: Path  # from `build_output_directory` on
    examples_dir: Path
    # from the subclass, as in `self.train_loader = self.build_dataloader("train")`
    train_loader: Any
    val_loader: Any

    def __init__(
        self,
        config: ConfigSource = None,
        quicksetup: bool = True,
        log_losses: bool = True,
        *,
        callbacks: Iterable[Track] = (),
    ) -> None:
        NAMES.check_trainer(self)
        NAMES.check_callback(self)
        self.log_losses = log_losses
        self.current_epoch: int | None = None
        self.loaded_epoch = 0  # epochs that a run which is continued had behind it
        self.last_epoch_time = 0.0
        self.is_continuing = False
        self._save_after_epoch: Path | None = None
        self.vis = LiveView(None, 0)
        self.init_config(config)
        rate = self.config.train.generator.learning_rate
        self._planned_epochs = rate.epochs + rate.epochs_decay
        self._core = AdversarialCore(self, self.config.common, checked_trackers(callbacks))
        # as torch.amp.autocast and GradScaler take it
        self.device = str(self._core.runtime.device)
        if self.config.common.seed is not None:
            # the networks that a subclass builds are part of the run
            seed_generators(self.config.common.seed)
        if quicksetup:
            self.quicksetup()

    # Setting up

    def init_config(self, config: ConfigSource) -> None:
        """Read the config into `self.config`; `self.config_manager` holds it too."""
        self.config_manager = (
            config if isinstance(config, ConfigManager) else ConfigManager(config, self.config_type)
        )
        self.config = self.config_manager.data

    def quicksetup(self) -> None:
        """Create the directory and the loss manager, and write a copy of the config."""
        self.build_output_directory()
        self.init_loss_manager()
        self.export_config()

    def build_output_directory(self) -> None:
        """Create the directory of a new experiment, or use that of the experiment that
        continues."""
        runtime = self._core.runtime
        choose = partial(choose_directory, self.config)
        version, self.is_continuing = on_first_process(runtime, choose)
        self.config.common.experiment_version = version
        self.experiment_dir = directory_of(self.config)
        self.examples_dir = self.experiment_dir / "examples"
        if runtime.is_main:
            self.examples_dir.mkdir(exist_ok=True)
        settings = self.config.visualizer.visdom
        shows = runtime.is_main and settings.enable
        self.vis = LiveView(self.experiment_dir / "live" if shows else None, settings.image_size)
        self._core.use_directory(self.experiment_dir, self.config.save)

    def init_loss_manager(
        self, override: LossManager | None = None, history_buffer_size: int = 50_000
    ) -> None:
        """Create the loss manager, or use the one given."""
        if override is not None:
            self.loss_manager = override
            return
        runtime = self._core.runtime
        directory = getattr(self, "experiment_dir", None) if runtime.is_main else None
        self.loss_manager = LossManager(
            self.config, directory, self.log_losses and runtime.is_main, history_buffer_size
        )
        self.loss_manager.device = self.device
        self.loss_manager.is_shared = runtime.world > 1
        self.loss_manager.is_quiet = not runtime.is_main
        if not self.is_continuing:
            self.loss_manager.log_position = 0

    def export_config(self) -> None:
        """Write a numbered copy of the config to the experiment's directory."""
        if self._core.runtime.is_main:
            self.config_manager.export_config(self.experiment_dir)

    def build_dataloader(
        self, loader_type: str, is_train: bool | None = None
    ) -> DataLoader[tuple[Tensor, Tensor]]:
        """Return the loader of a folder in `dataloader.dataroot`: shuffled and augmented if
        `is_train`, else as it is.

        By default `is_train` is True for "train" alone.
        """
        settings = self.config.dataloader
        is_train = loader_type == "train" if is_train is None else is_train
        dataset = PairedDataset(
            self.config, Path(settings.dataroot) / loader_type, is_train=is_train
        )
        return DataLoader(
            dataset, settings.batch_size, shuffle=is_train, num_workers=settings.num_workers
        )

    def build_optimizer(
        self,
        network: nn.Module,
        optimizer: Callable[..., Optimizer] = torch.optim.Adam,
        lr: float = 0.0002,
        beta1: float = 0.5,
    ) -> Optimizer:
        """Return an optimizer of Adam's family for a network."""
        return optimizer(network.parameters(), lr=lr, betas=(beta1, 0.999))

    # The hooks

    def on_epoch_start(self, **kwargs: Any) -> None:
        """Called before the first batch of an epoch; not again when a run continues inside one. The
        base raises."""
        raise self._missing_hook("on_epoch_start")

    def train_step(self, x: Tensor, y: Tensor, idx: int, **kwargs: Any) -> Any:
        """Called for each batch with its number from 0; call `update` for each network here. The
        base raises."""
        raise self._missing_hook("train_step")

    def on_epoch_end(self, **kwargs: Any) -> None:
        """Called after the last batch of an epoch. The base raises."""
        raise self._missing_hook("on_epoch_end")

    def update(
        self,
        loss: Tensor,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        retain_graph: bool | None = None,
    ) -> None:
        """Run backward and step one optimizer, or a list of them; only their parameters get
        gradients.

        Of a list of optimizers all are stepped, after one backward pass that is scaled by the first
        one's scaler. Gradients that another backward pass left in those parameters are an error.
        """
        self._core.update(loss, optimizer, retain_graph=retain_graph)

    # Training

    def train_paired(
        self,
        epoch: int,
        on_epoch_start: Callable[..., Any] | None = None,
        train_step: Callable[..., Any] | None = None,
        on_epoch_end: Callable[..., Any] | None = None,
        multithreaded: bool = True,
        callback_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Train for one epoch.

        Args:
            epoch: The number of the epoch, from 0; `current_epoch` becomes `1 + epoch`, plus the
                epochs before a continued run.
            on_epoch_start: A function to call in place of the method of that name, in this epoch.
            train_step: The same.
            on_epoch_end: The same.
            multithreaded: Whether a thread of its own writes pictures and curves to the folder
                `live`.
            callback_kwargs: Keyword arguments for the three hooks:
                `{"train_step": {"scale": 2.0}}`.
        """
        given = (on_epoch_start, train_step, on_epoch_end)
        hooks = self._hooks(given, callback_kwargs or {})
        self.current_epoch = 1 + epoch + self.loaded_epoch
        losses = losses_of(self)
        if losses is not None:
            losses.epoch = self.current_epoch
        started = perf_counter()
        if multithreaded:
            self.vis.start_thread()
        try:
            self._core.train_once(self.train_loader, hooks)
        finally:
            self.vis.stop_thread()
        self.last_epoch_time = perf_counter() - started
        if self._save_after_epoch is not None:
            self._core.adopt()
            self._core.save(self._save_after_epoch)
            self._save_after_epoch = None

    def _hooks(
        self,
        given: Sequence[Callable[..., Any] | None],
        keywords: Mapping[str, Mapping[str, Any]],
    ) -> dict[str, Callable[..., Any]]:
        """The functions of an epoch with their keywords: those that were given, otherwise the
        methods; checked before the first of them is called."""
        for name in keywords:
            if name not in HOOKS:
                raise ConfigurationError(
                    "unknown-hook",
                    f"callback_kwargs has {name!r}, which is no hook; {nearest(name, HOOKS)} "
                    "Write callback_kwargs={'train_step': {'scale': 2.0}}.",
                )
        hooks: dict[str, Callable[..., Any]] = {}
        for (name, arguments), hook in zip(HOOKS.items(), given, strict=True):
            if hook is None and not is_overridden(self, name, Trainer):
                raise self._missing_hook(name)
            hook = hook or getattr(self, name)
            options = keywords.get(name, {})
            check_arguments(hook, [*arguments, *(f"{key}=" for key in options)], name)
            hooks[name] = partial(hook, **options)
        return hooks

    def _missing_hook(self, name: str) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} must override {name}, or pass it to train_paired."
        )

    def print_end_of_epoch(self) -> None:
        """Print the number and the duration of the epoch."""
        self._print(f"(End of epoch: {self.current_epoch}) Time: {self.last_epoch_time:.2f} s")

    def _print(self, text: str) -> None:
        if self._core.runtime.is_main:
            print(text, flush=True)

    # Files

    def save_checkpoint(self, mode: str = "both") -> Path:
        """Write the whole state to `epochs/epoch{n}` and return the path; a call inside a hook
        waits for the end of the epoch.

        A run continues exactly from it.
        """
        path = self.experiment_dir / EPOCHS / f"epoch{self._epoch}"
        if self._core.is_running:
            self._save_after_epoch = path
        else:
            self._core.adopt()
            self._core.save(path)
        return path

    @property
    def _epoch(self) -> int:
        """The epoch under way, or the last one."""
        return self.current_epoch or self.loaded_epoch

    def continue_run(self) -> None:
        """Continue exactly from `train.load.load_epoch`; call it when all networks and optimizers
        exist."""
        if not self._continue_from_state():
            wanted = self.config.train.load.load_epoch
            raise nothing_saved(self.experiment_dir, "complete state", wanted)

    def _continue_from_state(self) -> bool:
        """Continue from what `train.load.load_epoch` names, if there is such a state; the first
        process chooses for all."""
        wanted = self.config.train.load.load_epoch
        find = partial(find_state, self.experiment_dir, wanted)
        path = on_first_process(self._core.runtime, find)
        if path is not None:
            self.loaded_epoch = self._core.continue_from(read_checkpoint(path))
        return path is not None

    def remaining_epochs(self, total: int | None = None) -> int:
        """Return how many epochs are left of `total`. Default: the epochs of the generator's
        learning rate."""
        if total is not None:
            self._planned_epochs = total
        return max(self._planned_epochs - self.loaded_epoch, 0)

    def load_checkpoint(
        self,
        net_type: str,
        network: nn.Module,
        optimizer: Optimizer | None = None,
        learning_rate: float | None = None,
    ) -> None:
        """Load one network, and its optimizer if given, from `train.load.load_epoch` of this
        experiment.

        The record of the experiment stays, and training adds to it.
        """
        net_type = net_type.upper() if net_type in ("g", "d") else net_type
        names = [name for name, value in vars(self).items() if value is network]
        epoch = self.config.train.load.load_epoch
        self.loaded_epoch = load_network(
            self.experiment_dir, epoch, net_type, network, optimizer, names
        )
        if optimizer is not None and learning_rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate

    def export_model_weights(self, mod: nn.Module, opt: Optimizer | None, net: str) -> Path:
        """Write one network and its optimizer to `epoch{n}_net{net}` in the experiment's
        directory."""
        path = self.experiment_dir / f"epoch{self._epoch}_net{net}"
        optimizers = {} if opt is None else {net: opt}
        write = partial(write_parts, path, {net: mod}, optimizers, meta={"epoch": self._epoch})
        on_first_process(self._core.runtime, write)
        return path

    def save_xyz_examples(self, network: nn.Module, dataloader: Any) -> list[Path]:
        """Write input, output and target of `save.num_examples` images, other ones in each epoch;
        return the paths."""
        write = partial(self._write_examples, network, dataloader)
        with self._core.runtime.autocast:
            paths = on_first_process(self._core.runtime, write)
        self._core.run.media.add_files("examples", paths)
        return paths

    def _write_examples(self, network: nn.Module, dataloader: Any) -> list[Path]:
        paths = []
        with evaluating([network], ()), torch.no_grad(), preserved_rng():
            pairs = choose_pairs(dataloader, self.config.common.seed or 0, self._epoch)
            for number, (x, y) in enumerate(islice(pairs, self.config.save.num_examples), start=1):
                output = network(x.unsqueeze(0).to(self.device))[0]
                begin = f"epoch{self._epoch}_{number}"
                paths += write_triplet(self.examples_dir, begin, (x, output, y))
        return paths

    def finish(self) -> None:
        """End the experiment: its run.json says `finished`. The end of the program does the
        same."""
        self._core.finish()


def choose_pairs(loader: Any, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The pairs of a loader in an order that follows from the seed and the epoch; of data without
    indices, as they come."""
    dataset: Any = getattr(loader, "dataset", None)
    if isinstance(loader, DataLoader) and not isinstance(dataset, IterableDataset):
        for index in permutation(seed, epoch, len(dataset)).tolist():
            yield dataset[index]
    else:
        for inputs, targets in loader:
            yield from zip(inputs, targets, strict=True)

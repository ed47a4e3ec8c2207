"""The interfaces that are compared with the native trainer doing the same: no display, and files
only where both write them.

A contender is built once from a workload and returns a function that trains for so many steps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from contenders import Round
from loopwright import Trainer
from workloads import Workload


def native_plain(work: Workload) -> Round:
    """The native trainer as most interfaces use it: no run directory, no display."""
    model, data = work.build_model(), work.build_data()
    trainer = Trainer(
        model, work.build_optimizer(model.parameters()), work.loss_fn, progress="silent"
    )
    loader = DataLoader(data, batch_size=work.batch_size, shuffle=True)
    return lambda num_steps: trainer.train(loader, num_updates=num_steps) and None


def interface_simple(work: Workload) -> Round:
    """The simple interface, which trains whole epochs: a loader with as many batches as steps are
    timed."""
    from loopwright.interfaces.simple import Trainer as SimpleTrainer

    model = work.build_model()
    trainer = SimpleTrainer(model, work.build_optimizer(model.parameters()), work.loss_fn)
    return lambda num_steps: trainer.train(_loader(work, num_steps), num_epochs=1) and None


def interface_lifecycle(work: Workload) -> Round:
    """The lifecycle interface with the callbacks it has by default."""
    from loopwright.interfaces.lifecycle import Trainer as LifecycleTrainer

    model, data = work.build_model(), work.build_data()
    trainer = LifecycleTrainer(model, work.loss_fn, work.build_optimizer(model.parameters()))

    def run(num_steps: int) -> None:
        trainer.train(
            data,
            num_epochs=100,
            per_device_batch_size=work.batch_size,
            max_num_train_steps=num_steps,
        )

    return run


# The configured interface, with tensors as they are and with samples that are dicts


class Records(Dataset[dict[str, Tensor]]):
    """The workload's samples as dicts, as the configured interface's users have them."""

    def __init__(self, work: Workload) -> None:
        self.inputs, self.targets = work.build_data().tensors

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input": self.inputs[index], "target": self.targets[index]}


class OfRecords(Trainer):
    """The native trainer for such samples."""

    def split_batch(self, batch: Any) -> tuple[Any, Any]:
        return batch["input"], batch["target"]


def native_records(work: Workload) -> Round:
    model = work.build_model()
    trainer = OfRecords(
        model, work.build_optimizer(model.parameters()), work.loss_fn, progress="silent"
    )
    loader = DataLoader(Records(work), batch_size=work.batch_size, shuffle=True)
    return lambda num_steps: trainer.train(loader, num_updates=num_steps) and None


def _configured(work: Workload, data: Any, *, is_record: bool) -> Round:
    from loopwright.interfaces.configured import BaseTrainer, BaseTrainerConfig

    class Configured(BaseTrainer):
        def loss_compute(self, forward_output: Any, targets: dict[str, Any]) -> Any:
            return {"error": work.loss_fn(forward_output, targets["target"])}

    class OfPairs(Configured):
        def _split_batch(self, batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            return {"input": batch[0]}, {"target": batch[1]}

    model = work.build_model()
    config = BaseTrainerConfig(
        max_updates=0,
        effective_batch_size=work.batch_size,
        forward_properties=["input"],
        target_properties=["target"],
    )
    kind, optimizer = Configured if is_record else OfPairs, work.build_optimizer(model.parameters())
    trainer = kind(
        config, model=model, datasets={"train": data}, optimizer=optimizer, progress="silent"
    )

    def run(num_steps: int) -> None:
        config.max_updates = trainer.progress.update + num_steps
        trainer.train()

    return run


def interface_configured(work: Workload) -> Round:
    return _configured(work, work.build_data(), is_record=False)


def interface_configured_records(work: Workload) -> Round:
    return _configured(work, Records(work), is_record=True)


# The modular interface, in its loop and in one of the user's


def _modular(work: Workload, *, is_own_loop: bool) -> Round:
    from loopwright.interfaces.modular import DreamTrainer, DreamTrainerConfig

    class Modular(DreamTrainer):
        def configure_models(self) -> None:
            self.model = work.build_model()

        def configure_optimizers(self) -> None:
            self.optimizer = work.build_optimizer(self.model.parameters())

        def configure_dataloaders(self) -> Any:
            return DataLoader(work.build_data(), batch_size=work.batch_size, shuffle=True), None

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            inputs, targets = batch
            loss = work.loss_fn(self.model(inputs), targets)
            self.backward(loss)
            return {"loss": loss}

    class OwnLoop(Modular):
        def training_loop(self) -> None:
            for _ in range(self.current_epoch, self.config.n_epochs):
                self.model.train()
                for batch_idx, batch in enumerate(self.train_loader):
                    self.log_metrics(self.training_step(batch, batch_idx))

    config = DreamTrainerConfig(n_epochs=1_000_000, max_steps=0, progress="silent")
    trainer = (OwnLoop if is_own_loop else Modular)(config)

    def run(num_steps: int) -> None:
        config.max_steps = trainer.global_step + num_steps
        trainer.fit()

    return run


def interface_modular(work: Workload) -> Round:
    return _modular(work, is_own_loop=False)


def interface_modular_own_loop(work: Workload) -> Round:
    return _modular(work, is_own_loop=True)


# The adversarial interface: the workload's model as the generator, a model of the same kind that
# judges pairs, two updates


class Judge(nn.Module):
    """Says how real a target looks beside its input."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(num_inputs, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layers(torch.cat([x, y], 1))


LOSSES = ("D_real", "D_fake", "G_GAN", "G_L1")
Compute = Callable[[str, Tensor, Tensor], Tensor]


def _networks(work: Workload) -> tuple[nn.Module, nn.Module]:
    inputs, targets = work.build_data().tensors
    return work.build_model(), Judge(inputs.shape[1] + targets.shape[1])


def _discriminator_loss(
    disc: nn.Module, x: Tensor, y: Tensor, y_fake: Tensor, compute: Compute
) -> Tensor:
    real, fake = disc(x, y), disc(x, y_fake.detach())
    return (
        compute("D_real", real, torch.ones_like(real))
        + compute("D_fake", fake, torch.zeros_like(fake))
    ) * 0.5


def _generator_loss(
    disc: nn.Module, x: Tensor, y: Tensor, y_fake: Tensor, compute: Compute
) -> Tensor:
    verdict = disc(x, y_fake)
    return compute("G_GAN", verdict, torch.ones_like(verdict)) + compute("G_L1", y_fake, y)


def _functions() -> Iterator[tuple[str, nn.Module, float]]:
    from loopwright.losses import GANLoss

    for name in LOSSES:
        yield name, nn.L1Loss() if name == "G_L1" else GANLoss(), 100.0 if name == "G_L1" else 1.0


def native_paired(work: Workload) -> Round:
    """The native trainer with both networks, that logs the same four losses to a run directory."""

    class Paired(Trainer):
        def configure_models(self) -> None:
            self.gen, self.disc = _networks(work)
            self.functions = {name: (function, weight) for name, function, weight in _functions()}

        def configure_optimizers(self) -> None:
            self.opt_gen = work.build_optimizer(self.gen.parameters())
            self.opt_disc = work.build_optimizer(self.disc.parameters())

        def train_step(self, batch: Any) -> dict[str, Tensor]:
            (x, y), measured = batch, dict[str, Tensor]()

            def compute(name: str, first: Tensor, second: Tensor) -> Tensor:
                function, weight = self.functions[name]
                loss: Tensor = function(first, second) * weight
                measured[name] = loss.detach()
                return loss

            y_fake = self.gen(x)
            self.update(_discriminator_loss(self.disc, x, y, y_fake, compute), self.opt_disc)
            self.update(_generator_loss(self.disc, x, y, y_fake, compute), self.opt_gen)
            return measured

    trainer = Paired(progress="silent", run_dir=Path(tempfile.mkdtemp()) / "run")
    return lambda num_steps: trainer.train(_loader(work, num_steps), 1) and None


def interface_adversarial(work: Workload) -> Round:
    """The adversarial interface as it comes: a directory, a loss manager with its log, curves of
    the losses."""
    from loopwright.interfaces.adversarial import Trainer as PairedTrainer

    class Paired(PairedTrainer):
        def __init__(self) -> None:
            super().__init__({"common": {"output_directory": tempfile.mkdtemp()}})
            self.gen, self.disc = _networks(work)
            self.opt_gen = work.build_optimizer(self.gen.parameters())
            self.opt_disc = work.build_optimizer(self.disc.parameters())
            for name, function, weight in _functions():
                self.loss_manager.register_loss_fn(name, function, weight)

        def on_epoch_start(self, **kwargs: Any) -> None:
            pass

        def train_step(self, x: Tensor, y: Tensor, idx: int, **kwargs: Any) -> None:
            y_fake, compute = self.gen(x), self.loss_manager.compute_loss_xy
            self.update(_discriminator_loss(self.disc, x, y, y_fake, compute), self.opt_disc)
            self.update(_generator_loss(self.disc, x, y, y_fake, compute), self.opt_gen)

        def on_epoch_end(self, **kwargs: Any) -> None:
            self.loss_manager.update_loss_log()

    trainer, rounds = Paired(), iter(range(1_000_000))

    def run(num_steps: int) -> None:
        trainer.train_loader = _loader(work, num_steps)
        trainer.train_paired(next(rounds))

    return run


def _loader(work: Workload, num_steps: int) -> DataLoader:
    data = work.build_data()
    chosen = torch.arange(num_steps * work.batch_size) % len(data)
    return DataLoader(Subset(data, chosen.tolist()), batch_size=work.batch_size, shuffle=True)


INTERFACES: dict[str, Callable[[Workload], Round]] = {
    function.__name__: function
    for function in (
        native_plain,
        native_records,
        native_paired,
        interface_simple,
        interface_lifecycle,
        interface_configured,
        interface_configured_records,
        interface_modular,
        interface_modular_own_loop,
        interface_adversarial,
    )
}

"""The same small training in the native trainer, in every interface, and by hand: each is built
anew, then takes n steps."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from loopwright import Trainer
from loopwright.data.order import permutation
from loopwright.interfaces import adversarial, configured, lifecycle, modular, simple

from .counting import Training

BATCH = 8
mse = nn.functional.mse_loss
adam = partial(torch.optim.Adam, lr=1e-3)


def build_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))


def build_data(samples: int = 4096) -> TensorDataset:
    inputs = torch.randn(samples, 6, generator=torch.Generator().manual_seed(2))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def native(optimizer: Any = adam, data: Any = None, **options: Any) -> Training:
    """The native trainer with its default step; the optimizer is a factory, or a function of the
    model."""
    data = build_data() if data is None else data
    trainer = Trainer(build_model(), optimizer, mse, progress="silent", **options)
    return lambda steps: trainer.train(data, num_updates=steps, batch_size=BATCH)


def recorded() -> Training:
    """The native trainer as a new user runs it: a bar, a run directory, checkpoints."""
    model, data = build_model(), build_data()
    trainer = Trainer(model, adam, mse, run_dir=folder_of(model) / "run", progress="bar")
    return lambda steps: trainer.train(data, num_updates=steps, batch_size=BATCH)


class Rows(Dataset[Any]):
    """The samples of `build_data`, each fetched by Python code."""

    def __init__(self) -> None:
        self.tensors = build_data().tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.tensors[0][index], self.tensors[1][index]


class NoisyRows(Rows):
    """Samples that draw from torch's generator."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().__getitem__(index)
        return inputs + torch.randn(6), targets


def fetched() -> Training:
    """The native trainer over a Python data set, without workers."""
    return native(data=Rows())


def fetched_noisy() -> Training:
    """The same with random numbers in its samples."""
    return native(data=NoisyRows())


def folder_of(owner: object) -> Path:
    """A folder that is removed together with an object."""
    folder = tempfile.mkdtemp()
    weakref.finalize(owner, shutil.rmtree, folder)
    return Path(folder)


def by_hand(
    step: Callable[[nn.Module, torch.optim.Optimizer, Tensor, Tensor], None], **options: Any
) -> Training:
    """The tight loop that one writes by hand: batches indexed from the tensors, the order of an
    epoch drawn once."""
    model, (inputs, targets) = build_model(), build_data().tensors
    optimizer = adam(model.parameters(), **options)

    def train(steps: int) -> None:
        order = permutation(0, 0, len(inputs))
        for at in order[: steps * BATCH].view(-1, BATCH):
            step(model, optimizer, inputs[at], targets[at])

    return train


def plain_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor
) -> None:
    optimizer.zero_grad()
    mse(model(inputs), targets).backward()
    optimizer.step()


# The interfaces, each as its document has it


def _loader(steps: int) -> DataLoader[Any]:
    return DataLoader(build_data(steps * BATCH), batch_size=BATCH, shuffle=True)


def simple_interface() -> Training:
    model = build_model()
    trainer = simple.Trainer(model, adam(model.parameters()), mse)
    return lambda steps: trainer.train(_loader(steps), num_epochs=1)


def lifecycle_interface() -> Training:
    model, data = build_model(), build_data()
    trainer = lifecycle.Trainer(model, mse, adam(model.parameters()))
    return lambda steps: trainer.train(
        data, num_epochs=1, per_device_batch_size=BATCH, max_num_train_steps=steps
    )


class _Configured(configured.BaseTrainer):
    def loss_compute(self, forward_output: Any, targets: dict[str, Any]) -> Any:
        return {"error": mse(forward_output, targets["target"])}

    def _split_batch(self, batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"input": batch[0]}, {"target": batch[1]}


def configured_interface() -> Training:
    model = build_model()

    def train(steps: int) -> None:
        config = configured.BaseTrainerConfig(
            max_updates=steps,
            effective_batch_size=BATCH,
            forward_properties=["input"],
            target_properties=["target"],
        )
        optimizer = adam(model.parameters())
        _Configured(
            config,
            model=model,
            datasets={"train": build_data()},
            optimizer=optimizer,
            progress="silent",
        ).train()

    return train


class _Modular(modular.DreamTrainer):
    def configure_models(self) -> None:
        self.model = build_model()

    def configure_optimizers(self) -> None:
        self.optimizer = adam(self.model.parameters())

    def configure_dataloaders(self) -> Any:
        return DataLoader(build_data(), batch_size=BATCH, shuffle=True), None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = mse(self.model(batch[0]), batch[1])
        self.backward(loss)
        return {"loss": loss}


def modular_interface() -> Training:
    def train(steps: int) -> None:
        _Modular(modular.DreamTrainerConfig(n_epochs=1, max_steps=steps, progress="silent")).fit()

    return train


class _Adversarial(adversarial.Trainer):
    def __init__(self) -> None:
        super().__init__({"common": {"output_directory": str(folder_of(self))}})
        self.gen = build_model()
        self.disc = nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 1))
        self.opt_gen, self.opt_disc = adam(self.gen.parameters()), adam(self.disc.parameters())
        self.loss_manager.register_loss_fn("D", nn.MSELoss(), 0.5)
        self.loss_manager.register_loss_fn("G", nn.L1Loss(), 1.0)

    def on_epoch_start(self, **kwargs: Any) -> None:
        pass

    def train_step(self, x: Tensor, y: Tensor, idx: int, **kwargs: Any) -> None:
        fake, compute = self.gen(x), self.loss_manager.compute_loss_xy
        verdict = self.disc(torch.cat([x, fake.detach()], 1))
        self.update(compute("D", verdict, torch.zeros_like(verdict)), self.opt_disc)
        self.update(compute("G", fake, y), self.opt_gen)

    def on_epoch_end(self, **kwargs: Any) -> None:
        self.loss_manager.update_loss_log()


def adversarial_interface() -> Training:
    trainer = _Adversarial()

    def train(steps: int) -> None:
        trainer.train_loader = _loader(steps)
        trainer.train_paired(0)

    return train


PROGRAMS: dict[str, Callable[[], Training]] = {
    "native": native,
    "recorded": recorded,
    "fetched": fetched,
    "fetched_noisy": fetched_noisy,
    "simple": simple_interface,
    "lifecycle": lifecycle_interface,
    "configured": configured_interface,
    "modular": modular_interface,
    "adversarial": adversarial_interface,
}

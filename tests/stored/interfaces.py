"""Stored programs, one for each interface; each trains where it is started. Nothing here may
change: see `make.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from loopwright.callbacks import EMA
from loopwright.config import load_config
from loopwright.interfaces.adversarial import Pix2pixTrainer, read_loss_log
from loopwright.interfaces.configured import Experiment
from loopwright.interfaces.lifecycle import (
    CosineLrScheduler,
    EarlyStoppingCallback,
    ModelEmaCallback,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
)
from loopwright.interfaces.lifecycle import Trainer as LifecycleTrainer
from loopwright.interfaces.modular import DreamTrainer, DreamTrainerConfig
from loopwright.interfaces.simple import Trainer as SimpleTrainer

from .parts import classifier, count_steps, eighths, next_numbers, outcome, points


def simple(dies_at: int | None = None) -> dict[str, Any]:
    """Goes on from the newest checkpoint in `save_dir`, which the end of an epoch wrote."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    scheduler = OneCycleLR(optimizer, 0.05, total_steps=25)
    config = {"training": {"max_grad_norm": 0.5, "scheduler_step_per_batch": True}}
    trainer = SimpleTrainer(
        model, optimizer, nn.CrossEntropyLoss(), config, device="cpu", scheduler=scheduler
    )
    saved = sorted(Path("saved").glob("checkpoint_epoch_*"))
    earlier, num_done = {}, 0
    if saved:
        content = trainer.load_checkpoint(saved[-1])
        earlier, num_done = content["history"], content["num_epochs"]
    calls = count_steps(model, dies_at)
    history = trainer.train(
        DataLoader(points(18), 4, shuffle=True),
        5 - num_done,
        DataLoader(points(7, step=11), 4),
        save_dir="saved",
        save_freq=1,
        early_stopping_patience=4,
    )
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "history": {name: [*earlier.get(name, []), *values] for name, values in history.items()},
        "calls": len(calls),
        "random": next_numbers(trainer._core.run),
    }


def lifecycle(dies_at: int | None = None) -> dict[str, Any]:
    """Goes on from the latest training state, inside an epoch."""
    model = classifier()
    saving = SaveTrainingStateCallback("states", save_every_n_steps=1, max_checkpoints=1)
    stopping = EarlyStoppingCallback(4, early_stopping_threshold=0.0)
    best = SaveBestModelCallback("best", load_saved_checkpoint=False)
    ema = ModelEmaCallback(decay=0.8, save_path="ema")
    trainer = LifecycleTrainer(
        model,
        nn.CrossEntropyLoss(),
        torch.optim.AdamW(model.parameters(), 0.05),
        [ema, stopping, best, saving],
    )
    calls = count_steps(model, dies_at)
    trainer.train(
        points(18),
        4,
        points(7, step=11),
        per_device_batch_size=3,
        gradient_accumulation_steps=2,
        gradient_clip_value=0.5,
        create_scheduler_fn=CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1),
        resume_from=saving.latest,
    )
    names = [name for name in sorted(trainer.run_history.get_metric_names()) if "time" not in name]
    return {
        "model": model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": trainer.scheduler.state_dict(),
        "history": {name: list(trainer.run_history.get_metric_values(name)) for name in names},
        "epoch": trainer.run_history.current_epoch,
        "average": ema.ema_model.module.state_dict(),
        "callbacks": [stopping.state_dict(), best.state_dict()],
        "calls": len(calls),
        "random": next_numbers(trainer._core.run),
    }


PROJECT = Path(__file__).with_name("project")


def configured(dies_at: int | None = None) -> dict[str, Any]:
    """The run of a YAML file, with the module that it names; stopped inside an epoch."""
    for name in ("run.yaml", "stored_parts.py"):
        Path(name).write_text((PROJECT / f"{name}.txt").read_text())
    experiment = Experiment.from_config(load_config("run.yaml"), progress="silent")
    experiment.build()
    calls = count_steps(experiment.trainer.model, dies_at)
    experiment.train()
    return outcome(experiment.trainer.engine) | {"calls": len(calls)}


@dataclass(kw_only=True)
class Settings(DreamTrainerConfig):
    learning_rate: float = 0.05
    progress: str = "silent"


class Modular(DreamTrainer):
    """A classifier with two optimizers for its two ends."""

    config: Settings

    def configure_models(self) -> None:
        torch.manual_seed(4)
        self.body = nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh())
        self.head = nn.Linear(6, 2)

    def configure_optimizers(self) -> None:
        self.body_optimizer = torch.optim.AdamW(self.body.parameters(), self.config.learning_rate)
        self.head_optimizer = torch.optim.SGD(self.head.parameters(), 0.1, momentum=0.9)

    def configure_schedulers(self) -> None:
        self.scheduler = ExponentialLR(self.body_optimizer, 0.9)

    def configure_dataloaders(self) -> tuple[Any, Any]:
        return DataLoader(points(18), 4, shuffle=True), DataLoader(points(7, step=11), 4)

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        inputs, targets = batch
        loss = nn.functional.cross_entropy(
            self.head(self.body(inputs + torch.rand(4) / 8)), targets
        )
        self.backward(loss)
        return {"loss": loss}

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        inputs, targets = batch
        return {"val_loss": nn.functional.cross_entropy(self.head(self.body(inputs)), targets)}


def modular(dies_at: int | None = None) -> dict[str, Any]:
    """Two models, two optimizers, accumulation and an average; stopped inside an epoch."""
    ema = EMA(0.8, model="body")
    settings = Settings(
        n_epochs=4,
        run_dir="run",
        checkpoint_every_n_steps=1,
        val_every_n_steps=2,
        gradient_accumulation_steps=2,
        callbacks=[ema],
    )
    trainer = Modular(settings)
    trainer.setup()
    calls = count_steps(trainer.body, dies_at)
    trainer.fit()
    return {
        "models": [trainer.body.state_dict(), trainer.head.state_dict()],
        "optimizers": [trainer.body_optimizer.state_dict(), trainer.head_optimizer.state_dict()],
        "scheduler": trainer.scheduler.state_dict(),
        "history": trainer.history.to_dict(),
        "counts": [trainer.current_epoch, trainer.global_step],
        "average": ema.state_dict(),
        "calls": len(calls),
        "random": next_numbers(trainer._core.run),
    }


class Pictures(Pix2pixTrainer):
    """Networks without norms, whose biases would be noise, and pictures from memory."""

    def _init_generator(self) -> None:
        self.gen = nn.Sequential(
            nn.Conv2d(3, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 3, 3, padding=1), nn.Tanh()
        )
        self.opt_gen = self.build_optimizer(
            self.gen, lr=self.config.train.generator.learning_rate.initial
        )

    def _init_discriminator(self) -> None:
        self.disc = Judge()
        self.opt_disc = self.build_optimizer(self.disc)

    def _init_dataloaders(self) -> None:
        pictures = eighths(10, 3, 8, 8)
        self.train_loader = DataLoader(TensorDataset(pictures, -pictures), 2, shuffle=True)
        self.val_loader = DataLoader(TensorDataset(pictures[:2], -pictures[:2]), 2)


class Judge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(6, 3, 4, stride=2), nn.Tanh(), nn.Conv2d(3, 1, 3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        scores: Tensor = self.layers(torch.cat([x, y], 1))
        return scores


def adversarial(dies_at: int | None = None) -> dict[str, Any]:
    """Pairs of pictures, stopped inside an epoch."""
    goes_on = Path("out").is_dir()
    rate = {"epochs": 2, "epochs_decay": 2, "initial": 0.01, "target": 0.0}
    config = {
        "common": {"device": "cpu", "output_directory": "out", "experiment_name": "stored"},
        "dataloader": {"batch_size": 2, "load": {"load_size": 8, "crop_size": 8}},
        "train": {
            "generator": {"learning_rate": rate},
            "load": {"continue_train": goes_on, "load_epoch": "latest"},
        },
        "save": {"resume_updates": 1},
        "visualizer": {"visdom": {"enable": False}},
    }
    trainer = Pictures(config)
    calls = count_steps(trainer.gen, dies_at)
    for epoch in range(trainer.remaining_epochs(4)):
        trainer.train_paired(epoch)
    return {
        "networks": [trainer.gen.state_dict(), trainer.disc.state_dict()],
        "optimizers": [trainer.opt_gen.state_dict(), trainer.opt_disc.state_dict()],
        "schedulers": [
            trainer.gen_lr_scheduler.state_dict(),
            trainer.disc_lr_scheduler.state_dict(),
        ],
        "losses": read_loss_log(trainer.experiment_dir),
        "epoch": trainer.current_epoch,
        "calls": len(calls),
        "random": next_numbers(trainer._core.run),
    }

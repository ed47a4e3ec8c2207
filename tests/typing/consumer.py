"""Uses of the public interface, right and wrong, as a type checker sees them; the program is never
run.

A wrong line has `type: ignore` with its error. In strict mode mypy complains where it finds no such
error, so that a mistake which it accepts is found as well as a right line which it refuses.
`make lint` checks this file, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import loopwright
from loopwright import (
    Callback,
    History,
    Schedule,
    StepResult,
    StepRow,
    Trainer,
    callbacks,
    schedules,
    tuning,
)
from loopwright.interfaces import adversarial, configured, lifecycle, modular, simple

x = torch.ones(8, 2)
data = TensorDataset(x, x[:, :1])
loader = DataLoader(data, batch_size=4)
model = nn.Linear(2, 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)


def stop_early(trainer: Trainer, metrics: Mapping[str, float]) -> None:
    if metrics["loss"] < 0.1:
        trainer.stop("the loss is small")


class Printer(Callback):
    def on_log(self, trainer: Trainer, rows: list[StepRow]) -> None:
        for row in rows:
            print(row.step, row["loss"])

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        trainer.log_step({"double": result.loss})


class Own(Trainer):
    def train_step(self, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.update(loss)
        self.update(loss, "discriminator", retain_graph=True)
        self.update(loss, ["muon", "adamw"], count=targets.sum())
        return {"loss": loss}


class GAN(Trainer):
    generator: nn.Module
    discriminator: nn.Module

    def train_step(self, batch: Tensor) -> dict[str, Tensor]:
        loss = self.discriminator(self.generator(batch)).mean()
        self.update(loss, "generator")
        return {"loss": loss}


class OwnEpoch(lifecycle.Trainer):
    def _run_train_epoch(self, train_dl: Any) -> None:
        self.train_epoch_start()


class OwnLosses(adversarial.Trainer):
    def train_step(self, x: Tensor, y: Tensor, idx: int, **kwargs: Any) -> Tensor:
        return self.loss_manager.compute_loss_xy("L1", x, y)


# Right

trainer = Trainer(
    model, sgd, nn.MSELoss(), callbacks=[Printer(), Printer, stop_early], precision="bf16"
)
Trainer(
    model,
    partial(torch.optim.AdamW, lr=1e-3),
    nn.functional.mse_loss,
    callbacks=Printer(),
    progress="silent",
)
Trainer(
    {"a": model, "b": model},
    {"a": sgd, "b": torch.optim.Adam},
    callbacks=stop_early,
    run_dir=Path("run"),
)
Trainer(model, sgd, nn.MSELoss(), compile="step", metrics="accuracy")
Trainer(model, sgd, nn.MSELoss(), metrics={"mae": nn.functional.l1_loss, "huber": nn.HuberLoss()})
Trainer(
    model,
    sgd,
    nn.MSELoss(),
    scheduler=schedules.WarmupCosine(warmup_updates=10),
    device="cuda:1",
    seed=None,
)
Trainer(
    model,
    sgd,
    nn.MSELoss(),
    scheduler=Schedule(partial(torch.optim.lr_scheduler.StepLR, step_size=3), "update"),
)
history: History = trainer.train(
    data, 3, data, batch_size=4, max_time="1h30m", resume=False, changes="accept"
)
trainer.train((x, x), num_updates=10, max_time=timedelta(hours=1), resume="checkpoints/3")
trainer.train(loader, num_samples=100, resume="auto", changes="refuse")
trainer.train({"inputs": x, "targets": x}, eval_data=[(x, x)])
losses: list[float] = list(history["loss"])
measured: dict[str, float] = trainer.evaluate(loader)
trainer.predict(x)
trainer.save("checkpoint")
trainer.load(Path("checkpoint"))
rate: float | None = tuning.find_learning_rate(trainer, data).suggestion
callbacks.EMA(0.99)
loopwright.seed_everything(1)
configured.BaseTrainerConfig(max_epochs=3, forward_properties=["pixels"])
adversarial.Config()

# Wrong

Trainer(model, sgd, precision="bf17")  # type: ignore[arg-type]
Trainer(model, sgd, progress="none")  # type: ignore[arg-type]
Trainer(model, sgd, compile="whole")  # type: ignore[arg-type]
Trainer(model, lr=0.1)  # type: ignore[call-arg]
Trainer(model, sgd, nn.MSELoss(), callbacks=[3])  # type: ignore[list-item]
Trainer(model, sgd, nn.MSELoss(), clip_norm="1.0")  # type: ignore[arg-type]
Trainer(model, sgd, nn.MSELoss(), accumulate=None)  # type: ignore[arg-type]
trainer.train(data, changes="yes")  # type: ignore[arg-type]
trainer.train(data, epochs=3)  # type: ignore[call-arg]
trainer.train(data, num_epochs="3")  # type: ignore[arg-type]
trainer.train(5)  # type: ignore[arg-type]
trainer.evaluate()  # type: ignore[call-arg]
trainer.fit(data)  # type: ignore[attr-defined]
trainer.log("accuracy", 0.5)  # type: ignore[call-arg, arg-type]
Schedule(torch.optim.lr_scheduler.StepLR, every="step")  # type: ignore[arg-type]
loopwright.Trainre  # type: ignore[attr-defined]
callbacks.EarlyStoping("eval_loss")  # type: ignore[attr-defined]
callbacks.EarlyStopping("eval_loss", mode="lowest")  # type: ignore[arg-type]
callbacks.NonFiniteGuard("ignore")  # type: ignore[arg-type]
loopwright.Mesh(shard="two")  # type: ignore[arg-type]
history.losses  # type: ignore[attr-defined]
loopwright.trackers.TensorBord("events")  # type: ignore[attr-defined]
configured.Experimnt  # type: ignore[attr-defined]


def misspell_methods(
    easy: simple.Trainer,
    staged: lifecycle.Trainer,
    described: configured.BaseTrainer,
    several: modular.DreamTrainer,
    paired: adversarial.Trainer,
) -> None:
    easy.trian(2)  # type: ignore[attr-defined]
    staged.trian(data, 2)  # type: ignore[attr-defined]
    described.trian()  # type: ignore[attr-defined]
    several.fitt()  # type: ignore[attr-defined]
    paired.trian()  # type: ignore[attr-defined]

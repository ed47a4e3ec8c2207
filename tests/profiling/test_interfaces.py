"""A profile in every interface: as a callback where the interface takes it, around the training
everywhere."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright import Callback
from loopwright.callbacks import (
    EMA,
    BestCheckpoint,
    BestMetric,
    BestModel,
    Checkpoints,
    LearningRateLog,
    Profile,
    ProgressDisplay,
    RunRecorder,
)
from loopwright.interfaces import adversarial, lifecycle, modular
from loopwright.profiling.instrument import part_of

from .hand_clock import HandClock, SlowData, slow_trainer

cross_entropy = nn.functional.cross_entropy
GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(32, 6, generator=GENERATOR)
DATA = TensorDataset(INPUTS, (INPUTS.sum(1) > 0).long())
IN_EVERY_STEP = {"data", "forward", "backward", "optimizer"}


def same(first, second) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def check(report, steps: int, *, more=()) -> None:
    assert IN_EVERY_STEP | set(more) <= report.parts.keys()
    assert report.num_steps == steps
    assert sum(report.parts.values()) == report.total


class TwoModels(modular.DreamTrainer):
    """Two models with an optimizer each: one backward pass for both."""

    def configure_models(self):
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 2)

    def configure_optimizers(self):
        self.optimizer_1 = torch.optim.AdamW(self.first.parameters(), lr=0.01)
        self.optimizer_2 = torch.optim.SGD(self.second.parameters(), lr=0.1)

    def configure_dataloaders(self):
        return DataLoader(DATA, 8, shuffle=True), DataLoader(DATA, 16)

    def training_step(self, batch, batch_idx):
        loss = cross_entropy(self.second(self.first(batch[0])), batch[1])
        self.backward(loss)
        return {"loss": loss}

    def validation_step(self, batch, batch_idx):
        return {"val_loss": cross_entropy(self.second(self.first(batch[0])), batch[1])}


class Notes(modular.Callback):
    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        sum(range(1000))


def fit(kind, *callbacks):
    config = modular.DreamTrainerConfig(
        n_epochs=2,
        gradient_accumulation_steps=2,
        callbacks=[Notes(), *callbacks],
        progress="silent",
    )
    trainer = kind(config)
    trainer.fit()
    return [p.detach() for model in (trainer.first, trainer.second) for p in model.parameters()]


def test_modular_its_loop_and_its_own_callbacks():
    profile = Profile(warmup=0)
    assert same(fit(TwoModels, profile), fit(TwoModels))
    check(profile.report, 8, more={"evaluation"})
    assert "Notes" in profile.report.details("callbacks")


class LifecycleNotes(lifecycle.TrainerCallback):
    def on_train_step_end(self, trainer, batch, batch_output, **kwargs):
        sum(range(1000))


def run_stages():
    torch.manual_seed(1)
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = lifecycle.Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[LifecycleNotes])
    trainer.train(DATA, 2, DATA, per_device_batch_size=8, gradient_accumulation_steps=2)
    return trainer, list(model.parameters())


def test_lifecycle_around_its_stages(capsys):
    with Profile(warmup=0) as profile:
        trainer, weights = run_stages()
    assert same(weights, run_stages()[1])
    check(profile.report, 8, more={"evaluation"})
    assert "LifecycleNotes" in profile.report.details("callbacks")
    assert str(profile.report) in capsys.readouterr().out
    hooks = [hook for pairs in trainer.callback_handler._hooks.values() for _, hook in pairs]
    assert len(hooks) == 1
    assert not hasattr(hooks[0], "untimed")


class Pair(adversarial.Trainer):
    def __init__(self, config):
        super().__init__(config)
        torch.manual_seed(1)
        self.generator, self.discriminator = nn.Linear(6, 6), nn.Linear(6, 1)
        self.optimizer_g = self.build_optimizer(self.generator)
        self.optimizer_d = self.build_optimizer(self.discriminator)
        self.train_loader = DataLoader(TensorDataset(INPUTS, INPUTS.flip(0)), 8)

    def on_epoch_start(self, **kwargs):
        pass

    def train_step(self, x, y, idx, **kwargs):
        fake = self.generator(x)
        self.update(
            self.discriminator(fake.detach()).square().mean() - self.discriminator(y).mean(),
            self.optimizer_d,
        )
        loss = (fake - y).abs().mean()
        self.update(loss, self.optimizer_g)
        return {"loss": loss.detach()}

    def on_epoch_end(self, **kwargs):
        pass


def test_adversarial_around_epochs_that_are_calls_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run():
        trainer = Pair(None)
        for epoch in range(2):
            trainer.train_paired(epoch)
        return trainer, [*trainer.generator.parameters(), *trainer.discriminator.parameters()]

    with Profile(warmup=0) as profile:
        trainer, weights = run()
    assert same(weights, run()[1])
    check(profile.report, 8, more={"logging"})
    assert (trainer.experiment_dir / "profile.json").is_file()


def test_what_ships_counts_as_what_it_does_and_subclasses_as_their_class():
    class Mine(Checkpoints):
        pass

    expected = {
        "checkpoints": [
            Checkpoints,
            Mine,
            BestModel,
            BestCheckpoint,
            lifecycle.SaveTrainingStateCallback,
        ],
        "logging": [RunRecorder, ProgressDisplay, LearningRateLog, lifecycle.LogMetricsCallback],
        "callbacks": [EMA, BestMetric, lifecycle.ModelEmaCallback, Callback],
    }
    assert {
        part: [kind for kind in kinds if part_of(kind) != part] for part, kinds in expected.items()
    } == {part: [] for part in expected}


# Around a training


def test_around_several_calls_the_time_between_them_is_not_in_it(clock: HandClock):
    trainer = slow_trainer(clock, forward=10)
    with Profile(warmup=0) as profile:
        trainer.train(SlowData(clock, 0), 1, batch_size=6)
        clock.take(500)
        trainer.train(SlowData(clock, 0), 1, batch_size=6)
        clock.take(7000)
    assert profile.report.parts == {"forward": 40}

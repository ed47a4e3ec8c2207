"""The programs of document 003, with only the import line changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from loopwright.callbacks import EMA
from loopwright.interfaces.modular import Callback, DreamTrainer, DreamTrainerConfig

from ...loops import build_net
from .programs import Config, MyTrainer, OwnFiles, OwnLoop, assert_same, build_data, by_hand


def test_the_basic_trainer_trains_bit_for_bit_like_a_loop_by_hand() -> None:
    trainer = MyTrainer(Config(n_epochs=3), build_net())
    trainer.fit()
    assert_same(trainer.model, by_hand(build_net(), epochs=3))


def test_clipping_accumulation_and_mixed_precision_are_those_of_a_loop_by_hand() -> None:
    config = Config(
        n_epochs=2, gradient_clip_val=0.1, gradient_accumulation_steps=2, precision="bf16"
    )
    trainer = MyTrainer(config, build_net())
    trainer.fit()
    assert_same(
        trainer.model, by_hand(build_net(), epochs=2, accumulate=2, clip=0.1, dtype=torch.bfloat16)
    )


def test_the_documents_custom_loop_is_the_trainers_own() -> None:
    config = Config(n_epochs=3, gradient_accumulation_steps=2, gradient_clip_val=0.5)
    own, usual = OwnLoop(config, build_net()), MyTrainer(config, build_net())
    own.fit()
    usual.fit()
    assert_same(own.model, usual.model)
    assert own.history.to_dict() == usual.history.to_dict()
    assert list(own.history.steps["loss"]) == list(usual.history.steps["loss"])
    assert (
        (own.current_epoch, own.global_step) == (usual.current_epoch, usual.global_step) == (3, 9)
    )


def test_the_metrics_of_the_steps_are_in_the_history() -> None:
    trainer = MyTrainer(Config(n_epochs=2))
    history = trainer.fit()
    assert set(history.names) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    inputs, targets = build_data(21).tensors
    accuracy = (trainer.model.eval()(inputs).argmax(1) == targets).double().mean().item()
    assert history.last("val_accuracy") == pytest.approx(accuracy)


class Gan(DreamTrainer):
    """The document's several models and optimizers."""

    def __init__(self, config: DreamTrainerConfig) -> None:
        super().__init__(config)
        self.generator, self.discriminator = nn.Linear(2, 6), nn.Linear(6, 1)

    def configure_models(self) -> None:
        self.generator = self.generator.to(self.device)
        if self.is_distributed:
            self.generator = self.wrap_model(self.generator)
        self.discriminator = self.discriminator.to(self.device)
        if self.is_distributed:
            self.discriminator = self.wrap_model(self.discriminator)

    def configure_optimizers(self) -> None:
        self.g_optimizer = torch.optim.AdamW(self.generator.parameters(), lr=self.config.g_lr)
        self.d_optimizer = torch.optim.AdamW(self.discriminator.parameters(), lr=self.config.d_lr)

    def configure_dataloaders(self) -> Any:
        return DataLoader(build_data(), batch_size=8, shuffle=True), None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        real, _ = batch
        fake = self.generator(torch.randn(len(real), 2))
        d_loss = self.discriminator(fake.detach()).mean() - self.discriminator(real).mean()
        self.backward(d_loss)
        self.step(self.d_optimizer)
        g_loss = -self.discriminator(fake).mean()
        self.backward(g_loss)
        self.step(self.g_optimizer)
        return {"d_loss": d_loss, "g_loss": g_loss}


def test_several_models_are_each_saved_under_their_own_name(tmp_path: Path) -> None:
    from loopwright.checkpoint import read_checkpoint

    trainer = Gan(Config())
    trainer.fit()
    trainer.save_checkpoint(tmp_path / "all")
    tree = read_checkpoint(tmp_path / "all").tree
    assert set(tree["models"]) == {"generator", "discriminator"}
    assert set(tree["optimizers"]) == {"g_optimizer", "d_optimizer"}


def test_a_scheduler_is_stepped_once_an_epoch() -> None:
    class Scheduled(MyTrainer):
        def configure_optimizers(self) -> None:
            super().configure_optimizers()
            self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
                self.optimizer, T_max=self.config.n_epochs
            )

    rates: list[float] = []

    class Rates(Callback):
        def on_train_epoch_start(self, trainer: Any) -> None:
            rates.append(trainer.optimizer.param_groups[0]["lr"])

    trainer = Scheduled(Config(n_epochs=3, callbacks=[Rates]))
    trainer.fit()
    assert rates == pytest.approx([0.01, 0.0075, 0.0025])
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)


def test_the_documents_distributed_loaders_work_on_one_process() -> None:
    class Sampled(MyTrainer):
        def configure_dataloaders(self) -> Any:
            train, val = build_data(), build_data(21)
            sampler = DistributedSampler(train, num_replicas=self.world_size, rank=self.global_rank)
            val_sampler = DistributedSampler(
                val, num_replicas=self.world_size, rank=self.global_rank, shuffle=False
            )
            return DataLoader(train, 8, sampler=sampler), DataLoader(val, 8, sampler=val_sampler)

    trainer = Sampled(Config(n_epochs=2))
    trainer.fit()
    sampler = DistributedSampler(build_data(), num_replicas=1, rank=0)
    sampler.set_epoch(1)
    assert (trainer.global_step, len(trainer.train_loader), len(trainer.val_loader)) == (10, 5, 3)
    assert list(trainer.train_loader.sampler) == list(sampler)


def test_the_documents_checkpoints_are_written_and_read_by_its_own_code(tmp_path: Path) -> None:
    first = OwnFiles(Config(n_epochs=2, callbacks=[EMA(0.9), Callback], run_dir=tmp_path / "run"))
    first.fit()
    first.save_checkpoint(tmp_path / "own.pt")
    second = OwnFiles(Config(n_epochs=5), build_net(seed=5))
    second.load_checkpoint(tmp_path / "own.pt")
    assert second.current_epoch == 2
    assert torch.load(tmp_path / "own.pt")["config"].run_dir == tmp_path / "run"
    assert_same(first.model, second.model)
    second.fit()
    assert (len(second.history), second.current_epoch) == (3, 5)


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # torch's own imports
def test_compile_model_compiles_and_keeps_the_names() -> None:
    class Compiled(MyTrainer):
        def configure_models(self) -> None:
            if self.config.compile_model and self.by_hand:
                self.model = torch.compile(self.model)

    for by_user in (True, False):
        trainer = Compiled(Config(compile_model=True), build_net())
        trainer.by_hand = by_user
        with torch.compiler.set_stance("force_eager"):
            trainer.fit()
        raw = trainer._core.models["model"]
        assert list(raw.state_dict()) == list(build_net().state_dict())
        assert (raw._compiled_call_impl is None) is by_user  # not a second time
        assert_same(raw, by_hand(build_net(), epochs=1))

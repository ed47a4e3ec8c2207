"""A run that was stopped or killed goes on as if nothing had happened."""

from __future__ import annotations

import copy
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from loopwright.interfaces.adversarial import (
    Discriminator,
    Pix2pixTrainer,
    Trainer,
    read_loss_log,
)
from loopwright.run import MetricsStore
from tests.runs import epochs_of, steps_of

from ...forked import call_forked
from ...mistakes import raises
from ...runs import commit_metrics
from .runs import assert_same_training, continued, tiny, train


class Killed(BaseException):
    """Stands for SIGKILL: no handler that could save anything runs."""


def every_update(data: Path, output: Path, **common: Any) -> dict[str, Any]:
    config = tiny(data, output, save={"resume_updates": 1})
    return config | {"common": config["common"] | common}


def killed_at(config: dict[str, Any], epoch: int, batch: int) -> None:
    """Train until a batch of an epoch, both from 0, and no further."""
    trainer = Pix2pixTrainer(config)

    def step(x: torch.Tensor, y: torch.Tensor, idx: int, **kwargs: Any) -> None:
        if trainer.current_epoch == epoch + 1 and idx == batch:
            raise Killed
        trainer.train_step(x, y, idx)

    for number in range(epoch):
        trainer.train_paired(number, train_step=step)
    with pytest.raises(Killed):
        trainer.train_paired(epoch, train_step=step)


def test_a_run_killed_inside_an_epoch_goes_on_exactly(data: Path, tmp_path: Path):
    whole = train(Pix2pixTrainer(every_update(data, tmp_path / "a", precision="fp16")), 3)
    config = every_update(data, tmp_path / "b", precision="fp16")
    killed_at(config, 1, 2)
    resumed = Pix2pixTrainer(continued(config))
    assert resumed.loaded_epoch == 1
    for number in range(resumed.remaining_epochs(3)):
        resumed.train_paired(number)
    assert_same_training(whole, resumed)
    logs = [read_loss_log(trainer.experiment_dir) for trainer in (whole, resumed)]
    assert logs[0] == logs[1]
    assert [len(entry["losses"]) for entry in logs[0].values()] == [9, 9, 9, 9]
    rows = []
    for trainer in (whole, resumed):
        store = MetricsStore(trainer.experiment_dir / "metrics.sqlite")
        rows.append((steps_of(store), epochs_of(store)))
        store.close()
    assert rows[0] == rows[1]


def be_killed(config: dict[str, Any]) -> None:
    trainer = Pix2pixTrainer(config)

    def step(x: torch.Tensor, y: torch.Tensor, idx: int) -> None:
        if (trainer.current_epoch, idx) == (2, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.train_step(x, y, idx)

    for epoch in range(trainer.remaining_epochs(3)):
        trainer.train_paired(epoch, train_step=step)


def test_the_same_program_goes_on_after_sigkill(data: Path, tmp_path: Path):
    config = every_update(data, tmp_path / "b")
    config["train"]["load"] = {"continue_train": "auto"}
    killed = call_forked(lambda: be_killed(config), tmp_path)
    assert killed.code == -signal.SIGKILL, killed.err
    resumed = Pix2pixTrainer(config)
    assert resumed.experiment_dir.name == "tiny_v1"
    assert resumed._core.progress.update in (3, 4)  # the last one may have been half written
    for epoch in range(resumed.remaining_epochs(3)):
        resumed.train_paired(epoch)
    assert_same_training(train(Pix2pixTrainer(tiny(data, tmp_path / "a")), 3), resumed)


def test_an_epoch_that_is_gone_on_with_does_not_start_again(data: Path, tmp_path: Path):
    config = every_update(data, tmp_path)
    killed_at(config, 1, 1)
    resumed, seen = Pix2pixTrainer(continued(config)), []

    def step(x: torch.Tensor, y: torch.Tensor, idx: int) -> None:
        seen.append(idx)
        resumed.train_step(x, y, idx)

    for epoch in range(2):
        resumed.train_paired(
            epoch,
            on_epoch_start=lambda: seen.append(("start", resumed.current_epoch)),
            train_step=step,
        )
    assert seen == [1, 2, ("start", 3), 0, 1, 2]


def test_auto_begins_where_there_is_nothing_to_go_on_from(data: Path, tmp_path: Path):
    config = tiny(data, tmp_path)
    config["train"]["load"] = {"continue_train": "auto"}
    first = train(Pix2pixTrainer(config), 1)
    again = train(Pix2pixTrainer(config), 1)  # no state was saved: all over, in the same place
    assert again.experiment_dir == first.experiment_dir
    assert len(read_loss_log(again.experiment_dir)["G_L1"]["losses"]) == 3
    again.save_checkpoint()
    assert Pix2pixTrainer(config).loaded_epoch == 1


def test_going_back_to_an_earlier_epoch_leaves_nothing_of_what_came_after(
    data: Path, tmp_path: Path
):
    whole = train(Pix2pixTrainer(tiny(data, tmp_path / "a")), 2)
    config = tiny(data, tmp_path / "b", save={"resume_updates": 2})
    first = Pix2pixTrainer(config)
    for epoch in range(3):
        first.train_paired(epoch)
        first.save_checkpoint()
    again = train(Pix2pixTrainer(continued(config, 1)), 1)
    assert_same_training(whole, again)
    assert len(read_loss_log(again.experiment_dir)["G_L1"]["losses"]) == 6
    # inside the second epoch, taken anew
    assert Pix2pixTrainer(continued(config, "latest")).loaded_epoch == 2 - 1


def test_a_checkpoint_asked_for_in_a_hook_is_of_the_whole_epoch(data: Path, tmp_path: Path):
    whole = train(Pix2pixTrainer(tiny(data, tmp_path / "a")), 2)

    class Saving(Pix2pixTrainer):
        def on_epoch_end(self, **kwargs: Any) -> None:
            self.save_checkpoint()
            super().on_epoch_end(**kwargs)

    train(Saving(tiny(data, tmp_path / "b")), 1)
    again = train(Saving(continued(tiny(data, tmp_path / "b"), 1)), 1)
    assert_same_training(whole, again)


def test_a_damaged_state_is_passed_over(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    config = tiny(data, tmp_path)
    trainer = Pix2pixTrainer(config)
    for epoch in range(2):
        trainer.train_paired(epoch)
        path = trainer.save_checkpoint()
    file = path / "gen.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert Pix2pixTrainer(continued(config)).loaded_epoch == 1
    assert "epoch2 is skipped" in caplog.text


def test_exported_networks_are_loaded_with_their_optimizers(data: Path, tmp_path: Path):
    config = tiny(data, tmp_path)
    first = train(Pix2pixTrainer(config), 1)
    assert first.export_model_weights(first.gen, first.opt_gen, "G").name == "epoch1_netG"
    first.export_model_weights(first.disc, first.opt_disc, "D")
    second = Pix2pixTrainer(continued(config, 1))
    assert second.loaded_epoch == 1
    assert all(
        torch.equal(a, b)
        for a, b in zip(first.gen.parameters(), second.gen.parameters(), strict=True)
    )
    assert second.opt_disc.state_dict()["state"][0]["step"] == 3
    second.train_paired(0)
    assert second.current_epoch == 2
    assert len(read_loss_log(second.experiment_dir)["G_L1"]["losses"]) == 6


def test_weights_of_the_documents_own_program_are_read(data: Path, tmp_path: Path):
    config = tiny(data, tmp_path)
    first = train(Pix2pixTrainer(config), 1)
    for kind, network, optimizer in (
        ("G", first.gen, first.opt_gen),
        ("D", first.disc, first.opt_disc),
    ):
        content = {"state_dict": network.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(content, first.experiment_dir / f"epoch12_net{kind}.pth.tar")
    second = Pix2pixTrainer(continued(config, 12))
    assert second.loaded_epoch == 12
    assert torch.equal(first.gen.last[0].weight, second.gen.last[0].weight)
    assert second.opt_gen.state_dict()["state"][0]["step"] == 3


def test_a_network_and_its_optimizer_are_loaded_both_or_not_at_all(data: Path, tmp_path: Path):
    trainer = train(Pix2pixTrainer(tiny(data, tmp_path)), 1)
    trainer.save_checkpoint()
    other = Discriminator(3, 4, n_layers=2)
    before = copy.deepcopy(other.state_dict())
    first, *rest = other.parameters()
    groups = torch.optim.Adam([{"params": [first]}, {"params": rest}])
    with raises("state-mismatch", "nothing was loaded", "parameter groups"):
        trainer.load_checkpoint("D", other, groups)
    assert all(torch.equal(value, before[key]) for key, value in other.state_dict().items())
    trainer.load_checkpoint("D", other, torch.optim.Adam(other.parameters()))
    assert torch.equal(other.model[0].weight, trainer.disc.model[0].weight)


class Counting(Trainer):
    """A trainer of its own with state of its own: a sum, a scheduler and a scaler that it uses
    itself."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.total = 0.0
        self.net = nn.Conv2d(3, 3, 1)
        self.opt = self.build_optimizer(self.net)
        self.rate = torch.optim.lr_scheduler.ExponentialLR(self.opt, 0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.train_loader = self.build_dataloader("train")
        if self.is_continuing:
            self.continue_run()

    def on_epoch_start(self) -> None: ...

    def train_step(self, x: torch.Tensor, y: torch.Tensor, idx: int) -> None:
        self.opt.zero_grad()
        loss = (self.net(x) - y).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        self.total += loss.item()

    def on_epoch_end(self) -> None:
        self.rate.step()

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: Any) -> None:
        self.total = state["total"]


def test_a_trainer_of_ones_own_goes_on_with_all_that_it_has(data: Path, tmp_path: Path):
    trainers = [Counting(tiny(data, tmp_path / name)) for name in "ab"]
    trainers[0].train_paired(0)
    trainers[0].train_paired(1)
    trainers[1].train_paired(0)
    trainers[1].save_checkpoint()
    again = Counting(continued(tiny(data, tmp_path / "b")))
    again.train_paired(0)
    assert torch.equal(trainers[0].net.weight, again.net.weight)
    assert trainers[0].total == again.total
    assert trainers[0].scaler.state_dict() == again.scaler.state_dict()
    assert trainers[0].opt.param_groups[0]["lr"] == again.opt.param_groups[0]["lr"]


class ByTheDocument(Trainer):
    """A trainer that continues as the document says: it loads each network, and nothing else."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.gen = nn.Conv2d(3, 3, 1)
        self.opt_gen = self.build_optimizer(self.gen, torch.optim.Adam, 0.01, 0.5)
        self.loss_manager.register_loss_fn("G_L1", nn.L1Loss(), tags=["G"])
        self.train_loader = self.build_dataloader("train")
        if self.config.train.load.continue_train:
            self.load_checkpoint("g", self.gen, self.opt_gen, 0.005)

    def on_epoch_start(self, **kwargs: Any) -> None:
        if self.current_epoch == kwargs.get("die_in"):
            self.loss_manager.epoch = -1

    def train_step(self, x: torch.Tensor, y: torch.Tensor, idx: int, **kwargs: Any) -> None:
        if self.loss_manager.epoch == -1 and idx == 2:
            self._core.run.flush()
            commit_metrics(self._core.run)
            os.kill(os.getpid(), signal.SIGKILL)
        loss = self.loss_manager.compute_loss_xy("G_L1", self.gen(x), y, self.current_epoch)
        self.opt_gen.zero_grad()
        loss.backward()
        self.opt_gen.step()

    def on_epoch_end(self, **kwargs: Any) -> None:
        self.loss_manager.update_loss_log()
        self.export_model_weights(self.gen, self.opt_gen, "G")


def recorded(directory: Path) -> tuple[list[Any], list[Any]]:
    store = MetricsStore(directory / "metrics.sqlite")
    rows = steps_of(store, "G_L1"), epochs_of(store, "G_L1")
    store.close()
    return rows


def killed_by_the_document(config: dict[str, Any]) -> None:
    trainer = ByTheDocument(config)
    for epoch in range(3):
        trainer.train_paired(epoch, callback_kwargs={"on_epoch_start": {"die_in": 3}})


@pytest.mark.parametrize("load_epoch", [1, "latest"])
def test_continuing_as_the_document_says_adds_to_what_was_recorded(
    data: Path, tmp_path: Path, load_epoch: int | str
):
    config = tiny(data, tmp_path)
    killed = call_forked(lambda: killed_by_the_document(config), tmp_path)
    assert killed.code == -signal.SIGKILL, killed.err
    directory = tmp_path / "tiny_v1"
    steps, epochs = recorded(directory)
    # two epochs and two batches
    assert [row[:2] for row in steps] == [(number, number) for number in range(1, 9)]
    log = read_loss_log(directory)["G_L1"]["losses"]
    again = ByTheDocument(continued(config, load_epoch))
    assert again.loaded_epoch == (2 if load_epoch == "latest" else load_epoch)
    assert again.opt_gen.param_groups[0]["lr"] == 0.005
    for epoch in range(2):
        again.train_paired(epoch)
    again.finish()
    assert again.current_epoch == again.loaded_epoch + 2
    after, epochs_after = recorded(directory)
    assert after[:8] == steps
    assert [row[1] for row in after[8:]] == list(range(9, 15))
    assert epochs_after[:2] == epochs
    assert [row[0] for row in epochs_after] == [1, 2, 3, 4]
    losses = read_loss_log(directory)["G_L1"]["losses"]
    assert losses[: len(log)] == log
    assert len(losses) == len(log) + 6
    assert again._core.progress.sample >= 2 * 5

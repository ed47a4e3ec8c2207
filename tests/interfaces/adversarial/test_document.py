"""The program style of document 004: a trainer is three hooks, and `train_paired` runs them for an
epoch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from loopwright.interfaces.adversarial import Pix2pixTrainer, Trainer

from .runs import tiny


class Scaling(Trainer):
    """One network that learns to scale an image, and a list of what happened."""

    def __init__(self, config: Any, **options: Any) -> None:
        super().__init__(config, **options)
        self.events: list[Any] = []
        self.net = nn.Conv2d(3, 3, 1)
        self.opt = self.build_optimizer(
            network=self.net, optimizer=torch.optim.Adam, lr=0.01, beta1=0.5
        )
        self.train_loader = self.build_dataloader("train")

    def on_epoch_start(self, **kwargs: Any) -> None:
        self.events.append(("start", self.current_epoch, kwargs))

    def train_step(self, x: torch.Tensor, y: torch.Tensor, idx: int, **kwargs: Any) -> None:
        self.update((self.net(x) - y).abs().mean(), self.opt)
        self.events.append(("step", idx, len(x), kwargs))

    def on_epoch_end(self, **kwargs: Any) -> None:
        self.events.append(("end", self.current_epoch, kwargs))


def test_hooks_run_in_order_and_know_the_epoch_and_the_batch(data: Path, tmp_path: Path):
    trainer = Scaling(tiny(data, tmp_path))
    trainer.train_paired(0)
    trainer.train_paired(1)
    epoch = [("step", 0, 2, {}), ("step", 1, 2, {}), ("step", 2, 1, {})]
    assert trainer.events == [
        *[("start", 1, {}), *epoch, ("end", 1, {})],
        *[("start", 2, {}), *epoch, ("end", 2, {})],
    ]


def test_keywords_go_to_the_hook_they_are_for(data: Path, tmp_path: Path):
    trainer = Scaling(tiny(data, tmp_path))
    trainer.train_paired(
        0,
        callback_kwargs={
            "on_epoch_start": {"var1": 1.0},
            "train_step": {"var2": True, "var3": [1.0, 2.0]},
            "on_epoch_end": {"var4": {"x": 1.0, "y": 2.0}},
        },
    )
    assert trainer.events[0] == ("start", 1, {"var1": 1.0})
    assert trainer.events[1] == ("step", 0, 2, {"var2": True, "var3": [1.0, 2.0]})
    assert trainer.events[-1] == ("end", 1, {"var4": {"x": 1.0, "y": 2.0}})


def test_hooks_given_to_a_call_replace_the_methods_for_that_call(data: Path, tmp_path: Path):
    trainer, seen = Scaling(tiny(data, tmp_path)), []

    def step(x: torch.Tensor, y: torch.Tensor, idx: int, **kwargs: Any) -> None:
        seen.append(idx)
        trainer.update((trainer.net(x) - y).abs().mean(), trainer.opt)

    trainer.train_paired(
        0,
        on_epoch_start=lambda **kw: seen.append("start"),
        train_step=step,
        on_epoch_end=lambda **kw: seen.append("end"),
    )
    assert seen == ["start", 0, 1, 2, "end"]
    assert trainer.events == []
    trainer.train_paired(1)
    assert [event[0] for event in trainer.events] == ["start", "step", "step", "step", "end"]


def test_every_hook_must_be_overridden(data: Path, tmp_path: Path):
    trainer = Trainer(tiny(data, tmp_path))
    trainer.train_loader = trainer.build_dataloader("train")
    with pytest.raises(NotImplementedError, match="must override train_step"):
        trainer.train_paired(0, on_epoch_start=lambda: None, on_epoch_end=lambda: None)


def test_an_epoch_that_failed_starts_over(data: Path, tmp_path: Path):
    trainer, failing = Scaling(tiny(data, tmp_path)), iter([None, ValueError("bad batch")])

    def step(x, y, idx, **kw):
        error = next(failing, None)
        if error is not None:
            raise error
        trainer.train_step(x, y, idx)

    with pytest.raises(ValueError, match="bad batch"):
        trainer.train_paired(0, train_step=step)
    trainer.events.clear()
    trainer.train_paired(0)
    assert [event[:2] for event in trainer.events] == [
        ("start", 1),
        ("step", 0),
        ("step", 1),
        ("step", 2),
        ("end", 1),
    ]


def test_the_training_script_of_pix2pix_runs_from_a_config_file(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "config.json"
    save = {"model_save_rate": 2, "num_examples": 2}
    path.write_text(json.dumps({"config": tiny(data, tmp_path / "out", save=save)}))
    trainer = Pix2pixTrainer(config=path, loss_subspec="basic", log_losses=True)
    cfg, epoch_count = trainer.config, 3
    for epoch in range(epoch_count):
        trainer.train_paired(epoch, callback_kwargs={"on_epoch_start": {"print_train_start": True}})
        if epoch == epoch_count - 1 or (
            cfg.save.save_model and (epoch + 1) % cfg.save.model_save_rate == 0
        ):
            trainer.save_checkpoint()
        if cfg.save.save_examples and (epoch + 1) % cfg.save.example_save_rate == 0:
            trainer.save_examples()
        trainer.print_end_of_epoch()
    written = capsys.readouterr().out
    assert (
        "Beginning epoch: 3\nLoss weights: G_GAN: 1.0 G_L1: 100.0 D_real: 1.0 D_fake: 1.0"
        in written
    )
    assert "(epoch: 1, iters: 0) Loss: G_GAN: " in written
    assert "(End of epoch: 3) Time: " in written
    assert "Next learning rate (G): 6.667e-05" in written
    experiment = tmp_path / "out" / "tiny_v1"
    assert sorted(path.name for path in (experiment / "epochs").iterdir()) == ["epoch2", "epoch3"]
    assert len(list((experiment / "examples").iterdir())) == 3 * 2 * 3

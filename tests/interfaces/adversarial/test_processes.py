"""The interface on two processes: the same program gives the weights, losses and files of one
process, and prints once."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from loopwright.errors import ConfigurationError
from loopwright.interfaces.adversarial import (
    Pix2pixTrainer,
    Tester,
    Trainer,
    UnetGenerator,
    read_loss_log,
)

from ...distributed.ranks import run_ranks
from ...distributed.scenarios import assert_same, weights_of
from .runs import SIZE, continued, tiny


class Exact(Pix2pixTrainer):
    """In double precision, and without dropout, whose random numbers are each process's own."""

    def _init_generator(self) -> None:
        super()._init_generator()
        self.gen = UnetGenerator(SIZE, features=4, n_downs=1, use_dropout_layers=0).double()
        self.opt_gen.param_groups[0]["params"] = list(self.gen.parameters())

    def _init_discriminator(self) -> None:
        super()._init_discriminator()
        self.disc.double()

    def train_step(self, x: Tensor, y: Tensor, idx: int, **kwargs: Any) -> None:
        super().train_step(x.double(), y.double(), idx)


def experiment(rank: int, data: Path, folder: Path) -> dict[str, Any]:
    """A program as the document has it, which then goes on from its first epoch, and what is left
    of it."""
    config = tiny(data, folder, visualizer={"visdom": {"update_frequency": 1}})
    with redirect_stdout(StringIO()) as printed:
        trainer = Exact(config)
        for epoch in range(2):
            trainer.train_paired(
                epoch, callback_kwargs={"on_epoch_start": {"print_train_start": True}}
            )
            trainer.save_checkpoint()
            trainer.print_end_of_epoch()
        trainer.export_model_weights(trainer.gen, trainer.opt_gen, "G")
        trainer.save_xyz_examples(deepcopy(trainer.gen).float(), trainer.val_loader)
        results = Tester(experiment_dir=trainer.experiment_dir).run_test()
        again = Exact(continued(config, load_epoch=1))
        again.train_paired(0)
    assert trainer.experiment_dir is not None
    return {
        "weights": weights_of(trainer.gen, trainer.disc),
        "weights, continued": weights_of(again.gen, again.disc),
        "losses": read_loss_log(trainer.experiment_dir),
        "history": trainer._core.history.to_dict(),
        "single precision": [[str(result.source), dict(result.losses)] for result in results],
        "printed": [
            line
            for line in printed.getvalue().splitlines()
            if "Time" not in line and "iters" not in line
        ],
    }


def files_of(folder: Path) -> list[str]:
    """Whatever was written, but for what SQLite may leave beside its file."""
    paths = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return sorted(path for path in paths if not path.endswith(("-wal", "-shm")))


def test_two_processes_give_the_weights_losses_and_files_of_one(data: Path, tmp_path: Path) -> None:
    alone = experiment(0, data, tmp_path / "alone")
    first, second = run_ranks(experiment, 2, data, tmp_path / "together")
    assert "Beginning epoch: 2" in first["printed"]
    assert second.pop("printed") == []
    assert_same(first, alone)
    alone.pop("printed")
    assert_same(second, alone)
    for weights in (first, second):
        assert_same(weights["weights, continued"], weights["weights"])
    assert files_of(tmp_path / "together") == files_of(tmp_path / "alone")
    noted = json.loads((tmp_path / "together" / "tiny_v1" / "run.json").read_text())
    assert noted["progress"]["update"] == 6


class Own(Trainer):
    """One network; it is set up when it is saved for the first time."""

    def __init__(self, data: Path, folder: Path) -> None:
        super().__init__(tiny(data, folder))
        self.net = nn.Conv2d(3, 3, 1)
        self.opt = self.build_optimizer(self.net)
        self.save_checkpoint()


def refused(rank: int, data: Path, folder: Path) -> list[str]:
    """What is said, outside of training: there, who is first to fail ends the others."""
    trainer = Own(data, folder)
    trainer.net(torch.zeros(1, 3, 2, 2)).sum().backward()
    with pytest.raises(ConfigurationError) as own_step:
        trainer.opt.step()
    with pytest.raises(ConfigurationError) as no_experiment:
        Exact(tiny(data, folder / "missing", train={"load": {"continue_train": True}}))
    return [str(own_step.value), str(no_experiment.value)]


def test_what_cannot_be_done_together_is_refused_by_all_processes(
    data: Path, tmp_path: Path
) -> None:
    for own_step, no_experiment in run_ranks(refused, 2, data, tmp_path):
        assert "call self.update(loss, optimizer)" in own_step
        assert "there is no experiment" in no_experiment

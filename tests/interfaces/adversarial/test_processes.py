"""The interface on two processes: the same program gives the weights, losses and files of one
process, and prints once."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loopwright.interfaces.adversarial import (
    Pix2pixTrainer,
    Tester,
    UnetGenerator,
    read_loss_log,
)

from ...distributed.ranks import run_ranks
from ...distributed.scenarios import assert_same, weights_of
from ...mistakes import raises
from .runs import SIZE, continued, tiny, train


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


class Plain(Exact):
    """Both steps written out, with torch's own calls."""

    def backward_D(self, loss_D: Tensor) -> None:  # noqa: N802, N803
        self.opt_disc.zero_grad()
        loss_D.backward()
        self.opt_disc.step()

    def backward_G(self, loss_G: Tensor) -> None:  # noqa: N802, N803
        self.opt_gen.zero_grad()
        loss_G.backward()
        self.opt_gen.step()


def weights(trainer: Pix2pixTrainer) -> list[Tensor]:
    return [*trainer.gen.parameters(), *trainer.disc.parameters()]


def compare(rank: int, data: Path, folder: Path) -> None:
    plain = train(Plain(tiny(data, folder / "plain")), 2)
    updated = train(Exact(tiny(data, folder / "updated")), 2)
    torch.testing.assert_close(weights(plain), weights(updated))


def test_plain_steps_are_averaged_over_processes(data: Path, tmp_path: Path) -> None:
    run_ranks(compare, 2, data, tmp_path)


def refused(rank: int, data: Path, folder: Path) -> None:
    with raises("no-experiment"):
        Exact(tiny(data, folder, train={"load": {"continue_train": True}}))


def test_an_experiment_that_is_not_there_is_refused_by_all_processes(
    data: Path, tmp_path: Path
) -> None:
    run_ranks(refused, 2, data, tmp_path)

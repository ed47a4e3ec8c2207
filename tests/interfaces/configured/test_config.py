"""Every setting of `BaseTrainerConfig` does what it says, and what it cannot be is refused."""

import os
import signal

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from loopwright import Callback, NonFiniteLossError
from loopwright.interfaces.configured import BaseTrainer, BaseTrainerConfig

from .parts import PROPERTIES, CustomTrainer, Net, Points, Seen, build_trainer


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_epoch": 3},
        {"max_updates": -1},
        {"max_updates": True},
        {"max_updates": 1.5},
        {"max_updates": "3"},
        {"max_updates": 3, "effective_batch_size": 0},
        {"max_updates": 3, "precision": "fp8"},
        {"max_updates": 3, "log_every_n_updates": 2, "log_every_n_epochs": 1},
        {"max_updates": 3, "skip_nan_loss": "yes"},
        {"max_updates": 3, "unheard_of": 1},
        {"max_updates": 3, "static_graph": True},
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValidationError, match=list(wrong)[-1]):
        BaseTrainerConfig(**wrong)


class Poisoned(CustomTrainer):
    """The loss of the third and fifth update is not a number."""

    count = 0

    def loss_compute(self, forward_output, targets):
        losses = super().loss_compute(forward_output, targets)
        self.count += 1
        return (
            losses
            if self.count not in (3, 5)
            else {name: loss * float("nan") for name, loss in losses.items()}
        )


def test_a_loss_that_is_no_number_is_skipped_if_that_is_allowed():
    trainer = build_trainer(Poisoned, skip_nan_loss=True)
    history = trainer.train()
    assert trainer.progress.update == 8
    assert trainer.engine.run.updates.by_name["optimizer"].num_updates == 6
    assert history.last("loss") == history.last("loss")
    with pytest.raises(NonFiniteLossError, match="after 1 skipped"):
        build_trainer(Poisoned, skip_nan_loss=True, skip_nan_loss_max_count=1).train()


class HalfUsed(Net):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(2, 2)


@pytest.mark.parametrize("finds", [True, False])
def test_unused_parameters_are_named(finds, capsys):
    config = BaseTrainerConfig(max_updates=2, find_unused_params=finds, **PROPERTIES)

    class Plain(CustomTrainer):
        def __init__(self, trainer_config, **kwargs):
            BaseTrainer.__init__(self, trainer_config, **kwargs)
            self.weight = 0.5

    Plain(config, model=HalfUsed(), datasets={"train": Points()}, progress="lines").train()
    said = capsys.readouterr().out
    assert ("without a gradient in the first update: spare.weight, spare.bias" in said) is finds


class PressCtrlC(Callback):
    def on_train_step_start(self, trainer, batch):
        if trainer.progress.update == 3:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_ends_at_once_where_nothing_is_to_be_saved(tmp_path):
    trainer = build_trainer(
        callbacks=[PressCtrlC()], run_dir=tmp_path / "run", save_on_sigint=False
    )
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_that_starts_at_an_epoch_reads_that_epochs_data_and_counts_from_there():
    whole, late = Seen(), Seen()
    build_trainer(max_epochs=4, callbacks=[whole], datasets={"train": Points(61)}).train()
    trainer = build_trainer(
        max_epochs=4, start_at_epoch=3, callbacks=[late], datasets={"train": Points(61)}
    )
    history = trainer.train()
    assert late.labels == whole.labels[-61:]
    progress = trainer.progress
    assert (progress.epoch, progress.update, progress.sample) == (4, 32, 244)
    assert [bool(row) for row in history.epochs] == [False, False, False, True]


@pytest.mark.parametrize(
    ("setting", "n", "count"),
    [("track_every_n_updates", 3, 5), ("track_every_n_samples", 64, 2)],
)
def test_mean_losses_are_tracked_and_progress_is_reported_at_intervals(setting, n, count, capsys):
    trainer = build_trainer(max_epochs=2, log_every_n_updates=4, num_workers=1, **{setting: n})
    trainer.engine.run.progress_style = "lines"
    history = trainer.train()
    assert capsys.readouterr().out.count("to go") == 4
    assert len(history.steps["online_loss"]) == count
    size = n // 8 if "samples" in setting else n
    assert history.steps["online_loss"].values[0] == pytest.approx(
        sum(list(history.steps["loss"])[:size]) / size
    )


def test_a_data_set_may_collate_its_samples_itself():
    class Ragged(Points):
        def collate_fn(self, samples):
            batch = {key: torch.stack([sample[key] for sample in samples]) for key in samples[0]}
            batch["labels"] = batch["labels"] * 0
            return batch

    trainer = build_trainer(datasets={"train": Ragged(), "test": Ragged(32, seed=1)})
    history = trainer.train()
    plain = build_trainer()
    assert history.last("loss") != plain.train().last("loss")
    trainer.model.eval()
    outputs = trainer.predict("test")
    assert trainer.evaluate("test")["mse"] == pytest.approx((outputs**2).mean().item())

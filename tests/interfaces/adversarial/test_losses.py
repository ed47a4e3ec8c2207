"""The loss manager: weights, schedules, tags, histories and the log."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from loopwright.interfaces.adversarial import (
    LMLoss,
    LossManager,
    Schedule,
    load_config,
    pix2pix,
    read_loss_log,
)

ones, zeros = torch.ones(2, 3), torch.zeros(2, 3)


def manager(tmp_path: Path | None = None, **options: object) -> LossManager:
    made = LossManager(experiment_dir=tmp_path, **options)
    made.register_loss_fn("L1", nn.L1Loss(), loss_weight=10.0, tags=["G", "pixels"])
    made.register_loss_fn(
        "L2", nn.MSELoss(), schedule=Schedule("linear", 1, 3, 4.0, 0.0), tags=["G"]
    )
    return made


def test_a_loss_is_weighted_and_remembered():
    losses = manager()
    assert losses.compute_loss_xy("L1", ones, zeros).item() == 10.0
    assert losses.get_loss_values() == {"L1": 10.0, "L2": 0.0}
    assert losses.get_loss_tensors(query=["pixels"]) == {"L1": torch.tensor(10.0)}


def test_the_weight_in_the_log_is_the_weight_that_was_used(tmp_path: Path):
    losses = manager(tmp_path)
    used = []
    for losses.epoch in (1, 2, 3):
        shown = losses.get_loss_weights()["L2"]
        assert losses.compute_loss_xy("L2", ones, zeros).item() == shown
        used.append(shown)
        losses.update_loss_log()
    assert read_loss_log(tmp_path)["L2"] == {"losses": used, "weights": used}
    assert used == [4.0, 2.0, 0.0]


@pytest.mark.parametrize("kind", ["linear", "cosine", "exponential", "step"])
def test_every_curve_begins_and_ends_where_it_should(kind):
    schedule = Schedule(kind, 2, 6, 8.0, 2.0)
    values = [schedule.value(epoch) for epoch in range(10)]
    assert values[:3] == [8.0] * 3
    assert values[6:] == [2.0] * 4
    assert values == sorted(values, reverse=True)


def test_histories_are_given_out_only_when_asked_for():
    losses = manager()
    losses.compute_loss_xy("L1", ones, zeros)
    losses.compute_loss_xy("L1", ones * 2, zeros)
    assert losses.get_registered_losses()["L1"].history.losses == []
    history = losses.get_registered_losses(strip=False)["L1"].history
    assert (history.losses, history.weights) == ([10.0, 20.0], [10.0, 10.0])


def test_a_state_brings_back_what_was_kept_and_where_the_log_ended(tmp_path: Path):
    losses = manager(tmp_path)
    losses.compute_loss_xy("L1", ones, zeros)
    losses.update_loss_log()
    losses.compute_loss_xy("L1", ones * 2, zeros)
    state = losses.state_dict()
    losses.compute_loss_xy("L1", ones * 9, zeros)
    losses.update_loss_log()
    again = manager(tmp_path)
    again.load_state_dict(state)
    again.compute_loss_xy("L1", ones * 3, zeros)
    again.update_loss_log()
    assert read_loss_log(tmp_path)["L1"]["losses"] == [10.0, 20.0, 30.0]


def test_a_full_buffer_is_written_though_nobody_asks(tmp_path: Path):
    losses = manager(tmp_path, history_buffer_size=2)
    for factor in (1, 2, 3):
        losses.compute_loss_xy("L1", ones * factor, zeros)
    assert losses.state_dict()["kept"]["L1"]["losses"] == [30.0]
    assert read_loss_log(tmp_path)["L1"]["losses"] == [10.0, 20.0]


def test_one_tag_may_be_a_text():
    losses = manager()
    losses.register_loss_fn("edges", nn.L1Loss(), tags="GAN")
    assert list(losses.get_loss_weights(["GAN"])) == ["edges"]
    assert "edges" not in losses.get_loss_weights(["G"])


def test_losses_and_weights_are_printed(capsys: pytest.CaptureFixture[str]):
    losses = manager()
    losses.compute_loss_xy("L1", ones, zeros)
    losses.print_losses(2, 7)
    losses.print_weights()
    printed = "(epoch: 2, iters: 7) Loss: L1: 10.0 L2: 0.0\nLoss weights: L1: 10.0 L2: 4.0\n"
    assert capsys.readouterr().out == printed


def test_a_spec_replaces_all_losses_and_gets_its_arguments():
    losses = manager()
    losses.init_from_spec(
        lambda weight, *, name: {name: LMLoss(name, nn.L1Loss(), weight)}, 3.0, name="mine"
    )
    assert losses.get_loss_weights() == {"mine": 3.0}
    losses.init_from_spec(None)
    assert losses.get_loss_weights() == {}


@pytest.mark.parametrize(
    ("subspec", "names"),
    [
        ("basic", ["G_GAN", "G_L1", "D_real", "D_fake"]),
        ("extended", ["G_GAN", "G_L1", "G_L2", "G_SOBEL", "G_LAP", "D_real", "D_fake"]),
        ("basic+vgg", ["G_GAN", "G_L1", "G_VGG", "D_real", "D_fake"]),
        (
            "extended+vgg",
            ["G_GAN", "G_L1", "G_L2", "G_SOBEL", "G_LAP", "G_VGG", "D_real", "D_fake"],
        ),
    ],
)
def test_sub_specs_of_pix2pix(subspec: str, names: list[str]):
    config = load_config({"train": {"loss": {"lambda_l1": 50.0, "lambda_sobel": 2.0}}})
    spec = pix2pix(config, subspec, perceptual=nn.L1Loss())
    assert list(spec) == names
    assert spec["G_L1"].loss_weight == 50.0
    assert all(loss.tags == [name[0]] for name, loss in spec.items())

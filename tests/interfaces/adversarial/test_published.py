"""What the published program has: config keys, names and signatures, all of which are taken here as
they are there."""

from __future__ import annotations

import inspect
import json
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from loopwright.interfaces import adversarial
from loopwright.interfaces.adversarial import (
    ConfigManager,
    LossManager,
    Pix2pixTrainer,
    Schedule,
    Scheduler,
    TorchScheduler,
    Trainer,
    UnetGenerator,
    load_config,
)

from .runs import SIZE, tiny, train

# The keys of the seven config files that the project ships, as {group: names}; a later version
# added the second part.
FIRST = {
    "common": "device gpu_ids output_directory experiment_name experiment_version",
    "dataloader": "dataroot direction batch_size num_workers",
    "dataloader.load": "input_nc load_size crop_size",
    "dataloader.augmentations.both": "h_flip_chance v_flip_chance rot90_chance elastic_transform_chance "
    "elastic_transform_alpha elastic_transform_sigma optical_distortion_chance "
    "optical_distortion_min optical_distortion_max optical_distortion_mode "
    "coarse_dropout_chance coarse_dropout_holes_min coarse_dropout_holes_max "
    "coarse_dropout_height_min coarse_dropout_height_max coarse_dropout_width_min "
    "coarse_dropout_width_max",
    "dataloader.augmentations.input": "colorjitter_chance colorjitter_min_brightness colorjitter_max_brightness "
    "gaussnoise_chance gaussnoise_min gaussnoise_max motionblur_chance motionblur_limit "
    "randgamma_chance randgamma_min randgamma_max grayscale_chance grayscale_method "
    "compression_chance compression_type compression_quality_min compression_quality_max",
    "dataloader.augmentations.target": "",
    "train": "separate_lr_schedules",
    "train.load": "continue_train load_epoch",
    "train.generator": "features n_downs block_type upsample_type",
    "train.generator.learning_rate": "epochs epochs_decay initial target",
    "train.generator.optimizer": "beta1",
    "train.discriminator": "n_layers base_channels max_channels",
    "train.discriminator.learning_rate": "epochs epochs_decay initial target",
    "train.discriminator.optimizer": "beta1",
    "train.loss": "lambda_gan lambda_l1 lambda_l2 lambda_sobel lambda_laplacian lambda_vgg",
    "save": "save_model model_save_rate auto_increment_version save_examples example_save_rate "
    "num_examples",
    "visualizer.visdom": "enable image_size update_frequency",
}
COLOURS = " ".join(
    f"colorjitter_{end}_{part}"
    for part in ("contrast", "saturation", "hue", "brightness")
    for end in ("min", "max")
)
LATER = {
    "": "config_type",
    "dataloader.augmentations.both": f"colorjitter_chance {COLOURS}",
    "dataloader.augmentations.input": COLOURS,
    "train.generator": "use_checkpointing",
}


WITHOUT_EFFECT = {  # values of the published files for settings that change nothing here
    "common": {
        "cudnn": {"benchmark": True, "deterministic": False, "fp32_precision": "tf32"},
    },
    "dataloader": {
        "masking": {
            "enable": False,
            "mask_directory": "",
            "mask_channel": 0,
            "combination_type": "single_channel",
            "blend_channel": 1,
            "blend_amount": 0.5,
            "visdom_overlay_mask": True,
            "visdom_mask_color": [1.0, 0.0, 0.0],
            "visdom_mask_opacity": 0.5,
        },
    },
    "visualizer": {"visdom": {"env_name": "main", "server": "http://localhost", "port": 8097}},
}


def published(*parts: dict[str, str]) -> dict[str, Any]:
    """A config with all those keys; with whole numbers where there is nothing after the point, as
    some files have."""
    defaults, result = load_config(None).model_dump(), dict[str, Any]()
    for part in parts:
        for path, names in part.items():
            source, target = defaults, result
            for group in filter(None, path.split(".")):
                source, target = source[group], target.setdefault(group, {})
            for name in names.split():
                value = source[name]
                is_whole = isinstance(value, float) and value % 1 == 0
                target[name] = int(value) if is_whole else value
    result["train"]["load"]["load_epoch"] = 1
    return result


def test_every_key_of_the_published_configs_is_accepted(data: Path, tmp_path: Path):
    given = published(FIRST, LATER)
    small = tiny(data, tmp_path)
    given["common"] |= small["common"] | WITHOUT_EFFECT["common"]
    given["dataloader"] |= small["dataloader"] | WITHOUT_EFFECT["dataloader"]
    given["train"]["generator"] |= {"features": 4, "n_downs": 1}
    given["visualizer"]["visdom"] |= WITHOUT_EFFECT["visualizer"]["visdom"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"config": given}))
    trainer = train(Pix2pixTrainer(path), 1)
    assert trainer.config.train.load.load_epoch == 1
    assert load_config(trainer.experiment_dir / "train1_config.json") == trainer.config


SIGNATURES = """
Trainer config quicksetup log_losses
Trainer.train_paired epoch on_epoch_start train_step on_epoch_end multithreaded callback_kwargs
Trainer.load_checkpoint net_type network optimizer learning_rate
Trainer.init_loss_manager override
Trainer.build_dataloader loader_type is_train
Trainer.build_optimizer network optimizer lr beta1
Trainer.export_model_weights mod opt net
Trainer.save_xyz_examples network dataloader
Pix2pixTrainer config loss_subspec log_losses
Pix2pixTrainer._init_losses loss_subspec
Pix2pixTrainer.update_display x y y_fake idx
Pix2pixTrainer.save_checkpoint mode
Pix2pixTrainer.save_examples silent
LossManager config experiment_dir enable_logging history_buffer_size
LossManager.register_loss_fn loss_name loss_fn loss_weight schedule tags
LossManager.compute_loss_xy loss_name x y epoch loss_kwargs
LossManager.get_registered_losses query strip
LossManager.print_losses epoch iter precision
LossManager.update_loss_log silent
Tester config experiment_dir dataroot load_epoch
Tester.run_test image_count silent
ONNXConverter experiment_dir config load_epoch in_channels crop_size device
ONNXConverter.convert_model export_params opset_version do_constant_folding input_names output_names
ConfigManager input_config
Scheduler schedule
Scheduler.eval_schedule timestep
TorchScheduler optimizer schedule
"""


def test_arguments_have_the_published_names_and_order():
    for line in SIGNATURES.strip().splitlines():
        name, *names = line.split()
        found = inspect.signature(attrgetter(name)(adversarial)).parameters
        assert [name for name in found if name != "self"][: len(names)] == names, line


def test_a_config_manager_has_the_settings_and_is_a_config(data: Path, tmp_path: Path):
    manager = ConfigManager(tiny(data, tmp_path))
    assert manager.raw["common"]["experiment_name"] == manager.data.common.experiment_name == "tiny"
    trainer = Trainer(manager)
    assert trainer.config_manager is manager
    assert trainer.config is manager.data
    assert manager.export_config(tmp_path).name == "train1_config.json"
    assert (
        Trainer(config=None, quicksetup=False).config_manager.data.common.experiment_name
        == "pix2pix"
    )
    assert (
        Trainer({"common": {"experiment_name": ""}}, quicksetup=False).config.common.experiment_name
        == "pix2pix"
    )


# Schedules


def test_an_exponential_schedule_may_go_to_zero_and_come_from_it():
    down = [Schedule("exponential", 0, 4, 1.0, 0.0).value(epoch) for epoch in range(6)]
    assert down == pytest.approx([1.0, 10**-2.25, 10**-4.5, 10**-6.75, 0.0, 0.0])
    up = [Schedule("exponential", 0, 4, 0.0, -1.0).value(epoch) for epoch in range(5)]
    assert up == pytest.approx([0.0, -(10**-6.75), -(10**-4.5), -(10**-2.25), -1.0])
    assert Schedule("exponential", target_value=0.0).value(1) == pytest.approx(1.0)


def test_keywords_reach_the_function_that_is_a_schedule():
    def growing(schedule: Schedule, epoch: int, factor: float = 1.0) -> float:
        return schedule.initial_value * epoch * factor

    losses, ones = LossManager(), torch.ones(2)
    losses.register_loss_fn("own", nn.L1Loss(), schedule=Schedule(growing, initial_value=2.0))
    losses.register_loss_fn("named", nn.L1Loss(), schedule=Schedule("exponential", 0, 4, 1.0, 0.0))
    keywords = {"weight_kwargs": {"factor": 10.0}}
    assert losses.compute_loss_xy("own", ones, 0 * ones, 3, loss_kwargs=keywords).item() == 60.0
    small = {"weight_kwargs": {"epsilon": 1e-4}}
    assert losses.compute_loss_xy("named", ones, 0 * ones, 2, small).item() == pytest.approx(1e-2)


def test_a_torch_scheduler_multiplies_the_rates_that_there_are():
    schedule = Schedule("linear", 1, 3, 4.0, 2.0)
    assert [Scheduler(schedule).eval_schedule(epoch) for epoch in range(4)] == [1.0, 0.75, 0.5, 0.5]
    assert Scheduler(Schedule("linear", 0, 1, 0.0, 0.0)).eval_schedule(0) == 0.0
    net = nn.Linear(1, 1)
    ours, theirs = (
        torch.optim.SGD([{"params": [p]} for p in net.parameters()], lr=0.1) for _ in range(2)
    )
    ours.param_groups[1]["lr"] = theirs.param_groups[1]["lr"] = 0.4
    scheduler = TorchScheduler(ours, schedule)
    reference = torch.optim.lr_scheduler.LambdaLR(theirs, Scheduler(schedule).eval_schedule)
    for _ in range(3):
        for optimizer in (ours, theirs):
            optimizer.step()
        reference.step()
        scheduler.step()
        assert [g["lr"] for g in ours.param_groups] == [g["lr"] for g in theirs.param_groups]
    assert ours.param_groups[0]["lr"] == pytest.approx(0.05)


# Networks, pictures and images


def test_computing_blocks_again_changes_no_bit():
    image, gradients = torch.rand(2, 3, SIZE, SIZE), []
    for use_checkpointing in (False, True):
        torch.manual_seed(0)
        network = UnetGenerator(SIZE, features=4, n_downs=1, use_checkpointing=use_checkpointing)
        network(image).square().mean().backward()
        gradients.append([parameter.grad for parameter in network.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))

"""Small experiments for the tests of the adversarial interface: tiny images, tiny networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from loopwright.interfaces.adversarial import Pix2pixTrainer

SIZE = 16


def write_pairs(folder: Path, count: int, seed: int = 0, size: int = SIZE) -> None:
    """Image files with two halves: noise on the left, its negative on the right."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    for number in range(count):
        left = generator.integers(0, 256, (size, size, 3), dtype=np.uint8)
        Image.fromarray(np.concatenate([left, 255 - left], axis=1)).save(
            folder / f"{number:02d}.png"
        )


def write_data(root: Path, train: int = 5, val: int = 2, test: int = 3) -> Path:
    for seed, (name, count) in enumerate({"train": train, "val": val, "test": test}.items()):
        write_pairs(root / name, count, seed)
    return root


def tiny(data: Path, output: Path, **changes: dict[str, Any]) -> dict[str, Any]:
    """A config for 16x16 images; `changes` are whole groups, merged one level deep."""
    config: dict[str, dict[str, Any]] = {
        "common": {"device": "cpu", "output_directory": str(output), "experiment_name": "tiny"},
        "dataloader": {
            "dataroot": str(data),
            "batch_size": 2,
            "load": {"load_size": SIZE, "crop_size": SIZE},
        },
        "train": {
            "generator": {
                "features": 4,
                "n_downs": 1,
                "learning_rate": {"epochs": 2, "epochs_decay": 2},
            },
            "discriminator": {"n_layers": 2, "base_channels": 4},
        },
        "visualizer": {"visdom": {"enable": False}},
    }
    for group, values in changes.items():
        config[group] = config.get(group, {}) | values
    return config


def continued(
    config: dict[str, Any], load_epoch: int | str = "latest", version: int = 1
) -> dict[str, Any]:
    """The same config for going on with an experiment."""
    load = {"continue_train": True, "load_epoch": load_epoch}
    common = config["common"] | {"experiment_version": version}
    return config | {"common": common, "train": config["train"] | {"load": load}}


def train(trainer: Pix2pixTrainer, num_epochs: int) -> Pix2pixTrainer:
    for epoch in range(num_epochs):
        trainer.train_paired(epoch)
    return trainer


def assert_same_training(first: Pix2pixTrainer, second: Pix2pixTrainer) -> None:
    """Networks, optimizers, learning rates, scalers, history and random numbers to come."""
    for name in ("gen", "disc"):
        for key, value in getattr(first, name).state_dict().items():
            assert torch.equal(value, getattr(second, name).state_dict()[key]), f"{name}.{key}"
    for name in ("opt_gen", "opt_disc"):
        one, other = getattr(first, name).state_dict(), getattr(second, name).state_dict()
        assert one["param_groups"] == other["param_groups"]
        for index, state in one["state"].items():
            for key, value in state.items():
                assert torch.equal(value, other["state"][index][key]), f"{name} {index} {key}"
    for name in ("gen_lr_scheduler", "disc_lr_scheduler"):
        assert getattr(first, name).state_dict() == getattr(second, name).state_dict()
    for name in ("g_scaler", "d_scaler"):
        assert getattr(first, name).state_dict() == getattr(second, name).state_dict()
    assert first._core.history.epochs == second._core.history.epochs
    for name, series in first._core.history.steps.items():
        assert list(series) == list(second._core.history.steps[name])

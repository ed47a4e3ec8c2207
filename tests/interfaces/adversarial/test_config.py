"""Configs: where they come from, what they may leave out, and what a mistake in one says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from loopwright.errors import ConfigurationError
from loopwright.interfaces.adversarial import Config, ConfigManager, Trainer, load_config
from loopwright.interfaces.adversarial.config import SettingsGroup


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_part_of_a_config_leaves_the_rest_at_its_defaults(is_whole: bool):
    inner = {"train": {"generator": {"features": 8}}}
    config = load_config({"config": inner} if is_whole else inner)
    assert config.train.generator.features == 8
    assert config.train.generator.n_downs == 6


def test_json_and_yaml_files_give_the_same_config(tmp_path: Path):
    (tmp_path / "a.json").write_text(
        '{"config": {"train": {"generator": {"learning_rate": {"initial": 1e-4}}}}}'
    )
    (tmp_path / "a.yaml").write_text(
        "config:\n  train: {generator: {learning_rate: {initial: 1e-4}}}\n"
    )
    first, second = load_config(tmp_path / "a.json"), load_config(str(tmp_path / "a.yaml"))
    assert first == second
    assert first.train.generator.learning_rate.initial == 0.0001


def test_two_configs_share_no_group():
    first, second = load_config(None), load_config(None)
    first.train.generator.learning_rate.epochs = 1
    first.dataloader.augmentations.both.h_flip_chance = 0.0
    assert second.train.generator.learning_rate.epochs == 100
    assert second.dataloader.augmentations.both.h_flip_chance == 0.5
    assert first.train.discriminator.learning_rate.epochs == 100


@pytest.mark.parametrize(
    ("given", "key", "words"),
    [
        ({"common": {"devise": "cpu"}}, "common.devise", "did you mean device"),
        ({"train": {"generator": {"n_down": 4}}}, "train.generator.n_down", "n_downs"),
        ({"dataloader": {"batch_size": 0}}, "dataloader.batch_size", "is 0"),
        ({"dataloader": {"batch_size": "4"}}, "dataloader.batch_size", "is the text '4'"),
        ({"dataloader": {"masking": {"enable": True}}}, "dataloader.masking", "forward_G"),
        ({"train": {"load": {"continue_train": "yes"}}}, "train.load.continue_train", "'auto'"),
        ({"config_type": "diffusion"}, "config_type", "'diffusion'"),
        ({"train": 3}, "train", "is 3"),
    ],
)
def test_a_mistake_names_its_key(given: dict, key: str, words: str):
    with pytest.raises(ConfigurationError, match=re.escape(key)) as caught:
        load_config(given)
    assert words in str(caught.value)


def test_copies_are_numbered_past_ten_and_can_be_loaded(tmp_path: Path):
    config = load_config({"train": {"loss": {"lambda_l1": 10.0}}})
    for _ in range(11):
        last = ConfigManager(config).export_config(tmp_path)
    assert last.name == "train11_config.json"
    assert load_config(last) == config
    assert set(json.loads(last.read_text())) == {"config"}


def test_a_subclass_may_bring_settings_of_its_own(tmp_path: Path):
    class Mine(SettingsGroup):
        my_cool_value: float = 1.0

    class MyConfig(Config):
        my_cool_group: Mine = Mine()

    class MyTrainer(Trainer):
        config_type = MyConfig

    trainer = MyTrainer(
        {"common": {"device": "cpu"}, "my_cool_group": {"my_cool_value": 42.0}}, quicksetup=False
    )
    assert trainer.config.my_cool_group.my_cool_value == 42.0

"""Checkpoints of the simple interface in other programs: plain files, `from_pretrained`, one file
of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright import CheckpointError
from loopwright.checkpoint import verify_checkpoint
from loopwright.interfaces.simple import Trainer
from tests.loops import assert_same_model, build_linear, build_net

from .programs import adam, cross_entropy, in_order, shuffled


def test_best_model_holds_a_plain_safetensors_file_of_the_weights(
    points: TensorDataset, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    model, other = build_net(), build_net(9)
    Trainer(model, adam(model), cross_entropy).train(shuffled(points), 1, save_dir=tmp_path)
    other.load_state_dict(load_file(tmp_path / "best_model" / "model.safetensors"))
    assert_same_model(other, model)


def tiny_gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    options = {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 12, "vocab_size": 40}
    return GPT2LMHeadModel(GPT2Config(**options, bos_token_id=0, eos_token_id=0))


def test_hugging_face_model_is_loaded_from_its_best_model_by_from_pretrained(
    tmp_path: Path,
) -> None:
    from safetensors import safe_open

    model = tiny_gpt2()  # its input and output embeddings are one tensor
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(40, (8, 12))]
    trainer = Trainer(model, None, None)
    trainer.train(DataLoader(rows, batch_size=4), 2, save_dir=tmp_path)  # which replaces best_model
    assert_same_model(type(model).from_pretrained(tmp_path / "best_model"), model)
    with safe_open(tmp_path / "best_model" / "model.safetensors", framework="pt") as file:
        assert file.metadata()["format"] == "pt"  # which older versions insist on
    assert verify_checkpoint(tmp_path / "best_model") == []
    Trainer(tiny_gpt2(), None, None).load_checkpoint(tmp_path / "best_model")


def test_checkpoint_of_another_optimizer_says_how_to_load_the_weights_alone(
    points: TensorDataset, tmp_path: Path
) -> None:
    model = build_linear()
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), cross_entropy)
    trainer.train(shuffled(points), 1, in_order(points), save_dir=tmp_path / "ck")
    other = Trainer(build_linear(9), None, cross_entropy)
    with pytest.raises(CheckpointError) as caught:
        other.load_checkpoint(tmp_path / "ck" / "best_model")
    assert "load_optimizer=False" in caught.value.__notes__[-1]
    other.load_checkpoint(tmp_path / "ck" / "best_model", load_optimizer=False)
    assert_same_model(other.model, model)


def test_trained_attributes_that_checkpoints_do_not_hold_are_said_once(
    points: TensorDataset, tmp_path: Path, capsys: Any
) -> None:
    class Two(Trainer):
        def __init__(self, model: nn.Module) -> None:
            super().__init__(model, None, cross_entropy)
            self.critic, self.teacher, self.criterion = nn.Linear(3, 1), model, nn.MSELoss()
            self.critic_optimizer = torch.optim.SGD(self.critic.parameters(), lr=0.1)

    Two(build_linear()).train(shuffled(points), 2, save_dir=tmp_path)
    named = [word for word in capsys.readouterr().out.split() if word.startswith("Two.")]
    assert named == ["Two.critic", "Two.critic_optimizer"]

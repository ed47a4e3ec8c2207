"""The simple interface: the programs of its document, and equality with hand-written loops."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright import Callback
from loopwright.data.random import seed_everything
from loopwright.interfaces.simple import Trainer
from tests.loops import (
    assert_same_model,
    assert_same_optimizer,
    batches,
    build_linear,
    build_net,
    train_by_hand,
)

from .programs import (
    adam,
    build_trainer,
    cross_entropy,
    in_order,
    saved_in,
    shuffled,
)


def test_basic_program_trains_and_writes_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))
    dataloader = DataLoader(
        TensorDataset(torch.randn(1000, 10), torch.randn(1000, 1)), batch_size=32, shuffle=True
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    trainer = Trainer(model=model, optimizer=optimizer, loss_fn=nn.MSELoss())

    history = trainer.train(train_dataloader=dataloader, num_epochs=5, save_dir="./checkpoints")

    assert list(history) == ["train_loss"]
    assert len(history["train_loss"]) == 5
    assert history["train_loss"][-1] < history["train_loss"][0]
    written = {path.name for path in saved_in(Path("checkpoints"))}
    assert written == {"best_model", *(f"checkpoint_epoch_{n}" for n in range(1, 6))}


def test_weights_and_optimizer_are_those_of_a_hand_written_loop(points: TensorDataset) -> None:
    model, by_hand = build_net(), build_net()
    optimizer, other = adam(model), adam(by_hand)
    train_by_hand(by_hand, other, points, epochs=3)
    seed_everything(0)
    Trainer(model, optimizer, cross_entropy).train(
        shuffled(points), 3, eval_dataloader=in_order(points)
    )
    assert_same_model(model, by_hand)
    assert_same_optimizer(optimizer, other)


def test_eval_loss_is_the_mean_over_samples_with_a_short_last_batch(points: TensorDataset) -> None:
    model = build_linear()
    total = 0.0
    with torch.no_grad():
        for inputs, targets in in_order(points):
            total += cross_entropy(model(inputs), targets).item() * len(targets)
    assert Trainer(model, adam(model), cross_entropy).evaluate(in_order(points)) == {
        "loss": total / 37
    }


def test_callbacks_are_called_after_each_epoch_with_its_metrics(points: TensorDataset) -> None:
    called = []

    def log_metrics(trainer: Trainer, epoch: int, metrics: dict[str, float]) -> None:
        called.append((trainer, epoch, dict(metrics)))

    trainer = build_trainer(Trainer, net=build_net)
    history = trainer.train(
        train_dataloader=shuffled(points),
        eval_dataloader=in_order(points),
        num_epochs=3,
        callbacks=[log_metrics],
    )
    rows = [
        dict(zip(history, values, strict=True)) for values in zip(*history.values(), strict=True)
    ]
    assert called == [(trainer, epoch, row) for epoch, row in enumerate(rows)]
    assert list(history) == ["train_loss", "eval_loss"]


def test_hugging_face_model_trains_without_a_loss_function(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    options = {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 12, "vocab_size": 40}
    model = GPT2LMHeadModel(GPT2Config(**options, bos_token_id=0, eos_token_id=0))
    tokens = torch.randint(40, (10, 12))
    samples = [
        {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in tokens
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    trainer = Trainer(model=model, optimizer=optimizer, loss_fn=None)

    history = trainer.train(
        train_dataloader=DataLoader(samples, batch_size=4, shuffle=True),
        eval_dataloader=DataLoader(samples, batch_size=4),
        num_epochs=3,
        save_dir=str(tmp_path),
    )

    assert list(history) == ["train_loss", "eval_loss"]
    assert history["eval_loss"][-1] < history["eval_loss"][0]
    fresh = GPT2LMHeadModel(model.config)
    Trainer(fresh, None, None).load_checkpoint(tmp_path / "checkpoint_epoch_3")
    assert_same_model(fresh, model)


def test_single_train_step_is_a_whole_update(points: TensorDataset) -> None:
    model, by_hand = build_net(), build_net()
    losses = train_by_hand(by_hand, adam(by_hand), points)
    seed_everything(0)
    trainer = Trainer(model, adam(model), cross_entropy)
    assert [trainer.train_step(batch) for batch in batches(points, 8, epoch=0)] == [
        {"loss": loss} for loss in losses
    ]
    assert_same_model(model, by_hand)


def test_epochs_one_by_one_are_the_same_as_one_run(points: TensorDataset) -> None:
    model, other = build_net(), build_net()
    optimizer = adam(model)
    seed_everything(0)
    history = Trainer(other, adam(other), cross_entropy).train(
        shuffled(points), 3, in_order(points)
    )
    seed_everything(0)
    trainer = Trainer(model, optimizer, cross_entropy)
    rows = [trainer.train_epoch(shuffled(points), in_order(points), epoch) for epoch in range(3)]
    assert_same_model(model, other)
    assert {name: [row[name] for row in rows] for name in rows[0]} == history


def test_second_train_call_goes_on_and_reports_its_own_epochs(points: TensorDataset) -> None:
    model, other = build_net(), build_net()
    seed_everything(0)
    whole = Trainer(other, adam(other), cross_entropy).train(shuffled(points), 5)["train_loss"]
    seed_everything(0)
    trainer = Trainer(model, adam(model), cross_entropy)
    assert trainer.train(shuffled(points), 2)["train_loss"] == whole[:2]
    assert trainer.train(shuffled(points), 3)["train_loss"] == whole[2:]
    assert_same_model(model, other)


def test_order_of_samples_follows_the_users_seed(points: TensorDataset) -> None:
    def first_batches(seed: int) -> Tensor:
        seen = []

        class Spy(Trainer):
            def _prepare_batch(self, batch: Any) -> tuple[Any, Any]:
                seen.append(batch[0])
                return super()._prepare_batch(batch)

        trainer = build_trainer(Spy)
        torch.manual_seed(seed)
        trainer.train(shuffled(points), 1)
        return torch.cat(seen)

    assert torch.equal(first_batches(3), first_batches(3))
    assert not torch.equal(first_batches(3), first_batches(4))


def test_training_leaves_the_users_random_numbers_alone(points: TensorDataset) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    trainer = build_trainer()
    torch.manual_seed(5)
    trainer.train(shuffled(points), 2, in_order(points))
    assert torch.equal(torch.rand(3), expected)


def test_epoch_that_failed_starts_over_in_the_next_call(points: TensorDataset) -> None:
    seen: list[Tensor] = []

    def failing_once(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(targets)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return cross_entropy(outputs, targets)

    model, loader = build_linear(), shuffled(points)
    trainer = Trainer(model, adam(model), failing_once)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(loader, 2)
    assert len(trainer.train(loader, 2)["train_loss"]) == 2
    assert len(seen) == 3 + 10
    assert torch.equal(torch.cat(seen[:3]), torch.cat(seen[3:6]))


def test_signal_ends_the_run_with_its_code_whatever_a_subclass_does_with_metrics(
    points: TensorDataset,
) -> None:
    class Demanding(Trainer):
        def train_epoch(
            self, train_dataloader: Any, eval_dataloader: Any = None, epoch: int = 0
        ) -> dict[str, float]:
            return {
                "twice": 2
                * super().train_epoch(train_dataloader, eval_dataloader, epoch)["train_loss"]
            }

    def interrupted_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        return cross_entropy(outputs, targets)

    with pytest.raises(SystemExit) as caught:
        build_trainer(Demanding, loss_fn=interrupted_loss).train(shuffled(points), 2)
    assert caught.value.code == 128 + signal.SIGTERM


def test_a_signal_when_an_epoch_has_just_been_recorded_leaves_no_epoch_to_train_again(
    points: TensorDataset, tmp_path: Path
) -> None:
    class Signalling(Callback):
        def on_epoch_end(self, trainer: Any, metrics: Any) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    model, whole = build_linear(), build_linear()
    killed = Trainer(model, adam(model), cross_entropy)
    killed._core.run.bind([*killed._core.run.callbacks, Signalling()])
    with pytest.raises(SystemExit):
        killed.train(shuffled(points), 3, save_dir=tmp_path)
    model = build_linear()
    resumed = Trainer(model, adam(model), cross_entropy)
    loaded = resumed.load_checkpoint(tmp_path / "checkpoint_latest")
    assert loaded["num_epochs"] == 1
    resumed.train(shuffled(points), 3 - loaded["num_epochs"], save_dir=tmp_path)
    Trainer(whole, adam(whole), cross_entropy).train(shuffled(points), 3)
    assert_same_model(model, whole)

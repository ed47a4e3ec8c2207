"""Training through the lifecycle interface: equal to hand-written loops, and none of the known
traps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    Dataset,
    IterableDataset,
    TensorDataset,
)

from loopwright.interfaces.lifecycle import Trainer

from ...loops import (
    assert_same_model,
    assert_same_optimizer,
    build_linear,
    build_net,
    evaluate_by_hand,
    train_by_hand,
)
from .runs import build_trainer, each, head, train

SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "accumulation": ({"gradient_accumulation_steps": 2}, {"accumulate": 2}),
    "clipping": ({"gradient_clip_value": 0.01}, {"clip_value": 0.01}),
    "both": (
        {"gradient_accumulation_steps": 3, "gradient_clip_value": 0.02},
        {"accumulate": 3, "clip_value": 0.02},
    ),
    "updates": ({"max_num_train_steps": 7}, {"max_updates": 7}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_training_equals_the_hand_written_loop_bit_for_bit(
    points: TensorDataset, name: str
) -> None:
    options, by_hand = SETTINGS[name]
    trainer = train(build_trainer(), points, 3, **options)
    model = build_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train_by_hand(model, optimizer, points, epochs=3, **by_hand)
    assert_same_model(trainer.model, model)
    assert trainer.optimizer is not None
    assert_same_optimizer(trainer.optimizer, optimizer)


def test_evaluation_is_the_mean_over_all_samples(points: TensorDataset) -> None:
    trainer = train(build_trainer(), points, 1, eval_dataset=points)
    expected = evaluate_by_hand(trainer.model, points)
    assert trainer.run_history.get_latest_metric("eval_loss_epoch") == pytest.approx(
        expected, rel=1e-6
    )
    trainer.evaluate(points, per_device_batch_size=5)
    assert trainer.run_history.get_latest_metric("evaluation_loss") == pytest.approx(
        expected, rel=1e-6
    )


def test_the_smaller_of_epochs_and_updates_wins(points: TensorDataset) -> None:
    for max_steps, epochs, updates in ((7, 2, 7), (100, 3, 15), (10, 2, 10)):
        trainer = train(build_trainer(), points, 3, max_num_train_steps=max_steps)
        assert trainer._core.progress.update == updates
        assert trainer.run_config.num_epochs == epochs
        assert len(list(trainer.run_history.get_metric_values("train_loss_epoch"))) == epochs


def test_loader_arguments_are_used(points: TensorDataset) -> None:
    sizes: list[int] = []

    def collate(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        sizes.append(len(samples))
        return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])

    trainer = build_trainer()
    train(
        trainer,
        points,
        1,
        collate_fn=collate,
        train_dataloader_kwargs={"batch_size": 10, "drop_last": True},
    )
    assert sizes == [10, 10, 10]
    assert trainer.run_config.train_per_device_batch_size == 10
    assert trainer.run_config.train_dl_kwargs["drop_last"] is True
    assert trainer.get_default_train_dl_kwargs(4)["shuffle"] is True
    assert trainer.get_default_eval_dl_kwargs(4)["shuffle"] is False


def test_data_without_a_length_trains(points: TensorDataset) -> None:
    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(list(points))

    trainer = train(build_trainer(), Endless(), 2)  # type: ignore[arg-type]
    assert trainer._core.progress.update == 10
    assert trainer.run_config.num_update_steps_per_epoch is None


def test_what_a_loss_function_learns_is_trained_and_kept(
    points: TensorDataset, tmp_path: Any
) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return nn.functional.cross_entropy(outputs * self.scale, targets)

    model, loss_func = build_linear(), Scaled()
    optimizer = torch.optim.SGD([*model.parameters(), *loss_func.parameters()], lr=0.1)
    trainer = train(Trainer(model, loss_func, optimizer, callbacks=()), points, 1)
    learned = loss_func.scale.item()
    assert learned != 1
    trainer.save_checkpoint(tmp_path / "checkpoint")
    loss_func.scale.data.fill_(7)
    trainer.load_checkpoint(tmp_path / "checkpoint")
    assert loss_func.scale.item() == learned


def test_an_error_in_training_surfaces_and_the_trainer_can_train_again(
    points: TensorDataset,
) -> None:
    class Broken(Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            raise RuntimeError("no such sample")

    trainer = build_trainer()
    with pytest.raises(RuntimeError, match="no such sample"):
        trainer.train(Broken(), 1)
    train(trainer, points, 1)
    assert trainer._core.progress.update == 5


def test_an_evaluation_inside_a_run_does_not_take_the_place_of_its_own(
    points: TensorDataset,
) -> None:
    few = head(points, 8)
    trainer = build_trainer(
        callbacks=[each("on_train_epoch_end", lambda trainer: trainer.evaluate(few))]
    )
    train(trainer, points, 2, eval_dataset=points)
    plain = train(build_trainer(), points, 2, eval_dataset=points)
    own, reference = trainer.run_history, plain.run_history
    assert own.get_metric_values("eval_loss_epoch") == reference.get_metric_values(
        "eval_loss_epoch"
    )
    assert len(list(own.get_metric_values("evaluation_loss"))) == 2

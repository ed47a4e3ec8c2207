"""Subclasses of the simple interface: whatever they override counts inside `train`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright.data.random import seed_everything
from loopwright.interfaces.simple import Trainer
from tests.loops import assert_same_model, batches, build_linear, build_net
from tests.mistakes import raises

from .programs import adam, build_trainer, cross_entropy, in_order, shuffled


def train_reference(points: TensorDataset, num_epochs: int = 2) -> nn.Module:
    model = build_net()
    seed_everything(0)
    Trainer(model, adam(model), cross_entropy).train(shuffled(points), num_epochs, in_order(points))
    return model


def test_train_step_that_adds_to_the_given_one_trains_once(points: TensorDataset) -> None:
    class Counting(Trainer):
        num_steps = 0

        def train_step(self, batch: Any) -> dict[str, float]:
            self.num_steps += 1
            return {**super().train_step(batch), "number": self.num_steps}

    model = build_net()
    seed_everything(0)
    trainer = Counting(model, adam(model), cross_entropy)
    history = trainer.train(shuffled(points), 2, in_order(points))
    assert_same_model(model, train_reference(points))
    assert trainer.num_steps == 10
    assert set(history) == {"train_loss", "train_number", "eval_loss"}


def test_evaluate_that_adds_to_the_given_one(points: TensorDataset) -> None:
    class Perplexity(Trainer):
        def evaluate(self, dataloader: Any) -> dict[str, float]:
            metrics = super().evaluate(dataloader)
            return {**metrics, "perplexity": torch.tensor(metrics["loss"]).exp()}  # type: ignore[dict-item]

    history = build_trainer(Perplexity, net=build_net).train(shuffled(points), 1, in_order(points))
    assert history["eval_perplexity"][0] == torch.tensor(history["eval_loss"][0]).exp().item()


def test_own_parts_of_a_step_are_used_in_training_and_evaluation(points: TensorDataset) -> None:
    class Parts(Trainer):
        calls: list[str]

        def _prepare_batch(self, batch: Any) -> tuple[Any, Any]:
            self.calls.append("prepare")
            inputs, targets = super()._prepare_batch(batch)
            return inputs * 2, targets

        def _forward_pass(self, inputs: Any) -> Any:
            self.calls.append("forward")
            return super()._forward_pass(inputs) + 1

        def _compute_loss(self, outputs: Any, targets: Any) -> Tensor:
            self.calls.append("loss")
            return super()._compute_loss(outputs, targets) * 3

    model, by_hand = build_linear(), build_linear()
    trainer = Parts(model, torch.optim.SGD(model.parameters(), lr=0.1), cross_entropy)
    trainer.calls = []
    seed_everything(0)
    trainer.train(shuffled(points), 1, in_order(points))
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    for inputs, targets in batches(points, 8, epoch=0):
        optimizer.zero_grad()
        (cross_entropy(by_hand(inputs * 2) + 1, targets) * 3).backward()
        optimizer.step()
    assert_same_model(model, by_hand)
    assert trainer.calls == ["prepare", "forward", "loss"] * 10


def test_train_epoch_may_pass_over_several_loaders(points: TensorDataset) -> None:
    class TwoPasses(Trainer):
        def train_epoch(
            self, train_dataloader: Any, eval_dataloader: Any = None, epoch: int = 0
        ) -> dict[str, float]:
            first = super().train_epoch(train_dataloader, None, epoch)
            second = super().train_epoch(DataLoader(points, batch_size=37), eval_dataloader, epoch)
            return {**second, "train_first": first["train_loss"]}

    class Counted(nn.Linear):
        num_calls = 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.num_calls += self.training
            return super().forward(inputs)

    model = Counted(6, 3)
    optimizer = adam(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    trainer = TwoPasses(model, optimizer, cross_entropy, scheduler=scheduler)
    history = trainer.train(shuffled(points), 2, in_order(points))
    assert model.num_calls == 2 * (5 + 1)
    assert scheduler.last_epoch == 2
    assert set(history) == {"train_loss", "eval_loss", "train_first"}


def test_train_epoch_that_measures_something_now_and_then_keeps_one_entry_per_epoch(
    points: TensorDataset,
) -> None:
    class Sometimes(Trainer):
        def train_epoch(
            self, train_dataloader: Any, eval_dataloader: Any = None, epoch: int = 0
        ) -> dict[str, float]:
            return super().train_epoch(
                train_dataloader, eval_dataloader if epoch == 1 else None, epoch
            )

    values = build_trainer(Sometimes).train(shuffled(points), 3, in_order(points))["eval_loss"]
    assert [value == value for value in values] == [False, True, False]


def test_method_assigned_to_the_object_counts_too(points: TensorDataset) -> None:
    trainer = build_trainer()
    trainer.evaluate = lambda dataloader: {"loss": 0.25}  # type: ignore[method-assign]
    assert trainer.train(shuffled(points), 1, in_order(points))["eval_loss"] == [0.25]


def test_names_of_the_core_are_free_for_subclasses(points: TensorDataset) -> None:
    class Busy(Trainer):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.history = self.progress = self.callbacks = self.seed = "mine"

        def update(self) -> None:
            raise AssertionError

        def forward(self, inputs: Any) -> Any:
            raise AssertionError

        def on_epoch_end(self, anything: Any, at: Any, all_: Any) -> None:
            raise AssertionError

    trainer = build_trainer(Busy)
    assert len(trainer.train(shuffled(points), 1)["train_loss"]) == 1
    assert trainer.history == "mine"


def test_train_inside_train_is_refused(points: TensorDataset) -> None:
    def again(trainer: Trainer, epoch: int, metrics: dict[str, float]) -> None:
        trainer.train(shuffled(points), 1)

    with raises("already-training"):
        build_trainer().train(shuffled(points), 1, callbacks=[again])


def test_epoch_that_a_callback_adds_does_not_make_the_run_shorter(points: TensorDataset) -> None:
    def one_more(trainer: Trainer, epoch: int, metrics: dict[str, float]) -> None:
        trainer.train_epoch(shuffled(points))

    trainer = build_trainer()
    history = trainer.train(shuffled(points), 3, callbacks=[one_more])
    assert len(history["train_loss"]) == 3
    assert not trainer.optimizer._optimizer_step_pre_hooks  # nothing watches its steps any more


class Measuring(Trainer):
    """Looks at the norm of the gradients before the step that is given."""

    def train_step(self, batch: Any) -> dict[str, float]:
        inputs, targets = self._prepare_batch(batch)
        self._compute_loss(self._forward_pass(inputs), targets).backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), float("inf"))
        return super().train_step(batch) | {"norm": norm.item()}


def test_gradients_of_ones_own_do_not_go_into_the_given_step(points: TensorDataset) -> None:
    models = [build_linear(), build_linear()]
    for kind, model in zip((Measuring, Trainer), models, strict=True):
        seed_everything(0)
        kind(model, adam(model), cross_entropy).train(shuffled(points), 2)
    assert_same_model(*models)


def test_gradients_of_ones_own_are_refused_where_steps_add_up(points: TensorDataset) -> None:
    trainer = build_trainer(
        Measuring, net=build_net, config={"training": {"gradient_accumulation_steps": 2}}
    )
    with raises("gradients-in-window", "gradient_accumulation_steps is 2"):
        trainer.train(shuffled(points), 1)

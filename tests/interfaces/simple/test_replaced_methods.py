"""The simple interface's methods replaced whole, with torch's own idioms inside: the same as a loop
written by hand."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from loopwright import ConfigurationError
from loopwright.interfaces.simple import Trainer
from tests.distributed.ranks import run_ranks
from tests.loops import build_linear
from tests.mistakes import raises

from .methods import (
    AccumulatingStep,
    OwnEpoch,
    OwnEvalStep,
    OwnEvaluate,
    OwnParts,
    OwnStep,
    OwnTrain,
    assert_same,
    build,
    loader,
    train_by_hand,
)
from .programs import cross_entropy, saved_in


@pytest.mark.parametrize("kind", [OwnStep, OwnEpoch], ids=["train_step", "train_epoch"])
def test_training_replaced_whole_is_the_loop_that_was_written(
    kind: type[Trainer], points: TensorDataset
) -> None:
    trainer = build(kind)
    history = trainer.train(loader(points), 3, loader(points))
    assert_same(trainer, train_by_hand(points, 3, clip=0.1))
    assert [len(values) for values in history.values()] == [3, 3]


@pytest.mark.parametrize("kind", [OwnEvalStep, OwnEvaluate, OwnTrain, OwnParts])
def test_other_methods_replaced_whole_leave_training_as_it_is(
    kind: type[Trainer], points: TensorDataset
) -> None:
    trainer = build(kind)
    history = trainer.train(loader(points), 3, loader(points))
    assert_same(trainer, by_hand := train_by_hand(points, 3))
    sizes = [8, 8, 8, 8, 5]
    sums = [
        sum(n * loss for n, loss in zip(sizes, by_hand[3][i : i + 5], strict=True))
        for i in (0, 5, 10)
    ]
    assert history["train_loss"] == [total / 37 for total in sums]


def test_train_step_that_accumulates_by_itself_is_the_loop_that_was_written(
    points: TensorDataset,
) -> None:
    trainer = build(AccumulatingStep)
    trainer.train(loader(points), 3)  # windows of two go over the ends of epochs of five
    assert_same(trainer, train_by_hand(points, 3, every=2))


def test_train_step_that_never_steps_the_optimizer_is_refused_after_an_epoch(
    points: TensorDataset,
) -> None:
    class Stepless(Trainer):
        def train_step(self, batch: Any) -> dict[str, float]:
            loss = cross_entropy(self.model(batch[0]), batch[1])
            loss.backward()
            return {"loss": loss.item()}

    with pytest.raises(ConfigurationError, match="Nothing was trained: after 5 steps"):
        build(Stepless).train(loader(points), 3)


@pytest.mark.parametrize("kind", [OwnStep, OwnEpoch])
def test_single_calls_of_replaced_methods_do_the_same(
    kind: type[Trainer], points: TensorDataset
) -> None:
    trainer = build(kind)
    if kind is OwnEpoch:
        trainer.train_epoch(loader(points))
    else:
        for batch in loader(points):
            trainer.train_step(batch)
        trainer.scheduler.step()
    assert_same(trainer, train_by_hand(points, 1, clip=0.1))


def test_own_epoch_that_trains_nothing_is_said(points: TensorDataset, capsys: Any) -> None:
    class Idle(Trainer):
        def train_epoch(
            self, train_dataloader: Any, eval_dataloader: Any = None, epoch: int = 0
        ) -> dict[str, float]:
            return {"train_loss": 1.0}

    idle = build(Idle)
    idle.scheduler = None
    idle.train(loader(points), 1)
    (_,) = (line for line in capsys.readouterr().out.splitlines() if "Nothing was trained" in line)
    build(OwnEpoch).train(loader(points), 1)
    assert "Nothing was trained" not in capsys.readouterr().out


class PlainStep(Trainer):
    def train_step(self, batch: Any) -> dict[str, float]:
        assert self.optimizer is not None
        loss = cross_entropy(self.model(batch[0]), batch[1])
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item()}


class PlainEpoch(PlainStep):
    def train_epoch(
        self, train_dataloader: Any, eval_dataloader: Any = None, epoch: int = 0
    ) -> dict[str, float]:
        losses = []
        for batch in train_dataloader:
            assert self.optimizer is not None
            self.optimizer.zero_grad()
            losses.append(self.train_step(batch)["loss"])
        return {"train_loss": sum(losses) / len(losses)}


@pytest.mark.parametrize("kind", [PlainStep, PlainEpoch], ids=["train_step", "train_epoch"])
def test_plain_steps_are_clipped_as_the_config_says(
    kind: type[Trainer], points: TensorDataset
) -> None:
    trainer = build(kind, {"training": {"max_grad_norm": 0.1}})
    trainer.train(loader(points), 3)
    assert_same(trainer, train_by_hand(points, 3, clip=0.1))


@pytest.mark.parametrize("method", ["eval_step", "evaluate"])
def test_training_on_evaluation_data_is_refused(method: str, points: TensorDataset) -> None:
    def evaluate(dataloader: Any) -> dict[str, float]:
        return {"loss": sum(step(batch)["loss"] for batch in dataloader)}

    def step(batch: Any) -> dict[str, float]:
        with torch.enable_grad():
            cross_entropy(trainer.model(batch[0]), batch[1]).backward()
        assert trainer.optimizer is not None
        trainer.optimizer.step()
        return {"loss": 0.0}

    trainer = build(Trainer)
    setattr(trainer, method, evaluate if method == "evaluate" else step)
    with pytest.raises(ConfigurationError, match="must not update"):
        trainer.train(loader(points), 1, loader(points))


class OwnFiles(Trainer):
    """Files as one writes them with torch."""

    def _save_checkpoint(self, path: str, epoch: int, metric_value: float | None = None) -> None:
        assert self.optimizer is not None
        state = {
            "model_state_dict": self.model.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
            "scheduler_state_dict": self.scheduler.state_dict(),
            "epoch": epoch,
            "metric_value": metric_value,
        }
        torch.save(state, path)


class OwnLoad(OwnFiles):
    def load_checkpoint(
        self, path: Any, load_optimizer: bool = True, load_scheduler: bool = True
    ) -> dict[str, Any]:
        assert self.optimizer is not None
        state: dict[str, Any] = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model_state_dict"])
        self.optimizer.load_state_dict(state["optimizer_state_dict"])
        self.scheduler.load_state_dict(state["scheduler_state_dict"])
        return state


@pytest.mark.parametrize(
    "kind", [OwnFiles, OwnLoad], ids=["our load_checkpoint", "their load_checkpoint"]
)
def test_files_of_torch_save_are_written_and_go_on_exactly(
    kind: type[Trainer], points: TensorDataset, tmp_path: Path
) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    losses = build(OwnFiles).train(loader(points), 2, save_dir=str(folder))["train_loss"]
    assert [path.name for path in saved_in(folder)] == [
        "best_model",
        "checkpoint_epoch_1",
        "checkpoint_epoch_2",
    ]
    assert all(path.is_file() for path in saved_in(folder))
    trainer = build(kind, seed=9)
    state = trainer.load_checkpoint(folder / "checkpoint_epoch_2")
    assert (state["epoch"], state["metric_value"]) == (1, losses[1])
    trainer.train(loader(points), 1, save_dir=str(folder))
    assert_same(trainer, train_by_hand(points, 3))


class Interrupting(OwnEpoch):
    """Gets a signal in its second epoch, in a loop that does not look at signals."""

    number: int

    def train_epoch(
        self, train_dataloader: Any, eval_dataloader: Any = None, epoch: int = 0
    ) -> dict[str, float]:
        if epoch == 1:
            os.kill(os.getpid(), self.number)
        return super().train_epoch(train_dataloader, eval_dataloader, epoch)


def test_own_epoch_that_was_interrupted_is_saved_and_goes_on_exactly(
    points: TensorDataset, tmp_path: Path, capsys: Any
) -> None:
    trainer = build(Interrupting)
    trainer.number = signal.SIGTERM
    with pytest.raises(SystemExit) as caught:
        trainer.train(loader(points), 4, save_dir=tmp_path, save_freq=10)
    assert caught.value.code == 128 + signal.SIGTERM
    assert "checkpoint_latest') and train to continue" in capsys.readouterr().out
    again = build(OwnEpoch, seed=9)
    assert again.load_checkpoint(tmp_path / "checkpoint_latest")["num_epochs"] == 2
    again.train(loader(points), 2)
    assert_same(again, train_by_hand(points, 4, clip=0.1))


def test_interrupted_run_without_a_place_to_save_says_so(
    points: TensorDataset, capsys: Any
) -> None:
    trainer = build(Interrupting)
    trainer.number = signal.SIGTERM
    with pytest.raises(SystemExit):
        trainer.train(loader(points), 4)


def test_single_steps_while_accumulating_are_refused(points: TensorDataset) -> None:
    class Own(Trainer):
        def train_epoch(
            self, train_dataloader: Any, eval_dataloader: Any = None, epoch: int = 0
        ) -> dict[str, float]:
            return {"train_loss": sum(self.train_step(batch)["loss"] for batch in train_dataloader)}

    config = {"training": {"gradient_accumulation_steps": 2}}
    with raises("single-step-accumulating", 2):
        build(Own, config).train(loader(points), 1)

    class Adding(Trainer):
        def train_step(self, batch: Any) -> dict[str, float]:
            return super().train_step(batch) | {"size": len(batch[0])}

    assert build(Adding, config).train(loader(points), 1)["train_size"] == [
        (4 * 8 * 8 + 5 * 5) / 37
    ]


def _points() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(15, 6, generator=generator), torch.randint(3, (15,), generator=generator)
    )


def _own_steps_on_two(rank: int) -> None:
    models = []
    for kind in (Trainer, OwnStep, PlainStep):
        model = build_linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = kind(model, optimizer, cross_entropy, {"training": {"max_grad_norm": 0.1}})
        trainer.train(loader(_points()), 2)
        models.append(model)
    for model in models[1:]:
        torch.testing.assert_close(model.state_dict(), models[0].state_dict())


def _own_epochs_on_two(rank: int) -> None:
    by_hand = train_by_hand(_points(), 2, clip=0.1)
    for kind in (OwnEpoch, PlainEpoch):
        trainer = build(kind, {"training": {"max_grad_norm": 0.1}})
        trainer.train(loader(_points()), 2)
        assert_same(trainer, by_hand)


def test_own_steps_on_two_processes_are_averaged_as_those_of_the_trainer() -> None:
    run_ranks(_own_steps_on_two, 2)


def test_own_epochs_on_two_processes_are_the_loop_that_was_written_on_each() -> None:
    run_ranks(_own_epochs_on_two, 2)

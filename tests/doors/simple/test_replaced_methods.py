"""The simple door's methods replaced whole, with torch's own idioms inside: the same as a loop written by hand."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

from loopwright import ConfigurationError
from loopwright.doors.simple import Trainer
from tests.distributed.ranks import run_ranks
from tests.loops import assert_same_model, assert_same_optimizer, build_net

from .programs import adam, cross_entropy, saved_in

PER_BATCH = {"training": {"scheduler_step_per_batch": True}}


def loader(points: TensorDataset) -> DataLoader[Any]:
    return DataLoader(points, batch_size=8)


def train_by_hand(
    points: TensorDataset, epochs: int, *, clip: float | None = None, every: int = 1, seed: int = 1
) -> tuple[nn.Module, Optimizer, StepLR, list[float]]:
    """An ordinary loop with an optimizer, a scheduler stepped after each epoch, and gradients of `every` batches."""
    model = build_net(seed, dropout=0.0)
    optimizer = adam(model)
    scheduler = StepLR(optimizer, 1, gamma=0.5)
    losses, num_batches = [], 0
    for _ in range(epochs):
        for inputs, targets in loader(points):
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            num_batches += 1
            if num_batches % every == 0:
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        scheduler.step()
    return model, optimizer, scheduler, losses


def build(kind: type[Trainer], config: Any = None, seed: int = 1) -> Trainer:
    model = build_net(seed, dropout=0.0)
    optimizer = adam(model)
    return kind(model, optimizer, cross_entropy, config, scheduler=StepLR(optimizer, 1, gamma=0.5))


def assert_same(trainer: Trainer, by_hand: tuple[nn.Module, Optimizer, StepLR, list[float]]) -> None:
    model, optimizer, scheduler, _ = by_hand
    assert trainer.optimizer is not None
    assert_same_model(trainer.model, model)
    assert_same_optimizer(trainer.optimizer, optimizer)
    assert trainer.scheduler.last_epoch == scheduler.last_epoch


class OwnStep(Trainer):
    def train_step(self, batch: Any) -> dict[str, float]:
        assert self.optimizer is not None
        inputs, targets = batch[0].to(self.device), batch[1].to(self.device)
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.loss_fn(self.model(inputs), targets)  # type: ignore[misc]
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()
        return {"loss": loss.item()}


class AccumulatingStep(Trainer):
    """Gradients of two batches an update, as the document says to implement it."""

    num_batches = 0

    def train_step(self, batch: Any) -> dict[str, float]:
        assert self.optimizer is not None
        inputs, targets = self._prepare_batch(batch)
        loss = self._compute_loss(self._forward_pass(inputs), targets)
        loss.backward()
        self.num_batches += 1
        if self.num_batches % 2 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return {"loss": loss.item()}


class OwnEvalStep(Trainer):
    def eval_step(self, batch: Any) -> dict[str, float]:
        self.model.eval()
        with torch.no_grad():
            outputs = self.model(batch[0])
        return {"loss": cross_entropy(outputs, batch[1]).item(), "right": (outputs.argmax(1) == batch[1]).sum().item()}


class OwnEpoch(Trainer):
    """An epoch as one writes it, its scheduler included."""

    def train_epoch(self, train_dataloader: Any, eval_dataloader: Any = None, epoch: int = 0) -> dict[str, float]:
        assert self.optimizer is not None
        self.model.train()
        total = 0.0
        for inputs, targets in train_dataloader:
            self.optimizer.zero_grad()
            loss = cross_entropy(self.model(inputs), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
            self.optimizer.step()
            total += loss.item()
        self.scheduler.step()
        metrics = {"train_loss": total / len(train_dataloader)}
        if eval_dataloader is not None:
            metrics |= {f"eval_{name}": value for name, value in self.evaluate(eval_dataloader).items()}
        return metrics


class OwnEvaluate(Trainer):
    def evaluate(self, dataloader: Any) -> dict[str, float]:
        self.model.eval()
        total, count = 0.0, 0
        with torch.no_grad():
            for inputs, targets in dataloader:
                total += cross_entropy(self.model(inputs), targets).item()
                count += 1
        return {"loss": total / count}


class OwnTrain(Trainer):
    def train(self, train_dataloader: Any, num_epochs: int, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        history: dict[str, list[float]] = {}
        for epoch in range(num_epochs):
            for name, value in self.train_epoch(train_dataloader, epoch=epoch).items():
                history.setdefault(name, []).append(value)
        return history


class OwnParts(Trainer):
    """The three parts of a step."""

    def _prepare_batch(self, batch: Any) -> tuple[Any, Any]:
        inputs, targets = batch
        return inputs.to(self.device), targets.to(self.device)

    def _forward_pass(self, inputs: Any) -> Any:
        return self.model(inputs)

    def _compute_loss(self, outputs: Any, targets: Any) -> Tensor:
        return cross_entropy(outputs, targets)


@pytest.mark.parametrize("kind", [OwnStep, OwnEpoch], ids=["train_step", "train_epoch"])
def test_training_replaced_whole_is_the_loop_that_was_written(kind: type[Trainer], points: TensorDataset) -> None:
    trainer = build(kind)
    history = trainer.train(loader(points), 3, loader(points))
    assert_same(trainer, train_by_hand(points, 3, clip=0.1))
    assert [len(values) for values in history.values()] == [3, 3]


@pytest.mark.parametrize("kind", [OwnEvalStep, OwnEvaluate, OwnTrain, OwnParts])
def test_other_methods_replaced_whole_leave_training_as_it_is(kind: type[Trainer], points: TensorDataset) -> None:
    trainer = build(kind)
    history = trainer.train(loader(points), 3, loader(points))
    assert_same(trainer, by_hand := train_by_hand(points, 3))
    sizes = [8, 8, 8, 8, 5]
    sums = [sum(n * loss for n, loss in zip(sizes, by_hand[3][i : i + 5], strict=True)) for i in (0, 5, 10)]
    assert history["train_loss"] == [total / 37 for total in sums]


def test_own_evaluation_measures_the_trained_model(points: TensorDataset) -> None:
    trainer = build(OwnEvalStep)
    right = trainer.train(loader(points), 2, loader(points))["eval_right"][-1]
    model = train_by_hand(points, 2)[0].eval()
    counts = [(model(inputs).argmax(1) == targets).sum().item() for inputs, targets in loader(points)]
    assert right == sum(n * count for n, count in zip((8, 8, 8, 8, 5), counts, strict=True)) / 37


def test_train_step_that_accumulates_by_itself_is_the_loop_that_was_written(points: TensorDataset) -> None:
    trainer = build(AccumulatingStep)
    trainer.train(loader(points), 3)  # windows of two go over the ends of epochs of five
    assert_same(trainer, train_by_hand(points, 3, every=2))


def test_train_step_that_never_steps_the_optimizer_is_refused_after_an_epoch(
    points: TensorDataset, mistake: Any
) -> None:
    class Stepless(Trainer):
        def train_step(self, batch: Any) -> dict[str, float]:
            loss = cross_entropy(self.model(batch[0]), batch[1])
            loss.backward()
            return {"loss": loss.item()}

    what = "`train_step` with `loss.backward()` and no `optimizer.step()`"
    with mistake("Door: simple", what, ConfigurationError, match="Nothing was trained: after 5 steps"):
        build(Stepless).train(loader(points), 3)


@pytest.mark.parametrize("kind", [OwnStep, OwnEpoch])
def test_single_calls_of_replaced_methods_do_the_same(kind: type[Trainer], points: TensorDataset) -> None:
    trainer = build(kind)
    if kind is OwnEpoch:
        trainer.train_epoch(loader(points))
    else:
        for batch in loader(points):
            trainer.train_step(batch)
        trainer.scheduler.step()
    assert_same(trainer, train_by_hand(points, 1, clip=0.1))


def test_train_step_that_steps_an_epochs_scheduler_has_it_to_itself(points: TensorDataset) -> None:
    class StepsBoth(OwnStep):
        def train_step(self, batch: Any) -> dict[str, float]:
            result = super().train_step(batch)
            self.scheduler.step()
            return result

    trainer = build(StepsBoth)
    trainer.train(loader(points), 2)
    assert trainer.scheduler.last_epoch == 10


def test_chained_scheduler_stepped_in_an_own_epoch_is_not_stepped_again(points: TensorDataset) -> None:
    trainer = build(OwnEpoch)
    assert trainer.optimizer is not None
    trainer.scheduler = ChainedScheduler([StepLR(trainer.optimizer, 1, gamma=0.5)])
    trainer.train(loader(points), 2)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 0.25)


def test_own_epoch_that_leaves_the_scheduler_alone_has_it_stepped(points: TensorDataset) -> None:
    class Simple(Trainer):
        def train_epoch(self, train_dataloader: Any, eval_dataloader: Any = None, epoch: int = 0) -> dict[str, float]:
            return {"train_loss": sum(self.train_step(batch)["loss"] for batch in train_dataloader)}

    trainer = build(Simple)
    trainer.train(loader(points), 3)
    assert_same(trainer, train_by_hand(points, 3))


def test_own_epoch_with_steps_and_no_scheduler_steps_per_batch_is_refused(points: TensorDataset, mistake: Any) -> None:
    class Forgetful(OwnEpoch):
        def train_epoch(self, *args: Any, **options: Any) -> dict[str, float]:
            scheduler, self.kept = self.scheduler, self.scheduler
            scheduler.step = lambda: None
            try:
                return super().train_epoch(*args, **options)
            finally:
                del scheduler.step

    what = "`optimizer.step()` in `train_epoch`, no `scheduler.step()`, and `scheduler_step_per_batch`"
    with mistake("Door: simple", what, ConfigurationError, match=r"call self\.scheduler\.step\(\) after"):
        build(Forgetful, PER_BATCH).train(loader(points), 1)


def test_loop_around_train_epoch_that_steps_the_scheduler_again_is_refused(points: TensorDataset, mistake: Any) -> None:
    class Twice(Trainer):
        def train(self, train_dataloader: Any, num_epochs: int, *_: Any, **__: Any) -> Any:  # type: ignore[override]
            for epoch in range(num_epochs):
                self.train_epoch(train_dataloader, epoch=epoch)
                self.scheduler.step()

    what = "`scheduler.step()` after `train_epoch`, which has stepped it"
    with mistake("Door: simple", what, ConfigurationError, match="remove your own"):
        build(Twice).train(loader(points), 3)


def test_scheduler_moved_by_a_loaded_checkpoint_is_no_second_step(points: TensorDataset, tmp_path: Path) -> None:
    trainer = build(Trainer)
    trainer.train(loader(points), 3, save_dir=tmp_path)
    trainer.load_checkpoint(tmp_path / "checkpoint_epoch_1")
    trainer.train_epoch(loader(points))
    trainer.load_checkpoint(tmp_path / "checkpoint_epoch_1")
    trainer.train_epoch(loader(points))
    assert_same(trainer, train_by_hand(points, 2))


def test_own_epoch_that_trains_nothing_is_said(points: TensorDataset, mistake: Any, capsys: Any) -> None:
    class Idle(Trainer):
        def train_epoch(self, train_dataloader: Any, eval_dataloader: Any = None, epoch: int = 0) -> dict[str, float]:
            return {"train_loss": 1.0}

    idle = build(Idle)
    idle.scheduler = None
    idle.train(loader(points), 1)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "Nothing was trained" in line)
    mistake.said("Door: simple", "`train_epoch` that trains nothing", line)
    build(OwnEpoch).train(loader(points), 1)
    assert "Nothing was trained" not in capsys.readouterr().out


def test_max_grad_norm_that_an_own_step_leaves_out_is_said_once(
    points: TensorDataset, mistake: Any, capsys: Any
) -> None:
    class Unclipped(AccumulatingStep):
        num_batches = 1

    config = {"training": {"max_grad_norm": 0.01}}
    build(Unclipped, config).train(loader(points), 2)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "max_grad_norm" in line)
    mistake.said("Door: simple", "`training.max_grad_norm`, and a `train_step` of one's own that does not clip", line)
    build(OwnStep, {"training": {"max_grad_norm": 0.1}}).train(loader(points), 1)
    assert "max_grad_norm" not in capsys.readouterr().out


@pytest.mark.parametrize("method", ["eval_step", "evaluate"])
def test_training_on_evaluation_data_is_refused(method: str, points: TensorDataset, mistake: Any) -> None:
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
    with mistake("Door: simple", f"`optimizer.step()` in `{method}`", ConfigurationError, match="must not update"):
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
    def load_checkpoint(self, path: Any, load_optimizer: bool = True, load_scheduler: bool = True) -> dict[str, Any]:
        assert self.optimizer is not None
        state: dict[str, Any] = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model_state_dict"])
        self.optimizer.load_state_dict(state["optimizer_state_dict"])
        self.scheduler.load_state_dict(state["scheduler_state_dict"])
        return state


@pytest.mark.parametrize("kind", [OwnFiles, OwnLoad], ids=["our load_checkpoint", "their load_checkpoint"])
def test_files_of_torch_save_are_written_and_go_on_exactly(
    kind: type[Trainer], points: TensorDataset, tmp_path: Path
) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    losses = build(OwnFiles).train(loader(points), 2, save_dir=str(folder))["train_loss"]
    assert [path.name for path in saved_in(folder)] == ["best_model", "checkpoint_epoch_1", "checkpoint_epoch_2"]
    assert all(path.is_file() for path in saved_in(folder))
    trainer = build(kind, seed=9)
    state = trainer.load_checkpoint(folder / "checkpoint_epoch_2")
    assert (state["epoch"], state["metric_value"]) == (1, losses[1])
    trainer.train(loader(points), 1, save_dir=str(folder))
    assert_same(trainer, train_by_hand(points, 3))


def test_plateau_stepped_in_an_own_epoch_is_not_stepped_again(points: TensorDataset) -> None:
    class Watching(Trainer):
        def train_epoch(self, train_dataloader: Any, eval_dataloader: Any = None, epoch: int = 0) -> dict[str, float]:
            for batch in train_dataloader:
                self.train_step(batch)
            self.scheduler.step(1.0)
            return {"train_loss": 1.0}

    model = build_net()
    optimizer = adam(model)
    trainer = Watching(model, optimizer, cross_entropy, scheduler=ReduceLROnPlateau(optimizer, patience=1))
    trainer.train(loader(points), 2)
    assert trainer.scheduler.last_epoch == 2
    assert optimizer.param_groups[0]["lr"] == 0.01


class Interrupting(OwnEpoch):
    """Gets a signal in its second epoch, in a loop that does not look at signals."""

    number: int

    def train_epoch(self, train_dataloader: Any, eval_dataloader: Any = None, epoch: int = 0) -> dict[str, float]:
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


def test_own_epoch_that_was_asked_to_save_does_so_at_its_end(points: TensorDataset, tmp_path: Path) -> None:
    trainer = build(Interrupting)
    trainer.number = signal.SIGUSR1
    trainer.train(loader(points), 3, save_dir=tmp_path, save_freq=10)
    assert build(Trainer).load_checkpoint(tmp_path / "checkpoint_latest")["num_epochs"] == 2


def test_interrupted_run_without_a_place_to_save_says_so(points: TensorDataset, mistake: Any, capsys: Any) -> None:
    trainer = build(Interrupting)
    trainer.number = signal.SIGTERM
    with pytest.raises(SystemExit):
        trainer.train(loader(points), 4)
    mistake.said("Door: simple", "SIGTERM in a run without `save_dir`", capsys.readouterr().out.splitlines()[-1])


def test_single_steps_while_accumulating_are_refused(points: TensorDataset, mistake: Any) -> None:
    class Own(Trainer):
        def train_epoch(self, train_dataloader: Any, eval_dataloader: Any = None, epoch: int = 0) -> dict[str, float]:
            return {"train_loss": sum(self.train_step(batch)["loss"] for batch in train_dataloader)}

    config = {"training": {"gradient_accumulation_steps": 2}}
    what = "`self.train_step(batch)` in one's own `train_epoch` with `gradient_accumulation_steps`"
    with mistake("Door: simple", what, ConfigurationError, match=r"super\(\)\.train_epoch"):
        build(Own, config).train(loader(points), 1)

    class Adding(Trainer):
        def train_step(self, batch: Any) -> dict[str, float]:
            return super().train_step(batch) | {"size": len(batch[0])}

    assert build(Adding, config).train(loader(points), 1)["train_size"] == [(4 * 8 * 8 + 5 * 5) / 37]


def _refused_on_two(rank: int, kind: type[Trainer]) -> str:
    torch.manual_seed(0)
    points = TensorDataset(torch.randn(16, 6), torch.randint(3, (16,)))
    with pytest.raises(ConfigurationError) as caught:
        build(kind).train(loader(points), 1)
    return str(caught.value)


@pytest.mark.parametrize("kind", [OwnStep, OwnEpoch])
def test_own_optimizer_steps_on_two_processes_are_refused(kind: type[Trainer], mistake: Any) -> None:
    messages = run_ranks(_refused_on_two, 2, kind)
    name = "train_step" if kind is OwnStep else "train_epoch"
    assert messages[0] == messages[1]
    assert "call super().train_step(batch)" in messages[0]
    mistake.said("Door: simple", f"`optimizer.step()` in `{name}` on two processes", messages[0])

"""The simple interface at the end of an epoch: the best model, early stopping, callbacks, and
checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from loopwright import CheckpointError, ConfigurationError
from loopwright.interfaces.simple import Trainer
from tests.loops import assert_same_model, assert_same_optimizer, build_linear, build_net
from tests.mistakes import raises

from .programs import (
    AccuracyTrainer,
    adam,
    build_trainer,
    cross_entropy,
    in_order,
    saved_in,
    shuffled,
)


class Scripted(Trainer):
    """Evaluations whose values are written down beforehand."""

    name = "loss"
    values: list[float]

    def evaluate(self, dataloader: Any) -> dict[str, float]:
        return {self.name: self.values.pop(0)}


class Counted(Trainer):
    """One more metric of its evaluation steps."""

    def eval_step(self, batch: Any) -> dict[str, float]:
        return {**super().eval_step(batch), "accuracy": 0.5}


def scripted(name: str, values: list[float], mode: str | None = None) -> Scripted:
    trainer = build_trainer(Scripted, config={"training": {"best_model_mode": mode}})
    trainer.name, trainer.values = name, list(values)
    return trainer


def best_epochs(
    name: str, values: list[float], points: TensorDataset, tmp_path: Path, mode: str | None = None
) -> list[int]:
    """The epochs after which `best_model` was another."""
    found: list[int] = []

    def look(trainer: Trainer, epoch: int, metrics: dict[str, float]) -> None:
        kept = Trainer(build_linear(), None, None).load_checkpoint(tmp_path / "best_model")
        found.append(kept["epoch"])

    trainer = scripted(name, values, mode)
    metric = f"eval_{name}"
    trainer.train(
        shuffled(points),
        len(values),
        in_order(points),
        str(tmp_path),
        best_model_metric=metric,
        callbacks=[look],
    )
    return found


@pytest.mark.parametrize(
    ("name", "values"), [("rmse", [3.0, 4.0, 2.0, 2.0]), ("accuracy", [0.2, 0.1, 0.3, 0.3])]
)
def test_best_model_has_the_smallest_of_what_is_to_fall_or_the_largest_of_what_is_to_rise(
    name: str, values: list[float], points: TensorDataset, tmp_path: Path
) -> None:
    assert best_epochs(name, values, points, tmp_path) == [0, 0, 2, 2]


def test_a_metric_whose_name_says_nothing_goes_by_best_model_mode(
    points: TensorDataset, tmp_path: Path
) -> None:
    assert best_epochs("foo", [3.0, 4.0, 2.0], points, tmp_path, "min") == [0, 0, 2]
    trainer = scripted("foo", [3.0, 2.0, 1.0, 0.5], "min")
    metrics = trainer.train(
        shuffled(points),
        4,
        in_order(points),
        best_model_metric="eval_foo",
        early_stopping_patience=1,
    )
    assert len(metrics["eval_foo"]) == 4


def test_without_best_model_mode_it_is_asked_for_before_the_first_step(
    points: TensorDataset, tmp_path: Path
) -> None:
    trainer = scripted("foo", [3.0])
    with pytest.raises(ConfigurationError, match=r'training\.best_model_mode="min"'):
        trainer.train(
            shuffled(points), 1, in_order(points), str(tmp_path), best_model_metric="eval_foo"
        )
    assert trainer._core.progress.step == 0


def test_named_losses_are_minimised_whatever_they_are_called(
    points: TensorDataset, tmp_path: Path
) -> None:
    class Named(Trainer):
        def _compute_loss(self, outputs: Any, targets: Any) -> Any:
            return {"fit": cross_entropy(outputs, targets), "score": outputs.square().mean()}

    model = build_linear()
    trainer = Named(model, torch.optim.SGD(model.parameters(), 0.5), cross_entropy)
    history = trainer.train(
        shuffled(points), 4, in_order(points), str(tmp_path), best_model_metric="eval_score"
    )
    kept = Trainer(build_linear(), None, None).load_checkpoint(
        tmp_path / "best_model", load_optimizer=False
    )
    assert kept["metric_value"] == min(history["eval_score"]) < max(history["eval_score"])


def test_value_that_is_no_number_is_never_the_best(points: TensorDataset, tmp_path: Path) -> None:
    assert best_epochs("loss", [float("nan"), 5.0, float("nan")], points, tmp_path) == [0, 1, 1]


def test_best_model_survives_a_worse_second_call(points: TensorDataset, tmp_path: Path) -> None:
    trainer = scripted("loss", [1.0, 2.0, 3.0])
    trainer.train(shuffled(points), 1, in_order(points), str(tmp_path))
    trainer.train(shuffled(points), 2, in_order(points), str(tmp_path))
    assert trainer.load_checkpoint(tmp_path / "best_model")["metric_value"] == 1.0


def test_without_an_evaluation_the_best_model_goes_by_the_training_loss(
    points: TensorDataset, tmp_path: Path
) -> None:
    trainer = build_trainer()
    losses = trainer.train(shuffled(points), 2, save_dir=str(tmp_path))["train_loss"]
    assert trainer.load_checkpoint(tmp_path / "best_model")["metric_value"] == min(losses)


def test_early_stopping_waits_for_its_patience_and_callbacks_are_called_for_its_epoch(
    points: TensorDataset,
) -> None:
    called: list[int] = []
    trainer = scripted("loss", [3.0, 2.0, 2.5, 2.4, 1.0, 1.0])
    history = trainer.train(
        shuffled(points),
        6,
        in_order(points),
        early_stopping_patience=2,
        callbacks=[lambda trainer, epoch, metrics: called.append(epoch)],
    )
    assert history["eval_loss"] == [3.0, 2.0, 2.5, 2.4]
    assert called == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("trainer_class", "metric", "has_eval", "words"),
    [
        (Counted, "eval_acuracy", True, "did you mean eval_accuracy?"),
        (Counted, "eval_accuracy", False, "`eval_dataloader=`"),
        (AccuracyTrainer, "accuracy", True, "begin with eval_"),
        (Trainer, "train_los", True, "did you mean train_loss?"),
    ],
)
def test_metric_that_nobody_measures_is_refused_before_the_first_step(
    trainer_class: type[Trainer], metric: str, has_eval: bool, words: str, points: TensorDataset
) -> None:
    model = build_linear()
    before = model.weight.clone()
    trainer = trainer_class(model, adam(model), cross_entropy)
    loader = in_order(points) if has_eval else None
    with raises("unknown-best-metric", metric, words):
        trainer.train(
            shuffled(points), 2, loader, best_model_metric=metric, early_stopping_patience=1
        )
    assert torch.equal(model.weight, before)


def test_metric_that_an_own_evaluation_does_not_have_is_refused_after_its_first(
    points: TensorDataset,
) -> None:
    trainer = scripted("f1", [1.0, 1.0])
    with pytest.raises(
        ConfigurationError,
        match="'eval_accuracy', but this epoch measured only train_loss, eval_f1",
    ):
        trainer.train(
            shuffled(points),
            2,
            in_order(points),
            best_model_metric="eval_accuracy",
            early_stopping_patience=1,
        )


def build(seed: int = 1) -> tuple[nn.Module, torch.optim.Adam, StepLR]:
    model = build_net(seed)
    optimizer = adam(model)
    return model, optimizer, StepLR(optimizer, 2, gamma=0.5)


def test_checkpoint_holds_everything_and_nothing_is_pickled(
    points: TensorDataset, tmp_path: Path
) -> None:
    model, optimizer, scheduler = build()
    trainer = Trainer(model, optimizer, cross_entropy, scheduler=scheduler)
    history = trainer.train(shuffled(points), 3, in_order(points), str(tmp_path))
    loaded = trainer.load_checkpoint(str(tmp_path / "checkpoint_epoch_3"))
    assert loaded["epoch"] == 2
    assert loaded["metric_value"] == history["eval_loss"][2]
    assert loaded["scheduler_state_dict"]["last_epoch"] == 3
    assert len(loaded["optimizer_state_dict"]["state"]) == len(list(model.parameters()))
    assert all(
        torch.equal(value, loaded["model_state_dict"][name])
        for name, value in model.state_dict().items()
    )
    files = [path for folder in saved_in(tmp_path) for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors"}


def test_loaded_checkpoint_goes_on_as_if_nothing_had_happened(
    points: TensorDataset, tmp_path: Path
) -> None:
    model, optimizer, scheduler = build()
    model[3].p = 0.0
    torch.manual_seed(3)
    whole = Trainer(model, optimizer, cross_entropy, scheduler=scheduler).train(
        shuffled(points), 4, save_dir=str(tmp_path), save_freq=2
    )
    again, other, schedule = build(seed=9)
    again[3].p = 0.0
    torch.manual_seed(3)
    trainer = Trainer(again, other, cross_entropy, scheduler=schedule)
    trainer.load_checkpoint(tmp_path / "checkpoint_epoch_2")
    assert trainer.train(shuffled(points), 2)["train_loss"] == whole["train_loss"][2:]
    assert_same_model(again, model)
    assert_same_optimizer(other, optimizer)
    assert schedule.last_epoch == 4


def test_checkpoint_that_a_kill_prevented_is_written_by_the_next_program(
    points: TensorDataset, tmp_path: Path
) -> None:
    trainer = Trainer(*build()[:2], cross_entropy)
    trainer.train(shuffled(points), 2, in_order(points), str(tmp_path))
    assert trainer.load_checkpoint(tmp_path / "best_model")["num_epochs"] == 2
    shutil.rmtree(tmp_path / "checkpoint_epoch_2")  # the kill came after the best model
    again = Trainer(*build(seed=9)[:2], cross_entropy)
    again.load_checkpoint(tmp_path / "best_model")
    again.train(shuffled(points), 1, in_order(points), str(tmp_path))
    assert {path.name for path in saved_in(tmp_path)} >= {
        f"checkpoint_epoch_{n}" for n in (1, 2, 3)
    }
    assert again.load_checkpoint(tmp_path / "checkpoint_epoch_2")["num_epochs"] == 2


def test_optimizer_and_scheduler_stay_out_where_asked(
    points: TensorDataset, tmp_path: Path
) -> None:
    model, optimizer, scheduler = build()
    Trainer(model, optimizer, cross_entropy, scheduler=scheduler).train(
        shuffled(points), 3, save_dir=str(tmp_path)
    )
    again, other, schedule = build(seed=9)
    trainer = Trainer(again, other, cross_entropy, scheduler=schedule)
    loaded = trainer.load_checkpoint(
        tmp_path / "checkpoint_epoch_3", load_optimizer=False, load_scheduler=False
    )
    assert_same_model(again, model)
    assert not other.state
    assert schedule.last_epoch == 0
    assert loaded["scheduler_state_dict"]["last_epoch"] == 3


@pytest.mark.parametrize("is_bare", [True, False], ids=["bare state dict", "dict of state dicts"])
def test_foreign_file_is_loaded_without_running_code(
    is_bare: bool, points: TensorDataset, tmp_path: Path
) -> None:
    model, optimizer, scheduler = build()
    Trainer(model, optimizer, cross_entropy, scheduler=scheduler).train(shuffled(points), 2)
    whole = {
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "scheduler_state_dict": scheduler.state_dict(),
        "epoch": 7,
        "note": "from elsewhere",
    }
    torch.save(model.state_dict() if is_bare else whole, tmp_path / "theirs.pt")
    again, other, schedule = build(seed=9)
    loaded = Trainer(again, other, cross_entropy, scheduler=schedule).load_checkpoint(
        tmp_path / "theirs.pt"
    )
    assert_same_model(again, model)
    assert schedule.last_epoch == (0 if is_bare else 2)
    assert len(other.state) == (0 if is_bare else len(list(model.parameters())))
    assert (loaded["epoch"], loaded.get("note")) == (
        (None, None) if is_bare else (7, "from elsewhere")
    )


def test_checkpoint_that_does_not_fit_changes_nothing(
    points: TensorDataset, tmp_path: Path
) -> None:
    build_trainer().train(shuffled(points), 1, save_dir=str(tmp_path))
    other = nn.Linear(6, 4)
    before = other.weight.clone()
    with pytest.raises(CheckpointError, match=r"nothing was loaded:\n.*weight has shape \(4, 6\)"):
        Trainer(other, None, cross_entropy).load_checkpoint(tmp_path / "best_model")
    assert torch.equal(other.weight, before)


def test_loading_inside_a_callback_does_not_make_training_longer(
    points: TensorDataset, tmp_path: Path
) -> None:
    def go_back(trainer: Trainer, epoch: int, metrics: dict[str, float]) -> None:
        trainer.load_checkpoint(tmp_path / "checkpoint_epoch_1")

    trainer = build_trainer()
    history = trainer.train(shuffled(points), 3, save_dir=str(tmp_path), callbacks=[go_back])
    assert len(history["train_loss"]) == 3

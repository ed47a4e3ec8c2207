"""The interfaces on several processes: batch sizes, schedules, batch norm, saved runs, and the
weights of one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

from loopwright import NonFiniteLossError
from loopwright.interfaces.lifecycle import (
    ConvertSyncBatchNormCallback,
    SaveTrainingStateCallback,
    TerminateOnNaNCallback,
    Trainer,
    TrainerPlaceholderValues,
)
from loopwright.interfaces.modular import DreamTrainer, DreamTrainerConfig
from loopwright.interfaces.simple import trainer as simple
from loopwright.runtime import distributed
from tests.distributed.ranks import RunRanks, run_ranks
from tests.distributed.scenarios import assert_same, build_data, build_model, poisoned, weights_of


class Noting(Trainer):
    """Notes the learning rate of every update, and the sizes of its batches."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rates: list[float] = []
        self.sizes: list[int] = []

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        self.sizes.append(len(batch[0]))
        return super().calculate_train_batch_loss(batch)

    def scheduler_step(self) -> None:
        super().scheduler_step()
        self.rates.append(self.optimizer.param_groups[0]["lr"])


def lifecycle(rank: int, per_device: int, folder: Path, num_processes: int) -> dict[str, Any]:
    """A run with accumulation and a cosine over all of it, saved after its first epoch and gone on
    with from there."""
    torch.manual_seed(rank)  # whatever the processes are seeded with, they agree on an order
    results: dict[str, Any] = {}
    for resume_from in (None, folder / "epoch_1"):
        model = build_model()
        torch.manual_seed(20)
        trainer = Noting(
            model,
            nn.MSELoss(),
            torch.optim.SGD(model.parameters(), 0.1),
            callbacks=[SaveTrainingStateCallback(folder, save_every_n_epochs=1, save_at_end=False)],
        )
        total = (
            TrainerPlaceholderValues.NUM_EPOCHS
            * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH
        )
        trainer.train(
            build_data(45),
            num_epochs=2,
            eval_dataset=build_data(13),
            per_device_batch_size=per_device,
            gradient_accumulation_steps=2,
            gradient_clip_value=0.05,
            create_scheduler_fn=partial(CosineAnnealingLR, T_max=total),
            resume_from=resume_from,
        )
        history = trainer.run_history
        results[str(resume_from)] = {
            "weights": weights_of(model),
            "losses": [
                list(history.get_metric_values(name))
                for name in ("train_loss_epoch", "eval_loss_epoch")
            ],
            "last rate": trainer.rates[-1],
            "updates": trainer.run_config.num_update_steps_per_epoch,
            "batch": trainer.run_config.train_total_batch_size,
        }
    trainer.evaluate(build_data(7), per_device_batch_size=per_device)
    results["evaluated"] = history.get_latest_metric("evaluation_loss")
    gathered = trainer.gather(torch.arange(rank + 1), padding_value=-1)
    trainer.save_checkpoint(folder / "checkpoint")
    assert max(trainer.sizes) == per_device
    assert trainer.run_config.num_processes == num_processes
    return results | {"gathered": gathered.tolist()}


@pytest.mark.parametrize("world", [2, 3])
def test_the_lifecycle_interface_trains_as_one_process_with_batches_of_all(
    shared: RunRanks, world: int, tmp_path: Path
) -> None:
    alone = lifecycle(0, 4 * world, tmp_path / "one", 1)
    together = shared(lifecycle, world, 4, tmp_path / "several", world)
    alone[str(tmp_path / "several" / "epoch_1")] = alone.pop(str(tmp_path / "one" / "epoch_1"))
    del alone["gathered"]
    for results in together:
        assert results.pop("gathered") == [
            value for rank in range(world) for value in range(rank + 1)
        ]
        assert_same({name: results[name] for name in alone}, alone)
        # the cosine covers its whole range
        assert results["None"]["last rate"] == pytest.approx(0.0, abs=1e-12)


def norm_and_stop(rank: int) -> dict[str, Any]:
    """Batch norm of all processes; and a loss that is not a number on one process ends the run on
    all."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    trainer = Trainer(
        model,
        nn.MSELoss(),
        torch.optim.SGD(model.parameters(), 0.1),
        [ConvertSyncBatchNormCallback],
    )
    size = 12 // trainer._runtime.world
    trainer.train(build_data(26), num_epochs=2, per_device_batch_size=size)
    stopped = build_model()
    before = weights_of(stopped)
    second = Trainer(
        stopped, nn.MSELoss(), torch.optim.SGD(stopped.parameters(), 0.1), [TerminateOnNaNCallback]
    )
    with pytest.raises(NonFiniteLossError):
        second.train(poisoned(12, at=0), num_epochs=3, per_device_batch_size=size)
    return {
        "state": weights_of(model),
        "is as before": all(map(torch.equal, before, weights_of(stopped))),
        "epochs": second.run_history.current_epoch,
    }


def test_batch_norm_and_the_end_on_nan_are_of_all_processes(shared: RunRanks) -> None:
    alone = norm_and_stop(0)
    assert alone["is as before"]
    for results in shared(norm_and_stop, 3):
        assert_same(results, alone)


def simply(rank: int, folder: Path) -> dict[str, Any]:
    """Three epochs, and the last of them again from the checkpoint of the second."""
    data, evaluation = build_data(29), build_data(5)
    results: dict[str, Any] = {}
    for path in (None, folder / "checkpoint_epoch_2"):
        model = build_model()
        torch.manual_seed(4)
        trainer = simple.Trainer(model, torch.optim.Adam(model.parameters(), 1e-2), nn.MSELoss())
        loaders = (DataLoader(data, 8, shuffle=True), DataLoader(evaluation, 8))
        if path is None:
            history = trainer.train(loaders[0], 3, loaders[1], save_dir=folder)
        else:
            trainer.load_checkpoint(path)
            history = trainer.train(loaders[0], 1, loaders[1])
        results["whole" if path is None else "continued"] = {
            "weights": weights_of(model),
            "last": last_of(history),
        }
    return results


def last_of(history: dict[str, list[float]]) -> dict[str, float]:
    return {name: values[-1] for name, values in history.items()}


def test_the_simple_interface_trains_and_goes_on_as_one_process(
    shared: RunRanks, tmp_path: Path
) -> None:
    alone = simply(0, tmp_path / "one")
    assert_same(alone["continued"], alone["whole"])
    for results in shared(simply, 2, tmp_path / "two"):
        assert_same(results, alone)


def share(rank: int) -> list[Any]:
    """Two trainers one after the other with the same sharded model."""
    from loopwright import DistributedRuntime
    from loopwright import Trainer as Core

    runtime, model = DistributedRuntime("fsdp"), build_model()
    for _ in range(2):
        trainer = Core(
            model,
            lambda p: torch.optim.SGD(p, 0.1),
            nn.MSELoss(),
            runtime=runtime,
            progress="silent",
        )
        trainer.train(TensorDataset(*build_data(16).tensors), num_epochs=1, batch_size=8)
    return weights_of(model)


def test_a_second_trainer_goes_on_with_a_model_that_the_first_has_sharded(shared: RunRanks) -> None:
    model = build_model()
    for _ in range(2):
        from loopwright import Trainer as Core

        trainer = Core(
            model, lambda p: torch.optim.SGD(p, 0.1), nn.MSELoss(), runtime="cpu", progress="silent"
        )
        trainer.train(TensorDataset(*build_data(16).tensors), num_epochs=1, batch_size=8)
    for weights in shared(share, 2):
        assert_same(weights, weights_of(model))


def train_in_buckets(rank: int, size: int, bucket_bytes: int | None = 1) -> dict[str, Any]:
    """Both interfaces that have phases of their own, with a bucket for every parameter.

    The last batch is a single sample, so that the gradients of all processes but one are those of a
    stand-in; and each step of the other interface has two backward passes.
    """
    if bucket_bytes is not None:
        original = distributed.Averaging
        distributed.Averaging = lambda *args, **options: original(
            *args, **options | {"max_bytes": bucket_bytes}
        )
    model = build_model()
    trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    trainer.train(build_data(25), num_epochs=2, per_device_batch_size=size)
    averaging = getattr(trainer._runtime, "averaging", None)
    if averaging is not None:
        assert len(averaging.sent) == 4
    twice = Twice(DreamTrainerConfig(n_epochs=2, gradient_clip_val=0.3, progress="silent"))
    twice.fit()
    return {"stages": weights_of(model), "twice": weights_of(twice.model)}


class Twice(DreamTrainer):
    """Two losses a step."""

    def configure_models(self) -> None:
        self.model = build_model()

    def configure_optimizers(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)

    def configure_dataloaders(self) -> Any:
        return DataLoader(build_data(25), batch_size=8, shuffle=True), None

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        outputs = self.model(batch[0])
        loss = nn.functional.mse_loss(outputs, batch[1])
        self.backward(loss, retain_graph=True)
        self.backward(outputs.square().mean())
        return {"loss": loss.detach()}


def test_interfaces_train_as_one_process_when_gradients_travel_during_backward() -> None:
    alone = train_in_buckets(0, 12, None)
    for results in run_ranks(train_in_buckets, 3, 4):
        assert_same(results, alone)

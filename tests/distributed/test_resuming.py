"""A run on several processes goes on exactly where it was, also on another number of them or under
another strategy."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchmetrics.regression import MeanAbsoluteError

from loopwright import Callback, Mesh, Schedule, StepResult, Trainer
from loopwright.callbacks import EMA, BestModel, Checkpoints, TorchMetrics
from tests.distributed.ranks import run_ranks, start_ranks
from tests.distributed.scenarios import assert_same, build_data, weights_of, whole


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples with randomness of their own."""

    def __init__(self) -> None:
        self.x, self.y = build_data(29).tensors

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + 0.1 * torch.randn(6, dtype=torch.float64), self.y[index]


def train(
    rank: int,
    runtime: Any,
    folder: Path,
    num_updates: int = 10,
    *,
    kill: tuple[int, int] | None = None,
    dropout: float = 0.0,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Train with noisy data, a schedule, averages and metrics; optionally one rank kills itself
    after some update."""

    class Fragile(Trainer):
        def on_update_end(self) -> None:
            if kill == (rank, self.progress.update):
                os.kill(os.getpid(), signal.SIGKILL)

    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Dropout(dropout), nn.Linear(9, 2)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    ema = EMA(0.9)
    metric = TorchMetrics(MeanAbsoluteError().set_dtype(torch.float64), on="train")
    trainer = Fragile(
        model,
        optimizer,
        nn.MSELoss(),
        scheduler=Schedule(
            lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9), every="update"
        ),
        callbacks=[
            ema,
            metric,
            Checkpoints(every_updates=3, every_epochs=None, keep=3),
            *callbacks,
        ],
        runtime=runtime,
        run_dir=folder,
        accumulate=2,
        progress="silent",
    )
    history = trainer.train(
        Noisy(), num_updates=num_updates, eval_data=build_data(13), batch_size=4
    )
    return {
        "weights": weights_of(model),
        "moments": [whole(state["exp_avg_sq"]) for state in optimizer.state.values()],
        "averages": [whole(value) for value in ema.state["model"].values()],
        "rates": [group["lr"] for group in optimizer.param_groups],
        "epochs": history.epochs,
        "steps": list(history.steps["loss"]),
        "sample": trainer.progress.sample,
        **(
            {"random": trainer.run.generators.state()["torch"]} if dropout else {}
        ),  # each process has its own
    }


def kill_one(rank: int, runtime: str, folder: Path, kill: tuple[int, int] | None) -> dict[str, Any]:
    return train(rank, runtime, folder, kill=kill, dropout=0.2)


def assert_identical(first: Any, second: Any, place: str = "") -> None:
    """Nested numbers and tensors, to the last bit."""
    if isinstance(first, Tensor):
        assert torch.equal(first, second), place
    elif isinstance(first, dict):
        assert first.keys() == second.keys(), place
        for name, value in first.items():
            assert_identical(value, second[name], f"{place}/{name}")
    elif isinstance(first, list):
        assert len(first) == len(second), place
        for at, value in enumerate(first):
            assert_identical(value, second[at], f"{place}/{at}")
    else:
        assert first == second, place


@pytest.mark.parametrize(("world", "runtime"), [(2, "fsdp"), (4, "ddp")])
def test_a_run_that_lost_a_rank_in_an_epoch_ends_as_one_that_did_not(
    world: int, runtime: str, tmp_path: Path
) -> None:
    """Killed after update 7, resumed from update 6 in the middle of an epoch of four."""
    expected = run_ranks(kill_one, world, runtime, tmp_path / "whole", None)
    ended = start_ranks(kill_one, world, runtime, tmp_path / "killed", (world - 1, 7))
    assert ended[world - 1].code == -signal.SIGKILL
    assert all(rank.code != 0 for rank in ended)
    assert sorted(os.listdir(tmp_path / "killed" / "checkpoints"))[-1] == "update-00000006"
    resumed = run_ranks(kill_one, world, runtime, tmp_path / "killed", None)
    for first, second in zip(expected, resumed, strict=True):
        assert_identical(first, second)


LEGS = [(2, "ddp", 3), (4, Mesh(replicate=2, shard=2), 5), (1, "cpu", 7), (3, "fsdp", 10)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return train(0, "cpu", tmp_path_factory.mktemp("run"))


def test_a_run_goes_on_on_other_numbers_of_processes_and_under_other_strategies(
    uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    """Weights, moments, averages, rates, history, metrics and the order of samples are those of one
    process."""
    results: list[Any] = []
    for world, runtime, num_updates in LEGS:
        if world == 1:
            results = [train(0, runtime, tmp_path / "run", num_updates)]
        else:
            results = run_ranks(train, world, runtime, tmp_path / "run", num_updates)
    for ours in results:
        assert_same(ours, uninterrupted)


def save_and_load(rank: int, runtime: str, folder: Path) -> list[Any]:
    """Two updates, a file, two more; and the same two more from the file."""
    results: list[Any] = []
    data = build_data()
    for is_loaded in (False, True):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.3), nn.Linear(9, 2)).double()
        trainer = Trainer(
            model,
            torch.optim.Adam(model.parameters(), 1e-2),
            nn.MSELoss(),
            runtime=runtime,
            progress="silent",
        )
        if is_loaded:
            trainer.load(folder / "saved")
        else:
            trainer.train(data, num_updates=2, batch_size=8)
            trainer.save(folder / "saved")
            trainer.export(folder / "weights.safetensors")
            results.append(dict(zip(model.state_dict(), weights_of(model), strict=True)))
        trainer.train(data, num_updates=2, batch_size=8)
        results.append(weights_of(model))
    return results


@pytest.mark.parametrize("runtime", ["ddp", "fsdp"])
def test_a_saved_trainer_is_loaded_by_all_processes_and_goes_on_exactly(
    runtime: str, tmp_path: Path
) -> None:
    for exported, expected, loaded in run_ranks(save_and_load, 2, runtime, tmp_path):
        assert_identical(expected, loaded)
        assert_identical(dict(load_file(tmp_path / "weights.safetensors")), exported)


class Scored(Trainer):
    """Best in the second of three epochs."""

    def eval_step(self, batch: Any) -> StepResult:
        return StepResult(metrics={"score": -abs(self.progress.epoch - 1.0)})

    def on_epoch_end(self, metrics: Any) -> None:
        self.seen = getattr(self, "seen", [])
        self.seen.append(weights_of(self.model))


def keep_best(rank: int, runtime: str, folder: Path) -> list[tuple[bool, bool]]:
    """For memory and files: whether the weights in the end are those of the best epoch, and not of
    the last."""
    results = []
    for run_dir in (None, folder / "run"):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2)).double()
        trainer = Scored(
            model,
            torch.optim.Adam(model.parameters(), 1e-2),
            nn.MSELoss(),
            runtime=runtime,
            run_dir=run_dir,
            callbacks=[BestModel("eval_score", restore=True)],
            progress="silent",
        )
        trainer.train(build_data(), num_epochs=3, eval_data=build_data(5), batch_size=8)
        final = weights_of(model)
        results.append(tuple(all(map(torch.equal, final, trainer.seen[epoch])) for epoch in (1, 2)))
    return results


@pytest.mark.parametrize("runtime", ["ddp", "fsdp"])
def test_the_best_model_comes_back_on_all_processes(runtime: str, tmp_path: Path) -> None:
    assert run_ranks(keep_best, 2, runtime, tmp_path) == [[(True, False)] * 2] * 2


def save_by_own_clock(rank: int, folder: Path) -> int:
    """The first process's clock says that time has passed at every look, the second one's that none
    has."""
    from loopwright.callbacks import checkpoints

    seconds = [0.0]

    def now() -> float:
        seconds[0] += 10.0 if rank == 0 else 0.0
        return seconds[0]

    checkpoints.monotonic = now  # type: ignore[assignment]
    torch.manual_seed(5)
    model = nn.Linear(6, 2).double()
    callbacks = [Checkpoints(keep=9), BestModel()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    trainer = Trainer(
        model,
        optimizer,
        nn.MSELoss(),
        callbacks=callbacks,
        runtime="fsdp",
        run_dir=folder,
        progress="silent",
    )
    trainer.train(build_data(8), 3, eval_data=build_data(4), batch_size=8)
    return len(trainer.history)


def test_where_resume_points_have_a_floor_the_clock_of_the_first_process_decides_for_all(
    tmp_path: Path,
) -> None:
    assert run_ranks(save_by_own_clock, 2, tmp_path, limit=60.0) == [3, 3]
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [f"update-0000000{n}" for n in (1, 2, 3)]
    assert sorted(os.listdir(tmp_path / "kept")) == ["update-00000003"]

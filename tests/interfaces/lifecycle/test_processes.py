"""The interface on several real processes: gathering, and stages of the user's own."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.data import Dataset, TensorDataset
from torchmetrics import MeanMetric

from loopwright import ConfigurationError, NonFiniteLossError
from loopwright.interfaces.lifecycle import TerminateOnNaNCallback, Trainer, TrainerCallback
from loopwright.interfaces.lifecycle.utils import (
    local_process_zero_first,
    local_process_zero_only,
    world_process_zero_only,
)

from ...distributed.ranks import run_ranks
from ...distributed.scenarios import assert_same, build_data, build_model, poisoned, weights_of
from .stages import (
    STAGES,
    accelerator_clip,
    published_eval_epoch,
    published_train_epoch,
    replaced,
    torch_backward,
    torch_clip,
    torch_step,
)

SIZES = (17, 33, 1, 2, 16)


def gathered(rank: int) -> str:
    """What a process prints; they meet before there is a trainer."""
    dist.init_process_group("gloo")
    trainer = Trainer(nn.Linear(1, 1), nn.MSELoss(), None, callbacks=())
    rows = torch.full((1 + rank, 2), float(rank))
    with redirect_stdout(StringIO()) as printed:
        trainer.print(trainer.gather(rows).tolist())
        trainer.print(trainer.gather(rows, padding_value=-1).tolist())
        trainer.print(trainer.gather(torch.tensor(rank)).tolist())
        trainer.print(trainer.gather({"a": [torch.tensor([rank])], "b": (rows[:, 0],)}))
    dist.destroy_process_group()
    return printed.getvalue()


def test_gather_puts_the_rows_of_all_processes_together() -> None:
    rows = "[[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]"
    nested = "{'a': [tensor([0, 1])], 'b': (tensor([0., 1., 1.]),)}"
    assert run_ranks(gathered, 2) == [f"{rows}\n{rows}\n[0, 1]\n{nested}\n", ""]


class Gathers(Trainer):
    """Gathers what it sees in every evaluation step, in nested containers, and counts samples with
    a metric."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: list[Tensor] = []
        self.alone: list[Tensor] = []
        self.metric = MeanMetric(sync_on_compute=False)
        self.gathers = True

    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        self.metric.update(batch[0][:, 0])
        self.alone.append(batch[0][:, 0])
        if self.gathers:
            whole = self.gather({"inputs": [batch[0]], "loss": output["loss"]}, padding_value=-1)
            self.seen.append(whole["inputs"][0][:, 0])
        return output


class GathersToo(TrainerCallback):
    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def on_eval_step_end(
        self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any
    ) -> None:
        self.seen.append(trainer.gather(batch[0][:, 0]))

    def on_eval_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self.seen.append(trainer.gather(torch.empty(0)))


def evaluate_all(rank: int, kind: type[Trainer]) -> list[dict[str, Any]]:
    results = []
    for size in SIZES:
        callback, data = GathersToo(), build_data(size)
        trainer = kind(build_model(), nn.MSELoss(), None, callbacks=[callback])
        trainer.evaluate(data, per_device_batch_size=8)
        results.append(
            {
                "seen": torch.cat(trainer.seen),  # type: ignore[attr-defined]
                "by callback": torch.cat(callback.seen),
                "loss": trainer.run_history.get_latest_metric("evaluation_loss"),
                "counted": float(trainer.gather(trainer.metric.weight).sum()),  # type: ignore[attr-defined]
            }
        )
    return results


class GathersInALoop(Gathers):
    _run_eval_epoch = published_eval_epoch  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [Gathers, GathersInALoop])
@pytest.mark.filterwarnings("ignore")
def test_gathering_in_evaluation_gives_every_sample_once_whatever_their_number(
    kind: type[Trainer],
) -> None:
    for results in run_ranks(evaluate_all, 2, kind):
        for size, result in zip(SIZES, results, strict=True):
            inputs, targets = build_data(size).tensors
            assert torch.equal(result["seen"], inputs[:, 0])
            assert torch.equal(result["by callback"], inputs[:, 0])
            with torch.no_grad():
                expected = nn.functional.mse_loss(build_model()(inputs), targets).item()
            assert result["loss"] == pytest.approx(expected)
            assert result["counted"] == size


def evaluate_alone(rank: int) -> list[int]:
    counts = []
    for size in SIZES:
        trainer = Gathers(build_model(), nn.MSELoss(), None, callbacks=())
        trainer.gathers = False
        trainer.evaluate(build_data(size), per_device_batch_size=8)
        rows = sum(map(len, trainer.alone))
        counts.append(int(trainer.gather(torch.tensor(rows)).sum()))
    return counts


@pytest.mark.filterwarnings("ignore")
def test_what_is_collected_without_gathering_holds_no_sample_twice() -> None:
    assert run_ranks(evaluate_alone, 2) == [list(SIZES), list(SIZES)]


class OnlyTheFirst(Gathers):
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        self.gathers = self.run_config.is_world_process_zero
        return super().calculate_eval_batch_loss(batch)


class DifferentThings(Gathers):
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        self.gather(batch[0] if self.run_config.is_world_process_zero else [batch[0]])
        raise AssertionError("not reached")


def gather_wrongly(rank: int, kind: type[Trainer], size: int) -> str:
    trainer = kind(build_model(), nn.MSELoss(), None, callbacks=())
    try:
        trainer.evaluate(build_data(size), per_device_batch_size=8)
    except ConfigurationError as error:
        return str(error)
    return "nothing was said"


@pytest.mark.parametrize("size", [17, 16])
def test_gathering_on_one_process_only_is_an_error_on_all(size: int) -> None:
    first, second = run_ranks(gather_wrongly, 2, OnlyTheFirst, size)
    assert first == second
    assert "process 0 called gather" in first
    assert "[gather-on-some-processes]" in first


def test_gathering_different_things_is_an_error_on_all() -> None:
    first, second = run_ranks(gather_wrongly, 2, DifferentThings, 16)
    assert first == second
    assert "process 1 called gather with ['Tensor']" in first


# Stages of the user's own


class Samples(Dataset[Any]):
    def __init__(self, size: int) -> None:
        self.data: TensorDataset = build_data(size)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index]


ON_PROCESSES = {
    "plain stages": {
        "backward_step": torch_backward,
        "optimizer_step": torch_step,
        "_clip_gradients": torch_clip,
    },
    "accelerator": {"_clip_gradients": accelerator_clip},
    "published epoch and run": STAGES["published epoch and run"],
    "published epoch, plain stages": {
        "_run_train_epoch": published_train_epoch,
        "backward_step": torch_backward,
        "optimizer_step": torch_step,
    },
}


def train_replaced(rank: int, per_device: int, name: str) -> list[Any]:
    torch.manual_seed(20)
    model = build_model()
    kind = replaced(**ON_PROCESSES[name])
    trainer = kind(
        model, nn.MSELoss(), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), callbacks=()
    )
    options = {"gradient_accumulation_steps": 2, "gradient_clip_value": 0.05}
    trainer.train(Samples(17), num_epochs=2, per_device_batch_size=per_device, **options)
    return [weights_of(model), list(trainer.run_history.get_metric_values("train_loss_epoch"))]


@pytest.mark.parametrize("name", ON_PROCESSES)
def test_replaced_stages_train_on_several_processes_as_on_one(name: str) -> None:
    alone = train_replaced(0, 8, name)
    for together in run_ranks(train_replaced, 2, 4, name):
        assert_same(together, alone)


def train_plainly(rank: int, size: int) -> list[Any]:
    """A loop of nothing but torch: batches are averaged over processes, and a stand-in counts
    nothing."""
    torch.manual_seed(20)
    model = build_model()

    def loop(self: Any, train_dl: Any) -> None:
        for inputs, targets in train_dl:
            self.optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            self.optimizer.step()

    kind = replaced(_run_train_epoch=loop)
    trainer = kind(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), 0.1), callbacks=())
    trainer.train(Samples(size), num_epochs=2, per_device_batch_size=4)
    return weights_of(model)


@pytest.mark.parametrize("size", [16, 17])
def test_a_loop_of_plain_torch_keeps_the_processes_alike(size: int) -> None:
    first, second = run_ranks(train_plainly, 2, size)
    assert all(map(torch.equal, first, second))
    assert not all(map(torch.equal, first, weights_of(build_model())))


def stop_on_nan(rank: int) -> list[bool]:
    model = build_model()
    before = weights_of(model)
    kind = replaced(backward_step=torch_backward)
    trainer = kind(
        model,
        nn.MSELoss(),
        torch.optim.SGD(model.parameters(), 0.1),
        callbacks=[TerminateOnNaNCallback],
    )
    with pytest.raises(NonFiniteLossError):
        trainer.train(poisoned(12, at=0), num_epochs=3, per_device_batch_size=6)
    return [all(map(torch.equal, before, weights_of(model)))]


def test_a_loss_that_is_no_number_on_one_process_ends_a_plain_backward_on_all() -> None:
    assert run_ranks(stop_on_nan, 2) == [[True], [True]]


class AroundLoader:
    """As a progress bar is."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return iter(self.loader)


class Wrapping(Trainer):
    """Shows the progress of every epoch."""

    def _run_train_epoch(self, train_dl: Any) -> bool | None:
        return super()._run_train_epoch(AroundLoader(train_dl))

    def _run_eval_epoch(self, valid_dl: Any, *args: Any) -> None:
        super()._run_eval_epoch(AroundLoader(valid_dl), *args)


def wrap_loaders(rank: int, evaluates: bool) -> str:
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trainer = Wrapping(model, nn.MSELoss(), optimizer, callbacks=())
    try:
        trainer.train(build_data(16), 1, build_data(16) if evaluates else None, 4)
    except ConfigurationError as error:
        return error.code
    return str(trainer._core.progress.step)


def test_samples_of_a_loader_in_a_loader_are_not_shared_out_twice() -> None:
    assert run_ranks(wrap_loaders, 2, False) == ["2", "2"]
    assert run_ranks(wrap_loaders, 2, True) == ["loader-wrapped"] * 2


def decorated(rank: int) -> list[Any]:
    Trainer(nn.Linear(1, 1), nn.MSELoss(), None, callbacks=())
    order: list[Any] = [
        world_process_zero_only(lambda: "world")(),
        local_process_zero_only(lambda: "local")(),
    ]
    return [*order, local_process_zero_first(lambda: "all")()]


def test_decorated_functions_run_where_they_say() -> None:
    assert run_ranks(decorated, 2) == [["world", "local", "all"], [None, None, "all"]]

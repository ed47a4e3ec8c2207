"""The next batch goes to the device while the present one computes; shown by the order of events,
without a device."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from loopwright import Callback, Runtime, Trainer
from loopwright.callbacks import Rewind
from loopwright.runtime.base import CudaFeed, DeviceFeed

from ..loops import assert_same_model

NUM_SAMPLES, BATCH_SIZE = 11, 2
INPUTS = torch.arange(float(NUM_SAMPLES)).unsqueeze(1)


class Recording(Runtime):
    """The CPU as if it were a device with memory of its own; notes which batches are moved
    there."""

    def __init__(self, events: list[str]) -> None:
        super().__init__("cpu")
        self.is_host = False
        self.events = events

    def move(self, batch: Any) -> Any:
        self.events.append(f"move {name_of(batch)}")
        return [tensor.clone() for tensor in batch]


def name_of(batch: Any) -> int:
    return int(batch[0].flatten()[0].item()) // BATCH_SIZE


class Noting(Trainer):
    """Notes when a step is computed and when its result is read."""

    events: list[str]

    def train_step(self, batch: Any) -> Any:
        self.events.append(f"step {name_of(batch)}")
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.update(loss)
        return loss

    def on_train_step_end(self, batch: Any, result: Any) -> None:
        self.events.append(f"read {name_of(batch)}")


class Samples(Dataset[Any]):
    """A data set that notes which samples it gives, in this process."""

    def __init__(self, events: list[str] | None = None) -> None:
        self.events = events

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.events is None:
            return INPUTS[index], INPUTS[index] + torch.rand(1)
        if index % BATCH_SIZE == 0:
            self.events.append(f"fetch {index // BATCH_SIZE}")
        return INPUTS[index], INPUTS[index]


def in_order(data: Any, **settings: Any) -> DataLoader[Any]:
    return DataLoader(data, batch_size=BATCH_SIZE, **settings)


def build(runtime: Runtime, kind: type[Trainer] = Trainer, **settings: Any) -> Trainer:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.2), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    settings = {"progress": "silent", "seed": 4} | settings
    return kind(model, optimizer, nn.functional.mse_loss, runtime=runtime, **settings)


def events_of(
    data: Any = None, kind: type[Noting] = Noting, accumulate: int = 1, **limits: Any
) -> list[str]:
    events: list[str] = []
    trainer = build(Recording(events), kind, accumulate=accumulate)
    trainer.events = events  # type: ignore[attr-defined]
    loader = in_order(TensorDataset(INPUTS, INPUTS)) if data is None else in_order(data(events))
    trainer.train(loader, **(limits or {"num_epochs": 1}))
    return events


def ahead(last: int) -> list[str]:
    """The events of an epoch in which each batch is moved before the step before it is computed."""
    events = ["move 0"]
    for number in range(last + 1):
        events += ([f"move {number + 1}"] if number < last else []) + [
            f"step {number}",
            f"read {number}",
        ]
    return events


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_batch_is_moved_before_the_step_before_it_and_never_more_than_one_ahead(
    accumulate: int,
) -> None:
    assert events_of(accumulate=accumulate) == ahead(5)


def test_nothing_is_moved_across_the_end_of_an_epoch() -> None:
    assert events_of(num_epochs=2) == ahead(5) * 2


def test_nothing_is_moved_after_the_last_update() -> None:
    assert events_of(num_updates=3) == ahead(2)


def test_samples_of_a_data_set_in_this_process_are_not_fetched_ahead() -> None:
    events = [event for event in events_of(Samples, num_updates=3) if not event.startswith("move")]
    assert events == [
        f"{what} {number}" for number in range(3) for what in ("fetch", "step", "read")
    ]


def test_the_other_batches_of_a_window_are_moved_ahead_where_fetching_is_not() -> None:
    events = events_of(Samples, accumulate=2, num_updates=2)
    window = [
        "fetch {0}",
        "fetch {1}",
        "move {0}",
        "move {1}",
        "step {0}",
        "read {0}",
        "step {1}",
        "read {1}",
    ]
    assert events == [event.format(start, start + 1) for start in (0, 2) for event in window]


def test_what_workers_have_fetched_is_moved_ahead() -> None:
    events: list[str] = []
    trainer = build(Recording(events), Noting)
    trainer.events = events  # type: ignore[attr-defined]
    trainer.train(in_order(Samples(), num_workers=1), 1)
    assert events == ahead(5)


def test_a_prepare_batch_of_the_user_keeps_its_place() -> None:
    class Preparing(Noting):
        def prepare_batch(self, batch: Any) -> Any:
            return super().prepare_batch(batch)

    expected = [f"{what} {number}" for number in range(6) for what in ("move", "step", "read")]
    assert events_of(kind=Preparing) == expected


def test_an_evaluation_moves_its_next_batch_ahead() -> None:
    events: list[str] = []

    class Evaluating(Trainer):
        def eval_step(self, batch: Any) -> Any:
            events.append(f"eval {name_of(batch)}")
            return {"loss": self.model(batch[0]).mean()}

    build(Recording(events), Evaluating).evaluate(in_order(TensorDataset(INPUTS, INPUTS)))
    assert events == [
        "move 0",
        *(f"{what} {n + add}" for n in range(5) for what, add in (("move", 1), ("eval", 0))),
        "eval 5",
    ]


def test_a_batch_that_is_not_asked_for_next_is_dropped() -> None:
    feed = DeviceFeed(lambda value: (value, "moved"))
    first, second = [1], [2]
    feed.start(first)
    assert feed.get(second) == ([2], "moved")
    assert feed.get(first) == ([1], "moved")


# The same run with and without


DATA = {
    "tensors": lambda: DataLoader(
        TensorDataset(INPUTS, INPUTS), batch_size=BATCH_SIZE, shuffle=True
    ),
    "samples": lambda: DataLoader(Samples(), batch_size=BATCH_SIZE, shuffle=True),
    "workers": lambda: DataLoader(Samples(), batch_size=BATCH_SIZE, shuffle=True, num_workers=1),
    "batches": lambda: [(INPUTS[n : n + 2], INPUTS[n : n + 2]) for n in range(0, 10, 2)],
}


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_a_run_is_the_same_with_and_without_a_feed(data: Any) -> None:
    plain, fed = (build(runtime, accumulate=2) for runtime in (Runtime("cpu"), Recording([])))
    for trainer in (plain, fed):
        trainer.train(data(), eval_data=data(), num_samples=17)
    assert_same_model(fed.model, plain.model)
    assert fed.history.epochs == plain.history.epochs
    assert fed.progress.sample == plain.progress.sample


@pytest.mark.parametrize("data", [DATA["tensors"], DATA["workers"]], ids=["tensors", "workers"])
def test_a_run_stopped_after_any_update_goes_on_as_if_it_had_not_been(
    data: Any, tmp_path: Path
) -> None:
    whole = build(Runtime("cpu"))
    whole.train(data(), 2)
    every = 4 if isinstance(data(), DataLoader) and data().num_workers else 1
    for update in range(1, whole.progress.update, every):
        saved = tmp_path / str(update)
        first = build(Recording([]), callbacks=[StopAfter(update)])
        first.train(data(), 2)
        first.save(saved)
        second = build(Recording([]))
        second.load(saved)
        second.train(data(), num_updates=whole.progress.update - update)
        assert_same_model(second.model, whole.model)


class StopAfter(Callback):
    """A request that no limit told of before, so that a batch was moved in vain."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_update_end(self, trainer: Trainer) -> None:
        if trainer.progress.update == self.update:
            trainer.stop("enough")


def test_a_batch_that_cannot_be_fetched_fails_in_its_own_step() -> None:
    class Broken(Samples):
        def __getitem__(self, index: int) -> Any:
            if index == 4:
                raise ValueError("sample four is broken")
            return super().__getitem__(index)

    trainer = build(Recording([]))
    with pytest.raises(ValueError, match="sample four is broken"):
        trainer.train(in_order(Broken(), num_workers=1), 1)
    assert trainer.progress.update == 2


def test_a_rewind_skips_a_batch_that_was_moved_ahead() -> None:
    inputs = INPUTS.clone()
    inputs[5] = float("nan")
    models = []
    for runtime in (Runtime("cpu"), Recording([])):
        trainer = build(runtime, callbacks=[Rewind(every_updates=2)])
        trainer.train(in_order(TensorDataset(inputs, INPUTS)), 2)
        assert trainer.progress.sample == 2 * NUM_SAMPLES - 4
        models.append(trainer.model)
    assert_same_model(*models)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="streams of CUDA need a GPU")
def test_copies_on_a_stream_of_their_own_are_there_when_asked_for() -> None:
    device = torch.device("cuda")
    runtime = Runtime("cuda")
    feed = CudaFeed(runtime.move, device, pins=True)
    batches = [{"x": torch.full((1 << 20,), float(number))} for number in range(20)]
    for this, following in itertools.pairwise(batches):
        moved = feed.get(this)
        feed.start(following)
        assert torch.equal(moved["x"] * 2, this["x"].to(device) * 2)

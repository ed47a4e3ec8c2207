"""The search for the largest batch: what it tries, what it takes for too much, and that it leaves
no trace."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright import Trainer
from loopwright.checkpoint import snapshot
from loopwright.checkpoint.compare import compare_trees
from loopwright.training.state import capture
from loopwright.tuning import BatchSizeScan, Trial, find_batch_size
from loopwright.tuning.trial import SavedBytes
from tests.loops import build_linear
from tests.mistakes import raises

ERRORS = {
    "an accelerator": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    "the machine": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory"
    ),
}


class Limited(nn.Module):
    """Has room for so many samples."""

    def __init__(self, room: int, error: Exception | None = None) -> None:
        super().__init__()
        self.body, self.room = build_linear(), room
        self.error = ERRORS["an accelerator"] if error is None else error

    def forward(self, inputs):
        if len(inputs) > self.room:
            raise self.error
        return self.body(inputs)


def make_trainer(model: nn.Module, **options) -> Trainer:
    factory = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    return Trainer(model, factory, nn.functional.cross_entropy, progress="silent", **options)


@pytest.fixture
def many() -> TensorDataset:
    return TensorDataset(torch.randn(200, 6), torch.randint(3, (200,)))


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_sizes_are_doubled_until_memory_runs_out_and_then_bisected(many, error):
    scan = find_batch_size(make_trainer(Limited(21, error)), many)
    assert [trial.size for trial in scan.trials] == [1, 2, 4, 8, 16, 32, 24, 20, 22, 21]
    assert [trial.size for trial in scan.trials if not trial.fits] == [32, 24, 22]
    assert scan.largest == 21
    assert scan.bound == "memory: 22 samples do not fit"


def test_it_ends_at_the_size_of_the_data_set(points):
    scan = find_batch_size(make_trainer(build_linear()), points, start=16)
    assert [trial.size for trial in scan.trials] == [16, 32, 37]
    assert scan.bound == "the data set, which has 37 samples"


def test_nothing_fits_where_a_single_sample_does_not(many):
    scan = find_batch_size(make_trainer(Limited(0)), many)
    assert (scan.largest, scan.suggestion) == (None, None)
    assert [trial.reason for trial in scan.trials] == ["memory ran out"]


def test_on_the_host_a_size_that_would_need_too_much_is_not_tried(many, monkeypatch):
    monkeypatch.setattr("loopwright.tuning.finders.usable", lambda: 100_000)

    class Wide(nn.Module):
        seen: list[int] = []

        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 1000), nn.Tanh(), nn.Linear(1000, 3))

        def forward(self, inputs):
            self.seen.append(len(inputs))
            return self.body(inputs)

    scan = find_batch_size(make_trainer(Wide()), many)
    assert 20 <= scan.largest <= 25  # each keeps a row of 1000 numbers and a little more
    assert max(Wide.seen) == scan.largest
    assert "would need about" in next(trial.reason for trial in scan.trials if not trial.fits)


def test_every_size_that_fits_has_a_speed_and_all_batches_are_full(many):
    sizes = []

    class Watched(Trainer):
        def train_step(self, batch):
            sizes.append(len(batch[0]))
            return super().train_step(batch)

    factory = partial(torch.optim.SGD, lr=0.05)
    trainer = Watched(
        build_linear(), factory, nn.functional.cross_entropy, progress="silent", accumulate=3
    )
    scan = find_batch_size(trainer, many, start=64, max_size=128)
    assert sizes == [64] * 4 + [128] * 4
    assert all(trial.samples_per_second > 0 for trial in scan.trials)


def test_trainer_is_left_exactly_as_it_was(many):
    trainer = make_trainer(Limited(21), accumulate=2)
    trainer.train(many, num_updates=3, batch_size=8)
    before = snapshot(capture(trainer.run))
    find_batch_size(trainer, many)
    assert compare_trees(before, snapshot(capture(trainer.run))) == ()
    assert (trainer.accumulate, trainer.run.num_micro_batches) == (2, 1)


def test_an_error_that_is_not_about_memory_surfaces(many):
    with pytest.raises(RuntimeError, match="shapes"):
        find_batch_size(make_trainer(Limited(4, RuntimeError("shapes cannot be multiplied"))), many)


def test_suggestion_is_the_smallest_size_that_is_about_as_fast_as_the_fastest():
    speeds = {8: 100.0, 16: 196.0, 32: 200.0, 64: 150.0}
    scan = BatchSizeScan(tuple(Trial(size, True, speed) for size, speed in speeds.items()), "")
    assert (scan.suggestion, scan.largest) == (16, 64)
    assert scan.to_dict()["trials"][0]["samples_per_second"] == 100.0


@pytest.mark.parametrize(
    "make", [lambda data: DataLoader(data, 4), list], ids=["a loader", "a list of batches"]
)
def test_data_with_batches_of_its_own_is_refused(many, make):
    with raises("needs-data-set", "pass the data set itself"):
        find_batch_size(make_trainer(build_linear()), make(many))


@pytest.mark.parametrize("options", [{"start": 0}, {"start": 9, "max_size": 8}, {"start": 1000}])
def test_sizes_that_cannot_be_tried_are_refused(many, options):
    with raises("batch-size-range", "use 1 <= start <= max_size"):
        find_batch_size(make_trainer(build_linear()), many, **options)


def test_bytes_for_the_backward_pass_grow_with_the_batch_and_leave_out_weights():
    model = nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 1))
    totals = []
    for size in (10, 20):
        saved = SavedBytes([model])
        with saved:
            model(torch.randn(size, 6)).sum()
        totals.append(saved.total)
    # the inputs of both layers; tanh keeps what the second one gets
    assert totals == [10 * 56 * 4, 20 * 56 * 4]

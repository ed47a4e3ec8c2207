"""The first batches of an epoch, and limits on the time of a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from loopwright import Callback, DataError
from loopwright.callbacks import LimitBatches
from loopwright.callbacks.stopping import ENVIRONMENT
from loopwright.data.open import open_stream
from loopwright.data.stream import LimitedStream

from ..loops import assert_same_model, batches, build_linear
from .runs import assert_same_after_crash, build_trainer, train


def open_limited(data: Any, limit: int, batch_size: int | None = 8) -> LimitedStream:
    return LimitedStream(open_stream(data, batch_size=batch_size, seed=0, shuffle=True), limit)


def test_training_sees_the_first_batches_of_every_epoch_only(points):
    trainer = build_trainer(
        [LimitBatches(train=2)], build_linear(), optimizer=lambda p: torch.optim.SGD(p, 0.1)
    )
    train(trainer, points)
    other = build_linear()
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    for epoch in range(3):
        for _, (inputs, targets) in zip(range(2), batches(points, 8, epoch), strict=False):
            nn.functional.cross_entropy(other(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_same_model(trainer.model, other)
    assert (trainer.progress.epoch, trainer.progress.step) == (3, 6)


def test_evaluation_is_limited_apart_from_training(points):
    trainer = build_trainer([LimitBatches(eval=1)])
    first = [tuple(tensor[:8] for tensor in points.tensors)]
    assert trainer.evaluate(points, batch_size=8) == build_trainer().evaluate(first)
    assert train(trainer, points, num_epochs=1).progress.step == 5


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_position_is_continued_exactly_and_counts_what_was_taken(points, num_workers):
    def build() -> LimitedStream:
        return open_limited(
            DataLoader(points, 8, shuffle=True, num_workers=num_workers), 4, batch_size=None
        )

    stream = build()
    stream.begin(1)
    stream.take(2)
    state = stream.state_dict()
    expected = list(stream)
    again = build()
    again.load_state_dict(state)
    found = list(again)
    stream.close()
    again.close()
    assert [batch.size for batch in found] == [8, 8]
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours.value, theirs.value, strict=True))


@pytest.mark.parametrize("after_update", [1, 3, 4])
def test_a_crashed_run_of_limited_epochs_goes_on_exactly(tmp_path, points, after_update):
    def build() -> list[Callback]:
        return [LimitBatches(train=3, eval=2)]

    assert (
        assert_same_after_crash(tmp_path, points, build, after_update, num_epochs=2).progress.step
        == 6
    )


def test_the_environment_limits_both_where_no_argument_does(points, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "2")
    limits = LimitBatches()
    assert (limits.train, limits.eval) == (2, 2)
    assert train(build_trainer([LimitBatches]), points, num_epochs=1).progress.step == 2
    assert LimitBatches(train=4).eval is None


class Fetched(Dataset[Any]):
    """Remembers which samples were fetched."""

    def __init__(self, points: Any) -> None:
        self.points = points
        self.indices: list[int] = []

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> Any:
        self.indices.append(index)
        return self.points[index]


def test_no_sample_beyond_the_limit_is_fetched(points):
    data = Fetched(points)
    stream = open_limited(data, 2)
    for epoch in range(2):
        data.indices.clear()
        stream.begin(epoch)
        assert [batch.size for batch in stream.take(5)] == [8, 8]
        assert stream.take(1) == []
        assert len(data.indices) == 16


@pytest.mark.parametrize(("limit", "sizes"), [(2, (2, None)), (5, (5, 37)), (9, (5, 37))])
def test_sizes_of_an_epoch_are_right_or_unknown(points, limit, sizes):
    stream = open_limited(points, limit)
    assert (stream.num_batches, stream.num_samples) == sizes
    stream.begin(0)
    assert len(list(stream)) == sizes[0]


def test_a_position_without_a_limit_is_refused_with_one(points):
    stream = open_stream(points, batch_size=8, seed=0, shuffle=True)
    stream.begin(0)
    stream.take(1)
    with pytest.raises(DataError, match="the first batches of each epoch"):
        open_limited(points, 2).load_state_dict(stream.state_dict())

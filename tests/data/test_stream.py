"""After `load_state_dict` a stream continues exactly, and nothing before the position is
fetched."""

import pytest
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler

from loopwright.data import open_stream
from tests.data.example_data import (
    EpochBatches,
    EpochOrder,
    Named,
    Noisy,
    Numbers,
    Resumable,
    StatefulBatches,
    same,
    sizes,
    tensors,
    values,
)

KINDS = {
    "tensors": lambda: tensors(30),
    "samples": lambda: Noisy(30),
    "dictionaries": lambda: Named(30),
    "loader": lambda: DataLoader(Noisy(30), batch_size=4, shuffle=True, drop_last=True),
    "loader with workers": lambda: DataLoader(Noisy(30), batch_size=4, shuffle=True, num_workers=2),
    "loader with persistent workers": lambda: DataLoader(
        Noisy(30), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True
    ),
    "loader without batches": lambda: DataLoader(Numbers(12), batch_size=None, shuffle=True),
    "sampler": lambda: DataLoader(
        Noisy(30), batch_size=4, sampler=SubsetRandomSampler(range(5, 25))
    ),
    "sampler with epochs": lambda: DataLoader(Noisy(30), batch_size=4, sampler=EpochOrder(30)),
    "batch sampler with epochs": lambda: DataLoader(Noisy(30), batch_sampler=EpochBatches()),
    "list of batches": lambda: [torch.full((2, 1), float(number)) for number in range(8)],
    "iterable data set": lambda: Resumable(30),
    "loader of an iterable data set": lambda: DataLoader(
        Resumable(30), batch_size=4, drop_last=True
    ),
    "items of an iterable data set": lambda: DataLoader(Resumable(8), batch_size=None),
    "stateful loader": lambda: StatefulBatches(8),
}


def opened(build):
    data = build()
    batch_size = None if isinstance(data, DataLoader | list | StatefulBatches) else 4
    return open_stream(data, batch_size=batch_size, seed=6, shuffle=True)


@pytest.mark.parametrize("build", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("taken", [0, 1, 3, 99])
def test_a_resumed_stream_gives_the_rest_and_the_next_epoch(build, taken):
    stream = opened(build)
    stream.check_resumable()
    values(stream, 0)
    stream.begin(1)
    stream.take(taken)
    state = stream.state_dict()
    expected = [batch.value for batch in stream], values(stream, 2)
    stream.close()
    resumed = opened(build)
    resumed.load_state_dict(state)
    assert same([batch.value for batch in resumed], expected[0])
    assert same(values(resumed, 2), expected[1])
    resumed.close()


@pytest.mark.parametrize("build", KINDS.values(), ids=KINDS)
def test_a_stream_exhausted_when_saved_is_exhausted_when_loaded(build):
    stream = opened(build)
    expected = values(stream, 0), values(stream, 1)
    again = opened(build)
    values(again, 0)
    resumed = opened(build)
    resumed.load_state_dict(again.state_dict())
    assert resumed.take(1) == []
    assert same(values(resumed, 1), expected[1])
    for each in (stream, again, resumed):
        each.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_may_be_resumed_with_another_number_of_workers(workers):
    def build(count):
        return open_stream(
            DataLoader(Noisy(30), batch_size=4, shuffle=True, num_workers=count),
            seed=6,
            shuffle=True,
        )

    stream = build(2 - workers)
    stream.begin(1)
    stream.take(3)
    resumed = build(workers)
    resumed.load_state_dict(stream.state_dict())
    assert same([batch.value for batch in resumed], [batch.value for batch in stream])


def test_nothing_before_the_position_is_fetched():
    stream = open_stream(Numbers(1000), batch_size=10, seed=6, shuffle=True)
    stream.begin(2)
    stream.take(70)
    data = Numbers(1000)
    resumed = open_stream(data, batch_size=10, seed=6, shuffle=True)
    resumed.load_state_dict(stream.state_dict())
    assert data.asked == []
    resumed.take(1)
    assert len(data.asked) == 10


def test_an_iterable_data_set_is_not_read_ahead():
    data = Resumable(30)
    stream = open_stream(data, batch_size=4, seed=6, shuffle=True)
    stream.begin(0)
    stream.take(2)
    assert len(data.asked) == 8


def test_the_position_counts_samples():
    stream = open_stream(tensors(30), batch_size=4, seed=6, shuffle=True)
    stream.begin(5)
    stream.take(3)
    assert (stream.state_dict()["epoch"], stream.state_dict()["position"]) == (5, 12)


INDEXED = {"tensors": tensors(30), "samples": Numbers(30), "items": Resumable(30)}


@pytest.mark.parametrize("data", INDEXED.values(), ids=INDEXED)
def test_a_limit_on_samples_cuts_the_last_batch(data):
    stream = open_stream(data, batch_size=8, seed=6, shuffle=True)
    stream.begin(0)
    assert sizes(stream.take(2, max_samples=20)) == [8, 8]
    assert sizes(stream.take(2, max_samples=4)) == [4]
    assert sizes(stream.take(2, max_samples=0)) == []
    assert stream.state_dict()["position"] == 20
    assert sizes(stream.take(9)) == [4, 6]


@pytest.mark.parametrize("data", [[torch.ones(4)] * 5, StatefulBatches(5)], ids=["list", "loader"])
def test_ready_batches_are_given_whole_up_to_the_one_that_reaches_a_limit(data):
    stream = open_stream(data, seed=6, shuffle=True)
    size = sizes(stream.take(1))[0]
    assert sizes(stream.take(4, max_samples=size + 1)) == [size, size]


def test_a_batch_size_may_change_where_a_run_is_resumed():
    stream = open_stream(tensors(30), batch_size=4, seed=6, shuffle=True)
    stream.begin(0)
    stream.take(2)
    resumed = open_stream(tensors(30), batch_size=8, seed=6, shuffle=True)
    resumed.load_state_dict(stream.state_dict())
    taken = torch.cat([batch.value[1] for batch in resumed])
    assert torch.equal(taken, torch.cat([batch.value[1] for batch in stream]))

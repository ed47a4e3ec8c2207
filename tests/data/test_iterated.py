"""Iterable data sets, stateful loaders and iterables of batches."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from loopwright.data import open_stream, rng_state
from tests.data.example_data import (
    Counting,
    Resumable,
    StatefulBatches,
    same,
    sizes,
    values,
)


class Plain(IterableDataset):
    """Draws nothing, so that it can be compared with a plain loader."""

    def __iter__(self):
        return iter([(index, torch.full((2,), float(index))) for index in range(10)])


class Sized(Plain):
    def __len__(self):
        return 10


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_of_an_iterable_data_set_gives_its_batches(drop_last, workers):
    loader = DataLoader(Plain(), batch_size=4, drop_last=drop_last, num_workers=workers)
    assert same(values(open_stream(loader, seed=0, shuffle=True)), list(loader))


@pytest.mark.parametrize("collate", [None, list])
def test_items_of_an_iterable_data_set_may_be_batches(collate):
    loader = DataLoader(Plain(), batch_size=None, collate_fn=collate)
    assert same(values(open_stream(loader, seed=0, shuffle=True)), list(loader))


def test_an_iterable_data_set_is_cut_into_batches():
    stream = open_stream(Plain(), batch_size=4, seed=0, shuffle=True)
    stream.begin(0)
    assert sizes(stream.take(9)) == [4, 4, 2]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_length_of_an_iterable_data_set_is_used_where_it_has_one(workers):
    known = open_stream(
        DataLoader(Sized(), batch_size=4, num_workers=workers), seed=0, shuffle=False
    )
    unknown = open_stream(
        DataLoader(Plain(), batch_size=4, num_workers=workers), seed=0, shuffle=False
    )
    assert (known.num_batches, unknown.num_batches) == (3, None)


def test_an_iterable_data_set_draws_from_its_epoch_and_place():
    stream = open_stream(Counting(10), batch_size=4, seed=0, shuffle=False)
    first = values(stream, 0)
    torch.manual_seed(99)
    assert same(values(stream, 0), first)
    assert not same(values(stream, 1), first)


def test_an_iterable_data_set_draws_the_same_in_batches_of_another_size():
    streams = [open_stream(Counting(12), batch_size=size, seed=0, shuffle=False) for size in (3, 4)]
    first, second = (torch.cat([batch[1] for batch in values(stream)]) for stream in streams)
    assert torch.equal(first, second)


@pytest.mark.parametrize("data", [Counting(10), StatefulBatches(4)], ids=["data set", "loader"])
def test_reading_does_not_disturb_the_generators_of_training(data):
    before = rng_state()["torch"]
    values(open_stream(data, seed=0, shuffle=False))
    assert torch.equal(before, rng_state()["torch"])


def test_workers_of_an_iterable_data_set_are_seeded_by_the_epoch():
    stream = open_stream(
        DataLoader(Counting(8), batch_size=4, num_workers=1), seed=0, shuffle=False
    )
    before = rng_state()["torch"]
    first = values(stream, 0)
    assert same(values(stream, 0), first)
    assert not same(values(stream, 1), first)
    assert torch.equal(before, rng_state()["torch"])


def test_set_epoch_of_an_iterable_data_set_is_called():
    stream = open_stream(Resumable(20), batch_size=20, seed=0, shuffle=False)
    first, second = values(stream, 0)[0][0], values(stream, 1)[0][0]
    assert first.tolist() != second.tolist()
    assert sorted(first.tolist()) == sorted(second.tolist())


def test_a_short_last_batch_is_dropped_on_request():
    loader = DataLoader(Counting(10), batch_size=4, drop_last=True)
    stream = open_stream(loader, seed=0, shuffle=False)
    stream.begin(0)
    assert sizes(stream.take(9)) == [4, 4]


def test_any_iterable_of_batches_is_iterated_in_each_epoch():
    class Repeated:
        def __iter__(self):
            return iter([torch.ones(2), torch.zeros(3)])

    stream = open_stream(Repeated(), seed=0, shuffle=False)
    assert (len(values(stream, 0)), len(values(stream, 1))) == (2, 2)

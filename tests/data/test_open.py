"""Streams over every kind of data give the batches of a plain DataLoader; unusable data is refused
with advice."""

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
)

from loopwright.data import batch_size_of, open_stream
from tests.data.example_data import (
    Counting,
    EpochOrder,
    Named,
    Numbers,
    OwnIteration,
    RaggedBatches,
    RandomOrder,
    Resumable,
    StatefulBatches,
    same,
    sizes,
    tensors,
    values,
)
from tests.mistakes import raises

DATASETS = {
    "tensors": tensors(50),
    "tuples": Numbers(50),
    "dictionaries": Named(50),
    "subset of tensors": Subset(tensors(50), [4, 9, 1, -1, 30, 2, 2]),
    "subset of samples": Subset(Numbers(50), [4, 9, 1, 30]),
    "concatenation": ConcatDataset([tensors(20), tensors(13)]),
    "stack": StackDataset(image=Numbers(50), label=Named(50)),
}


def plain(loader):
    return list(loader)


@pytest.mark.parametrize("data", DATASETS.values(), ids=DATASETS)
@pytest.mark.parametrize("batch_size", [1, 8, 25, 64])
def test_a_data_set_gives_the_batches_of_a_loader(data, batch_size):
    stream = open_stream(data, batch_size=batch_size, seed=0, shuffle=False)
    assert same(values(stream), plain(DataLoader(data, batch_size=batch_size)))


@pytest.mark.parametrize("data", DATASETS.values(), ids=DATASETS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_taken_over_loader_gives_its_batches(data, drop_last):
    loader = DataLoader(data, batch_size=6, drop_last=drop_last)
    stream = open_stream(loader, seed=0, shuffle=True)
    expected = plain(loader)
    assert (stream.num_batches, len(values(stream))) == (len(expected), len(expected))
    assert same(values(stream), expected)


LOADERS = {
    "no batches": DataLoader(Numbers(7), batch_size=None),
    "no batches of tensors": DataLoader(tensors(7), batch_size=None),
    "lists of indices as items": DataLoader(
        tensors(7), batch_size=None, sampler=BatchSampler(SequentialSampler(range(7)), 3, False)
    ),
    "own collate function": DataLoader(Numbers(9), batch_size=4, collate_fn=list),
    "own collate function, no batches": DataLoader(Numbers(9), batch_size=None, collate_fn=list),
    "fixed order": DataLoader(Numbers(9), batch_size=4, sampler=[5, 3, 1]),
    "fixed batches": DataLoader(tensors(9), batch_sampler=[[5, 3], [1], [0, 8, 2]]),
    "batch sampler": DataLoader(Numbers(10), batch_sampler=RaggedBatches()),
    "sampler with epochs": DataLoader(Numbers(10), batch_size=4, sampler=EpochOrder(10)),
    "two workers": DataLoader(Named(10), batch_size=4, num_workers=2),
    "two workers, tensors": DataLoader(tensors(10), batch_size=4, num_workers=2),
    "a worker, no batches": DataLoader(Numbers(5), batch_size=None, num_workers=1),
    "iteration of its own": OwnIteration(Numbers(10), batch_size=4),
}


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_every_kind_of_loader_gives_what_it_gives_without_us(loader):
    stream = open_stream(loader, seed=0, shuffle=True)
    assert same(values(stream), plain(loader))


def test_a_batch_size_of_32_is_assumed():
    assert sizes(open_stream(Numbers(70), seed=0, shuffle=False).take(9)) == [32, 32, 6]


def test_a_list_of_batches_is_given_out_as_it_is():
    batches = [torch.ones(2), (torch.ones(3, 1), "three"), {"x": [torch.ones(4)]}]
    stream = open_stream(batches, seed=0, shuffle=True)
    taken = stream.take(5)
    assert all(batch.value is given for batch, given in zip(taken, batches, strict=True))
    assert (sizes(taken), stream.num_batches, stream.num_samples) == ([2, 3, 4], 3, 9)


def test_a_list_with_a_batch_size_is_a_data_set():
    stream = open_stream([1.0, 2.0, 3.0], batch_size=2, seed=0, shuffle=False)
    assert same(values(stream), [torch.tensor([1.0, 2.0]).double(), torch.tensor([3.0]).double()])


def test_a_generator_gives_nothing_in_its_second_epoch():
    stream = open_stream((torch.ones(2) for _ in range(3)), seed=0, shuffle=False)
    assert (len(values(stream, 0)), len(values(stream, 1))) == (3, 0)


def test_an_object_with_length_and_items_is_a_data_set():
    class Squares:
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return index**2

    stream = open_stream(Squares(), batch_size=None, seed=0, shuffle=False)
    assert same(values(stream), [torch.tensor([0, 1, 4, 9, 16])])


@pytest.mark.parametrize(
    "data",
    [
        [],
        TensorDataset(torch.empty(0, 2)),
        Numbers(0),
        DataLoader(Numbers(0)),
        DataLoader(Numbers(3), 4, drop_last=True),
    ],
    ids=["list", "tensors", "samples", "loader", "dropped"],
)
def test_empty_data_is_visible_and_gives_nothing(data):
    stream = open_stream(data, seed=0, shuffle=False)
    assert stream.num_batches == 0
    assert stream.take(1) == []


def test_a_data_set_that_grows_is_seen_at_the_next_epoch():
    data = Numbers(4)
    stream = open_stream(data, batch_size=2, seed=0, shuffle=True)
    values(stream)
    data.length = 10
    assert len(values(stream, 1)) == 5
    assert stream.num_batches == 5


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.ones(3, 2), 3),
        (("text", {"a": [torch.ones(4)]}), 4),
        (torch.tensor(1.0), 1),
        ([], 1),
        ({"a": 2}, 1),
        ("text", 1),
    ],
)
def test_the_size_of_a_ready_batch_is_that_of_its_first_tensor(batch, size):
    assert batch_size_of(batch) == size


def opened(data, **options):
    return open_stream(data, seed=0, shuffle=False, **options)


@pytest.mark.parametrize("data", [None, 3, "text"], ids=["none", "number", "text"])
def test_data_that_cannot_be_iterated_is_refused_with_what_is_accepted(data):
    with raises(
        "not-iterable", "pass a Dataset, a DataLoader, inputs and targets as `(x, y)`, or a list"
    ):
        opened(data)


@pytest.mark.parametrize(
    "data",
    [DataLoader(Numbers()), StatefulBatches(), iter([torch.ones(2)])],
    ids=["loader", "stateful", "iterator"],
)
def test_a_batch_size_for_ready_batches_is_refused(data):
    with raises("batches-ready-made", "batch_size"):
        opened(data, batch_size=4)


def test_an_empty_batch_of_a_batch_sampler_is_refused():
    with raises("empty-batch"):
        opened(DataLoader(Numbers(), batch_sampler=[[1], []])).begin(0)


REFUSED = {
    "sampler": (DataLoader(Numbers(), sampler=RandomOrder()), "order-not-resumable"),
    "batch sampler": (
        DataLoader(Numbers(), batch_sampler=RaggedBatches()),
        "order-not-resumable",
    ),
    "iterable data set": (
        Counting(),
        "position-unknown",
    ),
    "iterable in workers": (
        DataLoader(Resumable(), num_workers=2),
        "position-unknown",
    ),
    "iterator": (iter([torch.ones(2)]), "position-unknown"),
    "own iteration": (OwnIteration(Numbers()), "position-unknown"),
    "in any order": (DataLoader(Numbers(), num_workers=2, in_order=False), "order-not-resumable"),
}


@pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_resumed_is_refused_with_what_to_do_instead(data, message):
    with raises(message):
        opened(data).check_resumable()


def test_a_position_that_cannot_be_reached_is_refused():
    stream = opened(Counting(100))
    stream.take(1)
    with raises("position-unknown"):
        opened(Counting(100)).load_state_dict(stream.state_dict())


def test_a_position_under_another_seed_is_refused():
    stream = open_stream(tensors(), batch_size=4, seed=1, shuffle=True)
    stream.take(1)
    other = open_stream(tensors(), batch_size=4, seed=2, shuffle=True)
    with raises("seed-differs", "1"):
        other.load_state_dict(stream.state_dict())


def test_a_position_in_a_data_set_of_another_length_is_refused():
    stream = opened(tensors(50))
    stream.take(1)
    with raises("data-size-differs", "50", "40"):
        opened(tensors(40)).load_state_dict(stream.state_dict())


def test_a_position_beyond_the_end_of_a_list_is_refused():
    stream = opened([torch.ones(2)] * 5)
    stream.take(4)
    with raises("data-got-shorter", "3"):
        opened([torch.ones(2)] * 3).load_state_dict(stream.state_dict())


@pytest.mark.parametrize("data", [[torch.ones(2)], Resumable()], ids=["list", "iterable"])
def test_a_position_in_another_kind_of_data_is_refused(data):
    with raises("other-kind-of-data", "a map-style data set"):
        opened(data).load_state_dict(opened(Numbers()).state_dict())

"""What cannot be used or resumed is refused with what to do instead."""

import pytest
import torch
from example_data import (
    Counting,
    Numbers,
    OwnIteration,
    RaggedBatches,
    RandomOrder,
    Resumable,
    StatefulBatches,
    tensors,
)
from torch.utils.data import DataLoader, Dataset

from loopwright.data import open_stream
from loopwright.errors import ConfigurationError, DataError


def opened(data, **options):
    return open_stream(data, seed=0, shuffle=False, **options)


@pytest.mark.parametrize("data", [None, 3, "text"], ids=["none", "number", "text"])
def test_data_that_cannot_be_iterated_is_refused_with_what_is_accepted(data):
    with pytest.raises(DataError, match=r"pass a Dataset, a DataLoader, inputs and targets as `\(x, y\)`, or a list"):
        opened(data)


@pytest.mark.parametrize("batch_size", [0, -1, 2.5])
def test_an_impossible_batch_size_is_refused(batch_size):
    with pytest.raises(ConfigurationError, match="positive whole number"):
        opened(Numbers(), batch_size=batch_size)


@pytest.mark.parametrize(
    "data", [DataLoader(Numbers()), StatefulBatches(), iter([torch.ones(2)])], ids=["loader", "stateful", "iterator"]
)
def test_a_batch_size_for_ready_batches_is_refused(data):
    with pytest.raises(ConfigurationError, match="leave out batch_size, or pass the data set itself"):
        opened(data, batch_size=4)


def test_a_collate_function_for_a_loader_is_refused():
    with pytest.raises(ConfigurationError, match="leave out collate_fn"):
        opened(DataLoader(Numbers()), collate_fn=list)


def test_a_data_set_without_a_length_is_refused():
    class Unsized(Dataset):
        def __getitem__(self, index):
            return index

    with pytest.raises(DataError, match=r"Unsized has no length: give it `__len__`"):
        opened(Unsized())


def test_an_empty_batch_of_a_batch_sampler_is_refused():
    with pytest.raises(DataError, match="without indices"):
        opened(DataLoader(Numbers(), batch_sampler=[[1], []])).begin(0)


REFUSED = {
    "sampler": (DataLoader(Numbers(), sampler=RandomOrder()), "RandomOrder .* `set_epoch"),
    "batch sampler": (DataLoader(Numbers(), batch_sampler=RaggedBatches()), "RaggedBatches .* `state_dict`"),
    "iterable data set": (Counting(), "Counting .* `state_dict` and `load_state_dict`, or use a map-style"),
    "iterable in workers": (DataLoader(Resumable(), num_workers=2), "num_workers=0 .* StatefulDataLoader"),
    "iterator": (iter([torch.ones(2)]), "list_iterator .* a plain DataLoader"),
    "own iteration": (OwnIteration(Numbers()), "OwnIteration .* a plain DataLoader"),
    "in any order": (DataLoader(Numbers(), num_workers=2, in_order=False), "Leave in_order at True"),
}


@pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_resumed_is_refused_with_what_to_do_instead(data, message):
    with pytest.raises(DataError, match=message):
        opened(data).check_resumable()


def test_a_position_that_cannot_be_reached_is_refused():
    stream = opened(Counting(100))
    stream.take(1)
    with pytest.raises(DataError, match="cannot be resumed exactly"):
        opened(Counting(100)).load_state_dict(stream.state_dict())


def test_an_epoch_boundary_can_be_reached_anywhere():
    stream = opened(Counting())
    stream.begin(3)
    resumed = opened(Counting())
    resumed.load_state_dict(stream.state_dict())
    assert resumed.state_dict()["epoch"] == 3


def test_a_position_under_another_seed_is_refused():
    stream = open_stream(tensors(), batch_size=4, seed=1, shuffle=True)
    stream.take(1)
    other = open_stream(tensors(), batch_size=4, seed=2, shuffle=True)
    with pytest.raises(DataError, match="use seed=1, or start a new run"):
        other.load_state_dict(stream.state_dict())


def test_a_position_in_a_data_set_of_another_length_is_refused():
    stream = opened(tensors(50))
    stream.take(1)
    with pytest.raises(DataError, match="50 samples, but the data now gives 40"):
        opened(tensors(40)).load_state_dict(stream.state_dict())


def test_a_position_beyond_the_end_of_a_list_is_refused():
    stream = opened([torch.ones(2)] * 5)
    stream.take(4)
    with pytest.raises(DataError, match="only 3 batches now"):
        opened([torch.ones(2)] * 3).load_state_dict(stream.state_dict())


@pytest.mark.parametrize("data", [[torch.ones(2)], Resumable()], ids=["list", "iterable"])
def test_a_position_in_another_kind_of_data_is_refused(data):
    with pytest.raises(DataError, match="is in a map-style data set, but the data is now"):
        opened(data).load_state_dict(opened(Numbers()).state_dict())

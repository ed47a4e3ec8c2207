"""The fast path gives what the general path gives, and never the data set's own memory."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    DataLoader,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from loopwright.data import open_stream
from loopwright.data.indexed import IndexedStream, TensorStream
from tests.data.example_data import mark_dataset, same, sizes, tensors, values
from tests.mistakes import raises


def general_collate(samples):
    """The default, but not recognised as such."""
    return default_collate(samples)


def both(dataset, batch_size=8, shuffle=True, sampler=None):
    options = {"batch_size": batch_size, "sampler": sampler}
    options |= {} if sampler else {"shuffle": shuffle}
    fast = open_stream(DataLoader(dataset, **options), seed=3, shuffle=False)
    general = open_stream(
        DataLoader(dataset, collate_fn=general_collate, **options), seed=3, shuffle=False
    )
    assert isinstance(fast, TensorStream)
    assert isinstance(general, IndexedStream)
    return fast, general


@given(
    length=st.integers(1, 70),
    batch_size=st.integers(1, 40),
    shuffle=st.booleans(),
    epoch=st.integers(0, 5),
)
def test_both_paths_agree(length, batch_size, shuffle, epoch):
    fast, general = both(tensors(length), batch_size, shuffle)
    assert same(values(fast, epoch), values(general, epoch))


@pytest.mark.parametrize("shuffle", [False, True])
def test_both_paths_agree_on_a_subset_of_a_subset(shuffle):
    dataset = Subset(Subset(tensors(50), range(0, 50, 2)), torch.tensor([3, 20, 7, -1, 9]))
    fast, general = both(dataset, 2, shuffle)
    assert same(values(fast), values(general))


MASK = [True, False] * 10
MASKED = {
    "of tensors": lambda: Subset(tensors(20), MASK),
    "of columns": lambda: Subset(StackDataset(torch.arange(20)), np.array(MASK)),
    "of a sampler": lambda: DataLoader(tensors(20), sampler=SubsetRandomSampler(MASK)),
}


@pytest.mark.parametrize("kind", MASKED)
def test_a_mask_is_not_read_as_the_indices_0_and_1(kind):
    with raises("indices-not-integers"):
        values(open_stream(MASKED[kind](), seed=0, shuffle=False))


@pytest.mark.parametrize("shuffle", [False, True])
def test_both_paths_agree_over_more_than_one_block_of_batches(shuffle):
    fast, general = both(tensors(1500), 1, shuffle)
    assert same(values(fast), values(general))


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(torch.randn(6, 4).T),
        TensorDataset(torch.randn(6, 3, 4, 4).to(memory_format=torch.channels_last)),
        TensorDataset(torch.randn(6, 2, requires_grad=True)),
        TensorDataset(torch.randn(6, dtype=torch.complex64).conj()),
        TensorDataset(torch.nn.Parameter(torch.randn(6, 2), requires_grad=False)),
    ],
    ids=["transposed", "channels last", "needs gradients", "conjugated", "parameter"],
)
def test_unusual_tensors_take_the_general_path(dataset):
    stream = open_stream(dataset, batch_size=4, seed=0, shuffle=False)
    assert isinstance(stream, IndexedStream)
    assert same(values(stream), list(DataLoader(dataset, batch_size=4)))


def test_a_subclass_takes_the_general_path():
    class Doubled(TensorDataset):
        def __getitem__(self, index):
            return tuple(2 * tensor for tensor in super().__getitem__(index))

    stream = open_stream(Doubled(torch.ones(4)), batch_size=4, seed=0, shuffle=False)
    assert torch.equal(stream.take(1)[0].value[0], torch.full((4,), 2.0))


def test_a_worker_init_function_takes_the_general_path():
    loader = DataLoader(tensors(), num_workers=1, worker_init_fn=mark_dataset)
    assert isinstance(open_stream(loader, seed=0, shuffle=False), IndexedStream)


@pytest.mark.parametrize("shuffle", [False, True])
def test_changing_a_batch_does_not_change_the_data_set(shuffle):
    dataset = tensors(32)
    before = dataset.tensors[0].clone()
    stream = open_stream(dataset, batch_size=32, seed=0, shuffle=shuffle)
    stream.take(1)[0].value[0].zero_()
    assert torch.equal(dataset.tensors[0], before)


@given(position=st.integers(0, 50), batch_size=st.integers(1, 12), shuffle=st.booleans())
def test_a_stream_continues_from_any_position(position, batch_size, shuffle):
    whole = open_stream(tensors(50), batch_size=batch_size, seed=4, shuffle=shuffle)
    indices = torch.cat([batch[1] for batch in values(whole, 2)])
    whole.begin(2)
    whole.take(99, max_samples=position)
    rest = open_stream(tensors(50), batch_size=batch_size, seed=4, shuffle=shuffle)
    rest.load_state_dict(whole.state_dict())
    taken = rest.take(99)
    assert torch.equal(
        torch.cat([torch.tensor([], dtype=torch.int64), *[batch.value[1] for batch in taken]]),
        indices[position:],
    )
    assert all(size == batch_size for size in sizes(taken)[1:-1])

"""The order of samples, from seed and epoch alone; samplers keep their meaning."""

import pytest
import torch
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from loopwright.data import derive_seed, open_stream, permutation
from tests.data.example_data import (
    EpochBatches,
    EpochOrder,
    Numbers,
    RaggedBatches,
    RandomOrder,
    RememberingOrder,
    sizes,
    tensors,
    values,
)

integers = st.integers(min_value=0, max_value=2**63 - 1)


def test_derived_seeds_are_the_same_on_every_machine():
    assert derive_seed(0) == 0xE220A8397B1DCDAF >> 1  # splitmix64's first number from 0
    assert derive_seed(7, 1, 2) == 4382405004162797328
    assert derive_seed(-1, -5) == 8631506405354841105


def test_a_permutation_depends_on_seed_and_epoch_only():
    torch.manual_seed(1)
    first = permutation(3, 4, 100)
    torch.manual_seed(2)
    assert torch.equal(first, permutation(3, 4, 100))
    assert not torch.equal(first, permutation(3, 5, 100))
    assert not torch.equal(first, permutation(4, 4, 100))


@pytest.mark.parametrize("data", [tensors(50), Numbers(50)], ids=["tensors", "samples"])
def test_a_shuffled_data_set_follows_the_permutation_of_its_epoch(data):
    stream = open_stream(data, batch_size=8, seed=5, shuffle=True)
    for epoch in (0, 3, 1):
        indices = torch.cat([batch[1] for batch in values(stream, epoch)])
        assert torch.equal(indices, permutation(5, epoch, 50))


def test_a_shuffled_loader_and_a_shuffled_data_set_have_the_same_order():
    loader = open_stream(DataLoader(Numbers(30), batch_size=4, shuffle=True), seed=5, shuffle=False)
    dataset = open_stream(Numbers(30), batch_size=4, seed=5, shuffle=True)
    assert [batch[1].tolist() for batch in values(loader, 2)] == [
        batch[1].tolist() for batch in values(dataset, 2)
    ]


def indices(sampler, epoch=0, seed=1):
    stream = open_stream(
        DataLoader(Numbers(20), batch_size=4, sampler=sampler), seed=seed, shuffle=False
    )
    return [int(index) for batch in values(stream, epoch) for index in batch[1]]


SAMPLERS = {
    "with replacement": lambda: RandomSampler(range(20), replacement=True, num_samples=50),
    "more than there are": lambda: RandomSampler(range(20), num_samples=45),
    "own generator": lambda: RandomSampler(range(20), num_samples=7, generator=torch.Generator()),
    "subset": lambda: SubsetRandomSampler([1, 4, 9, 16, 3]),
    "weighted": lambda: WeightedRandomSampler([0.0] * 5 + [1.0] * 15, 30),
    "distributed": lambda: DistributedSampler(range(20), num_replicas=2, rank=1),
    "custom": lambda: RandomOrder(20),
}


@pytest.mark.parametrize("build", SAMPLERS.values(), ids=SAMPLERS)
def test_the_order_of_a_sampler_is_a_function_of_the_epoch(build):
    torch.manual_seed(1)
    sampler = build()
    first = [indices(sampler, epoch) for epoch in range(3)]
    torch.manual_seed(2)
    assert [indices(build(), epoch) for epoch in range(3)] == first
    assert first[0] != first[1] != first[2]
    assert len(first[0]) == len(sampler)


@pytest.mark.parametrize("build", SAMPLERS.values(), ids=SAMPLERS)
def test_drawing_from_a_sampler_leaves_the_global_generator_alone(build):
    sampler = build()
    before = torch.get_rng_state()
    indices(sampler)
    assert torch.equal(before, torch.get_rng_state())


def test_a_sampler_gets_its_generator_back():
    generator = torch.Generator()
    before = generator.get_state()
    sampler = SubsetRandomSampler([1, 2, 3], generator=generator)
    indices(sampler)
    assert sampler.generator is generator
    assert torch.equal(generator.get_state(), before)


def test_set_epoch_of_a_sampler_is_called():
    assert indices(EpochOrder(20), epoch=3)[:4] == [3, 4, 5, 6]


def test_a_distributed_sampler_gives_its_own_share():
    sampler = DistributedSampler(range(20), num_replicas=2, rank=0, seed=4)
    sampler.set_epoch(2)
    assert indices(sampler, epoch=2) == list(sampler)


def test_torchs_own_batch_sampler_is_taken_over_with_its_sampler():
    loader = DataLoader(
        Numbers(20), batch_sampler=BatchSampler(RandomSampler(range(20)), 6, drop_last=True)
    )
    stream = open_stream(loader, seed=1, shuffle=False)
    batches = values(stream, 4)
    assert torch.equal(torch.cat([batch[1] for batch in batches]), permutation(1, 4, 20)[:18])
    assert (stream.num_batches, stream.num_samples) == (3, 18)


def test_a_batch_samplers_batches_are_kept():
    stream = open_stream(
        DataLoader(Numbers(20), batch_sampler=RaggedBatches()), seed=1, shuffle=False
    )
    stream.begin(0)
    taken = stream.take(9)
    assert [batch.value[1].tolist() for batch in taken] == [[3, 1], [0, 2, 4], [5], [9, 8, 7, 6]]
    assert (sizes(taken), stream.num_batches, stream.num_samples) == ([2, 3, 1, 4], 4, 10)


def test_a_position_inside_a_batch_samplers_batch_stands_for_the_rest_of_it():
    stream = open_stream(
        DataLoader(Numbers(20), batch_sampler=EpochBatches()), seed=1, shuffle=False
    )
    stream.begin(0)
    assert sizes(stream.take(9, max_samples=4)) == [2, 2]
    resumed = open_stream(
        DataLoader(Numbers(20), batch_sampler=EpochBatches()), seed=1, shuffle=False
    )
    resumed.load_state_dict(stream.state_dict())
    assert [batch.value[1].tolist() for batch in resumed] == [[4], [5], [9, 8, 7, 6]]


def test_a_sampler_that_saves_its_state_continues_in_the_epoch_it_was_in():
    def build():
        return open_stream(
            DataLoader(Numbers(20), batch_size=4, sampler=RememberingOrder(20)),
            seed=1,
            shuffle=False,
        )

    stream = build()
    values(stream, 0)
    stream.begin(1)
    stream.take(2)
    state = stream.state_dict()
    expected = (
        [batch.value[1].tolist() for batch in stream],
        [batch[1].tolist() for batch in values(stream, 2)],
    )
    resumed = build()
    resumed.check_resumable()
    resumed.load_state_dict(state)
    assert (
        [batch.value[1].tolist() for batch in resumed],
        [batch[1].tolist() for batch in values(resumed, 2)],
    ) == expected


def test_a_sampler_without_end_is_read_as_it_goes():
    class Endless:
        def __iter__(self):
            while True:
                yield 7

    stream = open_stream(
        DataLoader(Numbers(20), batch_size=4, sampler=Endless()), seed=1, shuffle=False
    )
    assert stream.num_batches is None
    assert [batch.value[1].tolist() for batch in stream.take(2)] == [[7] * 4] * 2

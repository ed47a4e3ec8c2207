"""Randomness inside a data set is a function of (seed, epoch, index) and leaves the generators of
training alone."""

import gc
import random
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, StackDataset, Subset, default_collate

from loopwright.data import open_stream, preserved_rng, rng_state, seed_everything, seed_sample
from loopwright.data.fetch import SampleSeeds, as_number
from loopwright.data.order import SAMPLE, derive_seed
from loopwright.data.sharding import Shard
from tests.data.example_data import Batched, Noisy, Numbers, add_noise, same, values


def by_index(batches):
    """The random numbers of each sample, by index."""
    return {
        int(batch[0][place]): [part[place].tolist() for part in batch[1:]]
        for batch in batches
        for place in range(len(batch[0]))
    }


def noisy(epoch=0, batch_size=4, shuffle=True, **options):
    loader = DataLoader(Noisy(18), batch_size=batch_size, shuffle=shuffle, **options)
    stream = open_stream(loader, seed=2, shuffle=True)
    batches = values(stream, epoch)
    stream.close()
    return batches


def test_workers_that_are_not_forked_draw_the_same_numbers():
    # the first is Linux's own from 3.14
    method = "forkserver" if sys.version_info >= (3, 14) else "spawn"
    assert same(noisy(), noisy(num_workers=1, multiprocessing_context=method))


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_draw_the_same_numbers_in_later_epochs(persistent):
    loader = DataLoader(
        Noisy(10), batch_size=4, shuffle=True, num_workers=2, persistent_workers=persistent
    )
    stream = open_stream(loader, seed=2, shuffle=True)
    local = open_stream(DataLoader(Noisy(10), batch_size=4, shuffle=True), seed=2, shuffle=True)
    for epoch in (0, 1, 5):
        assert same(values(stream, epoch), values(local, epoch))
    stream.close()


def seeded_by_hand(epoch):
    """The random numbers of each sample, each seeded alone."""
    samples = []
    with preserved_rng():
        for index in range(18):
            seed_sample(derive_seed(2, SAMPLE, epoch, index))
            samples.append(default_collate([Noisy(18)[index]]))
    return by_index(samples)


@pytest.mark.parametrize("batch_size", [1, 7, 8, 18])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_sample_is_the_same_in_any_batch_and_any_order(batch_size, shuffle):
    for epoch in (0, 3):
        assert by_index(noisy(epoch, batch_size, shuffle)) == seeded_by_hand(epoch)


large = st.sampled_from([SampleSeeds.MAX_TABLE - 1, SampleSeeds.MAX_TABLE, 2**40])
keys = st.one_of(
    st.integers(-3, 70), st.booleans(), st.text(max_size=2), st.integers(0, 9).map(np.int64)
)
batches = st.lists(st.integers(0, 70), min_size=8, max_size=20) | st.lists(
    keys | large, min_size=1, max_size=20
)


@settings(max_examples=20)
@given(requests=st.lists(st.tuples(st.integers(0, 2), batches), max_size=4))
def test_seeds_from_a_table_are_those_of_each_sample(requests):
    seeds = SampleSeeds(5)
    for epoch, indices in requests:
        expected = [derive_seed(5, SAMPLE, epoch, as_number(index)) for index in indices]
        assert seeds.of(epoch, indices) == expected


def python_calls(next_batch):
    counts = Counter()

    def profile(frame, event, argument):
        if event == "call":
            counts[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            counts[argument.__name__] += argument.__name__ == "manual_seed"

    gc.collect()
    gc.disable()  # what is finalised meanwhile would be counted
    sys.setprofile(profile)
    try:
        next_batch()
    finally:
        sys.setprofile(None)
        gc.enable()
    return counts


class Augmented(Numbers):
    def __getitem__(self, index):
        return self.draw(), index

    def draw(self):
        return torch.rand(2)


class Constant(Augmented):
    def draw(self):
        return torch.ones(2)


@pytest.mark.parametrize(
    ("data", "seeded"), [(Constant(256), 0), (Augmented(256), 64)], ids=["plain", "augmented"]
)
def test_around_the_samples_a_batch_takes_a_third_of_the_calls_of_a_data_loader(data, seeded):
    loader = DataLoader(data, batch_size=64, shuffle=True)
    stream = open_stream(loader, seed=2, shuffle=True)
    stream.begin(0)
    stream.take(2)  # finds out what is drawn, and mixes the seeds of the epoch
    by_torch = iter(loader)
    next(by_torch)
    ours, theirs = python_calls(lambda: stream.take(1)), python_calls(lambda: next(by_torch))
    assert ours.pop("manual_seed", 0) == seeded
    assert ours.total() - 128 <= 45, ours  # 64 samples are 128 calls
    assert ours.total() - 128 < (theirs.total() - 128) / 3, (ours, theirs)


@pytest.mark.parametrize(
    "wrap",
    [lambda data: Subset(data, range(18)), lambda data: ConcatDataset([data])],
    ids=["subset", "concatenation"],
)
def test_a_container_does_not_change_the_samples_in_it(wrap):
    wrapped = open_stream(wrap(Noisy(18)), batch_size=5, seed=2, shuffle=False)
    assert by_index(values(wrapped)) == by_index(noisy())


def test_a_stack_draws_per_sample():
    one = open_stream(StackDataset(Noisy(12), Numbers(12)), batch_size=4, seed=2, shuffle=False)
    other = open_stream(StackDataset(Noisy(12), Numbers(12)), batch_size=6, seed=2, shuffle=False)
    first, second = (by_index([batch[0] for batch in values(stream)]) for stream in (one, other))
    assert first == second


def fetched(workers: int = 0, batch_size: int = 4, shard: Shard | None = None) -> dict[int, float]:
    loader = DataLoader(Batched(12), batch_size=batch_size, num_workers=workers)
    batches = values(open_stream(loader, seed=2, shuffle=False, shard=shard))
    return {
        int(index): float(noise) for batch in batches for index, noise in zip(*batch, strict=True)
    }


def test_a_data_set_that_fetches_batches_gives_the_same_samples_anywhere():
    whole = fetched()
    assert len(set(whole.values())) == 12
    assert fetched(workers=2) == whole
    assert fetched(batch_size=5) == whole
    assert fetched(shard=Shard(0, 2)) | fetched(shard=Shard(1, 2)) == whole


def test_a_data_set_that_fetches_batches_and_draws_nothing_is_asked_for_whole_batches():
    class Plain(Numbers):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            self.asked.append(len(indices))
            return [(index, index) for index in indices]

    dataset = Plain(12)
    values(
        open_stream(DataLoader(dataset, batch_size=4, collate_fn=add_noise), seed=2, shuffle=False)
    )
    assert set(dataset.asked) == {4}


def test_a_collate_function_that_changes_its_samples_and_draws_gets_them_as_they_were():
    def collate(samples: list[Any]) -> Any:
        return torch.tensor([sample.pop() for sample in samples]) + torch.rand(1)

    class Lists(Numbers):
        def __getitem__(self, index: int) -> Any:
            return [index, index]

    loader = DataLoader(Lists(8), batch_size=4, collate_fn=collate)
    batches = values(open_stream(loader, seed=2, shuffle=False))
    assert [[int(value) for value in batch] for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("kind", [list, dict])
def test_what_is_fetched_as_a_ready_batch_is_seeded_as_one(kind):
    class Ready(Numbers):
        def __getitems__(self, indices: list[int]) -> Any:
            columns = {"x": torch.tensor(indices), "noise": torch.rand(1).repeat(len(indices))}
            return columns if kind is dict else list(columns.values())

    def noise(batch_size: int = 2) -> list[Any]:
        loader = DataLoader(Ready(8), batch_size=batch_size, collate_fn=lambda batch: batch)
        return values(open_stream(loader, seed=2, shuffle=False))

    assert len(noise()) == 4
    assert same(noise(), noise())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collate_function_draws_the_same_numbers_anywhere(workers):
    loader = DataLoader(Numbers(12), batch_size=4, collate_fn=add_noise, num_workers=workers)
    first, second = (
        values(open_stream(loader, seed=2, shuffle=False)),
        values(open_stream(loader, seed=2, shuffle=False)),
    )
    local = DataLoader(Numbers(12), batch_size=4, collate_fn=add_noise)
    assert same(first, second)
    assert same(first, values(open_stream(local, seed=2, shuffle=False)))


def test_samples_may_be_named_by_anything():
    names = {"a": 1, ("b", 2): 3}

    class Keyed(Noisy):
        def __getitem__(self, key):
            return names[key], torch.rand(1)

    loader = DataLoader(Keyed(2), batch_size=1, sampler=["a", ("b", 2)])
    first, second = (
        values(open_stream(loader, seed=0, shuffle=False)),
        values(open_stream(loader, seed=0, shuffle=False)),
    )
    assert same(first, second)


@given(position=st.integers(0, 18))
def test_the_samples_after_a_position_do_not_depend_on_how_it_was_reached(position):
    stream = open_stream(Noisy(18), batch_size=4, seed=2, shuffle=True)
    everything = by_index(values(stream, 3))
    stream.begin(3)
    stream.take(99, max_samples=position)
    resumed = open_stream(Noisy(18), batch_size=4, seed=2, shuffle=True)
    resumed.load_state_dict(stream.state_dict())
    rest = by_index([batch.value for batch in resumed])
    assert rest == {index: everything[index] for index in rest}
    assert len(rest) == 18 - position


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [None, add_noise], ids=["default", "noisy"])
@pytest.mark.parametrize("data", [Noisy(12), Numbers(12)], ids=["noisy", "numbers"])
def test_fetching_does_not_disturb_the_generators_of_training(workers, collate, data):
    if collate is add_noise:
        data = Numbers(12)
    loader = DataLoader(data, batch_size=4, shuffle=True, collate_fn=collate, num_workers=workers)
    seed_everything(1)
    expected = torch.rand(1), random.random(), np.random.rand()
    seed_everything(1)
    values(open_stream(loader, seed=2, shuffle=True))
    assert (torch.rand(1), random.random(), np.random.rand()) == expected


def test_a_failing_sample_leaves_the_generators_of_training_alone():
    class Failing(Noisy):
        def __getitem__(self, index):
            torch.rand(1)
            raise RuntimeError("no sample")

    stream = open_stream(Failing(4), seed=0, shuffle=False)
    before = rng_state()["torch"]
    with pytest.raises(RuntimeError, match="no sample"):
        stream.take(1)
    assert torch.equal(before, rng_state()["torch"])

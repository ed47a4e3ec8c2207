"""Random generators: seeded, saved and restored; only the generators that a data set draws from are
seeded for it."""

import contextlib
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from loopwright.data import (
    open_stream,
    preserved_rng,
    rng_state,
    seed_everything,
    seed_sample,
    set_rng_state,
)
from tests.data.example_data import Noisy, Numbers, same, values


def draw():
    return torch.rand(3).tolist(), random.random(), random.gauss(0, 1), np.random.randn(3).tolist()


def test_generators_are_preserved_when_an_exception_passes():
    seed_everything(1)
    expected = draw()
    seed_everything(1)
    with contextlib.suppress(KeyError), preserved_rng():
        draw()
        raise KeyError
    assert draw() == expected


def test_preserved_generators_keep_the_half_of_a_pair_of_gaussians():
    seed_everything(1)
    random.gauss(0, 1), np.random.randn()
    expected = random.gauss(0, 1), np.random.randn()
    seed_everything(1)
    random.gauss(0, 1), np.random.randn()
    with preserved_rng():
        seed_sample(2)
    assert (random.gauss(0, 1), np.random.randn()) == expected


def test_a_saved_state_is_restored():
    seed_everything(1)
    random.gauss(0, 1), np.random.randn()
    state = rng_state()
    expected = draw()
    seed_everything(2)
    set_rng_state(state)
    assert draw() == expected


def test_a_state_saved_where_there_was_another_device_is_restored():
    state = rng_state() | {"cuda": [torch.zeros(16, dtype=torch.uint8)]}
    expected = draw()
    set_rng_state(state)
    assert draw() == expected


DRAWS = {
    "torch": lambda: torch.rand(1).item(),
    "python": random.random,
    "python's gaussians": lambda: random.gauss(0, 1),
    "numpy": np.random.rand,
    "numpy's gaussians": np.random.randn,
}


class Sometimes(Numbers):
    """Draws for two samples only."""

    def __init__(self, length, library):
        super().__init__(length)
        self.library = library

    def __getitem__(self, index):
        self.asked.append(index)
        return index, DRAWS[self.library]() if index in (7, 18) else 0.0


def drawn(library, epoch=0, **options):
    stream = open_stream(
        DataLoader(Sometimes(24, library), **{"batch_size": 4} | options), seed=1, shuffle=False
    )
    batches = values(stream, epoch)
    stream.close()
    return {
        int(index): float(number) for batch in batches for index, number in zip(*batch, strict=True)
    }


@pytest.mark.parametrize("library", DRAWS)
def test_a_sample_that_draws_for_the_first_time_is_seeded_already(library):
    seed_everything(1)
    first = drawn(library)
    seed_everything(2)
    assert drawn(library, shuffle=True, batch_size=5) == first
    assert first[7] != first[18]
    assert first != drawn(library, epoch=1)


@pytest.mark.parametrize("library", DRAWS)
@pytest.mark.parametrize("ahead", [0, 1])
def test_the_generators_of_training_are_as_they_were(library, ahead):
    def draw():
        return (
            torch.rand(1).item(),
            random.random(),
            random.gauss(0, 1),
            np.random.randn(),
            np.random.randn(),
        )

    def prepare():
        seed_everything(1)
        for _ in range(ahead):  # half a pair of gaussians is waiting
            random.gauss(0, 1), np.random.randn()

    prepare()
    expected = draw()
    prepare()
    drawn(library)
    assert draw() == expected


def test_training_may_draw_between_batches():
    stream = open_stream(Noisy(24), batch_size=4, seed=1, shuffle=False)
    undisturbed = values(stream)
    seed_everything(1)
    expected = [(torch.rand(1).item(), random.random(), np.random.randn()) for _ in range(6)]
    seed_everything(1)
    stream.begin(0)
    interleaved = [
        (batch.value, (torch.rand(1).item(), random.random(), np.random.randn()))
        for batch in stream
    ]
    assert same([value for value, _ in interleaved], undisturbed)
    assert [numbers for _, numbers in interleaved] == expected


def test_a_data_set_that_draws_nothing_is_asked_once_for_each_sample():
    data = Numbers(24)
    values(open_stream(data, batch_size=4, seed=1, shuffle=False))
    assert data.asked == list(range(24))


def test_only_the_batch_that_draws_first_is_made_twice():
    data = Sometimes(24, "torch")
    values(open_stream(data, batch_size=4, seed=1, shuffle=False))
    assert data.asked == [*range(8), *range(4, 24)]


def test_a_data_set_that_seeds_for_itself_does_not_seed_training():
    class Seeding(Numbers):
        def __getitem__(self, index):
            torch.manual_seed(index), np.random.seed(index), random.seed(index)
            return index, torch.rand(1)

    before = rng_state()
    values(open_stream(Seeding(8), batch_size=4, seed=1, shuffle=False))
    after = rng_state()
    assert torch.equal(before["torch"], after["torch"])
    assert torch.equal(before["numpy"]["keys"], after["numpy"]["keys"])
    assert torch.equal(before["python"]["words"], after["python"]["words"])


def test_another_generator_in_numpys_place_is_left_alone():
    original = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        before = str(np.random.get_state(legacy=False))
        values(open_stream(Numbers(8), batch_size=4, seed=1, shuffle=False))
        assert str(np.random.get_state(legacy=False)) == before
    finally:
        np.random.set_bit_generator(original)

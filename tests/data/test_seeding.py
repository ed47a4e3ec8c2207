"""Generators are seeded, preserved, saved and restored."""

import contextlib
import json
import random

import numpy as np
import pytest
import torch

from loopwright.data import preserved_rng, rng_state, seed_everything, seed_sample, set_rng_state


def draw():
    return torch.rand(3).tolist(), random.random(), random.gauss(0, 1), np.random.randn(3).tolist()


@pytest.mark.parametrize("seed_with", [seed_sample, seed_everything])
def test_the_same_seed_gives_the_same_numbers(seed_with):
    seed_with(2**63 - 1)
    first = draw()
    seed_with(2**63 - 1)
    assert draw() == first


@pytest.mark.parametrize("seed_with", [seed_sample, seed_everything])
def test_another_seed_gives_other_numbers_in_every_library(seed_with):
    seed_with(1)
    first = draw()
    seed_with(2)
    assert all(one != other for one, other in zip(first, draw(), strict=True))


def test_preserved_generators_go_on_as_if_nothing_had_been_drawn():
    seed_everything(1)
    expected = draw()
    seed_everything(1)
    with preserved_rng():
        seed_sample(9)
        draw()
    assert draw() == expected


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


def test_a_saved_state_does_not_follow_the_generators():
    state = rng_state()
    expected = draw()
    draw()
    set_rng_state(state)
    assert draw() == expected


def test_a_saved_state_consists_of_tensors_and_plain_values():
    def flatten(value):
        return [leaf for part in value.values() for leaf in flatten(part)] if isinstance(value, dict) else [value]

    leaves = flatten(rng_state())
    assert all(isinstance(leaf, torch.Tensor | int | float | str | None) for leaf in leaves)
    json.dumps([leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)])


def test_a_state_saved_where_there_was_another_device_is_restored():
    state = rng_state() | {"cuda": [torch.zeros(16, dtype=torch.uint8)]}
    expected = draw()
    set_rng_state(state)
    assert draw() == expected

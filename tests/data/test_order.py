"""The order is a pure function of (seed, epoch)."""

import subprocess
import sys

import pytest
import torch
from example_data import Numbers, tensors, values
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from loopwright.data import derive_seed, open_stream, permutation

integers = st.integers(min_value=0, max_value=2**63 - 1)


@given(seed=integers, parts=st.lists(integers, max_size=4))
def test_a_derived_seed_fits_into_63_bits(seed, parts):
    assert 0 <= derive_seed(seed, *parts) < 2**63


def test_derived_seeds_are_the_same_on_every_machine():
    assert derive_seed(0) == 0xE220A8397B1DCDAF >> 1  # splitmix64's first number from 0
    assert derive_seed(7, 1, 2) == 4382405004162797328
    assert derive_seed(-1, -5) == 8631506405354841105


def test_derived_seeds_do_not_collide():
    seeds = {derive_seed(seed, epoch, index) for seed in range(10) for epoch in range(10) for index in range(500)}
    assert len(seeds) == 50_000


def test_the_order_of_the_parts_counts():
    assert derive_seed(0, 1, 2) != derive_seed(0, 2, 1)


@given(seed=integers, epoch=st.integers(0, 1000), length=st.integers(0, 300))
def test_a_permutation_holds_every_index_once(seed, epoch, length):
    assert sorted(permutation(seed, epoch, length).tolist()) == list(range(length))


def test_a_permutation_depends_on_seed_and_epoch_only():
    torch.manual_seed(1)
    first = permutation(3, 4, 100)
    torch.manual_seed(2)
    assert torch.equal(first, permutation(3, 4, 100))
    assert not torch.equal(first, permutation(3, 5, 100))
    assert not torch.equal(first, permutation(4, 4, 100))


def test_a_permutation_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    permutation(0, 0, 100)
    assert torch.equal(before, torch.get_rng_state())


def test_another_process_derives_the_same_seeds():
    program = "from loopwright.data import derive_seed; print(derive_seed(11, 12, 13))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert int(printed) == derive_seed(11, 12, 13)


@pytest.mark.parametrize("data", [tensors(50), Numbers(50)], ids=["tensors", "samples"])
def test_a_shuffled_data_set_follows_the_permutation_of_its_epoch(data):
    stream = open_stream(data, batch_size=8, seed=5, shuffle=True)
    for epoch in (0, 3, 1):
        indices = torch.cat([batch[1] for batch in values(stream, epoch)])
        assert torch.equal(indices, permutation(5, epoch, 50))


def test_a_shuffled_loader_and_a_shuffled_data_set_have_the_same_order():
    loader = open_stream(DataLoader(Numbers(30), batch_size=4, shuffle=True), seed=5, shuffle=False)
    dataset = open_stream(Numbers(30), batch_size=4, seed=5, shuffle=True)
    assert [batch[1].tolist() for batch in values(loader, 2)] == [batch[1].tolist() for batch in values(dataset, 2)]

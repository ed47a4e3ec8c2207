"""A loader's own settings hold after it was taken over, and its workers end when they should."""

import multiprocessing
import time

import pytest
import torch
from torch.utils.data import DataLoader

from loopwright.data import open_stream
from tests.data.example_data import (
    Broken,
    Located,
    Noisy,
    Numbers,
    mark_dataset,
    same,
    sizes,
    values,
)

OTHERS: set[int | None] = set()


@pytest.fixture(autouse=True)
def before():
    """Child processes of earlier tests, which may not be garbage-collected yet."""
    OTHERS.update(child.pid for child in multiprocessing.active_children())
    yield
    OTHERS.clear()


def workers() -> set[int | None]:
    return {child.pid for child in multiprocessing.active_children()} - OTHERS


def has_ended() -> bool:
    """Whether the workers have ended, or end within a minute: a terminated process may still have
    to be scheduled."""
    end = time.monotonic() + 60
    while workers() and time.monotonic() < end:
        time.sleep(0.01)
    return not workers()


def located(**options):
    loader = DataLoader(Located(12), batch_size=3, **options)
    return open_stream(loader, seed=0, shuffle=True)


def test_samples_are_made_by_as_many_workers_as_the_loader_has():
    batches = values(located(num_workers=2))
    assert {int(place) for batch in batches for place in batch[1]} == {0, 1}


def test_a_worker_init_function_finds_the_users_own_data_set():
    batches = values(located(num_workers=2, worker_init_fn=mark_dataset))
    assert {
        (int(place), int(mark)) for batch in batches for place, mark in zip(*batch[1:], strict=True)
    } == {
        (0, 100),
        (1, 101),
    }


def test_workers_end_with_the_epoch():
    stream = located(num_workers=2)
    values(stream)
    assert has_ended()


def test_workers_end_when_a_stream_is_closed_in_the_middle():
    stream = located(num_workers=2)
    stream.begin(0)
    stream.take(1)
    assert len(workers()) == 2
    stream.close()
    assert has_ended()


def test_persistent_workers_stay_for_the_next_epoch_until_the_stream_is_closed():
    stream = located(num_workers=2, persistent_workers=True)
    values(stream, 0)
    first = workers()
    values(stream, 1)
    assert workers() == first
    assert len(first) == 2
    stream.close()
    assert has_ended()


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_that_was_left_early_does_not_leak_into_the_next(persistent):
    loader = DataLoader(
        Noisy(20), batch_size=3, shuffle=True, num_workers=2, persistent_workers=persistent
    )
    stream = open_stream(loader, seed=1, shuffle=True)
    stream.begin(0)
    stream.take(2)
    local = open_stream(DataLoader(Noisy(20), batch_size=3, shuffle=True), seed=1, shuffle=True)
    assert same(values(stream, 1), values(local, 1))
    stream.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_limit_on_samples_is_exact_with_workers(workers):
    loader = DataLoader(Noisy(20), batch_size=4, shuffle=True, num_workers=workers)
    stream = open_stream(loader, seed=1, shuffle=True)
    stream.begin(0)
    taken = stream.take(9, max_samples=6)
    rest = stream.take(9)
    assert (sizes(taken), sizes(rest)) == ([4, 2], [2, 4, 4, 4])
    indices = torch.cat([batch.value[0] for batch in taken + rest])
    whole = open_stream(Noisy(20), batch_size=20, seed=1, shuffle=True).take(1)[0].value
    assert torch.equal(indices, whole[0])
    stream.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_a_data_set_surfaces_with_its_traceback(workers):
    stream = open_stream(
        DataLoader(Broken(8), batch_size=2, num_workers=workers), seed=0, shuffle=False
    )
    with pytest.raises(RuntimeError, match="sample five is broken") as caught:
        stream.take(9)
    text = str(caught.value) + "".join(str(entry) for entry in caught.traceback)
    assert "example_data.py" in text
    stream.close()
    assert has_ended()


def test_batches_before_an_error_are_not_consumed():
    stream = open_stream(Broken(8), batch_size=2, seed=0, shuffle=False)
    with pytest.raises(RuntimeError, match="five"):
        stream.take(4)
    assert stream.state_dict()["position"] == 0


def test_batches_in_any_order_are_all_there():
    loader = DataLoader(Numbers(20), batch_size=3, num_workers=2, in_order=False)
    stream = open_stream(loader, seed=0, shuffle=False)
    assert sorted(int(index) for batch in values(stream) for index in batch[1]) == list(range(20))
    assert stream.state_dict()["position"] == 20

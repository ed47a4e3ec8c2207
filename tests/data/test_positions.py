"""Sources with a position: what is resumed equals what was not interrupted, and nothing before the
position is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from loopwright import DataError
from loopwright.checkpoint import decode, encode
from loopwright.data import open_stream, rng_state
from loopwright.data.random import set_rng_state
from tests.data.example_data import same, values
from tests.data.sources import (
    INSTALLED,
    LENGTH,
    SIZE,
    SOURCES,
    ByStateDict,
    Counter,
    Drawn,
    Opening,
    OpeningSet,
    Source,
    hugging_face,
    stateful_loader,
)
from tests.mistakes import raises

ALL = SOURCES | INSTALLED
# by torchdata's StatefulDataLoader
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


def opened(build: Any) -> Any:
    return open_stream(build(), seed=6, shuffle=True)


def stored(state: Any) -> Any:
    """The state as it comes back from a checkpoint."""
    return decode(*encode(state))


@pytest.mark.parametrize("build", ALL.values(), ids=ALL)
@pytest.mark.parametrize("taken", [0, 1, 3, LENGTH, 99])
def test_a_resumed_source_gives_the_rest_and_the_next_epoch(build: Any, taken: int) -> None:
    stream = opened(build)
    stream.check_resumable()
    values(stream, 0)
    stream.begin(1)
    stream.take(taken)
    state, generators = stored(stream.state_dict()), rng_state()
    expected = [batch.value for batch in stream], values(stream, 2), values(stream, 3)
    stream.close()
    resumed = opened(build)
    resumed.check_resumable()
    resumed.load_state_dict(state)
    set_rng_state(generators)  # as a run does after the position
    if not resumed.spans_epochs and taken == 0:
        resumed.begin(1)
    assert same([batch.value for batch in resumed], expected[0])
    assert same(values(resumed, 2), expected[1])
    assert same(values(resumed, 3), expected[2])
    resumed.close()


@pytest.mark.parametrize("build", SOURCES.values(), ids=SOURCES)
def test_a_resumed_source_is_asked_for_the_rest_only(build: Any) -> None:
    stream, data = opened(build), build()
    stream.begin(0)
    stream.take(4)
    resumed = open_stream(data, seed=6, shuffle=True)
    resumed.load_state_dict(stored(stream.state_dict()))
    assert len(list(resumed)) == LENGTH - 4
    assert getattr(data, "dataset", data).drawn == LENGTH - 4


IN_PROCESS = {
    name: build
    for name, build in INSTALLED.items()
    if "worker" not in name and "thread" not in name
}


@pytest.mark.parametrize("build", IN_PROCESS.values(), ids=IN_PROCESS)
def test_a_resumed_package_draws_the_rest_only(build: Any) -> None:
    stream = opened(build)
    stream.begin(0)
    stream.take(4)
    before = Drawn.count
    resumed = opened(build)
    resumed.load_state_dict(stored(stream.state_dict()))
    assert len(list(resumed)) == LENGTH - 4
    assert Drawn.count - before < before


def test_an_iterator_with_a_state_is_opened_in_each_epoch_and_its_state_counts_inside_only() -> (
    None
):
    stream = opened(SOURCES["iterators with get_state"])
    assert not stream.spans_epochs
    values(stream, 0)
    assert stream.state_dict()["source"] is None


def test_looking_for_a_state_reads_nothing_and_draws_nothing() -> None:
    class Drawing(Opening):
        def __iter__(self) -> Any:
            torch.rand(1)
            return super().__iter__()

    data, before = Drawing(ByStateDict), torch.get_rng_state()
    open_stream(data, seed=6, shuffle=True).check_resumable()
    assert torch.equal(before, torch.get_rng_state())
    assert data.drawn == 0


def test_a_stateful_loader_announces_epochs_to_its_data_set_and_sampler() -> None:
    class Announced(OpeningSet):
        epochs: tuple[int, ...] = ()

        def set_epoch(self, epoch: int) -> None:
            self.epochs += (epoch,)

    class OwnLoader(DataLoader[Any]):
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    data = Announced(Counter)
    stream = open_stream(OwnLoader(data, batch_size=None), seed=6, shuffle=True)
    values(stream, 0)
    values(stream, 1)
    assert data.epochs == (0, 1)


# A shuffle buffer of `datasets` is in no state


@pytest.mark.parametrize("taken", [0, 1, 3, LENGTH, 99])
def test_a_shuffle_buffer_is_filled_again_by_reading_the_epoch_again(taken: int) -> None:
    pytest.importorskip("datasets")
    stream = opened(lambda: hugging_face(buffer_size=4))
    values(stream, 0)
    stream.begin(1)
    stream.take(taken)
    state = stored(stream.state_dict())
    expected = [batch.value for batch in stream], values(stream, 2)
    resumed = opened(lambda: hugging_face(buffer_size=4))
    resumed.load_state_dict(state)
    assert same([batch.value for batch in resumed], expected[0])
    assert same(values(resumed, 2), expected[1])
    if 0 < taken <= LENGTH:
        assert f"{taken * SIZE} items of IterableDataset were read again" in resumed.remark


def test_a_shuffle_buffer_without_a_seed_is_not_the_same_again() -> None:
    pytest.importorskip("datasets")
    stream = opened(lambda: hugging_face(buffer_size=4, seed=None))
    stream.take(2)
    resumed = opened(lambda: hugging_face(buffer_size=4, seed=None))
    with pytest.raises(DataError, match=r"pass a seed to `shuffle`"):
        resumed.load_state_dict(stored(stream.state_dict()))


def test_a_streaming_data_set_for_evaluation_is_read_from_the_beginning_after_each_resume() -> None:
    pytest.importorskip("datasets")
    stream = opened(hugging_face)
    expected = values(stream, 0)
    resumed = opened(hugging_face)
    resumed.load_state_dict(stored(stream.state_dict()))
    assert same(values(resumed, 0), expected)
    assert same(values(resumed, 0), expected)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_loader_with_workers_says_what_its_state_lacks() -> None:
    pytest.importorskip("torchdata")
    stream = opened(lambda: stateful_loader(1))
    stream.take(2)
    resumed = opened(lambda: stateful_loader(1))
    resumed.load_state_dict(stored(stream.state_dict()))
    assert "random numbers that the data set draws in its 1 workers" in resumed.remark
    for each in (stream, resumed):
        each.close()


# Mistakes


class Failing(ByStateDict):
    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError("later")


class Ignoring(ByStateDict):
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Half(Source):
    def __iter__(self) -> Any:
        yield self.draw(0)

    def state_dict(self) -> dict[str, Any]:
        return {}


class Shrunk(IterableDataset[Any]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        return ByStateDict(Source())


def test_a_state_that_cannot_be_read_is_found_with_the_first_batch() -> None:
    stream = opened(lambda: Opening(Failing))
    stream.check_resumable()
    with raises("position-not-saved", "Failing", "state_dict", "NotImplementedError", "later"):
        stream.take(1)


def test_a_source_that_does_not_take_over_its_state_is_found_with_the_next_batch() -> None:
    stream = opened(lambda: Opening(Ignoring))
    stream.check_resumable()
    stream.take(3)
    resumed = opened(lambda: Opening(Ignoring))
    resumed.load_state_dict(stored(stream.state_dict()))
    with raises("position-not-restored", "Ignoring", "load_state_dict"):
        resumed.take(1)


def test_a_source_that_has_no_state_any_more_is_refused() -> None:
    stream = opened(lambda: Opening(ByStateDict))
    stream.take(3)
    with raises("position-unknown"):
        opened(lambda: Opening(Counter)).load_state_dict(stored(stream.state_dict()))


def test_half_of_the_methods_is_not_enough() -> None:
    with raises("position-unknown"):
        opened(Half).check_resumable()


def test_a_source_that_is_shorter_than_the_position_is_refused() -> None:
    stream = opened(lambda: DataLoader(Shrunk(6), batch_size=None))
    stream.take(5)
    with raises("data-got-shorter", "4"):
        opened(lambda: DataLoader(Shrunk(4), batch_size=None)).load_state_dict(
            stored(stream.state_dict())
        )


def test_a_source_without_a_position_in_its_state_goes_on() -> None:
    """Items that are drawn at random need no position, so their state is always the same."""

    class Random(ByStateDict):
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    stream = opened(lambda: Opening(Random))
    stream.check_resumable()
    stream.take(3)
    resumed = opened(lambda: Opening(Random))
    resumed.load_state_dict(stored(stream.state_dict()))
    assert len(resumed.take(2)) == 2

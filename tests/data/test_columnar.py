"""Batches selected from columns are those of fetching and collating samples, bit for bit; counted,
not timed."""

import warnings
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from loopwright.data import derive_seed, open_stream
from loopwright.data.columnar import collate_samples
from loopwright.data.columns import from_columns
from loopwright.data.indexed import IndexedStream, TensorStream
from loopwright.data.order import derive_seeds
from tests.data.example_data import Numbers, same, values

Pair = namedtuple("Pair", "x y")
LENGTH = 12


def tensor(dtype: Any = torch.float32, *row: int) -> torch.Tensor:
    return torch.arange(LENGTH * int(np.prod(row, dtype=int))).reshape(LENGTH, *row).to(dtype)


def by_samples(dataset: Any, batch_size: int, shuffle: bool) -> list[Any]:
    """Batches as a data loader makes them, in our order."""
    order = values(open_stream(range(len(dataset)), batch_size=batch_size, seed=5, shuffle=shuffle))
    return [default_collate([dataset[index] for index in indices.tolist()]) for indices in order]


columns = st.sampled_from(
    [
        tensor(),
        tensor(torch.int64),
        tensor(torch.bfloat16, 2, 3),
        tensor(torch.float64, 4)[:, ::2],
        tensor(torch.bool, 2).numpy(),
        tensor(torch.int32).numpy(),
        tensor(torch.float32, 3).numpy()[::-1],
        tensor(torch.float32, 3).numpy().astype(">f4").astype("<f4"),
        [str(number) for number in range(LENGTH)],
        list(range(LENGTH)),
        [float(number) for number in range(LENGTH)],
        [{"a": torch.ones(2) * n, "b": (n, "b")} for n in range(LENGTH)],
        [Pair(torch.zeros(1), n) for n in range(LENGTH)],
        [np.float32(n) for n in range(LENGTH)],
        [torch.randn(2, requires_grad=True) for _ in range(LENGTH)],
    ]
)


@st.composite
def datasets(draw: Any, depth: int = 2) -> Any:
    kind = draw(
        st.sampled_from(
            ["tensors", "dict", "stack", "named"] + (["subset", "concat"] if depth else [])
        )
    )
    if kind == "tensors":
        return TensorDataset(tensor(torch.float32, 2), tensor(torch.int64))
    if kind == "dict":
        return from_columns({"x": tensor(torch.float32, 2), "y": tensor(torch.int64).numpy()})
    if kind == "stack":
        return StackDataset(*draw(st.lists(columns, min_size=1, max_size=3)))
    if kind == "named":
        return StackDataset(x=draw(columns), y=draw(columns))
    inner = draw(datasets(depth=depth - 1))
    if kind == "concat":
        return ConcatDataset([inner, draw(st.one_of(st.just(inner), datasets(depth=0)))])
    chosen = draw(st.lists(st.integers(-len(inner), len(inner) - 1), min_size=1, max_size=9))
    return Subset(inner, chosen)


@given(dataset=datasets(), batch_size=st.integers(1, 7), shuffle=st.booleans())
def test_batches_are_those_of_samples_bit_for_bit(dataset, batch_size, shuffle):
    everything = [[0], list(range(len(dataset)))]
    try:
        expected = by_samples(dataset, batch_size, shuffle)
        ragged = [default_collate([dataset[index] for index in indices]) for indices in everything]
    except (
        RuntimeError,
        TypeError,
        KeyError,
        AttributeError,
    ):  # a concatenation of different samples
        return
    assert same(
        values(open_stream(dataset, batch_size=batch_size, seed=5, shuffle=shuffle)), expected
    )
    loader = DataLoader(dataset, batch_sampler=everything)
    assert same(values(open_stream(loader, seed=5, shuffle=False)), ragged)


leaves = st.one_of(
    st.integers(-9, 9),
    st.floats(-1, 1),
    st.booleans(),
    st.text(max_size=3),
    st.sampled_from(
        [
            np.float32(1),
            np.int64(2),
            np.ones(2),
            torch.ones(2),
            torch.ones(2, 3).T,
            torch.ones(()),
            None,
        ]
    ),
    st.sampled_from(
        [torch.nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True), torch.ones(2).half()]
    ),
)
samples = st.recursive(
    leaves,
    lambda part: st.one_of(
        st.lists(part, max_size=3),
        st.tuples(part, part),
        st.builds(Pair, part, part),
        st.dictionaries(st.sampled_from("abc"), part, max_size=2),
    ),
    max_leaves=5,
)


def outcome(collate: Any, batch: Any) -> Any:
    try:
        return collate(batch)
    except Exception as error:
        return type(error)


@given(first=samples, others=st.lists(samples, max_size=1), copies=st.integers(1, 3))
def test_collation_gives_what_torch_gives(first, others, copies):
    batch = [first] * copies + others
    assert same(outcome(collate_samples, batch), outcome(default_collate, batch))


@given(seed=st.integers(0, 2**63), last=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40))
def test_seeds_of_a_batch_are_those_of_its_samples(seed, last):
    assert derive_seeds(seed, 2, 7, last=last) == [
        derive_seed(seed, 2, 7, number) for number in last
    ]


class Asked(Numbers):
    """Counts how often it is asked, and for how many samples."""

    def __getitems__(self, indices: list[int]) -> Any:
        self.asked.append(len(indices))
        return {
            "x": torch.tensor(indices),
            "name": [str(index) for index in indices],
            "y": np.array(indices) / 2,
        }

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.tensor(index), "name": str(index), "y": np.float64(index / 2)}


def test_a_data_set_that_returns_columns_is_asked_once_for_each_batch():
    dataset = Asked(12)
    batches = values(open_stream(dataset, batch_size=5, seed=5, shuffle=True))
    assert dataset.asked == [5, 5, 2]
    assert same(batches, by_samples(dataset, 5, True))


def test_a_batch_of_columns_is_a_copy():
    class Views(Asked):
        rows = torch.zeros(12)

        def __getitems__(self, indices: list[int]) -> Any:
            return {"x": self.rows[indices[0] : indices[-1] + 1]}

    open_stream(Views(12), batch_size=4, seed=5, shuffle=False).take(1)[0].value["x"].add_(1)
    assert Views.rows.sum() == 0


@pytest.mark.parametrize(
    "wrap", [lambda data: data, lambda data: StackDataset(data), lambda data: Subset(data, [1, 0])]
)
def test_an_overridden_method_is_not_passed_over(wrap):
    class Doubled(TensorDataset):
        def __getitem__(self, index):
            return tuple(2 * part for part in super().__getitem__(index))

    dataset = wrap(Doubled(tensor(), tensor()))
    stream = open_stream(dataset, batch_size=4, seed=5, shuffle=False)
    assert isinstance(stream, IndexedStream)
    assert same(values(stream), by_samples(dataset, 4, False))


def test_subclasses_of_containers_and_tensors_are_not_passed_over():
    class Reversed(Subset):
        def __getitem__(self, index):
            return super().__getitem__(len(self) - 1 - index)

        def __getitems__(self, indices):
            return [self[index] for index in indices]

    for dataset in (
        Reversed(TensorDataset(tensor()), range(12)),
        StackDataset(torch.nn.Parameter(tensor())),
    ):
        stream = open_stream(dataset, batch_size=4, seed=5, shuffle=False)
        assert isinstance(stream, IndexedStream)
        with torch.no_grad():
            assert [batch[0].tolist() for batch in values(stream)] == [
                batch[0].tolist() for batch in by_samples(dataset, 4, False)
            ]


def test_lists_are_columns_beside_a_tensor():
    stream = open_stream(
        ([torch.ones(2) * n for n in range(12)], tensor()), batch_size=5, seed=5, shuffle=True
    )
    assert isinstance(stream, TensorStream)
    assert all(torch.equal(x[:, 0], y) for x, y in values(stream))


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.fixture
def sparse_file(tmp_path):
    path = tmp_path / "rows.bin"
    with open(path, "wb") as file:
        file.truncate(10 * 2**30)
    return path


@pytest.mark.parametrize(
    "view", [lambda rows: rows, lambda rows: rows[:, ::2], lambda rows: rows[10:]]
)
def test_a_memory_mapped_file_of_10_gb_stays_in_its_file(sparse_file, view):
    rows = view(np.memmap(sparse_file, dtype=np.float32, mode="r", shape=(10 * 2**14, 2**14)))
    labels = torch.zeros(len(rows))
    before = resident()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream = open_stream((rows, labels), batch_size=16, seed=0, shuffle=True)
        first, second = stream.take(2)
    assert first.value[0].shape == (16, rows.shape[1])
    first.value[0].add_(1)  # the file cannot be written
    assert second.value[0].sum() == 0
    assert resident() - before < 100 * 2**20


def test_a_memory_mapped_file_is_read_by_the_workers_that_are_asked_for(tmp_path):
    written = np.memmap(tmp_path / "rows", dtype=np.float32, mode="w+", shape=(12, 2))
    written[:] = tensor(torch.float32, 2).numpy()
    dataset = StackDataset(written, tensor())
    stream = open_stream(DataLoader(dataset, batch_size=5, num_workers=1), seed=5, shuffle=False)
    assert isinstance(stream, IndexedStream)
    assert same(values(stream), by_samples(dataset, 5, False))


def doubled(samples: list[Any]) -> Any:
    """A collate function that writes into its samples."""
    for sample in samples:
        inputs = sample["x"] if isinstance(sample, dict) else sample[0]
        inputs.mul_(2)
    return default_collate(samples)


READ_ONLY = {
    "alone": lambda rows: {"data": rows, "collate_fn": doubled},
    "tuple": lambda rows: {"data": (rows, tensor()), "collate_fn": doubled},
    "dict": lambda rows: {"data": {"x": rows, "y": tensor()}, "collate_fn": doubled},
    "beside a list": lambda rows: {
        "data": (rows, [str(number) for number in range(12)]),
        "collate_fn": doubled,
    },
}


@pytest.mark.parametrize("form", READ_ONLY)
@pytest.mark.parametrize("is_file", [True, False], ids=["file", "bytes"])
def test_a_collate_function_may_write_into_samples_of_read_only_memory(tmp_path, form, is_file):
    array = tensor(torch.float32, 2).numpy().copy()
    np.save(tmp_path / "rows.npy", array)
    frozen = np.load(tmp_path / "rows.npy", mmap_mode="r")
    rows = frozen if is_file else np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)
    stream = open_stream(**READ_ONLY[form](rows), seed=0, shuffle=False)
    expected = values(open_stream(**READ_ONLY[form](array.copy()), seed=0, shuffle=False))
    assert same(values(stream, 0), expected)
    assert same(values(stream, 1), expected)
    assert np.array_equal(rows, array)


class Sized(Dataset[Any]):
    """Tensors of several kinds and sizes, below and above the size that is sent by value."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        large = torch.randn(100_000, generator=generator)
        return {
            "large": large,
            "small": large[:7].to(torch.bfloat16),
            "none": large[:0],
            "name": f"number {index}",
        }


def test_workers_send_the_same_batches_by_value_and_by_shared_memory():
    loader = DataLoader(Sized(), batch_size=2, num_workers=2)
    batches = values(open_stream(loader, seed=0, shuffle=False))
    assert same(batches, [default_collate([Sized()[n] for n in pair]) for pair in ((0, 1), (2, 3))])
    assert [batch["small"].is_shared() for batch in batches] == [False, False]
    assert [batch["large"].is_shared() for batch in batches] == [True, True]


def test_a_data_set_of_the_hub_gives_the_batches_of_its_samples():
    hub = pytest.importorskip("datasets", reason="the package datasets is not installed")
    dataset = hub.Dataset.from_dict(
        {"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "y": [1, 2, 3], "name": list("abc")}
    )
    for form in (None, "torch", "numpy"):
        rows = dataset.with_format(form)
        assert same(
            values(open_stream(rows, batch_size=2, seed=5, shuffle=True)), by_samples(rows, 2, True)
        )

"""`Trainer.tune`: settings that do not work are rows, and every kind of data is read as it can
be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from loopwright import Trainer
from loopwright.tuning.tune import Tuner
from tests.loops import build_net
from tests.tuning.tries import Samples, build, cross_entropy, own_optimizer, tried

pytestmark = pytest.mark.usefixtures("few_updates")


def only_row(tuning: Any) -> Any:
    (row,) = tuning.rows
    assert row.ratio is None
    assert row.samples_per_second is None
    assert tuning.suggestion == {}
    return row


def test_memory_that_runs_out_is_a_row():
    class Hungry(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 8:
                raise torch.OutOfMemoryError("out of memory")
            return super().forward(x)

    row = only_row(build(Hungry(6, 3)).tune(Samples(), batch_size=8, only=["batch_size"]))
    assert row.note == "memory ran out; it would fit in micro-batches"


def test_a_batch_that_would_not_fit_is_not_tried_on_the_cpu(monkeypatch):
    monkeypatch.setattr("loopwright.tuning.tune.usable", lambda: 100)
    row = only_row(build().tune(Samples(), batch_size=8, only=["batch_size"]))
    assert row.note == "a step would need about 0 MB"


def test_an_operator_that_lacks_bf16_is_a_row():
    class Picky(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            if out.dtype != torch.float32:
                raise RuntimeError('"solve" not implemented for BFloat16\nand more lines')
            return out

    row = only_row(build(Picky(6, 3)).tune(Samples(), only=["precision"]))
    assert row.note == 'RuntimeError: "solve" not implemented for BFloat16'


def test_data_that_workers_cannot_read_is_a_row():
    class Handle(Samples):
        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            if get_worker_info() is not None:
                raise OSError("the file is open in another process")
            return super().__getitem__(index)

    tuning = build().tune(Handle(), batch_size=8, only=["workers"])
    assert [row.ratio for row in tuning.rows] == [None, None]
    assert all("the file is open in another process" in row.note for row in tuning.rows)


def test_a_failing_compilation_is_a_row(monkeypatch):
    def fail(module: nn.Module) -> None:
        raise RuntimeError("no compiler on this machine")

    monkeypatch.setattr("loopwright.tuning.tune.compile_in_place", fail)
    tuner = Tuner(build(), Samples(), batch_size=8, only=["compile"], compile_choices=["model"])
    assert only_row(tuner.run()).note == "RuntimeError: no compiler on this machine"


def test_a_step_that_cannot_be_compiled_says_why():
    class Own(Trainer):
        def train_step(self, batch: Any) -> Any:
            return super().train_step(batch)

    model = build_net()
    trainer = Own(model, own_optimizer(model), cross_entropy, progress="silent")
    (row,) = (
        Tuner(trainer, Samples(), batch_size=8, only=["compile"], compile_choices=["step"])
        .run()
        .rows
    )
    assert row.note.startswith("not compiled: `train_step` is overridden")


def test_an_error_under_the_present_settings_is_no_row():
    class Broken(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("the model is broken")

    with pytest.raises(RuntimeError, match="the model is broken"):
        build(Broken(6, 3)).tune(Samples())


def test_tensors_need_no_workers(points):
    for data in (points, (points.tensors[0], points.tensors[1])):
        tuning = build().tune(data, batch_size=8, only=["workers", "batch_size"])
        assert tried(tuning)[:1] == ["batch size 16"]
        assert "straight from the tensors" in tuning.not_tried["workers"]


def test_a_loader_is_built_anew_with_all_its_other_settings():
    seen = []

    def collate(samples: list[Any]) -> Any:
        seen.append(len(samples))
        return torch.utils.data.default_collate(samples)

    loader = DataLoader(Samples(40), batch_size=8, shuffle=True, drop_last=True, collate_fn=collate)
    tuning = build().tune(loader, only=["workers", "batch_size"])
    assert tried(tuning)[:3] == ["1 worker", "2 workers", "batch size 16"]
    assert set(seen) <= {8, 16, 32}
    assert tuning.present["batch_size"] == 8


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Any:
        while True:
            yield torch.zeros(6), torch.tensor(0)


def test_an_iterable_data_set_is_taken_as_it_is():
    tuning = build().tune(Endless(), only=["workers", "batch_size", "threads"])
    assert tried(tuning) == ["2 threads"]
    assert set(tuning.not_tried) == {"workers", "batch_size"}


class Resumable:
    """Batches that go on from where they were left, over all epochs."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Any:
        for _ in range(5):
            self.position += 1
            yield torch.full((4, 6), float(self.position)), torch.zeros(4).long()

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def test_data_with_a_position_is_where_it_was_afterwards():
    data = Resumable()
    data.position = 7
    tuning = build().tune(data, only=["threads"])
    assert tried(tuning) == ["2 threads"]
    assert data.position == 7

"""`Trainer.tune`: real tries that are counted and not timed, nothing that stays of them, failures as rows."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

from loopwright import Callback, ConfigurationError, Trainer
from loopwright.callbacks import EMA
from loopwright.checkpoint.compare import compare_trees
from loopwright.errors import Interrupted
from loopwright.schedules import Cosine
from loopwright.tuning import tune
from loopwright.tuning.tune import Tuner
from loopwright.tuning.tune_settings import Settings
from tests.distributed.ranks import run_ranks
from tests.loops import assert_same_model, build_net

from .test_lr_find import Counting, everything

cross_entropy = nn.functional.cross_entropy
CHEAP = ["batch_size", "precision", "threads", "channels_last", "fused", "pin_memory"]


@pytest.fixture(autouse=True)
def few_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two turns of two timed updates each, and two cores on any machine."""
    monkeypatch.setattr(Tuner, "_num_updates", 2)
    monkeypatch.setattr(tune, "MIN_TURNS", 2)
    monkeypatch.setattr("loopwright.tuning.tune_settings.num_cores", lambda: 2)


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """A Python data set, which workers can read."""

    def __init__(self, number: int = 48) -> None:
        self.inputs = torch.randn(number, 6, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], (self.inputs[index].sum() > 0).long()


class Pictures(nn.Module):
    """A model with weights of four dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x)).mean((2, 3)))


def own_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def build(model: nn.Module | None = None, **options: Any) -> Trainer:
    model = build_net() if model is None else model
    options = {"optimizer": own_optimizer(model), "progress": "silent"} | options
    return Trainer(model, loss_fn=cross_entropy, **options)


def tried(tuning: Any) -> list[str]:
    return [row.words for row in tuning.rows]


# What is tried


def test_every_setting_of_a_data_set_is_tried_and_then_what_is_worth_it():
    tuning = build().tune(Samples(), batch_size=8, only=["workers", *CHEAP])
    assert tried(tuning)[:3] == ["1 worker", "2 workers", "batch size 16"]
    assert {"bf16", "2 threads", "fused optimizer"} <= set(tried(tuning))
    assert all(row.samples_per_second > 0 for row in tuning.rows if row.verdict != "failed")
    assert set(tuning.not_tried) == {"channels_last", "pin_memory"}
    assert tuning.present == {
        "workers": 0,
        "batch_size": 8,
        "compile": None,
        "precision": "fp32",
        "threads": 1,
        "channels_last": False,
        "fused": False,
        "pin_memory": False,
    }
    assert tuning.is_complete


def test_a_try_trains_with_its_setting():
    """Of each try: threads, autocast, memory format, implementation of the optimizer, size of the batch."""
    seen = []

    class Looking(Trainer):
        def train_step(self, batch: Any) -> Any:
            group, weight = self.optimizers["optimizer"].param_groups[0], self.model.conv.weight
            is_last = weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
            is_bf16, threads = torch.is_autocast_enabled("cpu"), torch.get_num_threads()
            seen.append((len(batch[0]), threads, is_bf16, is_last, bool(group["fused"])))
            return super().train_step(batch)

    model = Pictures()
    data = TensorDataset(torch.randn(64, 3, 5, 5), torch.zeros(64).long())
    trainer = Looking(model, own_optimizer(model), cross_entropy, progress="silent")
    before = model.conv.weight.stride()
    trainer.tune(data, batch_size=8, only=["batch_size", "threads", "precision", "channels_last", "fused"])
    present = (8, 1, False, False, False)
    assert {
        present,
        (16, 1, False, False, False),
        (8, 2, False, False, False),
        (8, 1, True, False, False),
        (8, 1, False, True, False),
        (8, 1, False, False, True),
    } <= set(seen)
    assert seen[0] == present
    assert torch.get_num_threads() == 1
    assert model.conv.weight.stride() == before


def test_turns_alternate_with_the_present_settings(monkeypatch):
    order = []
    measure = Tuner._measure

    def note(tuner: Tuner, arrangement: Any) -> float:
        order.append(arrangement.settings.fused)
        return measure(tuner, arrangement)

    monkeypatch.setattr(Tuner, "_measure", note)
    build().tune(Samples(), batch_size=8, only=["fused"])
    assert order == [False] * (1 + tune.MIN_TURNS) + [False, True] * tune.MIN_TURNS


def test_batches_are_doubled_while_they_are_faster_up_to_the_data_set(hand_clock):
    tuning = hand_clock.trainer(per_step=1e-3, per_sample=1e-5).tune(Samples(64), batch_size=8, only=["batch_size"])
    assert tried(tuning) == ["batch size 16", "batch size 32", "batch size 64"]
    ratios = [size / (1.0 + 0.01 * size) / (8 / 1.08) for size in (16, 32, 64)]
    assert [row.ratio for row in tuning.rows] == pytest.approx(ratios)
    assert [row.spread for row in tuning.rows] == pytest.approx([0, 0, 0], abs=1e-9)
    assert tuning.suggestion == {"batch_size": 64}


def test_batches_are_not_doubled_further_once_they_are_no_faster(hand_clock):
    tuning = hand_clock.trainer(per_step=0.0, per_sample=1e-5).tune(Samples(100), batch_size=8, only=["batch_size"])
    assert tried(tuning) == ["batch size 16"]
    assert tuning.rows[0].verdict == "no difference"
    assert tuning.suggestion == {}
    assert "Nothing is worth changing" in str(tuning)


def test_what_is_worth_it_is_tried_together_and_apart_from_what_changes_the_numbers(hand_clock):
    """Twice the threads take half the time, in a model whose time is by step."""
    trainer = hand_clock.trainer(per_step=1e-3, per_sample=0.0, is_threaded=True)
    tuning = trainer.tune(Samples(16), batch_size=8, only=["threads", "batch_size", "fused"])
    assert tried(tuning) == ["2 threads", "batch size 16", "fused optimizer", "2 threads, batch size 16"]
    assert [row.ratio for row in tuning.rows] == pytest.approx([2, 2, 1, 4])
    assert tuning.suggestion == {"threads": 2, "batch_size": 16}
    assert dict(tuning.best_of_same_numbers.settings) == {"threads": 2}
    text = str(tuning)
    assert text.index("torch.set_num_threads(2)") < text.index("Faster still, 4.00 ± 0.00 times as fast, but")


class HandClock:
    """A clock that only training moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def trainer(self, *, per_step: float, per_sample: float, is_threaded: bool = False) -> Trainer:
        clock = self

        class Slow(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                seconds = per_step + per_sample * len(x)
                clock.now += seconds / (torch.get_num_threads() if is_threaded else 1)
                return super().forward(x)

        return build(Slow(6, 3))


@pytest.fixture
def hand_clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    clock = HandClock()
    monkeypatch.setattr(Tuner, "_clock", lambda tuner: clock.now)
    return clock


def test_the_time_of_all_tries_is_bounded(hand_clock):
    """A model so slow that the second try begins after the bound that was said."""
    trainer = hand_clock.trainer(per_step=1000.0, per_sample=0.0)
    tuning = trainer.tune(Samples(), batch_size=8, only=["fused", "precision"])
    assert tried(tuning) == ["fused optimizer"]
    assert tuning.not_tried == {"precision": "the time was up"}
    assert not tuning.is_complete


# Nothing stays


@pytest.mark.parametrize("updates_before", [0, 7])
def test_the_trainer_is_left_exactly_as_it_was(points, updates_before, tmp_path):
    trainer = build(
        Counting(),
        optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9, fused=False),
        scheduler=Cosine(),
        callbacks=[EMA(0.9)],
        run_dir=tmp_path / "run",
    )
    trainer.setup()
    if updates_before:
        trainer.train(points, num_updates=updates_before, eval_data=points, batch_size=8)
    files = sorted(tmp_path.rglob("*"))
    before = everything(trainer, points)
    attributes = {name: id(value) for name, value in vars(trainer).items()}
    tuning = trainer.tune(points, batch_size=8, only=CHEAP)
    assert compare_trees(before, everything(trainer, points)) == ()
    assert {name: id(value) for name, value in vars(trainer).items()} == attributes
    assert sorted(tmp_path.rglob("*")) == files
    assert torch.get_num_threads() == 1
    assert len(tuning.rows) >= 4


def test_training_afterwards_is_the_training_of_a_trainer_that_tried_nothing(points):
    class Convolved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(4)
            self.conv, self.drop = nn.Conv2d(1, 3, (2, 6)), nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.drop(self.conv(torch.stack([x, x], 1)[:, None]).flatten(1))

    trainers = [build(Convolved()) for _ in range(2)]
    for trainer in trainers:
        trainer.train(points, num_updates=3, batch_size=8)
        if trainer is trainers[0]:
            trainer.tune(points, batch_size=8, only=CHEAP)
        trainer.train(points, 2, batch_size=8)
    assert_same_model(trainers[0].model, trainers[1].model)
    assert trainers[0].history.epochs == trainers[1].history.epochs
    assert trainers[0].model.conv.weight.stride() == trainers[1].model.conv.weight.stride()


def test_callbacks_of_the_user_take_no_part(points):
    class Loud(Callback):
        heard = 0

        def on_train_step_end(self, trainer, batch, result):
            self.heard += 1

    loud = Loud()
    build(callbacks=[loud]).tune(points, batch_size=8, only=["fused"])
    assert loud.heard == 0


def eager_compile(module: nn.Module) -> None:
    """As `compile_in_place`, without the seconds of the compiler."""
    module._compiled_call_impl = torch.compile(module._call_impl, backend="eager")


def test_compiled_parts_are_called_in_their_tries_only(points, monkeypatch):
    called = []

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.layer(x)

    class Note:
        def __init__(self, module: nn.Module) -> None:
            self.module = module

        def __call__(self, *args: Any) -> Any:
            called.append(type(self.module).__name__)
            return self.module._call_impl(*args)

    def note(module: nn.Module) -> None:
        module._compiled_call_impl = Note(module)

    monkeypatch.setattr("loopwright.tuning.tune_settings.compile_in_place", note)
    model = nn.Sequential(Block(), Block(), nn.Linear(6, 3))
    tuner = Tuner(build(model), points, batch_size=8, only=["compile"], compile_choices=["model", "blocks"])
    tuning = tuner.run()
    assert tried(tuning) == ['compile="model"', 'compile="blocks"']
    updates = (2 + 2) * tune.MIN_TURNS
    assert called == ["Sequential"] * updates + ["Block"] * 2 * updates
    assert not any(part._compiled_call_impl for part in model.modules())


def test_a_compiled_trainer_is_also_tried_as_it_is(points, monkeypatch):
    for place in ("runtime.fsdp", "tuning.tune_settings"):
        monkeypatch.setattr(f"loopwright.{place}.compile_in_place", eager_compile)
    model = build_net()
    trainer = build(model, compile="model")
    tuner = Tuner(trainer, points, batch_size=8, only=["compile"], compile_choices=["model"])
    assert tried(tuner.run()) == ["not compiled"]
    assert model._compiled_call_impl is not None
    assert trainer.compile_mode == trainer.runtime.compile == "model"


# Ctrl-C


class Interrupting(Samples):
    """Sends a signal to its own process when a sample is read for the n-th time."""

    def __init__(self, number: int, at: int, which: signal.Signals) -> None:
        super().__init__(number)
        self.left, self.which = at, which

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.which)
        return super().__getitem__(index)


def test_ctrl_c_gives_what_is_known_so_far():
    trainer, model = build(), build_net()
    turn = 4 * 8  # samples
    at = turn * (1 + tune.MIN_TURNS + 2 * tune.MIN_TURNS + 1) + 5  # in the second try
    tuning = trainer.tune(Interrupting(48, at, signal.SIGINT), batch_size=8, only=["fused", "precision"])
    assert tried(tuning) == ["fused optimizer"]
    assert not tuning.is_complete
    assert "Stopped early" in str(tuning)
    assert_same_model(trainer.model, model)
    assert torch.get_num_threads() == 1


def test_sigterm_ends_the_program_as_it_ends_any_training():
    trainer = build()
    with pytest.raises(Interrupted) as caught:
        trainer.tune(Interrupting(48, 50, signal.SIGTERM), batch_size=8, only=["fused"])
    assert caught.value.code == 143
    assert_same_model(trainer.model, build_net())


# Settings that do not work are rows


def only_row(tuning: Any) -> Any:
    (row,) = tuning.rows
    assert row.verdict == "failed"
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


def test_memory_that_runs_out_whatever_the_size_is_a_row():
    class Hungry(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if torch.is_autocast_enabled("cpu"):
                raise MemoryError
            return super().forward(x)

    assert only_row(build(Hungry(6, 3)).tune(Samples(), only=["precision"])).note == "memory ran out"


def test_a_batch_that_would_not_fit_is_not_tried_on_the_cpu(monkeypatch):
    monkeypatch.setattr("loopwright.tuning.tune.available_memory", lambda: 100)
    row = only_row(build().tune(Samples(), batch_size=8, only=["batch_size"]))
    assert row.note == "a step would need about 0 MB, but only 0 MB are available"


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
    assert [row.verdict for row in tuning.rows] == ["failed", "failed"]
    assert all("the file is open in another process" in row.note for row in tuning.rows)


def test_a_failing_compilation_is_a_row(monkeypatch):
    def fail(module: nn.Module) -> None:
        raise RuntimeError("no compiler on this machine")

    monkeypatch.setattr("loopwright.tuning.tune_settings.compile_in_place", fail)
    tuner = Tuner(build(), Samples(), batch_size=8, only=["compile"], compile_choices=["model"])
    assert only_row(tuner.run()).note == "RuntimeError: no compiler on this machine"


def test_a_step_that_cannot_be_compiled_says_why():
    class Own(Trainer):
        def train_step(self, batch: Any) -> Any:
            return super().train_step(batch)

    model = build_net()
    trainer = Own(model, own_optimizer(model), cross_entropy, progress="silent")
    (row,) = Tuner(trainer, Samples(), batch_size=8, only=["compile"], compile_choices=["step"]).run().rows
    assert row.note.startswith("not compiled: `train_step` is overridden")


def test_an_error_under_the_present_settings_is_no_row():
    class Broken(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("the model is broken")

    with pytest.raises(RuntimeError, match="the model is broken"):
        build(Broken(6, 3)).tune(Samples())


# Data


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


def test_a_loader_with_workers_is_tried_without():
    loader = DataLoader(Samples(40), batch_size=8, num_workers=1, persistent_workers=True)
    tuning = build().tune(loader, only=["workers"])
    assert tried(tuning) == ["0 workers", "2 workers"]
    assert not [row.note for row in tuning.rows if row.verdict == "failed"]


def test_a_batch_sampler_of_its_own_stays():
    sampler = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(range(40)), 8, drop_last=False)

    class Own(torch.utils.data.BatchSampler):
        pass

    loader = DataLoader(Samples(40), batch_sampler=Own(sampler.sampler, 8, False))
    tuning = build().tune(loader, only=["workers", "batch_size"])
    assert tried(tuning) == ["1 worker", "2 workers"]
    assert tuning.not_tried == {"batch_size": "the loader has its own batch sampler"}


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Any:
        while True:
            yield torch.zeros(6), torch.tensor(0)


@pytest.mark.parametrize("data", [Endless(), DataLoader(Endless(), batch_size=32)], ids=["data set", "loader"])
def test_an_iterable_data_set_is_read_in_other_batches_and_by_no_more_workers(data):
    tuning = build().tune(data, only=["workers", "batch_size"])
    assert tried(tuning)[:1] == ["batch size 64"]
    assert "unless the data set divides itself" in tuning.not_tried["workers"]


def test_a_list_of_batches_stays_as_it_is(points):
    batches = [(points.tensors[0][at : at + 8], points.tensors[1][at : at + 8]) for at in range(0, 32, 8)]
    tuning = build().tune(batches, only=["workers", "batch_size", "fused"])
    assert tried(tuning) == ["fused optimizer"]
    reason = "a list already has batches: pass the data set itself"
    assert tuning.not_tried == {"workers": reason, "batch_size": reason}
    assert "batches as they are" in str(tuning)


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
    tuning = build().tune(data, only=["fused"])
    assert tried(tuning) == ["fused optimizer"]
    assert data.position == 7


def test_the_data_of_the_trainer_is_the_default():
    class WithData(Trainer):
        def configure_data(self) -> tuple[Any, Any]:
            return Samples(), None

    model = build_net()
    tuning = WithData(model, own_optimizer(model), cross_entropy, progress="silent").tune(only=["fused"])
    assert tuning.present["batch_size"] == 32


# What is said


def test_progress_is_shown_as_the_tries_end(capsys):
    build(progress="lines").tune(Samples(), batch_size=8, only=["fused", "channels_last"])
    first, header, present, row, blank, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("Trying 1 setting on cpu with 2 cores: about 8 s; at most 30 s. Ctrl-C stops early")
    assert header.split() == ["tried", "samples/s", "ratio", "worth", "it"]
    assert present.split()[:2] == ["current", "settings"]
    assert row.startswith("fused optimizer")
    assert blank == ""
    assert rest[0] == "Current settings: 0 workers, batch size 8, not compiled, fp32, 1 thread."
    assert rest[1].startswith("Not tried: channels-last, because the model has no four-dimensional weights")


def test_a_silent_trainer_prints_nothing(capsys):
    build().tune(Samples(), batch_size=8, only=["fused"])
    assert capsys.readouterr().out == ""


def test_mistakes(mistake):
    trainer = build()
    with mistake("Arguments", '`trainer.tune(data, only=["worker"])`', ConfigurationError, match="does not know"):
        trainer.tune(Samples(), only=["worker"])
    with mistake("Arguments", "`trainer.tune(data, seconds=0)`", ConfigurationError, match="above 0"):
        trainer.tune(Samples(), seconds=0)
    with mistake("Data", "`trainer.tune` with a generator", ConfigurationError, match="can be read only once"):
        trainer.tune(batch for batch in [(torch.zeros(4, 6), torch.zeros(4).long())])


def tune_on_a_rank(rank: int) -> str:
    with pytest.raises(ConfigurationError) as caught:
        build(runtime="ddp").tune(Samples())
    return str(caught.value)


def test_on_several_processes_it_is_refused(mistake):
    text = run_ranks(tune_on_a_rank, 2)[0]
    assert "tune was called on 2 processes" in text
    mistake.said("Several processes", "`trainer.tune(data)`", text)


def test_an_import_of_the_trainer_does_not_import_what_tunes():
    assert "loopwright.tuning.tune" in sys.modules  # by this test
    source = Path(tune.__file__).parents[1] / "trainer.py"
    assert "\nfrom .tuning" not in source.read_text()


def test_settings_are_compared_by_value():
    assert Settings(threads=2).differences(Settings()) == {"threads": 2}


def test_a_step_that_stays_eager_beside_other_settings_is_not_part_of_the_row(monkeypatch):
    class Own(Trainer):
        def train_step(self, batch: Any) -> Any:
            return super().train_step(batch)

    model, compare = build_net(), Tuner._compare
    monkeypatch.setattr(Tuner, "_compare", lambda self, settings: compare(self, {**settings, "compile": "step"}))
    (row,) = Own(model, own_optimizer(model), cross_entropy, progress="silent").tune(Samples(), only=["fused"]).rows
    assert row.settings == {"fused": True}
    assert row.note.startswith("same numbers, to rounding; not compiled: `train_step` is overridden")


def test_a_part_that_torch_left_as_it_is_is_not_said_to_be_compiled(points, monkeypatch, hand_clock):
    monkeypatch.setattr("loopwright.tuning.tune_settings.compile_in_place", lambda module: None)
    trainer = hand_clock.trainer(per_step=1e-3, per_sample=0.0)
    (row,) = Tuner(trainer, points, batch_size=8, only=["compile"], compile_choices=["model"]).run().rows
    assert row.note.endswith("compiling took no time: torch seems to have compiled nothing")

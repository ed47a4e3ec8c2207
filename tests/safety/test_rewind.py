"""A run that goes back over a bad batch is, bit for bit, the run on data that lacks the batch."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR, LinearLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

from loopwright import Callback, ConfigurationError, DataError, NonFiniteLossError, Runtime, Schedule, Trainer
from loopwright.callbacks import EMA, Checkpoints, LimitBatches, NonFiniteGuard, Rewind
from loopwright.checkpoint.capture import capture
from loopwright.checkpoint.compare import compare_trees
from loopwright.data.order import permutation
from loopwright.data.stream import Stream
from loopwright.run import MetricsStore

from ..loops import assert_same_model, assert_same_optimizer, build_linear, build_net

cross_entropy = nn.functional.cross_entropy
Batches = list[tuple[Tensor, Tensor]]


def good_batches(num: int = 10) -> Batches:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(num, 4, 6, generator=generator)
    return [(x, (x.sum(1) > 0).long()) for x in inputs]


def poisoned(batches: Batches, *at: int, value: float = math.nan) -> Batches:
    """The batches with bad ones in front of those at these places."""
    result = []
    for number, (inputs, targets) in enumerate(batches):
        if number in at:
            result.append((torch.full_like(inputs, value), targets))
        result.append((inputs, targets))
    return result


def build(callbacks: Any = (), **options: Any) -> Trainer:
    net = build_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    defaults: dict[str, Any] = {"scheduler": Schedule(ExponentialLR(optimizer, 0.9), every="update")}
    options = defaults | {"progress": "silent"} | options
    return Trainer(net, optimizer, cross_entropy, callbacks=callbacks, **options)


def assert_same_run(trainer: Trainer, other: Trainer) -> None:
    assert_same_model(trainer.model, other.model)
    assert_same_optimizer(trainer.optimizers["optimizer"], other.optimizers["optimizer"])
    assert trainer.schedules["scheduler"].scheduler.state_dict() == other.schedules["scheduler"].scheduler.state_dict()
    assert list(trainer.history.steps["loss"]) == list(other.history.steps["loss"])
    assert list(trainer.history.steps["loss"].steps) == list(other.history.steps["loss"].steps)
    assert trainer.history.epochs == other.history.epochs
    own, others = trainer.progress.state_dict(), other.progress.state_dict()
    assert {k: v for k, v in own.items() if "seconds" not in k} == {
        k: v for k, v in others.items() if "seconds" not in k
    }


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipping": {"clip_norm": 0.5},
    "accumulating": {"accumulate": 3},
    "accumulating and clipping": {"accumulate": 4, "clip_norm": 0.1},
    "bf16": {"precision": "bf16"},
    "fp16 with a scaler": {"precision": "fp16", "accumulate": 2},
}


@pytest.mark.parametrize("place", [0, 1, 5, 9])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_run_that_went_back_is_the_run_without_the_batch(settings, place):
    good = good_batches()
    rewind = Rewind(every_updates=2)
    rewound = build([rewind], **settings)
    rewound.train(poisoned(good, place), num_epochs=1)
    clean = build(**settings)
    clean.train(good, num_epochs=1)
    assert rewind.num_rewinds == 1
    assert_same_run(rewound, clean)


def test_a_device_that_must_be_waited_for_is_asked_at_every_step():
    class Waiting(Runtime):
        @property
        def reads_are_free(self) -> bool:
            return False

    nets, good = [], good_batches()
    for batches, callbacks in ((poisoned(good, 4), [Rewind()]), (good, [])):
        nets.append(build_net())
        optimizer = torch.optim.Adam(nets[-1].parameters(), 0.01, fused=True)
        options: dict[str, Any] = {"callbacks": callbacks, "runtime": Waiting("cpu"), "progress": "silent"}
        Trainer(nets[-1], optimizer, cross_entropy, **options).train(batches, num_epochs=1)
    assert_same_model(*nets)


def test_the_generators_are_where_the_clean_run_leaves_them():
    states = []
    for batches, callbacks in ((poisoned(good_batches(), 4), [Rewind()]), (good_batches(), [])):
        build(callbacks).train(batches, num_epochs=1)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_the_same_bad_batch_is_left_out_of_every_epoch():
    rewind = Rewind(every_updates=3)
    rewound, clean = build([rewind]), build()
    rewound.train(poisoned(good_batches(), 4), num_epochs=3)
    clean.train(good_batches(), num_epochs=3)
    assert rewind.num_rewinds == 3
    assert_same_run(rewound, clean)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_two_bad_batches_after_one_snapshot_are_both_left_out(accumulate):
    rewound, clean = build([Rewind()], accumulate=accumulate), build(accumulate=accumulate)
    rewound.train(poisoned(good_batches(), 4, 5, 9), num_epochs=1)
    clean.train(good_batches(), num_epochs=1)
    assert_same_run(rewound, clean)


def build_steady(callbacks: Any = (), kind: type[Trainer] = Trainer) -> Trainer:
    """Without batch norm, so that a batch of large numbers has a large loss."""
    net = build_linear()
    return kind(net, torch.optim.SGD(net.parameters(), 0.01), cross_entropy, callbacks=callbacks, progress="silent")


def test_a_spike_in_the_loss_is_a_bad_batch_too():
    rewind = Rewind(spike=20.0, window=4, every_updates=3)
    rewound, clean = build_steady([rewind]), build_steady()
    rewound.train(poisoned(good_batches(), 7, value=1e4), num_epochs=1)
    clean.train(good_batches(), num_epochs=1)
    assert rewind.num_rewinds == 1
    assert_same_model(rewound.model, clean.model)
    assert rewound.history.epochs == clean.history.epochs


def test_without_spike_a_large_finite_loss_is_trained_on():
    rewind = Rewind(every_updates=3)
    trainer = build_steady([rewind])
    trainer.train(poisoned(good_batches(), 7, value=1e4), num_epochs=1)
    assert rewind.num_rewinds == 0
    assert trainer.progress.step == 11


def test_no_loss_is_a_spike_before_the_window_is_full():
    rewind = Rewind(spike=20.0, window=8)
    build_steady([rewind]).train(poisoned(good_batches(), 7, value=1e4)[:8], num_epochs=1)
    assert rewind.num_rewinds == 0


def test_the_spikes_of_a_mean_over_counted_items_are_seen():
    class Counting(Trainer):
        def compute_loss(self, outputs: Any, targets: Any) -> Any:
            return cross_entropy(outputs, targets, reduction="sum"), targets.numel()

    rewind = Rewind(20.0, 4)
    rewound, clean = build_steady([rewind], Counting), build_steady(kind=Counting)
    rewound.train(poisoned(good_batches(), 7, value=1e4), num_epochs=1)
    clean.train(good_batches(), num_epochs=1)
    assert rewind.num_rewinds == 1
    assert_same_model(rewound.model, clean.model)


def poisoned_points(points: TensorDataset, sample: int) -> TensorDataset:
    inputs = points.tensors[0].clone()
    inputs[sample] = math.nan
    return TensorDataset(inputs, points.tensors[1])


class ByIndex(Dataset):
    """The same samples one by one, with noise that the data set draws itself."""

    def __init__(self, points: TensorDataset) -> None:
        self.points = points

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = self.points[index]
        return inputs + 0.1 * torch.randn(6), target


def without_batch_of(points: TensorDataset, sample: int, batch_size: int) -> Batches:
    """The batches of the first epoch, but for the one that has the sample in it."""
    order = permutation(0, 0, len(points)).split(batch_size)
    return [tuple(t[indices] for t in points.tensors) for indices in order if sample not in indices.tolist()]


@pytest.mark.parametrize("sample", [0, 7, 36])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_of_a_data_set_the_batch_with_the_bad_sample_is_left_out(points, sample, accumulate):
    rewound, clean = build([Rewind(every_updates=2)], accumulate=accumulate), build(accumulate=accumulate)
    rewound.train(poisoned_points(points, sample), num_epochs=1, batch_size=5)
    clean.train(without_batch_of(points, sample, 5), num_epochs=1)
    assert_same_run(rewound, clean)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_randomness_inside_the_data_set_does_not_move(points, num_workers):
    class Dropping(Callback):
        """Leaves the batch out from the beginning."""

        def adapt_stream(self, stream: Stream, *, is_training: bool) -> Stream:
            from loopwright.data.skipping import SkippingStream

            class Without(SkippingStream):
                def begin(self, epoch: int) -> None:
                    super().begin(epoch)
                    self.skip({3: 5})

            return Without(stream) if is_training else stream

    bad = ByIndex(poisoned_points(points, int(permutation(0, 0, 37)[16])))
    loader = DataLoader(bad, batch_size=5, shuffle=True, num_workers=num_workers)
    rewound, clean = build([Rewind(every_updates=2)]), build([Dropping()])
    rewound.train(loader, num_epochs=1)
    clean.train(ByIndex(points), num_epochs=1, batch_size=5)
    assert_same_run(rewound, clean)


class InfiniteGradient(nn.Module):
    """A square root: at zero the value is finite and the slope is not."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net((self.scale * inputs).square().sum(1, keepdim=True).sqrt() * inputs.sign() + inputs)


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("place", [0, 3, 4, 9, 10])
def test_a_finite_loss_whose_gradient_is_not_is_traced_to_its_batch(clip_norm, accumulate, place):
    good, nets = good_batches(), []
    bad = (torch.zeros(4, 6), torch.tensor([0, 1, 0, 1]))
    for batches, callbacks in (([*good[:place], bad, *good[place:]], [Rewind(every_updates=4)]), (good, [])):
        torch.manual_seed(1)
        nets.append(InfiniteGradient())
        optimizer = torch.optim.SGD(nets[-1].parameters(), 0.01)
        options: dict[str, Any] = {"clip_norm": clip_norm, "accumulate": accumulate, "progress": "silent"}
        Trainer(nets[-1], optimizer, cross_entropy, callbacks=callbacks, **options).train(batches, num_epochs=1)
    assert_same_model(*nets)


def test_averages_and_callbacks_go_back_too():
    class Counter(Callback):
        def __init__(self) -> None:
            self.steps = 0

        def on_train_step_end(self, trainer: Trainer, batch: Any, result: Any) -> None:
            self.steps += 1

        def state_dict(self) -> dict[str, Any]:
            return {"steps": self.steps}

        def load_state_dict(self, state: Any) -> None:
            self.steps = state["steps"]

    counters, averages = [Counter(), Counter()], [EMA(0.9), EMA(0.9)]
    build([averages[0], Rewind(), counters[0]]).train(poisoned(good_batches(), 6), num_epochs=1)
    build([averages[1], counters[1]]).train(good_batches(), num_epochs=1)
    assert counters[0].steps == counters[1].steps == 10
    for name, value in averages[0].state["model"].items():
        assert torch.equal(value, averages[1].state["model"][name])


def test_the_batch_limit_counts_what_is_left_after_the_bad_one_is_out():
    limits = [LimitBatches(train=8), LimitBatches(train=7)]
    rewound, clean = build([limits[0], Rewind()]), build([limits[1]])
    rewound.train(poisoned(good_batches(), 3), num_epochs=1)
    clean.train(good_batches(), num_epochs=1)
    assert_same_run(rewound, clean)


@pytest.mark.parametrize("limit", [{"num_updates": 7}, {"num_samples": 26}])
def test_a_limit_counts_good_steps_only(limit):
    rewound, clean = build([Rewind()]), build()
    rewound.train(poisoned(good_batches(), 3, 6), **limit)
    clean.train(good_batches(), **limit)
    assert_same_run(rewound, clean)


def test_a_second_call_goes_on_in_the_epoch_without_the_batch():
    rewound, clean = build([Rewind()]), build()
    bad, good = poisoned(good_batches(), 2, 6), good_batches()
    for trainer, batches in ((rewound, bad), (clean, good)):
        trainer.train(batches, num_updates=4)
        trainer.train(batches, num_updates=9)
    assert_same_run(rewound, clean)


def test_a_run_that_began_without_it_goes_on_with_it(tmp_path):
    bad, good = poisoned(good_batches(), 6), good_batches()
    first = build()
    first.train(bad, num_updates=4)
    first.save(tmp_path / "saved")
    second, clean = build([Rewind()]), build()
    second.load(tmp_path / "saved")
    second.train(bad, num_updates=6)
    for num_updates in (4, 6):
        clean.train(good, num_updates=num_updates)
    assert_same_run(second, clean)


def test_after_the_limit_the_next_bad_batch_is_an_error_that_says_so():
    trainer = build([Rewind(max_rewinds=2)])
    with pytest.raises(NonFiniteLossError, match=r"in batch 8 of epoch 1, after 2 rewinds.*raise `max_rewinds`"):
        trainer.train(poisoned(good_batches(), 1, 4, 7), num_epochs=1)


def test_metrics_of_steps_that_were_undone_are_not_in_the_store(tmp_path, monkeypatch):
    monkeypatch.setattr("loopwright.loop.FLUSH_SECONDS", 0.0)  # every step is written at once
    rewound = build([Rewind()], run_dir=tmp_path / "rewound")
    rewound.train(poisoned(good_batches(), 6), num_epochs=1)
    build(run_dir=tmp_path / "clean").train(good_batches(), num_epochs=1)
    rows = [MetricsStore(tmp_path / name / "metrics.sqlite", read_only=True) for name in ("rewound", "clean")]
    assert len(rows[0].steps("loss")) == 10
    assert rows[0].steps("loss") == rows[1].steps("loss")
    assert rows[0].epochs() == rows[1].epochs()


class KilledError(Exception):
    pass


class Killer(Callback):
    def __init__(self, after_update: int) -> None:
        self.after_update = after_update

    def on_log(self, trainer: Trainer, rows: Any) -> None:
        if trainer.progress.update == self.after_update:
            raise KilledError


@pytest.mark.parametrize("every_updates", [2, 50])
@pytest.mark.parametrize("after_update", [3, 5, 6, 8, 14])
def test_a_run_that_is_killed_after_it_went_back_resumes_exactly(tmp_path, monkeypatch, every_updates, after_update):
    monkeypatch.setattr("loopwright.loop.FLUSH_SECONDS", 0.0)
    batches = poisoned(good_batches(), 4, 6)

    def start(name: str, *more: Callback) -> Trainer:
        rewind = Rewind(every_updates=every_updates, max_rewinds=4)
        return build([rewind, Checkpoints(every_updates=1), *more], run_dir=tmp_path / name)

    with pytest.raises(KilledError):
        start("run", Killer(after_update)).train(batches, num_epochs=2)
    resumed, straight = start("run"), start("straight")
    for trainer in (resumed, straight):
        trainer.train(batches, num_epochs=2)
    assert compare_trees(capture(resumed), capture(straight)) == ()
    clean = build()
    clean.train(good_batches(), num_epochs=2)
    assert_same_run(resumed, clean)


def test_checkpoints_of_undone_updates_are_removed(tmp_path):
    class Noting(Callback):
        has_rewound = False
        found: tuple[int, list[str]] = (0, [])

        def on_rewind(self, trainer: Trainer) -> None:
            self.has_rewound = True

        def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
            if self.has_rewound:
                names = (path.name for path in trainer.run.checkpoints.iterdir() if path.is_dir())
                self.found, self.has_rewound = (trainer.progress.update, sorted(names)), False

    noting = Noting()
    callbacks = [Rewind(every_updates=4), Checkpoints(every_updates=1, keep=3), noting]
    build(callbacks, run_dir=tmp_path / "run").train(poisoned(good_batches(), 6), num_epochs=1)
    assert noting.found == (4, ["update-00000004"])


def test_time_spent_on_undone_steps_still_counts():
    seconds = []

    class Noting(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            seconds.append(trainer.progress.seconds)

    build([Rewind(), Noting()]).train(poisoned(good_batches(), 6), num_epochs=1)
    assert seconds == sorted(seconds)


def test_a_scheduler_of_epochs_is_stepped_once_an_epoch():
    schedule = {"scheduler": partial(LinearLR, total_iters=4)}
    rewound, clean = build([Rewind()], **schedule), build(**schedule)
    rewound.train(poisoned(good_batches(), 6), num_epochs=2)
    clean.train(good_batches(), num_epochs=2)
    assert_same_run(rewound, clean)


def test_it_says_what_it_does(capsys):
    build([Rewind()], progress="lines").train(poisoned(good_batches(), 2), num_epochs=1)
    assert "in batch 3 of epoch 1; back to update 0, to go on without it (rewind 1 of 3)." in capsys.readouterr().out


def test_data_that_cannot_be_sought_in_is_refused_before_the_first_step():
    with pytest.raises(DataError):
        build([Rewind()]).train(iter(good_batches()), num_epochs=1)


def test_two_guards_are_refused():
    with pytest.raises(ConfigurationError, match="pass only one of them"):
        build([Rewind(), NonFiniteGuard("skip")]).train(good_batches(), num_epochs=1)


@pytest.mark.parametrize(
    "options", [{"spike": 1.0}, {"spike": -2.0}, {"window": 0}, {"every_updates": 0}, {"max_rewinds": 1.5}]
)
def test_settings_that_make_no_sense_are_refused(options):
    with pytest.raises(ConfigurationError, match=f"{next(iter(options))}="):
        Rewind(**options)

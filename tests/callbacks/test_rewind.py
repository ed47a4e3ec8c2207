"""A run that goes back over a bad batch is, bit for bit, the run on data that lacks the batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from loopwright import Callback, Trainer
from loopwright.callbacks import Rewind
from loopwright.data.open import Stream
from loopwright.data.order import permutation

from ..loops import assert_same_model, build_linear
from .rewinding import Batches, assert_same_run, build, cross_entropy, good_batches, poisoned

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


def test_the_same_bad_batch_is_left_out_of_every_epoch():
    rewind = Rewind(every_updates=3)
    rewound, clean = build([rewind]), build()
    rewound.train(poisoned(good_batches(), 4), num_epochs=3)
    clean.train(good_batches(), num_epochs=3)
    assert rewind.num_rewinds == 3
    assert_same_run(rewound, clean)


def build_steady(callbacks: Any = (), kind: type[Trainer] = Trainer) -> Trainer:
    """Without batch norm, so that a batch of large numbers has a large loss."""
    net = build_linear()
    return kind(
        net,
        torch.optim.SGD(net.parameters(), 0.01),
        cross_entropy,
        callbacks=callbacks,
        progress="silent",
    )


def test_a_spike_in_the_loss_is_a_bad_batch_too():
    rewind = Rewind(spike=20.0, window=4, every_updates=3)
    rewound, clean = build_steady([rewind]), build_steady()
    rewound.train(poisoned(good_batches(), 7, value=1e4), num_epochs=1)
    clean.train(good_batches(), num_epochs=1)
    assert rewind.num_rewinds == 1
    assert_same_model(rewound.model, clean.model)
    assert rewound.history.epochs == clean.history.epochs


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
    return [
        tuple(t[indices] for t in points.tensors)
        for indices in order
        if sample not in indices.tolist()
    ]


@pytest.mark.parametrize("sample", [0, 7, 36])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_of_a_data_set_the_batch_with_the_bad_sample_is_left_out(points, sample, accumulate):
    rewound, clean = (
        build([Rewind(every_updates=2)], accumulate=accumulate),
        build(accumulate=accumulate),
    )
    rewound.train(poisoned_points(points, sample), num_epochs=1, batch_size=5)
    clean.train(without_batch_of(points, sample, 5), num_epochs=1)
    assert_same_run(rewound, clean)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_randomness_inside_the_data_set_does_not_move(points, num_workers):
    class Dropping(Callback):
        """Leaves the batch out from the beginning."""

        def adapt_stream(self, stream: Stream, *, is_training: bool) -> Stream:
            from loopwright.data.stream import SkippingStream

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
        return self.net(
            (self.scale * inputs).square().sum(1, keepdim=True).sqrt() * inputs.sign() + inputs
        )


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("place", [0, 3, 4, 9, 10])
def test_a_finite_loss_whose_gradient_is_not_is_traced_to_its_batch(clip_norm, accumulate, place):
    good, nets = good_batches(), []
    bad = (torch.zeros(4, 6), torch.tensor([0, 1, 0, 1]))
    for batches, callbacks in (
        ([*good[:place], bad, *good[place:]], [Rewind(every_updates=4)]),
        (good, []),
    ):
        torch.manual_seed(1)
        nets.append(InfiniteGradient())
        optimizer = torch.optim.SGD(nets[-1].parameters(), 0.01)
        options: dict[str, Any] = {
            "clip_norm": clip_norm,
            "accumulate": accumulate,
            "progress": "silent",
        }
        Trainer(nets[-1], optimizer, cross_entropy, callbacks=callbacks, **options).train(
            batches, num_epochs=1
        )
    assert_same_model(*nets)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_two_bad_batches_after_one_snapshot_are_both_left_out(accumulate):
    rewound, clean = build([Rewind()], accumulate=accumulate), build(accumulate=accumulate)
    rewound.train(poisoned(good_batches(), 4, 5, 9), num_epochs=1)
    clean.train(good_batches(), num_epochs=1)
    assert_same_run(rewound, clean)


def test_no_loss_is_a_spike_before_the_window_is_full():
    rewind = Rewind(spike=20.0, window=8)
    build_steady([rewind]).train(poisoned(good_batches(), 7, value=1e4)[:8], num_epochs=1)
    assert rewind.num_rewinds == 0


def test_the_generators_are_where_the_clean_run_leaves_them():
    states = []
    for batches, callbacks in ((poisoned(good_batches(), 4), [Rewind()]), (good_batches(), [])):
        trainer = build(callbacks)
        trainer.train(batches, num_epochs=1)
        states.append(trainer.run.generators.state()["torch"])
    assert torch.equal(*states)

"""The trainer against hand-written loops, bit for bit, for one model and one optimizer."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright import StepResult, Trainer
from loopwright.data.order import permutation

from .loops import (
    assert_same_model,
    assert_same_optimizer,
    batches,
    build_linear,
    build_net,
    train_by_hand,
)

cross_entropy = nn.functional.cross_entropy


def trainer_for(model: nn.Module, optimizer: object, **options: object) -> Trainer:
    return Trainer(model, optimizer, cross_entropy, progress="silent", **options)  # type: ignore[arg-type]


OPTIMIZERS = {
    "adam": partial(torch.optim.Adam, lr=0.01),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01),
}
SETTINGS = {
    "plain": {},
    "accumulating with a short last window": {"accumulate": 3},
    "accumulating more than an epoch has": {"accumulate": 9},
    "clipping the norm": {"clip_norm": 0.3},
    "clipping values": {"clip_value": 0.01},
    "clipping both while accumulating": {"clip_norm": 0.05, "clip_value": 0.02, "accumulate": 2},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_supervised_training_is_the_hand_written_loop(points, build, settings):
    ours, theirs = build_net(), build_net()
    optimizer = build(ours.parameters())
    trainer_for(ours, optimizer, **settings).train(points, num_epochs=3, batch_size=8)
    other = build(theirs.parameters())
    train_by_hand(theirs, other, points, epochs=3, **settings)
    assert_same_model(ours, theirs)
    assert_same_optimizer(optimizer, other)


def test_the_seed_decides_order_and_dropout(points):
    first, second = build_net(), build_net()
    trainer_for(first, partial(torch.optim.SGD, lr=0.1), seed=1).train(points, batch_size=8)
    trainer_for(second, partial(torch.optim.SGD, lr=0.1), seed=2).train(points, batch_size=8)
    assert not torch.equal(first[0].weight, second[0].weight)


def test_a_shuffling_loader_gives_the_same_run_as_its_data_set(points):
    first, second = build_net(), build_net()
    trainer_for(first, partial(torch.optim.SGD, lr=0.1)).train(points, 2, batch_size=8)
    loader = DataLoader(points, batch_size=8, shuffle=True)
    trainer_for(second, partial(torch.optim.SGD, lr=0.1)).train(loader, 2)
    assert_same_model(first, second)


def test_bf16_training_is_the_hand_written_autocast_loop(points):
    ours, theirs = build_net(), build_net()
    optimizer, other = (torch.optim.Adam(net.parameters(), 0.01) for net in (ours, theirs))
    trainer = trainer_for(ours, optimizer, precision="bf16", clip_norm=1.0, accumulate=2)
    trainer.train(points, num_epochs=2, batch_size=8)
    train_by_hand(
        theirs, other, points, epochs=2, autocast=torch.bfloat16, clip_norm=1.0, accumulate=2
    )
    assert_same_model(ours, theirs)
    assert_same_optimizer(optimizer, other)


def test_fp16_training_is_the_hand_written_loop_with_a_scaler(points):
    ours, theirs = build_net(), build_net()
    optimizer, other = (
        torch.optim.SGD(net.parameters(), 0.05, momentum=0.9) for net in (ours, theirs)
    )
    scaler = torch.amp.GradScaler("cpu")
    trainer = trainer_for(ours, optimizer, precision="fp16", clip_norm=1.0)
    trainer.train(points, num_epochs=2, batch_size=8)
    train_by_hand(
        theirs, other, points, epochs=2, autocast=torch.float16, clip_norm=1.0, scaler=scaler
    )
    assert_same_model(ours, theirs)
    assert trainer.run.updates.by_name["optimizer"].scaler.state_dict() == scaler.state_dict()


# Accumulation is the big batch


def double_points(points: TensorDataset) -> TensorDataset:
    return TensorDataset(points.tensors[0].double(), points.tensors[1])


@pytest.mark.parametrize(
    ("batch_size", "accumulate"), [(8, 5), (5, 8), (10, 4), (1, 37), (37, 1), (30, 2)]
)
def test_a_window_of_ragged_batches_is_the_big_batch(points, batch_size, accumulate):
    data = double_points(points)
    ours, theirs = build_linear().double(), build_linear().double()
    trainer_for(ours, torch.optim.SGD(ours.parameters(), 0.5), accumulate=accumulate).train(
        data, batch_size=batch_size
    )
    loss = cross_entropy(theirs(data.tensors[0]), data.tensors[1])
    loss.backward()
    torch.optim.SGD(theirs.parameters(), 0.5).step()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-12, atol=1e-14)


def ragged(points: TensorDataset, returned: str) -> type[Trainer]:
    """A trainer whose sample i has i % 4 tokens (some samples have none), each with the same
    loss."""

    class Ragged(Trainer):
        def split_batch(self, batch):
            return batch[0], (batch[1], batch[2])

        def compute_loss(self, outputs, targets):
            labels, tokens = targets
            total = (cross_entropy(outputs, labels, reduction="none") * tokens).sum()
            count = {"tensor": tokens.sum(), "number": tokens.sum().item()}.get(returned)
            return StepResult(total, count=tokens.sum()) if count is None else (total, count)

    return Ragged


@pytest.mark.parametrize("returned", ["tensor", "number", "result"])
@pytest.mark.parametrize(("batch_size", "accumulate"), [(37, 1), (8, 5), (3, 13), (1, 37)])
def test_sums_over_ragged_tokens_in_any_number_of_batches_are_the_big_batch(
    points, batch_size, accumulate, returned
):
    data = double_points(points)
    tokens = torch.arange(37) % 4
    data = TensorDataset(*data.tensors, tokens)
    ours, theirs = build_linear().double(), build_linear().double()
    trainer = ragged(points, returned)(
        ours, torch.optim.SGD(ours.parameters(), 0.5), accumulate=accumulate, progress="silent"
    )
    history = trainer.train(data, batch_size=batch_size)
    losses = cross_entropy(theirs(data.tensors[0]), data.tensors[1], reduction="none")
    loss = (losses * tokens).sum() / tokens.sum()
    loss.backward()
    torch.optim.SGD(theirs.parameters(), 0.5).step()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-12, atol=1e-14)
    assert history["loss"] == [pytest.approx(loss.item(), rel=1e-12)]


def test_every_window_of_sums_is_divided_by_what_it_counted_itself(points):
    tokens = torch.arange(37) % 4
    data = TensorDataset(*double_points(points).tensors, tokens)
    ours, theirs = build_linear().double(), build_linear().double()
    optimizer = torch.optim.SGD(theirs.parameters(), 0.5)
    trainer = ragged(points, "tensor")(
        ours, torch.optim.SGD(ours.parameters(), 0.5), accumulate=2, progress="silent"
    )
    trainer.train(data, num_epochs=2, batch_size=8)
    for epoch in range(2):
        for inputs, targets, counts in batches(data, 16, epoch):
            losses = cross_entropy(theirs(inputs), targets, reduction="none")
            ((losses * counts).sum() / counts.sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-12, atol=1e-14)


# What the last step leaves behind


def test_gradients_from_before_training_do_not_count(points):
    ours, theirs = build_net(), build_net()
    ours(points.tensors[0]).sum().backward()
    ours.load_state_dict(theirs.state_dict())  # batch norm counted the batch above
    optimizer = torch.optim.SGD(ours.parameters(), 0.1)
    trainer_for(ours, optimizer).train(points, batch_size=8)
    train_by_hand(theirs, torch.optim.SGD(theirs.parameters(), 0.1), points)
    assert_same_model(ours, theirs)


# Batches of every form


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(6, 3)

    def forward(self, left, right):
        return self.layer(torch.cat([left, right], 1))


class Named(TwoInputs):
    def forward(self, left=None, right=None):
        return super().forward(left, right)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return nn.functional.mse_loss(self.layer(x), x)


x, y = torch.randn(8, 6, generator=torch.Generator().manual_seed(3)), torch.arange(8) % 3
FORMS = {
    "a pair": (lambda: nn.Linear(6, 3), (x, y)),
    "a list": (lambda: nn.Linear(6, 3), [x, y]),
    "three tensors": (TwoInputs, (x[:, :2], x[:, 2:], y)),
    "a nested pair": (TwoInputs, ((x[:, :2], x[:, 2:]), y)),
    "a dict with labels": (Named, {"left": x[:, :2], "right": x[:, 2:], "labels": y}),
    "a dict with y": (Named, {"left": x[:, :2], "right": x[:, 2:], "y": y}),
    "a dict in a pair": (Named, ({"left": x[:, :2], "right": x[:, 2:]}, y)),
}


@pytest.mark.parametrize(("build", "batch"), FORMS.values(), ids=FORMS.keys())
def test_batches_of_inputs_and_targets_train_in_every_form(build, batch):
    torch.manual_seed(1)
    ours = build()
    torch.manual_seed(1)
    theirs = nn.Linear(6, 3)
    trainer_for(ours, torch.optim.SGD(ours.parameters(), 0.1)).train([batch])
    cross_entropy(theirs(x), y).backward()
    torch.optim.SGD(theirs.parameters(), 0.1).step()
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("batch", [x, (x,), [x]], ids=["tensor", "1-tuple", "1-list"])
def test_a_batch_without_targets_goes_to_a_model_whose_output_is_the_loss(batch):
    ours, theirs = Autoencoder(), Autoencoder()
    Trainer(
        ours, torch.optim.SGD(ours.parameters(), 0.1), lambda loss: loss, progress="silent"
    ).train([batch])
    theirs(x).backward()
    torch.optim.SGD(theirs.parameters(), 0.1).step()
    assert_same_model(ours, theirs)


class Output:
    def __init__(self, loss: torch.Tensor) -> None:
        self.loss = loss


class OwnLoss(Named):
    def forward(self, left, right, labels):
        return Output(cross_entropy(super().forward(left, right), labels))


class OwnLossDict(Named):
    def forward(self, left, right, labels):
        return {"loss": cross_entropy(super().forward(left, right), labels), "logits": labels}


@pytest.mark.parametrize("build", [OwnLoss, OwnLossDict])
def test_a_model_that_carries_its_own_loss_needs_no_loss_function(build):
    ours = build()
    theirs = TwoInputs()
    batch = {"left": x[:, :2], "right": x[:, 2:], "labels": y}
    history = Trainer(ours, torch.optim.SGD(ours.parameters(), 0.1), progress="silent").train(
        [batch]
    )
    loss = cross_entropy(theirs(x[:, :2], x[:, 2:]), y)
    loss.backward()
    torch.optim.SGD(theirs.parameters(), 0.1).step()
    assert_same_model(ours, theirs)
    assert history["loss"] == [loss.item()]


def test_named_losses_are_optimised_as_their_sum_and_reported_by_name(points):
    ours, theirs = build_linear(), build_linear()

    def losses(outputs, targets):
        return {"fit": cross_entropy(outputs, targets), "size": outputs.square().mean()}

    trainer = Trainer(ours, torch.optim.SGD(ours.parameters(), 0.1), losses, progress="silent")
    history = trainer.train([(x, y)])
    named = losses(theirs(x), y)
    (named["fit"] + named["size"]).backward()
    torch.optim.SGD(theirs.parameters(), 0.1).step()
    assert_same_model(ours, theirs)
    assert history.epochs[0]["fit"] == named["fit"].item()
    assert history.epochs[0]["size"] == named["size"].item()
    assert history.epochs[0]["loss"] == (named["fit"] + named["size"]).item()


def test_the_order_of_samples_is_the_permutation_of_seed_and_epoch(points):
    seen = []

    class Looking(Trainer):
        def on_train_step_end(self, batch, result):
            seen.extend(batch[1].tolist())

    indexed = TensorDataset(points.tensors[0], torch.arange(37))
    net = nn.Linear(6, 37)
    Looking(net, partial(torch.optim.SGD, lr=0.1), cross_entropy, seed=5, progress="silent").train(
        indexed, 2, batch_size=8
    )
    assert seen == permutation(5, 0, 37).tolist() + permutation(5, 1, 37).tolist()
    assert (
        len({tuple(permutation(seed, epoch, 37).tolist()) for seed in (5, 6) for epoch in (0, 1)})
        == 4
    )

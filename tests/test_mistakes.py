"""Bad input gets an error that says what to do, and every exception surfaces."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from loopwright import Callback, ConfigurationError, DataError, Trainer

from .loops import build_net

cross_entropy = nn.functional.cross_entropy
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def build_trainer(**options: object) -> Trainer:
    return Trainer(build_net(), sgd, cross_entropy, progress="silent", **options)  # type: ignore[arg-type]


# Data that cannot be trained on


@pytest.mark.parametrize(
    "data", [[], TensorDataset(torch.zeros(0, 6), torch.zeros(0).long())], ids=["list", "set"]
)
def test_empty_data_is_refused_with_a_remedy(data):
    with pytest.raises(
        DataError,
        match=r"training data is empty \(epoch 1\): pass a data set or loader with at least",
    ):
        build_trainer().train(data)


@pytest.mark.parametrize(
    "data", [[], TensorDataset(torch.zeros(0, 6), torch.zeros(0).long())], ids=["list", "set"]
)
def test_empty_evaluation_data_is_refused_with_a_remedy(points, data):
    with pytest.raises(DataError, match="evaluation data is empty"):
        build_trainer().evaluate(data)


def test_an_iterator_that_is_used_up_is_refused_in_the_second_epoch(points):
    data = iter([points.tensors])
    with pytest.raises(
        DataError, match=r"is empty in this epoch.*can be used only once.*\(epoch 2\)"
    ):
        build_trainer().train(data, num_epochs=2)


def test_data_that_ends_before_its_length_is_refused_with_both_numbers():
    class Boasting(IterableDataset):
        def __iter__(self):
            return ((torch.ones(6), 1) for _ in range(20))

        def __len__(self):
            return 40

    with pytest.raises(
        DataError, match=r"ended early: 3 batches in epoch 1, but its length is 5.*__len__"
    ):
        build_trainer().train(Boasting(), batch_size=8)


@pytest.mark.parametrize(
    "is_loader", [(True, False), (False, True)], ids=["training", "evaluation"]
)
def test_a_batch_size_is_for_the_data_set_where_the_other_data_is_a_loader(points, is_loader):
    data, eval_data = (
        DataLoader(points, batch_size=37) if loader else points for loader in is_loader
    )
    trainer = build_trainer()
    trainer.train(data, eval_data=eval_data, batch_size=10)
    assert trainer.progress.step == (1 if is_loader[0] else 4)


def test_a_batch_size_for_a_loader_alone_is_refused(points):
    with pytest.raises(ConfigurationError, match="batch_size was given together with a DataLoader"):
        build_trainer().train(DataLoader(points), batch_size=10)


def test_no_data_at_all_names_configure_data():
    with pytest.raises(
        ConfigurationError, match="pass it to `train`, or override `configure_data`"
    ):
        build_trainer().train()


def test_configure_data_gives_training_and_evaluation_data(points):
    class WithData(Trainer):
        def configure_data(self):
            return points, points

    trainer = WithData(build_net(), sgd, cross_entropy, progress="silent")
    assert set(trainer.train().names) == {"loss", "eval_loss"}


def test_evaluation_data_given_to_train_goes_before_configure_data(points):
    class WithData(Trainer):
        def configure_data(self):
            return points, None

    trainer = WithData(build_net(), sgd, cross_entropy, progress="silent")
    assert set(trainer.train(eval_data=points).names) == {"loss", "eval_loss"}


# Mistakes


def test_no_optimizer_is_refused_with_both_remedies(points):
    with pytest.raises(
        ConfigurationError,
        match="no optimizer: pass `optimizer=` or override `configure_optimizers`",
    ):
        Trainer(build_net(), None, cross_entropy).train(points)


def test_no_loss_is_refused_with_every_remedy(points):
    net = build_net()
    with pytest.raises(
        ConfigurationError,
        match=r"`loss_fn` is None.*float32 tensor of shape \(8, 3\).*compute_loss",
    ):
        Trainer(net, sgd, progress="silent").train(points, batch_size=8)


def test_a_batch_the_model_does_not_take_says_what_was_passed_and_what_to_override(points):
    narrow = TensorDataset(points.tensors[0][:, :4], points.tensors[1])
    with pytest.raises(RuntimeError) as caught:
        build_trainer().train(narrow, batch_size=8)
    (note,) = caught.value.__notes__
    assert "called with a float32 tensor of shape (8, 4)" in note
    assert "override `split_batch`" in note
    assert "`forward`" in note


def test_a_way_to_show_progress_that_does_not_exist_is_refused(points):
    with pytest.raises(
        ConfigurationError, match="progress='loud': use one of auto, bar, lines, silent"
    ):
        Trainer(build_net(), sgd, cross_entropy, progress="loud").train(points)


# Exceptions


class Hearing(Callback):
    def __init__(self) -> None:
        self.heard: list[BaseException] = []

    def on_exception(self, trainer, error):
        self.heard.append(error)


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_surfaces_after_callbacks_heard_of_it(points, error):
    hearing = Hearing()

    class Broken(Trainer):
        def train_step(self, batch):
            raise error

    with pytest.raises(type(error)) as caught:
        Broken(build_net(), sgd, cross_entropy, callbacks=[hearing], progress="silent").train(
            points
        )
    assert hearing.heard == [caught.value] == [error]


def test_a_callback_that_fails_in_on_exception_does_not_hide_the_error(points):
    class Clumsy(Callback):
        def on_exception(self, trainer, error):
            raise ValueError("clumsy")

    class Broken(Trainer):
        def train_step(self, batch):
            raise RuntimeError("broken")

    hearing = Hearing()
    with pytest.raises(RuntimeError, match="broken") as caught:
        Broken(
            build_net(), sgd, cross_entropy, callbacks=[Clumsy(), hearing], progress="silent"
        ).train(points)
    assert "on_exception failed as well: ValueError('clumsy')" in caught.value.__notes__[0]
    assert hearing.heard == [caught.value]


def test_an_exception_in_a_data_set_surfaces_as_it_is():
    class Torn(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, index):
            if index == 11:
                raise OSError("page 11 is torn")
            return torch.ones(6), 1

    hearing = Hearing()
    with pytest.raises(OSError, match="page 11 is torn"):
        build_trainer(callbacks=[hearing]).train(Torn(), batch_size=4)
    assert len(hearing.heard) == 1

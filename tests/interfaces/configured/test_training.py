"""A configured run against the loop one would write by hand, its limits, and its continuation."""

import pytest
import torch

from loopwright import Callback
from loopwright.callbacks import Checkpoints
from loopwright.data.order import permutation
from loopwright.data.random import seed_everything

from ...loops import assert_same_model, assert_same_optimizer
from ...runs import KillAt, Killed, assert_same_run
from .parts import Points, Seen, build_net, build_trainer


def adamw(params):
    return torch.optim.AdamW(params, lr=0.01, betas=(0.9, 0.95), fused=True)


def train_by_hand(data, *, epochs=None, updates=None, batch_size=8, accumulate=1):
    """The same training as a plain loop; the model and the optimizer."""
    model = build_net()
    optimizer = adamw(model.parameters())
    seed_everything(0)
    done, epoch = 0, 0
    while epoch != epochs:
        batches = permutation(0, epoch, len(data)).split(batch_size)
        for first in range(0, len(batches), accumulate):
            window = batches[first : first + accumulate]
            total = sum(map(len, window))
            for indices in window:
                error = model(**data.rows(indices)) - data.labels[indices]
                loss = (error**2).mean() + 0.5 * error.abs().mean()
                (loss if len(window) == 1 else loss / (total / len(indices))).backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == updates:
                return model, optimizer
        epoch += 1
    return model, optimizer


@pytest.mark.parametrize("kind", ["list of samples", "dict of columns"])
def test_data_that_is_no_dataset_is_put_into_batches_of_the_effective_size(kind):
    points = Points(61)
    rows = points.rows(torch.arange(61)) | {"labels": points.labels}
    data = [points[index] for index in range(61)] if kind == "list of samples" else rows
    settings = {"max_epochs": 2, "effective_batch_size": 8, "optimizer": adamw}
    trainers = [
        build_trainer(datasets={"train": given, "test": given}, **settings)
        for given in (points, data)
    ]
    histories = [trainer.train() for trainer in trainers]
    assert list(histories[0].steps["loss"]) == list(histories[1].steps["loss"])
    assert len(list(histories[1].steps["loss"])) == 2 * 8
    assert trainers[0].evaluate("test") == trainers[1].evaluate("test")


@pytest.mark.parametrize(("effective", "largest"), [(8, None), (8, 4), (9, 4)])
def test_training_is_the_hand_written_loop_bit_for_bit(effective, largest):
    data = Points(61)
    trainer = build_trainer(
        max_epochs=3,
        effective_batch_size=effective,
        max_batch_size=largest,
        datasets={"train": data},
        optimizer=adamw,
    )
    trainer.train()
    config = trainer.config
    assert config.batch_size * config.accumulate == effective
    assert config.batch_size <= (largest or effective)
    model, optimizer = train_by_hand(
        data, epochs=3, batch_size=config.batch_size, accumulate=config.accumulate
    )
    assert_same_model(trainer.model, model)
    assert_same_optimizer(trainer.optimizer, optimizer)


def test_a_limit_inside_an_epoch_ends_exactly_there():
    trainer = build_trainer(max_updates=37, datasets={"train": Points(61)}, optimizer=adamw)
    trainer.train()
    assert trainer.progress.update == 37
    assert_same_model(trainer.model, train_by_hand(Points(61), updates=37)[0])


@pytest.mark.parametrize("samples", [1, 61, 100, 122])
def test_a_limit_of_samples_is_met_to_the_sample(samples):
    trainer = build_trainer(max_samples=samples, datasets={"train": Points(61)}, max_batch_size=4)
    trainer.train()
    assert trainer.progress.sample == samples


def test_a_limit_of_zero_trains_on_nothing(tmp_path):
    seen = Seen()
    trainer = build_trainer(max_epochs=0, callbacks=[seen], run_dir=tmp_path / "run")
    before = build_net()
    assert len(trainer.train()) == 0
    assert seen.results == []
    assert_same_model(trainer.model, before)


class EvaluateOften(Callback):
    """Evaluates after every update, which under accumulation is between two windows."""

    def on_update_end(self, trainer):
        trainer.evaluate(trainer.datasets["test"])


def test_evaluation_batches_never_reach_training_under_accumulation():
    seen = Seen()
    trainer = build_trainer(
        max_epochs=2,
        max_batch_size=2,
        callbacks=[EvaluateOften(), seen],
        datasets={"train": Points(61), "test": Points(13, seed=1)},
        optimizer=adamw,
    )
    trainer.train()
    train = set(Points(61).labels.tolist())
    assert set(seen.labels) == train
    assert len(seen.labels) == 2 * 61
    assert_same_model(
        trainer.model, train_by_hand(Points(61), epochs=2, batch_size=2, accumulate=4)[0]
    )


@pytest.mark.parametrize("saving", [[], [Checkpoints(every_updates=1, asynchronous=False)]])
def test_a_run_continues_exactly(tmp_path, saving):
    settings = {"max_updates": 23, "max_batch_size": 4, "optimizer": adamw}
    straight = build_trainer(**settings, run_dir=tmp_path / "straight")
    straight.train()
    straight.train()  # with nothing left to do
    callbacks = [KillAt(19), *saving]
    with pytest.raises(Killed):
        build_trainer(**settings, run_dir=tmp_path / "run", callbacks=callbacks).train()
    resumed = build_trainer(**settings, run_dir=tmp_path / "run")
    resumed.train()
    assert_same_run(resumed.engine, straight.engine)


def test_two_loggers_of_one_key_leave_the_last_value():
    class Logging(Callback):
        def __init__(self, value):
            self.value = value

        def on_train_step_end(self, trainer, batch, result):
            trainer.log_step({"shared": self.value, "mse": self.value})

        def on_train_epoch_end(self, trainer):
            trainer.log({"shared_too": self.value})

    history = build_trainer(callbacks=[Logging(1.0), Logging(2.0)]).train()
    assert history.epochs[0]["shared"] == 2.0
    assert history.epochs[0]["shared_too"] == 2.0
    assert history.epochs[0]["mse"] == 2.0

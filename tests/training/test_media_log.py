"""`trainer.log_image` and its siblings: where items belong in the run, who gets them, and what is
said otherwise."""

import os
import signal
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Callback, ConfigurationError, Trainer
from loopwright.callbacks import Checkpoints
from loopwright.run import Run
from tests.mistakes import raises

from ..distributed.ranks import run_ranks
from ..forked import call_forked
from ..loops import build_net, train_by_hand


class Seen(Callback):
    """Keeps what `on_media` brings."""

    def __init__(self):
        self.items = []

    def on_media(self, trainer, media):
        self.items.append(media)

    def places(self, name):
        return [
            (item.update, item.step, item.epoch, item.samples)
            for item in self.items
            if item.name == name
        ]


def build(*callbacks, kind=Trainer, model=None, **options):
    model = build_net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    options = {"progress": "silent", **options}
    return kind(model, optimizer, nn.functional.cross_entropy, callbacks=callbacks, **options)


class LogsEverywhere(Trainer):
    def train_step(self, batch):
        self.log_text("train_step", "x")
        return super().train_step(batch)

    def eval_step(self, batch):
        self.log_text("eval_step", "x")
        return super().eval_step(batch)

    def on_train_step_end(self, batch, result):
        self.log_text("step_end", "x")

    def on_update_end(self):
        self.log_text("update_end", "x")

    def on_epoch_end(self, metrics):
        self.log_text("epoch_end", "x")


def head(points: TensorDataset, count: int) -> TensorDataset:
    return TensorDataset(*(tensor[:count] for tensor in points.tensors))


def test_an_item_belongs_to_the_step_and_the_update_that_are_under_way(points):
    seen = Seen()
    trainer = build(seen, kind=LogsEverywhere, accumulate=2)
    trainer.train(head(points, 32), num_epochs=1, eval_data=head(points, 16), batch_size=8)
    steps = [(1, 1, 0, 8), (1, 2, 0, 16), (2, 3, 0, 24), (2, 4, 0, 32)]
    assert seen.places("train_step") == steps
    assert seen.places("step_end") == steps
    assert seen.places("update_end") == [(1, 2, 0, 16), (2, 4, 0, 32)]
    assert seen.places("eval_step") == [(2, 4, 0, 32)] * 2
    assert seen.places("epoch_end") == [(2, 4, 1, 32)]


def test_several_items_of_one_name_and_step_are_numbered(points):
    seen = Seen()
    trainer = build(seen, kind=LogsEverywhere)
    trainer.train(head(points, 16), num_epochs=2, eval_data=head(points, 24), batch_size=8)
    assert [item.position for item in seen.items if item.name == "eval_step"] == [0, 1, 2, 0, 1, 2]
    trainer.log_images("several", torch.rand(3, 3, 4, 4))
    trainer.log_image("several", torch.rand(3, 4, 4))
    assert [(item.position, len(item.content.files)) for item in seen.items[-2:]] == [
        (0, 3),
        (3, 1),
    ]


def test_what_is_logged_before_training_waits_for_its_start(points, capsys):
    seen = Seen()
    trainer = build(seen, progress="lines")
    trainer.log_text("notes", "begun")
    assert seen.items == []
    assert (
        "'notes' was logged before training: it will be recorded when training starts."
        in capsys.readouterr().out
    )
    trainer.train(head(points, 8))
    assert [(item.name, item.step) for item in seen.items] == [("notes", 0)]


def test_that_nothing_records_an_item_is_said_once(points, capsys):
    trainer = build(progress="lines")
    trainer.train(head(points, 8))
    capsys.readouterr()
    for _ in range(3):
        trainer.log_image("samples", torch.rand(3, 4, 4))
    line = capsys.readouterr().out
    assert line.count("\n") == 1


def test_mistakes_in_media_are_answered_with_what_to_write():
    trainer = build(Seen())
    with pytest.raises(ConfigurationError, match="value_range"):
        trainer.log_image("fake", torch.linspace(-1, 1, 48).reshape(3, 4, 4))
    with pytest.raises(ConfigurationError, match="log_images"):
        trainer.log_image("fake", torch.rand(8, 3, 4, 4))
    with pytest.raises(ConfigurationError, match="log_image;"):
        trainer.log_images("fake", torch.rand(3, 4, 4))
    with raises("media-name", "give a name first"):
        trainer.log_image(torch.rand(3, 4, 4), "fake")
    with raises("wrong-arguments", "did you mean `caption=`"):
        trainer.log_image("fake", torch.rand(3, 4, 4), captions="x")
    with raises("logged-value", "'img'", "log_image"):
        trainer.log({"img": torch.rand(3, 4, 4)})


def test_an_image_for_log_step_is_refused_where_it_is_called(points):
    class LogsPictures(Callback):
        def on_train_step_end(self, trainer, batch, result):
            trainer.log_step({"img": torch.rand(3, 4, 4)})

    with raises("logged-value", "'img'", "log_image"):
        build(LogsPictures()).train(head(points, 8))


def test_nonfinite_values_are_said_once_for_each_name(points, capsys):
    trainer = build(Seen(), progress="lines")
    trainer.train(head(points, 8))
    capsys.readouterr()
    for _ in range(2):
        trainer.log_histogram("weights", torch.tensor([1.0, float("nan")]))
        trainer.log_images("pictures", torch.full((2, 1, 4, 4), float("inf")))
    said = capsys.readouterr().out
    assert said.count("'weights': 1 values are NaN or infinite") == 1
    assert said.count("'pictures': 32 values are NaN or infinite") == 1


def test_training_with_a_record_of_everything_is_bit_for_bit_training_by_hand(points, tmp_path):
    class Everything(Callback):
        def on_train_step_end(self, trainer, batch, result):
            trainer.log_histogram("weights", trainer.model[0].weight)
            trainer.log_image("image", batch[0], value_range=(-4, 4))
            trainer.log_text("text", "x")
            trainer.log_table("table", [{"a": 1}])

    model = build_net()
    trainer = build(Everything(), model=model, run_dir=tmp_path / "run")
    trainer.train(points, num_epochs=2, batch_size=8)
    expected = build_net()
    train_by_hand(expected, torch.optim.SGD(expected.parameters(), lr=0.05), points, epochs=2)
    assert all(map(torch.equal, model.state_dict().values(), expected.state_dict().values()))


class Dies(Callback):
    """SIGKILL before the step with this number."""

    def __init__(self, number):
        self.number = number

    def on_train_step_start(self, trainer, batch):
        if trainer.progress.step + 1 == self.number:
            os.kill(os.getpid(), signal.SIGKILL)


def train_in_run(points, *callbacks):
    """Train in `run`, logging in every step and evaluation."""
    saving = Checkpoints(every_updates=3, asynchronous=False)
    trainer = build(saving, *callbacks, kind=LogsEverywhere, run_dir="run")
    trainer.train(head(points, 32), num_epochs=2, eval_data=head(points, 16), batch_size=8)


@pytest.mark.parametrize("number", [2, 5, 8])
def test_a_killed_and_resumed_run_has_each_item_once(points, tmp_path, number):
    items = {}
    for name, deaths in (("whole", [False]), ("killed", [True, False])):
        folder = tmp_path / name
        folder.mkdir()
        for dies in deaths:
            ended = call_forked(
                partial(train_in_run, points, *([Dies(number)] if dies else [])), folder
            )
            assert ended.code == (-signal.SIGKILL if dies else 0), ended.err
        found = Run(folder / "run").metrics.media()
        items[name] = sorted((item.name, item.step, item.update, item.position) for item in found)
    assert items["killed"] == items["whole"]
    assert len(items["whole"]) == 8 * 3 + 4 + 2


class LogsOneName(Trainer):
    """Logs under one name in a step, after it, in its evaluation and at the end of its epoch."""

    def train_step(self, batch):
        self.log_text("x", "train_step")
        return super().train_step(batch)

    def on_update_end(self):
        self.log_text("x", "update_end")

    def eval_step(self, batch):
        self.log_text("x", "eval_step")
        return super().eval_step(batch)

    def on_epoch_end(self, metrics):
        self.log_text("x", "epoch_end")


def train_one_name(points, *callbacks):
    saving = Checkpoints(every_updates=4, asynchronous=False)
    trainer = build(saving, *callbacks, kind=LogsOneName, run_dir="run")
    trainer.train(head(points, 32), num_epochs=2, eval_data=head(points, 16), batch_size=8)


def test_a_resumed_evaluation_replaces_its_own_items_and_not_those_of_the_step_before_it(
    points, tmp_path
):
    items = {}
    for name, callbacks in (("whole", [()]), ("killed", [(Dies(5),), ()])):
        (tmp_path / name).mkdir()
        for given in callbacks:
            call_forked(partial(train_one_name, points, *given), tmp_path / name)
        found = Run(tmp_path / name / "run").metrics.media()
        items[name] = [(item.step, item.position, item.content) for item in found]
    assert items["killed"] == items["whole"]
    at_the_end = ["train_step", "update_end", "eval_step", "eval_step", "epoch_end"]
    assert [content for step, _, content in items["whole"] if step == 4] == at_the_end


def log_on_each_rank(rank, points):
    seen = Seen()
    trainer = build(seen, kind=LogsEverywhere, run_dir="run", runtime="ddp")
    trainer.train(head(points, 16), num_epochs=1, batch_size=8)
    return len(seen.items)


def test_of_several_processes_only_the_first_logs(points, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    counts = run_ranks(log_on_each_rank, 2, points)
    assert counts == [7, 0]
    items = Run(tmp_path / "run").metrics.media()
    assert len(items) == 7
    assert [item.samples for item in items if item.name == "train_step"] == [8, 16]


class InterruptsEvaluation(Callback):
    """Sends SIGINT in the second batch of the second evaluation; logs at the end of the steps,
    too."""

    def __init__(self, interrupts):
        self.interrupts, self.number = interrupts, 0

    def on_train_epoch_end(self, trainer):
        trainer.log_text("x", "train_epoch_end")

    def on_eval_step_end(self, trainer, batch, result):
        self.number += 1
        if self.interrupts and self.number == 4:
            os.kill(os.getpid(), signal.SIGINT)


def test_an_evaluation_that_was_interrupted_and_done_again_has_each_item_once(points, tmp_path):
    items = {}
    for name, calls in (("whole", [False]), ("interrupted", [True, False])):
        (tmp_path / name).mkdir()
        for interrupts in calls:
            ended = call_forked(
                partial(train_one_name, points, InterruptsEvaluation(interrupts)), tmp_path / name
            )
            assert (ended.code == 0) is not interrupts, ended.err
        found = Run(tmp_path / name / "run").metrics.media()
        items[name] = [(item.step, item.position, item.content) for item in found]
    assert items["interrupted"] == items["whole"]
    assert [content for step, _, content in items["whole"] if step == 8] == [
        *("train_step", "update_end", "train_epoch_end", "eval_step", "eval_step", "epoch_end")
    ]

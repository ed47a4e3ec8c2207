"""`Trainer.tune`: nothing stays of its tries, also after Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from loopwright.callbacks import EMA
from loopwright.checkpoint.compare import compare_trees
from loopwright.errors import Interrupted
from loopwright.schedules import Cosine
from loopwright.tuning import tune
from loopwright.tuning.tune import Tuner
from tests.loops import assert_same_model, build_net
from tests.tuning.test_lr_find import Counting, everything
from tests.tuning.tries import CHEAP, Samples, build, tried

pytestmark = pytest.mark.usefixtures("few_updates")


@pytest.mark.parametrize("updates_before", [0, 7])
def test_the_trainer_is_left_exactly_as_it_was(points, updates_before, tmp_path):
    trainer = build(
        Counting(),
        optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9),
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
    assert len(tuning.rows) >= 3


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

    monkeypatch.setattr("loopwright.tuning.tune.compile_in_place", note)
    model = nn.Sequential(Block(), Block(), nn.Linear(6, 3))
    tuner = Tuner(
        build(model), points, batch_size=8, only=["compile"], compile_choices=["model", "blocks"]
    )
    tuning = tuner.run()
    assert tried(tuning) == ['compile="model"', 'compile="blocks"']
    updates = (2 + 2) * tune.NUM_TURNS
    assert called == ["Sequential"] * updates + ["Block"] * 2 * updates
    assert not any(part._compiled_call_impl for part in model.modules())


def test_a_compiled_trainer_is_also_tried_as_it_is(points, monkeypatch):
    for place in ("runtime.fsdp", "tuning.tune"):
        monkeypatch.setattr(f"loopwright.{place}.compile_in_place", eager_compile)
    model = build_net()
    trainer = build(model, compile="model")
    tuner = Tuner(trainer, points, batch_size=8, only=["compile"], compile_choices=["model"])
    assert tried(tuner.run()) == ["not compiled"]
    assert model._compiled_call_impl is not None
    assert trainer.compile_mode == trainer.runtime.compile == "model"


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
    at = turn * (1 + tune.NUM_TURNS + 2 * tune.NUM_TURNS + 1) + 5  # in the second try
    tuning = trainer.tune(
        Interrupting(48, at, signal.SIGINT), batch_size=8, only=["threads", "precision"]
    )
    assert tried(tuning) == ["2 threads"]
    assert not tuning.is_complete
    assert "Stopped early" in str(tuning)
    assert_same_model(trainer.model, model)
    assert torch.get_num_threads() == 1


def test_sigterm_ends_the_program_as_it_ends_any_training():
    trainer = build()
    with pytest.raises(Interrupted) as caught:
        trainer.tune(Interrupting(48, 50, signal.SIGTERM), batch_size=8, only=["threads"])
    assert caught.value.code == 143
    assert_same_model(trainer.model, build_net())

"""What a run notes of itself: the user's words for it, arguments, size and planned totals; and how
readers use that."""

import argparse
import json
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Callback, Trainer
from loopwright.callbacks import EMA
from loopwright.run import Run
from tests.mistakes import raises

from ..loops import build_net


def build(run_dir="run", **options):
    model = options.pop("model", None) or build_net()
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=0.05)
    return Trainer(
        model, optimizer, nn.functional.cross_entropy, run_dir=run_dir, progress="silent", **options
    )


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def data(count):
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(count, 6, generator=generator),
        torch.randint(0, 3, (count,), generator=generator),
    )


class AtStart(Callback):
    """Keeps what the manifest plans, and lets the run go on for real to compare."""

    def __init__(self):
        self.planned = []

    def on_train_start(self, trainer):
        self.planned.append(trainer._facts()["planned"])


@given(
    count=st.integers(1, 40),
    batch_size=st.integers(1, 12),
    accumulate=st.integers(1, 4),
    limit=st.sampled_from(["num_epochs", "num_updates", "num_samples"]),
    amounts=st.lists(st.integers(1, 9), min_size=1, max_size=3),
)
def test_planned_totals_are_what_the_run_reaches(count, batch_size, accumulate, limit, amounts):
    seen = AtStart()
    trainer = build(None, model=nn.Linear(6, 3), callbacks=seen, accumulate=accumulate)
    # a limit counts from its call, the plan from the run's beginning
    for number, amount in enumerate(amounts):
        before = trainer.progress.step
        trainer.train(data(count), batch_size=batch_size, **{limit: amount})
        if trainer.progress.step == before:
            continue
        planned, reached = seen.planned[-1], trainer.progress
        assert planned["limit"][0] == limit.removeprefix("num_").removesuffix("s")
        assert planned["sample"] == reached.sample
        if limit == "num_samples" and number > 0:
            # an earlier call cut a batch in two: there are more steps than an epoch has batches
            continue
        assert planned["update"] == reached.update
        assert planned["step"] == reached.step
        assert planned["epoch"] == reached.epoch + reached.in_epoch


def test_a_run_that_goes_on_with_another_limit_plans_anew():
    build().train(data(32), num_epochs=2, batch_size=8)
    assert Run("run").progress.fraction == 1.0
    trainer = build()
    stopping = StopAt(12)
    trainer.callbacks.append(stopping)
    trainer.run.bind(trainer.callbacks)
    trainer.train(data(32), num_epochs=4, batch_size=8)
    progress = Run("run").progress
    assert progress.limit == ("epoch", 4)
    assert progress.planned == {"epoch": 4, "step": 16, "update": 16, "sample": 128}
    assert progress.fraction == 0.75


class StopAt(Callback):
    def __init__(self, update):
        self.update = update

    def on_update_end(self, trainer):
        if trainer.progress.update == self.update:
            trainer.stop("far enough")


def test_settings_are_one_flat_mapping_of_arguments_optimizer_schedule_and_config():
    model = build_net()
    optimizer = torch.optim.AdamW(
        [
            {"params": model[0].parameters(), "lr": 0.5},
            {"params": model[4].parameters()},
            {"params": model[1].parameters()},
        ],
        lr=0.25,
    )
    trainer = build(
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5),
        accumulate=2,
        clip_norm=1.5,
        seed=7,
        callbacks=EMA(0.8),
        name="first",
        tags=["small", "test"],
        config={"depth": 3, "net": {"width": 16}, "batch_size": 99},
    )
    trainer.train(data(20), num_epochs=2, eval_data=data(10), batch_size=5)
    run = Run("run")
    expected = {
        "optimizer": "torch.optim.adamw.AdamW",
        "optimizer.groups.0.lr": 0.5,
        "optimizer.groups.1.lr": 0.25,
        "scheduler": "torch.optim.lr_scheduler.StepLR",
        "scheduler.step_size": 3,
        "scheduler.gamma": 0.5,
        "accumulate": 2,
        "clip_norm": 1.5,
        "seed": 7,
        "batch_size": 5,
        "eval_batch_size": 5,
        "callbacks.EMA.decay": 0.8,
        "max_epochs": 2,
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "depth": 3,
        "net.width": 16,
        "config.batch_size": 99,
    }
    assert {key: run.settings.get(key) for key in expected} == expected
    assert (run.name, run.tags, run.manifest["door"]) == ("first", ("small", "test"), "native")
    assert not [
        key for key, value in run.settings.items() if "0x" in str(value) or key.endswith(".code")
    ]
    assert json.loads(json.dumps(run.settings)) == run.settings


@dataclass
class Settings:
    lr: float = 0.1


def test_a_wrong_label_is_refused():
    for value in (argparse.Namespace(lr=1), Settings()):
        with raises("run-config", type(value).__name__):
            build(None, config=value)

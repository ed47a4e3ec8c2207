"""Time by its parts, memory, the line that says how long it will take, and what a run begins
with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from loopwright import StepResult, Trainer
from loopwright.callbacks import (
    AdditionalOutputs,
    DatasetStatistics,
    LearningRateLog,
    ParameterCount,
    PeakMemory,
    ProgressLine,
    TrainTime,
)
from loopwright.checkpoint import load_weights
from loopwright.training.update import OptimizerUpdate

from ..loops import assert_same_model, build_net
from .runs import build_timed, build_trainer, train

PARTS = ("data_seconds", "forward_seconds", "backward_seconds", "update_seconds")


class Clockwork(Trainer):
    """Takes 1 s for the forward pass, 10 for the backward pass and 100 for the update, on a clock
    of its own."""

    now = 0.0

    def spend(self, seconds: float) -> None:
        self.now += seconds

    def forward(self, inputs: Any) -> Any:
        self.spend(1)
        outputs = super().forward(inputs)
        outputs.register_hook(lambda gradient: self.spend(10))
        return outputs

    def on_optimizer_start(self, optimizer: str) -> None:
        self.spend(100)

    def on_update_end(self) -> None:
        self.spend(1000)


@pytest.mark.parametrize(("accumulate", "updates"), [(1, 5), (2, 3)])
def test_time_spent_in_a_part_is_counted_there(points, monkeypatch, accumulate, updates):
    net, loss = build_net(), torch.nn.functional.cross_entropy
    options = {"callbacks": [TrainTime()], "progress": "silent", "accumulate": accumulate}
    trainer = Clockwork(net, torch.optim.SGD, loss, **options)
    monkeypatch.setattr("loopwright.callbacks.measuring.perf_counter", lambda: trainer.now)
    row = trainer.train(points, 1, batch_size=8).epochs[-1]
    assert [row[part] for part in PARTS] == [1000 * (updates - 1), 5, 50, 100 * updates]


def test_measuring_the_time_changes_nothing_and_leaves_nothing_behind(points):
    plain, timed = train(build_trainer(), points), train(build_trainer([TrainTime()]), points)
    assert_same_model(plain.model, timed.model)
    for update in timed.run.updates.by_name.values():
        assert isinstance(update, OptimizerUpdate)
        assert not {"backward", "finish"} & vars(update).keys()


def test_peak_memory_is_that_of_the_process_and_never_falls(points):
    history = train(build_trainer([PeakMemory(every_n_updates=4)]), points).history
    values = list(history.steps["peak_memory_mb"])
    assert len(values) == 3
    assert values == sorted(values)
    assert 10 < values[0] < 1e6


def test_a_line_says_where_the_run_is_and_what_is_left(points, capsys):
    train(build_trainer([ProgressLine(every_n_updates=5)], progress="lines"), points, 4)
    lines = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("epoch") and "done" in line
    ]
    assert len(lines) == 4
    assert re.fullmatch(
        r"epoch 2/4  update 10  sample 74  [\d.e+]+ updates/s  50.0% done, \d:\d\d:\d\d to go",
        lines[1],
    )


@pytest.mark.parametrize(
    ("every", "steps"),
    [
        ({}, list(range(1, 11))),
        ({"every_n_updates": 4}, [4, 8]),
        ({"every_n_samples": 37}, [5, 10]),
    ],
)
def test_learning_rates_are_logged_at_an_interval(points, every, steps):
    history = train(build_trainer([LearningRateLog(**every)]), points, 2).history
    assert list(history.steps["lr"].steps) == steps
    assert history["lr"] == [0.01, 0.01]


# What a run begins with


def test_parameters_are_counted(points, tmp_path, capsys):
    model = build_net()
    model[0].requires_grad_(False)
    count = ParameterCount()
    train(build_trainer([count], model, progress="lines", run_dir=tmp_path), points, 1)
    total = sum(p.numel() for p in model.parameters())
    assert count.counts == {"model": {"total": total, "trained": total - 6 * 16 - 16}}
    assert f"model: {total} parameters, {total - 112} of them trained" in capsys.readouterr().out
    assert json.loads((tmp_path / "artifacts" / "parameters.json").read_text()) == count.counts


def test_statistics_are_those_of_all_values_of_a_field(points, tmp_path):
    statistics = DatasetStatistics()
    train(build_trainer([statistics], run_dir=tmp_path), points, 1)
    inputs, targets = points.tensors
    for name, values in (("0", inputs.double()), ("1", targets.double())):
        found = statistics.statistics[name]
        assert found.count == values.numel()
        assert found.mean == pytest.approx(values.mean().item())
        assert found.std == pytest.approx(values.std(correction=0).item())
        assert (found.min, found.max) == (values.min().item(), values.max().item())
    written = json.loads((tmp_path / "artifacts" / "statistics-train.json").read_text())
    assert written["0"]["mean"] == statistics.statistics["0"].mean


# Additional outputs


class WithOutputs(Trainer):
    def train_step(self, batch: Any) -> Any:
        result = super().train_step(batch)
        hidden = result.outputs.detach()
        return StepResult(
            result.loss,
            outputs={"logits": hidden, "largest": hidden.max(), "number": 7, "name": "x"},
        )


def train_outputs(points: Any, callback: AdditionalOutputs, **options: Any) -> Trainer:
    net, loss = build_net(), torch.nn.functional.cross_entropy
    trainer = WithOutputs(
        net, torch.optim.SGD, loss, callbacks=[callback], progress="silent", **options
    )
    trainer.train(points, 2, batch_size=8)
    return trainer


def test_outputs_of_an_interval_are_logged_or_kept(points):
    outputs = AdditionalOutputs(every_n_updates=3)
    history = train_outputs(points, outputs).history
    assert list(history.steps["largest"].steps) == [3, 6, 9]
    assert list(history.steps["number"]) == [7, 7, 7]
    assert outputs.latest.keys() == {"logits"}
    assert outputs.latest["logits"].max().item() == history.steps["largest"].values[-1]


def test_with_a_run_directory_outputs_are_written(points, tmp_path: Path):
    outputs = AdditionalOutputs(["logits"], every_n_updates=4)
    history = train_outputs(points, outputs, run_dir=tmp_path).history
    files = sorted((tmp_path / "artifacts" / "outputs").iterdir())
    assert [file.name for file in files] == [
        "update-00000004.safetensors",
        "update-00000008.safetensors",
    ]
    assert torch.equal(load_weights(files[-1])["logits"], outputs.latest["logits"])
    assert "largest" not in history.steps


def test_evaluations_are_no_part_of_the_time_of_training(points, monkeypatch):
    class Evaluating(Clockwork):
        def eval_step(self, batch: Any) -> Any:
            self.spend(100_000)
            return {"score": 1.0}

    trainer = Evaluating(
        build_net(),
        torch.optim.SGD,
        torch.nn.functional.cross_entropy,
        callbacks=[TrainTime()],
        progress="silent",
    )
    monkeypatch.setattr("loopwright.callbacks.measuring.perf_counter", lambda: trainer.now)
    rows = trainer.train(points, 2, eval_data=points, batch_size=8).epochs
    assert [row["data_seconds"] for row in rows] == [4000, 5000]


def test_what_is_left_includes_evaluations(points, capsys, monkeypatch):
    """A second for each of 5 steps, then 50 seconds of evaluation, before which the line comes."""
    train(build_timed(monkeypatch, [ProgressLine()], progress="lines"), points, 4)
    lines = [line for line in capsys.readouterr().out.splitlines() if "to go" in line]
    assert "1 updates/s  50.0% done, 0:01:00 to go" in lines[1]

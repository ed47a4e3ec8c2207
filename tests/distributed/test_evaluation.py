"""Evaluation and prediction on several processes are those of one, however few samples there
are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection, PearsonCorrCoef
from torchmetrics.classification import BinaryAUROC
from torchmetrics.regression import MeanAbsoluteError, SpearmanCorrCoef

from loopwright import StepResult, Trainer
from loopwright.callbacks import EMA, LearningRateLog, TorchMetrics
from tests.distributed.ranks import RunRanks, run_ranks
from tests.distributed.scenarios import assert_same, build_data, build_model

SIZES = range(1, 18)
SETUPS = [(2, "fsdp"), (3, "ddp"), (4, "fsdp")]


class Measuring(Trainer):
    """Plain metrics, and metrics that keep their own state, made in `eval_step`."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(
            build_model(),
            torch.optim.SGD,
            nn.MSELoss(),
            runtime=runtime,
            progress="silent",
            callbacks=[
                TorchMetrics(MetricCollection([MeanAbsoluteError()])),
                TorchMetrics(
                    BinaryAUROC(),
                    prepare=lambda outputs, targets: (outputs[:, 0], targets[:, 0] > 0),
                ),
                TorchMetrics({"spearman": SpearmanCorrCoef(num_outputs=2)}),
            ],
        )
        self.average = MeanMetric()
        self.pearson = PearsonCorrCoef()

    def eval_step(self, batch: list[Tensor]) -> StepResult:
        inputs, targets = batch
        outputs = self.forward(inputs)
        self.average.update(outputs[:, 0].detach(), weight=targets[:, 0].abs())
        self.pearson.update(outputs[:, 0].float(), targets[:, 0].float())
        metrics = {
            "within": ((outputs - targets).abs() < 1).double().mean(),
            "average": self.average,
            "pearson": self.pearson,
        }
        return StepResult(self.loss_fn(outputs, targets), metrics=metrics, outputs=outputs)


def measure(rank: int, runtime: str) -> list[dict[str, Any]]:
    """For every number of samples: what an evaluation gives, and all predictions."""
    trainer = Measuring(runtime)
    results = []
    for n in SIZES:
        data = build_data(n)
        measured = trainer.evaluate(data, batch_size=7)
        if n < 14:  # torchmetrics itself cannot put it together from processes with a single sample
            del measured["pearson"]
        results.append({"measured": measured, "predicted": trainer.predict(data, batch_size=7)})
    return results


@pytest.fixture(scope="module")
def alone() -> list[dict[str, Any]]:
    return measure(0, "cpu")


@pytest.fixture(scope="module", params=SETUPS, ids=lambda setup: f"{setup[1]}-{setup[0]}")
def together(shared: RunRanks, request: pytest.FixtureRequest) -> list[list[dict[str, Any]]]:
    world, runtime = request.param
    return shared(measure, world, runtime)


@pytest.mark.parametrize("what", ["measured", "predicted"])
@pytest.mark.filterwarnings("ignore")
def test_every_sample_counts_once_on_every_number_of_processes(
    what: str, alone: list[dict[str, Any]], together: list[list[dict[str, Any]]]
) -> None:
    for results in together:
        for n, ours, theirs in zip(SIZES, results, alone, strict=True):
            assert_same(ours[what], theirs[what], f"single precision, {n} samples")


def collect(rank: int) -> list[Any]:
    """Outputs that are no tensors, and data that is a list of batches."""

    class MessageNames(Trainer):
        def forward(self, inputs: Tensor) -> list[str]:
            return [f"{value:.3f}" for value in inputs[:, 0].tolist()]

    trainer = MessageNames(build_model(), torch.optim.SGD, nn.MSELoss(), progress="silent")
    words = [word for batch in trainer.predict(build_data(11), batch_size=4) for word in batch]
    batches = [[part] for part in build_data(11).tensors[0].split(3)]
    return [
        words,
        Trainer(build_model(), torch.optim.SGD, nn.MSELoss(), progress="silent").predict(batches),
    ]


def test_predictions_of_any_kind_come_back_in_order_on_every_process(shared: RunRanks) -> None:
    x = build_data(11).tensors[0]
    with torch.no_grad():
        expected = build_model()(x)
    for words, predicted in shared(collect, 3):
        assert words == [f"{value:.3f}" for value in x[:, 0].tolist()]
        torch.testing.assert_close(predicted, expected)


def measure_training(rank: int, runtime: str) -> dict[str, Any]:
    """Metrics over training epochs, whose last batch is too small for all processes."""

    class Own(Trainer):
        def train_step(self, batch: Any) -> Any:
            result = super().train_step(batch)
            return StepResult(
                result.loss, metrics={"size": float(len(batch[0]))}, outputs=result.outputs
            )

    model = build_model()
    trainer = Own(
        model,
        torch.optim.Adam(model.parameters(), lr=0.01),
        nn.MSELoss(),
        runtime=runtime,
        progress="silent",
        callbacks=[TorchMetrics(MeanAbsoluteError(), on="both"), LearningRateLog(), EMA(0.5)],
    )
    history = trainer.train(build_data(17), num_epochs=2, batch_size=8, eval_data=build_data(5))
    return {"epochs": [{k: v for k, v in row.items() if k != "size"} for row in history.epochs]}


@pytest.mark.parametrize(("world", "runtime"), [(2, "fsdp"), (3, "ddp")])
def test_metrics_of_a_training_epoch_count_every_sample_once(
    shared: RunRanks, world: int, runtime: str
) -> None:
    alone = measure_training(0, "cpu")
    for ours in shared(measure_training, world, runtime):
        assert_same(ours, alone, "single precision")


def test_a_single_process_gathers_from_itself() -> None:
    runtime = Trainer(build_model(), torch.optim.SGD, nn.MSELoss(), runtime="cpu").runtime
    assert runtime.gather(torch.arange(3)).tolist() == [0, 1, 2]


def print_to(rank: int, folder: Path) -> None:
    """Train with the progress display, each rank printing to a file of its own."""
    import os
    import sys

    sys.stdout = open(folder / f"out-{rank}", "w")  # noqa: SIM115  (as long as the process lives)
    os.dup2(sys.stdout.fileno(), 1)
    model = build_model()
    trainer = Trainer(
        model, torch.optim.Adam(model.parameters()), nn.MSELoss(), run_dir=folder / "run"
    )
    trainer.train(build_data(16), num_epochs=2, eval_data=build_data(5), batch_size=8)
    trainer.train(build_data(16), num_updates=1, batch_size=8)
    sys.stdout.flush()


def test_only_the_first_process_prints_and_each_line_once(tmp_path: Path) -> None:
    run_ranks(print_to, 2, tmp_path)
    first, second = ((tmp_path / f"out-{rank}").read_text() for rank in (0, 1))
    assert second == ""
    assert [line.split()[1] for line in first.splitlines() if line.startswith("epoch")] == [
        "1/2",
        "2/2",
        "3",
    ]
    assert first.count("Finished: ") == 2  # two calls

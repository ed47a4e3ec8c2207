"""`Trainer(metrics=...)`: measured over the samples of every evaluation, equal to a computation by
hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from loopwright import ConfigurationError, Trainer
from loopwright.callbacks import BestModel
from tests.distributed.ranks import run_ranks

from ..mistakes import raises

INPUTS = torch.randn(37, 6, generator=torch.Generator().manual_seed(0))
CLASSES = (INPUTS.sum(1) > 0).long() + (INPUTS[:, 0] > 1).long()


def build(loss=None, outputs: int = 3, **arguments) -> Trainer:
    torch.manual_seed(0)
    model = nn.Linear(6, outputs)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, sgd, loss or nn.CrossEntropyLoss(), progress="silent", **arguments)


def test_accuracy_is_that_of_all_samples_whatever_the_batches():
    trainer = build(metrics="accuracy")
    history = trainer.train(
        (INPUTS, CLASSES), num_epochs=3, eval_data=(INPUTS, CLASSES), batch_size=8
    )
    with torch.no_grad():
        right = (trainer.model(INPUTS).argmax(1) == CLASSES).sum().item()
    assert history["eval_accuracy"][-1] == pytest.approx(right / 37, abs=1e-7)
    for size in (1, 5, 36, 37):
        assert trainer.evaluate((INPUTS, CLASSES), batch_size=size)["accuracy"] == pytest.approx(
            right / 37, abs=1e-7
        )


def test_functions_return_a_mean_or_a_value_for_each_sample():
    def error(outputs, targets):
        return (outputs - targets).abs().squeeze(1)

    targets = INPUTS.sum(1, keepdim=True)
    trainer = build(
        nn.MSELoss(), 1, metrics={"mae": F.l1_loss, "error": error, "constant": lambda *_: 2}
    )
    measured = trainer.evaluate((INPUTS, targets), batch_size=8)
    with torch.no_grad():
        expected = F.l1_loss(trainer.model(INPUTS), targets).item()
    assert measured["mae"] == pytest.approx(expected, rel=1e-6)
    assert measured["error"] == pytest.approx(expected, rel=1e-6)
    assert measured["constant"] == 2


@pytest.mark.parametrize(
    ("loss", "yes"),
    [(nn.BCEWithLogitsLoss(), 0.0), (F.binary_cross_entropy_with_logits, 0.0), (nn.BCELoss(), 0.5)],
    ids=["module", "function", "probabilities"],
)
def test_the_loss_decides_which_output_of_a_binary_classifier_means_yes(loss, yes):
    model = nn.Linear(6, 1)
    program = nn.Sequential(model, nn.Sigmoid()) if yes else model
    trainer = Trainer(program, loss_fn=loss, metrics="accuracy", progress="silent")
    targets = (INPUTS.sum(1, keepdim=True) > 0).float()
    with torch.no_grad():
        right = ((program(INPUTS) > yes) == (targets == 1)).float().mean().item()
    assert 0 < right < 1
    assert trainer.evaluate((INPUTS, targets), batch_size=8)["accuracy"] == pytest.approx(
        right, abs=1e-6
    )


def evaluate_all(rank: int) -> dict[str, float]:
    """The fifth batch of 9 has one sample, which only one of the processes gets."""
    trainer = build(
        metrics={"accuracy": "accuracy", "largest": lambda outputs, _: outputs.max(1).values}
    )
    measured = trainer.evaluate((INPUTS, CLASSES), batch_size=9)
    return {**measured, "processes": trainer.runtime.num_shares}


def test_processes_measure_what_one_process_measures_also_where_one_has_no_sample():
    expected = evaluate_all(0)
    for measured in run_ranks(evaluate_all, 2):
        assert measured == pytest.approx({**expected, "processes": 2}, rel=1e-6)


def test_a_model_is_kept_and_resumed_by_a_metric(tmp_path):
    def train(**limits):
        trainer = build(
            metrics="accuracy", callbacks=[BestModel("eval_accuracy")], run_dir=tmp_path / "run"
        )
        return trainer.train((INPUTS, CLASSES), eval_data=(INPUTS, CLASSES), batch_size=8, **limits)

    train(num_epochs=2)
    history = train(num_epochs=4)
    whole = build(metrics="accuracy").train((INPUTS, CLASSES), 4, (INPUTS, CLASSES), batch_size=8)
    assert history["eval_accuracy"] == whole["eval_accuracy"]


@pytest.mark.parametrize(
    ("what", "metrics"),
    [
        ("`metrics='acuracy'`", "acuracy"),
        ("`metrics=[nn.L1Loss]`, a class", [nn.L1Loss]),
        ("`metrics={'mae': nn.L1Loss}`, a class", {"mae": nn.L1Loss}),
        ("`metrics={'loss': function}`", {"loss": F.l1_loss}),
        ("`metrics=['accuracy', 'accuracy']`", ["accuracy", "accuracy"]),
        ("`metrics=3`", 3),
        ("`metrics={'f1': None}`", {"f1": None}),
    ],
)
def test_what_is_no_metric_is_refused(mistake, what, metrics):
    with mistake("Arguments", what, ConfigurationError):
        build(metrics=metrics)


@pytest.mark.parametrize(
    ("what", "loss", "outputs", "targets"),
    [
        ("`metrics='accuracy'` for a regression", nn.MSELoss(), 1, INPUTS[:, :1]),
        (
            "`metrics='accuracy'` for class probabilities",
            nn.CrossEntropyLoss(),
            3,
            torch.full((37, 3), 1 / 3),
        ),
    ],
)
def test_accuracy_of_what_is_no_class_is_refused(what, loss, outputs, targets):
    with raises("accuracy-of-shapes"):
        build(loss, outputs, metrics="accuracy").evaluate((INPUTS, targets))

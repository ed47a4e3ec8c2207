"""The table of a model."""

from __future__ import annotations

from torch import nn

from loopwright.callbacks import ModelSummary, summarize

from ..loops import build_net
from .runs import build_trainer, train


def test_the_table_lists_modules_with_their_parameters_and_the_trainable_ones():
    model = build_net()
    model[0].requires_grad_(False)
    assert summarize(model).splitlines() == [
        "module  type         parameters  trainable",
        "------------------------------------------",
        "model   Sequential          195         83",
        "  0     Linear              112          0",
        "  1     BatchNorm1d          32         32",
        "  2     ReLU                  0          0",
        "  3     Dropout               0          0",
        "  4     Linear               51         51",
    ]


def test_parameters_of_unknown_size_are_marked():
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
    assert summarize(model, 0).splitlines()[-1].split() == ["model", "Sequential", "4+", "4+"]


def test_the_summary_is_printed_when_training_starts(points, capsys):
    trainer = build_trainer([ModelSummary()], progress="lines")
    train(trainer, points, num_epochs=1)
    assert capsys.readouterr().out.partition("\n")[2].startswith(summarize(trainer.model))

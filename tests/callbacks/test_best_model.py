"""Several that keep the best models of one run, what they note of them, and runs that were finished
before."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from loopwright import Callback, ConfigurationError, Trainer
from loopwright.callbacks import BestModel
from loopwright.checkpoint import CheckpointStore, list_checkpoints, load_weights
from loopwright.cli.selection import pick_checkpoint
from loopwright.optim.initialize import read_weights
from loopwright.run import choose
from loopwright.run.reading import RunView

from .runs import build_trainer, train

SCORES = (0.2, 0.9, 0.4, 0.5, 0.1)
PERPLEXITIES = (4.0, 2.0, 3.0, 5.0, 6.0)


class Measured(Callback):
    """Logs two metrics: one to be large, and one to be small, whose name does not say so."""

    def metric_names(self, known: set[str]) -> set[str]:
        return {"score", "perplexity"}

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        epoch = trainer.progress.epoch
        trainer.log({"score": SCORES[epoch], "perplexity": PERPLEXITIES[epoch]})


def trained(points, run_dir: Path, *callbacks: Callback, num_epochs: int = 4) -> Trainer:
    return train(
        build_trainer([Measured(), *callbacks], run_dir=run_dir), points, num_epochs=num_epochs
    )


def test_two_that_are_best_at_the_same_update_keep_a_model_each_and_note_what_they_look_for(
    tmp_path, points
):
    trained(points, tmp_path, BestModel("score", keep=2), BestModel("perplexity", "min", keep=2))
    found = {
        info.name: (info.metric, info.mode)
        for info in list_checkpoints(tmp_path)
        if info.kind == "kept"
    }
    assert found == {
        "update-00000010-score": (("score", 0.9), "max"),
        "update-00000020-score": (("score", 0.5), "max"),
        "update-00000010-perplexity": (("perplexity", 2.0), "min"),
        "update-00000015-perplexity": (("perplexity", 3.0), "min"),
    }


def test_the_best_of_a_run_is_the_one_that_its_keeper_looked_for(tmp_path, points):
    trained(points, tmp_path, BestModel("perplexity", "min", keep=2))
    assert pick_checkpoint(RunView(tmp_path), "best").name == "update-00000010"
    assert choose(tmp_path).name == "update-00000010"
    weights, best = (
        read_weights(tmp_path, use="best"),
        load_weights(tmp_path / "kept" / "update-00000010"),
    )
    assert all(torch.equal(weights[name], value) for name, value in best.items())


@pytest.mark.parametrize("scores", [(math.nan, 0.9), (0.9, math.nan)])
def test_a_model_whose_metric_is_no_number_is_never_the_best(tmp_path, points, monkeypatch, scores):
    monkeypatch.setattr(f"{__name__}.SCORES", scores)
    trained(points, tmp_path, BestModel("score", keep=2), num_epochs=2)
    best = f"update-{5 + 5 * scores.index(0.9):08d}"
    assert len(list(Path(tmp_path, "kept").iterdir())) == 2
    assert pick_checkpoint(RunView(tmp_path), "best").name == best
    assert choose(tmp_path).name == best
    weights, expected = read_weights(tmp_path, use="best"), load_weights(tmp_path / "kept" / best)
    assert all(torch.equal(weights[name], value) for name, value in expected.items())


def test_two_that_keep_models_by_one_metric_are_refused(tmp_path, points):
    with pytest.raises(
        ConfigurationError, match="Two BestModel callbacks keep the best models by 'score'"
    ):
        trained(points, tmp_path, BestModel("score", keep=2), BestModel("score"))


def test_a_finished_run_that_is_started_again_has_the_best_weights_too(tmp_path, points):
    trained(points, tmp_path, BestModel("score", restore=True))
    again = trained(points, tmp_path, BestModel("score", restore=True))
    best = load_weights(tmp_path / "kept" / "update-00000010")
    assert again.progress.update == 20
    assert all(torch.equal(value, best[name]) for name, value in again.model.state_dict().items())


def test_a_finished_run_whose_limit_is_raised_goes_on_from_its_last_weights(tmp_path, points):
    trained(points, tmp_path / "straight", BestModel("score", restore=True), num_epochs=5)
    for num_epochs in (4, 4, 5):
        trained(
            points, tmp_path / "raised", BestModel("score", restore=True), num_epochs=num_epochs
        )
    first, second = (
        CheckpointStore(tmp_path / name / "checkpoints").newest() for name in ("straight", "raised")
    )
    weights = second.tree["models"]["model"]
    assert all(
        torch.equal(value, weights[name]) for name, value in first.tree["models"]["model"].items()
    )


@pytest.mark.parametrize("restore", [False, True])
def test_a_best_model_that_is_neither_written_nor_restored_is_said(
    points, capsys, mistake, restore
):
    trainer = build_trainer([BestModel("loss", restore=restore)], progress="lines")
    trainer.train(points, 1)
    said = [line for line in capsys.readouterr().out.splitlines() if "BestModel" in line]
    if restore:
        assert said == []
    else:
        mistake.said("Arguments", "`BestModel()` without `run_dir`", said[0])


def test_the_evaluation_of_an_epoch_that_a_limit_cut_short_counts(tmp_path, points):
    """Training that is limited by updates may end inside its first epoch, and would keep no model
    otherwise."""
    trainer = build_trainer([BestModel(restore=True)], run_dir=tmp_path)
    trainer.train(points, num_updates=2, batch_size=8, eval_data=points)
    assert [info.name for info in list_checkpoints(tmp_path) if info.kind == "kept"] == [
        "update-00000002"
    ]
    trainer.train(points, num_updates=5, batch_size=8, eval_data=points)
    best = min(trainer.history["eval_loss"])
    assert choose(tmp_path).metric == ("eval_loss", best)
    assert trainer.evaluate(points, batch_size=8)["loss"] == best

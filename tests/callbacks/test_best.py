"""The best value of a metric, and checkpoints of the weights that had it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from loopwright import Callback, Trainer
from loopwright.callbacks import BestCheckpoint, BestMetric, BestModel, Checkpoints, OfflineLoss
from loopwright.checkpoint import CheckpointStore, list_checkpoints, load_weights
from loopwright.cli.selection import pick_checkpoint
from loopwright.run import choose
from loopwright.run.best import load_weights as load_best
from loopwright.run.reading import Run

from ..loops import evaluate_by_hand
from ..mistakes import raises
from .runs import Crash, Logged, assert_same_after_crash, build_trainer


def kept(run_dir: Path) -> dict[str, int]:
    """What each kept model was kept for, and the update it is of."""
    infos = [info for info in list_checkpoints(run_dir, verify=True) if info.kind == "kept"]
    assert all(info.is_sound for info in infos)
    return {info.metric[0]: info.meta["update"] for info in infos if info.metric}


def run(
    points: Any, callbacks: Any, num_epochs: int, run_dir: Path | None = None, **options: Any
) -> Trainer:
    trainer = build_trainer(callbacks, run_dir=run_dir, **options)
    trainer.train(points, num_epochs, batch_size=8)
    return trainer


def test_the_best_so_far_is_part_of_every_row(points):
    history = run(points, [BestMetric("score"), Logged(score=[0.5, 0.2, 0.9, 0.7])], 4).history
    assert history["best_score"] == [0.5, 0.5, 0.9, 0.9]


def test_the_best_after_updates_is_of_what_was_logged_by_then(points):
    callbacks = [
        BestMetric("train_loss", every_n_updates=2),
        OfflineLoss("train", every_n_updates=2),
    ]
    history = run(points, callbacks, 2).history
    losses = list(history.steps["train_loss"])
    assert list(history.steps["best_train_loss"]) == [min(losses[: n + 1]) for n in range(5)]


@pytest.mark.parametrize("after_update", [4, 7])
def test_a_crashed_run_has_the_same_best(tmp_path, points, after_update):
    def build() -> list[Any]:
        return [
            OfflineLoss("train", every_n_updates=2),
            BestMetric("train_loss", every_n_updates=2),
            BestMetric("eval_loss"),
        ]

    assert_same_after_crash(tmp_path, points, build, after_update)


# Checkpoints


def test_the_weights_of_the_best_epoch_are_kept(tmp_path, points):
    scores = Logged(score=[0.5, 0.9, 0.7])
    run(points, [scores, BestCheckpoint("score")], 3, tmp_path)
    assert kept(tmp_path) == {"score": 10}
    weights = load_weights(tmp_path / "kept" / "update-00000010-score")
    assert torch.equal(weights["0.weight"], scores.weights[1]["0.weight"])


def test_tolerances_keep_what_early_stopping_would_have_left(tmp_path, points):
    scores = Logged(score=[1.0, 2.0, 1.5, 3.0, 2.5, 2.6, 2.7, 4.0])
    run(points, [scores, BestCheckpoint("score", tolerances=[0, 1, 2, 3])], 8, tmp_path)
    epochs = {name: update // 5 for name, update in kept(tmp_path).items()}
    assert epochs == {
        "score": 8,
        "score tolerance 0": 2,
        "score tolerance 1": 4,
        "score tolerance 2": 4,
        "score tolerance 3": 8,
    }


def test_the_best_after_updates_is_kept(tmp_path, points):
    callbacks = [
        OfflineLoss("train", every_n_updates=2),
        BestCheckpoint("train_loss", every_n_updates=2),
    ]
    trainer = run(
        points, callbacks, 2, tmp_path, optimizer=lambda params: torch.optim.SGD(params, lr=0.5)
    )
    losses, steps = (
        list(trainer.history.steps["train_loss"]),
        list(trainer.history.steps["train_loss"].steps),
    )
    update = steps[losses.index(min(losses))]
    assert kept(tmp_path) == {"train_loss": update}
    trainer.model.load_state_dict(
        load_weights(tmp_path / "kept" / f"update-{update:08}-train_loss")
    )
    assert evaluate_by_hand(trainer.model, points) == pytest.approx(min(losses))


@pytest.mark.parametrize("one", [BestModel, BestCheckpoint])
@pytest.mark.parametrize("other", [BestModel, BestCheckpoint])
def test_two_that_keep_models_by_one_metric_are_refused(tmp_path, points, one, other):
    with raises("two-keepers", "'score'"):
        run(points, [Logged(score=[1.0]), one("score"), other("score")], 1, tmp_path)


def test_without_a_run_directory_there_is_no_place_for_it(points):
    with raises("no-run-dir", "BestCheckpoint"):
        run(points, [Logged(score=[1.0]), BestCheckpoint("score")], 1)


@pytest.mark.parametrize("crash", [7, 16])
def test_a_crashed_run_keeps_the_same_models(tmp_path, points, crash):
    def start(name: str, after: int | None) -> None:
        scores = Logged(score=[1.0, 2.0, 1.5, 3.0])
        saving = [Checkpoints(every_updates=1, asynchronous=False), Crash(after)]
        run(points, [scores, BestCheckpoint("score", tolerances=[0]), *saving], 4, tmp_path / name)

    start("straight", None)
    with pytest.raises(ZeroDivisionError):
        start("crashed", crash)
    start("crashed", None)
    assert (
        kept(tmp_path / "crashed")
        == kept(tmp_path / "straight")
        == {"score": 20, "score tolerance 0": 10}
    )
    for path in sorted((tmp_path / "straight" / "kept").iterdir()):
        other = load_weights(tmp_path / "crashed" / "kept" / path.name)
        assert all(torch.equal(value, other[name]) for name, value in load_weights(path).items())


# The best models, several of which may be kept


def trained(points: Any, run_dir: Path, *callbacks: Callback, num_epochs: int = 4) -> Trainer:
    measured = Logged(score=[0.2, 0.9, 0.4, 0.5, 0.1], perplexity=[4.0, 2.0, 3.0, 5.0, 6.0])
    return run(points, [measured, *callbacks], num_epochs, run_dir)


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


@pytest.mark.parametrize("scores", [(math.nan, 0.9), (0.9, math.nan)])
def test_a_model_whose_metric_is_no_number_is_never_the_best(tmp_path, points, scores):
    run(points, [Logged(score=scores), BestModel("score", keep=2)], 2, tmp_path)
    best = f"update-{5 + 5 * scores.index(0.9):08d}"
    assert len(list(Path(tmp_path, "kept").iterdir())) == 2
    assert pick_checkpoint(Run(tmp_path), "best").name == best
    assert choose(tmp_path).name == best
    weights, expected = load_best(tmp_path, use="best"), load_weights(tmp_path / "kept" / best)
    assert all(torch.equal(weights[name], value) for name, value in expected.items())


def test_a_first_value_that_is_no_number_is_kept_until_there_is_one(tmp_path, points):
    run(points, [Logged(score=[float("nan")]), BestCheckpoint("score")], 1, tmp_path / "one")
    run(points, [Logged(score=[float("nan"), 0.1]), BestCheckpoint("score")], 2, tmp_path / "two")
    assert kept(tmp_path / "two") == {"score": 10}
    assert isinstance(load_weights(tmp_path / "one" / "kept" / "update-00000005-score"), dict)

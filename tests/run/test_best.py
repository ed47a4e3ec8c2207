"""Which kept model of a run is the best, and that everything which looks for the best goes by one
rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import loopwright
from loopwright.callbacks import BestCheckpoint, BestMetric, BestModel, EarlyStopping
from loopwright.checkpoint import write_checkpoint
from loopwright.cli import main
from loopwright.cli.sweep import Task, read_result
from loopwright.initializers import FromCheckpoint
from loopwright.interfaces.configured.experiment import load_for_use
from loopwright.interfaces.lifecycle import EarlyStoppingCallback, SaveBestModelCallback
from loopwright.metrics import best
from loopwright.run import Run, RunManifest, choose, update_manifest
from tests.interfaces.lifecycle import runs as lifecycle
from tests.interfaces.lifecycle.test_watching_callbacks import Scripted as LifecycleScript
from tests.interfaces.simple.test_kept_models import scripted as simple_scripted
from tests.mistakes import raises
from tests.run.run_helpers import Script, build_trainer, run_with

SERIES = [9.0, 1.0, 5.0, 8.0]  # the largest, the smallest, the one next to 5, and another


def keep(
    run: Path, name: str, metric: str, value: float, update: int, mode: str | None = None
) -> None:
    noted = {"name": metric, "value": value} | ({} if mode is None else {"mode": mode})
    write_checkpoint(
        run / "kept" / name,
        {"models": {"model": {"w": torch.zeros(1)}}},
        {"update": update, "metric": noted},
    )


@pytest.mark.parametrize("metrics", [("eval_f1", "eval_accuracy"), ("eval_accuracy", "eval_f1")])
def test_of_metrics_that_rank_alike_the_one_of_the_first_callback_decides(
    tmp_path: Path, metrics: Sequence[str]
) -> None:
    """Not the one whose model was kept in the earliest epoch, nor the one that is first in the
    alphabet."""
    keeping = [BestModel(name) for name in metrics]
    series = {"eval_f1": [3.0, 2.0, 1.0], "eval_accuracy": [1.0, 2.0, 3.0]}
    run_with(tmp_path, keeping, **series)
    chosen = choose(tmp_path)
    assert chosen is not None
    assert chosen.metric == (metrics[0], 3.0)
    assert Run(tmp_path).main_metric == metrics[0]


def test_a_metric_that_is_named_decides(tmp_path: Path) -> None:
    run_with(
        tmp_path,
        [BestModel("eval_loss"), BestModel("eval_f1")],
        eval_loss=[1.0, 2.0],
        eval_f1=[0.1, 0.2],
    )
    chosen = {name: choose(tmp_path, name) for name in (None, "eval_loss", "eval_f1")}
    found = {name: info and info.metric for name, info in chosen.items()}
    assert found == {
        None: ("eval_loss", 1.0),
        "eval_loss": ("eval_loss", 1.0),
        "eval_f1": ("eval_f1", 0.2),
    }
    with raises("no-such-kept-metric", "'accuracy'", "eval_loss, eval_f1"):
        choose(tmp_path, "accuracy")


def test_a_run_that_kept_nothing_has_no_best_model(tmp_path: Path) -> None:
    run_with(tmp_path, [], accuracy=[1.0])
    assert choose(tmp_path) is None


def test_models_that_were_copied_without_their_run_are_chosen_by_the_names_of_their_metrics(
    tmp_path: Path,
) -> None:
    keep(tmp_path, "a", "accuracy", 0.5, 1)
    keep(tmp_path, "b", "eval_loss", 2.0, 2)
    keep(tmp_path, "c", "eval_loss", 1.0, 3)
    chosen = choose(tmp_path)
    assert chosen is not None
    assert chosen.name == "c"


def test_a_mode_that_was_noted_with_a_kept_model_comes_before_the_name(tmp_path: Path) -> None:
    """In a run of before modes were noted, too; reports and the choice agree."""
    RunManifest.collect().write(tmp_path / "run.json")
    keep(tmp_path, "a", "accuracy", 0.5, 1, "min")
    keep(tmp_path, "b", "accuracy", 0.7, 2, "min")
    chosen = choose(tmp_path)
    assert chosen is not None
    assert (chosen.name, Run(tmp_path).mode_of("accuracy")) == ("a", "min")
    update_manifest(tmp_path / "run.json", metric_modes={"accuracy": "max"})
    chosen = choose(tmp_path)
    assert chosen is not None
    assert (chosen.name, Run(tmp_path).mode_of("accuracy")) == ("b", "max")


# One rule


@pytest.fixture
def nearest_to_five(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rule, in the one place there is: whatever the mode, the value nearest to 5 is the
    best."""
    monkeypatch.setattr(
        best, "sort_key", lambda value, mode: (value is None, abs((value or 0.0) - 5.0))
    )


def best_model_in_a_directory(folder: Path) -> float:
    run_with(folder, [BestModel("metric_loss")], metric_loss=SERIES)
    chosen = choose(folder)
    assert chosen is not None
    assert chosen.metric is not None
    return chosen.metric[1]


def best_model_in_memory(folder: Path) -> float:
    trainer, script = run_with(None, [BestModel("metric_loss", restore=True)], metric_loss=SERIES)
    return SERIES[_epoch_of(trainer.model.weight, script)]


def restored_best_model(folder: Path) -> float:
    trainer, script = run_with(folder, [BestModel("metric_loss", restore=True)], metric_loss=SERIES)
    return SERIES[_epoch_of(trainer.model.weight, script)]


def best_checkpoint(folder: Path) -> float:
    keeping = BestCheckpoint("metric_loss")
    run_with(folder, [keeping], metric_loss=SERIES)
    assert keeping.best is not None
    return keeping.best


def best_metric(folder: Path) -> float:
    trainer, _ = run_with(None, [BestMetric("metric_loss")], metric_loss=SERIES)
    return trainer.history["best_metric_loss"][-1]


def early_stopping(folder: Path) -> float:
    stopping = EarlyStopping("metric_loss", patience=9)
    run_with(None, [stopping], metric_loss=SERIES)
    assert stopping.best is not None
    return stopping.best


def weights_of_a_run(folder: Path) -> float:
    _, script = run_with(folder, [BestModel("metric_loss", keep=4)], metric_loss=SERIES)
    return SERIES[_epoch_of(loopwright.load_weights(folder)["weight"], script)]


def initializer(folder: Path) -> float:
    _, script = run_with(folder, [BestModel("metric_loss", keep=4)], metric_loss=SERIES)
    model = nn.Linear(2, 1)
    FromCheckpoint(folder, use="best").apply(model)
    return SERIES[_epoch_of(model.weight, script)]


def export_command(folder: Path) -> float:
    _, script = run_with(folder, [BestModel("metric_loss", keep=4)], metric_loss=SERIES)
    out = folder / "weights.safetensors"
    assert main(["export", str(folder), "--output", str(out)]) == 0
    return SERIES[_epoch_of(loopwright.load_weights(out)["weight"], script)]


def experiment_of_a_run(folder: Path) -> float:
    _, script = run_with(folder, [BestModel("metric_loss", keep=4)], metric_loss=SERIES)
    trainer = build_trainer([])
    load_for_use(trainer, folder, "best")
    return SERIES[_epoch_of(trainer.model.weight, script)]


def eval_command(folder: Path) -> float:
    from loopwright.cli.selection import pick_checkpoint

    _, script = run_with(folder, [BestModel("metric_loss", keep=4)], metric_loss=SERIES)
    chosen = pick_checkpoint(Run(folder), "best").path
    return SERIES[_epoch_of(loopwright.load_weights(chosen)["weight"], script)]


def reading_of_a_run(folder: Path) -> float:
    run_with(folder, [], metric_loss=SERIES)
    return Run(folder).best("metric_loss").value


def simple_interface(folder: Path) -> float:
    trainer = simple_scripted("loss", SERIES)
    saved: list[int] = []
    trainer._save_checkpoint = lambda path, epoch, value=None: (  # type: ignore[method-assign]
        saved.append(epoch) if path.endswith("best_model") else None
    )
    loader = torch.utils.data.DataLoader(
        TensorDataset(torch.randn(8, 6), torch.zeros(8, dtype=torch.long)), 8
    )
    trainer.train(loader, len(SERIES), loader, save_dir=folder)
    return SERIES[saved[-1]]


def _lifecycle(watching: Any) -> float:
    data = TensorDataset(torch.randn(8, 6), torch.zeros(8, dtype=torch.long))
    lifecycle.train(
        lifecycle.build_trainer(callbacks=[LifecycleScript(*SERIES), watching]), data, len(SERIES)
    )
    return float(watching.best_metric)


def lifecycle_early_stopping(folder: Path) -> float:
    return _lifecycle(EarlyStoppingCallback(9, watch_metric="score", greater_is_better=False))


def lifecycle_best_model(folder: Path) -> float:
    return _lifecycle(
        SaveBestModelCallback(folder / "best", watch_metric="score", greater_is_better=False)
    )


def sweep_value(folder: Path) -> float:
    run_with(folder, [], metric_loss=SERIES)
    value = read_result(Task("one", {}, folder), "metric_loss", "min").value
    assert value is not None
    return value


USERS = [
    *(
        best_model_in_a_directory,
        best_model_in_memory,
        restored_best_model,
        best_checkpoint,
        best_metric,
    ),
    *(
        early_stopping,
        weights_of_a_run,
        initializer,
        export_command,
        eval_command,
        experiment_of_a_run,
    ),
    *(
        reading_of_a_run,
        sweep_value,
        simple_interface,
        lifecycle_early_stopping,
        lifecycle_best_model,
    ),
]


def _epoch_of(weight: Tensor, script: Script) -> int:
    return next(
        at for at, known in enumerate(script.weights) if torch.equal(known, weight.detach())
    )


@pytest.mark.usefixtures("nearest_to_five")
@pytest.mark.parametrize("find", USERS, ids=lambda find: find.__name__)
def test_a_rule_that_is_changed_in_one_place_is_followed_by(
    tmp_path: Path, find: Callable[[Path], float]
) -> None:
    assert find(tmp_path) == 5.0

"""Names, arguments and return values that the published system has beyond the document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright.interfaces import lifecycle
from loopwright.interfaces.lifecycle import (
    EarlyStoppingCallback,
    LogMetricsCallback,
    ModelEma,
    ModelEmaCallback,
    PrintProgressCallback,
    ProgressBarCallback,
    RunHistory,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    TerminateOnNaNCallback,
    Trainer,
    TrainerCallback,
    WSDCheckpointCallback,
    WSDLrScheduler,
)
from loopwright.interfaces.lifecycle.utils import (
    remove_padding,
)
from tests.mistakes import raises

from ...loops import assert_same_model, build_net
from .runs import build_trainer, head, train


def test_rows_of_padding_are_removed() -> None:
    rows = torch.tensor([[[0, 1], [1, 2]], [[-1, -1], [-1, -1]], [[-1, 0], [3, 4]]])
    assert remove_padding(rows, -1).tolist() == [rows[0].tolist(), rows[2].tolist()]
    assert remove_padding(torch.tensor([3, -1, -1]), -1).tolist() == [3]


def test_an_average_is_a_module_that_follows_another() -> None:
    model = build_net()
    average = ModelEma(model, decay=0.5)
    assert isinstance(average, nn.Module)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(2.0)
    average.update(model)
    for one, two in zip(average.module.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, two - 1)
    average.set(model)
    assert_same_model(average.module, model)
    model.eval()
    inputs = torch.ones(2, 6)
    assert torch.equal(average(inputs), model(inputs))


def test_events_come_with_the_published_keywords(points: TensorDataset) -> None:
    events: list[Any] = []

    class Listening(TrainerCallback):
        def on_train_step_end(self, trainer: Trainer, step: int, **kwargs: Any) -> None:  # type: ignore[override]
            events.append(step)

        def on_eval_epoch_start(self, trainer: Trainer, is_intermediate: bool) -> None:  # type: ignore[override]
            events.append(is_intermediate)

        def on_eval_epoch_end(self, trainer: Trainer) -> None:  # type: ignore[override]
            events.append("end")

    callbacks = [Listening, lifecycle.StepBasedEvaluationCallback(2)]
    train(build_trainer(callbacks=callbacks), head(points, 24), 1, eval_dataset=points)
    assert events == [0, 1, True, "end", 2, False, "end"]


def test_a_callback_put_into_the_list_by_hand_is_called_from_then_on(points: TensorDataset) -> None:
    events: list[int] = []

    class Listening(TrainerCallback):
        def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
            events.append(trainer.run_history.current_epoch)

    trainer = train(build_trainer(callbacks=[Listening]), points, 1)
    trainer.callback_handler.callbacks.append(Listening())
    train(trainer, points, 1)
    assert events == [1, 1, 1]


SHIPPED: list[tuple[type[TrainerCallback], dict[str, Any]]] = [
    (LogMetricsCallback, {}),
    (ProgressBarCallback, {}),
    (PrintProgressCallback, {}),
    (TerminateOnNaNCallback, {}),
    (EarlyStoppingCallback, {}),
    (SaveBestModelCallback, {"save_path": "best"}),
    (SaveTrainingStateCallback, {"save_dir": Path("states")}),
    (ModelEmaCallback, {"save_path": "average"}),
]


@pytest.mark.parametrize(
    ("base", "attributes"), SHIPPED, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_subclass_of_a_shipped_callback_need_not_call_its_init(
    points: TensorDataset,
    base: type[TrainerCallback],
    attributes: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    class Own(base):  # type: ignore[misc,valid-type]
        def __init__(self, name: str) -> None:
            self.name = name

    callback = Own("mine")
    vars(callback).update(attributes)
    trainer = train(build_trainer(callbacks=[callback]), points, 2, eval_dataset=points)
    trainer.save_training_state(tmp_path / "state")
    assert trainer.run_history.current_epoch >= 2


class Minimal(RunHistory):
    """A history with what the document lists, and no more."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Any]] = {}
        self.epoch = 1

    def get_metric_names(self) -> Any:
        return self.rows.keys()

    def get_metric_values(self, metric_name: str) -> Any:
        return self.rows[metric_name]

    def get_latest_metric(self, metric_name: str) -> Any:
        return self.rows[metric_name][-1]

    def update_metric(self, metric_name: str, metric_value: Any) -> None:
        self.rows.setdefault(metric_name, []).append(metric_value)

    @property
    def current_epoch(self) -> int:
        return self.epoch

    def _increment_epoch(self) -> None:
        self.epoch += 1

    def reset(self) -> None:
        self.rows, self.epoch = {}, 1


def test_a_run_history_needs_only_what_the_document_lists(points: TensorDataset) -> None:
    trainer = train(build_trainer(run_history=Minimal()), points, 2, eval_dataset=points)
    assert len(trainer.run_history.get_metric_values("eval_loss_epoch")) == 2


def test_a_run_history_without_prefixes_refuses_metrics_that_need_one(
    points: TensorDataset, tmp_path: Path
) -> None:
    trainer = build_trainer(
        run_history=Minimal(), callbacks=[ModelEmaCallback(save_path=tmp_path / "average")]
    )
    with raises("no-metric-prefix", "ema_model_"):
        train(trainer, points, 1, eval_dataset=points)


def test_a_compiled_model_is_kept_or_unwrapped() -> None:
    trainer = build_trainer()
    model = trainer.model
    trainer.model = torch.compile(model, backend="eager")  # type: ignore[assignment]  # a module
    assert trainer.get_model() is trainer.model
    assert trainer.get_model(keep_torch_compile=True) is trainer.model
    assert trainer.get_model(keep_torch_compile=False) is model


def test_wsd_gives_the_positions_of_its_phases() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = WSDLrScheduler(optimizer, total_steps=400, num_warmup_steps=None, num_checkpoints=3)
    assert scheduler.num_warmup_steps == 4
    assert scheduler.get_checkpoint_steps() == [100, 200, 400]
    assert scheduler.get_current_step() == -1
    periods = scheduler.get_decay_info()
    assert periods[1] == {
        "period_start": 100,
        "period_end": 200,
        "decay_steps": 10,
        "pre_decay_step": 190,
    }
    assert scheduler.get_phase_info(200) == periods[1]
    assert scheduler.get_phase_info(999) == periods[2]
    for _ in range(150):
        scheduler.step()
    assert scheduler.get_current_step() == 149


def test_a_continued_wsd_begins_anew_over_its_own_updates() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    first = WSDLrScheduler(optimizer, total_steps=100, num_warmup_steps=10, decay_phase_ratio=0.2)
    for _ in range(80):
        first.step()
    second = WSDLrScheduler(optimizer, total_steps=50, is_continuation_from_checkpoint=True)
    second.load_state_dict(first.state_dict())
    assert (second.total_steps, second.decay_phase_ratio, second.get_current_step()) == (
        50,
        0.2,
        -1,
    )
    rates = []
    for _ in range(50):
        second.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[:40] == [1.0] * 40
    assert rates[40] < 1.0
    third = WSDLrScheduler(optimizer, total_steps=50, is_continuation_from_checkpoint=True)
    third.load_state_dict(second.state_dict())  # the same run, resumed
    assert third.get_current_step() == 49


def test_models_are_saved_around_each_decay(points: TensorDataset, tmp_path: Path) -> None:
    factory = WSDLrScheduler.create_scheduler_fn(
        num_warmup_epochs=1, num_checkpoints=2, decay_phase_ratio=0.2
    )
    callback = WSDCheckpointCallback(tmp_path)
    options: dict[str, Any] = {"create_scheduler_fn": factory, "gradient_accumulation_steps": 2}
    trainer = train(build_trainer(callbacks=[callback]), points, 10, **options)
    assert trainer.scheduler.get_checkpoint_steps() == [15, 30]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "checkpoint_12_wsd_pre_decay",
        "checkpoint_15_wsd_post_decay.pt",
        "checkpoint_27_wsd_pre_decay",
        "checkpoint_30_wsd_post_decay.pt",
    ]
    resumed = build_trainer(callbacks=[WSDCheckpointCallback(tmp_path / "again")])
    train(resumed, points, 10, resume_from=tmp_path / "checkpoint_12_wsd_pre_decay", **options)
    assert_same_model(resumed.model, trainer.model)
    assert (tmp_path / "again" / "checkpoint_15_wsd_post_decay.pt").exists()
    assert not (tmp_path / "again" / "checkpoint_12_wsd_pre_decay").exists()
    short = train(
        build_trainer(),
        points,
        10,
        max_num_train_steps=15,
        **options | {"create_scheduler_fn": None},
    )
    loaded = short.load_checkpoint(
        tmp_path / "checkpoint_15_wsd_post_decay.pt", load_scheduler=False
    )
    assert (loaded["step"], loaded["checkpoint_type"]) == (15, "wsd_post_decay")


def test_training_goes_on_from_before_a_decay(points: TensorDataset, tmp_path: Path) -> None:
    factory = WSDLrScheduler.create_scheduler_fn(num_warmup_steps=0, decay_phase_ratio=0.2)
    first = build_trainer(callbacks=[WSDCheckpointCallback(tmp_path)])
    train(first, points, 4, create_scheduler_fn=factory)
    again = WSDLrScheduler.create_scheduler_fn(is_continuation_from_checkpoint=True)
    callback = WSDCheckpointCallback(
        tmp_path / "more", initial_checkpoint=tmp_path / "checkpoint_16_wsd_pre_decay"
    )
    second = train(
        build_trainer(seed=5, callbacks=[callback]), points, 2, create_scheduler_fn=again
    )
    assert second.scheduler.total_steps == 10
    assert (tmp_path / "more" / "checkpoint_10_wsd_post_decay.pt").exists()

"""Names, arguments and return values that the published system has beyond the document."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from loopwright.interfaces import lifecycle
from loopwright.interfaces.lifecycle import (
    CosineLrScheduler,
    EarlyStoppingCallback,
    LogMetricsCallback,
    ModelEmaCallback,
    ModelFreezer,
    PrintProgressCallback,
    ProgressBarCallback,
    RunHistory,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    StatefulSchedulerBase,
    TerminateOnNaNCallback,
    Trainer,
    TrainerCallback,
    TrainerPlaceholderValues,
    TrainerWithTimmScheduler,
    WSDCheckpointCallback,
    WSDLrScheduler,
)
from loopwright.interfaces.lifecycle.schedulers import _resolve as resolve
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


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = build_net()
        self.neck = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.neck(self.body(inputs)))
        return outputs


def frozen(freezer: ModelFreezer) -> list[bool]:
    return [group.is_frozen for group in freezer.get_layer_groups()]


def test_by_default_all_but_the_last_group_are_frozen_without_batch_norms() -> None:
    model = Layered()
    freezer = ModelFreezer(model)
    freezer.freeze()
    names = [name for name, param in model.named_parameters() if param.requires_grad]
    assert names == [
        "body.1.weight", "body.1.bias", "neck.1.weight", "neck.1.bias", "head.weight", "head.bias"
    ]  # fmt: skip
    assert len(freezer.get_trainable_parameters()) == 6
    assert model.body.training


def test_unfreezing_gives_back_what_was_frozen_by_group() -> None:
    model = Layered()
    freezer = ModelFreezer(model, freeze_batch_norms=True)
    freezer.freeze()
    unfrozen = freezer.unfreeze(from_index=1, to_index=-1)
    assert list(unfrozen) == [1]
    assert {id(p) for p in unfrozen[1]["params"]} == {id(p) for p in model.neck.parameters()}
    assert frozen(freezer) == [True, False, False]
    freezer.unfreeze()
    assert frozen(freezer) == [False, False, False]
    indices = [layer.layer_group_idx for layer in freezer.get_layers()]
    assert indices == [(0, -3)] * 5 + [(1, -2)] * 2 + [(2, -1)]


def test_fine_tuning_trains_the_head_first_and_then_everything(points: TensorDataset) -> None:
    model = Layered()
    freezer = ModelFreezer(model, freeze_batch_norms=True)
    freezer.freeze(set_modules_as_eval=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(freezer.get_trainable_parameters(), lr=0.1)
    trainer = train(Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=()), points, 1)
    changed = {
        name.split(".")[0]
        for name, value in model.state_dict().items()
        if not torch.equal(value, before[name])
    }
    assert changed == {"head"}
    for group in freezer.unfreeze().values():
        optimizer.add_param_group(group | {"lr": 0.01})
    train(trainer, points, 1)
    changed = {
        name.split(".")[0]
        for name, value in model.state_dict().items()
        if not torch.equal(value, before[name])
    }
    assert changed == {"body", "neck", "head"}


NAMES = TrainerPlaceholderValues
VALUES: dict[TrainerPlaceholderValues, int | None] = {
    NAMES.NUM_EPOCHS: 3,
    NAMES.NUM_UPDATE_STEPS_PER_EPOCH: 5,
    NAMES.PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH: 5,
    NAMES.TRAIN_DATALOADER_LEN: 10,
    NAMES.EVAL_DATALOADER_LEN: None,
}


@given(a=st.integers(1, 50), b=st.integers(1, 50))
def test_arithmetic_is_done_when_the_values_are_known(a: int, b: int) -> None:
    x, y = NAMES.NUM_EPOCHS, NAMES.TRAIN_DATALOADER_LEN
    known: dict[TrainerPlaceholderValues, int | None] = {x: a, y: b}
    pairs: list[tuple[Any, Any]] = [
        (x + y, a + b),
        (x - y, a - b),
        (2 * x * y, 2 * a * b),
        (x / y, a / b),
        (x // 3, a // 3),
        (100 // x, 100 // a),
        (100 % x, 100 % a),
        (x % y, a % b),
        (1 - x, 1 - a),
        (1 / x, 1 / a),
        (1 + x, 1 + a),
        (x**2, a**2),
        (2**x, 2**a),
        (-x, -a),
        (round(x / y), round(a / b)),
        (round(x / 7, 1), round(a / 7, 1)),
    ]
    assert [resolve(expression, known) for expression, _ in pairs] == [
        expected for _, expected in pairs
    ]


def test_a_value_that_is_not_known_is_an_error() -> None:
    with raises("unknown-placeholder", "EVAL_DATALOADER_LEN"):
        resolve(NAMES.EVAL_DATALOADER_LEN + 1, VALUES)


def test_all_placeholders_in_a_run(points: TensorDataset) -> None:
    found: dict[str, int] = {}

    def make(optimizer: Any, **values: int) -> StepLR:
        found.update(values)
        return StepLR(optimizer, 1)

    factory = partial(make, **{name.name: name for name in NAMES})
    train(
        build_trainer(),
        points,
        2,
        eval_dataset=head(points, 20),
        gradient_accumulation_steps=2,
        create_scheduler_fn=factory,
    )
    assert found == {
        "NUM_EPOCHS": 2,
        "NUM_UPDATE_STEPS_PER_EPOCH": 3,
        "PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH": 3,
        "TRAIN_DATALOADER_LEN": 5,
        "EVAL_DATALOADER_LEN": 3,
    }


def optimizer(*rates: float) -> SGD:
    return SGD([{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates])


def rates_of(scheduler: StatefulSchedulerBase, count: int, group: int = 0) -> list[float]:
    """The learning rate of each update."""
    rates = []
    for _ in range(count):
        rates.append(scheduler.optimizer.param_groups[group]["lr"])
        scheduler.step()
    return rates


def test_a_cosine_warms_up_and_cools_down() -> None:
    scheduler = CosineLrScheduler(
        optimizer(1.0),
        10,
        2,
        lr_min=0.0,
        num_warmup_epochs=2,
        warmup_starting_lr=0.0,
        num_cooldown_epochs=3,
    )
    rates = rates_of(scheduler, 24)
    assert rates[:5] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert rates[9] == pytest.approx(0.5)
    assert rates[4:14] == sorted(rates[4:14], reverse=True)
    assert rates[14:] == [0.0] * 10


def test_wsd_stays_at_its_peak_and_decays_at_the_end() -> None:
    scheduler = WSDLrScheduler(
        optimizer(1.0), total_steps=100, num_warmup_steps=10, warmup_starting_lr=0.0, lr_min=0.1, decay_phase_ratio=0.2,
        use_inverse_sqrt_decay=False,
    )  # fmt: skip
    rates = rates_of(scheduler, 102)
    assert rates[5] == pytest.approx(0.5)
    assert rates[10:81] == [1.0] * 71
    assert rates[90] == pytest.approx(1 / (0.5 / 0.1 + 0.5))
    assert rates[100:] == [0.1, 0.1]


def test_any_field_can_be_scheduled_and_saved() -> None:
    class GrowingDecay(StatefulSchedulerBase):
        def __init__(self, optimizer: Any) -> None:
            super().__init__(optimizer, param_group_field="weight_decay")

        def get_updated_values(self, num_updates: int) -> float | None:
            return None if num_updates % 2 else num_updates / 100

    own = optimizer(1.0)
    scheduler = GrowingDecay(own)
    for _ in range(5):
        scheduler.step()
    assert own.param_groups[0]["weight_decay"] == 0.04
    other = GrowingDecay(optimizer(1.0))
    other.load_state_dict(scheduler.state_dict())
    other.step()
    assert other.optimizer.param_groups[0]["weight_decay"] == 0.06
    with raises("unknown-group-field", "'betas'"):
        type(
            "Betas",
            (GrowingDecay,),
            {"__init__": lambda self, o: StatefulSchedulerBase.__init__(self, o, "betas")},
        )(own)


def test_a_timm_scheduler_is_stepped_with_updates_and_epochs(points: TensorDataset) -> None:
    steps: list[tuple[str, int]] = []

    class LikeTimms:
        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer

        def step(self, epoch: int) -> None:
            steps.append(("epoch", epoch))

        def step_update(self, num_updates: int) -> None:
            steps.append(("update", num_updates))

    trainer = build_trainer(kind=TrainerWithTimmScheduler)
    train(trainer, points, 2, create_scheduler_fn=LikeTimms, gradient_accumulation_steps=3)
    updates = [("update", number) for number in (1, 2, 3, 4)]
    assert steps == [*updates[:2], ("epoch", 1), *updates[2:], ("epoch", 2)]


def test_a_scheduler_that_create_scheduler_assigns_and_does_not_return_is_the_scheduler(
    points: TensorDataset,
) -> None:
    class Assigning(Trainer):
        def create_scheduler(self) -> None:
            assert self.optimizer is not None
            self.scheduler = StepLR(self.optimizer, step_size=1, gamma=0.5)

    trainer = build_trainer(kind=Assigning, lr=0.08)
    trainer.train(points, 1, max_num_train_steps=3)
    assert trainer.optimizer is not None
    assert trainer.optimizer.param_groups[0]["lr"] == 0.01


def test_an_accelerator_of_a_class_of_ones_own_is_that_of_the_trainer(
    points: TensorDataset,
) -> None:
    class Named(Trainer):
        def _create_accelerator(self) -> Any:
            accelerator = super()._create_accelerator()
            accelerator.name = "mine"
            return accelerator

    trainer = train(build_trainer(kind=Named), points, 1)
    trainer._accelerator.free_memory()
    assert trainer._accelerator.name == "mine"  # type: ignore[attr-defined]

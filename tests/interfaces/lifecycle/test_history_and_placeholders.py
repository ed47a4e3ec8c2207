"""The run history, and values that are filled in when a run is set up."""

from __future__ import annotations

from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from loopwright.interfaces.lifecycle import InMemoryRunHistory, TrainerPlaceholderValues
from loopwright.interfaces.lifecycle.schedulers import _resolve as resolve
from tests.mistakes import raises

from .runs import build_trainer, head, train

NAMES = TrainerPlaceholderValues
VALUES: dict[TrainerPlaceholderValues, int | None] = {
    NAMES.NUM_EPOCHS: 3,
    NAMES.NUM_UPDATE_STEPS_PER_EPOCH: 5,
    NAMES.PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH: 5,
    NAMES.TRAIN_DATALOADER_LEN: 10,
    NAMES.EVAL_DATALOADER_LEN: None,
}


def test_a_history_keeps_series_of_values() -> None:
    history = InMemoryRunHistory()
    history.update_metric("loss", 2.0)
    history.update_metric("loss", 1.0)
    assert history.get_metric_names() == {"loss"}
    assert history.get_metric_values("loss") == [2.0, 1.0]
    assert history.get_latest_metric("loss") == 1.0
    history.delete_metric("loss")
    assert history.get_metric_names() == set()


def test_epochs_are_counted_from_one_until_reset() -> None:
    history = InMemoryRunHistory()
    assert history.current_epoch == 1
    history._increment_epoch()
    history.update_metric("loss", 1.0)
    assert history.current_epoch == 2
    history.reset()
    assert (history.current_epoch, history.get_metric_names()) == (1, set())


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


def test_placeholders_are_found_in_partials_and_containers() -> None:
    def gather(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    inner = partial(
        gather, NAMES.NUM_EPOCHS, [NAMES.NUM_UPDATE_STEPS_PER_EPOCH, (NAMES.NUM_EPOCHS * 2, "text")]
    )
    outer = partial(inner, options={"length": NAMES.TRAIN_DATALOADER_LEN}, lr=0.1)
    assert resolve(outer, VALUES)() == (
        (3, [5, (6, "text")]),
        {"options": {"length": 10}, "lr": 0.1},
    )


def test_a_value_that_is_not_known_is_an_error() -> None:
    with raises("unknown-placeholder", "EVAL_DATALOADER_LEN"):
        resolve(NAMES.EVAL_DATALOADER_LEN + 1, VALUES)
    with raises("placeholder-as-number"):
        int(NAMES.NUM_EPOCHS / 2)  # type: ignore[call-overload]


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

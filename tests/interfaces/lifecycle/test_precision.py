"""Mixed precision in the words of this interface, with default stages and replaced ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import NonFiniteLossError
from loopwright.interfaces.lifecycle import Trainer
from tests.mistakes import raises

from ...loops import assert_same_model, build_net, train_by_hand
from .runs import build_trainer, train
from .stages import STAGES, replaced

SCALER_FREE = [
    name for name in STAGES if name not in ("backward", "all", "epoch of plain stages", "schedule")
]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def by_hand(points: TensorDataset, precision: str, **options: Any) -> nn.Module:
    model = build_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu") if precision == "fp16" else None
    train_by_hand(
        model, optimizer, points, epochs=2, autocast=DTYPES[precision], scaler=scaler, **options
    )
    return model


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize(
    "options", [{}, {"gradient_accumulation_steps": 2, "gradient_clip_value": 0.02}]
)
def test_mixed_precision_equals_the_hand_written_loop(
    points: TensorDataset, precision: str, options: dict[str, Any]
) -> None:
    trainer = train(build_trainer(mixed_precision=precision), points, 2, **options)
    names = {"gradient_accumulation_steps": "accumulate", "gradient_clip_value": "clip_value"}
    model = by_hand(points, precision, **{names[name]: value for name, value in options.items()})
    assert_same_model(trainer.model, model)
    assert trainer.run_config.mixed_precision == precision


@pytest.mark.parametrize("name", [*SCALER_FREE, "backward", "all", "epoch of plain stages"])
def test_replaced_stages_in_bf16_train_as_the_default_ones(
    points: TensorDataset, name: str
) -> None:
    stages = {key: body for key, body in STAGES[name].items() if key != "scheduler_step"}
    own = train(
        build_trainer(kind=replaced(**stages), mixed_precision="bf16"),
        points,
        2,
        gradient_clip_value=0.02,
    )
    if "plain epoch" in name:
        own_again = train(
            build_trainer(mixed_precision="bf16"), points, 2, gradient_clip_value=0.02
        )
        for one, two in zip(own.model.parameters(), own_again.model.parameters(), strict=True):
            torch.testing.assert_close(one, two)
        return
    assert_same_model(own.model, by_hand(points, "bf16", clip_value=0.02))


@pytest.mark.parametrize(
    "name",
    ["accelerator", "step", "zero", "clip", "loss", "published epoch", "published epoch and run"],
)
def test_replaced_stages_in_fp16_train_as_the_default_ones(
    points: TensorDataset, name: str
) -> None:
    own = train(
        build_trainer(kind=replaced(**STAGES[name]), mixed_precision="fp16"),
        points,
        2,
        gradient_clip_value=0.02,
    )
    assert_same_model(own.model, by_hand(points, "fp16", clip_value=0.02))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("backward", "unscaled-loss"),
        ("all", "unscaled-loss"),
        ("plain epoch", "step-without-scaling"),
    ],
)
def test_gradients_that_were_not_scaled_are_refused_in_fp16(
    points: TensorDataset, name: str, code: str
) -> None:
    trainer = build_trainer(kind=replaced(**STAGES[name]), mixed_precision="fp16")
    with raises(code, "super().backward_step(loss)"):
        train(trainer, points, 1)


def test_a_step_that_overflowed_is_left_out_with_its_scheduler_step(points: TensorDataset) -> None:
    """Gradients that are not finite: the first updates are too large for the initial scale of the
    loss."""
    counts = {"default": [0, 0], "plain": [0, 0]}

    def counting(name: str) -> dict[str, Any]:
        def schedule(self: Any) -> None:
            counts[name][1] += 1

        def large(self: Any, batch: Any) -> dict[str, Any]:
            counts[name][0] += 1
            outputs = self.model(batch[0])
            return {
                "loss": nn.functional.cross_entropy(outputs, batch[1]) * 1e36,
                "batch_size": len(batch[1]),
            }

        return {"scheduler_step": schedule, "calculate_train_batch_loss": large}

    def plain(self: Any) -> None:
        self.optimizer.step()

    first = build_trainer(kind=replaced(**counting("default")), mixed_precision="fp16")
    second = build_trainer(
        kind=replaced(**counting("plain"), optimizer_step=plain), mixed_precision="fp16"
    )
    for trainer in (first, second):
        with pytest.raises(NonFiniteLossError, match="Nothing was trained: all 5 updates"):
            train(trainer, points, 1)
    assert counts["default"] == counts["plain"] == [5, 0]
    for trainer in (first, second):
        assert all(map(torch.equal, trainer.model.parameters(), build_net().parameters()))


def test_backward_and_optimizer_steps_are_outside_of_autocast(points: TensorDataset) -> None:
    seen: list[bool] = []

    class Watching(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            seen.append(torch.is_autocast_enabled("cpu"))
            super().step(closure)

    def plain(self: Any) -> None:
        self.optimizer.step()

    for kind in (Trainer, replaced(optimizer_step=plain), replaced(**STAGES["plain epoch"])):
        model = build_net()
        optimizer = Watching(model.parameters(), lr=0.1)
        trainer = kind(
            model, nn.CrossEntropyLoss(), optimizer, callbacks=(), mixed_precision="bf16"
        )
        train(trainer, points, 1)
    assert seen == [False] * 15

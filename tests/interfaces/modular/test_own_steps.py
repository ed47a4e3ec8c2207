"""Steps and loops replaced whole, with the ordinary torch idioms in them, are the loops that one
writes by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ...loops import build_net
from . import idioms
from .idioms import CLIP, Idiom, accumulated_by_hand, fit, scheduled_by_hand
from .programs import Config, KillAt, Killed, assert_same, by_hand

PLAIN = [
    idioms.OwnStep,
    idioms.OwnStepWithoutZeroing,
    idioms.OwnBackward,
    idioms.OwnBackwardGivenStep,
    idioms.Returning,
    idioms.Closure,
    idioms.LoopOwnStep,
    idioms.LoopTrainsReturnedItself,
    idioms.LoopReturning,
]
CLIPPED_BY_HAND = [idioms.OwnClipping, idioms.ClippingAlone]
SCHEDULED = [
    idioms.OwnSchedule,
    idioms.OwnScheduleAlone,
    idioms.LoopSchedule,
]


@pytest.mark.parametrize("kind", PLAIN)
def test_an_idiom_is_one_step_a_batch(kind: type[Idiom]) -> None:
    trainer = fit(kind)
    assert_same(trainer.model, by_hand(build_net(), epochs=2))
    assert [update.num_updates for update in trainer._core.run.updates.by_name.values()] == [10]


@pytest.mark.parametrize(
    "kind", [idioms.OwnStep, idioms.OwnBackward, idioms.Returning, idioms.LoopOwnStep]
)
def test_the_configs_clipping_comes_before_whoever_steps(kind: type[Idiom]) -> None:
    assert_same(fit(kind, gradient_clip_val=CLIP).model, by_hand(build_net(), epochs=2, clip=CLIP))


@pytest.mark.parametrize("kind", CLIPPED_BY_HAND)
def test_clipping_by_hand_is_kept(kind: type[Idiom]) -> None:
    assert_same(fit(kind).model, by_hand(build_net(), epochs=2, clip=CLIP))


@pytest.mark.parametrize("kind", SCHEDULED)
def test_a_scheduler_is_stepped_once_an_update_by_whomever(kind: type[Idiom]) -> None:
    trainer = fit(kind)
    assert trainer.scheduler.last_epoch == 10
    assert_same(trainer.model, scheduled_by_hand(build_net(), epochs=2))


def test_accumulation_by_hand_is_kept() -> None:
    assert_same(fit(idioms.OwnAccumulation).model, accumulated_by_hand(build_net(), epochs=2))


@pytest.mark.parametrize("kind", [idioms.OwnStep, idioms.Returning, idioms.LoopOwnStep])
def test_an_idiom_runs_in_bf16(kind: type[Idiom]) -> None:
    if kind is idioms.LoopOwnStep:

        class Kind(kind):  # type: ignore[misc,valid-type]
            def loss(self, batch: Any) -> Any:
                with self.autocast():
                    return super().loss(batch)
    else:
        Kind = kind  # type: ignore[misc]
    assert_same(
        fit(Kind, precision="bf16").model, by_hand(build_net(), epochs=2, dtype=torch.bfloat16)
    )


def test_a_plain_step_after_backward_is_unscaled_in_fp16() -> None:
    options: dict[str, Any] = {"precision": "fp16", "gradient_clip_val": CLIP}
    assert_same(fit(idioms.OwnStep, **options).model, fit(idioms.Returning, **options).model)


@pytest.mark.parametrize("kind", [idioms.Returning, idioms.OwnStep])
def test_a_step_called_by_hand_is_one_step(kind: type[Idiom]) -> None:
    trainer = kind(Config(), build_net())
    trainer.setup()
    trainer.training_step(next(iter(trainer.train_loader)), 0)
    assert [update.num_updates for update in trainer._core.run.updates.by_name.values()] == [1]


@pytest.mark.parametrize(
    "kind", [idioms.OwnStep, idioms.OwnBackward, idioms.Returning, idioms.LoopOwnStep]
)
def test_an_idiom_is_resumed_exactly(tmp_path: Path, kind: type[Idiom]) -> None:
    options: dict[str, Any] = {"n_epochs": 2, "checkpoint_every_n_steps": 1, "run_dir": tmp_path}
    with pytest.raises(Killed):
        kind(Config(callbacks=[KillAt(7)], **options), build_net()).fit()
    again = kind(Config(**options), build_net(seed=9))
    again.fit()
    assert_same(again.model, by_hand(build_net(), epochs=2))


def test_a_window_that_does_not_fit_into_memory_is_taken_again_in_pieces() -> None:
    class Small(idioms.Returning):
        def loss(self, batch: Any) -> Any:
            if len(batch[0]) > 5 and self._core.progress.step:
                raise torch.OutOfMemoryError
            return super().loss(batch)

    trainers = [
        cls(Config(gradient_accumulation_steps=2), nn.Linear(6, 3))
        for cls in (Small, idioms.Returning)
    ]
    trainers[1].model.load_state_dict(trainers[0].model.state_dict())
    for trainer in trainers:
        trainer.fit()
    assert trainers[0]._core.run.num_micro_batches == 2
    torch.testing.assert_close(trainers[0].model.weight, trainers[1].model.weight)

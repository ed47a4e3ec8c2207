"""A loss may be finite and its gradient not, as of sqrt at 0: neither reaches the weights, nor a
checkpoint."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import loopwright
from loopwright import Callback, NonFiniteLossError, Schedule, Trainer
from loopwright.callbacks import Checkpoints, NonFiniteGuard
from loopwright.checkpoint import list_checkpoints, read_checkpoint, write_checkpoint
from loopwright.errors import CheckpointError
from tests.loops import assert_same_model
from tests.training.compiled_runs import traced
from tests.training.test_guard import FarRuntime

__all__ = ["traced"]  # a fixture

BATCHES = [torch.full((4, 3), float(number)) for number in range(1, 7)]


def batches(zero_at: int | None) -> list[torch.Tensor]:
    """Six batches, one of them of zeros: sqrt(0) is finite, its derivative is not."""
    return [
        torch.zeros(4, 3) if number == zero_at else batch for number, batch in enumerate(BATCHES)
    ]


class Roots(Trainer):
    """The loss is the mean of square roots of the model's outputs, which are 0 for a batch of
    zeros."""

    def compute_loss(self, outputs, targets):
        return outputs.square().sum(1).sqrt().mean()


def build(cls: type[Trainer] = Roots, **options) -> Trainer:
    torch.manual_seed(3)
    model = nn.Linear(3, 2, bias=False)
    optimizer = options.pop("optimizer", lambda params: torch.optim.SGD(params, 0.01, momentum=0.9))
    trainer = cls(model, optimizer(model.parameters()), progress="silent", **options)
    if trainer.run.compiled is not None:
        trainer.run.compiled.choice = "compiled"  # made here, so that no clock decides
    return trainer


def trained_on(data: list[torch.Tensor], **options) -> nn.Module:
    trainer = build(**options)
    trainer.train(data)
    return trainer.model


@pytest.mark.parametrize("at", [0, 2, 5])
@pytest.mark.parametrize(
    "options", [{}, {"clip_norm": 1.0}, {"precision": "bf16"}], ids=["plain", "clipped", "bf16"]
)
def test_a_nan_gradient_is_refused_in_its_own_update_and_the_weights_are_those_before(at, options):
    trainer = build(**options)
    with pytest.raises(
        NonFiniteLossError, match=rf"gradient of 'weight' is not finite .* in update {at + 1} "
    ):
        trainer.train(batches(at))
    clean = build(**options)
    if at:
        clean.train(batches(at)[:at])
    assert_same_model(trainer.model, clean.model)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_skipping_leaves_out_the_update_with_the_nan_gradient_and_counts_it(accumulate):
    trainer = build(accumulate=accumulate, callbacks=NonFiniteGuard("skip"))
    history = trainer.train(batches(2))
    kept = batches(2)[:2] + batches(2)[2 + accumulate :]
    assert_same_model(trainer.model, trained_on(kept, accumulate=accumulate))
    assert history["skipped_updates"] == [1]


@pytest.mark.parametrize("action", ["raise", "skip"])
def test_a_plain_step_of_the_users_own_is_looked_at_too(action):
    class Own(Trainer):
        def train_step(self, batch):
            self.optimizers["optimizer"].zero_grad()
            loss = self.model(batch).square().sum(1).sqrt().mean()
            loss.backward()
            self.optimizers["optimizer"].step()
            return {"loss": loss}

    trainer = build(Own, callbacks=NonFiniteGuard(action))
    if action == "raise":
        with pytest.raises(NonFiniteLossError, match="gradient of 'weight' is not finite"):
            trainer.train(batches(2))
        assert_same_model(trainer.model, trained_on(batches(2)[:2]))
    else:
        trainer.train(batches(2))
        assert_same_model(trainer.model, trained_on(batches(2)[:2] + batches(2)[3:]))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_on_a_device_that_is_not_waited_for_the_step_is_left_out(kind):
    def fused(params):
        return kind(params, 0.01, fused=True)

    trainer = build(optimizer=fused, runtime=FarRuntime("cpu"), callbacks=NonFiniteGuard("skip"))
    trainer.train(batches(2))
    assert_same_model(trainer.model, trained_on(batches(2)[:2] + batches(2)[3:], optimizer=fused))


@pytest.mark.parametrize(("accumulate", "update"), [(1, 3), (2, 2)])
def test_the_compiled_step_leaves_the_weights_as_they_are(traced, accumulate, update):
    trainer = build(compile="step", accumulate=accumulate, callbacks=NonFiniteGuard("skip"))
    trainer.train(batches(2))
    assert trainer.run.compiled is not None
    assert (trainer.run.compiled.choice, trainer.run.compiled.reason) == ("compiled", "")
    kept = batches(2)[:2] + batches(2)[2 + accumulate :]
    torch.testing.assert_close(trainer.model.weight, trained_on(kept, accumulate=accumulate).weight)
    with pytest.raises(
        NonFiniteLossError, match=f"gradient of .* is not finite in update {update} "
    ):
        build(compile="step", accumulate=accumulate).train(batches(2))


# Learning rates


@pytest.mark.parametrize("rate", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("options", [{}, {"compile": "step"}], ids=["eager", "compiled"])
def test_a_scheduler_that_gives_no_finite_rate_is_refused_before_the_step(rate, options):
    def schedule(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda update: 1.0 if update < 3 else rate
        )

    trainer = build(scheduler=Schedule(schedule, every="update"), **options)
    with pytest.raises(
        NonFiniteLossError, match=rf"learning rate of optimizer 'optimizer' is {rate} in update 4 "
    ):
        trainer.train(batches(None))
    torch.testing.assert_close(trainer.model.weight, trained_on(batches(None)[:3]).weight)


# Checkpoints


class Spoil(Callback):
    """Writes NaN into a weight, as code of the user's own may, after some update."""

    def __init__(self, update: int, value: float = math.nan) -> None:
        self.update, self.value = update, value

    def on_update_end(self, trainer):
        if trainer.progress.update == self.update:
            with torch.no_grad():
                trainer.model.weight[0, 0] = self.value


def saved_updates(folder: Path) -> list[int]:
    return [info.manifest.meta["update"] for info in list_checkpoints(folder / "checkpoints")]


@pytest.mark.parametrize("guard", ["raise", "skip", "stop", "off"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_no_resume_point_is_written_with_a_weight_that_is_not_finite(tmp_path, guard, value):
    callbacks = [Checkpoints(every_updates=1, keep=9), NonFiniteGuard(guard), Spoil(4, value)]
    trainer = build(run_dir=tmp_path / "run", callbacks=callbacks)
    with pytest.raises((CheckpointError, NonFiniteLossError)):
        trainer.train(batches(None))
    assert saved_updates(tmp_path / "run") == [1, 2, 3]
    mended = build(
        run_dir=tmp_path / "run",
        callbacks=[Checkpoints(every_updates=1, keep=9), NonFiniteGuard(guard)],
    )
    mended.train(batches(None), changes="accept")
    assert_same_model(mended.model, trained_on(batches(None)))


def test_a_resume_takes_the_newest_finite_point_and_says_so(tmp_path, caplog):
    """As of runs that an earlier version wrote, with NaN in the newest."""
    run = tmp_path / "run"
    build(run_dir=run, callbacks=Checkpoints(every_updates=1, keep=9)).train(
        batches(None), num_updates=4
    )
    newest = run / "checkpoints" / "update-00000004"
    checkpoint = read_checkpoint(newest)
    checkpoint.tree["models"]["model"]["weight"][0, 0] = math.nan
    write_checkpoint(newest, checkpoint.tree, checkpoint.meta)
    resumed = build(run_dir=run, callbacks=Checkpoints(every_updates=1, keep=9))
    resumed.train(batches(None), num_updates=6)
    assert (
        "update-00000004 is skipped: weight 'weight' of model 'model' is not finite" in caplog.text
    )
    assert_same_model(resumed.model, trained_on(batches(None)))


def test_masks_of_infinity_and_buffers_that_were_nan_before_are_saved(tmp_path):
    class Masked(nn.Linear):
        def __init__(self):
            super().__init__(3, 2, bias=False)
            self.register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))
            self.register_buffer("last", torch.tensor(math.nan))
            self.frozen = nn.Parameter(torch.tensor([math.inf]), requires_grad=False)

    model = Masked()
    trainer = Roots(
        model,
        torch.optim.SGD(model.parameters(), 0.01),
        run_dir=tmp_path / "run",
        progress="silent",
    )
    trainer.train(batches(None))
    assert saved_updates(tmp_path / "run") == [6]


# fp16


def fp16_trainer(factor: float, **options) -> Trainer:
    class Scaled(Roots):
        def compute_loss(self, outputs, targets):
            return super().compute_loss(outputs.float(), targets) * factor

    return build(Scaled, precision="fp16", **options)


def test_a_run_of_which_fp16_skips_every_update_is_an_error_and_no_weight_has_changed():
    trainer = fp16_trainer(2.0**60)
    before = trainer.model.weight.clone()
    with pytest.raises(
        NonFiniteLossError,
        match=r"Nothing was trained: all 6 updates .* epoch 3 .*overflowed in fp16",
    ):
        trainer.train(batches(None), num_epochs=3)
    assert torch.equal(trainer.model.weight, before)


def test_a_short_first_epoch_in_which_the_loss_scale_is_found_is_said_and_training_goes_on(
    tmp_path, capsys
):
    trainer = fp16_trainer(64.0, run_dir=tmp_path / "run")
    trainer.run.progress_style = "lines"
    history = trainer.train(batches(None), num_epochs=3)
    assert history["skipped_updates"][0] == 6
    assert history["skipped_updates"][2] < 6
    assert (
        "All 6 updates of optimizer 'optimizer' in epoch 1 were skipped" in capsys.readouterr().out
    )
    (run,) = loopwright.runs(tmp_path)
    assert run.metrics("skipped_updates", by="epoch")["value"] == history["skipped_updates"]


def test_skipped_updates_are_counted_across_a_resume_inside_the_epoch(tmp_path):
    data = batches(None) * 3
    whole = fp16_trainer(64.0).train(data)["skipped_updates"]
    fp16_trainer(64.0, run_dir=tmp_path / "run").train(data, num_updates=9)
    resumed = fp16_trainer(64.0, run_dir=tmp_path / "run").train(data, num_epochs=1)
    assert whole[0] > 2
    assert resumed["skipped_updates"] == whole

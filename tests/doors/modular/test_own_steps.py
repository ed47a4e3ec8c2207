"""Steps and loops replaced whole, with the ordinary torch idioms in them, are the loops that one writes by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from loopwright import ConfigurationError
from loopwright.callbacks import NonFiniteGuard
from loopwright.doors.modular import own_steps
from loopwright.errors import NonFiniteLossError
from loopwright.runtime import watchdog
from loopwright.training.update import OptimizerUpdate
from loopwright.training.window import Window

from ...distributed.ranks import run_ranks
from ...distributed.scenarios import assert_same as assert_close
from ...distributed.scenarios import weights_of
from ...loops import build_net
from ...mistakes import Mistakes
from . import idioms
from .idioms import CLIP, Idiom, accumulated_by_hand, scheduled_by_hand
from .programs import Config, KillAt, Killed, MyTrainer, assert_same, by_hand
from .test_gradients import Pair, pair_by_hand
from .test_processes import DoublePair, build_model, loaders

PLAIN = [
    idioms.OwnStep,
    idioms.OwnStepWithoutZeroing,
    idioms.OwnBackward,
    idioms.Returning,
    idioms.ReturningNamed,
    idioms.Closure,
    idioms.LoopOwnStep,
    idioms.LoopOwnBackward,
    idioms.LoopTrainsReturned,
    idioms.LoopTrainsReturnedItself,
    idioms.LoopReturning,
]
CLIPPED_BY_HAND = [idioms.OwnClipping, idioms.ClippingAlone, idioms.OwnBackwardClipping]
SCHEDULED = [idioms.OwnSchedule, idioms.OwnScheduleAlone, idioms.TrainersSchedule, idioms.LoopSchedule]


def fit(kind: type[Idiom], **options: Any) -> Idiom:
    trainer = kind(Config(n_epochs=2, **options), build_net())
    trainer.fit()
    return trainer


@pytest.mark.parametrize("kind", PLAIN)
def test_an_idiom_is_one_step_a_batch(kind: type[Idiom]) -> None:
    trainer = fit(kind)
    assert_same(trainer.model, by_hand(build_net(), epochs=2))
    assert [update.num_updates for update in trainer._engine.run.updates.by_name.values()] == [10]


@pytest.mark.parametrize("kind", [idioms.OwnStep, idioms.OwnBackward, idioms.Returning, idioms.LoopOwnStep])
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
    assert_same(fit(Kind, precision="bf16").model, by_hand(build_net(), epochs=2, dtype=torch.bfloat16))


@pytest.mark.parametrize("kind", [idioms.Returning, idioms.LoopReturning])
def test_returned_losses_are_accumulated(kind: type[Idiom]) -> None:
    trainer = fit(kind, gradient_accumulation_steps=2)
    assert_same(trainer.model, by_hand(build_net(), epochs=2, accumulate=2))


@pytest.mark.parametrize("kind", [idioms.Returning, idioms.OwnStep])
def test_a_step_called_by_hand_is_one_step(kind: type[Idiom]) -> None:
    trainer = kind(Config(), build_net())
    trainer.setup()
    trainer.training_step(next(iter(trainer.train_loader)), 0)
    assert [update.num_updates for update in trainer._engine.run.updates.by_name.values()] == [1]


def test_a_step_taken_where_nothing_is_accumulated_any_more_is_that_of_the_window() -> None:
    class Asking(Idiom):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.backward(self.loss(batch))
            if not self.is_accumulating_gradients:
                self.step(self.optimizer)

    assert_same(fit(Asking, gradient_accumulation_steps=2).model, by_hand(build_net(), epochs=2, accumulate=2))


# Several optimizers


class OwnPair(Pair):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        fake = self.fake(batch[0])
        self.d_optimizer.zero_grad()
        self.backward(self.d_loss(batch[0], fake))
        self.d_optimizer.step()
        self.g_optimizer.zero_grad()
        self.backward(self.g_loss(fake))
        self.g_optimizer.step()


class RawPair(Pair):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        fake = self.fake(batch[0])
        self.d_optimizer.zero_grad()
        self.d_loss(batch[0], fake).backward()
        self.d_optimizer.step()
        self.g_optimizer.zero_grad()
        self.g_loss(fake).backward()
        self.g_optimizer.step()


class LoopPair(OwnPair):
    def training_loop(self) -> None:
        for _ in range(self.config.n_epochs):
            for batch in self.train_loader:
                OwnPair.training_step.__wrapped__(self, batch, 0)  # as if it stood here


@pytest.mark.parametrize("kind", [OwnPair, RawPair, LoopPair])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_a_gan_with_steps_of_its_own_is_that_of_a_loop_by_hand(kind: type[Pair], clip: float | None) -> None:
    trainer = kind(Config(n_epochs=2, gradient_clip_val=clip))
    trainer.fit()
    generator, discriminator = pair_by_hand(is_alternating=True, accumulate=1, clip=clip, dtype=None)
    assert_same(trainer.generator, generator)
    assert_same(trainer.discriminator, discriminator)


class Unnamed(Pair):
    """The losses of a GAN, one after the other, and not a word about whose they are."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        fake = self.fake(batch[0])
        self.backward(self.d_loss(batch[0], fake))
        self.backward(self.g_loss(fake))


class Alternating(Pair):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        fake = self.fake(batch[0])
        self.backward(self.g_loss(fake) if batch_idx % 2 else self.d_loss(batch[0], fake))


def test_losses_that_could_be_for_one_optimizer_or_two_are_refused(mistake: Mistakes) -> None:
    trainer = Unnamed(Config())
    with mistake("Door: modular", "`self.backward(d_loss)`, then `self.backward(g_loss)`, with two optimizers",
                 ConfigurationError, match=r"self\.backward\(loss, self\.g_optimizer\)"):  # fmt: skip
        trainer.fit()
    assert not any(update.num_updates for update in trainer._engine.run.updates.by_name.values())


def test_losses_of_alternating_batches_are_refused_by_the_third(mistake: Mistakes) -> None:
    trainer = Alternating(Config())
    with pytest.raises(ConfigurationError, match="not clear which optimizer"):
        trainer.fit()
    assert trainer.global_step == 2


def test_losses_that_reach_different_optimizers_go_to_those() -> None:
    class Two(Pair):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.backward(self.fake(batch[0]).square().mean())
            self.backward(self.discriminator(batch[0]).square().mean())

    class Named(Pair):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.backward(self.fake(batch[0]).square().mean(), self.g_optimizer)
            self.backward(self.discriminator(batch[0]).square().mean(), self.d_optimizer)

    two, named = Two(Config(n_epochs=2)), Named(Config(n_epochs=2))
    two.fit()
    named.fit()
    assert_same(two.generator, named.generator)
    assert_same(two.discriminator, named.discriminator)


def test_several_losses_of_one_optimizer_are_added() -> None:
    class Parts(Pair):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.backward((self.discriminator(batch[0]) - 1).square().mean())
            self.backward(self.discriminator(self.fake(batch[0]).detach()).square().mean())

    class Sum(Pair):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            real = (self.discriminator(batch[0]) - 1).square().mean()
            self.backward(real + self.discriminator(self.fake(batch[0]).detach()).square().mean())

    parts, added = Parts(Config()), Sum(Config())
    parts.fit()
    added.fit()
    torch.testing.assert_close(parts.discriminator.state_dict(), added.discriminator.state_dict())


def test_a_part_that_is_unfrozen_later_is_no_riddle() -> None:
    class Unfreezing(Pair):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.generator.requires_grad_(self.current_epoch > 0)
            return self.g_loss(self.fake(batch[0]))

    trainer = Unfreezing(Config(n_epochs=2))
    trainer.fit()
    assert [update.num_updates for update in trainer._engine.run.updates.by_name.values()] == [5, 10]


# On two processes


class DoubleData:
    configure_dataloaders = loaders


RANKS = [
    idioms.OwnStep,
    idioms.Returning,
    idioms.ReturningNamed,
    idioms.LoopOwnStep,
    idioms.LoopReturning,
    idioms.LoopTrainsReturned,
    idioms.OwnSchedule,
]


def fit_double(kind: type[Idiom], **options: Any) -> dict[str, Any]:
    double = type(kind.__name__, (DoubleData, kind), {})
    trainer = double(Config(n_epochs=2, **options), build_model())
    return {"history": trainer.fit().to_dict(), "weights": weights_of(trainer.model)}


class DoubleOwnPair(DoublePair, OwnPair):
    """A GAN with steps of its own, on processes that see different samples; zeroes more than it has to."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        super().training_step(batch, batch_idx)
        self.g_optimizer.zero_grad()
        self.d_optimizer.zero_grad()


def all_idioms(rank: int, options: dict[str, Any]) -> dict[str, Any]:
    found = {kind.__name__: fit_double(kind, gradient_clip_val=CLIP, **options) for kind in RANKS}
    pair = DoubleOwnPair(Config(n_epochs=2, gradient_clip_val=0.05, **options))
    pair.fit()
    found["pair"] = weights_of(pair.generator, pair.discriminator)
    found["accumulating"] = fit_double(idioms.Returning, gradient_accumulation_steps=2, **options)
    return found


@pytest.mark.parametrize("options", [{}, {"strategy": "fsdp"}], ids=["ddp", "fsdp"])
def test_idioms_give_the_weights_of_one_process_on_two(options: dict[str, Any]) -> None:
    alone = all_idioms(0, {})
    for ours in run_ranks(all_idioms, 2, options):
        assert_close(ours, alone)


REFUSED_ON_RANKS = {
    "`loss.backward(); optimizer.step()` on several processes": idioms.OwnBackward,
    "the same in a `training_loop`": idioms.LoopOwnBackward,
    "`clip_grad_norm_` after `self.backward(loss)` on several processes": idioms.ClippingAlone,
    "`clip_grad_norm_` between `self.backward(loss)` and `optimizer.step()` on several processes": idioms.OwnClipping,
    "a closure on several processes": idioms.Closure,
}


def refused(rank: int) -> list[str]:
    watchdog.GRACE_SECONDS = 60.0  # both raise, one maybe long after the other
    said = []
    for kind in REFUSED_ON_RANKS.values():
        with pytest.raises(ConfigurationError) as caught:
            fit_double(kind)
        said.append(str(caught.value))
    return said


@pytest.mark.mistake
def test_what_would_let_processes_diverge_is_refused(mistake: Mistakes) -> None:
    for said in run_ranks(refused, 2):
        for what, text in zip(REFUSED_ON_RANKS, said, strict=True):
            mistake.said("Door: modular", what, text)
            assert ("self.clip_gradients" if "clip" in what else "self.backward(loss)") in text


class OwnValidation(MyTrainer):
    """Counts by hand, and returns what it counted; logs something after its batches."""

    configure_dataloaders = loaders

    def validation_loop(self) -> Any:
        correct = total = 0
        for inputs, targets in self.val_loader:
            correct += int((self.model(inputs).argmax(1) == targets).sum())
            total += len(targets)
        self.log_metrics({"logged_accuracy": correct / max(total, 1)})
        return {"accuracy": correct / max(total, 1), "val/ones": 1.0}


def validated(rank: int) -> dict[str, list[float]]:
    return OwnValidation(Config(n_epochs=2), build_model()).fit().to_dict()


def test_what_a_validation_loop_returns_is_that_of_all_processes() -> None:
    alone = validated(0)
    assert alone["val_accuracy"] == alone["val_logged_accuracy"]
    for ours in run_ranks(validated, 2):
        assert ours["val_accuracy"] == ours["val_logged_accuracy"] == pytest.approx(alone["val_accuracy"], rel=1e-12)
        assert ours["val/ones"] == [1.0, 1.0]


def test_a_step_by_hand_is_not_taken_with_gradients_of_a_loss_that_is_not_finite() -> None:
    class Nan(Idiom):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.optimizer.zero_grad()
            self.backward(self.loss(batch) * (float("nan") if batch_idx == 1 else 1.0))
            self.optimizer.step()

    skipped = Nan(Config(callbacks=[NonFiniteGuard("skip")]), build_net())
    skipped.fit()
    assert all(param.isfinite().all() for param in skipped.model.parameters())
    with pytest.raises(NonFiniteLossError):
        Nan(Config(), build_net()).fit()


def test_what_a_device_noted_is_read_before_a_step_by_hand() -> None:
    """On an accelerator a fused optimizer leaves out its own steps; one of the user's must not slip through."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight], fused=True)
    guard = NonFiniteGuard("skip")
    guard._trainer = MyTrainer(Config())._engine
    update = OptimizerUpdate("optimizer", optimizer, guard=guard, reads_are_free=False)
    update.refresh([weight])
    update.backward((weight * float("nan")).sum(), Window())
    own_steps.complete(update)
    assert (weight.grad, guard.num_skipped) == (None, 1)


# What cannot be honoured


class Mixed(Idiom):
    """Means to step after every second batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.backward(self.loss(batch) / 2)
        if batch_idx % 2:
            self.optimizer.step()
            self.optimizer.zero_grad()


class Twice(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.backward(self.loss(batch))
        self.step(self.optimizer)
        self.optimizer.step()


class LoopSteps(Idiom):
    """The step is the trainer's, and the loop steps again."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.backward(self.loss(batch))

    def training_loop(self) -> None:
        for batch_idx, batch in enumerate(self.train_loader):
            self.training_step(batch, batch_idx)
            self.optimizer.step()


class Zeroing(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.optimizer.zero_grad()
        self.backward(self.loss(batch))


class ZeroingInPlace(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.optimizer.zero_grad(set_to_none=False)
        self.backward(self.loss(batch))


class ZeroingLate(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.backward(self.loss(batch))
        self.model.zero_grad()


class NoStep(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        loss.backward()
        return loss.detach()


class RawThenStep(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.loss(batch).backward()
        self.step(self.optimizer)


class BackwardAndReturn(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        loss.backward()
        return {"loss": loss}


class BackwardRetained(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        loss.backward(retain_graph=True)
        return {"loss": loss}


class LaterBackward(Idiom):
    """Returns a loss to be trained, and later calls backward itself as well."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        if batch_idx > 1:
            loss.backward(retain_graph=True)
        return {"loss": loss}


class BothBackwards(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        loss.backward() if batch_idx == 0 else self.backward(loss)
        return {"loss": loss}


class Detached(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": self.loss(batch).detach()}


class OtherName(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"total": self.loss(batch)}


class SometimesReturning(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        if batch_idx > 1:
            self.backward(loss)
        return loss


class EmptyLoop(Idiom):
    def training_loop(self) -> None:
        for _ in range(self.config.n_epochs):
            pass


class OwnData(Idiom):
    """Iterates a loader that is not the trainer's."""

    def training_loop(self) -> None:
        for batch in self.configure_dataloaders()[0]:
            self.backward(self.loss(batch))


class InValidation(MyTrainer):
    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        with torch.enable_grad():
            self.criterion(self.model(batch[0]), batch[1]).backward()
        self.optimizer.step()


class SchedulerTwice(idioms.Scheduled):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.backward(self.loss(batch))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.scheduler.step()


class EpochSchedulerTwice(MyTrainer):
    def configure_schedulers(self) -> None:
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def on_epoch_end(self, metrics: Any) -> None:
        self.scheduler.step()


ACCUMULATING: dict[str, Any] = {"gradient_accumulation_steps": 2}
REFUSED: list[tuple[str, type[MyTrainer], dict[str, Any], str]] = [
    ("`optimizer.step()` after every second `self.backward(loss)`", Mixed, {}, "gradient_accumulation_steps=4"),
    ("`self.step(optimizer)`, then `optimizer.step()`", Twice, {}, "two different ways"),
    ("`training_loop` steps again what `training_step` has", LoopSteps, {}, "two different ways"),
    ("`optimizer.step()` with gradient_accumulation_steps=2", idioms.OwnStep, ACCUMULATING, "self.step"),
    ("`loss.backward(); optimizer.step()` with gradient_accumulation_steps=2", idioms.OwnBackward, ACCUMULATING,
     "gradient_accumulation_steps"),
    ("`optimizer.step()` with precision='fp16'", idioms.OwnStep, {"precision": "fp16"}, "fp16"),
    ("`clip_grad_norm_` in an accumulation window", idioms.ClippingAlone, ACCUMULATING, "clip_gradients"),
    ("`clip_grad_norm_` with precision='fp16'", idioms.ClippingAlone, {"precision": "fp16"}, "clip_gradients"),
    ("`zero_grad()` before each `self.backward(loss)` of an accumulation window", Zeroing, ACCUMULATING,
     "Remove zero_grad"),
    ("`zero_grad(set_to_none=False)` in an accumulation window", ZeroingInPlace, ACCUMULATING, "zero_grad"),
    ("`zero_grad()` after `self.backward(loss)`", ZeroingLate, {}, "Remove zero_grad"),
    ("`loss.backward()` and nothing else", NoStep, {}, r"`loss\.backward\(\)`, but no optimizer was stepped"),
    ("`loss.backward()`, and the loss returned", BackwardAndReturn, {}, r"optimizer\.step\(\)` after it, or return"),
    ("`loss.backward(retain_graph=True)`, and the loss returned", BackwardRetained, {}, "without calling backward"),
    ("`loss.backward()` in some steps, and a returned loss trained in others", LaterBackward, {}, "Some steps"),
    ("`loss.backward()` in some steps, and `self.backward(loss)` in others", BothBackwards, {}, "in an earlier batch"),
    ("`loss.backward()`, then `self.step(optimizer)`", RawThenStep, {}, r"Write `self\.backward"),
    ("a detached loss returned, and no `backward`", Detached, {}, "neither detached"),
    ("a loss returned under another name than 'loss', and no `backward`", OtherName, {}, "total"),
    ("a loss returned by some steps, and `backward` called by others", SometimesReturning, {}, r"loss\.detach"),
    ("a `training_loop` without batches", EmptyLoop, {}, "self.train_loader"),
    ("`backward` in a loop over another loader", OwnData, {}, "outside of a batch"),
    ("`optimizer.step()` in `validation_step`", InValidation, {}, "`validation_step`"),
    ("a scheduler stepped by the trainer and in a callback", SchedulerTwice, {}, "stepped twice"),
    ("a scheduler of epochs stepped by the trainer and in `on_epoch_end`", EpochSchedulerTwice, {}, "stepped twice"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "kind", "options", "match"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_would_train_wrongly_is_refused(
    what: str, kind: type[MyTrainer], options: dict[str, Any], match: str, mistake: Mistakes
) -> None:
    trainer = kind(Config(n_epochs=2, **options), build_net())
    with mistake("Door: modular", what, ConfigurationError, match=match):
        trainer.fit()


def test_accumulation_by_hand_may_return_its_loss_which_is_then_only_reported() -> None:
    class Reporting(idioms.OwnAccumulation):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            (loss / 2).backward(retain_graph=True)
            if (batch_idx + 1) % 2 == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            return {"loss": loss}

    assert_same(fit(Reporting).model, accumulated_by_hand(build_net(), epochs=2))


def test_accumulation_by_hand_is_refused_where_a_run_is_to_be_resumed(tmp_path: Path, mistake: Mistakes) -> None:
    what = "accumulation by hand, with `loss.backward()`, in a run with `run_dir`"
    with mistake("Door: modular", what, ConfigurationError, match="gradient_accumulation_steps"):
        fit(idioms.OwnAccumulation, run_dir=tmp_path)


@pytest.mark.parametrize("kind", [idioms.OwnStep, idioms.OwnBackward, idioms.Returning, idioms.LoopOwnBackward])
def test_an_idiom_is_resumed_exactly(tmp_path: Path, kind: type[Idiom]) -> None:
    options: dict[str, Any] = {"n_epochs": 2, "checkpoint_every_n_steps": 1, "run_dir": tmp_path}
    with pytest.raises(Killed):
        kind(Config(callbacks=[KillAt(7)], **options), build_net()).fit()
    again = kind(Config(**options), build_net(seed=9))
    again.fit()
    assert_same(again.model, by_hand(build_net(), epochs=2))


@pytest.mark.parametrize("kind", [idioms.Returning, idioms.ReturningNamed])
def test_a_window_that_does_not_fit_into_memory_is_taken_again_in_pieces(kind: type[Idiom]) -> None:
    class Small(kind):  # type: ignore[misc,valid-type]
        def loss(self, batch: Any) -> Any:
            if len(batch[0]) > 5 and self._engine.progress.step:
                raise torch.OutOfMemoryError
            return super().loss(batch)

    trainers = [cls(Config(gradient_accumulation_steps=2), nn.Linear(6, 3)) for cls in (Small, kind)]
    trainers[1].model.load_state_dict(trainers[0].model.state_dict())
    for trainer in trainers:
        trainer.fit()
    assert trainers[0]._engine.run.num_micro_batches == 2
    torch.testing.assert_close(trainers[0].model.weight, trainers[1].model.weight)


def test_an_optimizer_may_be_used_by_hand_after_training() -> None:
    trainer = fit(idioms.OwnStep)
    before = trainer.model[0].weight.clone() if isinstance(trainer.model, nn.Sequential) else None
    nn.functional.cross_entropy(trainer.model(torch.ones(2, 6)), torch.tensor([0, 1])).backward()
    trainer.optimizer.step()
    assert before is None or not torch.equal(trainer.model[0].weight, before)

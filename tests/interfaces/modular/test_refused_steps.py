"""Steps and loops replaced whole that would train wrongly: each is refused, with what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ...loops import build_net
from ...mistakes import raises
from . import idioms
from .idioms import Idiom, fit
from .programs import Config, MyTrainer


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
FP16: dict[str, Any] = {"precision": "fp16"}
REFUSED: dict[str, tuple[type[MyTrainer], dict[str, Any], str]] = {
    "optimizer.step() after every second self.backward": (Mixed, {}, "two-ways-to-step"),
    "self.step(optimizer), then optimizer.step()": (Twice, {}, "two-ways-to-step"),
    "training_loop steps again what training_step has": (LoopSteps, {}, "two-ways-to-step"),
    "optimizer.step() in a window": (idioms.OwnStep, ACCUMULATING, "step-in-window"),
    "loss.backward(); optimizer.step() in a window": (
        idioms.OwnBackward,
        ACCUMULATING,
        "step-in-window",
    ),
    "loss.backward(); optimizer.step() in fp16": (idioms.OwnBackward, FP16, "step-without-scaling"),
    "clip_grad_norm_ in a window": (idioms.ClippingAlone, ACCUMULATING, "gradients-changed"),
    "clip_grad_norm_ in fp16": (idioms.ClippingAlone, FP16, "gradients-changed"),
    "zero_grad() before each backward of a window": (Zeroing, ACCUMULATING, "gradients-gone"),
    "zero_grad(set_to_none=False) in a window": (ZeroingInPlace, ACCUMULATING, "gradients-changed"),
    "zero_grad() after self.backward(loss)": (ZeroingLate, {}, "gradients-gone"),
    "loss.backward() and nothing else": (NoStep, {}, "modular-trained-nothing"),
    "loss.backward(), and the loss returned": (BackwardAndReturn, {}, "modular-trained-nothing"),
    "loss.backward(retain_graph=True), and the loss returned": (
        BackwardRetained,
        {},
        "modular-trained-nothing",
    ),
    "loss.backward() in some, returned in others": (LaterBackward, {}, "two-ways-to-step"),
    "loss.backward() in some, self.backward in others": (BothBackwards, {}, "gradients-mixed"),
    "a detached loss returned": (Detached, {}, "modular-trained-nothing"),
    "a loss returned under another name": (OtherName, {}, "loss-not-trained"),
    "returned by some, backward in others": (SometimesReturning, {}, "two-ways-to-step"),
    "a training_loop without batches": (EmptyLoop, {}, "loop-trained-nothing"),
    "backward in a loop over another loader": (OwnData, {}, "backward-outside-batch"),
    "optimizer.step() in validation_step": (InValidation, {}, "update-in-evaluation"),
    "a scheduler stepped in a callback, too": (SchedulerTwice, {}, "scheduler-stepped-twice"),
    "a scheduler of epochs stepped in on_epoch_end, too": (
        EpochSchedulerTwice,
        {},
        "scheduler-stepped-twice",
    ),
}


@pytest.mark.parametrize(("kind", "options", "code"), REFUSED.values(), ids=list(REFUSED))
def test_what_would_train_wrongly_is_refused(
    kind: type[MyTrainer], options: dict[str, Any], code: str
) -> None:
    trainer = kind(Config(n_epochs=2, **options), build_net())
    with raises(code):
        trainer.fit()


def test_accumulation_by_hand_is_refused_where_a_run_is_to_be_resumed(tmp_path: Path) -> None:
    with raises("gradients-of-earlier-steps", "gradient_accumulation_steps"):
        fit(idioms.OwnAccumulation, run_dir=tmp_path)

"""Steps and loops replaced whole that would train wrongly: each is refused, with what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from loopwright import ConfigurationError

from ...loops import build_net
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


@pytest.mark.parametrize(
    ("what", "kind", "options", "match"), REFUSED, ids=[row[0] for row in REFUSED]
)
def test_what_would_train_wrongly_is_refused(
    what: str, kind: type[MyTrainer], options: dict[str, Any], match: str
) -> None:
    trainer = kind(Config(n_epochs=2, **options), build_net())
    with pytest.raises(ConfigurationError, match=match):
        trainer.fit()


def test_accumulation_by_hand_is_refused_where_a_run_is_to_be_resumed(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigurationError, match="gradient_accumulation_steps"):
        fit(idioms.OwnAccumulation, run_dir=tmp_path)

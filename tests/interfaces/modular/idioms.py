"""The ordinary torch idioms in steps and loops that a user replaces whole, and the same training
written by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from loopwright.data.random import seed_everything

from ...loops import build_net
from .programs import Config, MyTrainer, build_data, windows

CLIP = 0.3


class Idiom(MyTrainer):
    """A step of one's own; what is around it is the document's trainer."""

    def loss(self, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)


def fit(kind: type[Idiom], **options: Any) -> Idiom:
    trainer = kind(Config(n_epochs=2, **options), build_net())
    trainer.fit()
    return trainer


class OwnStep(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        self.backward(loss)
        self.optimizer.step()
        return {"loss": loss}


class OwnStepWithoutZeroing(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.backward(self.loss(batch))
        self.optimizer.step()


class OwnBackward(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        return loss.item()


class OwnBackwardGivenStep(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.loss(batch).backward()
        self.step(self.optimizer)


class Returning(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)


class ReturningNamed(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": self.loss(batch), "batch": batch_idx}


class Closure(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss = self.loss(batch)
            self.backward(loss)
            return loss

        self.optimizer.step(closure)


class LoopOwnStep(Idiom):
    def training_loop(self) -> None:
        for _ in range(self.current_epoch, self.config.n_epochs):
            for batch in self.train_loader:
                self.optimizer.zero_grad()
                self.backward(self.loss(batch))
                self.optimizer.step()


class LoopOwnBackward(Idiom):
    def training_loop(self) -> None:
        for _ in range(self.current_epoch, self.config.n_epochs):
            for batch in self.train_loader:
                self.optimizer.zero_grad()
                self.loss(batch).backward()
                self.optimizer.step()


class LoopTrainsReturned(Returning):
    """The step only computes the loss; the loop trains it."""

    def training_loop(self) -> None:
        for _ in range(self.current_epoch, self.config.n_epochs):
            for batch_idx, batch in enumerate(self.train_loader):
                loss = self.training_step(batch, batch_idx)
                self.optimizer.zero_grad()
                self.backward(loss)
                self.optimizer.step()


class LoopTrainsReturnedItself(Returning):
    def training_loop(self) -> None:
        for _ in range(self.current_epoch, self.config.n_epochs):
            for batch_idx, batch in enumerate(self.train_loader):
                loss = self.training_step(batch, batch_idx)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()


class LoopReturning(Returning):
    """Neither the step nor the loop trains anything."""

    def training_loop(self) -> None:
        for _ in range(self.current_epoch, self.config.n_epochs):
            for batch_idx, batch in enumerate(self.train_loader):
                self.log_metrics({"loss": self.training_step(batch, batch_idx)})


class OwnClipping(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.optimizer.zero_grad()
        self.backward(self.loss(batch))
        self.clip()
        self.optimizer.step()


class ClippingAlone(Idiom):
    """Clips by hand, and leaves the step to the trainer."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.backward(self.loss(batch))
        self.clip()


class OwnBackwardClipping(Idiom):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.optimizer.zero_grad()
        self.loss(batch).backward()
        self.clip()
        self.optimizer.step()


class OwnAccumulation(Idiom):
    """Two batches an update, as one writes that without a trainer."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        (self.loss(batch) / 2).backward()
        if (batch_idx + 1) % 2 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


class Scheduled(Idiom):
    def configure_schedulers(self) -> None:
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=0.05, total_steps=20
        )


class OwnSchedule(Scheduled):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.optimizer.zero_grad()
        self.backward(self.loss(batch))
        self.optimizer.step()
        self.scheduler.step()


class OwnScheduleAlone(Scheduled):
    """Steps the scheduler before the trainer steps the optimizer."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.backward(self.loss(batch))
        self.step(self.optimizer)
        self.scheduler.step()


class TrainersSchedule(Scheduled):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.optimizer.zero_grad()
        self.loss(batch).backward()
        self.optimizer.step()


class LoopSchedule(Scheduled):
    def training_loop(self) -> None:
        for _ in range(self.current_epoch, self.config.n_epochs):
            for batch in self.train_loader:
                self.backward(self.loss(batch))
                self.step(self.optimizer)
                self.scheduler.step()


def scheduled_by_hand(model: nn.Module, *, epochs: int) -> nn.Module:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=20)
    inputs, targets = build_data().tensors
    seed_everything(0)
    for (batch,) in windows(len(inputs), 8, 1, epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
        scheduler.step()
    return model


def accumulated_by_hand(model: nn.Module, *, epochs: int) -> nn.Module:
    """`OwnAccumulation` without a trainer: an epoch's fifth batch goes into the next one's first
    update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    inputs, targets = build_data().tensors
    seed_everything(0)
    for number, (batch,) in enumerate(windows(len(inputs), 8, 1, epochs)):
        (nn.functional.cross_entropy(model(inputs[batch]), targets[batch]) / 2).backward()
        if (number % 5 + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model

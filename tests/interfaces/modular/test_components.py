"""Components that `configure_*` return instead of assigning them, and loaders assigned by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ...loops import build_net
from ...mistakes import raises
from .programs import Config, MyTrainer, assert_same, build_data, by_hand


class Returning(MyTrainer):
    """Returns its model and its optimizer, alone or by name."""

    by_name = False

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        del self.model

    def configure_models(self) -> Any:
        return {"model": build_net()} if self.by_name else build_net()

    def configure_optimizers(self) -> Any:
        config = self.config
        adam = torch.optim.AdamW(
            self.model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        return {"optimizer": adam} if self.by_name else adam


class ReturningNames(Returning):
    by_name = True

    def configure_dataloaders(self) -> Any:
        train, val = super().configure_dataloaders()
        return {"train": train, "val": val}


@pytest.mark.parametrize("kind", [Returning, ReturningNames])
def test_what_is_returned_trains_as_what_is_assigned(kind: type[Returning]) -> None:
    trainer = kind(Config(n_epochs=2))
    trainer.fit()
    assert_same(trainer.model, by_hand(build_net(), epochs=2))


@pytest.mark.parametrize("returned", [{1: nn.Linear(6, 3)}, [nn.Linear(6, 3)], {"model": 3}])
def test_models_that_cannot_be_named_are_refused(returned: Mapping[Any, Any] | list[Any]) -> None:
    class Wrong(MyTrainer):
        def configure_models(self) -> Any:
            return returned

    with raises("unnamed-components", "configure_models", type(returned).__name__):
        Wrong(Config()).fit()


def test_loaders_may_be_assigned_before_training() -> None:
    trainer = MyTrainer(Config())
    trainer.setup()
    trainer.train_loader, trainer.val_loader = (
        DataLoader(build_data(n), batch_size=4) for n in (12, 6)
    )
    assert (len(trainer.train_loader), len(trainer.val_loader)) == (3, 2)
    trainer.fit()
    assert trainer.global_step == 3

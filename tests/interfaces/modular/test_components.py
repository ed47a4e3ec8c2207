"""Components that `configure_*` return instead of assigning them, and loaders assigned by hand."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch.utils.data import DataLoader

from ...loops import build_net
from ...mistakes import raises
from .programs import Config, MyTrainer, assert_same, build_data, by_hand


class Returning(MyTrainer):
    """Returns what it assigns."""

    def configure_optimizers(self) -> Any:
        super().configure_optimizers()
        return self.optimizer


def test_what_is_assigned_may_be_returned_too() -> None:
    trainer = Returning(Config(n_epochs=2))
    trainer.fit()
    assert_same(trainer.model, by_hand(build_net(), epochs=2))


@pytest.mark.parametrize("returned", [nn.Linear(6, 3), {"model": nn.Linear(6, 3)}])
def test_models_that_are_returned_alone_are_refused(returned: Any) -> None:
    class Wrong(MyTrainer):
        def configure_models(self) -> Any:
            return returned

    with raises("unassigned-component", "configure_models", "Linear"):
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

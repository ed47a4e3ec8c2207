"""What the seed of a trainer covers."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Trainer


class Builder(Trainer):
    """Makes its own model."""

    def configure_models(self) -> None:
        self.model = nn.Linear(3, 1)

    def configure_optimizers(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)


def weights_after_a_run(seed: int) -> torch.Tensor:
    trainer = Builder(loss_fn=nn.MSELoss(), seed=seed, progress="silent")
    trainer.train(TensorDataset(torch.ones(4, 3), torch.ones(4, 1)), num_epochs=1)
    return trainer.model.weight.detach().clone()


def test_models_that_the_trainer_builds_are_covered_by_its_seed() -> None:
    first = weights_after_a_run(seed=1)
    torch.rand(7)
    assert torch.equal(first, weights_after_a_run(seed=1))
    assert not torch.equal(first, weights_after_a_run(seed=2))

"""A policy learns to walk to the middle of a corridor: many forward passes a step, an actor and a
critic.

python reinforce.py --epochs 20
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, one_hot
from torch.utils.data import DataLoader, TensorDataset

from loopwright.interfaces.modular import DreamTrainer, DreamTrainerConfig

LENGTH, NUM_MOVES = 9, 6


class Corridor:
    """Walkers on the places of a corridor; a move goes left or right, and the middle gives a
    reward."""

    def __init__(self, places: Tensor) -> None:
        self.places = places

    def observe(self) -> Tensor:
        return one_hot(self.places, LENGTH).float()

    def move(self, choices: Tensor) -> Tensor:
        self.places = (self.places + 2 * choices - 1).clamp(0, LENGTH - 1)
        return (self.places == LENGTH // 2).float()


class Reinforce(DreamTrainer):
    def configure_models(self) -> None:
        self.actor = nn.Sequential(nn.Linear(LENGTH, 32), nn.Tanh(), nn.Linear(32, 2))
        self.critic = nn.Sequential(nn.Linear(LENGTH, 32), nn.Tanh(), nn.Linear(32, 1))

    def configure_optimizers(self) -> None:
        self.actor_optimizer = torch.optim.Adam(
            self.actor.parameters(), lr=self.config.learning_rate
        )
        self.critic_optimizer = torch.optim.Adam(
            self.critic.parameters(), lr=3 * self.config.learning_rate
        )

    def configure_dataloaders(self) -> tuple[Any, Any]:
        starts = TensorDataset(torch.arange(512) % LENGTH)
        return DataLoader(starts, batch_size=self.config.train_batch_size, shuffle=True), None

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        corridor = Corridor(batch[0])
        logs, values, rewards = [], [], []
        for _ in range(NUM_MOVES):
            seen = corridor.observe()
            policy = torch.distributions.Categorical(logits=self.actor(seen).float())
            choices = policy.sample()
            logs.append(policy.log_prob(choices))
            values.append(self.critic(seen).float().squeeze(1))
            rewards.append(corridor.move(choices))
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
        advantages = returns - torch.stack(values)
        actor_loss = -(torch.stack(logs) * advantages.detach()).mean()
        critic_loss = mse_loss(torch.stack(values), returns)
        # both optimizers are stepped at the end of the window
        self.backward(actor_loss + critic_loss)
        return {"loss": actor_loss, "critic_loss": critic_loss, "reward": returns[0].mean()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--run-dir")
    options = parser.parse_args()
    config = DreamTrainerConfig(
        n_epochs=options.epochs, learning_rate=0.01, gradient_clip_val=1.0, run_dir=options.run_dir
    )
    rewards = Reinforce(config).fit()["reward"]
    print(
        f"mean reward of {NUM_MOVES} moves: {rewards[0]:.2f} in the first epoch, "
        f"{rewards[-1]:.2f} in the last"
    )


if __name__ == "__main__":
    main()

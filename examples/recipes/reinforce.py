"""Reinforcement learning: a policy learns to balance a pole; the data is what the policy does
itself.

python reinforce.py [--updates 150]
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from loopwright import Trainer, seed_everything

LIMIT = 200  # steps until an episode counts as solved


class Poles:
    """Poles on carts that are pushed left or right, in parallel; those that fall are out."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self.state = 0.1 * torch.rand(count, 4, generator=generator) - 0.05
        self.is_up = torch.ones(count, dtype=torch.bool)

    def push(self, action: Tensor) -> None:
        _, speed, angle, turning = self.state.T
        force = 20.0 * action - 10.0
        pull = (force + 0.05 * turning.square() * angle.sin()) / 1.1
        turn = (9.8 * angle.sin() - angle.cos() * pull) / (
            0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1)
        )
        push = pull - 0.05 * turn * angle.cos() / 1.1
        self.state = self.state + 0.02 * torch.stack([speed, push, turning, turn], dim=1)
        self.is_up &= (self.state[:, 0].abs() < 2.4) & (self.state[:, 2].abs() < 0.21)


class Reinforce(Trainer):
    """Plays one batch of episodes per step and makes what paid off more likely."""

    def train_step(self, batch: Tensor) -> dict[str, Tensor | float]:
        poles = Poles(32, torch.Generator().manual_seed(int(batch[0])))
        chances, alive = [], []
        while poles.is_up.any() and len(alive) < LIMIT:
            choice = Categorical(logits=self.model(poles.state.to(self.runtime.device)))
            action = choice.sample()
            chances.append(choice.log_prob(action))
            alive.append(poles.is_up.clone())
            poles.push(action.cpu())
        reward = torch.stack(alive).float().to(self.runtime.device)
        # the number of steps that the pole stayed up from here
        returns = reward.flip(0).cumsum(0).flip(0) * reward
        advantage = (returns - returns[reward > 0].mean()) / returns[reward > 0].std()
        loss = -(torch.stack(chances) * advantage * reward).sum() / reward.sum()
        self.update(loss)
        return {"loss": loss, "reward": reward.sum(0).mean()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=150)
    updates = parser.parse_args().updates
    seed_everything(0)
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    trainer = Reinforce(
        policy, partial(torch.optim.Adam, lr=1e-2), run_dir="runs/reinforce", clip_norm=1.0
    )
    # one per batch of episodes, so that a resumed run plays the same ones
    seeds = torch.arange(100_000).unsqueeze(1)
    history = trainer.train(seeds, num_updates=updates, batch_size=1)
    rewards = list(history.steps["reward"])
    history.plot("runs/reinforce/curves.png")
    print(
        f"The pole stays up for {rewards[0]:.0f} steps at first and {rewards[-1]:.0f} (of "
        f"{LIMIT}) in the end."
    )


if __name__ == "__main__":
    main()

"""Small models whose collectives are counted on real processes."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def mlp() -> nn.Module:
    """Layers whose rows divide by no number of processes, and a buffer that is broadcast."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 13), nn.BatchNorm1d(13), nn.ReLU(), nn.Linear(13, 7), nn.Linear(7, 2)
    )


class Block(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.RMSNorm(width)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.out(torch.softmax(query @ key.transpose(-2, -1), -1) @ value)
        return x + self.down(torch.relu(self.up(self.norm2(x))))


class Text(nn.Module):
    """A transformer with one head, its modules in the order of the forward pass."""

    def __init__(
        self, layers: int = 2, width: int = 8, hidden: int = 12, vocabulary: int = 11
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def text() -> nn.Module:
    torch.manual_seed(0)
    return Text()


def uneven_text() -> nn.Module:
    """Rows that do not divide by four: FSDP2 fills them up."""
    torch.manual_seed(0)
    return Text(layers=3, width=6, hidden=10, vocabulary=7)


def frozen_text() -> nn.Module:
    """The embedding is not trained."""
    model = text()
    model.embedding.weight.requires_grad_(False)  # type: ignore[operator, union-attr]
    return model


def example(model: nn.Module, samples: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets for a model."""
    if isinstance(model, Text):
        tokens = torch.randint(0, model.embedding.num_embeddings, (samples, 5))
        return tokens, tokens
    return torch.randn(samples, 6), torch.randn(samples, 2)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    if targets.dtype == torch.long:
        return nn.functional.cross_entropy(outputs.flatten(0, 1).float(), targets.flatten())
    return nn.functional.mse_loss(outputs.float(), targets)

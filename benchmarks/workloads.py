"""The three workloads: nothing but loop overhead (W1), a small CNN (W2), and nothing but compute
(W3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

Round = Callable[[int], None]  # trains for so many steps


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, data and an optimizer; `num_steps` are timed in each round.

    Data is shuffled, unless `order` says which samples come one after the other: so losses can be
    compared.
    """

    build_model: Callable[[], nn.Module]
    build_data: Callable[[], TensorDataset]
    loss_fn: Callable[[Tensor, Tensor], Tensor]
    build_optimizer: Callable[..., torch.optim.Optimizer]
    batch_size: int
    num_steps: int
    order: tuple[int, ...] | None = None

    def sampling(self) -> dict[str, Any]:
        """What says the order, as arguments for a `DataLoader`."""
        return {"shuffle": True} if self.order is None else {"sampler": list(self.order)}

    def rows(self, num_steps: int) -> tuple[Tensor, ...]:
        """The samples of so many batches, for what trains whole epochs; in order where there is
        one."""
        num_rows = num_steps * self.batch_size
        chosen = slice(num_rows) if self.order is None else list(self.order[:num_rows])
        return tuple(tensor[chosen] for tensor in self.build_data().tensors)


class Block(nn.Module):
    """A transformer block, as GPT has it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class SmallGPT(nn.Module):
    """Four layers of width 128 over a vocabulary of 256."""

    def __init__(
        self, width: int = 128, layers: int = 4, vocabulary: int = 256, length: int = 128
    ) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.token(tokens) + self.place(places)))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 49, 10),
    )


def _token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def _pairs(*shape: int, classes: int | None = None) -> TensorDataset:
    inputs = torch.randn(*shape)
    targets = torch.randn(shape[0], 1) if classes is None else torch.randint(classes, (shape[0],))
    return TensorDataset(inputs, targets)


def _texts() -> TensorDataset:
    tokens = torch.randint(256, (512, 129))
    return TensorDataset(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


ADAM = partial(torch.optim.Adam, lr=1e-3)
ADAMW = partial(torch.optim.AdamW, lr=1e-3)

WORKLOADS = {
    "W1": Workload(_mlp, partial(_pairs, 32_000, 10), nn.MSELoss(), ADAM, 32, 1000),
    "W2": Workload(
        _cnn, partial(_pairs, 6_400, 1, 28, 28, classes=10), nn.CrossEntropyLoss(), ADAM, 64, 60
    ),
    "W3": Workload(SmallGPT, _texts, _token_loss, ADAMW, 8, 20),
}

"""A small GPT learns to write Python from the interpreter's own library.

python text.py [--updates 2000]
"""

from __future__ import annotations

import argparse
import sysconfig
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loopwright import Callback, Trainer, seed_everything
from loopwright.callbacks import LearningRateLog
from loopwright.schedules import WarmupCosine

LENGTH = 64
MODULES = (
    "argparse",
    "ast",
    "calendar",
    "dataclasses",
    "datetime",
    "difflib",
    "inspect",
    "pathlib",
    "typing",
)


def load_text() -> Tensor:
    """The bytes of some modules of the standard library, with a tab for each level of
    indentation."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [folder / f"{name}.py" for name in MODULES]
    text = b"\n".join(f.read_bytes() for f in files if f.exists()).replace(b"    ", b"\t")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, width: int = 64, num_layers: int = 2) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(num_layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.token(tokens) + self.place(places))))

    @torch.no_grad()
    def write(self, start: str, num_bytes: int, temperature: float = 0.7) -> str:
        tokens = torch.tensor([list(start.encode())], device=self.head.weight.device)
        for _ in range(num_bytes):
            chances = (self(tokens[:, -LENGTH:])[:, -1] / temperature).softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(chances, 1)], dim=1)
        return bytes(tokens[0].tolist()).decode(errors="replace").expandtabs(4)


class Samples(Callback):
    """Records a text of the model after every epoch; the live page shows them."""

    def on_epoch_end(self, trainer: Trainer, metrics: object) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            trainer.log_text("sample", trainer.model.write("def ", 120))


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=2000)
    updates = parser.parse_args().updates
    seed_everything(0)
    text = load_text()
    # the last byte of a piece is the first of the next one
    pieces = text.unfold(0, LENGTH + 1, LENGTH)
    inputs, targets = pieces[:, :-1], pieces[:, 1:]
    held_out = len(pieces) // 20
    trainer = Trainer(
        GPT(),
        partial(torch.optim.AdamW, lr=3e-3, weight_decay=0.1),
        token_loss,
        scheduler=WarmupCosine(warmup=0.1, end=0.1),
        clip_norm=1.0,
        callbacks=[LearningRateLog(), Samples()],
        run_dir="runs/text",
    )
    history = trainer.train(
        (inputs[held_out:], targets[held_out:]),
        num_updates=updates,
        eval_data=(inputs[:held_out], targets[:held_out]),
        batch_size=32,
    )
    history.plot("runs/text/curves.png")
    print(f"\nLoss on unseen text: {history.last('eval_loss'):.3f} nats a byte. It writes:\n")
    print(trainer.model.cpu().write("def ", 300))


if __name__ == "__main__":
    main()

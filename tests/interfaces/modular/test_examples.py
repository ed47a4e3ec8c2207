"""The examples of this interface against loops written by hand, bit for bit, and resumed
exactly."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from loopwright.data.random import seed_everything
from loopwright.interfaces.modular import Callback

from ...forked import call_forked
from .programs import assert_same, windows

FOLDER = Path(__file__).parent.parent.parent.parent / "examples" / "modular"
CLIP = 0.5
COMMON: dict[str, Any] = {
    "n_epochs": 2,
    "train_batch_size": 16,
    "gradient_accumulation_steps": 2,
    "gradient_clip_val": CLIP,
    "precision": "bf16",
    "progress": "silent",
}
autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


class ByHand:
    """Gradients of a window, clipped and stepped at its end."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.params, self.optimizer = list(module.parameters()), optimizer

    def backward(self, loss: Tensor, share: float) -> None:
        torch.autograd.backward(loss / share, inputs=self.params, retain_graph=True)

    def step(self) -> None:
        nn.utils.clip_grad_norm_(self.params, CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()


# GAN


def gan_config(run_dir: Path | None = None, **options: Any) -> Any:
    return load("gan").GANConfig(num_points=90, run_dir=run_dir, **(COMMON | options))


def gan_by_hand() -> tuple[nn.Module, nn.Module]:
    example = load("gan")
    points = example.circle(90)
    seed_everything(0)
    generator = nn.Sequential(
        nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )
    discriminator = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    g_side = ByHand(generator, torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.9)))
    d_side = ByHand(
        discriminator, torch.optim.Adam(discriminator.parameters(), 4e-3, betas=(0.5, 0.9))
    )
    seed_everything(0)
    for update, window in enumerate(windows(90, 16, 2, 2)):
        total = sum(len(batch) for batch in window)
        for number, batch in enumerate(window, start=1):
            real, share = points[batch], total / len(batch)
            with autocast():
                fake = generator(torch.randn(len(real), 4))
                d_loss = (
                    softplus(-discriminator(real)).mean()
                    + softplus(discriminator(fake.detach())).mean()
                )
            d_side.backward(d_loss, share)
            if number == len(window):
                d_side.step()
            if update % 2 == 0:
                with autocast():
                    g_loss = softplus(-discriminator(fake)).mean()
                g_side.backward(g_loss, share)
                if number == len(window):
                    g_side.step()
    return generator, discriminator


def test_the_gan_is_that_of_a_loop_by_hand() -> None:
    trainer = load("gan").GAN(gan_config())
    trainer.fit()
    generator, discriminator = gan_by_hand()
    assert_same(trainer.generator, generator)
    assert_same(trainer.discriminator, discriminator)
    updates = trainer._core.run.updates.by_name
    assert (updates["g_optimizer"].num_updates, updates["d_optimizer"].num_updates) == (3, 6)


class Kill(Callback):
    def on_train_batch_end(self, trainer: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        # at the end of a window that is not counted yet
        if (trainer.current_epoch, batch_idx) == (
            1,
            3,
        ):
            os.kill(os.getpid(), signal.SIGKILL)


def test_the_gan_goes_on_exactly_after_sigkill(tmp_path: Path) -> None:
    config = gan_config(tmp_path, callbacks=[Kill()], checkpoint_every_n_steps=1)
    ended = call_forked(lambda: load("gan").GAN(config).fit(), tmp_path)
    assert ended.code == -signal.SIGKILL, ended.err
    assert list((tmp_path / "checkpoints").iterdir())
    again, whole = (
        load("gan").GAN(gan_config(folder, checkpoint_every_n_steps=1))
        for folder in (tmp_path, None)
    )
    again.fit()
    whole.fit()
    for name in ("generator", "discriminator"):
        assert_same(getattr(again, name), getattr(whole, name))
    for name in ("g_optimizer", "d_optimizer"):
        ours, theirs = (getattr(trainer, name).state_dict()["state"] for trainer in (again, whole))
        assert all(
            torch.equal(ours[at][key], value)
            for at, saved in theirs.items()
            for key, value in saved.items()
        )
    assert again.history.to_dict() == whole.history.to_dict()
    assert [list(series) for series in again.history.steps.values()] == [
        list(series) for series in whole.history.steps.values()
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("gan", ["--epochs", "1"], r"generated points: \d+% are within"),
        (
            "reinforce",
            ["--epochs", "4"],
            r"mean reward of 6 moves: (1\.\d+) in the first epoch, 2\.\d+ in the last",
        ),
        ("distillation", ["1"], r"student: accuracy 0\.\d+, averaged 0\.\d+"),
    ],
)
def test_an_example_runs_and_tells_what_it_reached(
    name: str,
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    load(name).main()
    assert re.search(expected, capsys.readouterr().out)

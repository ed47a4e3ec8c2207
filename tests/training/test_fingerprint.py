"""The program changed, the run directory did not: what differs is named and refused, or goes on
with the new values."""

from __future__ import annotations

import json
import os
import random
import re
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from loopwright import Trainer
from loopwright.run import RunManifest
from tests.forked import call_forked
from tests.loops import build_net
from tests.mistakes import raises

adam = partial(torch.optim.Adam, lr=0.01)
sgd = partial(torch.optim.SGD, lr=0.01)


def drawn(length: int = 36, seed: int = 3) -> TensorDataset:
    inputs = torch.randn(length, 6, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def train(
    folder: Path,
    num_epochs: int = 1,
    *,
    changes: str = "refuse",
    resume: Any = "auto",
    **given: Any,
) -> Trainer:
    """A program with defaults for everything, some of it replaced."""
    data, size = given.pop("data", None) or drawn(), given.pop("batch_size", 8)
    size = None if isinstance(data, DataLoader) else size
    parts = {
        "model": build_net(),
        "optimizer": adam,
        "loss_fn": F.cross_entropy,
        "progress": "silent",
        **given,
    }
    kind = parts.pop("kind", Trainer)
    trainer = kind(
        parts.pop("model"), parts.pop("optimizer"), parts.pop("loss_fn"), run_dir=folder, **parts
    )
    trainer.train(data, num_epochs, batch_size=size, changes=changes, resume=resume)
    return trainer


class Smoothed(Trainer):
    def compute_loss(self, outputs: Any, targets: Any) -> Any:
        return F.cross_entropy(outputs, targets, label_smoothing=0.1)


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "lr": ({"optimizer": partial(torch.optim.Adam, lr=0.1)}, "optimizer.lr: 0.01 -> 0.1"),
    "optimizer": (
        {"optimizer": sgd},
        "optimizer: 'torch.optim.adam.Adam' -> 'torch.optim.sgd.SGD'\nYou can",
    ),
    "loss": ({"loss_fn": F.multi_margin_loss}, "multi_margin_loss'"),
    "loss option": (
        {"loss_fn": partial(F.cross_entropy, label_smoothing=0.1)},
        "-> 'partial of torch.nn.functional.cross_entropy'",
    ),
    "own loss": ({"kind": Smoothed}, "compute_loss: the default before, overridden now"),
    "batch size": ({"batch_size": 4}, "batch_size: 8 -> 4"),
    "accumulation": ({"accumulate": 2}, "accumulate: 1 -> 2"),
    "clipping": ({"clip_norm": 1.0}, "clip_norm: None -> 1.0"),
    "precision": ({"precision": "bf16"}, "precision: 'fp32' -> 'bf16'"),
    "seed": ({"seed": 5}, "seed: 0 -> 5"),
    "samples": ({"data": drawn(seed=4)}, "`loopwright.seed_everything(0)`"),
    "length": ({"data": drawn(48)}, "data.length: 36 -> 48"),
    "dropout": ({"model": build_net(dropout=0.5)}, "model.3: 'Dropout(p=0.25"),
    "schedule": (
        {"scheduler": partial(StepLR, step_size=1)},
        "scheduler: - -> 'torch.optim.lr_scheduler.StepLR'\nYou can",
    ),
}


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A run that was stopped in its first epoch."""
    trainer = Trainer(
        build_net(), adam, F.cross_entropy, run_dir=tmp_path / "first", progress="silent"
    )
    trainer.train(drawn(), num_updates=3, batch_size=8)
    return tmp_path / "first"


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_program_is_refused_with_what_has_changed_and_the_ways_on(
    first: Path, change: str
) -> None:
    given, said = CHANGES[change]
    before = (first / "run.json").read_bytes()
    with raises("program-changed", said, "resume=False", 'changes="accept"'):
        train(first, **given)
    assert (first / "run.json").read_bytes() == before
    train(first)  # put back, it goes on


# What may change


class Noisy(Dataset[Any]):
    """Samples with noise from all global generators, and one of its own that nobody seeded."""

    def __init__(self, *, own: bool = False) -> None:
        self.data, self.own = drawn(), np.random.default_rng() if own else None
        self.opened: list[int] | None = None

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.opened is None:
            self.opened = []
        x, y = self.data[index]
        noise = random.gauss(0, 0.1) + float(np.random.normal()) + float(torch.randn(()))
        return x + noise + (0.0 if self.own is None else self.own.normal()), y


class Counting(IterableDataset[Any]):
    def __init__(self) -> None:
        self.data, self.at = drawn(), 0

    def __iter__(self) -> Any:
        while self.at < len(self.data):
            self.at += 1
            yield self.data[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Remembering(nn.Module):
    """Has attributes of every kind, a lazy buffer and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(6, 3), nn.Parameter(torch.randn(3))
        self.token, self.calls = object(), random.random()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if not hasattr(self, "seen"):
            self.register_buffer("seen", torch.zeros(len(x)), persistent=False)
        return self.layer(x) * self.scale


class Focal(nn.Module):
    def __init__(self, power: float) -> None:
        super().__init__()
        self.power, self.device = power, f"somewhere {random.random()}"

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) ** self.power


def weighted(weight: float) -> Any:
    return lambda outputs, targets: weight * F.cross_entropy(outputs, targets)


MODE = "a"
STARTED = PID = FOLDER = NAME = None


def by_mode(outputs: Tensor, targets: Tensor) -> Tensor:
    loss = F.cross_entropy(outputs, targets)
    return loss if MODE else 2 * loss


def by_moment(outputs: Tensor, targets: Tensor) -> Tensor:
    assert all((STARTED, PID, FOLDER, NAME))
    return F.cross_entropy(outputs, targets)


def closing_over(value: Any) -> Any:
    return lambda outputs, targets: F.cross_entropy(outputs, targets) if value else None


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("year2012", "year2017"),
        ("width2048", "width2096"),
        (2_000_000_000, 3_000_000_000),
    ],
)
def test_another_value_that_a_loss_closes_over_is_noticed(
    tmp_path: Path, before: Any, now: Any
) -> None:
    train(tmp_path, loss_fn=closing_over(before))
    with raises("program-changed", f"loss.value: {before!r} -> {now!r}"):
        train(tmp_path, 2, loss_fn=closing_over(now))
    train(tmp_path, 2, loss_fn=closing_over(before))


def test_a_number_that_happens_to_be_that_of_the_process_is_compared(tmp_path: Path) -> None:
    train(tmp_path, loss_fn=closing_over(os.getpid()))
    fingerprint = RunManifest.read(tmp_path / "run.json").fingerprint
    assert fingerprint["loss.value"] == os.getpid()


def test_another_text_in_a_global_variable_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, loss_fn=by_mode)
    monkeypatch.setitem(globals(), "MODE", "b")
    with raises("program-changed", "loss.MODE: 'a' -> 'b'"):
        train(tmp_path, 2, loss_fn=by_mode)


def test_times_process_numbers_and_temporary_paths_of_each_start_are_no_change(
    tmp_path: Path,
) -> None:
    def program() -> None:
        folder = tempfile.mkdtemp()
        started = time.time()
        name = f"run-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        globals().update(STARTED=started, PID=os.getpid(), FOLDER=folder, NAME=name)
        train(tmp_path / "run", 2 if (tmp_path / "run").exists() else 1, loss_fn=by_moment)

    for _ in range(2):
        ended = call_forked(program, tmp_path)
        assert ended.code == 0, ended
    manifest = RunManifest.read(tmp_path / "run" / "run.json")
    assert "(time of this start)" in manifest.fingerprint["loss.STARTED"]


SAME: dict[str, Any] = {
    "lambda": lambda: {"loss_fn": lambda p, t: F.cross_entropy(p, t)},
    "partial": lambda: {"loss_fn": partial(F.cross_entropy, label_smoothing=0.1)},
    "closure": lambda: {"loss_fn": weighted(0.5)},
    "loss module": lambda: {"loss_fn": Focal(2.0)},
    "weights of classes": lambda: {
        "loss_fn": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    },
    "own module, not seeded": lambda: {"model": Remembering()},
    "own step": lambda: {"kind": Smoothed},
    "augmentation": lambda: {"data": Noisy()},
    "generator of its own": lambda: {"data": Noisy(own=True)},
    "workers": lambda: {"data": DataLoader(Noisy(), 8, shuffle=True, num_workers=1)},
    "iterable": lambda: {"data": Counting()},
    "one cycle": lambda: {"scheduler": partial(OneCycleLR, max_lr=0.1, total_steps=100)},
    "plateau": lambda: {"scheduler": partial(ReduceLROnPlateau, patience=0)},
    "function of the epoch": lambda: {
        "scheduler": partial(LambdaLR, lr_lambda=lambda epoch: 0.9**epoch)
    },
}


@pytest.mark.parametrize("program", SAME)
def test_the_same_program_started_again_goes_on(tmp_path: Path, program: str) -> None:
    train(tmp_path, **SAME[program]())
    torch.manual_seed(99), random.seed(99), np.random.seed(99)
    assert train(tmp_path, 2, **SAME[program]()).progress.epoch == 2


def test_workers_limits_callbacks_and_what_is_shown_may_change(tmp_path: Path) -> None:
    train(tmp_path, data=DataLoader(drawn(), 8, shuffle=True))
    loader = DataLoader(drawn(), 8, shuffle=True, num_workers=1)
    assert (
        train(
            tmp_path, 2, data=loader, callbacks=[lambda trainer, metrics: None], progress="lines"
        ).progress.epoch
        == 2
    )


def test_a_learning_rate_that_a_schedule_or_a_callback_changed_is_no_change(tmp_path: Path) -> None:
    def halve(trainer: Trainer, metrics: Any) -> None:
        trainer.optimizers["optimizer"].param_groups[0]["lr"] *= 0.5

    for num_epochs in (1, 2):
        trainer = train(
            tmp_path,
            num_epochs,
            callbacks=[halve],
            scheduler=partial(StepLR, step_size=1, gamma=0.5),
        )
    assert trainer.optimizers["optimizer"].param_groups[0]["lr"] == pytest.approx(0.01 / 16)


def test_a_comment_or_another_place_does_not_make_another_loss() -> None:
    from loopwright.training.fingerprint import describe_object

    one: dict[str, Any] = {}
    two: dict[str, Any] = {}
    three: dict[str, Any] = {}
    exec('def loss(p, t):\n    """Old."""\n    return (p - t).abs().mean()', one)
    exec('\n\ndef loss(p, t):\n    """New."""\n    # why\n    return (p - t).abs().mean()', two)
    exec('def loss(p, t):\n    """Old."""\n    return (p - t).abs().sum()', three)
    assert describe_object("loss", one["loss"]) == describe_object("loss", two["loss"])
    assert describe_object("loss", one["loss"]) != describe_object("loss", three["loss"])


class Ours(nn.Module):
    """Stands for a class of the library: what tells those is where they are defined."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)


def test_a_loss_of_the_library_that_another_version_wrote_otherwise_and_elsewhere_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of a version that hashed its code goes on: the hash is of code that is nobody's own."""
    train(tmp_path, loss_fn=Ours())
    recorded = RunManifest.read(tmp_path / "run.json").fingerprint
    assert re.fullmatch(r"[0-9a-f]{16} \(Python [\d.]+\)", recorded["loss.code"])

    def forward(self: Ours, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.nll_loss(outputs.log_softmax(1), targets)

    monkeypatch.setattr(Ours, "forward", forward)
    with raises("program-changed", "loss.code: its code has changed"):
        train(tmp_path, 2, loss_fn=Ours())
    monkeypatch.setattr(forward, "__module__", "loopwright.losses.elsewhere")
    monkeypatch.setattr(Ours, "__module__", "loopwright.losses.elsewhere")
    assert train(tmp_path, 2, loss_fn=Ours()).progress.epoch == 2
    assert RunManifest.read(tmp_path / "run.json").fingerprint["loss"] == "Ours"


# Going on with other data


def test_other_data_leaves_out_the_rest_of_the_epoch_and_says_so(
    first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = train(first, 2, data=drawn(48), changes="accept", progress="lines")
    assert (trainer.progress.epoch, trainer.progress.update) == (2, 3 + 6)
    line = next(line for line in capsys.readouterr().out.splitlines() if "is skipped" in line)
    assert "epoch 1" in line


# A checkpoint that is named


def test_a_checkpoint_that_is_named_is_compared_too(first: Path, tmp_path: Path) -> None:
    (point,) = (first / "checkpoints").iterdir()
    new = partial(torch.optim.Adam, lr=0.1)
    with raises("program-changed", "update-00000003", "lr: 0.01 -> 0.1"):
        train(tmp_path / "second", resume=point, optimizer=new)
    trainer = train(tmp_path / "third", resume=point, optimizer=new, changes="accept")
    assert trainer.optimizers["optimizer"].param_groups[0]["lr"] == 0.1


def test_a_run_from_before_fingerprints_goes_on_and_says_what_was_not_compared(
    first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from loopwright.checkpoint import read_checkpoint, write_checkpoint

    manifest = json.loads((first / "run.json").read_text())
    del manifest["fingerprint"], manifest["changes"]
    (first / "run.json").write_text(json.dumps(manifest))
    (point,) = (first / "checkpoints").iterdir()
    saved = read_checkpoint(point)
    tree = {key: value for key, value in saved.tree.items() if key != "fingerprint"}
    write_checkpoint(point, tree, saved.meta)
    trainer = train(first, 2, progress="lines")
    assert trainer.progress.epoch == 2
    line = capsys.readouterr().out.splitlines()[0]
    assert "does not record the program" in line
    assert RunManifest.read(first / "run.json").fingerprint["optimizer.lr"] == 0.01

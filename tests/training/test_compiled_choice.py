"""Which steps are taken by graphs: what is measured, what is said, what falls back, and what of it
is saved."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from loopwright import Trainer
from loopwright.callbacks import Profile
from loopwright.checkpoint import read_checkpoint
from loopwright.training import compiled as choice
from loopwright.training.compiled.calls import find_obstacle
from tests.training.compiled_runs import DATA, SGD, Net, X, assert_close, build, traced

__all__ = ["traced"]  # a fixture
EVEN = X[:32], DATA[1][:32]


class Dropping(Net):
    """With random numbers in the forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(x, 0.3, self.training))


class Counting(Dropping):
    """Counts its calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class Listing(Net):
    """Keeps a number of every call in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.means: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.means.append(x.mean())
        return super().forward(x)


class Reading(Trainer):
    """Reads a number from a tensor, in the middle of the step."""

    def compute_loss(self, outputs: Tensor, targets: Tensor) -> Any:
        print(float(outputs.detach().mean()), end="")
        return super().compute_loss(outputs, targets)


class Logging(Trainer):
    """Logs in the loss, and counts."""

    num_losses = torch.tensor(0)

    def compute_loss(self, outputs: Tensor, targets: Tensor) -> Any:
        self.log({"seen": targets.mean()})
        self.num_losses = self.num_losses + 1
        return super().compute_loss(outputs, targets)


def lines_of(trainer: Trainer) -> list[str]:
    """What the trainer has said, of the step."""
    return [note.text for note in trainer.run.notes if note.kind == "line" and "step" in note.text]


def test_nothing_of_the_trial_is_seen_in_the_run(
    traced: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was tried before: weights, buffers, optimizer state, generators, counters, metrics,
    calls."""
    # so that the choice is the same on every machine
    monkeypatch.setattr(choice, "FASTER", 0.0)
    trainers = [
        build(what, model=Dropping, measures=True, accumulate=2, kind=Logging)
        for what in (None, "step")
    ]
    for trainer in trainers:
        trainer.train(DATA, num_epochs=2, batch_size=16)
    eager, measured = trainers
    assert measured.run.compiled is not None
    assert measured.run.compiled.choice == "eager"
    assert measured.run.compiled.reason.startswith("that would not be clearly faster (")
    assert_close(eager.history, measured.history, 0.0)
    for name, value in eager.model.state_dict().items():
        assert torch.equal(measured.model.state_dict()[name], value), name
    assert measured.num_losses == eager.num_losses == 6
    assert measured.run.updates.calls == eager.run.updates.calls
    assert measured.progress.seconds < 5
    said = lines_of(measured)
    assert said[0] == "Compiling the training step (the first time takes up to a minute) ..."
    assert said[1] == f"compile='step': the step is not compiled: {measured.run.compiled.reason}."
    assert said[1].count(" per update compiled, ") == 1


def test_the_faster_one_is_chosen_and_said_and_saved(
    traced: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(choice, "FASTER", 1e9)
    trainer = build("step", measures=True)
    trainer.train(EVEN, num_epochs=1, batch_size=16)
    compiled = trainer.run.compiled
    assert compiled is not None
    assert (compiled.choice, len(compiled.graphs), compiled.num_recompilations) == (
        "compiled",
        1,
        0,
    )
    assert lines_of(trainer)[1].startswith("The step is compiled: ")
    trainer.save(tmp_path / "saved")
    other = build("step", measures=True)
    other.load(tmp_path / "saved")
    assert other.run.compiled is not None
    assert other.run.compiled.state_dict() == compiled.state_dict()
    other.train(EVEN, num_epochs=1, batch_size=16)
    assert not any("per update compiled" in line for line in lines_of(other)), (
        "nothing is measured again"
    )
    assert len(other.run.compiled.graphs) == 1, "the same graph as in the run that was saved"
    build(None).load(tmp_path / "saved")
    build(None).save(tmp_path / "plain")
    assert read_checkpoint(tmp_path / "plain").tree["compiled"] is None


class Lengths(Net):
    """Takes batches of any length."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, :4])


def test_a_run_that_keeps_recompiling_says_so_and_goes_on_without_graphs(
    traced: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With and without a restart in the middle: it gives up at the same step."""
    monkeypatch.setattr(choice, "MOST_RECOMPILATIONS", 2)
    lengths = [4, 5, 5, 4, 6, 7, 8, 9]
    data = [
        (torch.ones(2, length) * torch.tensor([[1.0], [2.0]]), torch.ones(2, 1))
        for length in lengths
    ]
    given: dict[str, Any] = {
        "model": Lengths,
        "optimizer": partial(torch.optim.SGD, lr=0.01),
        "seed": 1,
    }
    plain = build(None, **given)
    plain.train(data, num_epochs=1)
    whole = build("step", **given)
    whole.train(data, num_epochs=1)
    compiled = whole.run.compiled
    assert compiled is not None
    assert (compiled.choice, compiled.num_recompilations) == ("eager", 3)
    assert "pad batches to a few lengths" in compiled.reason
    assert sum("is not compiled" in line for line in lines_of(whole)) == 1
    assert_close(plain.history, whole.history, 1e-5)
    parts = [build("step", run_dir=tmp_path / "run", **given) for _ in range(2)]
    for trainer, updates in zip(parts, (3, len(data)), strict=True):
        trainer.train(data, num_updates=updates)
    assert parts[1].run.compiled is not None
    assert {**parts[1].run.compiled.state_dict(), "seconds": 0.0} == {
        **compiled.state_dict(),
        "seconds": 0.0,
    }


class Branching(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


class OwnStep(Trainer):
    def train_step(self, batch: Any) -> Any:
        return super().train_step(batch)


class OwnUpdate(Trainer):
    def update(self, *args: Any, **kwargs: Any) -> None:
        super().update(*args, **kwargs)


def two_optimizers(params: Any) -> Any:
    first, *rest = params
    return {"a": SGD([first]), "b": SGD(rest)}


class OwnSGD(torch.optim.SGD):
    pass


def with_hook(params: Any) -> Any:
    optimizer = SGD(params)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


class Hooked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.last.weight.register_hook(lambda grad: grad * 2)


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 1, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.table((x[:, 0] > 0).long())


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"kind": OwnStep}, "`train_step` is overridden.* override `forward` and `compute_loss`"),
        ({"kind": OwnUpdate}, r"is overridden"),
        ({"kind": Reading}, "torch cannot trace it"),
        ({"model": Counting}, "compiled again in every step: .* such as a counter"),
        ({"model": Listing}, "compiled again in every step: .* a list or buffer that grows"),
        ({"model": Branching}, "torch cannot trace it: Data-dependent branching .*line"),
        ({"optimizer": two_optimizers}, r"there are 2 optimizers \(a, b\)"),
        ({"optimizer": OwnSGD}, "OwnSGD is not one of the optimizers that can be compiled"),
        ({"optimizer": partial(SGD, dampening=0.1)}, "SGD has .*dampening"),
        ({"optimizer": with_hook}, "before or after the optimizer's steps"),
        ({"model": Hooked}, "in the backward pass"),
        ({"model": Sparse, "optimizer": partial(torch.optim.SGD, lr=0.1)}, "sparse gradients"),
        ({"callbacks": lambda: [Profile()]}, "as `Profile` does"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_what_cannot_be_compiled_trains_as_it_is_and_says_why_in_one_line(
    traced: None, given: dict[str, Any], reason: str
) -> None:
    plain, tried = build(None, **given), build("step", measures=True, **given)
    for trainer in (plain, tried):
        trainer.train(DATA, num_epochs=1, batch_size=16)
    compiled = tried.run.compiled
    assert compiled is not None
    assert compiled.choice == "eager"
    (line,) = [line for line in lines_of(tried) if "is not compiled" in line]
    assert re.search(reason, line), line
    assert line == f"compile='step': the step is not compiled: {compiled.reason}."
    assert "\n" not in line
    for name, value in plain.model.state_dict().items():
        assert torch.equal(tried.model.state_dict()[name], value), name


def test_other_obstacles_are_found_before_anything_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = build("step", precision="fp16")
    trainer._setup_training()
    assert "use 'bf16'" in str(find_obstacle(trainer.run))
    trainer = build("step")
    trainer._setup_training()
    assert find_obstacle(trainer.run) is None
    monkeypatch.setattr(trainer.runtime, "world", 2, raising=False)
    assert "several processes" in str(find_obstacle(trainer.run))
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert "install g++ or clang++" in str(find_obstacle(trainer.run))


def test_an_error_of_the_model_is_its_own(traced: None) -> None:
    class Failing(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x[:, :3])

    said = []
    for what in (None, "step"):
        trainer = build(what, model=Failing, measures=True)
        with pytest.raises(RuntimeError) as caught:
            trainer.train(DATA, num_epochs=1, batch_size=16)
        said.append((str(caught.value), caught.value.__notes__))
    assert said[0] == said[1]

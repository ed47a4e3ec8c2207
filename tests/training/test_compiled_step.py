"""Steps by graphs: the same training as without them, whatever a trainer is asked for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from loopwright import Callback, Schedule, Trainer
from loopwright.callbacks import EMA, GradientNormLog, NonFiniteGuard
from loopwright.errors import NonFiniteLossError
from tests.training.compiled_runs import DATA, SGD, Bad, X, assert_same, both, build, traced

__all__ = ["traced"]  # a fixture
pytestmark = pytest.mark.usefixtures("traced")
Adam = partial(torch.optim.Adam, lr=0.01)


@pytest.mark.parametrize(
    "optimizer",
    [
        partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
        partial(torch.optim.Adam, lr=0.01, weight_decay=0.1, amsgrad=True),
        partial(torch.optim.AdamW, lr=0.01, fused=True),
        partial(torch.optim.SGD, lr=0.05, maximize=True),
    ],
)
def test_each_optimizer_trains_as_without_graphs(optimizer: Any) -> None:
    data = X[:32], DATA[1][:32]
    eager, compiled = both(optimizer=optimizer, data=data)
    assert_same(eager, compiled)
    assert compiled.run.compiled is not None
    assert len(compiled.run.compiled.graphs) == 1
    # and each continues with the other's state
    compiled.model.load_state_dict(eager.model.state_dict())
    states = [t.optimizers["optimizer"].state_dict() for t in (eager, compiled)]
    eager.optimizers["optimizer"].load_state_dict(states[1])
    compiled.optimizers["optimizer"].load_state_dict(states[0])
    for trainer in (eager, compiled):
        trainer.train(data, num_epochs=1, batch_size=16)
    assert_same(eager, compiled)


class Listening(Callback):
    """Sees, and changes, complete gradients."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def on_optimizer_start(self, trainer: Any, optimizer: str) -> None:
        grads = [p.grad for p in trainer.parameters() if p.grad is not None]
        self.norms.append(float(torch.nn.utils.get_total_norm(grads)))
        grads[0].mul_(0.5)


def test_windows_of_several_batches_with_listeners_clipping_and_an_average() -> None:
    """Five batches in windows of two: the last window is short, and its batch is ragged."""
    data = torch.cat([X, X])[:70], torch.cat([DATA[1], DATA[1]])[:70]
    given: dict[str, Any] = {
        "accumulate": 2,
        "clip_norm": 0.5,
        "clip_value": 0.3,
        "optimizer": Adam,
        "data": data,
    }
    eager, compiled = both(callbacks=lambda: [Listening(), GradientNormLog(), EMA(0.9)], **given)
    assert_same(eager, compiled)
    assert compiled.callbacks[0].norms == pytest.approx(eager.callbacks[0].norms, abs=1e-5)
    assert len(compiled.history.steps["grad_norm"]) == len(eager.history.steps["grad_norm"]) == 6
    assert compiled.run.compiled is not None
    names = [graph.split()[0] for graph in compiled.run.compiled.graphs]
    assert sorted(names) == ["apply", "gradients", "gradients"], (
        "one for each shape of batch, and one for the update"
    )


class Tokens(Trainer):
    """Counts the items of each batch, and reports another value."""

    def compute_loss(self, outputs: Tensor, targets: Tensor) -> Any:
        return (outputs - targets).square().sum(), torch.tensor(targets.numel())


class Named(Trainer):
    def compute_loss(self, outputs: Tensor, targets: Tensor) -> Any:
        error = outputs - targets
        return {"square": error.square().mean(), "absolute": error.abs().mean() * 0.1}


class Outputs(Callback):
    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def on_train_step_end(self, trainer: Any, batch: Any, result: Any) -> None:
        assert not result.outputs.requires_grad or trainer.compile_mode is None
        self.seen.append(result.outputs.detach().clone())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_losses_that_are_sums_over_counted_items(accumulate: int) -> None:
    assert_same(*both(kind=Tokens, accumulate=accumulate, epochs=1))


def test_named_losses_are_reported_and_callbacks_get_outputs() -> None:
    eager, compiled = both(kind=Named, epochs=1, callbacks=lambda: [Outputs()], precision="bf16")
    assert_same(eager, compiled)
    assert list(compiled.history.steps) == ["loss", "square", "absolute"]
    for expected, given in zip(eager.callbacks[0].seen, compiled.callbacks[0].seen, strict=True):
        torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-5)


def test_changed_options_of_the_optimizer_count_and_need_no_new_graph() -> None:
    """OneCycleLR changes learning rate and momentum in every update; a callback changes the rest at
    some time."""

    class Change(Callback):
        def on_update_end(self, trainer: Any) -> None:
            if trainer.progress.update == 3:
                trainer.optimizers["optimizer"].param_groups[0]["weight_decay"] = 0.2

    cycle = Schedule(
        partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=8), "update"
    )
    data = X[:32], DATA[1][:32]
    optimizer = partial(SGD, weight_decay=0.01)
    eager, compiled = both(
        4, data, scheduler=cycle, callbacks=lambda: [Change()], optimizer=optimizer
    )
    assert_same(eager, compiled)
    assert compiled.run.compiled is not None
    assert len(compiled.run.compiled.graphs) == 1
    assert compiled.run.compiled.num_recompilations == 0


def test_layers_frozen_in_the_middle_of_an_epoch_and_another_state_that_is_loaded(
    tmp_path: Path,
) -> None:
    class Freezing(Callback):
        def on_update_end(self, trainer: Any) -> None:
            trainer.model.first.requires_grad_(trainer.progress.update not in (2, 3))

    eager, compiled = both(callbacks=lambda: [Freezing()], optimizer=Adam)
    assert_same(eager, compiled)
    eager.save(tmp_path / "saved")
    for trainer in (eager, compiled):
        trainer.load(tmp_path / "saved")
        trainer.train(DATA, num_samples=20, batch_size=16)  # cuts the second batch
    assert_same(eager, compiled)
    assert compiled.progress.sample == eager.progress.sample == 96


BAD = X[:32].clone()
BAD[20] = 100.0


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("action", ["skip", "stop"])
def test_an_update_with_a_loss_that_is_not_finite_does_not_reach_the_weights(
    action: Any, accumulate: int
) -> None:
    guard = lambda: [NonFiniteGuard(action)]  # noqa: E731
    data = torch.cat([BAD, X[:32]]), torch.cat([DATA[1][:32]] * 2)
    eager, compiled = both(
        2, data, model=Bad, callbacks=guard, accumulate=accumulate, optimizer=Adam
    )
    assert_same(eager, compiled)
    assert (
        compiled.callbacks[0].num_skipped
        == eager.callbacks[0].num_skipped
        == (2 if action == "skip" else 0)
    )
    assert compiled.stop_reason == eager.stop_reason
    state = compiled.optimizers["optimizer"].state.get(compiled.model.net.weight, {"step": 0})
    assert state["step"] < compiled.progress.update
    assert all(torch.isfinite(p).all() for p in compiled.parameters())


def test_a_gradient_that_is_not_finite_is_refused_too() -> None:
    class Steep(Bad):
        def forward(self, x: Tensor) -> Tensor:
            bad = (x[:, :1] > 50).any()
            out = self.net(x.clamp(max=5))
            # zero, with an infinite slope
            return out + torch.where(bad, (out - out.detach()).abs().sqrt(), 0.0)

    given: dict[str, Any] = {
        "model": Steep,
        "callbacks": lambda: [NonFiniteGuard("skip")],
        "clip_norm": 1.0,
    }
    eager, compiled = (build(what, **given) for what in (None, "step"))
    for trainer in (eager, compiled):
        with pytest.raises(NonFiniteLossError, match="Nothing was trained: all 2 updates"):
            trainer.train((BAD, DATA[1][:32]), num_epochs=1, batch_size=16)
    assert_same(eager, compiled)
    assert compiled.callbacks[0].num_skipped == eager.callbacks[0].num_skipped == 2

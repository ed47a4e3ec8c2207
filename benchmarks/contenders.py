"""The loops that are compared: two written by hand, and ours in several settings.

A contender is built once from a workload and returns a function that trains for so many steps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch.utils.data import DataLoader

from loopwright import Callback, Trainer
from loopwright.callbacks import NonFiniteGuard
from workloads import Round, Workload


def naive(work: Workload) -> Round:
    """What most people write."""
    model = work.build_model()
    optimizer = work.build_optimizer(model.parameters())
    loader = DataLoader(work.build_data(), batch_size=work.batch_size, **work.sampling())

    def run(num_steps: int) -> None:
        done, total = 0, 0.0
        while True:
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = work.loss_fn(model(inputs), targets)
                loss.backward()
                optimizer.step()
                total += loss.item()
                done += 1
                if done == num_steps:
                    return

    return run


def tight(work: Workload) -> Round:
    """What an expert writes when it matters."""
    model = work.build_model()
    optimizer = work.build_optimizer(model.parameters(), fused=True)
    inputs, targets = work.build_data().tensors

    def run(num_steps: int) -> None:
        done = 0
        while True:
            order = torch.randperm(len(inputs)) if work.order is None else torch.tensor(work.order)
            for start in range(0, len(inputs), work.batch_size):
                at = order[start : start + work.batch_size]
                optimizer.zero_grad()
                loss = work.loss_fn(model(inputs[at]), targets[at])
                loss.backward()
                optimizer.step()
                done += 1
                if done == num_steps:
                    return

    return run


class Idle(Callback):
    """A callback that listens to nothing in the loop."""


def _ours(
    work: Workload,
    *,
    is_factory: bool,
    is_bare: bool,
    more: Sequence[Callback] = (),
    compile: Literal["step"] | None = None,  # noqa: A002
) -> Round:
    model, data = work.build_model(), work.build_data()
    optimizer = work.build_optimizer if is_factory else work.build_optimizer(model.parameters())
    callbacks = [NonFiniteGuard("off")] if is_bare else []
    trainer = Trainer(
        model,
        optimizer,
        work.loss_fn,
        callbacks=[*callbacks, *more],
        compile=compile,
        progress="silent" if is_bare else "bar",
        run_dir=None if is_bare else Path(tempfile.mkdtemp()) / "run",
    )
    loader = DataLoader(data, batch_size=work.batch_size, **work.sampling())
    return lambda num_steps: trainer.train(loader, num_updates=num_steps) and None


def ours_own_optimizer(work: Workload) -> Round:
    """As a new user runs it: bar, history, run directory and guard, with the user's own optimizer
    object."""
    return _ours(work, is_factory=False, is_bare=False)


def ours_factory(work: Workload) -> Round:
    """The same with the optimizer as a factory, built fused."""
    return _ours(work, is_factory=True, is_bare=False)


def ours_bare(work: Workload) -> Round:
    """Everything optional off, fused."""
    return _ours(work, is_factory=True, is_bare=True)


def ours_bare_own(work: Workload) -> Round:
    """Everything optional off, with the user's own optimizer object."""
    return _ours(work, is_factory=False, is_bare=True)


def ours_bare_idle(work: Workload) -> Round:
    """Everything optional off, with 20 callbacks that do nothing."""
    return _ours(work, is_factory=True, is_bare=True, more=[Idle() for _ in range(20)])


def ours_bare_profile(work: Workload) -> Round:
    """Everything optional off, with a `Profile` of every step."""
    from loopwright.callbacks import Profile

    return _ours(work, is_factory=True, is_bare=True, more=[Profile()])


def ours_compiled_own(work: Workload) -> Round:
    """As a new user runs it, with the user's own optimizer object and `compile="step"`; the warm-up
    compiles."""
    return _ours(work, is_factory=False, is_bare=False, compile="step")


def ours_compiled(work: Workload) -> Round:
    """The same with the optimizer as a factory."""
    return _ours(work, is_factory=True, is_bare=False, compile="step")


def ours_compiled_bare(work: Workload) -> Round:
    """Everything optional off, and `compile="step"`."""
    return _ours(work, is_factory=True, is_bare=True, compile="step")


CONTENDERS: dict[str, Callable[[Workload], Round]] = {
    function.__name__: function
    for function in (
        naive,
        tight,
        ours_own_optimizer,
        ours_factory,
        ours_bare,
        ours_bare_own,
        ours_bare_idle,
        ours_bare_profile,
        ours_compiled_own,
        ours_compiled,
        ours_compiled_bare,
    )
}

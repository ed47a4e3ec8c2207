"""Steps by graphs with real kernels, which take seconds to compile: equal to eager ones, and exact
in a resumed run."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from loopwright import Callback, Trainer
from loopwright.callbacks import Checkpoints
from tests.forked import call_forked
from tests.training.compiled_runs import DATA, Net, X, assert_close, build

EVEN = X[:32], DATA[1][:32]
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def _kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One folder for the kernels of these tests, and one process to compile them."""
    import torch._inductor.config as generation

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        # undone by a plain `setattr`, the option would be gone for good
        with generation.patch(compile_threads=1):
            yield


class Dropping(Net):
    """With random numbers in the forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(x, 0.3, self.training))


class Killed(Callback):
    def on_update_end(self, trainer: Any) -> None:
        if trainer.progress.update == 5:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_run_continues_as_if_nothing_had_happened_to_the_last_bit(tmp_path: Path) -> None:
    """Kernels draw their own random numbers, whose seeds come from torch's generator."""

    def train(trainer: Trainer) -> Trainer:
        trainer.train(EVEN, num_epochs=4, batch_size=16)
        return trainer

    given: dict[str, Any] = {"model": Dropping, "run_dir": tmp_path / "run"}
    untouched = train(build("step", model=Dropping))
    saving = partial(list, [Killed(), Checkpoints(every_updates=3)])
    ended = call_forked(lambda: train(build("step", callbacks=saving, **given)), tmp_path)
    assert ended.code == -signal.SIGKILL, ended.err
    resumed = train(build("step", measures=True, **given))
    assert resumed.run.compiled is not None
    assert resumed.run.compiled.choice == "compiled"
    assert resumed.progress.update == untouched.progress.update == 8
    assert_close(untouched.history, resumed.history, 0.0)
    for name, value in untouched.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name


@pytest.mark.parametrize(
    "name", ["W1", *(pytest.param(n, marks=pytest.mark.long) for n in ("W2", "W3"))]
)
def test_a_hundred_steps_have_the_losses_of_eager_ones(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses are what is promised: weights, which Adam changes by quotients of small numbers,
    differ by up to 1e-4."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    from workloads import WORKLOADS

    work = WORKLOADS[name]
    torch.manual_seed(4)
    data = work.build_data().tensors
    given: dict[str, Any] = {"model": work.build_model, "optimizer": work.build_optimizer}
    trainers = [build(what, **given) for what in (None, "step")]
    for trainer in trainers:
        trainer.loss_fn = work.loss_fn
        trainer.train(data, num_updates=100, batch_size=work.batch_size)
    eager, compiled = trainers
    assert compiled.run.compiled is not None
    assert compiled.run.compiled.choice == "compiled", compiled.run.compiled.reason
    assert compiled.progress.update == 100
    assert_close(eager.history, compiled.history, 1e-5)
    for name, value in eager.model.state_dict().items():
        torch.testing.assert_close(compiled.model.state_dict()[name], value, atol=1e-4, rtol=0.0)

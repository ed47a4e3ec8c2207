"""Operators, host syncs and tensor allocations per step: those of the loop that one writes by hand,
and no more."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from loopwright import Runtime
from loopwright.callbacks import NonFiniteGuard

from .counting import added, allocations, operators, per_step, syncs
from .programs import BATCH, PROGRAMS, adam, by_hand, mse, native, plain_step

pytestmark = pytest.mark.usefixtures("rare_log_points")

KEPT_LOSS = Counter({"aten::detach": 1})  # for the history; it is a view and costs no memory
# reads the loss and the flag of the gradients on the CPU, where that does not wait for anything
GUARD = Counter({"aten::_local_scalar_dense": 2})


class FarRuntime(Runtime):
    """The CPU, as if reading a number from it meant waiting for a queue."""

    @property
    def reads_are_free(self) -> bool:
        return False


def clipped_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor
) -> None:
    optimizer.zero_grad()
    mse(model(inputs), targets).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def autocast_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor
) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = mse(model(inputs), targets)
    loss.backward()
    optimizer.step()


def of_torch(counts: Counter[str]) -> Counter[str]:
    """Without markers for torch's own profiler, and under one name what is one operator in any
    case.

    These are the selection of samples, for each tensor, and the gradient 1 of the loss itself.
    """
    names = {"aten::index": "aten::index_select", "aten::new_ones": "aten::ones_like"}
    return Counter(
        {
            names.get(name, name): n
            for name, n in counts.items()
            if not name.startswith("profiler::")
        }
    )


def native_unguarded(**options: Any) -> Any:
    return native(callbacks=[NonFiniteGuard("off")], **options)


CASES: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    "plain": (plain_step, {}),
    "clipping": (clipped_step, {"clip_norm": 1.0}),
    "bf16": (autocast_step, {"precision": "bf16"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_runs_the_operators_of_the_hand_written_loop(case: str):
    step, options = CASES[case]
    ours = of_torch(per_step(lambda: native_unguarded(**options), operators))
    theirs = of_torch(per_step(lambda: by_hand(step, fused=True), operators)) + KEPT_LOSS
    assert ours == theirs, added(ours, theirs)


def test_the_users_own_optimizer_is_stepped_with_its_own_operators():
    def unfused(params: Any) -> Any:
        return adam(params, fused=False, foreach=False)

    ours = of_torch(per_step(lambda: native_unguarded(optimizer=unfused), operators))
    theirs = (
        of_torch(per_step(lambda: by_hand(plain_step, fused=False, foreach=False), operators))
        + KEPT_LOSS
    )
    assert ours == theirs, added(ours, theirs)


@pytest.mark.parametrize("name", ["native", "fetched"])
def test_a_step_records_no_event_where_no_profiler_runs(name: str):
    counts = per_step(PROGRAMS[name], operators)
    assert not [operator for operator in counts if operator.startswith("profiler::")]


@pytest.mark.parametrize(("name", "seeds"), [("fetched", 0), ("fetched_noisy", BATCH)])
def test_a_data_set_that_draws_is_seeded_once_for_each_sample(name: str, seeds: int):
    num_seeds = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal num_seeds
        num_seeds += event == "c_call" and argument.__name__ == "manual_seed"

    def count(steps: int) -> int:
        nonlocal num_seeds
        train, num_seeds = PROGRAMS[name](), 0
        sys.setprofile(profile)
        try:
            train(steps)
        finally:
            sys.setprofile(None)
        return num_seeds

    assert count(30) - count(20) == 10 * seeds


def test_a_step_allocates_as_many_tensors_as_the_hand_written_loop():
    theirs = per_step(lambda: by_hand(plain_step, fused=True), allocations)
    for build in (native, native_unguarded):
        ours = per_step(build, allocations)
        assert ours == theirs, added(ours, theirs)
    assert theirs["allocated"] > 0


INTERFACE_OPERATORS = {  # besides those of the native trainer with the same optimizer
    "simple": Counter(),
    "lifecycle": Counter(),
    "configured": Counter({"aten::detach": 1}),  # it reports the loss under a name of its own, too
    "modular": Counter({"aten::detach": 1}),
}


@pytest.mark.parametrize("interface", INTERFACE_OPERATORS)
def test_an_interface_runs_the_operators_of_the_native_trainer(interface: str):
    ours = of_torch(per_step(PROGRAMS[interface], operators))
    native_with_own = partial(
        native, optimizer=lambda params: adam(params, fused=False, foreach=False)
    )
    theirs = of_torch(per_step(native_with_own, operators)) + INTERFACE_OPERATORS[interface]
    assert ours == theirs, added(ours, theirs)


# Host syncs

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipping": {"clip_norm": 1.0},
    "bf16": {"precision": "bf16"},
}


@pytest.mark.parametrize("case", SETTINGS)
def test_without_a_guard_no_step_reads_from_the_device(case: str):
    assert syncs(per_step(lambda: native_unguarded(**SETTINGS[case]), operators)) == {}


def test_without_a_guard_no_step_of_a_window_reads_from_the_device():
    counts = per_step(lambda: native_unguarded(accumulate=2), operators)  # one update is two steps
    assert syncs(counts) == {}


def test_the_guard_reads_the_loss_and_one_flag_for_all_gradients_where_reading_is_free():
    assert syncs(per_step(native, operators)) == dict(GUARD)


@pytest.mark.parametrize("action", ["raise", "skip", "stop"])
def test_with_a_fused_optimizer_the_guard_never_waits_for_a_device(action: Any):
    options: dict[str, Any] = {"callbacks": [NonFiniteGuard(action)], "clip_norm": 1.0}
    assert syncs(per_step(lambda: native(runtime=FarRuntime("cpu"), **options), operators)) == {}


@pytest.mark.parametrize("interface", list(INTERFACE_OPERATORS))
def test_no_interface_reads_more_numbers_than_the_guard_and_the_optimizer(interface: str):
    """Adam that is not fused reads the number of its steps for each parameter, here and in any
    loop."""
    reads = syncs(per_step(PROGRAMS[interface], operators))
    assert reads == {
        "aten::_local_scalar_dense": 2
        + len(list(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)).parameters()))
    }

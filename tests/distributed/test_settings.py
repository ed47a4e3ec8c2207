"""Settings of several processes: each does what it says, and those that do not go together are
refused."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from loopwright import ConfigurationError, DistributedRuntime, Mesh, Runtime, Trainer
from loopwright.runtime.base import _device_of_each
from loopwright.runtime.distributed import check_settings
from tests.distributed.ranks import RunRanks, run_ranks
from tests.distributed.scenarios import assert_same, build_data, weights_of
from tests.distributed.test_mesh import PLAN, Net, build
from tests.mistakes import raises


def fit(model: nn.Module, runtime: Any, **options: Any) -> dict[str, Any]:
    trainer = Trainer(
        model,
        lambda p: torch.optim.AdamW(p, lr=1e-2),
        nn.MSELoss(),
        runtime=runtime,
        progress="silent",
        **options,
    )
    dtype = next(model.parameters()).dtype
    data = TensorDataset(*(tensor.to(dtype) for tensor in build_data(19).tensors))
    trainer.train(data, num_epochs=2, batch_size=8)
    return {"weights": weights_of(model), "names": list(model.state_dict())}


class Dropping(Net):
    """Blocks with dropout, which has to be the same when activations are computed again."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.drop = nn.Dropout(0.5)
            block.forward = lambda x, block=block: (
                x + block.down(block.drop(torch.tanh(block.up(x))))
            )


def dropping() -> nn.Module:
    torch.manual_seed(6)
    return Dropping().double()


class Rounding(nn.Module):
    """Notes the types that it computes in."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(6, 2)
        self.seen: set[torch.dtype] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.seen |= {x.dtype, self.layer.weight.dtype}
        return self.layer(x).float()


def meta(strategy: Any, world: int | None = None) -> dict[str, Any]:
    """A model from the meta device, with an optimizer that was made before, trained."""
    with torch.device("meta"):
        model = nn.Sequential(
            *(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU()) for _ in range(2))
        ).double()
        model.append(nn.Linear(6, 2).double())
    torch.manual_seed(9)
    runtime = "cpu" if strategy is None else DistributedRuntime(strategy, sync_batch_norm=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    trainer = Trainer(model, optimizer, nn.MSELoss(), runtime=runtime, progress="silent")
    trainer.setup()
    first = weights_of(model)
    trainer.train(build_data(19), num_epochs=2, batch_size=8)
    return {"first": first, "weights": weights_of(model)}


def meta_frozen(strategy: Any) -> dict[str, Any]:
    """A frozen model from the meta device beside the one that is trained."""
    torch.manual_seed(9)
    with torch.device("meta"):
        teacher = nn.Linear(6, 2).double().requires_grad_(False)
    trainer = Trainer(
        nn.Linear(6, 2).double(), torch.optim.SGD, nn.MSELoss(), runtime=strategy, progress="silent"
    )
    trainer.teacher = teacher
    trainer.setup()
    return {"weights": weights_of(teacher)}


class Left(nn.Module):
    """A module that does not initialise all it has."""

    def __init__(self, values: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(8, 2))
        self.values = values

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.fill_(1.0)
            self.weight[-1] = self.values

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, 4))


def refuse_meta(strategy: Any, build: Callable[[], nn.Module]) -> str:
    with torch.device("meta"):
        model = build()
    with pytest.raises(ConfigurationError) as raised:
        Trainer(model, torch.optim.SGD, nn.MSELoss(), runtime=strategy, progress="silent").setup()
    return str(raised.value)


def mixed(rank: int) -> dict[str, Any]:
    model = Rounding()
    result = fit(
        model, DistributedRuntime("fsdp", param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    )
    return {
        "seen": model.seen,
        "kept": {p.dtype for p in model.parameters()},
        "rounded": result["weights"],
    }


def run_settings(rank: int) -> dict[str, Any]:
    """What each setting gives on two ranks, or how it failed."""
    tasks: dict[str, Callable[[], Any]] = {
        "offloaded": lambda: fit(
            build(), DistributedRuntime("fsdp", cpu_offload=True), clip_norm=0.5
        ),
        "checkpointed, sharded": lambda: fit(
            build(), DistributedRuntime("fsdp", activation_checkpointing=True)
        ),
        "checkpointed, copied": lambda: fit(
            build(), DistributedRuntime("ddp", activation_checkpointing=True)
        ),
        "mixed": lambda: mixed(rank),
        "meta, copied": lambda: meta("ddp"),
        "meta, sharded": lambda: meta("fsdp"),
        "meta, frozen": lambda: meta_frozen("ddp"),
        "meta, non-finite": lambda: refuse_meta("fsdp", lambda: Left(float("nan"))),
        "meta, without reset": lambda: refuse_meta("ddp", Bare),
        "no blocks to checkpoint": lambda: refuse(nn.Linear(6, 2), activation_checkpointing=True),
        "no blocks to compile": lambda: refuse(nn.Linear(6, 2), compile="blocks"),
    }
    results: dict[str, Any] = {}
    for name, task in tasks.items():
        try:
            results[name] = task()
        except Exception:
            results[name] = {"failed": traceback.format_exc()}
    return results


def refuse(model: nn.Module, **settings: Any) -> str:
    with pytest.raises(ConfigurationError) as raised:
        Trainer(
            model, torch.optim.SGD, nn.MSELoss(), runtime=DistributedRuntime("ddp", **settings)
        ).setup()
    return str(raised.value)


@pytest.fixture(scope="module")
def together(shared: RunRanks) -> list[dict[str, Any]]:
    return shared(run_settings, 2)


@pytest.mark.parametrize("name", ["offloaded", "checkpointed, sharded", "checkpointed, copied"])
def test_a_setting_that_saves_memory_changes_neither_weights_nor_names(
    name: str, together: list[Any]
) -> None:
    expected = fit(build(), "cpu", clip_norm=0.5 if name == "offloaded" else None)
    for results in together:
        assert_same(results[name], expected)


def test_activations_computed_again_have_the_same_dropout() -> None:
    assert_same(
        fit(dropping(), Runtime("cpu", activation_checkpointing=True)), fit(dropping(), "cpu")
    )


def test_a_mixed_precision_policy_computes_in_one_type_and_keeps_the_weights_in_another(
    together: list[Any],
) -> None:
    expected = {"rounded": fit(Rounding(), "cpu")["weights"]}
    for results in together:
        assert results["mixed"].pop("seen") == {torch.bfloat16}
        assert results["mixed"].pop("kept") == {torch.float32}
        assert_same(results["mixed"], expected)


@pytest.mark.parametrize("strategy", ["copied", "sharded"])
def test_a_model_from_the_meta_device_begins_and_ends_as_on_one_process(
    strategy: str, together: list[Any]
) -> None:
    expected = meta(None)
    for results in together:
        assert all(map(torch.equal, results[f"meta, {strategy}"].pop("first"), expected["first"]))
        assert_same(results[f"meta, {strategy}"], {"weights": expected["weights"]})


def test_a_frozen_model_from_the_meta_device_is_initialised_to_the_same_values(
    together: list[Any],
) -> None:
    expected = meta_frozen("cpu")
    for results in together:
        assert_same(results["meta, frozen"], expected)


def test_values_that_are_not_finite_right_after_initialisation_are_refused_on_all_processes(
    together: list[Any],
) -> None:
    messages = [results["meta, non-finite"] for results in together]
    assert messages[0].startswith("weight has non-finite values right after initialisation")
    assert messages[0] == messages[1]  # though one of them has only good values


def test_a_module_that_cannot_initialise_itself_is_refused(together: list[Any]) -> None:
    for results in together:
        assert (
            "the model (Bare) has its own tensors but no `reset_parameters()`"
            in results["meta, without reset"]
        )


@pytest.mark.parametrize("what", ["checkpoint", "compile"])
def test_a_setting_for_blocks_is_refused_for_a_model_without(
    what: str, together: list[Any]
) -> None:
    for results in together:
        assert "found no repeated blocks" in results[f"no blocks to {what}"]


def compile_parts(rank: int) -> dict[str, Any]:
    """Compiled without generating machine code, which takes half a minute and is not ours to
    test."""
    from torch._dynamo.utils import counters

    if hasattr(torch.compiler, "set_default_backend"):  # torch 2.11 has none
        torch.compiler.set_default_backend("eager")
    results: dict[str, Any] = {}
    for strategy, what in (("ddp", "model"), ("fsdp", "blocks")):
        counters.clear()
        results[what] = fit(build(), DistributedRuntime(strategy, compile=what))
        assert counters["frames"]["ok"] > 0
    return results


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_or_block_changes_neither_weights_nor_names() -> None:
    expected = fit(build(), "cpu")
    for results in run_ranks(compile_parts, 2):
        assert_same(results, {"model": expected, "blocks": expected})


@pytest.mark.parametrize(
    ("strategy", "precision", "sharding", "code"),
    [
        ("fsdp", "fp16", [], "fp16-sharded"),
        (Mesh(tensor=2, plan=PLAN), "fp16", [], "fp16-sharded"),
        ("ddp", "fp32", ["cpu_offload"], "not-sharded"),
        (Mesh(replicate=2, tensor=2, plan=PLAN), "fp32", ["cpu_offload"], "not-sharded"),
        ("fsdp", "bf16", ["param_dtype"], "given-twice"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    strategy: Any, precision: str, sharding: list[str], code: str
) -> None:
    with raises(code, *sharding):
        check_settings(strategy, precision, sharding)


def test_the_constructor_checks_its_settings_before_it_meets_the_others() -> None:
    with raises("not-sharded", "cpu_offload"):
        DistributedRuntime("ddp", cpu_offload=True)
    with raises("number", "bucket_mb=-25"):
        DistributedRuntime("ddp", bucket_mb=-25)


def test_unknown_strategies_are_refused() -> None:
    with raises("unknown-runtime", "'dpp'"):
        DistributedRuntime("dpp")


def test_a_device_that_is_said_is_that_of_every_process():
    def build(rank: int) -> tuple[int, str]:
        runtime = Trainer(nn.Linear(2, 2), device="cpu").runtime
        return runtime.world, runtime.device.type

    assert run_ranks(build, 2) == [(2, "cpu"), (2, "cpu")]


def test_one_device_for_several_processes_is_refused():
    with raises("one-device-for-all", "'cuda:1'", "write 'cuda'"):
        _device_of_each(torch.device("cuda:1"))
    assert _device_of_each(torch.device("cuda")) is None  # each takes its own

"""The arithmetic, against numbers worked out by hand and against the real module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from loopwright import Mesh
from loopwright.scaling import (
    Cluster,
    Collective,
    Device,
    Link,
    ModelShape,
    OptimizerState,
    estimate,
    measure,
    transformer,
)
from loopwright.scaling.estimate import LAUNCH, seconds_of
from loopwright.scaling.layout import Sizes, optimizer_state
from tests.mistakes import raises
from tests.scaling import models

SMALL = {"layers": 2, "width": 8, "hidden": 12, "vocabulary": 11}
PLAIN = Cluster(
    Device("plain", flops=1e12, memory=10**9, bandwidth=1e11),
    per_node=4,
    within=Link("in", 1e10, 1e-6),
    between=Link("out", 1e9, 1e-5),
    utilisation=0.5,
    link_utilisation=1.0,
)


def small(**options: Any) -> Any:
    return transformer(sequence=5, compute_dtype=torch.float32, **{**SMALL, **options})


def test_a_transformer_of_numbers_is_the_module_of_those_numbers() -> None:
    shape = small()
    module = models.Text(**SMALL)
    measured = measure(module, torch.zeros(4, 5, dtype=torch.long), plan=models.PLAN)
    key = [(weight.shape, weight.block, weight.cut, weight.is_placed) for weight in shape.weights]
    assert sorted(key, key=str) == sorted(
        [(w.shape, w.block, w.cut, w.is_placed) for w in measured.weights], key=str
    )
    assert (shape.flops, shape.cut_flops) == (measured.flops, measured.cut_flops)
    assert set(shape.exchanges) == set(measured.exchanges)
    assert shape.num_parameters == sum(param.numel() for param in module.parameters())


def test_measuring_is_the_same_on_the_meta_device_and_leaves_the_module_alone() -> None:
    module = models.text()
    before = {name: param.clone() for name, param in module.named_parameters()}
    tokens = torch.zeros(3, 5, dtype=torch.long)
    measured = measure(module, tokens)
    assert vars(measured) == vars(measure(models.text().to("meta"), tokens))
    assert all(torch.equal(param, before[name]) for name, param in module.named_parameters())
    assert all(
        param.grad is None and not param._post_accumulate_grad_hooks
        for param in module.parameters()
    )


def test_activations_are_the_tensors_that_autograd_keeps() -> None:
    model = nn.Sequential(nn.Linear(6, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False))
    measured = measure(model, torch.zeros(7, 6))
    # the first layer keeps its inputs, tanh and the second layer the same tensor
    inputs, hidden = (
        6 * 4,
        4 * 4,
    )
    assert measured.activations == inputs + hidden
    assert measured.flops == 2 * (6 * 4 + 4 * 2) * 2 + 2 * 4 * 2  # forward, both weights, one input


def test_recomputed_blocks_keep_their_inputs_and_one_block() -> None:
    module = models.Text(layers=4, width=8, hidden=12, vocabulary=11)
    tokens = torch.zeros(2, 5, dtype=torch.long)
    full, three = measure(module, tokens), measure(models.Text(3, 8, 12, 11), tokens)
    block = full.activations - three.activations
    assert full.checkpointed == full.activations - 3 * block + 4 * (5 * 8 * 4)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("sgd", OptimizerState(0, 0)),
        ("momentum", OptimizerState(1, 0)),
        ("AdamW", OptimizerState(2, 4)),
        (torch.optim.Adam([nn.Parameter(torch.ones(2))], amsgrad=True), OptimizerState(3, 4)),
        (torch.optim.Adagrad([nn.Parameter(torch.ones(2))]), OptimizerState(1, 4)),
        (
            torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.5),
            OptimizerState(1, 0),
        ),
        (OptimizerState(7), OptimizerState(7)),
    ],
)
def test_the_state_of_an_optimizer_is_what_one_like_it_keeps(
    optimizer: Any, expected: OptimizerState
) -> None:
    assert optimizer_state(optimizer) == expected


def test_a_ring_inside_a_node_takes_hops_and_bytes() -> None:
    sent = Collective("all-gather", 4_000_000, 4, axis="shard")
    assert seconds_of(sent, Sizes(shard=4), PLAIN) == pytest.approx(
        LAUNCH + 3 * 1e-6 + 3_000_000 / 1e10
    )


def test_a_ring_over_nodes_is_as_slow_as_the_adapters_that_it_shares() -> None:
    # four adapters of a node carry it
    whole = Collective("reduce-scatter", 8_000_000, 8, axis="shard")
    seconds = LAUNCH + 6 * 1e-6 + 1e-5 + 7_000_000 / 4e9
    assert seconds_of(whole, Sizes(shard=8), PLAIN) == pytest.approx(seconds)
    # four groups, each with one adapter
    copies = Collective("all-reduce", 8_000_000, 2, axis="replicate")
    assert seconds_of(copies, Sizes(replicate=2, shard=4), PLAIN) == pytest.approx(
        LAUNCH + 2e-5 + 8_000_000 / 1e9
    )


def test_a_small_all_reduce_of_many_nodes_goes_by_a_tree() -> None:
    sent = Collective("all-reduce", 1000, 64, axis="data")
    tree = 2 * (3 * 1e-6 + 4 * 1e-5) + 2 * 1000 / 4e9
    assert seconds_of(sent, Sizes(replicate=64), PLAIN) == pytest.approx(LAUNCH + tree)


def test_what_computation_hides_is_not_waited_for() -> None:
    model = transformer(4, 256, sequence=512)
    for strategy in ("ddp", "fsdp", "hsdp", "tp"):
        shown = estimate(model, strategy, devices=8, batch=64, cluster=PLAIN, overlap=False)
        hidden = estimate(model, strategy, devices=8, batch=64, cluster=PLAIN)
        assert 0 < hidden.timing.exposed <= shown.timing.exposed <= shown.timing.communication
        assert shown.timing.communication == hidden.timing.communication
    assert (
        hidden.timing.step
        == hidden.timing.compute + hidden.timing.optimizer + hidden.timing.exposed
    )
    operations = (model.flops - model.cut_flops * 3 / 4) * 32  # 2 copies, 4 share a layer
    assert hidden.timing.compute == pytest.approx(operations / 0.5e12)


def test_a_mesh_and_its_sizes_are_the_same_estimate() -> None:
    by_mesh = estimate(small(), Mesh(replicate=2, shard=4), devices=8, batch=8)
    by_sizes = estimate(small(), {"replicate": 2, "shard": 4}, devices=8, batch=8)
    by_name = estimate(small(), "hsdp", devices=8, batch=8, cluster=Cluster("a100", per_node=4))
    assert by_mesh.sizes == by_sizes.sizes == by_name.sizes
    assert by_mesh.collectives == by_sizes.collectives == by_name.collectives
    assert by_mesh.sizes.runtime == "runtime=Mesh(replicate=2, shard=4)"


def test_lines_of_a_program_name_what_is_not_the_default() -> None:
    one = estimate(
        small(),
        "fsdp",
        devices=8,
        batch=32,
        accumulate=2,
        param_dtype=torch.bfloat16,
        activation_checkpointing=True,
    )
    settings = '"fsdp", param_dtype=torch.bfloat16, activation_checkpointing=True'
    assert one.program_lines == [
        f"Trainer(..., runtime=DistributedRuntime({settings}), accumulate=2)",
        "trainer.train(data, batch_size=16)",
    ]
    plain = estimate(small(), devices=2, batch=4)
    assert plain.program_lines[0] == 'Trainer(..., runtime="ddp", precision="bf16")'
    again = estimate(small(), devices=2, batch=4, activation_checkpointing=True)
    settings = '"ddp", activation_checkpointing=True, precision="bf16"'
    assert again.program_lines[0] == f"Trainer(..., runtime=DistributedRuntime({settings}))"


class Peeks(nn.Module):
    """Looks at the values of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if x.sum().item() > 0 else x


class Odd(torch.optim.Optimizer):
    """Keeps rows and columns apart, as Adafactor does."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        for param in self.param_groups[0]["params"]:
            self.state[param]["rows"] = param.sum(1)


def without_plan() -> ModelShape:
    return measure(nn.Linear(4, 2), torch.ones(3, 4))


MISTAKES: list[tuple[Any, str, str]] = [
    (
        lambda: estimate(small(), {"replicate": 2, "shard": 4}, devices=16, batch=16),
        "mesh-size",
        "16",
    ),
    (lambda: estimate(small(), "zero3", devices=4, batch=16), "unknown-strategy", "zero3"),
    (lambda: estimate(small(), "hsdp", devices=12, batch=16), "mesh-size", "12"),
    (lambda: Cluster("h1000"), "unknown-hardware", "did you mean h100?"),
    (lambda: Cluster("h100", between="infiniband"), "unknown-hardware", "infiniband"),
    (lambda: Device("mine", 0, 10, 10), "number", "Device(flops=0)"),
    (lambda: Link("mine", -1, 1e-6), "number", "Link(bandwidth=-1)"),
    (lambda: Cluster(utilisation=40), "number", "Cluster(utilisation=40)"),
    (lambda: estimate(small(), devices=0, batch=16), "number", "devices=0"),
    (lambda: estimate(small(), devices=2, batch=0), "number", "batch=0"),
    (lambda: estimate(small(), devices=2, batch=10, accumulate=4), "uneven-steps", "accumulate=4"),
    (lambda: small(width=-8), "number", "width=-8"),
    (lambda: transformer(2, 64, sequence=8, parameters=7e9), "transformer-size", "4.19M"),
    (lambda: measure(Peeks(), torch.ones(3, 4)), "cannot-measure", "meta device"),
    (
        lambda: measure(nn.Linear(4, 2), (torch.ones(3, 4), torch.ones(3, 2))),
        "cannot-measure",
        "without targets",
    ),
    (lambda: estimate(without_plan(), {"tensor": 2}, devices=2, batch=4), "no-plan", "tensor=2"),
    (
        lambda: estimate(small(), devices=2, batch=4, param_dtype=torch.bfloat16),
        "setting-of-shards",
        "param_dtype",
    ),
    (
        lambda: estimate(small(), devices=2, batch=4, optimizer="lamb"),
        "unknown-optimizer",
        "lamb",
    ),
    (
        lambda: estimate(
            small(), devices=2, batch=4, optimizer=Odd([nn.Parameter(torch.ones(2, 2))])
        ),
        "optimizer-state",
        "Odd",
    ),
]


@pytest.mark.parametrize(("make", "code", "value"), MISTAKES)
def test_figures_that_cannot_be_are_refused(make: Any, code: str, value: str) -> None:
    with raises(code, value):
        make()


def test_a_batch_smaller_than_the_devices_is_named_and_costs_what_idle_devices_cost() -> None:
    model = transformer(4, 256, sequence=512)
    few, many = (estimate(model, "ddp", devices=n, batch=4) for n in (4, 16))
    assert "samples" not in few.problems
    assert many.problems["samples"] == "a step has 4 samples for 16 ranks"
    assert many.timing.compute == few.timing.compute
    assert many.efficiency < few.efficiency / 3
